# SPDX-License-Identifier: Apache-2.0
"""Many callers, one piece of work: a caller who asks for what is already in flight waits for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from fluss.errors import DeadlineExceededError
from fluss.net.deadline import Deadline

T = TypeVar("T")


class _Flight:
    """One piece of work. Callers wait on `outcome`, which closing can end before the work itself ends."""

    __slots__ = ("outcome", "task", "waiters")

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task
        self.outcome: asyncio.Future[Any] = task.get_loop().create_future()
        self.waiters = 0
        task.add_done_callback(self._completed)

    def _completed(self, task: asyncio.Task[Any]) -> None:
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
            # Every waiter may be gone; the loop would then complain about an exception that was never retrieved.
            self.outcome.exception()


class SingleFlight:
    """Runs at most one coroutine per key at a time; all callers that ask meanwhile share the result.

    A waiter that is cancelled leaves the others alone; when the last one is gone the work is cancelled too, so a
    cancelled call never leaves a task behind.

    The work runs under the deadline of the caller that started it. When that one is met first, a caller that has more
    time starts the work again under its own.
    """

    def __init__(self) -> None:
        self._flights: dict[Hashable, _Flight] = {}

    async def run(
        self, key: Hashable, start: Callable[[], Coroutine[Any, Any, T]], deadline: Deadline | None = None
    ) -> T:
        while True:
            flight = self._flights.get(key)
            joined = flight is not None
            if flight is None:
                flight = _Flight(asyncio.get_running_loop().create_task(start()))
                self._flights[key] = flight
            try:
                result: T = await self._wait(key, flight)
                return result
            except DeadlineExceededError:
                if not joined or (deadline is not None and deadline.expired):
                    raise

    async def _wait(self, key: Hashable, flight: _Flight) -> Any:
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.outcome)
        finally:
            flight.waiters -= 1
            if flight.task.done() or flight.waiters == 0:
                if self._flights.get(key) is flight:
                    del self._flights[key]
                if not flight.task.done():
                    flight.task.cancel()

    def cancel_all(self, error: BaseException) -> None:
        """End all work in flight; its waiters get `error`."""
        for flight in list(self._flights.values()):
            flight.fail(error)
            flight.task.cancel()
        self._flights.clear()

    def __len__(self) -> int:
        return len(self._flights)
