# SPDX-License-Identifier: Apache-2.0
"""Batches that a scanner fetched and its caller does not have yet.

They belong to the scanner until the moment they are handed over. A poll that is cancelled and a loop that is left early
put back what they took, so the next one gives it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

from fluss.client.scan.decode import Decoded
from fluss.client.scan.subscription import Subscription
from fluss.metadata import TableBucket

T = TypeVar("T")
Fetched = tuple[Subscription, Decoded]


class _PartlyGiven:
    """A batch whose rows a loop gives one by one."""

    __slots__ = ("decoded", "rows", "stale", "subscription")

    def __init__(self, subscription: Subscription, decoded: Decoded) -> None:
        self.subscription = subscription
        self.decoded = decoded
        self.rows = 0
        """How many the caller has."""
        self.stale = False
        """Whether the bucket was unsubscribed, or subscribed elsewhere."""

    def rest(self) -> Decoded | None:
        left = self.decoded.rows - self.rows
        return self.decoded.slice(self.rows, left) if left > 0 and not self.stale else None


class FetchedBatches:
    """A queue of batches. They are added on the loop, and taken in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: deque[Fetched] = deque()
        self._given: set[_PartlyGiven] = set()

    def __bool__(self) -> bool:
        return bool(self._batches)

    def add(self, fetched: Fetched) -> None:
        with self._lock:
            self._batches.append(fetched)

    def take(self, rows_max: int | None) -> Fetched | None:
        """Take the next batch, or its first rows; None if there is none."""
        with self._lock:
            return self._take(rows_max)

    def _take(self, rows_max: int | None) -> Fetched | None:
        if not self._batches:
            return None
        subscription, decoded = self._batches.popleft()
        if rows_max is None or decoded.rows <= rows_max:
            return subscription, decoded
        self._batches.appendleft((subscription, decoded.slice(rows_max, decoded.rows - rows_max)))
        return subscription, decoded.slice(0, rows_max)

    def put_back(self, taken: Sequence[Fetched], is_current: Callable[[Subscription], bool]) -> None:
        """Put back what was taken and not handed over, unless its bucket was subscribed anew meanwhile."""
        with self._lock:
            self._batches.extendleft(fetched for fetched in reversed(taken) if is_current(fetched[0]))

    def give(
        self, rows_max: int | None, items: Callable[[Fetched], Iterable[T]], *, one_by_one: bool
    ) -> Generator[T, None, None]:
        """Give the items of all batches. Left early, it puts back the rows that were not given.

        With `one_by_one` an item is a row; else those of a batch cannot be told apart, and count as given together.
        """
        while True:
            with self._lock:
                taken = self._take(rows_max)
                if taken is None:
                    return
                given = _PartlyGiven(*taken)
                self._given.add(given)
            try:
                if not one_by_one:
                    given.rows = given.decoded.rows
                for item in items(taken):
                    if given.stale:
                        break
                    given.rows += 1
                    yield item
            finally:
                with self._lock:
                    self._given.discard(given)
                    if (rest := given.rest()) is not None:
                        self._batches.appendleft((given.subscription, rest))

    def drop(self, bucket: TableBucket) -> None:
        """Forget the rows of a bucket."""
        with self._lock:
            self._batches = deque(fetched for fetched in self._batches if fetched[0].bucket != bucket)
            for given in self._given:
                given.stale = given.stale or given.subscription.bucket == bucket

    def clear(self) -> None:
        """Forget all rows."""
        with self._lock:
            self._batches.clear()
            for given in self._given:
                given.stale = True

    def next_offsets(self) -> dict[TableBucket, int]:
        """The first offset of each bucket that the caller does not have."""
        offsets: dict[TableBucket, int] = {}
        with self._lock:
            held = [(given.subscription, rest) for given in self._given if (rest := given.rest()) is not None]
            for subscription, decoded in (*held, *self._batches):
                known = offsets.get(subscription.bucket, decoded.first_offset)
                offsets[subscription.bucket] = min(known, decoded.first_offset)
        return offsets
