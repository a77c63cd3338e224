# SPDX-License-Identifier: Apache-2.0
"""The state of a server and of its tables: options, rows, offsets, sizes, snapshots, and what deserves a warning."""

from __future__ import annotations

import contextlib
import datetime as dt
import math
import os
import re
import shutil
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss._version import VERSION
from fluss.client.buckets import bucket_offsets as offsets_of
from fluss.client.buckets import table_buckets
from fluss.db.internals import admin_call
from fluss.errors import FlussError, InvalidTimestampError
from fluss.metadata import OffsetSpec, TableBucket, TableInfo, epoch_millis
from fluss.metadata.group_rows import GROUPS_TABLE
from fluss.metadata.info import ConfigEntry, moment_from_text
from fluss.server.replication.layout import BackupState

if TYPE_CHECKING:
    from fluss.client.admin import FlussAdmin
    from fluss.db.blocking import Database, Table

_SERIES = re.compile(r"^(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_DISK_FREE_MIN = 0.05
_SKEW_MAX = 3.0
_SKEW_ROWS_MIN = 10_000
_LAG_ROWS_MAX = 1_000_000


@dataclass
class ServerStatus:
    """What is known about a server; None where it cannot be known from here."""

    address: str
    version: str | None = None
    health: str = "unknown"
    security: str = "unknown"
    databases: int = 0
    tables: int = 0
    rows: int | None = 0
    disk_bytes: int | None = None
    disk_free_bytes: int | None = None
    memory_bytes: int | None = None
    connections: int | None = None
    lake_tables: int = 0
    lake_lag_rows: int = 0
    backup_behind_seconds: float | None = None
    """The age of what the continuous backup has completely; None without one."""
    backup_behind_bytes: int | None = None
    warnings: list[str] = field(default_factory=list)


def server_status(db: Database) -> ServerStatus:
    """Look at a server and its tables."""
    found = ServerStatus(db.address)
    options: dict[str, str | None] = {}
    with contextlib.suppress(FlussError):
        options = {entry.key: entry.value for entry in server_options(db)}
    with contextlib.suppress(FlussError):
        found.health = admin_call(db, lambda admin: admin.get_cluster_health()).status.name.lower()
    _security(found, options)
    folder = data_folder(db)
    if folder is not None:
        found.version = VERSION
        found.disk_bytes = folder_size(folder)
        usage = shutil.disk_usage(folder)
        found.disk_free_bytes = usage.free
        if usage.free < usage.total * _DISK_FREE_MIN:
            found.warnings.append(f"the disk of '{folder}' is almost full; free some space or lower table.log.ttl")
    _metrics(found, options)
    if folder is not None and options.get("replication.url"):
        _backup(found, folder)
    for database in sorted(db.databases()):
        found.databases += 1
        for name in sorted(db.tables(database)):
            with contextlib.suppress(FlussError):  # dropped since it was listed
                _add_table(found, db, db.table(f"{database}.{name}"))
    return found


def _security(found: ServerStatus, options: Mapping[str, str | None]) -> None:
    protocols = (options.get("security.protocol.map") or "").lower()
    authorizer = (options.get("authorizer.enabled") or "").lower() == "true"
    found.security = (
        f"{'SASL' if 'sasl' in protocols else 'no login'}, {'access rights' if authorizer else 'no access rights'}"
    )
    listeners = options.get("bind.listeners") or ""
    if "sasl" not in protocols and listeners and not re.search(r"127\.0\.0\.1|localhost|\[::1\]", listeners):
        found.warnings.append(
            f"the server listens on {listeners} without a login; set security.protocol.map, or bind to 127.0.0.1"
        )


def _backup(found: ServerStatus, folder: Path) -> None:
    state = BackupState.load(folder)
    found.backup_behind_seconds = round(max(0.0, time.time() - state.uploaded_ms / 1000), 1)
    found.backup_behind_bytes = state.behind_bytes
    if state.error is not None:
        found.warnings.append(f"the backup is {found.backup_behind_seconds:.0f} s behind: {state.error}")


def _metrics(found: ServerStatus, options: Mapping[str, str | None]) -> None:
    """Read the metrics page, if the server has one that can be reached from here."""
    port = options.get("metrics.prometheus.port")
    if not port:
        return
    host = found.address.split(",")[0].rpartition(":")[0]
    values: dict[str, float] = {}
    with (
        contextlib.suppress(OSError, ValueError),
        urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=2) as page,
    ):
        values = {name: sum(series.values()) for name, series in parse_metrics(page.read().decode()).items()}
    for name, value in values.items():
        if name.endswith("tabletserver_openConnections"):
            found.connections = int(value)
        elif name.endswith("replication_behindSeconds"):
            found.backup_behind_seconds = round(value, 1)
        elif name.endswith("replication_behindBytes"):
            found.backup_behind_bytes = int(value)
    memory = [
        value
        for name, value in values.items()
        if name.endswith(("kvMemorySize", "kvCacheSize", "requestMemorySize", "answerMemorySize"))
    ]
    if memory:
        found.memory_bytes = int(sum(memory))


