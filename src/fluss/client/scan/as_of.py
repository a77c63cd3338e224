# SPDX-License-Identifier: Apache-2.0
"""The rows of primary-key buckets as of an offset of their changelogs.

A server lists the rows of a bucket as they are when the list begins, and reports the offset of that moment. The changes
between it and the wanted offset are then applied to the list: forward with the last image of each key, backward with
the image that the first change of a key replaced. So all buckets show the table at one moment, and a read that is
repeated gives the same rows.

The plan of a scan must have the columns of the primary key, and no filter and no limit.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import array_of
from fluss.client.fanout import run_all
from fluss.client.scan.batch_scanner import BatchScanner
from fluss.client.scan.fold import fold_changelog
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch
from fluss.errors import InvalidArgumentError
from fluss.metadata import ChangeType, OffsetSpec, TableBucket, TableInfo
from fluss.rows import kv_key_encoder

CURSORS_MAX = 64
"""Buckets that are listed at the same time. Servers limit how many lists they keep open."""
_BATCHES_AHEAD = 8
"""Batches that are read before the caller asks for them."""


async def rows_as_of(plan: ScanPlan, bucket: TableBucket, offset: int) -> AsyncGenerator[RecordBatch, None]:
    """The rows of one bucket after all changes below an offset, which is not after the end of the changelog now."""
    rows = _ListedRows(plan, bucket)
    try:
        await rows.begin()
        # Without an offset from the server, the list began before this one.
        listed = rows.offset if rows.offset is not None else (await plan.offsets([bucket], OffsetSpec.latest()))[bucket]
        changes = await _changes(plan, {bucket: (listed, offset)})
        async with contextlib.aclosing(_applied(rows.batches(), changes)) as found:
            async for batch in found:
                yield batch
    finally:
        await rows.close()


async def current_rows(
    plan: ScanPlan, buckets: Sequence[TableBucket], offsets: dict[TableBucket, int] | None = None
) -> AsyncGenerator[RecordBatch, None]:
    """The rows of buckets at one moment after the call, which all of them have in common.

    Args:
        plan: The columns to read.
        buckets: Which buckets.
        offsets: Takes the offsets of that moment, before the first batch comes: the changes from there on are later.
    """
    # Without an offset from the server, the list began after this one. Applying changes from before that does no harm,
    # for only the last change of a key counts.
    before = await plan.offsets(buckets, OffsetSpec.latest())
    lists = [_ListedRows(plan, bucket) for bucket in buckets]
    try:
        if len(lists) <= CURSORS_MAX:
            await run_all([one.begin for one in lists], CURSORS_MAX)
        else:
            # More than a server may keep open: they are read to their ends, a few at a time, before the ends are
            # pinned. What is kept in memory is the table, as far as it is wanted.
            await run_all([one.read_all for one in lists], CURSORS_MAX)
        ends = await plan.offsets(buckets, OffsetSpec.latest())
        if offsets is not None:
            offsets.update(ends)
        listed = {one.bucket: before[one.bucket] if one.offset is None else one.offset for one in lists}
        changes = await _changes(plan, {bucket: (start, ends[bucket]) for bucket, start in listed.items()})
        async with contextlib.aclosing(_applied(merged([one.batches() for one in lists]), changes)) as found:
            async for batch in found:
                yield batch
    finally:
        for one in lists:
            await one.close()


class _ListedRows:
    """The rows of one bucket, as the server lists them."""

    def __init__(self, plan: ScanPlan, bucket: TableBucket) -> None:
        self._scanner = BatchScanner(plan, bucket)
        self._ready: list[RecordBatch] = []
        self._ended = False

    @property
    def bucket(self) -> TableBucket:
        return self._scanner.bucket

    @property
    def offset(self) -> int | None:
        """The end of the changelog that the rows stand for; None where the server does not report it."""
        return self._scanner.log_offset

    async def begin(self) -> None:
        """Open the list: from now on its rows do not change."""
        first = await self._scanner.next_batch()
        if first is None:
            self._ended = True
        else:
            self._ready.append(first)

    async def read_all(self) -> None:
        self._ready = await self._scanner.collect_all_batches()
        self._ended = True

    async def batches(self) -> AsyncGenerator[RecordBatch, None]:
        while self._ready:
            yield self._ready.pop(0)
        while not self._ended:
            found = await self._scanner.next_batch()
            if found is None:
                return
            yield found

    async def close(self) -> None:
        await self._scanner.close()


class _BucketChanges:
    """The keys of one bucket that changed between two offsets, and their rows as of the wanted one."""

    def __init__(self, info: TableInfo, found: Sequence[RecordBatch], *, forward: bool) -> None:
        self._encoder = kv_key_encoder(info)
        self._names = list(info.physical_primary_key)
        schema = found[0].batch.schema
        if forward:
            self._keys = {key for part in found for key in self._keys_of(part.batch)}
            self.rows = fold_changelog(found, [schema.names.index(name) for name in self._names], schema)
        else:
            self._keys = set()
            parts = [part.batch.take(array_of(self._replaced(part, info))) for part in found]
            self.rows = pa.Table.from_batches(parts, schema)

    def _replaced(self, part: RecordBatch, info: TableInfo) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where the rows are that the first changes of keys replaced or deleted."""
        at = []
        changes = part.change_types or bytes(part.num_records)
        for position, key in enumerate(self._keys_of(part.batch)):
            if key in self._keys:
                continue
            self._keys.add(key)
            if changes[position] in (ChangeType.UpdateBefore, ChangeType.Delete):
                at.append(position)
            elif changes[position] != ChangeType.Insert:
                raise InvalidArgumentError(
                    "its changelog has no images before updates (table.changelog.image), so its rows cannot be read as "
                    "of one moment",
                    table=info.table_path,
                    hint="read the current ones; in Spark, set the option read.optimized to true",
                )
        return np.array(at, np.int64)

    def _keys_of(self, batch: pa.RecordBatch) -> list[bytes]:
        return self._encoder.encode_columns([batch.column(name) for name in self._names]).to_list()

    def without(self, rows: RecordBatch) -> RecordBatch:
        """The rows of a list whose keys did not change."""
        kept = rows.batch.filter(pa.array([key not in self._keys for key in self._keys_of(rows.batch)], pa.bool_()))
        return RecordBatch(kept, rows.bucket, rows.base_offset, rows.base_offset + kept.num_rows - 1)


