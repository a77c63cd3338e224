# SPDX-License-Identifier: Apache-2.0
"""Files of a state that are removed under a running server: it is a cache, and is made again from the log."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from tests.server.log_support import running_server

import fluss.aio as fluss
from fluss.metadata import BigIntType, Column, Schema, StringType, TableDescriptor, TablePath
from fluss.server.server import Server

PATH = TablePath("fluss", "t")
SCHEMA = Schema.of([Column("k", BigIntType(nullable=False)), Column("text", StringType())], primary_key=("k",))
KEYS = 200
OPTIONS = {"kv_memory__size": "64kb", "kv_snapshot_interval": "1h"}


async def connect(server: Server) -> fluss.FlussConnection:
    return await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": server.listeners["FLUSS"].address}))


async def write(table: fluss.FlussTable, keys: range, text: str) -> None:
    async with table.new_upsert().create_writer() as writer:
        for key in keys:
            writer.upsert((key, text))


def remove_states(data: Path) -> None:
    found = list(data.glob("tables/fluss/*/kv-0"))
    assert found
    for folder in found:
        shutil.rmtree(folder)


async def spilled(server: Server, after: int) -> None:
    """Wait until more rows went to disk."""
    (tablet,) = server.kv.open_tablets
    for _ in range(200):
        if tablet.store._spilled_offset > after and not tablet.store.is_spilling:
            return
        await asyncio.sleep(0.05)
    pytest.fail("the rows did not go to disk")


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_state_whose_files_are_removed_is_made_again(tmp_path: Path, restarted: bool) -> None:
    """Whether the process that writes had them open, or begins to write after they were removed."""
    data = tmp_path / "data"
    async with running_server(data, **OPTIONS) as server, await connect(server) as connection:
        await connection.get_admin().create_table(PATH, TableDescriptor(SCHEMA, bucket_count=1))
        await write(await connection.get_table(PATH), range(KEYS), "a" * 500)
        await spilled(server, 0)
        if not restarted:
            await go_on(server, connection, data)
    if restarted:
        async with running_server(data, **OPTIONS) as server, await connect(server) as connection:
            await go_on(server, connection, data)


async def go_on(server: Server, connection: fluss.FlussConnection, data: Path) -> None:
    table = await connection.get_table(PATH)
    lookuper = table.new_lookup().create_lookuper()
    assert await lookuper.lookup((0,)) is not None
    remove_states(data)
    for number in range(3):
        await asyncio.wait_for(write(table, range(KEYS // 2, KEYS), str(number) * 1000), 30)
    (tablet,) = server.kv.open_tablets
    await spilled(server, tablet.log.high_watermark - KEYS)
    found = [await lookuper.lookup((key,)) for key in range(KEYS)]
    assert [row["text"][0] if row else None for row in found] == ["a"] * (KEYS // 2) + ["2"] * (KEYS // 2)
