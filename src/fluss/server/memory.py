# SPDX-License-Identifier: Apache-2.0
"""A bound on the bytes of requests over all connections, those that have not arrived completely included.

A large frame is charged with its whole length before it gets memory; one that cannot be charged waits unread in its
socket. Small frames fit into the receive buffer of their connection and are charged when they are complete.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from fluss.server.quotas import USER_SHARE, Waiters

LARGE_BYTES_MIN: Final = 64 * 1024
"""Frames of this size and more are charged before they are received."""


class UnsentAnswers(Waiters):
    """Counts the bytes of answers that wait in memory for their clients to take them, over all connections.

    Parts of files are not counted: they are sent from the file. Beyond the limit no further large answer is made, and
    connections whose clients do not take theirs are not read from. An answer that is being made is charged with the
    most it may take: otherwise many connections could each have one made at the same moment. One is made in any case.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.reserved_bytes = 0
        """What the answers that are being made may take."""
        self._queues: dict[object, dict[Callable[[], None], int]] = {}
        """Answers that wait to be charged, by owner, the next one first."""

    @property
    def exhausted(self) -> bool:
        return self.held_bytes > self.limit_bytes

    def reserve(self, size_bytes: int, owner: object, granted: Callable[[], None]) -> bool:
        """Charge an answer before it is made; if that is not possible yet, `granted` is called once it is.

        Owners are served in rotation: one that asks for many answers does not keep others waiting for all of them.
        """
        if size_bytes and (self._queues or not self._fits(size_bytes)):
            self._queues.setdefault(owner, {})[granted] = size_bytes
            return False
        self.reserved_bytes += size_bytes
        return True

    def release(self, size_bytes: int) -> None:
        """Return what was charged for an answer that is made."""
        self.reserved_bytes -= size_bytes
        self._grant()

    def cancel(self, owner: object, granted: Callable[[], None]) -> bool:
        """Cancel a charge; whether it was not granted yet."""
        queue = self._queues.get(owner, {})
        if queue.pop(granted, None) is None:
            return False
        if not queue:
            del self._queues[owner]
        self._grant()
        return True

    def _fits(self, size_bytes: int) -> bool:
        if self.exhausted:
            return False
        return not self.reserved_bytes or self.held_bytes + self.reserved_bytes + size_bytes <= self.limit_bytes

    def _grant(self) -> None:
        while self._queues:
            owner, queue = next(iter(self._queues.items()))
            granted, size_bytes = next(iter(queue.items()))
            if not self._fits(size_bytes):
                return
            del queue[granted]
            del self._queues[owner]
            if queue:
                self._queues[owner] = queue  # behind the others
            self.reserved_bytes += size_bytes
            granted()

    def add(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    def remove(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        if self._queues:
            self._grant()
        if self._waiting and self.held_bytes <= self.limit_bytes:
            self._call_waiting()


class RequestMemory(Waiters):
    """Counts bytes. Large frames are granted in the order in which they were announced, except that those of a user
    who holds three quarters of the bytes wait for this user's own.

    There is no deadlock: a large frame is granted at the latest when no other large frame is held, whatever small ones
    take, and those that are held either arrive, or are closed because they make no progress.
    """

    def __init__(self, limit_bytes: int) -> None:
        super().__init__()
        self.limit_bytes = limit_bytes
        self.taken_bytes = 0
        """Everything that is charged."""
        self.large_bytes = 0
        """The part of it that large frames take, from their first byte until they are answered."""
        self._by_user: Counter[object] = Counter()
        """The part of it that large frames of each user take."""
        self._queue: dict[Callable[[], None], tuple[int, object]] = {}

    @property
    def exhausted(self) -> bool:
        """Whether a connection that has a request in flight should read no further one.

        What the next large frame in the queue needs counts as taken: small requests must not overtake it for ever.
        """
        wanted = self._next()[1]
        return self.taken_bytes + wanted >= self.limit_bytes

    @property
    def is_wanted(self) -> bool:
        """Whether a large frame waits for memory that others hold."""
        return bool(self._queue)

    def take(self, size_bytes: int) -> None:
        """Charge a small request that has arrived, or what a request takes beside its bytes."""
        self.taken_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Return what a request took beside its bytes."""
        self.taken_bytes -= size_bytes
        if self._queue or self._waiting:
            self._wake()

    def charge(self, size_bytes: int, granted: Callable[[], None], user: object = None) -> bool:
        """Charge a large frame before it is received; if that is not possible yet, `granted` is called once it is."""
        is_first = self._next()[0] is None and self._has_share(user, size_bytes)
        if not is_first or not self._fits(size_bytes):
            self._queue[granted] = (size_bytes, user)
            return False
        self._charge(size_bytes, user)
        return True

    def held_by(self, user: object) -> int:
        """Return how many bytes the large frames of a user take."""
        return self._by_user[user]

    def cancel(self, granted: Callable[[], None]) -> None:
        """Cancel a charge that was not granted yet."""
        if self._queue.pop(granted, None) is not None:
            self._wake()

    def give_back(self, size_bytes: int, user: object = None) -> None:
        """Return what a request took, small or large."""
        self.taken_bytes -= size_bytes
        if size_bytes >= LARGE_BYTES_MIN:
            self.large_bytes -= size_bytes
            self._by_user[user] -= size_bytes
            if not self._by_user[user]:
                del self._by_user[user]
        if self._queue or self._waiting:
            self._wake()

    def _fits(self, size_bytes: int) -> bool:
        return self.taken_bytes + size_bytes <= self.limit_bytes or not self.large_bytes

    def _has_share(self, user: object, size_bytes: int) -> bool:
        """Whether a user may have so many bytes more; one frame of each user is always allowed."""
        held = self._by_user[user]
        return user is None or not held or held + size_bytes <= self.limit_bytes * USER_SHARE

    def _next(self) -> tuple[Callable[[], None] | None, int]:
        """Return the frame that gets memory next, and its size: the first that waits for others, not for its user."""
        for granted, (size_bytes, user) in self._queue.items():
            if self._has_share(user, size_bytes):
                return granted, size_bytes
        return None, 0

    def _charge(self, size_bytes: int, user: object) -> None:
        self.taken_bytes += size_bytes
        self.large_bytes += size_bytes
        self._by_user[user] += size_bytes

    def _wake(self) -> None:
        while True:
            granted, size_bytes = self._next()
            if granted is None or not self._fits(size_bytes):
                break
            self._charge(*self._queue.pop(granted))
            granted()
        if self._waiting and not self.exhausted:
            self._call_waiting()
