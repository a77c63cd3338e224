# SPDX-License-Identifier: Apache-2.0
"""Conditions on the rows of a read as predicates of a scan, and as a choice of partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluss.errors import ConfigError, FlussError, InvalidArgumentError
from fluss.metadata import (
    ArrayType,
    Compound,
    CompoundFunction,
    DataType,
    MapType,
    Predicate,
    RowType,
    Schema,
    TableInfo,
    TimestampLtzType,
    TimestampType,
    matching_partitions,
    parse_partition_value,
    split_partition_name,
)
from fluss.metadata.where import UnreadableConditionError, parse_where

_SPARK_DIGITS = 6
"""Digits of the second that Spark's timestamps have: finer ones are cut off before Spark compares."""


def pushed_predicate(conditions: Iterable[str], schema: Schema) -> Predicate | None:
    """What a scan can apply of the conditions that Spark tests again; it may keep rows that Spark then drops."""
    found = []
    for text in conditions:
        try:
            predicate = parse_where(text, schema)
        except FlussError:
            continue  # such as one on a metadata column
        if not any(is_cut_by_spark(schema.column(leaf.column).data_type) for leaf in predicate.leaves()):
            found.append(predicate)
    if not found:
        return None
    return found[0] if len(found) == 1 else Compound(CompoundFunction.AND, tuple(found))


def is_cut_by_spark(data_type: DataType) -> bool:
    """Whether values of a type have, or hold, times that are finer than those of Spark."""
    if isinstance(data_type, ArrayType):
        return is_cut_by_spark(data_type.element_type)
    if isinstance(data_type, MapType):
        return is_cut_by_spark(data_type.key_type) or is_cut_by_spark(data_type.value_type)
    if isinstance(data_type, RowType):
        return any(is_cut_by_spark(field.data_type) for field in data_type.fields)
    return isinstance(data_type, (TimestampType, TimestampLtzType)) and data_type.precision > _SPARK_DIGITS


def parse_filter(text: str, schema: Schema) -> Predicate:
    """The predicate of the option `scan.filter`."""
    try:
        # Spark reads a time without a zone in that of the session, which a source is not told.
        return parse_where(text, schema, zone_required=True)
    except InvalidArgumentError as error:
        is_other_sql = isinstance(error, UnreadableConditionError)
        instead = ". Spark itself evaluates functions and arithmetic: df.filter(…)" if is_other_sql else ""
        raise ConfigError(f"scan.filter: {error.message}{instead}") from None


def prune_partitions(predicate: Predicate, info: TableInfo, partitions: Mapping[int, str]) -> dict[int, str]:
    """The partitions that can hold rows a predicate wants."""
    kept = matching_partitions(predicate, info.schema, info.get_partition_keys(), list(partitions.values()))
    return {partition_id: name for (partition_id, name), wanted in zip(partitions.items(), kept) if wanted}


def names_values(info: TableInfo, partition: str) -> bool:
    """Whether the name of a partition is one of values of its columns; a filter keeps partitions of other names."""
    values = split_partition_name(partition, info.partition_keys)
    types = {key: info.schema.column(key).data_type for key in values}
    return all(parse_partition_value(types[key], text) is not None for key, text in values.items())
