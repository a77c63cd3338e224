# SPDX-License-Identifier: Apache-2.0
"""Spark with Fluss against Spark with Parquet, and micro-batches against Spark's own `rate` source.

`python benchmarks/spark/throughput.py [--rows 10000000]`: three columns (int64, float64, short string), `local[2]`.
Each figure is the best of some runs, with Parquet and Fluss taking turns, so that a busy machine hits both alike.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import fluss
from fluss.spark import create_table, session


def timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def micro_batch_ms(frame: Any, sink: Callable[[Any], Any], folder: str, batches: int) -> float:
    """The middle duration of micro-batches that had rows, without the first ones, in which Spark warms up."""
    query = sink(frame.writeStream).option("checkpointLocation", folder).trigger(processingTime="0 seconds").start()
    deadline = time.monotonic() + 90
    found: list[float] = []
    while len(found) < batches + 3 and time.monotonic() < deadline:
        time.sleep(0.2)
        progress = [p for p in query.recentProgress if p["numInputRows"] > 0]
        found = [p["durationMs"]["triggerExecution"] for p in progress]
    query.stop()
    return statistics.median(found[3:]) if len(found) > 3 else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--only", choices=["read-write", "stream"])
    arguments = parser.parse_args()
    rows, runs = arguments.rows, arguments.runs
    folder = tempfile.mkdtemp(prefix="fluss-bench-")
    figures: dict[str, float] = {}
    with fluss.LocalServer() as server:
        spark = session("bench", master="local[2]")
        address = server.bootstrap_servers
        text = ["id", "cast(id as double) * 0.5 as v", "concat('s', id % 1000) as s"]
        frame = spark.range(0, rows, 1, 4).selectExpr(*text)
        try:
            if arguments.only != "stream":
                times: dict[str, list[float]] = {}
                for run in range(runs):
                    table = f"fluss.bench{run}"
                    create_table(frame, table, address, buckets=4)

                    def write_fluss(name: str = table) -> None:
                        frame.write.format("fluss").option("bootstrap.servers", address).mode("append").save(name)

                    def count(read: Any) -> None:
                        [(found, _, _)] = read.selectExpr("count(*)", "sum(v)", "max(s)").collect()
                        assert found == rows, found

                    def read_fluss(name: str = table) -> None:
                        count(spark.read.format("fluss").option("bootstrap.servers", address).load(name))

                    acts: dict[str, Callable[[], object]] = {
                        "parquet write": lambda: frame.write.mode("overwrite").parquet(f"{folder}/parquet"),
                        "fluss write": write_fluss,
                        "parquet read": lambda: count(spark.read.parquet(f"{folder}/parquet")),
                        "fluss read": read_fluss,
                    }
                    for name, act in acts.items():
                        times.setdefault(name, []).append(timed(act))
                        print(f"run {run}: {name:14} {rows / times[name][-1] / 1e6:6.2f} M rows/s", flush=True)
                best = {name: rows / min(found) / 1e6 for name, found in times.items()}
                figures.update({f"{name} M rows/s": value for name, value in best.items()})
                figures["read, share of parquet"] = best["fluss read"] / best["parquet read"]
                figures["write, share of parquet"] = best["fluss write"] / best["parquet write"]
            if arguments.only != "read-write":
                stream(spark, address, folder, arguments.batches, figures)
        finally:
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}, indent=2))


def stream(spark: Any, address: str, folder: str, batches: int, figures: dict[str, float]) -> None:
    source = spark.range(10).selectExpr("id", "cast(id as double) as v", "'x' as s")
    create_table(source, "fluss.live", address, buckets=2)
    create_table(source, "fluss.copy", address, buckets=2)
    rate = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
    figures["rate to noop ms"] = micro_batch_ms(rate, lambda w: w.format("noop"), f"{folder}/rate", batches)

    feed = (
        rate.selectExpr("value as id", "cast(value as double) as v", "'x' as s")
        .writeStream.format("fluss")
        .option("bootstrap.servers", address)
        .option("checkpointLocation", f"{folder}/feed")
        .option("write.delivery", "at-least-once")
        .trigger(processingTime="1 second")
        .start("fluss.live")
    )
    try:
        live = spark.readStream.format("fluss").option("bootstrap.servers", address).load("fluss.live")
        figures["fluss to noop ms"] = micro_batch_ms(live, lambda w: w.format("noop"), f"{folder}/noop", batches)

        def to_copy(writer: Any) -> Any:
            return writer.format("fluss").option("bootstrap.servers", address).option("table", "fluss.copy")

        figures["fluss to fluss, exactly once ms"] = micro_batch_ms(live, to_copy, f"{folder}/copy", batches)
    finally:
        feed.stop()
    figures["micro-batch, times of rate"] = figures["fluss to noop ms"] / figures["rate to noop ms"]


if __name__ == "__main__":
    main()
