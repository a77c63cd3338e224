# SPDX-License-Identifier: Apache-2.0
"""One client connection: its identity, its requests in work, and the answers it gets.

Every request is answered. Requests of one connection start in the order in which they came; a handler that has to keep
an order (appends to a bucket) takes its place before it first waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any, Protocol

from fluss.errors import AuthenticateError, ErrorCode, FlussError, FormatError, UnsupportedVersionError
from fluss.metadata import TableBucket
from fluss.net.eager import complete, start_eagerly
from fluss.protocol.apis import API_VERSIONS, AUTHENTICATE, PRODUCE_LOG, PUT_KV, api_name
from fluss.protocol.frames import (
    REQUEST_HEADER_BYTES,
    FrameReader,
    Parts,
    body_size,
    encode_error,
    encode_response,
    parse_request,
)
from fluss.protocol.scram import ScramKeys, ScramServer
from fluss.server.auth import ANONYMOUS, Principal
from fluss.server.channel import Channel
from fluss.server.garbage import clear_tracebacks
from fluss.server.handlers.answers import wire_error
from fluss.server.handlers.request import Buffer, DirectHandler, Handler, RequestContext
from fluss.server.memory import LARGE_BYTES_MIN
from fluss.server.scheduler import Share
from fluss.server.services import Services
from fluss.server.tls import TlsSocket, user_of_certificate

logger = logging.getLogger("fluss.server.session")

_WRITES = frozenset({PRODUCE_LOG.key, PUT_KV.key})
_BEFORE_AUTHENTICATION = frozenset({API_VERSIONS.key, AUTHENTICATE.key})

# Before authentication a connection holds at most 64 KB: a receive buffer, one frame, and answers that it did not take.
UNAUTHENTICATED_FRAME_BYTES_MAX = 32 * 1024
_UNAUTHENTICATED_UNSENT_BYTES_MAX = 16 * 1024
_UNAUTHENTICATED_REQUESTS_MAX = 4
_REQUESTS_BEFORE_LOGIN_MAX = 20
"""Clients send one or two, and as many again for each wrong password. More only keep the event loop busy."""
_WAITING_REQUEST_BYTES = 6 * 1024
"""What a request takes that is not answered at once, however small it is: measured with fetches that wait."""
_FIRST_BUFFER_BYTES = 1024
_BUFFER_BYTES = 64 * 1024


class ConnectionLimits(Protocol):
    """What a session reports to, so that the number of connections is bounded."""

    def has_room_for(self, session: ServerSession, share: Share) -> bool:
        """Whether a user may have one more connection."""

    def established(self, session: ServerSession) -> None:
        """The client has authenticated, or sent its first request where that is not asked for."""

    def remove(self, session: ServerSession) -> None:
        """The connection is closed."""


class ServerSession:
    """State of one connection."""

    def __init__(
        self,
        services: Services,
        limits: ConnectionLimits,
        handlers: Mapping[int, Handler],
        sock: socket.socket | TlsSocket,
        listener: str,
        peer: str,
    ) -> None:
        self.services = services
        self._limits = limits
        self._handlers = handlers
        self.listener = listener
        self.peer = peer
        self.host = peer.rpartition(":")[0].strip("[]") or peer
        self.sasl = services.config.asks_login(listener)
        self.login: tuple[ScramServer, ScramKeys] | None = None
        """A login whose last message has not come."""
        subject = sock.subject if isinstance(sock, TlsSocket) else None
        user = None if subject is None or self.sasl else user_of_certificate(services.config, subject)
        if user is None and services.config.protocol_of(listener) == "MTLS":
            raise AuthenticateError(
                "Authentication failed: no rule of 'security.ssl.principal.mapping.rules' fits the certificate of "
                f"'{subject}'"
            )
        self.principal = ANONYMOUS if user is None else Principal(user)
        self.authenticated = not self.sasl
        self.software = ""
        """What the client says it is."""
        self.last_fetch: Sequence[tuple[TableBucket, int]] = ()
        """Some of the buckets that the client fetched last, and from which offset."""
        self.is_established = False
        """Whether the client has authenticated, or, where that is not asked for, has sent its first request."""
        self._requests_max = _UNAUTHENTICATED_REQUESTS_MAX
        self._unsent_bytes_max = _UNAUTHENTICATED_UNSENT_BYTES_MAX
        self._tasks: set[asyncio.Task[None]] = set()
        self._replies: set[_Reply] = set()
        self._no_replies: asyncio.Future[None] | None = None
        self.failed_logins = 0
        self._requests_before_login = 0
        self._closes_soon = False
        self._holds = 0
        self._charged_bytes = 0
        """Of large frames that have not arrived, or not been handled yet."""
        self._making = asyncio.Lock()
        """Held while a large answer is made, so that they are made one at a time and only when there is room."""
        self._room_waiters: list[asyncio.Future[None]] = []
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader(
            UNAUTHENTICATED_FRAME_BYTES_MAX,
            frame_bytes_min=REQUEST_HEADER_BYTES,
            buffer_bytes=_FIRST_BUFFER_BYTES,
            allocate=services.frame_buffers.take,
            admit=self._admit_frame,
        )
        if self.authenticated:
            self._raise_limits()
        self.channel = Channel(
            self._loop,
            sock,
            self._reader,
            services.executor,
            on_frame=self._on_frame,
            on_closed=self._on_closed,
            on_sent=self._on_sent,
            on_error=self._on_error,
            answers=services.answers,
            share=services.scheduler.share(self.host if self.principal is ANONYMOUS else self.principal),
        )

    def __repr__(self) -> str:
        return f"ServerSession({self.listener} {self.peer} as {self.principal})"

    @property
    def share(self) -> Share:
        """The processor time of the user, or of the address while the user is not known."""
        return self.channel.share

    @property
    def requests_in_work(self) -> int:
        return len(self._replies)

    async def finish_requests(self) -> None:
        """Wait until everything in work is answered."""
        if self._replies:
            self._no_replies = self._loop.create_future()
            await self._no_replies

    @property
    def is_idle(self) -> bool:
        channel = self.channel
        return not self._replies and not channel.unsent_bytes and not channel.buffered_bytes

    @property
    def waits_for_peer(self) -> bool:
        """Whether the next step is the peer's: to send the rest of a frame, or to take answers."""
        return self.channel.reading or self.channel.unsent_bytes > 0

    def hold(self) -> None:
        """Start no further request of this connection until `release`: one of them takes more than one slice to start.

        Requests of one connection start in the order in which they came, because writers depend on it.
        """
        self._holds += 1
        self.channel.pause_reading()

    def release(self) -> None:
        self._holds -= 1
        self.adjust_reading()

    def authenticate(self, principal: Principal) -> None:
        """Take the client for this principal from now on, with the limits of clients that are known."""
        share = self.services.scheduler.share(principal)
        if not self._limits.has_room_for(self, share):
            raise AuthenticateError(
                f"{principal} has {share.usage.connections} connections, the limit of a user (server option "
                "'quota.max_connections'). Close some of them."
            )
        self.principal = principal
        self.share.usage.connections -= 1
        share.usage.connections += 1
        self.channel.share = share
        self.authenticated = True
        self._raise_limits()
        self._establish()
        self.adjust_reading()

    def _raise_limits(self) -> None:
        config = self.services.config
        self._requests_max = config.integer("netty.server.max-queued-requests")
        self._unsent_bytes_max = config.integer("server.connection.max-unsent-size")
        self._reader.set_limits(config.integer("netty.server.max-request-size"), _BUFFER_BYTES)

    def _establish(self) -> None:
        self.is_established = True
        self._limits.established(self)

    def _admit_frame(self, length: int) -> bool:
        """Charge a large frame before it gets memory. One that has to wait is left unread in the socket."""
        if length < LARGE_BYTES_MIN:
            return True
        if not self.services.memory.charge(length, self._frame_granted, self.share.owner):
            return False
        self._charged_bytes += length
        return True

    def _frame_granted(self) -> None:
        self._charged_bytes += self._reader.blocked_bytes
        self.channel.unblock()

    def _on_frame(self, frame: memoryview) -> None:
        size_bytes = len(frame)
        try:
            request = parse_request(frame)
        except FormatError as error:
            logger.warning("closing %s: %s", self, error.message)
            self.channel.close()
            return
        if size_bytes >= LARGE_BYTES_MIN:
            self._charged_bytes -= size_bytes  # from here on it is charged to the request
        api_key, version, request_id, body = request
        rate = self.services.quotas.producer_byte_rate
        if rate is not None and api_key in _WRITES and self.authenticated:
            self.share.usage.charge_bytes("produce", size_bytes, rate)
        reply = _Reply(self, api_key, request_id, size_bytes)
        try:
            handler = self._handler(api_key)
            context = RequestContext(self.services, self, api_key, version, request_id)
            if isinstance(handler, DirectHandler):
                handler.begin(context, body, reply)
            else:
                # The bytes belong to the handler alone, which is done with them long before its answer: the memory of
                # a write is used again for the next one while it is still warm.
                reply.send_later(handler(context, body))
        except Exception as error:
            reply.fail(error)
        if not reply.ended:
            self._replies.add(reply)
            self.services.memory.take(_WAITING_REQUEST_BYTES + (size_bytes if size_bytes < LARGE_BYTES_MIN else 0))
            self.adjust_reading()
            return
        if size_bytes >= LARGE_BYTES_MIN:
            self.services.memory.give_back(size_bytes, self.share.owner)
        if self._closes_soon:
            self.channel.close_after_sending()
        elif self.channel.unsent_bytes or self.share.usage.is_throttled:
            self.adjust_reading()

    def _handler(self, api_key: int) -> Handler:
        if not self.is_established:
            if self.authenticated:
                self._establish()
            else:
                self._check_before_login(api_key)
        handler = self._handlers.get(api_key)
        if handler is None:
            raise UnsupportedVersionError(f"this server does not serve {api_name(api_key)}")
        return handler

    def _check_before_login(self, api_key: int) -> None:
        self._requests_before_login += 1
        if self._requests_before_login > _REQUESTS_BEFORE_LOGIN_MAX:
            self.close_soon()
            raise AuthenticateError(
                f"The connection sent {_REQUESTS_BEFORE_LOGIN_MAX} requests without completing authentication."
            )
        if api_key not in _BEFORE_AUTHENTICATION:
            self.services.audit.login_failed(self.peer, self.listener, None, f"{api_name(api_key)} before a login")
            raise AuthenticateError(
                "The connection has not completed authentication yet. This may be caused by a missing or incorrect "
                "configuration of 'client.security.protocol' on the client side."
            )

    def _replied(self, reply: _Reply) -> None:
        """A request that had to wait is answered."""
        self._replies.discard(reply)
        self.services.memory.give_back(reply.size_bytes, self.share.owner)
        self.services.memory.release(_WAITING_REQUEST_BYTES)
        if self._closes_soon:
            self.channel.close_after_sending()
        if self._no_replies is not None and not self._replies:
            complete(self._no_replies)
        if self.channel.unsent_bytes or not self.channel.reading:
            self.adjust_reading()

    def _refusal(self, api_key: int, request_id: int, error: Exception) -> tuple[int, Parts]:
        if isinstance(error, FlussError):
            code, text = wire_error(error)
        else:
            # One broken request must not take the connection or the server along, and its sender must hear of it.
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            logger.error("%s failed for %s", api_name(api_key), self, exc_info=error)
            clear_tracebacks(error)
            text = f"{api_name(api_key)} failed in the server: {type(error).__name__}: {error}"
        return code, encode_error(request_id, code, text)

    @contextlib.asynccontextmanager
    async def making_answer(self, bytes_max: int) -> AsyncIterator[None]:
        """Make a large answer, of at most so many bytes in memory.

        Waits until the peer has taken enough of the answers before, and all peers enough of theirs.
        """
        async with self._making:
            while self.channel.unsent_bytes > self._unsent_bytes_max and not self.channel.closed:
                future: asyncio.Future[None] = self._loop.create_future()
                self._room_waiters.append(future)
                await future
            if not bytes_max:
                yield
                return
            await self._reserve(bytes_max)
            try:
                yield
            finally:
                self.services.answers.release(bytes_max)

    async def _reserve(self, bytes_max: int) -> None:
        answers, owner = self.services.answers, (self.principal, self.host)
        granted: asyncio.Future[None] = self._loop.create_future()
        grant = partial(complete, granted)
        if answers.reserve(bytes_max, owner, grant):
            return
        try:
            await granted
        except asyncio.CancelledError:
            if not answers.cancel(owner, grant):
                answers.release(bytes_max)  # granted in the same moment
            raise

    def _on_sent(self) -> None:
        if self._room_waiters and self.channel.unsent_bytes <= self._unsent_bytes_max:
            waiters, self._room_waiters = self._room_waiters, []
            for future in waiters:
                complete(future)
        self.adjust_reading()

    def adjust_reading(self) -> None:
        """Back-pressure: stop reading while too much is in work or unsent, go on when there is room."""
        if self.channel.closed:
            return
        memory = self.services.memory
        in_work = len(self._replies)
        if self._holds or in_work >= self._requests_max or self.channel.unsent_bytes > self._unsent_bytes_max:
            self.channel.pause_reading()
        elif self.authenticated and self.share.usage.is_throttled:
            self.share.usage.wait_for_room(self.adjust_reading)
            self.channel.pause_reading()
        elif self.channel.held_bytes and self.services.answers.exhausted:
            self.services.answers.wait_for_room(self.adjust_reading)
            self.channel.pause_reading()
        elif in_work and memory.exhausted and not self.channel.is_receiving_large:
            # A session with no request in work may always read one more: otherwise none could. A large frame that is
            # arriving has its memory, and gives it back the sooner the sooner it is complete.
            memory.wait_for_room(self.adjust_reading)
            self.channel.pause_reading()
        else:
            self.channel.resume_reading()

    def _on_closed(self, reason: str) -> None:
        logger.debug("%s: %s", self, reason)
        memory = self.services.memory
        memory.cancel(self._frame_granted)
        memory.stop_waiting(self.adjust_reading)
        self.services.answers.stop_waiting(self.adjust_reading)
        self.share.usage.stop_waiting(self.adjust_reading)
        if self._charged_bytes:
            memory.give_back(self._charged_bytes, self.share.owner)
            self._charged_bytes = 0
        for task in tuple(self._tasks):
            # A parked fetch would otherwise hold its place until its time is over. Appends are shielded by their queue.
            task.cancel()
        self._limits.remove(self)

    def _on_error(self, error: Exception) -> None:
        logger.error("closed %s: an error in the server", self, exc_info=error)
        self.services.metrics.add("tabletserver_failedConnections_total")

    def close(self) -> None:
        self.channel.close()

    def close_soon(self) -> None:
        """Close when the request in flight is answered."""
        self.hold()
        self._closes_soon = True


