# SPDX-License-Identifier: Apache-2.0
"""Rows in a terminal: aligned columns that fit its width, with colours where they are wanted."""

from __future__ import annotations

import datetime as dt
import decimal
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from fluss._text import escaped, json_text, json_value

_GAP = "  "
_WIDTH_MIN = 4
_NUMBERS = (int, float, decimal.Decimal)
_UNCUT = (*_NUMBERS, dt.date, dt.time)
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
    text = escaped(str(json_value(value)))
    return f'"{text}"' if text == NULL else text  # a text that would read as no value


class Grid:
    """Prints rows under a header. Columns grow with the rows that come; numbers and times are never cut."""

    def __init__(self, names: Sequence[str], *, width: int | None = None) -> None:
        self._names = [escaped(name) for name in names]
        self._limit = terminal_width() if width is None else width
        self._wanted = [len(name) for name in self._names]
        self._least = [_WIDTH_MIN] * len(self._names)
        self._widths: list[int] = []
        self._right = [False] * len(self._names)

    def add(self, rows: Sequence[Sequence[Any]], styles: Iterable[dict[str, Any] | None] | None = None) -> None:
        """Print some rows; each may have a style of `click.style`."""
        texts = [[cell(value) for value in row] for row in rows]
        is_first = not self._widths
        self._measure(rows, texts)
        if is_first:
            echo(click.style(self._line(self._names), bold=True))
        for text, style in zip(texts, styles or [None] * len(texts)):
            line = self._line(text)
            echo(click.style(line, **style) if style else line)

    def end(self) -> None:
        """Print the header if there were no rows."""
        if not self._widths:
            self.add([])

    def _measure(self, rows: Sequence[Sequence[Any]], texts: Sequence[Sequence[str]]) -> None:
        for values, row in zip(rows, texts):
            for index, (value, text) in enumerate(zip(values, row)):
                self._wanted[index] = max(self._wanted[index], len(text))
                if isinstance(value, _UNCUT) and not isinstance(value, bool):
                    self._least[index] = max(self._least[index], len(text))
                    self._right[index] = self._right[index] or isinstance(value, _NUMBERS)
        self._widths = self._fitted()

    def _fitted(self) -> list[int]:
        """The widest columns give way first until the line fits; a line of numbers that does not is wrapped."""
        if self._limit is None:
            return list(self._wanted)
        widths = [min(wanted, max(least, self._limit)) for wanted, least in zip(self._wanted, self._least)]
        space = self._limit - len(_GAP) * (len(widths) - 1)
        while sum(widths) > space:
            spare = [index for index, width in enumerate(widths) if width > self._least[index]]
            if not spare:
                break
            widths[max(spare, key=widths.__getitem__)] -= 1
        return widths

    def _line(self, texts: Sequence[str]) -> str:
        parts = []
        for text, width, right in zip(texts, self._widths, self._right):
            if len(text) > width:
                text = text[: max(width - 1, 1)] + "…"
            parts.append(text.rjust(width) if right else text.ljust(width))
        return _GAP.join(parts).rstrip()


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
