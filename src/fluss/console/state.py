# SPDX-License-Identifier: Apache-2.0
"""What all requests of one console share, and how a request becomes JSON."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any
from weakref import WeakValueDictionary

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import fluss
from fluss.console.clients import Client
from fluss.console.inspection import Inspection, Sampler
from fluss.console.security import Session, Sessions
from fluss.console.settings import BODY_BYTES_MAX, BODY_S_MAX, UPLOADS_AT_ONCE, Settings
from fluss.console.sql import SqlSessions
from fluss.console.streams import BrowserStream, reason_of
from fluss.errors import (
    AuthenticateError,
    AuthorizationError,
    DatabaseNotExistError,
    FlussError,
    InvalidArgumentError,
    NetworkError,
    TableNotExistError,
)
from fluss.net.deadline import wait_for
from fluss.tools.bench import LiveOrders

_STATUS: tuple[tuple[type[FlussError], int], ...] = (
    (AuthorizationError, 403),
    (AuthenticateError, 401),
    (TableNotExistError, 404),
    (DatabaseNotExistError, 404),
    (NetworkError, 502),
)
_CHECK_S = 15.0
_SAMPLE_ROWS_AT_FIRST = 200
_SAMPLE_ROWS_PER_SECOND = 20.0


class SampleWriter:
    """Adds to a table of sample orders and changes it, in a task of the console, until it is stopped."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return self._task is not None and not self._task.done()

    async def start(self, client: Client) -> None:
        """Write the first rows, then go on in the background."""
        if self.running:
            return
        self._ended = ended = threading.Event()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._run(client, ended, ready))
        await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()

    async def _run(self, client: Client, ended: threading.Event, ready: asyncio.Future[None]) -> None:
        loop = asyncio.get_running_loop()

        def work(db: fluss.Database) -> None:
            orders = LiveOrders(db, _SAMPLE_ROWS_PER_SECOND)
            orders.write(_SAMPLE_ROWS_AT_FIRST)
            loop.call_soon_threadsafe(ready.set_result, None)
            orders.run(ended)

        await client.in_thread(work)

    async def stop(self) -> None:
        self._ended.set()
        if self._task is not None:
            with contextlib.suppress(FlussError):  # the server may be gone
                await self._task
            self._task = None


