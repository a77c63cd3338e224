# SPDX-License-Identifier: Apache-2.0
"""Flushes that are cancelled, run out of time or fail for several tables: every error is raised, by a later flush."""

from __future__ import annotations

import asyncio

import pytest
from tests.client.support import closed

import fluss
import fluss.aio
from fluss.errors import StorageError

ROW = (1, "n", 0.5)


def fail_a_row(writer, what="lost"):
    getattr(writer, "_core", writer)._failures.add(1, "table t", StorageError(what))


async def outcome_after(flush, turns):
    """Cancel a flush after so many turns of the loop; what it raised is the result."""
    flushing = asyncio.ensure_future(flush)
    for _ in range(turns):
        await asyncio.sleep(0)
    flushing.cancel()
    await asyncio.wait((flushing,))
    return asyncio.CancelledError if flushing.cancelled() else type(flushing.exception())


@pytest.mark.parametrize("timeout", [None, 10])
async def test_a_flush_that_is_cancelled_at_any_moment_keeps_the_error(faced, timeout):
    writer = faced.new_append().create_writer()
    for turns in range(12):
        fail_a_row(writer)
        if await outcome_after(writer.flush(timeout=timeout), turns) is asyncio.CancelledError:
            await asyncio.sleep(0.01)
            with pytest.raises(StorageError, match="lost"):
                await writer.flush()
        await writer.flush()


@pytest.mark.parametrize("ending", ["cancelled", "late"])
async def test_a_flush_of_all_writers_that_ends_early_keeps_the_error(conn, table, ending):
    failed, slow = (table.new_append().create_writer() for _ in range(2))
    fail_a_row(failed)
    slow._in_flight.add(-1)
    if ending == "late":
        with pytest.raises(fluss.DeadlineExceededError):
            await conn.flush(timeout=0.05)
    else:
        assert await outcome_after(conn.flush(), 10) is asyncio.CancelledError
    slow._in_flight.clear()
    with pytest.raises(StorageError, match="lost"):
        await conn.flush()
    await conn.flush()


async def test_a_flush_of_all_writers_waits_for_earlier_rows_only(conn, writer):
    """Rows that are written while it waits may keep a bucket busy for good."""

    async def write_on() -> None:
        while True:
            await writer.append(ROW)

    writing = [asyncio.ensure_future(write_on()) for _ in range(8)]
    try:
        await asyncio.sleep(0.05)
        await conn.flush(timeout=10)
    finally:
        for task in writing:
            task.cancel()
        await asyncio.wait(writing)


async def test_writers_that_fail_together_are_reported_one_after_the_other(conn, table):
    writers = [table.new_append().create_writer() for _ in range(2)]
    for number, writer in enumerate(writers):
        fail_a_row(writer, f"lost {number}")
    raised = set()
    for _ in writers:
        with pytest.raises(StorageError) as caught:
            await conn.flush()
        raised.add(caught.value.message[-6:])
    assert raised == {"lost 0", "lost 1"}
    await conn.flush()


async def test_a_flush_of_a_writer_to_many_tables_keeps_errors(conn, table, config, database, face):
    connection = await face.FlussConnection.create(config)
    writer = connection.get_multi_table().new_multi_table_write().create_writer()
    for name in ("t", "other"):
        if name == "other":
            info = table.get_table_info()
            other = fluss.TablePath(database, name)
            await conn.get_admin().create_table(other, fluss.TableDescriptor(info.get_schema(), bucket_count=1))
        appended = writer.append(f"{database}.{name}", ROW)
        if face is fluss.aio:
            await appended
    await writer.flush()
    core = getattr(writer, "_core", writer)
    first, second = core._writers.values()
    for turns in range(12):
        fail_a_row(first)
        if await outcome_after(writer.flush(), turns) is asyncio.CancelledError:
            await asyncio.sleep(0.01)
            with pytest.raises(StorageError, match="lost"):
                await writer.flush()
        await writer.flush()
    fail_a_row(first)
    fail_a_row(second)
    for _ in range(2):
        with pytest.raises(StorageError, match="lost"):
            await writer.flush()
    await writer.flush()
    await closed(connection)
