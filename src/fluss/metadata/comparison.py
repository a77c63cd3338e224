# SPDX-License-Identifier: Apache-2.0
"""Comparisons of a column with literals: which there are, and how a literal is fitted to the type of its column.

A literal becomes a logical value of the column (days for DATE, nanoseconds for timestamps, see `fluss.rows.logical`).
A comparison with a value that the column cannot hold is rewritten into one that it can: ``id > 2.5`` of an integer
column becomes ``id >= 3``, and ``tinyint_column < 1000`` becomes ``tinyint_column is not null``.
"""

from __future__ import annotations

import datetime
import decimal
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np

from fluss.errors import InvalidArgumentError
from fluss.metadata import types as t


class LeafFunction(IntEnum):
    """What a leaf asks of its column. The numbers are those of the protocol."""

    EQUAL = 0
    NOT_EQUAL = 1
    LESS_THAN = 2
    LESS_OR_EQUAL = 3
    GREATER_THAN = 4
    GREATER_OR_EQUAL = 5
    IS_NULL = 6
    IS_NOT_NULL = 7
    STARTS_WITH = 8
    CONTAINS = 9
    ENDS_WITH = 10
    IN = 11
    NOT_IN = 12


COMPARISONS = frozenset(LeafFunction(number) for number in range(6))
TEXT_FUNCTIONS = (LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH)
NULL_TESTS = (LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL)

OPPOSITES: dict[LeafFunction, LeafFunction] = {
    LeafFunction.EQUAL: LeafFunction.NOT_EQUAL,
    LeafFunction.LESS_THAN: LeafFunction.GREATER_OR_EQUAL,
    LeafFunction.GREATER_THAN: LeafFunction.LESS_OR_EQUAL,
    LeafFunction.IS_NULL: LeafFunction.IS_NOT_NULL,
    LeafFunction.IN: LeafFunction.NOT_IN,
}
"""What holds where the other does not, for every value that is not null (and for both null tests)."""
OPPOSITES.update({opposite: function for function, opposite in tuple(OPPOSITES.items())})

Fitted = tuple[LeafFunction, tuple[Any, ...]]
"""A function, and logical values as its literals."""

NOTHING: Fitted = (LeafFunction.IN, ())
"""Matches no row."""
NOT_NULL: Fitted = (LeafFunction.IS_NOT_NULL, ())
"""Matches every row with a value."""


def _bad_literal(column: str, data_type: t.DataType, literal: object, expected: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"column {column!r} of type {data_type} is compared with {expected}, not {literal!r:.80}"
    )


