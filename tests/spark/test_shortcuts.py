# SPDX-License-Identifier: Apache-2.0
"""Short forms, and tables that a write creates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException

import fluss.spark
from fluss.errors import InvalidArgumentError
from fluss.metadata import TablePath

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness


def test_read_takes_columns_and_a_condition(harness: SparkHarness) -> None:
    path = harness.create(pa.schema([("id", pa.int64()), ("v", pa.int64()), ("s", pa.string())]), buckets=1)
    harness.put(path, [{"id": i, "v": i % 3, "s": "x"} for i in range(30)])
    frame = fluss.spark.read(harness.spark, path, harness.bootstrap, columns=["id"], where="v = 1 and id > 10")
    assert (frame.columns, sorted(row.id for row in frame.collect())) == (["id"], [13, 16, 19, 22, 25, 28])
    with pytest.raises(InvalidArgumentError, match="columns takes a list"):
        fluss.spark.read(harness.spark, path, harness.bootstrap, columns="id")


def test_large_buckets_of_log_tables_are_read_by_several_tasks(harness: SparkHarness) -> None:
    path = harness.create(pa.schema([("id", pa.int64())]), buckets=1)
    writer = harness.writer(path)
    for start in range(0, 1_100_000, 100_000):
        writer.write_arrow_batch(pa.record_batch([pa.array(range(start, start + 100_000))], ["id"]))
    harness.client.run(writer.flush())
    frame = harness.read(path)
    assert frame.rdd.getNumPartitions() == 2
    assert frame.selectExpr("count(*)", "sum(id)").collect() == [(1_100_000, sum(range(1_100_000)))]
    assert harness.read(path, scan__maxRecordsPerPartition=2_000_000).rdd.getNumPartitions() == 1


def test_a_write_creates_its_table(harness: SparkHarness) -> None:
    frame = harness.spark.range(10).selectExpr("id", "cast(id % 2 as string) as day")
    keys = {"create.primary-key": "id,day", "create.partitioned-by": "day", "create.bucket-key": "id"}
    harness.write(frame, "modes.keyed", **keys)
    harness.write(frame, "modes.keyed", **keys)
    info = harness.client.info(TablePath("modes", "keyed"))
    assert (info.schema.primary_key, info.get_partition_keys()) == (("id", "day"), ["day"])
    assert harness.read("modes.keyed").count() == 10
    for mode in ("error", "ignore"):
        with pytest.raises(PySparkException, match=r"(?i)append.*overwrite"):
            harness.write(frame, "modes.keyed", mode)


def test_upsert_stream_keeps_an_aggregation_up_to_date(harness: SparkHarness, tmp_path: Path) -> None:
    path = harness.create(pa.schema([("id", pa.int64()), ("k", pa.string())]), buckets=1)
    harness.put(path, [{"id": i, "k": "ab"[i % 2]} for i in range(10)])

    def run() -> None:
        counts = fluss.spark.read(harness.spark, path, harness.bootstrap, stream=True).groupBy("k").count()
        query = fluss.spark.upsert_stream(
            counts,
            "modes.counts",
            harness.bootstrap,
            checkpoint=str(tmp_path),
            trigger={"availableNow": True},
            options={"create.primary-key": "k"},
        )
        assert query.awaitTermination(60)

    run()
    harness.put(path, [{"id": 10, "k": "a"}])
    run()
    assert sorted(map(tuple, harness.read("modes.counts").collect())) == [("a", 6), ("b", 5)]
    with pytest.raises(InvalidArgumentError, match="is a log table, which takes no updates"):
        fluss.spark.upsert_stream(
            harness.stream(path), path, harness.bootstrap, checkpoint=str(tmp_path / "log"), trigger={"once": True}
        )
    with pytest.raises(InvalidArgumentError, match="takes a stream"):
        fluss.spark.upsert_stream(harness.read(path), path, harness.bootstrap, checkpoint=str(tmp_path))
