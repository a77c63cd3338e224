# SPDX-License-Identifier: Apache-2.0
"""What Spark reads of wide and of large tables: a count, two of 30 columns, one key; and the first query of a session.

``python -m benchmarks.cases.spark_wide FORMAT PATH [SERVERS [SETTING=VALUE ...]]`` prints the seconds of the first
query of a session that is not made by this package.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cases.spark_batch import COLUMNS, new_spark, timed
from benchmarks.cases.spark_shapes import SMALL_ROWS
from benchmarks.harness import REPOSITORY, Bar, Result, Settings, alternate, ratio_of
from fluss.spark import create_table
from fluss.spark.planner import FOLDER

COUNT = "Spark count() of 30 columns, times of one named by option"
TWO = "Spark read of 2 of 30 columns, times of naming them by option"
KEY = "Spark row of 10 M by its key"
FIRST = "Spark first query of a plain session, times of Parquet"
PREPARED = "Spark first query with the settings of docs/spark.md, times of Parquet"
ROWS = 10_000_000
BUCKETS = 4
WIDE = ("id", *(f"id * {number} as c{number}" for number in range(1, 30)))


def wide(settings: Settings) -> Iterator[Result]:
    if not settings.wanted(COUNT, TWO, KEY, FIRST, PREPARED):
        return
    with new_spark() as connected:
        bench = _Bench(settings, *connected)
        if settings.wanted(COUNT, TWO):
            yield from bench.columns()
        if settings.wanted(KEY):
            yield bench.key()
        if settings.wanted(FIRST, PREPARED):
            yield from bench.first_query()


class _Bench:
    def __init__(self, settings: Settings, spark: Any, servers: str, folder: str) -> None:
        self._settings = settings
        self._spark = spark
        self._servers = servers
        self._folder = folder

    def _write(self, table: str, columns: tuple[str, ...], rows: int, **options: Any) -> int:
        frame = self._spark.range(0, rows, 1, BUCKETS).selectExpr(*columns)
        create_table(frame, table, self._servers, buckets=BUCKETS, **options)
        frame.write.format("fluss").option("bootstrap.servers", self._servers).mode("append").save(table)
        return rows

    def _read(self, table: str, columns: str | None = None) -> Any:
        reader = self._spark.read.format("fluss").option("bootstrap.servers", self._servers)
        return (reader if columns is None else reader.option("columns", columns)).load(table)

    def columns(self) -> Iterator[Result]:
        rows = self._write("fluss.wide", WIDE, self._settings.rows(ROWS))
        ids = rows * (rows - 1) // 2

        def seconds(act: Callable[[], Any], expected: Any) -> Callable[[], float]:
            def measure() -> float:
                found: list[Any] = []
                taken = timed(lambda: found.append(act()))
                assert found == [expected], f"read {found}, written {expected}"
                return taken

            return measure

        def sums(columns: str | None) -> Callable[[], float]:
            def act() -> Any:
                return tuple(self._read("fluss.wide", columns).selectExpr("sum(c7)", "sum(c23)").first())

            return seconds(act, (7 * ids, 23 * ids))

        def count(columns: str | None) -> Callable[[], float]:
            return seconds(lambda: self._read("fluss.wide", columns).count(), rows)

        for name, act, named in ((COUNT, count, "c7"), (TWO, sums, "c7,c23")):
            if self._settings.wanted(name):
                found = alternate(act(None), act(named), self._settings.repeats)
                yield Result(name, *found, "s", ratio_of(*found), Bar(1.2, 1.0, higher=False))

    def key(self) -> Result:
        self._write("fluss.keyed", COLUMNS, self._settings.rows(ROWS), primary_key=["id"])

        def look_up() -> float:
            found: list[Any] = []
            taken = timed(lambda: found.extend(self._read("fluss.keyed").where("id = 7").collect()))
            assert [tuple(row) for row in found] == [(7, "user-7", 3.5)]
            return taken

        found, _ = alternate(look_up, None, self._settings.repeats)
        return Result(KEY, found, [], "s", None, Bar(1.0, 0.5, "s", higher=False))

    def first_query(self) -> Iterator[Result]:
        self._write("fluss.small", COLUMNS, SMALL_ROWS)
        files = f"{self._folder}/small"
        self._spark.range(0, SMALL_ROWS, 1, 1).selectExpr(*COLUMNS).write.parquet(files)

        def in_new_process(*arguments: str, **variables: str) -> Callable[[], float]:
            command = [sys.executable, "-m", "benchmarks.cases.spark_wide", *arguments]

            def measure() -> float:
                done = subprocess.run(
                    command, cwd=REPOSITORY, env={**os.environ, **variables}, check=True, stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE, text=True,
                )  # fmt: skip
                return float(done.stdout.splitlines()[-1])

            return measure

        ours = "fluss", "fluss.small", self._servers
        prepared = in_new_process(*ours, "spark.python.daemon.module=fluss.spark.daemon", PYTHONPATH=FOLDER)
        # A source of ten lines of Python takes twice the time of Parquet in a plain session: what Spark starts.
        for name, measure, bar in ((FIRST, in_new_process(*ours), 3.5), (PREPARED, prepared, 2.0)):
            if self._settings.wanted(name):
                found = alternate(measure, in_new_process("parquet", files), self._settings.repeats)
                yield Result(name, *found, "s", ratio_of(*found), Bar(bar, 1.5, higher=False))


def first_query_seconds(source: str, path: str, servers: str | None = None, *settings: str) -> float:
    """The seconds of the first query of a new session, its start not included."""
    from pyspark.sql import SparkSession

    given = dict(setting.split("=") for setting in ("spark.ui.enabled=false", *settings))
    spark = SparkSession.builder.master("local[2]").config(map=given).getOrCreate()
    spark.sql("select 1").collect()  # the session itself is ready
    try:
        began = time.perf_counter()
        reader = spark.read.format(source)
        if servers is not None:
            reader = reader.option("bootstrap.servers", servers)
        [[found]] = reader.load(path).selectExpr("sum(id)").collect()
        assert found == SMALL_ROWS * (SMALL_ROWS - 1) // 2
        return time.perf_counter() - began
    finally:
        spark.stop()


if __name__ == "__main__":
    print(first_query_seconds(*sys.argv[1:]), flush=True)
