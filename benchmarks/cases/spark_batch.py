# SPDX-License-Identifier: Apache-2.0
"""Writing and reading a table with Spark, against Parquet files of the same rows; `local[2]`."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.cases.spark_read import SUMS, in_new_sparks
from benchmarks.harness import Bar, Result, Settings, alternate, ratio_of
from fluss.server.local import LocalServer
from fluss.spark import create_table, session

WRITE, READ = "Spark write, share of Parquet", "Spark read, share of Parquet"
COLUMNS = ("id", "concat('user-', id % 1000) as name", "cast(id as double) * 0.5 as score")
BUCKETS = 4


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


@contextmanager
def new_spark() -> Iterator[tuple[Any, str, str]]:
    """A session, the address of a new server, and a folder for files."""
    folder = tempfile.mkdtemp(prefix="fluss-bench-")
    with LocalServer() as server:
        spark = session("bench", master="local[2]")
        try:
            yield spark, server.bootstrap_servers, folder
        finally:
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)


def batch(settings: Settings) -> Iterator[Result]:
    if settings.wanted(WRITE, READ):
        with new_spark() as (spark, servers, folder):
            yield from _cases(settings, spark, servers, folder)


def _cases(settings: Settings, spark: Any, servers: str, folder: str) -> Iterator[Result]:
    rows = settings.rows(10_000_000)
    frame = spark.range(0, rows, 1, BUCKETS).selectExpr(*COLUMNS)
    expected = frame.selectExpr(*SUMS).collect()
    files = f"{folder}/parquet"
    written = [0]

    def rate(seconds: float) -> float:
        return rows / seconds / 1e6

    def read_fluss() -> Any:
        return spark.read.format("fluss").option("bootstrap.servers", servers).load(f"fluss.bench{written[0]}")

    def sums(read: Callable[[], Any]) -> None:
        found = read().selectExpr(*SUMS).collect()
        assert found == expected, f"read {found}, written {expected}"

    def write_fluss() -> float:
        written[0] += 1
        table = f"fluss.bench{written[0]}"
        create_table(frame, table, servers, buckets=BUCKETS)
        writer = frame.write.format("fluss").option("bootstrap.servers", servers).mode("append")
        seconds = timed(lambda: writer.save(table))
        sums(read_fluss)
        return rate(seconds)

    def write_parquet() -> float:
        seconds = timed(lambda: frame.write.mode("overwrite").parquet(files))
        sums(lambda: spark.read.parquet(files))
        return rate(seconds)

    if settings.wanted(WRITE):
        found = alternate(write_fluss, write_parquet, settings.repeats)
        yield Result(WRITE, *found, "M rows/s", ratio_of(*found), Bar(0.35, 0.7))
    else:
        write_fluss()
        write_parquet()
    if settings.wanted(READ):
        table = f"fluss.bench{written[0]}"
        seconds = in_new_sparks(settings, servers, table, files, list(expected[0]))
        found = tuple([rate(taken) for taken in side] for side in seconds)
        yield Result(READ, *found, "M rows/s", ratio_of(*found), Bar(0.5, 0.8))
