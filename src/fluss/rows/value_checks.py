# SPDX-License-Identifier: Apache-2.0
"""Logical values: what the scalar coders take and give, and the checks they share.

| type | logical value |
|---|---|
| BOOLEAN | bool |
| TINYINT, SMALLINT, INTEGER, BIGINT | int |
| FLOAT, DOUBLE | float |
| CHAR, STRING | str |
| BINARY, BYTES | bytes |
| DECIMAL | decimal.Decimal |
| DATE | int, days since 1970-01-01 |
| TIME | int, milliseconds of the day |
| TIMESTAMP, TIMESTAMP_LTZ | int, nanoseconds since 1970-01-01T00:00:00 |
| ARRAY | list |
| MAP | list of (key, value) pairs |
| ROW | tuple |
| null | None |
"""

from __future__ import annotations

import datetime
import enum
import math
import struct
from collections.abc import Sequence
from decimal import Context, Decimal
from typing import Any

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata import types as t

NANOS_PER_MILLI = 1_000_000
MILLIS_PER_DAY = 86_400_000
INT32_MAX = 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

FIXED_BYTES_MAX = 256 * 1024 * 1024
"""The most bytes that the declared lengths of CHAR and BINARY may ask for at once: a schema costs nothing to declare,
so it must not make a reader or writer allocate without bound."""

INTEGER_BITS: dict[type[t.DataType], int] = {
    t.TinyIntType: 8,
    t.SmallIntType: 16,
    t.IntType: 32,
    t.BigIntType: 64,
    t.DateType: 32,
}

