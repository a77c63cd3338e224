# SPDX-License-Identifier: Apache-2.0
"""A small table that is updated all the time, on a server that is killed: its changelog expires, its rows stay."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path

import pytest
from tests.ports import free_port

import fluss
from fluss.metadata import OffsetSpec
from fluss.server.local import LocalServer
from fluss.tools.status import bucket_offsets

KEYS = 1_000
TABLE = "counters"
OPTIONS: dict[str, object] = {
    "log.segment.file-size": "256kb",
    "log.retention.check-interval": "300ms",
    "log.flush.offset.checkpoint-interval": "300ms",
    "kv.snapshot.interval": "300ms",
}


def size_of(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # files come and go
            total += path.stat().st_size
    return total


def processor_seconds(server: LocalServer) -> float:
    """What the process of a server has used so far: unlike the time of day, it does not depend on other processes."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Killer:
    """Kills the server while it is written to, starts it again, and measures what it takes to answer a lookup."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.seconds: list[float] = []
        self.processor_seconds: list[float] = []
        self._thread: threading.Thread | None = None

    def kill_after(self, seconds: float) -> None:
        self._thread = threading.Thread(target=self._kill, args=(seconds,))
        self._thread.start()

    def _kill(self, seconds: float) -> None:
        time.sleep(seconds)
        self.server.crash()
        began = time.monotonic()
        self.server.start()
        with fluss.connect(self.server.bootstrap_servers, timeout=30) as db:
            assert db.table(TABLE).get(7) is not None
        self.seconds.append(time.monotonic() - began)
        self.processor_seconds.append(processor_seconds(self.server))

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


def update(table: fluss.Table, rounds: range, pause_seconds: float) -> None:
    """Give every key the number of the round, in one round after the other."""
    for number in rounds:
        table.upsert([{"id": key, "round": number, "text": f"{number}-{key}"} for key in range(KEYS)])
        time.sleep(pause_seconds)


def survive(folder: Path, rounds: int, kills: int, ttl: str, *, pause: float, bytes_max: int) -> None:
    server = LocalServer(folder, port=free_port(), options=OPTIONS)
    server.start()
    empty_start = processor_seconds(server)
    killer, sizes, done = Killer(server), [0], 0
    with fluss.connect(server.bootstrap_servers, timeout=30) as db:
        # Not compressed, so that the whole changelog would be far larger than what may be left of it.
        properties = {"table.log.ttl": ttl, "table.log.arrow.compression.type": "NONE"}
        columns = "id bigint, round bigint, text string"
        table = db.create_table(TABLE, columns, primary_key="id", buckets=1, properties=properties)
        update(table, range(1), 0)
        for part in range(kills + 1):
            upto = rounds * (part + 1) // (kills + 1)
            if part < kills:
                killer.kill_after(0.3 + 0.2 * part)
            update(table, range(done, upto), pause)
            killer.join()
            done = upto
            sizes.append(size_of(folder))
    with fluss.connect(server.bootstrap_servers, timeout=30) as db:
        table = db.table(TABLE)
        expected = [{"id": key, "round": rounds - 1, "text": f"{rounds - 1}-{key}"} for key in range(KEYS)]
        assert [table.get(key) for key in range(KEYS)] == expected
        assert sorted(table.to_arrow().to_pylist(), key=lambda row: row["id"]) == expected
        (first,) = bucket_offsets(db, table, OffsetSpec.earliest()).values()
        (last,) = bucket_offsets(db, table, OffsetSpec.latest()).values()
    report = f"{last} changes, the first at {first}; {sizes} bytes; restarts {[round(s, 2) for s in killer.seconds]} s"
    report += f", {killer.processor_seconds} s of processor time, with an empty folder {empty_start} s"
    print(report)
    server.stop()
    assert len(killer.seconds) == kills
    assert last >= 2 * (rounds - 1) * KEYS
    assert first > 0, report
    assert max(sizes) < bytes_max, report
    # Of a start: finding the state, replaying the changelog after it, and the writes that came since.
    assert max(killer.processor_seconds) < empty_start + 1, report
    assert not [line for line in server.log_text.splitlines() if " ERROR " in line]


def test_a_small_table_stays_small(tmp_path: Path) -> None:
    survive(tmp_path / "data", 80, 2, "1 s", pause=0.03, bytes_max=5_000_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_million_updates_of_a_thousand_keys(tmp_path: Path) -> None:
    """For several minutes, of which one is kept."""
    survive(tmp_path / "data", 1_000, 5, "1 min", pause=0.2, bytes_max=60_000_000)
