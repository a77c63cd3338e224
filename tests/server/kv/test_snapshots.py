# SPDX-License-Identifier: Apache-2.0
"""Snapshots of primary-key buckets: their files, what a restart makes of them, and which changelog they replace."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import shutil
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyarrow import fs
from rocksdict import AccessType, Options, Rdict
from tests.server.catalog.support import create_partition, drop_partition, drop_table, path
from tests.server.kv.support import NUMBERED, SCHEMA, Delete, keyed_schema
from tests.server.log_support import FakeClock, connected, run, running_server
from tests.server.test_handlers_kv import Table
from tests.shared import raising
from tests.waiting import wait_until

import fluss.aio as fluss
from fluss import errors
from fluss.metadata import EARLIEST_OFFSET, BigIntType, ChangeType, Schema, StringType, TableBucket, TablePath
from fluss.protocol import fluss_pb2 as pb
from fluss.server import disk
from fluss.server.kv import snapshots as snapshots_module
from fluss.server.kv.ordered import DamagedStoreError
from fluss.server.kv.sequence import FILE_NAME
from fluss.server.kv.snapshots import (
    CHECKSUMS_NAME,
    METADATA_NAME,
    BucketSnapshot,
    BucketSnapshots,
    DamagedSnapshotError,
)
from fluss.server.log.files import DamagedLogError
from fluss.server.remote_files import RemoteFiles
from fluss.server.server import Server

MINUTE_MS = 60_000
SEGMENTS: dict[str, object] = {
    "log_segment_file__size": "4kb",
    "log_index_interval__size": "256b",
    "log_commit_sync": "none",
}
TTL = {"table.log.ttl": "1 min"}
unreachable = raising(OSError, "the store is out of reach")
PARTITIONED = keyed_schema("id", "name", id=BigIntType(), name=StringType())


@contextlib.asynccontextmanager
async def a_table(
    folder: Path, schema: Schema = SCHEMA, *, clock: FakeClock | None = None, properties: Any = None, **options: Any
) -> AsyncIterator[tuple[Server, Table]]:
    """A server with a table, which exists already when the folder was used before."""
    given = {name: options.pop(name) for name in ("partition_keys", "bucket_keys", "buckets") if name in options}
    async with running_server(folder, clock, **{**SEGMENTS, **options}) as server, connected(server) as client:
        if server.catalog.tables_by_id:
            entry = next(iter(server.catalog.tables_by_id.values()))
            yield server, Table(client, entry.table_info)
        else:
            yield server, await Table.create(client, server, schema, properties=properties, **given)


def lose_state(folder: Path) -> None:
    """Take the rows on disk away, so that they come from snapshots and the changelog."""
    for state in (folder / "tables").rglob("kv-0"):
        shutil.rmtree(state)


async def take(server: Server, retained: int = 2) -> None:
    await server.kv.snapshotter.run_round(retained)


def snapshots_of(server: Server, bucket: int = 0, partition: int | None = None) -> BucketSnapshots:
    entry = next(iter(server.catalog.tables_by_id.values()))
    return server.kv.snapshotter.of(entry, TableBucket(entry.table_id, bucket, partition))


def ids_of(server: Server, bucket: int = 0) -> list[int]:
    return [found.snapshot_id for found in snapshots_of(server, bucket).snapshots]


async def offered(table: Table) -> list[tuple[int, int]]:
    """The snapshots and their offsets with which both requests for them are answered."""
    latest = await table.client.send(pb.GetLatestKvSnapshotsRequest(table_path=path()))
    listed = await table.client.send(pb.ListKvSnapshotsRequest(table_id=table.info.table_id))
    found = [(one.snapshot_id, one.log_offset) for one in latest.latest_snapshots]
    assert [(one.snapshot_id, one.log_offset) for one in listed.active_snapshots] == found
    return found


def read(snapshot: BucketSnapshot, folder: Path) -> dict[bytes, bytes]:
    """What RocksDB finds in the files of a snapshot."""
    folder.mkdir()
    for file in snapshot.files:
        shutil.copy(file.path, folder / file.local_name)
    db = Rdict(str(folder), Options(raw_mode=True), access_type=AccessType.read_only())
    found = dict(db.items())
    db.close()
    return found


def rows_of(table: Table, found: dict[bytes, bytes]) -> list[Any]:
    rows = table.decode(list(found.values()))
    assert list(found) == [table.key(row[0]) for row in rows], "keys are those of the Java server, without a prefix"
    return sorted(rows)


def rows(count: int, text: str = "x") -> list[Any]:
    return [(i, f"{text}-{i}", i / 2) for i in range(count)]


async def fill_log(table: Table, count: int = 200) -> None:
    """Many updates of one key: several closed segments."""
    for i in range(count):
        await table.put([(0, "again" * 20, float(i))])
    await table.put([(0, "x-0", 0.0)])


# -- what is in a snapshot --------------------------------------------------------------------------------------------


async def test_a_snapshot_is_a_database_with_the_rows_of_one_offset(tmp_path: Path) -> None:
    async with a_table(tmp_path / "data") as (server, table):
        await table.put(rows(50))
        await table.put([Delete(7), (8, "changed", None)])
        await take(server)
        (snapshot,) = snapshots_of(server).snapshots
        expected = [row for row in rows(50) if row[0] not in (7, 8)] + [(8, "changed", None)]
        await table.put([(99, "later", None)])
        assert rows_of(table, read(snapshot, tmp_path / "copy")) == sorted(expected)
        # Updates have two records in the changelog.
        assert (snapshot.snapshot_id, snapshot.log_offset, snapshot.row_count) == (0, 53, 49)
        document = json.loads(disk.read_file(f"{snapshot.location}/{METADATA_NAME}"))
        root = tmp_path / "data" / "remote" / "kv" / "fluss" / f"t-{table.info.table_id}" / "0"
        assert document["snapshot_location"] == f"{root}/snap-0"
        assert list(document) == [
            "version", "table_id", "bucket_id", "snapshot_id", "snapshot_location", "kv_snapshot_handle",
            "log_offset", "row_count",
        ]  # fmt: skip
        handle = document["kv_snapshot_handle"]
        assert all(f["kv_file_handle"]["path"].startswith(f"{root}/shared/") for f in handle["shared_file_handles"])
        assert {f["local_path"].partition("-")[0] for f in handle["private_file_handles"]} == {"CURRENT", "MANIFEST"}
        assert handle["snapshot_incremental_size"] == sum(disk.size_of(file.path) for file in snapshot.files)
        assert not list((tmp_path / "data" / "tables").rglob("*.snapshot")), "nothing is left of its making"


async def test_a_bucket_without_changes_gets_no_further_snapshot(tmp_path: Path) -> None:
    async with a_table(tmp_path, buckets=2) as (server, table):
        await table.put(rows(3))
        for _ in range(3):
            await take(server)
        assert (ids_of(server), ids_of(server, 1)) == ([0], [])
        await table.put(rows(1, "y"))
        await take(server)
        assert ids_of(server) == [0, 1]


async def test_a_large_bucket_shares_files_between_snapshots(tmp_path: Path) -> None:
    """The cost of a snapshot follows the changes, not the state."""
    async with a_table(tmp_path / "data", kv_memory__size="200kb") as (server, table):
        for start in range(0, 20_000, 2_000):
            await table.put([(i, "z" * 100, None) for i in range(start, start + 2_000)])
        await take(server)
        assert snapshots_of(server).snapshots[0].new_bytes > 1_000_000
        for _ in range(5):
            await table.put([(5, "changed", None), Delete(6)])
            await take(server)
            first, second = snapshots_of(server).snapshots[-2:]
            if second.new_bytes < 100_000:
                break  # otherwise RocksDB has rewritten its files in between, as it does now and then
        assert second.new_bytes < 100_000
        assert {f.path for f in first.shared} <= {f.path for f in second.shared}
        found = rows_of(table, read(second, tmp_path / "copy"))
        assert len(found) == 19_999
        assert found[5] == (5, "changed", None)
        # The first goes; what the second has of it stays.
        await table.put([(5, "again", None)])
        await take(server, 1)
        (third,) = snapshots_of(server).snapshots
        await table.put([(5, "once more", None)])
        assert len(rows_of(table, read(third, tmp_path / "third"))) == 19_999
        shared = Path(third.location).parent / "shared"
        assert {str(path) for path in shared.iterdir()} == {file.path for file in third.shared}
        assert sorted(path.name for path in shared.parent.iterdir()) == ["shared", f"snap-{third.snapshot_id}"]


async def test_partitions_and_drops(tmp_path: Path) -> None:
    async with a_table(tmp_path, PARTITIONED, partition_keys=["name"], bucket_keys=["id"]) as (server, table):
        for name in ("a", "b"):
            await table.client.send(create_partition(name=name))
        await table.put([(1, "a")], partition=0)
        await table.put([(1, "b")], partition=1)
        await take(server)
        root = tmp_path / "remote" / "kv" / "fluss" / f"t-{table.info.table_id}"
        assert sorted(path.name for path in root.iterdir()) == ["a-p0", "b-p1"]
        answer = await table.client.send(pb.GetLatestKvSnapshotsRequest(table_path=path(), partition_name="b"))
        assert (answer.partition_id, answer.latest_snapshots[0].log_offset) == (1, 1)
        await table.client.send(drop_partition(name="a"))
        await wait_until(lambda: not disk.exists(root / "a-p0"))
        assert (root / "b-p1").exists()
        await table.client.send(drop_table())
        await wait_until(lambda: not disk.exists(root))


# -- answers and leases -----------------------------------------------------------------------------------------------


async def test_refusals(tmp_path: Path) -> None:
    async with a_table(tmp_path, PARTITIONED, partition_keys=["name"], bucket_keys=["id"]) as (server, table):
        send = table.client.send
        log_id = await table.client.create_table("log")
        await Table.create(table.client, server, name="pk")

        async def latest(name: str, partition: str | None = None) -> Any:
            return await send(pb.GetLatestKvSnapshotsRequest(table_path=path(name), partition_name=partition))

        assert not (await latest("pk")).latest_snapshots[0].HasField("snapshot_id")
        for error, given in (
            (errors.NonPrimaryKeyTableError, ("log",)),
            (errors.PartitionNotExistsError, ("t",)),
            (errors.PartitionNotExistsError, ("t", "b")),
            (errors.TableNotPartitionedError, ("pk", "a")),
            (errors.TableNotExistError, ("missing",)),
        ):
            with pytest.raises(error):
                await latest(*given)
        with pytest.raises(errors.UnknownTableOrBucketError):
            await send(pb.GetKvSnapshotMetadataRequest(table_id=99, bucket_id=0, snapshot_id=4))
        with pytest.raises(errors.PartitionNotExistsError):
            await send(pb.ListKvSnapshotsRequest(table_id=table.info.table_id, partition_id=99))
        # A table that is gone has no snapshots, which is no reason to fail the others.
        acquire = lease_of(99, 0, "l", 9)
        assert (await send(acquire)).unavailable_snapshots == acquire.snapshots_to_lease
        released = [pb.PbTableBucket(table_id=log_id, bucket_id=0)]
        release = pb.ReleaseKvSnapshotLeaseRequest(lease_id="l", buckets_to_release=released)
        for request in (lease_of(log_id, 0, "l", 9), release):
            with pytest.raises(errors.NonPrimaryKeyTableError, match="is not a primary key table"):
                await send(request)
        for bad in ({"lease_duration_ms": 0}, {"lease_duration_ms": 1 << 60}, {"lease_id": "l" * 300}):
            fields = {"lease_id": "l", "lease_duration_ms": 9, **bad}
            with pytest.raises(errors.FlussError):
                await send(pb.AcquireKvSnapshotLeaseRequest(**fields))


def lease_of(table_id: int, snapshot_id: int, lease_id: str, duration_ms: int) -> pb.AcquireKvSnapshotLeaseRequest:
    bucket = pb.PbKvSnapshotLeaseForBucket(bucket_id=0, snapshot_id=snapshot_id)
    wanted = [pb.PbKvSnapshotLeaseForTable(table_id=table_id, bucket_snapshots=[bucket])]
    return pb.AcquireKvSnapshotLeaseRequest(lease_id=lease_id, lease_duration_ms=duration_ms, snapshots_to_lease=wanted)


async def test_answers_and_leases(tmp_path: Path, clock: FakeClock) -> None:
    async with a_table(tmp_path, clock=clock, buckets=2) as (server, table):
        send, table_id = table.client.send, table.info.table_id

        async def metadata(snapshot_id: int) -> Any:
            return await send(pb.GetKvSnapshotMetadataRequest(table_id=table_id, bucket_id=0, snapshot_id=snapshot_id))

        async def lease(snapshot_id: int, lease_id: str = "l") -> list[int]:
            answer = await send(lease_of(table_id, snapshot_id, lease_id, MINUTE_MS))
            return [b.snapshot_id for t in answer.unavailable_snapshots for b in t.bucket_snapshots]

        async def snapshot() -> list[int]:
            clock.time_ms += 1
            await table.put([(1, f"at {clock.time_ms}", None)])
            await take(server, 1)
            answer = await send(pb.ListKvSnapshotsRequest(table_id=table_id))
            return [found.snapshot_id for found in answer.active_snapshots]

        assert await snapshot() == [0]
        answer = await send(pb.GetLatestKvSnapshotsRequest(table_path=path()))
        found, other = answer.latest_snapshots
        assert (found.bucket_id, found.snapshot_id, found.log_offset) == (0, 0, 1)
        assert not other.HasField("snapshot_id")
        answer = await metadata(0)
        assert answer.log_offset == 1
        assert all(disk.exists(file.remote_path) for file in answer.snapshot_files)
        assert {file.local_file_name.partition("-")[0] for file in answer.snapshot_files} > {"CURRENT", "MANIFEST"}
        with pytest.raises(errors.KvSnapshotNotExistError):
            await metadata(1)
        # A lease keeps what would go.
        assert await lease(0) == []
        assert await lease(5, "other") == [5]
        assert await snapshot() == [0, 1]
        assert snapshots_of(server).retained_offset(3) == 1, "the changelog after a leased snapshot stays too"
        # One lease holds one snapshot of a bucket.
        assert await lease(1) == []
        assert await snapshot() == [1, 2]
        bucket = pb.PbTableBucket(table_id=table_id, bucket_id=0)
        await send(pb.ReleaseKvSnapshotLeaseRequest(lease_id="l", buckets_to_release=[bucket]))
        assert await snapshot() == [3]
        assert await lease(3) == []
        await send(pb.DropKvSnapshotLeaseRequest(lease_id="l"))
        assert await snapshot() == [4]
        assert await lease(4) == []
    # It survives a restart, until it expires.
    async with a_table(tmp_path, clock=clock) as (server, table):
        send = table.client.send
        assert await snapshot() == [4, 5]
        clock.time_ms += 2 * MINUTE_MS
        assert await snapshot() == [6]


# -- recovery and retention -------------------------------------------------------------------------------------------


async def expire_history(server: Server, table: Table, clock: FakeClock) -> None:
    """Take a snapshot and let the changelog before it expire."""
    log = server.tablets.tablet(TableBucket(table.info.table_id, 0))
    await fill_log(table)
    await server.tablets.expire_segments()
    assert log.start_offset == 0, "without a snapshot nothing may go"
    await take(server)
    await server.tablets.expire_segments()
    assert log.start_offset == 0, "it is not old enough"
    clock.time_ms += 2 * MINUTE_MS
    await server.tablets.expire_segments()
    assert 0 < log.start_offset <= snapshots_of(server).log_offset
    assert log.size_bytes < 16_000


async def test_the_changelog_expires_up_to_the_snapshot(tmp_path: Path, clock: FakeClock) -> None:
    """And the state is rebuilt from both, whichever way the server ended."""
    async with a_table(tmp_path / "data", clock=clock, properties=TTL) as (server, table):
        await table.put(rows(100))
        await expire_history(server, table, clock)
        await table.put([Delete(3), (100, "tail", None)])
        await server.tablets.checkpoint()  # so that no file changes while the folder is copied
        shutil.copytree(tmp_path / "data", tmp_path / "killed")
    shutil.copytree(tmp_path / "data", tmp_path / "wiped")
    lose_state(tmp_path / "wiped")
    expected = [row for row in rows(100) if row[0] != 3] + [(100, "tail", None)]
    for name in ("data", "killed", "wiped"):
        async with a_table(tmp_path / name, clock=clock) as (server, table):
            assert await table.lookup(*(row[0] for row in expected)) == expected
            assert await table.lookup(3) == [None]
            assert await server.kv.row_count(server.catalog.tables_by_id[0], TableBucket(0, 0)) == 100
            await table.put([(101, "more", None)])
            await take(server)
            assert ids_of(server) == [0, 1]


async def test_what_was_written_since_the_snapshot_does_not_expire(tmp_path: Path, clock: FakeClock) -> None:
    """However old it is: without it the rows could not be rebuilt."""
    async with a_table(tmp_path / "data", clock=clock, properties=TTL) as (server, table):
        log = server.tablets.tablet(TableBucket(table.info.table_id, 0))
        await table.put(rows(100))
        await expire_history(server, table, clock)
        await table.put(rows(50, "new"))
        await fill_log(table)
        assert log.segments[-1].base_offset > snapshots_of(server).log_offset, "whole segments came since"
        clock.time_ms += 2 * MINUTE_MS
        await server.tablets.expire_segments()
        assert log.start_offset <= snapshots_of(server).log_offset
    lose_state(tmp_path / "data")
    async with a_table(tmp_path / "data", clock=clock) as (_, table):
        expected = rows(1) + rows(50, "new")[1:] + rows(100)[50:]
        assert await table.lookup(*range(100)) == expected


async def test_each_file_of_a_snapshot_is_compared_with_what_was_written(tmp_path: Path) -> None:
    """RocksDB itself would take a file whose own checksums fit, such as one of another snapshot."""
    async with a_table(tmp_path / "data") as (server, table):
        await table.put(rows(100))
        await take(server)
        snapshots, copy = snapshots_of(server), tmp_path / "copy"
        copy.mkdir()
        snapshots.fill(snapshots.newest, copy)
        for file in [Path(file.path) for file in snapshots.newest.files]:
            data = file.read_bytes()
            for changed in (data + b"x", bytes([data[0] ^ 1]) + data[1:]):
                file.write_bytes(changed)
                with pytest.raises(DamagedSnapshotError, match="is not what was written"):
                    snapshots.fill(snapshots.newest, copy)
            file.write_bytes(data)


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: len(data) // 2])
    else:
        data[len(data) // 2] ^= 0x40
        path.write_bytes(data)


@pytest.mark.parametrize("how", ["gone", "cut", "flipped"])
async def test_an_older_snapshot_replaces_a_damaged_one(tmp_path: Path, clock: FakeClock, how: str) -> None:
    """Whatever file of the newest is damaged. With none left, the bucket says so, and is not empty."""
    async with a_table(tmp_path / "data", clock=clock, properties=TTL) as (server, table):
        await table.put(rows(100))
        await expire_history(server, table, clock)
        await table.put(rows(50, "new"))
        await take(server)
        await table.put(rows(10, "tail"))
        older, newest = snapshots_of(server).snapshots
    lose_state(tmp_path / "data")
    expected = rows(10, "tail") + rows(50, "new")[10:] + rows(100)[50:]
    names = [METADATA_NAME, CHECKSUMS_NAME]
    paths = [f"{newest.location}/{name}" for name in names] + [file.path for file in newest.files]
    for damaged in paths:
        shutil.copytree(tmp_path / "data", tmp_path / "bad")
        damage(tmp_path / "bad" / Path(damaged).relative_to(tmp_path / "data"), how)
        async with a_table(tmp_path / "bad", clock=clock) as (_, table):
            assert await table.lookup(*range(100)) == expected
        shutil.rmtree(tmp_path / "bad")
    for found in (older, newest):
        damage(Path(found.files[0].path), how)
    async with a_table(tmp_path / "data", clock=clock) as (_, table):
        answer = await table.lookup_raw([table.key(1)])
        assert "no snapshot that can be read reaches that far" in answer.error_message


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_a_damaged_state_is_rebuilt_from_the_snapshot(
    tmp_path: Path, clock: FakeClock, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server runs: the rows on disk are wrong, and the changelog begins too late."""
    if where == "disk":
        monkeypatch.setattr(snapshots_module, "MEMORY_BYTES_MAX", 0)

    async with a_table(tmp_path, clock=clock, properties=TTL, kv_memory__size="100kb") as (server, table):
        await table.put([(i, "z" * 100, None) for i in range(5_000)])
        await expire_history(server, table, clock)
    (state,) = (tmp_path / "tables").rglob("kv-0")
    for file in state.glob("*.sst"):
        damage(file, "flipped")
    async with a_table(tmp_path, clock=clock) as (server, table):
        await table.put([(4_999, "tail", None)])
        found = await table.lookup(*range(5_000))
        assert found[0] == (0, "x-0", 0.0)
        assert found[1:4_999] == [(i, "z" * 100, None) for i in range(1, 4_999)]
        assert found[4_999] == (4_999, "tail", None)
        entry = server.catalog.tables_by_id[table.info.table_id]
        assert server.kv.tablet(entry, TableBucket(entry.table_id, 0)).store.is_in_memory == (where == "memory")
        # What follows on restored files is not what followed on them before: nothing is shared by their names.
        await take(server)
        before, after = snapshots_of(server).snapshots
        assert not {file.path for file in before.files} & {file.path for file in after.files}
        assert len(rows_of(table, read(after, tmp_path / "copy"))) == 5_000


