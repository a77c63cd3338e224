# SPDX-License-Identifier: Apache-2.0
"""Much and long: maintenance while rows come in and are read, and the memory of a large round."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.lake.support import PACKAGES, ROW, LakeHarness, every_format, lake_server_options, row, rows_of

from fluss.lake.api import LakeTableChangedError
from fluss.lake.rounds import RoundSettings
from fluss.server.local import LocalServer

MAINTAINED = RoundSettings(compact=True, compact_files_min=3, expire=True, expire_keep_min=2, expire_after_s=-60.0)


@every_format
def test_compaction_and_expiry_while_rows_come_in_and_are_read(lake: LakeHarness) -> None:
    """Readers find every row once at any moment, however many files and snapshots go meanwhile."""
    path = lake.create("busy", buckets=2)
    written, stop = [0], threading.Event()
    problems: list[str] = []

    def write() -> None:
        while not stop.is_set():
            first = written[0]
            lake.append(path, [row(i) for i in range(first, first + 20)])
            written[0] = first + 20
            time.sleep(0.01)

    def read() -> None:
        while not stop.is_set():
            least = written[0]
            try:
                ids = sorted(one["id"] for one in lake.union(path, columns=["id"]))
            except LakeTableChangedError:
                continue  # only two snapshots are kept: a reader may be overtaken, and is told so
            if ids != list(range(len(ids))) or len(ids) < least:
                problems.append(f"{len(ids)} rows, {len(set(ids))} of them different, at least {least} were written")
                return

    threads = [threading.Thread(target=write), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    compacted = expired = 0
    try:
        for number in range(30):  # as many as it takes until there is something to compact and to expire
            one = lake.round(settings=MAINTAINED)
            report = one.run(path)
            one.maintain(report, sweep=True)
            compacted, expired = compacted + report.compacted, expired + report.expired
            if number >= 5 and compacted and expired:
                break
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert problems == []
    assert compacted > 0
    assert expired > 0
    lake.tier(path)
    truth = [row(i) for i in range(written[0])]
    assert rows_of(lake.alone(path), ROW.names) == truth
    assert lake.table(path).sweep(older_than_ms=2**53) == []


_LARGE_ROUND = """
import json, resource, sys, threading, time
import numpy as np, pyarrow as pa
from fluss import Schema, TableDescriptor, TablePath
from fluss.lake import TieringService
from fluss.lake.tasks import LakeSession

client, rows, buckets = {"bootstrap.servers": sys.argv[1]}, int(sys.argv[2]), 4
path = TablePath("fluss", "large")
if sys.argv[3] == "write":
    session = LakeSession(client)
    columns = [("id", pa.int64()), ("user", pa.int32()), ("price", pa.float64()), ("note", pa.string())]
    schema = Schema(pa.schema(columns))
    descriptor = TableDescriptor(schema, bucket_count=buckets, properties={"table.datalake.enabled": "true"})
    session.run(session.admin.create_table(path, descriptor))

    async def write():
        writer = (await session.connection.get_table(path)).new_append().create_writer()
        for first in range(0, rows, 100_000):
            ids = np.arange(first, min(first + 100_000, rows))
            notes = pa.array(ids % 997).cast(pa.string())
            table = pa.table({"id": ids, "user": (ids % 5000).astype(np.int32), "price": ids / 7, "note": notes})
            writer.write_arrow(table)
            if first % 1_000_000 == 0:
                await writer.flush()  # the loop must not wait for room
        await writer.flush()

    session.run(write())
    session.close()
else:
    began, used = time.monotonic(), time.process_time()
    reports = TieringService(client).run_once()
    times = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - used}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"rows": sum(r.rows for r in reports), "peak_bytes": peak, **times}))
"""


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("lake_format", list(PACKAGES))
def test_the_memory_of_a_worker_is_bounded(lake_format: str, tmp_path: Path) -> None:
    """LARGE_ROWS says how many rows there are; the full size is 50 million."""
    pytest.importorskip(PACKAGES[lake_format])
    rows = int(os.environ.get("LARGE_ROWS", "50000000"))
    options = {**lake_server_options(lake_format, tmp_path / "lake"), "log.segment.file-size": "256mb"}
    found: list[dict[str, Any]] = []
    for count in (rows // 5, rows):
        server = LocalServer(
            tmp_path / f"data{count}",
            options={**options, f"datalake.{lake_format}.warehouse": str(tmp_path / f"lake{count}")},
        )
        with server:
            for what in ("write", "tier"):
                command = [sys.executable, "-c", _LARGE_ROUND, server.bootstrap_servers, str(count), what]
                done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
                assert done.returncode == 0, done.stderr[-3000:]
            found.append(json.loads(done.stdout.splitlines()[-1]))
    small, large = found
    sys.stdout.write(f"{lake_format}: {small} {large}\n")
    assert (small["rows"], large["rows"]) == (rows // 5, rows)
    assert large["peak_bytes"] < 1024**3, "no worker takes more than 1 GB"
    # Other programs on the machine slow down one of the two at random, but only by the clock on the wall.
    ratios = {one: small[one] / large[one] * large["rows"] / small["rows"] for one in ("seconds", "cpu_seconds")}
    assert max(ratios.values()) >= 0.8, f"the rate holds: {ratios}"
