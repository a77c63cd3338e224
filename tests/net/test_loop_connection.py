# SPDX-License-Identifier: Apache-2.0
"""Connections that are opened on one loop and used on another."""

from __future__ import annotations

import asyncio
import gc
import socket
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from fluss.errors import (
    ConnectionClosedError,
    DeadlineExceededError,
    ErrorCode,
    FlussError,
    FormatError,
    NetworkError,
    StorageError,
)
from fluss.net import Connection
from fluss.net.loop_connection import LoopConnection
from fluss.protocol import apis, frames
from fluss.protocol import messages as pb


class Heard:
    """A waiter that keeps what it is told."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.gave_up = False

    def done(self) -> bool:
        return self.gave_up

    def set_result(self, answer: memoryview, /) -> None:
        self.answer.set_result(bytes(answer))

    def set_exception(self, error: FlussError, /) -> None:
        self.answer.set_exception(error)


def run(scenario: Any) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 30))


async def until(true: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if true():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come true")


async def connection_to(port: int, **options: Any) -> LoopConnection:
    connection = await Connection.open("127.0.0.1", port, **{"request_timeout_ms": 5_000, **options})
    conn = await connection.hand_over()
    assert connection.closed
    conn.watch()
    return conn


def ask(conn: LoopConnection, body: bytes = b"") -> Heard:
    heard = Heard()
    conn.begin(apis.LOOKUP, [body], heard)
    return heard


async def echo(session: Any) -> None:
    await session.shake_hands()
    while True:
        request = await session.next_request()
        session.answer(request, bytes(request.body))


CLOSED = ConnectionClosedError("closed")


def test_requests_and_answers(serving: Any) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            conn = await connection_to(server.port)
            heard = [ask(conn, b"%d" % number) for number in range(100)]
            assert [await one.answer for one in heard] == [b"%d" % number for number in range(100)]
            assert len(server.sessions) == 1, "the socket of the connection that opened it"
            assert {request.api_key for request in server.sessions[0].requests[1:]} == {apis.LOOKUP.key}
            conn.close(CLOSED)

    run(scenario())


def test_a_request_larger_than_the_socket_takes(serving: Any) -> None:
    body = bytes(range(256)) * 64 * 1024

    async def scenario() -> None:
        async with serving(echo) as server:
            conn = await connection_to(server.port)
            heard = [ask(conn, body), ask(conn, b"behind it")]
            assert [await one.answer for one in heard] == [body, b"behind it"]
            conn.close(CLOSED)

    run(scenario())


def test_answers_in_any_order_and_to_nobody(serving: Any) -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        requests = [await session.next_request() for _ in range(3)]
        for request in reversed(requests):
            session.answer(request, b"%d" % request.request_id)
            session.answer(request, b"again")
        await session.next_request()

    async def scenario() -> None:
        async with serving(behaviour) as server:
            conn = await connection_to(server.port)
            heard = [ask(conn) for _ in range(3)]
            heard[1].gave_up = True
            assert [await heard[0].answer, await heard[2].answer] == [b"0", b"2"]
            assert not heard[1].answer.done()
            conn.close(CLOSED)

    run(scenario())


def test_errors_of_one_request(serving: Any) -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        session.refuse(await session.next_request(), ErrorCode.STORAGE_EXCEPTION, "no room")
        broken = await session.next_request()
        session.writer.write(b"".join(frames.encode_error(broken.request_id, 1))[:-1] + b"\xff")
        session.answer(await session.next_request(), b"well")

    async def scenario() -> None:
        async with serving(behaviour) as server:
            conn = await connection_to(server.port)
            first, second, third = ask(conn), ask(conn), ask(conn)
            with pytest.raises(StorageError, match="no room"):
                await first.answer
            with pytest.raises(FlussError):
                await second.answer
            assert await third.answer == b"well"
            conn.close(CLOSED)

    run(scenario())


@pytest.mark.parametrize(
    ("last_words", "error"),
    [
        (b"", NetworkError),
        (b"\xff\xff\xff\xff", FormatError),
        (b"\x00\x00\x00\x06\x09\x00\x00\x00\x00\x00", FormatError),
        (b"".join(frames.encode_server_failure(ErrorCode.STORAGE_EXCEPTION, "the disk is gone")), StorageError),
    ],
)
def test_what_ends_a_line_reaches_all_who_wait(serving: Any, last_words: bytes, error: type[FlussError]) -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        await session.next_request()
        await session.next_request()
        session.writer.write(last_words)

    async def scenario() -> None:
        async with serving(behaviour) as server:
            conn = await connection_to(server.port)
            heard = [ask(conn), ask(conn)]
            errors = await asyncio.gather(*(one.answer for one in heard), return_exceptions=True)
            assert [type(found) for found in errors] == [error, error]
            assert errors[0] is not errors[1]
            assert conn.closed
            with pytest.raises(NetworkError, match="LOOKUP was not sent"):
                ask(conn)

    run(scenario())


def test_a_server_that_keeps_silent_is_given_up(serving: Any) -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        session.answer(await session.next_request(), b"once")
        while True:
            await session.next_request()

    async def scenario() -> None:
        async with serving(behaviour) as server:
            conn = await connection_to(server.port, request_timeout_ms=200)
            assert await ask(conn).answer == b"once"
            await asyncio.sleep(0.1)
            began = asyncio.get_running_loop().time()
            with pytest.raises(DeadlineExceededError, match="within 200 ms"):
                await ask(conn).answer
            assert 0.15 < asyncio.get_running_loop().time() - began < 5
            assert conn.closed

    run(scenario())


def test_a_line_that_is_reset(serving: Any) -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        await session.next_request()
        sock = session.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        session.writer.transport.abort()

    async def scenario() -> None:
        async with serving(behaviour) as server:
            conn = await connection_to(server.port)
            with pytest.raises(NetworkError, match="was lost"):
                await ask(conn).answer

    run(scenario())


def test_a_loop_that_ends_first_leaves_nothing_behind(serving: Any) -> None:
    """Neither a warning about what was not closed nor an open socket."""
    kept: list[Any] = []

    async def use(port: int) -> None:
        conn = await connection_to(port)
        assert await ask(conn, b"x").answer == b"x"
        kept.append(weakref.ref(conn))
        kept.append(conn._sock)

    async def scenario() -> None:
        async with serving(echo) as server:
            await asyncio.to_thread(lambda: asyncio.run(use(server.port)))
            gc.collect()
            assert kept[0]() is None
            assert kept[1].fileno() == -1
            await until(server.sessions[0].reader.at_eof)

    run(scenario())


def test_dropped_from_another_thread(serving: Any) -> None:
    async def scenario() -> None:
        async with serving(echo) as server:
            connection = await Connection.open("127.0.0.1", server.port)
            conn = await connection.hand_over()
            await asyncio.to_thread(conn.drop)
            assert conn.closed
            conn.close(CLOSED)
            await until(server.sessions[0].reader.at_eof)

    run(scenario())


def test_a_lost_connection_has_no_socket_to_give(serving: Any) -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()

    async def scenario() -> None:
        async with serving(behaviour) as server:
            connection = await Connection.open("127.0.0.1", server.port)
            await until(lambda: connection.closed)
            with pytest.raises(NetworkError, match="cannot be given"):
                await connection.hand_over()

    run(scenario())


def test_the_message_of_a_lookup_survives_the_way(serving: Any) -> None:
    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        request = await session.next_request()
        assert pb.LookupRequest.FromString(bytes(request.body)).table_id == 7
        session.answer(request, pb.LookupResponse())

    async def scenario() -> None:
        async with serving(behaviour) as server:
            conn = await connection_to(server.port)
            body = pb.LookupRequest(table_id=7).SerializeToString()
            assert await ask(conn, body).answer == b""
            conn.close(CLOSED)

    run(scenario())
