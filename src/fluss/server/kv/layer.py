# SPDX-License-Identifier: Apache-2.0
"""Rows in memory: a dict, and its keys in order for readers that need it."""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice

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
