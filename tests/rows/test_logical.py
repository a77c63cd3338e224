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
from fluss.metadata import types as t
from fluss.rows import aligned, arrow_values, compacted, slices
from fluss.rows import value_checks as logical_values
from fluss.rows.aligned import encode_aligned
from fluss.rows.arrow_values import conform, from_arrow, to_arrow
from fluss.rows.logical import from_python, to_python
from fluss.rows.python_columns import column_from_python
from fluss.rows.slices import Slices
from fluss.rows.vector import decode_compacted, encode_compacted

PAIR = t.RowType((t.DataField("a", t.IntType(nullable=False)), t.DataField("b", t.StringType())))
NEAR_THE_END = (int(datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp()) + 28 * 3600) * 10**9
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
        (t.IntType(), None, None),
        (t.IntType(), NaTType(), None),
        (t.TimestampType(), np.datetime64("NaT", "us"), None),
        (t.BooleanType(), True, True),
        (t.BooleanType(), np.bool_(False), False),
        (t.TinyIntType(), -128, -128),
        (t.SmallIntType(), np.int64(5), 5),
        (t.IntType(), 3.0, 3),
        (t.IntType(), Tensor(7), 7),
        (t.BigIntType(), np.float64(2**40), 2**40),
        (t.BigIntType(), 2**63 - 1, 2**63 - 1),
        (t.FloatType(), 1.5, 1.5),
        (t.FloatType(), 0.1, float(np.float32(0.1))),
        (t.FloatType(), 2**24, float(2**24)),
        (t.FloatType(), float("inf"), float("inf")),
        (t.DoubleType(), 7, 7.0),
        (t.DoubleType(), np.float32(0.5), 0.5),
        (t.CharType(3), "äöü", "äöü"),
        (t.StringType(), np.str_("x"), "x"),
        (t.BinaryType(2), bytearray(b"ab"), b"ab"),
        (t.BytesType(), memoryview(b"ab"), b"ab"),
        (t.BytesType(), np.bytes_(b"ab"), b"ab"),
        (t.DecimalType(10, 2), Decimal("1.5"), Decimal("1.50")),
        (t.DecimalType(10, 2), Decimal("1.5000"), Decimal("1.50")),
        (t.DecimalType(10, 2), 3, Decimal("3.00")),
        (t.DecimalType(38, 0), 10**38 - 1, Decimal(10**38 - 1)),
        (t.DecimalType(3, 2), Decimal("0E+50"), Decimal("0.00")),
        (t.DateType(), date(2024, 1, 15), 19737),
        (t.DateType(), np.datetime64("2024-01-15"), 19737),
        (t.DateType(), np.datetime64("2024-01-15T00:00"), 19737),
        (t.TimeType(0), time(10, 30), 37_800_000),
        (t.TimeType(3), time(10, 30, 0, 123_000), 37_800_123),
        (t.TimestampType(6), datetime(1970, 1, 2, 0, 0, 0, 5), DAY + 5000),
        (t.TimestampType(6), datetime(1969, 12, 31, 23, 59, 59, 999_999), -1000),
        (t.TimestampType(9), Timestamp(1970, 1, 1), 7),
        (t.TimestampType(9), np.datetime64(5, "ns"), 5),
        (t.TimestampType(0), np.datetime64(2, "h"), 2 * 3600 * 10**9),
        (t.TimestampType(3), np.datetime64(3, "10ms"), 30 * 10**6),  # type: ignore[call-overload]
        (t.TimestampLtzType(6), datetime(1970, 1, 2, tzinfo=timezone.utc), DAY),
        (t.TimestampLtzType(6), datetime(1970, 1, 2, 2, tzinfo=PLUS_TWO), DAY),
        (t.TimestampLtzType(6), datetime(1970, 1, 2), DAY),
        (t.TimestampLtzType(3), datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=5))), NEAR_THE_END),
        (t.ArrayType(t.IntType()), [1, None], [1, None]),
        (t.ArrayType(t.IntType()), (1, 2), [1, 2]),
        (t.ArrayType(t.DoubleType()), np.array([1.0, 2.0]), [1.0, 2.0]),
        (t.MapType(t.StringType(), t.DateType()), {"x": date(1970, 1, 2), "y": None}, [("x", 1), ("y", None)]),
        (t.MapType(t.StringType(), t.IntType()), [("x", 1)], [("x", 1)]),
        (PAIR, {"b": "q", "a": 7}, (7, "q")),
        (PAIR, {"a": 7}, (7, None)),
        (PAIR, (7, "q"), (7, "q")),
    ],
)
def test_from_python(dtype: t.DataType, value: Any, logical: Any) -> None:
    result = from_python(value, dtype)
    assert result == logical
    assert type(result) is type(logical)
    assert from_arrow(column_from_python([value, value], dtype), dtype) == [logical, logical]


