# SPDX-License-Identifier: Apache-2.0
"""Copy one log table to another as it grows, exactly once: start it, stop it, start it again.

Run: `python examples/spark_stream.py HOST:PORT database.source database.target CHECKPOINT_FOLDER`.
"""

from __future__ import annotations

import sys

from fluss.spark import session


def main() -> None:
    servers, source, target, checkpoint = sys.argv[1:5]
    spark = session("copy", master="local[2]")
    query = (
        spark.readStream.format("fluss")
        .option("bootstrap.servers", servers)
        .option("maxRowsPerTrigger", 100_000)
        .load(source)
        .writeStream.format("fluss")
        .option("bootstrap.servers", servers)
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="1 second")
        .start(target)
    )
    try:
        while query.isActive:
            query.awaitTermination(5)
            last = query.lastProgress
            if last is not None:
                print(
                    f"batch {last['batchId']}: {last['numInputRows']} rows, latest {last['sources'][0]['latestOffset']}"
                )
    except KeyboardInterrupt:
        query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
