# SPDX-License-Identifier: Apache-2.0
"""CompactedRow, the default form of a stored row, and CompactedKey, the default form of a key.

A row is a null bit set followed by the values of the non-null columns without padding; a key is the values alone.
These are the readable twins of `fluss.rows.vector`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata import types as t
from fluss.rows import value_checks as v
from fluss.rows.slots import NestedRows, Reader, decode_nested, encode_nested, write_varint32, write_varint64

Buffer: TypeAlias = bytes | bytearray | memoryview

_I8, _I16 = struct.Struct("<b"), struct.Struct("<h")
_F32, _F64 = struct.Struct("<f"), struct.Struct("<d")


def encode_row(
    types: Sequence[t.DataType], values: Sequence[Any], names: Sequence[str] | None = None, depth: int = 0
) -> bytes:
    """Encode one row of logical values."""
    v.check_row(values, len(types))
    out = bytearray((len(types) + 7) // 8)
    for i, (dtype, value) in enumerate(zip(types, values)):
        try:
            if value is not None:
                _write(out, dtype, value, depth)
            elif dtype.nullable:
                out[i // 8] |= 1 << i % 8
            else:
                raise InvalidRowError("null, but the type is NOT NULL")
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(i, dtype, names)}: {error.message}") from None
    return bytes(out)


def decode_row(
    types: Sequence[t.DataType],
    data: Buffer,
    names: Sequence[str] | None = None,
    depth: int = 0,
) -> list[Any]:
    """Decode one row into logical values."""
    reader = Reader(data)
    nulls = reader.take((len(types) + 7) // 8)
    return _read_fields(reader, types, nulls, names, depth)


def encode_key(types: Sequence[t.DataType], values: Sequence[Any], names: Sequence[str] | None = None) -> bytes:
    """Encode key columns: no null bits, so null is refused; a prefix of the columns gives a prefix of the bytes."""
    v.check_row(values, len(types))
    out = bytearray()
    for i, (dtype, value) in enumerate(zip(types, values)):
        try:
            if value is None:
                raise InvalidRowError("null in a key")
            if isinstance(dtype, t.NESTED_TYPES):
                raise InvalidRowError("nested types cannot be part of a key")
            _write(out, dtype, value, 0)
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(i, dtype, names)}: {error.message}") from None
    return bytes(out)


def decode_key(types: Sequence[t.DataType], data: Buffer) -> list[Any]:
    """The inverse of `encode_key`."""
    return _read_fields(Reader(data), types, bytes((len(types) + 7) // 8), None, 0)


def _write(out: bytearray, dtype: t.DataType, value: Any, depth: int) -> None:
    write = _WRITE.get(type(dtype))
    if write is None:
        _write_sized(out, encode_nested(dtype, value, NESTED_ROWS, depth))
    else:
        write(out, value, dtype)


def _write_decimal(out: bytearray, value: Any, dtype: t.DecimalType) -> None:
    number = v.unscaled(value, dtype)
    if v.is_compact_decimal(dtype):
        write_varint64(out, number)
    else:
        _write_sized(out, v.to_big_endian(number))


def _write_timestamp(out: bytearray, value: Any, dtype: t.TimestampType | t.TimestampLtzType) -> None:
    millis, nanos = v.split_timestamp(value, dtype)
    write_varint64(out, millis)
    if not v.is_compact_timestamp(dtype):
        write_varint32(out, nanos)


def _write_sized(out: bytearray, data: bytes) -> None:
    if len(data) > v.INT32_MAX:
        raise InvalidRowError("the value is larger than 2 GiB")
    write_varint32(out, len(data))
    out += data


def _read_fields(
    reader: Reader, types: Sequence[t.DataType], nulls: Buffer, names: Sequence[str] | None, depth: int
) -> list[Any]:
    values: list[Any] = []
    start = 0
    try:
        for i, dtype in enumerate(types):
            # A NOT NULL column has a bit too, which readers do not look at.
            if dtype.nullable and nulls[i // 8] >> i % 8 & 1:
                values.append(None)
            else:
                start = reader.pos
                values.append(_read(reader, dtype, depth))
    except FormatError as error:
        i = len(values)
        raise FormatError(f"{v.field_label(i, types[i], names)} at byte {start}: {error.message}") from None
    reader.finish()
    return values


def _read(reader: Reader, dtype: t.DataType, depth: int) -> Any:
    read = _READ.get(type(dtype))
    return decode_nested(dtype, reader.sized(), NESTED_ROWS, depth) if read is None else read(reader, dtype)


def _read_decimal(reader: Reader, dtype: t.DecimalType) -> Any:
    if v.is_compact_decimal(dtype):
        return v.decimal_of(reader.varint64(), dtype)
    return v.decimal_of(v.from_big_endian(reader.sized()), dtype)


def _read_timestamp(reader: Reader, dtype: t.TimestampType | t.TimestampLtzType) -> Any:
    millis = reader.varint64()
    return v.join_timestamp(millis, 0 if v.is_compact_timestamp(dtype) else reader.varint32())


_WRITE: dict[type[t.DataType], Callable[[bytearray, Any, Any], None]] = {
    t.BooleanType: lambda out, value, _: out.append(v.check_boolean(value)),
    t.TinyIntType: lambda out, value, _: out.extend(_I8.pack(v.check_integer(value, 8))),
    t.SmallIntType: lambda out, value, _: out.extend(_I16.pack(v.check_integer(value, 16))),
    t.IntType: lambda out, value, _: write_varint32(out, v.check_integer(value, 32)),
    t.DateType: lambda out, value, _: write_varint32(out, v.check_integer(value, 32)),
    t.BigIntType: lambda out, value, _: write_varint64(out, v.check_integer(value, 64)),
    t.TimeType: lambda out, value, _: write_varint32(out, v.check_time(value)),
    t.FloatType: lambda out, value, _: out.extend(v.pack_float32(value)),
    t.DoubleType: lambda out, value, _: out.extend(v.pack_float64(value)),
    t.DecimalType: _write_decimal,
    t.TimestampType: _write_timestamp,
    t.TimestampLtzType: _write_timestamp,
    **{kind: lambda out, value, _: _write_sized(out, v.utf8(value)) for kind in t.TEXT_TYPES},
    **{kind: lambda out, value, _: _write_sized(out, v.check_bytes(value)) for kind in t.BYTES_TYPES},
}
_READ: dict[type[t.DataType], Callable[[Reader, Any], Any]] = {
    t.BooleanType: lambda reader, _: v.boolean_of(reader.byte()),
    t.TinyIntType: lambda reader, _: reader.unpack(_I8),
    t.SmallIntType: lambda reader, _: reader.unpack(_I16),
    t.IntType: lambda reader, _: reader.varint32(),
    t.DateType: lambda reader, _: reader.varint32(),
    t.BigIntType: lambda reader, _: reader.varint64(),
    t.TimeType: lambda reader, _: v.time_of(reader.varint32()),
    t.FloatType: lambda reader, _: reader.unpack(_F32),
    t.DoubleType: lambda reader, _: reader.unpack(_F64),
    t.DecimalType: _read_decimal,
    t.TimestampType: _read_timestamp,
    t.TimestampLtzType: _read_timestamp,
    **{kind: lambda reader, _: v.text_of(reader.sized()) for kind in t.TEXT_TYPES},
    **{kind: lambda reader, _: bytes(reader.sized()) for kind in t.BYTES_TYPES},
}
NESTED_ROWS = NestedRows(encode_row, decode_row)
