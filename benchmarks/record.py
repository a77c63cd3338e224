# SPDX-License-Identifier: Apache-2.0
"""The guard: the ratios of earlier runs live in the repository, and a later run says which of them fell.

Only ratios: a figure such as milliseconds would accuse the next machine of being slower than this one. And the middle
of several runs: one good run would accuse all that come after it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Result

RECORD = Path(__file__).resolve().parent / "recorded.json"
RUNS_KEPT = 5
FALL_ALLOWED = 0.15


def recorded(path: Path = RECORD) -> dict[str, float]:
    """The middle of the ratios that are kept of each case."""
    return {name: statistics.median(ratios) for name, ratios in _kept(path).items()}


def fallen(results: Sequence[Result], before: dict[str, float]) -> list[str]:
    """One line for each ratio that is worse than the recorded one by more than is allowed."""
    lines = []
    for result in results:
        old = before.get(result.name)
        if not old or not result.ratio:
            continue
        change = result.ratio / old - 1 if result.bar.higher else old / result.ratio - 1
        if change < -FALL_ALLOWED:
            lines.append(f"{result.name}: {result.ratio:.2f} x, recorded {old:.2f} x ({change:+.0%})")
    return lines


def remember(results: Sequence[Result], path: Path = RECORD) -> None:
    """Adds the ratios of these results to the record; those of cases that did not run stay."""
    kept = _kept(path)
    for result in results:
        if result.ratio is not None:
            kept[result.name] = [*kept.get(result.name, ()), round(result.ratio, 3)][-RUNS_KEPT:]
    lines = (f"  {json.dumps(name)}: {json.dumps(ratios)}" for name, ratios in sorted(kept.items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _kept(path: Path) -> dict[str, list[float]]:
    if not path.exists():
        return {}
    found: dict[str, list[float]] = json.loads(path.read_text())
    return found
