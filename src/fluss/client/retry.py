# SPDX-License-Identifier: Apache-2.0
"""The one retry policy of the client: which errors, how long between, and until when.

Whether an error may be tried again stands on its class (`is_retriable`, `is_stale_metadata`); this module only waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from fluss.errors import DeadlineExceededError, FlussError

T = TypeVar("T")

logger = logging.getLogger("fluss.client")

DEFAULT_DEADLINE_MS = 60_000


@dataclass(frozen=True)
class Backoff:
    """Exponential pauses with jitter, so that many clients do not come back in step."""

    first_ms: float = 50.0
    max_ms: float = 2_000.0
    factor: float = 2.0
    jitter: float = 0.2

    def delay_ms(self, attempt: int) -> float:
        """Pause before try number `attempt + 1` (the first retry has attempt 0)."""
        # The exponent is capped: 2.0 ** 2000 would overflow on a retry that goes on for days.
        plain = min(self.max_ms, self.first_ms * self.factor ** min(attempt, 32))
        return plain * (1.0 + self.jitter * (2.0 * random.random() - 1.0))


DEFAULT_BACKOFF = Backoff()


class Deadline:
    """A point in monotonic time after which nobody waits any longer."""

    __slots__ = ("_at", "total_ms")

    def __init__(self, total_ms: float) -> None:
        self.total_ms = total_ms
        self._at = time.monotonic() + total_ms / 1000.0

    @property
    def remaining_ms(self) -> float:
        return max(0.0, (self._at - time.monotonic()) * 1000.0)

    @property
    def expired(self) -> bool:
        return time.monotonic() >= self._at

    def cap_ms(self, wanted_ms: float) -> float:
        """`wanted_ms`, or what is left if that is less."""
        return min(wanted_ms, self.remaining_ms)


async def retry(
    op: Callable[[], Awaitable[T]],
    *,
    deadline: Deadline,
    what: str,
    backoff: Backoff = DEFAULT_BACKOFF,
    before_retry: Callable[[FlussError], None] | None = None,
    may_retry: Callable[[FlussError], bool] | None = None,
) -> T:
    """Call `op` until it succeeds, fails for good, or the deadline is met (then its last error is raised).

    `before_retry` is where stale metadata is thrown away; `may_retry` can refuse errors that would be safe for a read
    but not for a change.
    """
    attempt = 0
    last: FlussError | None = None
    while True:
        try:
            # Even a single try must not outlast the deadline: connecting to a silent host can take minutes.
            return await asyncio.wait_for(op(), deadline.remaining_ms / 1000.0)
        except FlussError as error:
            if not (error.is_retriable or error.is_stale_metadata) or (may_retry is not None and not may_retry(error)):
                raise
            delay_ms = backoff.delay_ms(attempt)
            if deadline.remaining_ms <= delay_ms:
                logger.warning("%s: giving up after %d tries in %.0f ms", what, attempt + 1, deadline.total_ms)
                raise
            logger.debug("%s: %s; next try in %.0f ms", what, error, delay_ms)
            if before_retry is not None:
                before_retry(error)
            attempt += 1
            last = error
            await asyncio.sleep(delay_ms / 1000.0)
        except asyncio.TimeoutError:
            if not deadline.expired:
                raise
            if last is not None:
                raise last from None  # it says why there was a next try, which had no time left
            raise DeadlineExceededError(f"{what} did not finish within {deadline.total_ms:.0f} ms") from None
