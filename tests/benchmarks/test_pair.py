# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
from typing import Any

import pytest
from benchmarks.cases.pair import Pair, Work, fill
from benchmarks.harness import Bar, Settings, WorkerError


class Player:
    """A client that notes what it is asked to do, and takes as long as it is told."""

    def __init__(self, name: str, score: list[str], seconds: float = 1.0, result: object = "same") -> None:
        self.name = name
        self.servers = ""
        self._score = score
        self._seconds = seconds
        self._result = result

    def call(self, op: str, **args: Any) -> dict[str, Any]:
        self._score.append(f"{self.name} {op}")
        return {"seconds": self._seconds, "cpu": 0.5, "result": self._result, **args}


def pair_of(ours: Player, peer: Player, *, repeats: int = 1) -> Pair:
    return Pair(Settings(quick=True, repeats=repeats), ours, peer)  # type: ignore[arg-type]


WORK = Work(
    lambda worker: worker.call("run"),
    lambda worker: worker.call("prepare"),
    lambda worker, answer: (worker.call("check"), answer["result"])[1],
)


def test_both_are_prepared_then_take_turns_then_are_checked() -> None:
    score: list[str] = []
    result = pair_of(Player("a", score, 1.0), Player("b", score, 2.0)).rates("x", 4, WORK, Bar(1, 2), scale=1, turns=2)
    assert score[:6] == [f"{who} {what}" for who in "ab" for what in ("prepare", "run", "check")]
    assert score[6:] == [
        "a prepare", "b prepare",
        "a run", "b run", "b run", "a run",
        "a check", "b check",
    ]  # fmt: skip
    assert (result.ours, result.peer, result.ratio) == ([4.0], [2.0], 2.0)


def test_each_figure_is_the_mean_of_its_turns() -> None:
    score: list[str] = []
    ours = Player("a", score)
    taken = iter([9.0, 1.0, 2.0, 3.0, 4.0])
    work = Work(lambda worker: worker.call("run") | ({"seconds": next(taken)} if worker is ours else {}))
    result = pair_of(ours, Player("b", score), repeats=2).times("x", 1, work, Bar(1, 2), turns=2)
    assert result.ours == [1500.0, 3500.0]  # without the warm-up


def test_what_is_hard_to_see_is_prepared_and_done_more_often() -> None:
    score: list[str] = []
    result = pair_of(Player("a", score), Player("b", score), repeats=2).rates("x", 1, WORK, Bar(1, 2), often=3)
    assert score.count("a prepare") == score.count("a run") == score.count("a check") == 1 + 2 * 3
    assert len(result.ours) == len(result.peer) == 2


def test_sides_that_hold_different_rows_are_refused() -> None:
    with pytest.raises(WorkerError, match="b has 2, the other side 1"):
        pair_of(Player("a", [], result=1), Player("b", [], result=2)).rates("x", 1, WORK, Bar(1, 2))


def test_what_is_left_to_write_is_written_before_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    score: list[str] = []
    monkeypatch.setattr(os, "sync", lambda: score.append("sync"))
    pair_of(Player("a", score), Player("b", score)).rates("x", 1, WORK, Bar(1, 2))
    assert score[score.index("sync") - 1] == "b prepare"
    assert score[score.index("sync") + 1] == "a run"


def test_sides_on_one_server_have_a_table_each() -> None:
    names = set()
    for name in ("ours", "pyfluss 1.0.0"):
        answer = fill("write_batches", rows=5).run(Player(name, []))  # type: ignore[arg-type]
        assert answer["rows"] == 5
        names.add(answer["table"])
    assert names == {"bench_ours", "bench_pyfluss_1_0_0"}
