# SPDX-License-Identifier: Apache-2.0
"""Kinds and row counts of all tables that a user sees, counted for all of the user's browsers together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from time import monotonic
from typing import Any

from fluss.aio import FlussAdmin
from fluss.client.fanout import run_all
from fluss.db.targets import DEFAULT_DATABASE
from fluss.errors import FlussError
from fluss.metadata import TablePath
from fluss.net.eager import cancel

_COUNTED_S = 5.0
"""How old counts may be."""
_AT_ONCE = 8
_STATS_S_MAX = 5.0


class TableStatsCache:
    """Counts the rows of tables in the background: a server answers for one table at a time."""

    def __init__(self) -> None:
        self._stats: dict[TablePath, dict[str, Any]] = {}
        self._counted_at = -_COUNTED_S
        self._task: asyncio.Task[None] | None = None

    def known(self, admin: FlussAdmin, paths: Sequence[TablePath]) -> dict[TablePath, dict[str, Any]]:
        """What is known of tables now; they are counted again if that was long ago."""
        if self._task is None and (monotonic() - self._counted_at > _COUNTED_S or set(paths) - set(self._stats)):
            self._task = asyncio.get_running_loop().create_task(self._count(admin, list(paths)))
        return self._stats

    async def counted(self, admin: FlussAdmin, paths: Sequence[TablePath]) -> dict[TablePath, dict[str, Any]]:
        """The same, once all of them are counted."""
        self.known(admin, paths)
        if self._task is not None:
            await asyncio.wait([self._task])
        return self._stats

    async def close(self) -> None:
        await cancel(self._task)

    async def _count(self, admin: FlussAdmin, paths: list[TablePath]) -> None:
        async def one(path: TablePath) -> None:
            self._stats[path] = await _stats(admin, path)

        try:
            await run_all((partial(one, path) for path in paths), _AT_ONCE)
            self._stats = {path: self._stats[path] for path in paths}
            self._counted_at = monotonic()
        finally:
            self._task = None


async def _stats(admin: FlussAdmin, path: TablePath) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": None, "rows": None, "buckets": None}
    try:
        # Each time: a table of this name may have been dropped and created with the other kind.
        info = await admin.get_table_info(path, timeout=_STATS_S_MAX)
        found["kind"] = "primary key" if info.has_primary_key() else "log"
        stats = await admin.get_table_stats(path, timeout=_STATS_S_MAX)
        found |= {"rows": stats.row_count, "buckets": len(stats.bucket_row_counts)}
    except FlussError as error:
        found["problem"] = error.message
    return found


async def visible_tables(admin: FlussAdmin, databases: Sequence[str] = ()) -> dict[str, list[str]]:
    """All databases with the names of their tables.

    A server lists databases on which a user has a right. Those with single tables that the user may read are found by
    asking for their tables: of the default database, and of `databases`.
    """
    listed = await admin.list_databases()
    found: dict[str, list[str]] = {}
    for database in sorted({*listed, *databases, DEFAULT_DATABASE}):
        with contextlib.suppress(FlussError):  # dropped since it was listed, or hidden
            tables = sorted(await admin.list_tables(database))
            if tables or database in listed:
                found[database] = tables
    return found
