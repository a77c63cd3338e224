# SPDX-License-Identifier: Apache-2.0
"""Filters keep exactly the rows they say."""

from __future__ import annotations

import datetime
import decimal
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import InvalidArgumentError
from fluss.metadata import ColumnRef, Compound, CompoundFunction, Leaf, LeafFunction, Predicate, Schema, col
from fluss.metadata.predicate import LITERALS_MAX

UTC = datetime.timezone.utc

DATA = pa.table(
    {
        "b": pa.array([True, False, None, True]),
        "i8": pa.array([-128, 0, None, 127], pa.int8()),
        "i": pa.array([1, 2, None, 3], pa.int32()),
        "l": pa.array([-(2**63), 2**53 + 1, None, 2**63 - 1], pa.int64()),
        "f": pa.array([0.1, -0.0, None, math.nan], pa.float32()),
        "d": pa.array([0.1, 0.0, None, math.inf], pa.float64()),
        "s": pa.array(["apple", "zebra", None, "äpfel"]),
        "y": pa.array([b"", b"\x00\xff", None, b"ab"], pa.binary()),
        "fb": pa.array([b"aa", b"ab", None, b"zz"], pa.binary(2)),
        "dec": pa.array([Decimal("1.10"), Decimal("-9.99"), None, Decimal("2.00")], pa.decimal128(5, 2)),
        "day": pa.array([0, 19737, None, -1], pa.date32()),
        "t0": pa.array([0, 37800, None, 86399], pa.time32("s")),
        "t6": pa.array([0, 37_800_005_000, None, 86_399_999_000], pa.time64("us")),
        "ts3": pa.array([0, 1_705_314_600_123, None, -1], pa.timestamp("ms")),
        "ts9": pa.array([0, 1_705_314_600_123_456_789, None, -1], pa.timestamp("ns")),
        "ltz": pa.array([0, 1_705_314_600_123_456, None, -1], pa.timestamp("us", tz="UTC")),
        "list": pa.array([[1], [], None, [2]], pa.list_(pa.int32())),
    }
)
SCHEMA = Schema(DATA.schema)