_FIXED_SIZES: dict[type[t.DataType], int] = {
    **{kind: bits // 8 for kind, bits in INTEGER_BITS.items()},
    t.BooleanType: 1,
    t.FloatType: 4,
    t.TimeType: 4,
    t.DoubleType: 8,
}

_EXACT = Context(prec=80)
_POWERS_OF_TEN = [10**exponent for exponent in range(39)]


def is_compact_decimal(dtype: t.DecimalType) -> bool:
    """Whether the unscaled value fits 64 bits."""
    return dtype.precision <= 18


def is_compact_timestamp(dtype: t.TimestampType | t.TimestampLtzType) -> bool:
    """Whether milliseconds are all there is."""
    return dtype.precision <= 3


def field_label(index: int, dtype: t.DataType, names: Sequence[str] | None = None) -> str:
    """How errors name a field."""
    return f"field {index} ({dtype})" if names is None else f"field {names[index]!r} ({dtype})"


def shown(value: object) -> str:
    """A value in an error message: its start, and its type."""
    text = repr(value)
    return f"{text if len(text) <= 60 else text[:57] + '...'} of type {type(value).__name__}"


def refuse(value: object, expected: str) -> InvalidRowError:
    """The error for a value that is not of its type."""
    return InvalidRowError(f"expected {expected}, got {shown(value)}{_advice(value, expected)}")


def _advice(value: object, expected: str) -> str:
    """What to give instead, for mistakes that many make."""
    if isinstance(value, float) and math.isnan(value):
        return ": give None where there is no value"
    if isinstance(value, enum.Enum):
        return ": give its .value instead"
    if expected == "a str" and (type(value).__name__ == "UUID" or hasattr(value, "__fspath__")):
        return ": give its str() instead"
    if expected == "a datetime":
        if isinstance(value, datetime.date):
            return ": datetime.combine(…, time.min) is its midnight"
        if isinstance(value, (int, float)):
            return ": datetime.fromtimestamp() reads seconds since 1970"
    return ""


def check_depth(depth: int) -> None:
    """Bound the recursion of the coders."""
    if depth > t.MAX_TYPE_DEPTH:
        raise FormatError(f"types are nested more than {t.MAX_TYPE_DEPTH} levels deep")


def check_boolean(value: object) -> bool:
    if value is True or value is False:
        return value
    raise refuse(value, "a bool")


def check_integer(value: object, bits: int) -> int:
    if type(value) is not int:
        raise refuse(value, "an int")
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise InvalidRowError(f"{value} does not fit {bits} bits")
    return value


def check_float(value: object) -> float:
    if type(value) is not float:
        raise refuse(value, "a float")
    return value


def pack_float32(value: object) -> bytes:
    try:
        return struct.pack("<f", check_float(value))
    except OverflowError:
        raise InvalidRowError(f"{value} does not fit 32 bits") from None


def pack_float64(value: object) -> bytes:
    return struct.pack("<d", check_float(value))


def utf8(value: object) -> bytes:
    if not isinstance(value, str):
        raise refuse(value, "a str")
    try:
        return value.encode()
    except UnicodeEncodeError as error:
        raise InvalidRowError(f"{shown(value)} has no UTF-8 form: {error.reason}") from None


def check_bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise refuse(value, "bytes")
    return value


def check_time(value: object) -> int:
    millis = check_integer(value, 32)
    if not 0 <= millis < MILLIS_PER_DAY:
        raise InvalidRowError(f"{millis} is not a millisecond of the day")
    return millis


def unscaled(value: object, dtype: t.DecimalType) -> int:
    """The value times ten to the scale; refuses a value that would have to be rounded."""
    if not isinstance(value, Decimal):
        raise refuse(value, "a Decimal")
    if not value.is_finite():
        raise InvalidRowError(f"{value} is not a finite decimal")
    # adjusted() is the position of the first digit; asked first because scaling 1E+999999 would cost its digits.
    if value and value.adjusted() >= dtype.precision - dtype.scale:
        raise InvalidRowError(f"{shown(value)} does not fit {dtype}")
    if not value:
        return 0
    _, digits, exponent = value.as_tuple()
    if len(digits) <= _EXACT.prec and int(exponent) >= -_EXACT.prec:
        scaled = value.scaleb(dtype.scale, _EXACT)
        number = int(scaled)
        if number == scaled:
            return number
    raise InvalidRowError(f"{shown(value)} has more than {dtype.scale} decimal places, {dtype} would lose digits")


def decimal_of(number: int, dtype: t.DecimalType) -> Decimal:
    """The value with this unscaled number; `FormatError` if it has too many digits."""
    if abs(number) >= _POWERS_OF_TEN[dtype.precision]:
        raise FormatError(f"unscaled value {number} has more than {dtype.precision} digits")
    return Decimal(number).scaleb(-dtype.scale, _EXACT)


def to_big_endian(number: int) -> bytes:
    """Minimal two's-complement bytes, most significant first."""
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


def from_big_endian(data: bytes | memoryview) -> int:
    """Read two's-complement bytes, most significant first."""
    if not 1 <= len(data) <= 16:
        raise FormatError(f"an unscaled decimal has 1 to 16 bytes, not {len(data)}")
    return int.from_bytes(data, "big", signed=True)


def split_timestamp(value: object, dtype: t.TimestampType | t.TimestampLtzType) -> tuple[int, int]:
    """Milliseconds (rounded down) and nanoseconds within the millisecond."""
    if type(value) is not int:
        raise refuse(value, "nanoseconds since the epoch as an int")
    millis, nanos = divmod(value, NANOS_PER_MILLI)
    if not INT64_MIN <= millis <= INT64_MAX:
        raise InvalidRowError(f"{value} ns is out of the range of a timestamp")
    if nanos and is_compact_timestamp(dtype):
        raise InvalidRowError(f"{value} ns has a part below the millisecond, {dtype} would lose it")
    return millis, nanos


def join_timestamp(millis: int, nanos: int) -> int:
    """The inverse of `split_timestamp`."""
    if not 0 <= nanos < NANOS_PER_MILLI:
        raise FormatError(f"{nanos} nanoseconds within a millisecond")
    return millis * NANOS_PER_MILLI + nanos


def text_of(data: bytes | memoryview) -> str:
    """Decode UTF-8."""
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8: {error.reason} at byte {error.start} of {len(data)}") from None


def boolean_of(byte: int) -> bool:
    if byte > 1:
        raise FormatError(f"a boolean is the byte 0 or 1, not {byte}")
    return byte == 1


def time_of(millis: int) -> int:
    if not 0 <= millis < MILLIS_PER_DAY:
        raise FormatError(f"{millis} is not a millisecond of the day")
    return millis


def fixed_size(dtype: t.DataType) -> int:
    """The bytes of each value of a type; 0 if they differ. Compact decimals and timestamps take a 64-bit number."""
    if isinstance(dtype, t.DecimalType):
        return 8 if is_compact_decimal(dtype) else 0
    if isinstance(dtype, t.TIMESTAMP_TYPES):
        return 8 if is_compact_timestamp(dtype) else 0
    return _FIXED_SIZES.get(type(dtype), 0)


def pack_fixed(value: object, dtype: t.DataType) -> bytes:
    """The bytes of a value of a type with a `fixed_size`, which all row formats but the compacted one share."""
    if isinstance(dtype, t.BooleanType):
        number = int(check_boolean(value))
    elif isinstance(dtype, t.FloatType):
        return pack_float32(value)
    elif isinstance(dtype, t.DoubleType):
        return pack_float64(value)
    elif isinstance(dtype, t.TimeType):
        number = check_time(value)
    elif isinstance(dtype, t.DecimalType):
        number = unscaled(value, dtype)
    elif isinstance(dtype, t.TIMESTAMP_TYPES):
        number = split_timestamp(value, dtype)[0]
    else:
        number = check_integer(value, INTEGER_BITS[type(dtype)])
    return number.to_bytes(fixed_size(dtype), "little", signed=True)


def unpack_fixed(data: memoryview, dtype: t.DataType) -> Any:
    """The inverse of `pack_fixed`."""
    if isinstance(dtype, t.BooleanType):
        return boolean_of(data[0])
    if isinstance(dtype, t.FLOAT_TYPES):
        return struct.unpack("<f" if isinstance(dtype, t.FloatType) else "<d", data)[0]
    number = int.from_bytes(data, "little", signed=True)
    if isinstance(dtype, t.TimeType):
        return time_of(number)
    if isinstance(dtype, t.DecimalType):
        return decimal_of(number, dtype)
    if isinstance(dtype, t.TIMESTAMP_TYPES):
        return join_timestamp(number, 0)
    return number


def canonical(value: float) -> float:
    """The one NaN that is written into arrays."""
    return math.nan if value != value else value


def check_list(value: object) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise refuse(value, "a list")
    return value


def check_pairs(value: object) -> Sequence[tuple[Any, Any]]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in value):
        raise refuse(value, "a list of (key, value) pairs")
    return value


def check_row(value: object, width: int) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise refuse(value, "a tuple")
    if len(value) != width:
        raise InvalidRowError(f"expected {width} fields, got {len(value)}")
    return value
