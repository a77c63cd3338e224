# SPDX-License-Identifier: Apache-2.0
"""Native Python values and Arrow arrays in and out, and what is refused on the way."""

from __future__ import annotations

import enum
import pathlib
import uuid
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from fluss.errors import FormatError, InvalidRowError
from fluss.metadata.types import (
    ArrayType,
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataField,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    MapType,
    RowType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)
from fluss.rows import aligned, arrow_values, compacted
from fluss.rows import value_checks as logical_values
from fluss.rows.aligned import encode_aligned
from fluss.rows.arrow_values import conform, from_arrow, to_arrow
from fluss.rows.logical import from_python, to_python
from fluss.rows.python_columns import column_from_python
from fluss.rows.slices import Slices
from fluss.rows.vector import decode_compacted, encode_compacted

PAIR = RowType((DataField("a", IntType(nullable=False)), DataField("b", StringType())))
PLUS_TWO = timezone(timedelta(hours=2))
DAY = 86_400 * 10**9


class Timestamp(datetime):
    """A datetime with nanoseconds, as pandas has one."""

    nanosecond = 7


class NaTType:
    """What pandas calls a missing time."""


class Tensor:
    """What says of itself that it is an integer."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __index__(self) -> int:
        return self._number


class Colour(enum.Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("dtype", "value", "logical"),
    [
        (IntType(), None, None),
        (IntType(), NaTType(), None),
        (TimestampType(), np.datetime64("NaT", "us"), None),
        (BooleanType(), True, True),
        (BooleanType(), np.bool_(False), False),
        (TinyIntType(), -128, -128),
        (SmallIntType(), np.int64(5), 5),
        (IntType(), 3.0, 3),
        (IntType(), Tensor(7), 7),
        (BigIntType(), np.float64(2**40), 2**40),
        (BigIntType(), 2**63 - 1, 2**63 - 1),
        (FloatType(), 1.5, 1.5),
        (FloatType(), 0.1, float(np.float32(0.1))),
        (FloatType(), 2**24, float(2**24)),
        (FloatType(), float("inf"), float("inf")),
        (DoubleType(), 7, 7.0),
        (DoubleType(), np.float32(0.5), 0.5),
        (CharType(3), "äöü", "äöü"),
        (StringType(), np.str_("x"), "x"),
        (BinaryType(2), bytearray(b"ab"), b"ab"),
        (BytesType(), memoryview(b"ab"), b"ab"),
        (BytesType(), np.bytes_(b"ab"), b"ab"),
        (DecimalType(10, 2), Decimal("1.5"), Decimal("1.50")),
        (DecimalType(10, 2), Decimal("1.5000"), Decimal("1.50")),
        (DecimalType(10, 2), 3, Decimal("3.00")),
        (DecimalType(38, 0), 10**38 - 1, Decimal(10**38 - 1)),
        (DecimalType(3, 2), Decimal("0E+50"), Decimal("0.00")),
        (DateType(), date(2024, 1, 15), 19737),
        (DateType(), np.datetime64("2024-01-15"), 19737),
        (DateType(), np.datetime64("2024-01-15T00:00"), 19737),
        (TimeType(0), time(10, 30), 37_800_000),
        (TimeType(3), time(10, 30, 0, 123_000), 37_800_123),
        (TimestampType(6), datetime(1970, 1, 2, 0, 0, 0, 5), DAY + 5000),
        (TimestampType(6), datetime(1969, 12, 31, 23, 59, 59, 999_999), -1000),
        (TimestampType(9), Timestamp(1970, 1, 1), 7),
        (TimestampType(9), np.datetime64(5, "ns"), 5),
        (TimestampType(0), np.datetime64(2, "h"), 2 * 3600 * 10**9),
        (TimestampType(3), np.datetime64(3, "10ms"), 30 * 10**6),  # type: ignore[call-overload]
        (TimestampLtzType(6), datetime(1970, 1, 2, tzinfo=timezone.utc), DAY),
        (TimestampLtzType(6), datetime(1970, 1, 2, 2, tzinfo=PLUS_TWO), DAY),
        (TimestampLtzType(6), datetime(1970, 1, 2), DAY),
        (ArrayType(IntType()), [1, None], [1, None]),
        (ArrayType(IntType()), (1, 2), [1, 2]),
        (ArrayType(DoubleType()), np.array([1.0, 2.0]), [1.0, 2.0]),
        (MapType(StringType(), DateType()), {"x": date(1970, 1, 2), "y": None}, [("x", 1), ("y", None)]),
        (MapType(StringType(), IntType()), [("x", 1)], [("x", 1)]),
        (PAIR, {"b": "q", "a": 7}, (7, "q")),
        (PAIR, {"a": 7}, (7, None)),
        (PAIR, (7, "q"), (7, "q")),
    ],
)
def test_from_python(dtype: DataType, value: Any, logical: Any) -> None:
    result = from_python(value, dtype)
    assert result == logical
    assert type(result) is type(logical)
    assert from_arrow(column_from_python([value, value], dtype), dtype) == [logical, logical]


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (IntType(nullable=False), None, "NOT NULL"),
        (BooleanType(), 1, "expected a bool, got 1 of type int"),
        (IntType(), True, "expected an int, got True of type bool"),
        (IntType(), "1", "expected an int, got '1' of type str"),
        (IntType(), 1.5, "expected an int, got 1.5"),
        (IntType(), float("nan"), "expected an int, got nan of type float: give None where there is no value"),
        (StringType(), float("nan"), "expected a str, got nan of type float: give None where there is no value"),
        (StringType(), Colour.RED, r"expected a str, got <Colour.RED: 'red'> of type Colour: give its \.value"),
        (StringType(), uuid.UUID(int=1), r"of type UUID: give its str\(\) instead"),
        (StringType(), pathlib.PurePosixPath("x"), r"of type PurePosixPath: give its str\(\) instead"),
        (
            TimestampType(),
            "2024-01-15",
            r"expected a datetime, got '2024-01-15' of type str: datetime.fromisoformat\(\)",
        ),
        (TimestampType(), date(2024, 1, 15), r"expected a datetime, got .* of type date: datetime.combine"),
        (TimestampType(), 1_700_000_000, r"expected a datetime, got .*: datetime.fromtimestamp\(\) reads seconds"),
        (DateType(), "2024-01-15", r"expected a date, got .*: date.fromisoformat\(\)"),
        (TinyIntType(), 128, "128 does not fit 8 bits"),
        (BigIntType(), 2**63, "does not fit 64 bits"),
        (DoubleType(), True, "expected a float"),
        (DoubleType(), Decimal(1), "expected a float"),
        (DoubleType(), 2**53 + 1, "no exact form"),
        (DoubleType(), 10**400, "does not fit a float"),
        (FloatType(), 2**24 + 1, "no exact form"),
        (FloatType(), 1e39, "does not fit 32 bits"),
        (FloatType(), 2**200, "does not fit 32 bits"),
        (CharType(3), "abcd", "4 characters, the type has room for 3"),
        (StringType(), b"x", "expected a str"),
        (StringType(), "\ud800", "no UTF-8 form"),
        (StringType(), "\ud800" * 100, r"\.\.\. of type str has no UTF-8 form"),
        (BinaryType(3), b"ab", "2 bytes, the type has exactly 3"),
        (BytesType(), "x", "expected bytes"),
        (DecimalType(4, 2), 1.5, r"give Decimal\('1.5'\) instead"),
        (DecimalType(4, 2), True, "expected a Decimal"),
        (DecimalType(4, 2), Decimal("1.234"), "more than 2 decimal places"),
        (DecimalType(4, 2), Decimal("1." + "0" * 100), "more than 2 decimal places"),
        (DecimalType(4, 2), 100, "does not fit"),
        (DecimalType(4, 2), Decimal("Infinity"), "not a finite decimal"),
        (DateType(), datetime(2024, 1, 1), r"give its \.date\(\) instead"),
        (DateType(), 5, "expected a date"),
        (DateType(), np.datetime64("2024-01-15T01:00"), "has a time of day"),
        (TimeType(3), 5, "expected a time"),
        (TimeType(3), time(1, tzinfo=timezone.utc), "has a time zone"),
        (TimeType(6), time(1, 0, 0, 1), "below the millisecond"),
        (TimeType(0), time(1, 0, 0, 1000), "below the second"),
        (TimestampType(6), date(2024, 1, 1), "expected a datetime"),
        (TimestampType(6), 5, "expected a datetime"),
        (TimestampType(6), datetime(2024, 1, 1, tzinfo=timezone.utc), "has a time zone"),
        (TimestampType(3), datetime(2024, 1, 1, 0, 0, 0, 1), "more than 3 digits of a second"),
        (TimestampType(9), np.datetime64(1, "ps"), "from days to nanoseconds"),
        (TimestampType(6), np.datetime64(2**62, "h"), "out of the range"),
        (ArrayType(IntType()), "abc", "Expected sequence for Array column, got str 'abc'"),
        (ArrayType(IntType()), [1, "x"], r"element 1 \(int\): expected an int"),
        (MapType(StringType(), IntType()), 5, "expected a dict"),
        (MapType(StringType(), IntType()), {"x": "y"}, "entry 'x' of type str: expected an int"),
        (MapType(StringType(), IntType()), {None: 1}, "NOT NULL"),
        (PAIR, {"a": 1, "c": 2}, "no field is named 'c'; the fields are a, b"),
        (PAIR, {"b": "x"}, "Missing value for non-nullable row field 'a'"),
        (PAIR, 5, "expected a dict or a tuple"),
        (PAIR, (1,), "expected 2 fields, got 1"),
        (DataType(), 5, "the type has no values"),
    ],
)
def test_from_python_refuses(dtype: DataType, value: Any, message: str) -> None:
    with pytest.raises(InvalidRowError, match=message) as caught:
        from_python(value, dtype, "c")
    assert caught.value.message.startswith(f"column 'c' ({dtype}): ")
    with pytest.raises(InvalidRowError, match=message):
        from_python(value, dtype)
    if type(dtype) is not DataType:
        with pytest.raises(InvalidRowError, match=rf"^row 0, column 'c' .*{message}"):
            column_from_python([value], dtype, "c")


def test_depth_of_python_values() -> None:
    dtype: DataType = IntType()
    value: Any = 1
    for _ in range(70):
        dtype, value = ArrayType(dtype), [value]
    with pytest.raises(FormatError, match="64 levels"):
        from_python(value, dtype)


@pytest.mark.parametrize(
    ("dtype", "logical", "native"),
    [
        (IntType(), None, None),
        (DecimalType(4, 2), Decimal("1.50"), Decimal("1.50")),
        (DateType(), 19737, date(2024, 1, 15)),
        (TimeType(3), 37_800_123, time(10, 30, 0, 123_000)),
        (TimestampType(9), -1, datetime(1969, 12, 31, 23, 59, 59, 999_999)),
        (TimestampLtzType(6), DAY, datetime(1970, 1, 2, tzinfo=timezone.utc)),
        (ArrayType(DateType()), [0, None], [date(1970, 1, 1), None]),
        (MapType(StringType(), DateType()), [("x", 0)], {"x": date(1970, 1, 1)}),
        (MapType(ArrayType(IntType()), IntType()), [([1], 2)], [([1], 2)]),
        (PAIR, (7, "q"), {"a": 7, "b": "q"}),
    ],
)
def test_to_python(dtype: DataType, logical: Any, native: Any) -> None:
    assert to_python(logical, dtype) == native


def test_to_python_range() -> None:
    with pytest.raises(InvalidRowError, match="not a date of Python"):
        to_python(2**31 - 1, DateType())
    with pytest.raises(InvalidRowError, match="not a datetime of Python"):
        to_python(2**80, TimestampType(9))


def test_columns_take_the_short_way_only_when_it_is_exact() -> None:
    assert column_from_python([1, None, 3], BigIntType()) == pa.array([1, None, 3])
    assert column_from_python([1, 2.0], BigIntType()) == pa.array([1, 2])
    assert column_from_python([], StringType()).type == pa.string()
    assert column_from_python([], BigIntType()).type == pa.int64()
    assert column_from_python([0, 1, 2**63 - 1, -(2**63)], BigIntType()) == pa.array([0, 1, 2**63 - 1, -(2**63)])
    assert column_from_python([np.int64(3), Tensor(4), 5], SmallIntType()) == pa.array([3, 4, 5], pa.int16())
    for values in ([5, True], [False, 7], [1, 0, True]):
        with pytest.raises(InvalidRowError, match=r"expected an int, got (True|False)"):
            column_from_python(values, BigIntType(), "x")
    with pytest.raises(InvalidRowError, match=r"row 2, column 'x' \(tinyint\): 300 does not fit 8 bits"):
        column_from_python([1, 2, 300], TinyIntType(), "x")
    with pytest.raises(InvalidRowError, match=r"row 1, .*NOT NULL"):
        column_from_python([1, None], IntType(nullable=False), "x")
    with pytest.raises(InvalidRowError, match=r"row 1, .*time zone"):
        column_from_python([datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=timezone.utc)], TimestampType(), "x")
    with pytest.raises(InvalidRowError, match=r"row 0, .*UTF-8"):
        column_from_python(["\ud800"], StringType(), "x")
    aware = [datetime(2024, 1, 1, 2, tzinfo=PLUS_TWO), None]
    assert column_from_python(aware, TimestampLtzType()).to_pylist() == [
        datetime(2024, 1, 1, tzinfo=timezone.utc),
        None,
    ]
    # Microseconds are not cut off on the way into a coarser column.
    with pytest.raises(InvalidRowError, match="more than 0 digits"):
        column_from_python([datetime(2024, 1, 1, 0, 0, 0, 1)], TimestampType(0), "x")


@pytest.mark.parametrize(
    ("array", "dtype", "expected"),
    [
        (pa.array([1, None], pa.uint8()), TinyIntType(), [1, None]),
        (pa.array([1], pa.int64()), IntType(), [1]),
        (pa.array([1.0]), IntType(), [1]),
        (pa.array([1]), DoubleType(), [1.0]),
        (pa.array([0.5, None]), FloatType(), [0.5, None]),
        (pa.array([float("inf")]), FloatType(), [float("inf")]),
        (pa.array(["x"], pa.large_string()), StringType(), ["x"]),
        (pa.array(["x", "x", None]).dictionary_encode(), StringType(), ["x", "x", None]),
        (pa.array([b"ab"]), BinaryType(2), [b"ab"]),
        (pa.array([None, None]), IntType(), [None, None]),
        (pa.array([5]), DecimalType(25, 2), [Decimal("5.00")]),
        (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), DecimalType(10, 2), [Decimal("1.50")]),
        (pa.array([0], pa.timestamp("s")), TimestampType(6), [0]),
        (pa.array([0], pa.timestamp("us")), TimestampLtzType(6), [0]),
        (pa.array([10**6], pa.timestamp("us", "Europe/Berlin")), TimestampLtzType(3), [10**9]),
        (pa.array([10**6], pa.time64("us")), TimeType(3), [1000]),
        (pa.array([date(1970, 1, 2)], pa.date64()), DateType(), [1]),
        (pa.array([[1, 2]], pa.large_list(pa.int64())), ArrayType(IntType()), [[1, 2]]),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), ArrayType(IntType()), [[1, 2]]),
        (pa.array([[0.5], None]), ArrayType(FloatType()), [[0.5], None]),
        (pa.array([[None]]), ArrayType(FloatType()), [[None]]),
        (pa.array([{"b": "x", "a": 1}]), PAIR, [(1, "x")]),
        (pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())), MapType(StringType(), IntType()), [[("x", 1)]]),
    ],
)
def test_conform(array: pa.Array, dtype: DataType, expected: list[Any]) -> None:
    assert conform(array, dtype).type == dtype.to_arrow()
    assert from_arrow(array, dtype) == expected
    assert decode_compacted([dtype], encode_compacted([dtype], [array]))[0] == to_arrow(expected, dtype)


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (pa.array([300]), TinyIntType(), "without loss"),
        (pa.array([1.5]), IntType(), "without loss"),
        (pa.array([1e39]), FloatType(), "do not fit 32 bits"),
        (pa.array([[1.0], [1e39]]), ArrayType(FloatType()), "do not fit 32 bits"),
        (pa.array([{"f": 1e39}]), RowType((DataField("f", FloatType()),)), "do not fit 32 bits"),
        (
            pa.array([[("x", 1e39)]], pa.map_(pa.string(), pa.float64())),
            MapType(StringType(), FloatType()),
            "do not fit",
        ),
        (pa.array([["1"]]), ArrayType(IntType()), "type string does not hold int"),
        (
            pa.array([[("x", True)]], pa.map_(pa.string(), pa.bool_())),
            MapType(StringType(), IntType()),
            "does not hold",
        ),
        (pa.array([[0]], pa.list_(pa.timestamp("us", "UTC"))), ArrayType(TimestampType(6)), "has a time zone"),
        (pa.array([{"a": 1, "z": 2}]), PAIR, "has a field 'z'"),
        (pa.array([{"a": "1"}]), PAIR, "type string does not hold int"),
        (pa.array(["1"]), IntType(), "does not hold int"),
        (pa.array([True]), IntType(), "does not hold int"),
        (pa.array([b"a"]), StringType(), "does not hold string"),
        (pa.array([b"abc"]), BinaryType(2), "without loss"),
        (pa.array([0], pa.timestamp("us", "UTC")), TimestampType(6), "has a time zone"),
        (pa.array([1], pa.timestamp("us")), TimestampType(3), "without loss"),
        (pa.array([Decimal("1.55")]), DecimalType(10, 1), "without loss"),
        (pa.array([[1]]), IntType(), "does not hold int"),
    ],
)
def test_conform_refuses(array: pa.Array, dtype: DataType, message: str) -> None:
    with pytest.raises(InvalidRowError, match=message):
        conform(array, dtype)
    with pytest.raises(InvalidRowError, match=rf"^field 'c' .*{message}"):
        encode_compacted([dtype], [array], ["c"])
    with pytest.raises(InvalidRowError, match=rf"^field 'c' .*{message}"):
        encode_aligned([dtype], [array], ["c"])


def foreign(kind: pa.DataType, *buffers: Any) -> pa.Array:
    """One value of an array whose memory is not validated."""
    return pa.Array.from_buffers(kind, 1, [None, *map(pa.py_buffer, buffers)])


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (pa.array([1], pa.time64("us")), TimeType(6), "below the millisecond"),
        (pa.array([1], pa.time64("ns")), TimeType(9), "below the millisecond"),
        (foreign(pa.time32("s"), np.int32(86400)), TimeType(0), "not a"),
        (foreign(pa.time32("ms"), np.int32(-1)), TimeType(3), "not a"),
        (pa.array([2**62], pa.timestamp("s")), TimestampType(0), "out of the range"),
        (foreign(pa.string(), np.array([0, 1], np.int32), b"\xff"), StringType(), "not valid|unreadable"),
        (foreign(pa.decimal128(2, 0), np.array([1000, 0], np.int64)), DecimalType(2, 0), "does not fit"),
        (foreign(pa.decimal128(20, 0), np.array([0, 2**62], np.int64)), DecimalType(20, 0), "does not fit"),
    ],
)
def test_values_in_arrow_that_rows_do_not_hold(array: pa.Array, dtype: DataType, message: str) -> None:
    with pytest.raises(InvalidRowError, match=message):
        encode_compacted([dtype], [array])
    with pytest.raises(InvalidRowError, match=message):
        encode_aligned([dtype], [array])


def test_null_fields_of_null_rows() -> None:
    """As Parquet readers give them: the field of a null row is null itself, although it is NOT NULL."""
    fields = [pa.field("a", pa.int32()), pa.field("b", pa.string())]
    mask = pa.array([False, True])
    array = pa.StructArray.from_arrays(
        [pa.array([1, None], pa.int32()), pa.array(["x", None])], fields=fields, mask=mask
    )
    assert from_arrow(array, PAIR) == [(1, "x"), None]
    assert decode_compacted([PAIR], encode_compacted([PAIR], [array]))[0] == to_arrow([(1, "x"), None], PAIR)


def test_unreadable_text() -> None:
    with pytest.raises(InvalidRowError, match="below the millisecond"):
        from_arrow(pa.array([1], pa.time64("us")), TimeType(6))
    with pytest.raises(InvalidRowError, match="unreadable"):
        from_arrow(foreign(pa.string(), np.array([0, 1], np.int32), b"\xff"), StringType())


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**63], TimestampType(9)),
        ([2**100], TimestampType(6)),
        (["x"], IntType()),
        ([2**40], DateType()),
        ([b"abc"], BinaryType(2)),
        ([[(None, 1)]], MapType(StringType(), IntType())),
    ],
)
def test_to_arrow_refuses(values: list[Any], dtype: DataType) -> None:
    with pytest.raises(InvalidRowError):
        to_arrow(values, dtype)


def test_declared_lengths_do_not_allocate_without_bound() -> None:
    dtype = BinaryType(2**31 - 1)
    with pytest.raises(InvalidRowError, match="need more than"):
        to_arrow([b""], dtype)
    with pytest.raises(FormatError, match="need more than"):
        decode_compacted([dtype], Slices.from_list([b"\0\0"]))


def test_offsets_beyond_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logical_values, "INT32_MAX", 3)
    with pytest.raises(InvalidRowError, match="elements"):
        arrow_values.to_arrow([[1, 2, 3, 4]], ArrayType(IntType()))
    with pytest.raises(FormatError, match="decode fewer rows"):
        decode_compacted([StringType()], Slices.from_list([b"\0\4abcd"]))


def test_rows_beyond_two_gibibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logical_values, "INT32_MAX", 15)
    with pytest.raises(InvalidRowError, match="larger than 2 GiB"):
        compacted.encode_row([StringType()], ["x" * 16])
    with pytest.raises(InvalidRowError, match="larger than 2 GiB"):
        aligned.encode_row([StringType()], ["x" * 16])


def test_arrays_without_buffers() -> None:
    """Arrow allows an empty array to have no memory at all."""
    for dtype in (IntType(), DecimalType(5, 0), DecimalType(30, 0), BinaryType(3)):
        array = pa.Array.from_buffers(dtype.to_arrow(), 0, [None, None])
        assert len(encode_compacted([dtype], [array])) == 0
        assert len(encode_aligned([dtype], [array])) == 0


def test_short_binaries_are_padded() -> None:
    rows = Slices.from_list([b"\0\1a", b"\1", b"\0\3abc"])
    (array,) = decode_compacted([BinaryType(3)], rows)
    assert array.to_pylist() == [b"a\0\0", None, b"abc"]
    with pytest.raises(FormatError, match="row 1: the value is longer than 3 bytes"):
        decode_compacted([BinaryType(3)], Slices.from_list([b"\0\1a", b"\0\4abcd"]))


def test_timestamps_are_cut_to_their_unit() -> None:
    """Another writer may keep nanoseconds in a column of microseconds; Arrow has no room for them."""
    row = b"\0\0\xe7\7"  # 0 ms, 999 ns
    (array,) = decode_compacted([TimestampType(6)], Slices.from_list([row]))
    assert array == to_arrow([999], TimestampType(6)) == pa.array([0], pa.timestamp("us"))
    (array,) = decode_compacted([TimestampType(0)], Slices.from_list([b"\0\xe7\7"]))
    assert array == pa.array([0], pa.timestamp("s"))


def test_timestamp_beyond_arrow() -> None:
    row = b"\0" + b"\xff" * 8 + b"\x7f\0"
    with pytest.raises(FormatError, match=r"row 0: the timestamp is out of the range of timestamp\b"):
        decode_compacted([TimestampType(6)], Slices.from_list([row]))


def test_column_shapes() -> None:
    with pytest.raises(InvalidRowError, match="expected 2 columns, got 1"):
        encode_compacted([IntType(), IntType()], [pa.array([1])])
    with pytest.raises(InvalidRowError, match="different lengths"):
        encode_compacted([IntType(), IntType()], [pa.array([1]), pa.array([1, 2])])
    with pytest.raises(InvalidRowError, match=r"field 0 .*null in row 1, but the type is NOT NULL"):
        encode_compacted([IntType(nullable=False)], [pa.array([1, None])])
    with pytest.raises(InvalidRowError, match=r"field 0 .*element 0 .*NOT NULL"):
        encode_compacted([ArrayType(IntType(nullable=False))], [pa.array([[None]], pa.list_(pa.int32()))])
