# SPDX-License-Identifier: Apache-2.0
"""Peers that are slow, or many, or guess: the console goes on for all others."""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from starlette.requests import Request

import fluss
from fluss.console.clients import Client
from fluss.console.security import Session, Sessions
from fluss.console.serving import Console
from fluss.console.settings import SESSIONS_MAX, Settings

from .conftest import Browser, Running, running_console
from .test_security import USERS


@pytest.fixture
def console(running: Running) -> Iterator[Console]:
    with running_console(Settings(running.server, port=0)) as console:
        yield console


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def test_a_body_that_never_comes_is_refused(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.console.state.BODY_S_MAX", 1.0)
    with connect(console.port) as sock:
        head = "POST /api/login HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Fluss-Console: 1\r\nContent-Type: application/json\r\n"
        sock.sendall(f"{head}Content-Length: 100\r\n\r\n{{".encode())
        answer = b""
        while b"did not arrive within 1 s" not in answer:  # the head may come before the body
            part = sock.recv(100_000)
            assert part, answer
            answer += part


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such option of a socket")
def test_answers_that_are_not_taken_end_the_connection(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.console.serving._STALLED_MS_MAX", 1_000)
    with running_console(Settings(running.server, port=0)) as console, socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(10)
        sock.connect(("127.0.0.1", console.port))
        sock.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 20_000)
        assert sock.recv(1)
        deadline = time.monotonic() + 30
        state = console._server.server_state
        while state.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not state.connections


def test_sessions_of_others_are_kept(running: Running) -> None:
    """Each look at the page without a cookie opens one: none of them pushes out a user, or a browser in use."""
    settings = Settings(running.server)
    shared, alice = Client(settings, None, None), Client(settings, "alice", "wonder")
    sessions = Sessions(1)

    def found(session: Session) -> bool:
        headers = [(b"cookie", f"{sessions.cookie}={session.token}".encode())]
        return sessions.find(Request({"type": "http", "headers": headers})) is session

    hers, in_use = sessions.open(alice), sessions.open(shared)
    assert found(in_use)
    for _ in range(2 * SESSIONS_MAX):
        sessions.open(shared)
    assert found(hers)
    assert found(in_use)


@pytest.fixture(scope="module")
def guarded() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer(options=USERS) as server:
        yield server


def test_passwords_are_hashed_in_threads(guarded: fluss.LocalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    real, names = hashlib.scrypt, []

    def scrypt(*args: object, **options: object) -> bytes:
        names.append(threading.current_thread().name)
        return real(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(hashlib, "scrypt", scrypt)
    with running_console(Settings(guarded.bootstrap_servers, port=0)) as console:
        for _ in range(2):
            assert Browser(console.port).post("login", user="alice", password="wonder").status == 200
    assert len(names) == 2
    assert all(name.startswith("asyncio_") for name in names), names


def test_guesses_do_not_make_others_wait(guarded: fluss.LocalServer) -> None:
    """Those of one address are checked four at a time, and the next are refused at once."""
    with running_console(Settings(guarded.bootstrap_servers, port=0)) as console, ThreadPoolExecutor(12) as pool:
        began = time.monotonic()
        guesses = [pool.submit(Browser(console.port).post, "login", user=f"nobody{n}", password="x") for n in range(12)]
        errors = [guess.result().json["error"] for guess in guesses]
        assert sum("Too many logins" in error for error in errors) >= 4
        assert time.monotonic() - began < 10
        assert Browser(console.port).post("login", user="alice", password="wonder").status == 200
