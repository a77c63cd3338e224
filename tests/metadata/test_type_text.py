# SPDX-License-Identifier: Apache-2.0
"""Types and columns as SQL text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.metadata.test_types import ALL_TYPES

from fluss.errors import InvalidArgumentError
from fluss.metadata import DataField, DataType, DataTypes
from fluss.metadata.type_text import parse_data_type, parse_schema


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("bigint", DataTypes.bigint()),
        ("INTEGER NOT NULL", DataTypes.int().not_null()),
        ("double precision", DataTypes.double()),
        ("decimal(10, 2)", DataTypes.decimal(10, 2)),
        ("numeric(5)", DataTypes.decimal(5, 0)),
        ("varchar(20)", DataTypes.string()),
        ("char(3)", DataTypes.char(3)),
        ("timestamp(3)", DataTypes.timestamp(3)),
        ("timestamp(3) with local time zone", DataTypes.timestamp_ltz(3)),
        ("timestamptz", DataTypes.timestamp_ltz()),
        ("array<string not null>", DataTypes.array(DataTypes.string().not_null())),
        ("map<string, array<int>>", DataTypes.map(DataTypes.string(), DataTypes.array(DataTypes.int()))),
        (
            "row<a int, `b c` date>",
            DataTypes.row([DataField("a", DataTypes.int()), DataField("b c", DataTypes.date())]),
        ),
        ("struct<a: int>", DataTypes.row([DataField("a", DataTypes.int())])),
    ],
)
def test_types_are_read(text: str, expected: DataType) -> None:
    assert parse_data_type(text) == expected


_LEAVES = st.sampled_from([data_type for data_type, *_ in ALL_TYPES])
_TYPES = st.recursive(
    st.builds(lambda kind, nullable: kind.with_nullable(nullable), _LEAVES, st.booleans()),
    lambda inner: (
        inner.map(DataTypes.array)
        | st.builds(DataTypes.map, inner, inner)
        | inner.map(lambda kind: DataTypes.row([DataField("x", kind), DataField("y", kind)]))
    ),
    max_leaves=6,
)


@given(_TYPES)
def test_what_a_type_prints_can_be_read(data_type: DataType) -> None:
    assert parse_data_type(str(data_type)) == data_type


def test_a_schema_with_keys_and_comments() -> None:
    schema = parse_schema("id bigint not null, \"First Name\" string comment 'it''s', primary key (id)")
    assert schema.get_column_names() == ["id", "First Name"]
    assert schema.get_primary_keys() == ["id"]
    assert schema.columns[1].comment == "it's"
    assert parse_schema("id int primary key, v string").get_primary_keys() == ["id"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("id bigit", "unknown type 'bigit'; did you mean 'bigint'?"),
        ("id", "expected a type at position 2"),
        ("id int,, b int", "expected the name of a column, found ','"),
        ("id array<int", "expected '>'"),
        ("id decimal(99)", "precision of DECIMAL"),
        ("id int ; drop", "unexpected ';' at position 7"),
        ("", "a schema is a text such as"),
    ],
)
def test_what_is_wrong_is_said(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_schema(text)
    assert problem in caught.value.message


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="nested at most"):
        parse_data_type("array<" * 5000 + "int" + ">" * 5000)
