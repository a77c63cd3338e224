# SPDX-License-Identifier: Apache-2.0
"""The scale study as tables, charts and a verdict: does a cost per unit stay flat as one thing grows?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks import charts
from benchmarks.report import markdown

STEEP = 1.25
"""A cost per unit that ends this many times above its least value is growing faster than the work."""


def shown(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def series_of(axis: dict[str, Any]) -> dict[str, list[tuple[float, float]]]:
    """Name of the cost to its points."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in axis["points"]:
        for name, value in point["costs"].items():
            found.setdefault(name, []).append((point["x"], value))
    return found


def growth(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """How many times the least cost the last one is, and the power of x it grew with from there on."""
    least_x, least = min(points, key=lambda point: point[1])
    last_x, last = points[-1]
    if last_x <= least_x or least <= 0:
        return 1.0, 0.0
    return last / least, math.log(last / least) / math.log(last_x / least_x)


def _verdict(times: float, power: float) -> str:
    if times < STEEP:
        return "flat or falling"
    return f"{'grows steeply' if power >= 1 else 'grows'}: x^{power:.2f}"


def markdown_of(axis: dict[str, Any]) -> str:
    names = list(series_of(axis))
    header = [axis["title"], *names]
    rows = [
        [f"{point['x']:,.0f}", *(shown(point["costs"][name]) if name in point["costs"] else "" for name in names)]
        for point in axis["points"]
    ]
    return markdown(header, rows)


def summary(axes: Sequence[dict[str, Any]]) -> str:
    """One line for each cost: where it starts, where it ends, and whether it grows faster than the work."""
    rows = []
    for axis in axes:
        for name, points in series_of(axis).items():
            times, power = growth(points)
            verdict = _verdict(times, power)
            span = f"{points[0][0]:,.0f} … {points[-1][0]:,.0f}"
            rows.append((axis["title"], span, name, shown(points[0][1]), shown(points[-1][1]), f"{times:.2f}", verdict))
    return markdown(("what grows", "from … to", "cost", "first", "last", "last / least", ""), rows)


def chart_of(axis: dict[str, Any]) -> str:
    return charts.lines(f"Cost as {axis['title']} grow", axis["title"], "cost per unit of work", series_of(axis))
