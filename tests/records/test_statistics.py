# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.records import vectors
from tests.records.tables import ALL_TYPES, FLAT, ID_NAME, NESTED, ROW_A, ROW_B, tables, to_batch

from fluss.errors import FormatError, InvalidArgumentError, InvalidConfigError
from fluss.metadata import (
    Column,
    Compound,
    CompoundFunction,
    Leaf,
    LeafFunction,
    Predicate,
    Schema,
    col,
    statistics_columns,
)
from fluss.metadata import types as t
from fluss.records import LogBatch, Statistics, build_statistics, may_match
from fluss.records.statistics import ColumnStatistics

ID_NAME_STATISTICS = bytes(LogBatch(vectors.V1_STATISTICS).statistics_view or b"")


def parsed(data: bytes, schema: Schema) -> Statistics:
    statistics = Statistics.parse(data, schema)
    assert statistics is not None
    return statistics


def test_statistics_of_other_implementations_byte_for_byte() -> None:
    assert build_statistics(to_batch(ID_NAME, [(1, "a"), (2, "bb")]), ID_NAME, (0, 1)) == ID_NAME_STATISTICS
    assert LogBatch(vectors.V1_STATISTICS_64).statistics_view == ID_NAME_STATISTICS
    statistics = parsed(ID_NAME_STATISTICS, ID_NAME)
    assert statistics.column("id") == (0, 1, 2)
    assert statistics.column("name") == (0, "a", "bb")
    assert statistics.column("nope") is None


def test_columns_of_the_table_property() -> None:
    assert statistics_columns(ALL_TYPES, ["*"]) == tuple(i for i in range(19) if i not in (9, 10))
    assert statistics_columns(NESTED, ["*"]) == (0,)
    with pytest.raises(InvalidConfigError, match=r"'numbers' has type array.*, which has no statistics"):
        statistics_columns(NESTED, ["id", "numbers"])


def test_all_types() -> None:
    columns = statistics_columns(ALL_TYPES, ["*"])
    statistics = parsed(build_statistics(to_batch(ALL_TYPES, [ROW_A, ROW_B]), ALL_TYPES, columns), ALL_TYPES)
    for index in columns:
        known = ALL_TYPES.columns[index].data_type != t.CharType(5)
        value = ROW_A[index] if known else None
        assert statistics.columns[index] == (1, value, value)


@settings(deadline=None)
@given(data=st.data())
def test_least_and_greatest(data: st.DataObject) -> None:
    schema, rows = data.draw(tables(nested=False, rows_min=1))
    columns = statistics_columns(schema, ["*"])
    encoded = build_statistics(to_batch(schema, rows), schema, columns)
    if not columns:
        assert encoded == b""
        return
    statistics = parsed(encoded, schema)
    assert set(statistics.columns) == set(columns)
    for index in columns:
        values = [row[index] for row in rows if row[index] is not None]
        known = values and not isinstance(schema.columns[index].data_type, t.CharType)
        expected = (min(values), max(values)) if known else (None, None)
        assert statistics.columns[index] == (len(rows) - len(values), *expected)


def test_strings_compare_by_their_bytes() -> None:
    schema = Schema.of([Column("s", t.StringType())])
    values = ["z", "\uffff", "\U00010000", "é"]  # UTF-16 would put the third before the second
    statistics = parsed(build_statistics(to_batch(schema, [(v,) for v in values]), schema, (0,)), schema)
    assert statistics.column("s") == (0, "z", "\U00010000")


