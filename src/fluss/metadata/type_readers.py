# SPDX-License-Identifier: Apache-2.0
"""Reading data types from JSON documents and from Arrow."""

from __future__ import annotations

from functools import cache
from typing import Any

import pyarrow as pa

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata.types import (
    MAX_TYPE_DEPTH,
    PLAIN_TYPES,
    ArrayType,
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataField,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    MapType,
    RowType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)

_PARAMETERS: dict[str, tuple[type[DataType], tuple[str, ...]]] = {
    CharType.json_name: (CharType, ("length",)),
    BinaryType.json_name: (BinaryType, ("length",)),
    DecimalType.json_name: (DecimalType, ("precision", "scale")),
    TimeType.json_name: (TimeType, ("precision",)),
    TimestampType.json_name: (TimestampType, ("precision",)),
    TimestampLtzType.json_name: (TimestampLtzType, ("precision",)),
}


@cache
def _plain_type(name: str, nullable: bool) -> DataType:
    """Types are values: all columns can share one."""
    return PLAIN_TYPES[name](nullable=nullable)


def data_type_from_json(document: Any, where: str = "data_type") -> DataType:
    """Read the type object of a JSON document; `where` names its place in error messages."""
    try:
        return _from_json(document, where, 1)
    except InvalidArgumentError as error:
        raise FormatError(f"{where}: {error.message}") from error


def _from_json(document: Any, where: str, depth: int) -> DataType:
    if depth > MAX_TYPE_DEPTH:
        raise FormatError(f"{where}: types are nested deeper than {MAX_TYPE_DEPTH} levels")
    if not isinstance(document, dict):
        raise FormatError(f"{where}: expected a type object, not {document!r:.80}")
    name = document.get("type")
    nullable = document.get("nullable", True)
    if not isinstance(nullable, bool):
        raise FormatError(f"{where}.nullable: expected true or false, not {nullable!r:.80}")
    if not isinstance(name, str):
        raise FormatError(f"{where}.type: expected the name of a type, not {name!r:.80}")
    if name in PLAIN_TYPES:
        return _plain_type(name, nullable)
    if name in _PARAMETERS:
        cls, parameters = _PARAMETERS[name]
        return cls(**{key: document[key] for key in parameters if key in document}, nullable=nullable)
    if name == ArrayType.json_name:
        element_type = _from_json(document.get("element_type"), f"{where}.element_type", depth + 1)
        return ArrayType(element_type, nullable=nullable)
    if name == MapType.json_name:
        key_type = _from_json(document.get("key_type"), f"{where}.key_type", depth + 1)
        value_type = _from_json(document.get("value_type"), f"{where}.value_type", depth + 1)
        return MapType(key_type, value_type, nullable=nullable)
    if name == RowType.json_name:
        fields = document.get("fields")
        if not isinstance(fields, list):
            raise FormatError(f"{where}.fields: expected a list of fields, not {fields!r:.80}")
        return RowType(
            tuple(_field_from_json(item, f"{where}.fields[{i}]", depth + 1) for i, item in enumerate(fields)),
            nullable=nullable,
        )
    raise FormatError(f"{where}.type: unknown data type {name!r:.80}")


def _field_from_json(document: Any, where: str, depth: int) -> DataField:
    if not isinstance(document, dict):
        raise FormatError(f"{where}: expected a field object, not {document!r:.80}")
    description = document.get("description")
    if description is not None and not isinstance(description, str):
        raise FormatError(f"{where}.description: expected a string, not {description!r:.80}")
    return DataField(
        document.get("name"),  # type: ignore[arg-type]  # the constructor checks it
        _from_json(document.get("field_type"), f"{where}.field_type", depth),
        description,
        document.get("field_id", -1),
    )


def data_type_from_arrow(arrow_type: pa.DataType, nullable: bool = True) -> DataType:
    """The logical type that holds columns of an Arrow type.

    Unsigned integers become the signed type of the same width; zones of timestamps are dropped, for values of
    TIMESTAMP_LTZ are instants.
    """
    return _from_arrow(arrow_type, nullable, 1)


_ARROW_SIMPLE: tuple[tuple[Any, type[DataType]], ...] = (
    (pa.types.is_boolean, BooleanType),
    (pa.types.is_int8, TinyIntType),
    (pa.types.is_uint8, TinyIntType),
    (pa.types.is_int16, SmallIntType),
    (pa.types.is_uint16, SmallIntType),
    (pa.types.is_int32, IntType),
    (pa.types.is_uint32, IntType),
    (pa.types.is_int64, BigIntType),
    (pa.types.is_uint64, BigIntType),
    (pa.types.is_float32, FloatType),
    (pa.types.is_float64, DoubleType),
    (pa.types.is_string, StringType),
    (pa.types.is_large_string, StringType),
    (pa.types.is_binary, BytesType),
    (pa.types.is_large_binary, BytesType),
    (pa.types.is_date, DateType),
)

_PRECISION_OF_UNIT = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def _from_arrow(arrow_type: pa.DataType, nullable: bool, depth: int) -> DataType:
    if depth > MAX_TYPE_DEPTH:
        raise InvalidArgumentError(f"Arrow type is nested deeper than {MAX_TYPE_DEPTH} levels")
    if not isinstance(arrow_type, pa.DataType):
        raise InvalidArgumentError(f"expected an Arrow data type, not {arrow_type!r:.80}")
    for is_type, cls in _ARROW_SIMPLE:
        if is_type(arrow_type):
            return cls(nullable=nullable)
    types = pa.types
    if types.is_fixed_size_binary(arrow_type):
        return BinaryType(arrow_type.byte_width, nullable=nullable)
    if types.is_decimal128(arrow_type):
        return DecimalType(arrow_type.precision, arrow_type.scale, nullable=nullable)
    if types.is_time(arrow_type):
        return TimeType(_PRECISION_OF_UNIT[arrow_type.unit], nullable=nullable)
    if types.is_timestamp(arrow_type):
        timestamp = TimestampLtzType if arrow_type.tz else TimestampType
        return timestamp(_PRECISION_OF_UNIT[arrow_type.unit], nullable=nullable)
    if types.is_list(arrow_type) or types.is_large_list(arrow_type):
        return ArrayType(_field_type(arrow_type.value_field, depth), nullable=nullable)
    if types.is_map(arrow_type):
        key_type, value_type = _field_type(arrow_type.key_field, depth), _field_type(arrow_type.item_field, depth)
        return MapType(key_type, value_type, nullable=nullable)
    if types.is_struct(arrow_type):
        fields = [arrow_type.field(i) for i in range(arrow_type.num_fields)]
        return RowType(tuple(DataField(f.name, _field_type(f, depth)) for f in fields), nullable=nullable)
    raise InvalidArgumentError(f"Arrow type {arrow_type} has no counterpart among the data types of a table")


def _field_type(arrow_field: pa.Field, depth: int) -> DataType:
    return _from_arrow(arrow_field.type, arrow_field.nullable, depth + 1)
