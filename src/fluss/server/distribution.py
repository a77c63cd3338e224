# SPDX-License-Identifier: Apache-2.0
"""How a figure is distributed, counted by powers of two: an exact histogram would cost several times as much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_SLOTS = 64


def percentile_ms(slots: Sequence[int], part: float) -> float | None:
    """The time within which a part of the requests was answered, at most twice too much; None without requests."""
    wanted = sum(slots) * part
    below = 0
    for slot, count in enumerate(slots):
        if count and below + count >= wanted:
            floor_us, width_us = (2.0 ** (slot - 1), 2.0 ** (slot - 1)) if slot else (0.0, 1.0)
            return (floor_us + width_us * (wanted - below) / count) / 1000
        below += count
    return None


class Distribution:
    """Counts values in slots: slot n has those with n bits, which are below 2**n.

    Args:
        scale: What a value is multiplied by to get the unit that is reported.
        first: The slot whose upper bound is reported first; there are no values much below it.
    """

    __slots__ = ("_first", "_scale", "count", "slots", "total")

    def __init__(self, scale: float, first: int) -> None:
        self._scale = scale
        self._first = first
        self.slots = [0] * _SLOTS
        self.count = 0
        self.total = 0.0
        """The sum of all values, in the unit that is reported."""

    @classmethod
    def of_latencies(cls) -> Distribution:
        """Milliseconds, counted in microseconds. The first bound is 64 µs: nothing is answered much quicker."""
        return cls(0.001, 6)

    @classmethod
    def of_sizes(cls) -> Distribution:
        """Bytes. The first bound is 64 bytes."""
        return cls(1.0, 6)

    def add_seconds(self, seconds: float) -> None:
        self.slots[int(seconds * 1e6).bit_length()] += 1
        self.count += 1
        self.total += seconds * 1000

    def add_bytes(self, size_bytes: int) -> None:
        self.slots[size_bytes.bit_length()] += 1
        self.count += 1
        self.total += size_bytes

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Upper bounds that double, and how many values are below each."""
        last = max((slot for slot, count in enumerate(self.slots) if count), default=0)
        for slot in range(min(self._first, last), last + 1):
            yield 2.0**slot * self._scale, sum(self.slots[: slot + 1])
