# SPDX-License-Identifier: Apache-2.0
"""The bucket key of Hudi tables: four bytes, the hash code that Java gives the list of the key values as text.

Hudi finds buckets by ``List<String>.hashCode()``, so the text forms must be those of Java, to the letter.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from fluss.errors import InvalidRowError
from fluss.metadata.types import (
    BigIntType,
    BooleanType,
    CharType,
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
from fluss.rows import values as v

SUPPORTED = (
    BooleanType,
    TinyIntType,
    SmallIntType,
    IntType,
    BigIntType,
    FloatType,
    DoubleType,
    CharType,
    StringType,
    DecimalType,
    DateType,
    TimeType,
    TimestampType,
    TimestampLtzType,
)

_NULL = "__null__"
_RESERVED = (_NULL, "__empty__")
_MASK = 0xFFFF_FFFF
_EPOCH = datetime(1970, 1, 1)


def bucket_key(types: Sequence[DataType], values: Sequence[Any], names: Sequence[str]) -> bytes:
    """The four bytes for these key values."""
    code = 1
    for dtype, value, name in zip(types, values, names):
        code = 31 * code + _element_hash(dtype, value, name, composite=len(types) > 1)
    return (code & _MASK).to_bytes(4, "big")


def _element_hash(dtype: DataType, value: Any, name: str, *, composite: bool) -> int:
    # Hudi writes a composite key as one text "a:1,b:2" and parses it back, so what would not survive that is refused.
    # A key of one column is taken as it is.
    if value is None:
        return 0 if composite else string_hash(_NULL)
    text = java_text(value, dtype)
    if composite and ("," in text or text in _RESERVED):
        raise InvalidRowError(
            f"field {name!r} ({dtype}): {v.shown(value)} cannot be part of a composite Hudi key: "
            f"it contains a comma or is a reserved word of Hudi"
        )
    return string_hash(text)


def string_hash(text: str) -> int:
    """Java's ``String.hashCode()``, as an unsigned number: a polynomial over UTF-16 units."""
    code = 0
    for unit in np.frombuffer(text.encode("utf-16-le", "surrogatepass"), "<u2").tolist():
        code = 31 * code + unit & _MASK
    return code


def java_text(value: Any, dtype: DataType) -> str:
    """A logical value as Java's ``toString`` writes it."""
    if isinstance(dtype, (CharType, StringType)):
        return v.utf8(value).decode()
    if isinstance(dtype, BooleanType):
        return "true" if v.check_boolean(value) else "false"
    if isinstance(dtype, FloatType):
        return _java_float(str(np.float32(v.check_float(value))))
    if isinstance(dtype, DoubleType):
        return _java_float(repr(v.check_float(value)))
    if isinstance(dtype, DecimalType):
        return format(v.decimal_of(v.unscaled(value, dtype), dtype), "f")
    if isinstance(dtype, TimeType):
        return str(v.check_time(value))
    if isinstance(dtype, (TimestampType, TimestampLtzType)):
        return _java_timestamp(value, dtype)
    return str(v.check_integer(value, v.INTEGER_BITS[type(dtype)]))


def _java_float(text: str) -> str:
    """The digits Python chose, in the notation of Java: plain from 1e-3 to 1e7, else with an exponent."""
    special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text)
    if special:
        return special
    sign, digits, exponent = Decimal(text).as_tuple()
    point = len(digits) + int(exponent)
    shown = "".join(map(str, digits)).rstrip("0")
    prefix = "-" if sign else ""
    if not shown:
        return prefix + "0.0"
    if -2 <= point <= 7:
        if point <= 0:
            return f"{prefix}0.{'0' * -point}{shown}"
        return f"{prefix}{shown[:point].ljust(point, '0')}.{shown[point:] or '0'}"
    return f"{prefix}{shown[0]}.{shown[1:] or '0'}E{point - 1}"


def _java_timestamp(value: Any, dtype: TimestampType | TimestampLtzType) -> str:
    millis, nanos = v.split_timestamp(value, dtype)
    seconds, fraction = divmod(millis, 1000)
    fraction = fraction * 1_000_000 + nanos
    try:
        moment = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise InvalidRowError(f"{value} ns since 1970 is outside the years 1 to 9999") from None
    text = moment.isoformat()
    # Java writes 0, 3, 6 or 9 digits of a second, and a local date-time without the seconds if they are zero.
    if fraction:
        text += "." + re.sub(r"^(\d{3}|\d{6})(?:000)+$", r"\1", f"{fraction:09}")
    elif isinstance(dtype, TimestampType) and moment.second == 0:
        text = text[:-3]
    return text if isinstance(dtype, TimestampType) else text + "Z"
