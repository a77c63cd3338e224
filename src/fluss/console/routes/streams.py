# SPDX-License-Identifier: Apache-2.0
"""Streams: what pages add to the stream of their browser, and remove from it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from starlette.responses import StreamingResponse

from fluss.console.routes import live, overview
from fluss.console.settings import STREAMS_MAX
from fluss.console.state import Call
from fluss.console.streams import BrowserStream, Events
from fluss.errors import InvalidArgumentError

_SOURCES: dict[str, Callable[[Call], Awaitable[Events]]] = {"live": live.changes, "overview": overview.figures}
_KEY_CHARS_MAX = 64


async def stream(call: Call) -> Any:
    """Open the stream of a browser."""
    streams = call.state.streams
    if len(streams) >= STREAMS_MAX:
        raise InvalidArgumentError(f"{STREAMS_MAX} browsers have a stream already. Close a page of the console.")

    async def lines() -> AsyncGenerator[bytes, None]:
        opened = BrowserStream(call.session, call.state.start_task)
        streams[opened.id] = opened
        try:
            async with contextlib.aclosing(opened.lines()) as found:
                async for line in found:
                    yield line
        finally:
            del streams[opened.id]

    return StreamingResponse(lines(), media_type="application/x-ndjson")


async def follow(call: Call) -> Any:
    """Add something to the stream of the browser, unless that was closed meanwhile."""
    source = _SOURCES.get(call.text("source"))
    if source is None:
        raise InvalidArgumentError(f"Follow one of {', '.join(_SOURCES)}, not {call.text('source')!r:.40}.")
    if sum(map(len, call.state.streams.values())) >= STREAMS_MAX:
        raise InvalidArgumentError(f"{STREAMS_MAX} pages follow something already. Close a page of the console.")
    events = await source(Call(call.request, call.session, call.mapping("args")))
    opened = _opened(call)
    if opened is not None:
        opened.follow(_key(call), events)
    return {"open": opened is not None}


async def leave(call: Call) -> Any:
    """Remove something from the stream of the browser."""
    opened = _opened(call)
    if opened is not None:
        opened.leave(_key(call))
    return {}


def _opened(call: Call) -> BrowserStream | None:
    found = call.state.streams.get(call.text("stream"))
    return found if found is not None and found.session is call.session else None


def _key(call: Call) -> str:
    key = call.text("key")
    if len(key) > _KEY_CHARS_MAX or not key.replace("-", "").isalnum():
        raise InvalidArgumentError(f"A key is a short word, not {key!r:.80}.")
    return key


ROUTES = (
    ("streams", stream, False),
    ("streams/follow", follow, True),
    ("streams/leave", leave, True),
)
