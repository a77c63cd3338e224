# SPDX-License-Identifier: Apache-2.0
"""Connections that a waiting thread uses."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from typing import Any

import pytest
from tests.net.conftest import echo, serving
from tests.waiting import at_most

from fluss.errors import DeadlineExceededError, ErrorCode, FlussError, FormatError, NetworkError, StorageError
from fluss.net import Connection
from fluss.net.blocking_connection import BlockingConnection
from fluss.net.deadline import Deadline
from fluss.protocol import apis, frames


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 30))


async def connection_to(port: int) -> BlockingConnection:
    connection = await Connection.open("127.0.0.1", port, request_timeout_ms=5_000)
    handed_over = await connection.hand_over()
    assert connection.closed
    return handed_over


async def ask(conn: BlockingConnection, body: bytes = b"", timeout_ms: float = 5_000) -> bytes:
    return bytes(await asyncio.to_thread(conn.call, apis.LOOKUP, [body], Deadline(timeout_ms)))


async def test_requests_and_answers() -> None:
    large = bytes(range(256)) * 4 * 1024
    async with serving(echo) as server:
        conn = await connection_to(server.port)
        for body in (b"one", b"", large, b"behind it"):
            assert await ask(conn, body) == body
        assert len(server.sessions) == 1, "the socket of the connection that opened it"
        conn.close()
        conn.close()


async def test_an_error_of_one_request_leaves_the_connection_open() -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        request = await session.next_request()
        session.refuse(request, ErrorCode.STORAGE_EXCEPTION, "disk on fire")
        request = await session.next_request()
        session.answer(request, b"fine")

    async with serving(behaviour) as server:
        conn = await connection_to(server.port)
        with pytest.raises(StorageError, match="disk on fire"):
            await ask(conn)
        assert not conn.closed
        assert await ask(conn) == b"fine"
        conn.close()


@pytest.mark.parametrize(
    ("last_words", "error"),
    [
        (b"", NetworkError),
        (b"\x00\x00", NetworkError),
        (b"\xff\xff\xff\xff", FormatError),
        (b"".join(frames.encode_response(99, [b"of another request"])), FormatError),
        (b"".join(frames.encode_server_failure(ErrorCode.STORAGE_EXCEPTION, "the disk is gone")), StorageError),
    ],
)
async def test_what_ends_a_connection(last_words: bytes, error: type[FlussError]) -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        await session.next_request()
        session.writer.write(last_words)

    async with serving(behaviour) as server:
        conn = await connection_to(server.port)
        with pytest.raises(error):
            await ask(conn)
        assert conn.closed


async def silent(session: Any) -> None:
    await session.shake_hands()
    await session.next_request()
    await asyncio.sleep(60)


async def test_a_server_that_does_not_answer() -> None:
    async with serving(silent) as server:
        conn = await connection_to(server.port)
        with at_most(5), pytest.raises(DeadlineExceededError, match="did not answer LOOKUP within 200 ms"):
            await ask(conn, timeout_ms=200)
        assert conn.closed, "a late answer would be taken for the next one"


async def dripping(session: Any) -> None:
    await session.shake_hands()
    await session.next_request()
    session.writer.write(b"\x00\x10\x00\x00")
    for _ in range(200):
        session.writer.write(b"\x00")
        await asyncio.sleep(0.05)


async def deaf(session: Any) -> None:
    await session.shake_hands()
    await asyncio.sleep(1.5)
    session.answer(await session.next_request(), b"late")
    await asyncio.sleep(60)


async def test_a_server_that_answers_byte_by_byte() -> None:
    async with serving(dripping) as server:
        conn = await connection_to(server.port)
        with pytest.raises(DeadlineExceededError):
            await asyncio.wait_for(ask(conn, timeout_ms=300), 8)


async def test_a_server_that_takes_a_large_request_late() -> None:
    async with serving(deaf) as server:
        conn = await connection_to(server.port)
        assert await ask(conn, bytes(32 << 20), timeout_ms=60_000) == b"late"


async def test_a_waiting_call_is_interrupted_by_another_thread() -> None:
    async with serving(silent) as server:
        conn = await connection_to(server.port)
        threading.Timer(0.1, conn.interrupt).start()
        with at_most(5), pytest.raises(NetworkError):
            await ask(conn, timeout_ms=20_000)
        assert conn.closed
        conn.interrupt()


async def test_a_dropped_connection_closes_its_socket() -> None:
    async with serving(echo) as server:
        conn = await connection_to(server.port)
        sock, alive = conn._sock, weakref.ref(conn)
        del conn
        gc.collect()
        assert alive() is None
        assert sock.fileno() == -1


async def test_a_lost_connection_has_no_socket_to_give() -> None:
    async with serving(echo) as server:
        connection = await Connection.open("127.0.0.1", server.port)
        connection.abandon("for the test")
        await asyncio.sleep(0.05)
        with pytest.raises(NetworkError, match="cannot be used by a thread"):
            await connection.hand_over()
