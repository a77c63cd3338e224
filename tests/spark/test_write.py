# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.spark.conftest import BRIDGE, SparkHarness

import fluss.spark
from fluss.metadata import Schema, TablePath
from fluss.spark.overwrite import Overwrite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVENTS = pa.schema([("id", pa.int64()), ("v", pa.float64()), ("s", pa.string())])
USERS = pa.schema([pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("age", pa.int64())])


def users(harness: SparkHarness, path: str) -> dict[int, tuple[Any, Any]]:
    return {row.id: (row.name, row.age) for row in harness.read(path).collect()}


def test_append(harness: SparkHarness) -> None:
    path = harness.create(EVENTS, buckets=3)
    frame = harness.spark.range(1000).selectExpr("concat('s', id) as s", "id", "cast(id as double) / 2 as v")
    harness.write(frame, path)
    harness.write(frame, path)
    rows = harness.read(path).collect()
    assert len(rows) == 2000
    assert {(row.id, row.v, row.s) for row in rows} == {(i, i / 2, f"s{i}") for i in range(1000)}


@pytest.mark.parametrize("key", [[], ["id"]], ids=["log", "primary key"])
def test_rows_that_become_long_half_way(harness: SparkHarness, key: list[str]) -> None:
    """With the bridge, a task writes them in parts: each has at most the bytes that a batch may have."""
    name = "spark.sql.execution.arrow.maxBytesPerBatch"
    usual = harness.spark.conf.get(name)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())])
    path = harness.create(schema, primary_key=key)
    long = "id between 500 and 800 or id = 1100"
    frame = harness.spark.range(0, 1200, 1, 1).selectExpr("id", f"repeat('x', if({long}, 20000 + id, 3)) as s")
    harness.spark.conf.set(name, "1m")
    try:
        harness.write(frame, path)
        harness.write(frame.limit(0), path)
    finally:
        harness.spark.conf.set(name, usual)
    lengths = sorted((row.id, len(row.s)) for row in harness.read(path).collect())
    assert lengths == [(i, 20000 + i if 500 <= i <= 800 or i == 1100 else 3) for i in range(1200)]


def test_parts_of_a_task_are_refused_where_rows_are_written_once(harness: SparkHarness) -> None:
    path = harness.create(EVENTS)
    write = harness.spark.range(3).write.format("fluss").mode("append").option("write.parts", "true")
    write = write.option("bootstrap.servers", harness.bootstrap)
    for once in ({"txnAppId": "job", "txnVersion": "1"}, {"write.delivery": "exactly-once"}):
        with pytest.raises(PySparkException, match="needs that a task writes its rows in one part"):
            write.options(**once).save(path)
    assert harness.read(path).count() == 0


def test_columns_are_matched_in_any_case_and_missing_ones_are_null(harness: SparkHarness) -> None:
    path = harness.create(EVENTS)
    harness.write(harness.spark.range(3).selectExpr("id as ID"), path)
    assert sorted((row.id, row.v, row.s) for row in harness.read(path).collect()) == [(i, None, None) for i in range(3)]


def test_upsert_and_delete(harness: SparkHarness) -> None:
    path = harness.create(USERS, primary_key=["id"])
    frame = harness.spark.range(10).selectExpr("id", "concat('u', id) as name", "id as age")
    harness.write(frame, path)
    harness.write(frame.selectExpr("id", "name", "age + 100 as age").where("id < 3"), path, write__mode="upsert")
    harness.write(harness.spark.range(8, 12).selectExpr("id"), path, write__mode="delete")
    expected = {i: (f"u{i}", i + 100 if i < 3 else i) for i in range(8)}
    assert users(harness, path) == expected
    assert harness.lookup(path, {"id": 2}) == {"id": 2, "name": "u2", "age": 102}


def test_partial_update(harness: SparkHarness) -> None:
    path = harness.create(USERS, primary_key=["id"])
    harness.put(path, [{"id": 1, "name": "one", "age": 1}, {"id": 2, "name": "two", "age": 2}])
    harness.write(harness.spark.range(1, 4).selectExpr("id", "id * 10 as age"), path, write__columns="id,age")
    assert users(harness, path) == {1: ("one", 10), 2: ("two", 20), 3: (None, 30)}


