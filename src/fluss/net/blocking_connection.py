# SPDX-License-Identifier: Apache-2.0
"""A connection for a thread that waits for each answer: one request at a time, no event loop."""

from __future__ import annotations

import contextlib
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from fluss.errors import DeadlineExceededError, FlussError, FormatError, NetworkError, error_for_code
from fluss.net.deadline import Deadline
from fluss.protocol.apis import Api
from fluss.protocol.frames import Buffer, FrameReader, ResponseKind, encode_request, parse_error, parse_response

_INTERRUPT_CHECK_S = 0.5
"""The system may deliver Ctrl-C to any thread; a waiting one sees it between two waits of this length."""


class BlockingConnection:
    """One open connection, used by one thread at a time. `Connection.hand_over` makes it.

    A call that fails in any other way than by an answer of the server closes the connection: a late answer would be
    taken for that of the next call.
    """

    def __init__(
        self, sock: socket.socket, peer: str, version_of: Callable[[Api[Any, Any]], int], max_frame_bytes: int
    ) -> None:
        sock.settimeout(_INTERRUPT_CHECK_S)
        self._sock = sock
        self._peer = peer
        self._version_of = version_of
        self._reader = FrameReader(max_frame_bytes)
        self._request_id = 0
        # A connection that is dropped without close() closes its socket.
        self._close_socket = weakref.finalize(self, sock.close)

    @property
    def closed(self) -> bool:
        return not self._close_socket.alive

    def call(self, api: Api[Any, Any], body: Sequence[Buffer], deadline: Deadline) -> memoryview:
        """Call an API with an encoded request and return the encoded response."""
        try:
            self._request_id = (self._request_id + 1) & 0x7FFF_FFFF
            request = encode_request(api.key, self._version_of(api), self._request_id, body)
            unsent = memoryview(b"".join(request))
            while unsent:
                unsent = unsent[self._wait(api, deadline, self._sock.send, unsent) :]
            kind, request_id, answer = parse_response(self._receive(api, deadline))
            if kind != ResponseKind.SERVER_FAILURE and request_id != self._request_id:
                raise FormatError(f"Server {self._peer} answered request {request_id}, not {self._request_id}")
        except OSError as error:
            self.close()
            if isinstance(error, FlussError):  # our own deadline error is a TimeoutError too
                raise
            raise NetworkError(f"Connection to server {self._peer} was lost: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise
        if kind == ResponseKind.SUCCESS:
            return answer
        if kind == ResponseKind.SERVER_FAILURE:
            self.close()
        raise error_for_code(*parse_error(answer))

    def _receive(self, api: Api[Any, Any], deadline: Deadline) -> memoryview:
        while True:
            count = self._wait(api, deadline, self._sock.recv_into, self._reader.get_buffer(-1))
            if not count:
                raise NetworkError(f"Server {self._peer} closed the connection")
            for frame in self._reader.buffer_updated(count):
                return frame

    def _wait(self, api: Api[Any, Any], deadline: Deadline, call: Callable[[memoryview], int], data: memoryview) -> int:
        """Repeat a call of the socket, which gives up after a while, until the deadline."""
        while not deadline.expired:
            try:
                return call(data)
            except TimeoutError:
                continue
        raise DeadlineExceededError(f"Server {self._peer} did not answer {api.name} within {deadline.total_ms:.0f} ms")

    def interrupt(self) -> None:
        """End the call that another thread waits for: it fails, and closes the connection."""
        with contextlib.suppress(OSError):  # closed already
            self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the socket. Closing twice is fine."""
        self._close_socket()
