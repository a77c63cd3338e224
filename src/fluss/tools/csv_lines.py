# SPDX-License-Identifier: Apache-2.0
"""The lines of a CSV file that its rows begin in, counted as an editor counts them.

Arrow passes over empty lines without a word, and a quoted value may take several lines.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_FIRST_LINE = 2  # after the header


class CsvText:
    """Passes a file on from behind its header, and keeps what its rows do not show.

    Args:
        source: The file.
        empty_lines_are_rows: They are in a file of one column. Else they are kept until their lines are counted.
    """

    def __init__(self, source: IO[bytes], empty_lines_are_rows: bool) -> None:
        self._source = source
        self._empty_lines_are_rows = empty_lines_are_rows
        self._held = b""
        self._line = _FIRST_LINE
        self._at_line_start = True
        self.last = b""
        """Its last byte that ends no line."""
        self.empty_lines: deque[int] = deque()
        self.has_quotes = self.has_returns = False
        self.closed = False

    def read(self, size: int = -1) -> bytes:
        data = self._source.read(size)
        self.last = data.rstrip(b"\r\n")[-1:] or self.last
        self.has_quotes = self.has_quotes or b'"' in data
        self._find_empty_lines(data)
        return data

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def _find_empty_lines(self, data: bytes) -> None:
        text = self._held + data
        # A line feed that comes next would end the same line.
        self._held = b"\r" if data and text.endswith(b"\r") else b""
        text = text[: len(text) - len(self._held)]
        if b"\r" in text:
            self.has_returns = True
            text = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if not text or self._empty_lines_are_rows:
            return
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        before = -1 if self._at_line_start else -2
        empty = np.flatnonzero(np.diff(ends, prepend=before) == 1) + self._line
        self.empty_lines.extend(empty.tolist())
        self._line += len(ends)
        self._at_line_start = text.endswith(b"\n")


class RowLines:
    """The lines of rows that come one after the other, in pieces.

    Args:
        text: The file, of which at least these rows have been read.
    """

    def __init__(self, text: CsvText) -> None:
        self._text = text
        self._next = _FIRST_LINE

    def breaks_of(self, batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
        """How many lines end within the values of each row."""
        found = np.zeros(batch.num_rows, np.int64)
        for column in batch.columns if self._text.has_quotes else ():
            found += _count(column, "\n")
            if self._text.has_returns:
                found += _count(column, "\r") - _count(column, "\r\n")
        return found

    def take(self, breaks: np.ndarray[Any, np.dtype[np.int64]]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The lines that the next rows begin in, each with so many line ends within it."""
        lines = self._next + np.cumsum(breaks + 1)
        self._next = int(lines[-1]) if len(lines) else self._next
        lines -= breaks + 1
        if self._text.empty_lines:
            passed = self._passed_over(lines)
            self._next += len(passed)
            lines += np.cumsum(np.bincount(np.array(passed, np.int64), minlength=len(lines)))
        return lines

    def _passed_over(self, lines: np.ndarray[Any, np.dtype[np.int64]]) -> list[int]:
        """For each empty line before one of these rows, the row that follows it."""
        starts = lines.tolist()
        passed: list[int] = []
        empty = self._text.empty_lines
        while empty and (line := empty[0] - len(passed)) < self._next:
            empty.popleft()
            row = bisect_right(starts, line) - 1
            if starts[row] == line:  # else it is one of the lines of that row
                passed.append(row)
        return passed


def _count(column: pa.Array, text: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    counts: np.ndarray[Any, np.dtype[np.int64]]
    counts = pc.fill_null(pc.count_substring(column, text), 0).to_numpy(zero_copy_only=False)
    return counts


def line_breaks(texts: Iterable[str]) -> list[int]:
    """How many lines end within each of some texts."""
    return [text.count("\n") + text.count("\r") - text.count("\r\n") for text in texts]
