# SPDX-License-Identifier: Apache-2.0
"""Listening sockets: one per configured listener name."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

from fluss.errors import ConfigError
from fluss.server.config import Endpoint

logger = logging.getLogger("fluss.server.listener")

_BACKLOG = 1024
_ACCEPTS_PER_WAKE = 64
_RETRY_AFTER_S = 0.5
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


Accept = Callable[[socket.socket, str, str], None]
"""Takes an accepted socket, the name of its listener, and the address of the peer."""


class Listener:
    """Accepts connections on one address and hands the sockets on.

    `make_room` is asked to close a connection that is worth less than a new one when the process has no handle left.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        accept: Accept,
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self.name = endpoint.listener
        self._accept = accept
        self._make_room = make_room
        self._failing = False
        self._sock = _bind(endpoint)
        self._loop = asyncio.get_running_loop()
        self.host: str = endpoint.host or str(self._sock.getsockname()[0])
        self.port: int = int(self._sock.getsockname()[1])

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def start(self) -> None:
        self._loop.add_reader(self._sock.fileno(), self._readable)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()

    def _readable(self) -> None:
        for _ in range(_ACCEPTS_PER_WAKE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES and self._make_room():
                    continue
                self._pause(error)
                return
            self._failing = False
            try:
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                # Where IPv6 takes IPv4 connections as well, rules and quotas still know them by their IPv4 address.
                self._accept(sock, self.name, f"{address[0].removeprefix('::ffff:')}:{address[1]}")
            except Exception as error:
                # One connection that cannot be served must not end the others, nor the listener.
                logger.error("cannot serve a connection on %s", self.address, exc_info=error)
                sock.close()

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a while: the socket stays readable, so an immediate retry would spin."""
        if not self._failing:
            self._failing = True
            logger.error(
                "cannot accept on %s: %s; retrying every %s s until it succeeds. "
                "Raise the limit of open files, or lower 'server.max-connections'",
                self.address,
                error.strerror or error,
                _RETRY_AFTER_S,
            )
        self._loop.remove_reader(self._sock.fileno())
        self._loop.call_later(_RETRY_AFTER_S, self._restart)

    def _restart(self) -> None:
        if self._sock.fileno() >= 0:
            self.start()


def _bind(endpoint: Endpoint) -> socket.socket:
    try:
        found = socket.getaddrinfo(
            endpoint.host or None, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ConfigError(f"cannot listen on {endpoint}: {error.strerror or error}.") from None
    # IPv4 first: older clients resolve a host name to IPv4 only.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, kind, protocol, _, address = found[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(_BACKLOG)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {endpoint}: {error.strerror}. Choose another port, or 0 for any free one."
        ) from None
    sock.setblocking(False)
    return sock
