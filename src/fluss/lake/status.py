# SPDX-License-Identifier: Apache-2.0
"""What is in the lake and what is not yet: per table and bucket, in rows and seconds."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from fluss.errors import FlussError
from fluss.lake.api import LakeStats
from fluss.lake.layout import lake_config
from fluss.lake.registry import open_lake
from fluss.lake.tasks import LakeSession
from fluss.metadata import EARLIEST_OFFSET, OffsetSpec, TableBucket, TableInfo, TablePath


@dataclass(frozen=True)
class BucketStatus:
    """How far one bucket is tiered."""

    bucket: TableBucket
    partition: str | None
    tiered: int | None
    """Everything below this offset is in the lake; None if nothing is."""
    latest: int
    rows_behind: int
    seconds_behind: float
    """Age of the oldest row that is not in the lake; 0 if all are."""


@dataclass(frozen=True)
class TableLakeStatus:
    """How far one table is tiered, and how large it is in the lake."""

    table_path: TablePath
    lake_format: str | None
    freshness_ms: int
    snapshot_id: int | None
    buckets: list[BucketStatus] = field(default_factory=list)
    stats: LakeStats | None = None
    problem: str | None = None
    """Why the lake could not be looked at."""

    @property
    def rows_behind(self) -> int:
        return sum(bucket.rows_behind for bucket in self.buckets)

    @property
    def seconds_behind(self) -> float:
        return max((bucket.seconds_behind for bucket in self.buckets), default=0.0)

    @property
    def tiered(self) -> int:
        return sum(bucket.tiered or 0 for bucket in self.buckets)

    def to_json(self) -> dict[str, Any]:
        """What ``fluss lake status --json`` prints."""
        return {
            "table": str(self.table_path),
            "format": self.lake_format,
            "freshness_ms": self.freshness_ms,
            "snapshot_id": self.snapshot_id,
            "rows_behind": self.rows_behind,
            "seconds_behind": round(self.seconds_behind, 3),
            "files": self.stats.files if self.stats else None,
            "bytes": self.stats.size_bytes if self.stats else None,
            "rows": self.stats.rows if self.stats else None,
            "snapshots": self.stats.snapshots if self.stats else None,
            "problem": self.problem,
            "buckets": [
                {
                    "partition": bucket.partition,
                    "bucket": bucket.bucket.bucket_id,
                    "tiered": bucket.tiered,
                    "latest": bucket.latest,
                    "rows_behind": bucket.rows_behind,
                    "seconds_behind": round(bucket.seconds_behind, 3),
                }
                for bucket in self.buckets
            ],
        }


def reason_of(error: Exception) -> str:
    """What a round or a look at the lake failed with; libraries of lake formats raise errors of many kinds."""
    return error.message if isinstance(error, FlussError) else f"{type(error).__name__}: {error}"


def lake_tables(session: LakeSession) -> list[TablePath]:
    """All tables whose lake is on."""
    found = []
    for database in sorted(session.run(session.admin.list_databases())):
        for name in sorted(session.run(session.admin.list_tables(database))):
            path = TablePath(database, name)
            try:
                enabled = session.info(path).config.lake_enabled
            except FlussError:
                continue  # dropped since it was listed, or out of service
            if enabled:
                found.append(path)
    return found


def lake_status(session: LakeSession, path: TablePath, lake_options: dict[str, str] | None = None) -> TableLakeStatus:
    """Compare what the server recorded with the log and the lake."""
    info = session.info(path)
    snapshot = session.lake_snapshot(path)
    buckets = session.buckets(info)
    latest = session.offsets(info, buckets, OffsetSpec.latest())
    first = session.offsets(info, buckets, OffsetSpec.earliest())
    known = snapshot.table_buckets_offset if snapshot else {}
    found = []
    for bucket, name in buckets.items():
        if bucket not in latest:
            continue
        tiered, end = known.get(bucket), latest[bucket]
        behind = max(0, end - max(tiered if tiered is not None else 0, first.get(bucket, 0)))
        age_s = _age_s(session, info, bucket, tiered, end) if behind else 0.0
        found.append(BucketStatus(bucket, name, tiered, end, behind, age_s))
    stats, problem = None, None
    if snapshot is not None:
        try:
            with open_lake(lake_config(info, lake_options)) as lake:
                stats = lake.table(info.lake_path).stats(snapshot.snapshot_id)
        except Exception as error:
            # Whatever a lake library raises: the figures of the server are worth showing all the same.
            problem = reason_of(error)
    return TableLakeStatus(
        path,
        info.lake_format,
        info.config.lake_freshness_ms,
        snapshot.snapshot_id if snapshot else None,
        found,
        stats,
        problem,
    )


def _age_s(session: LakeSession, info: TableInfo, bucket: TableBucket, tiered: int | None, end: int) -> float:
    """Age of the first row that is not in the lake."""
    scan = session.scan(info.table_path)
    narrow = session.call(lambda: scan.project([0]))
    start = tiered if tiered is not None else EARLIEST_OFFSET
    for batch in session.iterate(narrow.read_batches({bucket: start}, {bucket: end})):
        if batch.timestamp >= 0:
            return max(0.0, time.time() - batch.timestamp / 1000)
    return 0.0
