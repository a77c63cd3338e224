# SPDX-License-Identifier: Apache-2.0
"""Variable-length integers, and a cursor over the bytes of one row that never leaves them.

A varint has 7 bits per byte, least significant group first, no zig-zag. A negative number is written as its
two's-complement pattern, so it always takes the longest form: 5 bytes for 32 bits, 10 bytes for 64 bits.
"""

from __future__ import annotations

import struct
from typing import Any

from fluss.errors import FormatError

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
