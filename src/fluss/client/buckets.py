# SPDX-License-Identifier: Apache-2.0
"""The buckets of a table, over all its partitions, and their offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from fluss.errors import PartitionNotExistsError
from fluss.metadata import OffsetSpec, PartitionInfo, TableBucket, TableInfo

if TYPE_CHECKING:
    from fluss.client.admin import FlussAdmin

Partitions = Callable[[list[PartitionInfo]], list[PartitionInfo]]
"""Chooses partitions."""


async def table_buckets(
    admin: FlussAdmin, info: TableInfo, choose: Partitions | None = None, *, timeout: float | None = None
) -> dict[TableBucket, str | None]:
    """The buckets of a table now, or of some of its partitions, each with the name of its partition."""
    if not info.is_partitioned():
        return {TableBucket(info.table_id, number): None for number in range(info.num_buckets)}
    partitions = await admin.list_partition_infos(info.table_path, timeout=timeout)
    return {
        TableBucket.with_partition(info.table_id, partition.partition_id, number): partition.partition_name
        for partition in (partitions if choose is None else choose(partitions))
        for number in range(partition.bucket_count or info.num_buckets)
    }


async def bucket_offsets(
    admin: FlussAdmin, info: TableInfo, buckets: Mapping[TableBucket, str | None], spec: OffsetSpec
) -> dict[TableBucket, int]:
    """Offsets of many buckets, in the order given; those of partitions dropped meanwhile are left out."""
    by_partition: dict[str | None, list[TableBucket]] = {}
    for bucket, partition in buckets.items():
        by_partition.setdefault(partition, []).append(bucket)

    async def ask(partition: str | None, members: list[TableBucket]) -> dict[TableBucket, int]:
        numbers = [bucket.bucket_id for bucket in members]
        try:
            if partition is None:
                found = await admin.list_offsets(info.table_path, numbers, spec)
            else:
                found = await admin.list_partition_offsets(info.table_path, partition, numbers, spec)
        except PartitionNotExistsError:
            return {}
        return {bucket: found[bucket.bucket_id] for bucket in members if bucket.bucket_id in found}

    answers = await asyncio.gather(*(ask(partition, members) for partition, members in by_partition.items()))
    known = {bucket: offset for answer in answers for bucket, offset in answer.items()}
    return {bucket: known[bucket] for bucket in buckets if bucket in known}