@pytest.mark.parametrize("alternating", [False, True])
def test_row_kinds(harness: SparkHarness, alternating: bool) -> None:
    path = harness.create(USERS, primary_key=["id"], buckets=1)
    rows = [
        (1, "a", 1, "+I"),
        (2, "b", 2, "insert"),
        (1, "a", 1, "-U"),
        (1, "a2", 11, "+U"),
        (2, "b", 2, "-D"),
        (3, "c", 3, "update_after"),
    ]
    if alternating:
        rows += [(100 + i // 2, f"x{i}", i, "-D" if i % 2 else "+I") for i in range(80)]
        rows += [(100, "back", 1, "+I")]
    frame = harness.spark.createDataFrame(rows, "id long, name string, age long, op string").coalesce(1)
    harness.write(frame, path, rowkind__column="op")
    expected: dict[int, tuple[str, int]] = {1: ("a2", 11), 3: ("c", 3)}
    assert users(harness, path) == (expected | {100: ("back", 1)} if alternating else expected)
    bad = harness.spark.createDataFrame([(1, "a", 1, "?")], "id long, name string, age long, op string")
    with pytest.raises(PySparkException, match="is no kind of row"):
        harness.write(bad, path, rowkind__column="op")


def test_dynamic_partitions_and_overwrite(harness: SparkHarness) -> None:
    path = harness.create(pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_keys=["day"])
    frame = harness.spark.range(12).selectExpr("id", "concat('d', id % 3) as day")
    harness.write(frame, path)
    assert harness.read(path).where("day = 'd2'").count() == 4
    one = harness.spark.range(100, 102).selectExpr("id", "'d1' as day")
    harness.write(one, path, "overwrite", overwrite__partitions="d1")
    assert sorted(row.id for row in harness.read(path).where("day = 'd1'").collect()) == [100, 101]
    assert harness.read(path).count() == 10
    harness.write(one, path, "overwrite")
    assert harness.read(path).count() == 2


def test_overwrite_replaces_all_rows_but_not_when_the_frame_does_not_fit(harness: SparkHarness) -> None:
    path = harness.create(USERS, primary_key=["id"])
    frame = harness.spark.range(5).selectExpr("id", "'x' as name", "id as age")
    harness.write(frame, path)
    with pytest.raises(PySparkException, match="has a column 'more'"):
        harness.write(frame.selectExpr("*", "1 as more"), path, "overwrite")
    assert len(users(harness, path)) == 5
    harness.write(frame.where("id > 3"), path, "overwrite")
    assert users(harness, path) == {4: ("x", 4)}


def tables_of(harness: SparkHarness) -> set[str]:
    return set(harness.client.run(harness.client.admin.list_tables("fluss")))


@pytest.mark.parametrize("key", [["id"], []], ids=["primary key", "log"])
def test_a_table_can_be_overwritten_with_a_query_on_itself(harness: SparkHarness, key: list[str]) -> None:
    path = harness.create(USERS, primary_key=key)
    before = tables_of(harness)
    harness.write(harness.spark.range(50).selectExpr("id", "'x' as name", "id as age"), path)
    harness.write(harness.read(path).where("id < 20").selectExpr("id", "name", "age + 1 as age"), path, "overwrite")
    assert users(harness, path) == {i: ("x", i + 1) for i in range(20)}
    assert tables_of(harness) == before


def test_an_overwrite_that_fails_leaves_the_old_rows(harness: SparkHarness) -> None:
    path = harness.create(pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_keys=["day"])
    frame = harness.spark.range(20).selectExpr("id", "concat('d', id % 2) as day")
    harness.write(frame, path)
    before = tables_of(harness)
    failing = frame.selectExpr("if(id = 19, raise_error('broken off on purpose'), id) as id", "day")
    of_no_partition = frame.selectExpr("id", "if(id = 19, 'a/b', day) as day")
    for bad, reason in ((failing, "broken off on purpose"), (of_no_partition, "partition column 'day'")):
        for options in ({}, {"overwrite__partitions": "d1"}):
            with pytest.raises(PySparkException, match=reason):
                harness.write(bad, path, "overwrite", **options)
            assert sorted(row.id for row in harness.read(path).collect()) == list(range(20))
    with pytest.raises(PySparkException, match="belongs to partition 'd0', which is not replaced"):
        harness.write(frame, path, "overwrite", overwrite__partitions="d1")
    assert sorted(row.id for row in harness.read(path).collect()) == list(range(20))
    assert tables_of(harness) == before


def test_an_overwrite_that_fails_half_way_keeps_the_new_rows_beside_the_table(spark: SparkSession) -> None:
    with fluss.LocalServer(options={"max.partition.num": "2"}) as server:
        other = SparkHarness(server, spark)
        path = other.create(pa.schema([("id", pa.int64()), ("day", pa.string())]), partition_keys=["day"])
        frame = spark.range(3).selectExpr("id", "concat('d', id) as day")
        other.write(frame.where("id < 2"), path)
        with pytest.raises(PySparkException, match=r"All new rows are in table fluss\.t.*__overwrite_"):
            other.write(frame, path, "overwrite")
        [kept] = [name for name in tables_of(other) if "__overwrite_" in name]
        assert sorted(row.id for row in other.read(f"fluss.{kept}").collect()) == [0, 1, 2]
        other.client.close()


def test_an_overwrite_drops_what_a_killed_one_left(harness: SparkHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    path = harness.create(USERS)
    info = harness.client.info(TablePath(*path.split(".")))
    killed, next_one, later = (Overwrite(info.table_path, info.to_table_descriptor()) for _ in range(3))
    other = harness.create(USERS, name=f"{path}__overwritten")
    killed.prepare(harness.client)
    next_one.prepare(harness.client)
    names = {one.staging.table_name for one in (killed, next_one, later)}
    assert len(names & tables_of(harness)) == 2  # the first may be that of a job that runs
    monkeypatch.setattr("fluss.spark.overwrite._ABANDONED_MS", -60_000)
    later.prepare(harness.client)
    assert names & tables_of(harness) == {later.staging.table_name}
    assert other.split(".")[1] in tables_of(harness)
    later.finish(harness.client)


def test_an_overwrite_of_a_transaction_is_done_once(harness: SparkHarness) -> None:
    path = harness.create(USERS)
    frame = harness.spark.range(5).selectExpr("id", "'x' as name", "id as age")
    for _ in range(2):
        harness.write(frame, path, "overwrite", txnAppId="replace", txnVersion=1)
    assert sorted(users(harness, path)) == [0, 1, 2, 3, 4]
    harness.write(frame.where("id > 3"), path, "overwrite", txnAppId="replace", txnVersion=2)
    assert sorted(users(harness, path)) == [4]


def test_finer_times_are_cut_and_other_losses_refused(harness: SparkHarness) -> None:
    path = harness.create(pa.schema([("ts", pa.timestamp("ms")), ("n", pa.int32())]), buckets=1)
    frame = harness.spark.sql("select timestamp_ntz'2024-01-01 00:00:00.123456' as ts, 5L as n")
    harness.write(frame, path)
    [row] = harness.read(path).collect()
    assert (row.ts.microsecond, row.n) == (123000, 5)
    early = harness.spark.sql("select timestamp_ntz'1969-12-31 23:59:59.999999' as ts, 6L as n")
    harness.write(early, path)
    assert [r.ts.microsecond for r in harness.read(path).where("n = 6").collect()] == [999000]
    with pytest.raises(PySparkException, match="cannot take a value"):
        harness.write(frame.selectExpr("ts", "5000000000L as n"), path)


@pytest.mark.parametrize(
    ("arrow", "fits", "lost"),
    [
        (pa.timestamp("ns", "UTC"), "timestamp'2200-01-01'", "timestamp'9999-12-31'"),
        (pa.timestamp("ns"), "timestamp_ntz'2200-01-01'", "timestamp_ntz'9999-12-31'"),
        (pa.float32(), "0.1D", "1e300D"),
        (pa.float32(), "double('inf')", "-1e300D"),
        (pa.decimal128(10, 2), "1.2D", "1.239D"),
        (
            pa.list_(pa.struct([("f", pa.float32())])),
            "array(named_struct('f', 0.1D))",
            "array(named_struct('f', 1e300D))",
        ),
        (pa.map_(pa.string(), pa.decimal128(10, 2)), "map('a', 1.2D)", "map('a', 1.239D)"),
    ],
)
def test_a_value_that_its_column_does_not_have_is_refused(
    harness: SparkHarness, arrow: pa.DataType, fits: str, lost: str
) -> None:
    path = harness.create(pa.schema([("v", arrow)]), buckets=1)
    harness.write(harness.spark.sql(f"select {fits} as v union all select null"), path)
    with pytest.raises(PySparkException, match="cannot take a value"):
        harness.write(harness.spark.sql(f"select {lost} as v"), path)
    assert harness.read(path).count() == 2


@pytest.mark.parametrize(
    ("expression", "options", "text"),
    [
        (["id", "id as nope"], {}, "has a column 'nope', which table"),
        (["cast(id as string) as id"], {}, "is string, but in table"),
        (["id", "interval 1 day as v"], {}, "which Fluss has no type for"),
        (["id"], {"write__mode": "upsert"}, "has no primary key; use append"),
        (["id"], {"write__columns": "id"}, "a partial update needs a primary key"),
        (["id"], {"rowkind__column": "id"}, "only takes new rows"),
        (["id"], {"write__mod": "append"}, "did you mean write.mode?"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    harness: SparkHarness, expression: list[str], options: dict[str, str], text: str
) -> None:
    path = harness.create(EVENTS, buckets=1)
    with pytest.raises(PySparkException) as caught:
        harness.write(harness.spark.range(3).selectExpr(*expression), path, **options)
    message = str(caught.value)
    assert text in message
    assert "Traceback" not in message
    assert harness.read(path).count() == 0


def test_primary_key_writes_need_all_columns(harness: SparkHarness) -> None:
    path = harness.create(USERS, primary_key=["id"])
    with pytest.raises(PySparkException, match="has no column 'name'"):
        harness.write(harness.spark.range(3).selectExpr("id", "id as age"), path)
    with pytest.raises(PySparkException, match="must name the primary key"):
        harness.write(harness.spark.range(3).selectExpr("id", "id as age"), path, write__columns="age")
    with pytest.raises(PySparkException, match="use upsert or delete"):
        harness.write(harness.spark.range(3).selectExpr("id", "'x' as name", "id as age"), path, write__mode="append")


def test_null_in_a_key_is_refused(harness: SparkHarness) -> None:
    path = harness.create(USERS, primary_key=["id"])
    frame = harness.spark.sql("select cast(null as bigint) as id, 'x' as name, 1L as age")
    with pytest.raises(PySparkException, match="NOT NULL"):
        harness.write(frame, path)


def test_a_transaction_is_written_once(harness: SparkHarness) -> None:
    path = harness.create(EVENTS, buckets=2)
    frame = harness.spark.range(100).selectExpr("id", "cast(id as double) as v", "'s' as s")
    for _ in range(3):
        harness.write(frame, path, txnAppId="load", txnVersion=1)
    assert harness.read(path).count() == 100
    harness.write(frame, path, txnAppId="load", txnVersion=2)
    harness.write(frame, path, txnAppId="load", txnVersion=1)
    assert harness.read(path).count() == 200


def test_a_transaction_writes_to_each_of_its_tables(harness: SparkHarness) -> None:
    paths = [harness.create(EVENTS, buckets=1), harness.create(EVENTS, buckets=1)]
    frame = harness.spark.range(5).selectExpr("id", "1.0D as v", "'s' as s")
    for path in [*paths, *paths]:
        harness.write(frame, path, txnAppId="both", txnVersion=1)
    assert [harness.read(path).count() for path in paths] == [5, 5]
    harness.write(frame, paths[0], "overwrite", txnAppId="both", txnVersion=2)
    harness.write(frame, paths[0], txnAppId="both", txnVersion=1)
    assert harness.read(paths[0]).count() == 5, "the transaction is known after the table was replaced"
    harness.client.run(harness.client.admin.drop_table(TablePath(*paths[1].split("."))))
    harness.create(EVENTS, buckets=1, name=paths[1])
    harness.write(frame, paths[1], txnAppId="both", txnVersion=1)
    assert harness.read(paths[1]).count() == 5, "another table of the same name"


def test_a_transaction_of_a_primary_key_table_is_written_once(harness: SparkHarness) -> None:
    path = harness.create(USERS, primary_key=["id"], buckets=1)
    frame = harness.spark.range(2).selectExpr("id", "'x' as name", "id as age")
    harness.write(frame, path, txnAppId="keyed", txnVersion=1)
    harness.put(path, [{"id": 1, "name": "later", "age": 7}])
    harness.write(frame, path, txnAppId="keyed", txnVersion=1)
    assert users(harness, path) == {0: ("x", 0), 1: ("later", 7)}
    summed = harness.create(USERS, primary_key=["id"], properties={"table.merge-engine": "aggregation"})
    with pytest.raises(PySparkException, match="counts again"):
        harness.write(frame, summed, txnAppId="keyed", txnVersion=1)
    harness.client.run(harness.client.admin.create_database("keyed"))
    first = harness.create(USERS, primary_key=["id"], buckets=1, name="keyed.first")
    for _ in range(2):
        harness.write(frame, first, "overwrite", txnAppId="keyed", txnVersion=1)
        harness.put(first, [{"id": 1, "name": "later", "age": 7}])
    assert users(harness, first) == {0: ("x", 0), 1: ("later", 7)}


def test_times_in_the_hour_that_is_repeated_at_the_end_of_daylight_saving(harness: SparkHarness) -> None:
    """Both instants of an ambiguous local time are written, in the session's zone that has them."""
    path = harness.create(
        pa.schema([("id", pa.int64()), ("at", pa.timestamp("ms", "UTC")), ("us", pa.timestamp("us", "UTC"))])
    )
    zone = harness.spark.conf.get("spark.sql.session.timeZone")
    harness.spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = harness.spark.range(4).selectExpr(
            "id", "timestamp_millis(1730611800123 + id * 1800000) as at", "timestamp_micros(1730611800123456) as us"
        )
        harness.write(frame, path)
        rows = harness.read(path).selectExpr("id", "unix_millis(at)", "unix_micros(us)").orderBy("id").collect()
    finally:
        harness.spark.conf.set("spark.sql.session.timeZone", zone)
    assert [tuple(row) for row in rows] == [(i, 1730611800123 + i * 1800000, 1730611800123456) for i in range(4)]


def test_a_partial_update_that_cannot_be_is_refused_before_any_task(harness: SparkHarness) -> None:
    fixed = pa.schema([pa.field("id", pa.int64(), False), pa.field("name", pa.string(), False), ("age", pa.int64())])
    path = harness.create(fixed, primary_key=["id"])
    frame = harness.spark.range(1).selectExpr("id", "id as age")
    with pytest.raises(PySparkException) as caught:
        harness.write(frame, path, write__columns="id,age")
    assert "NOT NULL: name" in str(caught.value)
    assert "stage" not in str(caught.value)  # a task that failed names its stage


def test_writes_and_streams_in_other_threads(harness: SparkHarness, tmp_path: Path) -> None:
    source, target = harness.create(EVENTS), harness.create(EVENTS)

    def work() -> int:
        harness.write(harness.spark.range(5).selectExpr("id", "1.0D as v", "'x' as s"), source)
        assert harness.start(harness.stream(source), target, tmp_path).awaitTermination(60)
        return harness.read(target).count()

    with ThreadPoolExecutor(1) as pool:
        if not BRIDGE:  # Spark looks for the source in the session that is active in the thread
            pool.submit(fluss.spark.activate, harness.spark).result()
        assert pool.submit(work).result() == 5


def test_numbers_of_the_server_cannot_be_written(harness: SparkHarness) -> None:
    fields = [pa.field("name", pa.string(), nullable=False), ("number", pa.int64()), ("n", pa.int64())]
    path = harness.create(Schema(pa.schema(fields), ["name"], auto_increment_column="number"), buckets=1)
    harness.write(harness.spark.sql("select 'a' as name, 1L as n"), path)
    harness.write(harness.spark.sql("select 'b' as name, cast(null as bigint) as number, 1L as n"), path)
    numbered = harness.spark.sql("select 'b' as name, 42L as number, 2L as n")
    with pytest.raises(PySparkException, match="column 'number' is numbered by the server"):
        harness.write(numbered, path)
    with pytest.raises(PySparkException, match=r"all rows would get new numbers.*TRUNCATE"):
        harness.write(harness.read(path), path, mode="overwrite")
    harness.write(numbered, path, write__mode="upsert")
    before = sorted(map(tuple, harness.read(path).collect()))
    assert [(name, n) for name, _, n in before] == [("a", 1), ("b", 2)]
    assert 42 not in [number for _, number, _ in before]
