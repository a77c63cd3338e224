# SPDX-License-Identifier: Apache-2.0
"""Filters of a Spark query as predicates of a scan, and as a choice of partitions.

Spark applies every filter again, so a filter that has no counterpart is simply not pushed.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark.sql import datasource as d

from fluss.errors import ConfigError, FlussError, InvalidArgumentError
from fluss.metadata import (
    BigIntType,
    BooleanType,
    CharType,
    Compound,
    CompoundFunction,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    Predicate,
    Schema,
    SmallIntType,
    StringType,
    TableInfo,
    TimestampLtzType,
    TimestampType,
    TinyIntType,
    col,
    matching_partitions,
)
from fluss.metadata.where import parse_where

_COMPARISONS: dict[str, str] = {
    "EqualTo": "equal",
    "GreaterThan": "greater_than",
    "GreaterThanOrEqual": "greater_or_equal",
    "LessThan": "less_than",
    "LessThanOrEqual": "less_or_equal",
    "StringStartsWith": "starts_with",
    "StringEndsWith": "ends_with",
    "StringContains": "contains",
}
"""By the name of the filter's class."""

_COMPARABLE = (
    BooleanType,
    TinyIntType,
    SmallIntType,
    IntType,
    BigIntType,
    DecimalType,
    FloatType,
    DoubleType,
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
    method = _COMPARISONS.get(type(item).__name__)
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
    return isinstance(data_type, _COMPARABLE)


def _literal(value: Any) -> Any:
    # Variant values come back as aware datetimes in whatever zone; one zone makes them comparable.
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        return value.astimezone(datetime.timezone.utc)
    return value


def parse_filter(text: str, schema: Schema) -> Predicate:
    """The predicate of the option `scan.filter`."""
    try:
        # Spark reads a time without a zone in that of the session, which a source is not told.
        return parse_where(text, schema, zone_required=True)
    except InvalidArgumentError as error:
        raise ConfigError(f"scan.filter: {error.message}") from None


def prune_partitions(predicate: Predicate, info: TableInfo, partitions: Mapping[int, str]) -> dict[int, str]:
    """The partitions that can hold rows a predicate wants."""
    kept = matching_partitions(predicate, info.schema, info.get_partition_keys(), list(partitions.values()))
    return {partition_id: name for (partition_id, name), wanted in zip(partitions.items(), kept) if wanted}
