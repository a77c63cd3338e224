# SPDX-License-Identifier: Apache-2.0
"""Changes that are written and not committed: writes build on them, lookups do not see them, a cut removes them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest
from tests.server.kv.support import SCHEMA, Bucket, Row, kv_batch, opened, table
from tests.waiting import wait_until

from fluss.errors import StorageBackpressureError, UnknownServerError
from fluss.server.kv import budget as budget_module
from fluss.server.kv.ordered import DamagedStoreError
from fluss.server.kv.prepare import Preparation, Write
from fluss.server.log.appends import AppendResult

A, B, C = (1, "a", 1.0), (1, "b", 2.0), (2, "c", None)


@asynccontextmanager
async def without_commits(bucket: Bucket) -> AsyncIterator[None]:
    """Hold group commit back, as a slow disk does."""
    loop, bucket.committer._loop = bucket.committer._loop, None
    try:
        yield
    finally:
        bucket.committer._loop = loop
        bucket.committer.start()


async def write(bucket: Bucket, *rows: Row) -> int:
    """Write rows; returns the end of the changelog, which is not committed yet."""
    data = kv_batch(bucket.entry.table_info, SCHEMA, bucket.entry.table_info.schema_id, rows)
    return (await bucket.tablet.put(memoryview(data), (), 0)).end_offset


async def test_lookups_see_rows_once_they_are_committed(bucket: Bucket) -> None:
    await bucket.put([A])
    async with without_commits(bucket):
        end = await write(bucket, B, C)
        assert await bucket.get(1) == A
        assert await bucket.get(2) is None
    await bucket.log.committed(end)
    assert (await bucket.get(1), await bucket.get(2)) == (B, C)


async def test_writes_see_the_changes_in_flight_before_them(bucket: Bucket) -> None:
    async with without_commits(bucket):
        await write(bucket, A)
        end = await write(bucket, B)
    await bucket.log.committed(end)
    assert bucket.changelog() == [("+I", A), ("-U", A), ("+U", B)]
    assert await bucket.get(1) == B
    assert bucket.store.row_count == 1


async def test_changes_that_the_log_lost_are_gone(bucket: Bucket) -> None:
    """A flush that fails cuts the log: what was in flight is neither served nor built upon."""
    async with without_commits(bucket):
        await write(bucket, A)
        bucket.log.fail(OSError("the disk is gone"))
        await wait_until(lambda: bucket.log.failure is None)
    await bucket.put([C])
    assert await bucket.get(1) is None
    assert await bucket.rows() == [C]
    await bucket.put([B])
    assert bucket.changelog() == [("+I", C), ("+I", B)]
    assert bucket.store.row_count == 2


async def test_a_rebuild_that_failed_takes_no_changes(bucket: Bucket) -> None:
    """What was in flight is not the whole state: with it alone, the store would pass for one that has all rows."""
    await bucket.put([A])
    async with without_commits(bucket):
        end = await write(bucket, C)
        bucket.tablet.damaged(DamagedStoreError("said so"))
        bucket.log.start_offset = 1
        with pytest.raises(UnknownServerError, match="cannot be rebuilt"):
            await bucket.rows()
    await bucket.log.committed(end)
    assert bucket.store.applied_offset == 0
    bucket.log.start_offset = 0
    assert await bucket.rows() == [A, C]


async def test_a_repeated_write_whose_first_copy_the_log_lost_is_written_again(bucket: Bucket) -> None:
    """The repeated one was found to be one before the log was cut, and its answer came after that."""
    info = bucket.entry.table_info
    data = kv_batch(info, SCHEMA, info.schema_id, [A], writer_id=7, sequence=0)
    async with without_commits(bucket):
        await bucket.tablet.put(memoryview(data), (), 0)
        preparer = bucket.tablet._preparers.memory
        prepare = preparer.prepare

        async def slowly(write: Write) -> Preparation:
            prepared = await prepare(write)
            if isinstance(prepared, AppendResult):
                bucket.log.fail(OSError("the disk is gone"))
                await wait_until(lambda: bucket.log.failure is None)
            return prepared

        bucket.tablet._preparers.memory.prepare = slowly  # type: ignore[assignment, method-assign]
        await bucket.tablet.put(memoryview(data), (), 0)
    await bucket.put([C])
    assert await bucket.rows() == [A, C]


async def test_changes_in_flight_count_as_memory(tmp_path: Path) -> None:
    """Clients that do not wait for the commit go on while the disk hangs."""
    rows = [(number, "x" * 1000, None) for number in range(100)]
    async with opened(tmp_path, table(), memory_bytes=20_000) as bucket:

        async def write_all() -> None:
            for row in rows:
                await write(bucket, row)

        async with without_commits(bucket):
            impatient = mock.patch.object(budget_module, "_WAIT_SECONDS_MAX", 0.01)
            with impatient, pytest.raises(StorageBackpressureError, match="of 20000 bytes of memory"):
                await write_all()
            assert 10 < bucket.log.end_offset < 20
        await bucket.log.committed(bucket.log.end_offset)
        assert bucket.budget.uncommitted_bytes == 0
        await bucket.put([C])
        assert (await bucket.get(0), await bucket.get(2), await bucket.get(50)) == (rows[0], C, None)


@pytest.mark.parametrize("how", ["cut", "closed", "rebuilt"])
async def test_changes_in_flight_that_are_not_needed_free_their_memory(bucket: Bucket, how: str) -> None:
    await bucket.put([A])
    async with without_commits(bucket):
        end = await write(bucket, C)
        assert bucket.budget.uncommitted_bytes > 0
        if how == "cut":
            bucket.log.fail(OSError("the disk is gone"))
            await wait_until(lambda: bucket.log.failure is None)
        elif how == "closed":
            bucket.tablet.close(keep=False)
        else:
            bucket.log.start_offset = 1
            bucket.tablet.damaged(DamagedStoreError("said so"))
            with pytest.raises(UnknownServerError, match="cannot be rebuilt"):
                await bucket.rows()
    if how == "rebuilt":
        await bucket.log.committed(end)
    assert bucket.budget.uncommitted_bytes == 0
