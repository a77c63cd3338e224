# SPDX-License-Identifier: Apache-2.0
"""Columns of log tables that SQL has read, kept for the next query.

A log never changes below its end, so what was read of it once is still right: a query asks the server where each bucket
begins and ends now, takes from memory what it has, and reads the rest. Without this, a query over a table costs the
transfer and the decompression of its columns each time, which is several times what DuckDB then does with them.

A log that is read again and again while a few rows come at a time would be kept in as many small pieces, and each query
would take longer than the one before: small pieces become one.

The cache belongs to one event loop, and so needs no lock.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from fluss.metadata import TableBucket

CACHE_BYTES_MAX = 256 * 1024 * 1024
"""The most memory that the columns of all tables may take."""
_JOINED_ROWS_MAX = 16_384
_JOINED_BYTES_MAX = 1024 * 1024
"""Larger pieces are not joined: each time, the rows of both are copied."""

_Key = tuple[int, TableBucket]
"""The schema that the rows were read with, and the bucket."""


@dataclass
class _CachedRows:
    """Rows of a log from one offset up to another, as far as their columns were read."""

    start: int
    end: int
    rows: int
    columns: dict[str, pa.Array]
    _incomplete: dict[str, tuple[int, list[pa.Array]]] = field(default_factory=dict)
    """Further columns, as far as they are read again in smaller pieces than these rows are kept in."""

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.columns.values())

    @property
    def is_dense(self) -> bool:
        """Whether every offset has its row."""
        return self.rows == self.end - self.start

    def joined(self, other: _CachedRows) -> _CachedRows | None:
        """These rows and those that follow them, if both are few."""
        if not (self.is_dense and other.is_dense and self.columns.keys() == other.columns.keys()):
            return None
        if self.rows + other.rows > _JOINED_ROWS_MAX or self.nbytes + other.nbytes > _JOINED_BYTES_MAX:
            return None
        try:
            columns = {name: pa.concat_arrays([array, other.columns[name]]) for name, array in self.columns.items()}
        except pa.ArrowException:  # not every type can be joined in every release of Arrow
            return None
        return _CachedRows(self.start, other.end, self.rows + other.rows, columns)

    def columns_with(self, new: _CachedRows) -> dict[str, pa.Array]:
        """The columns that are complete now that some of these rows were read with further ones."""
        complete = {}
        for name, array in new.columns.items():
            if name in self.columns:
                continue
            end, arrays = (self.start, []) if new.start == self.start else self._incomplete.pop(name, (-1, []))
            if end != new.start:
                continue  # two reads at the same time
            arrays.append(array)
            if new.end < self.end:
                self._incomplete[name] = new.end, arrays
            elif sum(map(len, arrays)) == self.rows:
                with contextlib.suppress(pa.ArrowException):
                    complete[name] = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
        return complete

    def after(self, offset: int) -> _CachedRows:
        """The rows from an offset on, of dense ones."""
        skipped = offset - self.start
        columns = {name: array.slice(skipped) for name, array in self.columns.items()}
        return _CachedRows(offset, self.end, self.rows - skipped, columns)


class LogCache:
    """Columns of logs, by bucket: pieces without gaps between them. What was used longest ago goes first."""

    def __init__(self, bytes_max: int | None = None) -> None:
        self._bytes_max = CACHE_BYTES_MAX if bytes_max is None else bytes_max
        self._bytes = 0
        self._logs: OrderedDict[_Key, list[_CachedRows]] = OrderedDict()

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
        self._cut_before(log, start)
        if log and log[0].start > start:
            # Its start was evicted for other logs while it was read, and only its end is there.
            self._clear(log)
        found = []
        at = start
        for piece in log:
            if piece.start != at or piece.end > stop or any(name not in piece.columns for name in columns):
                break
            arrays = [piece.columns[name] for name in columns]
            if piece.rows:
                found.append(pa.RecordBatch.from_arrays(arrays, names=list(columns)))
            at = piece.end
        return found, at

    def add(self, key: _Key, start: int, end: int, batch: pa.RecordBatch) -> None:
        """Keep the columns of a batch that holds all rows between two offsets, if there is room for them."""
        log = self._logs.get(key, [])
        new = _CachedRows(start, end, batch.num_rows, dict(zip(batch.schema.names, batch.columns)))
        if log and start != log[-1].end:
            self._add_columns(key, log, new)
        elif self._evict_for(key, new.nbytes):
            log = self._logs.setdefault(key, log)
            log.append(new)
            self._bytes += new.nbytes
            self._join(log, len(log) - 1)

    def _add_columns(self, key: _Key, log: list[_CachedRows], new: _CachedRows) -> None:
        """Keep further columns of rows that are cached."""
        at = bisect_right(log, new.start, key=lambda piece: piece.start) - 1
        if at < 0 or new.end > log[at].end:
            return
        piece = log[at]
        columns = piece.columns_with(new)
        if columns and self._evict_for(key, sum(array.nbytes for array in columns.values())):
            self._bytes -= piece.nbytes
            piece.columns.update(columns)
            self._bytes += piece.nbytes
            self._join(log, at)

    def _join(self, log: list[_CachedRows], at: int) -> None:
        """Make one piece of this one and the one before, if both are small."""
        joined = log[at - 1].joined(log[at]) if at else None
        if joined is not None:
            self._bytes -= log[at - 1].nbytes + log[at].nbytes
            log[at - 1 : at + 1] = [joined]
            self._bytes += joined.nbytes

    def _evict_for(self, key: _Key, size: int) -> bool:
        """Drop other logs until so many bytes more fit; False if they do not even then."""
        while self._bytes + size > self._bytes_max and next(iter(self._logs), key) != key:
            self._bytes -= sum(piece.nbytes for piece in self._logs.popitem(last=False)[1])
        return self._bytes + size <= self._bytes_max

    def _cut_before(self, log: list[_CachedRows], start: int) -> None:
        """Drop the rows before an offset: the beginning of the log was removed since."""
        while log and log[0].start < start:
            first = log.pop(0)
            self._bytes -= first.nbytes
            if first.end <= start:
                continue
            if first.is_dense:
                log.insert(0, first.after(start))
                self._bytes += log[0].nbytes
            else:
                self._clear(log)

    def _clear(self, log: list[_CachedRows]) -> None:
        self._bytes -= sum(piece.nbytes for piece in log)
        log.clear()
