# SPDX-License-Identifier: Apache-2.0
"""Admin calls about databases, tables, schemas, partitions and offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from fluss.client.admin.base import AdminBase, check_name
from fluss.client.admin.types import DatabaseSummary, SchemaInfo, TableStats
from fluss.client.arguments import also_called, instance, strings
from fluss.client.cluster import Cluster
from fluss.client.fanout import checked_buckets, list_offsets, per_leader, run_all
from fluss.client.metadata_cache import table_info_of
from fluss.client.requests import pb_path, raise_for_code
from fluss.errors import InvalidArgumentError, PartitionNotExistsError
from fluss.metadata import (
    Column,
    DatabaseDescriptor,
    DatabaseInfo,
    DataType,
    OffsetSpec,
    PartitionInfo,
    PartitionSpec,
    Schema,
    ServerNode,
    TableBucket,
    TableDescriptor,
    TableInfo,
    TablePath,
    data_type_from_arrow,
    partition_name,
    table_path_of,
)
from fluss.metadata.checks import json_bytes
from fluss.metadata.info import AlterConfigOp
from fluss.net.connection import Connection
from fluss.net.deadline import Deadline
from fluss.protocol import apis
from fluss.protocol import messages as pb

_BUCKET_COUNT = "bucket.num"
_POSITION_LAST = 0


class CatalogAdmin(AdminBase):
    """Databases, tables, partitions, offsets."""

    # -- databases ------------------------------------------------------------------------------------------------

    @also_called(name="database_name")
    async def create_database(
        self,
        database_name: str,
        database_descriptor: DatabaseDescriptor | None = None,
        ignore_if_exists: bool = False,
        *,
        timeout: float | None = None,
    ) -> None:
        """Create a database."""
        request = pb.CreateDatabaseRequest(
            database_name=check_name(database_name, "database name"), ignore_if_exists=bool(ignore_if_exists)
        )
        if database_descriptor is not None:
            request.database_json = database_descriptor.to_json_bytes()
        await self._change(apis.CREATE_DATABASE, request, idempotent=bool(ignore_if_exists), timeout=timeout)

    @also_called(name="database_name")
    async def drop_database(
        self,
        database_name: str,
        ignore_if_not_exists: bool = False,
        cascade: bool = True,
        *,
        timeout: float | None = None,
    ) -> None:
        """Drop a database; with `cascade` its tables too, without it a database that has tables is refused."""
        request = pb.DropDatabaseRequest(
            database_name=check_name(database_name, "database name"),
            ignore_if_not_exists=bool(ignore_if_not_exists),
            cascade=bool(cascade),
        )
        await self._change(apis.DROP_DATABASE, request, idempotent=bool(ignore_if_not_exists), timeout=timeout)

    @also_called(name="database_name")
    async def alter_database(
        self,
        database_name: str,
        *,
        set_properties: Mapping[str, str | int | float | bool] | None = None,
        reset_properties: Iterable[str] = (),
        comment: str | None = None,
        ignore_if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change custom properties or the comment of a database."""
        request = pb.AlterDatabaseRequest(
            database_name=check_name(database_name, "database name"),
            ignore_if_not_exists=ignore_if_not_exists,
            comment=comment,
        )
        request.config_changes.extend(_config_changes(set_properties, reset_properties))
        await self._change(apis.ALTER_DATABASE, request, idempotent=True, timeout=timeout)

    async def list_databases(self, *, timeout: float | None = None) -> list[str]:
        """The names of all databases you may see."""
        response = await self._ask(apis.LIST_DATABASES, pb.ListDatabasesRequest(), timeout=timeout)
        return list(response.database_name)

    async def list_database_summaries(self, *, timeout: float | None = None) -> list[DatabaseSummary]:
        """All databases with their age and number of tables."""
        response = await self._ask(apis.LIST_DATABASES, pb.ListDatabasesRequest(include_summary=True), timeout=timeout)
        return [DatabaseSummary(s.database_name, s.created_time, s.table_count) for s in response.database_summary]

    @also_called(name="database_name")
    async def database_exists(self, database_name: str, *, timeout: float | None = None) -> bool:
        """Whether a database exists."""
        request = pb.DatabaseExistsRequest(database_name=check_name(database_name, "database name"))
        return (await self._ask(apis.DATABASE_EXISTS, request, timeout=timeout)).exists

    @also_called(name="database_name")
    async def get_database_info(self, database_name: str, *, timeout: float | None = None) -> DatabaseInfo:
        """Description, creation and modification time of a database."""
        request = pb.GetDatabaseInfoRequest(database_name=check_name(database_name, "database name"))
        response = await self._ask(apis.GET_DATABASE_INFO, request, timeout=timeout)
        descriptor = DatabaseDescriptor.from_json_bytes(response.database_json)
        return DatabaseInfo(database_name, descriptor, response.created_time, response.modified_time)

    # -- tables ---------------------------------------------------------------------------------------------------

    async def create_table(
        self,
        table_path: TablePath | str,
        table_descriptor: TableDescriptor,
        ignore_if_exists: bool | None = False,
        *,
        timeout: float | None = None,
    ) -> None:
        """Create a table."""
        example = ", such as TableDescriptor(schema)"
        descriptor = instance("create_table", "table_descriptor", table_descriptor, TableDescriptor, example)
        request = pb.CreateTableRequest(
            table_path=pb_path(table_path),
            table_json=descriptor.to_json_bytes(),
            ignore_if_exists=bool(ignore_if_exists),
        )
        await self._change(apis.CREATE_TABLE, request, idempotent=bool(ignore_if_exists), timeout=timeout)

    async def drop_table(
        self, table_path: TablePath | str, ignore_if_not_exists: bool = False, *, timeout: float | None = None
    ) -> None:
        """Drop a table with all its data."""
        table_path = table_path_of(table_path)
        request = pb.DropTableRequest(table_path=pb_path(table_path), ignore_if_not_exists=bool(ignore_if_not_exists))
        await self._change(apis.DROP_TABLE, request, idempotent=bool(ignore_if_not_exists), timeout=timeout)
        await self._invalidate(table_path)

    async def alter_table(
        self,
        table_path: TablePath | str,
        *,
        add_columns: Mapping[str, Any] | Sequence[Column] = (),
        drop_columns: Iterable[str] = (),
        rename_columns: Mapping[str, str] | None = None,
        set_properties: Mapping[str, str | int | float | bool] | None = None,
        reset_properties: Iterable[str] = (),
        ignore_if_not_exists: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Add columns at the end, or set and reset properties; a server takes only one of the two per call.

        `add_columns` is a list of `Column`, or a dict of name to `DataType` or pyarrow type. New columns must be
        nullable: rows that exist read them as null. `drop_columns` (names) and `rename_columns` (old to new names) are
        part of the protocol, but no server up to release 1.0 carries them out. The property `bucket.num`,
        set alone, is the number of buckets of partitions that are created from now on; those that exist keep theirs.

        Example:
            await admin.alter_table("shop.orders", set_properties={"bucket.num": 8})
        """
        table_path = table_path_of(table_path)
        request = pb.AlterTableRequest(table_path=pb_path(table_path), ignore_if_not_exists=ignore_if_not_exists)
        properties = dict(set_properties or {})
        if _BUCKET_COUNT in properties:
            request.modify_bucket_count.new_bucket_count = _bucket_count(properties.pop(_BUCKET_COUNT))
        request.config_changes.extend(_config_changes(properties, reset_properties))
        for column in _columns(add_columns):
            message = request.add_columns.add(
                column_name=column.name,
                data_type_json=json_bytes(column.data_type.to_json()),
                comment=column.comment,
                column_position_type=_POSITION_LAST,
            )
            if column.agg_function is not None:
                message.agg_function_type = column.agg_function.name
                for key, value in column.agg_function.parameters.items():
                    message.agg_function_params.add(key=key, value=value)
        for name in strings("alter_table", "drop_columns", drop_columns):
            request.drop_columns.add(column_name=name)
        for old, new in (rename_columns or {}).items():
            request.rename_columns.add(old_column_name=old, new_column_name=new)
        schema_changes = (request.add_columns, request.drop_columns, request.rename_columns)
        if not request.HasField("modify_bucket_count") and not request.config_changes and not any(schema_changes):
            raise InvalidArgumentError("alter_table needs something to change: columns to add, or properties")
        # Properties may be set twice; a change of columns that is made twice is an error.
        await self._change(apis.ALTER_TABLE, request, idempotent=not any(schema_changes), timeout=timeout)
        await self._invalidate(table_path)

    async def get_table_info(self, table_path: TablePath | str, *, timeout: float | None = None) -> TableInfo:
        """The description of a table, fresh from the server."""
        table_path = table_path_of(table_path)
        request = pb.GetTableInfoRequest(table_path=pb_path(table_path))
        response = await self._ask(apis.GET_TABLE_INFO, request, timeout=timeout)
        return table_info_of(table_path, response)

    async def get_table(self, table_path: TablePath | str, *, timeout: float | None = None) -> TableInfo:
        """Older name of `get_table_info`."""
        return await self.get_table_info(table_path, timeout=timeout)

    async def get_table_schema(
        self, table_path: TablePath | str, schema_id: int | None = None, *, timeout: float | None = None
    ) -> SchemaInfo:
        """One version of a table's schema; the latest unless an id is given."""
        request = pb.GetTableSchemaRequest(table_path=pb_path(table_path), schema_id=schema_id)
        response = await self._ask(apis.GET_TABLE_SCHEMA, request, timeout=timeout)
        return SchemaInfo(response.schema_id, Schema.from_json_bytes(response.schema_json))

    async def list_tables(self, database_name: str, *, timeout: float | None = None) -> list[str]:
        """The names of the tables in a database."""
        request = pb.ListTablesRequest(database_name=check_name(database_name, "database name"))
        return list((await self._ask(apis.LIST_TABLES, request, timeout=timeout)).table_name)

    async def table_exists(self, table_path: TablePath | str, *, timeout: float | None = None) -> bool:
        """Whether a table exists."""
        request = pb.TableExistsRequest(table_path=pb_path(table_path))
        return (await self._ask(apis.TABLE_EXISTS, request, timeout=timeout)).exists

    # -- partitions -----------------------------------------------------------------------------------------------

    async def create_partition(
        self,
        table_path: TablePath | str,
        partition_spec: PartitionSpec | Mapping[str, str],
        ignore_if_exists: bool = False,
        *,
        timeout: float | None = None,
    ) -> None:
        """Create a partition: `{"region": "US"}`, with a value for each partition column."""
        request = pb.CreatePartitionRequest(
            table_path=pb_path(table_path),
            partition_spec=_spec_message(partition_spec),
            # The field's name on the wire notwithstanding, it means "ignore if it exists".
            ignore_if_not_exists=bool(ignore_if_exists),
        )
        await self._change(apis.CREATE_PARTITION, request, idempotent=bool(ignore_if_exists), timeout=timeout)

    async def drop_partition(
        self,
        table_path: TablePath | str,
        partition_spec: PartitionSpec | Mapping[str, str],
        ignore_if_not_exists: bool = False,
        *,
        timeout: float | None = None,
    ) -> None:
        """Drop a partition with its data."""
        table_path = table_path_of(table_path)
        request = pb.DropPartitionRequest(
            table_path=pb_path(table_path),
            partition_spec=_spec_message(partition_spec),
            ignore_if_not_exists=bool(ignore_if_not_exists),
        )
        await self._change(apis.DROP_PARTITION, request, idempotent=bool(ignore_if_not_exists), timeout=timeout)
        await self._invalidate(table_path)

    async def list_partition_infos(
        self,
        table_path: TablePath | str,
        partition_spec: PartitionSpec | Mapping[str, str] | None = None,
        *,
        timeout: float | None = None,
    ) -> list[PartitionInfo]:
        """The partitions of a table; with a spec of some partition columns only those that match."""
        request = pb.ListPartitionInfosRequest(table_path=pb_path(table_path))
        if partition_spec is not None:
            request.partial_partition_spec.CopyFrom(_spec_message(partition_spec))
        response = await self._ask(apis.LIST_PARTITION_INFOS, request, timeout=timeout)
        counts: dict[int | None, int] = {
            info.partition_id: info.bucket_count for info in response.partitions_info if info.bucket_count
        }
        self._runner.cluster.metadata.learn_bucket_counts(counts)
        return [
            PartitionInfo(
                info.partition_id,
                partition_name([pair.value for pair in info.partition_spec.partition_key_values]),
                tuple(pair.key for pair in info.partition_spec.partition_key_values),
                info.remote_data_dir if info.HasField("remote_data_dir") else None,
                counts.get(info.partition_id),
            )
            for info in response.partitions_info
        ]

    async def list_partition_infos_with_spec(
        self,
        table_path: TablePath | str,
        partition_spec: PartitionSpec | Mapping[str, str] | None,
        *,
        timeout: float | None = None,
    ) -> list[PartitionInfo]:
        """The same as `list_partition_infos(table_path, partition_spec)`."""
        return await self.list_partition_infos(table_path, partition_spec, timeout=timeout)

    # -- offsets, statistics, nodes -------------------------------------------------------------------------------

    async def list_offsets(
        self,
        table_path: TablePath | str,
        bucket_ids: Sequence[int],
        offset_spec: OffsetSpec | str | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
        timeout: float | None = None,
    ) -> dict[int, int]:
        """Offsets of buckets: `OffsetSpec.earliest()`, `.latest()` or `.timestamp(ms)`.

        The older form `offset_type="earliest" | "latest" | "timestamp", timestamp=…` works too.
        """
        spec = _offset_spec(offset_spec, offset_type, timestamp)
        path, deadline = table_path_of(table_path), self._deadline(timeout)
        return await self._runner.ask(lambda cluster: list_offsets(cluster, path, bucket_ids, spec, None, deadline))

    async def list_partition_offsets(
        self,
        table_path: TablePath | str,
        partition_name: str,
        bucket_ids: Sequence[int],
        offset_spec: OffsetSpec | str | None = None,
        *,
        offset_type: str | None = None,
        timestamp: int | None = None,
        timeout: float | None = None,
    ) -> dict[int, int]:
        """Offsets of the buckets of one partition (its values joined with `$`, as in `PartitionInfo`)."""
        spec = _offset_spec(offset_spec, offset_type, timestamp)
        name = check_name(partition_name, "partition name")
        path, deadline = table_path_of(table_path), self._deadline(timeout)
        return await self._runner.ask(lambda cluster: list_offsets(cluster, path, bucket_ids, spec, name, deadline))

    async def get_table_stats(
        self, table_path: TablePath | str, partition_name: str | None = None, *, timeout: float | None = None
    ) -> TableStats:
        """Row counts of a table (all partitions unless one is named), per bucket and in all."""
        table_path = table_path_of(table_path)
        deadline = self._deadline(timeout)
        names: list[str | None] = [partition_name]
        if partition_name is None:
            state = await self._runner.ask(lambda cluster: cluster.table(table_path, deadline=deadline))
            if state.is_partitioned:
                names = [
                    info.partition_name for info in await self.list_partition_infos(table_path, timeout=deadline.left_s)
                ]

        async def one(cluster: Cluster, name: str | None) -> dict[TableBucket, int | None]:
            try:
                return await _bucket_stats(cluster, table_path, name, deadline)
            except PartitionNotExistsError:
                if partition_name is None:
                    return {}  # dropped since it was listed
                raise

        found = await self._runner.ask(lambda cluster: run_all(partial(one, cluster, name) for name in names))
        counts = {bucket: count for part in found for bucket, count in part.items()}
        known = [count for count in counts.values() if count is not None]
        total = sum(known) if len(known) == len(counts) else None
        return TableStats(table_path, total, counts)

    async def get_server_nodes(self, *, timeout: float | None = None) -> list[ServerNode]:
        """All servers alive: the coordinator, then the tablet servers."""
        deadline = self._deadline(timeout)
        return await self._runner.ask(lambda cluster: cluster.refresh_nodes(deadline))


async def _bucket_stats(
    cluster: Cluster, path: TablePath, partition_name: str | None, deadline: Deadline
) -> dict[TableBucket, int | None]:
    async def send(connection: Connection, group: list[TableBucket]) -> dict[TableBucket, int | None]:
        request = pb.GetTableStatsRequest(table_id=group[0].table_id)
        for bucket in group:
            request.buckets_req.add(
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket_id,
                routing_bucket_count=cluster.metadata.routing_count(bucket),
            )
        response = await cluster.call(connection, apis.GET_TABLE_STATS, request, deadline)
        counts: dict[TableBucket, int | None] = dict.fromkeys(group)
        for part in response.buckets_resp:
            raise_for_code(part, f"table '{path}', bucket {part.bucket_id}")
            partition_id = part.partition_id if part.HasField("partition_id") else group[0].partition_id
            bucket = TableBucket(group[0].table_id, part.bucket_id, partition_id)
            counts[bucket] = part.row_count if part.HasField("row_count") else None
        return counts

    async def attempt() -> dict[TableBucket, int | None]:
        buckets = await checked_buckets(cluster, path, None, partition_name, deadline)
        merged: dict[TableBucket, int | None] = {}
        for counts in await per_leader(cluster, path, buckets, send, deadline):
            merged.update(counts)
        return merged

    what = f"{apis.GET_TABLE_STATS.name} of table '{path}'"
    return await cluster.retry(attempt, what=what, path=path, deadline=deadline)


def _config_changes(
    set_properties: Mapping[str, str | int | float | bool] | None, reset_properties: Iterable[str]
) -> list[pb.PbAlterConfig]:
    changes = [
        pb.PbAlterConfig(config_key=key, config_value=str(value), op_type=AlterConfigOp.SET)
        for key, value in (set_properties or {}).items()
    ]
    changes.extend(
        pb.PbAlterConfig(config_key=key, op_type=AlterConfigOp.DELETE)
        for key in strings("alter", "reset_properties", reset_properties)
    )
    return changes


def _bucket_count(value: object) -> int:
    text = str(value).strip()
    if not text.isdecimal() or not 0 < int(text) < 2**31:
        raise InvalidArgumentError(f"the property 'bucket.num' is a number of buckets, 1 or more, not {value!r}")
    return int(text)


def _columns(columns: Mapping[str, Any] | Sequence[Column]) -> list[Column]:
    if isinstance(columns, Mapping):
        return [
            Column(name, kind if isinstance(kind, DataType) else data_type_from_arrow(kind))
            for name, kind in columns.items()
        ]
    for column in columns:
        if not isinstance(column, Column):
            raise InvalidArgumentError(f"add_columns takes Column objects or a dict of name to type, got {column!r}")
    return list(columns)


def _spec_message(spec: PartitionSpec | Mapping[str, str]) -> pb.PbPartitionSpec:
    values = spec.get_spec_map() if isinstance(spec, PartitionSpec) else spec
    message = pb.PbPartitionSpec()
    for key, value in values.items():
        message.partition_key_values.add(key=key, value=value)
    return message


def _offset_spec(spec: OffsetSpec | str | None, offset_type: str | None, timestamp: int | None) -> OffsetSpec:
    if isinstance(spec, OffsetSpec):
        return spec
    kind = spec if spec is not None else offset_type
    if kind not in ("earliest", "latest", "timestamp"):
        raise InvalidArgumentError(
            f"Expected OffsetSpec.earliest(), OffsetSpec.latest() or OffsetSpec.timestamp(ms), got {kind!r}"
        )
    if kind == "timestamp" and timestamp is None:
        raise InvalidArgumentError("offset_type='timestamp' needs timestamp=<milliseconds since the epoch>")
    return OffsetSpec(kind, timestamp if kind == "timestamp" else None)
