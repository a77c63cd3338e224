# SPDX-License-Identifier: Apache-2.0
"""Collects rows one by one and gives them back as columns.

One call per row is all the time there is: a row's values are copied into one flat list (so the caller may reuse and
change the row afterwards), and column `i` of the chunk is later the slice `flat[i::width]`.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Any

from fluss.client.write.handle import Ticket, WriteResultHandle
from fluss.errors import InvalidRowError
from fluss.metadata import ArrayType, BinaryType, BytesType, Column, MapType, RowType

Values = Sequence[Any]

_MUTABLE = (ArrayType, MapType, RowType, BytesType, BinaryType)
"""Columns whose values may be objects that the caller can change: lists, dicts, byte arrays."""


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
        self._mutable = [i for i in self.positions if isinstance(all_columns[i].data_type, _MUTABLE)]
        self._required = [all_columns[i].name for i in self.positions if not all_columns[i].data_type.nullable]
        self._complete = self.positions == list(range(self.width))
        self.is_plain = self._complete and not self._mutable
        """Whether the values of a complete row can be taken as they are."""
        self.fast: Callable[[Any], Values] = (
            itemgetter(*self.names) if len(self.names) > 1 else lambda row: (row[self.names[0]],)
        )

    def read(self, row: Any) -> Values:
        """All values of the row in table order. Raises `InvalidRowError` for a row that cannot be one."""
        given = self._given(row)
        if self.is_plain:
            return given
        values: list[Any]
        if self._complete:
            values = list(given)
        else:
            values = [None] * self.width
            for position, value in zip(self.positions, given):
                values[position] = value
        for position in self._mutable:
            value = values[position]
            # These are converted later: what the caller does to them meanwhile must not count.
            if value is not None and type(value) is not bytes:
                values[position] = _snapshot(value)
        return values

    def _given(self, row: Any) -> Values:
        if isinstance(row, Mapping):
            return self._from_mapping(row)
        if isinstance(row, (list, tuple)):
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
            return self._from_mapping(fields_of(row))
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


def fields_of(row: Any) -> dict[str, Any]:
    """The fields of a dataclass, not deeper."""
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}


def _snapshot(value: Any) -> Any:
    return bytes(value) if isinstance(value, (bytearray, memoryview)) else copy.deepcopy(value)


class Chunk:
    """Rows taken out of a collector."""

    __slots__ = ("first_row", "flat", "marks", "number", "rows", "ticket")

    def __init__(self, number: int, flat: list[Any], rows: int, marks: list[int], ticket: Ticket, first: int) -> None:
        self.number = number
        self.flat = flat
        self.rows = rows
        self.marks = marks
        self.ticket = ticket
        self.first_row = first
        """How many rows the writer had taken before these."""


class RowCollector:
    """The rows of one writer that are not converted yet. `lock` guards everything in it.

    Everything that leaves gets a number under the lock; what leaves in several threads at once is put back into the
    order of the numbers on the other side.
    """

    __slots__ = ("_make_ticket", "flat", "lock", "marks", "numbers", "rows", "rows_before", "rows_max", "ticket")

    def __init__(self, make_ticket: Callable[[], Ticket], rows_max: int) -> None:
        self.lock = threading.Lock()
        self.flat: list[Any] = []
        self.rows = 0
        self.rows_before = 0
        self.marks: list[int] = []
        """Positions of rows that are deletes."""
        self.rows_max = rows_max
        self.numbers = 0
        """How many numbers were given."""
        self._make_ticket = make_ticket
        self.ticket = make_ticket()

    def next_number(self) -> int:
        """The number of what leaves next. Call it with the lock held."""
        number = self.numbers
        self.numbers = number + 1
        return number

    def take(self) -> Chunk | None:
        """All rows, as a chunk whose ticket is closed; None if there are none. Call it with the lock held."""
        if not self.rows:
            return None
        chunk = Chunk(self.next_number(), self.flat, self.rows, self.marks, self.ticket, self.rows_before)
        self.rows_before += self.rows
        self.flat, self.rows, self.marks, self.ticket = [], 0, [], self._make_ticket()
        chunk.ticket.close(chunk.rows)
        return chunk


def quick(
    collector: RowCollector, reader: RowReader, collect: Callable[[Values], WriteResultHandle]
) -> Callable[[Any], WriteResultHandle]:
    """A function that takes one row, for the call that is made a million times a second.

    It does itself what most rows need: complete dicts and tuples that neither begin nor end a chunk. All others, and
    all mistakes, go the long way through `reader` and `collect`.
    """
    width, lock, values_of, read = reader.width, collector.lock, reader.fast, reader.read
    new, handle = tuple.__new__, WriteResultHandle

    def take(row: Any) -> WriteResultHandle:
        kind = type(row)
        if kind is dict and len(row) == width:
            try:
                values = values_of(row)
            except KeyError:
                return collect(read(row))
        elif kind is tuple and len(row) == width:
            values = row
        else:
            return collect(read(row))
        with lock:
            position = collector.rows
            if 0 < position < collector.rows_max - 1:
                collector.flat.extend(values)
                collector.rows = position + 1
                return new(handle, (collector.ticket, position))
        return collect(values)

    return take if reader.is_plain else lambda row: collect(read(row))


def without(flat: list[Any], width: int, bad: AbstractSet[int]) -> list[Any]:
    """The flat list without the rows at the positions `bad`."""
    kept: list[Any] = []
    for position in range(len(flat) // width):
        if position not in bad:
            kept += flat[position * width : (position + 1) * width]
    return kept