@pytest.mark.parametrize(
    ("dtype", "value", "message"),
    [
        (t.IntType(nullable=False), None, "NOT NULL"),
        (t.BooleanType(), 1, "expected a bool, got 1 of type int"),
        (t.IntType(), True, "expected an int, got True of type bool"),
        (t.IntType(), "1", "expected an int, got '1' of type str"),
        (t.IntType(), 1.5, "expected an int, got 1.5"),
        (t.IntType(), float("nan"), "expected an int, got nan of type float: give None where there is no value"),
        (t.StringType(), float("nan"), "expected a str, got nan of type float: give None where there is no value"),
        (t.StringType(), Colour.RED, r"expected a str, got <Colour.RED: 'red'> of type Colour: give its \.value"),
        (t.StringType(), uuid.UUID(int=1), r"of type UUID: give its str\(\) instead"),
        (t.StringType(), pathlib.PurePosixPath("x"), r"of type PurePosixPath: give its str\(\) instead"),
        (
            t.TimestampType(),
            "2024-01-15T10:00:00.1234567",
            "is not a datetime in ISO form: it has more than 6 digits of a second",
        ),
        (t.TimestampType(), date(2024, 1, 15), r"expected a datetime, got .* of type date: datetime.combine"),
        (t.TimestampType(), 1_700_000_000, r"expected a datetime, got .*: datetime.fromtimestamp\(\) reads seconds"),
        (t.DateType(), "15.1.2024", r"'15.1.2024' is not a date in ISO form"),
        (t.TimeType(3), "noon", "'noon' is not a time in ISO form"),
        (t.TinyIntType(), 128, "128 does not fit 8 bits"),
        (t.BigIntType(), 2**63, "does not fit 64 bits"),
        (t.DoubleType(), True, "expected a float"),
        (t.DoubleType(), Decimal(1), "expected a float"),
        (t.DoubleType(), 2**53 + 1, "no exact form"),
        (t.DoubleType(), 10**400, "does not fit a float"),
        (t.FloatType(), 2**24 + 1, "no exact form"),
        (t.FloatType(), 1e39, "does not fit 32 bits"),
        (t.FloatType(), 2**200, "does not fit 32 bits"),
        (t.CharType(3), "abcd", "4 characters, the type has room for 3"),
        (t.StringType(), b"x", "expected a str"),
        (t.StringType(), "\ud800", "no UTF-8 form"),
        (t.StringType(), "\ud800" * 100, r"\.\.\. of type str has no UTF-8 form"),
        (t.BinaryType(3), b"ab", "2 bytes, the type has exactly 3"),
        (t.BytesType(), "x", "expected bytes"),
        (t.DecimalType(4, 2), 1.5, r"give Decimal\('1.5'\) instead"),
        (t.DecimalType(4, 2), True, "expected a Decimal"),
        (t.DecimalType(4, 2), Decimal("1.234"), "more than 2 decimal places"),
        (t.DecimalType(4, 2), Decimal("1." + "0" * 100), "more than 2 decimal places"),
        (t.DecimalType(4, 2), 100, "does not fit"),
        (t.DecimalType(4, 2), Decimal("Infinity"), "not a finite decimal"),
        (t.DateType(), datetime(2024, 1, 1), r"give its \.date\(\) instead"),
        (t.DateType(), 5, "expected a date"),
        (t.DateType(), np.datetime64("2024-01-15T01:00"), "has a time of day"),
        (t.TimeType(3), 5, "expected a time"),
        (t.TimeType(3), time(1, tzinfo=timezone.utc), "has a time zone"),
        (t.TimeType(6), time(1, 0, 0, 1), "below the millisecond"),
        (t.TimeType(0), time(1, 0, 0, 1000), "below the second"),
        (t.TimestampType(6), date(2024, 1, 1), "expected a datetime"),
        (t.TimestampType(6), 5, "expected a datetime"),
        (t.TimestampType(6), datetime(2024, 1, 1, tzinfo=timezone.utc), "has a time zone"),
        (t.TimestampType(3), datetime(2024, 1, 1, 0, 0, 0, 1), "more than 3 digits of a second"),
        (t.TimestampType(9), np.datetime64(1, "ps"), "from days to nanoseconds"),
        (t.TimestampType(6), np.datetime64(2**62, "h"), "out of the range"),
        (t.ArrayType(t.IntType()), "abc", "Expected sequence for Array column, got str 'abc'"),
        (t.ArrayType(t.IntType()), [1, "x"], r"element 1 \(int\): expected an int"),
        (t.MapType(t.StringType(), t.IntType()), 5, "expected a dict"),
        (t.MapType(t.StringType(), t.IntType()), {"x": "y"}, "entry 'x' of type str: expected an int"),
        (t.MapType(t.StringType(), t.IntType()), {None: 1}, "NOT NULL"),
        (PAIR, {"a": 1, "c": 2}, "no field is named 'c'; the fields are a, b"),
        (PAIR, {"b": "x"}, "Missing value for non-nullable row field 'a'"),
        (PAIR, 5, "expected a dict or a tuple"),
        (PAIR, (1,), "expected 2 fields, got 1"),
        (t.DataType(), 5, "the type has no values"),
    ],
)
def test_from_python_refuses(dtype: t.DataType, value: Any, message: str) -> None:
    with pytest.raises(InvalidRowError, match=message) as caught:
        from_python(value, dtype, "c")
    assert caught.value.message.startswith(f"column 'c' ({dtype}): ")
    with pytest.raises(InvalidRowError, match=message):
        from_python(value, dtype)
    if type(dtype) is not t.DataType:
        with pytest.raises(InvalidRowError, match=rf"^row 0, column 'c' .*{message}"):
            column_from_python([value], dtype, "c")


