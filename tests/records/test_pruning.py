# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.records.tables import to_batch

from fluss.metadata import (
    Column,
    Compound,
    CompoundFunction,
    DateType,
    DoubleType,
    IntType,
    Leaf,
    LeafFunction,
    Predicate,
    Schema,
    StringType,
    col,
    statistics_columns,
)
from fluss.records import Statistics, build_statistics, may_match
from fluss.records.statistics import ColumnStatistics

SCHEMA = Schema.of(
    [
        Column("n", IntType()),
        Column("s", StringType()),
        Column("d", DoubleType()),
        Column("day", DateType()),
        Column("other", IntType()),
    ]
)
ROWS: list[tuple[Any, ...]] = [(10, "bar", 1.5, 19_000, 1), (20, "foo", 2.5, 19_010, 2), (None, None, None, None, 3)]


def statistics_of(rows: list[tuple[Any, ...]], schema: Schema = SCHEMA, setting: str = "n,s,d,day") -> Statistics:
    columns = statistics_columns(schema, setting.split(","))
    statistics = Statistics.parse(build_statistics(to_batch(schema, rows), schema, columns), schema)
    assert statistics is not None
    return statistics


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
            Column("renamed", IntType(), column_id=0),
            Column("n", StringType(), column_id=1),
            Column("added", IntType(), column_id=50),
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
    schema = Schema.of([Column("n", IntType()), Column("s", StringType()), Column("d", DoubleType())])
    batch = to_batch(schema, rows)
    matching = pa.Table.from_batches([batch]).filter(predicate.to_arrow_expression(schema)).num_rows
    if matching:
        assert may_match(predicate.resolve(schema), statistics_of(rows, schema, "*"), len(rows))
