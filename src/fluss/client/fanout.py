# SPDX-License-Identifier: Apache-2.0
"""Questions about many buckets: one request to each leader, all at once, retried where metadata was stale."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from fluss.client.cluster import Cluster
from fluss.client.metadata_cache import PartitionState, TableState
from fluss.client.requests import raise_for_code
from fluss.errors import (
    FormatError,
    InvalidArgumentError,
    NetworkError,
    PartitionNotExistsError,
    TableNotPartitionedError,
)
from fluss.metadata import OffsetSpec, TableBucket, TablePath
from fluss.net.connection import Connection
from fluss.net.deadline import Deadline
from fluss.protocol import apis
from fluss.protocol import messages as pb

T = TypeVar("T")

_OFFSET_TYPES = {"earliest": 0, "latest": 1, "timestamp": 2}


async def per_leader(
    cluster: Cluster,
    path: TablePath,
    buckets: Sequence[TableBucket],
    send: Callable[[Connection, list[TableBucket]], Awaitable[T]],
    deadline: Deadline,
) -> list[T]:
    """Group buckets by leader and call `send` for each group. No retry: that is the caller's, around all of it."""
    groups: dict[int, list[TableBucket]] = {}
    for bucket in buckets:
        groups.setdefault(await cluster.leader_id(bucket, path, deadline), []).append(bucket)

    async def one(node_id: int, group: list[TableBucket]) -> T:
        try:
            return await send(await cluster.node(node_id, deadline), group)
        except NetworkError:
            cluster.invalidate_node(node_id)
            raise

    if len(groups) == 1:
        [(node_id, group)] = groups.items()
        return [await one(node_id, group)]
    tasks = [asyncio.ensure_future(one(node_id, group)) for node_id, group in groups.items()]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        # One failure ends the call; the other requests must not go on without a caller.
        for task in tasks:
            task.cancel()


async def buckets_of(
    cluster: Cluster, path: TablePath, bucket_ids: Iterable[int] | None, partition_name: str | None, deadline: Deadline
) -> list[TableBucket]:
    """The named buckets (None: all) of a table or of one of its partitions, checked."""
    named = None if bucket_ids is None else list(bucket_ids)
    try:
        return await _find_buckets(cluster, path, named, partition_name, deadline)
    except (InvalidArgumentError, TableNotPartitionedError):
        # What is cached may be a table or partition that was dropped and created again with another layout.
        await cluster.table(path, refresh=True, deadline=deadline)
        return await _find_buckets(cluster, path, named, partition_name, deadline, refresh=True)


async def _find_buckets(
    cluster: Cluster,
    path: TablePath,
    bucket_ids: list[int] | None,
    partition_name: str | None,
    deadline: Deadline,
    *,
    refresh: bool = False,
) -> list[TableBucket]:
    state = await cluster.table(path, deadline=deadline)
    if partition_name is None and state.is_partitioned:
        raise InvalidArgumentError(f"Table '{path}' is partitioned: name a partition")
    place: TableState | PartitionState = state
    if partition_name is not None:
        if not state.is_partitioned:
            raise TableNotPartitionedError(f"Table '{path}' is not partitioned")
        partition = await cluster.partition(path, partition_name, refresh, deadline)
        if partition is None:
            raise PartitionNotExistsError(f"Table '{path}' has no partition '{partition_name}'")
        place = partition
    wanted = range(place.num_buckets) if bucket_ids is None else bucket_ids
    for bucket_id in wanted:
        if not 0 <= bucket_id < place.num_buckets:
            where = f"table '{path}'" if partition_name is None else f"partition '{partition_name}' of table '{path}'"
            raise InvalidArgumentError(
                f"Bucket {bucket_id} does not exist: {where} has buckets 0 to {place.num_buckets - 1}"
            )
    return [place.bucket(bucket_id) for bucket_id in wanted]


async def list_offsets(
    cluster: Cluster,
    path: TablePath,
    bucket_ids: Iterable[int],
    spec: OffsetSpec,
    partition_name: str | None = None,
    deadline: Deadline | None = None,
) -> dict[int, int]:
    """Offsets of some buckets: bucket id to offset."""
    wanted = list(bucket_ids)
    deadline = cluster.deadline(deadline)

    async def attempt() -> dict[int, int]:
        buckets = await buckets_of(cluster, path, wanted, partition_name, deadline)
        offsets = await list_bucket_offsets(cluster, path, buckets, spec, deadline)
        return {bucket.bucket_id: offset for bucket, offset in offsets.items()}

    what = f"{apis.LIST_OFFSETS.name} of table '{path}'"
    return await cluster.retry(attempt, what=what, path=path, deadline=deadline)


async def list_bucket_offsets(
    cluster: Cluster, path: TablePath, buckets: Sequence[TableBucket], spec: OffsetSpec, deadline: Deadline
) -> dict[TableBucket, int]:
    """Offsets of some buckets of one table, whatever their partitions. No retry."""
    result: dict[TableBucket, int] = {}
    by_partition: dict[int | None, list[TableBucket]] = {}
    for bucket in buckets:
        by_partition.setdefault(bucket.partition_id, []).append(bucket)

    async def send(connection: Connection, group: list[TableBucket]) -> None:
        first = group[0]
        request = pb.ListOffsetsRequest(
            follower_server_id=-1,
            offset_type=_OFFSET_TYPES[spec.kind],
            table_id=first.table_id,
            partition_id=first.partition_id,
            routing_bucket_count=cluster.routing_count(first),
        )
        request.bucket_id.extend(bucket.bucket_id for bucket in group)
        if spec.timestamp_ms is not None:
            request.startTimestamp = spec.timestamp_ms
        response = await cluster.call(connection, apis.LIST_OFFSETS, request, deadline)
        by_id = {bucket.bucket_id: bucket for bucket in group}
        for part in response.buckets_resp:
            raise_for_code(part, f"table '{path}', bucket {part.bucket_id}")
            bucket = by_id.pop(part.bucket_id, None)
            if bucket is None:
                continue
            # Read as 0, an offset that is not there would make a full log an empty one.
            if not part.HasField("offset") or part.offset < 0:
                found = part.offset if part.HasField("offset") else "no offset"
                raise FormatError(f"The server answered {found} to LIST_OFFSETS of {bucket} of table '{path}'")
            result[bucket] = part.offset
        for bucket in by_id.values():
            raise FormatError(f"The server's answer to LIST_OFFSETS says nothing about {bucket} of table '{path}'")

    for group in by_partition.values():
        await per_leader(cluster, path, group, send, deadline)
    return result