def test_depth_of_python_values() -> None:
    dtype: t.DataType = t.IntType()
    value: Any = 1
    for _ in range(70):
        dtype, value = t.ArrayType(dtype), [value]
    with pytest.raises(FormatError, match="64 levels"):
        from_python(value, dtype)


@pytest.mark.parametrize(
    ("dtype", "logical", "native"),
    [
        (t.IntType(), None, None),
        (t.DecimalType(4, 2), Decimal("1.50"), Decimal("1.50")),
        (t.DateType(), 19737, date(2024, 1, 15)),
        (t.TimeType(3), 37_800_123, time(10, 30, 0, 123_000)),
        (t.TimestampType(9), -1, datetime(1969, 12, 31, 23, 59, 59, 999_999)),
        (t.TimestampLtzType(6), DAY, datetime(1970, 1, 2, tzinfo=timezone.utc)),
        (t.ArrayType(t.DateType()), [0, None], [date(1970, 1, 1), None]),
        (t.MapType(t.StringType(), t.DateType()), [("x", 0)], {"x": date(1970, 1, 1)}),
        (t.MapType(t.ArrayType(t.IntType()), t.IntType()), [([1], 2)], [([1], 2)]),
        (PAIR, (7, "q"), {"a": 7, "b": "q"}),
    ],
)
def test_to_python(dtype: t.DataType, logical: Any, native: Any) -> None:
    assert to_python(logical, dtype) == native


def test_to_python_range() -> None:
    with pytest.raises(InvalidRowError, match="not a date of Python"):
        to_python(2**31 - 1, t.DateType())
    with pytest.raises(InvalidRowError, match="not a datetime of Python"):
        to_python(2**80, t.TimestampType(9))


