# SPDX-License-Identifier: Apache-2.0
"""What a filter says about where rows can be: which partitions, which primary keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fluss.metadata import (
    Compound,
    CompoundFunction,
    Leaf,
    LeafFunction,
    PartitionInfo,
    Predicate,
    TableInfo,
    TimestampLtzType,
    TimestampType,
    key_values,
)
from fluss.metadata import matching_partitions as _matching_partitions
from fluss.rows import logical

KEYS_MAX = 1_000
"""A filter that names more primary keys than this is read by scanning."""
_PYTHON_TIME_DIGITS = 6


def matching_partitions(
    predicate: Predicate, info: TableInfo, partitions: Iterable[PartitionInfo]
) -> list[PartitionInfo]:
    """The partitions that may hold matching rows. When in doubt, a partition stays."""
    found = list(partitions)
    names = [partition.partition_name for partition in found]
    kept = _matching_partitions(predicate, info.schema, info.partition_keys, names)
    return [partition for partition, wanted in zip(found, kept) if wanted]


def keys_of(predicate: Predicate, info: TableInfo) -> list[dict[str, Any]] | None:
    """The primary keys that a filter names, if it allows no others; None if it does not say."""
    types = [info.schema.column(name).data_type for name in info.primary_keys]
    if any(isinstance(t, (TimestampType, TimestampLtzType)) and t.precision > _PYTHON_TIME_DIGITS for t in types):
        return None  # a datetime would lose the nanoseconds
    keys = key_values(predicate, info.schema, info.primary_keys, KEYS_MAX)
    if keys is None:
        return None
    return [
        {name: logical.to_python(value, data_type) for name, value, data_type in zip(info.primary_keys, key, types)}
        for key in keys
    ]


def names_keys_only(predicate: Predicate, info: TableInfo) -> bool:
    """Whether a filter says of the columns of the primary key which values they have, and nothing else."""
    resolved = predicate.resolve(info.schema)
    parts: tuple[Predicate, ...] = (resolved,)
    if isinstance(resolved, Compound) and resolved.function is CompoundFunction.AND:
        parts = resolved.children
    return all(
        isinstance(part, Leaf)
        and part.function in (LeafFunction.EQUAL, LeafFunction.IN)
        and part.column in info.primary_keys
        for part in parts
    )
