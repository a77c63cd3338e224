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

HEADER = ("work", "ours", "peer / limit", "unit", "ratio", "must", "goal", "")
COLOURS = {"goal": "green", "must": "yellow", "MISSED": "red"}


def figure(values: Sequence[float]) -> str:
    """The middle and half of the spread."""
    if not values:
        return ""
    middle = statistics.median(values)
    spread = (max(values) - min(values)) / 2
    digits = 0 if middle >= 100 else (2 if middle >= 1 else 3)
    return f"{middle:,.{digits}f} ± {spread:,.{digits}f}"


def row(result: Result) -> tuple[str, ...]:
    """One line of the table, without its verdict."""
    return (
        result.name,
        figure(result.ours),
        figure(result.peer),
        result.unit,
        f"{result.ratio:.2f} x" if result.ratio is not None else "",
        f"{'≥' if result.bar.higher else '≤'} {result.bar.must:g} {result.bar.unit}",
        f"{result.bar.goal:g}",
    )


def show(results: Sequence[Result], console: Console) -> None:
    """The whole table, ours beside the peer's or the limit's."""
    table = Table(*HEADER)
    for result in results:
        table.add_row(*row(result), f"[{COLOURS[result.verdict]}]{result.verdict}[/]")
    console.print(table)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(cell for cell in line) + " |\n" for line in lines)


def to_markdown(results: Sequence[Result]) -> str:
    return markdown(HEADER, [(*row(result), result.verdict) for result in results])


def ratios(results: Sequence[Result]) -> list[tuple[str, float, float]]:
    """Name, ratio and bar of what can be compared, turned so that more is better."""
    found = []
    for result in results:
        if result.ratio:
            turn = 1.0 if result.bar.higher else -1.0
            found.append((result.name, result.ratio**turn, result.bar.must**turn))
    return found


def goals(results: Sequence[Result]) -> str:
    """What is below its goal, and how far."""
    rows = []
    for result in results:
        if result.verdict != "goal":
            share = result.value / result.bar.goal if result.bar.higher else result.bar.goal / result.value
            goal = f"{'≥' if result.bar.higher else '≤'} {result.bar.goal:g} {result.bar.unit}"
            rows.append((result.name, f"{result.value:.2f}", goal, f"{share:.0%}", result.verdict))
    return markdown(("work", "value", "goal", "reached", ""), rows) if rows else "Every goal is reached.\n"


HEADLINES = ("append dict rows", "to_arrow, zstd", "lookup, one after another, p50", "append against Java, zstd")


def headline(results: Sequence[Result]) -> str:
    """The few lines that stand in the README."""
    rows = [row(result)[:5] for result in results if result.name in HEADLINES]
    return markdown(HEADER[:5], rows)


def to_json(results: Sequence[Result], facts: dict[str, Any]) -> dict[str, Any]:
    return {"machine": facts, "results": [result.to_json() for result in results]}


def write_json(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
