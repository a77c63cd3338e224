# SPDX-License-Identifier: Apache-2.0
"""Five times the rows in Spark: what it does to the rates, and how much memory a worker takes; `local[2]`."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.cases.spark_batch import BUCKETS, COLUMNS, timed
from benchmarks.cases.spark_read import SUMS
from benchmarks.harness import Bar, Result, Settings, ratio_of
from fluss.client.blocking_client import close_shared_clients
from fluss.lake.rounds import Round
from fluss.lake.tasks import LakeSession
from fluss.metadata import TablePath
from fluss.server.local import LocalServer
from fluss.spark import create_table, session
from fluss.spark.tiering import SparkRunner

MANY, FEW, WARM = 50_000_000, 10_000_000, 1_000_000
WORK = ("write", "read", "tiering")
NAME = "Spark {}, 50 M rows against 10 M"
MEMORY = "Spark, largest worker with 50 M rows"
REPEATS_MAX = 3
FORMAT = "paimon"


def growth(settings: Settings) -> Iterator[Result]:
    wanted = [work for work in WORK if settings.wanted(NAME.format(work))]
    memory_wanted = settings.wanted(MEMORY)
    if not wanted and not memory_wanted:
        return
    folder = Path(tempfile.mkdtemp(prefix="fluss-bench-"))
    options = {"datalake.format": FORMAT, f"datalake.{FORMAT}.warehouse": str(folder / "lake")}
    with LocalServer(options=options) as server:
        bench = _Bench({"bootstrap.servers": server.bootstrap_servers})
        try:
            bench.run(settings.rows(WARM))
            rates: dict[str, tuple[list[float], list[float]]] = {work: ([], []) for work in WORK}
            peaks = []
            for _ in range(min(settings.repeats, REPEATS_MAX)):
                for side, rows in enumerate((settings.rows(MANY), settings.rows(FEW))):
                    with _WorkerMemory() as memory:
                        for work, rate in bench.run(rows).items():
                            rates[work][side].append(rate)
                    if side == 0:
                        peaks.append(memory.peak_mb)
        finally:
            bench.close()
            shutil.rmtree(folder, ignore_errors=True)
    for work in wanted:
        found = rates[work]
        yield Result(NAME.format(work), *found, "M rows/s", ratio_of(*found), Bar(0.8, 1.0))
    if memory_wanted:
        yield Result(MEMORY, peaks, [], "MB", None, Bar(1000, 500, "MB", higher=False))


class _Bench:
    """Writes, reads and tiers tables of different sizes."""

    def __init__(self, client: dict[str, str]) -> None:
        self._client = client
        self._servers = client["bootstrap.servers"]
        self._spark = session("bench", master="local[2]")
        self._lake = LakeSession(client)
        self._tables = 0

    def run(self, rows: int) -> dict[str, float]:
        """The rates of all work on a new table, in million rows a second."""
        self._tables += 1
        path = TablePath("fluss", f"growth_{self._tables}")
        frame = self._spark.range(0, rows, 1, BUCKETS).selectExpr(*COLUMNS)
        expected = frame.selectExpr(*SUMS).collect()
        properties = {"table.datalake.enabled": "true"}
        create_table(frame, str(path), self._servers, buckets=BUCKETS, properties=properties)
        writer = frame.write.format("fluss").option("bootstrap.servers", self._servers).mode("append")
        reader = self._spark.read.format("fluss").option("bootstrap.servers", self._servers)
        found: list[Any] = []
        seconds = {"write": timed(lambda: writer.save(str(path)))}
        seconds["read"] = timed(lambda: found.extend(reader.load(str(path)).selectExpr(*SUMS).collect()))
        assert found == expected, f"read {found}, written {expected}"
        reports: list[Any] = []
        tiering = Round(self._lake, self._client, SparkRunner(self._spark))
        seconds["tiering"] = timed(lambda: reports.append(tiering.run(path)))
        assert reports[0].rows == rows, reports[0]
        return {work: rows / taken / 1e6 for work, taken in seconds.items()}

    def close(self) -> None:
        self._lake.close()
        close_shared_clients()
        self._spark.stop()


class _WorkerMemory:
    """Watches the Python workers of the Spark of this process."""

    def __init__(self) -> None:
        self.peak_mb = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _WorkerMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            for pid in _python_workers():
                self.peak_mb = max(self.peak_mb, _peak_mb(pid))


def _python_workers() -> list[int]:
    """Return the processes that the JVM of this process started."""
    children: dict[int, list[int]] = {}
    java = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = (entry / "stat").read_text().partition("(")[2].rpartition(")")
            except OSError:
                continue  # it has ended
            pid = int(entry.name)
            children.setdefault(int(rest.split()[1]), []).append(pid)
            if name == "java":
                java.add(pid)
    mine = _below(os.getpid(), children)
    return [pid for jvm in java.intersection(mine) for pid in _below(jvm, children)]


def _below(pid: int, children: dict[int, list[int]]) -> list[int]:
    direct = children.get(pid, [])
    return direct + [found for child in direct for found in _below(child, children)]


def _peak_mb(pid: int) -> float:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:")), 0.0)
