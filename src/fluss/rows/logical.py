# SPDX-License-Identifier: Apache-2.0
"""Native Python values to logical values and back.

Strict on the way in: a value is taken only if its column can hold it without loss, and the error says which value,
which type and what to do. The logical values themselves are listed in `fluss.rows.value_checks`.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np

from fluss.errors import InvalidRowError
from fluss.metadata import types as t
from fluss.metadata.comparison import NUMPY_NANOS, is_missing, time_from_text
from fluss.rows import value_checks as v
from fluss.rows.arrow_values import conform, from_arrow, to_arrow

__all__ = ["conform", "from_arrow", "from_python", "to_arrow", "to_python"]

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=timezone.utc)
_EPOCH_DAY = _EPOCH.toordinal()
_MICROSECOND = timedelta(microseconds=1)
_FLOAT_MAX = float(np.finfo(np.float32).max)


def from_python(value: object, dtype: t.DataType, name: str | None = None) -> Any:
    """The logical value of a native one; `InvalidRowError` if the type does not hold it exactly.

    Floats may be rounded to the precision of their column, which is what a float is for; nothing else is.

    Args:
        value: A native Python value, or a numpy scalar.
        dtype: The type of the column.
        name: The name of the column, for errors.
    """
    try:
        return _from_python(value, dtype, 0)
    except InvalidRowError as error:
        raise column_error(error.message, dtype, name) from None


def column_error(reason: str, dtype: t.DataType, name: str | None) -> InvalidRowError:
    """The error about a value of a column; of its type alone where the column has no name."""
    if name is None:
        return InvalidRowError(f"{dtype}: {reason}")
    return InvalidRowError(reason, column=name, column_type=dtype)


def _from_python(value: object, dtype: t.DataType, depth: int) -> Any:
    converter = _FROM_PYTHON.get(type(dtype))
    if converter is not None and type(value) in _NATIVE:
        return converter(value, dtype)
    if is_missing(value):
        if not dtype.nullable:
            raise InvalidRowError("null, but the type is NOT NULL")
        return None
    if isinstance(value, np.generic) and not isinstance(value, np.datetime64):
        value = value.item()
    if converter is not None:
        return converter(value, dtype)
    v.check_depth(depth + 1)
    if isinstance(dtype, t.ArrayType):
        return _elements(value, dtype.element_type, depth)
    if isinstance(dtype, t.MapType):
        return _entries(value, dtype, depth)
    if isinstance(dtype, t.RowType):
        return _row(value, dtype, depth)
    raise InvalidRowError("the type has no values")


_NATIVE = frozenset({bool, int, float, str, bytes})
"""Types whose values are what they seem: neither missing nor numpy's."""


def _boolean(value: object, dtype: t.DataType) -> bool:
    return v.check_boolean(value)


def _integer(value: object, dtype: t.DataType) -> int:
    if type(value) is int:
        return v.check_integer(value, v.INTEGER_BITS[type(dtype)])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    try:
        # Whatever says of itself that it is an integer: numpy's, a tensor of one number.
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise v.refuse(value, "an int")
    return v.check_integer(number, v.INTEGER_BITS[type(dtype)])


def _float(value: object, dtype: t.DataType) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise v.refuse(value, "a float")
    if isinstance(value, int):
        try:
            number = float(value)
        except OverflowError:
            raise InvalidRowError(f"{v.shown(value)} does not fit a float") from None
        if int(number) != value or (isinstance(dtype, t.FloatType) and int(np.float32(_narrow(number))) != value):
            raise InvalidRowError(f"{v.shown(value)} has no exact form as a float")
    else:
        number = float(value)
    return _narrow(number) if isinstance(dtype, t.FloatType) else number


def _narrow(number: float) -> float:
    if math.isfinite(number) and abs(number) > _FLOAT_MAX:
        raise InvalidRowError(f"{number} does not fit 32 bits")
    return float(np.float32(number))


def _char(value: object, dtype: t.DataType) -> str:
    assert isinstance(dtype, t.CharType)
    text = _string(value, dtype)
    if len(text) > dtype.length:
        raise InvalidRowError(f"{v.shown(text)} has {len(text)} characters, the type has room for {dtype.length}")
    return text


def _string(value: object, dtype: t.DataType) -> str:
    v.utf8(value)
    return str(value)


def _binary(value: object, dtype: t.DataType) -> bytes:
    assert isinstance(dtype, t.BinaryType)
    data = _bytes(value, dtype)
    if len(data) != dtype.length:
        raise InvalidRowError(f"{v.shown(data)} has {len(data)} bytes, the type has exactly {dtype.length}")
    return data


