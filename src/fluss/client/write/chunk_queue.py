# SPDX-License-Identifier: Apache-2.0
"""The way of converted chunks from the threads that convert them to the event loop, in the order of their numbers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fluss.client.write.batch import RoutedRows
from fluss.client.write.handle import Ticket
from fluss.net.deadline import wait_for


@dataclass(slots=True, eq=False)
class ConvertedChunk:
    """A chunk whose rows are converted and routed to buckets, in flight to the event loop."""

    number: int
    routed: Sequence[RoutedRows]
    ticket: Ticket
    reserved_bytes: int


class ChunkQueue:
    """Takes chunks from any thread; the event loop gets them in the order of their numbers."""

    def __init__(self) -> None:
        self._arrived: deque[ConvertedChunk] = deque()
        """The thread that takes one out handles it."""
        self._early: dict[int, ConvertedChunk] = {}
        """Chunks that arrived before one with a smaller number."""
        self._loop_called = False
        """Whether the event loop was called and has not come yet: it will take what arrives meanwhile."""
        self._taken = 0
        """How many chunks the event loop got: the number of the next one."""
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    def put(self, chunk: ConvertedChunk) -> bool:
        """Add a chunk, from any thread; returns whether the event loop has to be called."""
        self._arrived.append(chunk)
        if self._loop_called:
            return False
        self._loop_called = True
        return True

    def take(self) -> list[ConvertedChunk]:
        """Take the chunks that follow those taken before. On the event loop only."""
        self._loop_called = False  # before the look: what arrives after it calls again
        self._early.update((chunk.number, chunk) for chunk in self._take_arrived())
        chunks = []
        while (chunk := self._early.pop(self._taken, None)) is not None:
            self._taken += 1
            chunks.append(chunk)
        for number, future in self._waiting:
            if self._taken >= number and not future.done():
                future.set_result(None)
        return chunks

    def take_all(self) -> Iterator[ConvertedChunk]:
        """Take every chunk, whatever its number: the writer has ended. From any thread."""
        yield from self._take_arrived()
        while self._early:
            try:
                yield self._early.popitem()[1]
            except KeyError:  # another thread took the last one
                return

    def _take_arrived(self) -> Iterator[ConvertedChunk]:
        while self._arrived:
            try:
                yield self._arrived.popleft()
            except IndexError:  # another thread took the last one
                return

    async def wait_taken(self, count: int, seconds: float) -> bool:
        """Wait until so many chunks were taken; returns whether there was anything to wait for.

        Raises:
            asyncio.TimeoutError: Some did not arrive within the time.
        """
        if self._taken >= count:
            return False
        waiting = (count, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        try:
            await wait_for(waiting[1], seconds)
        finally:
            self._waiting.remove(waiting)
        return True

    def end_waits(self) -> None:
        """Let those that wait for chunks go on: the writer has ended."""
        for _, future in self._waiting:
            if not future.done():
                future.set_result(None)
