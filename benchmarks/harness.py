# SPDX-License-Identifier: Apache-2.0
"""Runs cases: both sides alternating in one run, warm-up first, median of several with the spread.

A case is a function that yields results: a name, the figures of both sides, and the bar they are held against.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
WORKER = Path(__file__).resolve().parent / "worker.py"


class WorkerError(Exception):
    """An operation failed on one side; the text says which."""


class Worker:
    """A process that runs the operations of `client_ops.py` with one interpreter."""

    def __init__(self, name: str, python: str, servers: str, ops: str = "client_ops", **options: Any) -> None:
        self.name = name
        self.servers = servers
        env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        if python == sys.executable:
            env["PYTHONPATH"] = str(REPOSITORY / "src")  # this checkout, whatever the environment has installed
        self._process = subprocess.Popen(
            [python, str(WORKER), ops], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        self.connected = self.call("connect", servers=servers, **options)
        """What the first connection took, where the operations tell."""

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        self.send(op, **args)
        return self.receive()

    def send(self, op: str, **args: Any) -> None:
        """Begin an operation; several workers can be at work at once."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"op": op, "args": args}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise WorkerError(f"{self.name}: the process ended")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Seat:
    """A worker on one of the servers that it talks to in turn.

    Two processes of the same program differ by a tenth or more in what a call takes, by where their memory happens to
    lie. Where servers are compared, one process is the client of both.
    """

    def __init__(self, worker: Worker, name: str, servers: str) -> None:
        self.name = name
        self.servers = servers
        self._worker = worker

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        self._worker.call("connect", servers=self.servers)
        return self._worker.call(op, **args)


Client = Worker | Seat


_NOISE = 0.10
"""Two runs on one machine differ by as much."""


@dataclass(frozen=True)
class Bar:
    """The minimum that a run has to reach, and the target. `higher` tells whether more is better."""

    minimum: float
    target: float
    unit: str = "x"
    higher: bool = True

    def verdict(self, value: float) -> str:
        """`target`, `minimum`, `at minimum` (short of it by no more than the noise between two runs), or `MISSED`."""
        sign = 1 if self.higher else -1
        nearly = self.minimum * (1 - sign * _NOISE)
        for name, limit in (("target", self.target), ("minimum", self.minimum), ("at minimum", nearly)):
            if sign * value >= sign * limit:
                return name
        return "MISSED"


@dataclass
class Result:
    """The figures of one case."""

    name: str
    ours: list[float]
    peer: list[float]
    unit: str
    ratio: float | None
    bar: Bar
    note: str = ""
    cpu: dict[str, float] = field(default_factory=dict)
    """Seconds of the processor for one million rows or calls, by who spent them."""

    @property
    def value(self) -> float:
        """What the bar is about: the ratio, or our own figure where the bar is absolute."""
        return self.ratio if self.ratio is not None else statistics.median(self.ours)

    @property
    def verdict(self) -> str:
        return self.bar.verdict(self.value)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "ours": self.ours,
            "peer": self.peer,
            "ratio": self.ratio,
            "minimum": self.bar.minimum,
            "target": self.bar.target,
            "bar_unit": self.bar.unit,
            "higher": self.bar.higher,
            "verdict": self.verdict,
            "note": self.note,
            "cpu": self.cpu,
        }

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Result:
        bar = Bar(found["minimum"], found["target"], found["bar_unit"], found["higher"])
        given = {key: found[key] for key in ("name", "ours", "peer", "unit", "ratio", "note", "cpu")}
        return cls(bar=bar, **given)


Measure = Callable[[], float]


def alternate(
    ours: Measure, peer: Measure | None, repeats: int, warm_up_s: float = 0.0, rounds: int = 1
) -> tuple[list[float], list[float]]:
    """Warm both up in turn, at least once and for so many seconds each on average, then measure them in turn.

    In turn already then: a JVM compiles what both share anew when its use changes, and that belongs into no figure.
    With `rounds`, each figure is the mean of so many, which makes sense of seconds and not of rates.
    """
    sides = [ours] if peer is None else [ours, peer]
    began = time.monotonic()
    while True:
        for side in sides:
            side()
        if time.monotonic() - began >= warm_up_s * len(sides):
            break
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(repeats * rounds):
        mine.append(ours())
        if peer is not None:
            theirs.append(peer())
    return means(mine, rounds), means(theirs, rounds)


def means(figures: list[float], rounds: int) -> list[float]:
    """Of so many figures each, in their order."""
    return [statistics.fmean(figures[at : at + rounds]) for at in range(0, len(figures), rounds)]


def ratio_of(ours: Iterable[float], peer: Iterable[float]) -> float:
    """The median of the ratios of neighbours: a machine that gets slower meanwhile does so for both of a pair."""
    return statistics.median(mine / theirs for mine, theirs in zip(ours, peer, strict=True))


@dataclass
class Settings:
    """How large, how often, and how long a JVM is warmed up."""

    quick: bool = False
    repeats: int = 5
    scale: float = 1.0
    cases: list[str] = field(default_factory=list)

    @property
    def rounds(self) -> int:
        """How many runs make one figure, where one is too short for this machine to do the same twice."""
        return 1 if self.quick else 3

    @property
    def warm_up_s(self) -> float:
        return 2.0 if self.quick else 10.0

    def rows(self, rows: int) -> int:
        return max(1_000, int(rows * self.scale))

    def wanted(self, *names: str) -> bool:
        """Whether a result with one of these names is asked for."""
        return not self.cases or any(part.lower() in name.lower() for part in self.cases for name in names)


def end_tidily() -> None:
    """Let a request to end run the same clean-up as an error: servers stop, and their data goes."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


def as_users_have_it() -> None:
    """Let every process that is started keep the byte code of what it imports, also where tests are told not to."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def cpu_seconds(pid: int) -> float:
    """What a process has spent of the processor so far, or 0 where the system does not tell."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def machine_facts() -> dict[str, Any]:
    facts: dict[str, Any] = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "time": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                facts["cpu"] = line.split(":", 1)[1].strip()
                break
        total = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
        facts["memory_gb"] = round(int(total.split()[1]) / 1e6)
    except (OSError, StopIteration):
        pass
    return facts


def free_python() -> str:
    return sys.executable


@cache
def clean_python() -> str:
    """An interpreter whose environment holds this package alone, as a user has it: no test tools, not editable.

    Like the official client's it has no pip: with that come setuptools, which every start of Python would load.
    """
    home = REPOSITORY / ".cache" / "bench" / "alone"
    python = home / "bin" / "python"
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "-q", "--disable-pip-version-check"]
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    subprocess.run([*install, str(REPOSITORY)], check=True)
    subprocess.run([*install, "--no-deps", "--force-reinstall", str(REPOSITORY)], check=True)
    return str(python)
