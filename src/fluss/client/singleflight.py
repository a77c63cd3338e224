# SPDX-License-Identifier: Apache-2.0
"""Many callers, one piece of work: whoever asks for what is already on its way waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class _Flight:
    __slots__ = ("cancel_error", "task", "waiters")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.waiters = 0
        self.cancel_error: BaseException | None = None


def _mark_retrieved(task: asyncio.Task[Any]) -> None:
    # Every waiter may have been cancelled; the loop would then complain about an exception nobody looked at.
    if not task.cancelled():
        task.exception()


class SingleFlight:
    """Runs at most one coroutine per key at a time; the result goes to all who asked meanwhile.

    A waiter that is cancelled leaves the others alone; when the last one is gone the work is cancelled too, so a
    cancelled call never leaves a task behind.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}

    async def run(self, key: Hashable, start: Callable[[], Coroutine[Any, Any, T]]) -> T:
        flight = self._flights.get(key)
        if flight is None:
            flight = _Flight(asyncio.get_running_loop().create_task(start()))
            self._flights[key] = flight
            flight.task.add_done_callback(_mark_retrieved)
        flight.waiters += 1
        try:
            result: T = await asyncio.shield(flight.task)
            return result
        except asyncio.CancelledError:
            if flight.cancel_error is not None and flight.task.cancelled():
                raise flight.cancel_error from None
            raise
        finally:
            flight.waiters -= 1
            if flight.waiters == 0:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                if not flight.task.done():
                    flight.task.cancel()

    def cancel_all(self, error: BaseException) -> None:
        """End all work in flight; those who wait for it get `error`."""
        for flight in list(self._flights.values()):
            flight.cancel_error = error
            flight.task.cancel()
        self._flights.clear()

    def __len__(self) -> int:
        return len(self._flights)