def parse_metrics(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """The series of a Prometheus page, by name and labels."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for line in text.splitlines():
        match = _SERIES.match(line) if line and line[0] != "#" else None
        if match is None:
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if not math.isfinite(value):  # of a gauge without a value, and no JSON
            continue
        labels = tuple((name, _unescape(label)) for name, label in _LABEL.findall(match["labels"] or ""))
        found.setdefault(match["name"], {})[labels] = value
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def _add_table(found: ServerStatus, db: Database, table: Table[Any]) -> None:
    found.tables += 1
    figures = measure_table(db, table)
    found.rows = None if found.rows is None or figures.rows is None else found.rows + figures.rows
    if figures.lake_lag is not None:
        found.lake_tables += 1
        found.lake_lag_rows += figures.lake_lag
        if figures.lake_lag > _LAG_ROWS_MAX:
            found.warnings.append(
                f'the lake of {table.name} is {figures.lake_lag:,} rows behind; is "fluss tier" running?'
            )
    skew = figures.skew
    if skew is not None and skew > _SKEW_MAX and (figures.rows or 0) > _SKEW_ROWS_MIN:
        found.warnings.append(
            f"the fullest bucket of {table.name} has {skew:.1f} times the average; choose another bucket key"
        )


def table_snapshots(db: Database, table: Table[Any]) -> list[dict[str, Any]]:
    """The snapshots of a table: of every bucket, if it has a primary key, and the newest one in the lake."""
    found: list[dict[str, Any]] = []
    if table.primary_key:
        names = [one.partition_name for one in table.partitions()] if table.info.is_partitioned() else [None]
        for name in names:
            for one in admin_call(db, lambda admin, name=name: admin.get_latest_kv_snapshots(table.path, name)):  # type: ignore[misc]
                if one.snapshot_id is not None:
                    entry = {"bucket": one.bucket.bucket_id, "id": one.snapshot_id, "offset": one.log_offset}
                    found.append({"kind": "bucket", "partition": name, **entry})
    if table.info.config.lake_enabled:
        with contextlib.suppress(FlussError):  # nothing is tiered yet
            snapshot = admin_call(db, lambda admin: admin.get_latest_lake_snapshot(table.path))
            for bucket, offset in snapshot.table_buckets_offset.items():
                entry = {"bucket": bucket.bucket_id, "id": snapshot.snapshot_id, "offset": offset}
                found.append({"kind": "lake", "partition": bucket.partition_id, **entry})
    return found


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
    """An offset for every bucket, by the name of the partition (or None) and the bucket."""

    async def ask(admin: FlussAdmin) -> dict[tuple[str | None, TableBucket], int]:
        buckets = await table_buckets(admin, table.info)
        found = await offsets_of(admin, table.info, buckets, spec)
        return {(buckets[bucket], bucket): offset for bucket, offset in found.items()}

    offsets = admin_call(db, ask)
    return dict(sorted(offsets.items(), key=lambda item: (item[0][0] or "", item[0][1].bucket_id)))


def offsets_at(db: Database, table: Table[Any], at: dt.datetime) -> dict[tuple[str | None, TableBucket], int]:
    """The first offset of every bucket that was written at a time or later."""
    try:
        return bucket_offsets(db, table, OffsetSpec.timestamp(epoch_millis(at)))
    except InvalidTimestampError:
        return bucket_offsets(db, table, OffsetSpec.latest())


def measure_table(db: Database, table: Table[Any]) -> TableReport:
    """Measure a table."""
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
        for (partition, bucket), end in last.items()
    ]
    return TableReport(rows, table_size(data_folder(db), table.info), _lake_lag(db, table, buckets), buckets)


def table_size(folder: Path | None, info: TableInfo) -> int | None:
    """The bytes of a table in the data folder of its server; None if that is not on this machine."""
    if folder is None:
        return None
    place = folder / "tables" / info.table_path.database_name / f"{info.table_path.table_name}-{info.table_id}"
    return folder_size(place) if place.is_dir() else 0


def _lake_lag(db: Database, table: Table[Any], buckets: list[BucketReport]) -> int | None:
    if not table.info.config.lake_enabled:
        return None
    tiered: Mapping[TableBucket, int] = {}
    with contextlib.suppress(FlussError):  # nothing is tiered yet
        tiered = admin_call(db, lambda admin: admin.get_latest_lake_snapshot(table.path)).table_buckets_offset
    return sum(bucket.latest - max(tiered.get(bucket.bucket, 0), bucket.earliest) for bucket in buckets)


def all_tables(db: Database) -> list[str]:
    """The tables of all databases, but not the positions of groups: offsets mean nothing on another server.

    Example:
        all_tables(db)  # ['fluss.orders']
    """
    databases = [name for name in sorted(db.databases()) if name != GROUPS_TABLE.database_name]
    return [f"{name}.{table}" for name in databases for table in sorted(db.tables(name))]


def parse_time(text: str) -> dt.datetime | None:
    """A time as users write it: ``2026-01-01T00:00``, or ``10m`` for ten minutes ago. None if it is neither."""
    try:
        return moment_from_text(text)
    except ValueError:
        return None


def server_options(db: Database) -> list[ConfigEntry]:
    """The options that are set, by name, and where each comes from."""
    return sorted(admin_call(db, lambda admin: admin.describe_cluster_configs()), key=lambda entry: entry.key)


def data_folder(db: Database) -> Path | None:
    """The data folder of the server if it is on this machine and can be read; None otherwise."""
    with contextlib.suppress(FlussError, OSError):
        for entry in server_options(db):
            if entry.key == "data.dir" and entry.value:
                folder = Path(entry.value)
                # Another machine may have a folder of this name: the server writes its address there.
                if folder.is_absolute() and (folder / ".address").exists():
                    return folder
    return None


def folder_size(folder: Path) -> int:
    """The bytes of all files of a folder; files that vanish meanwhile do not count."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total
