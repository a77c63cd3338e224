# SPDX-License-Identifier: Apache-2.0
"""One connection: handshake, limits, and an answer to every request."""

from __future__ import annotations

import asyncio
import gc
import socket
import struct
import threading
import time
import weakref
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.server.log_support import Client, connected, fetch_request, make_batch, running_server
from tests.server.metrics_support import figures
from tests.shared import raising
from tests.waiting import at_most, wait_for, wait_until

from fluss.errors import ErrorCode, FlussError
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.frames import encode_request, parse_error, parse_response
from fluss.protocol.record_messages import encode_produce_log
from fluss.protocol.sasl import Credentials
from fluss.server.auth import Principal
from fluss.server.handlers.request import DirectHandler, Reply, RequestContext
from fluss.server.log.files import SegmentFile
from fluss.server.log.tablet import LogTablet
from fluss.server.server import Server

SASL = {
    "bind_listeners": "FLUSS://127.0.0.1:0, CLIENT://127.0.0.1:0",
    "security_protocol_map": "CLIENT:sasl",
    "security_sasl_plain_jaas_config": 'org.example.Module required user_alice="alice-secret" user_bob="b\\"ob";',
}


_opened: list[RawClient] = []


@pytest.fixture(autouse=True)
async def _raw_clients_closed() -> AsyncIterator[None]:
    _opened.clear()
    yield
    while _opened:
        await _opened.pop().close()


def request_frame(key: int, body: bytes, version: int = 0, request_id: int = 1) -> bytes:
    return b"".join(bytes(part) for part in encode_request(key, version, request_id, [body]))


