# SPDX-License-Identifier: Apache-2.0
"""What is used of a filter before rows are read never holds back a row that matches."""

from __future__ import annotations

import datetime
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.metadata import (
    Leaf,
    LeafFunction,
    Predicate,
    Schema,
    col,
    data_type_from_arrow,
    format_partition_value,
    key_values,
    matching_partitions,
    parse_partition_value,
    server_filter,
)
from fluss.metadata.partition import VARIANTS
from fluss.metadata.predicate import resolved_expression
from fluss.metadata.where import parse_where

FIELDS = [("id", pa.int32()), ("kind", pa.string()), ("x", pa.float64())]
FIELDS += [("day", pa.date32()), ("at", pa.timestamp("ms")), ("tags", pa.list_(pa.string()))]
SCHEMA = Schema(pa.schema(FIELDS))


def where(text: str) -> Predicate:
    return parse_where(text, SCHEMA)


@pytest.mark.parametrize(
    ("text", "pushed"),
    [
        ("id = 3", "id = 3"),
        ("not id = 3", "id <> 3"),
        ("id = 3 and kind like '%a_b%'", "id = 3"),
        ("id = 3 or kind like '%a_b%'", None),
        ("kind like 'a_b'", "kind like 'a%'"),
        ("kind like '_b'", None),
        ("kind not like 'a%'", None),
        ("id = 3 and kind not like 'a%'", "id = 3"),
        ("(id = 3 or kind = 'a') and (id = 4 or kind not like 'b%')", "id = 3 or kind = 'a'"),
        ("not (id = 3 or kind = 'a')", "id <> 3 and kind <> 'a'"),
        ("true", None),
        ("false", None),
        ("true and id = 3", "id = 3"),
        ("x < 3", "x < 3"),
        ("x <= 3", "x <= 3"),
        ("x = 3", "x = 3"),
        ("x > 3", None),
        ("x >= 3", None),
        ("x <> 3", None),
        ("x not in (3)", None),
        ("x = 'nan'", None),
        ("x in ('nan', 1)", None),
        ("x < 'nan'", None),
        ("x is null", "x is null"),
        ("x is not null", "x is not null"),
        ("tags is null", "tags is null"),
    ],
)
def test_what_servers_are_sent(text: str, pushed: str | None) -> None:
    found = server_filter(where(text), SCHEMA)
    assert found == (None if pushed is None else where(pushed).resolve(SCHEMA))


def test_both_zeros_are_sent() -> None:
    def literals(text: str) -> list[str]:
        found = server_filter(where(text), SCHEMA)
        assert isinstance(found, Leaf)
        return [str(value) for value in found.literals]

    assert literals("x = 0") == ["0.0", "-0.0"]
    assert literals("x in (1, '-0.0')") == ["1.0", "0.0", "-0.0"]
    assert literals("x <= '-0.0'") == ["0.0"]


def test_filters_that_servers_would_refuse_are_sent_in_part() -> None:
    deep = col("id") == 0
    for number in range(1, 60):
        leaf = col("id") == number
        deep = (deep & leaf) if number % 2 else (deep | leaf)
    assert server_filter((col("kind") == "a") & deep, SCHEMA) is not None
    assert server_filter(deep, SCHEMA) is None or len(list(deep.leaves())) == 60
    many = col("id") == 0
    for number in range(1, 3000):
        many = many | (col("id") == number)
    assert server_filter(many, SCHEMA) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("id = 3 and kind = 'a'", [(3, "a")]),
        ("id = 3 and kind in ('a', 'b') and x > 1", [(3, "a"), (3, "b")]),
        ("kind = 'a' and (id = 3 or id = 4)", [(3, "a"), (4, "a")]),
        ("(kind = 'a' and id = 3) or (kind = 'b' and id = 4)", [(3, "a"), (3, "b"), (4, "a"), (4, "b")]),
        ("id in (1, 2) and id in (2, 3) and kind = 'a'", [(2, "a")]),
        ("id = 2.5 and kind = 'a'", []),
        ("id = 1 and id = 2 and kind = 'a'", []),
        ("id = 3", None),
        ("id > 3 and kind = 'a'", None),
        ("id = 3 and kind = 'a' or x = 1", None),
        ("not (id <> 3) and kind = 'a'", [(3, "a")]),
        ("id = 3 and not kind = 'a'", None),
        ("id in (1, 2, 3, 4, 5, 6) and kind in ('a', 'b')", None),
    ],
)
def test_keys_of_a_filter(text: str, expected: list[tuple[Any, ...]] | None) -> None:
    assert key_values(where(text), SCHEMA, ["id", "kind"], 10) == expected


def test_numbers_with_several_forms_are_no_keys() -> None:
    assert key_values(where("x = 0"), SCHEMA, ["x"], 10) is None


