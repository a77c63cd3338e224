# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tests.net.conftest import Server, echo, serving
from tests.waiting import at_most, cancel_and_wait

from fluss.errors import (
    AuthenticateError,
    ConnectionClosedError,
    DeadlineExceededError,
    FlussError,
    FormatError,
    InvalidArgumentError,
    NetworkError,
    RetriableAuthenticateError,
    StorageError,
    TableNotExistError,
    UnsupportedVersionError,
)
from fluss.net import Connection
from fluss.protocol import apis, frames
from fluss.protocol import messages as pb
from fluss.protocol.apis import ServerType
from fluss.protocol.sasl import Credentials

ALICE = Credentials("alice", "open sesame")
T_LOG = pb.PbTablePath(database_name="fluss", table_name="t_log")


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(scenario, 30))


async def connect(port: int, **options: Any) -> Connection:
    settings = {"connect_timeout_ms": 5_000, "request_timeout_ms": 5_000} | options
    return await Connection.open("127.0.0.1", port, **settings)


@contextlib.asynccontextmanager
async def talking(
    behaviour: Callable[[Any], Awaitable[None]], **options: Any
) -> AsyncIterator[tuple[Connection, Server]]:
    """A connection to a server of this behaviour, which is closed in the end."""
    async with serving(behaviour) as server:
        connection = await connect(server.port, **options)
        yield connection, server
        await connection.close()


