# SPDX-License-Identifier: Apache-2.0
"""One stream per browser with all that its pages follow: a browser has six connections to one address.

Each line is the key that a page gave to what it follows, and JSON: an event, a problem, or nothing at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

from fluss.console.security import Session
from fluss.errors import FlussError

logger = logging.getLogger("fluss.console")

Events = AsyncGenerator[dict[str, Any] | bytes, None]
"""Events as documents, or encoded as JSON already."""


def reason_of(error: Exception) -> str:
    """What the browser shows of an error; one that is not expected is logged."""
    if isinstance(error, FlussError):
        return error.message
    logger.exception("A request of the console failed", exc_info=error)
    return f"The console failed: {type(error).__name__}. Its log has the details."


class BrowserStream:
    """What the pages of one browser follow. The next event is made when the browser has taken those before."""

    def __init__(self, session: Session, start_task: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]) -> None:
        self.id = secrets.token_urlsafe(12)
        self.session = session
        self._start_task = start_task
        self._lines: asyncio.Queue[bytes] = asyncio.Queue(1)
        self._followed: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._followed)

    def follow(self, key: str, events: Events) -> None:
        """Send events until they end, fail, or are left."""
        self.leave(key)
        self._followed[key] = self._start_task(self._forward(key, events))

    def leave(self, key: str) -> None:
        """Stop sending the events with a key, if there are any."""
        task = self._followed.pop(key, None)
        if task is not None:
            task.cancel()

    async def _forward(self, key: str, events: Events) -> None:
        end = {}
        try:
            async with contextlib.aclosing(events):
                async for event in events:
                    data = event if isinstance(event, bytes) else json.dumps(event).encode()
                    await self._lines.put(b'%s {"event": %s}\n' % (key.encode(), data))
        except Exception as error:
            end = {"problem": reason_of(error)}
        del self._followed[key]
        await self._lines.put(_line(key, end))

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """The lines, until the session of the browser ends. The first is the id of the stream."""
        ended = asyncio.ensure_future(self.session.ended.wait())
        line: asyncio.Future[bytes] | None = None
        try:
            yield f"{self.id}\n".encode()
            while not ended.done():
                line = asyncio.ensure_future(self._lines.get())
                await asyncio.wait({line, ended}, return_when=asyncio.FIRST_COMPLETED)
                if line.done():
                    yield line.result()
            for key in list(self._followed):
                yield _line(key, {"problem": "The session has ended. Log in again.", "session": False})
        finally:
            ended.cancel()
            if line is not None:
                line.cancel()
            for key in list(self._followed):
                self.leave(key)


def _line(key: str, document: dict[str, Any]) -> bytes:
    return f"{key} {json.dumps(document)}\n".encode()
