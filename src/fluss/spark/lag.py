# SPDX-License-Identifier: Apache-2.0
"""How far a stream is behind its table, by bucket: in rows, and in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from fluss.client.blocking_client import BlockingClient
from fluss.errors import FlussError
from fluss.metadata import TableBucket, TableInfo
from fluss.net.deadline import wait_for
from fluss.spark.layout import Bucket

_TIMES_WAIT_S = 2.0
"""How long a report waits for the times of unread rows: the query waits for its report."""


def lag_of(
    client: BlockingClient, info: TableInfo, planned: Mapping[Bucket, int], latest: Mapping[Bucket, int]
) -> dict[str, Any]:
    """What the progress of a query shows: rows and milliseconds behind, together and by bucket.

    Time is the age of the first row that is not planned yet, by its commit time. It is left out of buckets whose row
    could not be read in time.
    """
    rows = {bucket: max(0, end - planned.get(bucket, 0)) for bucket, end in latest.items()}
    behind = {bucket.of(info.table_id): planned.get(bucket, 0) for bucket, count in rows.items() if count}
    times = client.run(_commit_times(client, info, behind)) if behind else {}
    now = int(time.time() * 1000)
    lag: dict[str, dict[str, int]] = {}
    for bucket, count in sorted(rows.items()):
        lag[bucket.key] = {"rows": count}
        committed = times.get(bucket.of(info.table_id))
        if not count or committed is not None:
            lag[bucket.key]["ms"] = 0 if committed is None else max(0, now - committed)
    return {
        "rows_behind": sum(rows.values()),
        "ms_behind": max((one["ms"] for one in lag.values() if "ms" in one), default=0),
        "lag": lag,
    }


async def _commit_times(
    client: BlockingClient, info: TableInfo, positions: Mapping[TableBucket, int]
) -> dict[TableBucket, int]:
    """When the rows at some offsets were committed; one request per server, of one column."""
    found: dict[TableBucket, int] = {}

    async def read() -> None:
        table = await client.connection.get_table(info.table_path)
        scan = table.new_scan().project_by_name(info.schema.column_names[:1])
        async for batch in scan.read_batches(dict(positions), {bucket: at + 1 for bucket, at in positions.items()}):
            if batch.timestamp >= 0:
                found.setdefault(batch.bucket, batch.timestamp)

    try:
        await wait_for(read(), _TIMES_WAIT_S)
    except (FlussError, asyncio.TimeoutError):
        return found  # rows that expired or servers that are down: the query itself reports them
    return found