async def test_a_large_state_of_uncounted_rows_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blind writes count the rows that they delete only."""
    monkeypatch.setattr(snapshots_module, "MEMORY_BYTES_MAX", 10_000)
    async with a_table(tmp_path, properties={"table.changelog.image": "WAL"}) as (server, table):
        await table.put(rows(2_000))
        await table.put([Delete(number) for number in range(1_000)])
        await take(server)
        assert server.kv.budget.row_count == 0
    lose_state(tmp_path)
    async with a_table(tmp_path) as (server, table):
        assert await table.lookup(0, 1_000) == [None, rows(1_001)[-1]]
        (tablet,) = server.kv.open_tablets
        assert not tablet.store.is_in_memory


async def test_auto_increment_goes_on_after_a_snapshot(tmp_path: Path, clock: FakeClock) -> None:
    async with a_table(tmp_path, NUMBERED, clock=clock, properties=TTL) as (server, table):
        for i in range(200):
            await table.put([(f"key-{i}", None, "v" * 100)], [0, 2])
        await table.put([Delete("key-199")])
        await take(server)
        (snapshot,) = snapshots_of(server).snapshots
        column = table.info.schema.columns[1]
        assert (snapshot.numbers.column_id, snapshot.numbers.start) == (column.column_id, 201)
        clock.time_ms += 2 * MINUTE_MS
        await server.tablets.expire_segments()
        assert server.tablets.tablet(TableBucket(table.info.table_id, 0)).start_offset > 0
        await server.tablets.checkpoint()
        shutil.copytree(tmp_path, tmp_path.parent / "copy")
    async with a_table(tmp_path.parent / "copy", clock=clock) as (server, table):
        await table.put([("next", None, "v")], [0, 2])
        assert await table.lookup("key-0", "next") == [("key-0", 1, "v" * 100), ("next", 201, "v")]


@pytest.mark.parametrize("found", ["missing", "older"])
async def test_numbers_of_other_buckets_are_not_given_again(tmp_path: Path, found: str) -> None:
    """The file that knows them is lost, or was put back from before."""
    properties = {"table.auto-increment.cache-size": "2"}
    async with a_table(tmp_path, NUMBERED, buckets=3, properties=properties) as (server, table):
        await table.put([("a", None, "v")], [0, 2], bucket=0)
        (file,) = (tmp_path / "tables").rglob(FILE_NAME)
        older = file.read_bytes()
        await table.put([(f"a{i}", None, "v") for i in range(10)], [0, 2], bucket=0)
        await table.put([(f"b{i}", None, "v") for i in range(10)], [0, 2], bucket=1)
    if found == "missing":
        file.unlink()
    else:
        file.write_bytes(older)
    async with a_table(tmp_path) as (server, table):
        if found == "older":
            # Known from the numbers of this bucket, which are beyond the file.
            await table.put([("a-next", None, "v")], [0, 2], bucket=0)
        for bucket in (2, 1, 0):
            await table.put([(f"next{bucket}-{i}", None, "v") for i in range(3)], [0, 2], bucket=bucket)
        numbers: list[int] = []
        for bucket in range(3):
            entry = server.catalog.tables_by_id[table.info.table_id]
            values, _ = await server.kv.tablet(entry, TableBucket(entry.table_id, bucket)).snapshot()
            numbers += [row[1] for part in values for row in table.decode(part)]
        assert len(numbers) == len(set(numbers)) == 30 + (found == "older")


async def test_no_number_is_given_while_those_of_another_bucket_are_unknown(tmp_path: Path) -> None:
    async with a_table(tmp_path, NUMBERED, buckets=2) as (server, table):
        await table.put([("a", None, "v")], [0, 2], bucket=0)
    (file,) = (tmp_path / "tables").rglob(FILE_NAME)
    file.unlink()
    async with a_table(tmp_path) as (server, table):
        log = server.tablets.tablet(TableBucket(table.info.table_id, 0))
        log.damage = DamagedLogError("said so")
        answer = await table.put([("b", None, "v")], [0, 2], bucket=1)
        assert "said so" in answer.error_message
        log.damage = None
        answer = await table.put([("b", None, "v")], [0, 2], bucket=1)
        assert not answer.HasField("error_code"), answer.error_message
        assert await table.lookup("b", bucket=1) != [("b", 1, "v")]


async def keep_copy(server: Server, tmp_path: Path) -> None:
    """Copy the tables of the data folder, for `put_back_copy`."""
    await server.tablets.checkpoint()  # so that no file changes while the folder is copied
    shutil.copytree(tmp_path / "data" / "tables", tmp_path / "before")


def put_back_copy(tmp_path: Path) -> None:
    """Let the data folder have the tables of an earlier time again."""
    shutil.rmtree(tmp_path / "data" / "tables")
    shutil.copytree(tmp_path / "before", tmp_path / "data" / "tables")


async def spill(server: Server) -> None:
    """Move the rows of the only state to disk."""
    (tablet,) = server.kv.open_tablets
    server.kv.budget.spill(tablet.store)
    await server.kv.budget.spilled(tablet.store)


@contextlib.asynccontextmanager
async def an_older_copy(folder: Path) -> AsyncIterator[tuple[Server, Table]]:
    """A table with the rows of snapshot 0, to offset 10, beside snapshot 1 of rows that are undone, to offset 30."""
    remote = {"remote_data_dir": str(folder / "remote")}
    async with a_table(folder / "data", **remote) as (server, table):
        await table.put(rows(10))
        await take(server)
        await spill(server)
        await keep_copy(server, folder)
        await table.put(rows(10, "undone"))
        await take(server)
    put_back_copy(folder)
    async with a_table(folder / "data", **remote) as (server, table):
        yield server, table


async def test_snapshots_of_a_log_that_lost_its_end_are_deleted(tmp_path: Path) -> None:
    """The log gives their offsets to other changes, which they do not have."""
    async with a_table(tmp_path / "data") as (server, table):
        await table.put(rows(10))
        await take(server)
        await keep_copy(server, tmp_path)
        await table.put(rows(10, "lost"))
        await take(server)
    put_back_copy(tmp_path)
    async with a_table(tmp_path / "data") as (server, table):
        assert await table.lookup(*range(10)) == rows(10)
        await wait_until(lambda: ids_of(server) == [0])
        await table.put(rows(20, "other"))
    async with a_table(tmp_path / "data") as (server, table):
        assert await table.lookup(*range(20)) == rows(20, "other")


async def test_snapshots_that_an_older_copy_of_the_data_folder_does_not_reach_are_not_offered(tmp_path: Path) -> None:
    """Also before the first look-up or write, which deletes them: a reader would get rows that were undone."""
    async with an_older_copy(tmp_path) as (_, table):
        assert await offered(table) == [(0, 10)]


async def test_a_log_does_not_expire_for_snapshots_that_it_does_not_reach(tmp_path: Path, clock: FakeClock) -> None:
    """An older copy of the data folder came beside them, and no look-up or write has deleted them yet."""
    async with a_table(tmp_path / "data", clock=clock, properties=TTL) as (server, table):
        await table.put(rows(100))
        await fill_log(table)
        await keep_copy(server, tmp_path)
        await table.put(rows(10, "undone"))
        await take(server)
    put_back_copy(tmp_path)
    clock.time_ms += 2 * MINUTE_MS
    async with a_table(tmp_path / "data", clock=clock) as (server, table):
        await take(server)
        await server.tablets.expire_segments()
        assert await table.lookup(*range(100)) == rows(100)


@pytest.mark.parametrize("how", ["gone", "flipped"])
async def test_a_log_does_not_expire_for_a_damaged_snapshot(tmp_path: Path, clock: FakeClock, how: str) -> None:
    """The state is rebuilt from the whole changelog then, and the next snapshot shares no file with the damaged one."""
    async with a_table(tmp_path / "data", clock=clock, properties=TTL) as (server, table):
        await table.put(rows(100))
        await fill_log(table)
        await take(server)
        damage(Path(snapshots_of(server).newest.files[0].path), how)
    lose_state(tmp_path / "data")
    async with a_table(tmp_path / "data", clock=clock) as (server, table):
        assert await table.lookup(*range(100)) == rows(100)
        clock.time_ms += 2 * MINUTE_MS
        await server.tablets.expire_segments()
        assert server.tablets.tablet(TableBucket(table.info.table_id, 0)).start_offset == 0
        await wait_until(lambda: not ids_of(server))
        await take(server)
        await server.tablets.expire_segments()
        assert server.tablets.tablet(TableBucket(table.info.table_id, 0)).start_offset > 0
    lose_state(tmp_path / "data")
    async with a_table(tmp_path / "data", clock=clock) as (_, table):
        assert await table.lookup(*range(100)) == rows(100)


async def test_snapshots_are_not_those_of_rows_that_an_older_copy_of_the_data_folder_undid(tmp_path: Path) -> None:
    """Also if the copy has the state on disk, which needs no snapshot."""
    async with an_older_copy(tmp_path) as (server, table):
        await table.put(rows(10, "other"))
        await take(server)
        newest = snapshots_of(server).newest
        assert newest.log_offset == 30
        assert rows_of(table, read(newest, tmp_path / "copy")) == rows(10, "other")


async def test_a_state_is_read_while_its_snapshots_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with a_table(tmp_path) as (server, table):
        await table.put(rows(10))
        await spill(server)
    async with a_table(tmp_path) as (server, table):
        with mock.patch.object(RemoteFiles, "names", unreachable):
            assert await table.lookup(*range(10)) == rows(10)
            await wait_until(lambda: "the store is out of reach" in caplog.text)


async def test_requests_do_not_wait_for_the_store_of_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither those of new buckets nor of states on disk, though a store that is down answers no call."""
    is_up, calls = threading.Event(), 0
    names = RemoteFiles.names

    def hanging(files: RemoteFiles, path: str) -> list[str]:
        nonlocal calls
        calls += 1
        is_up.wait(60)
        return names(files, path)

    async with a_table(tmp_path, buckets=8) as (server, table):
        await table.put(rows(10), bucket=0)
        await spill(server)
    async with a_table(tmp_path) as (server, table):
        monkeypatch.setattr(RemoteFiles, "names", hanging)
        try:
            assert await asyncio.wait_for(table.lookup(*range(10)), 30) == rows(10)
            for bucket in range(1, 8):
                await asyncio.wait_for(table.put(rows(10), bucket=bucket), 30)
            await wait_until(lambda: calls > 0)
            assert calls == 1  # one thread at a time
        finally:
            is_up.set()