def _bytes(value: object, dtype: t.DataType) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise v.refuse(value, "bytes")
    return bytes(value)


def _decimal(value: object, dtype: t.DataType) -> Decimal:
    assert isinstance(dtype, t.DecimalType)
    if isinstance(value, int) and not isinstance(value, bool):
        value = Decimal(value)
    if isinstance(value, float):
        raise InvalidRowError(f"expected a Decimal, got the float {value!r}: give Decimal({str(value)!r}) instead")
    return v.decimal_of(v.unscaled(value, dtype), dtype)


def _from_text(value: str, dtype: t.DataType) -> object:
    try:
        return time_from_text(value, dtype)
    except ValueError as error:
        raise InvalidRowError(str(error)) from None


def _date(value: object, dtype: t.DataType) -> int:
    if isinstance(value, str):
        value = _from_text(value, dtype)
    if isinstance(value, np.datetime64):
        days = value.astype("datetime64[D]")
        if days != value:
            raise InvalidRowError(f"{value} has a time of day, {dtype} would lose it")
        return int(days.astype(np.int64))
    if isinstance(value, datetime):
        raise InvalidRowError(f"expected a date, got the datetime {value!r}: give its .date() instead")
    if not isinstance(value, date):
        raise v.refuse(value, "a date")
    return value.toordinal() - _EPOCH_DAY


def _time(value: object, dtype: t.DataType) -> int:
    assert isinstance(dtype, t.TimeType)
    if isinstance(value, str):
        value = _from_text(value, dtype)
    if not isinstance(value, time):
        raise v.refuse(value, "a time")
    if value.tzinfo is not None:
        raise InvalidRowError(f"{value!r} has a time zone, {dtype} has none")
    if value.microsecond % 1000:
        raise InvalidRowError(f"{value!r} has a part below the millisecond, and a time of day is kept in milliseconds")
    if dtype.precision == 0 and value.microsecond:
        raise InvalidRowError(f"{value!r} has a part below the second, {dtype} would lose it")
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def _timestamp(value: object, dtype: t.DataType) -> int:
    assert isinstance(dtype, t.TIMESTAMP_TYPES)
    nanos = _nanos_of(value, dtype)
    step = 10 ** (9 - dtype.precision)
    if nanos % step:
        raise InvalidRowError(f"{value!r} has more than {dtype.precision} digits of a second, {dtype} would lose them")
    v.split_timestamp(nanos, dtype)
    return nanos


def _nanos_of(value: object, dtype: t.TimestampType | t.TimestampLtzType) -> int:
    if isinstance(value, np.datetime64):
        unit, count = np.datetime_data(value.dtype)
        nanos = NUMPY_NANOS.get(unit)
        if nanos is None:
            raise InvalidRowError(f"{value!r} is counted in {unit!r}: expected a unit from days to nanoseconds")
        return int(value.astype(np.int64)) * nanos * count
    if isinstance(value, str):
        value = _from_text(value, dtype)
    if not isinstance(value, datetime):
        raise v.refuse(value, "a datetime")
    if value.tzinfo is not None and isinstance(dtype, t.TimestampType):
        raise InvalidRowError(
            f"{value!r} has a time zone, {dtype} has none: give a naive datetime or use TIMESTAMP_LTZ"
        )
    epoch = _EPOCH if value.utcoffset() is None else _EPOCH_UTC
    # A pandas timestamp is a datetime with a few more digits.
    return (value - epoch) // _MICROSECOND * 1000 + int(getattr(value, "nanosecond", 0))


def _elements(value: object, dtype: t.DataType, depth: int) -> list[Any]:
    if isinstance(value, np.ndarray):
        value = list(value)
    if not isinstance(value, (list, tuple)):
        # In the words of the official client, which programs look for.
        raise InvalidRowError(f"Expected sequence for Array column, got {type(value).__name__} {v.shown(value)}")
    items: list[Any] = []
    for i, item in enumerate(value):
        try:
            items.append(_from_python(item, dtype, depth + 1))
        except InvalidRowError as error:
            raise InvalidRowError(f"element {i} ({dtype}): {error.message}") from None
    return items


