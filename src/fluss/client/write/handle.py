# SPDX-License-Identifier: Apache-2.0
"""The outcome of writes, and the failures that the next flush has to raise.

Rows are collected in chunks, and a chunk may end up in several batches (one per bucket). One `Ticket` follows a chunk;
the handle that `append()` gives back for each row is only the ticket and the row's place, because it is made a million
times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fluss.client.promise import Promise
from fluss.client.retry import within
from fluss.errors import FlussError
from fluss.net.deadline import Deadline

Positions = np.ndarray[Any, Any]


_ERRORS_MAX = 1000
"""So many different errors are kept apart between two flushes; rows beyond them are counted together."""


@dataclass(slots=True, eq=False)
class _Failure:
    error: FlussError
    where: str
    rows: int = 0


class Failures:
    """Rows that were not written since the last flush. Rows fail, and are reported, in any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_error: dict[int, _Failure] = {}
        """By the identity of the error, which is kept alive here."""
        self._others: _Failure | None = None

    def add(self, rows: int, where: str, error: FlussError) -> None:
        """Count rows that failed with `error`. Call it before their tickets are complete."""
        with self._lock:
            failure = self._by_error.get(id(error))
            if failure is None and len(self._by_error) < _ERRORS_MAX:
                failure = self._by_error[id(error)] = _Failure(error, where)
            elif failure is None:
                failure = self._others = self._others or _Failure(error, where)
            failure.rows += rows

    def reported(self, error: FlussError, rows: int) -> None:
        """Take back rows that were reported to a caller in another way."""
        with self._lock:
            failure = self._by_error.get(id(error), self._others)
            if failure is None:
                return
            failure.rows -= rows
            if failure.rows <= 0:
                if failure is self._others:
                    self._others = None
                else:
                    del self._by_error[id(error)]

    def raise_first(self) -> None:
        """Raise the error of a `flush()`, if there is one.

        Call it in the task of the caller: one that comes from another task is dropped when the caller is cancelled.
        """
        error = self.take()
        if error is not None:
            raise error

    def take(self) -> FlussError | None:
        """Return the error that `flush()` raises, if any, and drop all of them."""
        with self._lock:
            failures = list(self._by_error.values())
            if self._others is not None:
                failures.append(self._others)
            self._by_error, self._others = {}, None
        if not failures:
            return None
        first, rows = failures[0], sum(failure.rows for failure in failures)
        counted = "1 row was" if rows == 1 else f"{rows} rows were"
        first_of = "" if rows == 1 else "; the first of them"
        text = f"{counted} not written to {first.where}{first_of}: {first.error.message}"
        return type(first.error)(text, first.error.error_code)


@dataclass(slots=True, eq=False)
class TicketFailure:
    """Rows of one ticket that failed for one reason."""

    _rows: int
    _positions: Positions | None
    error: FlussError
    _reported: set[int] = field(default_factory=set)
    _all_reported: bool = False

    def concerns(self, position: int | None) -> bool:
        """Whether the row at `position` is among them (None: any row)."""
        return position is None or self._positions is None or position in self._positions

    def report(self, position: int | None) -> int:
        """Note that the row at `position` (None: every row) was reported; return how many were not before."""
        if self._all_reported:
            return 0
        if position is None:
            self._all_reported = True
            return self._rows - len(self._reported)
        before = len(self._reported)
        self._reported.add(position)
        return len(self._reported) - before


class Ticket:
    """The outcome of one chunk. Completed on the event loop, awaited from any loop or thread."""

    __slots__ = ("_failures", "_lock", "_promise", "_remaining", "_send_now", "_unreported", "_width")

    def __init__(self, send_now: Callable[[], None], unreported: Failures, width: int = 1) -> None:
        self._send_now = send_now
        self._unreported = unreported
        self._width = width
        self._lock = threading.Lock()
        self._remaining: int | None = None
        self._failures: list[TicketFailure] = []
        self._promise: Promise[None] = Promise()

    def close(self, rows: int) -> None:
        """No more rows join this ticket; `rows` of them are to be completed."""
        with self._lock:
            self._remaining = rows + (self._remaining or 0)
            done = self._remaining == 0
        if done:
            self._promise.resolve(None)

    def complete(self, rows: int, positions: Positions | None = None, error: FlussError | None = None) -> None:
        """`rows` rows were acknowledged, or failed with `error` (`positions` None: all that the ticket holds)."""
        with self._lock:
            if error is not None:
                self._failures.append(TicketFailure(rows, positions, error))
            # A bad row can be completed before the ticket is closed: the count then waits below zero.
            self._remaining = (self._remaining or 0) - rows
            done = self._remaining == 0
        if done:
            self._promise.resolve(None)

    @property
    def done(self) -> bool:
        return self._promise.done

    @property
    def failed(self) -> bool:
        """Whether a row is known not to have been written."""
        return bool(self._failures)

    async def wait(self, place: int | None, timeout: float | None = None) -> None:
        """Wait for the row whose values begin at `place` (None: for all rows)."""
        if timeout is not None:
            # One that makes no sense is refused, whether there is something to wait for or not.
            Deadline.of(timeout, 0.0)
        if not self._promise.done:
            self._send_now()
            if timeout is None:
                await self._promise.wait()
            else:
                await within(self._promise.wait, timeout, "The acknowledgement of a write, which may still arrive,")
        position = None if place is None else place // self._width
        found: FlussError | None = None
        for failure in self._failures:
            if failure.concerns(position):
                # `flush()` need not raise what is raised here.
                self._unreported.reported(failure.error, failure.report(position))
                found = found or failure.error
        if found is not None:
            # Several may wait for one chunk: each gets an error of its own, with its own traceback.
            raise found.replace()


class WriteResultHandle:
    """The outcome of one write. Ignore it and `flush()` later, or `await handle.wait()`.

    Example:
        handle = writer.append({"id": 1, "name": "Alice"})
        await handle.wait()  # acknowledged by the server, or raises what went wrong with this row
    """

    # Without an `__init__`, making one costs half as much.
    __slots__ = ("place", "ticket")

    ticket: Ticket
    place: int | None

    async def wait(self, *, timeout: float | None = None) -> None:
        """Wait until the server acknowledged this write. Raises `FlussError` when it was not written.

        After `timeout` seconds `DeadlineExceededError` is raised: the write may still happen. By default the delivery
        timeout of the writer is the bound.

        Example:
            await writer.append({"id": 1, "name": "Alice"}).wait(timeout=5)
        """
        await self.ticket.wait(self.place, timeout)

    def done(self) -> bool:
        """Whether the outcome is known already."""
        return self.ticket.done

    def __await__(self) -> Generator[Any, None, None]:
        return self.wait().__await__()

    def __repr__(self) -> str:
        return f"<WriteResultHandle {'done' if self.done() else 'pending'}>"


def make_handle(ticket: Ticket, place: int | None) -> WriteResultHandle:
    """A handle for the row whose values begin at `place` of its chunk, or (None) for all rows of the ticket."""
    handle = WriteResultHandle()
    handle.ticket = ticket
    handle.place = place
    return handle
