# SPDX-License-Identifier: Apache-2.0
"""Python values of one column to an Arrow array, strictly: nothing is rounded, cut or guessed.

pyarrow converts a list of Python objects quickly but not strictly (it truncates 1.5 to 1 for an integer column, and
drops the microseconds of a datetime). So the types that occur in the list are looked at first, which costs one pass
in C (none for strings and doubles, where the type that pyarrow itself finds says enough): when all of them belong to
the column's own kind the fast conversion is exact, otherwise each value takes the slow and careful way, which also
knows how to name the one that does not fit.
"""

from __future__ import annotations

import datetime as dt
import decimal
from array import array as packed
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import (
    array_of,
    booleans_array,
    bytes_array,
    dates_array,
    doubles_array,
    integers_array,
    micros_array,
    narrowed,
    numpy_of,
    pandas_is_loaded,
    strings_array,
    valid_mask,
)
from fluss.errors import InvalidRowError
from fluss.metadata import types as t
from fluss.rows.arrow_values import to_arrow
from fluss.rows.logical import column_error, from_python

_NONE = type(None)

# What pyarrow converts without loss, per type of column; other Python types take the careful way.
_EXACT: dict[type[t.DataType], frozenset[type]] = {
    t.BooleanType: frozenset({bool, _NONE}),
    **{kind: frozenset({int, _NONE}) for kind in t.INTEGER_TYPES},
    t.FloatType: frozenset({float, _NONE}),
    t.BytesType: frozenset({bytes, _NONE}),
    t.DecimalType: frozenset({decimal.Decimal, _NONE}),
    t.DateType: frozenset({dt.date, _NONE}),
    t.TimeType: frozenset({dt.time, _NONE}),
    t.TimestampType: frozenset({dt.datetime, _NONE}),
    t.TimestampLtzType: frozenset({dt.datetime, _NONE}),
}
_UNIT_PRECISIONS = (0, 3, 6, 9)
"""Precisions that are a unit of Arrow: there a cast to that unit says whether digits would be lost."""

_FLOATS = {float, np.float64, int, _NONE}
_EXACT_INTEGERS_MAX = 2.0**53

_tzinfo_of = attrgetter("tzinfo")

Convert = Callable[[Sequence[Any]], "pa.Array | None"]


class BadValues(Exception):
    """Some values of a column do not fit; `errors` maps their positions to what is wrong with them."""

    def __init__(self, errors: dict[int, InvalidRowError]) -> None:
        super().__init__(f"{len(errors)} values do not fit")
        self.errors = errors


class ColumnConverter:
    """Turns the values of one column into Arrow arrays of exactly the column's type."""

    def __init__(self, data_type: t.DataType, name: str | None = None) -> None:
        self.data_type = data_type
        self.name = name
        self.arrow_type = data_type.to_arrow()
        self._convert = _fast_conversion(data_type)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """The values as an Arrow array. Raises `BadValues` when some do not fit."""
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
                converted.append(from_python(value, self.data_type, self.name))
            except InvalidRowError as error:
                errors[position] = error
        if errors:
            raise BadValues(errors)
        return self._from_logical(values, converted)

    def _from_logical(self, values: Sequence[Any], converted: Sequence[Any]) -> pa.Array:
        try:
            return to_arrow(converted, self.data_type)
        except InvalidRowError:
            # Arrow itself has narrower limits (nanoseconds reach to the year 2262): find out whose they are.
            raise BadValues(self._too_far(values, converted)) from None

    def _too_far(self, values: Sequence[Any], converted: Sequence[Any]) -> dict[int, InvalidRowError]:
        errors: dict[int, InvalidRowError] = {}
        for position, value in enumerate(converted):
            try:
                to_arrow([value], self.data_type)
            except InvalidRowError as error:
                reason = f"{values[position]!r:.60} does not fit: {error.message}"
                errors[position] = column_error(reason, self.data_type, self.name)
        return errors


class LogicalConverter(ColumnConverter):
    """A converter of values that `from_python` has made already."""

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """The values as an Arrow array. Raises `BadValues` when some do not fit."""
        if not self.data_type.nullable and None in values:
            missing = {i: self._null() for i, value in enumerate(values) if value is None}
            raise BadValues(missing)
        return self._from_logical(values, values)

    def _null(self) -> InvalidRowError:
        return column_error("null, but the type is NOT NULL", self.data_type, self.name)


