# SPDX-License-Identifier: Apache-2.0
"""Data types, their JSON and their Arrow counterparts."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata import DataTypes
from fluss.metadata import types as t

LOCAL_TIME = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
ALL_TYPES: list[tuple[t.DataType, dict[str, Any], pa.DataType, str]] = [
    (t.BooleanType(), {"type": "BOOLEAN"}, pa.bool_(), "boolean"),
    (t.TinyIntType(), {"type": "TINYINT"}, pa.int8(), "tinyint"),
    (t.SmallIntType(), {"type": "SMALLINT"}, pa.int16(), "smallint"),
    (t.IntType(), {"type": "INTEGER"}, pa.int32(), "int"),
    (t.BigIntType(), {"type": "BIGINT"}, pa.int64(), "bigint"),
    (t.FloatType(), {"type": "FLOAT"}, pa.float32(), "float"),
    (t.DoubleType(), {"type": "DOUBLE"}, pa.float64(), "double"),
    (t.CharType(5), {"type": "CHAR", "length": 5}, pa.string(), "char(5)"),
    (t.StringType(), {"type": "STRING"}, pa.string(), "string"),
    (t.BinaryType(4), {"type": "BINARY", "length": 4}, pa.binary(4), "binary(4)"),
    (t.BytesType(), {"type": "BYTES"}, pa.binary(), "bytes"),
    (t.DecimalType(10, 2), {"type": "DECIMAL", "precision": 10, "scale": 2}, pa.decimal128(10, 2), "decimal(10,2)"),
    (t.DateType(), {"type": "DATE"}, pa.date32(), "date"),
    (t.TimeType(), {"type": "TIME_WITHOUT_TIME_ZONE", "precision": 0}, pa.time32("s"), "time"),
    (t.TimeType(3), {"type": "TIME_WITHOUT_TIME_ZONE", "precision": 3}, pa.time32("ms"), "time(3)"),
    (t.TimeType(6), {"type": "TIME_WITHOUT_TIME_ZONE", "precision": 6}, pa.time64("us"), "time(6)"),
    (t.TimeType(9), {"type": "TIME_WITHOUT_TIME_ZONE", "precision": 9}, pa.time64("ns"), "time(9)"),
    (t.TimestampType(6), {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": 6}, pa.timestamp("us"), "timestamp"),
    (t.TimestampType(9), {"type": "TIMESTAMP_WITHOUT_TIME_ZONE", "precision": 9}, pa.timestamp("ns"), "timestamp(9)"),
    (t.TimestampLtzType(), {"type": LOCAL_TIME, "precision": 6}, pa.timestamp("us", tz="UTC"), "timestamp_ltz"),
    (t.TimestampLtzType(3), {"type": LOCAL_TIME, "precision": 3}, pa.timestamp("ms", tz="UTC"), "timestamp_ltz(3)"),
    (
        t.ArrayType(t.StringType(nullable=False)),
        {"type": "ARRAY", "element_type": {"type": "STRING", "nullable": False}},
        pa.list_(pa.field("item", pa.string(), nullable=False)),
        "array<string NOT NULL>",
    ),
    (
        t.MapType(t.StringType(), t.IntType()),
        {"type": "MAP", "key_type": {"type": "STRING", "nullable": False}, "value_type": {"type": "INTEGER"}},
        pa.map_(pa.string(), pa.int32()),
        "map<string NOT NULL,int>",
    ),
    (
        t.RowType((t.DataField("seq", t.IntType()), t.DataField("label", t.StringType(nullable=False)))),
        {
            "type": "ROW",
            "fields": [
                {"name": "seq", "field_type": {"type": "INTEGER"}, "field_id": -1},
                {"name": "label", "field_type": {"type": "STRING", "nullable": False}, "field_id": -1},
            ],
        },
        pa.struct([pa.field("seq", pa.int32()), pa.field("label", pa.string(), nullable=False)]),
        "row<seq: int, label: string NOT NULL>",
    ),
]


@pytest.mark.parametrize(("data_type", "document", "arrow_type", "text"), ALL_TYPES, ids=lambda item: str(item)[:40])
def test_every_type(data_type: t.DataType, document: dict[str, Any], arrow_type: pa.DataType, text: str) -> None:
    assert data_type.to_json() == document
    assert t.data_type_from_json(document) == data_type
    assert data_type.to_arrow() == arrow_type
    assert str(data_type) == text
    assert data_type.is_nullable()
    if not isinstance(data_type, t.CharType):  # Arrow has no strings of a declared length
        assert t.data_type_from_arrow(arrow_type) == data_type
    strict = data_type.not_null()
    assert strict != data_type
    assert not strict.nullable
    assert strict.with_nullable(True) == data_type
    assert strict.with_nullable(False) is strict
    assert str(strict) == f"{text} NOT NULL"
    assert strict.to_json() == {**document, "nullable": False}
    assert t.data_type_from_json(strict.to_json()) == strict
    assert len({data_type, strict, t.data_type_from_json(document)}) == 2


@pytest.mark.parametrize(
    ("precision", "unit"), [(0, "s"), (1, "ms"), (2, "ms"), (3, "ms"), (4, "us"), (6, "us"), (7, "ns"), (9, "ns")]
)
def test_arrow_unit_holds_all_digits(precision: int, unit: str) -> None:
    assert t.TimestampType(precision).to_arrow() == pa.timestamp(unit)
    assert t.TimestampLtzType(precision).to_arrow() == pa.timestamp(unit, tz="UTC")
    assert t.TimeType(precision).to_arrow().unit == unit


def test_defaults() -> None:
    assert (t.CharType().length, t.BinaryType().length) == (1, 1)
    assert (t.DecimalType().precision, t.DecimalType().scale) == (10, 0)
    assert (t.TimeType().precision, t.TimestampType().precision, t.TimestampLtzType().precision) == (0, 6, 6)
    assert t.data_type_from_json({"type": "DECIMAL"}) == t.DecimalType(10, 0)
    assert t.data_type_from_json({"type": "TIMESTAMP_WITHOUT_TIME_ZONE"}) == t.TimestampType(6)


def test_map_keys_are_never_null() -> None:
    assert t.MapType(t.StringType(), t.IntType()).key_type == t.StringType(nullable=False)
    assert not t.data_type_from_json(
        {"type": "MAP", "key_type": {"type": "STRING"}, "value_type": {"type": "STRING"}}
    ).key_type.nullable  # type: ignore[attr-defined]


def test_factory() -> None:
    make = DataTypes
    built = [
        make.boolean(), make.tinyint(), make.smallint(), make.int(), make.bigint(), make.float(), make.double(),
        make.char(5), make.string(), make.binary(4), make.bytes(), make.decimal(10, 2), make.date(), make.time(),
        make.time(3), make.time(6), make.time(9), make.timestamp(), make.timestamp(9), make.timestamp_ltz(),
        make.timestamp_ltz(3), make.array(make.string().not_null()), make.map(make.string(), make.int()),
        make.row([make.field("seq", make.int()), t.DataField("label", make.string().not_null())]),
    ]  # fmt: skip
    assert built == [row[0] for row in ALL_TYPES]


def test_row_type_access() -> None:
    row = t.RowType([t.DataField("a", t.IntType()), t.DataField("b", t.StringType(), "note", 7)])  # type: ignore[arg-type]
    assert row.field_names == ("a", "b")
    assert row.field_types == (t.IntType(), t.StringType())
    assert row.fields[1].to_json()["description"] == "note"
    assert t.data_type_from_json(row.to_json()) == row
    assert str(row.fields[0]) == "a: int"


@pytest.mark.parametrize(
    "build",
    [
        lambda: t.CharType(0),
        lambda: t.CharType(2**31),
        lambda: t.BinaryType(True),
        lambda: t.BinaryType("4"),
        lambda: t.DecimalType(0),
        lambda: t.DecimalType(39),
        lambda: t.DecimalType(5, 6),
        lambda: t.DecimalType(5, -1),
        lambda: t.TimeType(10),
        lambda: t.TimestampType(-1),
        lambda: t.TimestampLtzType(1.5),
        lambda: t.ArrayType("int"),
        lambda: t.MapType(t.IntType(), None),
        lambda: t.MapType(None, t.IntType()),
        lambda: t.RowType((t.DataField("a", t.IntType()), t.DataField("a", t.IntType()))),
        lambda: t.RowType(("a",)),
        lambda: t.DataField(1, t.IntType()),
        lambda: t.DataField("a", "int"),
        lambda: t.DataField("a", t.IntType(), field_id=-2),
        lambda: t.DataType().to_arrow(),
    ],
)
def test_types_that_make_no_sense(build: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        build()


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (None, "data_type"),
        ("INTEGER", "data_type"),
        ({}, "data_type.type"),
        ({"type": 5}, "data_type.type"),
        ({"type": "VARCHAR"}, "VARCHAR"),
        ({"type": "INTEGER", "nullable": "no"}, "data_type.nullable"),
        ({"type": "CHAR", "length": 0}, "length of CHAR"),
        ({"type": "CHAR", "length": "5"}, "length of CHAR"),
        ({"type": "DECIMAL", "precision": 99}, "precision"),
        ({"type": "ARRAY"}, "data_type.element_type"),
        ({"type": "MAP", "key_type": {"type": "INTEGER"}}, "data_type.value_type"),
        ({"type": "ROW"}, "data_type.fields"),
        ({"type": "ROW", "fields": [5]}, "fields[0]"),
        ({"type": "ROW", "fields": [{"name": "a"}]}, "fields[0].field_type"),
        ({"type": "ROW", "fields": [{"field_type": {"type": "INTEGER"}}]}, "name of a field"),
        ({"type": "ROW", "fields": [{"name": "a", "field_type": {"type": "DATE"}, "description": 1}]}, "description"),
        ({"type": "ROW", "fields": [{"name": "a", "field_type": {"type": "DATE"}, "field_id": "1"}]}, "id of field"),
    ],
)
def test_broken_documents_name_the_place(document: Any, place: str) -> None:
    with pytest.raises(FormatError) as caught:
        t.data_type_from_json(document)
    assert place in caught.value.message


def test_absurd_nesting_is_refused() -> None:
    document: dict[str, Any] = {"type": "INTEGER"}
    arrow_type = pa.int32()
    for _ in range(63):
        document = {"type": "ARRAY", "element_type": document}
        arrow_type = pa.list_(arrow_type)
    assert t.data_type_from_json(document) == t.data_type_from_arrow(arrow_type)
    with pytest.raises(FormatError, match="64 levels"):
        t.data_type_from_json({"type": "ARRAY", "element_type": document})
    with pytest.raises(InvalidArgumentError, match="64 levels"):
        t.data_type_from_arrow(pa.list_(arrow_type))


@pytest.mark.parametrize(
    ("arrow_type", "data_type"),
    [
        (pa.uint8(), t.TinyIntType()),
        (pa.uint16(), t.SmallIntType()),
        (pa.uint32(), t.IntType()),
        (pa.uint64(), t.BigIntType()),
        (pa.large_string(), t.StringType()),
        (pa.large_binary(), t.BytesType()),
        (pa.date64(), t.DateType()),
        (pa.timestamp("ms", tz="Europe/Berlin"), t.TimestampLtzType(3)),
        (pa.timestamp("s"), t.TimestampType(0)),
        (pa.large_list(pa.int8()), t.ArrayType(t.TinyIntType())),
    ],
    ids=str,
)
def test_arrow_types_with_a_near_counterpart(arrow_type: pa.DataType, data_type: t.DataType) -> None:
    assert t.data_type_from_arrow(arrow_type) == data_type


@pytest.mark.parametrize(
    "arrow_type",
    [pa.float16(), pa.dictionary(pa.int8(), pa.string()), pa.decimal128(5, -1), pa.decimal256(50, 2), pa.null(), "int"],
    ids=str,
)
def test_arrow_types_without_a_counterpart(arrow_type: Any) -> None:
    with pytest.raises(InvalidArgumentError):
        t.data_type_from_arrow(arrow_type)


def test_arrow_nullability_is_kept() -> None:
    struct = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    data_type = t.data_type_from_arrow(struct, nullable=False)
    assert str(data_type) == "row<x: int NOT NULL> NOT NULL"


@st.composite
def data_types(draw: st.DrawFn, depth: int = 0) -> t.DataType:
    nullable = draw(st.booleans())
    kind = draw(st.integers(0, 9 if depth < 3 else 6))
    if kind == 7:
        return t.ArrayType(draw(data_types(depth + 1)), nullable=nullable)
    if kind == 8:
        return t.MapType(draw(data_types(depth + 1)), draw(data_types(depth + 1)), nullable=nullable)
    if kind == 9:
        names = draw(st.lists(st.text(max_size=3), max_size=3, unique=True))
        description = draw(st.none() | st.text(max_size=3))
        return t.RowType(
            tuple(t.DataField(n, draw(data_types(depth + 1)), description) for n in names), nullable=nullable
        )
    number = draw(st.integers(0, 9))
    return [
        t.CharType(number + 1, nullable=nullable),
        t.BinaryType(number + 1, nullable=nullable),
        t.DecimalType(number + 29, number * 3, nullable=nullable),
        t.TimeType(number, nullable=nullable),
        t.TimestampType(number, nullable=nullable),
        t.TimestampLtzType(number, nullable=nullable),
        ALL_TYPES[number][0].with_nullable(nullable),
    ][kind]


@given(data_types())
def test_json_round_trip(data_type: t.DataType) -> None:
    text = json.dumps(data_type.to_json())
    assert t.data_type_from_json(json.loads(text)) == data_type


@given(data_types())
def test_arrow_round_trip_keeps_the_arrow_type(data_type: t.DataType) -> None:
    arrow_type = data_type.to_arrow()
    assert t.data_type_from_arrow(arrow_type, data_type.nullable).to_arrow() == arrow_type


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from(["ROW", "ARRAY", "MAP", "CHAR"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "nullable", "fields", "element_type", "key_type", "value_type", "length", "name"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@given(json_values)
def test_any_document_is_a_type_or_a_format_error(document: Any) -> None:
    try:
        data_type = t.data_type_from_json(document)
    except FormatError:
        return
    assert t.data_type_from_json(data_type.to_json()) == data_type
