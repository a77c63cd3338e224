# SPDX-License-Identifier: Apache-2.0
"""Tiering a log table on Spark, against writing the same rows with `df.write.parquet`.

`python benchmarks/spark/tiering.py [--rows 10000000] [--format paimon]`: three columns (int64, float64, short string),
`local[2]`, Parquet and tiering taking turns; the middle of some runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import fluss
from fluss.lake.rounds import Round
from fluss.lake.session import Session, close_sessions
from fluss.metadata import TablePath
from fluss.spark import create_table, session
from fluss.spark.tiering import SparkRunner


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--format", choices=["paimon", "iceberg"], default="paimon")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fluss-bench-"))
    options = {"datalake.format": arguments.format, f"datalake.{arguments.format}.warehouse": str(folder / "lake")}
    times: dict[str, list[float]] = {"parquet": [], "tiering": []}
    with fluss.LocalServer(options=options) as server:
        spark = session("bench", master="local[2]")
        client = {"bootstrap.servers": server.bootstrap_servers}
        connection = Session(client)
        text = ["id", "cast(id as double) * 0.5 as v", "concat('user-', id % 1000) as s"]
        try:
            for run in range(arguments.runs + 1):
                frame = spark.range(0, arguments.rows, 1, 4).selectExpr(*text)
                began = time.perf_counter()
                frame.write.mode("overwrite").parquet(str(folder / "parquet"))
                parquet_s = time.perf_counter() - began
                path = TablePath("fluss", f"bench_{run}")
                switch = {"table.datalake.enabled": "true"}
                create_table(frame, str(path), server.bootstrap_servers, buckets=2, properties=switch)
                frame.write.format("fluss").option("bootstrap.servers", server.bootstrap_servers).mode("append").save(
                    str(path)
                )
                began = time.perf_counter()
                report = Round(connection, client, SparkRunner(spark)).run(path)
                tiering_s = time.perf_counter() - began
                assert report.rows == arguments.rows, report
                if run:  # the first one warms Spark up
                    times["parquet"].append(parquet_s)
                    times["tiering"].append(tiering_s)
        finally:
            connection.close()
            close_sessions()
            spark.stop()
            shutil.rmtree(folder, ignore_errors=True)
    middle = {name: statistics.median(found) for name, found in times.items()}
    figures = {f"{name}_rows_per_s": round(arguments.rows / seconds) for name, seconds in middle.items()}
    print(json.dumps({**figures, "ratio": round(middle["parquet"] / middle["tiering"], 3), "must": 0.25, "goal": 0.6}))


if __name__ == "__main__":
    main()
