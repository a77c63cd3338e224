# SPDX-License-Identifier: Apache-2.0
"""A data folder with a bit of everything, what must be read from it, and ways to damage a file of it."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.crash.reading import Change, Row, replay

import fluss.aio as fluss
from fluss.metadata import Column, DataTypes, PartitionSpec, Schema, TableBucket, TableDescriptor
from fluss.records.log_batch import iter_log_batches
from fluss.server.server import Server

DATABASE = "damage"
ROWS = 240
PARTS = ("east", "west")

OPTIONS: dict[str, object] = {
    "bind.listeners": "FLUSS://127.0.0.1:0",
    "log.segment.file-size": "6kb",
    "log.index.interval-size": "500b",
    "log.recovery-point.interval-size": "4kb",
    "kv.memory-size": "4kb",
}


@contextlib.asynccontextmanager
async def served(folder: Path, **options: object) -> AsyncIterator[tuple[Server, fluss.FlussConnection]]:
    """A server in this process on the folder, and a client of it."""
    remote = {"remote.data.dir": str(folder / "remote"), "remote.log.task-interval-duration": "1h"}
    server = Server({**OPTIONS, **remote, **options, "data.dir": str(folder)})
    await server.start()
    try:
        endpoint = server.advertised_endpoint(next(iter(server.listeners)))
        config = fluss.Config({"bootstrap.servers": f"{endpoint.host}:{endpoint.port}", "request-timeout": 10_000})
        async with await fluss.FlussConnection.create(config) as connection:
            yield server, connection
    finally:
        await server.stop()


@dataclass(frozen=True)
class Place:
    """A bucket of a table under names that stay the same: ids may become unknown through damage."""

    table: str
    partition: str | None
    bucket: int
    folder: str
    """Of its log, below the data folder."""

    @property
    def path(self) -> fluss.TablePath:
        return fluss.TablePath(DATABASE, self.table)


@dataclass
class Contents:
    """What the folder holds."""

    logs: dict[Place, list[Change]] = field(default_factory=dict)
    states: dict[Place, dict[Any, Row]] = field(default_factory=dict)
    table_ids: dict[str, int] = field(default_factory=dict)
    partition_ids: dict[str, int] = field(default_factory=dict)

    def bucket(self, place: Place) -> TableBucket:
        table_id = self.table_ids[place.table]
        if place.partition is None:
            return TableBucket(table_id, place.bucket)
        return TableBucket.with_partition(table_id, self.partition_ids[place.partition], place.bucket)


async def fill(folder: Path, crashed: Path) -> Contents:
    """Make a folder that was stopped cleanly, and a copy as a crash would have left it."""
    async with served(folder, **{"remote.log.task-interval-duration": "200ms"}) as (server, connection):
        admin = connection.get_admin()
        await admin.create_database(DATABASE)
        await _events(connection, admin)
        await _parted(connection, admin)
        await _keyed(connection, admin)
        await _numbered(connection, admin)
        await _far(connection, admin)
        await admin.alter_cluster_configs({"kv.snapshot.interval": "11min"})
        contents = await _contents(admin, folder)
        await admin.register_producer_offsets("producer", {contents.bucket(p): 1 for p in list(contents.logs)[:2]})
        for place in contents.logs:
            contents.logs[place] = await read_all(connection, place.path, contents.bucket(place))
        for place in contents.states:
            contents.states[place] = replay(place.path, "k", contents.logs[place])
        far = next(tablet for tablet in server.tablets if tablet.bucket.table_id == contents.table_ids["far"])
        for _ in range(200):
            if far.remote is not None and far.remote.end_offset > 0 and far.start_offset > 0:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("nothing was moved to the remote log")
        await asyncio.sleep(0.3)
        shutil.copytree(folder, crashed)
    return contents


async def _contents(admin: Any, folder: Path) -> Contents:
    contents = Contents()
    for name in sorted(await admin.list_tables(DATABASE)):
        info = await admin.get_table_info(fluss.TablePath(DATABASE, name))
        contents.table_ids[name] = info.table_id
        parts: list[str | None] = [None]
        if info.is_partitioned():
            infos = await admin.list_partition_infos(info.table_path)
            contents.partition_ids |= {p.partition_name: p.partition_id for p in infos}
            parts = [p.partition_name for p in infos]
        for part in parts:
            for bucket in range(info.num_buckets):
                place = _place(folder, info, part, contents.partition_ids, bucket)
                contents.logs[place] = []
                if info.has_primary_key():
                    contents.states[place] = {}
    return contents


def _place(folder: Path, info: Any, part: str | None, ids: dict[str, int], bucket: int) -> Place:
    name = info.table_path.table_name
    relative = f"tables/{DATABASE}/{name}-{info.table_id}"
    if part is not None:
        relative += f"/{part}-p{ids[part]}"
    relative += f"/log-{bucket}"
    assert (folder / relative).is_dir(), relative
    return Place(name, part, bucket, relative)


async def read_all(
    connection: fluss.FlussConnection, path: fluss.TablePath, bucket: TableBucket, into: list[Change] | None = None
) -> list[Change]:
    """All records of a bucket. What was read before an error is left in `into`."""
    changes = into if into is not None else []
    table = await connection.get_table(path)
    async for batch in table.new_scan().read_batches({bucket: 0}):
        kinds = batch.change_types or bytes(batch.num_records)
        for number, (row, kind) in enumerate(zip(batch.batch.to_pylist(), kinds)):
            changes.append(Change(batch.base_offset + number, fluss.ChangeType(kind), row))
    return changes


async def _append(connection: fluss.FlussConnection, name: str, rows: list[dict[str, Any]], step: int = 12) -> None:
    table = await connection.get_table(fluss.TablePath(DATABASE, name))
    writer = table.new_append().create_writer()
    for at in range(0, len(rows), step):
        for row in rows[at : at + step]:
            writer.append(row)
        await writer.flush()


async def _events(connection: fluss.FlussConnection, admin: Any) -> None:
    """A log table of several segments, whose second half has one more column."""
    path = fluss.TablePath(DATABASE, "events")
    schema = Schema(pa.schema([("id", pa.int64()), ("text", pa.string())]))
    await admin.create_table(path, TableDescriptor(schema, bucket_count=2))
    half = ROWS // 2
    await _append(connection, "events", [{"id": i, "text": f"{i}" * (i % 9)} for i in range(half)])
    await admin.alter_table(path, add_columns={"more": pa.int32()})
    await _append(connection, "events", [{"id": i, "text": f"{i}", "more": -i} for i in range(half, ROWS)])


async def _parted(connection: fluss.FlussConnection, admin: Any) -> None:
    path = fluss.TablePath(DATABASE, "parted")
    schema = Schema(pa.schema([("id", pa.int64()), ("part", pa.string())]))
    await admin.create_table(path, TableDescriptor(schema, partition_keys=["part"], bucket_count=1))
    for part in PARTS:
        await admin.create_partition(path, PartitionSpec({"part": part}))
    await _append(connection, "parted", [{"id": i, "part": PARTS[i % 2]} for i in range(ROWS // 2)])


async def _keyed(connection: fluss.FlussConnection, admin: Any) -> None:
    path = fluss.TablePath(DATABASE, "keyed")
    schema = Schema(pa.schema([("k", pa.int32()), ("text", pa.string())]), primary_keys=["k"])
    await admin.create_table(path, TableDescriptor(schema, bucket_count=2))
    writer = (await connection.get_table(path)).new_upsert().create_writer()
    for number in range(ROWS):
        key = number * 7 % 90
        if number % 11 == 10:
            writer.delete({"k": key})
        else:
            writer.upsert({"k": key, "text": f"{number}" * (number % 7)})
        if number % 12 == 11:
            await writer.flush()
    await writer.flush()


async def _numbered(connection: fluss.FlussConnection, admin: Any) -> None:
    """A primary-key table whose rows get numbers from the server."""
    path = fluss.TablePath(DATABASE, "numbered")
    columns = [Column("k", DataTypes.int().with_nullable(False)), Column("n", DataTypes.bigint())]
    columns.append(Column("text", DataTypes.string()))
    schema = Schema.of(columns, primary_key=("k",), auto_increment_columns=("n",))
    await admin.create_table(path, TableDescriptor(schema, bucket_count=1))
    table = await connection.get_table(path)
    writer = table.new_upsert().partial_update_by_name(["k", "text"]).create_writer()
    for number in range(60):
        writer.upsert({"k": number % 40, "text": f"t{number}"})
    await writer.flush()


async def _far(connection: fluss.FlussConnection, admin: Any) -> None:
    """A log table whose old segments are in the remote log only."""
    path = fluss.TablePath(DATABASE, "far")
    schema = Schema(pa.schema([("id", pa.int64()), ("text", pa.string())]))
    properties = {"table.log.tiered.local-segments": "1"}
    await admin.create_table(path, TableDescriptor(schema, bucket_count=1, properties=properties))
    await _append(connection, "far", [{"id": i, "text": f"far {i}" * 5} for i in range(ROWS)])


# Damage ---------------------------------------------------------------------------------------------------------------

_KINDS = (
    ("bucket register", r"catalog/tables/\d+/buckets"),
    ("lock file", r"\.lock"),
    ("clean marker", r"\.clean-shutdown"),
    ("clock", r"\.clock"),
    ("counters", r"catalog/counters\.doc(\.prev)?"),
    ("configs", r"catalog/configs\.doc(\.prev)?"),
    ("producer", r"catalog/producers/.*"),
    ("other catalog document", r"catalog/[a-z-]+\.doc(\.prev)?"),
    ("database", r"catalog/databases/.*\.doc"),
    ("table", r"catalog/tables/\d+/table\.doc"),
    ("previous document", r"catalog/.*\.prev"),
    ("partition", r"catalog/tables/\d+/partitions/.*\.doc"),
    ("log segment", r"tables/.*/log-\d+/\d+\.log"),
    ("offset index", r"tables/.*/log-\d+/\d+\.index"),
    ("time index", r"tables/.*/log-\d+/\d+\.timeindex"),
    ("index check", r"tables/.*/log-\d+/\d+\.indexcheck"),
    ("writer snapshot", r"tables/.*/log-\d+/\d+\.writer_snapshot"),
    ("recovery point", r"tables/.*/log-\d+/recovery-point"),
    ("committed mark", r"tables/.*/log-\d+/committed"),
    ("remote reference", r"tables/.*/log-\d+/[a-z-]*remote[a-z-]*"),
    ("numbers", r"tables/.*/auto-increment"),
    ("rows by key", r"tables/.*/kv-\d+/.*\.sst"),
    ("store file", r"tables/.*/kv-\d+/.*"),
    ("remote log segment", r"remote/.*\.log"),
    ("remote file", r"remote/.*"),
)


def kind_of(relative: str) -> str:
    for kind, pattern in _KINDS:
        if re.fullmatch(pattern, relative):
            return kind
    raise AssertionError(f"'{relative}' is a kind of file that the damage tests do not know; add it")


def files_by_kind(folder: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        relative = file.relative_to(folder).as_posix()
        found.setdefault(kind_of(relative), []).append(relative)
    return found


def _batch_starts(data: bytearray) -> list[int]:
    starts = [0]
    for batch in iter_log_batches(memoryview(data)):
        starts.append(starts[-1] + batch.header.size_bytes)
    return starts[:-1] or [0]


def damage(file: Path, randomness: random.Random) -> str:
    """Change the bytes of a file; says how."""
    data = bytearray(file.read_bytes())
    size = len(data)
    how = randomness.choice(("flip", "flip", "flip", "cut end", "cut out", "zeros", "garbage", "empty"))
    if size == 0:
        how = "garbage"
    at = randomness.randrange(size) if size else 0
    # Small things at both ends of a file matter as much as all that lies between.
    if size and randomness.random() < 0.3:
        at = randomness.choice((min(at, 15), max(size - 1 - at % 16, 0)))
    if file.suffix == ".log" and how in ("flip", "zeros") and randomness.random() < 0.4:
        # Batches are mostly contents; what tells where a batch belongs is a few bytes before each.
        at = randomness.choice(_batch_starts(data)) + randomness.randrange(50)
        at = min(at, size - 1)
    if how == "flip":
        data[at] ^= randomness.randint(1, 255)
        text = f"flipped byte {at} of {size}"
    elif how == "cut end":
        del data[at:]
        text = f"cut at byte {at} of {size}"
    elif how == "cut out":
        count = randomness.randint(1, max(1, min(100, size - at)))
        del data[at : at + count]
        text = f"cut {count} bytes out at {at} of {size}"
    elif how == "zeros":
        count = min(size - at, randomness.randint(1, 512))
        data[at : at + count] = bytes(count)
        text = f"wrote {count} zeros at {at} of {size}"
    elif how == "garbage":
        data += randomness.randbytes(randomness.randint(1, 100))
        text = f"added {len(data) - size} bytes to {size}"
    else:
        data.clear()
        text = f"emptied, had {size} bytes"
    if file.stat().st_nlink > 1:
        file.unlink()  # a document and the version before it may be one file
    file.write_bytes(data)
    return text
