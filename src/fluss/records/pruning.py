# SPDX-License-Identifier: Apache-2.0
"""Skipping batches: whether the statistics of a batch allow for a row that a filter selects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fluss.metadata.comparison import LeafFunction, is_nan
from fluss.metadata.predicate import Compound, CompoundFunction, Leaf, Predicate
from fluss.metadata.schema import Schema
from fluss.records.statistics import ColumnStatistics, Statistics

DEPTH_MAX = 64
"""Deeper trees are not looked into: the batch is kept."""

_RANGE_CHECKS: dict[LeafFunction, Callable[[Any, Any, Any], bool]] = {
    LeafFunction.EQUAL: lambda low, high, literal: low <= literal <= high,
    LeafFunction.NOT_EQUAL: lambda low, high, literal: not (low == literal == high),
    LeafFunction.LESS_THAN: lambda low, high, literal: low < literal,
    LeafFunction.LESS_OR_EQUAL: lambda low, high, literal: low <= literal,
    LeafFunction.GREATER_THAN: lambda low, high, literal: high > literal,
    LeafFunction.GREATER_OR_EQUAL: lambda low, high, literal: high >= literal,
    LeafFunction.STARTS_WITH: lambda low, high, prefix: low[: len(prefix)] <= prefix <= high[: len(prefix)],
}


def may_match(
    predicate: Predicate, statistics: Statistics | None, record_count: int, schema: Schema | None = None
) -> bool:
    """Whether a row of the batch could satisfy `predicate`; False only when that is certain to be impossible.

    Args:
        predicate: A filter with logical values as literals, as it is after `Predicate.resolve`.
        statistics: What the batch says about itself; None if nothing.
        record_count: The number of rows of the batch.
        schema: The schema whose columns `predicate` names, if it is not the one the batch was written with. Columns
            are then matched by id, and columns the batch does not know are null in each of its rows.
    """
    if statistics is None or record_count <= 0:
        return statistics is None or record_count != 0
    return _may_match(predicate, statistics, record_count, schema, 0)


def _may_match(
    predicate: Predicate, statistics: Statistics, record_count: int, schema: Schema | None, depth: int
) -> bool:
    if isinstance(predicate, Compound) and depth < DEPTH_MAX and predicate.children:
        results = (_may_match(child, statistics, record_count, schema, depth + 1) for child in predicate.children)
        return all(results) if predicate.function == CompoundFunction.AND else any(results)
    if not isinstance(predicate, Leaf):
        return True
    column = _column_statistics(predicate.column, statistics, record_count, schema)
    if column is None:
        return True
    try:
        return _leaf_may_match(predicate.function, predicate.literals, column, record_count)
    except (TypeError, ArithmeticError):
        # A literal of another type than the column: the evaluation of the rows reports it.
        return True


def _column_statistics(
    name: str, statistics: Statistics, record_count: int, schema: Schema | None
) -> ColumnStatistics | None:
    if schema is None:
        return statistics.column(name)
    if name not in schema.column_names:
        return None
    column_id = schema.column(name).column_id
    for position, column in enumerate(statistics.schema.columns):
        if column.column_id == column_id:
            return statistics.columns.get(position)
    return ColumnStatistics(record_count, None, None)


def _leaf_may_match(
    function: LeafFunction, literals: tuple[Any, ...], column: ColumnStatistics, record_count: int
) -> bool:
    null_count, low, high = column
    if not 0 <= null_count <= record_count:
        return True
    if function == LeafFunction.IS_NULL:
        return null_count > 0
    if null_count == record_count:
        return False  # no comparison with null holds
    if function == LeafFunction.IS_NOT_NULL or low is None or high is None or None in literals:
        return True
    if is_nan(low) or is_nan(high) or any(is_nan(literal) for literal in literals):
        return True  # writers differ in what they make of NaN
    if function == LeafFunction.IN:
        return any(low <= literal <= high for literal in literals)
    if function == LeafFunction.NOT_IN:
        return low != high or low not in literals
    check = _RANGE_CHECKS.get(function)
    return check is None or check(low, high, literals[0])
