# SPDX-License-Identifier: Apache-2.0
"""Live: the changes of a table as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from fluss.client.buckets import bucket_offsets, table_buckets
from fluss.console.json_values import paired_changes, rows_of
from fluss.console.state import Call
from fluss.db.changes import ChangeBatch, Position
from fluss.db.suggest import check_columns
from fluss.errors import InvalidArgumentError, NetworkError
from fluss.metadata import OffsetSpec, TableBucket, TableInfo, epoch_millis
from fluss.metadata.where import parse_where
from fluss.net.deadline import wait_for
from fluss.tools.status import parse_time
from fluss.tools.tailing import matching_positions

WINDOW_S = 0.1
"""How long changes are collected before they are sent together."""
_OVERFULL_WINDOW_S = 0.2
"""The same after a window of which only the newest changes were sent: those are as new after a longer one."""
SHOWN_MAX = 200
"""Changes of one window that are sent; of more the newest, and how many were left out."""
_SHOWN_WHILE_BUSY_MAX = 20
"""The same while window follows window, a screenful: laying more out is work for the browser that is not seen."""
_BUSY_S = 0.5
"""Windows that follow within this time are busy."""
_QUIET_S = 2.0
"""After so long without changes, an empty event shows that the stream is alive."""
_CHECK_S = 2.0
"""How often is looked whether the user may still see the table: reading it would be tried again for a minute."""


async def changes(call: Call) -> AsyncGenerator[dict[str, Any] | bytes, None]:
    """Follow a table. With `all`, every change is sent as fast as the browser takes them; else the newest win."""
    table = await call.table()
    start = await _start_of(call, table, call.text("start", "latest"))
    admin = await call.client.admin()
    every = call.maybe("all") == "1"
    where = call.maybe("where")
    expression = None
    if where is not None:
        predicate = parse_where(where, table.schema)
        check_columns(list(dict.fromkeys(predicate.columns())), table.info)
        expression = predicate.to_arrow_expression(table.schema)
    if start == "latest" and not every and where is None:
        key = f"{table.name} {table.info.table_id} {table.info.schema_id}"
        return call.client.shared_feed(key, lambda: _events(admin, table, start, every=False))
    return _events(admin, table, start, every=every, expression=expression)


async def _start_of(call: Call, table: Any, text: str) -> Any:
    """Where to begin: earliest, latest, a time, an offset of all buckets, or the position of an earlier change."""
    text = text.strip() or "latest"
    if text in ("earliest", "latest") or text.startswith("{"):
        return text
    if not text.isdecimal():
        moment = parse_time(text)
        if moment is None:
            raise InvalidArgumentError(
                f"Begin at 'earliest', 'latest', an offset or a time such as 2026-07-01T12:30 or 10m, not {text!r:.60}."
            )
        return moment.astimezone()
    admin = await call.client.admin()
    buckets = await table_buckets(admin, table.info)
    first = await bucket_offsets(admin, table.info, buckets, OffsetSpec.earliest())
    last = await bucket_offsets(admin, table.info, buckets, OffsetSpec.latest())
    return Position(table.info.table_id, {one: max(first[one], min(int(text), last[one])) for one in last})


async def _events(
    admin: Any, table: Any, start: Any, *, every: bool, expression: Any = None
) -> AsyncGenerator[dict[str, Any], None]:
    info: TableInfo = table.info
    columns = list(table.columns)
    types = [str(info.schema.column(name).data_type) for name in columns]
    partitions = {one.partition_id: one.partition_name for one in await table.partitions()}
    yield {"columns": columns, "types": types, "key": list(info.primary_keys)}
    async with table.follow(start, columns=columns, batches=True) as feed:
        windows = _Windows(feed, SHOWN_MAX if every else None)
        last_window = -_BUSY_S
        window_s = WINDOW_S
        checked = asyncio.get_running_loop().time()
        try:
            while True:
                window = [LiveBatch.of(batch, expression) for batch in await windows.next(window_s)]
                if any(one.bucket.partition_id not in (None, *partitions) for one in window):
                    partitions = {one.partition_id: one.partition_name for one in await table.partitions()}
                now = asyncio.get_running_loop().time()
                if now - checked > _CHECK_S:
                    checked = now
                    with contextlib.suppress(asyncio.TimeoutError, NetworkError):  # the server may be back soon
                        await wait_for(admin.get_table_info(table.path), _CHECK_S)
                limit = None if every else _SHOWN_WHILE_BUSY_MAX if now - last_window < _BUSY_S else SHOWN_MAX
                last_window = now if window else last_window
                overfull = limit is not None and sum(len(one.kinds) for one in window) > limit
                window_s = _OVERFULL_WINDOW_S if overfull else WINDOW_S
                for event in window_events(window, partitions, limit):
                    yield event
        finally:
            await windows.close()


class LiveBatch(NamedTuple):
    """Records of one bucket that are shown."""

    rows: pa.RecordBatch
    kinds: Sequence[str]
    offsets: Sequence[int]
    bucket: TableBucket
    time_ms: int
    position: Position

    @staticmethod
    def of(found: ChangeBatch, expression: Any) -> LiveBatch:
        """Those of a batch that match, or all; an update matches if its old or its new row does."""
        kinds: Sequence[str] = found.kinds
        rows, offsets = found.batch, found.offsets
        if expression is not None:
            matched = set(matching_positions(rows, expression))
            matched |= {at + 1 for at in matched if kinds[at] == "update_before"}
            matched |= {
                at - 1 for at in matched if kinds[at] == "update_after" and at and kinds[at - 1] == "update_before"
            }
            chosen = sorted(at for at in matched if at < len(kinds))
            rows = rows.take(pa.array(chosen, pa.int64()))
            kinds, offsets = [kinds[at] for at in chosen], [offsets[at] for at in chosen]
        return LiveBatch(rows, kinds, offsets, found.bucket, epoch_millis(found.timestamp), found.position)


class _Windows:
    """Collects the batches of a feed that are sent together."""

    def __init__(self, feed: AsyncIterator[ChangeBatch], changes_max: int | None) -> None:
        self._feed = feed
        self._changes_max = changes_max
        """A window ends with the batch that reaches it."""
        self._pending: asyncio.Future[ChangeBatch] | None = None

    async def next(self, window_s: float) -> list[ChangeBatch]:
        """What comes within a time from the first batch on; nothing if there is none for long."""
        loop = asyncio.get_running_loop()
        window: list[ChangeBatch] = []
        count = 0
        deadline: float | None = None
        while self._changes_max is None or count < self._changes_max:
            # Not awaited itself: a batch that is not there in time belongs to the next window.
            self._pending = self._pending or asyncio.ensure_future(anext(self._feed))
            timeout = _QUIET_S if deadline is None else max(0.0, deadline - loop.time())
            done, _ = await asyncio.wait({self._pending}, timeout=timeout)
            if not done:
                break
            batch, self._pending = self._pending.result(), None
            window.append(batch)
            count += len(batch)
            deadline = loop.time() + window_s if deadline is None else deadline
            if deadline <= loop.time():
                break
        return window

    async def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await self._pending


def window_events(
    window: Sequence[LiveBatch], partitions: dict[int, str], shown_max: int | None
) -> list[dict[str, Any]]:
    """What is sent of the batches of one window: the newest changes and a count, or all in parts."""
    if not window:
        return [{"changes": [], "count": 0, "skipped": 0}]
    records = sum(len(batch.kinds) for batch in window)
    # The two records of an update are one change.
    total = records - sum(batch.kinds.count("update_before") for batch in window)
    left = records if shown_max is None else shown_max
    changes: list[dict[str, Any]] = []
    for batch in reversed(window):
        if left <= 0:
            break
        changes[:0] = _changes(batch, min(left, len(batch.kinds)), partitions)
        left -= len(batch.kinds)
    position = str(window[-1].position)
    if shown_max is not None:
        return [{"changes": changes, "count": total, "skipped": total - len(changes), "position": position}]
    parts = [changes[at : at + SHOWN_MAX] for at in range(0, len(changes), SHOWN_MAX)] or [[]]
    events: list[dict[str, Any]] = [{"changes": part, "count": len(part), "skipped": 0} for part in parts]
    events[-1]["position"] = position
    return events


def _changes(batch: LiveBatch, newest: int, partitions: dict[int, str]) -> list[dict[str, Any]]:
    """The newest records of a batch, with the two of an update joined."""
    first = len(batch.kinds) - newest
    if first and batch.kinds[first : first + 1] == ["update_after"]:
        first += 1  # its other half is left out already
    partition_id = batch.bucket.partition_id
    common = {
        "bucket": batch.bucket.bucket_id,
        "partition": None if partition_id is None else partitions.get(partition_id, "?"),
        "time_ms": batch.time_ms,
    }
    about = [{**common, "offset": int(offset)} for offset in batch.offsets[first:]]
    return paired_changes(batch.kinds[first:], rows_of(batch.rows.slice(first)), about)
