# SPDX-License-Identifier: Apache-2.0
"""Results that are made on one loop and waited for anywhere: the only place where the client meets other threads.

A `Promise` is resolved once, on the loop of its cluster; it can be awaited on any loop, or blocked upon in any thread.
An `Inbox` takes things in from any thread and hands them over on the cluster's loop, many at a time.

Both rely on list and deque operations being atomic; neither takes a lock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

from fluss.net.background import running_loop

T = TypeVar("T")

_Loop = asyncio.AbstractEventLoop


def _set_futures(futures: Iterable[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


class Promise(Generic[T]):
    """A result to come."""

    __slots__ = ("_error", "_result", "_waiters", "done")

    def __init__(self) -> None:
        self.done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def resolve(self, result: T) -> None:
        """Give the result. Only the first result or error counts."""
        self.resolve_quietly(result)
        wake((self,))

    def resolve_quietly(self, result: T) -> None:
        """Give the result without waking its waiter: for many at once, followed by one `wake(promises)`."""
        if not self.done:
            self._result = result
            self.done = True

    def fail_quietly(self, error: BaseException) -> None:
        if not self.done:
            self._error = error
            self.done = True

    async def wait(self) -> T:
        """The result, awaited on whatever loop the caller runs."""
        if not self.done:
            future = asyncio.get_running_loop().create_future()
            self._waiters.append(future)
            if self.done:
                # Resolved between the look and the append: the thread that takes the waiter out of the list wakes it.
                wake((self,))
            try:
                await future
            finally:
                if not self.done:
                    with contextlib.suppress(ValueError):
                        self._waiters.remove(future)
        return self.get()

    def get(self) -> T:
        """The result of a promise that is done, or its error raised."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        return cast("T", self._result)


def wake(promises: Iterable[Promise[Any]]) -> None:
    """Wake all waiters of these promises; each loop is called once, however many wait on it."""
    by_loop: dict[_Loop, list[asyncio.Future[None]]] = {}
    for promise in promises:
        waiters = promise._waiters
        while waiters:
            try:
                waiter = waiters.pop()
            except IndexError:  # another thread took the last one
                break
            by_loop.setdefault(waiter.get_loop(), []).append(waiter)
    if not by_loop:
        return
    here = running_loop()
    for loop, futures in by_loop.items():
        if loop is here:
            _set_futures(futures)
        else:
            try:
                loop.call_soon_threadsafe(_set_futures, futures)
            except RuntimeError:  # that loop is closed, and has no waiters any more
                continue


class Inbox(Generic[T]):
    """A queue into the cluster's loop. `put` may be called from anywhere; `deliver` runs on the loop."""

    __slots__ = ("_deliver", "_gathering", "_items", "_loop", "_scheduled")

    def __init__(self, loop: _Loop, deliver: Callable[[list[T]], None]) -> None:
        self._loop = loop
        self._deliver = deliver
        self._items: deque[T] = deque()
        self._scheduled = False
        self._gathering: _Loop | None = None
        """Another loop, whose present iteration may put in more."""

    def put(self, item: T) -> None:
        """Hand an item over; it is delivered in the next iteration of the loop, together with what else came in.

        Raises RuntimeError when the loop is closed.
        """
        self._items.append(item)
        if self._scheduled:
            return
        here = running_loop()
        if here is self._loop:
            self._scheduled = True
            self._loop.call_soon(self._drain)
        elif here is None:
            self._scheduled = True
            self._loop.call_soon_threadsafe(self._drain)
        elif self._gathering is not here:
            # To wake the other thread now would be to share the interpreter with it, and to let the first item leave
            # alone: tasks that are started together put their items in one after the other.
            if self._loop.is_closed():
                raise RuntimeError("the loop is closed")
            self._gathering = here
            here.call_soon(self._hand_over)

    def _hand_over(self) -> None:
        self._gathering = None
        if self._items and not self._scheduled:
            self._scheduled = True
            try:
                self._loop.call_soon_threadsafe(self._drain)
            except RuntimeError:  # closed meanwhile: `deliver` fails the items
                self._drain()

    def _drain(self) -> None:
        # The flag goes down before the queue is emptied, so an item put meanwhile schedules another delivery.
        self._scheduled = False
        items: list[T] = []
        while self._items:
            items.append(self._items.popleft())
        if items:
            self._deliver(items)

    def __len__(self) -> int:
        return len(self._items)
