# SPDX-License-Identifier: Apache-2.0
"""What metadata responses said about tables, partitions and leaders, kept until something says it is stale. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Generic, TypeVar

from fluss.errors import NonPrimaryKeyTableError, TableNotExistError
from fluss.metadata.path import COORDINATOR_SERVER, TABLET_SERVER, ServerNode, TableBucket, TablePath
from fluss.protocol import messages as pb

if TYPE_CHECKING:
    from fluss.metadata import Schema, TableInfo

K = TypeVar("K", bound=Hashable)

SCHEMAS_MAX = 10_000
_COUNTS_MAX = 100_000
_MANY_MIN = 1024
_AGE_S_MAX = 3600.0
"""What was heard longer ago is evicted, once there is much: partitions and tables come and go, and a client learns
of a drop only by asking again. What is still used is asked for again."""


class _Heard(Generic[K]):
    """When something was last heard of, oldest first."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._at: dict[K, float] = {}
        self._many = _MANY_MIN

    def add(self, key: K) -> list[K]:
        """Note something that was heard now; return what is to be evicted."""
        now = self._now()
        self._at.pop(key, None)
        self._at[key] = now
        if len(self._at) < self._many:
            return []
        old = [key for key, _ in takewhile(lambda heard: now - heard[1] > _AGE_S_MAX, self._at.items())]
        self._many = max(_MANY_MIN, 2 * (len(self._at) - len(old)))
        return old

    def discard(self, key: K) -> None:
        self._at.pop(key, None)


class MetadataCache:
    """Nodes, tables, partitions, leaders and schemas of a cluster as last heard."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self.coordinator: ServerNode | None = None
        self.tablets: dict[int, ServerNode] = {}
        self.tables: dict[TablePath, TableState] = {}
        self.leaders: dict[TableBucket, int] = {}
        self._partition_names: dict[int, str] = {}
        self.bucket_counts: dict[int | None, int] = {}
        """By partition id. A partition keeps its count for as long as it exists, and its id is not used again."""
        self._schemas: dict[tuple[TablePath, int, int], Schema] = {}
        self._heard_tables: _Heard[TablePath] = _Heard(now)
        self._heard_partitions: _Heard[tuple[TablePath, str]] = _Heard(now)

    def server_nodes(self) -> list[ServerNode]:
        """Coordinator first, then the tablet servers."""
        first = [self.coordinator] if self.coordinator is not None else []
        return first + [self.tablets[node_id] for node_id in sorted(self.tablets)]

    def partition_by_id(self, path: TablePath, partition_id: int) -> PartitionState | None:
        name = self._partition_names.get(partition_id)
        state = self.tables.get(path)
        return None if name is None or state is None else state.partitions.get(name)

    def routing_count(self, bucket: TableBucket) -> int | None:
        """The number of buckets of the bucket's partition, which requests name; None without one, or if not known."""
        return self.bucket_counts.get(bucket.partition_id)

    def learn_bucket_counts(self, counts: Mapping[int | None, int]) -> None:
        """Take in how many buckets partitions have, by their ids."""
        if len(self.bucket_counts) + len(counts) > _COUNTS_MAX:
            self.bucket_counts.clear()
        self.bucket_counts.update(counts)

    def schema(self, state: TableState, schema_id: int) -> Schema | None:
        if state.schema_id == schema_id:
            return state.schema
        return self._schemas.get((state.table_path, state.table_id, schema_id))

    def keep_schema(self, state: TableState, schema_id: int, schema: Schema) -> None:
        if len(self._schemas) >= SCHEMAS_MAX:
            self._schemas.clear()
        self._schemas[(state.table_path, state.table_id, schema_id)] = schema

    # -- learning -------------------------------------------------------------------------------------------------

    def learn(self, response: pb.MetadataResponse, partitions_of: TablePath | None = None) -> None:
        """Take in a response. It names all servers there are; tables and partitions are added to those known.

        `partitions_of` is the table whose partitions were asked for.
        """
        self._learn_nodes(response)
        for table in response.table_metadata:
            self._learn_table(table)
        state = None if partitions_of is None else self.tables.get(partitions_of)
        if state is not None:
            for partition in response.partition_metadata:
                if partition.table_id == state.table_id:
                    self._learn_partition(state, partition)

    def _learn_nodes(self, response: pb.MetadataResponse) -> None:
        self.coordinator = None
        if response.HasField("coordinator_server"):
            server = response.coordinator_server
            self.coordinator = ServerNode(server.node_id, server.host, server.port, COORDINATOR_SERVER)
        self.tablets = {
            server.node_id: ServerNode(server.node_id, server.host, server.port, TABLET_SERVER)
            for server in response.tablet_servers
        }

    def _learn_table(self, table: pb.PbTableMetadata) -> None:
        path = TablePath(table.table_path.database_name, table.table_path.table_name)
        old = self.tables.get(path)
        if old is not None and old.table_id != table.table_id:
            self.invalidate_table(path)
            old = None
        if old is not None and old.schema_id == table.schema_id and old.table_info.modified_time == table.modified_time:
            info = old.table_info
        else:
            info = table_info_of(path, table)
        partitions = old.partitions if old is not None else {}
        state = TableState(info, _leaders_of(table.bucket_metadata), partitions)
        self.tables[path] = state
        for bucket_id, leader_id in state.leaders.items():
            self._learn_leader(state.bucket(bucket_id), leader_id)
        for old_path in self._heard_tables.add(path):
            self.invalidate_table(old_path)

    def _learn_partition(self, state: TableState, partition: pb.PbPartitionMetadata) -> None:
        known = PartitionState(
            state.table_path,
            state.table_id,
            partition.partition_id,
            partition.partition_name,
            partition.bucket_count or len(partition.bucket_metadata) or state.num_buckets,
            _leaders_of(partition.bucket_metadata),
        )
        self.learn_bucket_counts({known.partition_id: known.num_buckets})
        old = state.partitions.get(known.partition_name)
        if old is not None and old.partition_id != known.partition_id:
            self._evict_partition(old)
        state.partitions[known.partition_name] = known
        self._partition_names[known.partition_id] = known.partition_name
        for bucket_id, leader_id in known.leaders.items():
            self._learn_leader(known.bucket(bucket_id), leader_id)
        for old_path, old_name in self._heard_partitions.add((state.table_path, known.partition_name)):
            self.invalidate_partition(old_path, old_name)

    def _learn_leader(self, bucket: TableBucket, leader_id: int | None) -> None:
        if leader_id is None:
            self.leaders.pop(bucket, None)
        else:
            self.leaders[bucket] = leader_id

    # -- what may be stale ----------------------------------------------------------------------------------------

    def invalidate_bucket(self, bucket: TableBucket) -> None:
        self.leaders.pop(bucket, None)

    def invalidate_node(self, node_id: int) -> None:
        """Invalidate everything the node with this id leads."""
        for bucket in [bucket for bucket, leader_id in self.leaders.items() if leader_id == node_id]:
            del self.leaders[bucket]

    def invalidate_table(self, path: TablePath) -> None:
        self._heard_tables.discard(path)
        state = self.tables.pop(path, None)
        if state is None:
            return
        for bucket_id in state.leaders:
            self.leaders.pop(state.bucket(bucket_id), None)
        for partition in state.partitions.values():
            self._evict_partition(partition)

    def invalidate_partition(self, path: TablePath, name: str) -> None:
        self._heard_partitions.discard((path, name))
        state = self.tables.get(path)
        partition = state.partitions.pop(name, None) if state is not None else None
        if partition is not None:
            self._evict_partition(partition)

    def _evict_partition(self, partition: PartitionState) -> None:
        self._heard_partitions.discard((partition.table_path, partition.partition_name))
        self._partition_names.pop(partition.partition_id, None)
        self.bucket_counts.pop(partition.partition_id, None)
        for bucket_id in partition.leaders:
            self.leaders.pop(partition.bucket(bucket_id), None)