async def _changes(plan: ScanPlan, ranges: Mapping[TableBucket, tuple[int, int]]) -> dict[TableBucket, _BucketChanges]:
    """What to apply to lists of buckets at one offset to have them as of another, where anything changed."""
    starts = {bucket: min(pair) for bucket, pair in ranges.items() if pair[0] != pair[1]}
    if not starts:
        return {}
    stops = {bucket: max(ranges[bucket]) for bucket in starts}
    found: dict[TableBucket, list[RecordBatch]] = {}
    async with contextlib.aclosing(plan.read(starts, stops)) as batches:
        async for batch in batches:
            if batch.num_records:
                found.setdefault(batch.bucket, []).append(batch)
    return {
        bucket: _BucketChanges(plan.info, parts, forward=ranges[bucket][0] < ranges[bucket][1])
        for bucket, parts in found.items()
    }


async def _applied(
    batches: AsyncGenerator[RecordBatch, None], changes: Mapping[TableBucket, _BucketChanges]
) -> AsyncGenerator[RecordBatch, None]:
    async with contextlib.aclosing(batches):
        async for found in batches:
            change = changes.get(found.bucket)
            yield found if change is None else change.without(found)
    for bucket, change in changes.items():
        for batch in change.rows.to_batches():
            yield RecordBatch(batch, bucket, 0, batch.num_rows - 1)


async def merged(sources: Sequence[AsyncGenerator[Any, None]], at_once: int | None = None) -> AsyncGenerator[Any, None]:
    """The items of several generators as they come, all or so many of which run at the same time."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for item in only:
                yield item
        return
    ready: asyncio.Queue[tuple[Any, BaseException | None, bool]] = asyncio.Queue()
    room = asyncio.Semaphore(_BATCHES_AHEAD)
    slots = asyncio.Semaphore(at_once or len(sources))

    async def drain(source: AsyncGenerator[Any, None]) -> None:
        # Only items wait for room. A source that has ended is reported at once: its task may have been cancelled,
        # and the reader may never take anything more.
        try:
            async with slots, contextlib.aclosing(source):
                async for item in source:
                    await room.acquire()
                    ready.put_nowait((item, None, False))
        except BaseException as error:
            ready.put_nowait((None, error, True))
            if not isinstance(error, Exception):
                raise
        else:
            ready.put_nowait((None, None, True))

    tasks = [asyncio.ensure_future(drain(source)) for source in sources]
    running = len(tasks)
    try:
        while running:
            item, error, ended = await ready.get()
            if error is not None:
                raise error
            if ended:
                running -= 1
            else:
                room.release()
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