@pytest.mark.parametrize("data_type", [t.FloatType(), t.DoubleType()])
def test_floats_that_do_not_order(data_type: Any) -> None:
    schema = Schema.of([Column("f", data_type)])

    def of(*values: float | None) -> Any:
        return parsed(build_statistics(to_batch(schema, [(v,) for v in values]), schema, (0,)), schema).column("f")

    assert of(1.0, math.nan, None) == (1, None, None)
    assert of(-math.inf, 2.5) == (0, -math.inf, 2.5)
    zeros = of(0.0, -0.0)
    assert (math.copysign(1, zeros.least), math.copysign(1, zeros.greatest)) == (-1, 1)
    # A greatest value of NaN, as Java writes it, says nothing.
    kind = "<f" if isinstance(data_type, t.FloatType) else "<d"
    good = build_statistics(to_batch(schema, [(1.0,), (2.0,)]), schema, (0,))
    data = good.replace(struct.pack(kind, 2.0), struct.pack(kind, math.nan))
    assert parsed(data, schema).column("f") == (0, 1.0, None)


def test_times_that_rows_do_not_hold() -> None:
    schema = Schema.of([Column("t", t.TimeType(9))])
    batch = pa.record_batch([pa.array([1_500_000], pa.time64("ns"))], schema=schema.arrow_schema)
    assert parsed(build_statistics(batch, schema, (0,)), schema).column("t") == (0, None, None)
    batch = pa.record_batch([pa.array([2_000_000], pa.time64("ns"))], schema=schema.arrow_schema)
    assert parsed(build_statistics(batch, schema, (0,)), schema).column("t") == (0, 2, 2)


def test_arguments_that_make_no_sense() -> None:
    batch = to_batch(ID_NAME, [(1, "a")])
    assert build_statistics(batch, ID_NAME, ()) == b""
    with pytest.raises(InvalidArgumentError, match="2 columns, the table 5"):
        build_statistics(batch, NESTED, (0,))
    with pytest.raises(InvalidArgumentError, match=r"'numbers'.* cannot have statistics"):
        build_statistics(to_batch(NESTED, []), NESTED, (1,))


def test_versions_that_are_not_known_count_as_absent() -> None:
    for data in (b"", None, b"\x02" + ID_NAME_STATISTICS[1:], b"\x01\x00\x00", b"\x01\xff\xff"):
        assert Statistics.parse(data, ID_NAME) is None


def test_rows_that_are_left_out() -> None:
    head = struct.pack("<bhhi", 1, 1, 0, 3)
    assert parsed(head + bytes(8), ID_NAME).column("id") == (3, None, None)


@pytest.mark.parametrize(
    ("position", "fmt", "value", "problem"),
    [
        (1, "<h", 20, "column count at byte 1"),
        (3, "<h", 2, r"column index at byte 3: 2 is outside 0\.\.1"),
        (3, "<h", -1, "column index at byte 3: -1 is outside"),
        (15, "<i", 2**30, "min row size at byte 15"),
        (15, "<i", -1, "min row size at byte 15"),
        (15, "<i", 23, "min row at byte 19"),
        (43, "<i", 0, "end at byte 47: 24 bytes are left"),
        (43, "<i", 25, "max row size at byte 43"),
    ],
)
def test_bytes_that_cannot_be(position: int, fmt: str, value: int, problem: str) -> None:
    data = bytearray(ID_NAME_STATISTICS)
    struct.pack_into(fmt, data, position, value)
    with pytest.raises(FormatError, match=problem):
        Statistics.parse(data, ID_NAME)


def test_columns_without_statistics_and_cut_bytes() -> None:
    data = struct.pack("<bhhi", 1, 1, 1, 0) + bytes(8)
    with pytest.raises(FormatError, match="has no statistics"):
        Statistics.parse(data, NESTED)
    for cut in range(1, len(ID_NAME_STATISTICS)):
        with pytest.raises(FormatError):
            Statistics.parse(ID_NAME_STATISTICS[:cut], ID_NAME)


def test_decimals_and_booleans() -> None:
    types = [data_type for data_type, _ in FLAT]
    assert t.BooleanType() in types
    schema = Schema.of([Column("b", t.BooleanType()), Column("d", types[12])])
    rows = [(True, Decimal("-1.00000")), (False, Decimal("99999999999999999999.5"))]
    statistics = parsed(build_statistics(to_batch(schema, rows), schema, (0, 1)), schema)
    assert statistics.column("b") == (0, False, True)
    assert statistics.column("d") == (0, rows[0][1], rows[1][1])


