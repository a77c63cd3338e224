# SPDX-License-Identifier: Apache-2.0
"""Rows of every format against known bytes, most of them produced by the Java implementation."""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from tests.rows.samples import ALL_TYPES, MILLIS, ROW_A, ROW_B

from fluss.errors import FlussError, FormatError, InvalidRowError
from fluss.metadata import types as t
from fluss.rows import aligned, compacted, indexed
from fluss.rows.aligned import encode_aligned
from fluss.rows.arrow_values import to_arrow
from fluss.rows.kernels import RowsCursor, varint_piece
from fluss.rows.slices import Slices, spaced, words_at
from fluss.rows.slots import read_varint32, read_varint64, write_varint32, write_varint64
from fluss.rows.vector import decode_compacted, encode_compacted, encode_compacted_key

FORMATS = {"compacted": compacted, "indexed": indexed, "aligned": aligned}

KEY_A = (
    "01fed4fefbffffff0fcb89ec8ff7230000c03f00000000000002c0036162630668c3a96c6c6f040102030402ff0087ad"
    "4b0bfefa91f0c959bbc21d2087999a01bb918312bb89afe5d031bb89afe5d031c0ea1bbb89afe5d031bb89afe5d031c0"
    "ea1b"
)
COMPACTED_A = "000000" + KEY_A
INDEXED_A = (
    "00000006000000020000000b00000001fed4fefbffffffcb04fb711f0100000000c03f00000000000002c06162630000"
    "68c3a96c6c6f01020304ff0087d6120000000000fefa91f0c959bbc21d2087194d0000bbc84002bbc4ab0c8d010000bb"
    "c4ab0c8d01000040f50600bbc4ab0c8d010000bbc4ab0c8d01000040f50600"
)
ALIGNED_A = (
    "00000000000000000100000000000000fe00000000000000d4fe000000000000fbffffff00000000cb04fb711f010000"
    "0000c03f0000000000000000000002c0616263000000008368c3a96c6c6f00860102030400000084ff00000000000082"
    "87d61200000000000b000000a0000000194d000000000000bbc8400200000000bbc4ab0c8d01000040f50600b0000000"
    "bbc4ab0c8d01000040f50600b8000000fefa91f0c959bbc21d20870000000000bbc4ab0c8d010000bbc4ab0c8d010000"
)

PAIR = t.RowType((t.DataField("a", t.IntType()), t.DataField("b", t.StringType())))
NESTED_TYPES: list[t.DataType] = [
    t.IntType(nullable=False),
    t.ArrayType(t.IntType()),
    t.ArrayType(t.StringType()),
    t.MapType(t.StringType(), t.IntType()),
    PAIR,
]
NESTED_ROW: list[Any] = [1, [1, None, 3], ["a", "longer than seven", None], [("x", 1), ("y", None)], (7, "q")]
NESTED_COMPACTED = (
    "000118030000000200000001000000000000000300000000000000380300000004000000610000000000008111000000"
    "2000000000000000000000006c6f6e676572207468616e20736576656e000000000000002c1800000002000000000000"
    "0078000000000000817900000000000081020000000200000001000000000000000400070171"
)
NESTED_INDEXED = (
    "0018000000380000002c0000000a00000001000000030000000200000001000000000000000300000000000000030000"
    "00040000006100000000000081110000002000000000000000000000006c6f6e676572207468616e20736576656e0000"
    "000000000018000000020000000000000078000000000000817900000000000081020000000200000001000000000000"
    "0000010000000700000071"
)
NESTED_ALIGNED = (
    "00000000000000000100000000000000180000003000000038000000480000002c0000008000000018000000b0000000"
    "030000000200000001000000000000000300000000000000030000000400000061000000000000811100000020000000"
    "00000000000000006c6f6e676572207468616e20736576656e0000000000000018000000020000000000000078000000"
    "000000817900000000000081020000000200000001000000000000000000000000000000000000000700000000000000"
    "7100000000000081"
)

SMALL_TYPES: list[t.DataType] = [t.IntType(), t.StringType()]