async def test_undone_rows_are_not_offered_after_the_log_has_grown(tmp_path: Path) -> None:
    """The log passed their snapshot while the store was down, so that it could not be deleted."""
    async with an_older_copy(tmp_path) as (server, table):
        with mock.patch.object(RemoteFiles, "names", unreachable):
            await table.put(rows(20, "other"))
            await table.put(rows(20, "other"))
        entry = next(iter(server.catalog.tables_by_id.values()))
        bucket = TableBucket(entry.table_id, 0)
        snapshots = await server.kv.snapshotter.loaded(entry, bucket)
        log = server.tablets.tablet(bucket)
        assert log.high_watermark > 30
        assert snapshots.newest_up_to(log.high_watermark).snapshot_id == 0
        assert await offered(table) == [(0, 10)]
        assert snapshots.retained_offset(log.high_watermark) == 10
        assert await server.kv.snapshotter.acquire("alice/lease", MINUTE_MS, {bucket: 1}) == [bucket]
        # A state that has to be rebuilt does not begin with it either.
        (tablet,) = server.kv.open_tablets
        tablet.damaged(DamagedStoreError("for this test"))
        assert await table.lookup(*range(20)) == rows(20, "other")
        await take(server)
        assert ids_of(server) == [0, 2]
        assert not (Path(snapshots.folder) / "snap-1").exists()


