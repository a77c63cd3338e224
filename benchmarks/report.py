# SPDX-License-Identifier: Apache-2.0
"""Results as a table for the terminal, as JSON, and as a table for the documents."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result

HEADER = ("work", "ours", "peer / limit", "unit", "ratio")
BAR_HEADER = ("minimum", "target", "")
COLOURS = {"target": "green", "minimum": "yellow", "at minimum": "yellow", "MISSED": "red"}


def figure(values: Sequence[float]) -> str:
    """The middle and half of the spread."""
    if not values:
        return ""
    middle = statistics.median(values)
    spread = (max(values) - min(values)) / 2
    digits = 0 if middle >= 100 else (2 if middle >= 1 else 3)
    return f"{middle:,.{digits}f} ± {spread:,.{digits}f}"


def row(result: Result) -> tuple[str, ...]:
    """The figures of one line of the table."""
    return (
        result.name,
        figure(result.ours),
        figure(result.peer),
        result.unit,
        f"{result.ratio:.2f} x" if result.ratio is not None else "",
    )


def limit(result: Result, value: float) -> str:
    """A minimum or a target, with the side on which it is reached."""
    return f"{'≥' if result.bar.higher else '≤'} {value:g} {result.bar.unit}"


def show(results: Sequence[Result], console: Console) -> None:
    """The whole table, ours beside the peer's or the limit's."""
    table = Table(*HEADER, *BAR_HEADER)
    for result in results:
        bars = limit(result, result.bar.minimum), f"{result.bar.target:g}"
        table.add_row(*row(result), *bars, f"[{COLOURS[result.verdict]}]{result.verdict}[/]")
    console.print(table)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell for cell in line) + " |\n" for line in lines)


def to_markdown(results: Sequence[Result]) -> str:
    """The table of the user documents, which have the figures and not our targets."""
    return markdown(HEADER, [row(result) for result in results])


def ratios(results: Sequence[Result]) -> list[tuple[str, float, float]]:
    """Name, ratio and minimum of what can be compared, turned so that more is better."""
    found = []
    for result in results:
        if result.ratio:
            turn = 1.0 if result.bar.higher else -1.0
            found.append((result.name, result.ratio**turn, result.bar.minimum**turn))
    return found


def targets(results: Sequence[Result]) -> str:
    """Minimum and target of every case, and how much of the target is reached."""
    rows = []
    for result in results:
        bar = result.bar
        share = result.value / bar.target if bar.higher else bar.target / result.value
        limits = limit(result, bar.minimum), limit(result, bar.target)
        rows.append((result.name, f"{result.value:.2f}", *limits, f"{share:.0%}"))
    return markdown(("work", "value", "minimum", "target", "reached"), rows)


HEADLINES = ("append dict rows", "to_arrow, zstd", "lookup, one after another, p50", "append against Java, zstd")


def headline(results: Sequence[Result]) -> str:
    """The few lines that stand in the README."""
    rows = [row(result) for result in results if result.name in HEADLINES]
    return markdown(HEADER, rows)


def to_json(results: Sequence[Result], facts: dict[str, Any]) -> dict[str, Any]:
    return {"machine": facts, "results": [result.to_json() for result in results]}


def write_json(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
