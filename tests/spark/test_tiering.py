# SPDX-License-Identifier: Apache-2.0
"""Tiering with its tasks on Spark: the same rounds, the files written by executors, one commit by the driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.lake.support import PARTITIONED, ROW, LakeHarness, lake_harness, lake_server_options, row, rows_of

from fluss.errors import FlussError
from fluss.metadata import TableBucket
from fluss.server.local import LocalServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module", params=["paimon", "iceberg"])
def lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeHarness]:
    warehouse: Path = tmp_path_factory.mktemp(request.param)
    with (
        LocalServer(options=lake_server_options(request.param, warehouse)) as server,
        lake_harness(server, request.param, warehouse, "spark_lake") as harness,
    ):
        yield harness


def test_tables_of_all_kinds(lake: LakeHarness, spark: SparkSession) -> None:
    from fluss.spark.tiering import tiering_service

    log = lake.create("log", buckets=3)
    pk = lake.create("pk", primary_keys=["id"], buckets=2)
    parts = lake.create("parts", PARTITIONED, partitions={"day": ["mon", "tue"]}, buckets=1)
    lake.append(log, [row(i) for i in range(100)])
    lake.append(log, [row(i) for i in range(100, 200)])
    lake.upsert(pk, [row(i) for i in range(50)])
    lake.upsert(pk, [row(i, 1) for i in range(20)], [{"id": 49}])
    lake.append(parts, [row(i, day="mon" if i % 2 else "tue") for i in range(20)])
    events: list[tuple[str, dict[str, Any]]] = []
    service = tiering_service(
        spark, lake.client, tables=[log, pk, parts], progress=lambda name, figures: events.append((name, dict(figures)))
    )
    reports = service.run_once()
    assert [sum(r.rows for r in reports if r.table_path == path) for path in (log, parts)] == [200, 20]
    assert rows_of(lake.alone(log), ROW.names) == [row(i) for i in range(200)]
    live = [row(i, 1) for i in range(20)] + [row(i) for i in range(20, 49)]
    assert rows_of(lake.alone(pk), ROW.names) == live
    assert rows_of(lake.alone(parts), PARTITIONED.names) == [row(i, day="mon" if i % 2 else "tue") for i in range(20)]
    lake.upsert(pk, [row(99)])
    assert lake.union(pk) == [*live, row(99)]
    assert sum(figures["rows"] for name, figures in events if name == "bucket" and figures["table"] == str(log)) == 200


def test_an_error_of_a_task_reaches_the_driver(lake: LakeHarness, spark: SparkSession) -> None:
    from fluss.lake.layout import LakeConfig
    from fluss.lake.tasks import BucketTask
    from fluss.spark.tiering import SparkRunner

    path = lake.create("broken", buckets=1)
    lake.append(path, [row(1)])
    info = lake.session.info(path)
    bucket = TableBucket(info.table_id, 0)
    task = BucketTask(lake.client, LakeConfig("hudi", {}), path, info.table_id, bucket, (), 0, 1)
    with pytest.raises(FlussError, match="'hudi' is not supported"):
        SparkRunner(spark).run([task], lambda result: None)
    assert SparkRunner(spark).run([], lambda result: None) == []