ROW_VECTORS: list[tuple[str, list[t.DataType], list[Any], str]] = [
    ("compacted", ALL_TYPES, ROW_A, COMPACTED_A),
    ("compacted", ALL_TYPES, ROW_B, "ffff07"),
    ("indexed", ALL_TYPES, ROW_A, INDEXED_A),
    ("indexed", ALL_TYPES, ROW_B, "ffff07000000000000000000000000"),
    ("aligned", ALL_TYPES, ROW_A, ALIGNED_A),
    ("aligned", ALL_TYPES, ROW_B, "00ffff07" + "00" * 156),
    ("compacted", SMALL_TYPES, [1, "a"], "00010161"),
    ("indexed", SMALL_TYPES, [1, "a"], "00010000000100000061"),
    ("aligned", SMALL_TYPES, [1, "a"], "000000000000000001000000000000006100000000000081"),
    (
        "aligned",
        SMALL_TYPES,
        [1, "longer than 7"],
        "000000000000000001000000000000000d000000180000006c6f6e676572207468616e2037000000",
    ),
    ("compacted", NESTED_TYPES, NESTED_ROW, NESTED_COMPACTED),
    ("compacted", NESTED_TYPES, [2, None, None, None, None], "1e02"),
    ("indexed", NESTED_TYPES, NESTED_ROW, NESTED_INDEXED),
    ("aligned", NESTED_TYPES, NESTED_ROW, NESTED_ALIGNED),
]


@pytest.mark.parametrize(("name", "types", "values", "expected"), ROW_VECTORS)
def test_rows(name: str, types: list[t.DataType], values: list[Any], expected: str) -> None:
    coder = FORMATS[name]
    assert coder.encode_row(types, values).hex() == expected
    assert coder.decode_row(types, bytes.fromhex(expected)) == values


@pytest.mark.parametrize(("name", "types", "values", "expected"), ROW_VECTORS)
def test_rows_vectorised(name: str, types: list[t.DataType], values: list[Any], expected: str) -> None:
    arrays = [to_arrow([value, value], dtype) for dtype, value in zip(types, values)]
    if name == "aligned":
        assert [row.hex() for row in encode_aligned(types, arrays)] == [expected] * 2
    if name == "compacted":
        rows = encode_compacted(types, arrays)
        assert [row.hex() for row in rows] == [expected] * 2
        assert decode_compacted(types, rows) == arrays


def test_key() -> None:
    assert compacted.encode_key(ALL_TYPES, ROW_A).hex() == KEY_A
    assert compacted.decode_key(ALL_TYPES, bytes.fromhex(KEY_A)) == ROW_A
    arrays = [to_arrow([value], dtype) for dtype, value in zip(ALL_TYPES, ROW_A)]
    assert encode_compacted_key(ALL_TYPES, arrays)[0].hex() == KEY_A


VALUE_VECTORS = [
    (t.DecimalType(10, 2), Decimal("0.00"), "00"),
    (t.DecimalType(10, 2), Decimal("1.00"), "64"),
    (t.DecimalType(10, 2), Decimal("-1.00"), "9cffffffffffffffff01"),
    (t.DecimalType(10, 2), Decimal("12345.67"), "87ad4b"),
    (t.DecimalType(22, 2), Decimal("0.00"), "0100"),
    (t.DecimalType(22, 2), Decimal("1.00"), "0164"),
    (t.DecimalType(22, 2), Decimal("-1.00"), "019c"),
    (t.DecimalType(22, 2), Decimal("12345678901234567890.12"), "0942ed123b0bd8203a14"),
    (t.TimestampType(3), -1_000_000, "ffffffffffffffffff01"),
    (t.TimestampType(9), -1, "ffffffffffffffffff01bf843d"),
    (t.TimestampType(6), MILLIS * 10**6 + 456000, "bb89afe5d031c0ea1b"),
    (t.TimestampType(3), MILLIS * 10**6, "bb89afe5d031"),
]


@pytest.mark.parametrize(("dtype", "value", "expected"), VALUE_VECTORS)
def test_values(dtype: t.DataType, value: Any, expected: str) -> None:
    assert compacted.encode_key([dtype], [value]).hex() == expected
    assert encode_compacted_key([dtype], [to_arrow([value], dtype)])[0].hex() == expected
    assert decode_compacted([dtype], Slices.from_list([bytes.fromhex("00" + expected)]))[0] == to_arrow([value], dtype)


