# SPDX-License-Identifier: Apache-2.0
"""Logs whose batches have different schemas, and logs of partitions."""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS as FIELDS
from tests.client.support import batches_from, open_table, poll_all, read_all, records_from, write
from tests.client.support import fill_log as fill

import fluss
from fluss.protocol import apis, messages
from fluss.protocol.record_messages import decode_fetch_log_response
from fluss.records import decode_arrow_batch, iter_log_batches


@pytest.fixture
def evolved(config, database):
    """Open a log with batches of two schemas, of which the second has a column `extra`; gives both views of it."""

    @contextlib.asynccontextmanager
    async def opened(**options):
        async with open_table(config, database, FIELDS, **options) as (conn, old):
            await fill(old, batches=2, rows=10)
            await conn.get_admin().alter_table(old.get_table_path(), add_columns={"extra": pa.int32()})
            new = await conn.get_table(old.get_table_path())
            await write(new, [{"id": i, "name": f"n{i}", "score": i / 2, "extra": i * 10} for i in range(20, 30)])
            yield conn, old, new

    return opened


@pytest.mark.parametrize("log_format", ["ARROW", "INDEXED"])
async def test_old_and_new_batches_in_one_log(evolved, log_format):
    async with evolved(log_format=log_format) as (_, old, new):
        extra = [None] * 20 + [i * 10 for i in range(20, 30)]
        whole = await read_all(new)
        assert whole.column_names == ["id", "name", "score", "extra"]
        assert whole.column("extra").to_pylist() == extra
        assert whole.column("id").to_pylist() == list(range(30))
        assert (await read_all(old)).column_names == ["id", "name", "score"], "an older table keeps its own view"
        assert (await read_all(old)).column("id").to_pylist() == list(range(30))
        only = await read_all(new, new.new_scan().project_by_name(["extra"]))
        assert only.column_names == ["extra"]
        assert only.column("extra").to_pylist() == extra
        swapped = await read_all(new, new.new_scan().project_by_name(["extra", "name"]))
        assert swapped.column_names == ["extra", "name"]
        assert swapped.column("extra").to_pylist() == extra
        filtered = await read_all(new, new.new_scan().filter(fluss.col("extra") > 250))
        assert filtered.column("id").to_pylist() == [26, 27, 28, 29]
        nulls = await read_all(new, new.new_scan().project([0]).filter(fluss.col("extra").is_null()))
        assert nulls.column("id").to_pylist() == list(range(20))
        async with records_from(19, new.new_scan()) as scanner:
            first, second = (await poll_all(scanner, 11))[:2]
            assert first.row["extra"] is None
            assert second.row["extra"] == 200


@pytest.mark.parametrize("compression", ["NONE", "ZSTD", "LZ4_FRAME"])
@pytest.mark.parametrize("columns", [[0, 3], [3], [1, 2, 3]])
async def test_the_server_sends_younger_columns_of_older_batches_as_nulls(evolved, columns, compression):
    """The official readers decode the columns they asked for, whatever schema a batch was written with."""
    async with evolved(properties={"table.log.arrow.compression.type": compression}) as (conn, _, new):
        bucket = fluss.TableBucket(new.get_table_info().table_id, 0)
        connection = await conn._cluster.leader(bucket, new.get_table_path())
        request = messages.FetchLogRequest(follower_server_id=-1, max_bytes=2**20)
        asked = request.tables_req.add(
            table_id=bucket.table_id, projection_pushdown_enabled=True, projected_fields=columns
        )
        asked.buckets_req.add(bucket_id=0, fetch_offset=0, max_fetch_bytes=2**20)
        body = await connection.call_parts(apis.FETCH_LOG, [request.SerializeToString()])
        [table] = decode_fetch_log_response(body)
        schema = pa.schema([new.arrow_schema.field(i) for i in columns])
        batches = [decode_arrow_batch(batch, schema) for batch in iter_log_batches(table.buckets[0].records)]
        found = pa.Table.from_batches(batches)
        assert found.column("extra").to_pylist() == [None] * 20 + [i * 10 for i in range(20, 30)]
        whole = await read_all(new)
        assert found.to_pylist() == whole.select(columns).to_pylist()


