# SPDX-License-Identifier: Apache-2.0
"""Which partition and bucket each row of a batch belongs to, and which rows are too large for a request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import numpy_of, valid_mask
from fluss.errors import FlussError, InvalidRowError, RecordTooLargeError
from fluss.metadata import TableInfo, format_partition_value, partition_name, validate_partition_value
from fluss.rows import encode_rows, kv_key_encoder, logical

Ints = npt.NDArray[np.int64]


class BadRows(InvalidRowError):
    """Some rows of a batch cannot be written; `errors` maps their positions to the reasons."""

    def __init__(self, errors: dict[int, FlussError]) -> None:
        row, first = next(iter(errors.items()))
        super().__init__(first.reason, row=row, column=first.column, column_type=first.column_type)
        self.errors = errors


def partition_codes(info: TableInfo, arrays: Sequence[pa.Array], variant: str) -> tuple[list[str], Ints]:
    """The partition names that occur, and for each row the index of its own. `arrays`: the partition key columns."""
    keys = info.get_partition_keys()
    columns: list[list[str]] = []
    codes: Ints | None = None
    bad: dict[int, FlussError] = {}
    for key, array in zip(keys, arrays, strict=True):
        where = f"partition column '{key}' of table {info.table_path}"
        encoded = array.dictionary_encode()
        data_type = info.schema.columns[info.schema.column_index(key)].data_type
        indices = np.where(valid_mask(encoded.indices), numpy_of(encoded.indices), -1).astype(np.int64)
        if array.null_count:
            for row in np.flatnonzero(indices < 0).tolist():
                bad[row] = InvalidRowError(f"{where} has no value (None)")
        texts = []
        for index, value in enumerate(logical.from_arrow(encoded.dictionary, data_type)):
            text = ""
            try:
                text = format_partition_value(data_type, value, variant)
                validate_partition_value(text)
            except FlussError as error:
                refusal = type(error)(f"{where}: {error.message}", error.error_code)
                bad.update(dict.fromkeys(np.flatnonzero(indices == index).tolist(), refusal))
            texts.append(text)
        columns.append(texts)
        codes = indices if codes is None else codes * len(texts) + indices
    if bad:
        raise BadRows(bad)
    assert codes is not None
    used, compact = np.unique(codes, return_inverse=True)
    names = []
    for code in used.tolist():
        values = []
        for texts in reversed(columns):
            code, index = divmod(code, len(texts))
            values.append(texts[index])
        names.append(partition_name(values[::-1]))
    return names, compact.astype(np.int64)


def groups_of(codes: npt.NDArray[Any]) -> list[tuple[int, Ints]]:
    """For each code that occurs, the positions of its rows, in their order."""
    order = np.argsort(codes, kind="stable")
    values, starts = np.unique(codes[order], return_index=True)
    ends = [*starts[1:].tolist(), len(codes)]
    return [(int(value), order[start:end]) for value, start, end in zip(values, starts.tolist(), ends)]


def remaining(rows: int, bad: dict[int, FlussError]) -> Ints:
    """The positions of the rows that are not bad."""
    keep = np.ones(rows, np.bool_)
    keep[list(bad)] = False
    return np.flatnonzero(keep)


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
