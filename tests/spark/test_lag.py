# SPDX-License-Identifier: Apache-2.0
"""How far a stream is behind, in its progress and in Prometheus."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.spark.marks import needs_start
from tests.waiting import wait_for

from fluss.spark.metrics import LagListener, lag_in

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

prometheus = pytest.importorskip("prometheus_client")


@needs_start
def test_lag_by_bucket_in_progress_and_in_prometheus(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(pa.schema([("id", pa.int64())]), buckets=1)
    harness.put(path, [{"id": i} for i in range(10)])
    registry = prometheus.CollectorRegistry()
    listener = LagListener(registry)
    harness.spark.streams.addListener(listener)
    labels = {"query": "behind", "source": "0", "bucket": "0"}
    started = time.time()
    try:
        query = (
            harness.stream(path, maxRowsPerTrigger=4)
            .writeStream.format("noop")
            .queryName("behind")
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        seen = [json.loads(step["sources"][0]["latestOffset"]) for step in query.recentProgress]
        with_rows = seen[:3]
        assert [one["rows_behind"] for one in with_rows] == [6, 2, 0]
        assert [one["lag"]["0"]["rows"] for one in with_rows] == [6, 2, 0]
        age_ms = (time.time() - started) * 1000 + 60_000
        assert 0 < with_rows[0]["lag"]["0"]["ms"] < age_ms
        assert with_rows[0]["ms_behind"] == with_rows[0]["lag"]["0"]["ms"]
        assert with_rows[2]["lag"]["0"]["ms"] == 0
        # The query has ended, so its gauges go.
        wait_for(lambda: listener._known == {} and not listener._names)
        assert registry.get_sample_value("fluss_spark_lag_rows", labels) is None
    finally:
        harness.spark.streams.removeListener(listener)


@needs_start
def test_gauges_follow_the_progress_of_a_query(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(pa.schema([("id", pa.int64())]), buckets=1)
    harness.put(path, [{"id": i} for i in range(10)])
    registry = prometheus.CollectorRegistry()
    listener = LagListener(registry)
    harness.spark.streams.addListener(listener)
    writer = harness.stream(path, maxRowsPerTrigger=4).writeStream.format("noop").queryName("live")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 second").start()
    labels = {"query": "live", "source": "0", "bucket": "0"}
    try:
        wait_for(lambda: registry.get_sample_value("fluss_spark_lag_rows", labels) == 0)
        assert registry.get_sample_value("fluss_spark_lag_seconds", labels) == 0
        assert registry.get_sample_value("fluss_spark_batch_seconds", {"query": "live"}) > 0
    finally:
        query.stop()
        harness.spark.streams.removeListener(listener)


def test_other_sources_have_no_lag() -> None:
    assert [lag_in(text) for text in (None, "", "7", '{"a": 1}', "not json", '{"lag": 3}')] == [{}] * 6
