# SPDX-License-Identifier: Apache-2.0
"""The rows that went to disk last, kept in little memory for writes that need many old rows.

An update tells the row before it, and RocksDB needs several microseconds to find one among millions. A dict would take
200 bytes more than the rows themselves; here it is nine. The rows of a spill never change, so they lie one behind the
other in one buffer, ordered by the hash of their key, and a whole batch of keys is found by a few steps of numpy. For a
few keys RocksDB is quicker.

After a start nothing is known. The first batch that needs many old rows lets a thread read those on disk.
"""

from __future__ import annotations

import mmap
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fluss.rows import Slices
from fluss.rows.hashing import murmur3_32s
from fluss.rows.slices import WORD_BYTES, starts_of, words_at

UNKNOWN: Any = object()
"""What is said of a key that only the disk can tell about."""

_KEYS_MIN = 256
"""Fewer keys are read from RocksDB sooner."""
_SAMPLE_STEP = 16
"""One of so many keys is looked for first. Where none is found the keys are new, and the rest is left to the disk."""
_KEY_BYTES_MAX = 64
"""Longer keys are never in here. A comparison takes a step for every eight bytes of the longest."""
_STEP_ROWS = 1 << 15
"""Python objects are turned into arrays so many at a time: that keeps all other threads waiting."""
_PARTS_SHARE = 8
"""Parts are merged up to this share of the cache, so that little goes when the oldest goes."""
_PART_BYTES_MAX = 2**32 - 1
_LOADED_ROWS = 500_000
"""Rows of a part that is read from disk."""
_STEP_WINDOWS = 64
"""Windows of rows that are read from disk in one step."""

_Hashes = npt.NDArray[np.uint32]
_Positions = npt.NDArray[np.intp]

_BYTE_MASKS = np.array([(1 << (8 * count)) - 1 for count in range(WORD_BYTES + 1)], np.uint64)


