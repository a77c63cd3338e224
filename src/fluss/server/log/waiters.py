# SPDX-License-Identifier: Apache-2.0
"""Waiters: callers that wait until what they wrote is durable."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from fluss.errors import RequestTimeOutError
from fluss.metadata import TableBucket

logger = logging.getLogger("fluss.server.log")

WhenCommitted = Callable[[Exception | None], None]
"""Called with None, or with the reason why it is not committed."""


class _Waiter(NamedTuple):
    offset: int
    done: WhenCommitted
    timeout_ms: int
    deadline: float


class CommitWaiters:
    """Calls the waiters back, in the order in which they came, that wait for a log to be committed up to an offset.

    Calls and not futures: between a flush and its acknowledgements there is then no iteration of the event loop, which
    would stand behind the requests that came in meanwhile.
    """

    def __init__(self, bucket: TableBucket) -> None:
        self._bucket = bucket
        self._waiters: deque[_Waiter] = deque()
        self._expiry: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiters)

    def add(self, offset: int, done: WhenCommitted, timeout_ms: int | None) -> None:
        """Wait for an offset. A repeated write, which waits for an earlier one, is served after those before it."""
        if timeout_ms is None:
            self._waiters.append(_Waiter(offset, done, 0, math.inf))
            return
        deadline = asyncio.get_running_loop().time() + max(timeout_ms, 0) / 1000
        self._waiters.append(_Waiter(offset, done, timeout_ms, deadline))
        if self._expiry is None or deadline < self._expiry.when():
            self._expire_at(deadline)

    def serve(self, offset: int) -> None:
        """The log is committed up to an offset."""
        while self._waiters and self._waiters[0].offset <= offset:
            _call(self._waiters.popleft().done, None)

    def fail(self, error: Exception) -> None:
        """Nothing that is waited for will come."""
        while self._waiters:
            _call(self._waiters.popleft().done, error)

    def close(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire_at(self, deadline: float) -> None:
        # One timer for all: nearly always they are served long before, and it finds none.
        self.close()
        self._expiry = asyncio.get_running_loop().call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._expiry = None
        now = asyncio.get_running_loop().time()
        late = [waiter for waiter in self._waiters if waiter.deadline <= now]
        self._waiters = deque(waiter for waiter in self._waiters if waiter.deadline > now)
        deadline = min((waiter.deadline for waiter in self._waiters), default=math.inf)
        if deadline < math.inf:
            self._expire_at(deadline)
        for waiter in late:
            _call(
                waiter.done,
                RequestTimeOutError(
                    f"the write to {self._bucket} was not committed within {waiter.timeout_ms} ms; it may still be"
                ),
            )


def _call(done: WhenCommitted, error: Exception | None) -> None:
    try:
        done(error)
    except Exception:
        # One who cannot take the news must not keep it from the others.
        logger.exception("acknowledging a write failed")
