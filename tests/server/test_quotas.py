# SPDX-License-Identifier: Apache-2.0
"""Limits of each user: bytes per second, connections, and the memory of requests."""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.server.log_support import Client, connected, make_batch, running_server
from tests.server.metrics_support import figures
from tests.server.test_handlers_kv import a_table
from tests.server.test_session import SASL, RawClient
from tests.waiting import at_most, wait_until

from fluss.errors import AuthenticateError, FlussError
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.sasl import Credentials
from fluss.server.memory import LARGE_BYTES_MIN, RequestMemory
from fluss.server.scheduler import Scheduler
from fluss.server.server import Server

ALICE, BOB = Credentials("alice", "alice-secret"), Credentials("bob", 'b"ob')


def set_quotas(server: Server, **quotas: object) -> None:
    """Change options as a request at run time does."""
    server._config_changed(server.config.with_options({f"quota.{name}": value for name, value in quotas.items()}))


async def test_a_user_beyond_a_rate_waits_until_it_is_paid_whatever_connections_it_has() -> None:
    scheduler = Scheduler()
    share = scheduler.share("mallory")
    began = time.monotonic()
    share.usage.charge_bytes("produce", 500, 1_000)
    assert not share.usage.is_throttled, "what was not used in the last second may be used at once"
    del share
    share = scheduler.share("mallory")
    share.usage.charge_bytes("produce", 700, 1_000)
    assert share.usage.is_throttled
    assert not scheduler.share("alice").usage.is_throttled
    del share
    usage = scheduler.share("mallory").usage
    assert usage.is_throttled, "a user who connects anew still has to pay"
    paid: list[float] = []
    usage.wait_for_room(lambda: paid.append(time.monotonic() - began))
    usage.charge_bytes("produce", 100, 1_000)
    await wait_until(lambda: bool(paid))
    assert paid[0] >= 0.25
    assert not usage.is_throttled
    assert usage.throttled_ms > 0


async def test_writes_beyond_the_rate_of_producers_are_slowed_down(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(tmp_path, **SASL))
        clients = [
            await stack.enter_async_context(connected(server, "CLIENT", credentials=user)) for user in (ALICE, BOB)
        ]
        table = await clients[0].create_table()
        batch = make_batch(count=1_000)
        set_quotas(server, producer_byte_rate=4 * len(batch))

        async def produce(client: Client, count: int) -> float:
            began = time.monotonic()
            for _ in range(count):
                await client.produce(table, batch)
            return time.monotonic() - began

        slow = asyncio.ensure_future(produce(clients[0], 9))
        await wait_until(lambda: server.scheduler.share(_principal(server, "alice")).usage.is_throttled)
        await clients[1].call(apis.LIST_DATABASES, pb.ListDatabasesRequest())
        assert not slow.done(), "the other user is served meanwhile"
        # Of nine batches four are allowed at once, and the last is answered before it has to be paid.
        assert await slow >= 0.9


async def test_a_quota_that_was_wrong_can_be_taken_back(server: Server) -> None:
    usage = server.scheduler.share("alice").usage
    paid: list[bool] = []
    for kind in ("produce", "consume"):
        usage.charge_bytes(kind, 100_000_000, 1_000)
    assert usage.throttled_ms <= 60_000, "nor does a request cost more than a minute"
    usage.wait_for_room(lambda: paid.append(usage.is_throttled))
    set_quotas(server, max_connections=9)
    assert paid == [False]


@pytest.mark.parametrize("options", [{}, SASL], ids=["by address", "by user"])
async def test_connecting_anew_for_each_write_does_not_evade_the_rate(tmp_path: Path, options: dict[str, str]) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(tmp_path, **options))
        user = {"listener": "CLIENT", "credentials": ALICE} if options else {}
        async with connected(server, **user) as client:
            table = await client.create_table()
        batch = make_batch(count=1_000)
        set_quotas(server, producer_byte_rate=2 * len(batch))
        began = time.monotonic()
        for _ in range(6):
            async with connected(server, **user) as client:
                await client.produce(table, batch)
            gc.collect()
        # Of six batches two are allowed at once, and the last is answered before it has to be paid.
        assert time.monotonic() - began >= 1.4


async def test_what_clients_send_before_they_log_in_keeps_no_others_of_their_address_out(tmp_path: Path) -> None:
    async with running_server(tmp_path, **SASL) as server:
        set_quotas(server, producer_byte_rate=1_000, consumer_byte_rate=1_000)
        stranger = await RawClient.open(server, "CLIENT")
        for _ in range(10):
            kind, _, _ = await stranger.ask(apis.PRODUCE_LOG.key, bytes(30_000))
            assert kind == 1, "refused: it has not logged in"
        with at_most(5):
            async with connected(server, "CLIENT", credentials=ALICE) as client:
                await client.call(apis.LIST_DATABASES, pb.ListDatabasesRequest())
        await stranger.close()


