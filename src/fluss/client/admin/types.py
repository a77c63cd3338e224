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


class ResourceType(IntEnum):
    """What an ACL is about."""

    ANY = 1
    CLUSTER = 2
    DATABASE = 3
    TABLE = 4


class OperationType(IntEnum):
    """What an ACL permits."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DROP = 6
    ALTER = 7
    DESCRIBE = 8


class PermissionType(IntEnum):
    """Whether an ACL allows; there are no denying ACLs."""

    ANY = 1
    ALLOW = 2


CLUSTER_RESOURCE_NAME = "fluss-cluster"


@dataclass(frozen=True)
class AclBinding:
    """Who may do what with which resource.

    `resource_name` is `fluss-cluster`, a database name or `database.table`; `*` means all of that type.
    """

    resource_type: ResourceType
    resource_name: str
    principal_name: str
    operation: OperationType
    principal_type: str = "User"
    host: str = "*"
    permission: PermissionType = PermissionType.ALLOW


@dataclass(frozen=True)
class AclFilter:
    """Which ACLs are meant; what is left out matches anything."""

    resource_type: ResourceType = ResourceType.ANY
    resource_name: str | None = None
    principal_name: str | None = None
    operation: OperationType = OperationType.ANY
    principal_type: str | None = None
    host: str | None = None
    permission: PermissionType = PermissionType.ANY


class AlterConfigOp(IntEnum):
    """How a cluster option is changed; APPEND and SUBTRACT are for options that hold lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True)
class AlterConfig:
    """One change of a cluster option."""

    key: str
    value: str | None = None
    op: AlterConfigOp = AlterConfigOp.SET


@dataclass(frozen=True)
class ConfigEntry:
    """One cluster option in force; `source` says whether it was set at run time or at start."""

    key: str
    value: str | None
    source: str


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
