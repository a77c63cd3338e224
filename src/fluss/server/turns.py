# SPDX-License-Identifier: Apache-2.0
"""Long work of requests in slices, so that no iteration of the event loop takes long.

Requests that need more than one slice take turns: one slice per iteration of the event loop, in the order in which they
asked, however many requests there are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from time import monotonic
from typing import Generic, TypeVar

T = TypeVar("T")

_SLICE_SECONDS = 0.004
_LARGE_AT_ONCE = 2


class Turns:
    """Wakes one request per iteration of the event loop."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._waking = False
        self.large = asyncio.Semaphore(_LARGE_AT_ONCE)
        """Held while a view of many rows is read, because each takes memory."""

    def begin(self) -> Turn:
        """Start the first slice of a request, which it does not have to wait for."""
        return Turn(self)

    async def next(self) -> None:
        """Wait for the next slice."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if not self._waking:
            self._waking = True
            loop.call_soon(self._wake, loop)
        await future

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting = self._waiting
        while waiting:
            future = waiting.popleft()
            if not future.done():  # not that of a request whose client has gone
                future.set_result(None)
                break
        self._waking = bool(waiting)
        if waiting:
            loop.call_soon(self._wake, loop)


class Turn:
    """The slices of one request.

    Example::

        async for item in server.turns.begin().each(items):
            ...
    """

    __slots__ = ("_ends_at", "_turns")

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._ends_at = monotonic() + _SLICE_SECONDS

    @property
    def large(self) -> asyncio.Semaphore:
        return self._turns.large

    @property
    def is_over(self) -> bool:
        """Whether the slice is used up."""
        return monotonic() > self._ends_at

    async def next(self) -> None:
        """Let others have their turn."""
        await self._turns.next()
        self._ends_at = monotonic() + _SLICE_SECONDS

    def each(self, items: Iterable[T]) -> Each[T]:
        """Iterate over items, with a wait between slices: ``async for item in turn.each(items)``."""
        return Each(self, iter(items))


class Each(Generic[T]):
    """The items of an iterator, in slices."""

    __slots__ = ("_items", "_turn")

    def __init__(self, turn: Turn, items: Iterator[T]) -> None:
        self._turn = turn
        self._items = items

    def __aiter__(self) -> Each[T]:
        return self

    async def __anext__(self) -> T:
        if self._turn.is_over:
            await self._turn.next()
        for item in self._items:
            return item
        raise StopAsyncIteration
