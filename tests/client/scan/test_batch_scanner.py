# SPDX-License-Identifier: Apache-2.0
"""One-shot reads of buckets: limit scans, and all rows of a primary-key table."""

from __future__ import annotations

import asyncio
import gc

import numpy as np
import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS as FIELDS
from tests.client.support import fill_log, open_table, without_cursors, write

import fluss
from fluss.client.scan import batch_scanner
from fluss.client.scan.fold import fold_changelog, merge_by_key
from fluss.net.connection import Connection
from fluss.protocol import apis


def bucket_of(table, bucket=0, partition_id=None):
    table_id = table.get_table_info().table_id
    if partition_id is None:
        return fluss.TableBucket(table_id, bucket)
    return fluss.TableBucket.with_partition(table_id, partition_id, bucket)


async def fill_keys(table, count=100):
    await write(table, [(i, "old", 0.0) for i in range(count)])
    writer = table.new_upsert().create_writer()
    for i in range(0, count, 2):
        writer.upsert((i, "new", 1.0))
    for i in range(0, count, 10):
        writer.delete((i,))
    await writer.flush()
    return {i: "old" if i % 2 else "new" for i in range(count) if i % 10}


@pytest.mark.parametrize("log_format", ["ARROW", "INDEXED", "COMPACTED"])
@pytest.mark.parametrize("limit", [1, 10, 25, 45, 1000])
async def test_the_last_rows_of_a_log(config, database, log_format, limit):
    async with open_table(config, database, FIELDS, log_format=log_format) as (_, table):
        await fill_log(table)
        scanner = table.new_scan().project([1, 0]).limit(limit).create_bucket_batch_scanner(bucket_of(table))
        assert scanner.bucket == bucket_of(table)
        [found] = await scanner.collect_all_batches()
        first = max(0, 100 - limit)
        assert found.batch.schema.names == ["name", "id"]
        assert found.batch.column("id").to_pylist() == list(range(first, 100))
        assert (found.base_offset, found.last_offset) == (first, 99)
        assert await scanner.next_batch() is None, "it runs once"


async def test_limits_of_old_and_new_schemas(conn, table):
    await fill_log(table, batches=1, rows=10)
    await conn.get_admin().alter_table(table.get_table_path(), add_columns={"extra": pa.int32()})
    table = await conn.get_table(table.get_table_path())
    await table.new_append().create_writer().append((10, "n10", 5.0, 7)).wait()
    found = await table.new_scan().limit(3).create_bucket_batch_scanner(bucket_of(table)).to_arrow()
    assert found.column("id").to_pylist() == [8, 9, 10]
    assert found.column("extra").to_pylist() == [None, None, 7]


async def test_an_empty_bucket(config, database):
    async with open_table(config, database, FIELDS) as (_, table):
        found = await table.new_scan().limit(5).create_bucket_batch_scanner(bucket_of(table)).to_arrow()
        assert found.num_rows == 0
        assert found.schema.names == ["id", "name", "score"]
    async with open_table(config, database + "_k", FIELDS, keys=["id"]) as (_, table):
        for scan in (table.new_scan(), table.new_scan().limit(5)):
            found = await scan.create_bucket_batch_scanner(bucket_of(table)).to_arrow()
            assert found.num_rows == 0
            assert found.schema.names == ["id", "name", "score"]


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
async def test_some_rows_of_a_primary_key_table(config, database, kv_format):
    async with open_table(config, database, FIELDS, keys=["id"], kv_format=kv_format) as (_, table):
        rows = await fill_keys(table)
        found = await table.new_scan().limit(7).create_bucket_batch_scanner(bucket_of(table)).to_arrow()
        assert found.num_rows == 7
        assert all(rows[row["id"]] == row["name"] for row in found.to_pylist())
        narrow = await table.new_scan().project([1]).limit(7).create_bucket_batch_scanner(bucket_of(table)).to_arrow()
        assert narrow.column_names == ["name"]


