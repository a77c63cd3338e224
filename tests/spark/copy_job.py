# SPDX-License-Identifier: Apache-2.0
"""A job of its own process for the tests that kill: copies a log table to another one, exactly once.

`copy_job.py MASTER BOOTSTRAP SOURCE TARGET CHECKPOINT ROWS_PER_BATCH [update]`; prints a line for each micro-batch.
With `update`, it keeps the number of rows by `id % 100` in a primary-key table.
"""

from __future__ import annotations

import sys
import time

from fluss.spark import session
from fluss.spark.versions import KNOWS_START


def main() -> None:
    master, bootstrap, source, target, checkpoint, rows = sys.argv[1:7]
    spark = session("copy", master=master, config={"spark.executor.memory": "512m"})
    reader = spark.readStream.format("fluss").option("bootstrap.servers", bootstrap)
    frame = reader.option("maxRowsPerTrigger", rows).load(source)
    mode = "update" if sys.argv[7:] == ["update"] else "append"
    if mode == "update":
        frame = frame.selectExpr("id % 100 as k").groupBy("k").count()
    query = (
        frame.writeStream.format("fluss")
        .outputMode(mode)
        .option("bootstrap.servers", bootstrap)
        .option("checkpointLocation", checkpoint)
        # Spark before 4.2 takes everything in one micro-batch when asked for what is available now.
        .trigger(**({"availableNow": True} if KNOWS_START else {"processingTime": "0 seconds"}))
        .start(target)
    )
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