def column_from_python(values: Sequence[Any], dtype: t.DataType, name: str | None = None) -> pa.Array:
    """A column of native values as an Arrow array: `from_python` and `to_arrow`, quickly.

    The error of a bad value names its row.
    """
    try:
        return ColumnConverter(dtype, name).to_arrow(values)
    except BadValues as found:
        row, error = next(iter(found.errors.items()))
        raise error.replace(row=row) from None


def _fast_conversion(data_type: t.DataType) -> Convert:
    """A function that converts exactly, or gives None when it cannot be sure."""
    inferred = _INFERRED.get(type(data_type))
    if inferred is not None:
        return inferred
    exact = _EXACT.get(type(data_type))
    if exact is None:
        return lambda values: None
    convert = _typed_conversion(data_type)

    def when_exact(values: Sequence[Any]) -> pa.Array | None:
        return convert(values) if exact.issuperset(map(type, values)) else None

    if not isinstance(data_type, t.INTEGER_TYPES):
        return when_exact

    def to_integer(values: Sequence[Any]) -> pa.Array | None:
        try:
            # The shortest way for integers without nulls, and it takes nothing else.
            numbers = np.frombuffer(packed("q", values), np.int64)
        except TypeError:
            return when_exact(values)
        if np.any(numbers >> 1 == 0) and bool in set(map(type, values)):
            return None  # True and False are integers to Python, but not to us
        return narrowed(array_of(numbers), data_type.to_arrow())

    return to_integer


def _infer_string(values: Sequence[Any]) -> pa.Array | None:
    if not pandas_is_loaded():
        return strings_array(values)
    array = pa.array(values)
    if array.type == pa.null():
        return array.cast(pa.string())
    return array if array.type == pa.string() else None


def _infer_double(values: Sequence[Any]) -> pa.Array | None:
    if not pandas_is_loaded():
        return _doubles(values)
    array = pa.array(values)
    if array.type == pa.null() or array.type == pa.int64():
        return pa.array(values, pa.float64())
    return array if array.type == pa.float64() else None


def _doubles(values: Sequence[Any]) -> pa.Array | None:
    kinds = set(map(type, values))
    if not kinds <= _FLOATS:
        return None
    array = doubles_array(values)
    # Larger integers may not be doubles: the careful way finds out which.
    return array if int not in kinds or np.abs(numpy_of(array)).max() < _EXACT_INTEGERS_MAX else None


_INFERRED: dict[type[t.DataType], Convert] = {t.StringType: _infer_string, t.DoubleType: _infer_double}


def _typed_conversion(data_type: t.DataType) -> Convert:
    arrow_type = data_type.to_arrow()
    if isinstance(data_type, t.FloatType):

        def to_float(values: Sequence[Any]) -> pa.Array | None:
            array = doubles_array(values)
            with np.errstate(over="ignore"):
                narrow = numpy_of(array).astype(np.float32)
            overflown = np.any(np.isinf(narrow) & np.isfinite(numpy_of(array)))
            return None if overflown else array_of(narrow, ~valid_mask(array) if array.null_count else None)

        return to_float
    if isinstance(data_type, t.TIMESTAMP_TYPES):
        if data_type.precision not in _UNIT_PRECISIONS:
            return lambda values: None
        zoned = isinstance(data_type, t.TimestampLtzType)
        micros = pa.timestamp("us", "UTC") if zoned else pa.timestamp("us")

        def to_timestamp(values: Sequence[Any]) -> pa.Array | None:
            if not zoned and any(map(_tzinfo_of, filter(None, values))):
                return None
            # Python datetimes carry microseconds: a safe cast to a coarser unit refuses to drop any.
            array = micros_array(values).view(micros)
            return array if arrow_type == micros else array.cast(arrow_type, safe=True)

        return to_timestamp
    if isinstance(data_type, t.TimeType):

        def to_time(values: Sequence[Any]) -> pa.Array | None:
            if any(time.tzinfo is not None for time in values if time is not None):
                return None
            # A time of day is kept in milliseconds, whatever its column's precision says.
            return pa.array(values, pa.time64("us")).cast(pa.time32("ms"), safe=True).cast(arrow_type, safe=True)

        return to_time
    if isinstance(data_type, t.INTEGER_TYPES):
        return lambda values: narrowed(integers_array(values), arrow_type)
    return _TYPED.get(type(data_type)) or (lambda values: pa.array(values, arrow_type))


_TYPED: dict[type[t.DataType], Convert] = {
    t.BooleanType: booleans_array,
    t.BytesType: bytes_array,
    t.DateType: dates_array,
}
