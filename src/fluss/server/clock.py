# SPDX-License-Identifier: Apache-2.0
"""The two clocks of the server, in one place so that tests can hold them."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("fluss.server")

_PLAUSIBLE_MS = 1_577_836_800_000
"""2020: a machine whose clock starts before that has not set it yet, so whatever it is set to is right."""


class Clock:
    """Wall clock for what is written down, monotonic clock for waits.

    The wall clock decides when rows expire and partitions are dropped. So a jump of it beyond the tolerance does not
    count until the clock has run on from there for as long as the tolerance. Up to then the time is the last one before
    the jump, and what has passed since.
    """

    jump_tolerance_ms = 0
    """0 takes the time as it is."""
    _wall_ms = _steady_ms = 0
    """The last time that counted, by both clocks."""
    _jump: tuple[int, int] | None = None
    """How far the wall clock jumped, and when by the steady clock."""

    def now_ms(self) -> int:
        """The time of day, in milliseconds since 1970."""
        wall_ms, steady_ms = self._read_ms()
        due_ms = self._wall_ms + steady_ms - self._steady_ms
        off_ms = wall_ms - due_ms
        if 0 < self.jump_tolerance_ms < abs(off_ms) and self._wall_ms > _PLAUSIBLE_MS:
            if not self._is_confirmed(off_ms, steady_ms):
                return due_ms
        elif self._jump is not None:
            logger.warning("the clock of the machine is back; its jump had no effect")
        self._wall_ms, self._steady_ms, self._jump = wall_ms, steady_ms, None
        return wall_ms

    def _is_confirmed(self, off_ms: int, steady_ms: int) -> bool:
        tolerance_ms = self.jump_tolerance_ms
        if self._jump is None or abs(off_ms - self._jump[0]) > tolerance_ms:
            self._jump = (off_ms, steady_ms)
            logger.error(
                "the clock of the machine jumped by %d s, beyond 'clock.jump-tolerance': rows are stamped and expire by"
                " the time that went on since, until the clock has run on for %d s. Set the clock right; or, to accept"
                " the new time at once, set the option to 0 or restart the server.",
                off_ms // 1000,
                tolerance_ms // 1000,
            )
        if steady_ms - self._jump[1] < tolerance_ms:
            return False
        logger.warning("the clock of the machine ran on after it jumped by %d s; its time counts now", off_ms // 1000)
        return True

    def _read_ms(self) -> tuple[int, int]:
        """The time of day, and the time of a clock that is never set and goes on while the machine sleeps."""
        steady = time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
        return time.time_ns() // 1_000_000, time.clock_gettime_ns(steady) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