ARRAY_VECTORS: list[tuple[t.DataType, list[Any], str]] = [
    (t.BooleanType(), [True, None, False], "001003000000020000000100000000000000"),
    (t.SmallIntType(), [1, -2], "001002000000000000000100feff00000000"),
    (t.BigIntType(), [1, -1], "001802000000000000000100000000000000ffffffffffffffff"),
    (t.DecimalType(10, 2), [Decimal("12345.67")], "0010010000000000000087d6120000000000"),
    (
        t.DecimalType(25, 5),
        [Decimal("-12345678901234567890.12345")],
        "002001000000000000000b00000010000000fefa91f0c959bbc21d20870000000000",
    ),
    (t.TimestampType(3), [MILLIS * 10**6], "00100100000000000000bbc4ab0c8d010000"),
    (t.TimestampType(6), [MILLIS * 10**6 + 456000], "0018010000000000000040f5060010000000bbc4ab0c8d010000"),
    (
        t.BytesType(),
        [b"\1\2", b"\1\2\3\4\5\6\7\10"],
        "00200200000000000000010200000000008208000000180000000102030405060708",
    ),
    (PAIR, [(7, "q"), None], "00200200000002000000040000001800000000000000000000000007017100000000"),
    (
        t.ArrayType(t.IntType()),
        [[1, 2], []],
        "0030020000000000000010000000180000000800000028000000020000000000000001000000020000000000000000000000",
    ),
    (t.IntType(), [], "00080000000000000000"),
]


@pytest.mark.parametrize(("dtype", "items", "expected"), ARRAY_VECTORS)
def test_arrays(dtype: t.DataType, items: list[Any], expected: str) -> None:
    assert compacted.encode_row([t.ArrayType(dtype)], [items]).hex() == expected
    assert compacted.decode_row([t.ArrayType(dtype)], bytes.fromhex(expected)) == [items]


def test_nan_in_arrays_is_canonical() -> None:
    odd = struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_0001))[0]
    row = compacted.encode_row([t.ArrayType(t.DoubleType())], [[odd]])
    assert row[-8:].hex() == "000000000000f87f"


def test_indexed_pads_and_reads_fixed_lengths() -> None:
    types = [t.CharType(4), t.BinaryType(3)]
    row = indexed.encode_row(types, ["ä", b"\1\0"])
    assert row.hex() == "00" + "c3a40000" + "010000"
    # A CHAR loses its padding; a BINARY is all of its bytes.
    assert indexed.decode_row(types, row) == ["ä", b"\1\0\0"]
    with pytest.raises(InvalidRowError, match=r"field 0 .* 5 bytes are more than the declared 4"):
        indexed.encode_row(types, ["abcde", b""])
    with pytest.raises(InvalidRowError, match="too many"):
        indexed.encode_row([t.BinaryType(2**31 - 1)], [b""])


@pytest.mark.parametrize("name", FORMATS)
class TestRefusals:
    """What no format takes."""

    def test_null(self, name: str) -> None:
        with pytest.raises(InvalidRowError, match=r"field 'x' .*NOT NULL"):
            FORMATS[name].encode_row([t.IntType(nullable=False)], [None], ["x"])

    def test_width(self, name: str) -> None:
        with pytest.raises(InvalidRowError, match="expected 1 fields, got 2"):
            FORMATS[name].encode_row([t.IntType()], [1, 2])
        with pytest.raises(InvalidRowError, match="a tuple"):
            FORMATS[name].encode_row([t.IntType()], 7)

    @pytest.mark.parametrize(
        ("dtype", "value"),
        [
            (t.BooleanType(), 1),
            (t.TinyIntType(), 128),
            (t.SmallIntType(), -32769),
            (t.IntType(), 2**31),
            (t.IntType(), True),
            (t.IntType(), 1.0),
            (t.BigIntType(), 2**63),
            (t.FloatType(), 1),
            (t.FloatType(), 1e39),
            (t.DoubleType(), "1"),
            (t.StringType(), b"x"),
            (t.StringType(), "\ud800"),
            (t.CharType(3), 5),
            (t.BytesType(), "x"),
            (t.BinaryType(1), None.__class__),
            (t.DecimalType(4, 2), 1),
            (t.DecimalType(4, 2), Decimal("NaN")),
            (t.DecimalType(4, 2), Decimal("100")),
            (t.DecimalType(4, 2), Decimal("1.001")),
            (t.DecimalType(4, 2), Decimal("1E-999999")),
            (t.DecimalType(4, 2), Decimal("1E+999999")),
            (t.DecimalType(38, 38), Decimal(1)),
            (t.DateType(), 2**31),
            (t.TimeType(3), 86_400_000),
            (t.TimeType(3), -1),
            (t.TimestampType(3), 1),
            (t.TimestampType(9), 2**63 * 10**6),
            (t.TimestampLtzType(9), 1.5),
            (t.ArrayType(t.IntType()), 3),
            (t.ArrayType(t.IntType(nullable=False)), [None]),
            (t.ArrayType(t.FloatType()), [1]),
            (t.MapType(t.StringType(), t.IntType()), [("x",)]),
            (t.MapType(t.StringType(), t.IntType()), [(None, 1)]),
            (PAIR, (1,)),
            (PAIR, "x"),
            (t.DataType(), 1),
        ],
    )
    def test_values(self, name: str, dtype: t.DataType, value: Any) -> None:
        with pytest.raises(InvalidRowError, match=r"^field 0 "):
            FORMATS[name].encode_row([dtype], [value])

    def test_unknown_type(self, name: str) -> None:
        with pytest.raises(FormatError):
            FORMATS[name].decode_row([t.DataType()], bytes(24))

    def test_depth(self, name: str) -> None:
        dtype: t.DataType = t.IntType()
        value: Any = 1
        for _ in range(70):
            dtype, value = t.ArrayType(dtype), [value]
        with pytest.raises(FlussError, match="64 levels"):
            FORMATS[name].encode_row([dtype], [value])

    def test_empty(self, name: str) -> None:
        coder = FORMATS[name]
        assert coder.decode_row([], coder.encode_row([], [])) == []
        with pytest.raises(FormatError):
            coder.decode_row([t.IntType()], b"")