async def test_snapshots_of_undone_rows_do_not_count_as_the_newest(tmp_path: Path) -> None:
    """A round before the first request: the log may need the snapshot that it reaches."""
    async with an_older_copy(tmp_path) as (server, _):
        await take(server, 1)
        assert 0 in ids_of(server)


async def test_snapshots_of_undone_rows_are_deleted_before_the_next_round(tmp_path: Path) -> None:
    """A restart would take them for those of the log, once it has grown."""
    async with an_older_copy(tmp_path) as (server, table):
        await table.put(rows(20, "other"))
        await wait_until(lambda: ids_of(server) == [0])
        assert not (Path(snapshots_of(server).folder) / "snap-1").exists()


@pytest.mark.parametrize("store", ["reachable", "down at first"])
async def test_an_older_copy_shares_no_newer_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str) -> None:
    """RocksDB gives names that it gave before, to files of the same size."""
    async with a_table(tmp_path / "data") as (server, table):
        await table.put(rows(10))
        await spill(server)
    (state,) = (tmp_path / "data" / "tables").rglob("kv-0")
    shutil.copytree(state, tmp_path / "before")
    async with a_table(tmp_path / "data") as (server, table):
        await table.put(rows(10, "later"))
        await take(server)
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "before", state)
    async with a_table(tmp_path / "data") as (server, table):
        with monkeypatch.context() as down:
            if store == "down at first":
                down.setattr(RemoteFiles, "names", unreachable)
            await table.put(rows(10, "again"))
        await take(server)
        assert rows_of(table, read(snapshots_of(server).newest, tmp_path / "copy")) == rows(10, "again")