class RowCache:
    """Bounds what all stores of a server keep."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.loading = threading.Semaphore(1)
        """Held by the one thread that reads rows from disk."""
        self._lock = threading.Lock()
        self._members: weakref.WeakSet[CachedRows] = weakref.WeakSet()

    def join(self) -> CachedRows:
        """The part of the cache that belongs to one more store."""
        rows = CachedRows(self)
        with self._lock:
            self._members.add(rows)
        return rows

    @property
    def size_bytes(self) -> int:
        with self._lock:
            return sum(rows.size_bytes for rows in self._members)

    def add_newest(self, rows: CachedRows, part: _PackedRows, merged: int) -> None:
        """Let a store keep one more part. While all keep too much, those that keep most forget their oldest rows."""
        with self._lock:
            rows.parts = (part, *rows.parts[merged:])
            size_bytes = sum(rows.size_bytes for rows in self._members)
            while size_bytes > self.limit_bytes:
                largest = max(self._members, key=lambda rows: rows.size_bytes)
                *newer, oldest = largest.parts
                largest.parts = tuple(newer)
                largest.forgotten += 1
                size_bytes -= oldest.size_bytes

    def add_oldest(self, rows: CachedRows, part: _PackedRows, forgotten: int) -> bool:
        """Let a store keep rows that are older than all it has; False if it forgot some meanwhile, or all is full."""
        with self._lock:
            size_bytes = part.size_bytes + sum(rows.size_bytes for rows in self._members)
            if rows.forgotten != forgotten or size_bytes > self.limit_bytes:
                return False
            rows.parts = (*rows.parts, part)
            return True

    def clear(self, rows: CachedRows) -> None:
        with self._lock:
            rows.parts = ()
            rows.forgotten += 1


class CachedRows:
    """The newest values of keys that one store has on disk.

    It holds every spill, or nothing that is older than one it does not hold: what is found here is what the disk says.
    `get_many` may come from any thread.
    """

    def __init__(self, cache: RowCache) -> None:
        self._cache = cache
        self.parts: tuple[_PackedRows, ...] = ()
        """Newest first. Changed by `RowCache` alone."""
        self.forgotten = 0
        """How often parts were forgotten: what is older than those must not be added any more."""
        self._is_loaded = False

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    def prepare(self, spilled: Mapping[bytes, bytes | None]) -> Addition | None:
        """Make what `add` adds once the rows are on disk. Runs in a thread; one at a time for a store."""
        limit_bytes = min(self._cache.limit_bytes, _PART_BYTES_MAX)
        newest, merged = _PackedRows.of(spilled, limit_bytes), 0
        if newest is None:
            return None
        for part in self.parts:
            # Merging parts of like size keeps them few, and a row takes part in few merges.
            size_bytes = part.size_bytes + newest.size_bytes
            if part.size_bytes > 2 * newest.size_bytes or size_bytes > limit_bytes // _PARTS_SHARE:
                break
            newest, merged = _PackedRows.merge(newest, part), merged + 1
        return Addition(newest, merged)

    def add(self, addition: Addition | None) -> None:
        """Take in the rows of a spill that has ended; without them, nothing older counts either."""
        if addition is None:
            self._cache.clear(self)
        else:
            self._cache.add_newest(self, addition.part, addition.merged)

    def clear(self) -> None:
        """Forget all rows, and that they were read from disk."""
        self._cache.clear(self)
        self._is_loaded = False

    def begin_load(self, keys_asked: int) -> bool:
        """Whether the caller shall `load` the rows on disk: for many keys, once, and one store at a time."""
        if keys_asked < _KEYS_MIN or self._is_loaded or not self._cache.limit_bytes:
            return False
        self._is_loaded = self._cache.loading.acquire(blocking=False)
        return self._is_loaded

    def load(self, windows: Iterable[dict[bytes, bytes]]) -> Iterator[None]:
        """Add the rows on disk, as far as there is room. A step at a time, which leaves half of the time to others.

        Reading the first window begins the read: what is spilled from then on is newer.
        """
        try:
            forgotten = self.forgotten
            rows: dict[bytes, bytes] = {}
            used = time.thread_time()
            for number, window in enumerate(windows, 1):
                rows |= window
                if len(rows) >= _LOADED_ROWS:
                    if not self._add_oldest(rows, forgotten):
                        return
                    rows = {}
                time.sleep(time.thread_time() - used)
                if number % _STEP_WINDOWS == 0:
                    yield
                used = time.thread_time()
            self._add_oldest(rows, forgotten)
        finally:
            self._cache.loading.release()

    def _add_oldest(self, rows: dict[bytes, bytes], forgotten: int) -> bool:
        part = _PackedRows.of(rows, min(self._cache.limit_bytes, _PART_BYTES_MAX))
        return part is not None and self._cache.add_oldest(self, part, forgotten)

    def get_many(self, keys: Sequence[bytes]) -> list[Any] | None:
        """The values of keys, None for those that are removed, `UNKNOWN` for others; None if it cannot tell any."""
        parts = self.parts
        if not parts or len(keys) < _KEYS_MIN:
            return None
        sample = _values_in(parts, keys[::_SAMPLE_STEP])
        if all(value is UNKNOWN for value in sample):
            return None  # they seem to be new
        return _values_in(parts, keys)


def _values_in(parts: Sequence[_PackedRows], keys: Sequence[bytes]) -> list[Any]:
    query = _Query.of(keys)
    found = np.full(len(keys), UNKNOWN, object)
    for part in parts:
        if not len(query.hashes):
            break
        query = part.answer(query, found)
    values: list[Any] = found.tolist()
    return values


class _Query(NamedTuple):
    """Keys that are looked for, in the order of their hashes."""

    hashes: _Hashes
    keys: Slices
    places: _Positions
    """Where their values belong."""

    @classmethod
    def of(cls, keys: Sequence[bytes]) -> _Query:
        slices = Slices.from_list([*keys, bytes(_KEY_BYTES_MAX)]).slice(0, len(keys))
        hashes = _hashes_of(slices)
        order = np.argsort(hashes)
        return cls(hashes, slices, np.arange(len(keys))).take(order)

    def take(self, which: npt.NDArray[Any]) -> _Query:
        return _Query(self.hashes[which], self.keys.take(which), self.places[which])


class _PackedRows(NamedTuple):
    """Rows that were spilled together."""

    hashes: _Hashes
    """Ascending. Of keys with the same hash one is kept; of the others it is not known whether they are older."""
    entries: npt.NDArray[np.uint8]
    """Each key with its value behind it, in the same order, and some bytes more. A value that is empty was removed."""
    starts: npt.NDArray[np.uint32]
    """Where they start, and where the last one ends."""
    key_lengths: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, rows: Mapping[bytes, bytes | None], limit_bytes: int) -> _PackedRows | None:
        """The rows, or None if they are too many."""
        keys, values = list(rows), list(rows.values())
        hashes, entries, lengths = [], [], []
        for first in range(0, len(keys), _STEP_ROWS):
            some = keys[first : first + _STEP_ROWS]
            theirs = [value or b"" for value in values[first : first + _STEP_ROWS]]
            key_lengths = _lengths_of(some)
            entry_lengths = key_lengths + _lengths_of(theirs)
            limit_bytes -= int(entry_lengths.sum())
            if limit_bytes < 0:
                return None
            data = np.frombuffer(b"".join(chain.from_iterable(zip(some, theirs))), np.uint8)
            row_slices = Slices.trusted(data, starts_of(entry_lengths), entry_lengths)
            if int(key_lengths.max()) > _KEY_BYTES_MAX:
                is_short = key_lengths <= _KEY_BYTES_MAX
                row_slices, key_lengths = row_slices.take(is_short), key_lengths[is_short]
            hashes.append(_hashes_of(Slices.trusted(data, row_slices.starts, key_lengths)))
            entries.append(row_slices)
            lengths.append(key_lengths.astype(np.uint8))
        return cls._ordered(_joined(hashes, np.uint32), Slices.concat(entries), _joined(lengths, np.uint8))

    @classmethod
    def merge(cls, newer: _PackedRows, older: _PackedRows) -> _PackedRows:
        return cls._ordered(
            np.concatenate((newer.hashes, older.hashes)),
            Slices.concat((newer._entry_slices(), older._entry_slices())),
            np.concatenate((newer.key_lengths, older.key_lengths)),
        )

    @classmethod
    def _ordered(cls, hashes: _Hashes, entries: Slices, key_lengths: npt.NDArray[np.uint8]) -> _PackedRows:
        """Put entries into order; of those with the same hash the first counts."""
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        is_first = np.ones(len(hashes), np.bool_)
        is_first[1:] = hashes[1:] != hashes[:-1]
        order = order[is_first]
        starts = np.zeros(len(order) + 1, np.int64)
        np.cumsum(entries.lengths[order], out=starts[1:])
        data = _room(int(starts[-1]) + _KEY_BYTES_MAX, np.uint8)
        for first in range(0, len(order), _STEP_ROWS):
            last = min(first + _STEP_ROWS, len(order))
            data[starts[first] : starts[last]] = entries.take(order[first:last]).contiguous().data
        return cls(_kept(hashes[is_first]), data, _kept(starts.astype(np.uint32)), _kept(key_lengths[order]))

    def _entry_slices(self) -> Slices:
        starts = self.starts.astype(np.int64)
        return Slices.trusted(self.entries, starts[:-1], np.diff(starts))

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self)

    def answer(self, query: _Query, found: npt.NDArray[np.object_]) -> _Query:
        """Put the values of keys that are here into their places, and say which keys older parts may know."""
        if not len(self.hashes):
            return query
        at = np.searchsorted(self.hashes, query.hashes)
        at[at == len(self.hashes)] = 0
        is_met = self.hashes[at] == query.hashes
        if not bool(is_met.any()):
            return query
        met, at = query.take(is_met), at[is_met]
        starts, ends = self.starts[at].astype(np.int64), self.starts[at + 1].astype(np.int64)
        key_lengths = self.key_lengths[at].astype(np.int64)
        is_same = _are_same(Slices.trusted(self.entries, starts, key_lengths), met.keys)
        values = Slices.trusted(self.entries, starts + key_lengths, ends - starts - key_lengths).take(is_same)
        places = met.places[is_same]
        found[places] = values.to_list()
        found[places[values.lengths == 0]] = None
        # Another key with the same hash may have taken the place of this one, so older parts must not be asked.
        return query.take(~is_met)


class Addition(NamedTuple):
    """What a spill adds to the rows that are kept."""

    part: _PackedRows
    merged: int
    """How many of the newest parts are in it."""


def _room(count: int, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Memory of its own, of which nothing is left when it goes.

    Among what comes and goes while a part is made, large arrays would keep twice their size from the system.
    """
    size_bytes = max(count * np.dtype(dtype).itemsize, 1)
    return np.frombuffer(mmap.mmap(-1, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype, count)


def _kept(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    copied = _room(array.size, array.dtype)
    copied[:] = array
    return copied


def _hashes_of(keys: Slices) -> _Hashes:
    return murmur3_32s(keys).view(np.uint32)


def _lengths_of(strings: Sequence[bytes]) -> npt.NDArray[np.int64]:
    return np.fromiter(map(len, strings), np.int64, len(strings))


def _joined(parts: Iterable[npt.NDArray[Any]], dtype: type[Any]) -> npt.NDArray[Any]:
    return np.concatenate((*parts, np.empty(0, dtype)))


def _are_same(left: Slices, right: Slices) -> npt.NDArray[np.bool_]:
    """Which strings are the same, pair by pair. Both buffers have `_KEY_BYTES_MAX` bytes behind the last string."""
    same: npt.NDArray[np.bool_] = left.lengths == right.lengths
    left_words, right_words = words_at(left.data), words_at(right.data)
    for at in range(0, int(left.lengths.max(initial=0)), WORD_BYTES):
        mask = _BYTE_MASKS[np.clip(left.lengths - at, 0, WORD_BYTES)]
        same &= (left_words[left.starts + at] ^ right_words[right.starts + at]) & mask == 0
    return same
