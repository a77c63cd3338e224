# SPDX-License-Identifier: Apache-2.0
"""What Spark's optimizer is told of the size of a table: its rows, and the bytes of the columns that are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.spark.conftest import BRIDGE, SparkHarness

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
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


@needs_bridge
def test_a_stream_has_no_size(harness: SparkHarness, tmp_path: Path) -> None:
    """The table is small when the stream begins: what comes later must not be broadcast for that."""
    path = harness.create(pa.schema([("id", pa.int64())]))
    harness.write(harness.spark.range(3), path)
    joined = harness.stream(path).join(harness.spark.range(10_000_000), "id")
    query = joined.writeStream.format("memory").queryName("joined_sizes").start()
    try:
        query.processAllAvailable()
        assert "SortMergeJoin" in query._jsq.explainInternal(False)
    finally:
        query.stop()
    assert harness.spark.table("joined_sizes").count() == 3
