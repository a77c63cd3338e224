# SPDX-License-Identifier: Apache-2.0
"""Reading batches of any log format, and those that were written with another schema of the same table."""

from __future__ import annotations

import pyarrow as pa

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata.schema import Schema
from fluss.records.arrow import decode_arrow_batch
from fluss.records.log_batch import LogBatch


def align_batch(batch: pa.RecordBatch, written: Schema, wanted: Schema) -> pa.RecordBatch:
    """The rows of `batch`, written with schema `written`, as rows of schema `wanted`.

    Columns are matched by id: names may be reused after a column was dropped, ids never are. Columns the writer did not
    know yet are null; columns that were dropped since are left out.
    """
    if batch.num_columns != len(written.columns):
        raise InvalidArgumentError(f"the batch has {batch.num_columns} columns, expected {len(written.columns)}")
    positions = {column.column_id: index for index, column in enumerate(written.columns)}
    arrays = []
    for column, field in zip(wanted.columns, wanted.arrow_schema):
        position = positions.get(column.column_id)
        if position is None:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            arrays.append(_as_type(batch.column(position), field))
    return pa.RecordBatch.from_arrays(arrays, schema=wanted.arrow_schema)


def _as_type(array: pa.Array, field: pa.Field) -> pa.Array:
    if array.type == field.type:
        return array
    try:
        return array.cast(field.type)
    except pa.ArrowException as error:
        raise FormatError(
            f"column {field.name!r} was written as {array.type} and cannot be read as {field.type}"
        ) from error


def decode_log_batch(batch: LogBatch, schema: Schema, log_format: str = "ARROW") -> pa.RecordBatch:
    """Decode a batch of any log format, written with `schema`."""
    if log_format == "ARROW":
        return decode_arrow_batch(batch, schema.arrow_schema)
    from fluss.records.row_batch import decode_row_batch

    return decode_row_batch(batch, log_format, schema.row_type)