def shaken(behaviour: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
    async def whole(session: Any) -> None:
        await session.shake_hands()
        await behaviour(session)

    return whole


async def silent(session: Any) -> None:
    await asyncio.sleep(30)


async def forever(session: Any) -> None:
    while True:
        await session.next_request()


async def empty_answers(session: Any) -> None:
    while True:
        session.answer(await session.next_request())


def answering(*answers: Any, then: Callable[[Any], Awaitable[None]] = forever) -> Callable[[Any], Awaitable[None]]:
    """Shake hands and answer the first requests with these messages, or with errors, (code, text)."""

    async def behaviour(session: Any) -> None:
        await session.shake_hands()
        for answer in answers:
            request = await session.next_request()
            if isinstance(answer, tuple):
                session.refuse(request, *answer)
            else:
                session.answer(request, answer)
        await then(session)

    return behaviour


# ---- calls ----


async def test_call_sends_and_returns_messages() -> None:
    behaviour = answering(pb.ListTablesResponse(table_name=["a", "b"]), pb.InitWriterResponse(writer_id=7))
    async with talking(behaviour, software_name="tester") as (connection, server):
        response = await connection.call(apis.LIST_TABLES, pb.ListTablesRequest(database_name="fluss"))
        assert list(response.table_name) == ["a", "b"]
        assert (await connection.call(apis.INIT_WRITER)).writer_id == 7
        first, second, third = server.sessions[0].requests
        assert [r.request_id for r in (first, second, third)] == [0, 1, 2]
        assert pb.ApiVersionsRequest.FromString(first.body).client_software_name == "tester"
        assert (second.api_key, second.version, bytes(second.body)) == (1008, 0, b"\x0a\x05fluss")
        assert bytes(third.body) == b""
        assert repr(connection) == f"<Connection to 127.0.0.1:{server.port}, 0 calls in flight>"
        await connection.close()
        assert "closed" in repr(connection)


async def test_answers_in_any_order() -> None:
    async def behaviour(session: Any) -> None:
        requests = [await session.next_request() for _ in range(20)]
        for request in reversed(requests):
            session.answer(request, bytes(request.body))

    async with talking(shaken(behaviour)) as (connection, server):
        calls = [connection.call_parts(apis.FETCH_LOG, [bytes([n])]) for n in range(20)]
        assert [bytes(answer) for answer in await asyncio.gather(*calls)] == [bytes([n]) for n in range(20)]
        sent = [bytes(r.body) for r in server.sessions[0].requests[1:]]
        assert sent == [bytes([n]) for n in range(20)]
        assert len(connection._pending) == 0


class Told:
    """A waiter that is no future."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.gone = False
        self.told = asyncio.Event()

    def done(self) -> bool:
        return self.gone

    def set_result(self, answer: memoryview) -> None:
        self.heard.append(bytes(answer))
        self.told.set()

    def set_exception(self, error: FlussError) -> None:
        self.heard.append(error)
        self.told.set()


async def test_begin_tells_the_waiter_once() -> None:
    async def behaviour(session: Any) -> None:
        first, second, third = [await session.next_request() for _ in range(3)]
        session.answer(third, b"cancelled call")
        session.refuse(second, 7, "no")
        session.answer(first, b"yes")
        session.answer(first, b"twice")

    async with talking(shaken(behaviour)) as (connection, _):
        waiters = [Told(), Told(), Told()]
        for waiter in waiters:
            connection.begin(apis.LOOKUP, [b"question"], waiter)
        waiters[2].gone = True
        await waiters[0].told.wait()
        assert "0 calls in flight" in repr(connection)
        assert waiters[0].heard == [b"yes"]
        [error] = waiters[1].heard
        assert isinstance(error, TableNotExistError)
        assert waiters[2].heard == []
        await connection.close()
        with pytest.raises(ConnectionClosedError):
            connection.begin(apis.LOOKUP, [b"question"], Told())


async def test_begin_hears_of_a_lost_connection() -> None:
    async def behaviour(session: Any) -> None:
        await session.next_request()
        session.writer.close()

    async with talking(shaken(behaviour)) as (connection, _):
        waiter = Told()
        connection.begin(apis.LOOKUP, [b"question"], waiter)
        await waiter.told.wait()
        [error] = waiter.heard
        assert isinstance(error, NetworkError)


async def test_errors_of_the_server() -> None:
    async with talking(answering((7, "No table x."), (7,), (999, "new"), b"")) as (connection, _):
        with pytest.raises(TableNotExistError, match=r"No table x\."):
            await connection.call(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=T_LOG))
        with pytest.raises(TableNotExistError, match="does not exist"):
            await connection.call(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=T_LOG))
        with pytest.raises(FlussError, match="new") as caught:
            await connection.call(apis.GET_METADATA)
        assert caught.value.error_code == 999
        await connection.call(apis.GET_METADATA)


async def test_broken_bodies_fail_only_their_call() -> None:
    async def behaviour(session: Any) -> None:
        session.answer(await session.next_request(), b"\x0a\xff")
        request = await session.next_request()
        session.writer.write(struct.pack(">ibi", 6, 1, request.request_id) + b"\x08")
        session.writer.write(b"".join(frames.encode_response(4711, [b"no such request"])))
        session.answer(await session.next_request(), pb.ListDatabasesResponse(database_name=["d"]))

    async with talking(shaken(behaviour)) as (connection, _):
        with pytest.raises(FormatError, match="not a valid ListDatabasesResponse"):
            await connection.call(apis.LIST_DATABASES)
        with pytest.raises(FormatError, match="not a valid ErrorResponse"):
            await connection.call(apis.LIST_DATABASES)
        assert list((await connection.call(apis.LIST_DATABASES)).database_name) == ["d"]


async def test_a_request_that_lacks_a_field_is_not_sent() -> None:
    async with talking(shaken(empty_answers)) as (connection, server):
        with pytest.raises(InvalidArgumentError, match=r"LIST_TABLES request cannot be sent.*database_name"):
            await connection.call(apis.LIST_TABLES, pb.ListTablesRequest())
        assert len(server.sessions[0].requests) == 1


async def test_request_ids_wrap_and_skip_those_in_use() -> None:
    async def behaviour(session: Any) -> None:
        requests = [await session.next_request() for _ in range(4)]
        for request in requests:
            session.answer(request)

    async with talking(shaken(behaviour)) as (connection, server):
        first = asyncio.ensure_future(connection.call(apis.LIST_DATABASES))
        await asyncio.sleep(0)
        connection._pending._next_id = 2**31 - 1
        await asyncio.gather(first, *(connection.call(apis.LIST_DATABASES) for _ in range(3)))
        assert [r.request_id for r in server.sessions[0].requests[1:]] == [1, 2**31 - 1, 0, 2]


# ---- large frames ----


async def test_large_requests_and_answers() -> None:
    async def behaviour(session: Any) -> None:
        request = await session.next_request()
        await asyncio.sleep(0.1)  # let the socket fill up
        following = await session.next_request()
        session.answer(following)
        session.answer(request, bytes(request.body))
        assert following.api_key == apis.LIST_DATABASES.key

    parts = [b"head", b"a" * 7_000_000, bytearray(b"small"), memoryview(b"b" * 5_000_000), b"c" * 70_000, b"tail"]

    async with talking(shaken(behaviour)) as (connection, _):
        large = asyncio.ensure_future(connection.call_parts(apis.PRODUCE_LOG, parts))
        await asyncio.sleep(0)
        await connection.call(apis.LIST_DATABASES)
        assert (await large) == b"".join(parts)


WORDS = memoryview(struct.pack("<20000q", *range(20000))).cast("q")


@pytest.mark.parametrize("parts", [[WORDS], [bytes([n]) * 30_000 for n in range(10)]], ids=["words", "middling"])
async def test_parts_of_other_sizes(parts: list[Any]) -> None:
    async with talking(echo) as (connection, _):
        assert await connection.call_parts(apis.PRODUCE_LOG, parts) == b"".join(parts)


# ---- deadlines and cancellation ----


async def first_answer_late(session: Any) -> None:
    late = await session.next_request()
    other = await session.next_request()
    session.answer(late, b"too late")
    session.answer(other, b"ok")


async def test_deadline_of_one_call() -> None:
    async with talking(shaken(first_answer_late)) as (connection, _):
        with pytest.raises(DeadlineExceededError, match=r"did not answer FETCH_LOG within 30 ms") as caught:
            await connection.call_parts(apis.FETCH_LOG, [b"1"], timeout_ms=30)
        assert isinstance(caught.value, TimeoutError)
        assert "0 calls in flight" in repr(connection)
        assert await connection.call_parts(apis.FETCH_LOG, [b"2"]) == b"ok"


async def test_cancelled_calls_leave_nothing_behind() -> None:
    async with talking(shaken(first_answer_late)) as (connection, _):
        call = asyncio.ensure_future(connection.call_parts(apis.FETCH_LOG, [b"1"]))
        await asyncio.sleep(0.01)
        assert "1 calls in flight" in repr(connection)
        await cancel_and_wait(call)
        assert "0 calls in flight" in repr(connection)
        assert await connection.call_parts(apis.FETCH_LOG, [b"2"]) == b"ok"


# ---- the end of a connection ----


async def test_a_lost_connection_fails_every_call() -> None:
    async def behaviour(session: Any) -> None:
        for _ in range(3):
            await session.next_request()

    async with talking(shaken(behaviour)) as (connection, _):
        calls = [connection.call(apis.LIST_DATABASES) for _ in range(3)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(error) for error in errors] == [NetworkError] * 3
        assert len({id(error) for error in errors}) == 3
        assert all(error.is_retriable for error in errors)
        assert connection.closed
        with pytest.raises(NetworkError, match=r"LIST_DATABASES was not sent: .* was lost; open a new connection"):
            await connection.call(apis.LIST_DATABASES)


async def test_a_call_between_loss_and_notice_fails_too() -> None:
    async with talking(shaken(forever)) as (connection, _):
        connection._transport._transport.abort()
        with pytest.raises(NetworkError, match="was lost"):
            await connection.call(apis.LIST_DATABASES)


async def test_an_answer_cut_in_the_middle() -> None:
    async def behaviour(session: Any) -> None:
        request = await session.next_request()
        session.writer.write(b"".join(frames.encode_response(request.request_id, [bytes(100)]))[:50])

    async with talking(shaken(behaviour)) as (connection, _):
        with pytest.raises(NetworkError, match="in the middle of a response"):
            await connection.call(apis.LIST_DATABASES)


async def test_server_failure_fails_every_call() -> None:
    async def behaviour(session: Any) -> None:
        await session.next_request()
        await session.next_request()
        session.writer.write(b"".join(frames.encode_server_failure(26, "disk gone")))
        await forever(session)

    async with talking(shaken(behaviour)) as (connection, _):
        calls = [connection.call(apis.LIST_DATABASES) for _ in range(2)]
        errors = await asyncio.gather(*calls, return_exceptions=True)
        assert [(type(error), error.message) for error in errors] == [(StorageError, "disk gone")] * 2
        assert connection.closed
        with pytest.raises(NetworkError, match="disk gone"):
            await connection.call(apis.LIST_DATABASES)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not the Fluss protocol: the server answers HTTP"),
        (b"\xff\xff\xff\xff", "Frame length -1"),
        (b"\0\0\0\0", "Frame length 0"),
        (b"\0\0\0\x06\x09\0\0\0\0\0", "unknown kind 9"),
        (b"\0\0\0\x02\x00\x00", "shorter than its 5-byte header"),
        (b"\0\0\0\x02\x02\x08", "not a valid ErrorResponse"),
    ],
)
async def test_servers_that_speak_something_else(data: bytes, message: str) -> None:
    async def behaviour(session: Any) -> None:
        await session.next_request()
        session.writer.write(data)
        await forever(session)

    async with serving(behaviour) as server:
        with pytest.raises(FormatError, match=message):
            await connect(server.port)


async def test_answers_have_a_limit() -> None:
    async with talking(answering(bytes(20_000)), max_frame_bytes=10_000) as (connection, _):
        with pytest.raises(FormatError, match="larger than the limit of 10000 bytes"):
            await connection.call(apis.LIST_DATABASES)
        assert connection.closed


async def test_close_twice_and_use_after_close() -> None:
    async with talking(shaken(forever)) as (connection, _):
        call = asyncio.ensure_future(connection.call(apis.LIST_DATABASES))
        await asyncio.sleep(0.01)
        await asyncio.gather(connection.close(), connection.close())
        await connection.close()
        with pytest.raises(ConnectionClosedError, match="was closed"):
            await call
        with pytest.raises(ConnectionClosedError, match="closed connection"):
            await connection.call(apis.LIST_DATABASES)
        assert connection.closed


async def test_close_for_a_reason_that_may_pass() -> None:
    async with talking(shaken(forever)) as (connection, _):
        call = asyncio.ensure_future(connection.call_parts(apis.LOOKUP, [b"question"]))
        await asyncio.sleep(0)
        await connection.close(NetworkError("the server moved"))
        assert connection.closed
        with pytest.raises(NetworkError, match="the server moved"):
            await call
        with pytest.raises(NetworkError, match=r"not sent.*open a new connection"):
            await connection.call_parts(apis.LOOKUP, [b"question"])
        await connection.close()
        with pytest.raises(ConnectionClosedError):
            await connection.call_parts(apis.LOOKUP, [b"question"])


async def test_closing_while_much_waits_to_be_sent() -> None:
    async with talking(shaken(silent)) as (connection, _):
        call = asyncio.ensure_future(connection.call_parts(apis.PRODUCE_LOG, [bytes(30_000_000)]))
        await asyncio.sleep(0.05)
        with at_most(20):
            await connection.close()
        with pytest.raises(ConnectionClosedError):
            await call


# ---- connecting ----


def test_nobody_listens() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(NetworkError, match=f"Cannot connect to server 127.0.0.1:{port}: .*check that"):
            run(connect(port))


def test_unknown_host() -> None:
    with pytest.raises(NetworkError, match=r"Cannot connect to server no-such-host\.invalid:1"):
        run(Connection.open("no-such-host.invalid", 1, connect_timeout_ms=20_000))


async def test_connect_deadline() -> None:
    async with serving(forever) as server:
        with at_most(20), pytest.raises(NetworkError, match="within 100 ms"):
            await connect(server.port, connect_timeout_ms=100)


async def test_cancelled_open_closes_the_socket() -> None:
    async with serving(silent) as server:
        opening = asyncio.ensure_future(connect(server.port))
        await server.connected.wait()
        await cancel_and_wait(opening)
        await asyncio.wait_for(server.sessions[0].reader.read(), 5)
        assert server.sessions[0].reader.at_eof()
    gc.collect()  # a transport left open would warn now


async def test_socket_options() -> None:
    async with talking(shaken(forever)) as (connection, _):
        sock = connection._transport._transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0


# ---- versions ----


async def test_versions_are_negotiated_per_api() -> None:
    async def behaviour(session: Any) -> None:
        request = await session.next_request()
        session.name_versions(request, 2, PUT_KV=(0, 1), LOOKUP=(0, 9), FETCH_LOG=(3, 4), LIST_DATABASES=(0, 0))
        await empty_answers(session)

    async with talking(behaviour, expected_server_type=ServerType.TABLET) as (connection, server):
        assert connection.server_type is ServerType.TABLET
        assert connection.version_of(apis.PUT_KV) == 1
        assert connection.version_of(apis.LOOKUP) == 1
        await connection.call_parts(apis.PUT_KV, [b""])
        await connection.call_parts(apis.PUT_KV, [b""])
        assert [r.version for r in server.sessions[0].requests[1:]] == [1, 1]
        assert connection.supports(apis.LIST_DATABASES)
        assert not connection.supports(apis.SCAN_KV)
        with pytest.raises(UnsupportedVersionError, match=r"does not serve SCAN_KV \(1061\)"):
            await connection.call(apis.SCAN_KV)
        with pytest.raises(UnsupportedVersionError, match="versions 3 to 4, but this client speaks 0 to 0"):
            await connection.call(apis.FETCH_LOG)
        await connection.call(apis.LIST_DATABASES)  # the connection is still good


@pytest.mark.parametrize(
    ("code", "known", "expected", "problem"),
    [
        (1, ServerType.COORDINATOR, ServerType.TABLET, "coordinator, not tablet"),
        (9, None, 1, "type 9, not coordinator"),
    ],
)
async def test_a_server_of_another_type(code: int, known: Any, expected: Any, problem: str) -> None:
    async def behaviour(session: Any) -> None:
        session.name_versions(await session.next_request(), code)
        await forever(session)

    async with talking(behaviour) as (connection, server):
        assert connection.server_type is known
        with pytest.raises(NetworkError, match=f"wrong type: {problem}"):
            await connect(server.port, expected_server_type=expected)


async def test_a_server_that_names_no_type_is_accepted() -> None:
    async with talking(shaken(forever), expected_server_type=ServerType.TABLET) as (connection, _):
        assert connection.server_type is None


async def test_a_server_that_ignores_api_versions() -> None:
    async def behaviour(session: Any) -> None:
        versions = await session.next_request()
        request = await session.next_request()
        session.name_versions(versions)  # too late to matter
        session.answer(request)

    async with talking(behaviour, api_versions_timeout_ms=50) as (connection, server):
        assert connection.supports(apis.SCAN_KV)
        await connection.call_parts(apis.PUT_KV, [b""])
        assert server.sessions[0].requests[1].version == 0


async def test_a_server_that_refuses_api_versions() -> None:
    async def behaviour(session: Any) -> None:
        session.refuse(await session.next_request(), 2, "what?")
        session.answer(await session.next_request())

    async with talking(behaviour) as (connection, server):
        await connection.call_parts(apis.LOOKUP, [b""])
        assert server.sessions[0].requests[1].version == 0


@pytest.mark.parametrize(
    ("answer", "error", "problem"),
    [(None, NetworkError, "was lost"), (b"\x0a\xff", FormatError, "not a valid ApiVersionsResponse")],
)
async def test_a_bad_answer_about_api_versions(answer: bytes | None, error: type[FlussError], problem: str) -> None:
    async def behaviour(session: Any) -> None:
        request = await session.next_request()
        if answer is not None:
            session.answer(request, answer)

    async with serving(behaviour) as server:
        with pytest.raises(error, match=problem):
            await connect(server.port)


# ---- authentication ----


def tokens(session: Any) -> list[tuple[str, bytes]]:
    requests = [r for r in session.requests if r.api_key == apis.AUTHENTICATE.key]
    messages = [pb.AuthenticateRequest.FromString(r.body) for r in requests]
    return [(message.protocol, message.token) for message in messages]


FIRST_TOKEN = ("PLAIN", b"\0alice\0open sesame")


async def test_plain_without_a_challenge() -> None:
    async with talking(shaken(empty_answers), credentials=ALICE) as (connection, server):
        await connection.call(apis.LIST_DATABASES)
        assert tokens(server.sessions[0]) == [FIRST_TOKEN]


async def test_an_empty_challenge_is_acknowledged() -> None:
    empty = pb.AuthenticateResponse(challenge=b"")
    async with talking(answering(empty, empty, then=empty_answers), credentials=ALICE) as (connection, server):
        await connection.call(apis.LIST_DATABASES)
        assert tokens(server.sessions[0]) == [FIRST_TOKEN, ("PLAIN", b"")]


async def test_authentication_with_a_server_that_names_no_versions() -> None:
    async def behaviour(session: Any) -> None:
        session.refuse(await session.next_request(), 46, "authenticate first")
        await empty_answers(session)

    async with talking(behaviour, credentials=ALICE) as (connection, server):
        await connection.close()
        assert tokens(server.sessions[0]) == [FIRST_TOKEN]


async def test_a_wrong_password(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with serving(answering((46, "Wrong user or password."))) as server:
            with pytest.raises(AuthenticateError, match="Wrong user or password") as caught:
                await connect(server.port, credentials=ALICE)
            assert ALICE.password not in repr(caught.value)
    assert ALICE.password not in caplog.text


async def test_a_real_challenge_is_refused() -> None:
    async with serving(answering(pb.AuthenticateResponse(challenge=b"prove it"))) as server:
        with pytest.raises(AuthenticateError, match="sent a challenge, but PLAIN has none"):
            await connect(server.port, credentials=ALICE)


async def test_the_server_asks_to_try_again(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        started = time.monotonic()
        behaviour = answering((51, "busy"), (51, "busy"), then=empty_answers)
        async with talking(behaviour, credentials=ALICE) as (_, server):
            assert 0.2 < time.monotonic() - started < 3  # 0.1 s and 0.2 s, each give or take a fifth
            assert tokens(server.sessions[0]) == [FIRST_TOKEN] * 3
    assert "asks to authenticate again" in caplog.text
    assert ALICE.password not in caplog.text


async def test_trying_again_ends_with_the_connect_deadline() -> None:
    async def behaviour(session: Any) -> None:
        while True:
            session.refuse(await session.next_request(), 51, "still busy")

    async with serving(shaken(behaviour)) as server:
        with pytest.raises(RetriableAuthenticateError, match="still busy"):
            await connect(server.port, credentials=ALICE, connect_timeout_ms=400)
        assert len(tokens(server.sessions[0])) >= 2


async def test_authentication_that_is_never_answered() -> None:
    async with serving(shaken(forever)) as server:
        with pytest.raises(DeadlineExceededError, match="did not answer AUTHENTICATE within 50 ms"):
            await connect(server.port, credentials=ALICE, request_timeout_ms=50)
        with pytest.raises(NetworkError, match="within 100 ms"):
            await connect(server.port, credentials=ALICE, connect_timeout_ms=100)


# ---- cost ----


def test_a_call_costs_little() -> None:
    """Client and test server share the loop here; the bound is loose enough for a busy machine."""

    async def scenario() -> float:
        async with talking(shaken(empty_answers)) as (connection, _):
            best = float("inf")
            for _ in range(5):
                started = time.process_time()
                for _ in range(100):
                    await connection.call(apis.LIST_DATABASES)
                best = min(best, (time.process_time() - started) / 100)
            return best

    assert run(scenario()) < 0.001


def test_other_event_loops() -> None:
    uvloop = pytest.importorskip("uvloop")
    body = b"x" * 3_000_000

    async def scenario() -> None:
        async with talking(echo) as (connection, _):
            assert await connection.call_parts(apis.PRODUCE_LOG, [b"head", body]) == b"head" + body

    with contextlib.closing(uvloop.new_event_loop()) as loop:
        loop.run_until_complete(asyncio.wait_for(scenario(), 30))
