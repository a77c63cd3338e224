# SPDX-License-Identifier: Apache-2.0
"""Two sides of a comparison: two clients on one server, or one client on two servers."""

from __future__ import annotations

import os
import re
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness import Bar, Client, Result, Settings, WorkerError, cpu_seconds, means, ratio_of

Answer = dict[str, Any]

NO_COMPRESSION = {"table.log.arrow.compression.type": "NONE"}


@dataclass
class Work:
    """What one side does in a round: `run` once or several times, and only that is timed.

    `check` says what came of it, given the last answer; it must be the same on both sides.
    """

    run: Callable[[Client], Answer]
    prepare: Callable[[Client], object] = lambda _: None
    check: Callable[[Client, Answer], object] = lambda _, answer: answer["result"]


class Equal:
    """Both sides must have read the same."""

    def __init__(self) -> None:
        self.expected: object = None

    def check(self, worker: Client, result: object) -> None:
        if self.expected is None:
            self.expected = result
        if result != self.expected:
            raise WorkerError(f"{worker.name} has {result}, the other side {self.expected}")


@dataclass
class _Side:
    """One of the two, and what its runs took."""

    name: str
    worker: Client
    server_pid: int
    work: Work
    answer: Answer = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    client_cpu: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)

    def prepare(self) -> None:
        self.work.prepare(self.worker)

    def run(self) -> None:
        before = cpu_seconds(self.server_pid)
        self.answer = self.work.run(self.worker)
        self.seconds.append(float(self.answer["seconds"]))
        self.client_cpu.append(float(self.answer["cpu"]))
        self.server_cpu.append(cpu_seconds(self.server_pid) - before)

    def check(self, equal: Equal) -> None:
        equal.check(self.worker, self.work.check(self.worker, self.answer))

    def warm_up(self, seconds: float, equal: Equal) -> None:
        """Once at least."""
        began = time.monotonic()
        while not self.seconds or time.monotonic() - began < seconds:
            self.prepare()
            self.run()
            self.check(equal)
        for figures in (self.seconds, self.client_cpu, self.server_cpu):
            figures.clear()


@dataclass
class Pair:
    """Runs operations on both sides in turn and holds their results against each other."""

    settings: Settings
    ours: Client
    peer: Client
    warm_up_s: float = 0.0
    our_server_pid: int = 0
    peer_server_pid: int = 0

    def rates(
        self, name: str, count: int, work: Work, bar: Bar, *,
        scale: float = 1e6, unit: str = "M rows/s", turns: int = 1, often: int = 1,
    ) -> Result:  # fmt: skip
        """How many rows or calls a second: more is better."""
        ours_s, peer_s, cpu = self._measure(count, work, turns, often)
        mine, theirs = ([count / taken / scale for taken in side] for side in (ours_s, peer_s))
        return Result(name, mine, theirs, unit, ratio_of(mine, theirs), bar, cpu=cpu)

    def times(self, name: str, count: int, work: Work, bar: Bar, turns: int = 1) -> Result:
        """How many milliseconds one takes: less is better, and the ratio says how many times less."""
        ours_s, peer_s, cpu = self._measure(count, work, turns)
        mine, theirs = ([taken * 1e3 for taken in side] for side in (ours_s, peer_s))
        return Result(name, mine, theirs, "ms", ratio_of(theirs, mine), bar, cpu=cpu)

    def _measure(
        self, count: int, work: Work, turns: int, often: int = 1
    ) -> tuple[list[float], list[float], dict[str, float]]:
        """The seconds of both sides, and what each process spent of the processor.

        The sides take turns as close to each other as can be, so that both have the same share of what else the machine
        does meanwhile: both are prepared, then they run, `turns` times each, now one first and now the other, and then
        both are checked. Where that is too little to see a difference, it is done `often` times for each round.
        """
        rounds = self.settings.rounds * often
        warm, equal = Equal(), Equal()
        mine = _Side("ours", self.ours, self.our_server_pid, work)
        theirs = _Side("peer", self.peer, self.peer_server_pid, work)
        for side in (mine, theirs):
            side.warm_up(self.warm_up_s, warm)
        order = [mine, theirs]
        for _ in range(self.settings.repeats * rounds):
            for side in order:
                side.prepare()
            os.sync()  # what was left to the system to write is not to be written while something is timed
            for _ in range(turns):
                for side in order:
                    side.run()
                order.reverse()
            for side in order:
                side.check(equal)
        cpu = {}
        for side in (mine, theirs):
            cpu[f"client on {side.name}"] = round(statistics.fmean(side.client_cpu) / count * 1e6, 4)
            cpu[f"server {side.name}"] = round(statistics.fmean(side.server_cpu) / count * 1e6, 4)
        runs = rounds * turns
        return means(mine.seconds, runs), means(theirs.seconds, runs), cpu if self.our_server_pid else {}


def fill(
    op: str, *, properties: dict[str, str] | None = None, primary_key: bool = False, checker: Client | None = None,
    **args: Any,
) -> Work:  # fmt: skip
    """Fills a table made for it; what was written is then read back, by `checker` if the side itself is slow at it."""

    def table(worker: Client) -> str:
        return f"bench_{re.sub('[^0-9a-zA-Z]', '_', worker.name)}"

    def prepare(worker: Client) -> None:
        worker.call("create", table=table(worker), properties=properties, primary_key=primary_key)

    def run(worker: Client) -> Answer:
        return worker.call(op, table=table(worker), **args)

    def read_back(worker: Client, _: Answer) -> object:
        reader = checker or worker
        if primary_key:
            keys = args["rows"]
            return reader.call("lookups_together", table=table(worker), count=64 * 16, keys=keys)["result"]
        return reader.call("to_arrow", table=table(worker))["result"]

    return Work(run, prepare, read_back)


def read(op: str, **args: Any) -> Work:
    """Reads a table that is there."""
    return Work(lambda worker: worker.call(op, **args))
