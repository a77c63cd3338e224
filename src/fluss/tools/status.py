# SPDX-License-Identifier: Apache-2.0
"""The state of a server in one object: what `fluss status` shows."""

from __future__ import annotations

import contextlib
import re
import shutil
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fluss._version import VERSION
from fluss.db.internals import admin_call
from fluss.errors import FlussError
from fluss.tools.server_options import data_folder, folder_size, server_options
from fluss.tools.table_stats import measure_table

if TYPE_CHECKING:
    from fluss.db.blocking import Database, Table

_METRIC = re.compile(r"^(?P<name>[A-Za-z0-9_]+)(?:\{[^}]*\})? (?P<value>[-+0-9.eE]+)$", re.MULTILINE)
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
    warnings: list[str] = field(default_factory=list)


def server_status(db: Database) -> ServerStatus:
    """Look at a server and its tables.

    Example:
        print(server_status(db).tables)
    """
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
        for match in _METRIC.finditer(page.read().decode()):
            values[match["name"]] = values.get(match["name"], 0.0) + float(match["value"])
    for name, value in values.items():
        if name.endswith("tabletserver_openConnections"):
            found.connections = int(value)
    memory = [
        value
        for name, value in values.items()
        if name.endswith(("kvMemorySize", "kvCacheSize", "requestMemorySize", "answerMemorySize"))
    ]
    if memory:
        found.memory_bytes = int(sum(memory))


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
    """The snapshots of a table: of every bucket, if it has a primary key, and the newest one in the lake.

    Example:
        table_snapshots(db, db.table("orders"))
    """
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
