# SPDX-License-Identifier: Apache-2.0
"""Filters on the wire: `fluss.metadata.predicate` <-> PbPredicate.

On the wire a leaf names its column by the column's id in the schema, and literals carry their type. A decoded predicate
is in the form that `Predicate.resolve` gives: its literals are logical values of their columns.
"""

from __future__ import annotations

import decimal
from typing import Any

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata import types as t
from fluss.metadata.comparison import NULL_TESTS, LeafFunction
from fluss.metadata.predicate import LITERALS_MAX, Compound, CompoundFunction, Leaf, Predicate
from fluss.metadata.pushdown import server_filter
from fluss.metadata.schema import Column, Schema
from fluss.protocol import fluss_pb2 as pb
from fluss.rows.value_checks import MILLIS_PER_DAY, decimal_of, is_compact_decimal, to_big_endian, unscaled

LEAF = 0
COMPOUND = 1
NESTING_MAX = 32
LEAVES_MAX = 10_000

_SEVERAL = ""
_LITERALS: dict[type[t.DataType], tuple[int, str]] = {
    t.BooleanType: (0, "boolean_value"),
    t.TinyIntType: (1, "int_value"),
    t.SmallIntType: (2, "int_value"),
    t.IntType: (3, "int_value"),
    t.BigIntType: (4, "bigint_value"),
    t.FloatType: (5, "float_value"),
    t.DoubleType: (6, "double_value"),
    t.CharType: (7, "string_value"),
    t.StringType: (8, "string_value"),
    t.DecimalType: (9, _SEVERAL),
    t.DateType: (10, "bigint_value"),
    t.TimeType: (11, "int_value"),
    t.TimestampType: (12, _SEVERAL),
    t.TimestampLtzType: (13, _SEVERAL),
    t.BinaryType: (14, "binary_value"),
    t.BytesType: (15, "binary_value"),
}
"""The number of a type on the wire, and the field in which its value travels unchanged."""
_SAME_VALUES = {7: 8, 14: 15}
"""CHAR literals are those of STRING, and BINARY literals those of BYTES."""
_RANGES: dict[type[t.DataType], tuple[int, int]] = {
    t.TinyIntType: (-(2**7), 2**7 - 1),
    t.SmallIntType: (-(2**15), 2**15 - 1),
    t.DateType: (-(2**31), 2**31 - 1),
    t.TimeType: (0, MILLIS_PER_DAY - 1),
}
"""Of the types whose field is wider than they are."""
_DECIMAL_BYTES_MAX = 16
_LISTS = (LeafFunction.IN, LeafFunction.NOT_IN)


def encode_predicate(predicate: Predicate, schema: Schema) -> pb.PbPredicate:
    """A predicate as the server reads it; `schema` is the one named by `filter_schema_id`."""
    return _encode(predicate.resolve(schema), schema, 1)


def encode_server_filter(predicate: Predicate, schema: Schema) -> pb.PbPredicate | None:
    """What of a predicate a server can use to skip batches; None if there is nothing."""
    pushed = server_filter(predicate, schema)
    return None if pushed is None else _encode(pushed, schema, 1)


def _encode(predicate: Predicate, schema: Schema, depth: int) -> pb.PbPredicate:
    if depth > NESTING_MAX:
        raise InvalidArgumentError(f"The filter is nested deeper than {NESTING_MAX} levels; join fewer with & and |")
    if isinstance(predicate, Compound):
        children = [_encode(child, schema, depth + 1) for child in predicate.children]
        compound = pb.PbCompoundPredicate(function=int(predicate.function), children=children)
        return pb.PbPredicate(type=COMPOUND, compound=compound)
    if not isinstance(predicate, Leaf):
        raise InvalidArgumentError(f"A filter is built with col(...), not from {predicate!r:.80}")
    column = schema.column(predicate.column)
    literals = [_encode_literal(value, column) for value in predicate.literals]
    leaf = pb.PbLeafPredicate(function=int(predicate.function), field_id=column.column_id, literals=literals)
    return pb.PbPredicate(type=LEAF, leaf=leaf)


def _encode_literal(value: Any, column: Column) -> pb.PbLiteralValue:
    data_type = column.data_type
    literal_type, field = _LITERALS[type(data_type)]
    literal = pb.PbLiteralValue(literal_type=literal_type, is_null=False)
    if isinstance(data_type, t.DecimalType):
        number = unscaled(value, data_type)
        if is_compact_decimal(data_type):
            literal.decimal_value = number
        else:
            literal.decimal_bytes = to_big_endian(number)
    elif isinstance(data_type, t.TIMESTAMP_TYPES):
        millis, nanos = divmod(value, 1_000_000)
        literal.timestamp_millis_value = millis
        literal.timestamp_nano_of_millis_value = nanos
    else:
        setattr(literal, field, value)
    return literal


