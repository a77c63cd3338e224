# SPDX-License-Identifier: Apache-2.0
"""IndexedRow: null bits, the lengths of the variable-length columns, then fixed-width values without padding."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata import types as t
from fluss.rows import value_checks as v
from fluss.rows.slots import NestedRows, Reader, decode_nested, encode_nested

_I32, _I64 = struct.Struct("<i"), struct.Struct("<q")


def is_variable_length(dtype: t.DataType) -> bool:
    """Whether the length of a value stands in the length list."""
    if isinstance(dtype, t.DecimalType):
        return not v.is_compact_decimal(dtype)
    return isinstance(dtype, (t.StringType, t.BytesType, *t.NESTED_TYPES))


def encode_row(
    types: Sequence[t.DataType], values: Sequence[Any], names: Sequence[str] | None = None, depth: int = 0
) -> bytes:
    """Encode one row of logical values."""
    v.check_row(values, len(types))
    bits = (len(types) + 7) // 8
    header = bytearray(bits + 4 * sum(map(is_variable_length, types)))
    length_pos = bits
    body = bytearray()
    for i, (dtype, value) in enumerate(zip(types, values)):
        try:
            if value is None:
                if not dtype.nullable:
                    raise InvalidRowError("null, but the type is NOT NULL")
                header[i // 8] |= 1 << i % 8
                continue
            before = len(body)
            _write(body, dtype, value, depth)
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(i, dtype, names)}: {error.message}") from None
        if is_variable_length(dtype):
            _I32.pack_into(header, length_pos, len(body) - before)
            length_pos += 4
    return bytes(header + body)


def decode_row(
    types: Sequence[t.DataType],
    data: bytes | bytearray | memoryview,
    names: Sequence[str] | None = None,
    depth: int = 0,
) -> list[Any]:
    """Decode one row into logical values."""
    reader = Reader(data)
    nulls = reader.take((len(types) + 7) // 8)
    lengths = Reader(reader.take(4 * sum(map(is_variable_length, types))))
    values: list[Any] = []
    for i, dtype in enumerate(types):
        if dtype.nullable and nulls[i // 8] >> i % 8 & 1:
            values.append(None)
            continue
        start = reader.pos
        try:
            values.append(_read(reader, lengths, dtype, depth))
        except FormatError as error:
            raise FormatError(f"{v.field_label(i, dtype, names)} at byte {start}: {error.message}") from None
    reader.finish()
    return values


def _write(out: bytearray, dtype: t.DataType, value: Any, depth: int) -> None:
    if v.fixed_size(dtype):
        out += v.pack_fixed(value, dtype)
    elif isinstance(dtype, t.StringType):
        out += v.utf8(value)
    elif isinstance(dtype, t.BytesType):
        out += v.check_bytes(value)
    elif isinstance(dtype, t.CharType):
        out += _fixed(v.utf8(value), dtype.length)
    elif isinstance(dtype, t.BinaryType):
        out += _fixed(v.check_bytes(value), dtype.length)
    elif isinstance(dtype, t.DecimalType):
        out += v.to_big_endian(v.unscaled(value, dtype))
    elif isinstance(dtype, t.TIMESTAMP_TYPES):
        millis, nanos = v.split_timestamp(value, dtype)
        out += _I64.pack(millis) + _I32.pack(nanos)
    else:
        out += encode_nested(dtype, value, _ROWS, depth)


def _fixed(data: bytes, length: int) -> bytes:
    # The declared length counts bytes here.
    if len(data) > length:
        raise InvalidRowError(f"{len(data)} bytes are more than the declared {length}")
    if length > v.FIXED_BYTES_MAX:
        raise InvalidRowError(f"IndexedRow pads values to the declared length, and {length} bytes are too many")
    return data.ljust(length, b"\0")


def _read(reader: Reader, lengths: Reader, dtype: t.DataType, depth: int) -> Any:
    size = v.fixed_size(dtype)
    if size:
        return v.unpack_fixed(reader.take(size), dtype)
    if isinstance(dtype, t.CharType):
        return v.text_of(bytes(reader.take(dtype.length)).rstrip(b"\0"))
    if isinstance(dtype, t.BinaryType):
        return bytes(reader.take(dtype.length))
    if isinstance(dtype, t.TIMESTAMP_TYPES):
        return v.join_timestamp(reader.unpack(_I64), reader.unpack(_I32))
    data = reader.take(lengths.unpack(_I32))
    if isinstance(dtype, t.StringType):
        return v.text_of(data)
    if isinstance(dtype, t.BytesType):
        return bytes(data)
    if isinstance(dtype, t.DecimalType):
        return v.decimal_of(v.from_big_endian(data), dtype)
    return decode_nested(dtype, data, _ROWS, depth)


_ROWS = NestedRows(encode_row, decode_row)
