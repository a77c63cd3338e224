# SPDX-License-Identifier: Apache-2.0
"""Rows of a store: layers of them in memory, many at once into RocksDB and out of it, and all of them in key order.

A step of Python for each of millions of rows would take several times as long as reading them. So every source of an
ordered read gives a window of sorted keys, and a window is merged with dicts and sorts, which work in C.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TypeVar

from rocksdict import Rdict, RdictIter, ReadOptions

from fluss.errors import KvStorageError
from fluss.server import disk
from fluss.server.kv.rocksdb import Writer, open_view

_WRITE_ROWS = 2_000
"""Rows per call of the writer."""
_GET_KEYS = 4_096
"""Keys per read from RocksDB. Many more do not stay in the cache of the processor until their values are taken; with
fewer, a thread would wait for the others more often, because it lets them run while RocksDB reads."""


_TRANSIENT = tuple(os.strerror(code) for code in (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM, errno.EDQUOT))
"""RocksDB reports errors of the operating system by their text only."""


class DamagedStoreError(Exception):
    """The files of a store cannot be read, or were replaced meanwhile; its contents are rebuilt from the log."""


def reading_error(folder: Path, what: str, error: Exception) -> DamagedStoreError | KvStorageError:
    """What an error of RocksDB means. If nothing is wrong with the files, there is no reason to rebuild them."""
    if any(text in str(error) for text in _TRANSIENT):
        return KvStorageError(f"the store in '{folder}' cannot be {what} now: {error}")
    return DamagedStoreError(f"the store in '{folder}' cannot be {what}: {error}")


def get_many(db: Rdict, keys: list[bytes]) -> list[bytes | None]:
    """The values of keys in their order, some at a time; None where a key is absent."""
    found: list[bytes | None] = []
    for start in range(0, len(keys), _GET_KEYS):
        found += db.get(keys[start : start + _GET_KEYS])
    return found


def write_rows(writer: Writer, folder: Path, changes: Mapping[bytes, bytes | None]) -> tuple[int, dict[str, int]]:
    """Write changes and flush them: when this returns they are durable. The result is that of `Writer.flush`.

    In runs of sorted keys: where the last row was inserted, the place of the next one is found at once.
    """
    for run in sorted_runs(list(changes)):
        for start in range(0, len(run), _WRITE_ROWS):
            writer.put(str(folder), [(key, changes[key]) for key in run[start : start + _WRITE_ROWS]])
    return writer.flush(str(folder))


def export(writer: Writer, rows: Mapping[bytes, bytes | None], folder: Path) -> None:
    """Write rows into a database of their own in a new folder, and close it. Removed keys are left out."""
    disk.remove_tree(folder)
    disk.make_folders(folder)
    write_rows(writer, folder, {key: value for key, value in rows.items() if value is not None})
    writer.close(str(folder))


def read_rows(folder: Path) -> dict[bytes, bytes | None]:
    """All rows of a database that is not open. Raises an exception of RocksDB when a checksum does not fit."""
    rows = open_view(str(folder)).iter()
    rows.seek_to_first()
    found: dict[bytes, bytes | None] = {}
    while rows.valid():
        found[rows.key()] = rows.value()
        rows.next()
    rows.status()
    return found


Changes = dict[bytes, "bytes | None"]
"""Key to its new value; None removes it."""

_RUN_KEYS_MAX = 1 << 16
"""Sorting and merging hold up everything else, so no more than this many keys are sorted in one go."""
_PIECE_KEYS_MAX = 1 << 13
"""Other threads run between pieces of this size; putting sorted pieces together is quick."""


class Layer:
    """Changes by key. Keys are only ever added: a removed key stays, with None as its value.

    Therefore the order in which keys came never changes, and the sorted runs lack exactly the newest keys. They are
    brought up to date when an ordered read comes; a store that is never read in order pays nothing.
    """

    __slots__ = ("__weakref__", "_runs", "_sorted_count", "rows")

    def __init__(self, rows: Changes | None = None) -> None:
        self.rows: Changes = {} if rows is None else rows
        self._runs: tuple[list[bytes], ...] = ()
        self._sorted_count = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def unsorted_count(self) -> int:
        return len(self.rows) - self._sorted_count

    def sort(self) -> None:
        """Bring the order up to date, at once."""
        if self.unsorted_count:
            self.add_runs(self._sorted_count, sorted_runs(self.unsorted_keys()))

    def unsorted_keys(self) -> list[bytes]:
        """The keys that the order lacks: to be sorted elsewhere and handed to `add_runs`."""
        return list(islice(reversed(self.rows), self.unsorted_count))

    @property
    def sorted_count(self) -> int:
        return self._sorted_count

    def add_runs(self, sorted_count: int, runs: list[list[bytes]]) -> None:
        """Take in sorted runs of the keys that were unsorted when `sorted_count` keys were sorted."""
        if sorted_count != self._sorted_count:
            return  # another thread was quicker
        merged = list(self._runs)
        for run in runs:
            self._sorted_count += len(run)
            # Merging runs of like size keeps them few, and a key takes part in few merges.
            while merged and len(merged[-1]) < 2 * len(run) and len(merged[-1]) + len(run) <= _RUN_KEYS_MAX:
                run = sorted(merged.pop() + run)
            merged.append(run)
        self._runs = tuple(merged)

    def snapshot(self) -> Layer:
        """The same rows, untouched by what comes later."""
        copied = Layer(self.rows.copy())
        copied._runs, copied._sorted_count = self._runs, self._sorted_count
        return copied

    def runs(self, prefix: bytes = b"") -> list[tuple[list[bytes], range]]:
        """Sorted keys, and where among them those with the prefix are; together all keys, if `sort` came first."""
        parts = (_within(run, prefix) for run in self._runs)
        return [part for part in parts if part]


def sorted_runs(keys: list[bytes]) -> list[list[bytes]]:
    """Sort keys in parts. May run in any thread."""
    runs: list[list[bytes]] = []
    for start in range(0, len(keys), _RUN_KEYS_MAX):
        end = min(start + _RUN_KEYS_MAX, len(keys))
        run: list[bytes] = []
        for at in range(start, end, _PIECE_KEYS_MAX):
            run += sorted(keys[at : min(at + _PIECE_KEYS_MAX, end)])
        run.sort()
        runs.append(run)
    return runs


def _within(run: list[bytes], prefix: bytes) -> tuple[list[bytes], range] | None:
    """Where in a run the keys with the prefix are; None if there are none."""
    if not prefix:
        return run, range(len(run))
    start = bisect_left(run, prefix)
    if start == len(run) or not run[start].startswith(prefix):
        return None
    beyond = prefix_end(prefix)
    return run, range(start, len(run) if beyond is None else bisect_left(run, beyond, start))


def prefix_end(prefix: bytes) -> bytes | None:
    """The least key behind all keys with the prefix; None if there is no such key."""
    shortened = prefix.rstrip(b"\xff")
    return shortened[:-1] + bytes([shortened[-1] + 1]) if shortened else None


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
            raise reading_error(self._folder, "read", error) from None

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