@pytest.mark.parametrize("cursors", [True, False], ids=["with cursors", "from the changelog"])
async def test_all_rows_of_a_primary_key_table(config, database, monkeypatch, cursors):
    if not cursors:
        without_cursors(monkeypatch)
        monkeypatch.setattr(batch_scanner, "_FOLD_ROWS", 10)
    async with open_table(config, database, FIELDS, keys=["id"]) as (conn, table):
        rows = await fill_keys(table)
        async with table.new_scan().create_bucket_batch_scanner(bucket_of(table)) as scanner:
            found = await scanner.to_arrow()
            assert dict(zip(found.column("id").to_pylist(), found.column("name").to_pylist())) == rows
            assert found.num_rows == len(rows)
            ends = await conn.get_admin().list_offsets(table.get_table_path(), [0], fluss.OffsetSpec.latest())
            assert scanner.log_offset == ends[0], "what the rows stand for"
        narrow = await table.new_scan().project([1]).create_bucket_batch_scanner(bucket_of(table)).to_arrow()
        assert narrow.column_names == ["name"]
        assert narrow.num_rows == len(rows)
        assert len(await table.new_scan().create_bucket_batch_scanner(bucket_of(table)).to_pandas()) == len(rows)
        assert (await table.new_scan().create_bucket_batch_scanner(bucket_of(table)).to_polars()).height == len(rows)


@pytest.mark.client(scanner_kv_fetch_max_bytes=500)
async def test_a_cursor_gives_batches_and_is_given_back(config, database, monkeypatch):
    monkeypatch.setattr(batch_scanner, "_FIRST_STEP_BYTES", 200)
    closed, steps = [], []
    scan_kv = batch_scanner.BatchScanner._scan_kv

    async def watched(self, connection, request, **options):
        if request.close_scanner:
            closed.append(request.scanner_id)
        else:
            steps.append(request.batch_size_bytes)
        return await scan_kv(self, connection, request, **options)

    monkeypatch.setattr(batch_scanner.BatchScanner, "_scan_kv", watched)

    async with open_table(config, database, FIELDS, keys=["id"]) as (_, table):
        rows = await fill_keys(table)
        seen = []
        async for found in table.new_scan().create_bucket_batch_scanner(bucket_of(table)):
            seen += found.batch.column("id").to_pylist()
            assert found.last_offset == len(seen) - 1
        assert sorted(seen) == sorted(rows)
        assert closed == [], "it was read to its end"
        assert steps[:4] == [200, 400, 500, 500], "the first rows come soon"
        scanner = table.new_scan().create_bucket_batch_scanner(bucket_of(table))
        assert (await scanner.next_batch()).num_records < len(rows)
        await scanner.close()
        assert len(closed) == 1
        assert await scanner.next_batch() is None


@pytest.mark.client(scanner_kv_fetch_max_bytes=500)
async def test_the_next_step_of_a_cursor_is_asked_for_ahead(config, database, monkeypatch):
    """One step, while rows are used; and its time is not that of the call before."""
    steps = []
    slow, ahead = asyncio.Event(), asyncio.Event()
    call_parts = Connection.call_parts

    async def watched(self, api, body, **options):
        if api is not apis.SCAN_KV:
            return await call_parts(self, api, body, **options)
        steps.append(options["timeout_ms"])
        answer = await call_parts(self, api, body, **options)
        if slow.is_set():
            await asyncio.sleep(0.3)
        if len(steps) == 2:
            ahead.set()
        return answer

    monkeypatch.setattr(Connection, "call_parts", watched)

    async with open_table(config, database, FIELDS, keys=["id"]) as (_, table):
        rows = await fill_keys(table)
        scanner = table.new_scan().create_bucket_batch_scanner(bucket_of(table))
        first = await scanner.next_batch(timeout=5)
        await ahead.wait()
        await asyncio.sleep(0.05)
        assert len(steps) == 2, "the rows that are here, and the next ones"
        assert steps[0] <= 5_000 < steps[1]
        slow.set()
        second = await scanner.next_batch(timeout=0.1)
        assert second.base_offset == first.num_records
        with pytest.raises(fluss.DeadlineExceededError, match=r"did not come within 0\.1 s"):
            await scanner.next_batch(timeout=0.1)
        slow.clear()
        found = [first, second, *await scanner.collect_all_batches()]  # a call that ran out of time loses nothing
        assert sorted(i for one in found for i in one.batch.column("id").to_pylist()) == sorted(rows)


@pytest.mark.table(keys=["id"])
async def test_rows_of_several_schemas(conn, table):
    await write(table, [(i, "old", 0.0) for i in range(6)])
    await conn.get_admin().alter_table(table.get_table_path(), add_columns={"extra": pa.int32()})
    table = await conn.get_table(table.get_table_path())
    await write(table, [(i, "new", 1.0, i * 10) for i in range(0, 6, 2)])
    for scan in (table.new_scan(), table.new_scan().limit(100)):
        found = (await scan.create_bucket_batch_scanner(bucket_of(table)).to_arrow()).sort_by("id")
        assert found.column("extra").to_pylist() == [0, None, 20, None, 40, None]
        assert found.column("name").to_pylist() == ["new", "old"] * 3


