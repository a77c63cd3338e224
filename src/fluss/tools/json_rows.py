# SPDX-License-Identifier: Apache-2.0
"""Values as JSON writes them, read as what a column holds."""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import decimal
import json
from typing import Any

from fluss.errors import InvalidArgumentError, InvalidRowError
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
    TableInfo,
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
        raise InvalidRowError(f"column '{name}': {value!r:.80} cannot be read as {data_type}: {error}") from None


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


def key_from_text(text: str, info: TableInfo) -> dict[str, Any]:
    """A primary key as users write it: a JSON object, or the value itself if the key has one column.

    Example:
        key_from_text("7", table.info)  # {'id': 7}
    """
    keys = list(info.primary_keys)
    try:
        given = json.loads(text)
    except ValueError:
        given = text
    if not isinstance(given, dict):
        if len(keys) > 1:
            shown = ", ".join(f'"{name}": …' for name in keys)
            raise InvalidArgumentError(f"the key of {info.table_path} has {len(keys)} columns: write {{{shown}}}")
        given = {keys[0]: text if isinstance(info.schema.column(keys[0]).data_type, StringType | CharType) else given}
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
