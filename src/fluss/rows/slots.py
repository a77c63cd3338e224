# SPDX-License-Identifier: Apache-2.0
"""The slots that AlignedRow and BinaryArray are made of.

A slot holds a small value itself, or says where in the variable part behind the slots the value lies. Offsets count
from the start of the row or array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata.types import (
    ArrayType,
    BigIntType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    MapType,
    RowType,
    SmallIntType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)
from fluss.rows import value_checks as v

_I8, _I16, _I32, _I64 = (struct.Struct(f"<{code}") for code in "bhiq")
_F32, _F64 = struct.Struct("<f"), struct.Struct("<d")
_SIZE_AND_OFFSET = struct.Struct("<ii")

_INLINE_BYTES_MAX = 7
_INLINE_MARK = 0x80
_DECIMAL_BYTES = 16

_INTEGERS: dict[type[DataType], struct.Struct] = {
    TinyIntType: _I8,
    SmallIntType: _I16,
    IntType: _I32,
    BigIntType: _I64,
    DateType: _I32,
}
_ELEMENT_BYTES: dict[type[DataType], int] = {
    BooleanType: 1,
    TinyIntType: 1,
    SmallIntType: 2,
    IntType: 4,
    FloatType: 4,
    DateType: 4,
    TimeType: 4,
}


class NestedRows(NamedTuple):
    """How a ROW inside an array, map or row is written: like the row around it."""

    encode: Callable[[Sequence[DataType], Sequence[Any], Sequence[str] | None, int], bytes]
    decode: Callable[[Sequence[DataType], memoryview, Sequence[str] | None, int], list[Any]]


def element_bytes(dtype: DataType) -> int:
    """The width of one array element."""
    return _ELEMENT_BYTES.get(type(dtype), 8)


def len8(size: int) -> int:
    """Rounded up to a multiple of 8."""
    return size + 7 & ~7


def write_slot(out: bytearray, pos: int, dtype: DataType, value: Any, rows: NestedRows, depth: int) -> None:
    """Write a non-null value into the zeroed slot at ``pos``, appending to ``out`` what does not fit."""
    kind = type(dtype)
    integer = _INTEGERS.get(kind)
    if integer is not None:
        integer.pack_into(out, pos, v.check_integer(value, v.INTEGER_BITS[kind]))
    elif isinstance(dtype, v.STRINGS):
        _write_bytes(out, pos, v.utf8(value))
    elif isinstance(dtype, v.BINARIES):
        _write_bytes(out, pos, v.check_bytes(value))
    elif isinstance(dtype, BooleanType):
        out[pos] = v.check_boolean(value)
    elif isinstance(dtype, TimeType):
        _I32.pack_into(out, pos, v.check_time(value))
    elif isinstance(dtype, FloatType):
        out[pos : pos + 4] = v.pack_float32(value)
    elif isinstance(dtype, DoubleType):
        out[pos : pos + 8] = v.pack_float64(value)
    elif isinstance(dtype, DecimalType):
        number = v.unscaled(value, dtype)
        if v.is_compact_decimal(dtype):
            _I64.pack_into(out, pos, number)
        else:
            data = v.to_big_endian(number)
            _SIZE_AND_OFFSET.pack_into(out, pos, len(data), _offset(out))
            out += data.ljust(_DECIMAL_BYTES, b"\0")
    elif isinstance(dtype, (TimestampType, TimestampLtzType)):
        millis, nanos = v.split_timestamp(value, dtype)
        if v.is_compact_timestamp(dtype):
            _I64.pack_into(out, pos, millis)
        else:
            _SIZE_AND_OFFSET.pack_into(out, pos, nanos, _offset(out))
            out += _I64.pack(millis)
    else:
        _append(out, pos, encode_nested(dtype, value, rows, depth))


def _write_bytes(out: bytearray, pos: int, data: bytes) -> None:
    if len(data) <= _INLINE_BYTES_MAX:
        out[pos : pos + len(data)] = data
        out[pos + 7] = _INLINE_MARK | len(data)
    else:
        _append(out, pos, data)


def _append(out: bytearray, pos: int, data: bytes) -> None:
    _SIZE_AND_OFFSET.pack_into(out, pos, len(data), _offset(out))
    out += data
    out += bytes(-len(data) & 7)


def _offset(out: bytearray) -> int:
    if len(out) > v.INT32_MAX:
        raise InvalidRowError("the row is larger than 2 GiB")
    return len(out)


class SlotReader:
    """Reads slots of one row or array."""

    __slots__ = ("data", "rows", "used_bytes")

    def __init__(self, data: memoryview, rows: NestedRows) -> None:
        self.data = data
        self.rows = rows
        self.used_bytes = 0

    def read(self, pos: int, dtype: DataType, depth: int) -> Any:
        """The value of the slot at ``pos``, which the caller knows to lie inside the data."""
        data = self.data
        kind = type(dtype)
        integer = _INTEGERS.get(kind)
        if integer is not None:
            return integer.unpack_from(data, pos)[0]
        if isinstance(dtype, v.STRINGS):
            return v.text_of(self._bytes(pos))
        if isinstance(dtype, v.BINARIES):
            return bytes(self._bytes(pos))
        if isinstance(dtype, BooleanType):
            return v.boolean_of(data[pos])
        if isinstance(dtype, TimeType):
            return v.time_of(_I32.unpack_from(data, pos)[0])
        if isinstance(dtype, FloatType):
            return _F32.unpack_from(data, pos)[0]
        if isinstance(dtype, DoubleType):
            return _F64.unpack_from(data, pos)[0]
        if isinstance(dtype, DecimalType):
            if v.is_compact_decimal(dtype):
                return v.decimal_of(_I64.unpack_from(data, pos)[0], dtype)
            size, offset = _SIZE_AND_OFFSET.unpack_from(data, pos)
            return v.decimal_of(v.from_big_endian(self._part(size, offset)), dtype)
        if isinstance(dtype, (TimestampType, TimestampLtzType)):
            if v.is_compact_timestamp(dtype):
                return v.join_timestamp(_I64.unpack_from(data, pos)[0], 0)
            nanos, offset = _SIZE_AND_OFFSET.unpack_from(data, pos)
            return v.join_timestamp(_I64.unpack(self._part(8, offset))[0], nanos)
        size, offset = _SIZE_AND_OFFSET.unpack_from(data, pos)
        return decode_nested(dtype, self._part(size, offset), self.rows, depth)

    def _bytes(self, pos: int) -> memoryview:
        mark = self.data[pos + 7]
        if mark & _INLINE_MARK:
            size = mark & ~_INLINE_MARK
            if size > _INLINE_BYTES_MAX:
                raise FormatError(f"inline value of {size} bytes at byte {pos}")
            return self.data[pos : pos + size]
        return self._part(*_SIZE_AND_OFFSET.unpack_from(self.data, pos))

    def _part(self, size: int, offset: int) -> memoryview:
        if size < 0 or not 0 <= offset <= len(self.data) - size:
            raise FormatError(f"value of {size} bytes at byte {offset} of {len(self.data)}")
        # Writers never let values share bytes. Without this check a small message whose slots all point at one
        # nested array could unfold into any amount of memory.
        self.used_bytes += size
        if self.used_bytes > len(self.data):
            raise FormatError(f"values overlap: {self.used_bytes} bytes claimed of {len(self.data)}")
        return self.data[offset : offset + size]


def encode_nested(dtype: DataType, value: Any, rows: NestedRows, depth: int) -> bytes:
    """The bytes of an ARRAY, MAP or ROW value."""
    v.check_depth(depth + 1)
    if isinstance(dtype, ArrayType):
        return encode_array(dtype.element_type, v.check_list(value), rows, depth + 1)
    if isinstance(dtype, MapType):
        pairs = v.check_pairs(value)
        keys = encode_array(dtype.key_type, [key for key, _ in pairs], rows, depth + 1)
        items = encode_array(dtype.value_type, [item for _, item in pairs], rows, depth + 1)
        return _I32.pack(len(keys)) + keys + items
    if isinstance(dtype, RowType):
        types = dtype.field_types
        return rows.encode(types, v.check_row(value, len(types)), dtype.field_names, depth + 1)
    raise InvalidRowError(f"no row format has a form for {dtype}")


def decode_nested(dtype: DataType, data: memoryview, rows: NestedRows, depth: int) -> Any:
    """The inverse of `encode_nested`."""
    v.check_depth(depth + 1)
    if isinstance(dtype, ArrayType):
        return decode_array(dtype.element_type, data, rows, depth + 1)
    if isinstance(dtype, MapType):
        if len(data) < 4:
            raise FormatError(f"a map needs at least 4 bytes, not {len(data)}")
        (keys_size,) = _I32.unpack_from(data)
        if not 0 <= keys_size <= len(data) - 4:
            raise FormatError(f"the keys of a map claim {keys_size} of {len(data) - 4} bytes")
        keys = decode_array(dtype.key_type, data[4 : 4 + keys_size], rows, depth + 1)
        items = decode_array(dtype.value_type, data[4 + keys_size :], rows, depth + 1)
        if len(keys) != len(items):
            raise FormatError(f"a map with {len(keys)} keys and {len(items)} values")
        return list(zip(keys, items))
    if isinstance(dtype, RowType):
        return tuple(rows.decode(dtype.field_types, data, dtype.field_names, depth + 1))
    raise FormatError(f"no row format has a form for {dtype}")


def encode_array(dtype: DataType, items: Sequence[Any], rows: NestedRows, depth: int) -> bytes:
    """A BinaryArray: count, null bits, elements, padding to 8 bytes, variable part."""
    width = element_bytes(dtype)
    first = 4 + (len(items) + 31) // 32 * 4
    out = bytearray(len8(first + width * len(items)))
    _I32.pack_into(out, 0, len(items))
    for i, item in enumerate(items):
        try:
            if item is None:
                if not dtype.nullable:
                    raise InvalidRowError("null, but the type is NOT NULL")
                out[4 + i // 8] |= 1 << i % 8
                continue
            if isinstance(dtype, (FloatType, DoubleType)):
                item = v.canonical(v.check_float(item))
            write_slot(out, first + width * i, dtype, item, rows, depth)
        except InvalidRowError as error:
            raise InvalidRowError(f"element {i} ({dtype}): {error.message}") from None
    return bytes(out)


def decode_array(dtype: DataType, data: memoryview, rows: NestedRows, depth: int) -> list[Any]:
    """The inverse of `encode_array`."""
    if len(data) < 4:
        raise FormatError(f"an array needs at least 4 bytes, not {len(data)}")
    (count,) = _I32.unpack_from(data)
    width = element_bytes(dtype)
    if not 0 <= count <= len(data) or 4 + (count + 31) // 32 * 4 + width * count > len(data):
        raise FormatError(f"an array of {count} elements does not fit {len(data)} bytes")
    first = 4 + (count + 31) // 32 * 4
    reader = SlotReader(data, rows)
    items: list[Any] = []
    for i in range(count):
        if dtype.nullable and data[4 + i // 8] >> i % 8 & 1:
            items.append(None)
            continue
        try:
            items.append(reader.read(first + width * i, dtype, depth))
        except FormatError as error:
            raise FormatError(f"element {i} ({dtype}): {error.message}") from None
    return items
