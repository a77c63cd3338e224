# SPDX-License-Identifier: Apache-2.0
"""The socket side of a connection: frames in, parts out, flow control.

Reading goes straight into the buffers of a `FrameReader`. Writing keeps large parts apart: asyncio copies whatever the
socket does not take at once (before Python 3.12). So the socket is given all it takes here, and asyncio only a slice of
the rest, which makes it say when there is room again.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, Final, cast

from fluss.errors import FlussError, NetworkError
from fluss.net.tls import tls_failure
from fluss.protocol.frames import Buffer, FrameReader

WAKE_BYTES: Final = 256 * 1024
"""Of a large frame so much at a time: what is received in smaller pieces wakes the reader more often than it helps."""


_TLS_HELD_BYTES_MAX = 64 * 1024


class WakeMark:
    """How many bytes must have come before the system wakes the reader of a socket.

    `sock` is a socket or whatever of it an event loop shows. Where the system has no such mark nothing happens.
    With TLS, bytes of the frame may have left the socket and wait for the rest of their record, which has 16 KB at
    most: those must not be waited for.
    """

    __slots__ = ("_raise_at", "_raised", "_sock")

    def __init__(self, sock: Any, *, tls: bool = False) -> None:
        self._sock = sock
        self._raised = False
        self._raise_at = WAKE_BYTES + (_TLS_HELD_BYTES_MAX if tls else 0)

    def expect(self, missing_bytes: int) -> None:
        """So many bytes of a frame are still to come; 0 when it is not known."""
        raised = missing_bytes >= self._raise_at
        if raised is not self._raised:
            self._raised = raised
            with suppress(OSError):  # not a TCP socket, or already gone: the next read reports it
                self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, WAKE_BYTES if raised else 1)


JOIN_BYTES_MAX: Final = 64 * 1024
"""Parts are joined into one write up to this size: one system call is dearer than copying that much."""

_SLICE_BYTES = 1024 * 1024
_WAITING_SLICE_BYTES = 64 * 1024
_PARTS_PER_SEND = 64
_KEEP_ALIVE = (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class FrameTransport(asyncio.BufferedProtocol):
    """Sends and receives frames over one stream socket.

    `on_frame` gets every frame. `on_lost` is called once, when the connection is gone, with the reason.
    """

    def __init__(
        self,
        peer: str,
        reader: FrameReader,
        on_frame: Callable[[memoryview], None],
        on_lost: Callable[[FlussError], None],
    ) -> None:
        self._peer = peer
        self._reader = reader
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._direct: socket.socket | None = None
        self._wake_mark: WakeMark | None = None
        self._outgoing: deque[memoryview] = deque()
        self._paused = False
        self._failure: FlussError | None = None
        self._lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ---- called by asyncio ----

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # not a check: transports of other loops are not derived
        sock = transport.get_extra_info("socket")
        if sock is None:
            return
        _set_socket_options(sock)
        is_tls = transport.get_extra_info("ssl_object") is not None
        self._wake_mark = WakeMark(sock, tls=is_tls)
        if not is_tls:
            self._direct = _second_handle(sock)
            # As soon as asyncio keeps a byte for later, nothing may overtake it.
            self._transport.set_write_buffer_limits(high=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer(sizehint)

    def buffer_updated(self, nbytes: int) -> None:
        try:
            frames = self._reader.buffer_updated(nbytes)
            if self._wake_mark is not None:
                self._wake_mark.expect(self._reader.missing_bytes)
            for frame in frames:
                self._on_frame(frame)
        except FlussError as error:
            self.fail(error)

    def eof_received(self) -> bool:
        if self._failure is None and self._reader.in_frame:
            self._failure = NetworkError(f"Server {self._peer} closed the connection in the middle of a response")
        return False

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._direct is not None:
            self._direct.close()
            self._direct = None
        self._outgoing.clear()
        self._paused = True
        error: FlussError | None = self._failure
        if error is None:
            detail = f": {exc}" if exc is not None else ""
            error = NetworkError(f"Connection to server {self._peer} was lost{detail}")
            if isinstance(exc, ssl.SSLError) and re.search("ALERT.*(CERTIFICATE|UNKNOWN_CA)", exc.reason or ""):
                error = tls_failure(self._peer, exc)  # with TLS 1.3, a server refuses a client after its handshake
        if not self._lost.done():
            self._lost.set_result(None)
        self._on_lost(error)

    # ---- called by the connection ----

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate (DER) of the server; None without TLS."""
        secured = self._transport.get_extra_info("ssl_object") if self._transport is not None else None
        return None if secured is None else cast("bytes | None", secured.getpeercert(binary_form=True))

    def send(self, parts: Sequence[Buffer], size_bytes: int) -> None:
        """Queue one frame. Frames are sent in the order of the calls."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # `on_lost` is about to report it to the callers
        if size_bytes <= JOIN_BYTES_MAX and not self._paused and not self._outgoing:
            transport.write(b"".join(parts))
            return
        self._outgoing.extend(_joined(parts))
        self._pump()

    def fail(self, error: FlussError) -> None:
        """Give the connection up because of what the peer sent."""
        if self._failure is None:
            self._failure = error
        if self._transport is not None:
            self._transport.abort()

    async def close(self) -> None:
        """Close and wait until the socket is gone. Bytes that the socket has not taken yet are dropped."""
        transport = self._transport
        if transport is not None:
            transport.abort()
            await asyncio.shield(self._lost)

    def release(self) -> socket.socket | None:
        """A handle on the socket that stays open when this transport is closed; None if it is gone or has none."""
        direct, self._direct = self._direct, None
        return direct

    def _pump(self) -> None:
        outgoing, transport = self._outgoing, self._transport
        while outgoing and not self._paused and transport is not None:
            if self._direct is not None and self._send_directly(self._direct):
                continue
            slice_bytes = _SLICE_BYTES if self._direct is None else _WAITING_SLICE_BYTES
            first = outgoing.popleft()
            if first.nbytes > slice_bytes:
                outgoing.appendleft(first[slice_bytes:])
            transport.write(first[:slice_bytes])

    def _send_directly(self, sock: socket.socket) -> bool:
        """Let the socket take what it has room for; False when it takes nothing, for whatever reason."""
        outgoing = self._outgoing
        try:
            left = sock.sendmsg(islice(outgoing, _PARTS_PER_SEND))
        except OSError:
            return False
        while left:
            first = outgoing.popleft()
            if left < first.nbytes:
                outgoing.appendleft(first[left:])
                break
            left -= first.nbytes
        return True


def _joined(parts: Sequence[Buffer]) -> list[memoryview]:
    """The parts as flat views, neighbouring small ones joined."""
    views: list[memoryview] = []
    small: list[Buffer] = []
    small_bytes = 0
    for part in parts:
        view = memoryview(part)
        if view.nbytes <= JOIN_BYTES_MAX:
            small.append(part)
            small_bytes += view.nbytes
            if small_bytes < JOIN_BYTES_MAX:
                continue
        if small:
            views.append(memoryview(b"".join(small)))
            small, small_bytes = [], 0
        if view.nbytes > JOIN_BYTES_MAX:
            views.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
    if small:
        views.append(memoryview(b"".join(small)))
    return views


def _second_handle(sock: socket.socket) -> socket.socket | None:
    """The socket of a transport for our own use, where the system can send many parts at once."""
    if not hasattr(socket.socket, "sendmsg"):
        return None
    try:
        direct = socket.socket(fileno=os.dup(sock.fileno()))
    except OSError:
        return None
    direct.setblocking(False)
    return direct


def _set_socket_options(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEP_ALIVE:
            option = getattr(socket, name, None)
            if option is not None:
                sock.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:
        pass  # not a TCP socket, or already gone: the first read reports it
