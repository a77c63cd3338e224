# SPDX-License-Identifier: Apache-2.0
"""The pages ``/metrics`` for Prometheus, ``/health`` and ``/ready``: the smallest HTTP server that does it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fluss.errors import ConfigError
from fluss.net.deadline import wait_for
from fluss.server.metrics import ServerMetrics

logger = logging.getLogger("fluss.server")

_REQUEST_BYTES_MAX = 8192
_SECONDS_MAX = 5.0
_CONNECTIONS_MAX = 32
"""They take handles that the server needs for its files. Beyond it the oldest one makes room."""


class MetricsPage:
    """Serves the figures and the state of a server.

    `obstacles` says why the server cannot do its work now, one sentence each; it is ready if there are none.
    """

    def __init__(self, metrics: ServerMetrics, host: str, port: int, obstacles: Callable[[], list[str]]) -> None:
        self._metrics = metrics
        self._obstacles = obstacles
        self._host = host
        self._port = port
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    @property
    def port(self) -> int:
        if self._server is None:
            return self._port
        return int(self._server.sockets[0].getsockname()[1])

    async def start(self) -> None:
        try:
            self._server = await asyncio.start_server(self._serve, self._host, self._port, limit=_REQUEST_BYTES_MAX)
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {self._host}:{self._port} for 'metrics.prometheus.port': {error.strerror}."
            ) from None

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > _CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.transport.abort()
        try:
            head = await wait_for(reader.readuntil(b"\r\n\r\n"), _SECONDS_MAX)
            try:
                answer = await self._answer(head.split(b"\r\n", 1)[0])
            except Exception:
                logger.exception("a page of figures could not be made")
                answer = _response("500 Internal Server Error", "see the log of the server\n", with_body=True)
            writer.write(answer)
            writer.close()
            await wait_for(writer.wait_closed(), _SECONDS_MAX)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            writer.transport.abort()  # closing would wait until the client takes the rest
        finally:
            self._open.pop(writer, None)

    async def _answer(self, request_line: bytes) -> bytes:
        method, _, rest = request_line.partition(b" ")
        path = rest.split(b" ", 1)[0].split(b"?", 1)[0]
        if method not in (b"GET", b"HEAD"):
            return _response("405 Method Not Allowed", "only GET is served\n", with_body=True)
        with_body = method == b"GET"
        if path == b"/health":
            # It is answered by the event loop that answers everything else: an answer is the proof.
            return _response("200 OK", "ok\n", with_body=with_body)
        if path == b"/ready":
            obstacles = self._obstacles()
            if obstacles:
                return _response(
                    "503 Service Unavailable", "".join(f"{one}\n" for one in obstacles), with_body=with_body
                )
            return _response("200 OK", "ready\n", with_body=with_body)
        if path != b"/metrics":
            return _response("404 Not Found", "see /metrics, /health and /ready\n", with_body=with_body)
        for prepare in self._metrics.before_page:
            await prepare()
        return _response("200 OK", await self._metrics.text_in_slices(), with_body=with_body)


def _response(status: str, text: str, *, with_body: bool) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (body if with_body else b"")
