# SPDX-License-Identifier: Apache-2.0
"""Short forms, save modes, and tables that a write creates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import fluss.spark
from fluss.errors import InvalidArgumentError, TableAlreadyExistError
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


def test_save_modes(harness: SparkHarness) -> None:
    frame = harness.spark.range(10).selectExpr("id", "cast(id % 2 as string) as day")
    with_servers = {"bootstrap.servers": harness.bootstrap}
    # Spark's default mode is error: without a table it creates one.
    frame.write.format("fluss").options(**with_servers).option("create.buckets", 3).save("modes.log")
    info = harness.client.info(TablePath("modes", "log"))
    assert (info.num_buckets, info.has_primary_key()) == (3, False)
    for mode in ("error", "errorifexists"):
        with pytest.raises(TableAlreadyExistError, match=r"table modes\.log exists.*mode\('append'\)"):
            frame.write.mode(mode).format("fluss").options(**with_servers).save("modes.log")
    frame.write.format("fluss").mode("ignore").options(**with_servers).save("modes.log")
    assert harness.read("modes.log").count() == 10
    frame.write.save("modes.log", format="fluss", mode="append", **with_servers)
    assert harness.read("modes.log").count() == 20
    keys = {"create.primary-key": "id,day", "create.partitioned-by": "day", "create.bucket-key": "id"}
    harness.write(frame, "modes.keyed", **keys)
    harness.write(frame, "modes.keyed", **keys)
    info = harness.client.info(TablePath("modes", "keyed"))
    assert (info.schema.primary_key, info.get_partition_keys()) == (("id", "day"), ["day"])
    assert harness.read("modes.keyed").count() == 10


def test_other_formats_keep_their_modes(harness: SparkHarness, tmp_path: Path) -> None:
    target = str(tmp_path / "rows")
    harness.spark.range(3).write.mode("error").parquet(target)
    harness.spark.range(9).write.format("parquet").mode("ignore").save(target)
    assert harness.spark.read.parquet(target).count() == 3


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
