# SPDX-License-Identifier: Apache-2.0
"""The bridge from blocking code to an event loop.

There is one: the blocking face of the client, its readers, and the sessions of lake and Spark all wait through it. Its
three verbs are `run` (a coroutine), `call` (a plain function) and `iterate` (an asynchronous generator).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Bridge(ABC):
    """Carries out work on an event loop for a caller that waits for it."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the loop takes no more work."""

    @abstractmethod
    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a plain function on the loop and wait for its result."""

        async def run() -> T:
            return function(*arguments)

        return self.run(run())

    def iterate(self, generator: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Give the items of an asynchronous generator to a plain loop, one at a time as they are asked for."""
        end = object()

        async def step() -> Any:
            return await anext(generator, end)

        async def stop() -> None:
            await generator.aclose()

        try:
            while (item := self.run(step())) is not end:
                yield item
        finally:
            if not self.closed:
                self._finish(stop())

    def _finish(self, coro: Coroutine[Any, Any, None]) -> None:
        """Run the end of an iteration, which the garbage collector may call for in any thread."""
        self.run(coro)


class RunningLoop(Bridge):
    """A loop that another thread runs, and that is not ours to stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result()

    def _finish(self, coro: Coroutine[Any, Any, None]) -> None:
        # Without waiting: an iterator that is dropped on the loop itself would wait for itself.
        asyncio.run_coroutine_threadsafe(coro, self._loop)
