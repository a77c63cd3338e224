# SPDX-License-Identifier: Apache-2.0
"""Values on their way to the browser and back: JSON that loses nothing a user sees, and texts of input fields."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fluss.console.settings import CELL_CHARS_MAX
from fluss.errors import InvalidArgumentError
from fluss.metadata import (
    ArrayType,
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    MapType,
    RowType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)

_EXACT_INTEGER_MAX = 2**53 - 1
"""Larger integers lose digits in JavaScript, so they travel as text."""
_NESTED = (ArrayType, MapType, RowType)


def to_json(value: Any, chars_max: int = CELL_CHARS_MAX) -> Any:
    """A value as JSON can carry it; texts longer than the limit are cut."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _EXACT_INTEGER_MAX else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if len(value) <= chars_max else f"{value[:chars_max]}… ({len(value):,} characters)"
    if isinstance(value, (bytes, bytearray, memoryview)):
        return to_json(base64.b64encode(bytes(value)).decode(), chars_max)
    if isinstance(value, (dt.date, dt.time, dt.datetime)):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(to_json(key, chars_max)): to_json(item, chars_max) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [to_json(item, chars_max) for item in value[:1_000]]
    return to_json(str(value), chars_max)


def row_values(row: Mapping[str, Any] | None, columns: Sequence[str], chars_max: int = CELL_CHARS_MAX) -> Any:
    """The cells of a row in the order of the columns."""
    return None if row is None else [to_json(row.get(name), chars_max) for name in columns]


def from_text(value: Any, data_type: DataType, name: str) -> Any:
    """The value of a column from what an input field holds; null is None."""
    if value is None:
        return None
    try:
        return _parse(value, data_type)
    except (ValueError, TypeError, KeyError, AttributeError, decimal.InvalidOperation, binascii.Error) as error:
        raise InvalidArgumentError(
            f"column {name!r}: {str(value)[:80]!r} cannot be read as {data_type}: {error}. {hint_of(data_type)}"
        ) from None


def hint_of(data_type: DataType) -> str:
    """How a value of a type is written."""
    if isinstance(data_type, (BytesType, BinaryType)):
        return "Bytes are written in base64."
    if isinstance(data_type, (TimestampType, TimestampLtzType)):
        return "Times are written like 2026-07-01 12:30:00."
    if isinstance(data_type, DateType):
        return "Dates are written like 2026-07-01."
    if isinstance(data_type, TimeType):
        return "Times of day are written like 12:30:00."
    if isinstance(data_type, _NESTED):
        return "Nested values are written as JSON."
    return ""


def _parse(value: Any, data_type: DataType) -> Any:
    if value is None:
        return None
    if isinstance(data_type, (StringType, CharType)):
        return value if isinstance(value, str) else str(value)
    if isinstance(data_type, BooleanType):
        texts = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
        return value if isinstance(value, bool) else texts[str(value).strip().lower()]
    if isinstance(data_type, (TinyIntType, SmallIntType, IntType, BigIntType)):
        return int(value) if not isinstance(value, float) or value.is_integer() else int(str(value))
    if isinstance(data_type, (FloatType, DoubleType)):
        return float(value)
    if isinstance(data_type, DecimalType):
        return decimal.Decimal(str(value).strip())
    if isinstance(data_type, DateType):
        return dt.date.fromisoformat(str(value).strip())
    if isinstance(data_type, TimeType):
        return dt.time.fromisoformat(str(value).strip())
    if isinstance(data_type, (TimestampType, TimestampLtzType)):
        return dt.datetime.fromisoformat(str(value).strip().replace("Z", "+00:00"))
    if isinstance(data_type, (BytesType, BinaryType)):
        return base64.b64decode(value, validate=True)
    nested = json.loads(value) if isinstance(value, str) else value
    if isinstance(data_type, ArrayType):
        return [_parse(item, data_type.element_type) for item in nested]
    if isinstance(data_type, MapType):
        items = nested.items() if isinstance(nested, dict) else nested
        return {_parse(key, data_type.key_type): _parse(item, data_type.value_type) for key, item in items}
    if isinstance(data_type, RowType):
        return {field.name: _parse(nested.get(field.name), field.data_type) for field in data_type.fields}
    return nested
