# SPDX-License-Identifier: Apache-2.0
"""What the server reports about tables, databases, snapshots and its options, and how options are changed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from enum import IntEnum
from functools import cached_property
from typing import Any

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata.checks import check_string, member_of
from fluss.metadata.descriptor import DatabaseDescriptor, TableDescriptor, physical_primary_key
from fluss.metadata.path import TableBucket, TablePath
from fluss.metadata.properties import TableConfig
from fluss.metadata.schema import Schema

EARLIEST_OFFSET = -2
"""Start reading at the first offset that is still there."""

LATEST_OFFSET = -1
"""Start reading after the last offset there is."""


_BUCKET_COUNT_MAX = 1_000_000
"""Far above what servers allow by default (128,000): readers make a list of the buckets."""


@dataclass(frozen=True)
class TableInfo:
    """A table as the server knows it."""

    table_path: TablePath
    table_id: int
    schema_id: int
    descriptor: TableDescriptor
    created_time: int
    """When the table was created, in milliseconds since the epoch."""
    modified_time: int
    """When its properties last changed, in milliseconds since the epoch."""
    remote_data_dir: str | None = None
    bucket_count_epoch: int | None = None
    """How often the number of buckets was changed; None if the server cannot change it."""

    def __post_init__(self) -> None:
        count = self.descriptor.bucket_count
        if count is None:
            raise FormatError(f"the description of table {self.table_path} lacks bucket_count")
        if not 0 < count <= _BUCKET_COUNT_MAX:
            raise FormatError(
                f"the description of table {self.table_path} has the bucket_count {count}, "
                f"which is not between 1 and {_BUCKET_COUNT_MAX}"
            )

    @property
    def schema(self) -> Schema:
        """The schema of the table."""
        return self.descriptor.schema

    @property
    def num_buckets(self) -> int:
        """The number of buckets of the table, or of partitions that are created from now on."""
        return self.descriptor.bucket_count or 0

    @property
    def primary_keys(self) -> tuple[str, ...]:
        """The columns of the primary key; empty for log tables."""
        return self.schema.primary_key

    @cached_property
    def physical_primary_key(self) -> tuple[str, ...]:
        """The primary key without the partition keys: the key within a bucket."""
        return physical_primary_key(self.schema, self.partition_keys)

    @property
    def partition_keys(self) -> tuple[str, ...]:
        """The columns the table is partitioned by."""
        return self.descriptor.partition_keys

    @property
    def bucket_keys(self) -> tuple[str, ...]:
        """The columns that decide the bucket of a row; empty where the writer may choose."""
        return self.descriptor.bucket_keys

    @cached_property
    def has_default_bucket_key(self) -> bool:
        """Whether rows are bucketed by the whole physical primary key (log tables: by nothing)."""
        return self.bucket_keys == self.physical_primary_key

    @property
    def lake_path(self) -> TablePath:
        """The name of the table in the lake."""
        return self.config.lake_path(self.table_path)

    @property
    def comment(self) -> str | None:
        """The comment of the table."""
        return self.descriptor.comment

    @property
    def properties(self) -> dict[str, str]:
        """The properties that begin with ``table.``."""
        return self.descriptor.properties

    @property
    def custom_properties(self) -> dict[str, str]:
        """The properties that mean nothing to the server."""
        return self.descriptor.custom_properties

    @property
    def row_type(self) -> Any:
        """The columns as one row type."""
        return self.schema.row_type

    # Typed properties, read once: writers and scanners ask for them per batch.

    @property
    def config(self) -> TableConfig:
        """Typed access to the properties."""
        return self.descriptor.config

    @cached_property
    def log_format(self) -> str:
        """``ARROW``, ``INDEXED`` or ``COMPACTED``."""
        return self.config.log_format

    @cached_property
    def kv_format(self) -> str:
        """``COMPACTED`` or ``INDEXED``."""
        return self.config.kv_format

    @cached_property
    def kv_format_version(self) -> int:
        """Which rule chooses the key encoding: 1 or 2."""
        return self.config.kv_format_version

    @cached_property
    def lake_format(self) -> str | None:
        """``paimon``, ``iceberg``, ``lance``, ``hudi`` or None."""
        return self.config.lake_format

    @cached_property
    def arrow_compression(self) -> tuple[str, int]:
        """Compression type and level of ARROW batches."""
        return self.config.arrow_compression

    # Names of the reference.

    def get_primary_keys(self) -> list[str]:
        """The columns of the primary key; empty for log tables."""
        return list(self.primary_keys)

    def get_physical_primary_keys(self) -> list[str]:
        """The primary key without the partition keys."""
        return list(self.physical_primary_key)

    def get_partition_keys(self) -> list[str]:
        """The columns the table is partitioned by."""
        return list(self.partition_keys)

    def get_bucket_keys(self) -> list[str]:
        """The columns that decide the bucket of a row."""
        return list(self.bucket_keys)

    def has_primary_key(self) -> bool:
        """Whether the table has a primary key."""
        return bool(self.primary_keys)

    def has_bucket_key(self) -> bool:
        """Whether rows are bucketed by columns."""
        return bool(self.bucket_keys)

    def is_partitioned(self) -> bool:
        """Whether the table is partitioned."""
        return bool(self.partition_keys)

    def is_auto_partitioned(self) -> bool:
        """Whether the server creates and drops partitions by time."""
        return self.is_partitioned() and self.config.auto_partition_enabled

    def get_schema(self) -> Schema:
        """The schema of the table."""
        return self.schema

    def get_column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return self.schema.get_column_names()

    def get_column_count(self) -> int:
        """The number of columns."""
        return len(self.schema.columns)

    def get_properties(self) -> dict[str, str]:
        """The properties that begin with ``table.``."""
        return self.properties

    def get_custom_properties(self) -> dict[str, str]:
        """The properties that mean nothing to the server."""
        return self.custom_properties

    def to_table_descriptor(self) -> TableDescriptor:
        """A descriptor that would create the same table."""
        return self.descriptor


@dataclass(frozen=True)
class DatabaseInfo:
    """A database as the server knows it."""

    database_name: str
    database_descriptor: DatabaseDescriptor = field(default_factory=DatabaseDescriptor)
    created_time: int = 0
    """When the database was created, in milliseconds since the epoch."""
    modified_time: int = 0
    """When it last changed, in milliseconds since the epoch."""

    def get_database_descriptor(self) -> DatabaseDescriptor:
        """The comment and custom properties."""
        return self.database_descriptor


@dataclass(frozen=True, repr=False)
class LakeSnapshot:
    """The part of a table that a snapshot of the lake holds: per bucket, the offset where the log goes on."""

    snapshot_id: int
    table_buckets_offset: Mapping[TableBucket, int] = field(default_factory=dict)

    def get_bucket_offset(self, bucket: TableBucket) -> int | None:
        """The offset of a bucket; None if the snapshot holds nothing of it."""
        return self.table_buckets_offset.get(bucket)

    def get_table_buckets(self) -> list[TableBucket]:
        """The buckets the snapshot holds something of."""
        return list(self.table_buckets_offset)

    def __hash__(self) -> int:
        return hash((self.snapshot_id, frozenset(self.table_buckets_offset.items())))

    def __repr__(self) -> str:
        return f"LakeSnapshot(snapshot_id={self.snapshot_id}, buckets_count={len(self.table_buckets_offset)})"


def datetime_from_text(text: str) -> datetime:
    """Read a time in ISO form, such as one to begin at; raise ValueError for any other text."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not read the Z