async def test_the_only_copy_of_rows_is_not_deleted(tmp_path: Path, clock: FakeClock) -> None:
    """The log lost its end as well as its beginning: the bucket says so, and its snapshot stays."""
    async with a_table(tmp_path / "data", clock=clock, properties=TTL) as (server, table):
        await table.put(rows(100))
        await expire_history(server, table, clock)
        await keep_copy(server, tmp_path)
        await table.put(rows(10, "lost"))
        await take(server, 1)
        (newest,) = snapshots_of(server).snapshots
    put_back_copy(tmp_path)
    lose_state(tmp_path / "data")
    async with a_table(tmp_path / "data", clock=clock) as (server, table):
        answer = await table.lookup_raw([table.key(1)])
        assert "cannot be rebuilt" in answer.error_message
        assert len(rows_of(table, read(newest, tmp_path / "copy"))) == 100


@pytest.mark.parametrize("step", ["names", "get"])
async def test_a_store_that_cannot_be_reached_is_tried_again(tmp_path: Path, step: str) -> None:
    """Its snapshots may be whole: nothing is restored from a copy because of it."""
    clock = FakeClock()
    async with a_table(tmp_path / "data", clock=clock, properties=TTL) as (server, table):
        await table.put(rows(100))
        await expire_history(server, table, clock)
    lose_state(tmp_path / "data")
    async with a_table(tmp_path / "data", clock=clock) as (_, table):
        with mock.patch.object(RemoteFiles, step, unreachable):
            answer = await table.lookup_raw([table.key(1)])
            assert answer.error_code == errors.KvStorageError.default_error_code
            assert "the store is out of reach" in answer.error_message
            assert "Restore" not in answer.error_message
        assert await table.lookup(*range(100)) == rows(100)


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_step_of_a_snapshot_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    """A file operation fails, or the server is killed there: nothing is lost, and the next round makes up for it."""

    def fail_at(step: int, copy: Callable[[], None]) -> list[str]:
        steps: list[str] = []
        for kind in ("rename", "unlink", "write", "sync", "make_folder", "remove_folder"):
            inner = getattr(disk, kind)

            def failing(*args: Any, kind: str = kind, inner: Any = inner) -> Any:
                if len(steps) == step:
                    steps.append(kind)
                    copy()
                    raise OSError(5, f"injected at {kind}")
                if len(steps) < step:
                    steps.append(kind)
                return inner(*args)

            monkeypatch.setattr(disk, kind, failing)
        return steps

    async def next_snapshot(server: Server, table: Table) -> BucketSnapshot:
        assert await table.lookup(*range(30)) == rows(20, "new") + rows(30)[20:]
        await table.put([(30, "more", None)])
        await take(server, 1)
        (newest,) = snapshots_of(server).snapshots
        return newest

    async def trial(step: int) -> bool:
        folder = tmp_path / f"{step}"
        async with a_table(folder) as (server, table):
            await table.put(rows(30))
            await take(server, 1)
            await table.put(rows(20, "new"))
            await server.tablets.checkpoint()
            with monkeypatch.context():
                steps = fail_at(step, lambda: shutil.copytree(folder, tmp_path / "killed") and None)
                await take(server, 1)
                monkeypatch.undo()
            newest = await next_snapshot(server, table)
            assert len(rows_of(table, read(newest, tmp_path / f"copy-{step}"))) == 31
        if len(steps) <= step:
            return False
        lose_state(tmp_path / "killed")
        async with a_table(tmp_path / "killed") as (server, table):
            newest = await next_snapshot(server, table)
            root = Path(newest.location).parent
            assert sorted(path.name for path in root.iterdir()) == ["shared", Path(newest.location).name]
            assert {str(path) for path in (root / "shared").iterdir()} == {file.path for file in newest.shared}
        shutil.rmtree(tmp_path / "killed")
        return True

    step = 0
    while run(trial(step), 60):
        step += stride
    assert step > 15


