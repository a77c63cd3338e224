# SPDX-License-Identifier: Apache-2.0
"""What admin calls take and give beyond the metadata classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

from fluss.metadata import Schema, TableBucket, TablePath


@dataclass(frozen=True)
class SchemaInfo:
    """One version of a table's schema."""

    schema_id: int
    schema: Schema


@dataclass(frozen=True)
class DatabaseSummary:
    """One line of a database list."""

    database_name: str
    created_time: int
    table_count: int


class HealthStatus(IntEnum):
    """The cluster in one word."""

    GREEN = 0
    YELLOW = 1
    RED = 2
    UNKNOWN = 3


@dataclass(frozen=True)
class ClusterHealth:
    """Replicas and leaders of a cluster, wanted and present."""

    num_replicas: int
    in_sync_replicas: int
    num_leader_replicas: int
    active_leader_replicas: int
    status: HealthStatus


@dataclass(frozen=True)
class TableStats:
    """Row counts. `row_count` is None as soon as one bucket does not know its own."""

    table_path: TablePath
    row_count: int | None
    bucket_row_counts: dict[TableBucket, int | None] = field(default_factory=dict)


@dataclass(frozen=True)
class KvSnapshot:
    """A snapshot of one bucket of a primary-key table; the log continues it from `log_offset`.

    Both are None while the bucket has no snapshot: read its log from the earliest offset then.
    """

    bucket: TableBucket
    snapshot_id: int | None
    log_offset: int | None


@dataclass(frozen=True)
class KvSnapshotMetadata:
    """The files of one snapshot: remote path to the name each has locally."""

    bucket: TableBucket
    snapshot_id: int
    log_offset: int
    files: dict[str, str]


@dataclass(frozen=True)
class RemoteLogManifest:
    """Where the description of a bucket's tiered log lies."""

    bucket: TableBucket
    path: str
    end_offset: int


@dataclass(frozen=True)
class FileSystemToken:
    """Credentials for the store of tiered data. The token itself is never shown."""

    scheme: str
    token: bytes = field(repr=False)
    expiration_time: int | None
    properties: dict[str, str] = field(repr=False)


@dataclass(frozen=True)
class TieringTable:
    """A table that a tiering service works on: which one, and the epochs that fence off a stale worker."""

    table_id: int
    tiering_epoch: int
    coordinator_epoch: int
    table_path: TablePath | None = None


@dataclass(frozen=True)
class TieringStats:
    """Size of a lake table after a round of tiering."""

    file_size: int | None = None
    record_count: int | None = None


@dataclass(frozen=True)
class TieringHeartbeat:
    """Answer to a heartbeat: the table to work on next, if any, and what went wrong with those reported."""

    coordinator_epoch: int
    table: TieringTable | None
    errors: dict[int, Exception]


@dataclass(frozen=True)
class ProducerOffsets:
    """Offsets a producer registered, to resume from after a failure."""

    producer_id: str
    expiration_time: int | None
    offsets: dict[TableBucket, int]
