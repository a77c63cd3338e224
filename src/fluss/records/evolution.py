# SPDX-License-Identifier: Apache-2.0
"""Reading batches of any log format, and those that were written with another schema of the same table."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata.schema import Schema
from fluss.records.arrow import DECODED_BYTES_MAX, decode_arrow_batch
from fluss.records.log_batch import LogBatch


def column_mapping(written: Schema, wanted: Schema, columns: Sequence[int] | None = None) -> list[int]:
    """For each wanted column its position in the written schema, or -1 when it was not there yet.

    Columns are matched by id: names may be reused after a column was dropped, ids never are.
    """
    positions = {column.column_id: index for index, column in enumerate(written.columns)}
    chosen = range(len(wanted.columns)) if columns is None else columns
    return [positions.get(wanted.columns[index].column_id, -1) for index in chosen]


def align_batch(
    batch: pa.RecordBatch,
    written: Schema,
    wanted: Schema,
    columns: Sequence[int | str] | None = None,
    *,
    batch_columns: Sequence[int] | None = None,
) -> pa.RecordBatch:
    """The rows of `batch`, written with schema `written`, as rows of schema `wanted`.

    Columns the writer did not know yet are null; columns that were dropped since are left out.

    Args:
        columns: Positions or names in `wanted` to return, in this order; all by default.
        batch_columns: Which columns of `written` the batch holds, if it was projected; all by default.
    """
    chosen = range(len(wanted.columns)) if columns is None else [_position(wanted, column) for column in columns]
    held = range(len(written.columns)) if batch_columns is None else batch_columns
    if batch.num_columns != len(held):
        raise InvalidArgumentError(f"the batch has {batch.num_columns} columns, expected {len(held)}")
    place = {position: index for index, position in enumerate(held)}
    target = wanted.arrow_schema
    fields = [target.field(index) for index in chosen]
    arrays = []
    for field, source in zip(fields, column_mapping(written, wanted, chosen)):
        if source < 0:
            arrays.append(pa.nulls(batch.num_rows, field.type))
            continue
        if source not in place:
            raise InvalidArgumentError(f"column {field.name!r} was asked for, but the batch was projected without it")
        arrays.append(_as_type(batch.column(place[source]), field))
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _position(schema: Schema, column: int | str) -> int:
    if isinstance(column, str):
        return schema.column_index(column)
    if not 0 <= column < len(schema.columns):
        raise InvalidArgumentError(f"column {column} is outside 0..{len(schema.columns) - 1}")
    return column


def _as_type(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise FormatError(
            f"column {field.name!r} was written as {array.type} and cannot be read as {field.type}"
        ) from error


def decode_log_batch(
    batch: LogBatch,
    schema: Schema,
    log_format: str = "ARROW",
    *,
    max_bytes: int = DECODED_BYTES_MAX,
) -> pa.RecordBatch:
    """Decode a batch of any log format, written with `schema`."""
    if log_format == "ARROW":
        return decode_arrow_batch(batch, schema.arrow_schema, max_bytes=max_bytes)
    from fluss.records.row_batch import decode_row_batch

    return decode_row_batch(batch, log_format, schema.row_type)
