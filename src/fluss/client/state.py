# SPDX-License-Identifier: Apache-2.0
"""What the client remembers about a table: its description, its partitions, and the leader of each bucket."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fluss.errors import NonPrimaryKeyTableError
from fluss.metadata.path import TableBucket, TablePath

if TYPE_CHECKING:
    from fluss.metadata import Schema, TableInfo


@dataclass
class PartitionState:
    """One partition of a table as the cluster last described it."""

    table_path: TablePath
    table_id: int
    partition_id: int
    partition_name: str
    leaders: dict[int, int | None] = field(default_factory=dict)
    """Bucket id to the node id of its leader; None while none is elected."""

    def bucket(self, bucket_id: int) -> TableBucket:
        return TableBucket.with_partition(self.table_id, self.partition_id, bucket_id)


@dataclass
class TableState:
    """One table as the cluster last described it. `leaders` is empty for partitioned tables."""

    table_info: TableInfo
    leaders: dict[int, int | None] = field(default_factory=dict)
    partitions: dict[str, PartitionState] = field(default_factory=dict)

    @property
    def table_path(self) -> TablePath:
        return self.table_info.table_path

    @property
    def table_id(self) -> int:
        return self.table_info.table_id

    @property
    def schema_id(self) -> int:
        return self.table_info.schema_id

    @property
    def schema(self) -> Schema:
        return self.table_info.schema

    @property
    def num_buckets(self) -> int:
        return self.table_info.num_buckets

    @property
    def is_partitioned(self) -> bool:
        return self.table_info.is_partitioned()

    def bucket(self, bucket_id: int) -> TableBucket:
        return TableBucket(self.table_id, bucket_id)


def require_primary_key(info: TableInfo, what: str) -> None:
    """Refuse what only a primary-key table can do."""
    if not info.has_primary_key():
        raise NonPrimaryKeyTableError(
            f"Table '{info.table_path}' has no primary key, so it does not support {what}: it is a log table, "
            "to be written with new_append() and read by scanning"
        )
