# SPDX-License-Identifier: Apache-2.0
"""Overview: health, figures of the last minutes, and the list of tables."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from fluss.console.settings import TABLES_MAX
from fluss.console.state import Call, event_stream
from fluss.errors import AuthorizationError, FlussError
from fluss.metadata import TablePath

_COUNTED_MAX = 200
_STATS_S_MAX = 5.0


async def tables(call: Call) -> Any:
    """All databases with their tables, by name."""
    db = await call.client.db()
    left = TABLES_MAX
    found = []
    for name in await db.databases():
        names = await db.tables(name)
        found.append({"name": name, "tables": names[:left], "more": max(0, len(names) - left)})
        left = max(0, left - len(names))
    return {"databases": found}


async def health(call: Call) -> Any:
    """The cluster in one word, its servers, and the tables with their rows."""
    admin = await call.client.admin()
    answer: dict[str, Any] = {"problem": None, "status": "UNKNOWN", "servers": [], "replicas": None}
    try:
        state = await admin.get_cluster_health()
        answer["status"] = state.status.name
        answer["replicas"] = [state.in_sync_replicas, state.num_replicas]
    except FlussError as error:
        answer["problem"] = error.message
    answer["servers"] = [str(node) for node in await admin.get_server_nodes()][:100]
    answer["tables"], answer["more"] = await _table_rows(call)
    return answer


async def _table_rows(call: Call) -> tuple[list[dict[str, Any]], int]:
    db = await call.client.db()
    admin = await call.client.admin()
    paths = [TablePath(name, table) for name in await db.databases() for table in await db.tables(name)]
    slots = asyncio.Semaphore(8)

    async def count(path: TablePath) -> dict[str, Any]:
        async with slots:
            try:
                stats = await admin.get_table_stats(path, timeout=_STATS_S_MAX)
                return {"name": str(path), "rows": stats.row_count, "buckets": len(stats.bucket_row_counts)}
            except FlussError as error:
                return {"name": str(path), "rows": None, "buckets": None, "problem": error.message}

    return list(await asyncio.gather(*map(count, paths[:_COUNTED_MAX]))), max(0, len(paths) - _COUNTED_MAX)


async def stream(call: Call) -> Any:
    """The samples of the last minutes, then each new one."""
    state = call.state
    try:
        await call.client.require_operator()
        allowed = True
    except AuthorizationError:
        allowed = False

    async def events() -> AsyncIterator[dict[str, Any]]:
        if not allowed:
            yield {"samples": [], "problem": "Figures of the server need the right to describe the cluster."}
            return
        number = 0
        while True:
            samples = await state.sampler.after(number)
            if samples:
                number = samples[-1]["number"]
            problem = state.sampler.problem
            if not samples and problem is None and await state.inspection.figures() is None:
                yield {
                    "samples": [],
                    "problem": "This server was not started together with the console. Start 'fluss ui' with "
                    "--metrics-url http://host:9249/metrics to see its figures.",
                }
                return
            yield {"samples": samples, "problem": problem}

    return event_stream(state, events())


ROUTES = (("tables", tables, False), ("health", health, False), ("overview/stream", stream, False))
