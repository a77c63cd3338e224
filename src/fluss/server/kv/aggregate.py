# SPDX-License-Identifier: Apache-2.0
"""The functions of the aggregation merge engine, on logical values."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fluss.errors import UnknownServerError
from fluss.metadata import (
    AggFunction,
    BigIntType,
    Column,
    DataType,
    DecimalType,
    FloatType,
    IntType,
    Schema,
    SmallIntType,
    TinyIntType,
)

Aggregate = Callable[[Any, Any], Any]
"""(accumulated, new) to the new accumulated value."""

_BITS: dict[type[DataType], int] = {TinyIntType: 8, SmallIntType: 16, IntType: 32, BigIntType: 64}
_DIGITS = decimal.Context(prec=80, rounding=decimal.ROUND_HALF_UP)

DEFAULT_FUNCTION = "last_value_ignore_nulls"


def aggregates_of(schema: Schema) -> list[Aggregate | None]:
    """The function of each column; None for key columns, which never change."""
    return [None if column.name in schema.primary_key else aggregate_of(column) for column in schema.columns]


def aggregate_of(column: Column) -> Aggregate:
    function = column.agg_function or AggFunction(DEFAULT_FUNCTION)
    name = function.name.lower().replace("-", "_")
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
        delimiter = (function.parameters or {}).get("delimiter", ",")
        return _of_both(lambda acc, new: f"{acc}{delimiter}{new}")
    if name == "bool_and":
        return _of_both(lambda acc, new: acc and new)
    if name == "bool_or":
        return _of_both(lambda acc, new: acc or new)
    if name in ("rbm32", "rbm64"):
        return _of_both(_bitmap_union(name))
    raise UnknownServerError(f"column '{column.name}' has the aggregation function '{name}', which is not known")


def _of_both(function: Aggregate) -> Aggregate:
    """Where one side is missing the other one counts."""

    def aggregate(acc: Any, new: Any) -> Any:
        if acc is None:
            return new
        return acc if new is None else function(acc, new)

    return aggregate


def _greater(a: Any, b: Any) -> bool:
    # Floating point orders NaN above everything, as other implementations of the engine do.
    if isinstance(a, float) and isinstance(b, float) and (math.isnan(a) or math.isnan(b)):
        return math.isnan(a) and not math.isnan(b)
    return bool(a > b)


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
        return lambda acc, new: float(np.float32(plain(np.float32(acc), np.float32(new))))
    return plain


def _bitmap_union(name: str) -> Aggregate:
    try:
        from pyroaring import BitMap, BitMap64
    except ImportError:
        raise UnknownServerError(
            f"the aggregation function '{name}' needs the package pyroaring on the server: pip install pyroaring"
        ) from None
    kind: Any = BitMap if name == "rbm32" else BitMap64

    def union(acc: bytes, new: bytes) -> bytes:
        try:
            return bytes((kind.deserialize(acc) | kind.deserialize(new)).serialize())
        except ValueError as error:
            raise UnknownServerError(f"a value of a '{name}' column is not a serialised bitmap: {error}") from None

    return union
