# SPDX-License-Identifier: Apache-2.0
"""What the catalog knows and does of tables with a lake: their sizes, their past, procedures that maintain them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException
from tests.lake.support import PARTITIONED, LakeHarness, in_small_files, lake_harness, lake_server_options, row
from tests.spark.conftest import BRIDGE, SparkHarness
from tests.spark.test_lake import with_catalog
from tests.waiting import wait_for

import fluss
from fluss.client.blocking_client import close_shared_clients
from fluss.errors import FlussError, LogOffsetOutOfRangeError
from fluss.metadata import OffsetSpec, TablePath
from fluss.spark.splits import Nothing, Split
from fluss.spark.statistics import read_count, read_size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LONG = 4000
SHORT_CHANGELOGS = {
    "kv.snapshot.interval": "100ms",
    "kv.snapshot.num-retained": "1",
    "log.retention.roll-active-segment.enabled": "true",
}


@pytest.fixture(scope="module", params=["paimon", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeHarness]:
    warehouse: Path = tmp_path_factory.mktemp(request.param)
    with (
        fluss.LocalServer(options=lake_server_options(request.param, warehouse) | SHORT_CHANGELOGS) as server,
        lake_harness(server, request.param, warehouse, "sizes") as harness,
    ):
        yield harness
        close_shared_clients()


def test_rows_in_the_lake_and_after_it_are_counted(lake: LakeHarness) -> None:
    path = lake.create("both", buckets=1)
    options = {**lake.client, "table": str(path)}
    assert read_size(options, ["id", "name"]) == {"rows": 0, "row_bytes": None}
    lake.append(path, [{**row(i), "name": "x" * LONG} for i in range(60)])
    lake.tier(path)
    lake.append(path, [{**row(i), "name": "x" * LONG} for i in range(40)])
    found = read_size(options, ["id", "name"])
    assert found is not None
    assert found["rows"] == 100
    assert LONG < found["row_bytes"] < LONG + 100
    only = read_size({**options, "read.optimized": "true"}, ["name"])
    assert only is not None
    assert (only["rows"], LONG < only["row_bytes"] < LONG + 100) == (60, True)


def now_ms() -> int:
    """A time after all commits so far, and before all later ones."""
    found = time.time_ns() // 1_000_000 + 1
    time.sleep(0.01)
    return found


def wait_until_expired(lake: LakeHarness, path: TablePath) -> None:
    wait_for(lambda: lake.session.run(lake.session.admin.list_offsets(path, [0], OffsetSpec.earliest()))[0] > 0)


@pytest.mark.parametrize("key", [None, ["id"]], ids=["log", "primary key"])
def test_a_time_that_only_the_lake_has(lake: LakeHarness, key: list[str] | None) -> None:
    name = f"past{len(key or ())}"
    path = lake.create(name, primary_keys=key, buckets=1, **{"table.log.ttl": "500ms"})
    write = lake.upsert if key else lake.append
    before = now_ms()
    times = []
    for step in range(4):
        write(path, [row(i) for i in range(step * 50, step * 50 + 50)])
        lake.tier(path)
        times.append(now_ms())
    wait_until_expired(lake, path)
    for step, at in enumerate(times):
        assert lake.spark_union(path, **{"scan.as-of.timestamp": at}) == [row(i) for i in range(step * 50 + 50)]
        assert read_count({**lake.client, "table": str(path), "scan.as-of.timestamp": str(at)}) is None
    with pytest.raises(LogOffsetOutOfRangeError, match="the lake has no snapshot of that time"):
        lake.spark_union(path, **{"scan.as-of.timestamp": before})
    ranges: list[dict[str, Any]] = [{"scan.startup.timestamp": before}, {"scan.startup.offsets": '{"0": 0}'}]
    changes: list[dict[str, Any]] = [{"table": f"{path}$changelog"}, *([{"read.changelog": True}] if key else [])]
    for options in [*ranges, *changes]:
        with pytest.raises(LogOffsetOutOfRangeError, match=r"older rows are in the lake only|have expired"):
            lake.spark_plan(path, **{"scan.as-of.timestamp": times[0], **options})
    ended = {"endingOffsets": '{"0": 200}', "scan.as-of.timestamp": times[0]}
    part = lake.spark_plan(path, **ended)[1][0]
    assert isinstance(part, (Split, Nothing)), "the end is given, and no time is looked up"


def test_a_time_at_which_a_table_had_partitions_that_the_lake_alone_has_now(lake: LakeHarness) -> None:
    path = lake.create("days", PARTITIONED, partitions={"day": ["mon", "tue"]}, buckets=1)
    rows = [row(i, day=("mon", "tue")[i % 2]) for i in range(20)]
    lake.append(path, rows)
    lake.tier(path)
    at = now_ms()
    lake.append(path, [row(i, day="tue") for i in range(20, 30)])
    assert len(lake.spark_union(path, **{"scan.as-of.timestamp": now_ms()})) == 30, "the log has all"
    lake.session.run(lake.session.admin.drop_partition(path, {"day": "mon"}))
    assert lake.spark_union(path, **{"scan.as-of.timestamp": at}) == rows


@pytest.mark.parametrize("partitions", [None, {"day": ["mon"]}], ids=["whole", "partitioned"])
def test_a_time_that_the_log_has_needs_the_lake_for_its_partitions_alone(
    lake: LakeHarness, partitions: dict[str, list[str]] | None
) -> None:
    path = lake.create(f"whole{len(partitions or ())}", PARTITIONED, partitions=partitions, buckets=1)
    rows = [row(i, day="mon") for i in range(20)]
    lake.append(path, rows)
    lake.tier(path)
    folder = lake.warehouse.rename(lake.warehouse.with_name("away"))
    lake.warehouse.write_text("no folder")
    try:
        if partitions is None:
            assert lake.spark_union(path, **{"scan.as-of.timestamp": now_ms()}) == rows
        else:
            with pytest.raises(Exception, match=rf"{path.table_name}|{lake.warehouse}"):
                lake.spark_union(path, **{"scan.as-of.timestamp": now_ms()})
    finally:
        lake.warehouse.unlink()
        folder.rename(lake.warehouse)


@pytest.mark.skipif(not BRIDGE, reason="the catalog needs the jar")
def test_procedures_compact_and_expire(lake: LakeHarness, spark: SparkSession) -> None:
    path = in_small_files(lake, "kept")
    harness = SparkHarness(lake.server, spark)
    catalog = with_catalog(harness)
    rows = [tuple(row(i).values()) for i in range(4)]

    def call(procedure: str) -> tuple[int, ...]:
        return tuple(catalog.sql(f"CALL lake.system.{procedure}").first())

    def shown(clause: str = "") -> list[tuple[object, ...]]:
        return sorted(map(tuple, catalog.sql(f"SELECT * FROM lake.{path} {clause}").collect()))

    old = [number for number, _ in lake.table(path).history_times()]
    assert call(f"compact('{path}')")[0] == 0, "ten files in a bucket, unless another number is given"
    compacted, newest = call(f"compact(table => '{path}', min_files => 4)")
    assert (compacted, lake.table(path).stats().files) == (4, 1)
    assert newest not in old
    assert shown() == shown(f"VERSION AS OF {newest}") == rows
    assert shown(f"VERSION AS OF {old[1]}") == rows[:3]

    assert call(f"expire('{path}')") == (0,), "the newest ten stay, and those of the last hour"
    assert call(f"expire(table => '{path}', older_than => timestamp'2020-01-01', keep => 1)") == (0,)
    assert call(f"tier(table => '{path}', expire => true)")[-1] == 0
    before = len(lake.table(path).history_times())
    [expired] = call(f"expire(table => '{path}', older_than => current_timestamp(), keep => 2)")
    assert (expired, [number for number, _ in lake.table(path).history_times()]) == (before - 2, [newest, old[0]])
    assert shown() == rows
    with pytest.raises(PySparkException, match=f"snapshot {old[1]} .* is gone"):
        shown(f"VERSION AS OF {old[1]}")
    for call_of, message in {"expire('{}', keep => 0)": "at least 1", "compact('{}$lake')": "does not exist"}.items():
        with pytest.raises(PySparkException, match=message):
            call(call_of.format(path))
    harness.client.close()


@pytest.mark.parametrize("lake", ["iceberg"], indirect=True)  # Paimon finds that the size of the file is another one
def test_a_file_of_the_lake_that_lost_rows_fails_the_read(lake: LakeHarness) -> None:
    path = lake.create("damaged", buckets=1)
    lake.append(path, [row(i) for i in range(100)])
    lake.tier(path)
    assert len(lake.spark_union(path, scan__filter="id < 10")) == 10
    [file] = (file for file in lake.warehouse.rglob("*.parquet") if path.table_name in str(file))
    pq.write_table(pq.ParquetFile(file).read().slice(0, 99), file)
    for options in ({}, {"scan__filter": "id < 10"}, {"read__optimized": True}):
        with pytest.raises(FlussError, match="got 99 rows of 100"):
            lake.spark_union(path, **options)


@pytest.mark.skipif(not BRIDGE, reason="the catalog needs the jar")
def test_the_lake_and_the_buckets_of_a_primary_key_table(lake: LakeHarness, spark: SparkSession) -> None:
    path = lake.create("placed", primary_keys=["id"], buckets=3)
    lake.upsert(path, [row(i) for i in range(30)])
    harness = SparkHarness(lake.server, spark)
    catalog = with_catalog(harness)

    def buckets(table: str) -> dict[int, int]:
        return dict(map(tuple, catalog.sql(f"SELECT id, _bucket FROM lake.{table}").collect()))

    placed = buckets(path)
    lake.tier(path)
    lake.upsert(path, [row(i, 1) for i in range(20, 30)], deletes=[{"id": 3}])
    assert buckets(path) == {i: bucket for i, bucket in placed.items() if i != 3}
    in_lake = catalog.sql(f"SELECT * FROM lake.{path.database_name}.`{path.table_name}$lake`")
    assert sorted(map(tuple, in_lake.collect())) == [tuple(row(i).values()) for i in range(30)]
    assert in_lake.where("id >= 10 and not name like '%9'").count() == 18
    harness.client.close()
