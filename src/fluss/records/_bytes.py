# SPDX-License-Identifier: Apache-2.0
"""What all codecs of this package share: parts, checksums, and the way bad bytes are reported."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NoReturn, TypeAlias

from fluss._checksum import crc32c
from fluss.errors import FormatError

Part: TypeAlias = bytes | bytearray | memoryview
"""One stretch of a message. Messages travel as lists of parts, so that a payload is never copied to get a header."""

INT32_MAX = 2**31 - 1


def as_view(data: Any) -> memoryview:
    """The bytes behind any buffer (bytes, memoryview, numpy array, Arrow buffer), as a flat view without a copy."""
    view = memoryview(data)
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


def checksum(parts: Iterable[Part], value: int = 0) -> int:
    """CRC-32C over parts, continuing from the checksum `value` of the bytes before them."""
    for part in parts:
        value = crc32c(part, value)
    return value


_POLYNOMIAL = 0x82F63B78
_TOP = 0x8000_0000


def _product(a: int, b: int) -> int:
    """The product of two polynomials modulo that of CRC-32C, bits reflected."""
    product, bit = 0, _TOP
    while bit:
        if a & bit:
            product ^= b
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@lru_cache(maxsize=1024)
def _shift(digit: int, place: int) -> int:
    """What a checksum is multiplied with when `digit * 256**place` bytes follow it."""
    if digit == 1:
        return _TOP >> 8 if place == 0 else _product(_shift(128, place - 1), _shift(128, place - 1))
    half = _shift(digit // 2, place)
    whole = _product(half, half)
    return _product(whole, _shift(1, place)) if digit % 2 else whole


@lru_cache(maxsize=1024)
def _shift_by(size_bytes: int) -> int:
    """What a checksum is multiplied with when so many bytes follow it."""
    shift, place = _TOP, 0
    while size_bytes:
        # Digit by digit: sizes differ from batch to batch, their digits come again.
        if size_bytes & 0xFF:
            shift = _product(_shift(size_bytes & 0xFF, place), shift)
        size_bytes >>= 8
        place += 1
    return shift


def checksum_joined(head: int, tail: int, tail_bytes: int) -> int:
    """CRC-32C of two stretches from that of each: the second may have been summed before the first was known."""
    return _product(_shift_by(tail_bytes), head) ^ tail


def parts_size(parts: Iterable[Part]) -> int:
    """How many bytes the parts hold together."""
    return sum(len(part) for part in parts)


def malformed(what: str, field: str, position: int, problem: str) -> NoReturn:
    """Refuse bytes: `what` is the thing being read, `position` counts from its first byte."""
    raise FormatError(f"malformed {what}: {field} at byte {position}: {problem}")
