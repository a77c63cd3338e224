# SPDX-License-Identifier: Apache-2.0
"""The bridge: what Spark's optimizer pushes down, update mode, options of the session, and the jar itself."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import BRIDGE
from tests.spark.marks import needs_bridge
from tests.waiting import wait_for

import fluss.spark
from fluss.metadata import Schema
from fluss.metadata.where import parse_where
from fluss.spark.bridge import JAR
from fluss.spark.versions import KNOWS_START, VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession
    from tests.spark.conftest import SparkHarness

ROOT = Path(__file__).resolve().parents[2]
WIDE = pa.schema([("id", pa.int64()), ("k", pa.int32()), *((f"c{i}", pa.string()) for i in range(8))])


@pytest.fixture(scope="module")
def wide(harness: SparkHarness) -> str:
    path = harness.create(WIDE, buckets=2)
    texts = [f"concat('t', id % 5, '{i}') as c{i}" for i in range(8)]
    harness.write(harness.spark.range(1000).selectExpr("id", "cast(id % 7 as int) as k", *texts), path)
    return path


def scan_of(frame: DataFrame) -> str:
    """The part of the physical plan that reads the table."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    found = re.search(r"BatchScan.*", plan)
    assert found is not None, plan
    return found[0]


@needs_bridge
def test_only_the_columns_of_a_query_are_read(harness: SparkHarness, wide: str) -> None:
    frame = harness.read(wide)
    assert frame.count() == 1000
    assert "struct<k:int>" in scan_of(frame.selectExpr("1"))
    assert "struct<id:bigint,c3:string>" in scan_of(frame.select("id", "c3"))
    assert "ColumnarToRow" in frame._jdf.queryExecution().executedPlan().toString()
    assert frame.agg({"id": "sum"}).first()[0] == 499_500
    assert frame.select("c3").distinct().count() == 5


@needs_bridge
def test_filters_of_a_query_reach_the_scan(harness: SparkHarness, wide: str) -> None:
    frame = harness.read(wide)
    chosen = frame.where('k = 3 and id in (3, 10, 11) or c1 = "it\'s"').select("id")
    assert sorted(row.id for row in chosen.collect()) == [3, 10]
    assert "`k` = 3" in scan_of(chosen)
    assert "'it''s'" in scan_of(chosen)
    assert [frame.where("k = 3").count(), frame.count(), frame.where("id >= 990").count()] == [143, 1000, 10]
    joined = frame.alias("a").join(frame.where("k = 1").alias("b"), "id").select("a.c1", "b.c2")
    assert joined.count() == 143


_TEXTS = ("", "a", "ab", "b%", "a_b", "!", "it's", "\\", "é", "ab%")


def _condition(dice: random.Random, depth: int = 0) -> str:
    """A condition in the SQL of Spark, on columns with nulls and texts with characters of patterns."""
    if depth < 3 and dice.random() < 0.5:
        parts = [_condition(dice, depth + 1) for _ in range(2)]
        return dice.choice(("not ({0})", "({0} and {1})", "({0} or {1})")).format(*parts)
    text = dice.choice(_TEXTS).replace("\\", r"\\").replace("'", r"\'")
    number, sign = dice.randrange(-1, 4), dice.choice(("=", "<>", "<", ">=", "<=>"))
    return dice.choice(
        (
            f"s {sign} '{text}'",
            f"n {sign} {number}",
            f"b {sign} true",
            f"d {sign} {number}.5",
            f"x {sign} double('{dice.choice(('NaN', '1'))}')",
            f"{dice.choice(('startswith', 'endswith', 'contains'))}(s, '{text}')",
            f"n {dice.choice(('in', 'not in'))} ({number}, 2)",
            f"{dice.choice('snbdx')} is {dice.choice(('', 'not '))}null",
            f"{dice.choice('snbdx')} <=> null",
        )
    )


@needs_bridge
def test_pushed_conditions_lose_no_row_that_spark_keeps(harness: SparkHarness) -> None:
    dice = random.Random(20261119)
    types = {"s": pa.string(), "n": pa.int32(), "b": pa.bool_(), "d": pa.decimal128(6, 2), "x": pa.float64()}
    schema = pa.schema({"id": pa.int64(), **types})
    path = harness.create(schema, buckets=1)
    rows = [
        {
            "id": i,
            "s": dice.choice((None, *_TEXTS)),
            "n": dice.choice((None, 0, 1, 2, 3)),
            "b": dice.choice((None, True, False)),
            "d": dice.choice((None, Decimal("0.50"), Decimal("2.50"), Decimal("3.00"))),
            "x": dice.choice((None, float("nan"), 1.0, 2.0)),
        }
        for i in range(80)
    ]
    harness.put(path, rows)
    table = pa.Table.from_pylist(rows, schema)
    whole = harness.spark.createDataFrame(harness.read(path).collect(), harness.read(path).schema)
    conditions = [_condition(dice) for _ in range(60)]
    expected = whole.selectExpr(*(f"array_sort(collect_list(if({text}, id, null)))" for text in conditions)).head()
    frame = harness.read(path)
    exact = 0
    for text, ids in zip(conditions, expected):
        pushed = re.search(r"> where (.*?) *RuntimeFilters", scan_of(frame.where(text)))
        kept = table
        if pushed is not None:
            kept = table.filter(parse_where(pushed[1], Schema(schema)).to_arrow_expression(Schema(schema)))
        found = set(kept["id"].to_pylist())
        assert found >= set(ids), (text, pushed)
        exact += pushed is not None and found == set(ids)
    assert exact > 30, "most of them reach the scan as a whole"


