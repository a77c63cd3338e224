# SPDX-License-Identifier: Apache-2.0
"""A connection that one loop opened and another one uses: a socket which that loop watches.

It has no transport and no task, so a loop that ends before it leaves nothing behind that would complain. It carries
small requests, a few at a time; those of any size belong on a `Connection`.
"""

from __future__ import annotations

import asyncio
import socket
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from fluss.errors import DeadlineExceededError, FlussError, NetworkError
from fluss.net.pending import PendingRequests, Waiter
from fluss.protocol.apis import Api
from fluss.protocol.frames import Buffer, FrameReader, encode_request


class LoopConnection:
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
        self._pending: PendingRequests[float] = PendingRequests()
        """With the time at which each request times out."""
        self._unsent = bytearray()
        self._timed = False
        # The loop that holds this connection may be gone without having closed anything.
        self._close_socket = weakref.finalize(self, sock.close)

    def watch(self) -> None:
        """Watch the socket on the running loop. Raises NotImplementedError where loops cannot watch sockets."""
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._readable)

    def begin(self, api: Api[Any, Any], body: Sequence[Buffer], waiter: Waiter) -> None:
        """Send a request; `waiter` takes its outcome."""
        if self.closed:
            raise NetworkError(f"{api.name} was not sent: the connection to server {self._peer} is gone")
        request_id = self._pending.next_id()
        frame = b"".join(encode_request(api.key, self._version_of(api), request_id, body))
        self._pending.add(request_id, waiter, time.monotonic() + self._timeout_s)
        if not self._timed:
            self._check_in(self._timeout_s)
        self._send(frame)

    def close(self, reason: FlussError) -> None:
        """End. Requests in flight fail with the reason."""
        if self.closed:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._sock.fileno())
        if self._unsent:
            loop.remove_writer(self._sock.fileno())
        self.closed = True
        self._close_socket()
        self._pending.fail_all(reason)

    def drop(self) -> None:
        """End on any thread, when no loop watches the socket any more and no request is waited for."""
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
                self._pending.dispatch(frame)
        except FlussError as error:
            self.close(error)

    def _lose(self, error: OSError | None) -> None:
        detail = "" if error is None else f": {error.strerror or error}"
        self.close(NetworkError(f"Connection to server {self._peer} was lost{detail}"))

    # One timer for all requests, instead of one for each.

    def _check_in(self, seconds: float) -> None:
        self._timed = True
        asyncio.get_running_loop().call_later(seconds, self._check_timeouts)

    def _check_timeouts(self) -> None:
        self._timed = False
        oldest = self._pending.oldest()
        if oldest is None:
            return
        left = oldest - time.monotonic()
        if left > 0:
            self._check_in(left)
        else:
            text = f"Server {self._peer} did not answer within {self._timeout_s * 1000:.0f} ms"
            self.close(DeadlineExceededError(text))
