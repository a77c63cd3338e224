# SPDX-License-Identifier: Apache-2.0
"""How long the event loop kept its clients waiting, measured all the time.

A timer that is due every few milliseconds shows it: it is late by as long as one iteration of the loop took. Nothing
else is served meanwhile, so this is the figure to watch when small requests are slow now and then. The processor time
that was used meanwhile shows whether this process was busy, or had to wait for a machine that is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from time import monotonic, process_time
from typing import Any

logger = logging.getLogger("fluss.server.loop")

STALL_SECONDS = 0.05
"""An iteration of the event loop that takes longer than this, in processor time, is a stall."""
_INTERVAL_SECONDS = 0.02
_IDLE_INTERVAL_SECONDS = 0.5
_WINDOW_SECONDS = 30.0
_LOGGED_SECONDS = 1.0
_KINDS_MAX = 100
_WHERE_CHARS_MAX = 80


class LoopErrors:
    """Take exceptions that escape from callbacks of the event loop: log each kind once, and count them all.

    Owners of callbacks handle their own errors, so what comes here is a defect. It must be seen, and must not fill the
    disk with its log lines.

    Example::

        loop.set_exception_handler(LoopErrors(count=lambda: metrics.add("loopErrors_total")))
    """

    def __init__(self, count: Callable[[], None]) -> None:
        self._count = count
        self._logged: set[tuple[str, str]] = set()

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._count()
        error = context.get("exception")
        where = repr(context.get("handle") or context.get("future") or context.get("message")).split(" at 0x", 1)[0]
        kind = (type(error).__name__, where[:_WHERE_CHARS_MAX])
        if kind in self._logged or len(self._logged) >= _KINDS_MAX:
            return
        self._logged.add(kind)
        logger.error(
            "an error escaped from the event loop (%s); further ones of this kind are only counted: %s",
            context.get("message", "no message"),
            where,
            exc_info=error,
        )


class LoopWatch:
    """Measure the delays of the running event loop. `is_idle` says when there is no client that could notice one."""

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