@needs_bridge
def test_a_limit_reaches_the_tasks(harness: SparkHarness, wide: str) -> None:
    few = harness.read(wide).select("id").limit(7)
    assert "limit 7" in scan_of(few)
    assert len({row.id for row in few.collect()}) == 7
    assert harness.read(wide).limit(5000).count() == 1000
    filtered = harness.read(wide).where("k = 3").limit(200)
    assert "limit" not in scan_of(filtered).partition("where")[2]
    assert filtered.count() == 143
    assert [row.id for row in harness.read(wide).orderBy("id", ascending=False).limit(2).collect()] == [999, 998]


def test_rows_that_a_filter_names_by_key_are_looked_up(harness: SparkHarness) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("day", pa.string(), False), ("n", pa.int64())])
    path = harness.create(schema, primary_key=["id", "day"], partition_keys=["day"], buckets=3)
    harness.put(path, [{"id": i, "day": "ab"[i % 2], "n": i * 10} for i in range(100)])

    def found(condition: str) -> tuple[int, list[tuple[Any, ...]]]:
        frame = harness.read(path).where(condition) if BRIDGE else harness.read(path, scan__filter=condition)
        return frame.rdd.getNumPartitions(), sorted(map(tuple, frame.collect()))

    assert found("id = 7 and day = 'b'") == (1, [(7, "b", 70)])
    assert found("id in (7, 8, 9) and day in ('a', 'b') and n < 90") == (1, [(7, "b", 70), (8, "a", 80)])
    assert found("id = 7 and day = 'zzz'") == (1, [])
    assert found("id = 7") == (6, [(7, "b", 70)])
    harness.put(path, [], deletes=[{"id": 7, "day": "b"}])
    assert found("id = 7 and day = 'b'") == (1, [])
    ends = json.dumps({"a": {"0": -1}})
    as_of = harness.read(path, endingOffsets=ends, scan__filter="id = 8 and day = 'a'")
    assert as_of.rdd.getNumPartitions() > 1, "a lookup would give rows of now"
    assert as_of.count() == 1


def test_rows_that_are_written_later_are_seen_by_a_frame(harness: SparkHarness) -> None:
    path = harness.create(WIDE, buckets=1)
    harness.put(path, [{"id": 1, "k": 1, **{f"c{i}": "x" for i in range(8)}}])
    frame = harness.read(path)
    assert frame.count() == 1
    options = f"table '{path}', `bootstrap.servers` '{harness.bootstrap}'"
    harness.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW seen USING fluss OPTIONS ({options})")
    assert harness.spark.table("seen").count() == 1
    harness.put(path, [{"id": 2, "k": 2, **{f"c{i}": "x" for i in range(8)}}])
    if BRIDGE:
        assert frame.count() == 2
        assert harness.spark.table("seen").count() == 2
    assert harness.read(path).count() == 2


@needs_bridge
def test_a_stream_in_update_mode_upserts(harness: SparkHarness, tmp_path: Path) -> None:
    source = harness.create(pa.schema([("id", pa.int64()), ("s", pa.string())]), buckets=1)
    target = harness.create(pa.schema([pa.field("s", pa.string(), False), ("n", pa.int64())]), primary_key=["s"])
    totals = harness.stream(source, maxRowsPerTrigger=40).groupBy("s").count().withColumnRenamed("count", "n")
    for first in (0, 70):
        harness.put(source, [{"id": i, "s": f"s{i % 7}"} for i in range(first, first + 70)])
        assert harness.start(totals, target, tmp_path, output_mode="update").awaitTermination(200)
    assert {row.s: row.n for row in harness.read(target).collect()} == {f"s{i}": 20 for i in range(7)}


