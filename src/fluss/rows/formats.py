# SPDX-License-Identifier: Apache-2.0
"""Many rows in either row format, column by column."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.metadata.types import DataType
from fluss.rows import indexed, logical
from fluss.rows.slices import Slices
from fluss.rows.vector import decode_compacted, encode_compacted


def encode_rows(row_format: str, types: Sequence[DataType], arrays: Sequence[pa.Array]) -> Slices:
    """Encode columns as COMPACTED or INDEXED rows."""
    if row_format == "COMPACTED":
        return encode_compacted(types, arrays)
    columns = [logical.from_arrow(array, data_type) for array, data_type in zip(arrays, types)]
    return Slices.from_list([indexed.encode_row(types, row) for row in zip(*columns)])


def decode_rows(row_format: str, types: Sequence[DataType], rows: Slices) -> list[pa.Array]:
    """Decode COMPACTED or INDEXED rows to columns."""
    if row_format == "COMPACTED":
        return list(decode_compacted(types, rows))
    decoded = [indexed.decode_row(types, row) for row in rows.to_list()]
    return [logical.to_arrow([row[i] for row in decoded], data_type) for i, data_type in enumerate(types)]
