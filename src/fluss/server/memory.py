# SPDX-License-Identifier: Apache-2.0
"""A bound on the bytes of requests in work over all connections."""

from __future__ import annotations

from collections.abc import Callable


class MemoryBudget:
    """Counts bytes; who wants more than there is waits for a call back."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        self.partial_bytes = 0
        self._waiting: dict[Callable[[], None], None] = {}

    @property
    def exhausted(self) -> bool:
        return self.taken_bytes + self.partial_bytes >= self.limit_bytes

    def take(self, size_bytes: int) -> None:
        self.taken_bytes += size_bytes

    def give_back(self, size_bytes: int) -> None:
        self.taken_bytes -= size_bytes
        self._wake()

    def note_partial(self, change_bytes: int) -> None:
        """Account for bytes of frames that are still arriving."""
        self.partial_bytes += change_bytes
        if change_bytes < 0:
            self._wake()

    def wait_for_room(self, callback: Callable[[], None]) -> None:
        self._waiting[callback] = None

    def _wake(self) -> None:
        if self._waiting and not self.exhausted:
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()
