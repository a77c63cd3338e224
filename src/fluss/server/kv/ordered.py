# SPDX-License-Identifier: Apache-2.0
"""The rows of a store in key order: what is in memory and what is on disk, merged many rows at a time.

A step of Python for each of millions of rows would take several times as long as reading them. So every source gives a
window of sorted keys, and a window is merged with dicts and sorts, which work in C.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Generic, TypeVar

from rocksdict import Rdict, RdictIter, ReadOptions

from fluss.errors import KvStorageError
from fluss.server.kv.engine import DamagedStoreError
from fluss.server.kv.layer import Changes, Layer, prefix_end

T = TypeVar("T")
C = TypeVar("C", bound=Collection[Any])

Values = Iterator[list[bytes]]
"""Stored values in the order of their keys, some at a time."""

_WINDOW_FIRST = 16
"""Rows of the first window: most ordered reads are prefix lookups, and want few."""
_WINDOW_MAX = 1_024
"""Merging so many rows takes less than a millisecond, in which no other thread or request gets on."""
_WINDOW_BYTES = 256 * 1024
_RUN_WINDOW_MIN = 16
_SAMPLED = 8


class DiskReaders:
    """Counts the threads that read from a RocksDB: it cannot be closed before they have ended."""

    def __init__(self) -> None:
        self._idle = threading.Condition()
        self._count = 0

    def begin(self) -> None:
        """Begin to read; waits while there may be none."""
        with self._idle:
            self._count += 1

    def end(self) -> None:
        """End what `begin` began."""
        with self._idle:
            self._count -= 1
            self._idle.notify_all()

    @contextlib.contextmanager
    def none(self) -> Iterator[None]:
        """Wait until no thread reads; none begins before the block has ended."""
        with self._idle:
            while self._count:
                self._idle.wait()
            yield


class DiskReading(ABC, Generic[T]):
    """An iterator of a RocksDB, over the rows as of its making. It ends when the store closes the folder.

    An open iterator keeps RocksDB and its lock on the folder alive, so the store closes this first.
    """

    def __init__(self, db: Rdict, folder: Path, readers: DiskReaders) -> None:
        self._folder = folder
        self._readers = readers
        # Made before the iterator that is read: a spill may write between the two, and then this one has fewer rows.
        self._second: RdictIter | None = db.iter()
        self._rows: Iterator[T] | None = None
        self._reopened = False
        self.has_ended = False

    def close(self, *, reopened: bool = False) -> None:
        """Let go of RocksDB. A read that comes later is refused."""
        self._rows = self._second = None
        self._reopened = reopened

    def _read(self, collect: Callable[[Iterable[T]], C], count: int) -> C:
        """Collect the next rows, fewer than `count` only at the end."""
        self._readers.begin()
        try:
            if self._rows is None and self._reopened:
                raise KvStorageError(f"the store in '{self._folder}' was opened again meanwhile; begin the scan again")
            if self._rows is None:
                raise DamagedStoreError(f"the store in '{self._folder}' was closed or rebuilt meanwhile")
            try:
                found = collect(islice(self._rows, count))
                self._see_last(found)
                if len(found) < count:
                    self.has_ended = True
                    self._check_end()
            except Exception as error:  # RocksDB raises plain exceptions
                raise DamagedStoreError(f"the store in '{self._folder}' cannot be read: {error}") from None
            return found
        finally:
            self._readers.end()

    def _check_end(self) -> None:
        """Raise what ended the iteration, unless it was the end of the rows: rocksdict's iterators end silently."""
        rows = self._second
        if rows is None:
            raise ValueError("it was closed meanwhile")
        is_end = self._is_end(rows)
        rows.status()
        if not is_end:
            raise ValueError("reading ended before the last row")

    @abstractmethod
    def _see_last(self, found: Any) -> None:
        """Remember the last of the rows that were read."""

    @abstractmethod
    def _is_end(self, rows: RdictIter) -> bool:
        """Whether no row follows that last one."""


class DiskValues(DiskReading[bytes], Values):
    """The values of all rows on disk, some at a time: without their keys, which takes half the time.

    For stores that have no rows in memory. Nothing is written to RocksDB as long as that is so.
    """

    def __init__(self, db: Rdict, folder: Path, readers: DiskReaders, *, many: bool) -> None:
        super().__init__(db, folder, readers)
        self._rows = iter(db.values(read_opt=_read_options(many=many)))
        self._last: bytes | None = None
        self._window = _Window()

    def __next__(self) -> list[bytes]:
        if not self.has_ended and (values := self._read(list, self._window.rows)):
            self._window.adapt(values)
            return values
        raise StopIteration

    def _see_last(self, found: list[bytes]) -> None:
        if found:
            self._last = found[-1]

    def _is_end(self, rows: RdictIter) -> bool:
        # No two values are equal: rows contain their key.
        rows.seek_to_last()
        return (rows.value() if rows.valid() else None) == self._last