async def test_without_a_fixed_schema_batches_keep_theirs(evolved):
    async with (
        evolved() as (_, _, new),
        batches_from(0, new.new_scan().with_fixed_schema(False)) as scanner,
    ):
        batches = []
        while sum(batch.num_records for batch in batches) < 30:
            batches += await scanner.poll_record_batch(5000)
        assert [batch.batch.num_columns for batch in batches] == [3, 3, 4]
        scanner.subscribe(0, 0)
        together = await scanner.to_arrow()
        assert together.column("extra").null_count == 20
        assert together.num_rows == 30


async def test_rows_of_a_schema_that_came_after_the_scanner(conn, table):
    async with records_from(0, table.new_scan()) as scanner:
        await scanner.poll(50)
        await conn.get_admin().alter_table(table.get_table_path(), add_columns={"extra": pa.int32()})
        new = await conn.get_table(table.get_table_path())
        await new.new_append().create_writer().append((1, "a", 0.5, 7)).wait()
        [record] = await scanner.poll(5000)
        assert record.row == {"id": 1, "name": "a", "score": 0.5}


# -- partitions -------------------------------------------------------------------------------------------------------


@pytest.mark.table(partition_keys=["name"])
async def test_partitions(conn, table):
    await write(table, [(i, ["EU", "US"][i % 2], 0.0) for i in range(30)])
    partitions = await conn.get_admin().list_partition_infos(table.table_path)
    infos = {info.partition_name: info.partition_id for info in partitions}
    async with await table.new_scan().create_record_batch_log_scanner() as scanner:
        assert scanner.is_partitioned()
        with pytest.raises(fluss.InvalidArgumentError, match="is partitioned"):
            scanner.subscribe(0, 0)
        scanner.subscribe_partition(infos["EU"], 0, fluss.EARLIEST_OFFSET)
        assert set((await scanner.to_arrow()).column("name").to_pylist()) == {"EU"}
        scanner.subscribe_partition_buckets({(infos["US"], 0): 10})
        assert (await scanner.to_arrow()).num_rows == 15 + 5
        scanner.unsubscribe_partition(infos["EU"], 0)
        assert (await scanner.to_arrow()).num_rows == 5
        scanner.subscribe_partition(infos["EU"], 0, fluss.LATEST_OFFSET)
        await scanner.resolved()
        bucket = fluss.TableBucket.with_partition(table.get_table_info().table_id, infos["EU"], 0)
        assert dict(scanner.get_subscribed_buckets())[bucket] == 15


async def test_a_bucket_that_is_left_while_a_schema_is_asked_for_holds_no_memory(config, database, monkeypatch):
    async with open_table(config, database, [("id", pa.int64())]) as (conn, table):
        async with await fluss.FlussConnection.create(config) as other:
            await other.get_admin().alter_table(table.table_path, add_columns={"more": pa.int64()})
            newer = await other.get_table(table.table_path)
            await newer.new_append().create_writer().append((1, 2)).wait()
        scanner = await table.new_scan().create_log_scanner()
        schema, answered = conn._cluster.schema, asyncio.Event()

        async def unsubscribe_and_answer(*arguments):
            scanner.unsubscribe(0)
            found = await schema(*arguments)
            answered.set()
            return found

        monkeypatch.setattr(conn._cluster, "schema", unsubscribe_and_answer)
        scanner.subscribe(0, 0)
        assert not await scanner.poll(500)
        await asyncio.wait_for(answered.wait(), 5)
        await asyncio.sleep(0)
        assert conn.metrics()["scanner_buffer_bytes"] == 0
        await scanner.close()
