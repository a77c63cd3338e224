# SPDX-License-Identifier: Apache-2.0
"""A table whose partitions come and go for months: nothing is kept of those that are gone."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from tests.server.log_support import running_server

import fluss.aio as fluss
from fluss.metadata import BigIntType, Column, Schema, StringType, TableBucket, TableDescriptor, TablePath
from fluss.server.kv.sequence import FILE_NAME
from fluss.server.server import Server
from fluss.server.tablets import REGISTER_NAME

PATH = TablePath("fluss", "t")
NUMBERED = Schema.of(
    [
        Column("name", StringType(nullable=False)),
        Column("dt", StringType(nullable=False)),
        Column("number", BigIntType()),
    ],
    primary_key=("name", "dt"),
    auto_increment_columns=("number",),
)


async def connect(server: Server) -> fluss.FlussConnection:
    return await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": server.listeners["FLUSS"].address}))


async def come_and_go(connection: fluss.FlussConnection, first: int, count: int) -> None:
    """Write to so many partitions, and drop all but the last."""
    admin, table = connection.get_admin(), await connection.get_table(PATH)
    for number in range(first, first + count):
        await admin.create_partition(PATH, {"dt": f"d{number}"})
        async with table.new_upsert().partial_update_by_name(["name", "dt"]).create_writer() as writer:
            for name in "abc":
                writer.upsert({"name": name, "dt": f"d{number}"})
        if number:
            await admin.drop_partition(PATH, {"dt": f"d{number - 1}"})


def registered(server: Server) -> set[int | None]:
    """The partitions of the buckets that are known to have files."""
    return {bucket.partition_id for bucket in server.tablets._register.buckets()}


async def test_a_server_keeps_nothing_of_dropped_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.server.tablets._GONE_MIN", 10)
    data = tmp_path / "data"

    async with running_server(data) as server, await connect(server) as connection:
        descriptor = TableDescriptor(NUMBERED, partition_keys=["dt"], bucket_count=2)
        await connection.get_admin().create_table(PATH, descriptor)
        await come_and_go(connection, 0, 30)
        tablets, kv = server.tablets, server.kv
        assert registered(server) == {29}
        assert {log.bucket.partition_id for log in tablets} == {29}
        assert {key[1] for key in tablets._parents} == {29}
        assert {bucket.partition_id for bucket in kv.snapshotter._buckets} == {29}
        assert len(kv.open_tablets) <= 2
        entry = server.catalog.table(PATH)
        numbers = json.loads((tablets.folder(entry) / FILE_NAME).read_bytes().partition(b"\n")[0])
        assert {place.partition("/")[0] for place in numbers["blocks"]} <= {"28", "29"}
        # Of a partition without a log only the snapshots were asked for.
        await connection.get_admin().create_partition(PATH, {"dt": "empty"})
        server.kv.snapshotter.of(entry, TableBucket(entry.table_id, 0, 30))
        await connection.get_admin().drop_partition(PATH, {"dt": "empty"})
        assert {key[1] for key in tablets._parents} == {29}
        file = data / "catalog" / "tables" / str(entry.table_id) / REGISTER_NAME
        assert len(file.read_bytes()) > 16 * 30
    async with running_server(data) as server, await connect(server) as connection:
        assert registered(server) == {29}
        assert len(file.read_bytes()) == 16 * len(list(server.tablets._register.buckets()))
        await come_and_go(connection, 30, 2)
        known = registered(server)
    async with running_server(data) as server:
        assert registered(server) == known
        assert server.damaged_bucket_count == 0


async def test_tables_dropped_during_a_spill_leave_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Neither files nor errors, and the rows of other tables go to disk without a pause."""
    data = tmp_path / "data"
    options = {"kv_memory__size": "64kb", "kv_snapshot_interval": "100ms", "log_retention_check__interval": "100ms"}
    schema = Schema.of([Column("k", BigIntType(nullable=False)), Column("text", StringType())], primary_key=("k",))

    async with running_server(data, **options) as server, await connect(server) as connection:
        admin = connection.get_admin()
        for number in range(10):
            await admin.create_table(PATH, TableDescriptor(schema, bucket_count=2))
            async with (await connection.get_table(PATH)).new_upsert().create_writer() as writer:
                for key in range(1500):
                    writer.upsert((key, "x" * 100))
            await asyncio.sleep(number * 0.003)
            await admin.drop_table(PATH)
            assert server.kv.budget._retry is None

        folders = data / "tables" / "fluss", data / "remote" / "kv" / "fluss"
        for _ in range(200):
            left = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
            if not left:
                break
            await asyncio.sleep(0.05)
        assert left == []
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == []
