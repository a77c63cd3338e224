# SPDX-License-Identifier: Apache-2.0
"""Which partition and bucket each row of a batch belongs to, worked out for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import numpy_of, valid_mask
from fluss.errors import FlussError, InvalidRowError
from fluss.metadata import TableInfo, format_partition_value, partition_name, validate_partition_value
from fluss.rows import logical

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
