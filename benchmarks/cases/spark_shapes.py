# SPDX-License-Identifier: Apache-2.0
"""What the shape of a table or query costs in Spark: few buckets, small queries, times instead of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.cases.spark_batch import COLUMNS, new_spark, timed
from benchmarks.cases.spark_read import SUMS
from benchmarks.harness import Bar, Result, Settings, alternate, ratio_of
from fluss.spark import create_table

SMALL_ROWS = 1_000
ONE_BUCKET = "Spark read, one bucket against eight"
SMALL_QUERY = "Spark small query, times of Parquet"
TIMES = "Spark write of TIMESTAMP against BIGINT"


def shapes(settings: Settings) -> Iterator[Result]:
    if not settings.wanted(ONE_BUCKET, SMALL_QUERY, TIMES):
        return
    with new_spark() as connected:
        bench = _Bench(settings, *connected)
        if settings.wanted(ONE_BUCKET):
            yield bench.one_bucket()
        if settings.wanted(SMALL_QUERY):
            yield bench.small_query()
        if settings.wanted(TIMES):
            yield bench.times()


class _Bench:
    def __init__(self, settings: Settings, spark: Any, servers: str, folder: str) -> None:
        self._settings = settings
        self._spark = spark
        self._servers = servers
        self._folder = folder
        self._tables = 0

    def _write(self, frame: Any, buckets: int) -> tuple[str, float]:
        self._tables += 1
        table = f"fluss.shape{self._tables}"
        create_table(frame, table, self._servers, buckets=buckets)
        writer = frame.write.format("fluss").option("bootstrap.servers", self._servers).mode("append")
        return table, timed(lambda: writer.save(table))

    def _read(self, table: str) -> Any:
        return self._spark.read.format("fluss").option("bootstrap.servers", self._servers).load(table)

    def one_bucket(self) -> Result:
        rows = self._settings.rows(10_000_000)
        frame = self._spark.range(0, rows, 1, 4).selectExpr(*COLUMNS)
        expected = frame.selectExpr(*SUMS).collect()

        def rate_of(buckets: int) -> Callable[[], float]:
            table, _ = self._write(frame, buckets)

            def rate() -> float:
                found: list[Any] = []
                seconds = timed(lambda: found.extend(self._read(table).selectExpr(*SUMS).collect()))
                assert found == expected, f"read {found}, written {expected}"
                return rows / seconds / 1e6

            return rate

        found = alternate(rate_of(1), rate_of(8), self._settings.repeats)
        return Result(ONE_BUCKET, *found, "M rows/s", ratio_of(*found), Bar(0.9, 1.0))

    def small_query(self) -> Result:
        frame = self._spark.range(0, SMALL_ROWS, 1, 1).selectExpr(*COLUMNS)
        table, _ = self._write(frame, 1)
        files = f"{self._folder}/small"
        frame.write.mode("overwrite").parquet(files)

        def milliseconds(load: Callable[[], Any]) -> Callable[[], float]:
            return lambda: timed(lambda: load().selectExpr("sum(id)").collect()) * 1000

        found = alternate(
            milliseconds(lambda: self._read(table)),
            milliseconds(lambda: self._spark.read.parquet(files)),
            self._settings.repeats,
            self._settings.warm_up_s,
            rounds=5,
        )
        return Result(SMALL_QUERY, *found, "ms", ratio_of(*found), Bar(1.5, 1.0, higher=False))

    def times(self) -> Result:
        rows = self._settings.rows(5_000_000)
        numbers = self._spark.range(0, rows, 1, 4).selectExpr("id", "id * 1000 as a", "id * 2000 as b")
        # No TIMESTAMP_NTZ, which Spark would have to compute row by row from a time zone.
        times = self._spark.range(0, rows, 1, 4).selectExpr(
            "id", "timestamp_micros(id * 1000) as a", "timestamp_micros(id * 2000) as b"
        )

        def rate(frame: Any) -> Callable[[], float]:
            return lambda: rows / self._write(frame, 4)[1] / 1e6

        found = alternate(rate(times), rate(numbers), self._settings.repeats)
        return Result(TIMES, *found, "M rows/s", ratio_of(*found), Bar(0.9, 1.0))
