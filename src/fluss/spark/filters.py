# SPDX-License-Identifier: Apache-2.0
"""Filters of a Spark query as predicates of a scan, and as a choice of partitions.

Spark applies every filter again, so a filter that has no counterpart is simply not pushed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import datasource as d

from fluss.errors import FlussError
from fluss.metadata import (
    BigIntType,
    BooleanType,
    CharType,
    Compound,
    CompoundFunction,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    LeafFunction,
    Predicate,
    Schema,
    SmallIntType,
    StringType,
    TableInfo,
    TimestampLtzType,
    TimestampType,
    TinyIntType,
    col,
    format_partition_value,
    split_partition_name,
)
from fluss.rows import logical

_COMPARISONS: dict[type[d.Filter], str] = {
    d.EqualTo: "equal",
    d.GreaterThan: "greater_than",
    d.GreaterThanOrEqual: "greater_or_equal",
    d.LessThan: "less_than",
    d.LessThanOrEqual: "less_or_equal",
    d.StringStartsWith: "starts_with",
    d.StringEndsWith: "ends_with",
    d.StringContains: "contains",
}

# Floating point numbers are left out: Spark orders NaN above all numbers, others do not.
_COMPARABLE = (
    BooleanType,
    TinyIntType,
    SmallIntType,
    IntType,
    BigIntType,
    DecimalType,
    CharType,
    StringType,
    DateType,
    TimestampType,
    TimestampLtzType,
)


def to_predicate(filters: Iterable[d.Filter], schema: Schema) -> Predicate | None:
    """What of the filters (all of which must hold) a scan can apply; None if nothing."""
    found = []
    for item in filters:
        predicate = _one(item, schema)
        if predicate is not None:
            found.append(predicate)
    if not found:
        return None
    return found[0] if len(found) == 1 else Compound(CompoundFunction.AND, tuple(found))


def _one(item: d.Filter, schema: Schema) -> Predicate | None:
    if isinstance(item, d.Not):
        child = item.child
        if isinstance(child, d.EqualTo) and _fits(child, schema):
            return _checked(col(child.attribute[0]).not_equal(_literal(child.value)), schema)
        if isinstance(child, d.In) and _fits(child, schema) and None not in child.value:
            return _checked(col(child.attribute[0]).not_in([_literal(v) for v in child.value]), schema)
        return None
    if not _fits(item, schema):
        return None
    column = col(item.attribute[0])
    if isinstance(item, d.IsNull):
        return column.is_null()
    if isinstance(item, d.IsNotNull):
        return column.is_not_null()
    if isinstance(item, d.In):
        return _checked(column.is_in([_literal(value) for value in item.value if value is not None]), schema)
    method = _COMPARISONS.get(type(item))
    value = getattr(item, "value", None)
    if method is None or value is None:
        return None
    return _checked(getattr(column, method)(_literal(value)), schema)


def _checked(predicate: Predicate, schema: Schema) -> Predicate | None:
    """The predicate if its literals fit their columns; else Spark alone filters."""
    try:
        predicate.to_arrow_expression(schema)
    except FlussError:
        return None
    return predicate


def _fits(item: d.Filter, schema: Schema) -> bool:
    attribute: Sequence[str] = getattr(item, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in schema.column_names:
        return False
    data_type = schema.column(attribute[0]).data_type
    if isinstance(item, (d.IsNull, d.IsNotNull)):
        return isinstance(data_type, (*_COMPARABLE, FloatType, DoubleType))
    return isinstance(data_type, _COMPARABLE)


def _literal(value: Any) -> Any:
    # Variant values come back as aware datetimes in whatever zone; one zone makes them comparable.
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc)
    return value


def prune_partitions(filters: Iterable[d.Filter], info: TableInfo, partitions: Mapping[int, str]) -> dict[int, str]:
    """The partitions that can hold rows the filters let through, judged by `=` and `in` on partition columns."""
    keys = info.get_partition_keys()
    allowed: dict[str, set[str]] = {}
    for item in filters:
        values = _equal_values(item)
        attribute: Sequence[str] = getattr(item, "attribute", ())
        if values is None or len(attribute) != 1 or attribute[0] not in keys:
            continue
        texts = _partition_texts(info.schema.column(attribute[0]).data_type, values)
        if texts is not None:
            allowed[attribute[0]] = allowed.get(attribute[0], texts) & texts
    if not allowed:
        return dict(partitions)
    kept = {}
    for partition_id, name in partitions.items():
        spec = split_partition_name(name, keys)
        if all(spec[key] in texts for key, texts in allowed.items()):
            kept[partition_id] = name
    return kept


def as_filters(predicate: Predicate) -> list[d.Filter]:
    """The comparisons of a predicate that choose partitions; all comparisons of it must hold."""
    found: list[d.Filter] = []
    for leaf in predicate.leaves():
        if leaf.function is LeafFunction.EQUAL:
            found.append(d.EqualTo((leaf.column,), leaf.literals[0]))
        elif leaf.function is LeafFunction.IN:
            found.append(d.In((leaf.column,), tuple(leaf.literals)))
    return found


def _equal_values(item: d.Filter) -> list[Any] | None:
    if isinstance(item, d.EqualTo) and item.value is not None:
        return [item.value]
    if isinstance(item, d.In):
        return [value for value in item.value if value is not None]
    return None


def _partition_texts(data_type: DataType, values: list[Any]) -> set[str] | None:
    if not isinstance(data_type, _COMPARABLE):
        return None
    try:
        texts = {format_partition_value(data_type, logical.from_python(_literal(v), data_type)) for v in values}
        if isinstance(data_type, (TimestampType, TimestampLtzType)):
            # Other clients write the time in another way: both count.
            texts |= {
                format_partition_value(data_type, logical.from_python(_literal(v), data_type), "rust") for v in values
            }
    except (FlussError, ValueError, TypeError):
        return None
    return texts
