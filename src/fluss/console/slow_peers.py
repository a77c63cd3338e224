# SPDX-License-Identifier: Apache-2.0
"""HTTP with time limits for what a browser has to do: send its request, and take the answer.

uvicorn limits the time between two requests only. Connections that send nothing, or their headers byte by byte, would
take all there are. So its protocol is wrapped in one that looks at the time, and the application in one that reports
when a request is in work.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S_MAX = 30.0
"""Time for the headers of a request, after those of the one before or its answer."""
STALLED_S_MAX = 30.0
"""Time in which a browser takes nothing of an answer."""
CONNECTIONS_MAX = 400
"""Beyond it the connection that has waited longest for its request makes room."""
_CHECK_S = 1.0

_current: ContextVar[TimedConnection] = ContextVar("console_connection")
"""The connection whose data is being read: tasks that answer its requests inherit it."""


class SlowPeers:
    """The connections of a console."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self.connections: set[TimedConnection] = set()

    def connection(self, **parts: Any) -> TimedConnection:
        """Make the protocol of one connection, as uvicorn asks for it."""
        return TimedConnection(self.connections, H11Protocol(**parts))

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        """Run the application, and note that its connection has a request."""
        connection = _current.get() if scope["type"] == "http" else None
        if connection is None:
            await self._app(scope, receive, send)
            return
        connection.requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            connection.requests -= 1
            connection.active_at = asyncio.get_running_loop().time()


class TimedConnection(asyncio.Protocol):
    """One connection: hands everything to the protocol of uvicorn, and ends it when the time is up."""

    def __init__(self, others: set[TimedConnection], http: asyncio.Protocol) -> None:
        self._others = others
        self._http = http
        self._loop = asyncio.get_running_loop()
        self._unsent_bytes = 0
        self._sent_at = self.active_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self.requests = 0
        """Requests in work."""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._http.connection_made(transport)
        self._others.add(self)
        self._timer = self._loop.call_later(_CHECK_S, self._check)
        if len(self._others) > CONNECTIONS_MAX:
            idle = [one for one in self._others if not one.requests and not one._transport.is_closing()]
            min(idle, key=lambda one: one.active_at)._transport.abort()

    def data_received(self, data: bytes) -> None:
        token = _current.set(self)
        try:
            self._http.data_received(data)
        finally:
            _current.reset(token)

    def eof_received(self) -> bool | None:
        return self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._others.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        self._http.connection_lost(exc)

    def _check(self) -> None:
        now = self._loop.time()
        if self.requests:
            self.active_at = now
        unsent_bytes = self._transport.get_write_buffer_size()
        if not unsent_bytes or unsent_bytes != self._unsent_bytes:
            self._sent_at, self._unsent_bytes = now, unsent_bytes
        if now - self.active_at > REQUEST_S_MAX or now - self._sent_at > STALLED_S_MAX:
            self._transport.abort()
            return
        self._timer = self._loop.call_later(_CHECK_S, self._check)
