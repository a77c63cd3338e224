# SPDX-License-Identifier: Apache-2.0
"""Where rows go: buckets and partitions."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest
from tests.client.support import open_table
from tests.waiting import at_most

import fluss

FIELDS = [("id", pa.int64()), ("name", pa.string())]

# -- buckets ----------------------------------------------------------------------------------------------------------


async def rows_per_bucket(table):
    counts = {}
    async with await table.new_scan().create_record_batch_log_scanner() as scanner:
        for bucket in range(table.get_table_info().num_buckets):
            scanner.subscribe(bucket, fluss.EARLIEST_OFFSET)
            counts[bucket] = (await scanner.to_arrow()).column("id").to_pylist()
            scanner.unsubscribe(bucket)
    return counts


@pytest.mark.table(bucket_count=4)
async def test_sticky_fills_one_bucket_at_a_time(table, writer):
    for start in range(0, 100, 10):
        for i in range(start, start + 10):
            writer.append((i, "x"))
        await writer.flush()
    counts = await rows_per_bucket(table)
    assert sorted(i for ids in counts.values() for i in ids) == list(range(100))
    assert all(len(ids) % 10 == 0 for ids in counts.values()), "whole batches"
    assert sum(bool(ids) for ids in counts.values()) > 1, "not always the same"


@pytest.mark.client(writer_bucket_no_key_assigner="round_robin")
@pytest.mark.table(bucket_count=4)
async def test_round_robin_spreads_rows_evenly(table, writer):
    for i in range(100):
        writer.append((i, "x"))
    writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": list(range(100, 200))}))
    await writer.flush()
    counts = await rows_per_bucket(table)
    assert sorted(i for ids in counts.values() for i in ids) == list(range(200))
    assert {len(ids) for ids in counts.values()} == {50}


@pytest.mark.table(bucket_count=4, bucket_keys=["id"])
async def test_bucket_keys_decide(table, writer):
    for _ in range(2):
        for i in range(100):
            writer.append((i, "x"))
    writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": list(range(100))}))
    await writer.flush()
    counts = await rows_per_bucket(table)
    homes = {}
    for bucket, ids in counts.items():
        for i in ids:
            homes.setdefault(i, set()).add(bucket)
    assert all(len(home) == 1 for home in homes.values())
    assert len(counts) == 4
    assert min(len(ids) for ids in counts.values()) > 0


# -- partitions -------------------------------------------------------------------------------------------------------

REGIONS = [("id", pa.int64()), ("region", pa.string())]


async def rows_of_partitions(conn, table):
    found = {}
    for info in await conn.get_admin().list_partition_infos(table.get_table_path()):
        async with await table.new_scan().create_record_batch_log_scanner() as scanner:
            scanner.subscribe_partition(info.partition_id, 0, fluss.EARLIEST_OFFSET)
            found[info.partition_name] = sorted((await scanner.to_arrow()).column("id").to_pylist())
    return found


@pytest.mark.parametrize("keys", [None, ["id", "region"]])
async def test_missing_partitions_are_created(config, database, keys):
    async with open_table(config, database, REGIONS, keys=keys, partition_keys=["region"]) as (conn, table):
        writer = (table.new_upsert() if keys else table.new_append()).create_writer()
        write = writer.upsert if keys else writer.append
        for i in range(30):
            write((i, ["EU", "US", "ASIA"][i % 3]))
        writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": [100, 101], "region": ["EU", "AFRICA"]}))
        await writer.flush()
        found = await rows_of_partitions(conn, table)
        assert set(found) == {"EU", "US", "ASIA", "AFRICA"}
        assert found["EU"] == [*range(0, 30, 3), 100]
        assert found["AFRICA"] == [101]


@pytest.mark.client(writer_dynamic_create_partition_enabled=False)
async def test_missing_partitions_are_an_error_when_asked_for(config, database):
    async with open_table(config, database, REGIONS, partition_keys=["region"]) as (conn, table):
        await conn.get_admin().create_partition(table.get_table_path(), {"region": "EU"})
        writer = table.new_append().create_writer()
        good, bad = writer.append((1, "EU")), writer.append((2, "US"))
        await good.wait()
        # It does not exist: asking again is of no use.
        with at_most(3), pytest.raises(fluss.PartitionNotExistsError, match=r"'US'.*create_partition"):
            await bad.wait()
        writer.append((2, "US"))
        with pytest.raises(fluss.PartitionNotExistsError, match="1 row was not written"):
            await writer.flush()
        await conn.get_admin().create_partition(table.get_table_path(), {"region": "US"})
        await writer.append((3, "US")).wait()
        assert await rows_of_partitions(conn, table) == {"EU": [1], "US": [3]}


async def test_a_partition_value_that_cannot_be_fails_its_row_alone(config, database):
    async with open_table(config, database, REGIONS, partition_keys=["region"]) as (conn, table):
        writer = table.new_append().create_writer()
        handles = [writer.append((i, value)) for i, value in enumerate(["EU", None, "a/b", "US", ""])]
        with pytest.raises(fluss.FlussError, match="3 rows were not written"):
            await writer.flush()
        outcomes = await asyncio.gather(*(handle.wait() for handle in handles), return_exceptions=True)
        assert [outcome is None for outcome in outcomes] == [True, False, False, True, False]
        assert "partition column 'region'" in str(outcomes[1])
        assert outcomes[2].row == 2
        assert "a/b" in str(outcomes[2])
        with pytest.raises(fluss.FlussError, match="row 1: partition column 'region'"):
            writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": [1, 2], "region": ["EU", None]}))
        assert await rows_of_partitions(conn, table) == {"EU": [0], "US": [3]}


async def test_a_partition_that_was_dropped_and_created_again(config, database):
    async with open_table(config, database, REGIONS, partition_keys=["region"]) as (conn, table):
        admin, path = conn.get_admin(), table.get_table_path()
        writer = table.new_append().create_writer()
        await writer.append((1, "EU")).wait()
        await admin.drop_partition(path, {"region": "EU"})
        await writer.append((2, "EU")).wait()
        assert await rows_of_partitions(conn, table) == {"EU": [2]}