class RawClient:
    """Bytes in, frames out: for what no well-behaved client sends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, server: Server, listener: str = "FLUSS", **options: Any) -> RawClient:
        bound = server.listeners[listener]
        _opened.append(cls(*await asyncio.open_connection(bound.host, bound.port, **options)))
        return _opened[-1]

    async def request(self, key: int, body: bytes = b"", *, version: int = 0, request_id: int = 1) -> None:
        self.writer.write(request_frame(key, body, version, request_id))
        await self.writer.drain()

    async def response(self) -> tuple[int, int, bytes]:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        answer = parse_response(memoryview(await self.reader.readexactly(size)))
        return answer.kind, answer.request_id, bytes(answer.body)

    async def ask(self, key: int = apis.GET_METADATA.key, body: bytes = b"", **options: int) -> tuple[int, int, bytes]:
        await self.request(key, body, **options)
        return await self.response()

    async def log_in(self, token: bytes, protocol: str = "PLAIN") -> None:
        message = pb.AuthenticateRequest(protocol=protocol, token=token)
        await self.request(apis.AUTHENTICATE.key, message.SerializeToString())

    async def error(self) -> tuple[int, str | None]:
        kind, _, body = await self.response()
        assert kind == 1
        return parse_error(body)

    async def is_closed(self) -> bool:
        try:
            return await asyncio.wait_for(self.reader.read(1), 5) == b""
        except ConnectionResetError:
            return True

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except OSError:
            return


async def test_api_versions_lists_what_is_served_and_no_server_type(server: Server, client: Client) -> None:
    request = pb.ApiVersionsRequest(client_software_name="a", client_software_version="1")
    answer = await client.call(apis.API_VERSIONS, request)
    served = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_versions}
    assert set(served) == set(server.handlers)
    assert served[apis.PRODUCE_LOG.key] == (0, 1)
    assert not answer.HasField("server_type")
    assert set(served) >= {1000, 1012, 1014, 1015, 1021, 1026, 1033, 1038, 1059}


async def test_unknown_and_malformed_requests_are_answered(server: Server) -> None:
    raw = await RawClient.open(server)
    await raw.request(4242)
    assert (await raw.error())[0] == ErrorCode.UNSUPPORTED_VERSION
    for api, body, expected in (
        (apis.INIT_WRITER, b"\xff\xff\xff", "INIT_WRITER"),
        (apis.LIST_OFFSETS, b"", "offset_type"),
    ):
        await raw.request(api.key, body)
        code, text = await raw.error()
        assert (code, expected in (text or "")) == (ErrorCode.UNKNOWN_SERVER_ERROR, True)
    await raw.request(apis.PRODUCE_LOG.key, b"\x08\x01")
    assert (await raw.error())[0] == ErrorCode.UNKNOWN_SERVER_ERROR
    await raw.request(apis.GET_METADATA.key, b"", request_id=-7)
    kind, request_id, _ = await raw.response()
    assert (kind, request_id) == (0, -7)
    await raw.close()


class TestSasl:
    async def test_users_log_in_on_their_listener(self, tmp_path: Path) -> None:
        async with running_server(tmp_path, **SASL) as server:
            for user, password in (("alice", "alice-secret"), ("bob", 'b"ob')):
                async with connected(server, "CLIENT", credentials=Credentials(user, password)) as client:
                    answer = await client.call(apis.GET_METADATA, pb.MetadataRequest())
                    # Clients are told the port of the listener through which they came.
                    assert answer.tablet_servers[0].port == server.listeners["CLIENT"].port
            [port] = {listener.port for name, listener in server.listeners.items() if name == "FLUSS"}
            async with connected(server) as client:
                answer = await client.call(apis.GET_METADATA, pb.MetadataRequest())
                assert answer.coordinator_server.port == port

    async def test_nothing_is_served_before_authentication(self, tmp_path: Path) -> None:
        async with running_server(tmp_path, **SASL) as server:
            raw = await RawClient.open(server, "CLIENT")
            await raw.request(apis.GET_METADATA.key)
            code, text = await raw.error()
            assert code == ErrorCode.AUTHENTICATE_EXCEPTION
            assert "client.security.protocol" in (text or "")
            versions = pb.ApiVersionsRequest(client_software_name="a", client_software_version="1")
            assert (await raw.ask(apis.API_VERSIONS.key, versions.SerializeToString()))[0] == 0
            right = b"\0alice\0alice-secret"
            for token in (b"", b"alice", b"\0alice\0", b"\0\0alice-secret", b"bob" + right, b"\0\xff\0x"):
                await raw.log_in(token)
                assert (await raw.error())[0] == ErrorCode.AUTHENTICATE_EXCEPTION
            await raw.log_in(right, "SCRAM")
            assert (await raw.error())[0] == ErrorCode.AUTHENTICATE_EXCEPTION
            await raw.log_in(right, "plain")
            # The challenge is present and empty, and a second round is answered without one.
            assert (await raw.response())[2] == b"\x0a\x00"
            await raw.log_in(b"")
            assert (await raw.response())[::2] == (0, b"")
            assert (await raw.ask())[0] == 0

    async def test_guessing_passwords_is_slow(self, tmp_path: Path) -> None:
        """A connection is closed after three wrong ones, and further connections wait longer each time.

        A stop of the server does not wait with them.
        """

        async def guess(raw: RawClient) -> bool:
            await raw.log_in(b"\0alice\0guess")
            return (await raw.error())[0] == ErrorCode.AUTHENTICATE_EXCEPTION

        async def attack(server: Server, tried: list[float]) -> None:
            while True:
                raw = await RawClient.open(server, "CLIENT")
                try:
                    for _ in range(3):
                        assert await guess(raw)
                        tried.append(time.monotonic())
                    assert await raw.is_closed()
                except asyncio.IncompleteReadError:
                    continue
                finally:
                    await raw.close()

        async with running_server(tmp_path, **SASL) as server:
            tried: list[float] = []
            attackers = [asyncio.ensure_future(attack(server, tried)) for _ in range(5)]
            await asyncio.sleep(2.5)
            checked = figures(server.metrics.text())["tabletserver_failedLogins_total"]
            assert 3 <= checked <= 20
            # Others, from the same address, get in.
            with at_most(8):
                async with connected(server, "CLIENT", credentials=Credentials("bob", 'b"ob')) as client:
                    await client.call(apis.GET_METADATA, pb.MetadataRequest())
            pending = set(attackers)
            while pending:  # one that is cancelled just as it is answered goes on
                for attacker in pending:
                    attacker.cancel()
                _, pending = await asyncio.wait(pending, timeout=0.2)
            started = time.monotonic()
        assert time.monotonic() - started < 5

    async def test_logins_of_one_address_delay_neither_the_disk_nor_other_addresses(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The fourth try of a connection is not looked at, also if it was sent with the first."""
        released = threading.Event()
        async with running_server(tmp_path, **SASL) as server:
            checked: list[bytes] = []
            check = server.accounts.log_in_plain

            def log_in(listener: str, token: bytes) -> Principal:
                checked.append(token)
                assert b"alice" in token or released.wait(30)
                return check(listener, token)

            monkeypatch.setattr(server.accounts, "log_in_plain", log_in)
            raw = await RawClient.open(server, "CLIENT")
            for _ in range(4):
                await raw.log_in(b"\0bob\0guess")
            await wait_until(lambda: checked)
            try:
                await asyncio.wait_for(asyncio.get_running_loop().run_in_executor(server.executor, int), 20)
                other = await RawClient.open(server, "CLIENT", local_addr=("127.0.0.2", 0))
                await other.log_in(b"\0alice\0alice-secret")
                assert (await asyncio.wait_for(other.response(), 20))[2] == b"\x0a\x00"
                assert checked.count(b"\0bob\0guess") == 1
            finally:
                released.set()
            await asyncio.wait_for(raw.reader.read(), 20)
            assert checked.count(b"\0bob\0guess") == 3

    async def test_the_first_login_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of two at the same time: what was charged to a user is given back to the same one."""
        released = threading.Event()
        async with running_server(tmp_path, **SASL) as server:
            check = server.accounts.log_in_plain

            def log_in(listener: str, token: bytes) -> Principal:
                assert released.wait(30)
                wait_for(lambda: b"alice" in token or [one for one in server.sessions if one.is_established])
                return check(listener, token)

            monkeypatch.setattr(server.accounts, "log_in_plain", log_in)
            raw = await RawClient.open(server, "CLIENT")
            await raw.log_in(b"\0alice\0alice-secret")
            await raw.log_in(b'\0bob\0b"ob')
            await wait_until(lambda: sum(session.requests_in_work for session in server.sessions) == 2)
            released.set()
            assert [(await raw.response())[0] for _ in range(2)] == [0, 0]
            assert [session.principal.name for session in server.sessions] == ["alice"]

    async def test_sasl_client_on_a_plain_listener(self, server: Server) -> None:
        with pytest.raises(FlussError):
            async with connected(server, credentials=Credentials("alice", "alice-secret")):
                pass
        raw = await RawClient.open(server)
        await raw.log_in(b"", "plaintext")
        assert (await raw.response())[0] == 0


async def test_idle_connections_are_closed(tmp_path: Path) -> None:
    async with running_server(tmp_path, netty_connection_max__idle__time="200ms") as server:
        raw = await RawClient.open(server)
        await raw.ask()
        with at_most(3):
            assert await raw.is_closed()


async def test_connections_are_limited(tmp_path: Path) -> None:
    async with running_server(tmp_path, server_max__connections=2) as server:
        first, second = await RawClient.open(server), await RawClient.open(server)
        for raw in (first, second):
            await raw.ask()
        third = await RawClient.open(server)
        assert await third.is_closed()
        await first.close()
        await asyncio.sleep(0.05)
        await (await RawClient.open(server)).ask()


async def test_reading_pauses_while_too_much_is_in_work(tmp_path: Path) -> None:
    options = {"netty_server_max__queued__requests": 4}
    async with running_server(tmp_path, **options) as server, connected(server) as client:
        table = await client.create_table()
        raw = await RawClient.open(server)
        request = fetch_request(table, 0, max_bytes=100, min_bytes=1, max_wait_ms=20_000)
        for number in range(10):
            await raw.request(apis.FETCH_LOG.key, request.SerializeToString(), request_id=number)
        await asyncio.sleep(0.2)
        [one] = busy(server)
        assert 4 <= one.requests_in_work <= 10
        await client.produce(table, make_batch(0))
        assert {(await raw.response())[1] for _ in range(10)} == set(range(10))


def busy(server: Server) -> list[Any]:
    return [session for session in server.sessions if session.requests_in_work]


def produce(table: int, batch: bytearray) -> bytes:
    return b"".join(encode_produce_log(-1, table, 20_000, [(None, 0, [batch])]))


class Gate:
    """Flushes wait until it is opened, so writes stay unanswered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened = threading.Event()
        real = SegmentFile.sync

        def sync(file: SegmentFile) -> None:
            assert self._opened.wait(20)
            real(file)

        monkeypatch.setattr(SegmentFile, "sync", sync)

    def open(self) -> None:
        self._opened.set()


