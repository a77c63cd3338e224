# SPDX-License-Identifier: Apache-2.0
"""GET_METADATA: where the servers are, and what the named tables and partitions look like."""

from __future__ import annotations

from fluss.errors import PartitionNotExistsError
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog import PartitionEntry, TableEntry
from fluss.server.handlers import rights
from fluss.server.handlers.answers import table_json, table_path
from fluss.server.handlers.request import Handler, RequestContext, proto_handler

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
        )
        if info.remote_data_dir is not None:
            message.remote_data_dir = info.remote_data_dir
        if not entry.is_partitioned:
            _add_buckets(message, info.num_buckets, ctx.server.tablet_server_id)
        entry.metadata_cache = message
    return entry.metadata_cache


def _partition_metadata(ctx: RequestContext, entry: TableEntry, partition: PartitionEntry) -> pb.PbPartitionMetadata:
    if partition.metadata_cache is None:
        message = pb.PbPartitionMetadata(
            table_id=entry.table_id, partition_name=partition.name, partition_id=partition.partition_id
        )
        _add_buckets(message, entry.bucket_count, ctx.server.tablet_server_id)
        partition.metadata_cache = message
    return partition.metadata_cache


def _add_servers(ctx: RequestContext, response: pb.MetadataResponse) -> None:
    """A client is told the address of the listener it came through: only there its security protocol is spoken."""
    endpoint = ctx.server.advertised_endpoint(ctx.session.listener)
    response.coordinator_server.node_id = COORDINATOR_ID
    response.coordinator_server.host = endpoint.host
    response.coordinator_server.port = endpoint.port
    tablet = response.tablet_servers.add(node_id=ctx.server.tablet_server_id, host=endpoint.host, port=endpoint.port)
    rack = ctx.server.config.text("tablet-server.rack")
    if rack is not None:
        tablet.rack = rack


async def get_metadata(ctx: RequestContext, request: pb.MetadataRequest) -> pb.MetadataResponse:
    catalog = ctx.server.catalog
    response = pb.MetadataResponse()
    _add_servers(ctx, response)
    named: dict[int, TableEntry] = {}
    told: set[int] = set()
    async for wire_path in ctx.each(request.table_path):
        path = table_path(wire_path)
        if not rights.permits(ctx, path):
            continue
        # A missing table is answered with its own code (7). The Java server wraps it into -1, but clients that read
        # the code get more from the truth.
        entry = catalog.table(path)
        if entry.table_id in named:
            continue  # told once, however often it is asked for: a small question must not have a giant answer
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
        if partition.partition_id not in told:
            told.add(partition.partition_id)
            response.partition_metadata.append(_partition_metadata(ctx, owner, partition))
    async for partition_id in ctx.each(request.partitions_id):
        # Looked up among the tables of the same request only: old clients cannot place a partition of another table.
        known = catalog.partition_by_id(partition_id)
        if known is None or known[0].table_id not in named:
            raise PartitionNotExistsError(
                f"Partition with id {partition_id} does not exist in the named tables, or access is not permitted."
            )
        if partition_id not in told:
            told.add(partition_id)
            response.partition_metadata.append(_partition_metadata(ctx, *known))
    return response


def register(registry: dict[int, Handler]) -> None:
    registry[apis.GET_METADATA.key] = proto_handler(apis.GET_METADATA, get_metadata)
