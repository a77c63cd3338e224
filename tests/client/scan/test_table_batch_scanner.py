# SPDX-License-Identifier: Apache-2.0
"""Reading whole tables in one call."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS, open_table

import fluss

FIELDS = [("id", pa.int32()), ("name", pa.string()), ("score", pa.float64())]


async def fill(table, rows=200):
    writer = (table.new_upsert() if table.has_primary_key() else table.new_append()).create_writer()
    write = writer.upsert if table.has_primary_key() else writer.append
    for i in range(rows):
        write((i, ["eu", "us", "asia"][i % 3], i / 2))
    if table.has_primary_key():
        for i in range(0, rows, 2):
            writer.upsert((i, ["eu", "us", "asia"][i % 3], -1.0))
        writer.delete((1,) if not table.is_partitioned() else {"id": 1, "name": "us"})
    await writer.flush()


def ids(table):
    return sorted(table.column("id").to_pylist())


@pytest.mark.parametrize("partitioned", [False, True])
@pytest.mark.parametrize("keyed", [False, True])
async def test_all_rows_of_all_buckets(config, database, keyed, partitioned):
    keys = None if not keyed else ["id", "name"] if partitioned else ["id"]
    options = {"partition_keys": ["name"]} if partitioned else {}
    async with open_table(config, database, FIELDS, keys=keys, bucket_count=3, **options) as (_, table):
        await fill(table)
        expected = [i for i in range(200) if not keyed or i != 1]
        whole = await table.new_scan().create_table_batch_scanner().to_arrow()
        assert ids(whole) == expected
        assert whole.column_names == ["id", "name", "score"], "rows, not changes"
        scores = dict(zip(whole.column("id").to_pylist(), whole.column("score").to_pylist()))
        assert scores[2] == (-1.0 if keyed else 1.0)
        narrow = table.new_scan().project_by_name(["score", "id"])
        assert (await narrow.create_table_batch_scanner().to_arrow()).column_names == ["score", "id"]
        some = await table.new_scan().limit(30).create_table_batch_scanner().to_arrow()
        assert some.num_rows == 30
        assert len(set(ids(some))) == 30
        assert (await table.new_scan().limit(10_000).create_table_batch_scanner().to_arrow()).num_rows == len(expected)
        filtered = table.new_scan().filter(fluss.col("id") > 150).project_by_name(["name"])
        assert (await filtered.create_table_batch_scanner().to_arrow()).column_names == ["name"]
        assert (await filtered.create_table_batch_scanner().to_arrow()).num_rows == 49
        assert (await filtered.limit(5).create_table_batch_scanner().to_arrow()).num_rows == 5
        none = table.new_scan().filter(fluss.col("id") < 0)
        assert (await none.create_table_batch_scanner().to_arrow()).num_rows == 0
        async with table.new_scan().create_table_batch_scanner() as scanner:
            async for found in scanner:
                assert found.bucket.table_id == table.get_table_info().table_id
                break  # what is left is not read
        in_thread = await asyncio.to_thread(plain_face, config, table.get_table_path())
        assert in_thread == [expected, expected, len(expected), len(expected)]


def plain_face(config, path):
    async def read():
        with await fluss.FlussConnection.create(config) as conn:
            scan = (await conn.get_table(path)).new_scan()
            frames = scan.create_table_batch_scanner().to_pandas(), scan.create_table_batch_scanner().to_polars()
            with scan.create_table_batch_scanner() as scanner:
                rows = sum(found.num_records for found in scanner)
            stream = pa.table(scan.create_table_batch_scanner())
            return [sorted(frame["id"].to_list()) for frame in frames] + [rows, stream.num_rows]

    return asyncio.run(read())


@pytest.mark.parametrize("keyed", [False, True])
async def test_a_table_without_rows(config, database, keyed):
    keys = ["id", "name"] if keyed else None
    async with open_table(config, database, FIELDS, keys=keys, partition_keys=["name"]) as (_, table):
        found = await table.new_scan().create_table_batch_scanner().to_arrow()
        assert found.num_rows == 0
        assert found.schema.names == ["id", "name", "score"]


async def test_an_error_of_one_bucket_ends_the_read(config, database):
    async with open_table(config, database, LOG_FIELDS, keys=["id"], bucket_count=3) as (conn, table):
        await fill(table, 20)
        await conn.get_admin().drop_table(table.get_table_path())
        with pytest.raises(fluss.FlussError):
            await table.new_scan().create_table_batch_scanner().to_arrow(timeout=3)


@pytest.mark.table(partition_keys=["name"])
async def test_a_timeout_that_has_passed_when_the_read_begins(table):
    with pytest.raises(fluss.DeadlineExceededError):
        await table.new_scan().create_table_batch_scanner().next_batch(timeout=1e-9)
