# SPDX-License-Identifier: Apache-2.0
"""Two kinds of chart as SVG text: bars for ratios, lines for how a cost grows. Nothing but strings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Points = Sequence[tuple[float, float]]

INK = "#222222"
FAINT = "#d8d8d8"
GOOD, POOR = "#2b7a4b", "#b3541e"
LINES = ("#2b5f8a", "#b3541e", "#2b7a4b", "#7a3e9d", "#8a6d1b", "#555555")


def _page(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    )
    background = f'<rect width="{width}" height="{height}" fill="#ffffff"/>'
    return "\n".join([head, background, _text(12, 24, title, size=15), *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, dashes: str = "") -> str:
    style = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{style}/>'


def bars(title: str, ratios: Sequence[tuple[str, float, float]]) -> str:
    """Ratios, to the right of the peer or the limit or to its left; the short line is the minimum.

    Logarithmic: twice as fast and half as fast are equally long.
    """
    width, left, row, top = 820, 290, 26, 56
    height = top + row * len(ratios) + 16
    values = [value for _, value, _ in ratios] + [minimum for _, _, minimum in ratios] + [1.0]
    low, high = math.log10(min(values) / 1.5), math.log10(max(values) * 1.1)

    def at(value: float) -> float:
        return left + (math.log10(value) - low) / (high - low) * (width - left - 70)

    parts = [_text(at(1), top - 12, "equal", "middle", 11)]
    for i, (name, value, minimum) in enumerate(ratios):
        y = top + i * row
        start, end = sorted((at(1), at(value)))
        colour = GOOD if value >= minimum else POOR
        parts += [
            _text(left - 8, y + 13, name, "end"),
            f'<rect x="{start:.1f}" y="{y}" width="{max(1.0, end - start):.1f}" height="18" fill="{colour}"/>',
            _line(at(minimum), y - 2, at(minimum), y + 20, INK),
            _text(max(end, at(minimum)) + 6, y + 13, f"{value:.2f} x"),
        ]
    parts.append(_line(at(1), top - 8, at(1), height - 12, INK, "4 3"))
    return _page(width, height, title, parts)


def lines(title: str, x_name: str, y_name: str, series: Mapping[str, Points]) -> str:
    """How something grows: both axes logarithmic, so that a straight flat line means that it does not."""
    width, height, left, right, top, bottom = 720, 380, 70, 210, 56, 50
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points if y > 0]
    x_low, x_high = math.log10(min(xs)), math.log10(max(xs))
    y_low, y_high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
    y_high = max(y_high, y_low + 1)

    def x_at(x: float) -> float:
        return left + (math.log10(x) - x_low) / ((x_high - x_low) or 1) * (width - left - right)

    def y_at(y: float) -> float:
        return height - bottom - (math.log10(y) - y_low) / (y_high - y_low) * (height - top - bottom)

    parts = [_text(left, top - 10, y_name, size=11), _text((left + width - right) / 2, height - 12, x_name, "middle")]
    for power in range(y_low, y_high + 1):
        y = y_at(10.0**power)
        parts += [_line(left, y, width - right, y, FAINT), _text(left - 6, y + 4, _short(10.0**power), "end", 11)]
    for x in sorted(set(xs)):
        parts.append(_line(x_at(x), height - bottom, x_at(x), height - bottom + 4, INK))
        parts.append(_text(x_at(x), height - bottom + 18, _short(x), "middle", 11))
    for i, (name, points) in enumerate(series.items()):
        colour = LINES[i % len(LINES)]
        places = [(x_at(x), y_at(y)) for x, y in points if y > 0]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        y = top + 14 + 20 * i
        parts.append(f'<rect x="{width - right + 16}" y="{y - 9}" width="12" height="4" fill="{colour}"/>')
        parts.append(_text(width - right + 34, y, name, size=11))
    return _page(width, height, title, parts)


def _short(value: float) -> str:
    for limit, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g} {letter}"
    return f"{value:g}"
