# SPDX-License-Identifier: Apache-2.0
"""What users write, as Arrow batches: one row, rows, Arrow, data frames."""

from __future__ import annotations

import decimal
import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from fluss.client.write.row_reader import RowReader
from fluss.db.schemas import check_not_column, frame_to_arrow, is_pandas, with_index
from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import types as t
from fluss.rows import BadValues, ColumnConverter
from fluss.rows.named_fields import as_mapping

_CHUNK_ROWS_FIRST = 1_000
_CHUNK_ROWS_MAX = 16_384
CHUNK_SECONDS = 0.1
"""After this time the rows that a slow iterable has given are written, however few they are."""
_STEP_ROWS_MAX = 256

Missing = Literal["null", "keep"] | None
"""What an upsert makes of columns that are not given; None refuses them."""
MISSING_HINT = "say missing='keep' to leave these columns as they are, or missing='null' to set them to null"
Rows = Any
"""A row (dict, tuple, dataclass, pydantic model), an iterable of rows, an Arrow object, or a data frame."""


class BadRow(Exception):
    """A row that does not fit, by its position within its chunk; the rows before it are in `before`."""

    def __init__(self, position: int, error: InvalidRowError, before: pa.RecordBatch | None) -> None:
        super().__init__(error.message)
        self.position = position
        self.error = error
        self.before = before


def to_batch(reader: RowReader, rows: Sequence[Any]) -> pa.RecordBatch:
    """Rows as one batch of the columns that they carry; `BadRow` for the first that does not fit."""
    columns, bad = reader.read_many(rows)
    arrays = []
    for column, values in zip(reader.columns, columns):
        try:
            arrays.append(_to_arrow(ColumnConverter(column.data_type, column.name), values))
        except BadValues as found:
            for position, error in found.errors.items():
                bad.setdefault(position, error)
    if bad:
        position = min(bad)
        before = to_batch(reader, rows[:position]) if position else None
        raise BadRow(position, bad[position], before)
    return pa.RecordBatch.from_arrays(arrays, reader.names)


def _to_arrow(converter: ColumnConverter, values: list[Any]) -> pa.Array:
    try:
        return converter.to_arrow(values)
    except BadValues:
        kinds = _SOFT.get(type(converter.data_type))
        if kinds is None:
            raise
        given, soften = kinds
        return converter.to_arrow([soften(value) if isinstance(value, given) else value for value in values])


def _whole_number(value: decimal.Decimal) -> Any:
    return int(value) if value.is_finite() and value == value.to_integral_value() else value


def _exact_decimal(value: Any) -> Any:
    # The digits that Python shows for a float are what was meant by it; those that do not fit are refused.
    return decimal.Decimal(repr(float(value))) if math.isfinite(value) else value


_SOFT: dict[type[t.DataType], tuple[type | tuple[type, ...], Callable[[Any], Any]]] = {
    **dict.fromkeys(t.FLOAT_TYPES, (decimal.Decimal, float)),
    t.DecimalType: ((float, np.floating), _exact_decimal),
    **dict.fromkeys(t.INTEGER_TYPES, (decimal.Decimal, _whole_number)),
}
"""Values that a column does not hold, but that say exactly what is meant: which ones, and what they become."""


def is_one_row(data: Any) -> bool:
    """Whether this is a row and not several."""
    if isinstance(data, tuple) and not hasattr(data, "_fields"):
        return not data or not all(as_mapping(item) is not None or isinstance(item, tuple) for item in data)
    if isinstance(data, tuple):
        return True
    return as_mapping(data) is not None


def frame_of(data: Any, wanted: Sequence[str]) -> Any:
    """A pandas frame or Arrow table, if the data is one; None otherwise."""
    if is_pandas(data):
        return with_index(data, wanted)
    if isinstance(data, pa.RecordBatchReader):
        return None
    return frame_to_arrow(data, wanted)


def pieces_of(data: Any, wanted: Sequence[str]) -> Iterator[Any]:
    """What an iterable gives, in pieces: Arrow batches and data frames as they are, rows in chunks (lists)."""
    if isinstance(data, (str, bytes)) or not isinstance(data, Iterable):
        raise InvalidArgumentError(
            "rows are a dict, an iterable of dicts, tuples, dataclasses or pydantic models, an Arrow object or a data "
            f"frame, not {type(data).__name__} {data!r:.60}"
        )
    check_not_column(data)
    items = iter(data)
    head = list(itertools.islice(items, 1))  # not next(items, None): None may be among the items, if a wrong one
    items = itertools.chain(head, items)
    if head and as_mapping(head[0]) is None and frame_of(head[0], wanted) is not None:
        for item in items:
            frame = frame_of(item, wanted)
            if frame is None:
                raise InvalidRowError(f"batches or frames cannot be mixed with {type(item).__name__} {item!r:.60}")
            yield frame
        return
    size = _CHUNK_ROWS_FIRST
    while True:
        chunk: list[Any] = []
        try:
            _fill(chunk, items, size)
        except Exception:
            if chunk:
                yield chunk  # what came before the error is written, as what comes before a row that does not fit
            raise
        if not chunk:
            return
        yield chunk
        size = _CHUNK_ROWS_MAX


def _fill(chunk: list[Any], items: Iterator[Any], size: int) -> None:
    """Take up to `size` rows, fewer if they come slowly. The clock is asked less often the faster they come."""
    end = time.monotonic() + CHUNK_SECONDS
    step = 1
    while len(chunk) < size:
        wanted = min(len(chunk) + step, size)
        chunk.extend(itertools.islice(items, step))
        if len(chunk) < wanted or time.monotonic() >= end:
            return
        step = min(step * 2, _STEP_ROWS_MAX, size - len(chunk))
