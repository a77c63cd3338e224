# SPDX-License-Identifier: Apache-2.0
"""The two clocks of the server, in one place so that tests can hold them."""

from __future__ import annotations

import logging
import time

logger = logging.getLogger("fluss.server")

_BACK_MS_MAX = 60_000
"""Timestamps of rows stand still while the clock is back by less, or by less than the tolerance."""
_PLAUSIBLE_MS = 1_577_836_800_000
"""2020: a machine whose clock starts before that has not set it yet, so whatever it is set to is right."""


class Clock:
    """Wall clock for what is written down, monotonic clock for waits.

    The wall clock decides when rows expire and partitions are dropped. So a jump of it beyond the tolerance does not
    count until the clock has run on from there for as long as the tolerance. Up to then the time is the last one before
    the jump, and what has passed since.

    A server that was switched off cannot know whether the clock jumped meanwhile. Until the clock has run on, what
    expires does so by the earlier one of both times, and rows are stamped with the later one.
    """

    jump_tolerance_ms = 0
    """0 takes the time as it is."""
    _wall_ms = _steady_ms = 0
    """The last time that counted, by both clocks."""
    _jump: tuple[int, int] | None = None
    """How far the wall clock jumped, and when by the steady clock."""
    _was_off = False
    """Whether the server was switched off since the last time that counted."""

    def now_ms(self) -> int:
        """The time of day, in milliseconds since 1970."""
        counted_ms = self._counted_ms()
        return max(counted_ms, self._read_ms()[0]) if self._was_off else counted_ms

    def expiry_ms(self) -> int:
        """The time by which rows, partitions and leases expire."""
        counted_ms = self._counted_ms()
        return min(counted_ms, self._read_ms()[0]) if self._was_off else counted_ms

    def stamp_ms(self, last_ms: int) -> int:
        """The time of a row that follows one with this time. It falls only when a clock that was ahead was put right.

        Readers search the log by time, so a small step back must not show.
        """
        now_ms = self.now_ms()
        return now_ms if last_ms - now_ms > max(self.jump_tolerance_ms, _BACK_MS_MAX) else max(now_ms, last_ms)

    def resume(self, counted_ms: int, seen_ms: int, ran_ms: int) -> None:
        """Go on from what `state` returned before the server was switched off."""
        wall_ms, steady_ms = self._read_ms()
        self._wall_ms, self._steady_ms, self._was_off = counted_ms, steady_ms, True
        # The clock may have been put right in between, unseen. So it is the time it ran that counts, not what it shows.
        self._jump = (wall_ms - counted_ms, steady_ms - ran_ms) if ran_ms and wall_ms >= seen_ms else None
        self._counted_ms()  # the clock runs on from here

    def state(self) -> tuple[int, int, int]:
        """The time that counts, what the wall clock says, and how long it has run on since it jumped."""
        counted_ms = self._counted_ms()
        wall_ms, steady_ms = self._read_ms()
        return counted_ms, wall_ms, 0 if self._jump is None else steady_ms - self._jump[1]

    def _counted_ms(self) -> int:
        """The time that counts."""
        wall_ms, steady_ms = self._read_ms()
        due_ms = self._wall_ms + steady_ms - self._steady_ms
        off_ms = wall_ms - due_ms
        if 0 < self.jump_tolerance_ms < abs(off_ms) and self._wall_ms > _PLAUSIBLE_MS:
            if not self._is_confirmed(off_ms, steady_ms):
                return due_ms
        elif self._jump is not None:
            logger.warning("the clock of the machine is back; its jump had no effect")
        self._wall_ms, self._steady_ms, self._jump, self._was_off = wall_ms, steady_ms, None, False
        return wall_ms

    def _is_confirmed(self, off_ms: int, steady_ms: int) -> bool:
        tolerance_ms = self.jump_tolerance_ms
        if self._jump is None or abs(off_ms - self._jump[0]) > tolerance_ms:
            self._jump = (off_ms, steady_ms)
            if self._was_off:
                logger.info(
                    "the server last ran %d s ago by the clock of the machine: nothing expires by that until the clock"
                    " has run on for %d s ('clock.jump-tolerance'). To accept it at once, set the option to 0.",
                    off_ms // 1000,
                    tolerance_ms // 1000,
                )
                return False
            logger.error(
                "the clock of the machine jumped by %d s, beyond 'clock.jump-tolerance': rows are stamped and expire by"
                " the time that went on since, until the clock has run on for %d s. Set the clock right; or, to accept"
                " the new time at once, set the option to 0.",
                off_ms // 1000,
                tolerance_ms // 1000,
            )
        if steady_ms - self._jump[1] < tolerance_ms:
            return False
        level = logging.INFO if self._was_off else logging.WARNING
        logger.log(
            level, "the clock of the machine ran on after it jumped by %d s; its time counts now", off_ms // 1000
        )
        return True

    def _read_ms(self) -> tuple[int, int]:
        """The time of day, and the time of a clock that is never set and goes on while the machine sleeps."""
        steady = time.CLOCK_BOOTTIME if hasattr(time, "CLOCK_BOOTTIME") else time.CLOCK_MONOTONIC
        return time.time_ns() // 1_000_000, time.clock_gettime_ns(steady) // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()
