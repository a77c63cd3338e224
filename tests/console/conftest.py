# SPDX-License-Identifier: Apache-2.0
"""A real embedded server with its console, as `fluss server --ui` runs them, and a small HTTP client."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import fluss
from fluss.console.serving import Console
from fluss.console.settings import Settings

SOURCE = Path(__file__).resolve().parents[2] / "src"


class Answer:
    """What came back."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def refused(self, status: int = 400) -> str:
        """The error of a request that is refused."""
        assert self.status == status, self.body
        return str(self.json["error"])


class Browser:
    """Speaks HTTP to a console as a browser does: keeps the cookie, and sends what scripts of the page send."""

    def __init__(self, port: int, host: str | None = None, trust: ssl.SSLContext | None = None) -> None:
        """With `trust` it speaks HTTPS."""
        self.port = port
        self.trust = trust
        self.host = f"127.0.0.1:{port}" if host is None else host
        self.cookie: str | None = None

    def connect(self) -> http.client.HTTPConnection:
        if self.trust is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=30, context=self.trust)

    def send(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = self.connect()
        try:
            sent = {"Host": self.host}
            if self.cookie is not None:
                sent["Cookie"] = self.cookie
            connection.request(method, path, body, {**sent, **(headers or {})})
            response = connection.getresponse()
            found = {name.lower(): value for name, value in response.getheaders()}
            if "set-cookie" in found:
                self.cookie = found["set-cookie"].split(";")[0]
            return Answer(response.status, found, response.read())
        finally:
            connection.close()

    def get(self, path: str, **arguments: Any) -> Answer:
        query = f"?{urlencode(arguments)}" if arguments else ""
        return self.send("GET", f"/api/{path}{query}")

    def post(self, path: str, **arguments: Any) -> Answer:
        origin = f"http{'' if self.trust is None else 's'}://{self.host}"
        headers = {"Content-Type": "application/json", "X-Fluss-Console": "1", "Origin": origin}
        return self.send("POST", f"/api/{path}", json.dumps(arguments).encode(), headers)

    def upload(self, path: str, content: bytes, **arguments: Any) -> Answer:
        headers = {"Content-Type": "application/octet-stream", "X-Fluss-Console": "1"}
        return self.send("POST", f"/api/{path}?{urlencode(arguments)}", content, headers)

    def open(self) -> Browser:
        assert self.send("GET", "/").status == 200
        return self

    @contextmanager
    def lines(self, path: str) -> Iterator[Iterator[str]]:
        """The lines of a stream, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", f"/api/{path}", headers={"Host": self.host, "Cookie": self.cookie or ""})
            response = connection.getresponse()
            assert response.status == 200, response.read()
            yield (line.decode() for line in response)
        finally:
            connection.close()

    @contextmanager
    def events(self, path: str, **arguments: Any) -> Iterator[Iterator[Any]]:
        """The events of something that is followed, as they come."""
        with self.lines("streams") as lines:
            assert self.follow(next(lines).strip(), path, **arguments).json == {"open": True}
            yield (json.loads(line.partition(" ")[2])["event"] for line in lines)

    def follow(self, stream: str, path: str, **arguments: Any) -> Answer:
        return self.post("streams/follow", stream=stream, key="k1", source=path, args=arguments)


@contextmanager
def running_console(settings: Settings) -> Iterator[Console]:
    """A console in a thread of this process."""
    console = Console(settings)
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(console.run(lambda _: ready.set())))
    thread.start()
    try:
        assert ready.wait(20)
        yield console
    finally:
        console.stop()
        thread.join(20)
        assert not thread.is_alive()


class Running:
    """`fluss server --ui`: addresses of both."""

    def __init__(self, process: subprocess.Popen[str], server: str, url: str) -> None:
        self.process = process
        self.server = server
        self.url = url
        self.port = int(re.search(r":(\d+)", url)[1])  # type: ignore[index]


@contextmanager
def server_with_console(folder: Path, *arguments: str) -> Iterator[Running]:
    command = [sys.executable, "-m", "fluss", "server", "--watch-stdin", "--data-dir", str(folder)]
    command += [] if any("bind.listeners" in one for one in arguments) else ["--port", "0"]
    process = subprocess.Popen(
        [*command, "--ui", "--ui-port", "0", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        ready, console = process.stdout.readline().split(), process.stdout.readline().split()
        assert ready[0] == "ready"
        assert console[0] == "console"
        yield Running(process, ready[1], console[1])
    finally:
        process.stdin.close()
        assert process.wait(30) == 0
        process.stdout.close()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("console")
    with server_with_console(folder / "data", "--replicate", str(folder / "backup")) as found:
        yield found


@pytest.fixture(scope="session")
def db(running: Running) -> Iterator[fluss.Database]:
    with fluss.connect(running.server, timeout=30) as database:
        yield database


@pytest.fixture
def browser(running: Running) -> Browser:
    return Browser(running.port).open()
