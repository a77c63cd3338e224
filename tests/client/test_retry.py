# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import pytest
from tests.waiting import at_most

from fluss.client.retry import Backoff, retry
from fluss.errors import DeadlineExceededError, LeaderNotAvailableError, TableNotExistError
from fluss.net.deadline import Deadline

QUICK = Backoff(first_ms=1, max_ms=5)


def failing(times, error):
    calls = []

    async def op():
        calls.append(1)
        if len(calls) <= times:
            raise error
        return len(calls)

    return op


async def test_retriable_errors_are_tried_again():
    seen = []
    op = failing(3, LeaderNotAvailableError("not yet"))
    assert await retry(op, deadline=Deadline(5000), what="op", backoff=QUICK, before_retry=seen.append) == 4
    assert len(seen) == 3


async def test_final_errors_are_raised_at_once():
    with pytest.raises(TableNotExistError):
        await retry(failing(1, TableNotExistError("t")), deadline=Deadline(5000), what="op", backoff=QUICK)


async def test_may_retry_can_refuse():
    op = failing(1, LeaderNotAvailableError("not yet"))
    with pytest.raises(LeaderNotAvailableError):
        await retry(op, deadline=Deadline(5000), what="op", backoff=QUICK, may_retry=lambda error: False)


async def test_the_last_error_is_raised_when_time_is_up():
    with at_most(20), pytest.raises(LeaderNotAvailableError):
        await retry(failing(10**9, LeaderNotAvailableError("no")), deadline=Deadline(100), what="op", backoff=QUICK)


async def test_a_hanging_try_ends_at_the_deadline():
    async def op():
        await asyncio.sleep(60)

    with at_most(20), pytest.raises(DeadlineExceededError, match="WHAT did not finish within 50 ms"):
        await retry(op, deadline=Deadline(50), what="WHAT")


async def test_a_last_attempt_without_time_does_not_hide_why_there_was_another():
    deadline = Deadline(100)
    refused = failing(1, LeaderNotAvailableError("not yet"))

    async def request():
        await asyncio.sleep(deadline.remaining_ms / 1000)
        raise DeadlineExceededError("no answer in time")

    async def op():
        await refused()
        await retry(request, deadline=deadline, what="a step")

    with pytest.raises(LeaderNotAvailableError, match="the call failed after 2 attempts in 100 ms: not yet"):
        await retry(op, deadline=deadline, what="the call", backoff=QUICK)


def test_pauses_grow_and_stay_bounded():
    backoff = Backoff(first_ms=10, max_ms=100, jitter=0.2)
    for attempt in range(5000):
        plain = min(100, 10 * 2 ** min(attempt, 32))
        assert 0.8 * plain <= backoff.delay_ms(attempt) <= 1.2 * plain