def _leaders_of(buckets: Iterable[pb.PbBucketMetadata]) -> dict[int, int | None]:
    return {bucket.bucket_id: bucket.leader_id if bucket.HasField("leader_id") else None for bucket in buckets}


@dataclass
class PartitionState:
    """One partition of a table as the cluster last described it."""

    table_path: TablePath
    table_id: int
    partition_id: int
    partition_name: str
    num_buckets: int
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


def table_info_of(path: TablePath, table: pb.PbTableMetadata | pb.GetTableInfoResponse) -> TableInfo:
    """The description of a table in a response."""
    from fluss.metadata import TableDescriptor, TableInfo  # a first request is sent without them

    return TableInfo(
        path,
        table.table_id,
        table.schema_id,
        TableDescriptor.from_json_bytes(table.table_json),
        table.created_time,
        table.modified_time,
        table.remote_data_dir if table.HasField("remote_data_dir") else None,
        table.bucket_count_epoch if table.HasField("bucket_count_epoch") else None,
    )


def check_table_id(found: TableState | TableInfo, table_id: int) -> None:
    """Refuse a table that has the name of one that was dropped."""
    if found.table_id != table_id:
        raise TableNotExistError(
            f"Table '{found.table_path}' was dropped and created again (id {table_id} is now {found.table_id}); "
            "get the table from the connection again"
        )


def require_primary_key(info: TableInfo, what: str) -> None:
    """Refuse what only a primary-key table can do."""
    if not info.has_primary_key():
        raise NonPrimaryKeyTableError(
            f"Table '{info.table_path}' has no primary key, so it does not support {what}: it is a log table, "
            "to be written with new_append() and read by scanning"
        )
