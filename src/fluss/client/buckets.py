# SPDX-License-Identifier: Apache-2.0
"""The buckets of a table, over all its partitions, and their offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fluss.client.fanout import list_bucket_offsets
from fluss.metadata import OffsetSpec, PartitionInfo, Predicate, TableBucket, TableInfo, matching_partitions

if TYPE_CHECKING:
    from fluss.client.admin import FlussAdmin

Partitions = Callable[[list[PartitionInfo]], list[PartitionInfo]]
"""Chooses partitions."""


async def table_buckets(
    admin: FlussAdmin,
    info: TableInfo,
    choose: Partitions | None = None,
    *,
    predicate: Predicate | None = None,
    timeout: float | None = None,
) -> dict[TableBucket, str | None]:
    """The buckets of a table now, or of some of its partitions, each with the name of its partition.

    With a predicate, those of partitions that may hold matching rows.
    """
    if not info.is_partitioned():
        return {TableBucket(info.table_id, number): None for number in range(info.num_buckets)}
    partitions = await admin.list_partition_infos(info.table_path, timeout=timeout)
    if predicate is not None:
        names = [partition.partition_name for partition in partitions]
        kept = matching_partitions(predicate, info.schema, info.partition_keys, names)
        partitions = [partition for partition, wanted in zip(partitions, kept) if wanted]
    return {
        TableBucket.with_partition(info.table_id, partition.partition_id, number): partition.partition_name
        for partition in (partitions if choose is None else choose(partitions))
        for number in range(partition.bucket_count or info.num_buckets)
    }


async def bucket_offsets(
    admin: FlussAdmin, info: TableInfo, buckets: Iterable[TableBucket], spec: OffsetSpec
) -> dict[TableBucket, int]:
    """Offsets of many buckets, in the order given; those of partitions dropped meanwhile are left out."""
    return await admin._runner.ask(
        lambda cluster: list_bucket_offsets(cluster, info.table_path, buckets, spec, skip_dropped=True)
    )