_INT_BITS: dict[type[t.DataType], int] = {t.TinyIntType: 8, t.SmallIntType: 16, t.IntType: 32, t.BigIntType: 64}
_EXPONENT_MAX = 100
UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_NS = 86_400 * 10**9
NUMPY_NANOS = {"D": _DAY_NS, "h": 3_600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


@dataclass(frozen=True)
class _Grid:
    """The values of a column as whole numbers from `low` to `high`, and the way back to logical values."""

    position: Fraction
    """Where the literal lies, maybe between two numbers."""
    low: int
    high: int
    value: Callable[[int], Any]


def _grid(column: str, data_type: t.DataType, literal: Any) -> _Grid | None:
    """Place a literal among the values of a column that holds exact values; None for other types."""
    if isinstance(literal, str) and isinstance(data_type, (t.DateType, t.TimeType, *t.TIMESTAMP_TYPES)):
        try:
            literal = time_from_text(literal, data_type)
        except ValueError as error:
            raise InvalidArgumentError(f"column {column!r} of type {data_type}: {error}") from None
    if type(data_type) in _INT_BITS:
        limit = 1 << (_INT_BITS[type(data_type)] - 1)
        return _Grid(_number(column, data_type, literal), -limit, limit - 1, int)
    if isinstance(data_type, t.DecimalType):
        limit = 10**data_type.precision
        position = _number(column, data_type, literal) * 10**data_type.scale
        scale = data_type.scale
        # Read from text, which keeps all digits: arithmetic would round to those of the context.
        return _Grid(position, -limit + 1, limit - 1, lambda unscaled: decimal.Decimal(f"{unscaled}E-{scale}"))
    if isinstance(data_type, t.DateType):
        if isinstance(literal, np.datetime64):
            return _Grid(Fraction(_numpy_ns(literal), _DAY_NS), -(2**31), 2**31 - 1, int)
        if not isinstance(literal, datetime.date) or isinstance(literal, datetime.datetime):
            raise _bad_literal(column, data_type, literal, "a datetime.date")
        days = (literal - datetime.date(1970, 1, 1)).days
        return _Grid(Fraction(days), -(2**31), 2**31 - 1, int)
    if isinstance(data_type, t.TimeType):
        if not isinstance(literal, datetime.time) or literal.tzinfo is not None:
            raise _bad_literal(column, data_type, literal, "a datetime.time without a zone")
        us = ((literal.hour * 60 + literal.minute) * 60 + literal.second) * 1_000_000 + literal.microsecond
        step_ms = 1_000 if data_type.precision == 0 else 1
        return _Grid(Fraction(us, 1_000 * step_ms), 0, 86_400_000 // step_ms - 1, lambda step: step * step_ms)
    if isinstance(data_type, t.TIMESTAMP_TYPES):
        ns = _datetime_ns(column, data_type, literal)
        step_ns = 1_000_000_000 // UNITS_PER_SECOND[t.arrow_time_unit(data_type.precision)]
        return _Grid(Fraction(ns, step_ns), -(2**63), 2**63 - 1, lambda step: step * step_ns)
    return None


_TOO_FINE = re.compile(r"\.\d{7}")


def time_from_text(text: str, data_type: t.DataType) -> datetime.date | datetime.time:
    """The value of a date or time column from a text in ISO form; of TIMESTAMP_LTZ, one without a zone is UTC."""
    kind: Any = datetime.datetime
    if isinstance(data_type, (t.DateType, t.TimeType)):
        kind = datetime.date if isinstance(data_type, t.DateType) else datetime.time
    try:
        if _TOO_FINE.search(text):
            raise ValueError("it has more than 6 digits of a second")  # which Python would cut off
        found = kind.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not read the Z
    except ValueError as error:
        raise ValueError(f"{text!r:.80} is not a {kind.__name__} in ISO form: {error}") from None
    if isinstance(data_type, t.TimestampLtzType) and found.tzinfo is None:
        found = found.replace(tzinfo=datetime.timezone.utc)
    return found  # type: ignore[no-any-return]


def _number(column: str, data_type: t.DataType, literal: object) -> Fraction:
    if isinstance(literal, bool) or not isinstance(literal, (int, float, decimal.Decimal, np.integer, np.floating)):
        raise _bad_literal(column, data_type, literal, "a number")
    if isinstance(literal, np.integer):
        return Fraction(int(literal))
    if isinstance(literal, (float, np.floating)):
        # 0.1 means one tenth, not the double next to it.
        literal = decimal.Decimal(repr(float(literal)))
    if isinstance(literal, decimal.Decimal) and literal and abs(literal.adjusted()) > _EXPONENT_MAX:
        # Beyond every column, or closer to zero than any: the exact digits do not matter, but would cost memory.
        literal = decimal.Decimal(f"1E{_EXPONENT_MAX if literal.adjusted() > 0 else -_EXPONENT_MAX}").copy_sign(literal)
    return Fraction(literal)


def _datetime_ns(column: str, data_type: t.TimestampType | t.TimestampLtzType, literal: object) -> int:
    if isinstance(literal, np.datetime64):
        return _numpy_ns(literal)
    with_zone = isinstance(data_type, t.TimestampLtzType)
    if not isinstance(literal, datetime.datetime) or (literal.tzinfo is not None) != with_zone:
        expected = f"a datetime.datetime {'with' if with_zone else 'without'} a zone"
        raise _bad_literal(column, data_type, literal, expected)
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc if with_zone else None)
    # pandas timestamps carry nanoseconds beyond the microseconds of datetime.
    return (literal - epoch) // datetime.timedelta(microseconds=1) * 1_000 + int(getattr(literal, "nanosecond", 0))


def _numpy_ns(literal: np.datetime64) -> int:
    """Nanoseconds since the epoch: numpy has no zones, its times count as UTC for TIMESTAMP_LTZ columns."""
    unit, count = np.datetime_data(literal.dtype)
    if unit not in NUMPY_NANOS:
        raise InvalidArgumentError(f"{literal!r} is counted in {unit!r}: expected a unit from days to nanoseconds")
    return int(literal.astype(np.int64)) * NUMPY_NANOS[unit] * count


def is_missing(literal: object) -> bool:
    """None, and what numpy and pandas write for it."""
    if literal is None:
        return True
    if isinstance(literal, (np.datetime64, np.timedelta64)):
        return bool(np.isnat(literal))
    # Recognised by name, so that pandas need not be imported.
    return type(literal).__name__ in ("NaTType", "NAType")


def is_nan(literal: object) -> bool:
    """Whether a literal is not a number."""
    if isinstance(literal, decimal.Decimal):
        return literal.is_nan()
    return isinstance(literal, (float, np.floating)) and math.isnan(literal)


def _is_special(literal: object) -> bool:
    """NaN or an infinity: no place among exact numbers."""
    if isinstance(literal, decimal.Decimal):
        return not literal.is_finite()
    return isinstance(literal, (float, np.floating)) and not math.isfinite(literal)


def fit_comparison(function: LeafFunction, column: str, data_type: t.DataType, literal: Any) -> Fitted:
    """Fit the literal of one of `COMPARISONS`; `InvalidArgumentError` if it is of another kind than the column."""
    if is_missing(literal):
        return NOTHING
    exact_number = type(data_type) in _INT_BITS or isinstance(data_type, t.DecimalType)
    if exact_number and _is_special(literal):
        # NaN is greater than every number, as in Spark and DuckDB.
        return _compared_with_none(function, above=is_nan(literal) or literal > 0)
    grid = _grid(column, data_type, literal)
    if grid is None:
        return function, (_plain_literal(column, data_type, literal),)
    low, high = math.floor(grid.position), math.ceil(grid.position)
    if function in (LeafFunction.EQUAL, LeafFunction.NOT_EQUAL):
        if low != high:
            return _compared_with_none(function)
    elif low != high:
        # Between two values, "less" means "at most the lower one".
        upward = function in (LeafFunction.GREATER_THAN, LeafFunction.GREATER_OR_EQUAL)
        function = LeafFunction.GREATER_OR_EQUAL if upward else LeafFunction.LESS_OR_EQUAL
        low = high if upward else low
    if grid.low <= low <= grid.high:
        return function, (grid.value(low),)
    return _compared_with_none(function, above=low > grid.high)


def _compared_with_none(function: LeafFunction, *, above: bool = False) -> Fitted:
    """A comparison with what no row of a column has; for those with an order, above or below all it can have."""
    if function in (LeafFunction.EQUAL, LeafFunction.NOT_EQUAL):
        return NOT_NULL if function is LeafFunction.NOT_EQUAL else NOTHING
    less = function in (LeafFunction.LESS_THAN, LeafFunction.LESS_OR_EQUAL)
    return NOT_NULL if above == less else NOTHING


def _plain_literal(column: str, data_type: t.DataType, literal: Any) -> Any:
    """The logical value of a literal for the types that need no rounding."""
    if isinstance(data_type, t.BooleanType):
        if not isinstance(literal, (bool, np.bool_)):
            raise _bad_literal(column, data_type, literal, "true or false")
        return bool(literal)
    if isinstance(data_type, t.FLOAT_TYPES):
        if isinstance(literal, bool) or not isinstance(literal, (int, float, decimal.Decimal, np.integer, np.floating)):
            raise _bad_literal(column, data_type, literal, "a number")
        try:
            number = float(literal)
        except OverflowError:
            number = math.inf if literal > 0 else -math.inf
        if isinstance(data_type, t.DoubleType):
            return number
        # A column of 32-bit floats holds 0.1 as its nearest float; that is what 0.1 means here.
        with np.errstate(over="ignore"):
            return float(np.float32(number))
    if isinstance(data_type, t.TEXT_TYPES):
        if not isinstance(literal, str):
            raise _bad_literal(column, data_type, literal, "a string")
        return literal
    if isinstance(data_type, t.BYTES_TYPES):
        if not isinstance(literal, (bytes, bytearray, memoryview)):
            raise _bad_literal(column, data_type, literal, "bytes")
        return bytes(literal)
    raise InvalidArgumentError(f"column {column!r} of type {data_type} can be filtered by is_null and is_not_null only")


def fit_list(function: LeafFunction, column: str, data_type: t.DataType, literals: Sequence[Any]) -> Fitted:
    """Fit the literals of IN or NOT_IN. Those that the column cannot hold are left out."""
    values: dict[Any, None] = {}
    nan = False
    for literal in literals:
        if is_missing(literal):
            if function is LeafFunction.NOT_IN:
                return NOTHING  # whether a value differs from null is unknown
            continue
        for value in fit_comparison(LeafFunction.EQUAL, column, data_type, literal)[1]:
            if is_nan(value):
                nan = True  # one NaN is not the key of another
            else:
                values[value] = None
    if nan:
        values[math.nan] = None
    if function is LeafFunction.NOT_IN and not values:
        return NOT_NULL
    return function, tuple(values)


def fit_text(function: LeafFunction, column: str, data_type: t.DataType, text: Any) -> Fitted:
    """Fit the literal of one of `TEXT_FUNCTIONS`."""
    if is_missing(text):
        return NOTHING
    check_text(function.name.lower(), column, data_type, text)
    return function, (text,)


def check_text(what: str, column: str, data_type: t.DataType, text: object) -> None:
    """Fail unless both the column and the literal are strings."""
    if not isinstance(data_type, t.TEXT_TYPES) or not isinstance(text, str):
        raise InvalidArgumentError(
            f"{what} compares a string column with a string, "
            f"not column {column!r} of type {data_type} with {text!r:.80}"
        )
