# SPDX-License-Identifier: Apache-2.0
"""The two clocks of the server, in one place so that tests can hold them."""

from __future__ import annotations

import time


class Clock:
    """Wall clock for what is written down, monotonic clock for waits."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
