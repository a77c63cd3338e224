# SPDX-License-Identifier: Apache-2.0
"""A connection to one server: handshake, authentication, pipelined calls.

A `Connection` belongs to the event loop that opened it. Any number of calls may be in flight at once; answers are
matched by request id and may come in any order. Requests leave in the order in which the calls were made.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import ssl
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeVar

from google.protobuf.message import EncodeError, Message

from fluss._version import VERSION
from fluss.errors import (
    ConnectionClosedError,
    DeadlineExceededError,
    FlussError,
    FormatError,
    InvalidArgumentError,
    NetworkError,
    RetriableAuthenticateError,
    UnsupportedVersionError,
    error_for_code,
)
from fluss.net.blocking_connection import BlockingConnection
from fluss.net.buffers import FrameBuffers
from fluss.net.deadline import wait_for
from fluss.net.tls import ClientTls, tls_failure
from fluss.net.transport import FrameTransport
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.apis import API_VERSIONS, AUTHENTICATE, CHANGING_APIS, Api, ServerType
from fluss.protocol.fast_paths import fetched_records_position
from fluss.protocol.frames import (
    Buffer,
    FrameReader,
    ResponseKind,
    body_size,
    encode_request,
    parse_error,
    parse_response,
)
from fluss.protocol.sasl import Credentials
from fluss.protocol.wire import parse_message

_REQUEST_ID_MAX = 0x7FFF_FFFF


class Waiter(Protocol):
    """What takes the outcome of a request, on the loop of its connection: a future, or something cheaper."""

    def done(self) -> bool:
        """Whether the outcome is no longer wanted."""
        ...

    def set_result(self, answer: memoryview, /) -> None: ...

    def set_exception(self, error: FlussError, /) -> None: ...


class PendingRequests:
    """Waiters and timers by request id."""

    __slots__ = ("_entries", "_next_id")

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Waiter, asyncio.TimerHandle]] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._entries)

    def next_id(self) -> int:
        """Return an id that no pending request has."""
        entries = self._entries
        request_id = self._next_id
        while request_id in entries:
            request_id = (request_id + 1) & _REQUEST_ID_MAX
        self._next_id = (request_id + 1) & _REQUEST_ID_MAX
        return request_id

    def add(self, request_id: int, waiter: Waiter, timer: asyncio.TimerHandle) -> None:
        self._entries[request_id] = waiter, timer

    def remove(self, request_id: int) -> Waiter | None:
        """Take a request out; None if it is not there, or its outcome is no longer wanted."""
        found = self._entries.pop(request_id, None)
        if found is None:
            return None
        waiter, timer = found
        timer.cancel()
        return None if waiter.done() else waiter

    def dispatch(self, frame: memoryview) -> None:
        """Hand a response to its waiter.

        Raises the error that a server sends about the connection as a whole, and `FormatError` for a frame that is no
        response.
        """
        kind, request_id, body = parse_response(frame)
        if kind == ResponseKind.SERVER_FAILURE:
            raise error_for_code(*parse_error(body))
        waiter = self.remove(request_id)
        if waiter is None:
            return  # the caller gave up
        if kind == ResponseKind.SUCCESS:
            waiter.set_result(body)
            return
        try:
            error = error_for_code(*parse_error(body))
        except FormatError as broken:
            error = broken
        waiter.set_exception(error)

    def fail_all(self, reason: FlussError) -> None:
        """Fail all requests. Every waiter gets an error of its own: a shared one would collect all tracebacks."""
        for request_id in list(self._entries):
            waiter = self.remove(request_id)
            if waiter is not None:
                waiter.set_exception(reason.replace())


SOFTWARE_NAME: Final = "fluss-python"
RESPONSE_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Far above any real response, and below what the first bytes of HTTP, SSH or SMTP look like when read as a length."""

_KEPT_BYTES_MAX = 2 * 1024 * 1024
_API_VERSIONS_TIMEOUT_MS = 5_000
_AUTH_BACKOFF_FIRST_S = 0.1
_AUTH_BACKOFF_MAX_S = 5.0
_AUTH_BACKOFF_JITTER = 0.2

