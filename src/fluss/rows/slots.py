# SPDX-License-Identifier: Apache-2.0
"""What row formats share: varints, a cursor over the bytes of a row, and the slots of AlignedRow and BinaryArray.

A slot holds a small value itself, or says where in the variable part behind the slots the value lies. Offsets count
from the start of the row or array.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata import types as t
from fluss.rows import value_checks as v

_I32, _I64 = struct.Struct("<i"), struct.Struct("<q")
_SIZE_AND_OFFSET = struct.Struct("<ii")

_INLINE_BYTES_MAX = 7
_INLINE_MARK = 0x80
_DECIMAL_BYTES = 16


class NestedRows(NamedTuple):
    """How a ROW inside an array, map or row is written: like the row around it."""

    encode: Callable[[Sequence[t.DataType], Sequence[Any], Sequence[str] | None, int], bytes]
    decode: Callable[[Sequence[t.DataType], memoryview, Sequence[str] | None, int], list[Any]]


def element_bytes(dtype: t.DataType) -> int:
    """The width of one array element."""
    return v.fixed_size(dtype) or 8


def len8(size: int) -> int:
    """Rounded up to a multiple of 8."""
    return size + 7 & ~7


def write_slot(out: bytearray, pos: int, dtype: t.DataType, value: Any, rows: NestedRows, depth: int) -> None:
    """Write a non-null value into the zeroed slot at ``pos``, appending to ``out`` what does not fit."""
    size = v.fixed_size(dtype)
    if size:
        out[pos : pos + size] = v.pack_fixed(value, dtype)
    elif isinstance(dtype, t.TEXT_TYPES):
        _write_bytes(out, pos, v.utf8(value))
    elif isinstance(dtype, t.BYTES_TYPES):
        _write_bytes(out, pos, v.check_bytes(value))
    elif isinstance(dtype, t.DecimalType):
        data = v.to_big_endian(v.unscaled(value, dtype))
        _SIZE_AND_OFFSET.pack_into(out, pos, len(data), _offset(out))
        out += data.ljust(_DECIMAL_BYTES, b"\0")
    elif isinstance(dtype, t.TIMESTAMP_TYPES):
        millis, nanos = v.split_timestamp(value, dtype)
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

    def read(self, pos: int, dtype: t.DataType, depth: int) -> Any:
        """The value of the slot at ``pos``, which the caller knows to lie inside the data."""
        size = v.fixed_size(dtype)
        if size:
            return v.unpack_fixed(self.data[pos : pos + size], dtype)
        if isinstance(dtype, t.TEXT_TYPES):
            return v.text_of(self._bytes(pos))
        if isinstance(dtype, t.BYTES_TYPES):
            return bytes(self._bytes(pos))
        size, offset = _SIZE_AND_OFFSET.unpack_from(self.data, pos)
        if isinstance(dtype, t.DecimalType):
            return v.decimal_of(v.from_big_endian(self._part(size, offset)), dtype)
        if isinstance(dtype, t.TIMESTAMP_TYPES):
            return v.join_timestamp(_I64.unpack(self._part(8, offset))[0], size)  # the nanoseconds are in its place
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


def encode_nested(dtype: t.DataType, value: Any, rows: NestedRows, depth: int) -> bytes:
    """The bytes of an ARRAY, MAP or ROW value."""
    v.check_depth(depth + 1)
    if isinstance(dtype, t.ArrayType):
        return encode_array(dtype.element_type, v.check_list(value), rows, depth + 1)
    if isinstance(dtype, t.MapType):
        pairs = v.check_pairs(value)
        keys = encode_array(dtype.key_type, [key for key, _ in pairs], rows, depth + 1)
        items = encode_array(dtype.value_type, [item for _, item in pairs], rows, depth + 1)
        return _I32.pack(len(keys)) + keys + items
    if isinstance(dtype, t.RowType):
        types = dtype.field_types
        return rows.encode(types, v.check_row(value, len(types)), dtype.field_names, depth + 1)
    raise InvalidRowError(f"no row format has a form for {dtype}")


def decode_nested(dtype: t.DataType, data: memoryview, rows: NestedRows, depth: int) -> Any:
    """The inverse of `encode_nested`."""
    v.check_depth(depth + 1)
    if isinstance(dtype, t.ArrayType):
        return decode_array(dtype.element_type, data, rows, depth + 1)
    if isinstance(dtype, t.MapType):
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
    if isinstance(dtype, t.RowType):
        return tuple(rows.decode(dtype.field_types, data, dtype.field_names, depth + 1))
    raise FormatError(f"no row format has a form for {dtype}")


def encode_array(dtype: t.DataType, items: Sequence[Any], rows: NestedRows, depth: int) -> bytes:
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
            if isinstance(dtype, t.FLOAT_TYPES):
                item = v.canonical(v.check_float(item))
            write_slot(out, first + width * i, dtype, item, rows, depth)
        except InvalidRowError as error:
            raise InvalidRowError(f"element {i} ({dtype}): {error.message}") from None
    return bytes(out)


def decode_array(dtype: t.DataType, data: memoryview, rows: NestedRows, depth: int) -> list[Any]:
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


# -- varints and bytes ---------------------------------------------------------------------------------------------
#
# A varint has 7 bits per byte, least significant group first, no zig-zag. A negative number is written as its
# two's-complement pattern, so it always takes the longest form: 5 bytes for 32 bits, 10 bytes for 64 bits.

VARINT32_BYTES_MAX = 5
VARINT64_BYTES_MAX = 10

_MASK32 = (1 << 32) - 1
_MASK64 = (1 << 64) - 1


def write_varint32(out: bytearray, value: int) -> None:
    """Append the 32-bit pattern of ``value``, which must lie in the range of an i32 or u32."""
    _write(out, value & _MASK32)


def write_varint64(out: bytearray, value: int) -> None:
    """Append the 64-bit pattern of ``value``, which must lie in the range of an i64 or u64."""
    _write(out, value & _MASK64)


def _write(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_varint32(data: bytes | memoryview, pos: int, end: int | None = None) -> tuple[int, int]:
    """Read a signed 32-bit value; returns it and the position after it."""
    pattern, pos = _read(data, pos, len(data) if end is None else end, VARINT32_BYTES_MAX, 32)
    return (pattern ^ 0x8000_0000) - 0x8000_0000, pos


def read_varint64(data: bytes | memoryview, pos: int, end: int | None = None) -> tuple[int, int]:
    """Read a signed 64-bit value; returns it and the position after it."""
    pattern, pos = _read(data, pos, len(data) if end is None else end, VARINT64_BYTES_MAX, 64)
    return (pattern ^ (1 << 63)) - (1 << 63), pos


def _read(data: bytes | memoryview, start: int, end: int, bytes_max: int, bits: int) -> tuple[int, int]:
    pattern = 0
    pos = start
    for shift in range(0, 7 * bytes_max, 7):
        if pos >= end:
            raise FormatError(f"varint{bits} at byte {start} is cut off at byte {end}")
        byte = data[pos]
        pos += 1
        pattern |= (byte & 0x7F) << shift
        if byte < 0x80:
            if pattern >> bits:
                break
            return pattern, pos
    raise FormatError(f"varint{bits} at byte {start} does not fit {bits} bits")


class Reader:
    """Reads values one after another; every error says where."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = memoryview(data)
        self.pos = 0
        self.end = len(self.data)

    def take(self, count: int) -> memoryview:
        """The next ``count`` bytes."""
        start = self.pos
        if not 0 <= count <= self.end - start:
            raise FormatError(f"{count} bytes wanted at byte {start}, but the data ends at byte {self.end}")
        self.pos = start + count
        return self.data[start : self.pos]

    def byte(self) -> int:
        """The next byte."""
        return self.take(1)[0]

    def unpack(self, layout: struct.Struct) -> Any:
        """The next value of a one-field layout."""
        return layout.unpack(self.take(layout.size))[0]

    def varint32(self) -> int:
        """The next signed 32-bit varint."""
        pos = self.pos
        if pos < self.end and (byte := self.data[pos]) < 0x80:  # as most lengths are
            self.pos = pos + 1
            return byte
        value, self.pos = read_varint32(self.data, self.pos, self.end)
        return value

    def varint64(self) -> int:
        """The next signed 64-bit varint."""
        pos = self.pos
        if pos < self.end and (byte := self.data[pos]) < 0x80:  # as most lengths are
            self.pos = pos + 1
            return byte
        value, self.pos = read_varint64(self.data, self.pos, self.end)
        return value

    def sized(self) -> memoryview:
        """The bytes behind a varint length."""
        return self.take(self.varint32())

    def finish(self) -> None:
        """Nothing may be left over."""
        if self.pos != self.end:
            raise FormatError(f"{self.end - self.pos} unexpected bytes from byte {self.pos} on")
