# SPDX-License-Identifier: Apache-2.0
"""Accumulates rows one by one into chunks, from which columns are cut.

This runs once per row, about a million times a second: the values of a row are copied into one flat list (so the caller
may reuse and change the row afterwards), and column `i` of the chunk is later the slice `flat[i::width]`.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Any

from fluss.client.write.handle import Ticket, WriteResultHandle, make_handle
from fluss.errors import InvalidRowError
from fluss.metadata import ArrayType, BinaryType, BytesType, Column, DataType, MapType, RowType
from fluss.rows import ColumnConverter, LogicalConverter, from_python

Values = Sequence[Any]

NESTED = (ArrayType, MapType, RowType)
"""Columns whose values are converted when their row is given: a copy has to be made then, and this is one."""
_MUTABLE = (*NESTED, BytesType, BinaryType)
"""Columns whose values may be objects that the caller can change: lists, dicts, byte arrays."""


class RowReader:
    """Takes the values of given columns out of a row of any shape: mapping, dataclass, list or tuple.

    `columns` are the positions that the row carries; the others are filled with None.
    """

    def __init__(self, what: str, all_columns: Sequence[Column], columns: Sequence[int] | None = None) -> None:
        self.what = what
        self.width = len(all_columns)
        self.positions = list(range(self.width)) if columns is None else list(columns)
        # The very strings that stand in the caller's code as keys of rows: found by identity, without comparing them.
        self.names = [sys.intern(all_columns[i].name) for i in self.positions]
        self._name_set = frozenset(self.names)
        self._mutable = [(i, all_columns[i]) for i in self.positions if isinstance(all_columns[i].data_type, _MUTABLE)]
        self._required = [all_columns[i].name for i in self.positions if not all_columns[i].data_type.nullable]
        self._complete = self.positions == list(range(self.width))
        self.is_plain = self._complete and not self._mutable
        """Whether the values of a complete row can be taken as they are."""
        self.fast: Callable[[Any], Values] = (
            itemgetter(*self.names) if len(self.names) > 1 else lambda row: (row[self.names[0]],)
        )

    def read(self, row: Any) -> Values:
        """All values of the row in table order; those of nested columns as logical values.

        Raises `InvalidRowError` for a row that cannot be one, and for nested values that do not fit.
        """
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
        for position, column in self._mutable:
            value = values[position]
            # What the caller does to the object after this call must not count.
            if value is None or type(value) is bytes:
                continue
            if isinstance(column.data_type, NESTED):
                values[position] = self._converted(value, column)
            elif isinstance(value, (bytearray, memoryview)):
                values[position] = bytes(value)
        return values

    def _converted(self, value: Any, column: Column) -> Any:
        try:
            return from_python(value, column.data_type, column.name)
        except InvalidRowError as error:
            raise InvalidRowError(f"{self.what}: {error.message}") from None

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
            fields = f"field{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
            raise InvalidRowError(f"{self.what}: Missing value for non-nullable {fields}")
        return [row.get(name) for name in self.names]


def value_converter(data_type: DataType, name: str) -> ColumnConverter:
    """Make the converter of a column whose values a `RowReader` took."""
    return LogicalConverter(data_type, name) if isinstance(data_type, NESTED) else ColumnConverter(data_type, name)


def fields_of(row: Any) -> dict[str, Any]:
    """The fields of a dataclass, not deeper."""
    return {field.name: getattr(row, field.name) for field in dataclasses.fields(row)}


class OpenChunk:
    """Rows that are being accumulated: the values of all of them in one list.

    The thread that gave the first row owns the chunk: it adds rows without the lock, which would cost more than all the
    rest. A chunk without an owner is shared by several threads, and changed with the lock held.
    """

    __slots__ = ("closed_at", "flat", "marks", "owner", "ticket")

    def __init__(self, ticket: Ticket) -> None:
        self.flat: list[Any] = []
        self.marks: list[int] = []
        """Positions of rows that are deletes."""
        self.ticket = ticket
        self.owner = 0
        """The ident of a thread, or 0."""
        self.closed_at = 0
        """How much of `flat` left with the chunk, once it is closed."""


@dataclasses.dataclass(slots=True, eq=False)
class Chunk:
    """Rows taken out of an accumulator, in the order in which they were given."""

    number: int
    flat: list[Any]
    rows: int
    marks: list[int]
    ticket: Ticket
    first_row: int
    """How many rows the writer had taken before these."""


class RowAccumulator:
    """The rows of one writer that are not converted yet. All methods but `includes` are called with `lock` held.

    Every chunk gets a number under the lock; chunks that several threads convert at the same time are restored to the
    order of their numbers on the event loop. The number of rows is derived from the length of `flat` alone: an
    interrupt between two steps cannot make two counts disagree.
    """

    __slots__ = ("_make_ticket", "last", "lock", "numbers", "open", "rows_before", "width")

    def __init__(self, make_ticket: Callable[[], Ticket], width: int, rows_max: int) -> None:
        self.lock = threading.Lock()
        self.width = width
        self.open = OpenChunk(make_ticket())
        self.rows_before = 0
        self.last = 0
        """The length of `flat` from which on the next row completes the chunk."""
        self.limit(rows_max)
        self.numbers = 0
        """How many numbers were given out."""
        self._make_ticket = make_ticket

    def limit(self, rows_max: int) -> None:
        """Set how many rows a chunk may have; with 0, every row completes one."""
        self.last = (rows_max - 1) * self.width

    @property
    def is_empty(self) -> bool:
        return not self.open.flat

    @property
    def is_full(self) -> bool:
        """Whether the next row completes the chunk."""
        return len(self.open.flat) >= self.last

    def enter(self) -> Chunk | None:
        """Let the calling thread add a row; return the chunk that another thread owned and that had to be closed."""
        chunk, thread = self.open, threading.get_ident()
        if not chunk.flat:
            chunk.owner = thread
        elif chunk.owner not in (thread, 0):
            closed = self.take()
            self.open.owner = 0
            return closed
        return None

    def add(self, values: Values, is_delete: bool) -> WriteResultHandle:
        """Take a row, after `enter`."""
        chunk = self.open
        place = len(chunk.flat)
        chunk.flat.extend(values)
        if is_delete:
            chunk.marks.append(place // self.width)
        return make_handle(chunk.ticket, place)

    def includes(self, chunk: OpenChunk, place: int) -> bool:
        """Whether a row that its owner added at `place` left with a chunk that was closed meanwhile."""
        with self.lock:
            return place < chunk.closed_at

    def next_number(self) -> int:
        """Return the number of the next chunk."""
        number = self.numbers
        self.numbers = number + 1
        return number

    def take(self) -> Chunk | None:
        """Return all rows as a chunk whose ticket is closed; None if there are none."""
        closed = self.open
        if not closed.flat:
            return None
        # In this order: the owner adds a row, then looks whether the chunk is still open.
        self.open = OpenChunk(self._make_ticket())
        closed.closed_at = len(closed.flat)
        rows = closed.closed_at // self.width
        flat = closed.flat[: closed.closed_at]
        chunk = Chunk(self.next_number(), flat, rows, closed.marks, closed.ticket, self.rows_before)
        self.rows_before += rows
        chunk.ticket.close(rows)
        return chunk


def row_taker(
    accumulator: RowAccumulator, reader: RowReader, collect: Callable[[Values], WriteResultHandle]
) -> Callable[[Any], WriteResultHandle]:
    """Make the function that takes one row: `append` and `upsert`.

    `collect` takes the rows that begin or end a chunk, and those of threads that do not own it. All others are added
    here, without a call or a lock in between.
    """
    if not reader.is_plain:
        return lambda row: collect(reader.read(row))
    width, values_of, read = reader.width, reader.fast, reader.read
    this_thread, new_handle = threading.get_ident, WriteResultHandle

    def take(row: Any) -> WriteResultHandle:
        values: Values
        if type(row) is dict and len(row) == width:
            try:
                values = values_of(row)
            except KeyError:
                values = read(row)
        elif type(row) is tuple and len(row) == width:
            values = row
        else:
            values = read(row)
        chunk = accumulator.open
        if chunk.owner == this_thread():
            flat = chunk.flat
            place = len(flat)
            if place < accumulator.last:
                flat += values
                # Another thread may have closed the chunk meanwhile, before or after this row.
                if accumulator.open is chunk or accumulator.includes(chunk, place):
                    handle = new_handle()
                    handle.ticket = chunk.ticket
                    handle.place = place
                    return handle
        return collect(values)

    return take


def without(flat: list[Any], width: int, bad: AbstractSet[int]) -> list[Any]:
    """The flat list without the rows at the positions `bad`."""
    kept: list[Any] = []
    for position in range(len(flat) // width):
        if position not in bad:
            kept += flat[position * width : (position + 1) * width]
    return kept
