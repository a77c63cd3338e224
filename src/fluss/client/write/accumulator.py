# SPDX-License-Identifier: Apache-2.0
"""Accumulates rows one by one into chunks, from which columns are cut.

This runs once per row, about a million times a second: the values of a row are copied into one flat list (so the caller
may reuse and change the row afterwards), and column `i` of the chunk is later the slice `flat[i::width]`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from operator import itemgetter
from typing import Any

from fluss.client.write.handle import Ticket, WriteResultHandle, make_handle
from fluss.client.write.row_reader import RowReader, Values


class OpenChunk:
    """Rows that are being accumulated: the values of all of them in one list.

    The thread that gave the first row owns the chunk: it adds rows without the lock, with which an appended dict takes
    a fifth more time (1.28 µs instead of 1.06). A chunk without an owner is shared by several threads, and changed with
    the lock held.
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
    names, width, read = reader.names, reader.width, reader.read
    values_of: Callable[[Any], Values] = itemgetter(*names) if width > 1 else lambda row: (row[names[0]],)
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
