# SPDX-License-Identifier: Apache-2.0
"""Columns of log tables that SQL has read, kept for the next query.

A log never changes below its end, so what was read of it once is still right: a query asks the server where each bucket
begins and ends now, takes from memory what it has, and reads the rest. Without this, a query over a table costs the
transfer and the decompression of its columns each time, which is several times what DuckDB then does with them.

The cache belongs to one event loop, and so needs no lock.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from fluss.metadata import TableBucket

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
