# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.waiting import cancel_and_wait

import fluss
from fluss.net.deadline import wait_for


async def test_a_cancellation_in_the_turn_of_the_result_is_not_swallowed() -> None:
    done = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(wait_for(done, 10))
    await asyncio.sleep(0)
    done.set_result("there")
    await cancel_and_wait(waiting)


async def test_results_errors_and_timeouts() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    assert await wait_for(asyncio.sleep(0, "there"), 10) == "there"
    assert await wait_for(asyncio.sleep(0, "there"), None) == "there"
    with pytest.raises(ValueError, match="broken"):
        await wait_for(fail(), 10)
    for seconds in (0.01, 0, -1):
        forever = asyncio.ensure_future(asyncio.sleep(60))
        with pytest.raises(asyncio.TimeoutError):
            await wait_for(forever, seconds)
        assert forever.cancelled()
    with pytest.raises(asyncio.TimeoutError):
        await wait_for(asyncio.gather(asyncio.sleep(60), asyncio.sleep(60)), 0.01)


async def test_cancelling_reaches_the_work_and_waits_for_its_end(no_complaints: None) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)
            ended.append("work")
            raise ValueError("while it ended")

    waiting = asyncio.ensure_future(wait_for(work(), 60))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises((asyncio.CancelledError, ValueError)):
        await waiting
    assert ended == ["work"]


def test_no_other_module_uses_the_one_of_asyncio() -> None:
    package = Path(fluss.__file__).parent
    users = [path.name for path in package.rglob("*.py") if re.search(r"asyncio\.wait_for\b(?!`)", path.read_text())]
    assert users == ["deadline.py"]