# -- the remote folder ------------------------------------------------------------------------------------------------


def files_below(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("step", ["put", "write"])
async def test_snapshots_that_fail_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """A store that is full or out of reach for days is tried again every few minutes."""
    real = getattr(RemoteFiles, step)

    def fail(self: RemoteFiles, *args: Any) -> Any:
        if step == "put" or str(args[0]).endswith(METADATA_NAME):
            real(self, *args)
            raise OSError("the store is full")
        return real(self, *args)

    async with a_table(tmp_path) as (server, table):
        await table.put(rows(100))
        await take(server)
        folder = Path(snapshots_of(server).folder)
        files = files_below(folder)
        await table.put(rows(200))
        monkeypatch.setattr(RemoteFiles, step, fail)
        for _ in range(5):
            await take(server)
        assert files_below(folder) == files
        # Now nothing can be deleted either.
        monkeypatch.setattr(RemoteFiles, "remove_folder", fail)
        monkeypatch.setattr(RemoteFiles, "remove_file", fail)
        await take(server)
        monkeypatch.undo()
        await take(server, retained=1)
        kept = snapshots_of(server).newest
        documents = {f"{kept.location}/{name}" for name in (METADATA_NAME, CHECKSUMS_NAME)}
        assert {file.path for file in kept.files} | documents == files_below(folder)


@pytest.mark.parametrize("step", ["remove_folder", "remove_file"])
async def test_undeleted_snapshots_go_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def refuse(*_: object) -> bool:
        if step == "remove_file":
            raise OSError("slow down")
        return False

    async with a_table(tmp_path / "data") as (server, table):
        for text in ("a", "b", "c", "d"):
            await table.put(rows(50, text))
            with monkeypatch.context() as patch:
                if text in "bc":
                    patch.setattr(RemoteFiles, step, refuse)
                await take(server, 1)
        (newest,) = snapshots_of(server).snapshots
        folder = snapshots_of(server).folder
        assert set(disk.names(folder)) == {Path(newest.location).name, "shared"}
        assert set(disk.names(f"{folder}/shared")) == {Path(file.path).name for file in newest.shared}


async def test_tiered_segments_of_a_primary_key_table(tmp_path: Path) -> None:
    """They leave the local log up to the snapshot, and readers of the changelog find all of it."""
    options: Any = {"remote_data_dir": str(tmp_path / "remote")}
    options["properties"] = {"table.log.tiered.local-segments": "1"}
    async with a_table(tmp_path / "data", **options) as (server, table):
        log = server.tablets.tablet(TableBucket(table.info.table_id, 0))
        await fill_log(table, 100)
        while log.remote is None or log.remote.end_offset < log.segments[-1].base_offset:
            await server.tablets.move_to_remote()
        assert log.start_offset == 0, "without a snapshot all of it stays"
        await take(server)
        assert snapshots_of(server).folder.startswith(f"{tmp_path}/remote/kv/")
        await table.put([(1, "tail", None)])
        await server.tablets.move_to_remote()
        assert len(log.segments) < 4
        assert 0 < log.start_offset <= snapshots_of(server).log_offset
        bound = server.listeners["FLUSS"]
        config = fluss.Config({"bootstrap.servers": f"{bound.host}:{bound.port}"})
        async with await fluss.FlussConnection.create(config) as connection:
            opened = await connection.get_table(TablePath("fluss", "t"))
            bucket = TableBucket(table.info.table_id, 0)
            kinds: list[int] = []
            async for found in opened.new_scan().read_batches({bucket: EARLIEST_OFFSET}):
                assert found.base_offset == len(kinds)
                kinds += found.change_types or b""
            updates = [int(ChangeType.UpdateBefore), int(ChangeType.UpdateAfter)] * 100
            assert kinds == [int(ChangeType.Insert), *updates, int(ChangeType.Insert)]
    lose_state(tmp_path / "data")
    async with a_table(tmp_path / "data", **options) as (server, table):
        assert await table.lookup(0, 1) == [(0, "x-0", 0.0), (1, "tail", None)]


async def test_credentials_do_not_reach_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    refuse = raising(OSError, "request signed with key-1 and secret-1 was refused")
    with caplog.at_level(logging.ERROR):
        keys = {"s3.access-key": "key-1", "s3.secret-key": "secret-1"}
        async with a_table(tmp_path / "data", **keys) as (server, table):
            await table.put([(1, "a", 1.0)])
            with mock.patch.object(RemoteFiles, "put", refuse):
                await take(server)
    assert "no snapshot of" in caplog.text
    assert "secret-1" not in caplog.text


def test_files_of_another_file_system(tmp_path: Path) -> None:
    """The same calls on any file system that pyarrow knows."""
    (tmp_path / "file").write_bytes(b"content" * 300_000)
    for name in ("local", "other"):
        files = RemoteFiles(f"file://{tmp_path}/{name}")
        if name == "other":
            files._filesystem = fs.LocalFileSystem()
        path = f"{files.root}/a/b"
        assert files.names(path) == []
        files.make_folder(path)
        if name == "other":
            (tmp_path / name / "a" / "b").mkdir(parents=True)  # an object store has no folders, this one does
        copied = files.put(tmp_path / "file", f"{path}/one")
        assert copied == (2_100_000, zlib.crc32(b"content" * 300_000))
        files.write(f"{path}/two", b"small")
        files.sync_folder(path)
        assert sorted(files.names(path)) == ["one", "two"]
        assert files.read(f"{path}/two") == b"small"
        assert files.get(f"{path}/one", tmp_path / "back") == copied
        assert (tmp_path / "back").read_bytes() == b"content" * 300_000
        files.remove_file(f"{path}/two")
        files.remove_file(f"{path}/two")
        with pytest.raises(FileNotFoundError):
            files.read(f"{path}/two")
        files.remove_folder(f"{files.root}/a")
        files.remove_folder(f"{files.root}/a")
        assert files.names(path) == []


async def test_a_moved_data_folder(tmp_path: Path, clock: FakeClock) -> None:
    """Snapshots name their files by full paths; a copy of the folder uses its own."""
    async with a_table(tmp_path / "old", clock=clock, properties=TTL) as (server, table):
        await table.put(rows(100))
        await expire_history(server, table, clock)
    (tmp_path / "old").rename(tmp_path / "new")
    lose_state(tmp_path / "new")
    async with a_table(tmp_path / "new", clock=clock) as (server, table):
        assert await table.lookup(*range(100)) == rows(100)
        (found,) = snapshots_of(server).snapshots
        assert all(file.path.startswith(f"{tmp_path}/new/") for file in found.files)