_AGO = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment_from_text(text: str) -> datetime:
    """Read a time as users write it: ``2026-01-01T00:00``, or ``10m`` for ten minutes ago; ValueError if neither."""
    found = _AGO.fullmatch(text)
    if found is None:
        return datetime_from_text(text)
    try:
        return datetime.now(timezone.utc) - timedelta(**{_UNITS[found[2]]: float(found[1])})
    except OverflowError:
        raise InvalidArgumentError(f"{text!r} is too long ago") from None


def epoch_millis(moment: datetime) -> int:
    """Milliseconds since 1970. A time without a zone is one of this machine's clock, as everywhere in Python."""
    return round(moment.timestamp() * 1000)  # the product may be just below a whole number


@dataclass(frozen=True, repr=False)
class OffsetSpec:
    """Which offset `list_offsets` shall find: use `earliest`, `latest` or `timestamp`."""

    kind: str
    """``earliest``, ``latest`` or ``timestamp``."""
    timestamp_ms: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in ("earliest", "latest", "timestamp"):
            raise InvalidArgumentError(f"an offset is 'earliest', 'latest' or 'timestamp', not {self.kind!r}")
        is_number = isinstance(self.timestamp_ms, int) and not isinstance(self.timestamp_ms, bool)
        if is_number != (self.kind == "timestamp"):
            raise InvalidArgumentError(
                "a timestamp offset, and no other, takes a timestamp in milliseconds since the epoch, not "
                f"{self.timestamp_ms!r:.80}"
            )
        if self.timestamp_ms is not None and not -(1 << 63) <= self.timestamp_ms < 1 << 63:
            raise InvalidArgumentError(f"the timestamp {self.timestamp_ms} of an offset has more than 64 bits")

    @staticmethod
    def earliest() -> OffsetSpec:
        """The first offset that is still there."""
        return OffsetSpec("earliest")

    @staticmethod
    def latest() -> OffsetSpec:
        """The offset after the last record."""
        return OffsetSpec("latest")

    @staticmethod
    def timestamp(ts: int) -> OffsetSpec:
        """The offset of the first record at or after a time in milliseconds since the epoch."""
        return OffsetSpec("timestamp", ts)

    def __repr__(self) -> str:
        return f"OffsetSpec.{self.kind}({'' if self.timestamp_ms is None else self.timestamp_ms})"


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

    def __post_init__(self) -> None:
        check_string("key of an AlterConfig", self.key)
        if self.value is not None and not isinstance(self.value, str):
            # It may be a secret: what was given is not shown.
            raise InvalidArgumentError(
                f"value of the AlterConfig of {self.key!r} must be a string or None, not {type(self.value).__name__}"
            )
        op = member_of(AlterConfigOp, f"op of the AlterConfig of {self.key!r}", self.op)
        object.__setattr__(self, "op", op)


@dataclass(frozen=True)
class ConfigEntry:
    """One cluster option in force; `source` says whether it was set at run time or at start."""

    key: str
    value: str | None
    source: str
