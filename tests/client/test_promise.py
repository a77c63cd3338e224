# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import threading

import pytest

from fluss.client.promise import Inbox, Promise, wake


async def test_awaited_on_the_same_loop():
    promise = Promise()
    asyncio.get_running_loop().call_later(0.01, promise.resolve, 7)
    assert await asyncio.gather(promise.wait(), promise.wait()) == [7, 7]
    assert await promise.wait() == 7


def test_awaited_on_other_loops():
    promise = Promise()
    results = []

    def in_a_loop():
        results.append(asyncio.run(promise.wait()))

    threads = [threading.Thread(target=target) for target in [in_a_loop] * 16]
    for thread in threads:
        thread.start()
    promise.resolve("x")
    for thread in threads:
        thread.join(10)
    assert results == ["x"] * 16


async def test_first_outcome_counts():
    promise = Promise()
    promise.fail(ValueError("first"))
    promise.resolve(1)
    with pytest.raises(ValueError, match="first"):
        await promise.wait()
    with pytest.raises(ValueError, match="first"):
        promise.get()


async def test_cancelled_waiter_is_forgotten():
    promise = Promise()

    task = asyncio.ensure_future(promise.wait())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not promise._waiters
    promise.resolve(None)


def test_a_waiter_whose_loop_is_gone_is_skipped():
    promise = Promise()
    loop = asyncio.new_event_loop()
    promise._waiters.append(loop.create_future())
    loop.close()
    promise.resolve(1)
    assert promise.get() == 1


async def test_many_promises_wake_with_one_call_per_loop():
    promises = [Promise() for _ in range(50)]
    waits = [asyncio.ensure_future(promise.wait()) for promise in promises]
    await asyncio.sleep(0)
    for number, promise in enumerate(promises):
        promise.resolve_quietly(number)
    wake(promises)
    assert await asyncio.gather(*waits) == list(range(50))


async def test_inbox_takes_from_threads_without_loss():
    received = []
    done = asyncio.Event()

    def deliver(items):
        received.extend(items)
        if len(received) == 4000:
            done.set()

    inbox = Inbox(asyncio.get_running_loop(), deliver)
    threads = [threading.Thread(target=lambda n=n: [inbox.put((n, i)) for i in range(1000)]) for n in range(4)]
    for thread in threads:
        thread.start()
    await asyncio.wait_for(done.wait(), 10)
    for thread in threads:
        thread.join()
    for n in range(4):
        assert [i for m, i in received if m == n] == list(range(1000))


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
