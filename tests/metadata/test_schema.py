# SPDX-License-Identifier: Apache-2.0
"""Schemas: columns, ids, keys, documents."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FormatError, InvalidArgumentError, InvalidTableError
from fluss.metadata import (
    AggFunction,
    ArrayType,
    BigIntType,
    Column,
    DataField,
    DataTypes,
    IntType,
    MapType,
    RowType,
    Schema,
    StringType,
)

FIELDS = pa.schema([pa.field("id", pa.int32()), pa.field("name", pa.string()), pa.field("n", pa.int64())])


def test_from_arrow() -> None:
    schema = Schema(FIELDS, primary_keys=["id"])
    assert schema.get_column_names() == ["id", "name", "n"]
    assert schema.get_column_types() == ["int NOT NULL", "string", "bigint"]
    assert schema.get_columns() == [("id", "int NOT NULL"), ("name", "string"), ("n", "bigint")]
    assert schema.get_primary_keys() == ["id"]
    assert schema.primary_key == ("id",)
    assert schema.has_primary_key
    assert schema.column_index("n") == 2
    assert schema.column("name").data_type == StringType()
    assert schema.data_types == (IntType(nullable=False), StringType(), BigIntType())
    assert schema.arrow_schema == pa.schema(
        [pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string()), pa.field("n", pa.int64())]
    )
    assert schema.row_type.field_names == ("id", "name", "n")
    assert [field.field_id for field in schema.row_type.fields] == [0, 1, 2]
    assert Schema(FIELDS).get_primary_keys() == []
    assert not Schema(FIELDS).has_primary_key


def test_text_forms_of_the_reference() -> None:
    nested = pa.schema(
        [
            pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False))),
            pa.field("ids", pa.list_(pa.int32()), nullable=False),
            pa.field("attrs", pa.map_(pa.string(), pa.int32())),
            pa.field("m", pa.map_(pa.string(), pa.struct([("seq", pa.int32()), ("label", pa.string())]))),
            pa.field("am", pa.list_(pa.map_(pa.string(), pa.int32()))),
            pa.field("r", pa.struct([("ids", pa.list_(pa.int32()))])),
            pa.field("price", pa.decimal128(10, 2)),
        ]
    )
    assert Schema(nested).get_column_types() == [
        "array<string NOT NULL>",
        "array<int> NOT NULL",
        "map<string NOT NULL,int>",
        "map<string NOT NULL,row<seq: int, label: string>>",
        "array<map<string NOT NULL,int>>",
        "row<ids: array<int>>",
        "decimal(10,2)",
    ]
    assert str(Schema(FIELDS)).startswith("Schema: columns=[")
    assert repr(Schema(FIELDS, ["id"], "n")) == (
        "Schema(id int NOT NULL, name string, n bigint; primary_key=['id']; auto_increment_column='n')"
    )


def test_builder_and_of_agree_with_arrow() -> None:
    built = (
        Schema.builder()
        .column("id", DataTypes.int())
        .column("name", DataTypes.string())
        .column("n", DataTypes.bigint())
        .primary_key(["id"])
        .build()
    )
    assert built == Schema(FIELDS, ["id"])
    assert hash(built) == hash(Schema(FIELDS, ["id"]))
    assert built == Schema.of(
        [Column("id", IntType()), Column("name", StringType()), Column("n", BigIntType())], ("id",)
    )
    assert built != Schema(FIELDS)
    assert built != "schema"


def test_builder_details() -> None:
    schema = (
        Schema.builder()
        .column("id", DataTypes.int(), "the key")
        .column("n", DataTypes.bigint())
        .with_comment("grows")
        .column("total", DataTypes.bigint(), agg_function="SUM")
        .column("list", DataTypes.string(), agg_function=AggFunction("List-Agg".replace("-", ""), {"delimiter": ";"}))
        .primary_key(["id"])
        .enable_auto_increment("n")
        .build()
    )
    assert [column.comment for column in schema.columns] == ["the key", "grows", None, None]
    assert schema.auto_increment_columns == ("n",)
    assert schema.get_auto_increment_columns() == ["n"]
    assert schema.column("total").agg_function == AggFunction("sum")
    assert hash(AggFunction("sum")) == hash(AggFunction("Sum"))
    assert AggFunction("last-value").name == "last_value"
    assert AggFunction("sum").to_json() == {"type": "sum"}
    assert Schema.from_json(schema.to_json()) == schema
    with pytest.raises(InvalidArgumentError, match="add a column first"):
        Schema.builder().with_comment("x")


def test_ids_are_given_depth_first() -> None:
    schema = Schema.of(
        [
            Column("a", ArrayType(RowType((DataField("x", IntType()), DataField("y", IntType()))))),
            Column("m", MapType(RowType((DataField("k", IntType()),)), RowType((DataField("v", IntType()),)))),
            Column("b", StringType()),
        ]
    )
    assert [column.column_id for column in schema.columns] == [0, 3, 6]
    assert schema.highest_field_id == 6
    array = schema.columns[0].data_type
    assert isinstance(array, ArrayType)
    assert isinstance(array.element_type, RowType)
    assert [field.field_id for field in array.element_type.fields] == [1, 2]
    assert Schema.from_json(schema.to_json()) == schema


def test_ids_must_be_unique_and_complete() -> None:
    a, b = Column("a", IntType(), column_id=0), Column("b", IntType(), column_id=1)
    assert Schema.of([a, b]).highest_field_id == 1
    assert Schema.of([a, b], highest_field_id=9).highest_field_id == 9
    assert Schema.of([Column("a", IntType())], highest_field_id=9).highest_field_id == 9
    with pytest.raises(InvalidTableError, match="unique"):
        Schema.of([a, replace(b, column_id=0)])
    with pytest.raises(InvalidTableError, match="either all columns carry an id or none; without one: b"):
        Schema.of([a, replace(b, column_id=-1)])
    with pytest.raises(InvalidTableError, match="below the largest id"):
        Schema.of([a, b], highest_field_id=0)
    row = RowType((DataField("x", IntType(), field_id=1),))
    with pytest.raises(InvalidTableError, match="unique"):
        Schema.of([Column("a", ArrayType(MapType(IntType(), row)), column_id=0), b])


def test_added_columns_continue_the_ids() -> None:
    schema = Schema.of([Column("a", IntType(), column_id=0)], highest_field_id=4)
    more = schema.with_added_columns([Column("r", RowType((DataField("x", IntType()),))), Column("c", IntType())])
    assert [column.column_id for column in more.columns] == [0, 5, 7]
    assert more.highest_field_id == 7


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (lambda: Schema(FIELDS, ["nope"]), InvalidTableError, "nope are not among the columns id, name, n"),
        (lambda: Schema(FIELDS, ["id", "id"]), InvalidTableError, "repeated: id"),
        (lambda: Schema(FIELDS, "id"), InvalidArgumentError, "list of column names"),
        (lambda: Schema(FIELDS, [1]), InvalidArgumentError, "list of column names"),
        (lambda: Schema({"id": "int"}), InvalidArgumentError, "pyarrow.Schema"),
        (lambda: Schema(pa.schema([("h", pa.float16())])), InvalidArgumentError, "column 'h'"),
        (lambda: Schema(pa.schema([("a", pa.int8()), ("a", pa.int8())])), InvalidTableError, "repeated: a"),
        (lambda: Schema(pa.schema([])), InvalidTableError, "at least one column"),
        (lambda: Schema(FIELDS, None, "n"), InvalidTableError, "only tables with a primary key"),
        (lambda: Schema(FIELDS, ["n"], "n"), InvalidTableError, "part of the primary key"),
        (lambda: Schema(FIELDS, ["id"], "name"), InvalidTableError, "int or bigint, not string"),
        (lambda: Schema(FIELDS, ["id"], "nope"), InvalidTableError, "not among the columns"),
        (
            lambda: Schema.of([Column("a", IntType()), Column("b", IntType())], ["a"], ["b", "a"]),
            InvalidTableError,
            "one auto-increment column, not 2",
        ),
        (
            lambda: Schema.builder().column("a", DataTypes.int(), agg_function="sum").primary_key(["a"]).build(),
            InvalidTableError,
            "cannot have an aggregation function",
        ),
        (lambda: Column("", IntType()), InvalidArgumentError, "non-empty"),
        (lambda: Column("a", "int"), InvalidArgumentError, "DataType"),
        (lambda: Column("a", IntType(), column_id=-5), InvalidArgumentError, "id of column"),
        (lambda: Schema(FIELDS).column_index("x"), InvalidArgumentError, "the columns are id, name, n"),
    ],
)
def test_schemas_that_make_no_sense(build: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text.replace("(", r"\(")):
        build()


DOCUMENT: dict[str, Any] = {
    "version": 1,
    "columns": [
        {"name": "id", "data_type": {"type": "INTEGER", "nullable": False}, "comment": "key", "id": 0},
        {"name": "dt", "data_type": {"type": "STRING", "nullable": False}, "id": 1},
        {
            "name": "info",
            "data_type": {
                "type": "ROW",
                "fields": [
                    {"name": "a", "field_type": {"type": "INTEGER"}, "field_id": 3},
                    {
                        "name": "b",
                        "field_type": {"type": "ARRAY", "element_type": {"type": "STRING"}},
                        "description": "note",
                        "field_id": 4,
                    },
                ],
            },
            "id": 2,
        },
        {
            "name": "t",
            "data_type": {"type": "STRING"},
            "agg_function": {"type": "listagg", "parameters": {"delimiter": ";"}},
            "id": 5,
        },
        {"name": "seq", "data_type": {"type": "BIGINT"}, "id": 6},
    ],
    "primary_key": ["id", "dt"],
    "auto_increment_column": ["seq"],
    "highest_field_id": 6,
}


def test_document_round_trip() -> None:
    schema = Schema.from_json(DOCUMENT)
    assert schema.to_json() == DOCUMENT
    assert Schema.from_json_bytes(schema.to_json_bytes()) == schema
    assert Schema.from_json_bytes(json.dumps({**DOCUMENT, "later": [1]}).encode()) == schema
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_document_without_ids_numbers_the_columns() -> None:
    document = {"columns": [{"name": "a", "data_type": {"type": "DATE"}}, {"name": "b", "data_type": {"type": "DATE"}}]}
    schema = Schema.from_json(document)
    assert [column.column_id for column in schema.columns] == [0, 1]
    assert schema.highest_field_id == 1


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"version": 2}, "schema.version: version 2"),
        ({"version": "1"}, "schema.version"),
        ({"columns": None}, "schema.columns"),
        ({"columns": [5]}, "schema.columns[0]"),
        ({"columns": [{"data_type": {"type": "DATE"}}]}, "schema.columns[0].name"),
        ({"columns": [{"name": "a"}]}, "schema.columns[0].data_type"),
        ({"columns": [{"name": "a", "data_type": {"type": "DATE"}, "id": "0"}]}, "schema.columns[0].id"),
        ({"columns": [{"name": "a", "data_type": {"type": "DATE"}, "comment": 0}]}, "schema.columns[0].comment"),
        (
            {"columns": [{"name": "a", "data_type": {"type": "DATE"}, "agg_function": {"type": 1}}]},
            "schema.columns[0].agg_function.type",
        ),
        ({"primary_key": "id"}, "schema.primary_key"),
        ({"primary_key": [1]}, "schema.primary_key[0]"),
        ({"highest_field_id": True}, "schema.highest_field_id"),
    ],
)
def test_broken_documents_name_the_place(change: dict[str, Any], place: str) -> None:
    with pytest.raises(FormatError) as caught:
        Schema.from_json({**DOCUMENT, **change})
    assert place in caught.value.message


def test_broken_rules_in_documents_are_table_errors() -> None:
    with pytest.raises(InvalidTableError, match="must not be empty"):
        Schema.from_json({"columns": [{"name": "", "data_type": {"type": "DATE"}}]})
    with pytest.raises(InvalidTableError):
        Schema.from_json({**DOCUMENT, "primary_key": ["zz"]})


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\xff", "not UTF-8 at byte 0"),
        (b"{", "not a JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b"5", "an object"),
    ],
)
def test_broken_text(data: bytes, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        Schema.from_json_bytes(data)


@given(st.lists(st.text(min_size=1, max_size=4), min_size=1, max_size=6, unique=True), st.data())
def test_any_schema_survives_its_document(names: list[str], data: st.DataObject) -> None:
    types = st.sampled_from([IntType(), StringType(), RowType((DataField("x", IntType()), DataField("y", IntType())))])
    columns = [Column(name, data.draw(types), data.draw(st.none() | st.text(max_size=3))) for name in names]
    keys = data.draw(st.lists(st.sampled_from(names), unique=True))
    schema = Schema.of(columns, keys)
    assert Schema.from_json_bytes(schema.to_json_bytes()) == schema
    assert all(not schema.column(key).data_type.nullable for key in keys)
    ids = [column.column_id for column in schema.columns]
    assert ids == sorted(set(ids))
