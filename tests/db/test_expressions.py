# SPDX-License-Identifier: Apache-2.0
"""Arrow expressions as predicates: nothing that matches is lost, and what is called exact is."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.db.expressions import fields_of, translate
from fluss.db.schemas import source_of
from fluss.metadata import Predicate, Schema, col

UTC = datetime.timezone.utc
NEW_YEAR = datetime.datetime(2024, 1, 1)
SCHEMA = source_of(
    "i int, l bigint, x double, f float, s string, b boolean, d decimal(5,2), day date, at timestamp(6), "
    "ltz timestamp_ltz(6), y bytes, t time(3)",
    None,
).schema
N, X, S, B = (pc.field(name) for name in ("i", "x", "s", "b"))
FIELD = pc.field


@pytest.mark.parametrize(
    ("expression", "predicate", "exact"),
    [
        (N == 3, col("i") == 3, True),
        (pc.scalar(3) < N, col("i") > 3, True),
        (N != 3, col("i") != 3, True),
        ((N > 3) & (S == "a"), (col("i") > 3) & (col("s") == "a"), True),
        ((N > 3) | (S == "a"), (col("i") > 3) | (col("s") == "a"), True),
        (~(N > 3), ~(col("i") > 3), True),
        (N.is_null(), col("i").is_null(), True),
        (N.is_valid(), col("i").is_not_null(), True),
        (~B, ~(col("b") == True), True),  # noqa: E712
        (B, col("b") == True, True),  # noqa: E712
        (N.isin([1, 2]), col("i").is_in([1, 2]), False),
        (N.isin([1, None]), col("i").is_in([1]) | col("i").is_null(), False),
        (pc.if_else(N.is_valid(), N.isin([1, 2]), pa.scalar(None, pa.bool_())), col("i").is_in([1, 2]), True),
        (X > 1, col("x") > 1, False),
        (pc.field("f") < 0.5, col("f") < 0.5, False),
        (pc.starts_with(S, "a"), col("s").starts_with("a"), True),
        (pc.ends_with(S, "a"), col("s").ends_with("a"), True),
        (pc.match_substring(S, "a"), col("s").contains("a"), True),
        (FIELD("d") > pa.scalar(Decimal("1.5")), col("d") > Decimal("1.5"), True),
        (FIELD("day") == datetime.date(2024, 1, 1), col("day") == datetime.date(2024, 1, 1), True),
        (FIELD("at") > NEW_YEAR, col("at") > np.datetime64("2024-01-01", "us"), True),
        (FIELD("ltz") > NEW_YEAR.replace(tzinfo=UTC), col("ltz") > np.datetime64("2024-01-01", "us"), True),
        (FIELD("y") == b"a", col("y") == b"a", True),
        (FIELD("t") < datetime.time(10), col("t") < datetime.time(10), True),
        # What cannot be said of both sides of an AND is said of one.
        ((N > 3) & (N + 1 == 5), col("i") > 3, False),
        ((N + 1 == 5) & (N > 3), col("i") > 3, False),
    ],
    ids=str,
)
def test_what_is_translated(expression: pc.Expression, predicate: Predicate, exact: bool) -> None:
    found = translate(expression, SCHEMA)
    assert found.predicate == predicate
    assert found.exact is exact


@pytest.mark.parametrize(
    "expression",
    [
        N + 1 == 5,
        (N > 3) | (N + 1 == 5),
        ~N.isin([1, 2]),
        ~(X > 1),
        ~((N > 3) & (X > 1)),
        N == 2.0,  # Arrow compares as doubles, which rounds large integers
        FIELD("l") == float(2**53),
        FIELD("f") == 0.1,  # Arrow compares 0.1 with the float next to it
        N.is_null(nan_is_null=True),
        pc.starts_with(S, "a", ignore_case=True),
        FIELD("nope") == 1,
        FIELD("at") > datetime.date(2024, 1, 1),
        FIELD("day") < pa.scalar(2**31 - 1, pa.date32()),
        FIELD("l") == N,
        N.cast(pa.int64()) == 3,
        pc.if_else(N.is_valid(), N.isin([1]), False),
        N.isin(pa.array(range(10_001))),
    ],
    ids=lambda value: str(value)[:60],
)
def test_what_is_left_to_arrow(expression: pc.Expression) -> None:
    assert translate(expression, SCHEMA) is None


def test_expressions_that_mean_sql() -> None:
    """polars writes `~(x > 1)` and means NaN to be greater."""
    found = translate(~(X > 1) & ~N.isin([1]), SCHEMA, as_sql=True)
    assert found.exact
    assert found.predicate == ~(col("x") > 1) & ~col("i").is_in([1])


def test_arrow_compares_with_nan_as_ieee_does() -> None:
    table = pa.table({"x": [None, 1.0, math.nan]})
    for expression, kept in [(math.nan != X, [1, 2]), (math.nan == X, []), (math.nan > X, []), (math.nan <= X, [])]:
        found = translate(expression, SCHEMA)
        assert not found.exact
        numbered = table.append_column("row", pa.array(range(3)))
        assert numbered.filter(expression)["row"].to_pylist() == kept
        assert numbered.filter(found.predicate.to_arrow_expression(SCHEMA))["row"].to_pylist() == kept


def test_fields() -> None:
    assert sorted(fields_of((N + 1 == 5) | pc.starts_with(S, "a")) or []) == ["i", "s"]
    assert fields_of(pc.scalar(True)) == []


def test_forms_that_are_not_known() -> None:
    class Foreign:
        def __reduce__(self) -> Any:
            return None, (b"no expression",)

    assert translate(Foreign(), SCHEMA) is None
    assert fields_of(Foreign()) is None
    odd = Schema(pa.schema([("a'b\\é", pa.int32()), ("i", pa.int32())]))
    found = translate((FIELD("a'b\\é") == 1) & (N == 2), odd)
    assert found.predicate == (col("a'b\\é") == 1) & (col("i") == 2)
    forged = "i'\nliteral: '0'\nend: 'equal"
    assert translate(FIELD(forged) == 1, Schema(pa.schema([(forged, pa.int32()), ("i", pa.int32())]))) is None
    assert fields_of(FIELD("a\nb") == 1) is None
    deep = N == 1
    for number in range(300):
        deep = deep & (number < N) if number % 2 else deep | (number < N)
    assert translate(deep, SCHEMA) is None


numbers = st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.0, math.nan, math.inf])
texts = st.sampled_from(["", "a", "ab", "b"])
leaves = st.one_of(
    st.integers(0, 3).flatmap(
        lambda n: st.sampled_from([n == N, n < N, n >= N, N.isin([n]), N.isin([n, None]), n == N + 1, n != N])
    ),
    numbers.flatmap(lambda x: st.sampled_from([x == X, x > X, x <= X, x != X, X.isin([x]), FIELD("f") > x])),
    texts.flatmap(lambda s: st.sampled_from([s == S, s > S, pc.starts_with(S, s), S.isin([s, "a"])])),
    st.sampled_from([B, N.is_null(), S.is_valid(), X.is_null(nan_is_null=True), pc.scalar(True), pc.scalar(False)]),
    st.just(pc.if_else(N.is_valid(), N.isin([1, 2]), pa.scalar(None, pa.bool_()))),
)
expressions = st.recursive(
    leaves,
    lambda inner: (
        st.tuples(inner, inner).map(lambda pair: pair[0] & pair[1])
        | st.tuples(inner, inner).map(lambda pair: pair[0] | pair[1])
        | inner.map(lambda one: ~one)
    ),
    max_leaves=5,
)
values = {"i": st.integers(0, 3), "x": numbers, "f": numbers, "s": texts, "b": st.booleans()}
rows = st.lists(st.fixed_dictionaries({name: st.none() | value for name, value in values.items()}), max_size=8)


@settings(max_examples=200, deadline=None)
@given(rows, expressions)
def test_nothing_that_matches_is_lost(found: list[dict[str, Any]], expression: pc.Expression) -> None:
    table = pa.Table.from_pylist(found, schema=SCHEMA.arrow_schema).append_column("row", pa.array(range(len(found))))
    translated = translate(expression, SCHEMA)
    if translated is None:
        return
    wanted = table.filter(expression)["row"].to_pylist()
    kept = table.filter(translated.predicate.to_arrow_expression(SCHEMA))["row"].to_pylist()
    assert set(wanted) <= set(kept)
    assert kept == wanted or not translated.exact
