# SPDX-License-Identifier: Apache-2.0
"""The retry policy of the client: which errors, how long between attempts, and until when.

Whether an error is retried is a property of its class (`is_retriable`, `is_stale_metadata`); this module only waits.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from fluss._text import escaped
from fluss.errors import DeadlineExceededError, FlussError, NetworkError
from fluss.net.deadline import Deadline, wait_for

T = TypeVar("T")

logger = logging.getLogger("fluss.client")

_ROUTINE_MS = 1_000.0
_GRACE_S = 0.05
"""An attempt is cancelled this long after the deadline: its own steps time out first, and say which server was slow."""

MORE_TIME = "Try again later, or allow more time with timeout="
CHECK_SERVERS = "Check that the servers are running and reachable, or allow more time with timeout="


@dataclass(frozen=True)
class Backoff:
    """Exponential pauses with jitter, so that many clients do not come back in step."""

    first_ms: float = 50.0
    max_ms: float = 2_000.0
    factor: float = 2.0
    jitter: float = 0.2

    def delay_ms(self, attempt: int) -> float:
        """Return the pause before attempt number `attempt + 1` (the first retry has attempt 0)."""
        # The exponent is capped: 2.0 ** 2000 would overflow on a retry that goes on for days.
        plain = min(self.max_ms, self.first_ms * self.factor ** min(attempt, 32))
        return plain * (1.0 + self.jitter * (2.0 * random.random() - 1.0))


DEFAULT_BACKOFF = Backoff()


def may_pass(error: FlussError) -> bool:
    """Whether an error may be gone at the next attempt."""
    return error.is_retriable or error.is_stale_metadata


async def retry(
    op: Callable[[], Awaitable[T]],
    *,
    deadline: Deadline,
    what: str | Callable[[], str],
    backoff: Backoff = DEFAULT_BACKOFF,
    before_retry: Callable[[FlussError], None] | None = None,
    may_retry: Callable[[FlussError], bool] | None = None,
) -> T:
    """Call `op` until it succeeds, fails for good, or the deadline has passed.

    `what` names the call and its object for logs and errors. `before_retry` is where stale metadata is dropped;
    `may_retry` can refuse errors that are safe to retry for a read but not for a change.

    The first retry under a deadline is logged as a warning with its cause. The error at the end has the class of the
    last cause and says what failed, why, and after how many attempts.
    """
    attempts = 0
    last: FlussError | None = None
    while True:
        attempts += 1
        try:
            return await wait_for(op(), deadline.remaining_ms / 1000.0 + _GRACE_S)
        except FlussError as error:
            ran_out = isinstance(error, DeadlineExceededError)
            if error is deadline.final_error and not (ran_out and last is not None):
                # A step of this attempt used up the time, and says how: only the name of the call is missing.
                deadline.final_error = type(error)(f"{_text(what)}: {error.message}", error.error_code)
                raise deadline.final_error from error
            if ran_out and (deadline.expired or error is deadline.final_error):
                raise _gave_up(deadline, what, attempts, error, last) from error
            if not may_pass(error) or (may_retry is not None and not may_retry(error)):
                raise
            delay_ms = backoff.delay_ms(attempts - 1)
            if deadline.remaining_ms <= delay_ms:
                raise _gave_up(deadline, what, attempts, error, None) from error
            log_retry(_text(what), error, deadline)
            if before_retry is not None:
                before_retry(error)
            last = error
            await asyncio.sleep(delay_ms / 1000.0)
        except asyncio.TimeoutError:
            if not deadline.expired:
                raise
            raise _gave_up(deadline, what, attempts, None, last) from last


def is_routine(error: FlussError, failing_ms: float) -> bool:
    """Whether an error is nothing to warn of yet: a bucket that is new, or that moves, has no leader for a moment."""
    return error.is_stale_metadata and not isinstance(error, NetworkError) and failing_ms < _ROUTINE_MS


def log_retry(what: str, error: FlussError, deadline: Deadline) -> None:
    """Log that a call is retried: one warning under its deadline, unless that is routine, and else debug messages."""
    if deadline.retry_logged or is_routine(error, deadline.elapsed_ms):
        logger.debug("%s: %s; next attempt soon", what, escaped(str(error)))
        return
    deadline.retry_logged = True
    logger.warning(
        "%s failed: %s; retrying for up to %.1f s", what, escaped(str(error)), deadline.remaining_ms / 1000.0
    )


def gave_up_text(what: str, attempts: int, total_ms: float, cause: FlussError) -> str:
    """Describe a call that was retried in vain: what, why, how often, and what to do."""
    counted = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    advice = CHECK_SERVERS if isinstance(cause, (NetworkError, DeadlineExceededError)) else MORE_TIME
    return f"{what} failed after {counted} in {total_ms:.0f} ms: {_sentence(cause)} {advice}"


def _gave_up(
    deadline: Deadline,
    what: str | Callable[[], str],
    attempts: int,
    error: FlussError | None,
    last: FlussError | None,
) -> FlussError:
    text, total_ms = _text(what), deadline.total_ms
    cause = last if last is not None else error
    final: FlussError
    if cause is None:
        final = DeadlineExceededError(f"{text} did not finish within {total_ms:.0f} ms. {CHECK_SERVERS}")
    elif isinstance(cause, DeadlineExceededError):
        text = f"{text} did not finish within {total_ms:.0f} ms: {_sentence(cause)} {CHECK_SERVERS}"
        final = DeadlineExceededError(text)
    else:
        # The earlier error says why there was another attempt; that the last one had no time left says less.
        final = type(cause)(gave_up_text(text, attempts, total_ms, cause), cause.error_code)
    deadline.final_error = final
    return final


def _sentence(cause: FlussError) -> str:
    return cause.message if cause.message.endswith((".", "?", "!")) else f"{cause.message}."


def _text(what: str | Callable[[], str]) -> str:
    return what if isinstance(what, str) else what()


async def within(start: Callable[[], Awaitable[T]], timeout: float | None, what: str) -> T:
    """Start work that has bounds of its own and wait at most `timeout` seconds; None waits for its own bounds.

    A timeout that makes no sense is refused before anything is started.
    """
    if timeout is None:
        return await start()
    deadline = Deadline.of(timeout, 0.0)
    try:
        return await wait_for(start(), deadline.remaining_ms / 1000.0)
    except FlussError:
        raise  # before the next clause: a deadline error of ours is a TimeoutError too
    except asyncio.TimeoutError:
        raise DeadlineExceededError(
            f"{what} did not finish within {deadline.total_ms:.0f} ms. {CHECK_SERVERS}"
        ) from None
