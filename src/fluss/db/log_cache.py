# SPDX-License-Identifier: Apache-2.0
"""Columns of log tables that SQL has read, kept for the next query.

A log never changes below its end, so what was read of it once is still right: a query asks the server where each bucket
begins and ends now, takes from memory what it has, and reads the rest. Without this, a query over a table costs the
transfer and the decompression of its columns each time, which is several times what DuckDB then does with them.

The cache belongs to one event loop, and so needs no lock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from fluss.client.scan.plan import ScanPlan
from fluss.metadata import OffsetSpec, TableBucket

if TYPE_CHECKING:
    from fluss.client.core import FlussTable
    from fluss.db.reads import Read

CACHE_BYTES_MAX = 256 * 1024 * 1024
"""The most memory that the columns of all tables may take."""

_Key = tuple[int, TableBucket]
"""The schema that the rows were read with, and the bucket."""


@dataclass
class _CachedRows:
    """Rows of a log from one offset up to another, as far as their columns were read."""

    end: int
    rows: int
    columns: dict[str, pa.Array] = field(default_factory=dict)


class LogCache:
    """Columns of logs, by bucket and offset. What was used longest ago goes first."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max = CACHE_BYTES_MAX if bytes_max is None else bytes_max
        self._bytes = 0
        self._logs: OrderedDict[_Key, dict[int, _CachedRows]] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """The memory that the cached columns take."""
        return self._bytes

    def prefix(self, key: _Key, start: int, stop: int, columns: Sequence[str]) -> tuple[list[pa.RecordBatch], int]:
        """The cached rows of a log from its start on, without gaps, and the offset after them."""
        log = self._logs.get(key)
        if log is None:
            return [], start
        self._logs.move_to_end(key)
        if start not in log:
            self._drop(key)  # the beginning of the log was removed since
            return [], start
        found = []
        at = start
        while (segment := log.get(at)) is not None and segment.end <= stop:
            if any(name not in segment.columns for name in columns):
                break
            arrays = [segment.columns[name] for name in columns]
            if segment.rows:
                found.append(pa.RecordBatch.from_arrays(arrays, names=list(columns)))
            at = segment.end
        return found, at

    def add(self, key: _Key, start: int, end: int, batch: pa.RecordBatch) -> None:
        """Keep the columns of a batch that holds all rows between two offsets, if there is room for them."""
        log = self._logs.get(key)
        segment = None if log is None else log.get(start)
        if segment is not None and (segment.end != end or segment.rows != batch.num_rows):
            return  # cut in another way: another read came first, and keeps its own
        new = {
            name: array
            for name, array in zip(batch.schema.names, batch.columns)
            if segment is None or name not in segment.columns
        }
        size = sum(array.nbytes for array in new.values())
        while self._bytes + size > self._bytes_max and next(iter(self._logs), key) != key:
            self._drop(next(iter(self._logs)))
        if self._bytes + size > self._bytes_max:
            return
        if segment is None:
            segment = self._logs.setdefault(key, {}).setdefault(start, _CachedRows(end, batch.num_rows))
        segment.columns.update(new)
        self._bytes += size

    def _drop(self, key: _Key) -> None:
        for segment in self._logs.pop(key).values():
            self._bytes -= sum(array.nbytes for array in segment.columns.values())


async def cached_log_rows(
    cache: LogCache, table: FlussTable, plan: ScanPlan, buckets: Sequence[TableBucket], read: Read
) -> AsyncGenerator[pa.RecordBatch, None]:
    """The rows of a log table up to its end now, matching if the read has a filter: from the cache, then the rest."""
    from fluss.db.reads import matching

    starts, ends = await asyncio.gather(
        plan.offsets(buckets, OffsetSpec.earliest()), plan.offsets(buckets, OffsetSpec.latest())
    )
    expression = None if read.predicate is None else read.predicate.to_arrow_expression(read.info.schema)
    needed = read.needed
    rest: dict[TableBucket, int] = {}
    for bucket in buckets:
        batches, at = cache.prefix((read.info.schema_id, bucket), starts[bucket], ends[bucket], needed)
        for batch in batches:
            for part in (batch,) if expression is None else matching(batch, expression):
                yield part
        if at < ends[bucket]:
            rest[bucket] = at
    if not rest:
        return
    scan = table.new_scan().project_by_name(needed)
    if read.predicate is not None:
        scan = scan.filter(read.predicate)  # read in part: nothing that could be kept
    stops = {bucket: ends[bucket] for bucket in rest}
    async with contextlib.aclosing(scan.read_batches(dict(rest), stops)) as found:
        async for item in found:
            if read.predicate is None:
                # Offsets without rows before a batch belong to it: there is nothing else there.
                end = item.last_offset + 1
                cache.add((read.info.schema_id, item.bucket), rest[item.bucket], end, item.batch)
                rest[item.bucket] = end
            yield item.batch
