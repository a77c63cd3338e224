# SPDX-License-Identifier: Apache-2.0
"""Variable-length integers: 7 bits per byte, least significant group first, no zig-zag.

A negative number is written as its two's-complement pattern, so it always takes the longest form: 5 bytes for
32 bits, 10 bytes for 64 bits.
"""

from __future__ import annotations

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