def test_columns_take_the_short_way_only_when_it_is_exact() -> None:
    assert column_from_python([1, None, 3], t.BigIntType()) == pa.array([1, None, 3])
    assert column_from_python([1, 2.0], t.BigIntType()) == pa.array([1, 2])
    assert column_from_python([], t.StringType()).type == pa.string()
    assert column_from_python([], t.BigIntType()).type == pa.int64()
    assert column_from_python([0, 1, 2**63 - 1, -(2**63)], t.BigIntType()) == pa.array([0, 1, 2**63 - 1, -(2**63)])
    assert column_from_python([np.int64(3), Tensor(4), 5], t.SmallIntType()) == pa.array([3, 4, 5], pa.int16())
    for values in ([5, True], [False, 7], [1, 0, True]):
        with pytest.raises(InvalidRowError, match=r"expected an int, got (True|False)"):
            column_from_python(values, t.BigIntType(), "x")
    with pytest.raises(InvalidRowError, match=r"row 2, column 'x' \(tinyint\): 300 does not fit 8 bits"):
        column_from_python([1, 2, 300], t.TinyIntType(), "x")
    with pytest.raises(InvalidRowError, match=r"row 1, .*NOT NULL"):
        column_from_python([1, None], t.IntType(nullable=False), "x")
    with pytest.raises(InvalidRowError, match=r"row 1, .*time zone"):
        column_from_python([datetime(2024, 1, 1), datetime(2024, 1, 1, tzinfo=timezone.utc)], t.TimestampType(), "x")
    with pytest.raises(InvalidRowError, match=r"row 0, .*UTF-8"):
        column_from_python(["\ud800"], t.StringType(), "x")
    aware = [datetime(2024, 1, 1, 2, tzinfo=PLUS_TWO), None]
    assert column_from_python(aware, t.TimestampLtzType()).to_pylist() == [
        datetime(2024, 1, 1, tzinfo=timezone.utc),
        None,
    ]
    # Microseconds are not cut off on the way into a coarser column.
    with pytest.raises(InvalidRowError, match="more than 0 digits"):
        column_from_python([datetime(2024, 1, 1, 0, 0, 0, 1)], t.TimestampType(0), "x")


@pytest.mark.parametrize(
    ("array", "dtype", "expected"),
    [
        (pa.array([1, None], pa.uint8()), t.TinyIntType(), [1, None]),
        (pa.array([1], pa.int64()), t.IntType(), [1]),
        (pa.array([1.0]), t.IntType(), [1]),
        (pa.array([1]), t.DoubleType(), [1.0]),
        (pa.array([0.5, None]), t.FloatType(), [0.5, None]),
        (pa.array([float("inf")]), t.FloatType(), [float("inf")]),
        (pa.array(["x"], pa.large_string()), t.StringType(), ["x"]),
        (pa.array(["x", "x", None]).dictionary_encode(), t.StringType(), ["x", "x", None]),
        (pa.array([b"ab"]), t.BinaryType(2), [b"ab"]),
        (pa.array([None, None]), t.IntType(), [None, None]),
        (pa.array([5]), t.DecimalType(25, 2), [Decimal("5.00")]),
        (pa.array([Decimal("1.5")], pa.decimal128(5, 1)), t.DecimalType(10, 2), [Decimal("1.50")]),
        (pa.array([0], pa.timestamp("s")), t.TimestampType(6), [0]),
        (pa.array([0], pa.timestamp("us")), t.TimestampLtzType(6), [0]),
        (pa.array([10**6], pa.timestamp("us", "Europe/Berlin")), t.TimestampLtzType(3), [10**9]),
        (pa.array([10**6], pa.time64("us")), t.TimeType(3), [1000]),
        (pa.array([date(1970, 1, 2)], pa.date64()), t.DateType(), [1]),
        (pa.array([[1, 2]], pa.large_list(pa.int64())), t.ArrayType(t.IntType()), [[1, 2]]),
        (pa.array([[1, 2]], pa.list_(pa.int32(), 2)), t.ArrayType(t.IntType()), [[1, 2]]),
        (pa.array([np.float16(0.5), None], pa.float16()), t.FloatType(), [0.5, None]),
        (pa.array([[0.5], None]), t.ArrayType(t.FloatType()), [[0.5], None]),
        (pa.array([[None]]), t.ArrayType(t.FloatType()), [[None]]),
        (pa.array([{"b": "x", "a": 1}]), PAIR, [(1, "x")]),
        (
            pa.array([[("x", 1)]], pa.map_(pa.string(), pa.int64())),
            t.MapType(t.StringType(), t.IntType()),
            [[("x", 1)]],
        ),
        (
            pa.array([[("w", 0.0)], [("x", 1.5)], None], pa.map_(pa.string(), pa.float64())).slice(1),
            t.MapType(t.StringType(), t.FloatType()),
            [[("x", 1.5)], None],
        ),
    ],
)
def test_conform(array: pa.Array, dtype: t.DataType, expected: list[Any]) -> None:
    assert conform(array, dtype).type == dtype.to_arrow()
    assert from_arrow(array, dtype) == expected
    assert decode_compacted([dtype], encode_compacted([dtype], [array]))[0] == to_arrow(expected, dtype)


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (pa.array([300]), t.TinyIntType(), "without loss"),
        (pa.array([1.5]), t.IntType(), "without loss"),
        (pa.array([1e39]), t.FloatType(), "do not fit 32 bits"),
        (pa.array([[1.0], [1e39]]), t.ArrayType(t.FloatType()), "do not fit 32 bits"),
        (pa.array([{"f": 1e39}]), t.RowType((t.DataField("f", t.FloatType()),)), "do not fit 32 bits"),
        (
            pa.array([[("x", 1e39)]], pa.map_(pa.string(), pa.float64())),
            t.MapType(t.StringType(), t.FloatType()),
            "do not fit",
        ),
        (pa.array([["1"]]), t.ArrayType(t.IntType()), "type string does not hold int"),
        (
            pa.array([[("x", True)]], pa.map_(pa.string(), pa.bool_())),
            t.MapType(t.StringType(), t.IntType()),
            "does not hold",
        ),
        (pa.array([[0]], pa.list_(pa.timestamp("us", "UTC"))), t.ArrayType(t.TimestampType(6)), "has a time zone"),
        (pa.array([{"a": 1, "z": 2}]), PAIR, "has a field 'z'"),
        (pa.array([{"a": "1"}]), PAIR, "type string does not hold int"),
        (pa.array(["1"]), t.IntType(), "does not hold int"),
        (pa.array([True]), t.IntType(), "does not hold int"),
        (pa.array([b"a"]), t.StringType(), "does not hold string"),
        (pa.array([b"abc"]), t.BinaryType(2), "without loss"),
        (pa.array([0], pa.timestamp("us", "UTC")), t.TimestampType(6), "has a time zone"),
        (pa.array([1], pa.timestamp("us")), t.TimestampType(3), "without loss"),
        (pa.array([Decimal("1.55")]), t.DecimalType(10, 1), "without loss"),
        (pa.array([[1]]), t.IntType(), "does not hold int"),
    ],
)
def test_conform_refuses(array: pa.Array, dtype: t.DataType, message: str) -> None:
    with pytest.raises(InvalidRowError, match=message):
        conform(array, dtype)
    with pytest.raises(InvalidRowError, match=rf"^field 0 .*{message}"):
        encode_compacted([dtype], [array])
    with pytest.raises(InvalidRowError, match=rf"^field 'c' .*{message}"):
        encode_aligned([dtype], [array], ["c"])


