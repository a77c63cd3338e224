# SPDX-License-Identifier: Apache-2.0
"""Varints against known bytes."""

from __future__ import annotations

import numpy as np
import pytest

from fluss.errors import FormatError
from fluss.rows.kernels import RowsCursor, varint_piece
from fluss.rows.slices import Slices, spaced, words_at
from fluss.rows.slots import read_varint32, read_varint64, write_varint32, write_varint64

VECTORS_32 = [
    (0, "00"),
    (1, "01"),
    (127, "7f"),
    (128, "8001"),
    (300, "ac02"),
    (16384, "808001"),
    (-1, "ffffffff0f"),
    (2147483647, "ffffffff07"),
    (-2147483648, "8080808008"),
]
VECTORS_64 = [
    (0, "00"),
    (127, "7f"),
    (128, "8001"),
    (1705314600123, "bb89afe5d031"),
    (-1, "ffffffffffffffffff01"),
    (9223372036854775807, "ffffffffffffffff7f"),
    (-9223372036854775808, "80808080808080808001"),
]


@pytest.mark.parametrize(("value", "expected"), VECTORS_32)
def test_varint32(value: int, expected: str) -> None:
    out = bytearray()
    write_varint32(out, value)
    assert out.hex() == expected
    assert read_varint32(bytes(out) + b"\xff", 0) == (value, len(out))


@pytest.mark.parametrize(("value", "expected"), VECTORS_64)
def test_varint64(value: int, expected: str) -> None:
    out = bytearray()
    write_varint64(out, value)
    assert out.hex() == expected
    assert read_varint64(bytes(out) + b"\xff", 0) == (value, len(out))


def test_positions() -> None:
    assert read_varint32(b"\xff\xac\x02", 1) == (300, 3)
    assert read_varint64(b"\xff\xac\x02\x01", 1, 3) == (300, 3)


@pytest.mark.parametrize("data", ["", "80", "ffffffff"])
def test_cut_off(data: str) -> None:
    with pytest.raises(FormatError, match="cut off"):
        read_varint32(bytes.fromhex(data), 0)
    with pytest.raises(FormatError, match="cut off"):
        read_varint64(bytes.fromhex(data), 0)


@pytest.mark.parametrize("data", ["ffffffff10", "ffffffffff01", "8080808080"])
def test_varint32_too_large(data: str) -> None:
    with pytest.raises(FormatError, match="does not fit 32 bits"):
        read_varint32(bytes.fromhex(data), 0)


@pytest.mark.parametrize("data", ["ffffffffffffffffff02", "ffffffffffffffffffff01"])
def test_varint64_too_large(data: str) -> None:
    with pytest.raises(FormatError, match="does not fit 64 bits"):
        read_varint64(bytes.fromhex(data), 0)


def test_every_length_vectorised() -> None:
    edges = sorted(
        {abs((1 << bits) + delta) for bits in range(0, 65, 7) for delta in (-1, 0, 1)} | {1 << 63, 2**64 - 1}
    )
    values = np.array([value for value in edges if value < 1 << 64], np.uint64)
    expected = []
    for value in values.tolist():
        out = bytearray()
        write_varint64(out, value)
        expected.append(bytes(out))
    # All prefixes, so that each of the shortcuts for small values is taken.
    for count in range(1, values.size + 1):
        piece = varint_piece(values[:count], None)
        lengths = np.zeros(count, np.int64) + piece.lengths
        starts, data = spaced(lengths)
        piece.write(data, words_at(data), starts)
        rows = Slices(data, starts, lengths)
        assert rows.to_list() == expected[:count]
        cursor = RowsCursor(rows)
        assert cursor.varints(None, 64).tolist() == values[:count].tolist()
        cursor.finish()
