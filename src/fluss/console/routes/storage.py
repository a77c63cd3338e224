# SPDX-License-Identifier: Apache-2.0
"""Storage: buckets with offsets, rows and bytes; remote segments; snapshots; and what of it is in the lake."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

from fluss.client.buckets import bucket_offsets, table_buckets
from fluss.console.settings import BUCKETS_MAX
from fluss.console.state import Call
from fluss.errors import AuthorizationError, FlussError, InvalidArgumentError
from fluss.lake.layout import lake_config
from fluss.lake.registry import open_lake
from fluss.lake.service import TieringService
from fluss.lake.status import lake_status, reason_of
from fluss.lake.tasks import LakeSession, LocalRunner
from fluss.metadata import OffsetSpec, PartitionInfo, TableInfo, TablePath


async def storage(call: Call) -> Any:
    """The buckets of a table."""
    table = await call.table()
    info: TableInfo = table.info
    admin = await call.client.admin()
    more_partitions = 0

    def some(known: list[PartitionInfo]) -> list[PartitionInfo]:
        nonlocal more_partitions
        kept = known[: max(1, BUCKETS_MAX // info.num_buckets)]
        more_partitions = len(known) - len(kept)
        return kept

    buckets = await table_buckets(admin, info, some)
    first = await bucket_offsets(admin, info, buckets, OffsetSpec.earliest())
    end = await bucket_offsets(admin, info, buckets, OffsetSpec.latest())
    local = await _local_bytes(call, info.table_id)
    problems: list[str] = []
    details = {name: await _details(call, table, name, problems) for name in dict.fromkeys(buckets.values())}
    found: list[dict[str, Any]] = []
    for bucket, name in itertools.islice(buckets.items(), BUCKETS_MAX):
        rows, snapshots, remote = details[name]
        log_bytes, segments = local.get((bucket.partition_id, bucket.bucket_id), (None, None))
        found.append(
            {
                "partition": name,
                "bucket": bucket.bucket_id,
                "earliest": first.get(bucket),
                "latest": end.get(bucket),
                "rows": rows.get(bucket.bucket_id),
                "log_bytes": log_bytes,
                "segments": segments,
                "remote_end": remote.get(bucket.bucket_id),
                "snapshot": snapshots.get(bucket.bucket_id),
            }
        )
    return {"buckets": found, "more_partitions": more_partitions, "problems": problems[:5]}


async def _details(
    call: Call, table: Any, name: str | None, problems: list[str]
) -> tuple[dict[int, int | None], dict[int, int | None], dict[int, int]]:
    """Rows, newest snapshot and end of the remote log per bucket; what a server cannot say is left out."""
    admin = await call.client.admin()
    rows: dict[int, int | None] = {}
    snapshots: dict[int, int | None] = {}
    remote: dict[int, int] = {}
    try:
        stats = await admin.get_table_stats(table.path, name)
        rows = {bucket.bucket_id: count for bucket, count in stats.bucket_row_counts.items()}
        if table.primary_key:
            kept = await admin.get_latest_kv_snapshots(table.path, name)
            snapshots = {one.bucket.bucket_id: one.snapshot_id for one in kept}
        manifests = await admin.list_remote_log_manifests(table.path, name)
        remote = {one.bucket.bucket_id: one.end_offset for one in manifests}
    except FlussError as error:
        if error.message not in problems:
            problems.append(error.message)
    return rows, snapshots, remote


async def _local_bytes(call: Call, table_id: int) -> dict[tuple[int | None, int], tuple[int, int]]:
    if not call.state.inspection.embedded:
        return {}
    with contextlib.suppress(AuthorizationError):
        await call.client.require_operator()
        answer = await call.state.inspection.ask("storage", table=table_id)
        return {(part, bucket): (size, segments) for part, bucket, size, segments in answer["buckets"]}
    return {}


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
                info = session.info(path)
                with open_lake(lake_config(info, None)) as opened:
                    snapshots = opened.table(info.lake_path).tiered_ids(_SNAPSHOTS_MAX)
            except Exception as error:
                # Whatever a lake library raises: the figures of the server are worth showing all the same.
                problem = reason_of(error)
    document = found.to_json()
    return {
        **document,
        "enabled": True,
        "snapshot": found.snapshot_id,
        "snapshots": sorted(snapshots, reverse=True)[:_SNAPSHOTS_MAX],
        "problem": problem,
        "buckets": document["buckets"][:BUCKETS_MAX],
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


ROUTES = (("storage", storage, False), ("lake", lake, False), ("lake/tier", tier, True))