_log = logging.getLogger(__name__)

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Connection:
    """One open connection. Make it with `await Connection.open(...)`."""

    def __init__(self, host: str, port: int, *, request_timeout_ms: int, max_frame_bytes: int) -> None:
        self.host = host
        self.port = port
        self.server_type: ServerType | None = None
        """What the server says it is; None if it does not say, or says something unknown."""
        self._request_timeout_ms = request_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._pending = PendingRequests()
        self._versions: dict[int, tuple[int, int]] | None = None
        self._chosen_versions: dict[int, int] = {}
        self._lost_reason: FlussError | None = None
        self._closing = False
        self._refused_for_now: RetriableAuthenticateError | None = None
        self._step = "accept a connection"
        """What the server is expected to do next while the connection is opened, for errors."""
        self._read_only = False
        self._max_frame_bytes = max_frame_bytes
        buffers = FrameBuffers(_KEPT_BYTES_MAX)
        reader = FrameReader(max_frame_bytes, allocate=buffers.take, align=fetched_records_position)
        self._transport = FrameTransport(f"{host}:{port}", reader, self._pending.dispatch, self._connection_lost)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        *,
        software_name: str = SOFTWARE_NAME,
        connect_timeout_ms: float = 120_000,
        request_timeout_ms: int = 60_000,
        credentials: Credentials | None = None,
        tls: ClientTls | None = None,
        max_frame_bytes: int = RESPONSE_BYTES_MAX,
        expected_server_type: ServerType | int | None = None,
        api_versions_timeout_ms: int = _API_VERSIONS_TIMEOUT_MS,
        read_only: bool = False,
    ) -> Connection:
        """Connect, learn what the server can do, and authenticate, all of it within `connect_timeout_ms`."""
        connection = cls(host, port, request_timeout_ms=request_timeout_ms, max_frame_bytes=max_frame_bytes)
        connection._read_only = read_only
        try:
            await wait_for(
                connection._establish(software_name, credentials, tls, expected_server_type, api_versions_timeout_ms),
                connect_timeout_ms / 1000,
            )
        except asyncio.TimeoutError as error:
            await connection.close()
            if isinstance(error, FlussError):  # our own deadline error is a TimeoutError too
                raise
            if connection._refused_for_now is not None:
                raise connection._refused_for_now from None
            raise NetworkError(
                f"Server {host}:{port} did not {connection._step} within {connect_timeout_ms:.0f} ms; "
                "check the address, or raise the connect timeout"
            ) from None
        except BaseException:
            await connection.close()
            raise
        _log.debug("Connected to %s:%d", host, port)
        return connection

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{len(self._pending)} calls in flight"
        return f"<Connection to {self.host}:{self.port}, {state}>"

    @property
    def closed(self) -> bool:
        """Whether the connection can no longer be used; a lost connection is closed."""
        return self._closing or self._lost_reason is not None

    def supports(self, api: Api[Any, Any]) -> bool:
        """Whether the server serves this API in a version we speak. A server that named no versions is believed to."""
        try:
            self.version_of(api)
        except UnsupportedVersionError:
            return False
        return True

    async def call(
        self, api: Api[RequestT, ResponseT], message: RequestT | None = None, *, timeout_ms: float | None = None
    ) -> ResponseT:
        """Call an API and return its response. None sends an empty request."""
        if message is None:
            body = b""
        else:
            try:
                body = message.SerializeToString()
            except EncodeError as error:
                raise InvalidArgumentError(f"The {api.name} request cannot be sent: {error}") from None
        answer = await self.call_parts(api, (body,), timeout_ms=timeout_ms)
        return parse_message(api.response, answer, require_all=False)

    async def call_parts(
        self,
        api: Api[Any, Any],
        body: Sequence[Buffer],
        *,
        timeout_ms: float | None = None,
        version: int | None = None,
    ) -> memoryview:
        """Call an API with an encoded request and return the encoded response.

        The parts are sent without being joined, so they must not change before the answer has come. A call that is
        cancelled or takes too long may still be sent; its answer is dropped when it comes.
        """
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        request_id = self.begin(api, body, answer, timeout_ms=timeout_ms, version=version)
        try:
            return await answer
        finally:
            self._pending.remove(request_id)

    def begin(
        self,
        api: Api[Any, Any],
        body: Sequence[Buffer],
        waiter: Waiter,
        *,
        timeout_ms: float | None = None,
        version: int | None = None,
    ) -> int:
        """Call an API with an encoded request without waiting, and return its id: `waiter` takes the outcome."""
        if version is None:
            version = self.version_of(api)
        if timeout_ms is None:
            timeout_ms = self._request_timeout_ms
        if self._closing or self._lost_reason is not None:
            raise self._unusable(api)
        request_id = self._pending.next_id()
        frame = encode_request(api.key, version, request_id, body)
        timer = self._loop.call_later(timeout_ms / 1000, self._expire, request_id, api, timeout_ms)
        self._pending.add(request_id, waiter, timer)
        self._transport.send(frame, body_size(frame))
        return request_id

    async def close(self, reason: FlussError | None = None) -> None:
        """Close the connection. Calls in flight and later ones fail with `ConnectionClosedError`, unless it is closed
        for a `reason` of its own, which may pass. Closing twice is fine.
        """
        if reason is None:
            self._closing = True
            reason = ConnectionClosedError(f"The connection to server {self.host}:{self.port} was closed")
        elif self._lost_reason is None:
            self._lost_reason = reason
        self._pending.fail_all(reason)
        await self._transport.close()

    async def hand_over(self) -> BlockingConnection:
        """Give the socket to a thread that waits for answers, and close this connection.

        Nothing may be in flight on it.
        """
        sock = self._transport.release()
        try:
            await self.close()
        except BaseException:
            if sock is not None:
                sock.close()
            raise
        if sock is None:
            raise NetworkError(f"The connection to server {self.host}:{self.port} cannot be used by a thread")
        return BlockingConnection(sock, f"{self.host}:{self.port}", self.version_of, self._max_frame_bytes)

    def abandon(self, reason: str) -> None:
        """Abandon the connection because the server no longer answers. Calls in flight fail with `NetworkError`."""
        self._transport.fail(NetworkError(f"The connection to server {self.host}:{self.port} was abandoned: {reason}"))

    def _unusable(self, api: Api[Any, Any]) -> FlussError:
        if self._closing:
            return ConnectionClosedError(
                f"{api.name} was called on the closed connection to server {self.host}:{self.port}; open a new one"
            )
        reason = "" if self._lost_reason is None else f": {self._lost_reason.message}"
        return NetworkError(f"{api.name} was not sent{reason}; open a new connection")

    def version_of(self, api: Api[Any, Any]) -> int:
        """The version calls of this API are made with; raises `UnsupportedVersionError` if there is none."""
        chosen = self._chosen_versions.get(api.key)
        if chosen is not None:
            return chosen
        if self._read_only and api.key in CHANGING_APIS:
            raise InvalidArgumentError(
                f"the connection is read-only, so {api.name} was not sent. Connect without read_only=True"
            )
        if self._versions is None:
            return api.min_version
        if api.key not in self._versions:
            raise UnsupportedVersionError(f"Server {self.host}:{self.port} does not serve {api}")
        server_min, server_max = self._versions[api.key]
        usable = min(api.max_version, server_max)
        if usable < max(api.min_version, server_min):
            raise UnsupportedVersionError(
                f"Server {self.host}:{self.port} serves {api} in versions {server_min} to {server_max}, "
                f"but this client speaks {api.min_version} to {api.max_version}"
            )
        self._chosen_versions[api.key] = usable
        return usable

    def _expire(self, request_id: int, api: Api[Any, Any], timeout_ms: float) -> None:
        waiter = self._pending.remove(request_id)
        if waiter is not None:
            waiter.set_exception(
                DeadlineExceededError(
                    f"Server {self.host}:{self.port} did not answer {api.name} within {timeout_ms:.0f} ms"
                )
            )

    # ---- called by the transport ----

    def _connection_lost(self, reason: FlussError) -> None:
        self._lost_reason = reason
        if not self._closing:
            _log.debug("Lost the connection to %s:%d: %s", self.host, self.port, reason)
        self._pending.fail_all(reason)

    # ---- handshake ----

    async def _establish(
        self,
        software_name: str,
        credentials: Credentials | None,
        tls: ClientTls | None,
        expected_server_type: ServerType | int | None,
        api_versions_timeout_ms: int,
    ) -> None:
        try:
            await self._loop.create_connection(
                lambda: self._transport, self.host, self.port, ssl=None if tls is None else tls.context
            )
            if tls is not None:
                tls.check(f"{self.host}:{self.port}", self._transport.peer_certificate)
        except ssl.SSLError as error:
            raise tls_failure(f"{self.host}:{self.port}", error) from error
        except ConnectionError as error:
            hint = "check that the server runs and that the address is right"
            if tls is not None and not isinstance(error, ConnectionRefusedError):
                hint = "it may not use TLS on this port"
            reason = error.strerror or str(error) or "it closed the connection during the handshake"
            raise NetworkError(f"Cannot connect to server {self.host}:{self.port}: {reason}; {hint}") from error
        except OSError as error:
            raise NetworkError(
                f"Cannot connect to server {self.host}:{self.port}: {error.strerror or error}; "
                "check that the server runs and that the address is right"
            ) from error
        except (ValueError, OverflowError) as error:  # a port above 65535, a host with a NUL or a label too long
            raise NetworkError(
                f"Cannot connect to server {self.host!r:.300}, port {self.port}: that is no address ({error!s:.100}); "
                "check 'bootstrap.servers', and the address that the server advertises"
            ) from error
        self._step = "answer its first request (is it a Fluss server?)"
        await self._negotiate(software_name, expected_server_type, api_versions_timeout_ms)
        if credentials is not None:
            self._step = "finish the authentication"
            await self._authenticate(credentials)

    async def _negotiate(
        self, software_name: str, expected_server_type: ServerType | int | None, timeout_ms: int
    ) -> None:
        request = pb.ApiVersionsRequest(client_software_name=software_name, client_software_version=VERSION)
        try:
            body = await self.call_parts(API_VERSIONS, (request.SerializeToString(),), timeout_ms=timeout_ms, version=0)
        except FlussError as error:
            if self.closed or isinstance(error, FormatError):
                raise
            # Servers that do not know ApiVersions refuse it or do not answer; all of them speak version 0.
            _log.debug("%s:%d names no API versions (%s); using version 0", self.host, self.port, error)
            return
        response = parse_message(pb.ApiVersionsResponse, body, require_all=False)
        self._versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_versions}
        if not response.HasField("server_type"):
            return
        if response.server_type in ServerType.__members__.values():
            self.server_type = ServerType(response.server_type)
        if expected_server_type is not None and response.server_type != expected_server_type:
            expected = ServerType(expected_server_type).name.lower()
            found = self.server_type.name.lower() if self.server_type is not None else f"type {response.server_type}"
            raise NetworkError(
                f"Server {self.host}:{self.port} is of the wrong type: {found}, not {expected}; "
                "the cluster may have changed, refresh metadata"
            )

    async def _authenticate(self, credentials: Credentials) -> None:
        backoff_s = _AUTH_BACKOFF_FIRST_S
        while True:
            try:
                await self._log_in(credentials)
                return
            except RetriableAuthenticateError as error:
                self._refused_for_now = error
                _log.debug("%s:%d asks to authenticate again: %s", self.host, self.port, error)
                await asyncio.sleep(backoff_s * random.uniform(1 - _AUTH_BACKOFF_JITTER, 1 + _AUTH_BACKOFF_JITTER))
                backoff_s = min(backoff_s * 2, _AUTH_BACKOFF_MAX_S)

    async def _log_in(self, credentials: Credentials) -> None:
        login = credentials.login(secrets.token_urlsafe(24))
        token: bytes | None = login.first()
        while token is not None:
            response = await self._send_token(credentials.mechanism, token)
            if not response.HasField("challenge"):
                break
            token = login.answer(response.challenge)
        login.finish()

    async def _send_token(self, mechanism: str, token: bytes) -> pb.AuthenticateResponse:
        request = pb.AuthenticateRequest(protocol=mechanism, token=token)
        # Not `call`: a server whose list of versions leaves Authenticate out may still want it.
        body = await self.call_parts(AUTHENTICATE, (request.SerializeToString(),), version=0)
        return parse_message(pb.AuthenticateResponse, body, require_all=False)
