# SPDX-License-Identifier: Apache-2.0
"""A job of its own process for the tests that kill: one of the patterns of docs/spark-patterns.md.

`pattern_job.py PATTERN BOOTSTRAP CHECKPOINT ROWS_PER_BATCH`; prints a line for each micro-batch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from fluss.spark import read, session, upsert_stream
from fluss.spark.versions import KNOWS_START

# Spark before 4.2 takes everything in one micro-batch when asked for what is available now.
TRIGGER: dict[str, Any] = {"availableNow": True} if KNOWS_START else {"processingTime": "0 seconds"}


def replica(spark: Any, checkpoint: str, limit: dict[str, str]) -> Any:
    changes = read(spark, "shop.customers", stream=True, options={"read.changelog": "true", **limit})
    writer = changes.writeStream.format("fluss").option("rowkind.column", "_change_type")
    return writer.option("checkpointLocation", checkpoint).trigger(**TRIGGER).start("shop.replica")


def history(spark: Any, checkpoint: str, limit: dict[str, str]) -> Any:
    def append(rows: Any, columns: str) -> None:
        writer = rows.write.format("fluss").option("write.columns", columns)
        writer.mode("append").save("shop.history")

    def keep_versions(changes: Any, batch_id: int) -> None:
        opened = changes.where("_change_type in ('insert', 'update_after')")
        append(opened.selectExpr("id", "since as valid_from", "country"), "id,valid_from,country")
        closed = changes.where("_change_type in ('update_before', 'delete')")
        closed = closed.selectExpr("id", "since as valid_from", "_commit_timestamp as valid_to")
        append(closed, "id,valid_from,valid_to")

    options = {"read.changelog": "true", "includeMetadata": "true", "scan.startup.mode": "earliest", **limit}
    writer = read(spark, "shop.customers", stream=True, options=options).writeStream.foreachBatch(keep_versions)
    return writer.option("checkpointLocation", checkpoint).trigger(**TRIGGER).start()


def totals(spark: Any, checkpoint: str, limit: dict[str, str]) -> Any:
    counts = read(spark, "shop.visits", stream=True, options=limit).groupBy("country").count()
    return upsert_stream(counts, "shop.totals", checkpoint=checkpoint, trigger=TRIGGER)


def unique(spark: Any, checkpoint: str, limit: dict[str, str]) -> Any:
    visits = read(spark, "shop.visits", stream=True, options=limit).withWatermark("at", "100 days")
    writer = visits.dropDuplicatesWithinWatermark(["id"]).writeStream.format("fluss")
    return writer.option("checkpointLocation", checkpoint).trigger(**TRIGGER).start("shop.unique")


PATTERNS: dict[str, Callable[[Any, str, dict[str, str]], Any]] = {
    pattern.__name__: pattern for pattern in (replica, history, totals, unique)
}


def main() -> None:
    pattern, bootstrap, checkpoint, rows = sys.argv[1:5]
    config = {"spark.sql.shuffle.partitions": "2", "spark.fluss.bootstrap.servers": bootstrap}
    spark = session(pattern, master="local[2]", config=config)
    query = PATTERNS[pattern](spark, checkpoint, {"maxRowsPerTrigger": rows})
    print("started", flush=True)
    seen = -1
    while query.isActive:
        last = query.lastProgress
        if last is not None and last["batchId"] > seen:
            seen = last["batchId"]
            print(f"batch {seen}", flush=True)
        if not KNOWS_START and query.status["message"] == "Waiting for data to arrive":
            query.stop()
        time.sleep(0.05)
    query.awaitTermination()
    print("complete", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
