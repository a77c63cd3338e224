# SPDX-License-Identifier: Apache-2.0
"""Lanes of buckets that are written no longer are evicted, and nothing is lost or doubled for it."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.client.support import open_table, read_all

from fluss.client.write import lane as lane_module
from fluss.client.write.lane import Lanes, WriteTarget
from fluss.metadata import TablePath

TARGET = WriteTarget(TablePath("db", "t"), 1, is_kv=False)


def test_only_lanes_that_were_not_used_for_long_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "_LANES_MIN", 10)
    lanes = Lanes()
    busy = lanes.use(TARGET, "day", 0, 0.0)
    busy.queue.append(None)  # type: ignore[arg-type]
    for number in range(1, 9):
        lanes.use(TARGET, "day", number, 0.0)
    recent = lanes.use(TARGET, "day", 9, 500.0)
    lanes.writer_ids[TARGET] = 7
    assert lanes.use(TARGET, "day", 9, 650.0) is recent
    assert lanes.writer_ids == {TARGET: 7}
    new = lanes.use(TARGET, "next day", 0, 700.0)
    assert list(lanes) == [busy, recent, new]
    assert lanes.writer_ids == {}, "a lane that comes back must not count from 0 under the same id"


def test_memory_is_that_of_the_lanes_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes = Lanes()
    for hour in range(1_000):
        for bucket in range(16):
            lanes.use(TARGET, str(hour), bucket, hour * 3600.0)
    assert len(list(lanes)) <= lane_module._LANES_MIN
    monkeypatch.setattr(lane_module, "_IDLE_S_MAX", 1e9)
    kept = Lanes()
    for bucket in range(5_000):
        kept.use(TARGET, None, bucket, float(bucket))
    assert len(list(kept)) == 5_000, "all in use"


async def test_a_bucket_is_written_again_after_its_lane_was_forgotten(config, database, monkeypatch):  # type: ignore[no-untyped-def]
    monkeypatch.setattr(lane_module, "_LANES_MIN", 0)
    monkeypatch.setattr(lane_module, "_IDLE_S_MAX", -1.0)
    async with open_table(config, database, [("id", pa.int64()), ("name", pa.string())], bucket_count=4) as (_, table):
        writer = table.new_append().create_writer()
        for number in range(60):
            await writer.append((number, "x")).wait()  # one batch each, to one bucket after the other
            if number % 7 == 0:
                writer = table.new_append().create_writer()
        assert sorted((await read_all(table)).column("id").to_pylist()) == list(range(60))
