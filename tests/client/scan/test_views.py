# SPDX-License-Identifier: Apache-2.0
"""The virtual tables `$changelog` and `$binlog`."""

from __future__ import annotations

import asyncio
import datetime as dt

import pyarrow as pa
import pytest

import fluss
from fluss.client.scan.records import RecordBatch
from fluss.client.scan.views import Binlog

FIELDS = [("id", pa.int32()), ("name", pa.string())]
pytestmark = pytest.mark.table(keys=["id"])
CHANGES = [
    ("insert", 0, 1, "a"),
    ("insert", 1, 2, "b"),
    ("update_before", 2, 1, "a"),
    ("update_after", 3, 1, "c"),
    ("delete", 4, 2, "b"),
]
BINLOG = [
    ("insert", 0, None, {"id": 1, "name": "a"}),
    ("insert", 1, None, {"id": 2, "name": "b"}),
    ("update", 3, {"id": 1, "name": "a"}, {"id": 1, "name": "c"}),
    ("delete", 4, {"id": 2, "name": "b"}, None),
]


async def change(table):
    writer = table.new_upsert().create_writer()
    for handle in (writer.upsert((1, "a")), writer.upsert((2, "b")), writer.upsert((1, "c")), writer.delete((2,))):
        await handle.wait()


async def scanned(table, count):
    scan = table.new_scan()
    whole = await scan.create_table_batch_scanner().to_arrow()
    async with await scan.create_record_batch_log_scanner() as scanner:
        scanner.subscribe_from_beginning(0)
        assert (await scanner.to_arrow()).equals(whole)
        assert whole.schema == scanner.arrow_schema == table.arrow_schema
    async with await scan.create_log_scanner() as scanner:
        scanner.subscribe_from_beginning(0)
        rows = []
        while len(rows) < count:
            rows += [(record.offset, record.row) for record in await scanner.poll(5000)]
    assert [row["_log_offset"] for _, row in rows] == [offset for offset, _ in rows]
    assert [row for _, row in rows] == whole.to_pylist()
    assert all(isinstance(row["_commit_timestamp"], dt.datetime) for _, row in rows)
    return [row for _, row in rows]


async def test_the_changelog_of_a_primary_key_table(config, conn, table):
    await change(table)
    view = await conn.get_table(f"{table.get_table_path()}$changelog")
    assert view.arrow_schema.names == ["_change_type", "_log_offset", "_commit_timestamp", "id", "name"]
    rows = await scanned(view, 5)
    assert [(row["_change_type"], row["_log_offset"], row["id"], row["name"]) for row in rows] == CHANGES
    in_thread = await asyncio.to_thread(plain_face, config, f"{table.get_table_path()}$changelog")
    assert in_thread == [one[0] for one in CHANGES]
    assert "$changelog" in repr(view)
    for build in (view.new_append, view.new_upsert, view.new_lookup):
        with pytest.raises(fluss.InvalidArgumentError, match="can only be scanned"):
            build()
    with pytest.raises(fluss.InvalidArgumentError, match="columns cannot be chosen"):
        view.new_scan().project_by_name(["id"])
    with pytest.raises(fluss.InvalidArgumentError, match="rows cannot be filtered"):
        view.new_scan().filter(fluss.col("id") == 1)


def plain_face(config, path):
    async def read():
        with await fluss.FlussConnection.create(config) as conn:
            table = await conn.get_table(path)
            return table.new_scan().create_table_batch_scanner().to_arrow().column("_change_type").to_pylist()

    return asyncio.run(read())


@pytest.mark.table
async def test_the_changelog_of_a_log_table(conn, table, writer):
    for i in range(3):
        await writer.append((i, "x")).wait()
    rows = await scanned(await conn.get_table(f"{table.get_table_path()}$changelog"), 3)
    assert [(row["_change_type"], row["_log_offset"], row["id"]) for row in rows] == [
        ("insert", i, i) for i in range(3)
    ]
    with pytest.raises(fluss.InvalidArgumentError, match="only primary-key tables have a binlog"):
        await conn.get_table(f"{table.get_table_path()}$binlog")
    with pytest.raises(fluss.InvalidArgumentError, match="the table has no lake"):
        await conn.get_table(f"{table.get_table_path()}$lake")
    with pytest.raises(fluss.InvalidArgumentError, match=r"not \$other"):
        await conn.get_table(f"{table.get_table_path()}$other")


async def test_the_binlog(config, conn, table):
    await change(table)
    config.scanner_log_max_poll_records = 1
    rows = await scanned(await conn.get_table(f"{table.get_table_path()}$binlog"), 4)
    assert [(row["_change_type"], row["_log_offset"], row["before"], row["after"]) for row in rows] == BINLOG


@pytest.mark.parametrize("gap", [0, 5])
def test_an_update_that_two_batches_share(gap):
    bucket = fluss.TableBucket(1, 0)
    schema = pa.schema(FIELDS)

    def batch(rows, kinds, base):
        found = pa.RecordBatch.from_pylist([{"id": i, "name": name} for i, name in rows], schema=schema)
        return RecordBatch(found, bucket, base, base + len(rows) - 1, 1000, bytes(kinds))

    view = Binlog()
    first = view.apply(batch([(1, "a"), (1, "a")], [1, 2], 0)).batch.to_pylist()
    second = view.apply(batch([(1, "b")], [3], 2 + gap)).batch.to_pylist()
    assert [row["_change_type"] for row in first + second] == ["insert", "update"]
    assert second[0]["_log_offset"] == 2 + gap
    assert second[0]["before"] == (None if gap else {"id": 1, "name": "a"}), (
        "only the record right before belongs to it"
    )
    assert second[0]["after"] == {"id": 1, "name": "b"}
