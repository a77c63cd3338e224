# SPDX-License-Identifier: Apache-2.0
"""The rows of a store in key order: what is in memory and what is on disk, merged many rows at a time.

A step of Python for each of millions of rows would take several times as long as reading them. So every source gives a
window of sorted keys, and a window is merged with dicts and sorts, which work in C.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rocksdict import Rdict, RdictIter, ReadOptions

from fluss.server.kv.engine import DamagedStoreError
from fluss.server.kv.layer import Changes, Layer, prefix_end

C = TypeVar("C")

Values = Iterator[list[bytes]]
"""Stored values in the order of their keys, some at a time."""

_WINDOW_FIRST = 16
"""Rows of the first window: most ordered reads are prefix lookups, and want few."""
_WINDOW_MAX = 1_024
"""Merging so many rows takes less than a millisecond, in which no other thread or request gets on."""
_WINDOW_BYTES = 256 * 1024
_RUN_WINDOW_MIN = 16
_SAMPLED = 8


class DiskReading:
    """An iteration over a view of RocksDB."""

    def __init__(self, db: Rdict, folder: Path) -> None:
        self._folder = folder
        # Slow, and reports errors: rocksdict's other iterators just end at a damaged block.
        self._careful: RdictIter = db.iter()
        self._ended = False

    def _guarded(self, read: Callable[[int], C], count: int) -> C:
        """Read rows, and report damage as such."""
        try:
            return read(count)
        except Exception as error:  # RocksDB raises plain exceptions
            raise DamagedStoreError(f"the store in '{self._folder}' cannot be read: {error}") from None

    def _check_end(self, is_end: bool) -> None:
        """Raise what ended an iteration, unless it was the end of the rows."""
        self._careful.status()
        if not is_end:
            raise ValueError("reading ended before the last row")


class DiskValues(DiskReading, Values):
    """The values of all rows on disk, some at a time: without their keys, which takes half the time.

    For stores that have no rows in memory.
    """

    def __init__(self, db: Rdict, folder: Path, *, many: bool) -> None:
        super().__init__(db, folder)
        self._quick = iter(db.values(read_opt=_read_options(many=many)))
        self._last: bytes | None = None
        self._window = _Window()

    def __next__(self) -> list[bytes]:
        if not self._ended and (values := self._guarded(self._read, self._window.rows)):
            self._window.adapt(values)
            return values
        raise StopIteration

    def _read(self, count: int) -> list[bytes]:
        found = list(islice(self._quick, count))
        if found:
            self._last = found[-1]
        if len(found) < count:
            self._ended = True
            # No two values are equal: rows contain their key.
            careful = self._careful
            careful.seek_to_last()
            self._check_end((careful.value() if careful.valid() else None) == self._last)
        return found


class DiskRows(DiskReading):
    """The rows on disk whose keys start with a prefix, a window at a time.

    Args:
        many: All of them will be read.
    """

    def __init__(self, db: Rdict, folder: Path, prefix: bytes, *, many: bool) -> None:
        super().__init__(db, folder)
        self._prefix = prefix
        self._prefix_end = prefix_end(prefix)
        self._window: dict[bytes, bytes] = {}
        self.last_key = b""
        """The last key of the window."""
        self._quick = iter(db.items(from_key=prefix, read_opt=_read_options(many=many)))

    def fill(self, count: int) -> bool:
        """Have a window of at least one row, of up to `count` if a new one is read; False when no row is left."""
        if not self._window and not self._ended:
            self._window = self._guarded(self._read, count)
            self.last_key = next(reversed(self._window), self.last_key)
        return bool(self._window)

    def _read(self, count: int) -> dict[bytes, bytes]:
        found = dict(islice(self._quick, count))
        last = next(reversed(found), self.last_key)
        if len(found) < count:
            self._ended = True
            careful = self._careful
            careful.seek(max(self._prefix, last))
            if careful.valid() and careful.key() == last:
                careful.next()
            self._check_end(not careful.valid())
        if self._prefix_end is not None and found and last >= self._prefix_end:
            self._ended = True
            return {key: value for key, value in found.items() if key < self._prefix_end}
        return found

    @property
    def has_more(self) -> bool:
        """Whether rows may follow the window."""
        return not self._ended

    def take(self, last: bytes | None = None) -> dict[bytes, bytes]:
        """Take the rows up to and with the key `last` out of the window."""
        window, self._window = self._window, {}
        if last is None or last >= self.last_key:
            return window
        keys = list(window)
        end = bisect_right(keys, last)
        self._window = {key: window[key] for key in keys[end:]}
        return {key: window[key] for key in keys[:end]}


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
    """Sorted keys of a layer that were not read yet."""

    __slots__ = ("_at", "_keys", "_rows", "_stop")

    def __init__(self, rows: Changes, keys: list[bytes], span: range) -> None:
        self._rows = rows
        self._keys = keys
        self._at, self._stop = span.start, span.stop

    def __len__(self) -> int:
        return self._stop - self._at

    def key_before(self, count: int) -> bytes:
        """The last of the next `count` keys."""
        return self._keys[self._at + count - 1]

    def take(self, last: bytes | None) -> Iterable[tuple[bytes, bytes | None]]:
        """Take the keys that do not come after `last`, with their values."""
        end = self._stop if last is None else bisect_right(self._keys, last, self._at, self._stop)
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
                values = list(disk.take().values())
            else:
                raise StopIteration
            if values:
                self._window.adapt(values)
                return values

    def _merged(self, disk: DiskRows | None) -> list[bytes]:
        """The next rows of all sources. Up to the least of the keys at which their windows end, none can be missing."""
        runs = self._runs
        share = max(_RUN_WINDOW_MIN, self._window.rows // len(runs))
        ends = [run.key_before(share) for run in runs if len(run) > share]
        if disk is not None and disk.has_more:
            ends.append(disk.last_key)
        last = min(ends) if ends else None
        changes: Changes = {}
        for run in runs:
            changes.update(run.take(last))
        self._runs = [run for run in runs if len(run)] if ends else []
        rows: Changes = disk.take(last) if disk is not None else {}  # type: ignore[assignment]
        count = len(rows)
        rows.update(changes)
        if len(rows) > count:
            # Inserts came behind the other rows, in order, and sorting merges the two.
            return [value for value in map(rows.__getitem__, sorted(rows)) if value is not None]
        return [value for value in rows.values() if value is not None]


def first_values(parts: Values, count: int) -> list[bytes]:
    """The first values, as many as there are up to `count`."""
    values: list[bytes] = []
    for part in parts:
        values += part
        if len(values) >= count:
            return values[:count]
    return values
