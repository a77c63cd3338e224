# SPDX-License-Identifier: Apache-2.0
"""One user takes what all share: memory, connections and the event loop. The others go on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.abuse.attackers import MIB, HealthyClient, error_of, exchange, frame, is_closed_within
from tests.abuse.test_budgets import VERSIONS, Watched
from tests.ports import free_port
from tests.server.log_support import fetch_request
from tests.waiting import at_most, wait_for

import fluss.aio as fluss
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.frames import parse_response
from fluss.rows import kv_key_encoder

ROWS = 15
CONNECTIONS = 30
GROWTH_BYTES_MAX = 160 * MIB
"""The limit of 48 MB, an answer that is being made, and the rows it is made of."""
OPTIONS: dict[str, object] = {
    "security.sasl.plain.jaas.config": 'org.example.Module required user_alice="a" user_mallory="m";',
    "server.buffer.memory-size": "48mb",
    "server.connection.max-unsent-size": "2mb",
    "server.max-connections": "60",
}


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    with Watched(tmp_path, **OPTIONS) as watched:
        yield watched


@contextlib.contextmanager
def served(watched: Watched, seconds_max: float) -> Iterator[HealthyClient]:
    """Another client that works meanwhile, and has to wait for so long at most."""
    healthy = HealthyClient(watched.plain)
    healthy.start()
    assert healthy.started.wait(30)
    try:
        yield healthy
        before = healthy.served
        wait_for(lambda: healthy.served >= before + 2, 10)
    finally:
        healthy.stopping.set()
        healthy.join(10)
    assert healthy.error is None
    assert healthy.longest_seconds < seconds_max


def logged_in(watched: Watched, user: str, password: str) -> socket.socket:
    sock = watched.connect(watched.sasl)
    token = f"\0{user}\0{password}".encode()
    login = pb.AuthenticateRequest(protocol="PLAIN", token=token).SerializeToString()
    for api, body in ((apis.API_VERSIONS, VERSIONS), (apis.AUTHENTICATE, login)):
        assert error_of(exchange(sock, frame(api.key, 0, 1, body))) is None
    return sock


@contextlib.asynccontextmanager
async def table_of(address: str, schema: fluss.Schema, buckets: int = 1) -> AsyncIterator[Any]:
    """A new table in a database of its own."""
    async with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address})) as connection:
        admin = connection.get_admin()
        await admin.create_database("hostile")
        path = fluss.TablePath("hostile", "t")
        await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=buckets))
        yield await connection.get_table(path)


async def large_rows(address: str) -> fluss.TableInfo:
    """Make a table with some rows of 1 MiB."""
    schema = fluss.Schema(pa.schema([("k", pa.int32()), ("v", pa.binary())]), primary_keys=["k"])
    async with table_of(address, schema) as table, table.new_upsert().create_writer() as writer:
        for number in range(ROWS):
            writer.upsert((number, os.urandom(MIB)))
    return table.get_table_info()


def limit_scan(info: fluss.TableInfo) -> bytes:
    request = pb.LimitScanRequest(table_id=info.table_id, bucket_id=0, limit=ROWS)
    return frame(apis.LIMIT_SCAN.key, 0, 1, request.SerializeToString())


def lookups(info: fluss.TableInfo) -> bytes:
    """Few bytes that ask for a large row again and again: there is nothing to wait for before they are answered."""
    key = kv_key_encoder(info).encode((1,))
    request = pb.LookupRequest(table_id=info.table_id)
    request.buckets_req.add(bucket_id=0, keys=[key] * ROWS)
    return frame(apis.LOOKUP.key, apis.LOOKUP.max_version, 1, request.SerializeToString())


@pytest.mark.parametrize("ask", [limit_scan, lookups])
def test_answers_that_wait_stay_within_their_limit(watched: Watched, ask: Callable[[fluss.TableInfo], bytes]) -> None:
    """Also when they are asked for at the same moment on many connections."""
    request = ask(asyncio.run(large_rows(watched.plain)))
    with served(watched, 5), contextlib.ExitStack() as stack:
        before = watched.memory_bytes
        socks = [stack.enter_context(logged_in(watched, "mallory", "m")) for _ in range(CONNECTIONS)]
        for sock in socks:
            sock.sendall(request * 3)
        grown = 0
        deadline = time.monotonic() + 4
        while time.monotonic() < deadline:
            grown = max(grown, watched.memory_bytes - before)
            time.sleep(0.02)
        # Another user has large answers too, before all of those that were asked for earlier.
        with logged_in(watched, "alice", "a") as sock, at_most(5):
            assert len(exchange(sock, request, 10)) > ROWS * MIB
    assert grown < GROWTH_BYTES_MAX, f"the server has grown by {grown // MIB} MiB"


def test_requests_before_a_login_end_the_connection(watched: Watched) -> None:
    """Each of them takes time of the event loop, and whoever reaches the port could send them."""
    ask = frame(apis.API_VERSIONS.key, 0, 1, VERSIONS)
    with watched.connect(watched.sasl) as sock:
        for _ in range(20):
            assert error_of(exchange(sock, ask)) is None
        sock.sendall(ask * 1000)
        assert is_closed_within(sock, 5)
    with served(watched, 2) as healthy, contextlib.ExitStack() as stack:
        for _ in range(30):
            stack.enter_context(watched.connect(watched.sasl)).sendall(ask * 3000)
        before = healthy.served
        wait_for(lambda: healthy.served > before + 10)


@pytest.mark.parametrize("listener", ["plain", "sasl"])
def test_idle_connections_make_room(tmp_path: Path, listener: str) -> None:
    """Those of the user who has the most, if one may have them all; clients at work keep theirs."""
    with (
        Watched(tmp_path, **{**OPTIONS, "quota.max_connections": "1000"}) as watched,
        served(watched, 5),
        logged_in(watched, "alice", "a") as first,
        contextlib.ExitStack() as stack,
    ):
        for _ in range(57):
            if listener == "sasl":
                stack.enter_context(logged_in(watched, "mallory", "m"))
            else:
                sock = stack.enter_context(watched.connect())
                assert exchange(sock, frame(apis.API_VERSIONS.key, 0, 1, VERSIONS)) is not None
        time.sleep(0.5)
        late = [stack.enter_context(logged_in(watched, "alice", "a")) for _ in range(10)]
        for sock in (first, *late):
            assert error_of(exchange(sock, frame(apis.LIST_DATABASES.key, 0, 1, b""))) is None


def scan(sock: socket.socket, table_id: int, bucket_id: int) -> int:
    """Open a scan and leave it open; returns the code of the error, 0 if it is open."""
    request = pb.ScanKvRequest(call_seq_id=0, batch_size_bytes=1)
    request.bucket_scan_req.table_id, request.bucket_scan_req.bucket_id = table_id, bucket_id
    answer = exchange(sock, frame(apis.SCAN_KV.key, 0, 1, request.SerializeToString()))
    assert answer is not None
    return int(pb.ScanKvResponse.FromString(bytes(parse_response(memoryview(answer)).body)).error_code)


def test_scans_of_one_user_leave_room_for_others(watched: Watched) -> None:
    info = asyncio.run(large_rows(watched.plain))
    with logged_in(watched, "mallory", "m") as mallory, logged_in(watched, "alice", "a") as alice:
        codes = [scan(mallory, info.table_id, 0) for _ in range(10)]
        assert codes == [0] * 6 + [fluss.ErrorCode.TOO_MANY_SCANNERS] * 4
        assert scan(alice, info.table_id, 0) == 0


def waiting_fetches(table_id: int, buckets: int, count: int) -> bytes:
    waiting = {"max_bytes": 1000, "max_wait_ms": 600_000, "min_bytes": 1}
    request = fetch_request(table_id, 0, buckets=range(buckets), **waiting)
    return frame(apis.FETCH_LOG.key, 0, 1, request.SerializeToString()) * count


async def log_table(address: str, buckets: int) -> int:
    async with table_of(address, fluss.Schema(pa.schema([("a", pa.int32())])), buckets) as table:
        return table.get_table_info().table_id


@pytest.mark.parametrize(("buckets", "count"), [(1, 500), (500, 40)])
def test_requests_that_wait_are_charged_with_what_they_take(watched: Watched, buckets: int, count: int) -> None:
    """A fetch that waits for rows takes far more memory than its bytes, and a connection may send 500 of them."""
    table_id = asyncio.run(log_table(watched.plain, buckets))
    requests = waiting_fetches(table_id, buckets, count)
    with served(watched, 5), contextlib.ExitStack() as stack:
        before = watched.memory_bytes
        socks = [stack.enter_context(logged_in(watched, "mallory", "m")) for _ in range(40)]
        for sock in socks:
            sock.settimeout(0.2)
            with contextlib.suppress(TimeoutError):  # the server stops reading, as it should
                sock.sendall(requests)
        time.sleep(4)
        grown = watched.memory_bytes - before
    assert grown < 85 * MIB, f"the server has grown by {grown // MIB} MiB"


def test_pages_of_metrics_do_not_take_all_handles(tmp_path: Path) -> None:
    port = free_port()
    with Watched(tmp_path, **OPTIONS, **{"metrics.prometheus.port": port}) as watched, contextlib.ExitStack() as stack:
        before = watched.open_files
        address = f"127.0.0.1:{port}"
        slow = [stack.enter_context(watched.connect(address)) for _ in range(20)]
        for sock in slow:  # more than the system takes for them, and nothing of it is taken
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        for _ in range(200):
            stack.enter_context(watched.connect(address))
        time.sleep(0.5)
        assert watched.open_files < before + 40
        with watched.connect(address) as sock:
            sock.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert sock.recv(1000).startswith(b"HTTP/1.1 200 OK")
        wait_for(lambda: watched.open_files < before + 5, 60)


def test_wrong_logins_neither_refuse_nor_delay_right_ones(watched: Watched) -> None:
    """An attacker behind the same address guesses the password of the same user, and does not wait for refusals."""
    ended = threading.Event()
    wrong = pb.AuthenticateRequest(protocol="PLAIN", token=b"\0alice\0guess").SerializeToString()
    guesses = []

    def guess() -> None:
        while not ended.is_set():
            guesses.append(wrong)
            with watched.connect(watched.sasl) as sock, contextlib.suppress(TimeoutError):
                exchange(sock, frame(apis.AUTHENTICATE.key, 0, 1, wrong), 0.05)

    attackers = [threading.Thread(target=guess, daemon=True) for _ in range(4)]
    for attacker in attackers:
        attacker.start()
    try:
        while len(guesses) < 10:
            time.sleep(0.01)
        took = []
        for _ in range(60):
            began = time.monotonic()
            logged_in(watched, "alice", "a").close()
            took.append(time.monotonic() - began)
    finally:
        ended.set()
        for attacker in attackers:
            attacker.join(10)
    assert max(took) < 2, took
