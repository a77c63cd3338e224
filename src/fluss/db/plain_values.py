# SPDX-License-Identifier: Apache-2.0
"""Arrow columns as exact values that JSON can carry: no digit, nanosecond or item is lost on the way."""

from __future__ import annotations

import base64
import itertools
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from fluss._text import json_text, json_value


def plain_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Return the values of a column: numbers, texts, lists and dicts.

    Decimals, dates, times and intervals are texts, bytes are base64, maps and rows are dicts. A FLOAT is the shortest
    number that is read back as the same FLOAT; NaN and the infinities are texts, as in `json_value`.

    Example:
        plain_values(pa.array([0.1], pa.float32()))  # [0.1]
    """
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in plain_values(chunk)]
    kind = column.type
    if isinstance(column, pa.ExtensionArray):
        if kind.extension_name == "arrow.uuid":
            return [None if v is None else str(uuid.UUID(bytes=v)) for v in column.storage.to_pylist()]
        return plain_values(column.storage)
    if kinds.is_dictionary(kind):
        return plain_values(column.dictionary_decode())
    if kinds.is_nested(kind):
        return _nested(column)
    if kinds.is_temporal(kind) and not kinds.is_duration(kind):
        if not kinds.is_interval(kind):
            return _times(column)
        return [None if value is None else _interval(*value) for value in column.to_pylist()]
    values: list[Any] = column.to_pylist()
    if kinds.is_float32(kind) or kinds.is_float16(kind):
        narrow = kind.to_pandas_dtype()
        return [None if value is None else json_value(float(str(narrow(value)))) for value in values]
    if kinds.is_floating(kind):
        return [json_value(value) for value in values]
    if kinds.is_decimal(kind):
        return [None if v is None else int(v) if kind.scale == 0 else format(v, "f") for v in values]
    if kinds.is_binary(kind) or kinds.is_large_binary(kind) or kinds.is_fixed_size_binary(kind):
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    return [value if value is None or isinstance(value, (bool, int, str)) else str(value) for value in values]


def _nested(column: pa.Array) -> list[Any]:
    kind = column.type
    valid = column.is_valid().to_pylist()
    if kinds.is_struct(kind):
        fields = [plain_values(column.field(at)) for at in range(kind.num_fields)]
        names = [kind.field(at).name for at in range(kind.num_fields)]
        rows = zip(*fields) if fields else ((),) * len(column)
        return [dict(zip(names, row)) if there else None for there, row in zip(valid, rows)]
    if kinds.is_fixed_size_list(kind):
        size = kind.list_size
        items = plain_values(column.values.slice(column.offset * size, len(column) * size))
        return [items[at * size : (at + 1) * size] if there else None for at, there in enumerate(valid)]
    offsets = column.offsets.to_pylist()
    first, end = (offsets[0], offsets[-1]) if offsets else (0, 0)
    bounds = [(start - first, stop - first) for start, stop in itertools.pairwise(offsets)]
    if kinds.is_map(kind):
        keys = plain_values(column.keys.slice(first, end - first))
        keys = [json_text(key) if isinstance(key, (dict, list)) else key for key in keys]
        items = plain_values(column.items.slice(first, end - first))
        return [dict(zip(keys[a:b], items[a:b])) if there else None for there, (a, b) in zip(valid, bounds)]
    items = plain_values(column.values.slice(first, end - first))
    return [items[a:b] if there else None for there, (a, b) in zip(valid, bounds)]


def _times(column: pa.Array) -> list[Any]:
    """Return dates and times as texts, in the full range of Arrow, without zeros at the end of a second's fraction."""
    zone = getattr(column.type, "tz", None)
    if zone not in (None, "UTC"):
        column = column.cast(pa.timestamp(column.type.unit, "UTC"))
    texts = pc.replace_substring_regex(column.cast(pa.string()), r"(\.\d*?)0+(Z?)$", r"\1\2")
    found: list[Any] = pc.replace_substring_regex(texts, r"\.(Z?)$", r"\1").to_pylist()
    return found


def _interval(months: int, days: int, nanoseconds: int) -> str:
    """Write an interval as SQL does: ``1 year 2 months 3 days 04:05:06.5``."""
    years, months = int(months / 12), int(np.fmod(months, 12))
    named = ((years, "year"), (months, "month"), (days, "day"))
    parts = [f"{count} {name}{'' if abs(count) == 1 else 's'}" for count, name in named if count]
    if nanoseconds or not parts:
        seconds, fraction = divmod(abs(nanoseconds), 10**9)
        digits = f".{fraction:09d}".rstrip("0") if fraction else ""
        sign = "-" if nanoseconds < 0 else ""
        parts.append(f"{sign}{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{digits}")
    return " ".join(parts)
