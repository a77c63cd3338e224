# SPDX-License-Identifier: Apache-2.0
"""The rows of a store in key order: what is in memory and what is on disk, merged many rows at a time.

A step of Python for each of millions of rows would take several times as long as reading them. So every source gives a
window of sorted keys, and a window is merged with dicts and sorts, which work in C.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from rocksdict import Rdict, RdictIter, ReadOptions

from fluss.errors import KvStorageError
from fluss.server.kv.engine import DamagedStoreError
from fluss.server.kv.layer import Changes, Layer, prefix_end

Values = Iterator[list[bytes]]
"""Stored values in the order of their keys, some at a time."""

_WINDOW_FIRST = 16
"""Rows of the first window: most ordered reads are prefix lookups, and want few."""
_WINDOW_MAX = 1_024
"""Merging so many rows takes less than a millisecond, in which no other thread or request gets on."""
_WINDOW_BYTES = 256 * 1024
_RUN_WINDOW_MIN = 16
_SAMPLED = 8
_SPARSE = 6
"""With fewer changes than one in so many rows it is cheaper to put each into its place than to sort them all."""
_READ_AHEAD_BYTES = 512 * 1024


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


class DiskRows:
    """The rows of a RocksDB as of its making, in key order, a window at a time.

    An open iterator keeps RocksDB and its lock on the folder alive, so the store ends it when it closes the folder.

    Args:
        with_keys: Read the keys too. Reading values alone takes half as long.
        many: Most rows will be read, so they should not take the place of others in the cache.
    """

    def __init__(
        self, db: Rdict, folder: Path, readers: DiskReaders, prefix: bytes, *, with_keys: bool, many: bool
    ) -> None:
        assert with_keys or not prefix
        self._folder = folder
        self._readers = readers
        self._prefix = prefix
        self._with_keys = with_keys
        # Made before the iterator that is read: a spill may write between the two, and then this one has fewer rows.
        self._second: RdictIter | None = db.iter()
        options = ReadOptions()
        if many:
            options.fill_cache(False)
            options.set_readahead_size(_READ_AHEAD_BYTES)
        read = db.items if with_keys else db.values
        self._rows: Iterator[Any] | None = iter(read(from_key=prefix, read_opt=options))
        self._last: bytes | None = None
        """The last key read, or the last value where keys are not read."""
        self._ended = False
        self._reopened = False
        self._at = 0
        self.keys: Sequence[bytes] = ()
        self._values: Sequence[bytes] = ()

    def close(self, *, reopened: bool = False) -> None:
        self._rows = self._second = None
        self._reopened = reopened

    def fill(self, count: int) -> bool:
        """Have a window of at least one row, of up to `count` if a new one is read; False when no row is left."""
        if self._at < len(self._values):
            return True
        if self._ended:
            return False
        self._readers.begin()
        try:
            found = self._read(count)
        finally:
            self._readers.end()
        if self._with_keys:
            self.keys, self._values = zip(*found) if found else ((), ())
            beyond = prefix_end(self._prefix)
            if beyond is not None and found and self.keys[-1] >= beyond:
                self._ended = True
                end = bisect_left(self.keys, beyond)
                self.keys, self._values = self.keys[:end], self._values[:end]
        else:
            self._values = found
        self._at = 0
        return len(self._values) > 0

    def _read(self, count: int) -> list[Any]:
        if self._rows is None and self._reopened:
            raise KvStorageError(f"the store in '{self._folder}' was opened again meanwhile; begin the scan again")
        if self._rows is None:
            raise DamagedStoreError(f"the store in '{self._folder}' was closed or rebuilt meanwhile")
        try:
            found = list(islice(self._rows, count))
            if found:
                self._last = found[-1][0] if self._with_keys else found[-1]
            if len(found) < count:
                self._ended = True
                self._check_end()
        except Exception as error:  # RocksDB raises plain exceptions
            raise DamagedStoreError(f"the store in '{self._folder}' cannot be read: {error}") from None
        return found

    def _check_end(self) -> None:
        """Raise what ended the iteration, unless it was the end of the rows: rocksdict's iterators end silently."""
        rows, last = self._second, self._last
        if rows is None:
            raise ValueError("it was closed meanwhile")
        if self._with_keys or last is None:
            rows.seek(self._prefix if last is None else last)
            if rows.valid() and rows.key() == last:
                rows.next()
            is_end = not rows.valid()
        else:
            # Nothing is written as long as no layer has rows, and no two values are equal: rows contain their key.
            rows.seek_to_last()
            is_end = rows.valid() and rows.value() == last
        rows.status()
        if not is_end:
            raise ValueError("reading ended before the last row")

    def take(self, last: bytes) -> tuple[Sequence[bytes], Sequence[bytes]]:
        """Take keys and values up to and with the key `last` out of the window."""
        start, end = self._at, bisect_right(self.keys, last, self._at)
        self._at = end
        if end - start == len(self.keys):
            return self.keys, self._values
        return self.keys[start:end], self._values[start:end]

    def take_all(self) -> list[bytes]:
        """Take all values out of the window."""
        values = self._values[self._at :] if self._at else self._values
        self._at = len(self._values)
        return values if isinstance(values, list) else list(values)


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
        disk: What is on disk, and is older than all layers; with keys if any layer has rows.
    """

    def __init__(self, layers: Sequence[Layer], disk: DiskRows | None, prefix: bytes) -> None:
        self._disk = disk
        # Older layers first: what comes later replaces what came before.
        self._runs = [
            _SortedRun(layer.rows, keys, span) for layer in reversed(layers) for keys, span in layer.runs(prefix)
        ]
        self._window = _WINDOW_FIRST

    def __next__(self) -> list[bytes]:
        while True:
            disk = self._disk
            if disk is not None and not disk.fill(self._window):
                disk = self._disk = None
            if self._runs:
                values = self._merged(disk)
            elif disk is not None:
                values = disk.take_all()
            else:
                raise StopIteration
            if values:
                # Large values are few at a time, so that they do not take much memory.
                sample = values[::_SAMPLED]
                mean = sum(map(len, sample)) // len(sample) + 1
                self._window = max(1, min(self._window * 2, _WINDOW_MAX, _WINDOW_BYTES // mean))
                return values

    def _merged(self, disk: DiskRows | None) -> list[bytes]:
        """The next rows of all sources. Up to the least of the keys at which their windows end, none can be missing."""
        runs = self._runs
        share = max(_RUN_WINDOW_MIN, self._window // len(runs))
        last = min([run.last_of(share) for run in runs])
        if disk is not None:
            last = min(last, disk.keys[-1])
        changes: Changes = {}
        for run in runs:
            changes.update(run.take(last, share))
        self._runs = [run for run in runs if not run.is_used_up]
        keys, values = disk.take(last) if disk is not None else ((), ())
        return _overlaid(keys, values, changes)


def _overlaid(keys: Sequence[bytes], values: Sequence[bytes], changes: Changes) -> list[bytes]:
    """The values of sorted rows after changes, in key order."""
    if not changes:
        return list(values)
    if len(changes) * _SPARSE < len(keys):
        return _spliced(keys, values, changes)
    rows: Changes = dict(zip(keys, values))
    rows.update(changes)
    # Two sorted sequences behind one another: sorting merges them.
    found = list(map(rows.__getitem__, sorted(rows)))
    return [value for value in found if value is not None]


def _spliced(keys: Sequence[bytes], values: Sequence[bytes], changes: Changes) -> list[bytes]:
    found: list[bytes] = []
    start = 0
    for key in sorted(changes):
        end = bisect_left(keys, key, start)
        found += values[start:end]
        value = changes[key]
        if value is not None:
            found.append(value)
        start = end + 1 if end < len(keys) and keys[end] == key else end
    found += values[start:]
    return found
