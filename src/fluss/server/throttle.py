# SPDX-License-Identifier: Apache-2.0
"""Delays of refused logins, so that passwords cannot be guessed quickly.

A password is checked at once, and only the refusal of a wrong one is held back: clients share an address with others
behind a proxy, and a user name with an attacker who guesses its password. Neither may keep the right password out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

FAILURES_PER_CONNECTION_MAX = 3
_ENTRIES_MAX = 10_000
_EXPIRY_SECONDS = 600.0
_FREE_FAILURES = 3
_FIRST_SECONDS = 0.5
_SECONDS_MAX = 10.0


class LoginThrottle:
    """Computes how long the refusal of a login is held back, by address and user.

    Three failures are free. The next is held back for 0.5 s, and each further one for twice as long, up to 10 s. Of
    many pairs of address and user, those that failed longest ago are evicted first.
    """

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failures)

    def failed(self, address: str, user: str) -> float:
        """Count a wrong password; returns the seconds to wait before it is refused."""
        now = self._now()
        failures, failed_at = self._failures.pop((address, user), (0, now))
        failures = 1 if now - failed_at > _EXPIRY_SECONDS else failures + 1
        self._failures[address, user] = failures, now
        if len(self._failures) > _ENTRIES_MAX:
            self._failures.popitem(last=False)
        excess = failures - _FREE_FAILURES
        return 0.0 if excess <= 0 else min(_FIRST_SECONDS * 2.0 ** min(excess - 1, 30), _SECONDS_MAX)

    def succeeded(self, address: str, user: str) -> None:
        """Forgive the failures of a user who knows the password after all."""
        self._failures.pop((address, user), None)
