# SPDX-License-Identifier: Apache-2.0
"""The lake: tiering heartbeats, prepare and commit of snapshots, latest snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fluss.errors import FlussError, InvalidCoordinatorError, UnknownServerError, UnknownTableOrBucketError
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog.lake_snapshots import BucketKey
from fluss.server.handlers import rights
from fluss.server.handlers.answers import set_error
from fluss.server.handlers.request import RequestContext


def _bucket_key(item: pb.PbBucketOffset | pb.PbLakeTableOffsetForBucket) -> BucketKey:
    return (item.partition_id if item.HasField("partition_id") else None), item.bucket_id


async def bucket_offsets(
    ctx: RequestContext, items: Iterable[pb.PbBucketOffset | pb.PbLakeTableOffsetForBucket]
) -> dict[BucketKey, int]:
    """Offsets by bucket; entries without an offset say nothing."""
    return {_bucket_key(item): item.log_end_offset async for item in ctx.each(items) if item.HasField("log_end_offset")}


def _check_tierable(ctx: RequestContext, table_id: int) -> None:
    """Raise unless the caller may tier the table. One that it may not see does not exist for it (code 7)."""
    try:
        rights.permitted_table(ctx, table_id)
    except UnknownTableOrBucketError:
        raise ctx.server.catalog.lake.no_table(table_id) from None


async def lake_tiering_heartbeat(
    ctx: RequestContext, request: pb.LakeTieringHeartbeatRequest
) -> pb.LakeTieringHeartbeatResponse:
    catalog = ctx.server.catalog
    tiering = catalog.lake.tiering
    tiering.advance()
    epoch = catalog.coordinator_epoch
    response = pb.LakeTieringHeartbeatResponse(coordinator_epoch=epoch)
    forced = set(request.force_finished_tables)

    stats = {table.table_id: table.lake_tiering_stats for table in request.finished_tables}

    def finish(table_id: int, tiering_epoch: int) -> None:
        tiering.finish(table_id, tiering_epoch, forced=table_id in forced)
        reported = stats[table_id]
        tiering.set_lake_size(
            table_id,
            reported.file_size if reported.HasField("file_size") else None,
            reported.record_count if reported.HasField("record_count") else None,
        )

    async def each(
        tables: Iterable[pb.PbHeartbeatReqForTable],
        act: Callable[[int, int], None],
        add: Callable[..., pb.PbHeartbeatRespForTable],
    ) -> None:
        async for table in ctx.each(tables):
            answer = add(table_id=table.table_id)
            try:
                if table.coordinator_epoch != epoch:
                    raise InvalidCoordinatorError(
                        f"Coordinator epoch {table.coordinator_epoch} is outdated, the current one is {epoch}."
                    )
                _check_tierable(ctx, table.table_id)
                act(table.table_id, table.tiering_epoch)
            except FlussError as error:
                set_error(answer.error, error)

    await each(request.failed_tables, tiering.fail, response.failed_table_resp.add)
    await each(request.tiering_tables, tiering.renew, response.tiering_table_resp.add)
    await each(request.finished_tables, finish, response.finished_table_resp.add)
    if request.request_table and catalog.configs.lake_enabled:
        table = tiering.request(lambda table_id: _may_tier(ctx, table_id))
        entry = catalog.table_by_id(table.table_id) if table else None
        if table is not None and entry is not None:
            response.tiering_table.table_id = table.table_id
            response.tiering_table.tiering_epoch = table.epoch
            response.tiering_table.table_path.database_name = entry.table_path.database_name
            response.tiering_table.table_path.table_name = entry.table_path.table_name
    return response


def _may_tier(ctx: RequestContext, table_id: int) -> bool:
    entry = ctx.server.catalog.table_by_id(table_id)
    return entry is not None and rights.permits(ctx, entry.table_path)


async def prepare_lake_table_snapshot(
    ctx: RequestContext, request: pb.PrepareLakeTableSnapshotRequest
) -> pb.PrepareLakeTableSnapshotResponse:
    lake = ctx.server.catalog.lake
    response = pb.PrepareLakeTableSnapshotResponse()
    async for table in ctx.each(request.bucket_offsets):
        answer = response.prepare_lake_table_resp.add(table_id=table.table_id)
        try:
            _check_tierable(ctx, table.table_id)
            answer.lake_table_offsets_path = await lake.prepare(
                table.table_id,
                await bucket_offsets(ctx, table.bucket_offsets),
                ignore_previous=request.ignore_previous_table_offsets,
            )
        except FlussError as error:
            set_error(answer, error)
    return response


async def commit_lake_table_snapshot(
    ctx: RequestContext, request: pb.CommitLakeTableSnapshotRequest
) -> pb.CommitLakeTableSnapshotResponse:
    lake = ctx.server.catalog.lake
    response = pb.CommitLakeTableSnapshotResponse()
    with_file: set[int] = set()
    async for item in ctx.each(request.lake_table_snapshot_metadata):
        with_file.add(item.table_id)
        answer = response.table_resp.add(table_id=item.table_id)
        try:
            _check_tierable(ctx, item.table_id)
            await lake.commit_files(
                item.table_id,
                item.snapshot_id,
                item.tiered_bucket_offsets_file_path,
                item.readable_bucket_offsets_file_path if item.HasField("readable_bucket_offsets_file_path") else None,
                item.earliest_snapshot_id_to_keep if item.HasField("earliest_snapshot_id_to_keep") else None,
            )
        except FlussError as error:
            set_error(answer, error)
    async for old in ctx.each(request.tables_req):
        # Workers that commit with files repeat their tables here for metrics only.
        if old.HasField("table_id") and old.table_id in with_file:
            continue
        answer = response.table_resp.add(table_id=old.table_id)
        try:
            if not old.HasField("table_id"):
                if not old.HasField("table_path"):
                    raise UnknownServerError("A lake snapshot is committed without a table id and a table path.")
                path = rights.permitted_path(ctx, old.table_path)
                answer.table_id = ctx.server.catalog.table(path).table_id
            _check_tierable(ctx, answer.table_id)
            stamps = {
                _bucket_key(item): item.max_timestamp
                async for item in ctx.each(old.buckets_req)
                if item.HasField("max_timestamp")
            }
            offsets = await bucket_offsets(ctx, old.buckets_req)
            await lake.commit_inline(answer.table_id, old.snapshot_id, offsets, stamps)
        except FlussError as error:
            set_error(answer, error)
    return response


async def get_lake_snapshot(ctx: RequestContext, request: pb.GetLakeSnapshotRequest) -> pb.GetLakeSnapshotResponse:
    path = rights.permitted_path(ctx, request.table_path)
    entry = ctx.server.catalog.table(path)
    snapshot, offsets = ctx.server.catalog.lake.snapshot(
        entry, request.snapshot_id if request.HasField("snapshot_id") else None, readable=request.readable
    )
    response = pb.GetLakeSnapshotResponse(table_id=entry.table_id, snapshotId=snapshot.snapshot_id)
    in_order = sorted(offsets.items(), key=lambda item: (item[0][0] or 0, item[0][1]))
    async for (partition_id, bucket), offset in ctx.each(in_order):
        response.bucket_snapshots.add(partition_id=partition_id, bucket_id=bucket, log_offset=offset)
    return response
