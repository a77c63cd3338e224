# SPDX-License-Identifier: Apache-2.0
"""What both ends of a connection want of their sockets."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any, Final

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