def foreign(kind: pa.DataType, *buffers: Any) -> pa.Array:
    """One value of an array whose memory is not validated."""
    return pa.Array.from_buffers(kind, 1, [None, *map(pa.py_buffer, buffers)])


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (pa.array([1], pa.time64("us")), t.TimeType(6), "below the millisecond"),
        (pa.array([1], pa.time64("ns")), t.TimeType(9), "below the millisecond"),
        (foreign(pa.time32("s"), np.int32(86400)), t.TimeType(0), "not a"),
        (foreign(pa.time32("ms"), np.int32(-1)), t.TimeType(3), "not a"),
        (pa.array([2**62], pa.timestamp("s")), t.TimestampType(0), "out of the range"),
        (foreign(pa.string(), np.array([0, 1], np.int32), b"\xff"), t.StringType(), "not valid|unreadable"),
        (foreign(pa.decimal128(2, 0), np.array([1000, 0], np.int64)), t.DecimalType(2, 0), "does not fit"),
        (foreign(pa.decimal128(20, 0), np.array([0, 2**62], np.int64)), t.DecimalType(20, 0), "does not fit"),
    ],
)
def test_values_in_arrow_that_rows_do_not_hold(array: pa.Array, dtype: t.DataType, message: str) -> None:
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
        from_arrow(pa.array([1], pa.time64("us")), t.TimeType(6))
    with pytest.raises(InvalidRowError, match="unreadable"):
        from_arrow(foreign(pa.string(), np.array([0, 1], np.int32), b"\xff"), t.StringType())


def test_values_beyond_a_slice_are_not_looked_at() -> None:
    odd = pa.array([[1000], [2]], pa.list_(pa.time64("us")))
    assert from_arrow(odd[:1], t.ArrayType(t.TimeType(6))) == [[1]]
    assert from_arrow(odd[:0], t.ArrayType(t.TimeType(6))) == []
    pairs = pa.array([[(2, 2)], [(1000, 2000)]], pa.map_(pa.time64("us"), pa.time64("us")))
    assert from_arrow(pairs[1:], t.MapType(t.TimeType(6, nullable=False), t.TimeType(6))) == [[(1, 2)]]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([2**63], t.TimestampType(9)),
        ([2**100], t.TimestampType(6)),
        (["x"], t.IntType()),
        ([2**40], t.DateType()),
        ([b"abc"], t.BinaryType(2)),
        ([[(None, 1)]], t.MapType(t.StringType(), t.IntType())),
    ],
)
def test_to_arrow_refuses(values: list[Any], dtype: t.DataType) -> None:
    with pytest.raises(InvalidRowError):
        to_arrow(values, dtype)


