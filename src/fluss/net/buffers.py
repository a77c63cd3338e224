# SPDX-License-Identifier: Apache-2.0
"""Buffers of large frames that are used again."""

from __future__ import annotations

import mmap
import threading
import weakref
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

    Every view of a buffer refers to the array that was handed out for it. When that array is collected the buffer is
    idle; so buffers need not be given back, and a view may end in any thread.
    """

    def __init__(self, kept_bytes_max: int = 16 * 1024 * 1024, *, huge_pages: bool = False) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._huge_pages = huge_pages
        self._idle: list[npt.NDArray[np.uint8]] = []
        # Appended to without the lock: the garbage collector may end an array in a thread that holds it.
        self._lock = threading.Lock()
        self.kept_bytes = 0
        """Memory of the buffers that will be used again, idle or not."""

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of exactly this size, its content arbitrary."""
        if size_bytes < _POOLED_BYTES_MIN:
            return np.empty(size_bytes, dtype=np.uint8).data
        with self._lock:
            buffer = self._idle_buffer(size_bytes)
            if buffer is None:
                buffer = _fresh(size_bytes, self._huge_pages)
                if not self._make_room(buffer.nbytes):
                    return buffer.data[:size_bytes]
        handed_out = buffer[:size_bytes]
        weakref.finalize(handed_out, self._idle.append, buffer).atexit = False
        return handed_out.data

    def _idle_buffer(self, size_bytes: int) -> npt.NDArray[np.uint8] | None:
        # Not one that is much too large: that would hold memory that is not counted.
        largest = size_bytes + size_bytes // 2 + _POOLED_BYTES_MIN
        for i in range(len(self._idle) - 1, -1, -1):
            if size_bytes <= self._idle[i].nbytes <= largest:
                return self._idle.pop(i)
        return None

    def _make_room(self, size_bytes: int) -> bool:
        """Count a new buffer as kept, if there is room; idle ones that do not fit today's requests make room."""
        while self._idle and self.kept_bytes + size_bytes > self._kept_bytes_max:
            self.kept_bytes -= self._idle.pop(0).nbytes
        if self.kept_bytes + size_bytes > self._kept_bytes_max:
            return False
        self.kept_bytes += size_bytes
        return True


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
