# SPDX-License-Identifier: Apache-2.0
"""Tables with a lake: batch reads see lake and log as one table, streams start in the lake and go on in the log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from tests.lake.support import PARTITIONED, LakeHarness, lake_harness, lake_server_options, row
from tests.spark.conftest import BRIDGE, SparkHarness
from tests.spark.marks import needs_start
from tests.waiting import wait_for

from fluss.client.blocking_client import close_shared_clients
from fluss.errors import ConfigError, FlussError, LogOffsetOutOfRangeError
from fluss.lake.api import LakeTableChangedError
from fluss.lake.registry import FORMATS
from fluss.metadata import OffsetSpec, PartitionSpec, TablePath
from fluss.server.local import LocalServer
from fluss.spark.batches import source_schema
from fluss.spark.lake import LakePart
from fluss.spark.ledger import Attempt, Delivery, Ledger, create_ledger
from fluss.spark.options import read_options
from fluss.spark.splits import ROWS, Split
from fluss.spark.stream_reader import FlussStreamReader
from fluss.spark.versions import KNOWS_START, VERSION, ReadAllAvailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]


KEYED_FORMATS = ("paimon", "iceberg")
keyed = pytest.mark.parametrize("lake", KEYED_FORMATS, indirect=True)
"""For tests with primary keys; other formats take log tables only."""


def quick(lake_format: str) -> pytest.MarkDecorator:
    """Run a test with one format each time, with the other only among the slow ones."""
    formats = [pytest.param(name, marks=() if name == lake_format else pytest.mark.slow) for name in KEYED_FORMATS]
    return pytest.mark.parametrize("lake", formats, indirect=True)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in KEYED_FORMATS else pytest.mark.slow) for name in FORMATS],
)
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeHarness]:
    warehouse: Path = tmp_path_factory.mktemp(request.param)
    with (
        LocalServer(options=lake_server_options(request.param, warehouse)) as server,
        lake_harness(server, request.param, warehouse, "spark_lake") as harness,
    ):
        yield harness
        close_shared_clients()


@pytest.fixture(scope="module")
def lake_spark(lake: LakeHarness, spark: SparkSession) -> Iterator[SparkHarness]:
    made = SparkHarness(lake.server, spark)
    yield made
    made.client.close()


def rows_of(frame: Any) -> list[Row]:
    return in_order(found.asDict() for found in frame.collect())


def in_order(rows: Iterable[Row]) -> list[Row]:
    return sorted(rows, key=lambda r: tuple((value is None, value) for value in r.values()))


def with_catalog(harness: SparkHarness) -> SparkSession:
    """A session with the catalog `lake`."""
    spark = harness.spark.newSession()
    spark.conf.set("spark.sql.catalog.lake", "fluss.spark.FlussCatalog")
    spark.conf.set("spark.sql.catalog.lake.bootstrap.servers", harness.bootstrap)
    return spark


# -- batches ----------------------------------------------------------------------------------------------------------


def test_log_table(lake: LakeHarness, lake_spark: SparkHarness) -> None:
    path = lake.create("log", buckets=2)
    lake.append(path, [row(i) for i in range(100)])
    assert lake.spark_union(path) == [row(i) for i in range(100)], "no snapshot: the log"
    assert lake.spark_union(path, read__optimized=True) == [], "nothing is in the lake yet, as $lake shows it"
    first = lake.tier(path)
    assert first.snapshot_id is not None
    lake.append(path, [row(i) for i in range(100, 130)])
    frame = lake_spark.read(str(path))
    assert rows_of(frame) == [row(i) for i in range(130)]
    assert lake_spark.read(str(path), read__optimized=True).count() == 100
    assert lake_spark.read(f"{path}$lake").count() == 100
    assert lake_spark.read(f"{path}$changelog").count() == 130, "the log alone"
    # Without the bridge, PySpark keeps the plan of the first query from 4.1 on.
    lake.append(path, [row(i) for i in range(130, 150)])
    lake.tier(path)
    assert frame.count() == (130 if VERSION >= (4, 1) and not BRIDGE else 150), "each query is planned anew"
    names = in_order({"name": f"user-{i}"} for i in range(95, 135))
    assert lake.spark_union(path, columns="name", scan__filter="id >= 95 and id < 135") == names
    assert lake.spark_union(path, **{"scan.snapshot-id": first.snapshot_id}) == [row(i) for i in range(100)]
    assert lake.spark_union(path, scan__startup__mode="earliest") == [row(i) for i in range(150)]


@pytest.mark.skipif(not BRIDGE, reason="the catalog needs the jar")
@quick("paimon")
def test_a_procedure_of_the_catalog_tiers(lake: LakeHarness, lake_spark: SparkHarness) -> None:
    path = lake.create("called", buckets=2)
    lake.append(path, [row(i) for i in range(50)])
    spark = with_catalog(lake_spark)
    [first] = spark.sql(f"CALL lake.system.tier('{path}')").collect()
    assert first.rows == 50
    lake.append(path, [row(i) for i in range(50, 60)])
    [second] = spark.sql(f"CALL lake.system.tier(table => '{path}', compact => true, expire => false)").collect()
    assert (second.rows, second.expired, second.snapshot_id != first.snapshot_id) == (10, 0, True)
    assert spark.sql(f"SELECT count(*) FROM lake.{path} VERSION AS OF {first.snapshot_id}").first()[0] == 50
    dry = lake_spark.create(PARTITIONED, name=f"{path.database_name}.dry")
    for call, message in {f"tier('{dry}')": "has no lake", "nothing('x')": "FAILED_TO_LOAD_ROUTINE"}.items():
        with pytest.raises(PySparkException, match=message):
            spark.sql(f"CALL lake.system.{call}")


@pytest.mark.skipif(not BRIDGE, reason="the catalog needs the jar")
@quick("paimon")
def test_rows_that_are_in_the_lake_are_neither_replaced_nor_truncated(
    lake: LakeHarness, lake_spark: SparkHarness
) -> None:
    """A drop keeps the rows in the lake: a table created in its place is refused, a partition would have them."""
    path = lake.create("kept", PARTITIONED, primary_keys=["id", "day"], partitions={"day": ["mon", "tue"]})
    rows = [{**row(i), "day": ("mon", "tue")[i % 2]} for i in range(20)]
    lake.upsert(path, rows)
    spark = with_catalog(lake_spark)
    properties = "TBLPROPERTIES ('primary.key' 'id', 'table.datalake.enabled' 'true')"
    statements = [
        f"TRUNCATE TABLE lake.{path}",
        f"TRUNCATE TABLE lake.{path} PARTITION (day = 'mon')",
        f"INSERT OVERWRITE lake.{path} PARTITION (day = 'mon') VALUES (1, 'x', 1.0)",
        f"CREATE OR REPLACE TABLE lake.{path} {properties} AS SELECT 1L AS id",
    ]
    for statement in statements[:2]:  # the lake has nothing yet
        spark.sql(statement)
        lake.upsert(path, rows)
    lake.tier(path)
    for statement in statements:
        with pytest.raises(PySparkException, match="in the lake"):
            spark.sql(statement)
    for options in ({}, {"overwrite__partitions": "*"}):
        with pytest.raises(PySparkException, match="Delete rows by key"):
            lake_spark.write(lake_spark.read(str(path)), str(path), "overwrite", **options)
    assert len(rows_of(lake_spark.read(str(path)))) == 20
    tables = lake_spark.client.run(lake_spark.client.admin.list_tables(path.database_name))
    assert [name for name in tables if "__overwrite_" in name] == []
    spark.sql(f"DELETE FROM lake.{path} WHERE id >= 0")
    lake.tier(path)
    assert rows_of(lake_spark.read(str(path))) == []


@pytest.mark.skipif(not BRIDGE, reason="the catalog needs the jar")
@quick("paimon")
def test_a_table_is_not_replaced_by_one_that_finds_rows_in_the_lake(
    lake: LakeHarness, lake_spark: SparkHarness
) -> None:
    path = lake.create("returned")
    lake.append(path, [row(1)])
    lake.tier(path)
    lake_spark.client.run(lake_spark.client.admin.drop_table(path))
    spark = with_catalog(lake_spark)
    spark.sql(f"CREATE TABLE lake.{path} AS SELECT 5L AS id")
    properties = "TBLPROPERTIES ('table.datalake.enabled' 'true')"
    with pytest.raises(PySparkException, match="Drop it there"):
        spark.sql(f"CREATE OR REPLACE TABLE lake.{path} {properties} AS SELECT 6L AS id")
    assert rows_of(lake_spark.read(str(path))) == [{"id": 5}]


@pytest.mark.skipif(not BRIDGE, reason="the catalog needs the jar")
@quick("paimon")
def test_rows_are_changed_as_they_are_now(lake: LakeHarness, lake_spark: SparkHarness) -> None:
    """Rows that a session reads from the lake alone, or one by one from the changelog, must not be written back."""
    path = lake.create("now", primary_keys=["id"], buckets=2)
    lake.upsert(path, [row(i) for i in range(4)])
    lake.tier(path)
    lake.upsert(path, [row(i, 1) for i in range(4)])
    spark = with_catalog(lake_spark)
    spark.conf.set("spark.sql.catalog.lake.read.optimized", "true")
    assert rows_of(spark.table(f"lake.{path}")) == [row(i) for i in range(4)]
    spark.sql(f"UPDATE lake.{path} SET score = 0 WHERE id < 3")
    wanted = [{**row(i, 1), "score": 0.0} for i in range(3)] + [row(3, 1)]
    assert rows_of(lake_spark.read(str(path))) == wanted
    source = "USING (SELECT 3L AS id) f ON t.id = f.id"
    spark.sql(f"MERGE INTO lake.{path} t {source} WHEN MATCHED THEN UPDATE SET score = 7")
    wanted[3]["score"] = 7.0
    assert rows_of(lake_spark.read(str(path))) == wanted
    spark.conf.set("spark.fluss.read.changelog", "true")
    spark.sql(f"DELETE FROM lake.{path} WHERE id = 0")
    spark.sql(f"UPDATE lake.{path} SET score = score + 1")
    assert rows_of(lake_spark.read(str(path))) == [{**one, "score": one["score"] + 1} for one in wanted[1:]]


@keyed
def test_primary_key_table(lake: LakeHarness, lake_spark: SparkHarness) -> None:
    path = lake.create("pk", primary_keys=["id"], buckets=2)
    live = {i: row(i) for i in range(100)}
    lake.upsert(path, live.values())
    before = in_order(live.values())
    lake.tier(path)
    live |= {i: row(i, 1) for i in range(0, 120, 3)}
    lake.upsert(path, [live[i] for i in range(0, 120, 3)], [{"id": 1}, {"id": 2}])
    del live[1], live[2]
    live[2] = row(2, 5)
    lake.upsert(path, [live[2]])
    frame = lake_spark.read(str(path))
    assert rows_of(frame) == in_order(live.values())
    assert frame.rdd.getNumPartitions() == 2
    assert lake.spark_union(path, read__optimized=True) == before
    wanted = in_order({"name": r["name"]} for r in live.values() if r["score"] >= 40)
    assert lake.spark_union(path, columns="name", scan__filter="score >= 40") == wanted
    lake.upsert(path, [row(i, 9) for i in range(200)])
    lake.tier(path)
    assert rows_of(frame) == in_order(live.values()), "the moment of planning"
    changes = lake_spark.read(str(path), read__changelog=True)
    assert {found._change_type for found in changes.collect()} == {"insert", "update_before", "update_after", "delete"}


@keyed
def test_partitions(lake: LakeHarness, lake_spark: SparkHarness) -> None:
    days = {"day": ["mon", "tue"]}
    log = lake.create("parts", PARTITIONED, partitions=days, buckets=1)
    pk = lake.create("pkparts", PARTITIONED, primary_keys=["id", "day"], partitions=days, buckets=1)
    rows = [row(i, day="mon" if i % 2 else "tue") for i in range(40)]
    lake.append(log, rows)
    lake.upsert(pk, rows)
    for path in (log, pk):
        lake.tier(path)
        lake.session.run(lake.session.admin.create_partition(path, {"day": "wed"}))
    tail = [row(i, day="wed") for i in range(40, 50)]
    lake.append(log, tail)
    lake.upsert(pk, [*tail, row(1, 7, day="mon")], [{"id": 3, "day": "mon"}])
    live = [r for r in rows if r["id"] not in (1, 3)] + [*tail, row(1, 7, day="mon")]
    for path, truth in ((log, [*rows, *tail]), (pk, live)):
        assert rows_of(lake_spark.read(str(path))) == in_order(truth)
        # Fluss drops a partition: it lives on in the lake.
        lake.session.run(lake.session.admin.drop_partition(path, PartitionSpec({"day": "tue"})))
        assert lake.spark_union(path) == in_order(truth)
        for day in ("mon", "tue", "wed"):
            chosen = in_order(r for r in truth if r["day"] == day)
            assert lake.spark_union(path, scan__partitions=day) == chosen
            assert lake.spark_union(path, scan__filter=f"day = '{day}'") == chosen
        _, parts = lake.spark_plan(path, scan__filter="day = 'tue'")
        assert len(parts) == 1, "partitions that cannot match are not read"
        assert lake.spark_union(path, read__optimized=True, scan__partitions="wed") == []
        with pytest.raises(ConfigError, match="has no partition sun"):
            lake.spark_plan(path, scan__partitions="mon,sun")


@quick("iceberg")
def test_where_rows_came_from(lake: LakeHarness, lake_spark: SparkHarness) -> None:
    path = lake.create("places", buckets=2)
    lake.append(path, [row(i) for i in range(50)])
    lake.append(path, [row(i) for i in range(50, 100)])
    alone = rows_of(lake_spark.read(str(path), includeMetadata=True))
    lake.tier(path)
    _, parts = lake.spark_plan(path, includeMetadata=True)
    assert all(isinstance(part, LakePart) for part in parts)
    assert rows_of(lake_spark.read(str(path), includeMetadata=True)) == alone
    lake.append(path, [row(i) for i in range(100, 120)])
    found = rows_of(lake_spark.read(str(path), includeMetadata=True))
    assert len({(r["_bucket"], r["_log_offset"]) for r in found}) == len(found) == 120
    only = rows_of(lake_spark.read(str(path), columns="_log_offset,_bucket", scan__filter="id = 7"))
    assert only == [{"_log_offset": r["_log_offset"], "_bucket": r["_bucket"]} for r in found if r["id"] == 7]


@quick("paimon")
def test_rows_that_only_the_lake_still_has(lake: LakeHarness, lake_spark: SparkHarness, tmp_path: Path) -> None:
    path = lake.create("short", buckets=1, **{"table.log.ttl": "500ms"})
    for step in range(10):
        lake.append(path, [row(i) for i in range(step * 50, step * 50 + 50)])
    lake.tier(path)
    wait_for(lambda: lake.session.run(lake.session.admin.list_offsets(path, [0], OffsetSpec.earliest()))[0] > 0)
    lake.append(path, [row(500)])
    assert lake.spark_union(path) == [row(i) for i in range(501)]
    # More of the log may expire between plan and read.
    assert len(lake.spark_union(path, scan__startup__mode="earliest", failOnDataLoss="false")) < 501
    assert sorted(found[0] for found in lake_spark.collect(lake_spark.stream(str(path)), tmp_path)) == list(range(501))


def test_how_the_work_is_cut(lake: LakeHarness) -> None:
    path = lake.create("cut", buckets=2)
    for step in range(4):
        lake.append(path, [row(i) for i in range(step * 50, step * 50 + 50)])
        lake.tier(path)
    # Two batches: each goes to one bucket.
    lake.append(path, [row(i) for i in range(200, 230)])
    lake.append(path, [row(i) for i in range(230, 260)])
    counts = {}
    for name, options in (("one", {}), ("rows", {"scan__maxRecordsPerPartition": 50}), ("min", {"minPartitions": 9})):
        _, parts = lake.spark_plan(path, **options)
        in_lake = [part for part in parts if isinstance(part, LakePart)]
        counts[name] = (len(in_lake), len(parts) - len(in_lake))
        assert lake.spark_union(path, **options) == in_order(row(i) for i in range(260))
    assert counts["one"][0] == 1, "small files together"
    assert counts["one"][1] in (1, 2)
    assert counts["rows"][0] == (1 if lake.lake_format == "paimon" else 4), "files are not cut"
    assert sum(counts["min"]) >= 9


@keyed
def test_buckets_that_are_not_in_the_lake_yet(lake: LakeHarness) -> None:
    """Their rows come from the server, as of the same cut as all others."""
    path = lake.create("some", primary_keys=["id"], buckets=4)
    lake.upsert(path, [row(0)])
    lake.tier(path)
    lake.upsert(path, [row(i) for i in range(60)])
    reader, parts = lake.spark_plan(path)
    assert sorted(type(part).__name__ for part in parts) == ["LakePart", "Split", "Split", "Split"]
    assert {part.kind for part in parts if isinstance(part, Split)} == {ROWS}
    lake.upsert(path, [row(i, 1) for i in range(60)], [{"id": 3}])
    found = in_order(r for part in parts for batch in reader.read(part) for r in batch.to_pylist())
    assert found == in_order(row(i) for i in range(60))


def test_what_is_refused(lake: LakeHarness, lake_spark: SparkHarness) -> None:
    path = lake.create("refused")
    lake.append(path, [row(1)])
    lake.tier(path)
    with pytest.raises(FlussError, match=r"is gone: it was .* or never there"):
        lake.spark_plan(path, **{"scan.snapshot-id": 77})
    with pytest.raises(ConfigError, match="has no partitions"):
        lake.spark_plan(path, scan__partitions="mon")
    with pytest.raises(PySparkException, match=r"is gone: it was .* or never there"):
        lake_spark.reader({"scan.snapshot-id": 77}).load(str(path)).count()


def test_credentials_of_the_lake_reach_it(lake: LakeHarness, tmp_path: Path) -> None:
    path = lake.create("options")
    lake.append(path, [row(1)])
    lake.tier(path)
    prefix = f"datalake.{lake.lake_format}."
    with pytest.raises(FlussError):
        lake.spark_plan(path, **{f"{prefix}warehouse": str(tmp_path), f"{prefix}uri": f"sqlite:///{tmp_path}/none.db"})
    assert lake.spark_union(path, **{f"{prefix}extra": "hush"}) == [row(1)]
    _, [part] = lake.spark_plan(path, **{f"{prefix}extra": "hush"})
    assert part.plan.config.options["extra"] == "hush"
    assert "hush" not in repr(part.plan) + repr(read_options({**lake.client, "path": "a.b", f"{prefix}extra": "hush"}))


@pytest.mark.parametrize("primary_keys", [pytest.param(None, marks=pytest.mark.slow), ["id"]])
@quick("paimon")
def test_while_writes_and_tiering_go_on(
    lake: LakeHarness, lake_spark: SparkHarness, primary_keys: list[str] | None
) -> None:
    path = lake.create(f"busy{len(primary_keys or ())}", primary_keys=primary_keys, buckets=2)
    follow_writes(lake, path, lambda: rows_of(lake_spark.read(str(path))), primary_keys is not None, reads=3)


@pytest.mark.slow
@pytest.mark.parametrize("primary_keys", [None, ["id", "day"]])
@keyed
def test_while_writes_and_tiering_go_on_for_long(
    lake: LakeHarness, lake_spark: SparkHarness, primary_keys: list[str] | None
) -> None:
    name = f"long{len(primary_keys or ())}"
    path = lake.create(name, PARTITIONED, primary_keys=primary_keys, partitions={"day": ["mon", "tue"]}, buckets=2)
    follow_writes(
        lake, path, lambda: rows_of(lake_spark.read(str(path))), primary_keys is not None, reads=15, days=True
    )


def follow_writes(
    lake: LakeHarness, path: TablePath, read: Callable[[], list[Row]], keyed: bool, *, reads: int, days: bool = False
) -> None:
    """Write and tier in threads of their own; what is read is never less than what was acknowledged, nor doubled."""
    stop = threading.Event()
    written: list[int] = []
    failures: list[BaseException] = []

    def more(i: int) -> Row:
        return {"day": "mon" if i % 3 else "tue"} if days else {}

    def write() -> None:
        step = 0
        while not stop.is_set():
            ids = range(step * 20, step * 20 + 20)
            if keyed:
                lake.upsert(path, [row(i, **more(i)) for i in ids])
                lake.upsert(path, [row(i, 1, **more(i)) for i in ids])
            else:
                lake.append(path, [row(i, **more(i)) for i in ids])
            written.append(step)
            step += 1
            time.sleep(0.01)

    def tier() -> None:
        try:
            while not stop.wait(0.1):
                lake.tier(path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=write), threading.Thread(target=tier)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(reads):
            before = len(written) * 20
            found = read()
            ids = [r["id"] for r in found]
            assert len(ids) == len(set(ids)), "no row twice"
            assert set(range(before)) <= set(ids), "no acknowledged row missing"
            assert all(r == row(r["id"], 1 if keyed else 0, **more(r["id"])) for r in found if r["id"] < before)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    total = range(len(written) * 20)
    assert read() == in_order(row(i, 1 if keyed else 0, **more(i)) for i in total)


def test_deliveries_are_noted_whatever_the_lake(lake: LakeHarness, lake_spark: SparkHarness) -> None:
    """A server with a lake decides how keys of all its tables are written, also of those that are not in the lake."""
    path = TablePath(lake.database, "ledger")
    create_ledger(lake_spark.client, path)
    ledger = Ledger(lake_spark.client, path)
    first, second, other = Delivery("q", 3, 1), Delivery("q", 3, 2), Delivery("r", 3, 1)
    for writer, delivery in enumerate((first, second, other)):
        lake_spark.client.run(ledger.begin(delivery, writer, "run", {"0": 5}))
    assert sorted(ledger.attempts("q", 3), key=lambda one: one.task) == [
        Attempt(1, 0, "run", {"0": 5}),
        Attempt(2, 1, "run", {"0": 5}),
    ]
    ledger.commit("q", 3)
    assert (ledger.attempts("q", 3), ledger.committed("q")) == ([], 3)
    assert ledger.attempts("r", 3) == [Attempt(1, 2, "run", {"0": 5})]


# -- streams ----------------------------------------------------------------------------------------------------------


@needs_start
@quick("paimon")
def test_a_stream_of_a_log_table_starts_in_the_lake(
    lake: LakeHarness, lake_spark: SparkHarness, tmp_path: Path
) -> None:
    path = lake.create("slog", buckets=2)
    lake.append(path, [row(i) for i in range(60)])
    lake.tier(path)
    lake.append(path, [row(i) for i in range(60, 90)])
    seen: list[list[int]] = []
    run_batches(lake_spark, path, tmp_path, lambda ids: seen.append(ids), maxRowsPerTrigger=20)
    assert seen == [list(range(60)), seen[1], seen[2]], "the snapshot whole, then the log in bounded steps"
    assert sorted(seen[1] + seen[2]) == list(range(60, 90))
    lake.append(path, [row(i) for i in range(90, 95)])
    lake.tier(path)
    lake.append(path, [row(i) for i in range(95, 99)])
    seen.clear()
    run_batches(lake_spark, path, tmp_path, lambda ids: seen.append(ids))
    assert seen == [list(range(90, 99))], "after a restart it goes on in the log, whatever was tiered"
    run_batches(lake_spark, path, tmp_path, lambda ids: seen.append(ids))
    assert len(seen) == 1


@needs_start
@quick("iceberg")
def test_a_stream_of_a_primary_key_table_starts_in_the_lake(
    lake: LakeHarness, lake_spark: SparkHarness, tmp_path: Path
) -> None:
    path = lake.create("spk", primary_keys=["id"], buckets=2)
    lake.upsert(path, [row(i) for i in range(20)])
    lake.upsert(path, [row(5, 1)], [{"id": 6}])
    lake.tier(path)
    lake.upsert(path, [row(5, 2), row(30)], [{"id": 7}])
    rows = lake_spark.collect(lake_spark.stream(str(path), read__changelog=True, columns="id,name"), tmp_path)
    snapshot = [("user-5-1" if i == 5 else f"user-{i}", "insert") for i in range(20) if i != 6]
    assert sorted(found[1:] for found in rows[:19]) == sorted(snapshot)
    changes = [(5, "user-5-1", "update_before"), (5, "user-5-2", "update_after"), (7, "user-7", "delete")]
    assert sorted(rows[19:]) == sorted([*changes, (30, "user-30", "insert")])
    lake.upsert(path, [row(40)])
    lake.tier(path)
    assert lake_spark.collect(lake_spark.stream(str(path), read__changelog=True, columns="id,name"), tmp_path) == [
        (40, "user-40", "insert")
    ]


@pytest.mark.parametrize("primary_keys", [None, pytest.param(["id"], marks=pytest.mark.slow)])
@quick("paimon")
def test_a_broken_first_batch_runs_again_with_the_same_snapshot(
    lake: LakeHarness, lake_spark: SparkHarness, tmp_path: Path, primary_keys: list[str] | None
) -> None:
    path = lake.create(f"broken{len(primary_keys or ())}", primary_keys=primary_keys, buckets=2)
    write = lake.upsert if primary_keys else lake.append
    write(path, [row(i) for i in range(50)])
    lake.tier(path)
    write(path, [row(i) for i in range(50, 60)])

    def fail(ids: list[int]) -> None:
        raise RuntimeError("the sink is full")

    with pytest.raises(PySparkException, match="the sink is full"):
        run_batches(lake_spark, path, tmp_path, fail)
    lake.tier(path)
    write(path, [row(i) for i in range(60, 70)])
    seen: list[list[int]] = []
    for _ in range(1 if KNOWS_START else 2):  # before 4.2 a run has one micro-batch
        run_batches(lake_spark, path, tmp_path, lambda ids: seen.append(ids))
    # Before 4.2 the first micro-batch takes the log after the snapshot as well.
    first = 50 if KNOWS_START else 60
    assert seen == [list(range(first)), list(range(first, 70))]


@quick("paimon")
def test_a_first_end_without_a_start_serves_new_queries_and_those_that_go_on(lake: LakeHarness) -> None:
    """As Spark before 4.2 asks: for the end of the first micro-batch, and only then for its start."""
    log, parts = lake.create("olog", buckets=2), lake.create("oparts", PARTITIONED, partitions={"day": ["mon", "tue"]})
    for path, days in ((log, [{}]), (parts, [{"day": "mon"}, {"day": "tue"}])):
        lake.append(path, [row(i, **days[0]) for i in range(5)])
        lake.tier(path)
        lake.append(path, [row(i, **days[-1]) for i in range(5, 9)])
        new = stream_reader(lake, path)
        end = new.latestOffset()
        start = new.initialOffset()
        assert sorted(r["id"] for r in stream_rows(new, start, end)) == list(range(9))
        lake.append(path, [row(9, **days[0])])
        lake.tier(path)
        lake.append(path, [row(10, **days[-1])])
        again = stream_reader(lake, path)  # the first micro-batch did not end: same snapshot, same rows
        assert sorted(r["id"] for r in stream_rows(again, again.initialOffset(), end)) == list(range(9))
        going_on = stream_reader(lake, path)
        later = going_on.latestOffset()
        assert sorted(r["id"] for r in stream_rows(going_on, end, later)) == [9, 10]
        assert going_on.latestOffset() == later, "nothing new"


@quick("paimon")
@pytest.mark.parametrize("knows_start", [True, False])
def test_a_first_batch_from_the_log_does_not_start_later_when_it_runs_again(
    lake: LakeHarness, monkeypatch: pytest.MonkeyPatch, knows_start: bool
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "1")  # set by the reader in its own process otherwise
    path = lake.create(f"expired{knows_start}", buckets=1, **{"table.log.ttl": "500ms"})
    for step in range(10):
        lake.append(path, [row(i) for i in range(step * 50, step * 50 + 50)])
    reader = stream_reader(lake, path)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable()) if knows_start else stream_reader(lake, path).latestOffset()
    assert len(stream_rows(reader, start, end)) == 500
    lake.tier(path)
    wait_for(lambda: lake.session.run(lake.session.admin.list_offsets(path, [0], OffsetSpec.earliest()))[0] > 0)
    with pytest.raises(LogOffsetOutOfRangeError, match="rows from 0 on are gone"):
        stream_rows(stream_reader(lake, path), start, end)


@keyed
def test_planning_of_streams(lake: LakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "1")  # set by the reader in its own process otherwise
    log, pk = lake.create("plog", buckets=3), lake.create("ppk", primary_keys=["id"], buckets=3)
    parts = lake.create("pparts", PARTITIONED, partitions={"day": ["mon", "tue"]}, buckets=1)
    for path in (log, pk, parts):
        reader = stream_reader(lake, path)
        start = reader.initialOffset()
        assert start["snapshot"] is True
        end = reader.latestOffset(start, ReadAllAvailable())
        assert "snapshot" not in end.get("lake", {}), "no snapshot yet"
        assert stream_rows(reader, start, end) == []
    lake.append(log, [row(1)])
    lake.upsert(pk, [row(1)])
    lake.append(parts, [row(1, day="mon")])
    for path in (log, pk, parts):
        lake.tier(path)
    lake.append(log, [row(i) for i in range(2, 40)])
    lake.upsert(pk, [row(i) for i in range(2, 40)])
    lake.append(parts, [row(2, day="tue"), row(3, day="mon")])
    for path, batches in ((log, [1, 38]), (pk, [None, None]), (parts, [1, 2])):
        reader = stream_reader(lake, path)
        start, sizes, ids = reader.initialOffset(), [], set()
        while (end := reader.latestOffset(start, ReadAllAvailable())) != start:
            found = stream_rows(stream_reader(lake, path), start, end)
            sizes.append(len(found))
            ids |= {r["id"] for r in found}
            start = end
        assert ids == ({1, 2, 3} if path is parts else set(range(1, 40)))
        assert sum(sizes) == len(ids)
        if None not in batches:
            assert sizes == batches
        assert reader.partitions(start, start) == []
    # A bucket of a primary-key table that the lake has nothing of is listed in the first batch.
    reader = stream_reader(lake, pk)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert len(end["lake"]["listed"]) == 2
    assert len(stream_rows(reader, start, end)) > 1
    # The first batch is to run again, and its snapshot is gone.
    gone = {**end, "lake": {"snapshot": 99, "listed": []}}
    with pytest.raises(LakeTableChangedError, match="start again with a new checkpoint"):
        reader.partitions(start, gone)


@quick("paimon")
def test_a_partition_that_is_tiered_while_a_query_starts_is_read_once(lake: LakeHarness) -> None:
    path = lake.create("born", PARTITIONED, partitions={"day": ["mon"]}, buckets=1)
    lake.append(path, [row(1, day="mon")])
    lake.tier(path)
    reader = stream_reader(lake, path)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    lake.session.run(lake.session.admin.create_partition(path, {"day": "tue"}))
    lake.append(path, [row(2, day="tue")])
    lake.tier(path)
    seen = []
    for _ in range(2):
        while (end := reader.latestOffset(start, ReadAllAvailable())) != start:
            seen += [found["id"] for found in stream_rows(reader, start, end)]
            start = end
        reader = stream_reader(lake, path)
    assert sorted(seen) == [1, 2]


@needs_start
@pytest.mark.slow
def test_a_stream_while_writes_and_tiering_go_on(lake: LakeHarness, lake_spark: SparkHarness, tmp_path: Path) -> None:
    path = lake.create("sbusy", buckets=2)
    lake.append(path, [row(i) for i in range(-20, 0)])
    lake.tier(path)
    seen: list[int] = []

    def read() -> list[Row]:
        run_batches(lake_spark, path, tmp_path, seen.extend)
        return in_order(row(i) for i in seen if i >= 0)

    follow_writes(lake, path, read, keyed=False, reads=2)
    assert sorted(seen)[:20] == list(range(-20, 0))


def stream_reader(lake: LakeHarness, path: TablePath) -> FlussStreamReader:
    info = lake.session.info(path)
    schema = source_schema(info, None, metadata=False, changelog=False)
    return FlussStreamReader({**lake.client, "table": str(path)}, schema)


def stream_rows(reader: FlussStreamReader, start: Any, end: Any) -> list[Row]:
    return [r for part in reader.partitions(start, end) for batch in reader.read(part) for r in batch.to_pylist()]


def run_batches(
    lake_spark: SparkHarness, path: TablePath, checkpoint: Path, each: Callable[[list[int]], Any], **options: Any
) -> None:
    """Give the ids of every micro-batch there is now."""
    query = (
        lake_spark.stream(str(path), **options)
        .writeStream.foreachBatch(lambda batch, _: each(sorted(found.id for found in batch.collect())))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
