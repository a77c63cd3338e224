# SPDX-License-Identifier: Apache-2.0
"""The cluster as a whole: options, server tags, rebalance, health, producer offsets and tokens."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable

from fluss.errors import (
    AuthorizationError,
    InvalidProducerIdError,
    NoRebalanceInProgressError,
    RebalanceFailureError,
    ServerNotExistError,
)
from fluss.metadata.path import name_problem
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog.lake_snapshots import Offsets
from fluss.server.catalog.producers import ALREADY_EXISTS, CREATED, PRODUCER_TTL_MS_MAX, ProducerEntry
from fluss.server.handlers import rights
from fluss.server.handlers.admin import config_changes
from fluss.server.handlers.answers import partition_of
from fluss.server.handlers.lake import bucket_offsets
from fluss.server.handlers.request import RequestContext

HEALTH_GREEN, HEALTH_RED = 0, 2
REBALANCE_COMPLETED = 3

# ---------------------------------------------------------------------- options


async def describe_cluster_configs(
    ctx: RequestContext, request: pb.DescribeClusterConfigsRequest
) -> pb.DescribeClusterConfigsResponse:
    rights.require_cluster(ctx)
    response = pb.DescribeClusterConfigsResponse()
    for entry in ctx.server.catalog.configs.describe():
        response.configs.add(config_key=entry.key, config_value=entry.value, config_source=entry.source)
    return response


async def alter_cluster_configs(
    ctx: RequestContext, request: pb.AlterClusterConfigsRequest
) -> pb.AlterClusterConfigsResponse:
    rights.require_cluster(ctx)
    catalog = ctx.server.catalog
    configs = catalog.configs
    changes = config_changes(request.alter_configs)

    async def work() -> None:
        dynamic, current = configs.plan(changes)
        if dynamic != configs.dynamic:
            await catalog.in_storage_thread(lambda: configs.write(dynamic))
            configs.apply(dynamic, current)

    if changes:
        await catalog.change(work)
    return pb.AlterClusterConfigsResponse()


# ---------------------------------------------------------------------- tags, rebalance, health


async def _change_tags(ctx: RequestContext, plan: Callable[[], dict[int, int]]) -> None:
    catalog = ctx.server.catalog
    rights.require_cluster(ctx)

    async def work() -> None:
        tags = plan()
        if tags != catalog.server_tags.tags:
            await catalog.in_storage_thread(lambda: catalog.server_tags.write(tags))
            catalog.server_tags.tags = tags

    await catalog.change(work)


async def add_server_tag(ctx: RequestContext, request: pb.AddServerTagRequest) -> pb.AddServerTagResponse:
    tags = ctx.server.catalog.server_tags
    await _change_tags(ctx, lambda: tags.plan_add(list(request.server_ids), request.server_tag))
    return pb.AddServerTagResponse()


async def remove_server_tag(ctx: RequestContext, request: pb.RemoveServerTagRequest) -> pb.RemoveServerTagResponse:
    tags = ctx.server.catalog.server_tags
    await _change_tags(ctx, lambda: tags.plan_remove(list(request.server_ids), request.server_tag))
    return pb.RemoveServerTagResponse()


async def add_server_tag_by_rack(
    ctx: RequestContext, request: pb.AddServerTagByRackRequest
) -> pb.AddServerTagByRackResponse:
    tags = ctx.server.catalog.server_tags
    await _change_tags(ctx, lambda: tags.plan_add(_servers_of(ctx, request.racks), request.server_tag))
    return pb.AddServerTagByRackResponse()


async def remove_server_tag_by_rack(
    ctx: RequestContext, request: pb.RemoveServerTagByRackRequest
) -> pb.RemoveServerTagByRackResponse:
    tags = ctx.server.catalog.server_tags
    await _change_tags(ctx, lambda: tags.plan_remove(_servers_of(ctx, request.racks), request.server_tag))
    return pb.RemoveServerTagByRackResponse()


def _servers_of(ctx: RequestContext, racks: Iterable[str]) -> list[int]:
    """The ids of the servers in some racks: the only one, or an error."""
    own = ctx.server.config.text("tablet-server.rack")
    for rack in racks:
        if rack != own:
            known = f"the only server is in rack {own!r}" if own else "the option tablet-server.rack is not set"
            raise ServerNotExistError(f"No server is in rack {rack!r}: {known}.")
    return [ctx.server.config.integer("tablet-server.id")]


async def rebalance(ctx: RequestContext, request: pb.RebalanceRequest) -> pb.RebalanceResponse:
    """With one server every distribution is balanced: the task is done when it is accepted."""
    rights.require_cluster(ctx)
    if any(goal not in (0, 1, 2) for goal in request.goals):
        raise RebalanceFailureError(f"Rebalance needs known goals (0, 1, 2), not {list(request.goals)}.")
    ctx.server.catalog.rebalance_id = str(uuid.uuid4())
    return pb.RebalanceResponse(rebalance_id=ctx.server.catalog.rebalance_id)


async def list_rebalance_progress(
    ctx: RequestContext, request: pb.ListRebalanceProgressRequest
) -> pb.ListRebalanceProgressResponse:
    rights.require_cluster(ctx)
    last = ctx.server.catalog.rebalance_id
    if last is None:
        return pb.ListRebalanceProgressResponse()
    _check_rebalance(request.rebalance_id if request.HasField("rebalance_id") else last, last)
    return pb.ListRebalanceProgressResponse(rebalance_id=last, rebalance_status=REBALANCE_COMPLETED)


async def cancel_rebalance(ctx: RequestContext, request: pb.CancelRebalanceRequest) -> pb.CancelRebalanceResponse:
    """A single server has nothing to move, and therefore nothing to cancel: that is no error, as on a cluster."""
    rights.require_cluster(ctx)
    last = ctx.server.catalog.rebalance_id
    if last is not None and request.HasField("rebalance_id"):
        _check_rebalance(request.rebalance_id, last)
    return pb.CancelRebalanceResponse()


def _check_rebalance(asked: str, last: str) -> None:
    if asked != last:
        raise NoRebalanceInProgressError(f"The rebalance {asked!r:.100} is not the last one, which is {last}.")


async def get_cluster_health(ctx: RequestContext, request: pb.GetClusterHealthRequest) -> pb.GetClusterHealthResponse:
    rights.require_cluster(ctx)
    catalog = ctx.server.catalog
    buckets = sum(entry.bucket_total for entry in catalog.tables())
    damaged = ctx.server.damaged_bucket_count
    healthy = max(buckets - damaged, 0)
    return pb.GetClusterHealthResponse(
        num_replicas=buckets,
        in_sync_replicas=healthy,
        num_leader_replicas=buckets,
        active_leader_replicas=healthy,
        status=HEALTH_RED if damaged or catalog.damaged_tables_by_id else HEALTH_GREEN,
    )


# ---------------------------------------------------------------------- producer offsets


def _check_producer_id(producer_id: str) -> None:
    problem = name_problem(producer_id)
    if problem is not None:
        raise InvalidProducerIdError(f"Producer id {producer_id} is invalid: {problem}")


def _require_tables(ctx: RequestContext, table_ids: Iterable[int]) -> None:
    if ctx.server.authorizer.enabled:
        for table_id in table_ids:
            rights.permitted_table(ctx, table_id)


async def register_producer_offsets(
    ctx: RequestContext, request: pb.RegisterProducerOffsetsRequest
) -> pb.RegisterProducerOffsetsResponse:
    _check_producer_id(request.producer_id)
    if not request.table_offsets and ctx.server.authorizer.enabled and not ctx.server.authorizer.trusts(ctx.session):
        raise AuthorizationError(f"Producer {request.producer_id} names no table, so there is no right to check.")
    offsets: dict[int, Offsets] = {}
    async for table in ctx.each(request.table_offsets):
        _require_tables(ctx, (table.table_id,))
        offsets[table.table_id] = await bucket_offsets(ctx, table.bucket_offsets)
    catalog, owner = ctx.server.catalog, str(ctx.session.principal)
    ttl_default_ms = catalog.configs.current.integer("coordinator.producer-offsets.ttl")
    ttl_ms = request.ttl_ms if request.HasField("ttl_ms") and request.ttl_ms > 0 else ttl_default_ms
    ttl_ms = min(ttl_ms, max(ttl_default_ms, PRODUCER_TTL_MS_MAX))

    async def work() -> int:
        if catalog.producers.get(owner, request.producer_id) is not None:
            return ALREADY_EXISTS
        entry = ProducerEntry(request.producer_id, catalog.clock_ms() + ttl_ms, offsets, owner)
        catalog.producers.check_room(entry)
        await catalog.in_storage_thread(lambda: catalog.producers.write(entry))
        catalog.producers.apply(entry)
        return CREATED

    return pb.RegisterProducerOffsetsResponse(result=await catalog.change(work))


async def get_producer_offsets(
    ctx: RequestContext, request: pb.GetProducerOffsetsRequest
) -> pb.GetProducerOffsetsResponse:
    _check_producer_id(request.producer_id)
    response = pb.GetProducerOffsetsResponse()
    catalog, authorizer = ctx.server.catalog, ctx.server.authorizer
    entry = catalog.producers.get(str(ctx.session.principal), request.producer_id)
    if entry is None:
        return response
    response.producer_id = entry.producer_id
    response.expiration_time = entry.expires_ms
    for table_id, offsets in entry.offsets.items():
        table = catalog.table_by_id(table_id)
        # With rules on, a table that cannot be checked (it was dropped) is treated like one that may not be read.
        if authorizer.enabled and (table is None or not rights.permits(ctx, table.table_path)):
            continue
        message = response.table_offsets.add(table_id=table_id)
        async for (partition_id, bucket), offset in ctx.each(offsets.items()):
            message.bucket_offsets.add(partition_id=partition_id, bucket_id=bucket, log_end_offset=offset)
    return response


async def delete_producer_offsets(
    ctx: RequestContext, request: pb.DeleteProducerOffsetsRequest
) -> pb.DeleteProducerOffsetsResponse:
    _check_producer_id(request.producer_id)
    catalog = ctx.server.catalog
    owner = str(ctx.session.principal)
    known = catalog.producers.known(owner, request.producer_id)
    if known is not None:
        _require_tables(ctx, [table_id for table_id in known.offsets if catalog.table_by_id(table_id) is not None])

    async def work() -> None:
        entry = catalog.producers.known(owner, request.producer_id)
        if entry is not None:
            await catalog.in_storage_thread(lambda: catalog.producers.erase(entry))
            catalog.producers.remove(entry)

    await catalog.change(work)
    return pb.DeleteProducerOffsetsResponse()


# ---------------------------------------------------------------------- manifests, tokens


async def get_filesystem_security_token(
    ctx: RequestContext, request: pb.GetFileSystemSecurityTokenRequest
) -> pb.GetFileSystemSecurityTokenResponse:
    """Report where the remote data directory is, with temporary credentials if the server can issue some."""
    token = await ctx.server.store_tokens.get()
    response = pb.GetFileSystemSecurityTokenResponse(
        schema=token.scheme, token=token.token, expiration_time=token.expires_ms
    )
    for key, value in token.settings.items():
        response.addition_info.add(key=key, value=value)
    return response


async def list_remote_log_manifests(
    ctx: RequestContext, request: pb.ListRemoteLogManifestsRequest
) -> pb.ListRemoteLogManifestsResponse:
    entry = rights.permitted_table(ctx, request.table_id)
    if request.HasField("partition_id"):
        partition_of(entry, request.partition_id)
    wanted = request.partition_id if request.HasField("partition_id") else None
    response = pb.ListRemoteLogManifestsResponse()
    async for tablet in ctx.each(ctx.server.tablets):
        bucket, remote = tablet.bucket, tablet.remote
        if bucket.table_id != entry.table_id or wanted not in (None, bucket.partition_id):
            continue
        if remote is not None and remote.manifest_path is not None:
            response.manifests.add(
                table_bucket=pb.PbTableBucket(
                    table_id=bucket.table_id, partition_id=bucket.partition_id, bucket_id=bucket.bucket_id
                ),
                remote_log_manifest_path=remote.manifest_path,
                remote_log_end_offset=remote.end_offset,
            )
    return response
