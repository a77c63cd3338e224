# SPDX-License-Identifier: Apache-2.0
"""One figure of Spark's read: a Spark of its own reads a table and the Parquet files of the same rows, in turn.

How well the compiler of a JVM does with the same code differs from one JVM to the next, by half of the time and more.
So each figure comes from a new one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

from benchmarks.harness import REPOSITORY, Settings, alternate
from fluss.spark import session

SUMS = ("count(*)", "sum(id)", "sum(score)", "sum(length(name))")


@dataclass(frozen=True)
class Read:
    """What is read, and what its sums must be."""

    servers: str
    table: str
    files: str
    expected: list[float]
    warm_up_s: float
    rounds: int

    def seconds(self) -> tuple[float, float]:
        """Of the table and of the files: the mean of some rounds, after a warm-up."""
        spark = session("bench", master="local[2]")

        def timed(source: str) -> float:
            began = time.perf_counter()
            reader = spark.read.format(source)
            if source == "fluss":
                reader = reader.option("bootstrap.servers", self.servers)
            frame = reader.load(self.table if source == "fluss" else self.files)
            [found] = frame.selectExpr(*SUMS).collect()
            taken = time.perf_counter() - began
            assert list(found) == self.expected, f"read {list(found)} of {source}, written {self.expected}"
            return taken

        try:
            [mine], [theirs] = alternate(
                lambda: timed("fluss"), lambda: timed("parquet"), 1, self.warm_up_s, self.rounds
            )
        finally:
            spark.stop()
        return mine, theirs


def in_new_sparks(
    settings: Settings, servers: str, table: str, files: str, expected: list[float]
) -> tuple[list[float], list[float]]:
    """The seconds of both sides, as many times as a case is repeated."""
    read = Read(servers, table, files, expected, settings.warm_up_s, settings.rounds)
    command = [sys.executable, "-m", "benchmarks.cases.spark_read", json.dumps(asdict(read))]
    found: list[tuple[float, float]] = []
    for _ in range(settings.repeats):
        done = subprocess.run(
            command, cwd=REPOSITORY, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
        )
        mine, theirs = json.loads(done.stdout.splitlines()[-1])
        found.append((mine, theirs))
    return [mine for mine, _ in found], [theirs for _, theirs in found]


if __name__ == "__main__":
    print(json.dumps(Read(**json.loads(sys.argv[1])).seconds()), flush=True)
