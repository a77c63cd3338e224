# SPDX-License-Identifier: Apache-2.0
"""Two sides of a comparison: two clients on one server, or one client on two servers."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import Bar, Client, Result, Settings, WorkerError, alternate, cpu_seconds, ratio_of

Answer = dict[str, Any]

NO_COMPRESSION = {"table.log.arrow.compression.type": "NONE"}


@dataclass
class Work:
    """What one side does once. Only `run` is timed; `check` says what came of it, which must be the same on both."""

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
class Pair:
    """Runs operations on both sides in turn and holds their results against each other."""

    settings: Settings
    ours: Client
    peer: Client
    warm_up_s: float = 0.0
    our_server_pid: int = 0
    peer_server_pid: int = 0

    def rates(
        self, name: str, count: int, work: Work, bar: Bar, *, scale: float = 1e6, unit: str = "M rows/s"
    ) -> Result:
        """How many rows or calls a second: more is better."""
        ours_s, peer_s, cpu = self._measure(count, work)
        mine, theirs = ([count / taken / scale for taken in side] for side in (ours_s, peer_s))
        return Result(name, mine, theirs, unit, ratio_of(mine, theirs), bar, cpu=cpu)

    def times(self, name: str, count: int, work: Work, bar: Bar, turns: int = 1) -> Result:
        """How many milliseconds one takes: less is better, and the ratio says how many times less.

        With more `turns` the sides take turns so many times as often: what is short is measured in small portions,
        so that both have the same share of what else the machine does meanwhile.
        """
        ours_s, peer_s, cpu = self._measure(count, work, turns)
        mine, theirs = ([taken * 1e3 for taken in side] for side in (ours_s, peer_s))
        return Result(name, mine, theirs, "ms", ratio_of(theirs, mine), bar, cpu=cpu)

    def _measure(self, count: int, work: Work, turns: int = 1) -> tuple[list[float], list[float], dict[str, float]]:
        """The seconds of both sides, and what each process spent of the processor."""
        equal = Equal()
        spent: dict[str, list[float]] = {}

        def one(worker: Client, pid: int, who: str) -> float:
            work.prepare(worker)
            before = cpu_seconds(pid)
            answer = work.run(worker)
            spent.setdefault(f"client on {who}", []).append(answer["cpu"] / count * 1e6)
            spent.setdefault(f"server {who}", []).append((cpu_seconds(pid) - before) / count * 1e6)
            equal.check(worker, work.check(worker, answer))
            return float(answer["seconds"])

        mine, theirs = alternate(
            lambda: one(self.ours, self.our_server_pid, "ours"),
            lambda: one(self.peer, self.peer_server_pid, "peer"),
            self.settings.repeats,
            self.warm_up_s,
            rounds := self.settings.rounds * turns,
        )
        runs = self.settings.repeats * rounds  # without those of the warm-up
        cpu = {who: round(statistics.fmean(found[-runs:]), 4) for who, found in spent.items()}
        return mine, theirs, cpu if self.our_server_pid else {}


def fill(
    op: str, *, properties: dict[str, str] | None = None, primary_key: bool = False, checker: Client | None = None,
    **args: Any,
) -> Work:  # fmt: skip
    """Fills a table made for it; what was written is then read back, by `checker` if the side itself is slow at it."""

    def read_back(worker: Client, _: Answer) -> object:
        reader = checker or worker
        if primary_key:
            return reader.call("lookups_together", table="bench", count=64 * 16, keys=args["rows"])["result"]
        return reader.call("to_arrow", table="bench")["result"]

    def prepare(worker: Client) -> None:
        worker.call("create", table="bench", properties=properties, primary_key=primary_key)
        os.sync()  # what the other side left to the system to write is not to be written while this one is timed

    return Work(lambda worker: worker.call(op, table="bench", **args), prepare, read_back)


def read(op: str, **args: Any) -> Work:
    """Reads a table that is there."""
    return Work(lambda worker: worker.call(op, **args))