async def test_writes_in_work_count_against_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with running_server(tmp_path, netty_server_max__queued__requests=4) as server:
        async with connected(server) as client:
            table = await client.create_table()
        raw = await RawClient.open(server)
        for number in range(10):
            await raw.request(apis.PRODUCE_LOG.key, produce(table, make_batch(0, 5_000)), request_id=number)
        await wait_until(lambda: any(session.requests_in_work >= 4 for session in server.sessions))
        await asyncio.sleep(0.1)
        [one] = busy(server)
        assert one.requests_in_work == 4
        gate.open()
        assert [(await raw.response())[1] for _ in range(10)] == list(range(10))
        await wait_until(lambda: not one.requests_in_work)
        assert server.memory.taken_bytes == 0


async def test_a_server_that_stops_answers_the_writes_in_work(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with connected(server) as client:
        table = await client.create_table()
        writing = asyncio.ensure_future(client.produce(table, make_batch(0)))
        await wait_until(lambda: busy(server))
        stopping = asyncio.ensure_future(server.stop())
        await asyncio.sleep(0.1)
        assert not stopping.done()
        gate.open()
        assert (await writing).base_offset == 0
    await stopping


async def test_a_server_that_stops_reads_no_further_requests(server: Server) -> None:
    """Not after an answer either: a client that always has requests in flight would hold the stop up."""
    started: dict[int, asyncio.Event] = {}

    async def answer(context: RequestContext, body: memoryview) -> Sequence[bytes]:
        await started.setdefault(context.request_id, asyncio.Event()).wait()
        return (b"",)

    server.handlers[apis.LOOKUP.key] = answer
    raw = await RawClient.open(server)
    for number in (0, 1):
        await raw.request(apis.LOOKUP.key, request_id=number)
    await wait_until(lambda: len(started) == 2)
    [session] = server.sessions
    stopping = asyncio.ensure_future(server.stop())
    await wait_until(lambda: not session.channel.reading)
    started[0].set()
    assert (await raw.response())[1] == 0
    assert not session.channel.reading
    started[1].set()
    await stopping
    await raw.close()


async def test_a_client_that_leaves_early_leaves_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)
    async with connected(server) as client:
        table = await client.create_table()
    raw = await RawClient.open(server)
    await raw.request(apis.PRODUCE_LOG.key, produce(table, make_batch(0)))
    await wait_until(lambda: busy(server))
    [left] = busy(server)
    await raw.close()
    await wait_until(lambda: left not in server.sessions)
    assert server.memory.taken_bytes > 0  # the write goes on without its writer
    gate.open()
    await wait_until(lambda: not left.requests_in_work)
    assert server.memory.taken_bytes == 0
    async with connected(server) as client:
        assert (await client.produce(table, make_batch(3))).base_offset == 3


