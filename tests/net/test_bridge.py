# SPDX-License-Identifier: Apache-2.0
"""The bridge from waiting code to an event loop: the same three verbs on every kind of loop."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncGenerator, Iterator

import pytest

from fluss.errors import ConnectionClosedError
from fluss.net.background import Bridge, CallerLoop, LoopThread, RunningLoop


@pytest.fixture(params=["thread", "here", "running"])
def bridge(request: pytest.FixtureRequest) -> Iterator[Bridge]:
    if request.param == "thread":
        with LoopThread() as thread:
            yield thread
    elif request.param == "here":
        loop = CallerLoop()
        yield loop
        loop.close()
    else:
        with LoopThread() as thread:
            yield RunningLoop(thread.loop)


class Numbers:
    """Counts, and remembers whether it was closed."""

    def __init__(self, count: int, fail_at: int = -1) -> None:
        self.count, self.fail_at = count, fail_at
        self.closed = threading.Event()

    async def generate(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.count):
                await asyncio.sleep(0)
                if number == self.fail_at:
                    raise ValueError("number failed")
                yield number
        finally:
            self.closed.set()


def test_run_and_call_give_results_and_errors(bridge: Bridge) -> None:
    async def double(number: int) -> int:
        await asyncio.sleep(0)
        return 2 * number

    assert bridge.run(double(4)) == 8
    assert bridge.call(max, 3, 5) == 5
    assert bridge.call(asyncio.get_running_loop) is not None
    with pytest.raises(ZeroDivisionError):
        bridge.call(lambda: 1 / 0)


def test_iterate_gives_all_items(bridge: Bridge) -> None:
    numbers = Numbers(5)
    assert list(bridge.iterate(numbers.generate())) == [0, 1, 2, 3, 4]
    assert numbers.closed.wait(5)


def test_an_error_of_the_generator_is_raised_where_the_item_is_asked_for(bridge: Bridge) -> None:
    numbers = Numbers(5, fail_at=2)
    iterator = bridge.iterate(numbers.generate())
    assert [next(iterator), next(iterator)] == [0, 1]
    with pytest.raises(ValueError, match="number failed"):
        next(iterator)
    assert numbers.closed.wait(5)


def test_leaving_the_loop_closes_the_generator(bridge: Bridge) -> None:
    numbers = Numbers(5)
    iterator = bridge.iterate(numbers.generate())
    assert next(iterator) == 0
    iterator.close()
    assert numbers.closed.wait(5)


def test_none_is_an_item() -> None:
    async def nones() -> AsyncGenerator[None, None]:
        yield None
        yield None

    with LoopThread() as thread:
        assert list(thread.iterate(nones())) == [None, None]


def test_an_iterator_that_is_dropped_on_the_loop_does_not_wait_for_itself() -> None:
    with LoopThread() as thread:
        for bridge in (thread, RunningLoop(thread.loop)):
            numbers = Numbers(5)
            held = [bridge.iterate(numbers.generate())]
            assert next(held[0]) == 0
            thread.call(held.clear)
            gc.collect()
            assert numbers.closed.wait(5)


def test_a_closed_bridge_leaves_the_generator_alone() -> None:
    thread = LoopThread()
    iterator = thread.iterate(Numbers(5).generate())
    assert next(iterator) == 0
    thread.close()
    iterator.close()


def test_a_loop_that_ends_leaves_no_caller_waiting() -> None:
    loop = asyncio.new_event_loop()
    failed: list[BaseException] = []

    def call() -> None:
        try:
            RunningLoop(loop).call(int)
        except ConnectionClosedError as error:
            failed.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    time.sleep(0.05)
    loop.close()  # before it came to the call
    caller.join(5)
    assert len(failed) == 1
