# SPDX-License-Identifier: Apache-2.0
"""Statistics of a log batch: per column the null count, least and greatest value; and skipping batches by them."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from fluss._lazy import LazyModule
from fluss.errors import FormatError, InvalidArgumentError, InvalidRowError
from fluss.metadata import types as t
from fluss.metadata.comparison import LeafFunction, is_nan
from fluss.metadata.predicate import Compound, CompoundFunction, Leaf, Predicate
from fluss.metadata.schema import STATISTICS_TYPES, Schema
from fluss.records._bytes import as_view, malformed
from fluss.rows import aligned, logical

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

STATISTICS_VERSION = 1

_HEAD = struct.Struct("<bh")
_I32 = struct.Struct("<i")
_WHAT = "batch statistics"
_FLOATS = t.FLOAT_TYPES


def build_statistics(batch: pa.RecordBatch, schema: Schema, column_indexes: Sequence[int]) -> bytes:
    """The statistics section for the rows of `batch` over some of its columns; empty when no column is given."""
    if not column_indexes:
        return b""
    if batch.num_columns != len(schema.columns):
        raise InvalidArgumentError(f"the batch has {batch.num_columns} columns, the table {len(schema.columns)}")
    types, least, greatest, null_counts = [], [], [], []
    for index in column_indexes:
        column = schema.columns[index]
        if not isinstance(column.data_type, STATISTICS_TYPES):
            raise InvalidArgumentError(f"column {column.name!r} of type {column.data_type} cannot have statistics")
        low, high = _extremes(batch.column(index), column.data_type)
        types.append(column.data_type.with_nullable(True))
        least.append(low)
        greatest.append(high)
        null_counts.append(batch.column(index).null_count)
    count = len(column_indexes)
    low_row, high_row = aligned.encode_row(types, least), aligned.encode_row(types, greatest)
    return b"".join(
        (
            _HEAD.pack(STATISTICS_VERSION, count),
            struct.pack(f"<{count}h", *column_indexes),
            struct.pack(f"<{count}i", *null_counts),
            _I32.pack(len(low_row)),
            low_row,
            _I32.pack(len(high_row)),
            high_row,
        )
    )


def _extremes(array: pa.Array, data_type: t.DataType) -> tuple[Any, Any]:
    """Least and greatest value as logical values, or None for "not known", which is always a safe answer."""
    if isinstance(data_type, t.CharType) or array.null_count == len(array):
        return None, None
    # Arrow skips NaN where others sort it last; a reader could then prune a batch that holds one.
    if isinstance(data_type, _FLOATS) and pc.any(pc.is_nan(array)).as_py():
        return None, None
    extremes = pc.min_max(array)
    try:
        low, high = logical.from_arrow(pa.array([extremes["min"], extremes["max"]], array.type), data_type)
    except InvalidRowError:
        return None, None  # a time with a part below the millisecond, which rows do not hold
    if isinstance(data_type, _FLOATS):
        # Zero has two signs which some readers order: let the range cover both.
        return (-0.0 if low == 0 else low), (0.0 if high == 0 else high)
    return low, high


class ColumnStatistics(NamedTuple):
    """What is known about one column of a batch."""

    null_count: int
    """Negative when not known."""
    least: Any
    """A logical value, or None when not known or when all values are null."""
    greatest: Any


@dataclass(frozen=True)
class Statistics:
    """The statistics of one batch."""

    schema: Schema
    columns: dict[int, ColumnStatistics]
    """By column position in `schema`."""

    @staticmethod
    def parse(view: Any, schema: Schema) -> Statistics | None:
        """Read the statistics section of a batch written with `schema`; None if it is of a version we do not know.

        Raises:
            FormatError: The section is malformed.
        """
        if view is None or len(view) == 0:
            return None
        view = as_view(view)
        if len(view) < _HEAD.size:
            malformed(_WHAT, "version", 0, f"{len(view)} bytes are too few")
        version, count = _HEAD.unpack_from(view)
        if version != STATISTICS_VERSION or count <= 0:
            return None
        pos = _HEAD.size
        if len(view) < pos + 6 * count:
            malformed(_WHAT, "column count", 1, f"{count} columns do not fit into {len(view)} bytes")
        indexes = struct.unpack_from(f"<{count}h", view, pos)
        null_counts = struct.unpack_from(f"<{count}i", view, pos + 2 * count)
        pos += 6 * count
        types = []
        for index in indexes:
            if not 0 <= index < len(schema.columns):
                malformed(_WHAT, "column index", _HEAD.size, f"{index} is outside 0..{len(schema.columns) - 1}")
            types.append(schema.columns[index].data_type.with_nullable(True))
            if not isinstance(types[-1], STATISTICS_TYPES):
                malformed(_WHAT, "column index", _HEAD.size, f"column {index} of type {types[-1]} has no statistics")
        least, pos = _read_row(view, pos, types, "min row")
        greatest, pos = _read_row(view, pos, types, "max row")
        if pos != len(view):
            malformed(_WHAT, "end", pos, f"{len(view) - pos} bytes are left")
        columns = {
            index: ColumnStatistics(nulls, _known(low), _known(high))
            for index, nulls, low, high in zip(indexes, null_counts, least, greatest)
        }
        return Statistics(schema, columns)

    def column(self, name: str) -> ColumnStatistics | None:
        """What is known about a column, or None."""
        if name not in self.schema.column_names:
            return None
        return self.columns.get(self.schema.column_index(name))


def _known(value: Any) -> Any:
    """NaN takes no part in an order, so an extreme that is NaN says nothing."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _read_row(view: memoryview, pos: int, types: list[t.DataType], field: str) -> tuple[list[Any], int]:
    if len(view) < pos + 4:
        malformed(_WHAT, f"{field} size", pos, "the bytes end before it")
    size = _I32.unpack_from(view, pos)[0]
    pos += 4
    if size < 0 or size > len(view) - pos:
        malformed(_WHAT, f"{field} size", pos - 4, f"{size} bytes, but {len(view) - pos} are left")
    if size == 0:
        return [None] * len(types), pos
    try:
        return aligned.decode_row(types, view[pos : pos + size]), pos + size
    except FormatError as error:
        raise FormatError(f"malformed {_WHAT}: {field} at byte {pos}: {error.message}") from error


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
