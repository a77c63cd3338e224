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
from fluss.errors import FlussError

Positions = np.ndarray[Any, Any]


class Ticket:
    """The outcome of one chunk. Settled on the event loop, awaited from any loop or thread."""

    __slots__ = ("_failures", "_lock", "_promise", "_remaining", "_send_now", "_width")

    def __init__(self, send_now: Callable[[], None], width: int = 1) -> None:
        self._send_now = send_now
        self._width = width
        self._lock = threading.Lock()
        self._remaining: int | None = None
        self._failures: list[tuple[Positions | None, FlussError]] = []
        self._promise: Promise[None] = Promise()

    def close(self, rows: int) -> None:
        """No more rows join this ticket; `rows` of them are to be settled."""
        with self._lock:
            self._remaining = rows + (self._remaining or 0)
            done = self._remaining == 0
        if done:
            self._promise.resolve(None)

    def settle(self, rows: int, positions: Positions | None = None, error: FlussError | None = None) -> None:
        """`rows` rows were acknowledged, or failed with `error` (`positions` None: all that the ticket holds)."""
        with self._lock:
            if error is not None:
                self._failures.append((positions, error))
            # A bad row can be settled before the ticket is closed: the count then waits below zero.
            self._remaining = (self._remaining or 0) - rows
            done = self._remaining == 0
        if done:
            self._promise.resolve(None)

    @property
    def done(self) -> bool:
        return self._promise.done

    async def wait(self, place: int | None, timeout: float | None = None) -> None:
        """Wait for the row whose values begin at `place` (None: for all rows)."""
        if not self._promise.done:
            self._send_now()
            if timeout is None:
                await self._promise.wait()
            else:
                await within(self._promise.wait(), timeout, "The acknowledgement of a write, which may still arrive,")
        position = None if place is None else place // self._width
        for positions, error in self._failures:
            if position is None or positions is None or position in positions:
                # Several may wait for one chunk: each gets an error of its own, with its own traceback.
                raise type(error)(error.message, error.error_code)


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
