# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.interop.migration --rows 30000``: `fluss migrate` moves tables to the real cluster under load.

All tables are written to in small batches until the command stops the writers: the pause is short, and every row is on
the target once. `make interop` runs it with few rows.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import string
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.interop import environment
from tests.interop.cluster import OurServer, RealCluster
from tests.interop.context import Mismatch, same

import fluss
from fluss.tools.copying import fingerprint

TABLES = 50
_PAUSE_S_MAX = 10.0
_TIMEOUT_S = 300.0
_COMMAND_S_MAX = 1_800.0
_WRITERS = 16
_ROWS_OF_BATCH = 20
_KINDS: dict[str, dict[str, Any]] = {
    "log": {"buckets": 3},
    "keyed": {"buckets": 2, "primary_key": "id"},
    "days": {"buckets": 2, "partition_by": "day"},
    "keyed_days": {"buckets": 2, "primary_key": ["day", "id"], "partition_by": "day"},
    "evolved": {"buckets": 2, "primary_key": "id"},
}
_SMALL_BATCHES = {"writer.batch-size": "16kb", "writer.dynamic-batch-size.enabled": "false"}
_LARGE = {"log.segment.file-size": "64 mb", "kv.memory-size": "256 mb"}
"""Options of servers with gigabytes of data, close to the usual ones."""
_BATCH_HEADER = struct.Struct("<qi")
"""The first offset of a batch, and its size without these."""
_TEXT = "".join(random.Random(1).choices(string.ascii_letters + string.digits, k=1 << 20))


@dataclass
class Moved:
    """What a migration did."""

    rows: int
    batches: int
    size_bytes: int
    copy_s: float
    """From the start of the command until the writers were stopped."""
    pause_s: float
    """From the last write to the source until the writers could start on the target."""
    total_s: float
    memory_bytes: int
    """The most that the command had."""

    def __str__(self) -> str:
        size_mb = self.size_bytes / 1e6
        return (
            f"{self.rows:,} rows, {self.batches:,} batches, {size_mb:,.0f} MB: in sync after {self.copy_s:.1f} s "
            f"({size_mb / self.copy_s:.0f} MB/s), write pause {self.pause_s:.2f} s, verified after "
            f"{self.total_s:.1f} s, {self.memory_bytes / 1e6:.0f} MB of memory"
        )


