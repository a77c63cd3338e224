# SPDX-License-Identifier: Apache-2.0
"""Whole Arrow batches to CompactedRow or CompactedKey bytes and back, column by column.

The same bytes as `fluss.rows.compacted`, which is the readable twin; that one also says what is wrong with a row that
cannot be decoded. Nested columns are handed to the scalar coder, all others are vectorised. So are whole rows in the
other format, IndexedRow (`fluss.rows.indexed`), which few tables have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import valid_mask
from fluss.errors import FormatError, InvalidRowError
from fluss.metadata import types as t
from fluss.rows import compacted, indexed
from fluss.rows import value_checks as v
from fluss.rows.arrow_values import NANOS_PER_UNIT, bitmap, check_fixed_bytes, conform, from_arrow, to_arrow
from fluss.rows.kernels import (
    BadRowError,
    Mask,
    Piece,
    RowsCursor,
    big_endian_decimals,
    booleans,
    byte_strings,
    check_columns,
    check_decimals,
    decimal_words,
    fixed_piece,
    primitives,
    refuse_rows,
    sized_pieces,
    time_millis,
    timestamp_parts,
    validity,
    varint_piece,
)
from fluss.rows.slices import Ints, Slices, Words, gather_array, is_large, spaced, words_at
from fluss.rows.slots import decode_nested, encode_nested

Arrays = Sequence[pa.Array]

_FIXED: dict[type[t.DataType], tuple[Any, int]] = {
    t.TinyIntType: (np.int8, 1),
    t.SmallIntType: (np.int16, 2),
    t.FloatType: (np.float32, 4),
    t.DoubleType: (np.float64, 8),
}


def encode_compacted(types: Sequence[t.DataType], arrays: Arrays) -> Slices:
    """Encode columns as CompactedRows, one per position of the arrays."""
    n = check_columns(types, arrays)
    pieces: list[Piece] = []
    masks: list[Mask | None] = []
    for i, (dtype, array) in enumerate(zip(types, arrays)):
        try:
            column = conform(array, dtype)
            valid = validity(column, dtype)
            masks.append(valid)
            pieces += _pieces(dtype, column, valid)
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(i, dtype)}: {error.message}") from None
    return _assemble(n, _null_pieces(n, masks) + pieces)


def encode_compacted_key(types: Sequence[t.DataType], arrays: Arrays, names: Sequence[str] | None = None) -> Slices:
    """Encode columns as CompactedKeys, one per position of the arrays."""
    n = check_columns(types, arrays)
    pieces: list[Piece] = []
    for i, (dtype, array) in enumerate(zip(types, arrays)):
        try:
            if isinstance(dtype, t.NESTED_TYPES):
                raise InvalidRowError("nested types cannot be part of a key")
            column = conform(array, dtype)
            if column.null_count:
                row = int(np.flatnonzero(~valid_mask(column))[0])
                raise InvalidRowError(f"null in a key, in row {row}")
            pieces += _pieces(dtype, column, None)
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(i, dtype, names)}: {error.message}") from None
    return _assemble(n, pieces)


def decode_compacted(types: Sequence[t.DataType], rows: Slices) -> list[pa.Array]:
    """Decode CompactedRows into one Arrow array per column."""
    return _decode(types, rows, is_key=False)


def decode_compacted_key(types: Sequence[t.DataType], keys: Slices) -> list[pa.Array]:
    """Decode CompactedKeys into one Arrow array per column."""
    return _decode(types, keys, is_key=True)


def encode_rows(row_format: str, types: Sequence[t.DataType], arrays: Arrays) -> Slices:
    """Encode columns as COMPACTED or INDEXED rows."""
    if row_format == "COMPACTED":
        return encode_compacted(types, arrays)
    columns = [from_arrow(array, dtype) for array, dtype in zip(arrays, types)]
    return Slices.from_list([indexed.encode_row(types, row) for row in zip(*columns)])


def decode_rows(row_format: str, types: Sequence[t.DataType], rows: Slices) -> list[pa.Array]:
    """Decode COMPACTED or INDEXED rows to columns."""
    if row_format == "COMPACTED":
        return decode_compacted(types, rows)
    decoded = [indexed.decode_row(types, row) for row in rows.to_list()]
    return [to_arrow([row[i] for row in decoded], dtype) for i, dtype in enumerate(types)]


def _null_pieces(n: int, masks: list[Mask | None]) -> list[Piece]:
    size = (len(masks) + 7) // 8
    bits = np.zeros((n, (size + 7) // 8 * 8), np.uint8)
    for i, mask in enumerate(masks):
        if mask is not None:
            bits[:, i // 8] |= (~mask).view(np.uint8) << np.uint8(i % 8)
    words = bits.view("<u8")
    return [Piece(np.ascontiguousarray(words[:, k]), min(8, size - 8 * k)) for k in range(words.shape[1])]


def _assemble(n: int, pieces: list[Piece]) -> Slices:
    lengths = np.full(n, sum(piece.lengths for piece in pieces if isinstance(piece.lengths, int)), np.int64)
    for piece in pieces:
        if not isinstance(piece.lengths, int):
            lengths += piece.lengths
    starts, out = spaced(lengths)
    target = words_at(out)
    pos = starts.copy()
    for piece in pieces:
        piece.write(out, target, pos)
        pos += piece.lengths
    return Slices.trusted(out, starts, lengths)


def _unsigned(values: npt.NDArray[np.int64]) -> Words:
    return values.view(np.uint64)


def _pieces(dtype: t.DataType, array: pa.Array, valid: Mask | None) -> list[Piece]:
    if isinstance(dtype, (t.IntType, t.DateType)):
        return [varint_piece(primitives(array, np.uint32).astype(np.uint64), valid)]
    if isinstance(dtype, t.BigIntType):
        return [varint_piece(primitives(array, np.uint64), valid)]
    if isinstance(dtype, t.BooleanType):
        return [fixed_piece(booleans(array, valid), 1, valid)]
    if type(dtype) in _FIXED:
        kind, width = _FIXED[type(dtype)]
        return [fixed_piece(primitives(array, kind), width, valid)]
    if isinstance(dtype, t.TimeType):
        return [varint_piece(_unsigned(time_millis(array, dtype, valid)), valid)]
    if isinstance(dtype, t.TIMESTAMP_TYPES):
        millis, nanos = timestamp_parts(array, valid)
        pieces = [varint_piece(_unsigned(millis), valid)]
        if not v.is_compact_timestamp(dtype):
            pieces.append(varint_piece(_unsigned(nanos), valid))
        return pieces
    if isinstance(dtype, t.DecimalType):
        check_decimals(array, dtype)
        if v.is_compact_decimal(dtype):
            return [varint_piece(np.ascontiguousarray(decimal_words(array)[:, 0]), valid)]
        return sized_pieces(big_endian_decimals(array, valid), valid)
    if isinstance(dtype, t.NESTED_TYPES):
        return sized_pieces(_nested_bytes(dtype, array), valid)
    return sized_pieces(byte_strings(dtype, array), valid)


def _nested_bytes(dtype: t.DataType, array: pa.Array) -> Slices:
    return Slices.from_list(
        [
            b"" if value is None else encode_nested(dtype, value, compacted.NESTED_ROWS, 0)
            for value in from_arrow(array, dtype)
        ]
    )


def _decode(types: Sequence[t.DataType], rows: Slices, *, is_key: bool) -> list[pa.Array]:
    try:
        return _decode_columns(types, rows, is_key)
    except BadRowError as error:
        raise _explained([error.row], f"row {error.row}: {error.reason}", types, rows, is_key) from None
    except InvalidRowError as error:
        # Arrow refused a column without saying which row it is about.
        raise _explained(range(len(rows)), error.message, types, rows, is_key) from None


def _explained(
    suspects: Iterable[int], otherwise: str, types: Sequence[t.DataType], rows: Slices, is_key: bool
) -> FormatError:
    """The error of the scalar coder, which knows field and position."""
    decode = compacted.decode_key if is_key else compacted.decode_row
    for row in suspects:
        try:
            decode(types, rows[row])
        except FormatError as error:
            return FormatError(f"row {row}: {error.message}")
    # The row is well-formed, but its value is more than an Arrow array of the type can hold.
    return FormatError(otherwise)


def _decode_columns(types: Sequence[t.DataType], rows: Slices, is_key: bool) -> list[pa.Array]:
    cursor = RowsCursor(rows)
    nulls: list[Any] = []
    if not is_key:
        for _ in range((len(types) + 7) // 8):
            nulls.append(cursor.data[cursor.pos])
            cursor.advance(1, None)
    arrays = []
    for i, dtype in enumerate(types):
        valid: Mask | None = None
        if nulls and dtype.nullable:
            set_bits = nulls[i // 8] & np.uint8(1 << i % 8)
            if set_bits.any():
                valid = set_bits == 0
        arrays.append(_read_column(dtype, cursor, valid))
    cursor.finish()
    return arrays


def _read_column(dtype: t.DataType, cursor: RowsCursor, valid: Mask | None) -> pa.Array:
    if isinstance(dtype, (t.IntType, t.DateType)):
        return _array(dtype, cursor.varints(valid, 32).astype(np.uint32), valid)
    if isinstance(dtype, t.BigIntType):
        return _array(dtype, cursor.varints(valid, 64), valid)
    if isinstance(dtype, t.BooleanType):
        flags = cursor.fixed(1, valid).astype(np.uint8)
        refuse_rows(flags > 1, valid, "a boolean is the byte 0 or 1")
        return _array(dtype, np.packbits(flags, bitorder="little"), valid, flags.size)
    if type(dtype) in _FIXED:
        width = _FIXED[type(dtype)][1]
        return _array(dtype, cursor.fixed(width, valid).astype(f"<u{width}", copy=False), valid)
    if isinstance(dtype, t.TimeType):
        return _array(dtype, _times(dtype, cursor, valid), valid)
    if isinstance(dtype, t.TIMESTAMP_TYPES):
        return _array(dtype, _timestamps(dtype, cursor, valid), valid)
    if isinstance(dtype, t.DecimalType):
        array = _array(dtype, _decimals(dtype, cursor, valid), valid)
        check_decimals(array, dtype)
        return array
    return _strings(dtype, cursor.sized(valid), valid)


def _array(dtype: t.DataType, values: npt.NDArray[Any], valid: Mask | None, n: int | None = None) -> pa.Array:
    return pa.Array.from_buffers(
        dtype.to_arrow(), len(values) if n is None else n, [bitmap(valid), pa.py_buffer(values)]
    )


def _times(dtype: t.TimeType, cursor: RowsCursor, valid: Mask | None) -> npt.NDArray[Any]:
    millis = cursor.varints(valid, 32).astype(np.int64)
    refuse_rows(millis >= v.MILLIS_PER_DAY, valid, "not a millisecond of the day")
    nanos = NANOS_PER_UNIT[dtype.to_arrow().unit]
    if nanos > v.NANOS_PER_MILLI:
        return (millis // 1000).astype(np.int32)
    if nanos == v.NANOS_PER_MILLI:
        return millis.astype(np.int32)
    return millis * (v.NANOS_PER_MILLI // nanos)


def _timestamps(dtype: t.TimestampType | t.TimestampLtzType, cursor: RowsCursor, valid: Mask | None) -> Ints:
    millis = cursor.varints(valid, 64).view(np.int64)
    unit_nanos = NANOS_PER_UNIT[dtype.to_arrow().unit]
    if v.is_compact_timestamp(dtype):
        return millis if unit_nanos == v.NANOS_PER_MILLI else millis // 1000
    nanos = cursor.varints(valid, 32).astype(np.int64)
    refuse_rows(nanos >= v.NANOS_PER_MILLI, valid, "too many nanoseconds within a millisecond")
    per_milli = v.NANOS_PER_MILLI // unit_nanos
    ticks = millis * per_milli + nanos // unit_nanos
    # A product that wrapped around does not divide back.
    refuse_rows(ticks // per_milli != millis, valid, f"the timestamp is out of the range of {dtype}")
    return ticks


def _decimals(dtype: t.DecimalType, cursor: RowsCursor, valid: Mask | None) -> Words:
    if v.is_compact_decimal(dtype):
        low = cursor.varints(valid, 64)
        return np.stack([low, (low.view(np.int64) >> 63).view(np.uint64)], axis=1)
    slices = cursor.sized(valid)
    lengths = slices.lengths
    refuse_rows((lengths < 1) | (lengths > 16), valid, "an unscaled decimal has 1 to 16 bytes")
    source = words_at(cursor.data)
    # 128 bits from the start of the value, shifted down arithmetically by the bits that are not part of it.
    first = source[slices.starts].byteswap()
    second = source[slices.starts + 8].byteswap()
    signs = (first.view(np.int64) >> 63).view(np.uint64)
    shift = (16 - lengths) * 8
    short = (shift >= 64).astype(np.uint64)
    low = np.where(short, first, second)
    high = np.where(short, signs, first)
    by = (shift & 63).astype(np.uint64)
    # Shifting in two steps, because a shift by 64 (when there is nothing to shift) is not defined.
    low = (low >> by) | (high << np.uint64(1)) << (np.uint64(63) - by)
    high = (high.view(np.int64) >> by.view(np.int64)).view(np.uint64)
    return np.stack([low, high], axis=1)


def _strings(dtype: t.DataType, slices: Slices, valid: Mask | None) -> pa.Array:
    n = len(slices)
    if isinstance(dtype, t.NESTED_TYPES):
        return _nested(dtype, slices, valid)
    if isinstance(dtype, t.BinaryType):
        check_fixed_bytes(n, dtype)
        refuse_rows(slices.lengths > dtype.length, valid, f"the value is longer than {dtype.length} bytes")
        values = np.zeros(n * dtype.length + 16, np.uint8)
        if valid is None and (slices.lengths == dtype.length).all():
            return _array(dtype, gather_array(slices).buffers()[2], valid, n)
        for i, value in enumerate(slices.to_list()):
            values[i * dtype.length : i * dtype.length + len(value)] = np.frombuffer(value, np.uint8)
        return _array(dtype, values, valid, n)
    if slices.total_bytes > v.INT32_MAX:
        raise FormatError(
            f"{slices.total_bytes} bytes of one column are more than an Arrow array holds: decode fewer rows"
        )
    gathered = gather_array(slices)
    if is_large(gathered.type):  # because of what lies between the values
        gathered = gathered.cast(pa.binary())
    _, offsets, data = gathered.buffers()
    array = pa.Array.from_buffers(dtype.to_arrow(), n, [bitmap(valid), offsets, data])
    if isinstance(dtype, t.TEXT_TYPES):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidRowError(f"not UTF-8: {error}") from None
    return array


def _nested(dtype: t.DataType, slices: Slices, valid: Mask | None) -> pa.Array:
    values: list[Any] = []
    present = [True] * len(slices) if valid is None else valid.tolist()
    for row, (is_present, data) in enumerate(zip(present, slices.to_list())):
        try:
            values.append(decode_nested(dtype, memoryview(data), compacted.NESTED_ROWS, 0) if is_present else None)
        except FormatError as error:
            raise BadRowError(row, error.message) from None
    return to_arrow(values, dtype)