def rows(predicate: Predicate) -> list[int]:
    """The positions of the rows that a predicate keeps."""
    numbered = DATA.append_column("row", pa.array(range(len(DATA))))
    found: list[int] = numbered.filter(predicate.to_arrow_expression(SCHEMA))["row"].to_pylist()
    return found


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (col("b") == True, [0, 3]),  # noqa: E712
        (col("b") != np.bool_(True), [1]),
        (col("b") < True, [1]),
        (col("i") > 1, [1, 3]),
        (col("i") >= 2.5, [3]),
        (col("i") < 2.5, [0, 1]),
        (col("i") == 2.5, []),
        (col("i") != 2.5, [0, 1, 3]),
        (col("i") == 2.0, [1]),
        (col("i") == Decimal("3.00"), [3]),
        (col("i") <= np.int64(2), [0, 1]),
        (col("i") > np.float32(1.5), [1, 3]),
        (col("i") == None, []),  # noqa: E711
        (col("i") != None, []),  # noqa: E711
        (col("i") > math.inf, []),
        (col("i") < math.inf, [0, 1, 3]),
        (col("i") > -math.inf, [0, 1, 3]),
        (col("i") <= Decimal("-Infinity"), []),
        (col("i") == math.nan, []),
        (col("i") != math.nan, [0, 1, 3]),
        (col("i") < math.nan, [0, 1, 3]),
        (col("i") >= math.nan, []),
        (col("i") < Decimal("1E+999999999"), [0, 1, 3]),
        (col("i") >= Decimal("1E-999999999"), [0, 1, 3]),
        (col("i") <= Decimal("-1E-999999999"), []),
        (col("i8") < 1000, [0, 1, 3]),
        (col("i8") >= -129, [0, 1, 3]),
        (col("i8") == 128, []),
        (col("i8") != 128, [0, 1, 3]),
        (col("i8") >= 126.5, [3]),
        (col("l") == 2**53 + 1, [1]),
        (col("l") > 2**64, []),
        (col("l") < -(2**64), []),
        (col("f") == 0.1, [0]),
        (col("f") == 0.0, [1]),
        (col("f") > 10**400, [3]),
        (col("f") > -(10**400), [0, 1, 3]),
        (col("f") <= math.inf, [0, 1]),
        (col("f") == math.nan, [3]),
        (col("f") != math.nan, [0, 1]),
        (col("f") < math.nan, [0, 1]),
        (col("f") <= math.nan, [0, 1, 3]),
        (col("f") > math.nan, []),
        (col("f") >= math.nan, [3]),
        (col("d") > 1e300, [3]),
        (col("s").starts_with("a"), [0]),
        (col("s").ends_with("l"), [3]),
        (col("s").contains("pp"), [0]),
        (col("s").contains("pf"), [3]),
        (col("s").contains("."), []),
        (col("s").starts_with(""), [0, 1, 3]),
        (col("s").starts_with(None), []),  # type: ignore[arg-type]
        (col("y") > bytearray(b"\x00"), [1, 3]),
        (col("fb") == b"ab", [1]),
        (col("fb") > b"a", [0, 1, 3]),
        (col("fb") == b"abc", []),
        (col("fb").is_in([b"aa", b"a"]), [0]),
        (col("dec") == Decimal("1.1"), [0]),
        (col("dec") == 1.1, [0]),
        (col("dec") >= Decimal("NaN"), []),
        (col("t0") == datetime.time(10, 30), [1]),
        (col("t0") >= datetime.time(10, 30, 0, 1), [3]),
        (col("t6") == datetime.time(10, 30, 0, 5000), [1]),
        (col("t6") == datetime.time(10, 30, 0, 5001), []),
        (col("t6") > datetime.time(10, 30, 0, 4001), [1, 3]),
        (col("ts3") == datetime.datetime(2024, 1, 15, 10, 30, 0, 123000), [1]),
        (col("ts3") == datetime.datetime(2024, 1, 15, 10, 30, 0, 123001), []),
        (col("ts3") > datetime.datetime(2024, 1, 15, 10, 30, 0, 122999), [1]),
        (col("ts3") < datetime.datetime(1970, 1, 1), [3]),
        (col("ts9") > datetime.datetime(2024, 1, 15, 10, 30, 0, 123456), [1]),
        (col("ts9") < datetime.datetime(9999, 1, 1), [0, 1, 3]),
        (col("ts9") < datetime.datetime(1, 1, 1), []),
        (col("ltz") == datetime.datetime(2024, 1, 15, 10, 30, 0, 123456, UTC), [1]),
        (
            col("ltz")
            == datetime.datetime(2024, 1, 15, 12, 30, 0, 123456, datetime.timezone(datetime.timedelta(hours=2))),
            [1],
        ),
        (col("list").is_null(), [2]),
        (col("i").is_in([1, 3, 3, 2.5, 10**30]), [0, 3]),
        (col("i").not_in([]), [0, 1, 3]),
        (col("f").is_in([0.1, 0.0, math.nan]), [0, 1, 3]),
        (col("f").not_in([0.1, math.nan, float("nan")]), [1]),
        (col("f").is_in([0.0]), [1]),
        (col("d").is_in([-0.0]), [1]),
        (col("f").is_in([]), []),
        (col("s").is_in(["apple", "pear"]), [0]),
        (col("dec").is_in([2, Decimal("1.10")]), [0, 3]),
        (col("ts9").is_in([datetime.datetime(1970, 1, 1)]), [0]),
        (col("t0").is_in([datetime.time(10, 30), datetime.time(1, 1, 1, 1)]), [1]),
        (~(col("i") == None), []),  # noqa: E711
        (~col("i").is_in([1, None]), []),
        (~col("i").not_in([1, None]), [0]),
        (~col("s").starts_with("a"), [1, 3]),
        (~col("s").starts_with(None), []),  # type: ignore[arg-type]
        (~~col("s").starts_with("a"), [0]),
        (~((col("i") == 1) | (col("b") == False)), [3]),  # noqa: E712
        (~((col("i") == 1) & (col("b") == True)), [1, 3]),  # noqa: E712
        (~(~(col("i") == 1) & col("i").is_not_null()), [0, 2]),
        (col("i").between(None, 3), []),
        (~col("i").between(None, 2), [3]),
        (col("s").like("%p_e%"), [0, 3]),
        (col("s").like("%"), [0, 1, 3]),
        (~col("s").like("%"), []),
        (col("s").like("!apple", escape="a"), []),
        (col("s").like("!_pple", escape="!"), []),
        (col("s").like("!a_ple", escape="!"), [0]),
        (col("s").like(None), []),  # type: ignore[arg-type]
        (~col("s").like(None), []),  # type: ignore[arg-type]
        (col("ts9") == np.datetime64("2024-01-15T10:30:00.123456789"), [1]),
        (col("ltz") > np.datetime64("1970-01-01"), [1]),
        (col("ltz") == np.datetime64("NaT", "ns"), []),
        (col("day") >= np.datetime64("2024-01-14T12:00"), [1]),
        ((col("i") == 1).or_(col("i").is_null()), [0, 2]),
        ((col("i") == 1).and_((col("i") == 2) | (col("b") == True)), [0]),  # noqa: E712
    ],
    ids=repr,
)
def test_rows_kept(predicate: Predicate, expected: list[int]) -> None:
    assert rows(predicate) == expected
    resolved = predicate.resolve(SCHEMA)
    assert set(resolved.columns()) == set(predicate.columns())


