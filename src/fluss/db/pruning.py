# SPDX-License-Identifier: Apache-2.0
"""What a filter says about where rows can be: which partitions, which primary keys."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa

from fluss.metadata import (
    BigIntType,
    CharType,
    Compound,
    CompoundFunction,
    DataType,
    IntType,
    Leaf,
    LeafFunction,
    PartitionInfo,
    Predicate,
    SmallIntType,
    StringType,
    TableInfo,
    TinyIntType,
    split_partition_name,
)
from fluss.rows import logical

KEYS_MAX = 1_000
"""A filter that names more primary keys than this is read by scanning."""

_READABLE: tuple[tuple[tuple[type[DataType], ...], Callable[[str], Any]], ...] = (
    ((CharType, StringType), str),
    ((TinyIntType, SmallIntType, IntType, BigIntType), int),
)


def matching_partitions(
    predicate: Predicate, info: TableInfo, partitions: Iterable[PartitionInfo]
) -> list[PartitionInfo]:
    """The partitions that may hold matching rows. When in doubt, a partition stays."""
    types = {name: info.schema.column(name).data_type for name in info.partition_keys}
    readers = {
        name: read for name, data_type in types.items() for kinds, read in _READABLE if isinstance(data_type, kinds)
    }
    kept = []
    for partition in partitions:
        texts = split_partition_name(partition.partition_name, info.partition_keys)
        values = {name: read(texts[name]) for name, read in readers.items()}
        if _may_match(predicate, info, values):
            kept.append(partition)
    return kept


def _may_match(predicate: Predicate, info: TableInfo, values: Mapping[str, Any]) -> bool:
    if isinstance(predicate, Compound):
        answers = (_may_match(child, info, values) for child in predicate.children)
        return all(answers) if predicate.function is CompoundFunction.AND else any(answers)
    if isinstance(predicate, Leaf) and predicate.column in values:
        column = info.schema.column(predicate.column)
        one = pa.table({column.name: pa.array([values[column.name]], column.data_type.to_arrow())})
        return bool(one.filter(predicate.to_arrow_expression(info.schema)).num_rows)
    return True


def keys_of(predicate: Predicate, info: TableInfo) -> list[dict[str, Any]] | None:
    """The primary keys that a filter names, if it allows no others; None if it does not say."""
    resolved = predicate.resolve(info.schema)
    leaves = resolved.children if isinstance(resolved, Compound) else (resolved,)
    if isinstance(resolved, Compound) and resolved.function is not CompoundFunction.AND:
        return None
    choices: dict[str, list[Any]] = {}
    for leaf in leaves:
        if isinstance(leaf, Leaf) and leaf.function in (LeafFunction.EQUAL, LeafFunction.IN):
            choices.setdefault(leaf.column, list(dict.fromkeys(leaf.literals)))
    if any(name not in choices for name in info.primary_keys):
        return None
    columns = [choices[name] for name in info.primary_keys]
    if math.prod(len(column) for column in columns) > KEYS_MAX:
        return None
    types = [info.schema.column(name).data_type for name in info.primary_keys]
    return [
        {name: logical.to_python(value, data_type) for name, value, data_type in zip(info.primary_keys, values, types)}
        for values in itertools.product(*columns)
    ]
