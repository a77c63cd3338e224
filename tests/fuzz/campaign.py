# SPDX-License-Identifier: Apache-2.0
"""Many cases in several processes that may die: what killed them is found, and the others go on.

A worker says in shared memory which case it runs. When it ends with a signal, or stands still, that case has failed,
and a new worker begins with the next one.
"""

from __future__ import annotations

import json
import mmap
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

HANG_S = 60.0
_MEMORY_BYTES_MAX = 8 * 1024**3
"""Address space of a worker: a decoder that asks for more than a batch may decompress to meets MemoryError."""
_NUMBER = struct.Struct("<q")
_POLL_S = 0.2
_EXPLAINED_MAX = 20


@dataclass
class Failure:
    """A case that ended in anything but an error of our tree."""

    case: int
    problem: str
    target: str = ""
    changes: str = ""

    def __str__(self) -> str:
        return f"case {self.case} ({self.target}): {self.problem}; changes: {self.changes}"


@dataclass
class Report:
    """What came of a campaign."""

    seed: int
    without_checks: bool = False
    cases: int = 0
    accepted: int = 0
    refused: int = 0
    seconds: float = 0.0
    memory_kb_max: int = 0
    failures: list[Failure] = field(default_factory=list)

    def __str__(self) -> str:
        rate = self.cases / self.seconds if self.seconds else 0.0
        return (
            f"seed {self.seed}: {self.cases:,} cases in {self.seconds:.0f} s ({rate:,.0f}/s), "
            f"{self.accepted:,} accepted, {self.refused:,} refused, {len(self.failures)} failures, "
            f"at most {self.memory_kb_max // 1024} MiB"
        )


# -- the worker --------------------------------------------------------------------------------------------------------


def leave_out_checks() -> None:
    """Decode as if nothing had to be checked: shows that cases find what the checks are there for."""
    from fluss.records import arrow, validation

    for module in (arrow, validation):
        vars(module)["check_values"] = lambda *_, **__: None
    vars(arrow)["FEW_ROWS"] = 0  # of fewer rows, Arrow checks the values itself


def work(seed: int, start: int, stop: int, step: int, progress: str) -> None:
    """Run the cases `start`, `start + step`, … below `stop`; what goes wrong is printed, one JSON document per line."""
    import pyarrow as pa
    from tests.fuzz.targets import run_case

    pa.set_cpu_count(1)  # threads of its own would only wait for each other
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    counts = [0, 0]
    with open(progress, "r+b") as file, mmap.mmap(file.fileno(), _NUMBER.size) as place:
        for number in range(start, stop, step):
            _NUMBER.pack_into(place, 0, number)
            try:
                counts[run_case(number, seed)] += 1
            except Exception as error:
                print(json.dumps({"case": number, "problem": repr(error)[:400]}), flush=True)
        _NUMBER.pack_into(place, 0, stop)
    memory_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"refused": counts[0], "accepted": counts[1], "memory_kb": memory_kb}), flush=True)


def run_once(number: int, seed: int, keep: tuple[int, ...] | None) -> int:
    """Run one case in this process: 0 if it is as it should be."""
    from tests.fuzz.targets import run_case

    try:
        run_case(number, seed, keep)
    except Exception as error:
        print(repr(error)[:400])
        return 1
    return 0


# -- the parent --------------------------------------------------------------------------------------------------------


def _command(report: Report, *arguments: object) -> list[str]:
    options = ("--without-checks",) if report.without_checks else ()
    return [sys.executable, "-m", "tests.fuzz", "--seed", str(report.seed), *options, *map(str, arguments)]


