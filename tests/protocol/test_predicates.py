# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata import Column, Compound, CompoundFunction, DataTypes, Leaf, LeafFunction, Predicate, Schema, col
from fluss.protocol import messages as pb
from fluss.protocol.predicates import decode_predicate, encode_predicate

SCHEMA = Schema.of(
    [
        Column("flag", DataTypes.boolean()),
        Column("tiny", DataTypes.tinyint()),
        Column("small", DataTypes.smallint()),
        Column("id", DataTypes.int()),
        Column("big", DataTypes.bigint()),
        Column("real", DataTypes.float()),
        Column("double", DataTypes.double()),
        Column("code", DataTypes.char(3)),
        Column("name", DataTypes.string()),
        Column("price", DataTypes.decimal(12, 2)),
        Column("wide", DataTypes.decimal(38, 4)),
        Column("day", DataTypes.date()),
        Column("at", DataTypes.time(3)),
        Column("seen", DataTypes.timestamp(9)),
        Column("stamped", DataTypes.timestamp_ltz(6)),
        Column("digest", DataTypes.binary(2)),
        Column("blob", DataTypes.bytes()),
        Column("tags", DataTypes.array(DataTypes.string())),
    ]
)
IDS = {column.name: column.column_id for column in SCHEMA.columns}


def exact(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(lambda n: decimal.Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


LITERALS: dict[str, st.SearchStrategy[Any]] = {
    "flag": st.booleans(),
    "tiny": st.integers(-128, 127),
    "small": st.integers(-(2**15), 2**15 - 1),
    "id": st.integers(-(2**31), 2**31 - 1),
    "big": st.integers(-(2**63), 2**63 - 1),
    "real": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "code": st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
    "name": st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    "price": exact(12, 2),
    "wide": exact(38, 4),
    "day": st.dates(),
    "at": st.integers(0, 86_399_999).map(
        lambda ms: (datetime.datetime(2000, 1, 1) + datetime.timedelta(milliseconds=ms)).time()
    ),
    "seen": st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
    "stamped": st.datetimes(timezones=st.just(datetime.timezone.utc)),
    "digest": st.binary(max_size=4),
    "blob": st.binary(max_size=20),
}
TEXT_COLUMNS = ("code", "name")


@st.composite
def leaves(draw: st.DrawFn) -> Predicate:
    kind = draw(st.sampled_from(["compare", "list", "null", "text"]))
    if kind == "null":
        column = draw(st.sampled_from(list(IDS)))
        return col(column).is_null() if draw(st.booleans()) else col(column).is_not_null()
    if kind == "text":
        column = draw(st.sampled_from(TEXT_COLUMNS))
        function = draw(st.sampled_from(["starts_with", "ends_with", "contains"]))
        found: Predicate = getattr(col(column), function)(draw(LITERALS[column]))
        return found
    column = draw(st.sampled_from(list(LITERALS)))
    if kind == "list":
        values = draw(st.lists(st.none() | LITERALS[column], max_size=4))
        return col(column).is_in(values) if draw(st.booleans()) else col(column).not_in(values)
    comparison = LeafFunction(draw(st.integers(0, 5)))
    return Leaf(comparison, column, (draw(LITERALS[column]),))


PREDICATES = st.recursive(
    leaves(), lambda inner: st.builds(lambda a, b, both: a & b if both else a | b, inner, inner, st.booleans())
)


@settings(max_examples=300, deadline=None)
@given(PREDICATES)
def test_round_trip(predicate: Predicate) -> None:
    message = encode_predicate(predicate, SCHEMA)
    again = pb.PbPredicate.FromString(message.SerializeToString())
    assert decode_predicate(again, SCHEMA) == predicate.resolve(SCHEMA)


def test_bytes_of_a_captured_filter() -> None:
    """From a FetchLog request of another client: `id > 1 AND name = "x"`."""
    schema = Schema.of([Column("id", DataTypes.int()), Column("name", DataTypes.string())])
    predicate = (col("id") > 1) & (col("name") == "x")
    captured = "08011a27080012100800120c080410001a0608031000200112110800120d080010011a0708081000420178"
    assert encode_predicate(predicate, schema).SerializeToString().hex() == captured


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("flag", True, {"boolean_value": True}),
        ("tiny", -5, {"int_value": -5}),
        ("big", 2**40, {"bigint_value": 2**40}),
        ("real", 0.5, {"float_value": 0.5}),
        ("double", 0.1, {"double_value": 0.1}),
        ("code", "abc", {"string_value": "abc"}),
        ("price", decimal.Decimal("-12.5"), {"decimal_value": -1250}),
        ("wide", decimal.Decimal("0.0001"), {"decimal_bytes": b"\x01"}),
        ("wide", decimal.Decimal("0.0128"), {"decimal_bytes": b"\x00\x80"}),
        ("wide", decimal.Decimal("-0.0128"), {"decimal_bytes": b"\x80"}),
        ("wide", decimal.Decimal(0), {"decimal_bytes": b"\x00"}),
        ("day", datetime.date(1969, 12, 31), {"bigint_value": -1}),
        ("at", datetime.time(0, 0, 1), {"int_value": 1000}),
        (
            "seen",
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999),
            {"timestamp_millis_value": -1, "timestamp_nano_of_millis_value": 999_000},
        ),
        ("blob", b"\x00\xff", {"binary_value": b"\x00\xff"}),
    ],
)
def test_where_values_travel(column: str, value: Any, expected: dict[str, Any]) -> None:
    message = encode_predicate(col(column) == value, SCHEMA)
    assert message.leaf.field_id == IDS[column]
    (literal,) = message.leaf.literals
    number = literal.literal_type
    assert literal == pb.PbLiteralValue(literal_type=number, is_null=False, **expected)


