# SPDX-License-Identifier: Apache-2.0
"""The bound on what writers hold in memory, and the waiting when it is met."""

from __future__ import annotations

import threading

from fluss.config import WAIT_FOREVER_MS
from fluss.errors import ConnectionClosedError, DeadlineExceededError


class MemoryBudget:
    """Bytes of rows that were accepted but not acknowledged yet.

    A writer waits for room before it hands rows over, and reserves what they need afterwards. Rows are never held back
    half-way, so a writer cannot wait for memory that only it could free. The limit is therefore exceeded by at most one
    chunk per writing thread.

    A thread that writes faster than the server takes waits here. The event loop itself must never wait, because it is
    the one that frees memory: it is refused with a clear error instead.
    """

    def __init__(self, limit_bytes: int, wait_timeout_ms: int) -> None:
        self.limit_bytes = limit_bytes
        self.wait_timeout_ms = wait_timeout_ms
        self._timeout_s = (
            None if wait_timeout_ms >= WAIT_FOREVER_MS else min(wait_timeout_ms / 1000, threading.TIMEOUT_MAX)
        )
        self._used_bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def wait_for_room(self, *, may_block: bool) -> None:
        """Return when less than the limit is held; raise when that takes too long, or the caller may not block."""
        if self._used_bytes < self.limit_bytes:
            return
        if not may_block:
            raise DeadlineExceededError(
                f"the write buffer is full: {self._used_bytes} of {self.limit_bytes} bytes wait for the server, and "
                "this row was not taken. Await flush() or a handle now and then, or raise 'writer.buffer.memory-size'"
            )
        with self._changed:
            done = self._changed.wait_for(
                lambda: self._closed or self._used_bytes < self.limit_bytes, timeout=self._timeout_s
            )
            if self._closed:
                raise ConnectionClosedError("the connection was closed while a write waited for room in the buffer")
            if not done:
                raise DeadlineExceededError(
                    f"the write buffer stayed full for {self.wait_timeout_ms} ms: {self._used_bytes} of "
                    f"{self.limit_bytes} bytes wait for the server. Is it reachable? Raise 'writer.buffer.memory-size' "
                    "or 'writer.buffer.wait-timeout-ms' if it is only slow"
                )

    def reserve(self, size_bytes: int) -> None:
        """Count bytes that are in memory now."""
        with self._changed:
            self._used_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Return bytes that are no longer in memory."""
        with self._changed:
            self._used_bytes -= size_bytes
            self._changed.notify_all()

    def close(self) -> None:
        """Wake the waiting threads: no memory will be freed any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
