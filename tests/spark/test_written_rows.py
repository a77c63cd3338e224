# SPDX-License-Identifier: Apache-2.0
"""What earlier attempts wrote is counted exactly, in memory that does not grow with it."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter

import numpy as np

from fluss.spark.written_rows import DigestCounts, digests_of


def test_digests_are_taken_as_often_as_they_were_added() -> None:
    numbers = random.Random(7)
    added = [numbers.randrange(40) for _ in range(500)]
    wanted = [numbers.randrange(60) for _ in range(700)]
    counts = DigestCounts(run_rows=64)
    for start in range(0, len(added), 50):
        counts.add(digests_of(str(n).encode() for n in added[start : start + 50]))
    left = Counter(added)
    for start in range(0, len(wanted), 70):
        part = wanted[start : start + 70]
        taken = counts.take(digests_of(str(n).encode() for n in part))
        for number, found in zip(part, taken):
            assert found == (left[number] > 0)
            left[number] -= bool(found)
    assert counts.left == sum(left.values())


def test_memory_does_not_grow_with_the_rows_of_earlier_attempts() -> None:
    def peak_of(runs: int) -> int:
        tracemalloc.start()
        counts = DigestCounts(run_rows=20_000)
        for run in range(runs):
            counts.add(_random_digests(run, 20_000))
        assert counts.left == runs * 20_000
        assert counts.take(_random_digests(0, 20_000)).all()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    assert peak_of(20) < 1.5 * peak_of(2)


def _random_digests(seed: int, rows: int) -> np.ndarray:  # type: ignore[type-arg]
    # No zero at the end: NumPy cuts those off when it shows a value.
    return (np.random.default_rng(seed).integers(1, 256, (rows, 16), np.uint8)).view("S16").reshape(-1)
