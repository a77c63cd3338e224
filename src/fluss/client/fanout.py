# SPDX-License-Identifier: Apache-2.0
"""Questions about many buckets: one request to each leader, all at once, retried where metadata was stale."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeVar

from fluss.client.cluster import Cluster
from fluss.client.metadata_cache import PartitionState, TableState
from fluss.client.requests import raise_for_code
from fluss.errors import (
    FlussError,
    FormatError,
    InvalidArgumentError,
    LeaderNotAvailableError,
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

_IN_FLIGHT_MAX = 16
_OFFSET_TYPES = {"earliest": 0, "latest": 1, "timestamp": 2}


async def run_all(works: Iterable[Callable[[], Awaitable[T]]], at_once: int = _IN_FLIGHT_MAX) -> list[T]:
    """Do these at the same time, so many at once, and return their results in order.

    When one fails, the others are cancelled and have ended before the error is raised.
    """
    slots = asyncio.Semaphore(at_once)

    async def one(work: Callable[[], Awaitable[T]]) -> T:
        async with slots:
            return await work()

    tasks = [asyncio.ensure_future(one(work)) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


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
            cluster.metadata.invalidate_node(node_id)
            raise

    return await run_all(partial(one, *item) for item in groups.items())


async def checked_buckets(
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
        buckets = await checked_buckets(cluster, path, wanted, partition_name, deadline)
        offsets = await _ask_offsets(cluster, path, buckets, spec, deadline)
        return {bucket.bucket_id: offset for bucket, offset in offsets.items()}

    what = f"{apis.LIST_OFFSETS.name} of table '{path}'"
    return await cluster.retry(attempt, what=what, path=path, deadline=deadline)


async def list_bucket_offsets(
    cluster: Cluster,
    path: TablePath,
    buckets: Iterable[TableBucket],
    spec: OffsetSpec,
    deadline: Deadline | None = None,
    *,
    skip_dropped: bool = False,
) -> dict[TableBucket, int]:
    """Offsets of many buckets of one table, in the order given, whatever their partitions.

    A partition that was dropped is an error, or left out.
    """
    wanted = list(buckets)
    limit = cluster.deadline(deadline)
    by_partition: dict[int | None, list[TableBucket]] = {}
    for bucket in wanted:
        by_partition.setdefault(bucket.partition_id, []).append(bucket)

    async def ask(partition_id: int | None, group: list[TableBucket]) -> dict[TableBucket, int]:
        try:
            return await _ask_offsets(cluster, path, group, spec, limit)
        except LeaderNotAvailableError:
            await cluster.check_partition(path, partition_id, limit)
            raise

    async def of_partition(partition_id: int | None, group: list[TableBucket]) -> dict[TableBucket, int]:
        def invalidate(_: FlussError) -> None:
            for bucket in group:
                cluster.metadata.invalidate_bucket(bucket)

        what = f"{apis.LIST_OFFSETS.name} of table '{path}'"
        try:
            return await cluster.retry(
                lambda: ask(partition_id, group), what=what, before_retry=invalidate, deadline=limit
            )
        except PartitionNotExistsError:
            if skip_dropped:
                return {}
            raise

    answers = await run_all(partial(of_partition, *item) for item in by_partition.items())
    found = {bucket: offset for answer in answers for bucket, offset in answer.items()}
    return {bucket: found[bucket] for bucket in wanted if bucket in found}


async def _ask_offsets(
    cluster: Cluster, path: TablePath, buckets: Sequence[TableBucket], spec: OffsetSpec, deadline: Deadline
) -> dict[TableBucket, int]:
    """Ask for the offsets of buckets of one partition. No retry."""
    result: dict[TableBucket, int] = {}

    async def send(connection: Connection, group: list[TableBucket]) -> None:
        first = group[0]
        request = pb.ListOffsetsRequest(
            follower_server_id=-1,
            offset_type=_OFFSET_TYPES[spec.kind],
            table_id=first.table_id,
            partition_id=first.partition_id,
            routing_bucket_count=cluster.metadata.routing_count(first),
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

    await per_leader(cluster, path, buckets, send, deadline)
    return result
