# SPDX-License-Identifier: Apache-2.0
"""Values as users write them, in files and on the command line: JSON and text, read as what a column holds."""

from __future__ import annotations

import base64
import binascii
import contextlib
import datetime as dt
import decimal
import json
import math
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import TableInfo, datetime_from_text
from fluss.metadata import types as t

_TEXT_SHOWN = 60
_EXACT_FLOATS = 2**53
"""Integers below this one are floats too; of larger ones a float may be the neighbour."""
_BIGINT_DIGITS = 19


def wide(target: pa.DataType) -> pa.DataType:
    """What to read a text as: one that is too large for 32 bits would become infinity at once."""
    return pa.float64() if pa.types.is_float32(target) else target


def text_value(text: str, kind: t.DataType, name: str) -> Any:
    """The value of a column from a text that is not a string's own: a number, a time, JSON for nested values."""
    if isinstance(kind, t.NESTED_TYPES):
        try:
            return from_json(exact_json(text), kind, name)
        except ValueError as error:
            raise InvalidRowError(f"{text!r:.60} is not JSON: {error}") from None
    if isinstance(kind, t.BYTES_TYPES):
        return from_json(text, kind, name)
    try:
        found = pa.scalar(text.strip()).cast(wide(kind.to_arrow()))
        return _nanoseconds(found) if isinstance(kind, t.TIMESTAMP_TYPES) else found.as_py()
    except (pa.ArrowException, NotImplementedError):
        pass
    try:
        value = from_json(text.strip(), kind, name)
    except InvalidRowError:
        value = text
    if isinstance(value, str):
        raise InvalidRowError(does_not_fit(text, kind))
    return value


def _nanoseconds(moment: pa.TimestampScalar) -> Any:
    """A time that keeps its nanoseconds, of which a datetime has only the microseconds."""
    return np.datetime64(moment.value, "ns") if moment.type.unit == "ns" else moment.as_py()


def does_not_fit(value: Any, kind: t.DataType) -> str:
    """Why a value is refused."""
    return f"{value!r:.{_TEXT_SHOWN}} is not a value of type {kind}"


class WrittenFloat(float):
    """A number of JSON whose text is as it was written: DECIMAL and BIGINT have more digits than a float."""

    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        found = super().__new__(cls, text)
        found.text = text
        return found

    def __str__(self) -> str:
        return self.text


def exact_json(text: str | bytes) -> Any:
    """Read JSON with numbers that know how they were written."""
    return json.loads(text, parse_float=WrittenFloat)


def _integer(value: float) -> Any:
    """The integer that a number such as 1e18 stands for; one that the column refuses stays what it is."""
    if abs(value) < _EXACT_FLOATS:
        return value
    if not math.isfinite(value) and not isinstance(value, WrittenFloat):
        raise ValueError("it is no whole number")
    if not isinstance(value, WrittenFloat):
        raise ValueError("a float may be another number than the one written; write it without point and exponent")
    written = decimal.Decimal(value.text)
    if written.adjusted() >= _BIGINT_DIGITS or written != written.to_integral_value():
        raise ValueError("it is no integer of 64 bits")
    return int(written)


def from_json(value: Any, data_type: t.DataType, name: str) -> Any:
    """The Python value of a JSON one: ISO texts for dates and times, base64 for bytes, text or number for decimals."""
    if value is None:
        return None
    try:
        return _convert(value, data_type, name)
    except (ValueError, TypeError, decimal.InvalidOperation, binascii.Error) as error:
        raise InvalidRowError(f"column '{name}': {value!r:.80} cannot be read as {data_type}: {error}") from None


def _convert(value: Any, data_type: t.DataType, name: str) -> Any:
    if isinstance(data_type, t.TEXT_TYPES) and not isinstance(value, str):
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(value, float) and isinstance(data_type, t.INTEGER_TYPES):
        return _integer(value)
    if isinstance(data_type, (t.FloatType, t.DoubleType)) and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    if isinstance(data_type, t.DecimalType):
        return decimal.Decimal(str(value))
    if isinstance(data_type, t.DateType):
        return dt.date.fromisoformat(value)
    if isinstance(data_type, t.TimeType):
        return dt.time.fromisoformat(value)
    if isinstance(data_type, t.TIMESTAMP_TYPES):
        with contextlib.suppress(pa.ArrowException):
            return _nanoseconds(pa.scalar(value).cast(data_type.to_arrow()))
        return datetime_from_text(value)
    if isinstance(data_type, t.BYTES_TYPES):
        return base64.b64decode(value, validate=True)
    if isinstance(data_type, t.ArrayType):
        if not isinstance(value, list):
            raise TypeError("it is not a list")
        return [from_json(item, data_type.element_type, name) for item in value]
    if isinstance(data_type, t.MapType):
        items = value.items() if isinstance(value, dict) else value
        # The keys of a JSON object are texts, whatever the type of the key is.
        as_text = isinstance(value, dict) and not isinstance(data_type.key_type, t.TEXT_TYPES)
        read_key = text_value if as_text else from_json
        return {
            read_key(key, data_type.key_type, name): from_json(item, data_type.value_type, name) for key, item in items
        }
    if isinstance(data_type, t.RowType):
        if not isinstance(value, dict):
            raise TypeError("it is not an object")
        types = {field.name: field.data_type for field in data_type.fields}
        return {key: from_json(item, types[key], name) if key in types else item for key, item in value.items()}
    return value


def key_from_text(text: str, info: TableInfo) -> dict[str, Any]:
    """A primary key as users write it: a JSON object, or the value itself if the key has one column.

    Example:
        key_from_text("7", table.info)  # {'id': 7}
    """
    keys = list(info.primary_keys)
    try:
        given = exact_json(text)
    except ValueError:
        given = text
    if not isinstance(given, dict):
        if len(keys) > 1:
            shown = ", ".join(f'"{name}": …' for name in keys)
            raise InvalidArgumentError(f"the key of {info.table_path} has {len(keys)} columns: write {{{shown}}}")
        given = {
            keys[0]: text if isinstance(info.schema.column(keys[0]).data_type, t.StringType | t.CharType) else given
        }
    for name in given:
        if name not in keys:
            raise InvalidArgumentError(
                f"{name!r} is not a column of the primary key of {info.table_path}: {', '.join(keys)}"
            )
    for name in keys:
        if name not in given:
            raise InvalidArgumentError(f"the key lacks column {name!r}: the primary key is {', '.join(keys)}")
    types = {column.name: column.data_type for column in info.schema.columns}
    return {name: from_json(value, types[name], name) for name, value in given.items()}