def decode_predicate(message: pb.PbPredicate, schema: Schema) -> Predicate:
    """Read a filter; `FormatError` if it does not fit the schema."""
    columns = {column.column_id: column for column in schema.columns}
    return _Decoder(columns).decode(message, "filter_predicate", 1)


class _Decoder:
    def __init__(self, columns: dict[int, Column]) -> None:
        self._columns = columns
        self._leaves_left = LEAVES_MAX

    def decode(self, message: pb.PbPredicate, where: str, depth: int) -> Predicate:
        if depth > NESTING_MAX:
            raise FormatError(f"{where}: nested deeper than {NESTING_MAX} levels")
        if message.type == LEAF and message.HasField("leaf"):
            self._leaves_left -= 1
            if self._leaves_left < 0:
                raise FormatError(f"{where}: more than {LEAVES_MAX} comparisons")
            return self._decode_leaf(message.leaf, f"{where}.leaf")
        if message.type == COMPOUND and message.HasField("compound"):
            return self._decode_compound(message.compound, f"{where}.compound", depth)
        raise FormatError(f"{where}: type {message.type} is neither a leaf (0) nor a compound (1) with its content")

    def _decode_compound(self, message: pb.PbCompoundPredicate, where: str, depth: int) -> Compound:
        if message.function not in CompoundFunction.__members__.values():
            raise FormatError(f"{where}.function: unknown function {message.function}")
        if not message.children:
            raise FormatError(f"{where}.children: a compound has at least one child")
        children = [
            self.decode(child, f"{where}.children[{index}]", depth + 1) for index, child in enumerate(message.children)
        ]
        return Compound(CompoundFunction(message.function), tuple(children))

    def _decode_leaf(self, message: pb.PbLeafPredicate, where: str) -> Leaf:
        if message.function not in LeafFunction.__members__.values():
            raise FormatError(f"{where}.function: unknown function {message.function}")
        function = LeafFunction(message.function)
        column = self._columns.get(message.field_id)
        if column is None:
            raise FormatError(f"{where}.field_id: the schema has no column with id {message.field_id}")
        if function in NULL_TESTS:
            return Leaf(function, column.name)
        count = len(message.literals)
        if count > LITERALS_MAX if function in _LISTS else count != 1:
            wanted = f"at most {LITERALS_MAX}" if function in _LISTS else "exactly 1"
            raise FormatError(f"{where}.literals: {function.name} takes {wanted}, not {count}")
        values = [
            _decode_literal(literal, column, f"{where}.literals[{index}]")
            for index, literal in enumerate(message.literals)
        ]
        if None in values:
            # No comparison with null holds; IN may still match its other values.
            values = [value for value in values if value is not None] if function is LeafFunction.IN else []
            function = LeafFunction.IN
        return Leaf(function, column.name, tuple(values))


def _decode_literal(literal: pb.PbLiteralValue, column: Column, where: str) -> Any:
    if literal.is_null:
        return None
    data_type = column.data_type
    found = literal.literal_type
    wanted, field = _LITERALS.get(type(data_type), (None, _SEVERAL))
    if wanted is None or _SAME_VALUES.get(found, found) != _SAME_VALUES.get(wanted, wanted):
        raise FormatError(f"{where}.literal_type: type {found} does not fit column {column.name!r} of type {data_type}")
    if isinstance(data_type, t.DecimalType):
        return _decode_decimal(literal, data_type, where)
    if isinstance(data_type, t.TIMESTAMP_TYPES):
        nanos = literal.timestamp_nano_of_millis_value
        if not literal.HasField("timestamp_millis_value") or not 0 <= nanos < 1_000_000:
            raise FormatError(f"{where}: a timestamp needs its milliseconds, and 0 to 999999 nanoseconds beyond them")
        return literal.timestamp_millis_value * 1_000_000 + nanos
    if not literal.HasField(field):
        raise FormatError(f"{where}.{field}: missing")
    value = getattr(literal, field)
    if type(data_type) in _RANGES:
        low, high = _RANGES[type(data_type)]
        if not low <= value <= high:
            raise FormatError(f"{where}.{field}: {value} is outside {low} to {high}")
    return value


def _decode_decimal(literal: pb.PbLiteralValue, data_type: t.DecimalType, where: str) -> decimal.Decimal:
    if literal.HasField("decimal_bytes"):
        if len(literal.decimal_bytes) > _DECIMAL_BYTES_MAX:
            raise FormatError(f"{where}.decimal_bytes: longer than {_DECIMAL_BYTES_MAX} bytes")
        number = int.from_bytes(literal.decimal_bytes, "big", signed=True)
    elif literal.HasField("decimal_value"):
        number = literal.decimal_value
    else:
        raise FormatError(f"{where}: a decimal needs decimal_value or decimal_bytes")
    try:
        return decimal_of(number, data_type)
    except FormatError:
        raise FormatError(
            f"{where}: the decimal has more than the {data_type.precision} digits of its column"
        ) from None
