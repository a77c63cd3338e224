# SPDX-License-Identifier: Apache-2.0
"""A network that cuts, delays, resets and repeats: nothing lost, nothing doubled, every wait ends."""

from __future__ import annotations

import asyncio
import time

import pyarrow as pa
import pytest
from tests.faults.proxy import Fault, FaultProxy, ProxiedServer

import fluss

pytestmark = pytest.mark.usefixtures("collected")


@pytest.fixture(scope="module")
def proxied():
    with FaultProxy() as proxy, ProxiedServer(proxy):
        yield proxy


@pytest.fixture
def proxy(proxied):
    yield proxied
    proxied.calm()


def once(fault):
    """A judge that does this to the next request, whatever it is."""
    faults = [fault]
    return lambda api_key, body: faults.pop() if faults else None


@pytest.fixture
async def conn(proxied, database):
    config = fluss.Config({"bootstrap.servers": proxied.address, "connect-timeout": 2000, "request-timeout": 5000})
    with await fluss.FlussConnection.create(config) as conn:
        await conn.get_admin().create_database(database, ignore_if_exists=True)
        yield conn


async def create(conn, database, keys=None, **options):
    path = fluss.TablePath(database, "t")
    schema = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_keys=keys)
    await conn.get_admin().create_table(path, fluss.TableDescriptor(schema, **options))
    return await conn.get_table(path)


async def log_ids(table, buckets=1):
    scanner = await table.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
    with scanner:
        return scanner.to_arrow().column("id").to_pylist()


@pytest.mark.parametrize("reset", [False, True])
async def test_admin_calls_outlive_cuts(conn, proxy, reset):
    admin = conn.get_admin()
    for _ in range(5):
        proxy.cut(reset=reset)
        assert "fluss" in await admin.list_databases()


async def test_lookups_outlive_cuts(conn, proxy, database):
    table = await create(conn, database, keys=["id"])
    async with table.new_upsert().create_writer() as writer:
        for number in range(100):
            writer.upsert((number, f"n{number}"))
    lookuper = table.new_lookup().create_lookuper()
    for round_number in range(3):
        lookups = [asyncio.ensure_future(lookuper.lookup([number])) for number in range(100)]
        await asyncio.sleep(0.001 * round_number)
        await asyncio.to_thread(proxy.cut)
        assert [row["id"] for row in await asyncio.gather(*lookups)] == list(range(100))
    proxy.cut()
    assert (await lookuper.lookup_many([[5], [6]])).num_rows == 2


@pytest.mark.parametrize("fault", ["cut", "reset", "lost answers", "repeated requests", "slow"])
async def test_writes_are_neither_lost_nor_doubled(conn, proxy, database, fault):
    table = await create(conn, database, bucket_count=2)
    writer = table.new_append().create_writer()
    proxy.on_request = (lambda api_key, body: Fault.REPEAT) if fault == "repeated requests" else None
    proxy.delay_s = 0.01 if fault == "slow" else 0.0
    written = 0
    for _ in range(6):
        for _ in range(50):
            writer.append((written, "x"))
            written += 1
        if fault == "lost answers":
            proxy.on_request = once(Fault.CUT_AFTER)
        flushing = asyncio.ensure_future(writer.flush())
        if fault in ("cut", "reset"):
            await asyncio.sleep(0.002)
            await asyncio.to_thread(proxy.cut, reset=fault == "reset")
        await flushing
    proxy.calm()
    assert sorted(await log_ids(table, 2)) == list(range(written))


async def test_upserts_outlive_lost_answers(conn, proxy, database):
    table = await create(conn, database, keys=["id"])
    writer = table.new_upsert().create_writer()
    for value in range(10):
        writer.upsert((1, f"v{value}"))
        proxy.on_request = once(Fault.CUT_AFTER)
        await writer.flush()
    assert await table.new_lookup().lookup([1]) == {"id": 1, "name": "v9"}
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    seen = []
    while len(seen) < 19:
        seen += [(record.change_type.short_string(), record.row["name"]) for record in scanner.poll(5000)]
    updates = [change for value in range(1, 10) for change in (("-U", f"v{value - 1}"), ("+U", f"v{value}"))]
    assert seen == [("+I", "v0"), *updates]


async def test_scans_outlive_cuts(conn, proxy, database):
    table = await create(conn, database)
    writer = table.new_append().create_writer()
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    seen, written = [], 0
    for _ in range(5):
        for _ in range(20):
            writer.append((written, "x"))
            written += 1
        await writer.flush()
        await asyncio.to_thread(proxy.cut)
        while len(seen) < written:
            seen += [record.row["id"] for record in scanner.poll(5000)]
    assert seen == list(range(written))


async def test_waits_end_when_the_server_is_away(conn, proxy, database):
    table = await create(conn, database, keys=["id"])
    lookuper = table.new_lookup().create_lookuper()
    proxy.refuse = True
    proxy.cut()
    waiting = asyncio.ensure_future(lookuper.lookup([1]))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    started = time.monotonic()
    conn.close()
    with pytest.raises(fluss.ConnectionClosedError):
        await waiting
    assert time.monotonic() - started < 5


async def test_a_poll_ends_at_its_timeout_when_the_server_is_away(conn, proxy, database):
    table = await create(conn, database)
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    proxy.refuse = True
    proxy.cut()
    started = time.monotonic()
    assert scanner.poll(300).is_empty()
    assert time.monotonic() - started < 3
    proxy.refuse = False
