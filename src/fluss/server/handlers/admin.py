# SPDX-License-Identifier: Apache-2.0
"""Databases, tables and partitions: create, drop, alter, describe; and GET_METADATA, which says where they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluss.errors import (
    FlussError,
    FormatError,
    InvalidAlterTableError,
    InvalidArgumentError,
    InvalidDatabaseError,
    InvalidTableError,
    PartitionNotExistsError,
    SchemaNotExistError,
    TableNotPartitionedError,
    UnknownServerError,
)
from fluss.metadata import (
    AggFunction,
    Column,
    DatabaseDescriptor,
    TableDescriptor,
    TablePath,
    data_type_from_json,
    validate_database_name,
    validate_table_name,
)
from fluss.metadata.acl import Resource
from fluss.metadata.checks import parse_json
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog import DEFAULT_DATABASE, PartitionEntry, TableEntry, partitions, tables
from fluss.server.catalog.tables import check_text
from fluss.server.handlers import rights
from fluss.server.handlers.answers import table_json, table_path
from fluss.server.handlers.request import RequestContext, in_codec_thread

COLUMN_POSITION_LAST = 0

# ---------------------------------------------------------------------- databases


async def create_database(ctx: RequestContext, request: pb.CreateDatabaseRequest) -> pb.CreateDatabaseResponse:
    name = request.database_name
    validate_database_name(name)
    rights.require_cluster(ctx)
    descriptor = DatabaseDescriptor()
    if request.database_json:
        descriptor = await in_codec_thread(ctx, _database_descriptor, name, request.database_json)
    await tables.create_database(ctx.server.catalog, name, descriptor, ignore_if_exists=request.ignore_if_exists)
    return pb.CreateDatabaseResponse()


def _database_descriptor(name: str, document: bytes) -> DatabaseDescriptor:
    try:
        descriptor = DatabaseDescriptor.from_json_bytes(document)
    except FlussError as error:
        raise InvalidDatabaseError(f"The descriptor of database {name} cannot be read: {error.message}") from error
    check_text(descriptor)
    return descriptor


async def drop_database(ctx: RequestContext, request: pb.DropDatabaseRequest) -> pb.DropDatabaseResponse:
    rights.require(ctx, Resource.database(request.database_name))
    await tables.drop_database(
        ctx.server.catalog,
        request.database_name,
        ignore_if_not_exists=request.ignore_if_not_exists,
        cascade=request.cascade,
    )
    return pb.DropDatabaseResponse()


async def alter_database(ctx: RequestContext, request: pb.AlterDatabaseRequest) -> pb.AlterDatabaseResponse:
    rights.require(ctx, Resource.database(request.database_name))
    await tables.alter_database(
        ctx.server.catalog,
        request.database_name,
        config_changes(request.config_changes),
        request.comment if request.HasField("comment") else None,
        ignore_if_not_exists=request.ignore_if_not_exists,
    )
    return pb.AlterDatabaseResponse()


async def list_databases(ctx: RequestContext, request: pb.ListDatabasesRequest) -> pb.ListDatabasesResponse:
    response = pb.ListDatabasesResponse()
    async for name, entry in ctx.each(sorted(ctx.server.catalog.databases.items())):
        if not rights.permits(ctx, Resource.database(name)):
            continue
        if request.include_summary:
            response.database_summary.add(
                database_name=entry.name, created_time=entry.created_time, table_count=len(entry.tables)
            )
        else:
            response.database_name.append(entry.name)
    return response


async def database_exists(ctx: RequestContext, request: pb.DatabaseExistsRequest) -> pb.DatabaseExistsResponse:
    name = request.database_name
    # The default database is not hidden: clients ask for it before they do anything else.
    visible = name == DEFAULT_DATABASE or rights.permits(ctx, Resource.database(name))
    return pb.DatabaseExistsResponse(exists=visible and name in ctx.server.catalog.databases)


async def get_database_info(ctx: RequestContext, request: pb.GetDatabaseInfoRequest) -> pb.GetDatabaseInfoResponse:
    rights.require(ctx, Resource.database(request.database_name))
    entry = ctx.server.catalog.database(request.database_name)
    entry.check_readable()
    return pb.GetDatabaseInfoResponse(
        database_json=entry.descriptor.to_json_bytes(),
        created_time=entry.created_time,
        modified_time=entry.modified_time,
    )


# ---------------------------------------------------------------------- tables


def _named_path(path: pb.PbTablePath) -> TablePath:
    """A path under which something is made or changed, so its names are checked."""
    validate_database_name(path.database_name)
    validate_table_name(path.table_name)
    return TablePath(path.database_name, path.table_name)


def _descriptor(path: TablePath, document: bytes) -> TableDescriptor:
    try:
        return TableDescriptor.from_json_bytes(document)
    except InvalidTableError:
        raise
    except FlussError as error:
        raise InvalidTableError(f"The descriptor of table '{path}' cannot be read: {error.message}") from error


async def create_table(ctx: RequestContext, request: pb.CreateTableRequest) -> pb.CreateTableResponse:
    path = _named_path(request.table_path)
    rights.require(ctx, Resource.database(path.database_name))
    descriptor = await in_codec_thread(ctx, _descriptor, path, request.table_json)
    await tables.create_table(ctx.server.catalog, path, descriptor, ignore_if_exists=request.ignore_if_exists)
    return pb.CreateTableResponse()


async def drop_table(ctx: RequestContext, request: pb.DropTableRequest) -> pb.DropTableResponse:
    if request.ignore_if_not_exists and not (request.table_path.database_name and request.table_path.table_name):
        return pb.DropTableResponse()
    path = rights.permitted_path(ctx, request.table_path)
    await tables.drop_table(ctx.server.catalog, path, ignore_if_not_exists=request.ignore_if_not_exists)
    return pb.DropTableResponse()


def config_changes(changes: Sequence[pb.PbAlterConfig]) -> list[tuple[str, str | None, int]]:
    return [
        (item.config_key, item.config_value if item.HasField("config_value") else None, item.op_type)
        for item in changes
    ]


def _columns(items: Sequence[pb.PbAddColumn]) -> list[Column]:
    return [_column(item) for item in items]


def _column(item: pb.PbAddColumn) -> Column:
    if item.column_position_type != COLUMN_POSITION_LAST:
        raise UnknownServerError(f"Column {item.column_name} can only be added as the last one.")
    try:
        data_type = data_type_from_json(parse_json(item.data_type_json, "data_type"))
    except (FormatError, InvalidArgumentError) as error:
        raise InvalidAlterTableError(
            f"The type of column {item.column_name} cannot be read: {error.message}"
        ) from error
    function = None
    if item.HasField("agg_function_type"):
        parameters: Mapping[str, str] = {pair.key: pair.value for pair in item.agg_function_params}
        function = AggFunction(item.agg_function_type, parameters)
    comment = item.comment if item.HasField("comment") else None
    return Column(item.column_name, data_type, comment, agg_function=function)


async def alter_table(ctx: RequestContext, request: pb.AlterTableRequest) -> pb.AlterTableResponse:
    path = _named_path(request.table_path)
    rights.require(ctx, path)
    catalog, ignore = ctx.server.catalog, request.ignore_if_not_exists
    unsupported = {"drop": request.drop_columns, "rename": request.rename_columns, "modify": request.modify_columns}
    schema_changes = bool(request.add_columns) or any(unsupported.values())
    rescales = request.HasField("modify_bucket_count")
    if bool(request.config_changes) + schema_changes + rescales > 1:
        raise InvalidAlterTableError(
            f"One request alters either table properties, table schema, or table distribution of '{path}'; send two."
        )
    if rescales:
        count = request.modify_bucket_count.new_bucket_count
        await tables.alter_bucket_count(catalog, path, count, ignore_if_not_exists=ignore)
    elif schema_changes:
        if catalog.find_table(path) is None and ignore:
            return pb.AlterTableResponse()
        catalog.table(path)
        for name, items in unsupported.items():
            if items:
                # The first sentence is that of an Apache Fluss server, down to the code.
                raise UnknownServerError(f"Not support {name} column now. Columns can only be added.")
        columns = await in_codec_thread(ctx, _columns, request.add_columns)
        await tables.add_columns(catalog, path, columns, ignore_if_not_exists=ignore)
    else:
        changes = config_changes(request.config_changes)
        await tables.alter_properties(catalog, path, changes, ignore_if_not_exists=ignore)
    return pb.AlterTableResponse()


async def list_tables(ctx: RequestContext, request: pb.ListTablesRequest) -> pb.ListTablesResponse:
    name, catalog = request.database_name, ctx.server.catalog
    entry = catalog.database(name)
    visible = [table async for table in ctx.each(sorted(entry.tables)) if rights.permits(ctx, TablePath(name, table))]
    if not visible and name != DEFAULT_DATABASE and not rights.permits(ctx, Resource.database(name)):
        # An empty list would reveal that the database exists.
        raise catalog.no_database(name)
    return pb.ListTablesResponse(table_name=visible)


async def table_exists(ctx: RequestContext, request: pb.TableExistsRequest) -> pb.TableExistsResponse:
    path = request.table_path
    database = ctx.server.catalog.databases.get(path.database_name)
    exists = database is not None and path.table_name in database.tables and rights.permits(ctx, table_path(path))
    return pb.TableExistsResponse(exists=exists)


async def get_table_info(ctx: RequestContext, request: pb.GetTableInfoRequest) -> pb.GetTableInfoResponse:
    path = rights.permitted_path(ctx, request.table_path)
    entry = ctx.server.catalog.table(path)
    info = entry.table_info
    return pb.GetTableInfoResponse(
        table_id=info.table_id,
        schema_id=info.schema_id,
        table_json=table_json(ctx.server.catalog, entry),
        created_time=info.created_time,
        modified_time=info.modified_time,
        remote_data_dir=info.remote_data_dir,
        bucket_count_epoch=info.bucket_count_epoch or 0,
    )


async def get_table_schema(ctx: RequestContext, request: pb.GetTableSchemaRequest) -> pb.GetTableSchemaResponse:
    path = rights.permitted_path(ctx, request.table_path)
    entry = ctx.server.catalog.table(path)
    schema_id = request.schema_id if request.HasField("schema_id") else entry.schema_id
    schema = entry.schemas.get(schema_id)
    if schema is None:
        raise SchemaNotExistError(f"Table '{path}' has no schema with id {schema_id}; the latest is {entry.schema_id}.")
    return pb.GetTableSchemaResponse(schema_id=schema_id, schema_json=schema.to_json_bytes())


# ---------------------------------------------------------------------- partitions


def _pairs(spec: pb.PbPartitionSpec) -> list[tuple[str, str]]:
    return [(pair.key, pair.value) for pair in spec.partition_key_values]


async def list_partition_infos(
    ctx: RequestContext, request: pb.ListPartitionInfosRequest
) -> pb.ListPartitionInfosResponse:
    path = rights.permitted_path(ctx, request.table_path)
    entry = ctx.server.catalog.table(path)
    if not entry.is_partitioned:
        raise TableNotPartitionedError(f"Table '{path}' is not a partitioned table.")
    wanted = partitions.partial_spec(entry, _pairs(request.partial_partition_spec))
    response = pb.ListPartitionInfosResponse()
    if request.include_system_partitions:
        response.system_partitions_included = True
    async for partition in ctx.each(list(entry.partitions.values())):
        if partition.is_historical and not request.include_system_partitions:
            continue
        if all(partition.spec[key] == value for key, value in wanted.items()):
            info = response.partitions_info.add(
                partition_id=partition.partition_id,
                bucket_count=entry.bucket_count_of(partition),
                remote_data_dir=entry.table_info.remote_data_dir,
            )
            for key, value in partition.spec.items():
                info.partition_spec.partition_key_values.add(key=key, value=value)
    return response


async def create_partition(ctx: RequestContext, request: pb.CreatePartitionRequest) -> pb.CreatePartitionResponse:
    path = rights.permitted_path(ctx, request.table_path)
    # The field's name is a slip of the protocol: it means that an existing partition is fine.
    await partitions.create_partition(
        ctx.server.catalog, path, _pairs(request.partition_spec), ignore_if_exists=request.ignore_if_not_exists
    )
    return pb.CreatePartitionResponse()


async def drop_partition(ctx: RequestContext, request: pb.DropPartitionRequest) -> pb.DropPartitionResponse:
    path = rights.permitted_path(ctx, request.table_path)
    await partitions.drop_partition(
        ctx.server.catalog, path, _pairs(request.partition_spec), ignore_if_not_exists=request.ignore_if_not_exists
    )
    return pb.DropPartitionResponse()


COORDINATOR_ID = 0
LEADER_EPOCH = 0


def _add_buckets(message: pb.PbTableMetadata | pb.PbPartitionMetadata, count: int, server_id: int) -> None:
    for bucket in range(count):
        message.bucket_metadata.add(
            bucket_id=bucket, leader_id=server_id, replica_id=[server_id], leader_epoch=LEADER_EPOCH
        )


def _table_metadata(ctx: RequestContext, entry: TableEntry) -> pb.PbTableMetadata:
    if entry.metadata_cache is None:
        info = entry.table_info
        message = pb.PbTableMetadata(
            table_path=pb.PbTablePath(
                database_name=info.table_path.database_name, table_name=info.table_path.table_name
            ),
            table_id=info.table_id,
            schema_id=info.schema_id,
            table_json=table_json(ctx.server.catalog, entry),
            created_time=info.created_time,
            modified_time=info.modified_time,
            remote_data_dir=info.remote_data_dir,
            bucket_count_epoch=info.bucket_count_epoch or 0,
        )
        if not entry.is_partitioned:
            _add_buckets(message, info.num_buckets, ctx.server.tablet_server_id)
        entry.metadata_cache = message
    return entry.metadata_cache


def _partition_metadata(ctx: RequestContext, entry: TableEntry, partition: PartitionEntry) -> pb.PbPartitionMetadata:
    if partition.metadata_cache is None:
        count = entry.bucket_count_of(partition)
        message = pb.PbPartitionMetadata(
            table_id=entry.table_id,
            partition_name=partition.name,
            partition_id=partition.partition_id,
            bucket_count=count,
        )
        _add_buckets(message, count, ctx.server.tablet_server_id)
        partition.metadata_cache = message
    return partition.metadata_cache


def _add_servers(ctx: RequestContext, response: pb.MetadataResponse) -> None:
    """A client gets the address of the listener it came through: only there its security protocol is spoken."""
    endpoint = ctx.server.advertised_endpoint(ctx.session.listener)
    response.coordinator_server.CopyFrom(
        pb.PbServerNode(node_id=COORDINATOR_ID, host=endpoint.host, port=endpoint.port)
    )
    rack = ctx.server.config.text("tablet-server.rack")
    response.tablet_servers.add(node_id=ctx.server.tablet_server_id, host=endpoint.host, port=endpoint.port, rack=rack)


async def get_metadata(ctx: RequestContext, request: pb.MetadataRequest) -> pb.MetadataResponse:
    catalog = ctx.server.catalog
    response = pb.MetadataResponse()
    _add_servers(ctx, response)
    named: dict[int, TableEntry] = {}
    answered: set[int] = set()
    async for wire_path in ctx.each(request.table_path):
        path = table_path(wire_path)
        if not rights.permits(ctx, path):
            continue
        # A missing table is answered with its own code (7). The Java server wraps it into -1, but clients that read
        # the code get more from the truth.
        entry = catalog.table(path)
        if entry.table_id in named:
            continue  # answered once, however often it is asked for: a small question must not have a giant answer
        named[entry.table_id] = entry
        response.table_metadata.append(_table_metadata(ctx, entry))
    async for wire_partition in ctx.each(request.partitions_path):
        path = table_path(
            pb.PbTablePath(database_name=wire_partition.database_name, table_name=wire_partition.table_name)
        )
        if not rights.permits(ctx, path):
            continue
        owner = catalog.find_table(path)
        partition = owner.partitions.get(wire_partition.partition_name) if owner else None
        if owner is None or partition is None:
            raise PartitionNotExistsError(
                f"Table partition '{path}(p={wire_partition.partition_name})' does not exist."
            )
        if partition.partition_id not in answered:
            answered.add(partition.partition_id)
            response.partition_metadata.append(_partition_metadata(ctx, owner, partition))
    async for partition_id in ctx.each(request.partitions_id):
        # Looked up among the tables of the same request only: old clients cannot place a partition of another table.
        known = catalog.partition_by_id(partition_id)
        if known is None or known[0].table_id not in named:
            raise PartitionNotExistsError(
                f"The partition id '{partition_id}' does not exist in the named tables, or access is not permitted."
            )
        if partition_id not in answered:
            answered.add(partition_id)
            response.partition_metadata.append(_partition_metadata(ctx, *known))
    return response