def test_partitions_are_chosen() -> None:
    def chosen(text: str) -> list[str]:
        names = ["2024-01-01$a", "2024-01-02$a", "2024-01-02$b", "unreadable$a"]
        kept = matching_partitions(where(text), SCHEMA, ["day", "kind"], names)
        return [name for name, wanted in zip(names, kept) if wanted]

    assert chosen("day = '2024-01-01'") == ["2024-01-01$a", "unreadable$a"]
    assert chosen("day > '2024-01-01' and kind <> 'b' and id = 1") == ["2024-01-02$a", "unreadable$a"]
    assert chosen("not (day = '2024-01-02' and kind like 'b%')") == ["2024-01-01$a", "2024-01-02$a", "unreadable$a"]
    assert len(chosen("day = '2024-01-01' or id = 1")) == 4
    assert len(chosen("id = 1")) == 4
    assert chosen("kind not like 'a%'") == ["2024-01-02$b", "unreadable$a"]
    assert matching_partitions(where("kind = 'a'"), SCHEMA, ["kind"], []) == []


values: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.text(max_size=5)),
    "flag": (pa.bool_(), st.booleans()),
    "bytes": (pa.binary(), st.binary(max_size=4)),
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "float": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "day": (pa.date32(), st.dates().map(lambda day: (day - datetime.date(1970, 1, 1)).days)),
    "time": (pa.time32("ms"), st.integers(0, 86_399_999)),
    "at": (pa.timestamp("ns"), st.integers(-(2**62), 2**62)),
    "ltz": (pa.timestamp("us", tz="UTC"), st.integers(-(2**52), 2**52).map(lambda us: us * 1000)),
}


@settings(max_examples=200)
@given(st.data(), st.sampled_from(list(values)), st.sampled_from(VARIANTS))
def test_partition_values_come_back(data: st.DataObject, name: str, variant: str) -> None:
    arrow_type, strategy = values[name]
    data_type = data_type_from_arrow(arrow_type)
    value = data.draw(strategy)
    found = parse_partition_value(data_type, format_partition_value(data_type, value, variant))
    assert found == value or (isinstance(found, float) and math.isnan(found) and math.isnan(value))


@pytest.mark.parametrize(("arrow_type", "text"), [
    (pa.int32(), "x"), (pa.bool_(), "yes"), (pa.date32(), "20240101"), (pa.date32(), "2024-13-01"),
    (pa.time32("ms"), "10:00"), (pa.timestamp("ms"), "2024-01-01"), (pa.float64(), "one"), (pa.binary(), "0"),
    (pa.int8(), "1000"), (pa.int64(), str(1 << 63)), (pa.timestamp("ns"), "9999-12-31-00-00-00_"),
])  # fmt: skip
def test_texts_of_no_known_value(arrow_type: pa.DataType, text: str) -> None:
    """Servers let users create such partitions; filters still have to choose among the others."""
    data_type = data_type_from_arrow(arrow_type)
    assert parse_partition_value(data_type, text) is None
    schema = Schema(pa.schema([("key", arrow_type), ("id", pa.int64())]))
    assert matching_partitions(col("key").is_null(), schema, ["key"], [text]) == [True]


numbers = st.sampled_from([-1.0, -0.0, 0.0, 1.0, 2.0, math.nan, math.inf])
texts = st.sampled_from(["", "a", "ab", "b", "ba"])


@st.composite
def filters(draw: st.DrawFn, depth: int = 3) -> Predicate:
    if depth and draw(st.booleans()):
        left, right = draw(filters(depth - 1)), draw(filters(depth - 1))
        return draw(st.sampled_from([left & right, left | right, ~left]))
    return draw(
        st.one_of(
            st.integers(0, 3).flatmap(lambda n: st.sampled_from([col("id") == n, col("id") > n, col("id").is_in([n])])),
            texts.flatmap(
                lambda text: st.sampled_from(
                    [col("kind") == text, col("kind") < text, col("kind").like(f"{text}_%"), col("kind").contains(text)]
                )
            ),
            numbers.flatmap(
                lambda x: st.sampled_from([col("x") == x, col("x") < x, col("x") >= x, col("x").is_in([x, 1.0])])
            ),
            st.sampled_from([col("x").is_null(), col("kind").is_not_null()]),
        )
    )


fields = {"id": st.none() | st.integers(0, 3), "kind": st.none() | texts, "x": st.none() | numbers}
rows = st.lists(st.fixed_dictionaries(fields), max_size=8)


@settings(max_examples=200, deadline=None)
@given(rows, filters())
def test_nothing_that_matches_is_held_back(found: list[dict[str, Any]], predicate: Predicate) -> None:
    table = pa.Table.from_pylist(found, schema=SCHEMA.arrow_schema).append_column("row", pa.array(range(len(found))))
    matching = table.filter(predicate.to_arrow_expression(SCHEMA))
    wanted = set(matching["row"].to_pylist())
    pushed = server_filter(predicate, SCHEMA)
    if pushed is not None:
        assert wanted <= set(table.filter(resolved_expression(pushed, SCHEMA))["row"].to_pylist())
        assert all(isinstance(leaf, Leaf) and isinstance(leaf.function, LeafFunction) for leaf in pushed.leaves())
    keys = key_values(predicate, SCHEMA, ["id", "kind"], 100)
    if keys is not None:
        assert {(row["id"], row["kind"]) for row in matching.to_pylist()} <= set(keys)
    names = ["a", "ab", "b", "ba"]
    kept = dict(zip(names, matching_partitions(predicate, SCHEMA, ["kind"], names)))
    assert all(kept.get(row["kind"], True) for row in matching.to_pylist() if row["kind"] is not None)
