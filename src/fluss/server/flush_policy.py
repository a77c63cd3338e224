# SPDX-License-Identifier: Apache-2.0
"""Where a round of the group commit is flushed: one decision per round, made from what the round is for.

- Unsynced, unless `log.commit.sync` is `group`: the operating system flushes when it likes.
- Inline, on the event loop, if one log is flushed, the disk was quick the last time and the loop has nothing else to
  do: to a thread and back takes as long as a small flush.
- Worker, in the flusher thread, for what one thread can flush: the event loop serves other requests meanwhile.
- Pool, in several threads, for more logs than that.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum

from fluss.server.log.flush import SyncPlan

logger = logging.getLogger("fluss.server.commit")

LOGS_PER_THREAD = 16
_INLINE_SECONDS_MAX = 0.02
"""What the event loop may wait for the disk itself. A disk that took longer the last time may do so again."""


class FlushStrategy(Enum):
    """Where a round is flushed."""

    UNSYNCED = "not at all: acknowledged as it is"
    INLINE = "on the event loop"
    WORKER = "in the flusher thread"
    POOL = "in the flusher thread and in those of the pool"


class FlushPolicy:
    """Chooses the strategy of each round.

    Args:
        sync: Whether a write is acknowledged only when it is on disk.
        is_quiet: Whether the event loop has nothing else to do, given how many appends the round is for.
    """

    def __init__(self, *, sync: bool, is_quiet: Callable[[int], bool]) -> None:
        self.sync = sync
        self._is_quiet = is_quiet
        self._round_seconds = 0.0

    def choose(self, plans: Sequence[SyncPlan], appends: int) -> FlushStrategy:
        """Choose for a round that flushes these plans and was caused by so many appends."""
        if not plans or not self.sync:
            return FlushStrategy.UNSYNCED
        if len(plans) == 1:
            small = not plans[0].folders and self._round_seconds <= _INLINE_SECONDS_MAX
            return FlushStrategy.INLINE if small and self._quiet(appends) else FlushStrategy.WORKER
        return FlushStrategy.WORKER if len(plans) <= LOGS_PER_THREAD else FlushStrategy.POOL

    def round_took(self, seconds: float) -> None:
        """Record how long the disk took for a round."""
        self._round_seconds = seconds

    def _quiet(self, appends: int) -> bool:
        try:
            return self._is_quiet(appends)
        except Exception:
            logger.exception("cannot tell whether the server is quiet")
            return False
