# SPDX-License-Identifier: Apache-2.0
"""Back-off after failed logins, so that passwords cannot be guessed quickly.

Attempts are spaced per address and user, and, more loosely, per address: a client that shares its address with one that
has a wrong password has to wait for a moment, but gets in.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

_ENTRIES_MAX = 10_000
_FORGET_SECONDS = 600.0
_WAIT_SECONDS_MAX = 10.0
FAILURES_PER_CONNECTION_MAX = 3


@dataclass(slots=True)
class _Record:
    failures: int = 0
    failed_at: float = 0.0
    next_at: float = 0.0
    """When the next attempt may be checked."""


class _Records:
    """Failures by key, of a bounded number of keys: the one that failed longest ago is forgotten first."""

    def __init__(self, free_failures: int, first_seconds: float, seconds_max: float) -> None:
        self._free_failures = free_failures
        self._first_seconds = first_seconds
        self._seconds_max = seconds_max
        self._records: OrderedDict[object, _Record] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def find(self, key: object, now: float) -> _Record | None:
        record = self._records.get(key)
        if record is not None and now - record.failed_at > _FORGET_SECONDS and record.next_at < now:
            del self._records[key]
            return None
        return record

    def spacing(self, record: _Record) -> float:
        """The time between two attempts."""
        excess = record.failures - self._free_failures
        return 0.0 if excess <= 0 else min(self._first_seconds * 2.0 ** min(excess - 1, 30), self._seconds_max)

    def failed(self, key: object, now: float) -> None:
        record = self._records.setdefault(key, _Record())
        self._records.move_to_end(key)
        record.failures += 1
        record.failed_at = now
        record.next_at = max(record.next_at, now + self.spacing(record))
        while len(self._records) > _ENTRIES_MAX:
            self._records.popitem(last=False)

    def forget(self, key: object) -> None:
        self._records.pop(key, None)


class LoginThrottle:
    """Tells how long a login attempt has to wait.

    A user may fail three times from an address before the next attempts are spaced, by 0.5 s and then twice as long
    each time, up to 30 s. An address may fail twenty times before all its attempts are spaced, by 0.1 s up to 1 s.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._users = _Records(3, 0.5, 30.0)
        self._addresses = _Records(20, 0.1, 1.0)

    def __len__(self) -> int:
        return len(self._users) + len(self._addresses)

    def reserve(self, address: str, user: str) -> float | None:
        """Seconds to wait before this attempt is checked; None if that is too long, and it has to be refused."""
        now = self._now()
        found = (
            (self._users, self._users.find((address, user), now)),
            (self._addresses, self._addresses.find(address, now)),
        )
        at = max((record.next_at for _, record in found if record is not None), default=now)
        if at - now > _WAIT_SECONDS_MAX:
            return None
        for records, record in found:
            if record is not None:
                record.next_at = max(record.next_at, now) + records.spacing(record)
        return max(at - now, 0.0)

    def failed(self, address: str, user: str) -> None:
        now = self._now()
        self._users.failed((address, user), now)
        self._addresses.failed(address, now)

    def succeeded(self, address: str, user: str) -> None:
        """Forget the failures of a user who knows the password after all."""
        self._users.forget((address, user))
