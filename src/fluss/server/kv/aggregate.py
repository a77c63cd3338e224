# SPDX-License-Identifier: Apache-2.0
"""The functions of the aggregation merge engine: on logical values one by one, and on whole columns."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fluss._lazy import LazyModule
from fluss.errors import UnknownServerError
from fluss.metadata import (
    AggFunction,
    BigIntType,
    Column,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    Schema,
    SmallIntType,
    StringType,
    TinyIntType,
)
from fluss.rows import bitmaps, logical

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")

Aggregate = Callable[[Any, Any], Any]
"""(accumulated, new) to the new accumulated value."""

ColumnAggregate = Callable[[pa.Array, pa.Array], pa.Array]
"""The same for a column: (accumulated, new), position by position."""

_BITS: dict[type[DataType], int] = {TinyIntType: 8, SmallIntType: 16, IntType: 32, BigIntType: 64}
_DIGITS = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)

DEFAULT_FUNCTION = "last_value_ignore_nulls"


def aggregates_of(schema: Schema) -> list[Aggregate | None]:
    """The function of each column; None for key columns, which never change."""
    return [None if column.name in schema.primary_key else aggregate_of(column) for column in schema.columns]


def column_aggregates_of(schema: Schema) -> list[ColumnAggregate | None]:
    """The same on columns."""
    return [None if column.name in schema.primary_key else column_aggregate_of(column) for column in schema.columns]


def _name_of(column: Column) -> str:
    return (column.agg_function or AggFunction(DEFAULT_FUNCTION)).name.lower().replace("-", "_")


def _delimiter_of(column: Column) -> str:
    parameters = column.agg_function.parameters if column.agg_function is not None else None
    return (parameters or {}).get("delimiter", ",")


# -- one value at a time ----------------------------------------------------------------------------------------------


def aggregate_of(column: Column) -> Aggregate:
    name = _name_of(column)
    data_type = column.data_type
    if name == "last_value":
        return lambda acc, new: new
    if name == "last_value_ignore_nulls":
        return lambda acc, new: acc if new is None else new
    if name in ("first_value", "first_value_ignore_nulls"):
        return lambda acc, new: new if acc is None else acc
    if name in ("sum", "product"):
        return _of_both(_arithmetic(name, data_type))
    if name == "max":
        return _of_both(lambda acc, new: new if _greater(new, acc) else acc)
    if name == "min":
        return _of_both(lambda acc, new: new if _greater(acc, new) else acc)
    if name in ("listagg", "string_agg"):
        delimiter = _delimiter_of(column)
        return _of_both(lambda acc, new: f"{acc}{delimiter}{new}")
    if name == "bool_and":
        return _of_both(lambda acc, new: acc and new)
    if name == "bool_or":
        return _of_both(lambda acc, new: acc or new)
    if name == "rbm32":
        return _of_both(bitmaps.union32)
    if name == "rbm64":
        return _of_both(bitmaps.union64)
    raise UnknownServerError(f"column '{column.name}' has the aggregation function '{name}', which is not known")


def _of_both(function: Aggregate) -> Aggregate:
    """Where one side is missing the other one counts."""

    def aggregate(acc: Any, new: Any) -> Any:
        if acc is None:
            return new
        return acc if new is None else function(acc, new)

    return aggregate


def _greater(a: Any, b: Any) -> bool:
    if isinstance(a, float):
        return _float_order(a) > _float_order(b)
    return bool(a > b)


def _float_order(value: float) -> tuple[bool, float, float]:
    # Other implementations of the engine order NaN above everything, and -0.0 below 0.0.
    return (True, 0.0, 0.0) if math.isnan(value) else (False, value, math.copysign(1.0, value))


def _arithmetic(name: str, data_type: DataType) -> Aggregate:
    def plain(acc: Any, new: Any) -> Any:
        return acc + new if name == "sum" else acc * new

    bits = _BITS.get(type(data_type))
    if bits is not None:
        half, whole = 1 << (bits - 1), 1 << bits
        return lambda acc, new: (plain(acc, new) + half) % whole - half
    if isinstance(data_type, DecimalType):
        unit = decimal.Decimal(1).scaleb(-data_type.scale)
        limit = decimal.Decimal(10) ** (data_type.precision - data_type.scale)

        def exact(acc: Any, new: Any) -> Any:
            with decimal.localcontext(_DIGITS):
                result = plain(acc, new).quantize(unit)
            return result if abs(result) < limit else None

        return exact
    if isinstance(data_type, FloatType):

        def single(acc: Any, new: Any) -> float:
            with np.errstate(all="ignore"):
                return float(plain(np.float32(acc), np.float32(new)))

        return single
    return plain


# -- a column at a time -----------------------------------------------------------------------------------------------


def column_aggregate_of(column: Column) -> ColumnAggregate:
    name, data_type = _name_of(column), column.data_type
    if name == "last_value":
        return lambda acc, new: new
    if name == "last_value_ignore_nulls":
        return lambda acc, new: pc.coalesce(new, acc)
    if name in ("first_value", "first_value_ignore_nulls"):
        return lambda acc, new: pc.coalesce(acc, new)
    if name in ("sum", "product") and isinstance(data_type, (*_BITS, FloatType, DoubleType)):
        return _or_other(pc.add if name == "sum" else pc.multiply)
    if name in ("max", "min") and isinstance(data_type, (*_BITS, DateType)):
        return pc.max_element_wise if name == "max" else pc.min_element_wise  # type: ignore[no-any-return]
    if name in ("listagg", "string_agg") and isinstance(data_type, StringType):
        delimiter = _delimiter_of(column)
        return _or_other(lambda acc, new: pc.binary_join_element_wise(acc, new, delimiter))
    if name in ("bool_and", "bool_or"):
        return _or_other(pc.and_ if name == "bool_and" else pc.or_)
    return _one_by_one(aggregate_of(column), data_type)


def _or_other(function: ColumnAggregate) -> ColumnAggregate:
    return lambda acc, new: pc.coalesce(function(acc, new), acc, new)


def _one_by_one(function: Aggregate, data_type: DataType) -> ColumnAggregate:
    def aggregate(acc: pa.Array, new: pa.Array) -> pa.Array:
        both = zip(logical.from_arrow(acc, data_type), logical.from_arrow(new, data_type))
        return logical.to_arrow([function(a, b) for a, b in both], data_type)

    return aggregate
