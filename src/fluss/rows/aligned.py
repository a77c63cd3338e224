# SPDX-License-Identifier: Apache-2.0
"""AlignedRow: one 8-byte slot per column, the layout that Paimon and Flink call BinaryRow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata.types import DataType
from fluss.rows import values as v
from fluss.rows.slots import NestedRows, SlotReader, write_slot

_KIND_BITS = 8
"""The first byte is the row kind (0 is insert), so null bits start behind it."""


def header_bytes(width: int) -> int:
    """The size of row kind and null bits for this many columns."""
    return (width + _KIND_BITS + 63) // 64 * 8


def encode_row(
    types: Sequence[DataType], values: Sequence[Any], names: Sequence[str] | None = None, depth: int = 0
) -> bytes:
    """Encode one row of logical values."""
    v.check_row(values, len(types))
    header = header_bytes(len(types))
    out = bytearray(header + 8 * len(types))
    for i, (dtype, value) in enumerate(zip(types, values)):
        try:
            if value is not None:
                write_slot(out, header + 8 * i, dtype, value, NESTED_ROWS, depth)
            elif dtype.nullable:
                bit = i + _KIND_BITS
                out[bit // 8] |= 1 << bit % 8
            else:
                raise InvalidRowError("null, but the type is NOT NULL")
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(i, dtype, names)}: {error.message}") from None
    return bytes(out)


def decode_row(
    types: Sequence[DataType],
    data: bytes | bytearray | memoryview,
    names: Sequence[str] | None = None,
    depth: int = 0,
) -> list[Any]:
    """Decode one row into logical values; the row kind is not looked at."""
    view = memoryview(data)
    header = header_bytes(len(types))
    if len(view) < header + 8 * len(types):
        raise FormatError(f"a row of {len(types)} columns needs {header + 8 * len(types)} bytes, not {len(view)}")
    reader = SlotReader(view, NESTED_ROWS)
    values: list[Any] = []
    for i, dtype in enumerate(types):
        bit = i + _KIND_BITS
        if dtype.nullable and view[bit // 8] >> bit % 8 & 1:
            values.append(None)
            continue
        pos = header + 8 * i
        try:
            values.append(reader.read(pos, dtype, depth))
        except FormatError as error:
            raise FormatError(f"{v.field_label(i, dtype, names)} at byte {pos}: {error.message}") from None
    return values


NESTED_ROWS = NestedRows(encode_row, decode_row)
