# SPDX-License-Identifier: Apache-2.0
"""A real S3 server behind a proxy that refuses, delays and cuts requests, and answers with old lists."""

from __future__ import annotations

import contextlib
import http.client
import random
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.s3.server import BUCKET, S3Server

FAILED, CUT, DELAYED, OLD_LIST = 0.03, 0.06, 0.12, 0.2
"""Shares of the requests, each up to the next; old lists are a share of the lists."""
_DELAY_S_MAX = 1.0
_HOP_BY_HOP = frozenset({"connection", "transfer-encoding", "keep-alive"})


class _Proxy(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, target_port: int, seed: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target_port = target_port
        self.random = random.Random(seed)
        self.lists: dict[str, tuple[int, list[tuple[str, str]], bytes]] = {}
        self.faults = 0


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Proxy

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""

    def _pass(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy, chance = self.server, self.server.random.random()
        is_list = self.command == "GET" and "list-type=2" in self.path
        if chance < DELAYED:
            proxy.faults += 1
        if chance < FAILED:
            self._answer(503, [("Content-Length", "0")], b"")
            return
        if chance < CUT:
            self.close_connection = True
            return
        if chance < DELAYED:
            time.sleep(proxy.random.random() * _DELAY_S_MAX)
        elif is_list and chance < OLD_LIST and self.path in proxy.lists:
            proxy.faults += 1
            self._answer(*proxy.lists[self.path])
            return
        connection = http.client.HTTPConnection("127.0.0.1", proxy.target_port, timeout=30)
        try:
            # The host is part of the signature: it stays that of the proxy.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in _HOP_BY_HOP and name.lower() != "expect":
                    connection.putheader(name, value)
            connection.endheaders(body)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in _HOP_BY_HOP]
        if self.command != "HEAD":
            headers = [pair for pair in headers if pair[0].lower() != "content-length"]
            headers.append(("Content-Length", str(len(content))))
        if is_list and answer.status == 200:
            proxy.lists.setdefault(self.path, (answer.status, headers, content))
            if proxy.random.random() < 0.5:
                proxy.lists[self.path] = answer.status, headers, content
        self._answer(answer.status, headers, content)

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass  # noqa: N815 (names of the base class)


@contextlib.contextmanager
def bad_store(folder: Path, seed: int) -> Iterator[tuple[str, dict[str, object]]]:
    """The URL of a backup on a store that fails now and then, and the options to reach it."""
    store = S3Server(folder / "data").start()
    try:
        store.filesystem().create_dir(BUCKET)
        proxy = _Proxy(store.port, seed)
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        try:
            options: dict[str, object] = {**store.options()}
            del options["remote.data.dir"]
            options["s3.endpoint"] = f"http://127.0.0.1:{proxy.server_address[1]}"
            yield f"s3://{BUCKET}/backup", options
            print(f"{proxy.faults} faults of the store")
        finally:
            proxy.shutdown()
            proxy.server_close()
    finally:
        store.kill()
