# SPDX-License-Identifier: Apache-2.0
"""Work on an event loop: coroutines that start immediately, and futures whose waiter may be gone."""

from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any


def start_eagerly(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
    """Run a coroutine at once up to where it first waits; None if it never waits, else a task for the rest.

    What has nothing to wait for, such as the answer to a lookup, would spend half of its time waiting to be started. An
    exception of the part that runs at once is raised here.
    """
    if sys.version_info >= (3, 12):
        task = asyncio.Task(work, loop=loop, eager_start=True)
        if not task.done():
            return task
        task.result()
        return None
    try:
        waits_for = work.send(None)
    except StopIteration:
        return None
    rest = loop.create_task(_go_on(work, waits_for))
    # Cancelled before its first iteration, the task ends without having touched the coroutine.
    rest.add_done_callback(lambda _: work.close())
    return rest


@types.coroutine
def _go_on(work: Coroutine[Any, Any, None], waits_for: Any) -> Generator[Any, Any, None]:
    while True:
        try:
            answer = yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:
            resume: Callable[[Any], Any] = work.throw
            answer = error
        else:
            resume = work.send
        try:
            waits_for = resume(answer)
        except StopIteration:
            return


def retrieve_exception(future: asyncio.Future[Any]) -> None:
    """Retrieve the exception of a future whose waiter may be gone: asyncio would log it as never retrieved."""
    if not future.cancelled():
        future.exception()


async def cancel(task: asyncio.Future[Any] | None) -> None:
    """Cancel a task, and wait until it has ended."""
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


def complete(future: asyncio.Future[Any], outcome: object = None) -> None:
    """Complete a future with a result or an exception, if its waiter still waits."""
    if future.done():
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
        retrieve_exception(future)
    else:
        future.set_result(outcome)