BROKEN = [
    ("compacted", [t.IntType()], "00", "field 0 .*cut off"),
    ("compacted", [t.IntType()], "000102", "1 unexpected bytes from byte 2"),
    ("compacted", [t.BigIntType()], "00ffffffffffffffffff02", "varint64 at byte 1 does not fit 64 bits"),
    ("compacted", [t.IntType()], "00ffffffff1f", "varint32 at byte 1 does not fit 32 bits"),
    ("compacted", [t.StringType()], "000561", "5 bytes wanted at byte 2"),
    ("compacted", [t.StringType()], "00ffffffff0f", "-1 bytes wanted"),
    ("compacted", [t.StringType()], "0001ff", "not UTF-8: invalid start byte"),
    ("compacted", [t.BooleanType()], "0002", "a boolean is the byte 0 or 1"),
    ("compacted", [t.TimeType()], "00ffffffff0f", "millisecond of the day"),
    ("compacted", [t.TimestampType(9)], "0000c0843d", "1000000 nanoseconds"),
    ("compacted", [t.DecimalType(2, 0)], "0064", "more than 2 digits"),
    ("compacted", [t.DecimalType(20, 0)], "0000", "1 to 16 bytes"),
    ("compacted", [t.DecimalType(20, 0)], "0011" + "00" * 17, "1 to 16 bytes"),
    ("compacted", [t.DecimalType(20, 0)], "00107f" + "ff" * 15, "more than 20 digits"),
    ("compacted", [t.ArrayType(t.IntType())], "000300000000", "at least 4 bytes"),
    ("compacted", [t.ArrayType(t.IntType())], "0008ffffff7f00000000", "does not fit 8 bytes"),
    ("compacted", [t.ArrayType(t.IntType())], "0008ffffffff00000000", "does not fit 8 bytes"),
    ("compacted", [t.ArrayType(t.StringType())], "0010010000000000000000000000000000ff", "element 0 .*inline value"),
    ("compacted", [t.ArrayType(t.StringType())], "00100100000000000000ffffffff00000000", "value of -1 bytes"),
    ("compacted", [t.ArrayType(t.StringType())], "001001000000000000000900000009000000", "value of 9 bytes at byte 9"),
    ("compacted", [t.MapType(t.IntType(), t.IntType())], "0003000000", "at least 4 bytes"),
    ("compacted", [t.MapType(t.IntType(), t.IntType())], "000405000000", "claim 5 of 0 bytes"),
    (
        "compacted",
        [t.MapType(t.TinyIntType(), t.TinyIntType())],
        "0014" + "09000000" + "010000000000000000" + "00000000000000",
        "1 keys and 0 values",
    ),
    ("indexed", [t.StringType()], "00ffffffff", "-1 bytes wanted"),
    ("indexed", [t.StringType()], "0001000000", "1 bytes wanted"),
    ("aligned", [t.StringType()], "00" * 15, "needs 16 bytes"),
    ("aligned", [t.StringType()], "00" * 8 + "0900000010000000" + "00" * 8, "field 0 .*at byte 8: value of 9"),
]


