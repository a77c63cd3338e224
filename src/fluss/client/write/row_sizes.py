# SPDX-License-Identifier: Apache-2.0
"""Rows that are larger than a request may be, found before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from fluss.client.write.routing import BadRows
from fluss.errors import RecordTooLargeError
from fluss.metadata import DataType, TableInfo
from fluss.rows import Slices, encode_compacted, indexed, kv_key_encoder, logical

_REQUEST_OVERHEAD_BYTES = 64 * 1024
_GROWTH_MAX = 4
"""A row of a primary-key table, with its key, is stored in at most so many times the bytes of its columns."""


def row_size_max(request_size_max: int) -> int:
    """Return how large a row may be for a request of that size."""
    return request_size_max - _REQUEST_OVERHEAD_BYTES


def refuse_rows(sizes: Mapping[int, int], request_size_max: int) -> None:
    """Raise `BadRows` for rows that are too large, given by position, if there are any."""
    if sizes:
        limit = f"'writer.request-max-size' is {request_size_max}"
        raise BadRows(
            {
                row: RecordTooLargeError(f"a row of {size} bytes is larger than a request may be; {limit}")
                for row, size in sizes.items()
            }
        )


def large_rows(batch: pa.RecordBatch, size_max: int, first_row: int = 0) -> Iterator[tuple[int, int]]:
    """Yield the rows whose columns alone are larger than `size_max`, with their sizes."""
    if batch.nbytes <= size_max:
        return
    if batch.num_rows == 1:
        yield first_row, batch.nbytes
        return
    middle = batch.num_rows // 2
    yield from large_rows(batch.slice(0, middle), size_max, first_row)
    yield from large_rows(batch.slice(middle), size_max, first_row + middle)


def encode_rows(kv_format: str, types: Sequence[DataType], arrays: Sequence[pa.Array]) -> Slices:
    """Encode rows as a primary-key table stores them."""
    if kv_format == "COMPACTED":
        return encode_compacted(types, arrays)
    columns = [logical.from_arrow(array, data_type) for array, data_type in zip(arrays, types)]
    return Slices.from_list([indexed.encode_row(types, row) for row in zip(*columns)])


def check_row_sizes(info: TableInfo, batch: pa.RecordBatch, request_size_max: int) -> None:
    """Raise `BadRows` for the rows that a writer of the table would refuse for their size."""
    size_max = row_size_max(request_size_max)
    if not info.has_primary_key():
        refuse_rows(dict(large_rows(batch, size_max)), request_size_max)
        return
    sizes = {}
    for row, _ in large_rows(batch, size_max // _GROWTH_MAX):
        size = _stored_bytes(info, batch.slice(row, 1))
        if size > size_max:
            sizes[row] = size
    refuse_rows(sizes, request_size_max)


def _stored_bytes(info: TableInfo, batch: pa.RecordBatch) -> int:
    keys = kv_key_encoder(info).encode_columns([batch.column(name) for name in info.physical_primary_key])
    types = [column.data_type for column in info.schema.columns]
    rows = encode_rows(info.kv_format, types, batch.columns)
    return int(keys.lengths.sum() + rows.lengths.sum())
