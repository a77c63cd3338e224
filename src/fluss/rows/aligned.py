# SPDX-License-Identifier: Apache-2.0
"""AlignedRow: one 8-byte slot per column, the layout that Paimon and Flink call BinaryRow.

`encode_aligned` writes whole Arrow batches, column by column; `encode_row` is its readable twin for one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata import types as t
from fluss.rows import value_checks as v
from fluss.rows.arrow_values import conform, from_arrow
from fluss.rows.kernels import (
    Mask,
    big_endian_decimals,
    booleans,
    byte_strings,
    check_columns,
    check_decimals,
    decimal_words,
    primitives,
    time_millis,
    timestamp_parts,
    validity,
)
from fluss.rows.slices import WORD_BYTES, Bytes, Ints, Slices, Words, padded, scatter, starts_of, words_at
from fluss.rows.slots import NestedRows, SlotReader, encode_nested, write_slot

_KIND_BITS = 8
"""The first byte is the row kind (0 is insert), so null bits start behind it."""


def header_bytes(width: int) -> int:
    """The size of row kind and null bits for this many columns."""
    return (width + _KIND_BITS + 63) // 64 * 8


def encode_row(
    types: Sequence[t.DataType], values: Sequence[Any], names: Sequence[str] | None = None, depth: int = 0
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
    types: Sequence[t.DataType],
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


_UNSIGNED: dict[type[t.DataType], str] = {
    t.TinyIntType: "<u1",
    t.SmallIntType: "<u2",
    t.IntType: "<u4",
    t.BigIntType: "<u8",
    t.FloatType: "<u4",
    t.DoubleType: "<u8",
    t.DateType: "<u4",
}

_INLINE_BYTES_MAX = 7
# What is kept of a word of which the first 0..8 bytes are wanted.
_FIRST_BYTES = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)


class _VariablePart(NamedTuple):
    """What a column puts behind the slots: bytes for some rows, each in a reserved space of whole words."""

    rows: Ints
    slices: Slices
    reserved: Ints


def encode_aligned(
    types: Sequence[t.DataType], arrays: Sequence[pa.Array], names: Sequence[str] | None = None
) -> Slices:
    """Encode columns as AlignedRows, one per position of the arrays."""
    n = check_columns(types, arrays)
    header = header_bytes(len(types))
    bits = np.zeros((n, header), np.uint8)
    slots: list[tuple[Words, _VariablePart | None]] = []
    lengths = np.full(n, header + WORD_BYTES * len(types), np.int64)
    for i, (dtype, array) in enumerate(zip(types, arrays)):
        try:
            column = conform(array, dtype)
            valid = validity(column, dtype)
            words, part = _slot(dtype, column, valid)
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(i, dtype, names)}: {error.message}") from None
        if valid is not None:
            words = words * valid
            bit = i + 8
            bits[:, bit // 8] |= (~valid).view(np.uint8) << np.uint8(bit % 8)
        if part is not None:
            lengths[part.rows] += part.reserved
        slots.append((words, part))
    starts = starts_of(lengths)
    out = np.zeros(int(lengths.sum()) + WORD_BYTES, np.uint8)
    target = words_at(out)
    for k in range(header // WORD_BYTES):
        target[starts + WORD_BYTES * k] = bits.view("<u8")[:, k]
    offsets = np.full(n, header + WORD_BYTES * len(types), np.int64)
    for i, (words, part) in enumerate(slots):
        if part is not None:
            words[part.rows] |= offsets[part.rows].view(np.uint64) << np.uint64(32)
            _write_part(out, target, starts[part.rows] + offsets[part.rows], part)
            offsets[part.rows] += part.reserved
        target[starts + header + WORD_BYTES * i] = words
    return Slices.trusted(out[:-WORD_BYTES], starts, lengths)


def _write_part(out: Bytes, target: Words, positions: Ints, part: _VariablePart) -> None:
    slices = part.slices
    scatter(out, positions, slices.data, slices.starts, slices.lengths)
    # The last word of a value brought along what followed it in the source; behind a value there are only zeros.
    ragged = np.flatnonzero(slices.lengths & 7)
    last = positions[ragged] + (slices.lengths[ragged] & ~np.int64(7))
    target[last] &= _FIRST_BYTES[slices.lengths[ragged] & 7]


def _slot(dtype: t.DataType, array: pa.Array, valid: Mask | None) -> tuple[Words, _VariablePart | None]:
    unsigned = _UNSIGNED.get(type(dtype))
    if unsigned is not None:
        return primitives(array, unsigned).astype(np.uint64), None
    if isinstance(dtype, t.BooleanType):
        return booleans(array, valid).astype(np.uint64), None
    if isinstance(dtype, t.TimeType):
        return time_millis(array, dtype, valid).view(np.uint64), None
    if isinstance(dtype, t.TIMESTAMP_TYPES):
        millis, nanos = timestamp_parts(array, valid)
        if v.is_compact_timestamp(dtype):
            return millis.view(np.uint64), None
        rows = np.flatnonzero(valid) if valid is not None else np.arange(len(array))
        data = np.ascontiguousarray(millis).view(np.uint8)
        eight = np.full(rows.size, WORD_BYTES, np.int64)
        return nanos.view(np.uint64), _VariablePart(rows, Slices.trusted(data, rows * WORD_BYTES, eight), eight)
    if isinstance(dtype, t.DecimalType):
        check_decimals(array, dtype)
        if v.is_compact_decimal(dtype):
            return np.ascontiguousarray(decimal_words(array)[:, 0]), None
        slices = big_endian_decimals(array, valid)
        rows = np.flatnonzero(slices.lengths)
        return slices.lengths.view(np.uint64).copy(), _VariablePart(
            rows, slices.take(rows), np.full(rows.size, 16, np.int64)
        )
    if isinstance(dtype, t.NESTED_TYPES):
        slices = Slices.from_list(
            [
                b"" if value is None else encode_nested(dtype, value, NESTED_ROWS, 0)
                for value in from_arrow(array, dtype)
            ]
        )
        return _by_reference(slices, np.flatnonzero(slices.lengths), slices.lengths.view(np.uint64).copy())
    return _text_slot(byte_strings(dtype, array))


def _text_slot(slices: Slices) -> tuple[Words, _VariablePart | None]:
    lengths = slices.lengths
    source = words_at(padded(slices.data, int((slices.starts).max(initial=0)) + 2 * WORD_BYTES))
    inline = source[slices.starts] & _FIRST_BYTES[np.minimum(lengths, _INLINE_BYTES_MAX)]
    inline |= (lengths.astype(np.uint64) | np.uint64(0x80)) << np.uint64(56)
    long = lengths > _INLINE_BYTES_MAX
    words = np.where(long, lengths.view(np.uint64), inline)
    return _by_reference(slices, np.flatnonzero(long), words)


def _by_reference(slices: Slices, rows: Ints, words: Words) -> tuple[Words, _VariablePart | None]:
    part = slices.take(rows)
    return words, _VariablePart(rows, part, part.lengths + 7 & ~np.int64(7))
