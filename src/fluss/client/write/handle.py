# SPDX-License-Identifier: Apache-2.0
"""The outcome of writes.

Rows are collected in chunks, and a chunk may end up in several batches (one per bucket). One `Ticket` follows a chunk;
the handle that `append()` gives back for each row is only the ticket and the row's place, because it is made a million
times a second.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from fluss.client.promise import Promise
from fluss.client.retry import within
from fluss.client.write.failures import Failures
from fluss.errors import FlussError
from fluss.net.deadline import Deadline

Positions = np.ndarray[Any, Any]


class TicketFailure:
    """Rows of one ticket that failed for one reason."""

    __slots__ = ("_all_reported", "_positions", "_reported", "_rows", "error")

    def __init__(self, rows: int, positions: Positions | None, error: FlussError) -> None:
        self._rows = rows
        self._positions = positions
        self.error = error
        self._reported: set[int] = set()
        self._all_reported = False

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
