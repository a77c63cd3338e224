# SPDX-License-Identifier: Apache-2.0
"""Which table a lake tiering worker does next.

States of a table::

    Scheduled --(freshness elapsed)--> Pending --(handed out)--> Tiering --(finished)--> Scheduled
                                          ^                         |
                                          '--(failed, silent, cut short)

Time passes only when a caller asks: `advance` moves the tables whose time has come. So there are no timers, and a test
decides what time it is. Each entry into Pending raises the epoch of the table, which fences the worker before.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from fluss.errors import FencedTieringEpochError, TableNotExistError, UnknownServerError

WORKER_SILENCE_MS_MAX = 120_000


class TieringState(Enum):
    SCHEDULED = "Scheduled"
    PENDING = "Pending"
    TIERING = "Tiering"


@dataclass
class TieringEntry:
    table_id: int
    freshness_ms: int
    last_tiered_ms: int
    state: TieringState = TieringState.SCHEDULED
    epoch: int = 0
    heartbeat_ms: int = 0
    started_ms: int = 0
    duration_ms_last: int | None = None
    failures: int = 0
    pending_since_ms: int = 0
    lake_bytes: int | None = None
    """The size of the table in its lake, as the worker told it last."""
    lake_rows: int | None = None

    @property
    def due_ms(self) -> int:
        return self.last_tiered_ms + self.freshness_ms


class TieringManager:
    """All tables whose lake is on."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.tables: dict[int, TieringEntry] = {}
        self._pending: deque[int] = deque()

    # ------------------------------------------------------------------ which tables take part

    def put(self, table_id: int, freshness_ms: int, last_tiered_ms: int) -> None:
        """Add a table, or change the freshness of one that is known."""
        table = self.tables.get(table_id)
        if table is None:
            self.tables[table_id] = TieringEntry(table_id, freshness_ms, last_tiered_ms)
        else:
            table.freshness_ms = freshness_ms

    def remove(self, table_id: int) -> None:
        if self.tables.pop(table_id, None) is not None and table_id in self._pending:
            self._pending.remove(table_id)

    # ------------------------------------------------------------------ time

    def advance(self) -> None:
        now_ms = self._clock_ms()
        due: list[tuple[int, int]] = []
        for table in self.tables.values():
            # A clock that was ahead and was put right: nothing happened later than now.
            table.last_tiered_ms = min(table.last_tiered_ms, now_ms)
            table.heartbeat_ms = min(table.heartbeat_ms, now_ms)
            if table.state is TieringState.SCHEDULED and table.due_ms <= now_ms:
                heapq.heappush(due, (table.due_ms, table.table_id))
            elif table.state is TieringState.TIERING and table.heartbeat_ms + WORKER_SILENCE_MS_MAX <= now_ms:
                table.failures += 1
                heapq.heappush(due, (table.heartbeat_ms + WORKER_SILENCE_MS_MAX, table.table_id))
        while due:
            self._to_pending(self.tables[heapq.heappop(due)[1]])

    def _to_pending(self, table: TieringEntry) -> None:
        table.state = TieringState.PENDING
        table.pending_since_ms = self._clock_ms()
        table.epoch += 1
        self._pending.append(table.table_id)

    # ------------------------------------------------------------------ what workers say

    def request(self, may_tier: Callable[[int], bool]) -> TieringEntry | None:
        """Hand out the table that has waited longest, of those that the worker may tier."""
        self.advance()
        table_id = next(filter(may_tier, self._pending), None)
        if table_id is None:
            return None
        self._pending.remove(table_id)
        table = self.tables[table_id]
        table.state = TieringState.TIERING
        table.heartbeat_ms = table.started_ms = self._clock_ms()
        return table

    def _held(self, table_id: int, epoch: int) -> TieringEntry:
        table = self.tables.get(table_id)
        if table is None:
            raise TableNotExistError(f"The table with id {table_id} does not exist, or its lake is off.")
        if epoch != table.epoch:
            raise FencedTieringEpochError(
                f"Tiering epoch {epoch} of table {table_id} is outdated, the current one is {table.epoch}. "
                "Another round of the table has begun; give this one up."
            )
        if table.state is not TieringState.TIERING:
            raise UnknownServerError(
                f"Table {table_id} is not being tiered: its state is {table.state.value}, expected Tiering."
            )
        return table

    def renew(self, table_id: int, epoch: int) -> None:
        self._held(table_id, epoch).heartbeat_ms = self._clock_ms()

    def finish(self, table_id: int, epoch: int, *, forced: bool = False) -> None:
        table = self._held(table_id, epoch)
        now_ms = self._clock_ms()
        table.last_tiered_ms = now_ms
        table.duration_ms_last = now_ms - table.started_ms
        if forced:
            # Cut short by its time limit: there is more to do at once.
            self._to_pending(table)
        else:
            table.state = TieringState.SCHEDULED

    def set_lake_size(self, table_id: int, lake_bytes: int | None, lake_rows: int | None) -> None:
        """Record what a worker tells of the table in its lake."""
        table = self.tables.get(table_id)
        if table is not None:
            table.lake_bytes = table.lake_bytes if lake_bytes is None else lake_bytes
            table.lake_rows = table.lake_rows if lake_rows is None else lake_rows

    def fail(self, table_id: int, epoch: int) -> None:
        table = self._held(table_id, epoch)
        table.failures += 1
        self._to_pending(table)

    # ------------------------------------------------------------------ figures

    def count(self, state: TieringState) -> int:
        return sum(1 for table in self.tables.values() if table.state is state)
