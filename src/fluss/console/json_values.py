# SPDX-License-Identifier: Apache-2.0
"""Values on their way to the browser and back: JSON that loses nothing a user sees, and texts of input fields."""

from __future__ import annotations

import base64
import datetime as dt
import math
from collections.abc import Mapping, Sequence
from typing import Any

from fluss.console.settings import CELL_CHARS_MAX
from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import types as t
from fluss.tools.row_files import from_json, text_value

_EXACT_INTEGER_MAX = 2**53 - 1
"""Larger integers lose digits in JavaScript, so they travel as text."""


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


def from_text(value: Any, data_type: t.DataType, name: str) -> Any:
    """The value of a column from what an input field holds; null is None."""
    is_text = isinstance(value, str) and not isinstance(data_type, t.TEXT_TYPES)
    try:
        return text_value(value, data_type, name) if is_text else from_json(value, data_type, name)
    except InvalidRowError as error:
        raise InvalidArgumentError(f"column {name!r}: {error.reason}. {hint_of(data_type)}".rstrip()) from None


def hint_of(data_type: t.DataType) -> str:
    """How a value of a type is written."""
    if isinstance(data_type, t.BYTES_TYPES):
        return "Bytes are written in base64."
    if isinstance(data_type, t.TIMESTAMP_TYPES):
        return "Times are written like 2026-07-01 12:30:00."
    if isinstance(data_type, t.DateType):
        return "Dates are written like 2026-07-01."
    if isinstance(data_type, t.TimeType):
        return "Times of day are written like 12:30:00."
    if isinstance(data_type, t.NESTED_TYPES):
        return "Nested values are written as JSON."
    return ""
