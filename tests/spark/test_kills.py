# SPDX-License-Identifier: Apache-2.0
"""Drivers and executors die with SIGKILL in mid-stream; separate executors read and write."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.spark import jobs

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.lake import TieringService
from fluss.metadata import Schema, TableDescriptor, TablePath
from fluss.spark.versions import KNOWS_START

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROWS = 6_000
SCHEMA = pa.schema([("id", pa.int64()), ("s", pa.string())])
JOB = Path(__file__).with_name("copy_job.py")


class Copies:
    """A source and a target table, and jobs that copy one to the other."""

    def __init__(self, bootstrap: str, folder: Path, *, lake: bool = False) -> None:
        self.bootstrap = bootstrap
        self.folder = folder
        self.client = BlockingClient({"bootstrap.servers": bootstrap})
        for name in ("source", "target"):
            properties = {"table.datalake.enabled": "true"} if lake and name == "source" else {}
            descriptor = TableDescriptor(Schema(SCHEMA), bucket_count=2, properties=properties)
            self.client.run(self.client.admin.create_table(TablePath("fluss", name), descriptor))

    def write(self, ids: range) -> None:
        table = self.client.table(TablePath("fluss", "source"))
        writer = self.client.call(lambda: table.new_append().create_writer())
        writer.write_arrow(pa.table({"id": ids, "s": ["x" * 500] * len(ids)}, schema=SCHEMA))
        self.client.run(writer.flush())

    def start(self, master: str, rows_per_batch: int, *mode: str, target: str = "target") -> subprocess.Popen[str]:
        arguments = [master, self.bootstrap, "fluss.source", f"fluss.{target}", str(self.folder / "c")]
        return jobs.start(JOB, [*arguments, str(rows_per_batch), *mode], self.folder / "job.log")

    def counts(self) -> Counter[int]:
        table = self.client.table(TablePath("fluss", "target"))
        info = table.get_table_info()
        starts = {fluss.TableBucket(info.table_id, bucket): fluss.EARLIEST_OFFSET for bucket in range(2)}
        scan = self.client.call(table.new_scan)
        found: Counter[int] = Counter()
        for batch in self.client.iterate(scan.read_batches(starts)):
            found.update(batch.batch.column(0).to_pylist())
        return found


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    with fluss.LocalServer() as server:
        made = Copies(server.bootstrap_servers, tmp_path)
        made.write(range(ROWS))
        yield made
        made.client.close()


def test_a_killed_driver_loses_and_doubles_nothing(copies: Copies) -> None:
    # Before 4.2 the first micro-batch of a query takes all there is.
    for kill_at in ("batch 1", "batch 4") if KNOWS_START else ("started", "started"):
        job = copies.start("local[2]", 500)
        try:
            assert kill_at in jobs.lines(job, kill_at), (copies.folder / "job.log").read_text()[-3000:]
            if kill_at == "started":
                jobs.wait_for_file(copies.folder / "c" / "offsets" / "0")
                wait_for_rows(copies)
            time.sleep(0.15)  # into the middle of the next micro-batch
        finally:
            jobs.end(job)
        found = copies.counts()
        assert 0 < sum(found.values()) < ROWS or not KNOWS_START
        assert max(found.values()) == 1
    job = copies.start("local[2]", 500)
    try:
        assert jobs.lines(job, "complete")[-1] == "complete"
    finally:
        jobs.end(job)
    assert copies.counts() == Counter(range(ROWS))


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("mode", ["append", "update"])
def test_drivers_killed_at_random_moments(copies: Copies, mode: str) -> None:
    """`make crash-spark` kills more of them, and `SEED=8` at other moments."""
    target = "target" if mode == "append" else "totals"
    if mode == "update":
        columns = pa.schema([pa.field("k", pa.int64(), nullable=False), ("count", pa.int64())])
        descriptor = TableDescriptor(Schema(columns, primary_keys=["k"]), bucket_count=2)
        copies.client.run(copies.client.admin.create_table(TablePath("fluss", target), descriptor))
    arguments = [] if mode == "append" else [mode]
    moments = random.Random(int(os.environ.get("SEED", "7")))
    rows = ROWS
    left = int(os.environ.get("KILLS", "3"))
    last = False
    while not last:
        last = left == 0
        copies.write(range(rows, rows + 500))
        rows += 500
        job = copies.start("local[2]", 1000, *arguments, target=target)
        try:
            until = "complete" if last else "started"
            assert until in jobs.lines(job, until), (copies.folder / "job.log").read_text()[-3000:]
            if not last:
                time.sleep(moments.uniform(0, 8))
                left -= job.poll() is None  # else it was done before
        finally:
            jobs.end(job)
    if mode == "append":
        assert copies.counts() == Counter(range(rows))
    else:
        with fluss.connect(copies.bootstrap) as db:
            found = {row["k"]: row["count"] for row in db.table(target).to_arrow().to_pylist()}
        assert found == Counter(i % 100 for i in range(rows))


@pytest.mark.parametrize("lake_format", ["paimon", "iceberg"])
def test_a_killed_driver_goes_on_from_the_lake(tmp_path: Path, lake_format: str) -> None:
    """Killed in the micro-batch that reads the lake and in a later one, while the lake gets new snapshots."""
    options = {"datalake.format": lake_format, f"datalake.{lake_format}.warehouse": str(tmp_path / "lake")}
    with fluss.LocalServer(options=options) as server:
        copies = Copies(server.bootstrap_servers, tmp_path, lake=True)
        tiering = TieringService({"bootstrap.servers": server.bootstrap_servers})
        copies.write(range(ROWS // 3))
        tiering.run_once()
        copies.write(range(ROWS // 3, ROWS // 2))
        for step, kill_at in enumerate(("started", "batch 1")):
            job = copies.start("local[2]", 500)
            try:
                assert kill_at in jobs.lines(job, kill_at), (copies.folder / "job.log").read_text()[-3000:]
                if kill_at == "started":
                    # The first micro-batch is planned, with the snapshot it reads, and not done.
                    jobs.wait_for_file(copies.folder / "c" / "offsets" / "0")
                time.sleep(0.15)
            finally:
                jobs.end(job)
            done = (copies.folder / "c" / "commits" / "0").exists()
            assert done == (kill_at != "started")
            assert max(copies.counts().values(), default=1) == 1
            tiering.run_once()
            copies.write(range(ROWS // 2 + step * ROWS // 4, ROWS // 2 + (step + 1) * ROWS // 4))
        job = copies.start("local[2]", 500)
        try:
            assert jobs.lines(job, "complete")[-1] == "complete", (copies.folder / "job.log").read_text()[-3000:]
        finally:
            jobs.end(job)
        assert copies.counts() == Counter(range(ROWS))
        copies.client.close()


def wait_for_rows(copies: Copies) -> None:
    deadline = time.monotonic() + 60
    while not copies.counts():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def executors(job: subprocess.Popen[str]) -> list[int]:
    """Java processes of executors in the session of a job."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes()
            if os.getsid(int(entry.name)) == job.pid and b"CoarseGrainedExecutorBackend" in command:
                found.append(int(entry.name))
        except (OSError, ProcessLookupError):
            continue
    return found


def test_a_killed_executor_loses_and_doubles_nothing(copies: Copies) -> None:
    job = copies.start("local-cluster[2,1,1024]", 1000)
    try:
        kill_at = "batch 1" if KNOWS_START else "started"  # before 4.2 there is one micro-batch
        assert kill_at in jobs.lines(job, kill_at), (copies.folder / "job.log").read_text()[-3000:]
        if not KNOWS_START:
            wait_for_rows(copies)
        alive = executors(job)
        assert alive
        os.kill(alive[0], signal.SIGKILL)
        assert jobs.lines(job, "complete")[-1] == "complete", (copies.folder / "job.log").read_text()[-3000:]
    finally:
        jobs.end(job)
    assert copies.counts() == Counter(range(ROWS))


def test_the_demo_ends_by_itself(tmp_path: Path) -> None:
    environment: dict[str, Any] = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "examples/demo.py", "--rows", "5000", "--seconds", "5"],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exact against what was generated" in done.stdout
    assert re.search(
        r"in the lake \+ [\d,]+ in the log = 5,000 orders, revenue [\d,.]+: exact against the live", done.stdout
    )
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("fluss-demo")] == []
