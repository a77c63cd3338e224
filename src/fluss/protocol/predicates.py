# SPDX-License-Identifier: Apache-2.0
"""Filters on the wire: `fluss.metadata.predicate` <-> PbPredicate.

On the wire a leaf names its column by the column's id in the schema, and literals carry their type. A decoded predicate
is in the form that `Predicate.resolve` gives: its literals are logical values of their columns.
"""

from __future__ import annotations

import decimal
from enum import IntEnum
from typing import Any

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata.comparison import LeafFunction
from fluss.metadata.predicate import LITERALS_MAX, Compound, CompoundFunction, Leaf, Predicate
from fluss.metadata.pushdown import server_filter
from fluss.metadata.schema import Column, Schema
from fluss.metadata.types import (
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)
from fluss.protocol import fluss_pb2 as pb
from fluss.rows.value_checks import decimal_of, to_big_endian, unscaled

LEAF = 0
COMPOUND = 1
NESTING_MAX = 32
LEAVES_MAX = 10_000


class LiteralType(IntEnum):
    """The types of literals on the wire."""

    BOOLEAN = 0
    TINYINT = 1
    SMALLINT = 2
    INT = 3
    BIGINT = 4
    FLOAT = 5
    DOUBLE = 6
    CHAR = 7
    STRING = 8
    DECIMAL = 9
    DATE = 10
    TIME = 11
    TIMESTAMP = 12
    TIMESTAMP_LTZ = 13
    BINARY = 14
    BYTES = 15


_LITERAL_TYPES: dict[type[DataType], LiteralType] = {
    BooleanType: LiteralType.BOOLEAN,
    TinyIntType: LiteralType.TINYINT,
    SmallIntType: LiteralType.SMALLINT,
    IntType: LiteralType.INT,
    BigIntType: LiteralType.BIGINT,
    FloatType: LiteralType.FLOAT,
    DoubleType: LiteralType.DOUBLE,
    CharType: LiteralType.CHAR,
    StringType: LiteralType.STRING,
    DecimalType: LiteralType.DECIMAL,
    DateType: LiteralType.DATE,
    TimeType: LiteralType.TIME,
    TimestampType: LiteralType.TIMESTAMP,
    TimestampLtzType: LiteralType.TIMESTAMP_LTZ,
    BinaryType: LiteralType.BINARY,
    BytesType: LiteralType.BYTES,
}
# The types whose value travels unchanged in one field. Integers have to stay within their bits.
_VALUE_FIELDS = {
    LiteralType.BOOLEAN: "boolean_value",
    LiteralType.TINYINT: "int_value",
    LiteralType.SMALLINT: "int_value",
    LiteralType.INT: "int_value",
    LiteralType.BIGINT: "bigint_value",
    LiteralType.FLOAT: "float_value",
    LiteralType.DOUBLE: "double_value",
    LiteralType.CHAR: "string_value",
    LiteralType.STRING: "string_value",
    LiteralType.DATE: "bigint_value",
    LiteralType.TIME: "int_value",
    LiteralType.BINARY: "binary_value",
    LiteralType.BYTES: "binary_value",
}
_TEXT = (LiteralType.CHAR, LiteralType.STRING)
_BINARY = (LiteralType.BINARY, LiteralType.BYTES)
_RANGES = {
    LiteralType.TINYINT: (-(2**7), 2**7 - 1),
    LiteralType.SMALLINT: (-(2**15), 2**15 - 1),
    LiteralType.DATE: (-(2**31), 2**31 - 1),
    LiteralType.TIME: (0, 86_400_000 - 1),
}
_TIMESTAMPS = (LiteralType.TIMESTAMP, LiteralType.TIMESTAMP_LTZ)
_DECIMAL_BYTES_MAX = 16
_DECIMAL_INT64_PRECISION_MAX = 18
_NULL_TESTS = (LeafFunction.IS_NULL, LeafFunction.IS_NOT_NULL)
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
    literal_type = _LITERAL_TYPES[type(data_type)]
    literal = pb.PbLiteralValue(literal_type=literal_type, is_null=False)
    if isinstance(data_type, DecimalType):
        number = unscaled(value, data_type)
        if data_type.precision <= _DECIMAL_INT64_PRECISION_MAX:
            literal.decimal_value = number
        else:
            literal.decimal_bytes = to_big_endian(number)
    elif literal_type in _TIMESTAMPS:
        millis, nanos = divmod(value, 1_000_000)
        literal.timestamp_millis_value = millis
        literal.timestamp_nano_of_millis_value = nanos
    else:
        setattr(literal, _VALUE_FIELDS[literal_type], value)
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
        if function in _NULL_TESTS:
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
    wanted = _LITERAL_TYPES.get(type(data_type))
    found = literal.literal_type
    # The two text types hold the same values, and so do the two binary ones.
    alike = found == wanted or (found in _TEXT and wanted in _TEXT) or (found in _BINARY and wanted in _BINARY)
    if wanted is None or not alike:
        raise FormatError(f"{where}.literal_type: type {found} does not fit column {column.name!r} of type {data_type}")
    if isinstance(data_type, DecimalType):
        return _decode_decimal(literal, data_type, where)
    if wanted in _TIMESTAMPS:
        nanos = literal.timestamp_nano_of_millis_value
        if not literal.HasField("timestamp_millis_value") or not 0 <= nanos < 1_000_000:
            raise FormatError(f"{where}: a timestamp needs its milliseconds, and 0 to 999999 nanoseconds beyond them")
        return literal.timestamp_millis_value * 1_000_000 + nanos
    field = _VALUE_FIELDS[wanted]
    if not literal.HasField(field):
        raise FormatError(f"{where}.{field}: missing")
    value = getattr(literal, field)
    low, high = _RANGES.get(wanted, (None, None))
    if low is not None and high is not None and not low <= value <= high:
        raise FormatError(f"{where}.{field}: {value} is outside {low} to {high}")
    return value


def _decode_decimal(literal: pb.PbLiteralValue, data_type: DecimalType, where: str) -> decimal.Decimal:
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
