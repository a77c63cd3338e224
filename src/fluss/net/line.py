# SPDX-License-Identifier: Apache-2.0
"""A connection that was opened elsewhere and is used on another loop: a socket which that loop watches.

It has no transport and no task, so a loop that ends before it leaves nothing behind that would complain. It carries
small requests, a few at a time; those of any size belong on a `Connection`.
"""

from __future__ import annotations

import asyncio
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from fluss.errors import DeadlineExceededError, FlussError, FormatError, NetworkError, error_for_code
from fluss.protocol.apis import Api
from fluss.protocol.frames import Buffer, FrameReader, ResponseKind, encode_request, parse_error, parse_response

if TYPE_CHECKING:
    from fluss.net.connection import Waiter

_REQUEST_ID_MAX = 0x7FFF_FFFF


class Line:
    """One open connection. Apart from `drop`, all calls are made on the loop that watches it."""

    def __init__(
        self,
        sock: socket.socket,
        peer: str,
        version_of: Callable[[Api[Any, Any]], int],
        *,
        request_timeout_ms: int,
        max_frame_bytes: int,
    ) -> None:
        self.closed = False
        self._sock = sock
        self._peer = peer
        self._version_of = version_of
        self._timeout_s = request_timeout_ms / 1000.0
        self._reader = FrameReader(max_frame_bytes)
        self._pending: dict[int, tuple[Waiter, float]] = {}
        self._next_id = 0
        self._unsent = bytearray()
        self._timed = False
        # The loop that holds this line may be gone without having closed anything.
        self._close_socket = weakref.finalize(self, sock.close)

    def watch(self) -> None:
        """Begin, on the running loop. Raises NotImplementedError where loops cannot watch sockets."""
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._readable)

    def begin(self, api: Api[Any, Any], body: Sequence[Buffer], waiter: Waiter) -> None:
        """Send a request: `waiter` is told what came of it."""
        if self.closed:
            raise NetworkError(f"{api.name} was not sent: the connection to server {self._peer} is gone")
        pending = self._pending
        request_id = self._next_id
        while request_id in pending:
            request_id = (request_id + 1) & _REQUEST_ID_MAX
        self._next_id = (request_id + 1) & _REQUEST_ID_MAX
        frame = b"".join(encode_request(api.key, self._version_of(api), request_id, body))
        pending[request_id] = waiter, time.monotonic() + self._timeout_s
        if not self._timed:
            self._look_again_in(self._timeout_s)
        self._send(frame)

    def close(self, reason: FlussError) -> None:
        """End. Requests under way fail with the reason."""
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock.fileno())
        if self._unsent:
            loop.remove_writer(self._sock.fileno())
        self.closed = True
        self._close_socket()
        waiting = list(self._pending.values())
        self._pending.clear()
        for waiter, _ in waiting:
            if not waiter.done():
                waiter.set_exception(type(reason)(reason.message, reason.error_code))

    def drop(self) -> None:
        """End on any thread, when no loop watches the socket any more: nobody waits."""
        self.closed = True
        self._pending.clear()
        self._close_socket()

    def _send(self, frame: bytes) -> None:
        sent = 0
        if not self._unsent:
            try:
                sent = self._sock.send(frame)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError as error:
                self._lose(error)
                return
            if sent == len(frame):
                return
            asyncio.get_running_loop().add_writer(self._sock.fileno(), self._writable)
        self._unsent += frame[sent:]

    def _writable(self) -> None:
        try:
            sent = self._sock.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        del self._unsent[:sent]
        if not self._unsent:
            asyncio.get_running_loop().remove_writer(self._sock.fileno())

    def _readable(self) -> None:
        try:
            count = self._sock.recv_into(self._reader.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._lose(error)
            return
        if not count:
            self._lose(None)
            return
        try:
            for frame in self._reader.buffer_updated(count):
                self._received(frame)
        except FlussError as error:
            self.close(error)

    def _received(self, frame: memoryview) -> None:
        kind, request_id, body = parse_response(frame)
        if kind == ResponseKind.SERVER_FAILURE:
            raise error_for_code(*parse_error(body))
        waiter, _ = self._pending.pop(request_id, (None, 0.0))
        if waiter is None or waiter.done():
            return
        if kind == ResponseKind.SUCCESS:
            waiter.set_result(body)
            return
        try:
            error = error_for_code(*parse_error(body))
        except FormatError as broken:
            error = broken
        waiter.set_exception(error)

    def _lose(self, error: OSError | None) -> None:
        detail = "" if error is None else f": {error.strerror or error}"
        self.close(NetworkError(f"Connection to server {self._peer} was lost{detail}"))

    # One timer that runs on, instead of one for each request.

    def _look_again_in(self, seconds: float) -> None:
        self._timed = True
        asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timed = False
        if not self._pending:
            return
        _, oldest = next(iter(self._pending.values()))
        left = oldest - time.monotonic()
        if left > 0:
            self._look_again_in(left)
        else:
            text = f"Server {self._peer} did not answer within {self._timeout_s * 1000:.0f} ms"
            self.close(DeadlineExceededError(text))
