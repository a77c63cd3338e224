# SPDX-License-Identifier: Apache-2.0
"""Values of the console as JSON: exact cells of a grid, and texts of input fields, both ways."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from fluss.console.settings import CELL_CHARS_MAX
from fluss.db.plain_values import plain_values
from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import types as t
from fluss.tools.written_values import from_json, text_value

_EXACT_INTEGER_MAX = 2**53 - 1
"""Larger integers lose digits in JavaScript, so they travel as text."""
_HINTS: tuple[tuple[tuple[type[t.DataType], ...], str], ...] = (
    (t.BYTES_TYPES, "Bytes are written in base64."),
    (t.TIMESTAMP_TYPES, "Times are written like 2026-07-01 12:30:00."),
    ((t.DateType,), "Dates are written like 2026-07-01."),
    ((t.TimeType,), "Times of day are written like 12:30:00."),
    (t.NESTED_TYPES, "Nested values are written as JSON."),
)


def cells(column: pa.Array | pa.ChunkedArray, chars_max: int = CELL_CHARS_MAX) -> list[Any]:
    """Return the values of a column as the browser shows them: null, a boolean, a number or a text.

    Nested values are texts of JSON. A text that is longer than the limit is an object with its beginning and length:
    ``{"cut": "abc", "length": 5000}``.
    """
    return [_cell(value, chars_max) for value in plain_values(column)]


def _cell(value: Any, chars_max: int) -> Any:
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > _EXACT_INTEGER_MAX:
        value = str(value)
    if isinstance(value, str) and len(value) > chars_max:
        return {"cut": value[:CELL_CHARS_MAX], "length": len(value)}
    return value


def rows_of(rows: pa.RecordBatch | pa.Table, chars_max: int = CELL_CHARS_MAX) -> list[list[Any]]:
    """Return the cells row by row."""
    if not rows.num_columns:
        return [[] for _ in range(rows.num_rows)]
    return [list(row) for row in zip(*(cells(column, chars_max) for column in rows.columns))]


def paired_changes(kinds: Sequence[str], rows: Sequence[Any], about: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return records of a changelog as changes: the two records of an update are one, with its old and new row."""
    found: list[dict[str, Any]] = []
    before: Any = None
    for kind, row, one in zip(kinds, rows, about):
        if kind == "update_before":
            before = row
            continue
        change = {**one, "kind": "update" if kind == "update_after" else kind}
        change["old"] = before if kind == "update_after" else row if kind == "delete" else None
        change["new"] = None if kind == "delete" else row
        before = None
        found.append(change)
    return found


def from_text(value: Any, data_type: t.DataType, name: str) -> Any:
    """The value of a column from what an input field holds; null is None."""
    is_text = isinstance(value, str) and not isinstance(data_type, t.TEXT_TYPES)
    try:
        return text_value(value, data_type, name) if is_text else from_json(value, data_type, name)
    except InvalidRowError as error:
        raise InvalidArgumentError(f"column {name!r}: {error.reason}. {hint_of(data_type)}".rstrip()) from None


def hint_of(data_type: t.DataType) -> str:
    """How a value of a type is written."""
    return next((hint for types, hint in _HINTS if isinstance(data_type, types)), "")
