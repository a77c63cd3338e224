# SPDX-License-Identifier: Apache-2.0
"""The first question of a connection: which of the bootstrap servers answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from fluss.client.retry import CHECK_SERVERS, Backoff
from fluss.errors import AuthenticateError, ConnectionClosedError, DeadlineExceededError, FlussError
from fluss.net.deadline import Deadline

ATTEMPTS_MAX = 4
BACKOFF = Backoff(first_ms=100.0, max_ms=400.0)


async def first_that_answers(
    addresses: Sequence[tuple[str, int]], ask: Callable[[str, int, Deadline], Awaitable[None]], deadline: Deadline
) -> None:
    """Ask one address after the other until one answers; several rounds before the error that names them all."""
    failures: dict[str, FlussError] = {}
    attempts = 0
    while attempts < ATTEMPTS_MAX and not deadline.expired:
        if attempts:
            await asyncio.sleep(deadline.limit_ms(BACKOFF.delay_ms(attempts - 1)) / 1000.0)
        attempts += 1
        for position, (host, port) in enumerate(addresses):
            try:
                # One address that swallows packets must not take the time of the others.
                await ask(host, port, deadline.share(len(addresses) - position))
                return
            except (AuthenticateError, ConnectionClosedError):
                raise
            except FlussError as error:
                failures[f"{host}:{port}"] = error
        if not any(error.is_retriable or error.is_stale_metadata for error in failures.values()):
            break
    if not failures:
        listed = ", ".join(f"{host}:{port}" for host, port in addresses)
        raise DeadlineExceededError(f"No time was left to connect to {listed}. {CHECK_SERVERS}")
    details = "; ".join(f"{address}: {error.message}" for address, error in failures.items())
    last = next(reversed(failures.values()))
    counted = "1 attempt" if attempts == 1 else f"{attempts} attempts"
    raise type(last)(
        f"No address of 'bootstrap.servers' answered after {counted}: {details}", last.error_code
    ) from last
