# SPDX-License-Identifier: Apache-2.0
"""One micro-batch of a stream that reads a table, against one of Spark's own `rate` source."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.harness import Bar, Result, Settings, WorkerError, alternate, ratio_of
from fluss.server.local import LocalServer
from fluss.spark import create_table, session

NAME = "micro-batch, times of the rate source"
ROWS_PER_SECOND = 1_000
BATCHES = 5
BATCHES_WARM = 2
WAIT_S_MAX = 90.0


def micro_batch(settings: Settings) -> Iterator[Result]:
    if not settings.wanted(NAME):
        return
    folder = tempfile.mkdtemp(prefix="fluss-bench-")
    with LocalServer() as server:
        spark = session("bench", master="local[2]")
        try:
            yield _result(settings, spark, server.bootstrap_servers, folder)
        finally:
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)


def _result(settings: Settings, spark: Any, servers: str, folder: str) -> Result:
    create_table(spark.range(10).selectExpr("id", "cast(id as double) as v"), "fluss.live", servers, buckets=2)
    rate = spark.readStream.format("rate").option("rowsPerSecond", ROWS_PER_SECOND).load()
    live = spark.readStream.format("fluss").option("bootstrap.servers", servers).load("fluss.live")
    runs = [0]

    def middle_ms(frame: Any) -> float:
        runs[0] += 1
        return _middle_batch_ms(frame, f"{folder}/query-{runs[0]}")

    # The feed keeps running while both are measured, so that both share the machine with it.
    feed = (
        rate.selectExpr("value as id", "cast(value as double) as v")
        .writeStream.format("fluss")
        .option("bootstrap.servers", servers)
        .option("checkpointLocation", f"{folder}/feed")
        .option("write.delivery", "at-least-once")
        .trigger(processingTime="1 second")
        .start("fluss.live")
    )
    try:
        found = alternate(lambda: middle_ms(live), lambda: middle_ms(rate), settings.repeats)
    finally:
        feed.stop()
    bar = Bar(4.0, 2.0, higher=False)
    return Result(NAME, *found, "ms", ratio_of(*found), bar)


def _middle_batch_ms(frame: Any, folder: str) -> float:
    """The middle duration of the micro-batches that had rows, without the first ones, in which Spark warms up."""
    writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
    query = writer.trigger(processingTime="0 seconds").start()
    deadline = time.monotonic() + WAIT_S_MAX
    found: list[float] = []
    try:
        while len(found) < BATCHES + BATCHES_WARM and time.monotonic() < deadline:
            time.sleep(0.2)
            progress = [one for one in query.recentProgress if one["numInputRows"] > 0]
            found = [one["durationMs"]["triggerExecution"] for one in progress]
    finally:
        query.stop()
    if len(found) <= BATCHES_WARM:
        raise WorkerError(f"only {len(found)} micro-batches had rows within {WAIT_S_MAX:.0f} s")
    return statistics.median(found[BATCHES_WARM:])