def _entries(value: object, dtype: t.MapType, depth: int) -> list[tuple[Any, Any]]:
    pairs = list(value.items()) if isinstance(value, Mapping) else value
    if not isinstance(pairs, (list, tuple)) or not all(
        isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs
    ):
        raise v.refuse(value, "a dict, or a list of (key, value) pairs")
    entries: list[tuple[Any, Any]] = []
    for key, item in pairs:
        try:
            entries.append(
                (_from_python(key, dtype.key_type, depth + 1), _from_python(item, dtype.value_type, depth + 1))
            )
        except InvalidRowError as error:
            raise InvalidRowError(f"entry {v.shown(key)}: {error.message}") from None
    return entries


def _row(value: object, dtype: t.RowType, depth: int) -> tuple[Any, ...]:
    fields = dtype.fields
    if isinstance(value, Mapping):
        unknown = [key for key in value if key not in dtype.field_names]
        if unknown:
            raise InvalidRowError(f"no field is named {unknown[0]!r}; the fields are {', '.join(dtype.field_names)}")
        items: Sequence[Any] = [value.get(field.name) for field in fields]
    else:
        if not isinstance(value, (list, tuple)):
            raise v.refuse(value, "a dict or a tuple")
        items = v.check_row(value, len(fields))
    result: list[Any] = []
    for field, item in zip(fields, items):
        if item is None and not field.data_type.nullable:
            raise InvalidRowError(f"Missing value for non-nullable row field {field.name!r}")
        try:
            result.append(_from_python(item, field.data_type, depth + 1))
        except InvalidRowError as error:
            raise InvalidRowError(f"field {field.name!r} ({field.data_type}): {error.message}") from None
    return tuple(result)


_FROM_PYTHON: dict[type[t.DataType], Callable[[object, t.DataType], Any]] = {
    t.BooleanType: _boolean,
    **dict.fromkeys(t.INTEGER_TYPES, _integer),
    **dict.fromkeys(t.FLOAT_TYPES, _float),
    t.CharType: _char,
    t.StringType: _string,
    t.BinaryType: _binary,
    t.BytesType: _bytes,
    t.DecimalType: _decimal,
    t.DateType: _date,
    t.TimeType: _time,
    **dict.fromkeys(t.TIMESTAMP_TYPES, _timestamp),
}


def to_python(value: Any, dtype: t.DataType, *, map_pairs: bool = False) -> Any:
    """The native value of a logical one.

    DATE, TIME, TIMESTAMP and TIMESTAMP_LTZ become date, time, naive and UTC datetime (digits below the microsecond are
    cut off, since datetime has none: read Arrow to keep them); ROW a dict by field name; MAP a dict, or with
    `map_pairs` a list of (key, value) pairs, as the official client gives it.
    """
    if value is None or isinstance(dtype, PLAIN_TYPES):
        return value
    if isinstance(dtype, t.DateType):
        try:
            return date.fromordinal(value + _EPOCH_DAY)
        except (ValueError, OverflowError):
            raise InvalidRowError(f"day {value} since 1970 is not a date of Python (year 1 to 9999)") from None
    if isinstance(dtype, t.TimeType):
        if not 0 <= value < v.MILLIS_PER_DAY:
            raise InvalidRowError(f"{value} ms is not a time of day")
        seconds, millis = divmod(value, 1000)
        minutes, second = divmod(seconds, 60)
        return time(minutes // 60, minutes % 60, second, millis * 1000)
    if isinstance(dtype, t.TIMESTAMP_TYPES):
        try:
            moment = _EPOCH + timedelta(microseconds=value // 1000)
        except OverflowError:
            raise InvalidRowError(f"{value} ns since 1970 is not a datetime of Python (year 1 to 9999)") from None
        return moment if isinstance(dtype, t.TimestampType) else moment.replace(tzinfo=timezone.utc)
    if isinstance(dtype, t.ArrayType):
        return [to_python(item, dtype.element_type, map_pairs=map_pairs) for item in value]
    if isinstance(dtype, t.MapType):
        pairs = [
            (
                to_python(key, dtype.key_type, map_pairs=map_pairs),
                to_python(item, dtype.value_type, map_pairs=map_pairs),
            )
            for key, item in value
        ]
        # A key that is itself a list, dict or such cannot be looked up in a dict.
        return pairs if map_pairs or isinstance(dtype.key_type, t.NESTED_TYPES) else dict(pairs)
    assert isinstance(dtype, t.RowType)
    return {
        field.name: to_python(item, field.data_type, map_pairs=map_pairs) for field, item in zip(dtype.fields, value)
    }


PLAIN_TYPES = (
    t.BooleanType,
    *t.INTEGER_TYPES,
    *t.FLOAT_TYPES,
    *t.TEXT_TYPES,
    *t.BYTES_TYPES,
    t.DecimalType,
)
"""Types whose logical value is what Python users see."""
