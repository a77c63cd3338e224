# SPDX-License-Identifier: Apache-2.0
"""The one deadline of a call, handed to everything that the call waits for, and waiting with a timeout."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

from fluss.errors import FlussError, InvalidArgumentError

T = TypeVar("T")

LONGEST_S = 365 * 24 * 3600.0
"""No wait is longer: what asks for more asks for a wait without an end."""


class Deadline:
    """A point in monotonic time at which a call ends, whatever it waits for then.

    A call makes one deadline and passes it down: connecting, authenticating, requests and retries all take what is left
    of it. It also remembers what was already reported for the call, so that nested retries neither log the same cause
    twice nor describe the same failure twice.
    """

    __slots__ = ("_at", "final_error", "retry_logged", "total_ms")

    def __init__(self, total_ms: float) -> None:
        self.total_ms = total_ms
        self._at = time.monotonic() + total_ms / 1000.0
        self.retry_logged = False
        """Whether a warning about a retry of the call was logged."""
        self.final_error: FlussError | None = None
        """The error that already says how the time was used up: an outer retry adds its name and nothing else."""

    @classmethod
    def of(cls, timeout: float | Deadline | None, default_ms: float) -> Deadline:
        """Make the deadline of a call from its `timeout` in seconds; None stands for the default.

        The deadline of an outer call is returned as it is.
        """
        if isinstance(timeout, Deadline):
            return timeout
        if timeout is None:
            return cls(default_ms)
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
            raise InvalidArgumentError(f"timeout must be a positive number of seconds or None, got {timeout!r}")
        return cls(min(timeout, LONGEST_S) * 1000.0)

    @property
    def remaining_ms(self) -> float:
        return max(0.0, (self._at - time.monotonic()) * 1000.0)

    @property
    def left_s(self) -> float:
        """What is left, as a timeout in seconds; never nothing, which is no timeout."""
        return max(1.0, self.remaining_ms) / 1000

    @property
    def elapsed_ms(self) -> float:
        return self.total_ms - (self._at - time.monotonic()) * 1000.0

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._at

    def limit_ms(self, wanted_ms: float) -> float:
        """Return `wanted_ms`, or what is left if that is less; at least one millisecond."""
        return max(1.0, min(wanted_ms, self.remaining_ms))

    def share(self, parts: int) -> Deadline:
        """Make the deadline of the next of `parts` steps, so that one slow step leaves time for the others."""
        return Deadline(self.remaining_ms / max(1, parts))

    def __repr__(self) -> str:
        return f"<Deadline of {self.total_ms:.0f} ms, {self.remaining_ms:.0f} ms left>"


if sys.version_info >= (3, 12):
    wait_for = asyncio.wait_for
else:

    async def wait_for(work: Awaitable[T], timeout: float | None) -> T:
        """Await work for at most `timeout` seconds, then cancel it and raise `asyncio.TimeoutError`.

        When the caller is cancelled the work is cancelled too, and its result is dropped if it has one already. Before
        Python 3.12 `asyncio.wait_for` returns that result, and the cancellation is gone: a task that waits again and
        again, such as a loop over a scanner, then never ends, and a task group or `asyncio.timeout` around it hangs.
        """
        if timeout is None:
            return await work
        # Not `asyncio.timeout`: a coroutine that was started eagerly runs its first part outside of its own task.
        task = asyncio.ensure_future(work)
        loop = asyncio.get_running_loop()
        waiter = loop.create_future()
        timer = loop.call_later(timeout, _release, waiter)
        task.add_done_callback(partial(_release, waiter))
        try:
            await waiter
            timed_out = not task.done()
            if timed_out:
                task.cancel()
                await asyncio.wait((task,))
        except asyncio.CancelledError:
            from fluss.net.eager import retrieve_exception  # here: the first request needs no such module

            task.add_done_callback(retrieve_exception)
            if not task.done():
                task.cancel()
                await asyncio.wait((task,))
            raise
        finally:
            timer.cancel()
        try:
            return task.result()
        except asyncio.CancelledError:  # also the exception of a `gather` that was cancelled
            if timed_out:
                raise asyncio.TimeoutError from None
            raise


def _release(waiter: asyncio.Future[None], _: object = None) -> None:
    if not waiter.done():
        waiter.set_result(None)
