# SPDX-License-Identifier: Apache-2.0
"""Coroutines that begin at once behave like tasks in all else."""

from __future__ import annotations

import asyncio
import gc

import pytest
from tests.waiting import cancel_and_wait

from fluss.net.eager import retrieve_exception, start_eagerly


async def test_what_never_waits_is_done_at_once():
    seen = []

    async def work():
        seen.append(1)

    assert start_eagerly(asyncio.get_running_loop(), work()) is None
    assert seen == [1]


async def test_the_rest_goes_on_as_a_task_with_results_and_errors_of_what_it_waits_for():
    loop = asyncio.get_running_loop()
    gate, seen = loop.create_future(), []

    async def work():
        seen.append("begun")
        seen.append(await gate)
        await asyncio.sleep(0)
        try:
            await asyncio.wait_for(loop.create_future(), 0.001)
        except asyncio.TimeoutError:
            seen.append("late")

    task = start_eagerly(loop, work())
    assert seen == ["begun"]
    gate.set_result("passed")
    await task
    assert seen == ["begun", "passed", "late"]


async def test_errors_are_raised_where_they_happen():
    loop = asyncio.get_running_loop()

    async def at_once():
        raise KeyError("now")

    async def later():
        await asyncio.sleep(0)
        raise KeyError("later")

    with pytest.raises(KeyError, match="now"):
        start_eagerly(loop, at_once())
    with pytest.raises(KeyError, match="later"):
        await start_eagerly(loop, later())


@pytest.mark.parametrize("turns", [0, 1, 2])
async def test_cancelling_reaches_the_coroutine_whenever_it_comes(turns):
    loop, ended = asyncio.get_running_loop(), []

    async def work():
        try:
            await loop.create_future()
        finally:
            ended.append(True)

    task = start_eagerly(loop, work())
    for _ in range(turns):
        await asyncio.sleep(0)
    await cancel_and_wait(task)
    await asyncio.sleep(0)
    assert ended == [True]


async def test_a_task_and_its_coroutine_are_collected_in_any_order():
    """With a loop that is dropped, the collector may close the coroutine first."""
    loop = asyncio.get_running_loop()

    async def work():
        await loop.create_future()

    coroutine = work()
    task = start_eagerly(loop, coroutine)
    await asyncio.sleep(0)
    coroutine.close()
    task.get_coro().close()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_the_exception_of_a_future_without_a_waiter_is_retrieved(caplog):
    loop = asyncio.get_running_loop()
    for end in ("error", "result", "cancelled"):
        future = loop.create_future()
        future.add_done_callback(retrieve_exception)
        if end == "error":
            future.set_exception(ValueError("not retrieved"))
        elif end == "result":
            future.set_result(1)
        else:
            future.cancel()
        await asyncio.sleep(0)
        del future
        gc.collect()
    assert "never retrieved" not in caplog.text