def leaf(column: str, function: int = 0, **literal: Any) -> pb.PbPredicate:
    literals = [pb.PbLiteralValue(**({"is_null": False} | literal))] if literal else []
    return pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=function, field_id=IDS[column], literals=literals))


NULL = pb.PbLiteralValue(literal_type=3, is_null=True)
ONE = pb.PbLiteralValue(literal_type=3, is_null=False, int_value=1)


@pytest.mark.parametrize(
    ("function", "literals", "expected"),
    [
        (LeafFunction.EQUAL, [NULL], Leaf(LeafFunction.IN, "id", ())),
        (LeafFunction.NOT_EQUAL, [NULL], Leaf(LeafFunction.IN, "id", ())),
        (LeafFunction.IN, [ONE, NULL], Leaf(LeafFunction.IN, "id", (1,))),
        (LeafFunction.NOT_IN, [ONE, NULL], Leaf(LeafFunction.IN, "id", ())),
        (LeafFunction.IN, [], Leaf(LeafFunction.IN, "id", ())),
        (LeafFunction.IS_NULL, [ONE], Leaf(LeafFunction.IS_NULL, "id")),
    ],
)
def test_nulls_among_literals(function: LeafFunction, literals: list[pb.PbLiteralValue], expected: Leaf) -> None:
    message = pb.PbLeafPredicate(function=int(function), field_id=IDS["id"], literals=literals)
    assert decode_predicate(pb.PbPredicate(type=0, leaf=message), SCHEMA) == expected


def test_text_types_are_interchangeable() -> None:
    assert decode_predicate(leaf("name", literal_type=7, string_value="a"), SCHEMA) == Leaf(
        LeafFunction.EQUAL, "name", ("a",)
    )
    assert decode_predicate(leaf("digest", literal_type=15, binary_value=b"a"), SCHEMA) == Leaf(
        LeafFunction.EQUAL, "digest", (b"a",)
    )


def test_wide_decimals_may_come_as_numbers() -> None:
    found = decode_predicate(leaf("wide", literal_type=9, decimal_value=-5), SCHEMA)
    assert found == Leaf(LeafFunction.EQUAL, "wide", (decimal.Decimal("-0.0005"),))


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (pb.PbPredicate(type=7), "filter_predicate: type 7 is neither"),
        (pb.PbPredicate(type=0), "with its content"),
        (pb.PbPredicate(type=1), "with its content"),
        (
            pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=2, children=[leaf("id", 6)])),
            r"compound.function: unknown function 2",
        ),
        (pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=0)), "at least one child"),
        (leaf("id", 13), "leaf.function: unknown function 13"),
        (leaf("id", -1), "unknown function -1"),
        (pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=6, field_id=99)), "no column with id 99"),
        (leaf("id", 0), "EQUAL takes exactly 1, not 0"),
        (
            pb.PbPredicate(type=0, leaf=pb.PbLeafPredicate(function=11, field_id=IDS["id"], literals=[ONE] * 10_001)),
            "IN takes at most 10000, not 10001",
        ),
        (leaf("id", literal_type=4, bigint_value=5), r"literals\[0\].literal_type: type 4 does not fit column 'id'"),
        (leaf("tags", literal_type=8, string_value="a"), "does not fit column 'tags'"),
        (leaf("id", literal_type=3), "int_value: missing"),
        (leaf("tiny", literal_type=1, int_value=128), "int_value: 128 is outside -128 to 127"),
        (leaf("small", literal_type=2, int_value=-40000), "outside -32768 to 32767"),
        (leaf("day", literal_type=10, bigint_value=2**31), "bigint_value: 2147483648 is outside"),
        (leaf("at", literal_type=11, int_value=-1), "int_value: -1 is outside 0 to 86399999"),
        (leaf("seen", literal_type=12), "needs its milliseconds"),
        (leaf("seen", literal_type=12, timestamp_millis_value=1, timestamp_nano_of_millis_value=10**6), "999999"),
        (leaf("price", literal_type=9), "needs decimal_value or decimal_bytes"),
        (leaf("price", literal_type=9, decimal_value=10**12), "more than the 12 digits"),
        (leaf("wide", literal_type=9, decimal_bytes=b"\1" * 17), "longer than 16 bytes"),
    ],
)
def test_filters_that_do_not_fit(message: pb.PbPredicate, complaint: str) -> None:
    with pytest.raises(FormatError, match=complaint):
        decode_predicate(message, SCHEMA)


def test_nesting_is_limited_both_ways() -> None:
    message = leaf("id", 6)
    predicate = col("id").is_null()
    for depth in range(40):
        message = pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=0, children=[message]))
        predicate = Compound(CompoundFunction(depth % 2), (predicate,))
    with pytest.raises(FormatError, match="deeper than 32 levels"):
        decode_predicate(message, SCHEMA)
    with pytest.raises(InvalidArgumentError, match="deeper than 32 levels"):
        encode_predicate(predicate, SCHEMA)


def test_the_number_of_comparisons_is_limited() -> None:
    children = [leaf("id", 6)] * 10_001
    message = pb.PbPredicate(type=1, compound=pb.PbCompoundPredicate(function=1, children=children))
    with pytest.raises(FormatError, match=r"children\[10000\]: more than 10000 comparisons"):
        decode_predicate(message, SCHEMA)


class Foreign(Predicate):
    def resolve(self, schema: Schema) -> Predicate:
        return self


def test_only_our_predicates_are_encoded() -> None:
    with pytest.raises(InvalidArgumentError, match="built with col"):
        encode_predicate(Foreign(), SCHEMA)
