# SPDX-License-Identifier: Apache-2.0
"""Many callers, one piece of work: whoever asks for what is already on its way waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class _Flight:
    """One piece of work. Those who wait do so on `outcome`, which closing can end before the work itself ends."""

    __slots__ = ("outcome", "task", "waiters")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.outcome: asyncio.Future[Any] = task.get_loop().create_future()
        self.waiters = 0
        task.add_done_callback(self._settle)

    def _settle(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        if self.outcome.done():
            return
        if task.cancelled():
            self.outcome.cancel()
        elif error is not None:
            self.fail(error)
        else:
            self.outcome.set_result(task.result())

    def fail(self, error: BaseException) -> None:
        if not self.outcome.done():
            self.outcome.set_exception(error)
            # Every waiter may be gone; the loop would then complain about an exception nobody looked at.
            self.outcome.exception()


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
        flight.waiters += 1
        try:
            result: T = await asyncio.shield(flight.outcome)
            return result
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
            flight.fail(error)
            flight.task.cancel()
        self._flights.clear()

    def __len__(self) -> int:
        return len(self._flights)
