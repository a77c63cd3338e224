# SPDX-License-Identifier: Apache-2.0
"""Tiering a log table into the lake on Spark, against writing the same rows as Parquet files; `local[2]`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases.spark_batch import COLUMNS, timed
from benchmarks.harness import Bar, Result, Settings, alternate, ratio_of
from fluss.client.blocking_client import close_shared_clients
from fluss.lake.rounds import Round
from fluss.lake.tasks import LakeSession
from fluss.metadata import TablePath
from fluss.server.local import LocalServer
from fluss.spark import create_table, session
from fluss.spark.tiering import SparkRunner

NAME = "tiering, share of Parquet"
FORMAT = "paimon"


def tiering(settings: Settings) -> Iterator[Result]:
    if not settings.wanted(NAME):
        return
    folder = Path(tempfile.mkdtemp(prefix="fluss-bench-"))
    options = {"datalake.format": FORMAT, f"datalake.{FORMAT}.warehouse": str(folder / "lake")}
    with LocalServer(options=options) as server:
        spark = session("bench", master="local[2]")
        client = {"bootstrap.servers": server.bootstrap_servers}
        connection = LakeSession(client)
        try:
            yield _result(settings, spark, connection, client, folder)
        finally:
            connection.close()
            close_shared_clients()
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)


def _result(settings: Settings, spark: Any, connection: LakeSession, client: dict[str, str], folder: Path) -> Result:
    servers = client["bootstrap.servers"]
    rows = settings.rows(10_000_000)
    frame = spark.range(0, rows, 1, 4).selectExpr(*COLUMNS)
    tiered = [0]

    def tier() -> float:
        tiered[0] += 1
        path = TablePath("fluss", f"bench_{tiered[0]}")
        create_table(frame, str(path), servers, buckets=2, properties={"table.datalake.enabled": "true"})
        frame.write.format("fluss").option("bootstrap.servers", servers).mode("append").save(str(path))
        reports: list[Any] = []
        seconds = timed(lambda: reports.append(Round(connection, client, SparkRunner(spark)).run(path)))
        assert reports[0].rows == rows, reports[0]
        return rows / seconds / 1e6

    def parquet() -> float:
        return rows / timed(lambda: frame.write.mode("overwrite").parquet(str(folder / "parquet"))) / 1e6

    found = alternate(tier, parquet, settings.repeats)
    return Result(NAME, *found, "M rows/s", ratio_of(*found), Bar(0.25, 0.6))