async def test_rows_that_a_lookup_inserts_count_as_written(tmp_path: Path) -> None:
    async with a_table(tmp_path) as (server, table):
        set_quotas(server, producer_byte_rate=100)
        usage = server.scheduler.share("127.0.0.1").usage
        await table.lookup(*range(50))
        assert not usage.is_throttled
        await table.lookup(*range(50), insert_if_not_exists=True)
        assert usage.is_throttled


def _principal(server: Server, name: str) -> object:
    return next(session.principal for session in server.sessions if session.principal.name == name)


async def test_answers_beyond_the_rate_of_consumers_are_slowed_down(server: Server, client: Client, table: int) -> None:
    await client.produce(table, make_batch(count=1_000))
    size_bytes = len(make_batch(count=1_000))
    set_quotas(server, consumer_byte_rate=2 * size_bytes)
    scan = pb.LimitScanRequest(table_id=table, bucket_id=0, limit=1_000)
    began = time.monotonic()
    for _ in range(5):
        assert (await client.call(apis.LIMIT_SCAN, scan)).records
    assert time.monotonic() - began >= 0.9, "of five answers two are allowed at once, and the last is paid later"
    text = server.metrics.text()
    assert 'fluss_tabletserver_user_connections{user="anonymous@127.0.0.1"} 1' in text
    assert 'fluss_tabletserver_user_throttleTimeMs{user="anonymous@127.0.0.1"}' in text
    assert 'fluss_tabletserver_user_cpuTimeMs{user="anonymous@127.0.0.1"}' in text


async def test_connections_of_a_user_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.server.connections._IDLE_SECONDS_MIN", 3600.0)
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(tmp_path, **SASL))
        set_quotas(server, max_connections=2)
        for _ in range(2):
            await stack.enter_async_context(connected(server, "CLIENT", credentials=ALICE))
        with pytest.raises(AuthenticateError, match=r"User:alice has 2 connections, .* 'quota.max_connections'"):
            await stack.enter_async_context(connected(server, "CLIENT", credentials=ALICE))
        await stack.enter_async_context(connected(server, "CLIENT", credentials=BOB))
        assert figures(server.metrics.text())["tabletserver_refusedConnections_total"] == 1
        await wait_until(lambda: len(server.sessions) == 3)
        # A connection that is idle makes room for one that is wanted.
        monkeypatch.setattr("fluss.server.connections._IDLE_SECONDS_MIN", 0.0)
        await stack.enter_async_context(connected(server, "CLIENT", credentials=ALICE))
        await wait_until(lambda: len(server.sessions) == 3)
        usage = server.scheduler.share(_principal(server, "alice")).usage
        assert usage.connections == 2
    assert usage.connections == 0


async def test_connections_of_an_address_are_limited_where_clients_do_not_log_in(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(tmp_path))
        set_quotas(server, max_connections=1)
        client = await stack.enter_async_context(connected(server))
        await client.call(apis.LIST_DATABASES, pb.ListDatabasesRequest())
        with pytest.raises(FlussError):
            await stack.enter_async_context(connected(server))
        await client.call(apis.LIST_DATABASES, pb.ListDatabasesRequest())
        set_quotas(server, max_connections=2)
        await stack.enter_async_context(connected(server))


def test_a_user_with_most_of_the_memory_waits_for_its_own() -> None:
    size = LARGE_BYTES_MIN
    budget = RequestMemory(8 * size)
    granted: list[str] = []
    assert budget.charge(6 * size, lambda: None, "mallory")
    assert not budget.charge(size, lambda: granted.append("mallory"), "mallory"), "three quarters are taken"
    assert not budget.exhausted, "it waits for itself, and keeps no small requests out"
    assert budget.charge(size, lambda: None, "alice"), "another user is not behind it"
    assert not budget.charge(2 * size, lambda: granted.append("bob"), "bob")
    assert budget.exhausted
    assert budget.held_by("mallory") == 6 * size
    budget.give_back(size, "alice")
    assert granted == ["bob"]
    budget.give_back(6 * size, "mallory")
    assert granted == ["bob", "mallory"]
    budget.give_back(size, "mallory")
    budget.give_back(2 * size, "bob")
    assert budget.taken_bytes == budget.large_bytes == budget.held_by("bob") == 0
