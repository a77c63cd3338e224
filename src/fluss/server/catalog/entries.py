# SPDX-License-Identifier: Apache-2.0
"""What the catalog knows about one database, table or partition, as plain objects in memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from fluss.errors import PartitionSpecInvalidError, UnknownServerError
from fluss.metadata import HISTORICAL_PARTITION, DatabaseDescriptor, Schema, TableBucket, TableInfo, TablePath
from fluss.server.catalog.documents import Damage

if TYPE_CHECKING:
    from fluss.protocol.fluss_pb2 import PbPartitionMetadata, PbTableMetadata
    from fluss.server.catalog.lake_snapshots import LakeSnapshots


@dataclass(slots=True)
class TableCounters:
    """Counts of one table; they live and go with it.

    Plain attributes and not entries of a dict by labels: every request counts here, and a dict would cost it five
    times as much.
    """

    messages_in: int = 0
    produce_log: int = 0
    produce_log_failed: int = 0
    fetch_log: int = 0
    fetch_log_failed: int = 0
    put_kv: int = 0
    put_kv_failed: int = 0
    lookup: int = 0
    lookup_failed: int = 0
    prefix_lookup: int = 0
    prefix_lookup_failed: int = 0
    limit_scan: int = 0
    limit_scan_failed: int = 0
    remote_copy: int = 0
    """Segments copied to the remote log, or tried to."""
    remote_copy_failed: int = 0
    remote_copy_bytes: int = 0
    remote_delete: int = 0
    """Rounds in which expired segments of the remote log were deleted, or tried to."""
    remote_delete_failed: int = 0
    backpressure_rejections: int = 0


@dataclass
class DatabaseEntry:
    database_id: int
    name: str
    descriptor: DatabaseDescriptor
    created_time: int
    modified_time: int
    tables: dict[str, TableEntry | DamagedTable] = field(default_factory=dict)
    damage: Damage | None = None

    def check_readable(self) -> None:
        if self.damage is not None:
            raise damaged_error(f"database {self.name}", self.damage)


@dataclass
class PartitionEntry:
    partition_id: int
    name: str
    spec: Mapping[str, str]
    """Partition values by partition key, in partition-key order."""
    created_time: int = 0
    damage: Damage | None = None
    bucket_count: int | None = None
    """None in documents of older releases: that of the table, which has never changed."""
    metadata_cache: PbPartitionMetadata | None = field(default=None, repr=False, compare=False)

    @property
    def is_historical(self) -> bool:
        """Whether lookups of expired partitions are sent here; it holds no rows of its own."""
        return self.name == HISTORICAL_PARTITION

    def check_writable(self) -> None:
        if self.is_historical:
            raise PartitionSpecInvalidError(
                f"The partition '{self.name}' is kept by the server for lookups of expired partitions: it can neither "
                "be written to nor dropped. Set 'table.datalake.historical-partition.enabled' to false to remove it."
            )


@dataclass
class TableEntry:
    """A live table. The object stays the same while the table is altered; ``table_info`` is replaced."""

    table_info: TableInfo
    schemas: dict[int, Schema]
    partitions: dict[str, PartitionEntry] = field(default_factory=dict)
    lake: LakeSnapshots | None = None
    counters: TableCounters = field(default_factory=TableCounters, repr=False, compare=False)
    # Encoded answers, made once per change of the table and not per request.
    table_json_cache: bytes | None = field(default=None, repr=False, compare=False)
    metadata_cache: PbTableMetadata | None = field(default=None, repr=False, compare=False)

    @property
    def table_id(self) -> int:
        return self.table_info.table_id

    # What no change of a table touches is found once: every write asks for it.

    @cached_property
    def table_path(self) -> TablePath:
        return self.table_info.table_path

    @cached_property
    def has_primary_key(self) -> bool:
        return self.table_info.has_primary_key()

    @cached_property
    def labels(self) -> tuple[tuple[str, str], ...]:
        """The labels of its metrics."""
        return (("database", self.table_path.database_name), ("table", self.table_path.table_name))

    @property
    def schema_id(self) -> int:
        return self.table_info.schema_id

    @property
    def is_partitioned(self) -> bool:
        return bool(self.table_info.partition_keys)

    def bucket_count_of(self, partition: PartitionEntry | None) -> int:
        """How many buckets a partition has; those of the table if it is not partitioned."""
        return (partition.bucket_count if partition is not None else None) or self.table_info.num_buckets

    def folder(self, partition: PartitionEntry | None = None) -> str:
        """Where its files, or those of one partition, lie below each folder that has some."""
        path = self.table_path
        table = f"{path.database_name}/{path.table_name}-{self.table_id}"
        return table if partition is None else f"{table}/{partition.name}-p{partition.partition_id}"

    @property
    def bucket_total(self) -> int:
        """How many buckets the table has in all its partitions."""
        if not self.is_partitioned:
            return self.table_info.num_buckets
        return sum(map(self.bucket_count_of, self.partitions.values()))

    def invalidate_encoded(self) -> None:
        self.table_json_cache = None
        self.metadata_cache = None


@dataclass(frozen=True)
class Dropped:
    """A table, or one partition of it, that has left the catalog."""

    table: TableEntry
    partition: PartitionEntry | None = None

    @property
    def folder(self) -> str:
        return self.table.folder(self.partition)

    def owns(self, bucket: TableBucket) -> bool:
        if self.partition is not None:
            return bucket.partition_id == self.partition.partition_id
        return bucket.table_id == self.table.table_id


@dataclass(frozen=True)
class DamagedTable:
    """A table whose documents cannot be trusted: it can be named and dropped, nothing else."""

    table_id: int
    table_path: TablePath | None
    """None when not even the name can be read."""
    damage: Damage

    def error(self) -> UnknownServerError:
        return damaged_error(f"Table '{self.table_path}'", self.damage)


def damaged_error(what: str, damage: Damage) -> UnknownServerError:
    # -1 and not one of the storage codes: those are retriable, and a retry will not repair a file.
    return UnknownServerError(
        f"{what} is out of service because its catalog document is damaged ({damage}). Restore the file from a backup "
        f"or from the .prev file beside it and restart the server, or drop the object."
    )
