# SPDX-License-Identifier: Apache-2.0
"""Storage: buckets with offsets, rows and bytes; remote segments; snapshots."""

from __future__ import annotations

import contextlib
from typing import Any

from fluss.console.settings import BUCKETS_MAX
from fluss.console.state import Call
from fluss.errors import AuthorizationError, FlussError
from fluss.metadata import OffsetSpec, TableInfo


async def storage(call: Call) -> Any:
    """The buckets of a table."""
    table = await call.table()
    info: TableInfo = table.info
    admin = await call.client.admin()
    names: list[str | None] = [None]
    if info.is_partitioned():
        names = [one.partition_name for one in await table.partitions()]
    numbers = list(range(info.num_buckets))
    kept = names[: max(1, BUCKETS_MAX // max(1, info.num_buckets))]
    ids = {one.partition_name: one.partition_id for one in await table.partitions()}
    local = await _local_bytes(call, info.table_id)
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    for name in kept:
        if name is None:
            first = await admin.list_offsets(table.path, numbers, OffsetSpec.earliest())
            end = await admin.list_offsets(table.path, numbers, OffsetSpec.latest())
        else:
            first = await admin.list_partition_offsets(table.path, name, numbers, OffsetSpec.earliest())
            end = await admin.list_partition_offsets(table.path, name, numbers, OffsetSpec.latest())
        rows, snapshots, remote = await _details(call, table, name, problems)
        for number in numbers[:BUCKETS_MAX]:
            log_bytes, segments = local.get((ids.get(name) if name else None, number), (None, None))
            found.append(
                {
                    "partition": name,
                    "bucket": number,
                    "earliest": first.get(number),
                    "latest": end.get(number),
                    "rows": rows.get(number),
                    "log_bytes": log_bytes,
                    "segments": segments,
                    "remote_end": remote.get(number),
                    "snapshot": snapshots.get(number),
                }
            )
    return {"buckets": found, "more_partitions": len(names) - len(kept), "problems": problems[:5]}


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


ROUTES = (("storage", storage, False),)
