# SPDX-License-Identifier: Apache-2.0
"""Log batches in the row formats, INDEXED and COMPACTED: each record is a length, a change type and a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.errors import InvalidArgumentError
from fluss.metadata.types import DataType, RowType
from fluss.records._bytes import INT32_MAX, fixed_width_binary, join_columns
from fluss.records.arrow import change_type_vector
from fluss.records.log_batch import EncodedBody, LogBatch, check_change_types
from fluss.rows import compacted, indexed
from fluss.rows.slices import Slices
from fluss.rows.vector import decode_rows, encode_rows


class RowRecords(NamedTuple):
    """The records of a row-format batch; rows point into the bytes of the batch."""

    change_types: npt.NDArray[np.uint8]
    rows: Slices


def read_row_records(batch: LogBatch) -> RowRecords:
    """Split the records section into change types and encoded rows.

    A server can use this to refuse bodies in another format, which some clients send into such tables.
    """
    header = batch.header
    starts, lengths = batch.row_positions()
    data = np.frombuffer(batch.view, dtype=np.uint8)
    change_types = data[starts]
    check_change_types(change_types, header.records_position)
    return RowRecords(change_types, Slices.trusted(data, starts + 1, lengths - 1))


def encode_row_body(
    fmt: str,
    types: Sequence[DataType],
    rows: pa.RecordBatch | Slices | Sequence[Sequence[Any]],
    change_types: Any = None,
) -> EncodedBody:
    """Encode rows for an INDEXED or COMPACTED log table.

    Args:
        fmt: ``INDEXED`` or ``COMPACTED``.
        rows: A record batch; rows of logical values; or rows already encoded in this format.
        change_types: One per row; without them the batch is append-only.
    """
    _check_format(fmt)
    encoded = rows if isinstance(rows, Slices) else _encode_rows(fmt, types, rows)
    count = len(encoded)
    if change_types is None:
        kinds = np.zeros(count, dtype=np.uint8)
    else:
        kinds = change_type_vector(change_types, count)
    if count == 0:
        return EncodedBody([], 0, 0, change_types is None)
    lengths = encoded.lengths + 1
    total = int(lengths.sum()) + 4 * count
    if total > INT32_MAX - 64:
        raise InvalidArgumentError(f"{count} rows encode to {total} bytes, too many for one batch; split it")
    heads = np.empty((count, 5), dtype=np.uint8)
    heads[:, :4] = lengths.astype("<i4").view(np.uint8).reshape(count, 4)
    heads[:, 4] = kinds
    body = join_columns([fixed_width_binary(heads), encoded.to_arrow()], total)
    return EncodedBody([body], total, count, change_types is None)


def _check_format(fmt: str) -> None:
    if fmt not in ("INDEXED", "COMPACTED"):
        raise InvalidArgumentError(f"log format {fmt!r} is not a row format; use INDEXED or COMPACTED")


def _encode_rows(fmt: str, types: Sequence[DataType], rows: pa.RecordBatch | Sequence[Sequence[Any]]) -> Slices:
    if isinstance(rows, pa.RecordBatch):
        if rows.num_columns != len(types):
            raise InvalidArgumentError(f"the batch has {rows.num_columns} columns, the table {len(types)}")
        return encode_rows(fmt, types, rows.columns)
    encode = compacted.encode_row if fmt == "COMPACTED" else indexed.encode_row
    return Slices.from_list([encode(types, row) for row in rows])


def decode_row_batch(batch: LogBatch, fmt: str, row_type: RowType) -> pa.RecordBatch:
    """Decode a batch of an INDEXED or COMPACTED log table; change types come from `LogBatch.change_types(fmt)`."""
    _check_format(fmt)
    records = read_row_records(batch)
    types = [field.data_type for field in row_type.fields]
    arrays = decode_rows(fmt, types, records.rows)
    schema = pa.schema([pa.field(f.name, f.data_type.to_arrow(), f.data_type.nullable) for f in row_type.fields])
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
