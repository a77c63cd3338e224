# SPDX-License-Identifier: Apache-2.0
"""Figures of a table: rows, offsets, size on disk, how evenly its buckets are filled, how far its lake is behind."""

from __future__ import annotations

import contextlib
import datetime as dt
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fluss.client.buckets import bucket_offsets as offsets_of
from fluss.client.buckets import table_buckets
from fluss.db.internals import admin_call
from fluss.errors import FlussError, InvalidArgumentError, InvalidTimestampError
from fluss.metadata import OffsetSpec, TableBucket, TableInfo
from fluss.tools.server_options import data_folder, folder_size

if TYPE_CHECKING:
    from fluss.client.admin import FlussAdmin
    from fluss.db.blocking import Database, Table


@dataclass(frozen=True)
class BucketReport:
    """One bucket of a table."""

    bucket: TableBucket
    partition: str | None
    earliest: int
    latest: int
    rows: int | None


@dataclass(frozen=True)
class TableReport:
    """A table in figures."""

    rows: int | None
    """None if the server does not count them."""
    size_bytes: int | None
    """On disk; None if the data folder of the server cannot be read from here."""
    lake_lag: int | None
    """Rows of the log that are not in the lake yet; None if the table has none."""
    buckets: list[BucketReport] = field(default_factory=list)

    @property
    def skew(self) -> float | None:
        """The fullest bucket by the average: 1.0 is perfectly even. None for tables without rows."""
        counts = [bucket.latest - bucket.earliest if bucket.rows is None else bucket.rows for bucket in self.buckets]
        total = sum(counts)
        return max(counts) * len(counts) / total if total else None


def bucket_offsets(db: Database, table: Table[Any], spec: OffsetSpec) -> dict[tuple[str | None, TableBucket], int]:
    """An offset for every bucket, by the name of the partition (or None) and the bucket.

    Example:
        ends = bucket_offsets(db, db.table("orders"), OffsetSpec.latest())
    """

    async def ask(admin: FlussAdmin) -> dict[tuple[str | None, TableBucket], int]:
        buckets = await table_buckets(admin, table.info)
        found = await offsets_of(admin, table.info, buckets, spec)
        return {(buckets[bucket], bucket): offset for bucket, offset in found.items()}

    offsets = admin_call(db, ask)
    return dict(sorted(offsets.items(), key=lambda item: (item[0][0] or "", item[0][1].bucket_id)))


def offsets_at(db: Database, table: Table[Any], at: dt.datetime) -> dict[tuple[str | None, TableBucket], int]:
    """The first offset of every bucket that was written at a time or later.

    Example:
        offsets_at(db, db.table("orders"), datetime(2026, 7, 1))
    """
    try:
        return bucket_offsets(db, table, OffsetSpec.timestamp(int(at.timestamp() * 1000)))
    except InvalidTimestampError:
        return bucket_offsets(db, table, OffsetSpec.latest())


def measure_table(db: Database, table: Table[Any]) -> TableReport:
    """Measure a table.

    Example:
        figures = measure_table(db, db.table("orders"))
        print(figures.rows, figures.skew)
    """
    first = bucket_offsets(db, table, OffsetSpec.earliest())
    last = bucket_offsets(db, table, OffsetSpec.latest())
    counts: dict[TableBucket, int | None] = {}
    rows: int | None = None
    with contextlib.suppress(FlussError):  # an older server has no such call
        stats = admin_call(db, lambda admin: admin.get_table_stats(table.path))
        counts, rows = stats.bucket_row_counts, stats.row_count
    if not table.primary_key and rows is None:
        rows = sum(end - first.get(key, end) for key, end in last.items())
    buckets = [
        BucketReport(bucket, partition, first.get((partition, bucket), end), end, counts.get(bucket))
        for (partition, bucket), end in sorted(last.items(), key=lambda item: (item[0][0] or "", item[0][1].bucket_id))
    ]
    return TableReport(rows, _size(db, table.info), _lake_lag(db, table, buckets), buckets)


def _size(db: Database, info: TableInfo) -> int | None:
    folder = data_folder(db)
    if folder is None:
        return None
    place = folder / "tables" / info.table_path.database_name / f"{info.table_path.table_name}-{info.table_id}"
    return folder_size(place) if place.is_dir() else 0


def _lake_lag(db: Database, table: Table[Any], buckets: list[BucketReport]) -> int | None:
    if not table.info.config.lake_enabled:
        return None
    tiered: dict[TableBucket, int] = {}
    with contextlib.suppress(FlussError):  # nothing is tiered yet
        tiered = admin_call(db, lambda admin: admin.get_latest_lake_snapshot(table.path)).table_buckets_offset
    return sum(bucket.latest - max(tiered.get(bucket.bucket, 0), bucket.earliest) for bucket in buckets)


def parse_time(text: str, now: dt.datetime | None = None) -> dt.datetime | None:
    """A time as users write it: ``2026-01-01T00:00``, or ``10m`` for ten minutes ago. None if it is neither.

    Example:
        parse_time("10m")
    """
    units = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
    number, unit = text[:-1], text[-1:]
    if unit in units and number.replace(".", "", 1).isdigit():
        try:
            return (now or dt.datetime.now(dt.timezone.utc)) - dt.timedelta(**{units[unit]: float(number)})
        except OverflowError:
            raise InvalidArgumentError(f"{text!r} is too long ago") from None
    try:
        return dt.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        return None
