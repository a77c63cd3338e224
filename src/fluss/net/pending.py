# SPDX-License-Identifier: Apache-2.0
"""The requests of one connection that wait for their answers, and the dispatcher of the answers."""

from __future__ import annotations

from typing import Protocol

from fluss.errors import FlussError, FormatError, error_for_code
from fluss.protocol.frames import ResponseKind, parse_error, parse_response

_REQUEST_ID_MAX = 0x7FFF_FFFF


class Waiter(Protocol):
    """What takes the outcome of a request, on the loop of its connection: a future, or something cheaper."""

    def done(self) -> bool:
        """Whether the outcome is no longer wanted."""
        ...

    def set_result(self, answer: memoryview, /) -> None: ...

    def set_exception(self, error: FlussError, /) -> None: ...


class Timer(Protocol):
    """What ends a request that takes too long; the timers of other loops are not derived from asyncio's."""

    def cancel(self) -> None: ...


class PendingRequests:
    """Waiters and timers by request id."""

    __slots__ = ("_entries", "_next_id")

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Waiter, Timer]] = {}
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._entries)

    def next_id(self) -> int:
        """Return an id that no pending request has."""
        entries = self._entries
        request_id = self._next_id
        while request_id in entries:
            request_id = (request_id + 1) & _REQUEST_ID_MAX
        self._next_id = (request_id + 1) & _REQUEST_ID_MAX
        return request_id

    def add(self, request_id: int, waiter: Waiter, timer: Timer) -> None:
        self._entries[request_id] = waiter, timer

    def remove(self, request_id: int) -> Waiter | None:
        """Take a request out; None if it is not there, or its outcome is no longer wanted."""
        found = self._entries.pop(request_id, None)
        if found is None:
            return None
        waiter, timer = found
        timer.cancel()
        return None if waiter.done() else waiter

    def dispatch(self, frame: memoryview) -> None:
        """Hand a response to its waiter.

        Raises the error that a server sends about the connection as a whole, and `FormatError` for a frame that is no
        response.
        """
        kind, request_id, body = parse_response(frame)
        if kind == ResponseKind.SERVER_FAILURE:
            raise error_for_code(*parse_error(body))
        waiter = self.remove(request_id)
        if waiter is None:
            return  # the caller gave up
        if kind == ResponseKind.SUCCESS:
            waiter.set_result(body)
            return
        try:
            error = error_for_code(*parse_error(body))
        except FormatError as broken:
            error = broken
        waiter.set_exception(error)

    def fail_all(self, reason: FlussError) -> None:
        """Fail all requests. Every waiter gets an error of its own: a shared one would collect all tracebacks."""
        for request_id in list(self._entries):
            waiter = self.remove(request_id)
            if waiter is not None:
                waiter.set_exception(reason.replace())
