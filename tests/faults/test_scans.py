# SPDX-License-Identifier: Apache-2.0
"""Scans through a bad network: every row once, in order, and every wait ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pyarrow as pa
import pytest
from tests.client.support import batches_from, records_from, write
from tests.faults.conftest import FIELDS
from tests.faults.proxy import Answer, Chaos, Fault, times
from tests.waiting import at_most

import fluss
from fluss.client.scan import plan
from fluss.protocol import apis
from fluss.protocol.record_messages import FetchedBucket, FetchedTable, encode_fetch_log_response

FETCH, OFFSETS = apis.FETCH_LOG.key, apis.LIST_OFFSETS.key

SMALL_FETCHES = {"scanner.log.fetch.max-bytes-for-bucket": 4000, "scanner.log.fetch.wait-max-time-ms": 100}


async def fill(conn, path, batches=30, rows=50):
    """Batches that one fetch cannot hold all of."""
    writer = (await conn.get_table(path)).new_append().create_writer()
    for start in range(0, batches * rows, rows):
        ids = list(range(start, start + rows))
        await writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": ids, "name": [f"n{i}" for i in ids]})).wait()
    return batches * rows


async def poll_ids(scanner, count):
    ids = []
    while len(ids) < count:
        ids += [record.row["id"] for record in await scanner.poll(5000)]
    return ids


@pytest.mark.parametrize(
    "fault", [Fault.CUT, Fault.RESET, Fault.TRUNCATE, Fault.REPEAT, Fault.DELAY], ids=lambda fault: fault.value
)
@pytest.mark.parametrize("where", ["request", "answer"])
async def test_a_poll_sees_every_row_once(proxy, through, fault, where):
    async with through(**SMALL_FETCHES) as (conn, path):
        count = await fill(conn, path)
        async with await (await conn.get_table(path)).new_scan().create_log_scanner() as scanner:
            setattr(proxy, "on_request" if where == "request" else "on_response", times(4, fault, FETCH))
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            assert await poll_ids(scanner, count) == list(range(count))
            assert len(await scanner.poll(50)) == 0


@pytest.mark.parametrize("seed", [1, 2])
async def test_scans_survive_chaos(proxy, through, seed):
    async with through(**SMALL_FETCHES) as (conn, path):
        count = await fill(conn, path)
        table = await conn.get_table(path)
        rates = {Fault.CUT: 0.08, Fault.RESET: 0.05, Fault.TRUNCATE: 0.05, Fault.REPEAT: 0.1}
        proxy.on_request, proxy.on_response = Chaos(seed, rates), Chaos(-seed, rates)
        async with batches_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
            for _ in range(3):
                assert (await scanner.to_arrow()).column("id").to_pylist() == list(range(count))
        async with records_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
            assert await poll_ids(scanner, count) == list(range(count))


async def test_offsets_are_asked_for_again(proxy, through):
    async with through() as (conn, path):
        await fill(conn, path, batches=2)
        async with await (await conn.get_table(path)).new_scan().create_record_batch_log_scanner() as scanner:
            proxy.on_request = times(2, Fault.CUT, OFFSETS)
            scanner.subscribe(0, fluss.LATEST_OFFSET)
            await scanner.resolved()
            assert [offset for _, offset in scanner.get_subscribed_buckets()] == [100]
            proxy.on_request = times(2, Fault.RESET, OFFSETS)
            scanner.subscribe(0, 0)
            assert (await scanner.to_arrow()).num_rows == 100


def bucket_answer(**fields):
    """The answer of a fetch, with what stands for bucket 0. The table id is put in by the caller."""

    def make(table_id):
        bucket = FetchedBucket(partition_id=None, bucket_id=0, **fields)
        parts = encode_fetch_log_response([FetchedTable(table_id, [bucket])])
        return Answer(b"".join(bytes(part) for part in parts))

    return make


@pytest.mark.parametrize("code", [-1, 10, 11, 12, 21, 24, 26, 44])
async def test_errors_that_pass_do_not_end_a_scan(proxy, through, code):
    async with through() as (conn, path):
        count = await fill(conn, path, batches=1)
        table = await conn.get_table(path)
        answer = bucket_answer(error_code=code, error_message="moving")(table.get_table_info().table_id)
        async with await table.new_scan().create_log_scanner() as scanner:
            proxy.on_request = times(2, answer, FETCH)
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            assert await poll_ids(scanner, count) == list(range(count))


@pytest.mark.parametrize(
    ("code", "kind"), [(19, fluss.LogOffsetOutOfRangeError), (48, fluss.AuthorizationError), (3, fluss.FlussError)]
)
async def test_other_errors_are_raised_by_poll(proxy, through, code, kind):
    async with through() as (conn, path):
        count = await fill(conn, path, batches=1)
        table = await conn.get_table(path)
        answer = bucket_answer(error_code=code, error_message="not this")(table.get_table_info().table_id)
        async with await table.new_scan().create_log_scanner() as scanner:
            proxy.on_request = times(1, answer, FETCH)
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            with pytest.raises(kind, match="not this"):
                await scanner.poll(5000)
            assert await poll_ids(scanner, count) == list(range(count)), "who polls again goes on where it stopped"


async def poll_for_ever(scanner):
    while True:
        await scanner.poll_arrow(200)


@pytest.fixture
async def failing_scanner(proxy, through, monkeypatch):
    """One whose server has trouble, and which gives up soon."""
    options = plan.ScanPlan.fetch_options
    monkeypatch.setattr(plan.ScanPlan, "fetch_options", lambda self: replace(options(self), patience_ms=400))
    async with through() as (conn, path):
        await fill(conn, path, batches=1)
        table = await conn.get_table(path)
        answer = bucket_answer(error_code=10, error_message="disk trouble")(table.get_table_info().table_id)
        proxy.on_request = times(1000, answer, FETCH)
        async with await table.new_scan().create_record_batch_log_scanner() as scanner:
            yield scanner


async def test_a_scan_that_fails_for_long_says_so(failing_scanner):
    failing_scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    with at_most(6):
        with pytest.raises(fluss.LogStorageError, match="disk trouble"):
            await failing_scanner.to_arrow()
        with pytest.raises(fluss.LogStorageError, match="disk trouble"):
            await poll_for_ever(failing_scanner)


async def test_the_error_of_a_scan_is_its_cause_and_not_the_end_of_its_patience(proxy, failing_scanner):
    proxy.on_response = times(1000, Fault.DELAY, apis.GET_METADATA.key)  # the patience ends in one of these
    for _ in range(4):
        failing_scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        with pytest.raises(fluss.LogStorageError, match="disk trouble"):
            await failing_scanner.to_arrow()


async def test_a_poll_ends_in_time_when_nothing_answers(proxy, through):
    async with through() as (conn, path):
        await fill(conn, path, batches=1)
        async with await (await conn.get_table(path)).new_scan().create_log_scanner() as scanner:
            proxy.stall()
            scanner.subscribe(0, fluss.LATEST_OFFSET)
            with at_most(15):
                assert len(await scanner.poll(200)) == 0, "also while 'latest' is not known"
                scanner.subscribe(0, 0)
                assert len(await scanner.poll(200)) == 0
            proxy.resume()
            assert await poll_ids(scanner, 50) == list(range(50))


async def test_a_silent_server_is_left_for_a_new_connection(proxy, through):
    async with through(**{"request-timeout": 300, **SMALL_FETCHES}) as (conn, path):
        count = await fill(conn, path, batches=1)
        async with await (await conn.get_table(path)).new_scan().create_log_scanner() as scanner:
            proxy.on_request = times(1, Fault.DROP, FETCH)
            scanner.subscribe(0, 0)
            assert await poll_ids(scanner, count) == list(range(count))


async def test_flipped_bits_are_noticed(proxy, through):
    """What the network damages does not become a row."""
    async with through() as (conn, path):
        await fill(conn, path, batches=1)
        table = await conn.get_table(path)
        damaged = 0

        def flip(api_key, body):
            nonlocal damaged
            if api_key == FETCH and len(body) > 300 and not damaged:
                damaged += 1
                broken = bytearray(body)
                broken[-20] ^= 0x10
                return Answer(bytes(broken))
            return None

        proxy.on_response = flip
        async with batches_from(0, table.new_scan()) as scanner:
            with pytest.raises(fluss.FlussError, match=r"checksum|CRC|crc"):
                await scanner.poll_arrow(5000)
            assert damaged
            assert (await scanner.poll_arrow(5000)).column("id").to_pylist() == list(range(50))


async def test_limit_scans_are_tried_again(proxy, through):
    async with through() as (conn, path):
        count = await fill(conn, path, batches=2)
        table = await conn.get_table(path)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        proxy.on_request = times(2, Fault.CUT_AFTER, apis.LIMIT_SCAN.key)
        found = await table.new_scan().limit(10).create_bucket_batch_scanner(bucket).to_arrow()
        assert found.column("id").to_pylist() == list(range(count - 10, count))


async def test_cursors_begin_again_but_do_not_skip(proxy, through):
    async with through(keys=["id"]) as (conn, path):
        table = await conn.get_table(path)
        await write(table, [(i, "x") for i in range(100)])
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        proxy.on_request = times(2, Fault.CUT_AFTER, apis.SCAN_KV.key)
        found = await table.new_scan().create_bucket_batch_scanner(bucket).to_arrow()
        assert sorted(found.column("id").to_pylist()) == list(range(100))


async def cancel_after(call, seconds):
    task = asyncio.ensure_future(call)
    await asyncio.sleep(seconds)
    task.cancel()
    with pytest.raises((asyncio.CancelledError, fluss.FlussError)):
        await asyncio.wait_for(task, 5)


@pytest.mark.parametrize("when", [0.0, 0.01, 0.1])
@pytest.mark.parametrize("call", ["poll", "to_arrow", "flush", "handle", "subscribe", "limit", "get_table"])
async def test_cancelling_leaks_nothing_and_hangs_nothing(proxy, through, call, when):
    """`through` fails if a task is left behind."""
    async with through() as (conn, path):
        await fill(conn, path, batches=2)
        table = await conn.get_table(path)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        writer = table.new_append().create_writer()
        records = await table.new_scan().create_log_scanner()
        batches = await table.new_scan().create_record_batch_log_scanner()
        batches.subscribe(0, 0)
        records.subscribe(0, fluss.LATEST_OFFSET)
        proxy.stall()

        async def latest():
            batches.subscribe(0, fluss.LATEST_OFFSET)
            await batches.resolved()

        calls = {
            "poll": lambda: records.poll(60_000),
            "to_arrow": batches.to_arrow,
            "flush": lambda: (writer.append((1, "x")), writer.flush())[1],
            "handle": lambda: writer.append((1, "x")).wait(),
            "subscribe": latest,
            "limit": lambda: table.new_scan().limit(5).create_bucket_batch_scanner(bucket).to_arrow(),
            "get_table": lambda: conn.get_table(path),
        }
        await cancel_after(calls[call](), when)
        proxy.resume()
        if call in ("flush", "handle"):
            await writer.flush()
            batches.subscribe(0, 100)
            assert (await batches.to_arrow()).num_rows == 1, "who stops waiting does not take the row back"
        else:
            batches.subscribe(0, 0)
            assert (await batches.to_arrow()).num_rows == 100
        await records.close()
        await batches.close()


async def partitioned(conn, path, count, keys=None):
    """A table with so many partitions, and their ids."""
    admin, parts = conn.get_admin(), fluss.TablePath(path.database_name, "parts")
    schema = fluss.Schema(FIELDS, primary_keys=keys)
    await admin.create_table(parts, fluss.TableDescriptor(schema, partition_keys=["name"]))
    for number in range(count):
        await admin.create_partition(parts, {"name": f"p{number}"})
    return await conn.get_table(parts), [found.partition_id for found in await admin.list_partition_infos(parts)]


async def test_offsets_of_many_partitions_are_asked_for_at_the_same_time(proxy, through):
    asked, answered, most = 0, 0, 0

    def request(api_key, body):
        nonlocal asked, most
        asked += api_key == OFFSETS
        most = max(most, asked - answered)

    def answer(api_key, body):
        nonlocal answered
        answered += api_key == OFFSETS
        return Fault.DELAY

    async with through() as (conn, path):
        table, ids = await partitioned(conn, path, 8)
        proxy.delay_s, proxy.on_request, proxy.on_response = 0.1, request, answer
        async with await table.new_scan().create_record_batch_log_scanner() as scanner:
            scanner.subscribe_partition_buckets({(number, 0): fluss.LATEST_OFFSET for number in ids})
            await scanner.resolved()
            assert dict(scanner.get_subscribed_buckets()) == dict.fromkeys(
                (fluss.TableBucket(table.get_table_info().table_id, 0, number) for number in ids), 0
            )
    assert asked == 8
    assert most > 1


async def test_offsets_of_a_dropped_partition_are_an_error_soon(through):
    async with through(**{"request-timeout": 60_000}) as (conn, path):
        table, [gone, _] = await partitioned(conn, path, 2)
        async with await table.new_scan().create_record_batch_log_scanner() as scanner:
            await conn.get_admin().drop_partition(table.get_table_path(), {"name": "p0"})
            scanner.subscribe_partition(gone, 0, fluss.LATEST_OFFSET, timeout=60)
            with pytest.raises(fluss.PartitionNotExistsError, match="dropped"):
                await asyncio.wait_for(scanner.resolved(), 20)


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_filtered_scan_of_a_table_skips_partitions(proxy, through, keyed):
    async with through() as (conn, path):
        table, _ = await partitioned(conn, path, 8, ["id", "name"] if keyed else None)
        before = proxy.requests.count(OFFSETS)
        scanner = table.new_scan().filter(fluss.col("name") == "p3").create_table_batch_scanner()
        assert (await scanner.to_arrow()).num_rows == 0
        assert proxy.requests.count(OFFSETS) - before == 2
