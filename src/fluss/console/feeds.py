# SPDX-License-Identifier: Apache-2.0
"""The newest changes of a table, read and encoded once for all browsers of a user that look at them."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any

from fluss.errors import FlussError
from fluss.net.eager import cancel

_WAITING_MAX = 16
"""Events that wait for a slow browser; of more the oldest are dropped, and counted."""

Events = Callable[[], AsyncGenerator[dict[str, Any], None]]


class _Subscriber:
    def __init__(self) -> None:
        self.events: deque[tuple[bytes, int]] = deque()
        self.skipped = 0
        self.woken = asyncio.Event()

    def put(self, event: bytes, count: int) -> None:
        self.events.append((event, count))
        if len(self.events) > _WAITING_MAX:
            self.skipped += self.events.popleft()[1]
        self.woken.set()


class SharedFeed:
    """Reads while there are subscribers. A slow one misses events; it never delays the others."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._subscribers: set[_Subscriber] = set()
        self._head: bytes | None = None
        self._failure: FlussError | None = None
        self._task: asyncio.Task[None] | None = None
        self.ended = False

    async def subscribe(self) -> AsyncGenerator[bytes, None]:
        """The events from now on, as JSON."""
        mine = _Subscriber()
        self._subscribers.add(mine)
        try:
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._read())
            if self._head is not None:
                yield self._head
            while True:
                if mine.skipped:
                    count, mine.skipped = mine.skipped, 0
                    yield json.dumps({"changes": [], "count": count, "skipped": count}).encode()
                while mine.events:
                    yield mine.events.popleft()[0]
                if self._failure is not None:
                    raise self._failure
                if self.ended:
                    return
                mine.woken.clear()
                await mine.woken.wait()
        finally:
            self._subscribers.discard(mine)
            if not self._subscribers:
                await self.close()

    async def _read(self) -> None:
        try:
            async with contextlib.aclosing(self._events()) as events:
                async for event in events:
                    data = json.dumps(event).encode()
                    if "columns" in event:
                        self._head = data
                    for one in tuple(self._subscribers):
                        one.put(data, event.get("count", 0))
        except FlussError as error:
            self._failure = error
        finally:
            self.ended = True
            for one in self._subscribers:
                one.woken.set()

    async def close(self) -> None:
        """Stop reading."""
        self.ended = True
        await cancel(self._task)