class _Reply:
    """One request in work. Takes its answer; one that comes after the connection is gone goes nowhere."""

    __slots__ = ("_api_key", "_request_id", "_session", "_started", "ended", "size_bytes")

    def __init__(self, session: ServerSession, api_key: int, request_id: int, size_bytes: int) -> None:
        self._session = session
        self._api_key = api_key
        self._request_id = request_id
        self._started = monotonic()
        self.size_bytes = size_bytes
        self.ended = False

    def send(self, body: Sequence[Buffer]) -> None:
        self._end(encode_response(self._request_id, body), 0)

    def fail(self, error: Exception) -> None:
        code, answer = self._session._refusal(self._api_key, self._request_id, error)
        self._end(answer, code)

    def send_later(self, work: Coroutine[Any, Any, Sequence[Buffer]]) -> None:
        session = self._session
        task = start_eagerly(session._loop, self._send_result(work))
        if task is not None:
            session._tasks.add(task)
            task.add_done_callback(session._tasks.discard)

    async def _send_result(self, work: Coroutine[Any, Any, Sequence[Buffer]]) -> None:
        answer: Parts | None = None
        error_code: int = ErrorCode.NONE
        try:
            answer = encode_response(self._request_id, await self._session.share.run(work, from_start=False))
        except Exception as error:
            error_code, answer = self._session._refusal(self._api_key, self._request_id, error)
        finally:  # without an answer if the session was closed meanwhile
            self._end(answer, error_code)

    def _end(self, answer: Parts | None, error_code: int) -> None:
        session = self._session
        began = monotonic()
        if answer is not None:
            rate = session.services.quotas.consumer_byte_rate
            if rate is not None and session.authenticated:
                session.share.usage.charge_bytes("consume", body_size(answer), rate)
            session.channel.write(answer)
        self.ended = True
        session.services.metrics.request(
            self._api_key, seconds=began - self._started, size_bytes=self.size_bytes, error_code=error_code
        )
        if self in session._replies:
            session._replied(self)
            session.share.charge(monotonic() - began)  # that of an answer at once is charged with its request
