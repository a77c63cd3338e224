# SPDX-License-Identifier: Apache-2.0
"""Collects rows one by one and gives them back as columns.

One call per row is all the time there is: a row's values are copied into one flat list (so the caller may reuse and
change the row afterwards), and column `i` of the chunk is later the slice `flat[i::width]`.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from fluss.errors import InvalidRowError
from fluss.metadata import ArrayType, Column, MapType, RowType

Values = Sequence[Any]

_NESTED = (ArrayType, MapType, RowType)


class RowReader:
    """Takes the values of given columns out of a row of any shape: mapping, dataclass, list or tuple.

    `columns` are the positions that the row carries; the others are filled with None.
    """

    def __init__(self, what: str, all_columns: Sequence[Column], columns: Sequence[int] | None = None) -> None:
        self.what = what
        self.width = len(all_columns)
        self.positions = list(range(self.width)) if columns is None else list(columns)
        self.names = [all_columns[i].name for i in self.positions]
        self._name_set = frozenset(self.names)
        self._nested = [i for i in self.positions if isinstance(all_columns[i].data_type, _NESTED)]
        self._required = [all_columns[i].name for i in self.positions if not all_columns[i].data_type.nullable]
        self.is_plain = self.positions == list(range(self.width)) and not self._nested
        """Whether the values of a complete row can be taken as they are."""
        self.fast: Callable[[Any], Values] = (
            itemgetter(*self.names) if len(self.names) > 1 else lambda row: (row[self.names[0]],)
        )

    def read(self, row: Any) -> Values:
        """All values of the row in table order. Raises `InvalidRowError` for a row that cannot be one."""
        given = self._given(row)
        if len(given) == self.width and self.is_plain:
            return given
        values: list[Any] = [None] * self.width
        for position, value in zip(self.positions, given):
            values[position] = value
        for position in self._nested:
            # Lists and dicts inside a row are converted later: what the caller does to them meanwhile must not count.
            values[position] = copy.deepcopy(values[position])
        return values

    def _given(self, row: Any) -> Values:
        if isinstance(row, Mapping):
            return self._from_mapping(row)
        if isinstance(row, list | tuple):
            fields = getattr(row, "_fields", None)
            if fields is not None and frozenset(fields) == self._name_set:
                return self._from_mapping(dict(zip(fields, row)))
            if len(row) != len(self.names):
                raise InvalidRowError(
                    f"{self.what}: a {type(row).__name__} of {len(row)} values was given, but the columns are "
                    f"{len(self.names)}: {', '.join(self.names)}"
                )
            return row
        if dataclasses.is_dataclass(row) and not isinstance(row, type):
            return self._from_mapping({field.name: getattr(row, field.name) for field in dataclasses.fields(row)})
        raise InvalidRowError(
            f"{self.what}: a row is a dict, a list, a tuple, a mapping or a dataclass; got {type(row).__name__}"
        )

    def _from_mapping(self, row: Mapping[str, Any]) -> Values:
        unknown = [name for name in row if name not in self._name_set]
        if unknown:
            raise InvalidRowError(
                f"{self.what}: unknown column {', '.join(map(repr, unknown))}; the columns are {', '.join(self.names)}"
            )
        missing = [name for name in self._required if row.get(name) is None]
        if missing:
            raise InvalidRowError(f"{self.what}: column {', '.join(map(repr, missing))} is NOT NULL and has no value")
        return [row.get(name) for name in self.names]


class Chunk:
    """Rows taken out of a collector."""

    __slots__ = ("flat", "marks", "rows", "ticket")

    def __init__(self, flat: list[Any], rows: int, marks: list[int], ticket: Any) -> None:
        self.flat = flat
        self.rows = rows
        self.marks = marks
        self.ticket = ticket


class RowCollector:
    """The rows of one writer that are not converted yet. `lock` guards everything in it."""

    __slots__ = ("_make_ticket", "flat", "lock", "marks", "rows", "rows_max", "ticket")

    def __init__(self, make_ticket: Callable[[], Any], rows_max: int) -> None:
        self.lock = threading.Lock()
        self.flat: list[Any] = []
        self.rows = 0
        self.marks: list[int] = []
        """Positions of rows that are deletes."""
        self.rows_max = rows_max
        self._make_ticket = make_ticket
        self.ticket = make_ticket()

    def take(self) -> Chunk | None:
        """All rows, as a chunk whose ticket is closed; None if there are none. Call it with the lock held."""
        if not self.rows:
            return None
        chunk = Chunk(self.flat, self.rows, self.marks, self.ticket)
        self.flat, self.rows, self.marks, self.ticket = [], 0, [], self._make_ticket()
        chunk.ticket.close(chunk.rows)
        return chunk


def without(flat: list[Any], width: int, bad: Iterable[int]) -> list[Any]:
    """The flat list without the rows at the positions `bad`."""
    for position in sorted(bad, reverse=True):
        del flat[position * width : (position + 1) * width]
    return flat
