# SPDX-License-Identifier: Apache-2.0
"""Which partition and bucket each row of a batch belongs to, worked out for all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss.errors import InvalidRowError
from fluss.metadata import TableInfo, format_partition_value, partition_name, validate_partition_value
from fluss.rows import logical

Ints = npt.NDArray[np.int64]


def partition_codes(info: TableInfo, arrays: Sequence[pa.Array], variant: str) -> tuple[list[str], Ints]:
    """The partition names that occur, and for each row the index of its own. `arrays`: the partition key columns."""
    keys = info.get_partition_keys()
    columns: list[list[str]] = []
    codes: Ints | None = None
    for key, array in zip(keys, arrays, strict=True):
        if array.null_count:
            row = pc.index(pc.is_null(array), True).as_py()
            raise InvalidRowError(f"row {row}: partition column '{key}' of table {info.table_path} has no value (None)")
        encoded = pc.dictionary_encode(array)
        data_type = info.schema.columns[info.schema.column_index(key)].data_type
        texts = []
        for value in logical.from_arrow(encoded.dictionary, data_type):
            text = format_partition_value(data_type, value, variant)
            validate_partition_value(text)
            texts.append(text)
        indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        columns.append(texts)
        codes = indices if codes is None else codes * len(texts) + indices
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
