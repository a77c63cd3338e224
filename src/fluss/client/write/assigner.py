# SPDX-License-Identifier: Apache-2.0
"""Which bucket a row goes to when its table has no bucket key."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from fluss.errors import ConfigError


class Sticky:
    """Stay with one bucket until a batch is complete, then move to another: few and full batches."""

    def __init__(self, num_buckets: int, available: Callable[[], Sequence[int]]) -> None:
        self._num_buckets = num_buckets
        self._available = available
        self._bucket: int | None = None

    def current(self) -> int:
        if self._bucket is None:
            self._bucket = random.choice(self._choices())
        return self._bucket

    def batch_sealed(self) -> None:
        others = [bucket for bucket in self._choices() if bucket != self._bucket]
        if others:
            self._bucket = random.choice(others)

    def _choices(self) -> Sequence[int]:
        return self._available() or range(self._num_buckets)


class RoundRobin:
    """Every row to the next bucket in turn. `current` starts a run; rows follow it one by one."""

    def __init__(self, num_buckets: int, available: Callable[[], Sequence[int]]) -> None:
        self._num_buckets = num_buckets
        self._available = available
        self._next = random.randrange(2**31)

    def current(self) -> int:
        return self.take(1)[0]

    def take(self, rows: int) -> list[int]:
        choices = self._available() or range(self._num_buckets)
        first, self._next = self._next, (self._next + rows) & 0x7FFFFFFF
        return [choices[(first + i) % len(choices)] for i in range(rows)]

    def batch_sealed(self) -> None:
        return


def make_assigner(kind: str, num_buckets: int, available: Callable[[], Sequence[int]]) -> Sticky | RoundRobin:
    """The assigner that `writer.bucket.no-key-assigner` names."""
    if kind == "sticky":
        return Sticky(num_buckets, available)
    if kind == "round_robin":
        return RoundRobin(num_buckets, available)
    raise ConfigError(f"'writer.bucket.no-key-assigner' is {kind!r}; allowed are 'sticky' and 'round_robin'")