def test_declared_lengths_do_not_allocate_without_bound() -> None:
    dtype = t.BinaryType(2**31 - 1)
    with pytest.raises(InvalidRowError, match="need more than"):
        to_arrow([b""], dtype)
    with pytest.raises(FormatError, match="need more than"):
        decode_compacted([dtype], Slices.from_list([b"\0\0"]))


def test_offsets_beyond_arrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logical_values, "INT32_MAX", 3)
    with pytest.raises(InvalidRowError, match="elements"):
        arrow_values.to_arrow([[1, 2, 3, 4]], t.ArrayType(t.IntType()))
    with pytest.raises(FormatError, match="decode fewer rows"):
        decode_compacted([t.StringType()], Slices.from_list([b"\0\4abcd"]))


def test_rows_beyond_two_gibibytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logical_values, "INT32_MAX", 15)
    with pytest.raises(InvalidRowError, match="larger than 2 GiB"):
        compacted.encode_row([t.StringType()], ["x" * 16])
    with pytest.raises(InvalidRowError, match="larger than 2 GiB"):
        aligned.encode_row([t.StringType()], ["x" * 16])


def test_arrays_without_buffers() -> None:
    """Arrow allows an empty array to have no memory at all."""
    for dtype in (t.IntType(), t.DecimalType(5, 0), t.DecimalType(30, 0), t.BinaryType(3)):
        array = pa.Array.from_buffers(dtype.to_arrow(), 0, [None, None])
        assert len(encode_compacted([dtype], [array])) == 0
        assert len(encode_aligned([dtype], [array])) == 0


def test_short_binaries_are_padded() -> None:
    rows = Slices.from_list([b"\0\1a", b"\1", b"\0\3abc"])
    (array,) = decode_compacted([t.BinaryType(3)], rows)
    assert array.to_pylist() == [b"a\0\0", None, b"abc"]
    with pytest.raises(FormatError, match="row 1: the value is longer than 3 bytes"):
        decode_compacted([t.BinaryType(3)], Slices.from_list([b"\0\1a", b"\0\4abcd"]))


def test_timestamps_are_cut_to_their_unit() -> None:
    """Another writer may keep nanoseconds in a column of microseconds; Arrow has no room for them."""
    row = b"\0\0\xe7\7"  # 0 ms, 999 ns
    (array,) = decode_compacted([t.TimestampType(6)], Slices.from_list([row]))
    assert array == to_arrow([999], t.TimestampType(6)) == pa.array([0], pa.timestamp("us"))
    (array,) = decode_compacted([t.TimestampType(0)], Slices.from_list([b"\0\xe7\7"]))
    assert array == pa.array([0], pa.timestamp("s"))


def test_values_far_into_a_large_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "_INT32_MAX", 10)  # of the buffer, not of one column
    (array,) = decode_compacted([t.BytesType()], Slices.from_list([b"\0\3abc", b"\0\0", b"\0\4defg"]))
    array.validate(full=True)
    assert array.to_pylist() == [b"abc", b"", b"defg"]


def test_timestamp_beyond_arrow() -> None:
    row = b"\0" + b"\xff" * 8 + b"\x7f\0"
    with pytest.raises(FormatError, match=r"row 0: the timestamp is out of the range of timestamp\b"):
        decode_compacted([t.TimestampType(6)], Slices.from_list([row]))


def test_column_shapes() -> None:
    with pytest.raises(InvalidRowError, match="expected 2 columns, got 1"):
        encode_compacted([t.IntType(), t.IntType()], [pa.array([1])])
    with pytest.raises(InvalidRowError, match="different lengths"):
        encode_compacted([t.IntType(), t.IntType()], [pa.array([1]), pa.array([1, 2])])
    with pytest.raises(InvalidRowError, match=r"field 0 .*null in row 1, but the type is NOT NULL"):
        encode_compacted([t.IntType(nullable=False)], [pa.array([1, None])])
    with pytest.raises(InvalidRowError, match=r"field 0 .*element 0 .*NOT NULL"):
        encode_compacted([t.ArrayType(t.IntType(nullable=False))], [pa.array([[None]], pa.list_(pa.int32()))])
