# SPDX-License-Identifier: Apache-2.0
"""Literals of a condition, read as values of the columns that they are compared with."""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from fluss.metadata import types as t

_MOMENT = re.compile(
    r"\s*(\d{4})-(\d{1,2})-(\d{1,2})"
    r"(?:[T ]\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?)?"
    r"\s*(Z|UTC|[+-]\d{2}(?::?\d{2})?)?\s*",
    re.IGNORECASE,
)
_NUMBERS = ((t.INTEGER_TYPES, int), (t.DecimalType, decimal.Decimal), (t.FLOAT_TYPES, float))
_EPOCH = datetime.datetime(1970, 1, 1)
_DIGITS = "0123456789."
_TIME = re.compile(r"\s*(\d{1,2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?)?\s*")


def number_of(text: str) -> int | decimal.Decimal:
    """Read a number with or without a sign."""
    # Exact in either case: 0.1 is one tenth, also for a decimal column. Python refuses very long integers.
    if len(text) <= 100 and text.lstrip("+-").isdigit():
        return int(text)
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:  # an exponent beyond all bounds
        return decimal.Decimal(0) if re.search("[eE]-", text) else decimal.Decimal(f"{text[0]}Infinity".lstrip(_DIGITS))


def value_of(data_type: t.DataType, kind: str, value: Any) -> Any:
    """Read a literal of this kind as a Python value of the type.

    Raises:
        ValueError: The literal is not of the type; the message may be empty.
    """
    if kind == "null":
        return None
    if kind in ("date", "time", "timestamp", "timestamp with a zone"):
        return _as_moment(data_type, kind, value)
    if kind != "text":
        return value  # checked by `Predicate.resolve`
    if isinstance(data_type, t.TEXT_TYPES):
        return value
    for types, read in _NUMBERS:
        if isinstance(data_type, types):
            return _read(read, value)
    if isinstance(data_type, t.BooleanType):
        if value.lower() not in ("true", "false"):
            raise ValueError("write true or false")
        return value.lower() == "true"
    if isinstance(data_type, t.BYTES_TYPES):
        return bytes.fromhex(value)
    if isinstance(data_type, (t.DateType, t.TimeType, *t.TIMESTAMP_TYPES)):
        return _as_moment(data_type, "time" if isinstance(data_type, t.TimeType) else "timestamp", value)
    raise ValueError("such columns can be compared with IS NULL and IS NOT NULL only")


def _read(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except (ValueError, decimal.InvalidOperation):
        raise ValueError from None  # what Python says of it names no column


def _as_moment(data_type: t.DataType, kind: str, text: str) -> Any:
    if kind == "time":
        return _time_of(text)
    with_zone = isinstance(data_type, t.TimestampLtzType)
    moment, date_only, zoned = _moment_of(text, with_zone)
    if isinstance(data_type, t.DateType):
        if not date_only:
            raise ValueError("write a date such as '2024-01-15'")
        return moment.date()
    if zoned and isinstance(data_type, t.TimestampType):
        raise ValueError("the column has no zone: leave the zone out")
    if kind == "timestamp with a zone" and isinstance(data_type, t.TimestampType):
        raise ValueError("the column has no zone: write timestamp '…'")
    return moment


def _time_of(text: str) -> datetime.time:
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError("write a time such as '10:30:00'")
    hour, minute, second, fraction = found.groups()
    return datetime.time(int(hour), int(minute), int(second or 0), int((fraction or "").ljust(6, "0")))


def has_zone(value: Any) -> bool:
    """Whether a text names a zone, or is no moment at all."""
    found = _MOMENT.fullmatch(value) if isinstance(value, str) else None
    return found is None or found.groups()[-1] is not None


def _moment_of(text: str, with_zone: bool) -> tuple[Any, bool, bool]:
    """A datetime, or a `numpy.datetime64` where it has nanoseconds; whether it is a day only; whether it has a zone.

    Times without a zone that are compared with TIMESTAMP_LTZ are UTC, as everywhere in the package.
    """
    found = _MOMENT.fullmatch(text)
    if found is None:
        raise ValueError("write it as '2024-01-15' or '2024-01-15 10:30:00'")
    year, month, day, hour, minute, second, fraction, zone = found.groups()
    digits = (fraction or "").ljust(9, "0")
    moment = datetime.datetime(
        int(year), int(month), int(day), int(hour or 0), int(minute or 0), int(second or 0), int(digits[:6])
    )
    if zone is not None and zone[0] in "+-":
        sign = -1 if zone[0] == "-" else 1
        minutes = int(zone[1:3]) * 60 + int(zone[3:].lstrip(":") or 0)
        try:
            moment -= sign * datetime.timedelta(minutes=minutes)
        except OverflowError:
            raise ValueError("it lies outside the years 1 to 9999") from None
    date_only = hour is None and zone is None
    if int(digits[6:]):
        nanos = (moment - _EPOCH) // datetime.timedelta(microseconds=1) * 1000 + int(digits[6:])
        if abs(nanos) >= 1 << 63:
            raise ValueError("it may have at most 6 digits of a second, outside the years 1678 to 2261")
        return np.datetime64(nanos, "ns"), date_only, zone is not None
    return (moment.replace(tzinfo=datetime.timezone.utc) if with_zone else moment), date_only, zone is not None
