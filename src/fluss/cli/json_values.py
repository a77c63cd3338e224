# SPDX-License-Identifier: Apache-2.0
"""Values as JSON writes them, read as what a column holds."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
from typing import Any

import click

from fluss.metadata import (
    ArrayType,
    BinaryType,
    BytesType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    MapType,
    RowType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
)


def from_json(value: Any, data_type: DataType, name: str) -> Any:
    """The Python value of a JSON one: ISO texts for dates and times, base64 for bytes, text or number for decimals."""
    if value is None:
        return None
    try:
        return _convert(value, data_type, name)
    except (ValueError, TypeError, decimal.InvalidOperation, binascii.Error) as error:
        raise click.ClickException(f"column '{name}': {value!r} cannot be read as {data_type}: {error}") from None


def _convert(value: Any, data_type: DataType, name: str) -> Any:
    if isinstance(data_type, StringType | CharType) and not isinstance(value, str):
        return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
    if isinstance(data_type, DecimalType):
        return decimal.Decimal(str(value))
    if isinstance(data_type, DateType):
        return dt.date.fromisoformat(value)
    if isinstance(data_type, TimeType):
        return dt.time.fromisoformat(value)
    if isinstance(data_type, TimestampType | TimestampLtzType):
        return dt.datetime.fromisoformat(value)
    if isinstance(data_type, BytesType | BinaryType):
        return base64.b64decode(value, validate=True)
    if isinstance(data_type, ArrayType):
        return [from_json(item, data_type.element_type, name) for item in value]
    if isinstance(data_type, MapType):
        items = value.items() if isinstance(value, dict) else value
        return {
            from_json(key, data_type.key_type, name): from_json(item, data_type.value_type, name) for key, item in items
        }
    if isinstance(data_type, RowType):
        types = {field.name: field.data_type for field in data_type.fields}
        return {key: from_json(item, types[key], name) if key in types else item for key, item in value.items()}
    return value
