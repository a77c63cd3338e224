# SPDX-License-Identifier: Apache-2.0
"""The bound on what writers hold in memory, and the waiting when it is met."""

from __future__ import annotations

import threading

from fluss.errors import DeadlineExceededError


class MemoryBudget:
    """Bytes of rows that were accepted but not acknowledged yet.

    A thread that writes faster than the server takes waits here. The event loop itself must never wait, because it is
    the one that frees memory: it is refused with a clear error instead.
    """

    def __init__(self, limit_bytes: int, wait_timeout_ms: int) -> None:
        self.limit_bytes = limit_bytes
        self.wait_timeout_ms = wait_timeout_ms
        self._used_bytes = 0
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def reserve(self, size_bytes: int, *, may_block: bool) -> None:
        """Take `size_bytes`. A piece larger than the whole budget is let through when nothing else is held."""
        with self._changed:
            if self._fits(size_bytes):
                self._used_bytes += size_bytes
                return
            if not may_block:
                raise DeadlineExceededError(
                    f"the write buffer is full: {self._used_bytes} of {self.limit_bytes} bytes wait for the server. "
                    "Await flush() or a handle now and then, or raise 'writer.buffer.memory-size'"
                )
            if not self._changed.wait_for(lambda: self._fits(size_bytes), self.wait_timeout_ms / 1000):
                raise DeadlineExceededError(
                    f"the write buffer stayed full for {self.wait_timeout_ms} ms: {self._used_bytes} of "
                    f"{self.limit_bytes} bytes wait for the server. Is it reachable? Raise 'writer.buffer.memory-size' "
                    "or 'writer.buffer.wait-timeout-ms' if it is only slow"
                )
            self._used_bytes += size_bytes

    def reserve_anyway(self, size_bytes: int) -> None:
        """Take what is in memory already, whatever the limit says."""
        with self._changed:
            self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        with self._changed:
            self._used_bytes -= size_bytes
            self._changed.notify_all()

    def _fits(self, size_bytes: int) -> bool:
        return self._used_bytes == 0 or self._used_bytes + size_bytes <= self.limit_bytes
