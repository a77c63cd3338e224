# SPDX-License-Identifier: Apache-2.0
"""Snapshots of primary-key buckets, read from their files."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from tests.client.support import LOG_FIELDS as FIELDS
from tests.client.support import open_table, without_cursors, write

import fluss
from fluss import errors
from fluss.server.local import LocalServer

pytestmark = pytest.mark.table(keys=["id"])


@pytest.fixture(scope="module")
def snapshot_server() -> Iterator[LocalServer]:
    with LocalServer(options={"kv.snapshot.interval": "100ms", "kv.snapshot.num-retained": 20}) as server:
        yield server


@pytest.fixture
def config(snapshot_server, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return snapshot_server.config()


async def snapshot_of(conn, table, offset):
    """Wait for the snapshot that reaches an offset."""
    while True:
        [found] = await conn.get_admin().get_latest_kv_snapshots(table.get_table_path())
        if found.log_offset is not None and found.log_offset >= offset:
            return found
        await asyncio.sleep(0.05)


def scan(table, **options):
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    return table.new_scan().create_bucket_batch_scanner(bucket, **options)


def rows_of(found):
    return sorted(zip(*(found.column(name).to_pylist() for name in found.column_names)))


async def test_a_snapshot_and_the_log_after_it(conn, table, tmp_path):
    rows = [(i, f"n{i}", i / 2) for i in range(100)]
    await write(table, rows)
    found = await snapshot_of(conn, table, 100)
    await write(table, [(100, "later", None)])
    scanner = scan(table, snapshot_id=found.snapshot_id)
    assert rows_of(await scanner.to_arrow()) == rows
    assert (scanner.log_offset, scanner.snapshot_id) == (found.log_offset, found.snapshot_id) == (100, 0)
    later = [b.batch async for b in table.new_scan().read_batches({scanner.bucket: scanner.log_offset})]
    assert rows_of(pa.Table.from_batches(later)) == [(100, "later", None)]
    assert list(tmp_path.iterdir()) == [], "the temporary folder is gone"


async def test_projection_and_refusals(config, database):
    async with open_table(config, database, FIELDS, keys=["id"]) as (conn, table):
        await write(table, [(1, "a", 0.5)])
        found = await snapshot_of(conn, table, 1)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        some = table.new_scan().project([2, 0])
        table_of = await some.create_bucket_batch_scanner(bucket, snapshot_id=found.snapshot_id).to_arrow()
        assert table_of.to_pylist() == [{"score": 0.5, "id": 1}]
        with pytest.raises(errors.KvSnapshotNotExistError, match="77"):
            await scan(table, snapshot_id=77).to_arrow()
        with pytest.raises(fluss.InvalidArgumentError, match="as a whole"):
            table.new_scan().limit(1).create_bucket_batch_scanner(bucket, snapshot_id=0)
    async with open_table(config, f"{database}_log", FIELDS) as (_, table):
        with pytest.raises(fluss.InvalidArgumentError, match="no snapshots"):
            scan(table, snapshot_id=0)


async def test_servers_that_cannot_list_rows_are_read_from_the_snapshot(conn, table, monkeypatch):
    without_cursors(monkeypatch)
    await write(table, [(i, "old", None) for i in range(50)])
    found = await snapshot_of(conn, table, 50)
    await write(table, [(i, "new", None) for i in range(40, 60)])
    scanner = scan(table)
    rows = rows_of(await scanner.to_arrow())
    assert rows == [(i, "old" if i < 40 else "new", None) for i in range(60)]
    assert scanner.snapshot_id >= found.snapshot_id
    assert scanner.log_offset == 50 + 20 + 10


@pytest.mark.parametrize("how", ["gone", "flipped"])
async def test_files_that_cannot_be_read(conn, table, monkeypatch, snapshot_server, how):
    """A snapshot that was asked for is an error; one that only saves time is not needed while the log reaches back."""
    without_cursors(monkeypatch)
    await write(table, [(i, "x" * 200, None) for i in range(50)])
    found = await snapshot_of(conn, table, 50)
    files = (await conn.get_admin().get_kv_snapshot_metadata(found.bucket, found.snapshot_id)).files
    [data] = [Path(path) for path, name in files.items() if name.endswith(".sst")]
    damage(data, how)
    with pytest.raises(errors.StorageError, match="snapshot 0"):
        await scan(table, snapshot_id=found.snapshot_id).to_arrow()
    scanner = scan(table)
    assert (await scanner.to_arrow()).num_rows == 50
    assert scanner.snapshot_id is None


def damage(path, how):
    if how == "gone":
        path.unlink()
        return
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(content)


def test_the_synchronous_face(config, database):
    with fluss.connect(config.bootstrap_servers, database="fluss") as db:
        table = db.create_table(f"t_{database}", "id bigint, v string", primary_key="id", buckets=1)
        table.upsert([{"id": 1, "v": "a"}])
        assert asyncio.run(_get(config, table.path)) == [{"id": 1, "v": "a"}]
        db.drop_table(table.name)


async def _get(config, path):
    with await fluss.FlussConnection.create(config) as conn:
        table = await conn.get_table(path)
        found = await snapshot_of(conn, table, 1)
        return scan(table, snapshot_id=found.snapshot_id).to_arrow().to_pylist()
