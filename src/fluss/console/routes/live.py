# SPDX-License-Identifier: Apache-2.0
"""Live: the changes of a table as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any

from fluss.console.clients import SharedFeed
from fluss.console.json_values import paired_changes, rows_of
from fluss.console.state import Call, event_stream
from fluss.db.changes import ChangeBatch
from fluss.errors import InvalidArgumentError
from fluss.metadata import TableInfo

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
_QUIET_S = 10.0
"""After so long without changes, an empty event shows that the stream is alive."""


def start_of(text: str) -> Any:
    """Where to begin: earliest, latest, a time, or the position of an earlier change."""
    text = text.strip() or "latest"
    if text in ("earliest", "latest") or text.startswith("{"):
        return text
    try:
        moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        raise InvalidArgumentError(
            f"Begin at 'earliest', 'latest' or a time such as 2026-07-01T12:30, not {text!r:.60}."
        ) from None
    return moment if moment.tzinfo is not None else moment.astimezone()


async def live(call: Call) -> Any:
    """Follow a table. With `all`, every change is sent as fast as the browser takes them; else the newest win."""
    table = await call.table()
    start = start_of(call.text("start", "latest"))
    every = call.maybe("all") == "1"
    if start == "latest" and not every:
        feeds = call.client.shared_feeds
        key = f"{table.name} {table.info.table_id} {table.info.schema_id}"
        feed = feeds.get(key)
        if feed is None or feed.ended:
            feed = feeds[key] = SharedFeed(lambda: _events(table, start, every=False), lambda: feeds.pop(key, None))
        return event_stream(call.state, feed.subscribe())
    return event_stream(call.state, _events(table, start, every=every))


async def _events(table: Any, start: Any, *, every: bool) -> AsyncGenerator[dict[str, Any], None]:
    info: TableInfo = table.info
    columns = list(table.columns)
    types = [str(info.schema.column(name).data_type) for name in columns]
    partitions = {one.partition_id: one.partition_name for one in await table.partitions()}
    yield {"columns": columns, "types": types, "key": list(info.primary_keys)}
    async with table.follow(start, columns=columns, batches=True) as feed:
        windows = _Windows(feed, SHOWN_MAX if every else None)
        last_window = -_BUSY_S
        window_s = WINDOW_S
        try:
            while True:
                window = await windows.next(window_s)
                if any(one.bucket.partition_id not in (None, *partitions) for one in window):
                    partitions = {one.partition_id: one.partition_name for one in await table.partitions()}
                now = asyncio.get_running_loop().time()
                limit = None if every else _SHOWN_WHILE_BUSY_MAX if now - last_window < _BUSY_S else SHOWN_MAX
                last_window = now if window else last_window
                overfull = limit is not None and sum(map(len, window)) > limit
                window_s = _OVERFULL_WINDOW_S if overfull else WINDOW_S
                for event in window_events(window, partitions, limit):
                    yield event
        finally:
            await windows.close()


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
    window: Sequence[ChangeBatch], partitions: dict[int, str], shown_max: int | None
) -> list[dict[str, Any]]:
    """What is sent of the batches of one window: the newest changes and a count, or all in parts."""
    if not window:
        return [{"changes": [], "count": 0, "skipped": 0}]
    # The two records of an update are one change.
    total = sum(len(batch) - batch.kinds.count("update_before") for batch in window)
    left = sum(map(len, window)) if shown_max is None else shown_max
    changes: list[dict[str, Any]] = []
    for batch in reversed(window):
        if left <= 0:
            break
        part = _changes(batch, min(left, len(batch)), partitions)
        left -= len(batch)
        changes[:0] = part
    position = str(window[-1].position)
    if shown_max is not None:
        return [{"changes": changes, "count": total, "skipped": total - len(changes), "position": position}]
    parts = [changes[at : at + SHOWN_MAX] for at in range(0, len(changes), SHOWN_MAX)] or [[]]
    events: list[dict[str, Any]] = [{"changes": part, "count": len(part), "skipped": 0} for part in parts]
    events[-1]["position"] = position
    return events


def _changes(batch: ChangeBatch, newest: int, partitions: dict[int, str]) -> list[dict[str, Any]]:
    """The newest records of a batch, with the two of an update joined."""
    first = len(batch) - newest
    kinds = batch.kinds[first:]
    if first and kinds and kinds[0] == "update_after":
        first += 1  # its other half is left out already
        kinds = kinds[1:]
    rows = rows_of(batch.batch.slice(first))
    offsets = batch.offsets[first:]
    common = {
        "bucket": batch.bucket.bucket_id,
        "partition": None if batch.bucket.partition_id is None else partitions.get(batch.bucket.partition_id, "?"),
        "time_ms": int(batch.timestamp.timestamp() * 1000),
    }
    return paired_changes(kinds, rows, [{**common, "offset": int(offset)} for offset in offsets])


ROUTES = (("live", live, False),)
