# SPDX-License-Identifier: Apache-2.0
"""Filters: whatever the server can leave out, the rows that come are exactly those that match."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS as FIELDS
from tests.client.support import open_table, read_all, records_from, write

import fluss
from fluss import col

PREDICATES = {
    "greater": (col("id") > 150, lambda row: row["id"] > 150),
    "range": ((col("id") >= 40) & (col("id") < 60), lambda row: 40 <= row["id"] < 60),
    "nothing": (col("id") > 10**9, lambda row: False),
    "everything": (col("id") >= 0, lambda row: True),
    "text": (col("name") == "n77", lambda row: row["name"] == "n77"),
    "in": (col("id").is_in([3, 99, 199]), lambda row: row["id"] in (3, 99, 199)),
    "null": (col("score").is_null(), lambda row: row["score"] is None),
    "either": (
        (col("id") < 5) | (col("score") > 95.0),
        lambda row: row["id"] < 5 or (row["score"] is not None and row["score"] > 95.0),
    ),
}

STATISTICS = {"none": {}, "all": {"table.statistics.columns": "*"}, "one": {"table.statistics.columns": "id"}}


def rows_of(start, count):
    return [{"id": i, "name": f"n{i}", "score": None if i % 10 == 0 else i / 2} for i in range(start, start + count)]


async def fill(table):
    writer = table.new_append().create_writer()
    for start in range(0, 200, 20):
        await writer.write_arrow_batch(pa.RecordBatch.from_pylist(rows_of(start, 20), schema=pa.schema(FIELDS))).wait()


@pytest.mark.parametrize(
    ("statistics", "log_format"), [("none", "ARROW"), ("all", "ARROW"), ("one", "ARROW"), ("none", "INDEXED")]
)
async def test_the_same_rows_with_and_without_statistics(config, database, statistics, log_format):
    options = {"log_format": log_format, "properties": STATISTICS[statistics]}
    async with open_table(config, database, FIELDS, **options) as (_, table):
        await fill(table)
        for name, (predicate, matches) in PREDICATES.items():
            expected = [row for row in rows_of(0, 200) if matches(row)]
            found = await read_all(table, table.new_scan().filter(predicate))
            assert found.to_pylist() == expected, name
            narrow = await read_all(table, table.new_scan().project_by_name(["name"]).filter(predicate))
            assert narrow.column_names == ["name"]
            assert narrow.column(0).to_pylist() == [row["name"] for row in expected], name
            async with records_from(0, table.new_scan().filter(predicate)) as scanner:
                records = []
                while scanner.get_subscribed_buckets()[0][1] < 200:
                    records += list(await scanner.poll(2000))
                assert [record.row for record in records] == expected, name
                assert [record.offset for record in records] == [row["id"] for row in expected], name


@pytest.mark.table(properties={"table.statistics.columns": "*"})
async def test_the_server_leaves_out_whole_batches(conn, table):
    """With statistics, less comes over the network."""
    await fill(table)

    async def fetched(scan):
        before = conn.metrics()["scanner_bytes_total"]
        await read_all(table, scan)
        return conn.metrics()["scanner_bytes_total"] - before

    assert await fetched(table.new_scan().filter(col("id") > 190)) < await fetched(table.new_scan()) / 3


@pytest.mark.client(scanner_log_max_poll_records=3)
async def test_leftovers_of_a_filter_keep_their_offsets(table):
    await fill(table)
    async with records_from(5, table.new_scan().filter(col("score").is_null())) as scanner:
        offsets = []
        while len(offsets) < 19:
            records = await scanner.poll(5000)
            assert len(records) <= 3
            offsets += [record.offset for record in records]
        assert offsets == list(range(10, 200, 10))


@pytest.mark.table(keys=["id"])
async def test_filters_on_changelogs(table):
    await write(table, [(i, f"n{i}", 1.0) for i in range(20)])
    await write(table, [(3, "changed", 2.0)])
    async with records_from(0, table.new_scan().filter(col("id") == 3)) as scanner:
        seen = []
        while len(seen) < 3:
            seen += [(r.change_type.short_string(), r.row["name"], r.offset) for r in await scanner.poll(5000)]
    assert seen == [("+I", "n3", 3), ("-U", "n3", 20), ("+U", "changed", 21)]


async def test_batch_scanners_refuse_filters(table):
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    with pytest.raises(fluss.InvalidArgumentError, match="filter"):
        table.new_scan().filter(col("id") == 3).limit(3).create_bucket_batch_scanner(bucket)
