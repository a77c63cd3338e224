# SPDX-License-Identifier: Apache-2.0
"""Results as a table, as JSON, as a chart, and against what was recorded before."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from rich.console import Console
from rich.table import Table

from benchmarks.harness import Result

RECORD = Path(__file__).resolve().parent / "recorded.json"
FALL_ALLOWED = 0.15


def _figure(values: Sequence[float]) -> str:
    if not values:
        return ""
    middle = statistics.median(values)
    spread = (max(values) - min(values)) / 2
    digits = 0 if middle >= 100 else (2 if middle >= 1 else 3)
    return f"{middle:.{digits}f} ± {spread:.{digits}f}"


def show(results: Sequence[Result], console: Console | None = None) -> None:
    """The whole table, ours beside the peer's or the limit's."""
    table = Table("work", "ours", "peer / limit", "unit", "ratio", "must", "goal", "")
    for result in results:
        ratio = f"{result.ratio:.2f} x" if result.ratio is not None else ""
        sign = "≥" if result.bar.higher else "≤"
        colour = {"goal": "green", "must": "yellow", "MISSED": "red"}[result.verdict]
        table.add_row(
            result.name,
            _figure(result.ours),
            _figure(result.peer),
            result.unit,
            ratio,
            f"{sign} {result.bar.must:g} {result.bar.unit}",
            f"{result.bar.goal:g}",
            f"[{colour}]{result.verdict}[/]",
        )
    (console or Console()).print(table)


def to_json(results: Sequence[Result], facts: dict[str, Any]) -> dict[str, Any]:
    return {"machine": facts, "results": [result.to_json() for result in results]}


def fallen(results: Sequence[Result]) -> list[str]:
    """Which figures fell by more than a seventh since they were recorded."""
    if not RECORD.exists():
        return []
    recorded: dict[str, float] = json.loads(RECORD.read_text())
    lines = []
    for result in results:
        before = recorded.get(result.name)
        if before is None or not before:
            continue
        change = result.value / before - 1 if result.bar.higher else before / result.value - 1
        if change < -FALL_ALLOWED:
            lines.append(f"{result.name}: {result.value:.2f}, recorded {before:.2f} ({change:+.0%})")
    return lines


def record(results: Sequence[Result]) -> None:
    known: dict[str, float] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    known.update({result.name: round(result.value, 3) for result in results})
    RECORD.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def chart(results: Sequence[Result], title: str) -> str:
    """The ratios as bars (SVG): the line at 1 is the peer or the limit."""
    shown = [result for result in results if result.ratio is not None and result.bar.higher]
    width, left, row, top = 760, 250, 26, 48
    height = top + row * len(shown) + 24
    largest = max([result.ratio or 0 for result in shown] + [1.5])
    scale = (width - left - 70) / largest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" fill="#222">{escape(title)}</text>',
    ]
    for i, result in enumerate(shown):
        y = top + i * row
        ratio = result.ratio or 0
        fill = "#2b7a4b" if ratio >= 1 else "#b3541e"
        parts += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end" fill="#222">{escape(result.name)}</text>',
            f'<rect x="{left}" y="{y}" width="{ratio * scale:.1f}" height="18" fill="{fill}"/>',
            f'<text x="{left + ratio * scale + 6:.1f}" y="{y + 13}" fill="#222">{ratio:.2f}</text>',
        ]
    x = left + scale
    parts.append(
        f'<line x1="{x:.1f}" y1="{top - 8}" x2="{x:.1f}" y2="{height - 20}" stroke="#222" stroke-dasharray="4 3"/>'
    )
    parts.append("</svg>")
    return "\n".join(parts) + "\n"