class State:
    """A running console."""

    def __init__(self, settings: Settings, sock: socket.socket | None = None) -> None:
        self.settings = settings
        self.sessions = Sessions(settings.port)
        self.inspection = Inspection(sock, settings.metrics_url)
        self.sampler = Sampler(self.inspection)
        self.link_token = secrets.token_urlsafe(24) if settings.needs_link else None
        self.asks_login = settings.must_login
        """Whether users log in; becomes true when the server turns out to ask for it."""
        self.server_checks_users = False
        """Whether the server is known to refuse users that it does not know."""
        self.shared = Client(settings, settings.user, settings.password)
        self.users: dict[str, Client] = {}
        """The clients of users who logged in."""
        self.sql = SqlSessions()
        self.streams: dict[str, BrowserStream] = {}
        self.tiering = asyncio.Lock()
        self.edits: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By table and key: held while a row is changed."""
        self.uploads = asyncio.Semaphore(UPLOADS_AT_ONCE)
        self.samples = SampleWriter()
        self._tasks: set[asyncio.Task[None]] = set()

    def start_task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something beside the requests, until the console stops."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def start(self) -> None:
        self.start_task(self._close_idle())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.sampler.stop()
        await self.samples.stop()
        await self.sql.close()
        for client in [self.shared, *self.users.values()]:
            with contextlib.suppress(FlussError):
                await client.close()

    async def _close_idle(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_S)
            await self.sql.close_idle()
            for client in [self.shared, *self.users.values()]:
                with contextlib.suppress(FlussError):
                    await client.close_idle()

    async def close_client(self, client: Client) -> None:
        """Close the connection and the sessions of a user whose password is not valid any more."""
        self.sessions.close_of(client)
        await client.close()

    def url(self, port: int) -> str:
        """The address to open."""
        host = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(self.settings.host, self.settings.host)
        shown = f"[{host}]" if ":" in host else host
        link = f"/?token={self.link_token}" if self.link_token is not None else ""
        scheme = "http" if self.settings.certificate is None else "https"
        return f"{scheme}://{shown}:{port}{link}"


def state_of(request: Request) -> State:
    state: State = request.app.state.console
    return state


class Call:
    """One request to the API: who asks, and with what."""

    def __init__(self, request: Request, session: Session, body: Mapping[str, Any]) -> None:
        self.request = request
        self.session = session
        self.client = session.client
        self.state = state_of(request)
        self.body = body

    def text(self, name: str, default: str | None = None) -> str:
        """An argument that is a text."""
        value = self.body.get(name, self.request.query_params.get(name, default))
        if not isinstance(value, str):
            raise InvalidArgumentError(f"The argument {name!r} is missing.")
        return value

    def maybe(self, name: str) -> str | None:
        """An argument that may be absent or empty."""
        value = self.body.get(name, self.request.query_params.get(name))
        return str(value) if value not in (None, "") else None

    def number(self, name: str, default: int | None, minimum: int, maximum: int) -> int:
        """An argument that is a whole number within limits."""
        value = self.body.get(name, self.request.query_params.get(name, default))
        try:
            found = int(str(value))
        except (TypeError, ValueError):
            raise InvalidArgumentError(f"The argument {name!r} is a whole number, not {value!r:.40}.") from None
        return min(max(found, minimum), maximum)

    def mapping(self, name: str) -> dict[str, Any]:
        """An argument that is an object."""
        value = self.body.get(name)
        if not isinstance(value, dict):
            raise InvalidArgumentError(f"The argument {name!r} is an object.")
        return value

    def pairs(self, name: str) -> dict[str, str]:
        """An argument of the address that is an object of texts; empty if it is not given."""
        try:
            value = json.loads(self.request.query_params.get(name, "{}"))
        except ValueError:
            value = None
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise InvalidArgumentError(f"The argument {name!r} is an object of texts.")
        return value

    def names(self, name: str) -> list[str]:
        """An argument that is a list of texts."""
        value = self.body.get(name)
        if value is None:
            with contextlib.suppress(ValueError):
                value = json.loads(self.request.query_params.get(name, "[]"))
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise InvalidArgumentError(f"The argument {name!r} is a list of names.")
        return value

    def require_writable(self) -> None:
        """Fail if the console was started with --read-only."""
        if self.state.settings.read_only:
            raise AuthorizationError("This console is read-only. Start it without --read-only to change something.")

    async def table(self) -> Any:
        """The table that the argument `table` names."""
        await self.client.require_connected()
        return await self.client.table(self.text("table"))


Handler = Callable[[Call], Awaitable[Any]]


def api(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """Make an endpoint of a function that takes a call and gives what JSON can hold, or a response."""

    @functools.wraps(handler)
    async def endpoint(request: Request) -> Response:
        state = state_of(request)
        session = state.sessions.find(request)
        if session is None or (state.asks_login and session.client is state.shared):
            return JSONResponse({"error": "The session has ended. Reload the page.", "session": False}, 401)
        try:
            body = await read_json(request) if request.method == "POST" else {}
            answer = await handler(Call(request, session, body))
        except Exception as error:
            return error_response(error)
        return answer if isinstance(answer, Response) else JSONResponse(answer)

    return endpoint


def error_response(error: Exception) -> Response:
    """The answer that reports to the browser what went wrong."""
    status = 500
    if isinstance(error, FlussError):
        status = next((code for kind, code in _STATUS if isinstance(error, kind)), 400)
    return JSONResponse({"error": reason_of(error), "kind": type(error).__name__}, status)


async def read_body(request: Request, bytes_max: int, seconds_max: float) -> bytes:
    """The body, up to limits of its size and of the time to come."""
    parts = bytearray()

    async def read() -> None:
        async for part in request.stream():
            parts.extend(part)
            if len(parts) > bytes_max:
                raise InvalidArgumentError(f"The request is larger than {bytes_max // 1024 // 1024} MB.")

    try:
        await wait_for(read(), seconds_max)
    except asyncio.TimeoutError:
        raise InvalidArgumentError(f"The request did not arrive within {seconds_max:.0f} s.") from None
    return bytes(parts)


async def read_json(request: Request) -> Mapping[str, Any]:
    """The JSON object of a request; other bodies are left to the handler."""
    if not request.headers.get("content-type", "").startswith("application/json"):
        return {}
    content = await read_body(request, BODY_BYTES_MAX, BODY_S_MAX)
    try:
        body = json.loads(content or b"{}")
    except ValueError:
        raise InvalidArgumentError("The request is not JSON.") from None
    if not isinstance(body, dict):
        raise InvalidArgumentError("The request is not a JSON object.")
    return body
