# SPDX-License-Identifier: Apache-2.0
"""What the catalog lets Spark leave out: rows to count, partitions to read; and tables as of a time."""

from __future__ import annotations

import datetime
import time
from typing import TYPE_CHECKING

import pytest
from tests.spark.conftest import BRIDGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from tests.spark.conftest import Sql

pytestmark = pytest.mark.skipif(not BRIDGE, reason="the tests run without the jar, which has the catalog")


def plan_of(frame: DataFrame) -> str:
    return str(frame._jdf.queryExecution().executedPlan().toString())


def test_the_rows_of_a_log_table_are_counted_without_reading_them(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.counted (id BIGINT, day STRING) PARTITIONED BY (day)")
    sql("INSERT INTO fluss.cat.counted SELECT id, cast(id % 3 AS STRING) FROM range(30)")
    frame = sql.spark.table("fluss.cat.counted")
    assert "BatchScan" not in plan_of(frame.groupBy().count())
    assert frame.count() == 30
    sql("INSERT INTO fluss.cat.counted VALUES (30, 'x')")
    assert frame.count() == 31, "the same frame"
    assert sql.spark.read.option("scan.partitions", "0,x").table("fluss.cat.counted").count() == 11
    for condition in ("day = '1'", "day <> 'x' and day like '1%'", "not day in ('0', '2', 'x')"):
        of_partitions = sql.spark.sql(f"SELECT count(*) FROM fluss.cat.counted WHERE {condition}")
        assert "BatchScan" not in plan_of(of_partitions)
        assert of_partitions.collect() == [(10,)]
        rows = sql.spark.table("fluss.cat.counted").where(condition)
        assert "Filter (" not in plan_of(rows), "Spark does not test again which partition a row lies in"
        assert sorted(row.id for row in rows.collect()) == list(range(1, 30, 3))
    for rows_needed in (
        "SELECT count(*) FROM fluss.cat.counted WHERE day = '1' AND id >= 0",
        "SELECT count(day) FROM fluss.cat.counted WHERE day = '1' AND id IS NOT NULL",
        "SELECT count(*) FROM (SELECT * FROM fluss.cat.counted WHERE day = '1' LIMIT 10)",
        "SELECT max(n) FROM (SELECT day, count(*) AS n FROM fluss.cat.counted GROUP BY day)",
    ):
        assert "BatchScan" in plan_of(sql.spark.sql(rows_needed))
        assert sql(rows_needed) == [(10,)]
    sql("CREATE TABLE fluss.cat.keys TBLPROPERTIES ('primary.key' 'id') AS SELECT id % 10 AS id FROM range(40)")
    assert sql("SELECT count(*) FROM fluss.cat.keys") == [(10,)]


def test_rows_are_read_where_the_name_of_a_partition_is_no_value(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.numbered PARTITIONED BY (n) AS SELECT id, 1 AS n FROM range(10)")
    counted = "SELECT count(*) FROM fluss.cat.numbered WHERE n > 0"
    assert "BatchScan" not in plan_of(sql.spark.sql(counted))
    client = sql.harness.client
    client.run(client.admin.create_partition(sql.info("cat.numbered").table_path, {"n": "x"}))
    assert "BatchScan" in plan_of(sql.spark.sql(counted))
    assert sql(counted) == [(10,)]


def test_tables_as_of_a_time(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.then (id BIGINT, n INT) TBLPROPERTIES ('primary.key' 'id')")
    sql("CREATE TABLE fluss.cat.then_log (id BIGINT, n INT)")
    for table in ("then", "then_log"):
        sql(f"INSERT INTO fluss.cat.{table} VALUES (1, 10), (2, 20)")
    before = _next_moment()
    sql("INSERT INTO fluss.cat.then_log VALUES (3, 30)")
    sql("INSERT INTO fluss.cat.then VALUES (2, 21), (3, 30)")
    sql("DELETE FROM fluss.cat.then WHERE id = 1")
    for table, now in {"then": [(2, 21), (3, 30)], "then_log": [(1, 10), (2, 20), (3, 30)]}.items():
        assert sql.rows(f"cat.{table}") == now
        assert sql(f"SELECT * FROM fluss.cat.{table} TIMESTAMP AS OF '{before}'") == [(1, 10), (2, 20)]
        assert sql(f"SELECT n FROM fluss.cat.{table} TIMESTAMP AS OF '{before}' WHERE id = 2") == [(20,)]
        assert sql(f"SELECT count(*) FROM fluss.cat.{table} TIMESTAMP AS OF '{before}'") == [(2,)]
        assert sql(f"SELECT * FROM fluss.cat.{table} TIMESTAMP AS OF '2020-01-01'") == []


def _next_moment() -> str:
    """A time after all commits so far, and before all later ones."""
    now_ms = int(time.time() * 1000) + 1
    while time.time() * 1000 <= now_ms:
        time.sleep(0.001)
    moment = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.timezone.utc)
    return moment.isoformat(sep=" ", timespec="milliseconds")


def test_only_the_partitions_that_a_join_needs_are_read(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.facts (id BIGINT, day STRING) PARTITIONED BY (day)")
    sql("INSERT INTO fluss.cat.facts SELECT id, cast(id % 5 AS STRING) FROM range(1000)")
    sql("CREATE TABLE fluss.cat.days AS SELECT cast(id AS STRING) AS day, id AS n FROM range(5)")
    query = "SELECT /*+ BROADCAST(d) */ f.id FROM fluss.cat.facts f JOIN fluss.cat.days d ON f.day = d.day WHERE n = 2"
    joined = sql.spark.sql(query)
    assert "dynamicpruning" in plan_of(joined)
    assert sorted(row.id for row in joined.collect()) == list(range(2, 1000, 5))
    assert sql.spark.table("fluss.cat.facts").rdd.getNumPartitions() == 5
    assert joined.rdd.getNumPartitions() == 1, "the tasks of one partition of five"


def test_partitions_that_have_new_rows_are_replaced(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.dynamic (n INT, day STRING) PARTITIONED BY (day)")
    sql("INSERT INTO fluss.cat.dynamic VALUES (1, 'mon'), (2, 'tue'), (3, 'wed')")
    new = sql.spark.sql("SELECT 8 AS n, 'tue' AS day UNION ALL SELECT 9, 'thu'")
    new.writeTo("fluss.cat.dynamic").overwritePartitions()
    assert sql.rows("cat.dynamic") == [(1, "mon"), (3, "wed"), (8, "tue"), (9, "thu")]
    sql.spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        sql("INSERT OVERWRITE fluss.cat.dynamic SELECT n + 1, day FROM fluss.cat.dynamic WHERE day = 'mon'")
    finally:
        sql.spark.conf.unset("spark.sql.sources.partitionOverwriteMode")
    assert sql.rows("cat.dynamic") == [(2, "mon"), (3, "wed"), (8, "tue"), (9, "thu")]
    sql("CREATE TABLE fluss.cat.plain AS SELECT 1 AS n")
    sql.spark.sql("SELECT 2 AS n").writeTo("fluss.cat.plain").overwritePartitions()
    assert sql.rows("cat.plain") == [(2,)]


def test_fields_within_a_column(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.nested AS SELECT id, named_struct('a', id * 2, 'b', 'x') AS s FROM range(3)")
    assert sql("SELECT s.a FROM fluss.cat.nested WHERE s.b = 'x'") == [(0,), (2,), (4,)]


def test_times_of_the_julian_calendar_are_filtered_by_their_instant(sql: Sql) -> None:
    sql.spark.conf.set("spark.sql.session.timeZone", "America/Los_Angeles")
    try:
        sql("CREATE TABLE fluss.cat.old (ts TIMESTAMP)")
        for day in ("1500-01-01", "1850-01-01", "2024-01-01"):
            sql(f"INSERT INTO fluss.cat.old VALUES (timestamp'{day}')")
            assert sql(f"SELECT date_format(ts, 'y-MM-dd') FROM fluss.cat.old WHERE ts = timestamp'{day}'") == [(day,)]
    finally:
        sql.spark.conf.unset("spark.sql.session.timeZone")


def test_days_before_the_first_year_are_found(sql: Sql) -> None:
    sql("CREATE TABLE fluss.cat.ides AS SELECT date'-0043-03-15' AS day, 1 AS n")
    assert sql("SELECT n FROM fluss.cat.ides WHERE day = date'-0043-03-15'") == [(1,)]
    sql("CREATE TABLE fluss.cat.reigns PARTITIONED BY (day) AS SELECT date'2024-01-15' AS day, 1 AS n")
    for condition in ("day > date'-0043-03-15'", "day in (date'2024-01-15', date'+10000-01-01')"):
        assert sql(f"SELECT n FROM fluss.cat.reigns WHERE {condition}") == [(1,)]
