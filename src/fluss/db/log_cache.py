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
_JOINED_ROWS_MAX = 16_384
_JOINED_BYTES_MAX = 1024 * 1024
"""Larger chunks are not joined: each time, the values of both are copied."""

_Log = tuple[int, TableBucket]
"""The schema that the rows were read with, and the bucket."""


@dataclass
class _CachedColumn:
    """The values of one column of a log from one offset up to another."""

    start: int
    end: int
    chunks: list[pa.Array] = field(default_factory=list)
    nbytes: int = 0

    def append(self, array: pa.Array) -> None:
        """Add the values that follow.

        A log that is read again and again while a few rows come at a time would be kept in as many small chunks, and
        each query would take longer than the one before: small chunks become one.
        """
        self.end += len(array)
        last = self.chunks[-1] if self.chunks else array
        if len(last) + len(array) <= _JOINED_ROWS_MAX and last.nbytes + array.nbytes <= _JOINED_BYTES_MAX:
            array = pa.concat_arrays([*self.chunks[-1:], array])
            self.nbytes -= sum(chunk.nbytes for chunk in self.chunks[-1:])
            del self.chunks[-1:]
        self.chunks.append(array)
        self.nbytes += array.nbytes

    def drop_before(self, offset: int) -> None:
        """Drop chunks before an offset: the beginning of the log was removed since."""
        while self.chunks and self.start + len(self.chunks[0]) <= offset:
            first = self.chunks.pop(0)
            self.start += len(first)
            self.nbytes -= first.nbytes


class LogCache:
    """Columns of logs, without gaps. What was used longest ago goes first."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max = CACHE_BYTES_MAX if bytes_max is None else bytes_max
        self._columns: OrderedDict[tuple[_Log, str], _CachedColumn] = OrderedDict()

    @property
    def nbytes(self) -> int:
        """The memory that the cached columns take."""
        return sum(column.nbytes for column in self._columns.values())

    def prefix(self, log: _Log, start: int, stop: int, names: Sequence[str]) -> tuple[list[pa.RecordBatch], int]:
        """The cached rows of a log from its start on, without gaps, and the offset after them."""
        found = []
        for name in names:
            column = self._columns.get((log, name))
            if column is None:
                return [], start
            if not column.start <= start <= column.end:  # its start was evicted for other logs while it was read
                del self._columns[log, name]
                return [], start
            self._columns.move_to_end((log, name))
            column.drop_before(start)
            found.append(column)
        end = min(stop, *(column.end for column in found))
        if end <= start:
            return [], start
        arrays = [pa.chunked_array(column.chunks).slice(start - column.start, end - start) for column in found]
        return pa.table(arrays, names=list(names)).to_batches(), end

    def add(self, log: _Log, start: int, end: int, batch: pa.RecordBatch) -> None:
        """Keep the columns of a batch that holds all rows between two offsets, as far as there is room for them."""
        if batch.num_rows != end - start:
            return  # which offset has no row is not known
        for name, array in zip(batch.schema.names, batch.columns):
            column = self._columns.get((log, name)) or _CachedColumn(start, start)
            if start <= column.end < end:
                new = array.slice(column.end - start)
                if self._evict_for(log, new.nbytes):
                    column.append(new)
                    self._columns[log, name] = column

    def _evict_for(self, log: _Log, size: int) -> bool:
        """Drop columns of other logs until so many bytes more fit; False if they do not even then."""
        size += self.nbytes
        while size > self._bytes_max and next(iter(self._columns), (log, ""))[0] != log:
            size -= self._columns.popitem(last=False)[1].nbytes
        return size <= self._bytes_max