@pytest.mark.table(keys=["id", "name"], partition_keys=["name"])
async def test_partitions(conn, table):
    await write(table, [(i, ["EU", "US"][i % 2], 0.0) for i in range(10)])
    for info in await conn.get_admin().list_partition_infos(table.get_table_path()):
        bucket = bucket_of(table, 0, info.partition_id)
        found = await table.new_scan().create_bucket_batch_scanner(bucket).to_arrow()
        assert set(found.column("name").to_pylist()) == {info.partition_name}
    with pytest.raises(fluss.InvalidArgumentError, match="is partitioned"):
        table.new_scan().create_bucket_batch_scanner(bucket_of(table))


async def test_what_cannot_be_scanned(table):
    table_id = table.get_table_info().table_id
    for bucket, words in [
        (fluss.TableBucket(table_id + 1, 0), "belongs to table id"),
        (fluss.TableBucket(table_id, 5), "does not exist"),
        (fluss.TableBucket.with_partition(table_id, 3, 0), "is not partitioned"),
    ]:
        with pytest.raises(fluss.InvalidArgumentError, match=words):
            table.new_scan().limit(1).create_bucket_batch_scanner(bucket)
    with pytest.raises(fluss.InvalidArgumentError, match="needs a limit"):
        table.new_scan().create_bucket_batch_scanner(bucket_of(table))
    for bad in (0, -1, True, "3"):
        with pytest.raises(fluss.InvalidArgumentError, match=r"positive number|n must be an integer"):
            table.new_scan().limit(bad)


async def test_a_changelog_without_its_beginning_is_not_folded(config, database, monkeypatch):
    """Rows that did not change since are missing from it: better an error than half a table."""
    without_cursors(monkeypatch)
    async with open_table(config, database, FIELDS, keys=["id"]) as (_, table):
        await fill_keys(table)
        scanner = table.new_scan().create_bucket_batch_scanner(bucket_of(table))
        offsets = type(scanner._plan).offsets

        async def later(self, buckets, spec, deadline=None):
            found = await offsets(self, buckets, spec, deadline)
            return dict.fromkeys(found, 7) if spec.kind == "earliest" else found

        monkeypatch.setattr(type(scanner._plan), "offsets", later)
        with pytest.raises(fluss.UnsupportedVersionError, match="begins at offset 7"):
            await scanner.to_arrow()


def changes(rows):
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])
    batch = pa.RecordBatch.from_pylist([{"id": i, "v": v} for _, i, v in rows], schema=schema)
    kinds = bytes(["+A", "+I", "-U", "+U", "-D"].index(kind) for kind, _, _ in rows)
    return fluss.RecordBatch(batch, fluss.TableBucket(1, 0), 0, len(rows) - 1, -1, kinds)


def test_folding():
    first = changes([("+I", 1, "a"), ("+I", 2, "b"), ("-U", 1, "a"), ("+U", 1, "c"), ("-D", 2, "b")])
    table = fold_changelog([first], [0], first.batch.schema)
    assert table.to_pylist() == [{"id": 1, "v": "c"}]
    second = changes([("+I", 2, "again"), ("-D", 1, "c"), ("+I", 3, "x")])
    assert merge_by_key(table, [second], [0]).to_pylist() == [{"id": 2, "v": "again"}, {"id": 3, "v": "x"}]
    assert merge_by_key(table, [], [0]) is table
    empty = first.batch.schema.empty_table()
    assert merge_by_key(empty, [first], [0]).num_rows == 1
    gc.collect()


def test_changes_are_merged_into_more_text_than_one_arrow_array_holds() -> None:
    """Such text is in several arrays. Its pages are never written here, so it takes no memory."""
    schema = pa.schema([("id", pa.int64()), ("v", pa.string())])

    def one(number: int, size: int) -> pa.RecordBatch:
        ends = pa.py_buffer(np.array([0, size], np.int32))
        text = pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(np.zeros(size, np.uint8))])
        return pa.RecordBatch.from_arrays([pa.array([number], pa.int64()), text], schema=schema)

    rows = pa.Table.from_batches([*(one(number, 800_000_000) for number in range(3)), one(3, 5)])
    gone = pa.RecordBatch.from_arrays([pa.array([0, 1, 2], pa.int64()), pa.nulls(3, pa.string())], schema=schema)
    deletes = fluss.RecordBatch(gone, fluss.TableBucket(1, 0), 0, 2, -1, bytes([fluss.ChangeType.Delete] * 3))
    assert merge_by_key(rows, [deletes], [0]).to_pylist() == [{"id": 3, "v": "\0" * 5}]
