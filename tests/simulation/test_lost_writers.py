# SPDX-License-Identifier: Apache-2.0
"""Writes that a failing disk stored, and whose writer the server no longer knows when they are repeated."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pyarrow as pa
import pytest
from tests.crash.reading import read_bucket
from tests.simulation.world import World

import fluss.aio as fluss
from fluss.errors import OutOfOrderSequenceError
from fluss.metadata import TableBucket

PATH, OTHER = fluss.TablePath("fluss", "t"), fluss.TablePath("fluss", "other")


async def evict_one_of_two(world: World) -> None:
    """Two writes are stored but not flushed; then the server starts again and knows the second writer only."""
    await world.start_server()
    async with await world.connect() as first, await world.connect() as second:
        columns = fluss.Schema(pa.schema([("id", pa.int64())]))
        for path in (PATH, OTHER):
            await first.get_admin().create_table(path, fluss.TableDescriptor(columns, bucket_count=1))
        for one in (first, second):
            await (await one.get_table(OTHER)).new_append().create_writer().append((0,)).wait()
        async with await world.connect(**{"writer.enable-idempotence": "false", "writer.acks": "1"}) as third:
            await (await third.get_table(PATH)).new_append().create_writer().append((0,)).wait()
        table = await first.get_table(PATH)
        writers = [one.new_append().create_writer() for one in (table, await second.get_table(PATH))]
        world.disk.failing = lambda kind: errno.EIO if kind in ("fsync", "truncate") else None
        writes = []
        for number, writer in enumerate(writers, 1):
            writes.append(writer.append((number,)))
            await asyncio.sleep(0.2)
        world.kill_server()
        world.mend_disk()
        await world.start_server()
        with pytest.raises(OutOfOrderSequenceError, match="no longer known"):
            await writes[0].wait()
        await writes[1].wait()
        bucket = TableBucket(table.get_table_info().table_id, 0)
        changes, _ = await read_bucket(first, PATH, bucket)
        assert sorted(change.row["id"] for change in changes) == [0, 1, 2]
    await world.stop_server()


def test_a_write_that_may_be_stored_is_not_repeated_under_a_new_id(tmp_path: Path) -> None:
    world = World(1, tmp_path)
    world.writers_max = 1
    world.run(evict_one_of_two)
