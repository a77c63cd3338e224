# SPDX-License-Identifier: Apache-2.0
"""What one user may have of the server: bytes per second, connections, and the memory of requests.

A user is who logged in; where clients do not log in, each address is one. Processor time is shared in `scheduler`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from fluss.server.config import ServerConfig

USER_SHARE = 0.75
"""What one user may have of connections, of the memory of requests, and of cursors; the rest is for others."""
_BURST_SECONDS = 1.0
"""Bytes that were not used for so long may be used at once."""
_DEBT_SECONDS_MAX = 60.0
"""A user waits no longer: one who set a quota too low by mistake must be able to correct it."""


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits of each user; None where there is none."""

    producer_byte_rate: int | None
    consumer_byte_rate: int | None
    connections_max: int | None

    @classmethod
    def of(cls, config: ServerConfig) -> Quotas:
        """Read the limits from the options."""
        names = ("quota.producer_byte_rate", "quota.consumer_byte_rate", "quota.max_connections")
        producer, consumer, connections = (None if config.get(name) is None else config.integer(name) for name in names)
        return cls(producer, consumer, connections)


class Waiters:
    """Callbacks that wait until there is room again. Each is called once."""

    def __init__(self) -> None:
        self._waiting: dict[Callable[[], None], None] = {}

    def wait_for_room(self, callback: Callable[[], None]) -> None:
        self._waiting[callback] = None

    def stop_waiting(self, callback: Callable[[], None]) -> None:
        self._waiting.pop(callback, None)

    def _call_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for callback in waiting:
            callback()


class Usage(Waiters):
    """What a user has of the limits now. A user beyond a rate is not read from until the time is paid."""

    def __init__(self) -> None:
        super().__init__()
        self.connections = 0
        self.is_throttled = False
        self.throttled_ms = 0.0
        """How long it had to wait, in total."""
        self.login = asyncio.Lock()
        """Held while a login of an address is checked."""
        self._paid_until: dict[str, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        """Runs while the user is throttled, and until a user who connects anew would have its burst again anyway. It
        also keeps this object."""

    def charge_bytes(self, kind: str, size_bytes: int, rate: int) -> None:
        """Count bytes of a kind that may be `rate` bytes per second."""
        now = monotonic()
        until = max(self._paid_until.get(kind, 0.0), now - _BURST_SECONDS) + size_bytes / rate
        self._paid_until[kind] = until = min(until, now + _DEBT_SECONDS_MAX)
        if until > now and not self.is_throttled:
            self.is_throttled = True
            self._wait(until - now)
        elif self._timer is None:
            self._start_timer(_BURST_SECONDS)

    def forgive(self) -> None:
        """Let the user go on at once: the rate that its debt was computed with has changed."""
        self._paid_until.clear()
        self._check_paid()

    def _wait(self, seconds: float) -> None:
        self.throttled_ms += seconds * 1000
        self._start_timer(seconds)

    def _start_timer(self, seconds: float) -> None:
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check_paid)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_paid(self) -> None:
        self._stop_timer()
        left = max(self._paid_until.values(), default=0.0) - monotonic()
        if left > 0:
            self._wait(left)
            return
        if left > -_BURST_SECONDS:
            self._start_timer(left + _BURST_SECONDS)
        if self.is_throttled:
            self.is_throttled = False
            self._call_waiting()
