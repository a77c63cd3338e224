# SPDX-License-Identifier: Apache-2.0
"""The pure parts of the benchmarks: what is said about figures, and when a ratio counts as fallen."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from benchmarks.harness import Bar, Result, Settings, alternate, cpu_seconds, ratio_of

from benchmarks import record, report


def result(name: str = "scan", ratio: float | None = 1.2, bar: Bar | None = None, ours: float = 12.0) -> Result:
    return Result(name, [ours - 1, ours, ours + 1], [10.0, 10.0, 10.0], "M rows/s", ratio, bar or Bar(1.0, 2.0))


def test_a_verdict_knows_which_way_is_better() -> None:
    verdicts = ["MISSED", "at minimum", "minimum", "target"]
    assert [Bar(1.0, 2.0).verdict(value) for value in (0.89, 0.9, 1.0, 2.0)] == verdicts
    assert [Bar(1.0, 0.3, higher=False).verdict(value) for value in (1.11, 1.1, 1.0, 0.3)] == verdicts


def test_an_absolute_bar_is_held_against_our_own_middle_figure() -> None:
    assert result(ratio=None, bar=Bar(14.0, 15.0)).verdict == "MISSED"
    assert result(ratio=None, bar=Bar(12.0, 14.0)).verdict == "minimum"


def test_sides_take_turns_after_the_warm_up() -> None:
    calls: list[str] = []

    def side(name: str, figure: float) -> float:
        calls.append(name)
        return figure

    mine, theirs = alternate(lambda: side("a", 2.0), lambda: side("b", 1.0), 2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert (mine, theirs) == ([2.0, 2.0], [1.0, 1.0])
    assert ratio_of(mine, theirs) == 2.0


def test_a_ratio_is_the_middle_of_those_of_neighbours() -> None:
    assert ratio_of([8.0, 5.0, 2.0], [4.0, 2.0, 1.0]) == 2.0  # the ratio of the middles is 2.5
    with pytest.raises(ValueError, match="shorter"):
        ratio_of([1.0, 2.0], [1.0])


def test_a_figure_may_be_the_mean_of_several_runs() -> None:
    mine, theirs = iter([9.0, 1.0, 3.0, 5.0, 7.0]), iter([9.0, 2.0, 2.0, 4.0, 4.0])  # the first warms up
    assert alternate(lambda: next(mine), lambda: next(theirs), 2, rounds=2) == ([2.0, 6.0], [2.0, 4.0])


def test_sides_take_turns_in_the_warm_up_too() -> None:
    """Else the first figures of the side that was warmed up first hold what the other made the JVM do anew."""
    calls: list[str] = []

    def side(name: str) -> float:
        time.sleep(0.005)
        calls.append(name)
        return 1.0

    alternate(lambda: side("a"), lambda: side("b"), 1, warm_up_s=0.02)
    assert len(calls) >= 6
    assert calls == ["a", "b"] * (len(calls) // 2)


def test_results_survive_json() -> None:
    before = result(bar=Bar(1.0, 0.7, "ms", higher=False))
    before.cpu = {"client on ours": 0.5}
    assert Result.from_json(json.loads(json.dumps(before.to_json()))) == before


def test_the_table_shows_the_middle_and_the_spread() -> None:
    text = report.to_markdown([result()])
    assert "| scan | 12.00 ± 1.00 | 10.00 ± 0.00 | M rows/s | 1.20 x |" in text


def test_targets_are_listed_with_how_much_of_them_is_reached() -> None:
    late = result("start", None, Bar(20.0, 6.0, "s", higher=False))
    text = report.targets([result(), late, result("done", 3.0)])
    assert "| scan | 1.20 | ≥ 1 x | ≥ 2 x | 60% |" in text
    assert "| start | 12.00 | ≤ 20 s | ≤ 6 s | 50% |" in text
    assert "| done | 3.00 | ≥ 1 x | ≥ 2 x | 150% |" in text


def test_ratios_are_turned_so_that_more_is_better() -> None:
    found = report.ratios([result("a", 0.5, Bar(1.0, 0.7, higher=False)), result("b", 3.0), result("c", None)])
    assert found == [("a", 2.0, 1.0), ("b", 3.0, 1.0)]


@pytest.mark.parametrize(
    ("now", "higher", "says"),
    [(0.86, True, False), (0.84, True, True), (1.16, False, False), (1.19, False, True), (5.0, True, False)],
)
def test_a_ratio_fell_when_it_is_more_than_15_percent_worse(now: float, higher: bool, says: bool) -> None:
    lines = record.fallen([result("scan", now, Bar(1.0, 2.0, higher=higher))], {"scan": 1.0})
    assert bool(lines) is says
    if says:
        assert lines[0].startswith(f"scan: {now:.2f} x, recorded 1.00 x (-")


def test_only_ratios_are_remembered_and_cases_that_did_not_run_stay(tmp_path: Path) -> None:
    path = tmp_path / "recorded.json"
    assert record.recorded(path) == {}
    record.remember([result("a", 1.5), result("b", 2.0)], path)
    record.remember([result("a", 9.0), result("start", None)], path)
    record.remember([result("a", 1.75)], path)
    assert record.recorded(path) == {"a": 1.75, "b": 2.0}
    for _ in range(record.RUNS_KEPT):
        record.remember([result("a", 3.0)], path)
    assert record.recorded(path) == {"a": 3.0, "b": 2.0}
    assert record.fallen([result("unknown", 0.1)], record.recorded(path)) == []


def test_the_record_of_the_repository_is_readable() -> None:
    assert all(isinstance(value, float) and value > 0 for value in record.recorded().values())


def test_a_quick_run_is_a_tenth() -> None:
    quick = Settings(quick=True, scale=0.1, cases=["scan"])
    assert (quick.rows(500_000), quick.rows(50)) == (50_000, 1_000)
    assert quick.wanted("java scan zstd")
    assert not quick.wanted("java append zstd")
    assert Settings(cases=["over tls", "dict"]).wanted("lookup", "append dict rows")
    assert Settings().wanted("append")


def test_processor_time_of_a_process_is_read() -> None:
    assert cpu_seconds(1 << 30) == 0.0
