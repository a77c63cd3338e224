# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import pytest
from tests.waiting import cancel_and_wait

from fluss.client.promise import Inbox, Promise


async def test_first_outcome_counts():
    promise = Promise()
    promise.fail_quietly(ValueError("first"))
    promise.resolve(1)
    with pytest.raises(ValueError, match="first"):
        await promise.wait()
    with pytest.raises(ValueError, match="first"):
        promise.get()


async def test_cancelled_waiter_is_forgotten():
    promise = Promise()

    task = asyncio.ensure_future(promise.wait())
    await asyncio.sleep(0.01)
    await cancel_and_wait(task)
    assert not promise._waiters
    promise.resolve(None)


def test_a_waiter_whose_loop_is_gone_is_skipped():
    promise = Promise()
    loop = asyncio.new_event_loop()
    promise._waiters.append(loop.create_future())
    loop.close()
    promise.resolve(1)
    assert promise.get() == 1


async def test_inbox_gathers_what_comes_in_one_turn():
    deliveries = []
    inbox = Inbox(asyncio.get_running_loop(), deliveries.append)
    for number in range(3):
        inbox.put(number)
    await asyncio.sleep(0)
    assert deliveries == [[0, 1, 2]]
    assert len(inbox) == 0


def test_inbox_of_a_closed_loop_refuses():
    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError):
        Inbox(loop, lambda items: None).put(1)