class _Written:
    """A table of the source, and the ids that it has."""

    def __init__(self, db: fluss.Database, kind: str, number: int, text_bytes: int) -> None:
        self.table = db.create_table(f"moved.{kind}_{number}", "day string, id bigint, text string", **_KINDS[kind])
        self._text_bytes = text_bytes
        self._is_evolved = kind == "evolved"
        self.ids: set[int] = set()

    def fill(self, rows: int) -> None:
        """Write many small batches."""
        self._write_all(range(rows // 2))
        if self._is_evolved:
            self.table.add_column("extra", "int")
        self._write_all(range(rows // 2, rows))

    def _write_all(self, ids: Iterable[int]) -> None:
        with self.table.writer() as writer:
            write = writer.upsert if self.table.primary_key else writer.append
            for number in ids:
                write(self._row(number))
        self.ids.update(ids)

    def write(self, number: int) -> None:
        """Add a batch; change and delete rows where the table can."""
        ids = range(number * _ROWS_OF_BATCH, (number + 1) * _ROWS_OF_BATCH)
        rows = [self._row(one) for one in ids]
        self.ids.update(ids)
        if not self.table.primary_key:
            self.table.append(rows)
            return
        self.table.upsert([*rows, self._row(0, number), self._row(ids[0], number)])
        self.table.delete({"day": rows[1][0], "id": ids[1]} if self.table.info.partition_keys else ids[1])
        self.ids.remove(ids[1])

    def _row(self, number: int, version: int = 0) -> tuple[Any, ...]:
        start = (number + version) * 631 % (len(_TEXT) - self._text_bytes)
        row = (f"d{number % 3}", number, _TEXT[start : start + self._text_bytes])
        return (*row, version) if len(self.table.columns) > len(row) else row


def migrate(
    ours: OurServer, real: RealCluster, *, tables: int = TABLES, rows: int = 600, text_bytes: int = 20
) -> Moved:
    """Fill tables of all kinds, move them while all are written to, and compare."""
    stop, idle, start = (ours.home / name for name in ("stop", "idle", "start"))
    with (
        fluss.connect(ours.plain, timeout=_TIMEOUT_S, options=_SMALL_BATCHES) as here,
        fluss.connect(real.plain, timeout=_TIMEOUT_S) as there,
        ThreadPoolExecutor(_WRITERS) as threads,
    ):
        kinds = [list(_KINDS)[number % len(_KINDS)] for number in range(tables)]
        written = [_Written(here, kind, number, text_bytes) for number, kind in enumerate(kinds)]
        list(threads.map(lambda one: one.fill(rows), written))
        log = written[0]
        with log.table.follow(group="billing", start="earliest", timeout=_TIMEOUT_S) as changes:
            handled = {next(changes).row["id"] for _ in range(100)}

        def write() -> None:
            number = rows
            while not stop.exists():
                for one in written:
                    one.write(number)
                number += 1
            idle.touch()

        names = [one.table.name for one in written]
        command = [sys.executable, "-m", "fluss", "migrate", *names, "-b", ours.plain]
        command += ["--to", real.plain, "--state", str(ours.home / "migration"), "--json"]
        command += ["--stop-writers", f"touch '{stop}'; while [ ! -e '{idle}' ]; do sleep 0.05; done"]
        command += ["--start-writers", f"touch '{start}'"]
        writer = threading.Thread(target=write)
        started, started_s = time.time(), time.monotonic()
        writer.start()
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_S_MAX, check=False)
        finally:
            stop.touch()
            writer.join()
        total_s = time.monotonic() - started_s
        if done.returncode:
            raise Mismatch(f"fluss migrate: {done.stderr.strip()[-600:]}")
        report = json.loads(done.stdout)
        same([one["table"] for one in report["tables"] if not one["equal"]], [], "tables that differ")
        stopped = idle.stat().st_mtime
        pause_s = start.stat().st_mtime - stopped
        same(pause_s < _PAUSE_S_MAX, True, f"whether a pause of {pause_s:.1f} s is short")
        for one in written:
            found = there.table(one.table.name).to_arrow(columns=["id"])["id"].to_pylist()
            same(len(found), len(one.ids), f"the number of rows of {one.table.name}")
            same(set(found) == one.ids, True, f"whether {one.table.name} has the ids that were written")
        for one in written[: len(_KINDS)]:
            same(fingerprint(there.table(one.table.name)), fingerprint(one.table), f"rows of {one.table.name}")
        with there.table(log.table.name).follow(group="billing", start="latest", timeout=_TIMEOUT_S) as changes:
            while handled != log.ids:
                handled.add(next(changes).row["id"])
    memory_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    batches, size_bytes = _stored(ours.home)
    moved_rows = sum(one["copied"] for one in report["tables"])
    return Moved(moved_rows, batches, size_bytes, stopped - started, pause_s, total_s, memory_bytes)


def _stored(home: Path) -> tuple[int, int]:
    """The number and bytes of the batches in the logs of a server."""
    batches = size_bytes = 0
    for path in (home / "data").rglob("*.log"):
        with path.open("rb") as file:
            while len(header := file.read(_BATCH_HEADER.size)) == _BATCH_HEADER.size:
                batches += 1
                file.seek(_BATCH_HEADER.unpack(header)[1], os.SEEK_CUR)
            size_bytes += path.stat().st_size
    return batches, size_bytes


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.interop.migration", description=__doc__)
    parser.add_argument("--tables", type=int, default=TABLES)
    parser.add_argument("--rows", type=int, default=30_000, help="of each table, before the migration starts")
    parser.add_argument("--text-bytes", type=int, default=1_000, help="of each row")
    options = parser.parse_args()
    logs = environment.CACHE / "logs"
    with (
        RealCluster(keep_logs_in=logs, options={"log.segment.file-size": "64 mb"}, heap_mb=1024) as real,
        OurServer(keep_logs_in=logs, options=_LARGE) as ours,
    ):
        moved = migrate(ours, real, tables=options.tables, rows=options.rows, text_bytes=options.text_bytes)
    print(f"{options.tables} tables, {moved}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