class DiskRows(DiskReading["tuple[bytes, bytes]"]):
    """The rows on disk whose keys start with a prefix, a window at a time."""

    def __init__(self, db: Rdict, folder: Path, readers: DiskReaders, prefix: bytes, *, many: bool) -> None:
        super().__init__(db, folder, readers)
        self._prefix = prefix
        self._prefix_end = prefix_end(prefix)
        self._rows = iter(db.items(from_key=prefix, read_opt=_read_options(many=many)))
        self._window: dict[bytes, bytes] = {}
        self.last_key = b""
        """The last key of the window."""

    def fill(self, count: int) -> bool:
        """Have a window of at least one row, of up to `count` if a new one is read; False when no row is left."""
        if not self._window and not self.has_ended:
            self._window = self._read(dict, count)
            if self._prefix_end is not None and self._window and self.last_key >= self._prefix_end:
                self.has_ended = True
                self._window = {key: value for key, value in self._window.items() if key < self._prefix_end}
                self.last_key = next(reversed(self._window), b"")
        return bool(self._window)

    def _see_last(self, found: dict[bytes, bytes]) -> None:
        self.last_key = next(reversed(found), self.last_key)

    def _is_end(self, rows: RdictIter) -> bool:
        rows.seek(max(self._prefix, self.last_key))
        if rows.valid() and rows.key() == self.last_key:
            rows.next()
        return not rows.valid()

    def take(self, last: bytes) -> dict[bytes, bytes]:
        """Take the rows up to and with the key `last` out of the window."""
        window, self._window = self._window, {}
        if last >= self.last_key:
            return window
        keys = list(window)
        end = bisect_right(keys, last)
        self._window = {key: window[key] for key in keys[end:]}
        return {key: window[key] for key in keys[:end]}

    def take_all(self) -> list[bytes]:
        """Take all values out of the window."""
        return list(self.take(self.last_key).values())


def _read_options(*, many: bool) -> ReadOptions:
    options = ReadOptions()
    # A read of everything should not replace what lookups have in the cache.
    options.fill_cache(not many)
    return options


class _Window:
    """How many rows are read at a time: few at first, and few where values are large, because they take memory."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows = _WINDOW_FIRST

    def adapt(self, values: list[bytes]) -> None:
        """Choose the next window by the values of the last one."""
        sample = values[::_SAMPLED]
        mean = sum(map(len, sample)) // len(sample) + 1
        self.rows = max(1, min(self.rows * 2, _WINDOW_MAX, _WINDOW_BYTES // mean))


class _SortedRun:
    """Sorted keys of a layer, and how far they were read."""

    __slots__ = ("_at", "_keys", "_rows", "_stop")

    def __init__(self, rows: Changes, keys: list[bytes], span: range) -> None:
        self._rows = rows
        self._keys = keys
        self._at, self._stop = span.start, span.stop

    @property
    def is_used_up(self) -> bool:
        return self._at == self._stop

    def last_of(self, count: int) -> bytes:
        """The last of the next `count` keys."""
        return self._keys[min(self._at + count, self._stop) - 1]

    def take(self, last: bytes, count: int) -> Iterable[tuple[bytes, bytes | None]]:
        """Take those of the next `count` keys that do not come after `last`, with their values."""
        end = bisect_right(self._keys, last, self._at, min(self._at + count, self._stop))
        keys = self._keys[self._at : end]
        self._at = end
        return zip(keys, map(self._rows.__getitem__, keys))


class OrderedValues(Values):
    """The values of all rows whose key starts with a prefix, in key order, some at a time.

    Args:
        layers: What is in memory, newest first, sorted.
        disk: What is on disk, and is older than all layers.
    """

    def __init__(self, layers: Sequence[Layer], disk: DiskRows | None, prefix: bytes) -> None:
        self._disk = disk
        # Older layers first: what comes later replaces what came before.
        self._runs = [
            _SortedRun(layer.rows, keys, span) for layer in reversed(layers) for keys, span in layer.runs(prefix)
        ]
        self._window = _Window()

    def __next__(self) -> list[bytes]:
        while True:
            disk = self._disk
            if disk is not None and not disk.fill(self._window.rows):
                disk = self._disk = None
            if self._runs:
                values = self._merged(disk)
            elif disk is not None:
                values = disk.take_all()
            else:
                raise StopIteration
            if values:
                self._window.adapt(values)
                return values

    def _merged(self, disk: DiskRows | None) -> list[bytes]:
        """The next rows of all sources. Up to the least of the keys at which their windows end, none can be missing."""
        runs = self._runs
        share = max(_RUN_WINDOW_MIN, self._window.rows // len(runs))
        last = min([run.last_of(share) for run in runs])
        if disk is not None:
            last = min(last, disk.last_key)
        changes: Changes = {}
        for run in runs:
            changes.update(run.take(last, share))
        self._runs = [run for run in runs if not run.is_used_up]
        rows: Changes = disk.take(last) if disk is not None else {}  # type: ignore[assignment]
        count = len(rows)
        rows.update(changes)
        if len(rows) > count:
            # Inserts came behind the other rows, in order, and sorting merges the two.
            return [value for value in map(rows.__getitem__, sorted(rows)) if value is not None]
        return [value for value in rows.values() if value is not None]