@needs_bridge
def test_a_session_of_the_user(harness: SparkHarness, wide: str) -> None:
    """Options of the session, tables of the catalog and writes in threads, in a session that only has the jar."""
    spark = harness.spark.newSession()
    spark.conf.set("spark.fluss.bootstrap.servers", harness.bootstrap)
    assert spark.read.format("fluss").load(wide).where("id < 5").count() == 5
    copy = harness.create(WIDE, buckets=1)
    spark.read.format("fluss").load(wide).createOrReplaceTempView("wide")
    spark.sql(f"create table bridged using fluss options (table '{copy}')")
    try:
        spark.sql("insert into bridged select * from wide where k = 2")
        assert spark.table("bridged").count() == 143
        clear = spark._jvm.org.apache.spark.sql.SparkSession.clearActiveSession

        def write() -> None:
            spark.table("bridged").where("id < 20").write.format("fluss").mode("append").save(copy)

        with ThreadPoolExecutor(1, initializer=clear) as pool:
            pool.submit(write).result()
        assert spark.table("bridged").count() == 146
    finally:
        spark.sql("drop table bridged")


@needs_bridge
@pytest.mark.parametrize("address", ["session", "table"])
def test_a_plain_session_with_the_jar_alone(harness: SparkHarness, tmp_path: Path, address: str) -> None:
    """In a process of its own, where neither `session()` nor `configure()` ran, and with a thread of its own."""
    source, target = (harness.create(pa.schema([("id", pa.int64())]), buckets=1) for _ in range(2))
    harness.put(source, [{"id": i} for i in range(20)])
    script = Path(__file__).with_name("plain_session_job.py")
    command = [sys.executable, str(script), harness.bootstrap, source, target, address, str(tmp_path / "warehouse")]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.stdout.splitlines()[-1:] == ["rows: 40"], done.stderr[-3000:]


def test_the_jar_has_the_classes_of_its_sources(tmp_path: Path) -> None:
    if shutil.which("javac") is None:
        pytest.skip("javac is not installed")
    if VERSION < (4, 1):
        pytest.skip("Spark 4.0 runs the classes, but lacks a method that the catalog overrides for later versions")
    version = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True).stdout
    if not version.startswith("javac 17."):
        pytest.skip(f"{version.strip()} may compile to other bytes than that of version 17")
    script: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "build_spark_bridge.py"))
    with zipfile.ZipFile(JAR) as jar:
        found = {name: jar.read(name) for name in jar.namelist()}
    assert found == script["compiled"](), "run: make spark-bridge"
    script["write_jar"](found, tmp_path / "again.jar")
    assert (tmp_path / "again.jar").read_bytes() == JAR.read_bytes()
    assert fluss.spark.bridge_jar() == str(JAR)


@pytest.fixture
def listening(harness: SparkHarness) -> Iterator[SparkSession]:
    """The session with the listener that notes flows, and the server set for the whole application."""
    spark = harness.spark
    listener = spark._jvm.fluss.spark.FlowListener()
    spark.conf.set("spark.fluss.bootstrap.servers", harness.bootstrap)
    spark.sparkContext._jsc.sc().addSparkListener(listener)
    yield spark
    spark.sparkContext._jsc.sc().removeSparkListener(listener)
    spark.conf.unset("spark.fluss.bootstrap.servers")


@needs_bridge
def test_flows_between_tables_are_noted(listening: SparkSession, tmp_path: Path) -> None:
    listening.sql("CREATE DATABASE fluss.flows")
    listening.sql("CREATE TABLE fluss.flows.orders AS SELECT id, id % 3 AS k FROM range(100)")
    listening.sql("CREATE TABLE fluss.flows.copy (id BIGINT, k BIGINT)")
    listening.sql("CREATE TABLE fluss.flows.totals (k BIGINT, n BIGINT) TBLPROPERTIES ('primary.key' 'k')")
    writer = listening.readStream.table("fluss.flows.orders").writeStream.trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(tmp_path)).queryName("copying").toTable("fluss.flows.copy")
    assert query.awaitTermination(200)
    listening.sql("INSERT INTO fluss.flows.totals SELECT k, count(*) FROM fluss.flows.copy GROUP BY k")
    listening.sql("INSERT INTO fluss.flows.totals VALUES (9, 9)")

    def found() -> dict[tuple[str, str], Row]:
        with contextlib.suppress(PySparkException):  # the listener has not created the table yet
            return {(row.flow, row.source): row for row in listening.table("fluss.flows.spark_flows").collect()}
        return {}

    wait_for(lambda: len(found()) == 4, 60)
    rows = found()
    source = "flows.orders" if KNOWS_START else "PythonMicroBatchStream"
    assert {key: row.target for key, row in rows.items()} == {
        ("flows.orders", ""): "flows.orders",
        ("copying", source): "flows.copy",
        ("flows.totals", "flows.copy"): "flows.totals",
        ("flows.totals", ""): "flows.totals",
    }
    assert all(row.rows_per_second > 0 for row in rows.values())
    assert rows["copying", source].lag_rows == (0 if KNOWS_START else None)
    listening.sql("DROP DATABASE fluss.flows CASCADE")