COLUMNS = [Column("n", t.IntType()), Column("s", t.StringType()), Column("d", t.DoubleType())]
SCHEMA = Schema.of([*COLUMNS, Column("day", t.DateType()), Column("other", t.IntType())])
ROWS: list[tuple[Any, ...]] = [(10, "bar", 1.5, 19_000, 1), (20, "foo", 2.5, 19_010, 2), (None, None, None, None, 3)]


def statistics_of(rows: list[tuple[Any, ...]], schema: Schema = SCHEMA, setting: str = "n,s,d,day") -> Statistics:
    columns = statistics_columns(schema, setting.split(","))
    return parsed(build_statistics(to_batch(schema, rows), schema, columns), schema)


STATISTICS = statistics_of(ROWS)


@pytest.mark.parametrize(
    ("predicate", "expected"),
    [
        (col("n") == 10, True),
        (col("n") == 15, True),
        (col("n") == 9, False),
        (col("n") == 21, False),
        (col("n") != 10, True),
        (col("n") < 10, False),
        (col("n") < 11, True),
        (col("n") <= 9, False),
        (col("n") <= 10, True),
        (col("n") > 20, False),
        (col("n") > 19, True),
        (col("n") >= 21, False),
        (col("n") >= 20, True),
        (col("n").is_null(), True),
        (col("n").is_not_null(), True),
        (col("n").is_in([1, 2, 15]), True),
        (col("n").is_in([1, 2, 30]), False),
        (col("n").is_in([]), False),
        (col("n").is_in([None]), False),
        (col("n").not_in([10, 20]), True),
        (col("s").starts_with("b"), True),
        (col("s").starts_with("e"), True),
        (col("s").starts_with("a"), False),
        (col("s").starts_with("g"), False),
        (col("s").starts_with("foot"), False),
        (col("s").starts_with(""), True),
        (col("s").contains("zzz"), True),
        (col("s").ends_with("zzz"), True),
        (col("d") > 2.5, False),
        (col("d") >= 2.5, True),
        (col("day") < datetime.date(2020, 1, 1), False),
        (col("day") > datetime.date(2022, 1, 1), True),
        (col("other") == 99, True),
        ((col("n") == 9) & (col("s") == "bar"), False),
        ((col("n") == 9) | (col("s") == "bar"), True),
        ((col("n") == 9) | (col("s") == "a"), False),
        ((col("n") == 12) & (col("s") == "c"), True),
        (col("n") == None, False),  # noqa: E711
    ],
)
def test_what_may_match(predicate: Predicate, expected: bool) -> None:
    assert may_match(predicate.resolve(SCHEMA), STATISTICS, 3) is expected


def test_nulls() -> None:
    full = statistics_of([(1, "a", 1.0, 1, 1)])
    assert not may_match(col("n").is_null().resolve(SCHEMA), full, 1)
    nothing = statistics_of([(None, None, None, None, 1)] * 2)
    assert not may_match(col("n").is_not_null().resolve(SCHEMA), nothing, 2)
    assert may_match(col("n").is_null().resolve(SCHEMA), nothing, 2)
    for predicate in (col("n") == 1, col("n") != 1, col("n").not_in([1]), col("s").contains("a")):
        assert not may_match(predicate.resolve(SCHEMA), nothing, 2)


def test_one_value_only() -> None:
    same = statistics_of([(7, "x", 1.0, 1, 1)] * 2)
    assert not may_match((col("n") != 7).resolve(SCHEMA), same, 2)
    assert may_match((col("n") != 8).resolve(SCHEMA), same, 2)
    assert not may_match(col("n").not_in([1, 7]).resolve(SCHEMA), same, 2)
    assert may_match(col("n").not_in([1]).resolve(SCHEMA), same, 2)


