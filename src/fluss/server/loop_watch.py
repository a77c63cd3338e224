# SPDX-License-Identifier: Apache-2.0
"""How long the event loop kept its clients waiting, measured all the time.

A timer that is due every few milliseconds tells: it is late by as long as one iteration of the loop took. Nothing else
is served meanwhile, so this is the figure to look at when small requests are slow now and then. The processor time that
was used meanwhile tells whether this process was busy, or had to wait for a machine that is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, process_time

logger = logging.getLogger("fluss.server.loop")

STALL_SECONDS = 0.05
"""An iteration of the event loop that takes longer than this, in processor time, is a stall."""
_INTERVAL_SECONDS = 0.01
_IDLE_INTERVAL_SECONDS = 0.5
_WINDOW_SECONDS = 30.0
_LOGGED_SECONDS = 1.0


class LoopWatch:
    """Measure the delays of the running event loop. `is_idle` tells when there is no client that could notice one."""

    def __init__(self, is_idle: Callable[[], bool] = lambda: False) -> None:
        self._is_idle = is_idle
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = self._used = 0.0
        self._window_end = 0.0
        self._window_longest = self._window_before = 0.0
        self.busy_seconds = 0.0
        """The longest time since the start for which this process kept its event loop busy."""
        self.stall_count = 0

    @property
    def delay_seconds(self) -> float:
        """The longest delay of the last half to one minute, whatever caused it."""
        return max(self._window_longest, self._window_before)

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._window_end = monotonic() + _WINDOW_SECONDS
        self._wait()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wait(self) -> None:
        assert self._loop is not None
        seconds = _IDLE_INTERVAL_SECONDS if self._is_idle() else _INTERVAL_SECONDS
        self._due = monotonic() + seconds
        self._used = process_time()
        self._timer = self._loop.call_later(seconds, self._tick)

    def _tick(self) -> None:
        now = monotonic()
        late = now - self._due
        if now > self._window_end:
            self._window_before, self._window_longest = self._window_longest, 0.0
            self._window_end = now + _WINDOW_SECONDS
        self._window_longest = max(self._window_longest, late)
        busy = min(late, process_time() - self._used)
        self.busy_seconds = max(self.busy_seconds, busy)
        if busy > STALL_SECONDS:
            self.stall_count += 1
        if late > _LOGGED_SECONDS:
            logger.warning("the event loop was busy or stopped for %.1f s (%.1f s of processor time)", late, busy)
        self._wait()