def test_names_of_comparisons() -> None:
    column = col("i")
    for operator_form, named in (
        (column == 1, column.equal(1)),
        (column != 1, column.not_equal(1)),
        (column < 1, column.less_than(1)),
        (column <= 1, column.less_or_equal(1)),
        (column > 1, column.greater_than(1)),
        (column >= 1, column.greater_or_equal(1)),
    ):
        assert operator_form == named
        assert hash(operator_form) == hash(named)
    assert (column > 1) == column.greater_than(1)
    assert column.name == "i"
    assert repr(column) == "ColumnRef(i)"
    assert isinstance(column, ColumnRef)


def test_tree() -> None:
    a, b, c = col("a") == 1, col("b") == 2, col("c") == 3
    assert a & b & c == Compound(CompoundFunction.AND, (a, b, c))
    assert a & (b & c) == Compound(CompoundFunction.AND, (a, b, c))
    assert (a | b) & c == Compound(CompoundFunction.AND, (Compound(CompoundFunction.OR, (a, b)), c))
    assert ((a | b) & c).columns() == ["a", "b", "c"]
    assert list((a & b).leaves()) == [a, b]


def test_resolved_literals_are_logical_values() -> None:
    def literal(predicate: Predicate) -> Any:
        resolved = predicate.resolve(SCHEMA)
        assert isinstance(resolved, Leaf)
        return resolved.literals[0]

    assert literal(col("day") == datetime.date(1970, 1, 2)) == 1
    assert literal(col("t0") == datetime.time(0, 0, 1)) == 1000
    assert literal(col("t6") == datetime.time(0, 0, 1)) == 1000
    assert literal(col("ts3") == datetime.datetime(1970, 1, 1, 0, 0, 1)) == 10**9
    assert literal(col("ltz") == datetime.datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC)) == 10**9
    assert str(literal(col("dec") == -2)) == "-2.00"
    assert literal(col("f") == 0.1) == float(np.float32(0.1))
    assert (col("i") > 2.5).resolve(SCHEMA) == Leaf(LeafFunction.GREATER_OR_EQUAL, "i", (3,))
    assert (col("i") < 2.5).resolve(SCHEMA) == Leaf(LeafFunction.LESS_OR_EQUAL, "i", (2,))
    assert (col("i") < 10**30).resolve(SCHEMA) == Leaf(LeafFunction.IS_NOT_NULL, "i")


def test_pandas_timestamps_keep_nanoseconds() -> None:
    pandas = pytest.importorskip("pandas")
    assert rows(col("ts9") == pandas.Timestamp(1_705_314_600_123_456_789)) == [1]
    assert rows(col("ts9") == pandas.Timestamp(1_705_314_600_123_456_788)) == []


@pytest.mark.parametrize(
    ("predicate", "text"),
    [
        (col("x") == 1, "no column 'x'"),
        (col("i") == "1", "a number"),
        (col("i") == True, "a number"),  # noqa: E712
        (col("dec") == "1", "a number"),
        (col("d") == "1", "a number"),
        (col("d") == False, "a number"),  # noqa: E712
        (col("b") == 1, "true or false"),
        (col("s") == 1, "a string"),
        (col("s") == b"a", "a string"),
        (col("y") == "a", "bytes"),
        (col("day") == "soon", "'soon' is not a date in ISO form"),
        (col("day") == datetime.datetime(2024, 1, 15), "datetime.date"),
        (col("t0") == 5, "datetime.time"),
        (col("t0") == datetime.time(1, tzinfo=UTC), "without a zone"),
        (col("ts3") == datetime.datetime(2024, 1, 1, tzinfo=UTC), "without a zone"),
        (col("ts3") == datetime.date(2024, 1, 1), "datetime.datetime"),
        (col("ltz") == datetime.datetime(2024, 1, 1), "with a zone"),
        (col("list") == [1], "is_null and is_not_null only"),
        (col("i").starts_with("1"), "string column"),
        (col("s").starts_with(1), "string column"),  # type: ignore[arg-type]
        (col("i").is_in(["a"]), "a number"),
        (col("i").like("1%"), "string column"),
        (~col("s").like(1), "string column"),  # type: ignore[arg-type]
        (~(col("i") == "1"), "a number"),
        (col("ts3") == np.datetime64("2024"), "unit from days"),
    ],
    ids=repr,
)
def test_literals_that_do_not_fit(predicate: Predicate, text: str) -> None:
    with pytest.raises(InvalidArgumentError, match=text):
        predicate.to_arrow_expression(SCHEMA)


