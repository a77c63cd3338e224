# SPDX-License-Identifier: Apache-2.0
"""Python values of one column to an Arrow array, strictly: nothing is rounded, cut or guessed.

pyarrow converts a list of Python objects quickly but not strictly (it truncates 1.5 to 1 for an integer column, and
drops the microseconds of a datetime). So the types that occur in the list are looked at first, which costs one pass
in C: when all of them belong to the column's own kind the fast conversion is exact, otherwise each value takes the
slow and careful way, which also knows how to name the one that does not fit.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fluss.errors import InvalidRowError
from fluss.metadata import (
    BigIntType,
    BooleanType,
    BytesType,
    Column,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)
from fluss.rows import logical

_NONE = type(None)
_INTEGERS = (TinyIntType, SmallIntType, IntType, BigIntType)

# What pyarrow converts without loss, per type of column; other Python types take the careful way.
_EXACT: dict[type[DataType], frozenset[type]] = {
    BooleanType: frozenset({bool, _NONE}),
    **{kind: frozenset({int, _NONE}) for kind in _INTEGERS},
    FloatType: frozenset({float, _NONE}),
    DoubleType: frozenset({float, int, _NONE}),
    StringType: frozenset({str, _NONE}),
    BytesType: frozenset({bytes, _NONE}),
    DecimalType: frozenset({decimal.Decimal, _NONE}),
    DateType: frozenset({dt.date, _NONE}),
    TimeType: frozenset({dt.time, _NONE}),
    TimestampType: frozenset({dt.datetime, _NONE}),
    TimestampLtzType: frozenset({dt.datetime, _NONE}),
}

_tzinfo_of = attrgetter("tzinfo")


class BadValues(Exception):
    """Some values of a column do not fit; `errors` maps their positions to what is wrong with them."""

    def __init__(self, errors: dict[int, InvalidRowError]) -> None:
        super().__init__(f"{len(errors)} values do not fit")
        self.errors = errors


class ColumnConverter:
    """Turns the values of one table column into Arrow arrays of exactly the table's type."""

    def __init__(self, column: Column) -> None:
        self.column = column
        self.data_type = column.data_type
        self.arrow_type = column.data_type.to_arrow()
        self._exact = _EXACT.get(type(column.data_type))
        self._convert = self._converter()

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """The values as an Arrow array. Raises `BadValues` when some do not fit."""
        if self._exact is not None and self._exact.issuperset(map(type, values)):
            try:
                array = self._convert(values)
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                array = None  # one of the values does not fit: the careful way finds out which
            if array is not None and (self.data_type.nullable or not array.null_count):
                return array
        return self._carefully(values)

    def _carefully(self, values: Sequence[Any]) -> pa.Array:
        errors: dict[int, InvalidRowError] = {}
        converted: list[Any] = []
        for position, value in enumerate(values):
            try:
                converted.append(self.check(value))
            except InvalidRowError as error:
                errors[position] = error
                converted.append(None)
        if errors:
            raise BadValues(errors)
        return logical.to_arrow(converted, self.data_type)

    def check(self, value: Any) -> Any:
        """The logical form of one value, or an `InvalidRowError` that names the column."""
        if value is None:
            if not self.data_type.nullable:
                raise InvalidRowError(
                    f"column '{self.column.name}' is {self.data_type} and got no value (None); give it one"
                )
            return None
        try:
            return logical.from_python(value, self.data_type)
        except InvalidRowError as error:
            raise InvalidRowError(f"column '{self.column.name}': {error.message}") from None

    def _converter(self) -> Callable[[Sequence[Any]], pa.Array | None]:
        arrow_type = self.arrow_type
        data_type = self.data_type
        if isinstance(data_type, FloatType):

            def to_float(values: Sequence[Any]) -> pa.Array | None:
                array = pa.array(values, pa.float64())
                narrow = array.cast(arrow_type)
                overflown = pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(array))).as_py()
                return None if overflown else narrow

            return to_float
        if isinstance(data_type, TimestampType | TimestampLtzType):
            zoned = isinstance(data_type, TimestampLtzType)
            micros = pa.timestamp("us", "UTC") if zoned else pa.timestamp("us")

            def to_timestamp(values: Sequence[Any]) -> pa.Array | None:
                if not zoned and any(map(_tzinfo_of, filter(None, values))):
                    return None
                # Python datetimes carry microseconds: a safe cast to a coarser unit refuses to drop any.
                return pa.array(values, micros).cast(arrow_type, safe=True)

            return to_timestamp
        if isinstance(data_type, TimeType):
            return lambda values: pa.array(values, pa.time64("us")).cast(arrow_type, safe=True)
        return lambda values: pa.array(values, arrow_type)
