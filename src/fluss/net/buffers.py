# SPDX-License-Identifier: Apache-2.0
"""Buffers of large frames that are used again."""

from __future__ import annotations

import mmap
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt


class FrameBuffers:
    """Buffers for large frames, used again when no view of them is left.

    Memory that is given to the operating system and taken back costs a page fault for each of its pages; for a large
    write request that is as dear as receiving it. `huge_pages` are for those whose buffers come back soon: taken from
    the system they are dear as well.

    Every view of a buffer refers to it. One to which nothing refers but the list here is idle; so buffers need not be
    given back, and a view may end in any thread.
    """

    def __init__(self, kept_bytes_max: int = 16 * 1024 * 1024, *, huge_pages: bool = False) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._huge_pages = huge_pages
        self._kept: list[npt.NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    @property
    def kept_bytes(self) -> int:
        """Memory of the buffers that will be used again, idle or not."""
        return sum(buffer.nbytes for buffer in self._kept)

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of exactly this size, its content arbitrary."""
        if size_bytes < _POOLED_BYTES_MIN:
            return np.empty(size_bytes, dtype=np.uint8).data
        # Not one that is much too large: that would hold memory that is not counted.
        largest = size_bytes + size_bytes // 2 + _POOLED_BYTES_MIN
        kept = self._kept
        with self._lock:
            for i in range(len(kept) - 1, -1, -1):
                if size_bytes <= kept[i].nbytes <= largest and sys.getrefcount(kept[i]) == _IDLE:
                    return kept[i].data[:size_bytes]
            buffer = _fresh(size_bytes, self._huge_pages)
            self._keep(buffer)
        return buffer.data[:size_bytes]

    def _keep(self, buffer: npt.NDArray[np.uint8]) -> None:
        """Use a new buffer again, if there is room; idle ones that do not fit today's requests make room."""
        kept = self._kept
        excess = self.kept_bytes + buffer.nbytes - self._kept_bytes_max
        for i in range(len(kept) - 1, -1, -1):
            if excess > 0 and sys.getrefcount(kept[i]) == _IDLE:
                excess -= kept.pop(i).nbytes
        if excess <= 0:
            kept.append(buffer)


_IDLE = 2
"""References to an idle buffer: one of the list, and one of the call that counts them."""
_POOLED_BYTES_MIN = 256 * 1024
_HUGE_PAGE_BYTES = 2 * 1024 * 1024


def _fresh(size_bytes: int, huge_pages: bool) -> npt.NDArray[np.uint8]:
    """Memory that is not cleared: a peer that announces much and sends little costs little."""
    if not huge_pages or size_bytes <= _HUGE_PAGE_BYTES // 2 or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.empty(-(-size_bytes // _POOLED_BYTES_MIN) * _POOLED_BYTES_MIN, dtype=np.uint8)
    whole_bytes = -(-size_bytes // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES
    memory = mmap.mmap(-1, whole_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without them
        # The bytes of a write are looked at three times; with pages of 4 KB that is a thousand translations each time.
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype=np.uint8)
