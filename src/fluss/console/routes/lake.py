# SPDX-License-Identifier: Apache-2.0
"""Lake: what is tiered, how far it is behind, its snapshots, and a round of tiering on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fluss.console.state import Call
from fluss.errors import FlussError, InvalidArgumentError
from fluss.lake.layout import lake_config
from fluss.lake.registry import open_lake
from fluss.lake.service import TieringService
from fluss.lake.session import LakeSession
from fluss.lake.status import lake_status
from fluss.lake.tasks import LocalRunner
from fluss.metadata import TablePath

_SNAPSHOTS_MAX = 100


async def lake(call: Call) -> Any:
    """How far a table is tiered."""
    table = await call.table()
    if not table.info.config.lake_enabled:
        return {"enabled": False, "format": table.info.lake_format}
    return await asyncio.to_thread(_status, call.client.config(), table.path)


def _status(config: Mapping[str, Any], path: TablePath) -> dict[str, Any]:
    with LakeSession(config) as session:
        found = lake_status(session, path)
        snapshots: list[int] = []
        problem = found.problem
        if found.snapshot_id is not None and problem is None:
            try:
                with open_lake(lake_config(session.info(path), None)) as opened:
                    snapshots = opened.table(path).tiered_ids(_SNAPSHOTS_MAX)
            except Exception as error:
                # Whatever a lake library raises: the figures of the server are worth showing all the same.
                problem = error.message if isinstance(error, FlussError) else f"{type(error).__name__}: {error}"
    stats = found.stats
    return {
        "enabled": True,
        "format": found.lake_format,
        "freshness_ms": found.freshness_ms,
        "snapshot": found.snapshot_id,
        "snapshots": sorted(snapshots, reverse=True)[:_SNAPSHOTS_MAX],
        "rows_behind": found.rows_behind,
        "seconds_behind": found.seconds_behind,
        "problem": problem,
        "files": stats.files if stats else None,
        "bytes": stats.size_bytes if stats else None,
        "rows": stats.rows if stats else None,
        "buckets": [
            {
                "partition": one.partition,
                "bucket": one.bucket.bucket_id,
                "tiered": one.tiered,
                "latest": one.latest,
                "rows_behind": one.rows_behind,
                "seconds_behind": one.seconds_behind,
            }
            for one in found.buckets[:1_000]
        ],
    }


async def tier(call: Call) -> Any:
    """Bring the lake up to the log as it is now."""
    call.require_writable()
    table = await call.table()
    if call.state.tiering.locked():
        raise InvalidArgumentError("A round of tiering runs already. Wait until it has ended.")
    async with call.state.tiering:
        return await asyncio.to_thread(_tier, call.client.config(), table.path)


def _tier(config: Mapping[str, Any], path: TablePath) -> dict[str, Any]:
    events: list[dict[str, Any]] = []

    def note(name: str, figures: Mapping[str, Any]) -> None:
        if name in ("finished", "failed") and str(figures.get("table")) == str(path):
            events.append({"event": name, "rows": figures.get("rows"), "snapshot": figures.get("snapshot")})

    TieringService(dict(config), tables=[path], runner=LocalRunner(2), progress=note).run_once()
    return {"rounds": events[-10:]}


ROUTES = (("lake", lake, False), ("lake/tier", tier, True))
