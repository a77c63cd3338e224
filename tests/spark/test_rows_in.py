# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from fluss.spark.batches import floor_times

NAMES = {"s": "second", "ms": "millisecond", "us": "microsecond"}


@pytest.mark.parametrize("zone", [None, "UTC", "America/New_York"])
@pytest.mark.parametrize("unit", list(NAMES))
def test_times_are_cut_as_arrow_cuts_them(zone: str | None, unit: str) -> None:
    """Also before 1970, with nulls, in a slice, and in the hour that is repeated when daylight saving ends."""
    numbers = np.random.default_rng(7)
    ticks = numbers.integers(-(10**15), 10**15, 1000)
    ticks[:60] = 1_604_208_600_000_001 + np.arange(60) * 120_000_000  # 2020-11-01 from 01:30 on in New York
    times = pa.array(ticks, mask=numbers.random(1000) < 0.2).view(pa.timestamp("us", zone)).slice(7, 900)
    utc = None if zone is None else "UTC"
    expected = pc.floor_temporal(times.cast(pa.timestamp("us", utc)), unit=NAMES[unit]).cast(pa.timestamp(unit, utc))
    assert floor_times(times, unit).cast(pa.timestamp(unit, utc)).equals(expected)
    assert len(floor_times(times.slice(0, 0), unit)) == 0
    assert floor_times(pa.nulls(2, pa.timestamp("ns", zone)), unit).null_count == 2