class _Worker(threading.Thread):
    """Keeps one process working on its share of the cases until all of them were run."""

    def __init__(self, report: Report, lock: threading.Lock, folder: Path, start: int, stop: int, step: int) -> None:
        super().__init__(daemon=True)
        self.report, self.lock = report, lock
        self.progress = folder / f"progress-{start % step}"
        self.first = self.next = start
        self.stop_case, self.step = stop, step
        self.progress.write_bytes(_NUMBER.pack(start))

    @property
    def current(self) -> int:
        return int(_NUMBER.unpack(self.progress.read_bytes())[0])

    @property
    def done(self) -> int:
        return max(0, -(-(min(self.current, self.stop_case) - self.first) // self.step))

    def run(self) -> None:
        while self.next < self.stop_case:
            self._one_process()

    def _one_process(self) -> None:
        arguments = ("--start", self.next, "--stop", self.stop_case, "--step", self.step)
        process = subprocess.Popen(
            _command(self.report, "--worker", self.progress, *arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        hung = threading.Event()
        watch = threading.Thread(target=self._watch, args=(process, hung), daemon=True)
        watch.start()
        output, complaint = process.communicate()
        watch.join()
        for line in output.splitlines():
            self._take(json.loads(line))
        if process.returncode == 0:
            self.next = self.stop_case
            return
        at = self.current
        if hung.is_set():
            problem = f"no end after {HANG_S:.0f} s"
        elif process.returncode < 0:
            problem = f"ended by {signal.Signals(-process.returncode).name}"
        else:
            problem = f"exit code {process.returncode}: {complaint[-300:]}"
        with self.lock:
            self.report.failures.append(Failure(at, problem))
        # A process that ended by itself could not work at all, and the next one could not either.
        self.next = self.stop_case if process.returncode > 0 else at + self.step

    def _watch(self, process: subprocess.Popen[str], hung: threading.Event) -> None:
        seen, since = self.current, time.monotonic()
        while process.poll() is None:
            time.sleep(_POLL_S)
            if (now := self.current) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > HANG_S:
                hung.set()
                process.kill()
                return

    def _take(self, said: dict[str, Any]) -> None:
        with self.lock:
            if "case" in said:
                self.report.failures.append(Failure(said["case"], said["problem"]))
            else:
                self.report.accepted += said["accepted"]
                self.report.refused += said["refused"]
                self.report.memory_kb_max = max(self.report.memory_kb_max, said["memory_kb"])


def run_campaign(
    cases: int,
    *,
    seed: int,
    start: int = 0,
    processes: int = 2,
    without_checks: bool = False,
    tell: Callable[[str], None] | None = None,
    tell_every_s: float = 10.0,
) -> Report:
    """Run `cases` cases from number `start` on; failures are reported with as few changes as they need."""
    report = Report(seed, without_checks)
    lock = threading.Lock()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fluss-fuzz-") as folder:
        workers = [
            _Worker(report, lock, Path(folder), start + number, start + cases, processes)
            for number in range(min(processes, cases))
        ]
        for worker in workers:
            worker.start()
        told = began
        while any(worker.is_alive() for worker in workers):
            workers[0].join(_POLL_S) if workers[0].is_alive() else time.sleep(_POLL_S)
            if tell is not None and time.monotonic() - told >= tell_every_s:
                told = time.monotonic()
                done = sum(worker.done for worker in workers)
                lowest = min(worker.current for worker in workers)
                tell(
                    f"{done:,} of {cases:,} cases, {done / (told - began):,.0f}/s, {len(report.failures)} failures; "
                    f"to go on from here: --seed {seed} --start {lowest} --cases {start + cases - lowest}"
                )
        report.cases = sum(worker.done for worker in workers)
        report.seconds = time.monotonic() - began
    for failure in report.failures[:_EXPLAINED_MAX]:
        _explain(failure, report)
    return report


def _explain(failure: Failure, report: Report) -> None:
    """Describe the case, with only those of its changes that are needed for the failure."""
    from tests.fuzz.targets import case

    target, ops = case(failure.case, report.seed)
    failure.target = target.name
    kept = tuple(range(len(ops)))
    for size in range(1, len(ops)):
        found = next((keep for keep in combinations(range(len(ops)), size) if _fails(failure.case, report, keep)), None)
        if found is not None:
            kept = found
            break
    failure.changes = repr([ops[i] for i in kept])


def _fails(number: int, report: Report, keep: tuple[int, ...]) -> bool:
    kept = ",".join(map(str, keep))
    try:
        done = subprocess.run(_command(report, "--case", number, "--keep", kept), capture_output=True, timeout=HANG_S)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0