async def test_a_write_that_breaks_the_server_is_answered(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running_server(tmp_path) as server, connected(server) as client:
        table = await client.create_table()
        broken = mock.patch.object(LogTablet, "_prepare", raising(ZeroDivisionError, "a bug"))
        with broken, pytest.raises(FlussError, match="PRODUCE_LOG failed in the server: ZeroDivisionError: a bug"):
            await client.produce(table, make_batch(0))
        assert (await client.produce(table, make_batch(0))).base_offset == 0
        assert server.memory.taken_bytes == 0
    assert "a bug" in caplog.text


async def test_memory_is_bounded_over_all_connections(tmp_path: Path) -> None:
    options = {"server_buffer_memory__size": "1mb", "server_io__pool_size": 1}
    async with running_server(tmp_path, **options) as server:
        async with connected(server) as client, connected(server) as other:
            table = await client.create_table()
            blob = make_batch(0, 10_000)
            body = encode_produce_log(-1, table, 10_000, [(None, 0, [blob])])
            calls = [c.connection.call_parts(apis.PRODUCE_LOG, body) for c in (client, other) for _ in range(15)]
            answers = await asyncio.gather(*calls)
            offsets = {pb.ProduceLogResponse.FromString(bytes(a)).buckets_resp[0].base_offset for a in answers}
            assert offsets == {number * 10_000 for number in range(30)}
        assert server.memory.taken_bytes == 0
        await asyncio.sleep(0.05)
        assert server.memory.large_bytes == 0


async def test_slow_reader_does_not_grow_the_server(tmp_path: Path) -> None:
    """Answers that the client does not take pause the connection; the rest of the server goes on."""
    options = {"server_connection_max__unsent__size": "1mb"}
    async with running_server(tmp_path, **options) as server, connected(server) as client:
        table = await client.create_table()
        await client.produce(table, make_batch(0, 40_000))
        raw = await RawClient.open(server)
        request = fetch_request(table, 0).SerializeToString()
        for number in range(100):
            await raw.request(apis.FETCH_LOG.key, request, request_id=number)
        await asyncio.sleep(0.5)
        unsent = max(session.channel.unsent_bytes for session in server.sessions)
        answer_bytes = len(make_batch(0, 40_000))
        assert 1 << 20 < unsent <= (1 << 20) + 2 * answer_bytes
        await client.call(apis.GET_METADATA, pb.MetadataRequest())
        assert {(await raw.response())[1] for _ in range(100)} == set(range(100))


async def test_answers_that_are_given_at_once_pause_a_slow_reader_too(tmp_path: Path) -> None:
    """A request that nothing has to be waited for is never in work; what counts is what its sender has not taken."""
    options = {"server_connection_max__unsent__size": "256kb"}
    async with running_server(tmp_path, **options) as server, connected(server) as client:
        await client.call(apis.GET_METADATA, pb.MetadataRequest())
        raw = await RawClient.open(server)
        sizes: list[int] = []

        def answer(context: RequestContext, body: memoryview, reply: Reply) -> None:
            sizes.append(len(body))
            reply.send((bytes(64 * 1024),))

        server.handlers[apis.LOOKUP.key] = DirectHandler(answer)
        for number in range(1000):
            raw.writer.write(request_frame(apis.LOOKUP.key, b"key", request_id=number))
        await asyncio.sleep(0.5)
        [slow] = [session for session in server.sessions if session.channel.unsent_bytes]
        assert 256 * 1024 < slow.channel.unsent_bytes <= 320 * 1024
        assert slow.requests_in_work == 0
        assert len(sizes) < 1000
        assert {(await raw.response())[1] for _ in range(1000)} == set(range(1000))
        assert sizes == [3] * 1000
        assert server.memory.taken_bytes == 0


async def test_a_closed_session_is_freed_without_the_garbage_collector(tmp_path: Path) -> None:
    """Reference cycles would keep the memory of a large frame until the next collection, which may be far away."""
    gc.disable()
    try:
        async with running_server(tmp_path, **SASL) as server:
            references: list[weakref.ref[object]] = []
            for listener in ("FLUSS", "CLIENT"):
                for sent in (b"", struct.pack(">i", 200), struct.pack(">ihhi", 20_000, 1, 0, 0) + bytes(10_000)):
                    raw = await RawClient.open(server, listener)
                    await raw.ask()
                    raw.writer.write(sent)
                    await asyncio.sleep(0.01)
                    [session] = server.sessions
                    references += [weakref.ref(session), weakref.ref(session.channel), weakref.ref(session._reader)]  # type: ignore[attr-defined]
                    del session
                    await raw.close()
                    await wait_until(lambda: not server.sessions)
            await asyncio.sleep(0.01)
            assert [reference() for reference in references] == [None] * len(references)
    finally:
        gc.enable()


async def test_a_large_request_waits_unread_until_there_is_memory(tmp_path: Path) -> None:
    async with running_server(tmp_path, server_buffer_memory__size="1mb") as server:
        first, second = await RawClient.open(server), await RawClient.open(server)
        size = 900_000
        whole = request_frame(apis.LIST_DATABASES.key, bytes(size), request_id=7)
        first.writer.write(whole[:500_000])
        await wait_until(lambda: server.memory.large_bytes > size)
        # Small requests that came before the large one are answered, the large one is not read.
        await second.request(apis.GET_METADATA.key, request_id=3)
        second.writer.write(whole)
        assert (await second.response())[1] == 3
        await wait_until(lambda: server.memory.is_wanted)
        [waiting] = [session for session in server.sessions if session._reader.blocked_bytes]
        assert waiting.channel.buffered_bytes <= 64 * 1024
        assert server.memory.large_bytes < 2 * size
        third = await RawClient.open(server)
        await third.ask()  # others go on
        first.writer.write(whole[500_000:])
        assert (await first.response())[1] == 7
        assert (await second.response())[1] == 7
        # One that is closed while it waits, or in the middle of a frame, leaves nothing behind.
        first.writer.write(whole[:500_000])
        await wait_until(lambda: server.memory.large_bytes > size)
        second.writer.write(whole[:500_000])
        await wait_until(lambda: server.memory.is_wanted)
        await second.close()
        await wait_until(lambda: not server.memory.is_wanted)
        await first.close()
        await wait_until(lambda: server.memory.taken_bytes == 0)
        assert server.memory.large_bytes == 0


async def test_a_request_that_drips_in_is_given_up(tmp_path: Path) -> None:
    """One byte now and then is activity, but no request."""
    options = {"server_frame_timeout": "300ms", "netty_connection_max__idle__time": "1min"}
    async with running_server(tmp_path, **options) as server:
        raw = await RawClient.open(server)
        await raw.ask()
        started = time.monotonic()
        closed = asyncio.ensure_future(raw.is_closed())
        for byte in struct.pack(">ihhi", 1000, 1012, 0, 0) + bytes(100):
            if closed.done():
                break
            raw.writer.write(bytes([byte]))
            await asyncio.sleep(0.05)
        assert await closed
        assert 0.2 < time.monotonic() - started < 4
        assert figures(server.metrics.text())['tabletserver_closedConnections_total{reason="slow"}'] == 1


@pytest.mark.parametrize("listener", ["FLUSS", "CLIENT"])
async def test_a_connection_that_does_not_authenticate_is_closed(tmp_path: Path, listener: str) -> None:
    async with running_server(tmp_path, **SASL, server_authentication_timeout="300ms") as server:
        known = await RawClient.open(server)
        await known.ask()
        idle = await RawClient.open(server, listener)
        await wait_until(lambda: server.connections.unauthenticated_count == 1)
        assert await idle.is_closed()
        await known.ask()


async def test_a_new_connection_takes_the_place_of_an_idle_one(tmp_path: Path) -> None:
    async with running_server(tmp_path, server_max__connections=2) as server:
        known = await RawClient.open(server)
        await known.ask()
        idle = await RawClient.open(server)
        await wait_until(lambda: len(server.sessions) == 2)
        late = await RawClient.open(server)
        await late.ask()
        assert await idle.is_closed()
        refused = await RawClient.open(server)
        assert await refused.is_closed()


async def test_an_error_in_a_callback_ends_its_connection_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_server(tmp_path) as server, connected(server) as client:
        table = await client.create_table()
        raw = await RawClient.open(server)
        await raw.ask()
        with mock.patch("fluss.server.session.parse_request", raising(MemoryError)):
            await raw.request(apis.GET_METADATA.key)
            assert await raw.is_closed()
        assert (await client.produce(table, make_batch(0))).base_offset == 0
        assert figures(server.metrics.text())["tabletserver_failedConnections_total"] == 1
        assert len(server.sessions) == 1
        await raw.close()
    assert "an error in the server" in caplog.text


async def test_answers_that_are_not_taken_are_bounded_over_all_connections(tmp_path: Path) -> None:
    """Beyond the bound no connection is read from that holds answers, and those that take nothing are closed."""
    options = {"server_buffer_memory__size": "2mb", "server_connection_max__unsent__size": "64mb"}
    async with running_server(tmp_path, **options) as server:

        def answer(context: RequestContext, body: memoryview, reply: Reply) -> None:
            reply.send((bytes(512 * 1024), b""))

        server.handlers[apis.LOOKUP.key] = DirectHandler(answer)
        silent = [await RawClient.open(server) for _ in range(6)]
        for raw in silent:
            raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
            sock = raw.writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            for number in range(100):
                raw.writer.write(request_frame(apis.LOOKUP.key, b"k", request_id=number))
        await wait_until(lambda: server.answers.exhausted)
        await asyncio.sleep(0.1)
        assert server.answers.held_bytes <= (2 << 20) + 7 * (512 << 10)
        # The others are served: those that take nothing make room.
        polite = await RawClient.open(server)
        await polite.request(apis.GET_METADATA.key)
        assert (await polite.response())[0] == 0
        await wait_until(lambda: not server.answers.exhausted, 20)
        assert figures(server.metrics.text())['tabletserver_closedConnections_total{reason="slow"}'] >= 1
        for raw in (*silent, polite):
            await raw.close()
        await wait_until(lambda: not server.sessions)
        assert server.answers.held_bytes == 0
