# SPDX-License-Identifier: Apache-2.0
"""What Spark's optimizer is told of the size of a table: its rows, and the bytes of the columns that are read."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.spark.conftest import BRIDGE, SparkHarness
from tests.waiting import wait_for

from fluss.spark.statistics import read_size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from tests.spark.conftest import Sql

needs_bridge = pytest.mark.skipif(not BRIDGE, reason="without the jar, Spark knows no sizes")
LONG = 4000


def size_of(frame: DataFrame) -> int:
    return int(str(frame._jdf.queryExecution().optimizedPlan().stats().sizeInBytes()))


@needs_bridge
@pytest.mark.parametrize("key", ["", "TBLPROPERTIES ('primary.key' 'id')"])
def test_long_texts_count_with_their_length(sql: Sql, key: str) -> None:
    table = f"fluss.cat.{'keyed' if key else 'logged'}_texts"
    sql(f"CREATE TABLE {table} {key} AS SELECT id, repeat('x', {LONG}) AS text, 'y' AS short FROM range(1000)")
    options = {"bootstrap.servers": sql.harness.bootstrap}
    for frame in (
        sql.spark.table(table),
        sql.spark.read.format("fluss").options(**options).load(table.removeprefix("fluss.")),
    ):
        assert 1000 * LONG < size_of(frame) < 1100 * LONG
        assert size_of(frame.select("id")) == 8000, "as its type says"
        assert 12_000 < size_of(frame.select("id", "short")) < 20_000


@needs_bridge
def test_a_small_table_is_broadcast_and_one_of_long_texts_is_not(harness: SparkHarness) -> None:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    path = harness.create(schema)
    harness.write(harness.spark.range(4000).selectExpr("id", f"repeat('x', {LONG}) as text"), path)
    big = harness.spark.range(10_000_000)
    joins = {
        "id": "BroadcastHashJoin",
        "text": "SortMergeJoin",  # 16 MB, and 10 MB may be broadcast
    }
    for column, kind in joins.items():
        joined = big.join(harness.read(path).select("id", column), "id")
        assert kind in joined._jdf.queryExecution().executedPlan().toString()


@needs_bridge
def test_the_rows_of_a_plain_read_are_counted_without_reading_them(harness: SparkHarness) -> None:
    path = harness.create(pa.schema([("id", pa.int64())]))
    harness.write(harness.spark.range(30), path)
    counted = harness.read(path).groupBy().count()
    assert "BatchScan" not in counted._jdf.queryExecution().executedPlan().toString()
    assert counted.first()[0] == 30


def test_rows_are_sampled_once_and_not_for_a_lookup(harness: SparkHarness) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("text", pa.string())])
    path = harness.create(schema, primary_key=["id"])
    options = {"bootstrap.servers": harness.bootstrap, "table": path}
    assert read_size(options, ["text"]) == {"rows": 0, "row_bytes": None}
    harness.put(path, [{"id": i, "text": "x" * 100} for i in range(10)])
    found = read_size(options, ["text"])
    assert found is not None
    assert 100 < found["row_bytes"] < 110
    harness.put(path, [{"id": i, "text": "x" * LONG} for i in range(10, 20)])
    assert read_size(options, ["text"]) == {"rows": 20, "row_bytes": found["row_bytes"]}
    assert read_size({**options, "scan.filter": "id in (7, 8)"}, ["text"]) == {"rows": 2, "row_bytes": None}
    whole = read_size(options, ["id", "text"])
    assert whole is not None
    assert LONG / 2 < whole["row_bytes"] < LONG, "other columns are another sample"


def is_counted(frame: DataFrame) -> bool:
    """Whether the rows of a frame are counted without reading them."""
    return "BatchScan" not in frame.groupBy().count()._jdf.queryExecution().executedPlan().toString()


def process_of(spark: SparkSession, purpose: str) -> int | None:
    """The process of this Spark that works for `catalogs`, or for `statistics`."""
    driver = spark.sparkContext._gateway.proc.pid
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_text().split("\0")
            if command[-2:-1] == [purpose] and f"PPid:\t{driver}\n" in (folder / "status").read_text():
                return int(folder.name)
        except OSError:
            continue  # it has ended
    return None


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@needs_bridge
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_sizes_wait_for_no_procedure_and_for_seconds_only(sql: Sql) -> None:
    path = sql.harness.create(pa.schema([("id", pa.int64())]))
    frame = sql.harness.read(path)
    assert is_counted(frame)
    catalogs, sizes = (process_of(sql.spark, purpose) for purpose in ("catalogs", "statistics"))
    assert catalogs is not None
    assert sizes is not None
    with stopped(catalogs):
        assert is_counted(frame)
    with stopped(sizes):
        assert not is_counted(frame)
        wait_for(lambda: process_of(sql.spark, "statistics") != sizes)
    assert is_counted(frame), "a new process answers"


@needs_bridge
@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
def test_a_python_that_cannot_tell_sizes_is_tried_once(sql: Sql, tmp_path: Path) -> None:
    frame = sql.harness.read(sql.harness.create(pa.schema([("id", pa.int64())])))
    assert is_counted(frame)
    python, tries = tmp_path / "python", tmp_path / "tries"
    python.write_text(f"#!/bin/sh\necho again >> {tries}\nexit 1\n")
    python.chmod(0o755)
    sizes = process_of(sql.spark, "statistics")
    assert sizes is not None
    conf = sql.spark.sparkContext._jsc.sc().conf()
    conf.set("spark.pyspark.python", str(python))
    try:
        os.kill(sizes, signal.SIGKILL)
        wait_for(lambda: process_of(sql.spark, "statistics") is None)
        assert not is_counted(frame)
        assert not is_counted(frame)
        assert tries.read_text() == "again\n"
    finally:
        conf.remove("spark.pyspark.python")
    assert is_counted(frame)


@needs_bridge
def test_a_stream_has_no_size(harness: SparkHarness, tmp_path: Path) -> None:
    """The table is small when the stream begins: what comes later must not be broadcast for that."""
    path = harness.create(pa.schema([("id", pa.int64())]))
    harness.write(harness.spark.range(3), path)
    joined = harness.stream(path).join(harness.spark.range(2_000_000), "id")
    query = joined.writeStream.format("memory").queryName("joined_sizes").start()
    try:
        query.processAllAvailable()
        assert "SortMergeJoin" in query._jsq.explainInternal(False)
    finally:
        query.stop()
    assert harness.spark.table("joined_sizes").count() == 3
