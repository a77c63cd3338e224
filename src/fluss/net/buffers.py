# SPDX-License-Identifier: Apache-2.0
"""Buffers of large frames that are used again."""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt


class _Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """A piece of a buffer on loan. Every view of it keeps it alive; its end brings the buffer back."""


class FrameBuffers:
    """Buffers for large frames, used again when nobody holds a view of them any more.

    Memory that is given to the operating system and taken back costs a page fault for each of its pages; for a large
    write request that is as dear as receiving it. `huge_pages` are for those whose buffers come back soon: taken from
    the system they are dear as well.
    """

    def __init__(self, kept_bytes_max: int = 16 * 1024 * 1024, *, huge_pages: bool = False) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._huge_pages = huge_pages
        self._idle: list[npt.NDArray[np.uint8]] = []
        self._lent: dict[int, tuple[weakref.ref[_Lease], npt.NDArray[np.uint8]]] = {}
        # The last view of a buffer may go in any thread, and even inside `take` when garbage is collected there: hence
        # a lock that its holder may take again, and nothing but appending under it in `_ended`.
        self._lock = threading.RLock()

    @property
    def idle_bytes(self) -> int:
        """Memory that is kept although nobody uses it."""
        return sum(buffer.nbytes for buffer in self._idle)

    def take(self, size_bytes: int) -> memoryview:
        """A buffer of exactly this size, its content arbitrary."""
        if size_bytes < _POOLED_BYTES_MIN:
            return np.empty(size_bytes, dtype=np.uint8).data
        with self._lock:
            buffer = self._idle_one(size_bytes)
        if buffer is None:
            buffer = _fresh(size_bytes, self._huge_pages)
        lease = buffer[:size_bytes].view(_Lease)
        reference = weakref.ref(lease, self._ended)
        self._lent[id(reference)] = reference, buffer
        return lease.data

    def _idle_one(self, size_bytes: int) -> npt.NDArray[np.uint8] | None:
        for i in range(len(self._idle) - 1, -1, -1):
            # Not one that is much too large: that would hold memory which nobody counts.
            if size_bytes <= self._idle[i].nbytes <= size_bytes + size_bytes // 2 + _POOLED_BYTES_MIN:
                return self._idle.pop(i)
        if self._idle:
            # What does not fit today's requests makes room for what does.
            self._idle.pop(0)
        return None

    def _ended(self, lease: weakref.ref[_Lease]) -> None:
        _, buffer = self._lent.pop(id(lease))
        with self._lock:
            if self.idle_bytes + buffer.nbytes <= self._kept_bytes_max:
                self._idle.append(buffer)


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
