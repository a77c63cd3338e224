# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import pytest
from tests.waiting import cancel_and_wait

from fluss.client.singleflight import SingleFlight
from fluss.errors import ConnectionClosedError


async def test_one_cancelled_waiter_leaves_the_others():
    flights = SingleFlight()
    gate = asyncio.Event()

    async def work():
        await gate.wait()
        return "done"

    first = asyncio.ensure_future(flights.run("k", work))
    second = asyncio.ensure_future(flights.run("k", work))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await second == "done"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_the_last_cancelled_waiter_ends_the_work():
    ended = []

    flights = SingleFlight()

    async def work():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    waiter = asyncio.ensure_future(flights.run("k", work))
    await asyncio.sleep(0.01)
    await cancel_and_wait(waiter)
    await asyncio.sleep(0.01)
    assert ended == [True]


async def test_errors_reach_everyone():
    flights = SingleFlight()

    async def work():
        await asyncio.sleep(0)
        raise ValueError("no")

    results = await asyncio.gather(*(flights.run("k", work) for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, ValueError) for result in results)


async def test_cancel_all_tells_the_waiters_why():
    flights = SingleFlight()

    async def work():
        await asyncio.sleep(60)

    waiter = asyncio.ensure_future(flights.run("k", work))
    await asyncio.sleep(0.01)
    flights.cancel_all(ConnectionClosedError("closed"))
    with pytest.raises(ConnectionClosedError):
        await waiter
