# SPDX-License-Identifier: Apache-2.0
"""Kill, stop and restart members of a group while a table grows: ``python -m tests.crash.groups --kills 500``.

Afterwards every change must have been handled, none by two owners at a time, and each bucket in its order.
"""

from __future__ import annotations

import argparse
import itertools
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import fluss

GROUP = "billing"
TIMEOUT_S = 2.5
ALONE_EVERY = 10


class Handled(NamedTuple):
    """A change that a process handled."""

    began_ns: int
    bucket: str
    grant: int
    offset: int
    id: int
    late: bool
    process: str


@dataclass
class Outcome:
    """What was seen."""

    kills: int = 0
    stops: int = 0
    leaves: int = 0
    written: int = 0
    handled: int = 0
    repeated: int = 0
    processes: int = 0
    takeovers_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        moves = self.takeovers_s or [0.0]
        figures = (
            f"{self.kills} kills, {self.stops} stops, {self.leaves} leaves; {self.written} changes written, "
            f"{self.handled} handled by {self.processes} processes, {self.repeated} again; "
            f"buckets of killed members taken over after {statistics.median(moves):.2f} s, longest {max(moves):.2f} s"
        )
        return "\n".join([figures, *self.problems[:20]])


class Members:
    """The processes."""

    def __init__(self, address: str, table: str, folder: Path) -> None:
        self._arguments = [sys.executable, "-m", "tests.crash.group_worker", address, table, GROUP]
        self._folder = folder
        self._started = 0
        self.running: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self) -> None:
        notes = self._folder / f"{self._started:04}"
        self._started += 1
        self.running.append((subprocess.Popen([*self._arguments, str(notes)]), notes))

    def end(self, number: int, sign: signal.Signals) -> Path:
        process, notes = self.running.pop(number)
        process.send_signal(sign)
        process.send_signal(signal.SIGCONT)  # it may be stopped
        process.wait(30)
        return notes

    def notes(self) -> Iterator[Handled]:
        for file in sorted(self._folder.iterdir()):
            for line in file.read_text().splitlines():
                words = line.split()
                if len(words) == 6:  # a process that was killed may have written half a line
                    began, bucket, grant, offset, number, late = words
                    yield Handled(int(began), bucket, int(grant), int(offset), int(number), late == "1", file.name)


class Writer(threading.Thread):
    """Writes to all buckets of all partitions, and adds partitions and drops old ones."""

    def __init__(self, table: fluss.Table[Any]) -> None:
        super().__init__(daemon=True)
        self._table = table
        self._stop_now = threading.Event()
        self.ids: dict[int, str] = {}
        self.dropped: set[str] = set()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._write()
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        days = ["d0000"]
        self._table.add_partition(days[0])
        added_at = time.monotonic()
        while not self._stop_now.wait(0.1):
            if time.monotonic() - added_at > 10:
                added_at = time.monotonic()
                days.append(f"d{int(days[-1][1:]) + 1:04}")
                self._table.add_partition(days[-1])
                if len(days) > 3:
                    self.dropped.add(days[0])
                    self._table.drop_partition(days.pop(0))
            rows = [{"id": len(self.ids) + number, "day": days[number % len(days)]} for number in range(60)]
            self._table.append(rows)
            self.ids |= {row["id"]: str(row["day"]) for row in rows}

    def stop(self) -> None:
        self._stop_now.set()
        self.join()
        if self.error is not None:
            raise self.error


def run(kills: int, members: int, buckets: int, seed: int, address: str | None = None) -> Outcome:
    """Do it on a server, or on one of our own, and say what was seen."""
    if address is None:
        with fluss.LocalServer() as server:
            return run(kills, members, buckets, seed, server.bootstrap_servers)
    chance = random.Random(seed)
    outcome = Outcome()
    killed: list[tuple[int, str]] = []
    with tempfile.TemporaryDirectory() as folder, fluss.connect(address, timeout=60) as db:
        schema = {"id": "int", "day": "string"}
        table = db.create_table("work", schema, bucket_key="id", buckets=buckets, partition_by="day")
        writer = Writer(table)
        writer.start()
        processes = Members(address, "work", Path(folder))
        for _ in range(members):
            processes.start()
        time.sleep(2 * TIMEOUT_S)
        try:
            while outcome.kills + outcome.stops + outcome.leaves < kills:
                _disturb(processes, chance, outcome, killed)
            writer.stop()
            _wait_for_the_end(processes, writer)
        finally:
            while processes.running:
                processes.end(0, signal.SIGTERM)
        check(list(processes.notes()), writer.ids, writer.dropped, killed, outcome)
        db.drop_table("work")
    return outcome


