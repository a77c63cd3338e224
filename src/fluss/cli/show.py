# SPDX-License-Identifier: Apache-2.0
"""Rows in a terminal: aligned columns that fit its width, with colours where they are wanted."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from fluss._text import escaped, json_text, json_value

_GAP = "  "
_WIDTH_MIN = 4
NULL = "NULL"


def use_colour() -> bool | None:
    """False if the user wants none; None lets click decide by whether this is a terminal."""
    return False if os.environ.get("NO_COLOR") else None


def echo(text: str, *, err: bool = False) -> None:
    """Print a line that may have colours."""
    click.echo(text, err=err, color=use_colour())


def terminal_width() -> int | None:
    """The width of the terminal; None if the output goes elsewhere and nothing need be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def cell(value: Any) -> str:
    """A value as one line of text."""
    if value is None:
        return NULL
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple, dict)):
        return json_text(json_value(value))
    return escaped(str(json_value(value)))


class Grid:
    """Prints rows under a header. Widths are those of the first rows: later ones come as they come."""

    def __init__(self, names: Sequence[str], *, header: bool = True, width: int | None = None) -> None:
        self._names = [escaped(name) for name in names]
        self._header = header
        self._limit = terminal_width() if width is None else width
        self._widths: list[int] | None = None
        self._right: list[bool] = []

    def add(self, rows: Sequence[Sequence[Any]], styles: Iterable[dict[str, Any] | None] | None = None) -> None:
        """Print some rows; each may have a style of `click.style`."""
        texts = [[cell(value) for value in row] for row in rows]
        if self._widths is None:
            self._begin(rows, texts)
        assert self._widths is not None
        for text, style in zip(texts, styles or [None] * len(texts)):
            line = self._line(text)
            echo(click.style(line, **style) if style else line)

    def end(self) -> None:
        """Print the header if there were no rows."""
        if self._widths is None:
            self.add([])

    def _begin(self, rows: Sequence[Sequence[Any]], texts: Sequence[Sequence[str]]) -> None:
        widths = [max([len(name), *(len(row[index]) for row in texts)]) for index, name in enumerate(self._names)]
        self._right = [
            any(isinstance(row[index], (int, float)) and not isinstance(row[index], bool) for row in rows)
            for index in range(len(self._names))
        ]
        self._widths = self._fitted(widths)
        if self._header:
            echo(click.style(self._line(self._names), bold=True))

    def _fitted(self, widths: list[int]) -> list[int]:
        """The widest columns give way first until the line fits."""
        if self._limit is None:
            return widths
        space = self._limit - len(_GAP) * (len(widths) - 1)
        while sum(widths) > space and max(widths, default=0) > _WIDTH_MIN:
            widest = widths.index(max(widths))
            widths[widest] -= 1
        return widths

    def _line(self, texts: Sequence[str]) -> str:
        assert self._widths is not None
        parts = []
        for text, width, right in zip(texts, self._widths, self._right):
            if self._limit is not None and len(text) > width:
                text = text[: max(width - 1, 1)] + "…"
            parts.append(text.rjust(width) if right else text.ljust(width))
        line = _GAP.join(parts).rstrip()
        if self._limit is not None and len(line) > self._limit:
            line = line[: max(self._limit - 1, 1)] + "…"
        return line


def grid(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print a whole table at once."""
    shown = Grid(names)
    shown.add(rows)


def facts(pairs: Iterable[tuple[str, Any]]) -> None:
    """Print names and values, one pair a line."""
    found = [(escaped(name), cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in found), default=0)
    for name, value in found:
        echo(f"{click.style(name.ljust(width), bold=True)}  {value}".rstrip())


def size_text(size: float | None) -> str:
    """Bytes for people."""
    if size is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
