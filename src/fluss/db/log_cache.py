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

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

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

    def columns_from(self, key: _Key, offset: int) -> set[str]:
        """The columns that are cached of rows from an offset on. Who reads these rows again reads them too: pieces that
        are cut in another way replace those that are there.
        """
        return {name for piece in self._logs.get(key, ()) if piece.start >= offset for name in piece.columns}

    def add(self, key: _Key, start: int, end: int, batch: pa.RecordBatch) -> None:
        """Keep the columns of a batch that holds all rows between two offsets, if there is room for them."""
        log = self._logs.get(key, [])
        new = _CachedRows(start, end, batch.num_rows, dict(zip(batch.schema.names, batch.columns)))
        if log and start != log[-1].end:
            at = next((at for at, piece in enumerate(log) if piece.start == start), None)
            if at is None or new.columns.keys() <= log[at].columns.keys():
                return  # another read came first, and keeps its own
            piece = log[at]
            if (piece.end, piece.rows) == (end, new.rows):
                more = {name: array for name, array in new.columns.items() if name not in piece.columns}
                if self._make_room(key, sum(array.nbytes for array in more.values())):
                    self._bytes -= piece.nbytes
                    piece.columns.update(more)
                    self._bytes += piece.nbytes
                return
            self._bytes -= sum(piece.nbytes for piece in log[at:])
            del log[at:]
        if self._make_room(key, new.nbytes):
            log = self._logs.setdefault(key, log)
            joined = log[-1].joined(new) if log else None
            if joined is not None:
                self._bytes -= log.pop().nbytes
            log.append(joined or new)
            self._bytes += log[-1].nbytes

    def _make_room(self, key: _Key, size: int) -> bool:
        """Drop other logs until there is room for so many bytes more; False if there is none then."""
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
                self._bytes -= sum(piece.nbytes for piece in log)
                log.clear()