def _disturb(processes: Members, chance: random.Random, outcome: Outcome, killed: list[tuple[int, str]]) -> None:
    time.sleep(chance.uniform(0.2, 3.0))
    number = chance.randrange(len(processes.running))
    action = chance.random()
    if action < 0.6:
        # A member that takes over may be killed or stopped itself: only kills with nothing before and after are timed.
        alone = outcome.kills % ALONE_EVERY == 0
        if alone:
            time.sleep(4 * TIMEOUT_S)
        at_ns = time.time_ns()
        name = processes.end(number, signal.SIGKILL).name
        if alone:
            killed.append((at_ns, name))
        outcome.kills += 1
        processes.start()
        if alone:
            time.sleep(2 * TIMEOUT_S)
    elif action < 0.8:
        process, _ = processes.running[number]
        process.send_signal(signal.SIGSTOP)
        threading.Timer(chance.uniform(0.5, 3) * TIMEOUT_S, process.send_signal, [signal.SIGCONT]).start()
        outcome.stops += 1
    else:
        processes.running[number][0].send_signal(signal.SIGCONT)
        processes.end(number, signal.SIGTERM)
        outcome.leaves += 1
        processes.start()


def _wait_for_the_end(processes: Members, writer: Writer) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        time.sleep(1)
        seen = {found.id for found in processes.notes()}
        if all(number in seen or day in writer.dropped for number, day in writer.ids.items()):
            return


def check(
    notes: list[Handled],
    ids: Mapping[int, str],
    dropped: Collection[str],
    killed: list[tuple[int, str]],
    outcome: Outcome,
) -> None:
    """Compare what was handled with what was written: the ids and partitions of rows, and those that were dropped."""
    seen = {found.id for found in notes}
    outcome.written, outcome.handled = len(ids), len(notes)
    outcome.processes = len({found.process for found in notes})
    outcome.repeated = len(notes) - len(seen)
    missing = [number for number, day in ids.items() if number not in seen and day not in dropped]
    if missing:
        outcome.problems.append(f"{len(missing)} changes were never handled: {missing[:10]}")
    by_bucket: dict[str, list[Handled]] = {}
    for found in sorted(notes):
        by_bucket.setdefault(found.bucket, []).append(found)
    for bucket, all_changes in by_bucket.items():
        changes = [found for found in all_changes if not found.late]
        for before, after in itertools.pairwise(changes):
            if after.grant < before.grant or (after.grant == before.grant and after.process != before.process):
                outcome.problems.append(f"two owners of bucket {bucket}: {before} and {after}")
            if after.grant == before.grant and after.offset != before.offset + 1:
                outcome.problems.append(f"the order of bucket {bucket} is broken: {before} and {after}")
            if after.grant != before.grant and after.offset > before.offset + 1:
                outcome.problems.append(f"bucket {bucket} was not gone on with where it was: {before} and {after}")
    for at_ns, process in killed:
        for changes in by_bucket.values():
            earlier = [found for found in changes if found.began_ns <= at_ns]
            later = [found for found in changes if found.began_ns > at_ns]
            # It was the owner for certain if it handled something just before: the bucket is written to all the time.
            if earlier and later and earlier[-1].process == process and at_ns - earlier[-1].began_ns < 1e9:
                outcome.takeovers_s.append((later[0].began_ns - at_ns) / 1e9)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--members", type=int, default=8)
    parser.add_argument("--buckets", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--address", help="a server that runs already, instead of one of our own")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    outcome = run(options.kills, options.members, options.buckets, options.seed, options.address)
    print(outcome)
    sys.exit(bool(outcome.problems))


if __name__ == "__main__":
    main()
