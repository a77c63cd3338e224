# SPDX-License-Identifier: Apache-2.0
"""Waiting with a timeout that never swallows a cancellation.

Before Python 3.12 `asyncio.wait_for` returns the result of work that ends in the turn in which its caller is cancelled,
and the cancellation is gone: a task that waits again and again, such as a loop over a scanner, then never ends, and a
task group or `asyncio.timeout` around it hangs.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable
from functools import partial
from typing import TypeVar

from fluss.net.eager import retrieve_exception

T = TypeVar("T")

if sys.version_info >= (3, 12):
    wait_for = asyncio.wait_for
else:

    async def wait_for(work: Awaitable[T], timeout: float | None) -> T:
        """Await work for at most `timeout` seconds, then cancel it and raise `asyncio.TimeoutError`.

        When the caller is cancelled the work is cancelled too, and its result is dropped if it has one already.
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
