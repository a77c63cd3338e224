# SPDX-License-Identifier: Apache-2.0
"""A user that floods a server, in a process of its own: `python -m tests.abuse.flood`.

Standard input has one line of JSON: the address, the user, its password, and how many connections send which frame.
Each connection sends its frame again and again, as fast as the server takes it, and throws the answers away, until
standard input ends.
"""

from __future__ import annotations

import base64
import json
import selectors
import socket
import sys
import time

from tests.abuse.attackers import exchange, frame

from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb

SECONDS_MAX = 300
_BURST_BYTES = 64 * 1024
_RECEIVE_BYTES = 1 << 20


class _Flooder:
    """One connection."""

    def __init__(self, address: tuple[str, int], login: bytes, request: bytes) -> None:
        self.sock = socket.create_connection(address, timeout=30)
        assert exchange(self.sock, login) is not None
        self.sock.setblocking(False)
        self._requests = memoryview(request * max(1, _BURST_BYTES // len(request)))
        self._sent = 0

    def send(self) -> None:
        self._sent += self.sock.send(self._requests[self._sent :])
        if self._sent == len(self._requests):
            self._sent = 0


def main() -> None:
    order = json.loads(sys.stdin.readline())
    host, _, port = order["address"].rpartition(":")
    token = f"\0{order['user']}\0{order['password']}".encode()
    login = pb.AuthenticateRequest(protocol="PLAIN", token=token).SerializeToString()
    selector = selectors.DefaultSelector()
    for count, request in order["requests"]:
        for _ in range(count):
            authenticate = frame(apis.AUTHENTICATE.key, 0, 1, login)
            flooder = _Flooder((host, int(port)), authenticate, base64.b64decode(request))
            selector.register(flooder.sock, selectors.EVENT_READ | selectors.EVENT_WRITE, flooder)
    selector.register(sys.stdin, selectors.EVENT_READ, None)
    print("flooding", flush=True)
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        for key, events in selector.select(1):
            flooder = key.data
            if flooder is None:
                return
            try:
                if events & selectors.EVENT_READ and not flooder.sock.recv(_RECEIVE_BYTES):
                    selector.unregister(flooder.sock)
                elif events & selectors.EVENT_WRITE:
                    flooder.send()
            except BlockingIOError:
                pass
            except OSError:
                selector.unregister(flooder.sock)


if __name__ == "__main__":
    main()
