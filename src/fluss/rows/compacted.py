# SPDX-License-Identifier: Apache-2.0
"""CompactedRow, the default form of a stored row, and CompactedKey, the default form of a key.

A row is a null bit set followed by the values of the non-null columns without padding; a key is the values alone.
These are the readable twins of `fluss.rows.vector`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata.types import (
    BigIntType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    SmallIntType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)
from fluss.rows import values as v
from fluss.rows.reader import Reader
from fluss.rows.slots import NestedRows, decode_nested, encode_nested
from fluss.rows.varint import write_varint32, write_varint64

_I8, _I16 = struct.Struct("<b"), struct.Struct("<h")
_F32, _F64 = struct.Struct("<f"), struct.Struct("<d")


def encode_row(
    types: Sequence[DataType], values: Sequence[Any], names: Sequence[str] | None = None, depth: int = 0
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
    types: Sequence[DataType],
    data: bytes | bytearray | memoryview,
    names: Sequence[str] | None = None,
    depth: int = 0,
) -> list[Any]:
    """Decode one row into logical values."""
    reader = Reader(data)
    nulls = reader.take((len(types) + 7) // 8)
    values: list[Any] = []
    for i, dtype in enumerate(types):
        # A NOT NULL column has a bit too, which readers do not look at.
        if dtype.nullable and nulls[i // 8] >> i % 8 & 1:
            values.append(None)
            continue
        values.append(_read_field(reader, i, dtype, names, depth))
    reader.finish()
    return values


def encode_key(types: Sequence[DataType], values: Sequence[Any], names: Sequence[str] | None = None) -> bytes:
    """Encode key columns: no null bits, so null is refused; a prefix of the columns gives a prefix of the bytes."""
    v.check_row(values, len(types))
    out = bytearray()
    for i, (dtype, value) in enumerate(zip(types, values)):
        try:
            if value is None:
                raise InvalidRowError("null in a key")
            if isinstance(dtype, v.NESTED):
                raise InvalidRowError("nested types cannot be part of a key")
            _write(out, dtype, value, 0)
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(i, dtype, names)}: {error.message}") from None
    return bytes(out)


def decode_key(
    types: Sequence[DataType], data: bytes | bytearray | memoryview, names: Sequence[str] | None = None
) -> list[Any]:
    """The inverse of `encode_key`."""
    reader = Reader(data)
    values = [_read_field(reader, i, dtype, names, 0) for i, dtype in enumerate(types)]
    reader.finish()
    return values


def _write(out: bytearray, dtype: DataType, value: Any, depth: int) -> None:
    if isinstance(dtype, (IntType, DateType)):
        write_varint32(out, v.check_integer(value, 32))
    elif isinstance(dtype, BigIntType):
        write_varint64(out, v.check_integer(value, 64))
    elif isinstance(dtype, v.STRINGS):
        _write_sized(out, v.utf8(value))
    elif isinstance(dtype, v.BINARIES):
        _write_sized(out, v.check_bytes(value))
    elif isinstance(dtype, BooleanType):
        out.append(v.check_boolean(value))
    elif isinstance(dtype, TinyIntType):
        out += _I8.pack(v.check_integer(value, 8))
    elif isinstance(dtype, SmallIntType):
        out += _I16.pack(v.check_integer(value, 16))
    elif isinstance(dtype, TimeType):
        write_varint32(out, v.check_time(value))
    elif isinstance(dtype, FloatType):
        out += v.pack_float32(value)
    elif isinstance(dtype, DoubleType):
        out += v.pack_float64(value)
    elif isinstance(dtype, DecimalType):
        number = v.unscaled(value, dtype)
        if v.is_compact_decimal(dtype):
            write_varint64(out, number)
        else:
            _write_sized(out, v.to_big_endian(number))
    elif isinstance(dtype, (TimestampType, TimestampLtzType)):
        millis, nanos = v.split_timestamp(value, dtype)
        write_varint64(out, millis)
        if not v.is_compact_timestamp(dtype):
            write_varint32(out, nanos)
    else:
        _write_sized(out, encode_nested(dtype, value, NESTED_ROWS, depth))


def _write_sized(out: bytearray, data: bytes) -> None:
    if len(data) > v.INT32_MAX:
        raise InvalidRowError("the value is larger than 2 GiB")
    write_varint32(out, len(data))
    out += data


def _read_field(reader: Reader, i: int, dtype: DataType, names: Sequence[str] | None, depth: int) -> Any:
    start = reader.pos
    try:
        return _read(reader, dtype, depth)
    except FormatError as error:
        raise FormatError(f"{v.field_label(i, dtype, names)} at byte {start}: {error.message}") from None


def _read(reader: Reader, dtype: DataType, depth: int) -> Any:
    if isinstance(dtype, (IntType, DateType)):
        return reader.varint32()
    if isinstance(dtype, BigIntType):
        return reader.varint64()
    if isinstance(dtype, v.STRINGS):
        return v.text_of(reader.sized())
    if isinstance(dtype, v.BINARIES):
        return bytes(reader.sized())
    if isinstance(dtype, BooleanType):
        return v.boolean_of(reader.byte())
    if isinstance(dtype, TinyIntType):
        return reader.unpack(_I8)
    if isinstance(dtype, SmallIntType):
        return reader.unpack(_I16)
    if isinstance(dtype, TimeType):
        return v.time_of(reader.varint32())
    if isinstance(dtype, FloatType):
        return reader.unpack(_F32)
    if isinstance(dtype, DoubleType):
        return reader.unpack(_F64)
    if isinstance(dtype, DecimalType):
        if v.is_compact_decimal(dtype):
            return v.decimal_of(reader.varint64(), dtype)
        return v.decimal_of(v.from_big_endian(reader.sized()), dtype)
    if isinstance(dtype, (TimestampType, TimestampLtzType)):
        millis = reader.varint64()
        return v.join_timestamp(millis, 0 if v.is_compact_timestamp(dtype) else reader.varint32())
    return decode_nested(dtype, reader.sized(), NESTED_ROWS, depth)


NESTED_ROWS = NestedRows(encode_row, decode_row)