def test_what_is_not_known_is_kept() -> None:
    question = Leaf(LeafFunction.EQUAL, "n", (99,))
    assert may_match(question, None, 3)
    assert not may_match(question, STATISTICS, 0)
    assert may_match(Leaf(LeafFunction.EQUAL, "nope", (99,)), STATISTICS, 3)
    assert may_match(Leaf(LeafFunction.EQUAL, "nope", (99,)), STATISTICS, 3, SCHEMA)
    for nulls in (-1, 4):
        broken = Statistics(SCHEMA, {0: ColumnStatistics(nulls, 1, 2)})
        assert may_match(question, broken, 3)
    assert may_match(question, Statistics(SCHEMA, {0: ColumnStatistics(0, None, 2)}), 3)
    assert may_match(Leaf(LeafFunction.EQUAL, "n", (None,)), STATISTICS, 3)
    assert may_match(Leaf(LeafFunction.EQUAL, "n", ("text",)), STATISTICS, 3)
    assert may_match(Leaf(LeafFunction.STARTS_WITH, "n", ("text",)), STATISTICS, 3)
    assert may_match(Predicate(), STATISTICS, 3)
    assert may_match(Compound(CompoundFunction.OR, ()), STATISTICS, 3)


def test_deep_trees_are_kept_rather_than_followed() -> None:
    never: Predicate = Leaf(LeafFunction.EQUAL, "n", (99,))
    shallow = deep = never
    for _ in range(30):
        shallow = Compound(CompoundFunction.AND, (shallow,))
    for _ in range(50_000):
        deep = Compound(CompoundFunction.AND, (deep,))
    assert not may_match(shallow, STATISTICS, 3)
    assert may_match(deep, STATISTICS, 3)


def test_filters_of_a_newer_schema() -> None:
    newer = Schema.of(
        [
            Column("renamed", t.IntType(), column_id=0),
            Column("n", t.StringType(), column_id=1),
            Column("added", t.IntType(), column_id=50),
        ]
    )
    assert not may_match((col("renamed") > 20).resolve(newer), STATISTICS, 3, newer)
    assert may_match((col("n") == "c").resolve(newer), STATISTICS, 3, newer)
    assert not may_match((col("n") == "z").resolve(newer), STATISTICS, 3, newer)
    # A column that the batch does not know is null in all its rows.
    assert not may_match((col("added") == 1).resolve(newer), STATISTICS, 3, newer)
    assert may_match(col("added").is_null().resolve(newer), STATISTICS, 3, newer)


_numbers = st.integers(-5, 5)
_texts = st.text("ab", max_size=3)
_floats = st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.5, float("nan"), float("inf")])


@st.composite
def predicates(draw: st.DrawFn, depth: int = 2) -> Predicate:
    if depth and draw(st.booleans()):
        left, right = draw(predicates(depth - 1)), draw(predicates(depth - 1))
        return left & right if draw(st.booleans()) else left | right
    name, values = draw(st.sampled_from([("n", _numbers), ("s", _texts), ("d", _floats)]))
    function = draw(st.sampled_from(list(LeafFunction)))
    if function in (LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL):
        return Leaf(function, name)
    if function in (LeafFunction.STARTS_WITH, LeafFunction.CONTAINS, LeafFunction.ENDS_WITH):
        return Leaf(function, "s", (draw(_texts),))
    if function in (LeafFunction.IN, LeafFunction.NOT_IN):
        return Leaf(function, name, tuple(draw(st.lists(values, min_size=1, max_size=3))))
    return Leaf(function, name, (draw(values),))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.none() | _numbers, st.none() | _texts, st.none() | _floats), min_size=1, max_size=6),
    predicates(),
)
def test_no_batch_with_a_matching_row_is_skipped(rows: list[tuple[Any, ...]], predicate: Predicate) -> None:
    schema = Schema.of(COLUMNS)
    batch = to_batch(schema, rows)
    matching = pa.Table.from_batches([batch]).filter(predicate.to_arrow_expression(schema)).num_rows
    if matching:
        assert may_match(predicate.resolve(schema), statistics_of(rows, schema, "*"), len(rows))
