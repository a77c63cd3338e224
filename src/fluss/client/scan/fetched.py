# SPDX-License-Identifier: Apache-2.0
"""Batches that a scanner fetched and its caller does not have yet.

They belong to the scanner until the moment they are handed over. A poll collects them here and takes them in one step,
when nothing is left to wait for: cancelled before that, it has taken nothing. A loop that is left leaves the rest here.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fluss.client.scan.records import RecordBatch, part_of, row_offsets
from fluss.client.scan.subscription import Subscription
from fluss.metadata import TableBucket

T = TypeVar("T")
Fetched = tuple[Subscription, RecordBatch]


@dataclass(slots=True, eq=False)
class _PartlyGiven:
    """A batch whose items a loop gives one by one."""

    subscription: Subscription
    decoded: RecordBatch
    items: int = 0
    """How many the caller has."""
    offsets: Sequence[int] = ()
    """The last offset that each item stands for."""
    is_left: bool = False
    """Whether the loop has ended before all items were given."""
    is_stale: bool = False
    """Whether the bucket was unsubscribed, or subscribed elsewhere."""

    def rest(self) -> RecordBatch | None:
        """Return the rows after the last item that the caller has."""
        decoded = self.decoded
        start = 0
        if self.items:
            next_offset = self.offsets[self.items - 1] + 1
            start = bisect_left(row_offsets(decoded), next_offset)
        if start >= decoded.num_records or self.is_stale:
            return None
        return part_of(decoded, start, decoded.num_records - start)


class FetchedBatches:
    """A queue of batches. They are added on the loop, and taken in any thread.

    `rows_max` is how many rows one call gives at most, and batches are cut to fit; without it, a call gives about
    `bytes_max`, in whole batches.
    """

    def __init__(self, rows_max: int | None, bytes_max: int) -> None:
        self._rows_max = rows_max
        self._size_max = bytes_max if rows_max is None else rows_max
        """What one call gives at most, in rows or bytes."""
        self._lock = threading.Lock()
        self._batches: deque[Fetched] = deque()
        self._given: list[_PartlyGiven] = []

    def __bool__(self) -> bool:
        with self._lock:
            self._reclaim()
            return bool(self._batches)

    def size_left(self) -> int:
        """How much may be added for one call, in rows or bytes; nothing when it is 0 or less."""
        with self._lock:
            self._reclaim()
            return self._size_max - sum(self.size(decoded) for _, decoded in self._batches)

    def size(self, decoded: RecordBatch) -> int:
        """How large a batch is, in rows or bytes."""
        return decoded.num_records if self._rows_max is not None else int(decoded.batch.nbytes)

    def add(self, fetched: Fetched) -> None:
        with self._lock:
            self._batches.append(fetched)

    def take(self) -> list[Fetched]:
        """Take what one call gives."""
        taken: list[Fetched] = []
        with self._lock:
            self._reclaim()
            size_left = self._size_max
            while size_left > 0 and self._batches:
                taken.append(self._take_first(size_left))
                size_left -= self.size(taken[-1][1])
        return taken

    def give(self, items_of: Callable[[Fetched], tuple[Iterable[T], Sequence[int]]]) -> Generator[T, None, None]:
        """Give the items of all batches; what is not given when it is left stays here.

        `items_of` makes the items of a batch, and says for each the last offset that it stands for.
        """
        while True:
            with self._lock:
                self._reclaim()
                if not self._batches:
                    return
                given = _PartlyGiven(*self._take_first(self._size_max))
                self._given.append(given)
            try:
                items, given.offsets = items_of((given.subscription, given.decoded))
                for given.items, item in enumerate(items, 1):
                    if given.is_stale:
                        break
                    yield item
            except BaseException:
                # Without the lock: the garbage collector ends an abandoned loop in any thread, also in one that has it.
                given.is_left = True
                raise
            with self._lock:
                self._given.remove(given)

    def drop(self, bucket: TableBucket) -> None:
        """Drop the rows of a bucket."""
        with self._lock:
            self._batches = deque(fetched for fetched in self._batches if fetched[0].bucket != bucket)
            for given in self._given:
                given.is_stale = given.is_stale or given.subscription.bucket == bucket

    def clear(self) -> None:
        """Drop all rows."""
        with self._lock:
            self._batches.clear()
            for given in self._given:
                given.is_stale = True

    def next_offsets(self) -> dict[TableBucket, int]:
        """The first offset of each bucket that the caller does not have."""
        offsets: dict[TableBucket, int] = {}
        with self._lock:
            held = [(given.subscription, rest) for given in self._given if (rest := given.rest()) is not None]
            for subscription, decoded in (*held, *self._batches):
                known = offsets.get(subscription.bucket, decoded.base_offset)
                offsets[subscription.bucket] = min(known, decoded.base_offset)
        return offsets

    def _take_first(self, size_max: int) -> Fetched:
        subscription, decoded = self._batches.popleft()
        if self._rows_max is None or decoded.num_records <= size_max:
            return subscription, decoded
        self._batches.appendleft((subscription, part_of(decoded, size_max, decoded.num_records - size_max)))
        return subscription, part_of(decoded, 0, size_max)

    def _reclaim(self) -> None:
        """Take back what loops that were left did not give."""
        if not self._given:
            return
        for given in [given for given in reversed(self._given) if given.is_left]:
            self._given.remove(given)
            rest = given.rest()
            if rest is not None:
                self._batches.appendleft((given.subscription, rest))