@pytest.mark.parametrize(("name", "types", "data", "message"), BROKEN)
def test_broken_rows(name: str, types: list[t.DataType], data: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        FORMATS[name].decode_row(types, bytes.fromhex(data))
    if name == "compacted":
        with pytest.raises(FormatError, match=f"row 1: .*{message}"):
            decode_compacted(types, Slices.from_list([b"\1", bytes.fromhex(data)]))


def test_values_may_not_share_bytes() -> None:
    """Many elements that point at one nested array would unfold into far more than was sent."""
    inner = bytes.fromhex("c8000000") + bytes(28 + 200)
    inner += bytes(-len(inner) % 8)
    count = 50
    first = 4 + 8 + 8 * count
    first += -first % 8
    slots = (len(inner).to_bytes(4, "little") + first.to_bytes(4, "little")) * count
    data = count.to_bytes(4, "little") + bytes(8) + slots
    data = data.ljust(first, b"\0") + inner
    row = b"\0" + bytes([len(data) & 0x7F | 0x80, len(data) >> 7]) + data
    with pytest.raises(FormatError, match="values overlap"):
        compacted.decode_row([t.ArrayType(t.ArrayType(t.TinyIntType()))], row)


def test_not_null_bits_are_not_looked_at() -> None:
    types = [t.IntType(nullable=False), t.IntType()]
    assert compacted.decode_row(types, b"\1\7\10") == [7, 8]
    arrays = decode_compacted(types, Slices.from_list([b"\1\7\10"]))
    assert [array.to_pylist() for array in arrays] == [[7], [8]]


def test_key_refusals() -> None:
    with pytest.raises(InvalidRowError, match=r"field 'a' .*null in a key"):
        compacted.encode_key([t.IntType()], [None], ["a"])
    with pytest.raises(InvalidRowError, match="nested types cannot be part of a key"):
        compacted.encode_key([t.ArrayType(t.IntType())], [[1]])
    with pytest.raises(FormatError, match="unexpected bytes"):
        compacted.decode_key([t.IntType()], b"\1\1")


VECTORS_32 = [
    (0, "00"), (1, "01"), (127, "7f"), (128, "8001"), (300, "ac02"), (16384, "808001"), (-1, "ffffffff0f"),
    (2147483647, "ffffffff07"), (-2147483648, "8080808008"),
]  # fmt: skip
VECTORS_64 = [
    (0, "00"), (127, "7f"), (128, "8001"), (1705314600123, "bb89afe5d031"), (-1, "ffffffffffffffffff01"),
    (9223372036854775807, "ffffffffffffffff7f"), (-9223372036854775808, "80808080808080808001"),
]  # fmt: skip
VARINTS = [(write_varint32, read_varint32, *one) for one in VECTORS_32]
VARINTS += [(write_varint64, read_varint64, *one) for one in VECTORS_64]


@pytest.mark.parametrize(("write", "read", "value", "expected"), VARINTS)
def test_varints(write: Any, read: Any, value: int, expected: str) -> None:
    out = bytearray()
    write(out, value)
    assert out.hex() == expected
    assert read(bytes(out) + b"\xff", 0) == (value, len(out))


def test_positions() -> None:
    assert read_varint32(b"\xff\xac\x02", 1) == (300, 3)
    assert read_varint64(b"\xff\xac\x02\x01", 1, 3) == (300, 3)


@pytest.mark.parametrize("data", ["", "80", "ffffffff"])
def test_cut_off(data: str) -> None:
    with pytest.raises(FormatError, match="cut off"):
        read_varint32(bytes.fromhex(data), 0)
    with pytest.raises(FormatError, match="cut off"):
        read_varint64(bytes.fromhex(data), 0)


@pytest.mark.parametrize(("read", "bits", "data"), [
    *((read_varint32, 32, data) for data in ("ffffffff10", "ffffffffff01", "8080808080")),
    *((read_varint64, 64, data) for data in ("ffffffffffffffffff02", "ffffffffffffffffffff01")),
])  # fmt: skip
def test_varints_that_are_too_large(read: Any, bits: int, data: str) -> None:
    with pytest.raises(FormatError, match=f"does not fit {bits} bits"):
        read(bytes.fromhex(data), 0)


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
