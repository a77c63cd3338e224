# SPDX-License-Identifier: Apache-2.0
"""Snapshots of primary-key tables: which there are, where their files lie, and leases on them."""

from __future__ import annotations

import contextlib

from fluss.errors import (
    KvSnapshotNotExistError,
    NonPrimaryKeyTableError,
    PartitionNotExistsError,
    TableNotPartitionedError,
    UnknownTableOrBucketError,
)
from fluss.metadata import TableBucket
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog import TableEntry
from fluss.server.handlers import rights
from fluss.server.handlers.answers import partition_of
from fluss.server.handlers.request import RequestContext
from fluss.server.kv.snapshots import BucketSnapshots
from fluss.server.kv.snapshotter import lease_key


def _check_primary_key(entry: TableEntry) -> None:
    if not entry.table_info.has_primary_key():
        raise NonPrimaryKeyTableError(f"Table '{entry.table_path}' is not a primary key table and has no snapshots.")


async def _snapshots_of(
    ctx: RequestContext, entry: TableEntry, partition_id: int | None, bucket_id: int
) -> BucketSnapshots:
    return await ctx.server.kv.snapshotter.loaded(entry, TableBucket(entry.table_id, bucket_id, partition_id))


async def get_latest_kv_snapshots(
    ctx: RequestContext, request: pb.GetLatestKvSnapshotsRequest
) -> pb.GetLatestKvSnapshotsResponse:
    path = rights.permitted_path(ctx, request.table_path)
    entry = ctx.server.catalog.table(path)
    _check_primary_key(entry)
    response = pb.GetLatestKvSnapshotsResponse(table_id=entry.table_id)
    partition_id: int | None = None
    partition = None
    if entry.is_partitioned:
        partition = entry.partitions.get(request.partition_name) if request.HasField("partition_name") else None
        if partition is None:
            asked = f"'{request.partition_name}'" if request.HasField("partition_name") else "(none named)"
            raise PartitionNotExistsError(f"Partition {asked} of the partitioned table '{path}' does not exist.")
        response.partition_id = partition_id = partition.partition_id
    elif request.HasField("partition_name"):
        raise TableNotPartitionedError(f"Table '{path}' is not a partitioned table.")
    for bucket in range(entry.bucket_count_of(partition)):
        answer = response.latest_snapshots.add(bucket_id=bucket)
        log = ctx.server.tablets.tablet(TableBucket(entry.table_id, bucket, partition_id))
        newest = (await _snapshots_of(ctx, entry, partition_id, bucket)).newest_up_to(log.high_watermark)
        if newest is not None:
            answer.snapshot_id, answer.log_offset = newest.snapshot_id, newest.log_offset
    return response


async def get_kv_snapshot_metadata(
    ctx: RequestContext, request: pb.GetKvSnapshotMetadataRequest
) -> pb.GetKvSnapshotMetadataResponse:
    entry = rights.permitted_table(ctx, request.table_id)
    _check_primary_key(entry)
    partition_id = request.partition_id if request.HasField("partition_id") else None
    snapshots = await _snapshots_of(ctx, entry, partition_id, request.bucket_id)
    log = ctx.server.tablets.find(snapshots.bucket)
    snapshot = None if log is None else snapshots.find(request.snapshot_id, log.high_watermark)
    if snapshot is None:
        raise KvSnapshotNotExistError(
            f"Snapshot {request.snapshot_id} of bucket {request.bucket_id} of table '{entry.table_path}' does not "
            "exist. Ask for the latest one, and lease it to keep it."
        )
    response = pb.GetKvSnapshotMetadataResponse(log_offset=snapshot.log_offset)
    for file in snapshot.files:
        response.snapshot_files.add(remote_path=file.path, local_file_name=file.local_name)
    return response


async def list_kv_snapshots(ctx: RequestContext, request: pb.ListKvSnapshotsRequest) -> pb.ListKvSnapshotsResponse:
    entry = rights.permitted_table(ctx, request.table_id)
    _check_primary_key(entry)
    response = pb.ListKvSnapshotsResponse(table_id=entry.table_id)
    partition_id: int | None = None
    partition = None
    if request.HasField("partition_id"):
        partition = partition_of(entry, request.partition_id)
        response.partition_id = partition_id = partition.partition_id
    for bucket in range(entry.bucket_count_of(partition)):
        log = ctx.server.tablets.tablet(TableBucket(entry.table_id, bucket, partition_id))
        for found in (await _snapshots_of(ctx, entry, partition_id, bucket)).up_to(log.high_watermark):
            response.active_snapshots.add(bucket_id=bucket, snapshot_id=found.snapshot_id, log_offset=found.log_offset)
    return response


def _require_table(ctx: RequestContext, table_id: int) -> TableEntry | None:
    """Check the right and the kind of a table. One that was dropped is no error: its snapshots are unavailable."""
    if ctx.server.authorizer.enabled:
        rights.permitted_table(ctx, table_id)
    entry = ctx.server.catalog.table_by_id(table_id)
    if entry is not None:
        _check_primary_key(entry)
    return entry


def _lease(ctx: RequestContext, lease_id: str) -> str:
    """Leases belong to the user who acquired them: no other can prolong or drop them."""
    return lease_key(str(ctx.session.principal), lease_id)


async def acquire_kv_snapshot_lease(
    ctx: RequestContext, request: pb.AcquireKvSnapshotLeaseRequest
) -> pb.AcquireKvSnapshotLeaseResponse:
    snapshotter = ctx.server.kv.snapshotter
    wanted: dict[TableBucket, int] = {}
    async for table in ctx.each(request.snapshots_to_lease):
        entry = _require_table(ctx, table.table_id)
        async for item in ctx.each(table.bucket_snapshots):
            partition_id = item.partition_id if item.HasField("partition_id") else None
            bucket = TableBucket(table.table_id, item.bucket_id, partition_id)
            wanted[bucket] = item.snapshot_id
            if entry is not None:
                with contextlib.suppress(UnknownTableOrBucketError):
                    await snapshotter.loaded(entry, bucket)
    missing = await snapshotter.acquire(_lease(ctx, request.lease_id), request.lease_duration_ms, wanted)
    response = pb.AcquireKvSnapshotLeaseResponse()
    answers: dict[int, pb.PbKvSnapshotLeaseForTable] = {}
    async for bucket in ctx.each(missing):
        if bucket.table_id not in answers:
            answers[bucket.table_id] = response.unavailable_snapshots.add(table_id=bucket.table_id)
        answers[bucket.table_id].bucket_snapshots.add(
            partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, snapshot_id=wanted[bucket]
        )
    return response


async def release_kv_snapshot_lease(
    ctx: RequestContext, request: pb.ReleaseKvSnapshotLeaseRequest
) -> pb.ReleaseKvSnapshotLeaseResponse:
    buckets: list[TableBucket] = []
    async for item in ctx.each(request.buckets_to_release):
        _require_table(ctx, item.table_id)
        buckets.append(
            TableBucket(item.table_id, item.bucket_id, item.partition_id if item.HasField("partition_id") else None)
        )
    await ctx.server.kv.snapshotter.release(_lease(ctx, request.lease_id), buckets)
    return pb.ReleaseKvSnapshotLeaseResponse()


async def drop_kv_snapshot_lease(
    ctx: RequestContext, request: pb.DropKvSnapshotLeaseRequest
) -> pb.DropKvSnapshotLeaseResponse:
    await ctx.server.kv.snapshotter.drop(_lease(ctx, request.lease_id))
    return pb.DropKvSnapshotLeaseResponse()
