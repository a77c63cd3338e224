# SPDX-License-Identifier: Apache-2.0
"""What batch scanners of a bucket and of a table have in common: calls that are cancelled, that fail, that overlap."""

from __future__ import annotations

import asyncio
import random

import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS, fill_log, without_cursors, write

import fluss
import fluss.aio
from fluss.client.scan import BatchScanner, batch_scanner
from fluss.errors import DeadlineExceededError, StorageError

FIELDS = [pa.field("id", pa.int64(), nullable=False), *LOG_FIELDS[1:]]
IDS = list(range(300))
pytestmark = pytest.mark.table(keys=["id"])


async def fill_keys(table):
    await write(table, [(number, f"n{number}", 0.5) for number in IDS])


def scanner_of(table, kind):
    scan = table.new_scan()
    if kind == "table":
        return scan.create_table_batch_scanner()
    return scan.create_bucket_batch_scanner(fluss.TableBucket(table.get_table_info().table_id, 0))


def ids_of(batches):
    return [number for found in batches for number in found.batch.column("id").to_pylist()]


@pytest.mark.parametrize("kind", ["bucket", "table"])
@pytest.mark.client(scanner_kv_fetch_max_bytes=500)
async def test_loops_that_are_cancelled_at_any_moment_lose_no_batch(table, faced, kind):
    await fill_keys(table)
    chance = random.Random(7)
    async with scanner_of(faced, kind) as scanner:
        found = []

        async def read():
            async for batch in scanner:
                found.append(batch)  # noqa: PERF401 - what came before the cancellation counts

        reading, cancelled = None, 0
        while reading is None or reading.cancelled():
            reading = asyncio.ensure_future(read())
            await asyncio.sleep(chance.choice([0, 0, 0.0002, 0.0005]))
            cancelled += reading.cancel()
            await asyncio.wait((reading,), timeout=5)
        await reading
        assert cancelled > 3
        assert sorted(ids_of(found)) == IDS


@pytest.mark.parametrize("kind", ["bucket", "table"])
@pytest.mark.client(scanner_kv_fetch_max_bytes=500)
async def test_a_read_of_everything_that_is_cancelled_gives_everything_the_next_time(table, kind):
    await fill_keys(table)
    async with scanner_of(table, kind) as scanner:
        for batches in (1, 2, 4):
            reading = asyncio.ensure_future(scanner.to_arrow())
            while len(scanner._fetched) < batches:  # noqa: ASYNC110 - there is no event for it
                await asyncio.sleep(0)
            assert reading.cancel()
            await asyncio.wait((reading,))
        first = await scanner.next_batch()
        rest = await scanner.to_arrow()
        assert sorted(ids_of([first]) + rest.column("id").to_pylist()) == IDS


@pytest.mark.client(scanner_kv_fetch_max_bytes=500)
async def test_after_a_failure_the_end_is_not_reported(table, monkeypatch):
    scan_kv = batch_scanner.BatchScanner._scan_kv

    async def fail(self, connection, request, **options):
        if request.call_seq_id == 2:
            raise StorageError("the disk is on fire")
        return await scan_kv(self, connection, request, **options)

    monkeypatch.setattr(batch_scanner.BatchScanner, "_scan_kv", fail)
    await fill_keys(table)
    async with scanner_of(table, "bucket") as scanner:
        with pytest.raises(StorageError, match="on fire"):
            await scanner.to_arrow()
        found = [await scanner.next_batch(), await scanner.next_batch()]
        assert len(ids_of(found)) < len(IDS)
        for _ in range(2):
            with pytest.raises(StorageError, match="on fire"):
                await scanner.next_batch()
    assert await scanner.next_batch() is None, "it is closed"


@pytest.mark.client(scanner_kv_fetch_max_bytes=500)
async def test_two_tasks_share_the_batches(table):
    await fill_keys(table)
    async with scanner_of(table, "bucket") as scanner:

        async def read():
            return [found async for found in scanner]

        first, second = await asyncio.gather(read(), read())
        assert sorted(ids_of(first) + ids_of(second)) == IDS


@pytest.mark.client(scanner_kv_fetch_max_bytes=500, request_timeout_ms=250)
async def test_each_batch_of_a_loop_has_its_own_time(table):
    await fill_keys(table)
    seen = []
    async for found in scanner_of(table, "bucket"):
        seen.append(found)
        if len(seen) < 4:
            await asyncio.sleep(0.25)
    assert sorted(ids_of(seen)) == IDS


async def test_a_call_after_a_cancelled_one_has_its_own_time(table, monkeypatch):
    goes_on = asyncio.Event()
    scan_kv = batch_scanner.BatchScanner._scan_kv

    async def wait(self, connection, request, **options):
        await goes_on.wait()
        return await scan_kv(self, connection, request, **options)

    monkeypatch.setattr(batch_scanner.BatchScanner, "_scan_kv", wait)
    await fill_keys(table)
    async with scanner_of(table, "bucket") as scanner:
        reading = asyncio.ensure_future(scanner.next_batch())
        await asyncio.sleep(0.05)
        reading.cancel()
        with pytest.raises(fluss.DeadlineExceededError, match=r"did not come within 0\.1 s"):
            await scanner.next_batch(timeout=0.1)
        goes_on.set()
        assert sorted(ids_of(await scanner.collect_all_batches())) == IDS


@pytest.mark.parametrize("cancelled", [False, True], ids=["waits", "cancelled"])
async def test_closing_ends_a_call_that_waits(table, monkeypatch, no_complaints, cancelled):
    async def wait(self, connection, request, **options):
        await asyncio.sleep(60)

    monkeypatch.setattr(batch_scanner.BatchScanner, "_scan_kv", wait)
    await fill_keys(table)
    scanner = scanner_of(table, "bucket")
    reading = asyncio.ensure_future(scanner.next_batch())
    await asyncio.sleep(0.05)
    if cancelled:
        reading.cancel()
        await asyncio.wait((reading,))
    await asyncio.wait_for(scanner.close(), 5)
    if not cancelled:
        assert await asyncio.wait_for(reading, 5) is None
    assert await scanner.next_batch() is None


@pytest.mark.table
async def test_a_loop_over_a_log_that_is_left_goes_on_where_it_was(table):
    await fill_log(table)
    async with table.new_scan().create_table_batch_scanner() as scanner:
        seen = []
        while True:
            async for found in scanner:
                seen.append(found)
                break
            else:
                break
        assert ids_of(seen) == list(range(100))


@pytest.mark.parametrize("cursors", [True, False])
async def test_a_timeout_bounds_the_first_batch_too(table, monkeypatch, cursors):
    """Also where its steps have no deadline of their own, such as the changelog of a server without cursors."""
    await fill_keys(table)
    wait = asyncio.Event()
    if not cursors:
        without_cursors(monkeypatch)
    name = "decode_values" if cursors else "_base_rows"
    slow = getattr(BatchScanner, name)

    async def slowly(*arguments):
        await wait.wait()
        return await slow(*arguments)

    monkeypatch.setattr(BatchScanner, name, slowly)
    async with scanner_of(table, "bucket") as scanner:
        with pytest.raises(DeadlineExceededError):
            await asyncio.wait_for(scanner.next_batch(timeout=0.2), 5)
        wait.set()
        assert sorted(ids_of(await scanner.collect_all_batches())) == IDS