def test_misuse() -> None:
    for thing in (col("a"), col("a") == 1):
        with pytest.raises(TypeError, match="neither true nor false"):
            bool(thing)
    with pytest.raises(TypeError):
        hash(col("a"))
    with pytest.raises(TypeError):
        (col("a") == 1) & 5  # type: ignore[operator]
    with pytest.raises(TypeError):
        (col("a") == 1) | 5  # type: ignore[operator]
    for build in (
        lambda: col(""),
        lambda: col(5),  # type: ignore[arg-type]
        lambda: col("a") == col("b"),
        lambda: col("a") > (col("b") == 1),
        lambda: (col("a") == 1).and_(5),  # type: ignore[arg-type]
        lambda: col("a").is_in("abc"),
        lambda: col("a").is_in(range(LITERALS_MAX + 1)),
        lambda: Leaf(LeafFunction.EQUAL, "a"),
        lambda: Leaf(LeafFunction.IS_NULL, "a", (1,)),
        lambda: Predicate().leaves(),
        lambda: Predicate().resolve(SCHEMA),
        lambda: Predicate().negate(),
        lambda: col("a").like("x", "yz"),
        lambda: col("a").like("xy", "y"),
    ):
        with pytest.raises(InvalidArgumentError):
            build()


def test_long_chains_and_lists() -> None:
    predicate = col("i") == 0
    for number in range(1, 3000):
        predicate = predicate | (col("i") == number)
    assert rows(predicate) == [0, 1, 3]
    assert rows(col("i").is_in(range(LITERALS_MAX))) == [0, 1, 3]
    assert rows(col("d").is_in(float(number) for number in range(1000))) == [1]


COMPARISONS: list[tuple[Callable[[ColumnRef, Any], Predicate], Callable[[Any, Any], bool]]] = [
    (ColumnRef.equal, operator.eq),
    (ColumnRef.not_equal, operator.ne),
    (ColumnRef.less_than, operator.lt),
    (ColumnRef.less_or_equal, operator.le),
    (ColumnRef.greater_than, operator.gt),
    (ColumnRef.greater_or_equal, operator.ge),
]

numbers = (
    st.integers(-300, 300)
    | st.integers()
    | st.decimals(-500, 500, places=3)
    | st.fractions(-200, 200, max_denominator=8).map(float)
)


def _exact(number: Any) -> Fraction:
    return Fraction(Decimal(repr(number))) if isinstance(number, float) else Fraction(number)


@settings(max_examples=200)
@given(st.lists(st.none() | st.integers(-128, 127), max_size=6), numbers, st.sampled_from(COMPARISONS))
def test_integers_compare_exactly(values: list[int | None], literal: Any, comparison: Any) -> None:
    build, compare = comparison
    data = pa.table({"x": pa.array(values, pa.int8())})
    kept = data.filter(build(col("x"), literal).to_arrow_expression(Schema(data.schema)))["x"].to_pylist()
    assert kept == [value for value in values if value is not None and compare(value, _exact(literal))]


decimals = st.decimals(Decimal("-999.99"), Decimal("999.99"), places=2)


@settings(max_examples=200)
@given(st.lists(st.none() | decimals, max_size=6), numbers, st.sampled_from(COMPARISONS))
def test_decimals_compare_exactly(values: list[Decimal | None], literal: Any, comparison: Any) -> None:
    build, compare = comparison
    data = pa.table({"x": pa.array(values, pa.decimal128(5, 2))})
    kept = data.filter(build(col("x"), literal).to_arrow_expression(Schema(data.schema)))["x"].to_pylist()
    with decimal.localcontext():
        expected = [value for value in values if value is not None and compare(Fraction(value), _exact(literal))]
    assert kept == expected


moments = st.datetimes(datetime.datetime(1969, 12, 31, 23, 59, 59), datetime.datetime(1970, 1, 1, 0, 0, 1))


@settings(max_examples=200)
@given(
    st.lists(st.none() | moments, max_size=6), moments, st.sampled_from(COMPARISONS), st.sampled_from(["s", "ms", "us"])
)
def test_timestamps_compare_exactly(values: list[Any], literal: Any, comparison: Any, unit: str) -> None:
    build, compare = comparison
    data = pa.table({"x": pa.array(values, pa.timestamp("us")).cast(pa.timestamp(unit), safe=False)})
    stored = data["x"].to_pylist()
    kept = data.filter(build(col("x"), literal).to_arrow_expression(Schema(data.schema)))["x"].to_pylist()
    assert kept == [value for value in stored if value is not None and compare(value, literal)]
