# SPDX-License-Identifier: Apache-2.0
"""The logical data types of a table, and how they map to JSON documents and to Arrow."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata.checks import list_of

MAX_TYPE_DEPTH = 64
"""Types nested deeper than this are refused: a document of a few kilobytes must not exhaust the stack."""

MAX_LENGTH = 2**31 - 1
"""The largest length of CHAR and BINARY."""

_TYPE = TypeVar("_TYPE", bound="DataType")


@dataclass(frozen=True, eq=False, repr=False)
class DataType:
    """A logical data type. Types are values: compare them with ``==``, use them as keys."""

    # Comparison, hash and repr are written once: making them for each of the types takes 4 ms of every process.

    json_name: ClassVar[str] = ""
    """The name of the type in JSON documents."""
    arrow_type: ClassVar[pa.DataType | None] = None
    """The Arrow type, where it does not depend on parameters."""

    nullable: bool = field(default=True, kw_only=True)

    def with_nullable(self: _TYPE, nullable: bool) -> _TYPE:
        """The same type, nullable or not."""
        return self if nullable == self.nullable else replace(self, nullable=nullable)

    def not_null(self: _TYPE) -> _TYPE:
        """The same type without nulls."""
        return self.with_nullable(False)

    def is_nullable(self) -> bool:
        """Whether null is a value of this type."""
        return self.nullable

    def to_json(self) -> dict[str, Any]:
        """The type object of the JSON documents."""
        document: dict[str, Any] = {"type": self.json_name}
        if not self.nullable:
            document["nullable"] = False
        parameters = {name: value for name, value in vars(self).items() if name != "nullable"}
        for name, value in parameters.items():
            document[name] = value.to_json() if isinstance(value, DataType) else value
        return document

    def to_arrow(self) -> pa.DataType:
        """The Arrow type that holds columns of this type."""
        if self.arrow_type is None:
            raise InvalidArgumentError(f"{type(self).__name__} is not a concrete data type")
        return self.arrow_type

    def _name(self) -> str:
        return self.json_name.lower()

    def __str__(self) -> str:
        return self._name() if self.nullable else f"{self._name()} NOT NULL"

    def __repr__(self) -> str:
        return f"{type(self).__qualname__}({', '.join(f'{key}={value!r}' for key, value in vars(self).items())})"

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))


def _check_int(what: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidArgumentError(f"{what} must be an integer from {low} to {high}, not {value!r}")


def _check_type(what: str, value: object) -> None:
    if not isinstance(value, DataType):
        raise InvalidArgumentError(f"{what} must be a DataType, not {value!r}")


class BooleanType(DataType):
    """True or false."""

    json_name = "BOOLEAN"
    arrow_type = pa.bool_()


class TinyIntType(DataType):
    """An 8-bit signed integer."""

    json_name = "TINYINT"
    arrow_type = pa.int8()


class SmallIntType(DataType):
    """A 16-bit signed integer."""

    json_name = "SMALLINT"
    arrow_type = pa.int16()


class IntType(DataType):
    """A 32-bit signed integer."""

    json_name = "INTEGER"
    arrow_type = pa.int32()

    def _name(self) -> str:
        return "int"


class BigIntType(DataType):
    """A 64-bit signed integer."""

    json_name = "BIGINT"
    arrow_type = pa.int64()


class FloatType(DataType):
    """A 32-bit floating point number."""

    json_name = "FLOAT"
    arrow_type = pa.float32()


class DoubleType(DataType):
    """A 64-bit floating point number."""

    json_name = "DOUBLE"
    arrow_type = pa.float64()


@dataclass(frozen=True, eq=False, repr=False)
class _TypeWithLength(DataType):
    length: int = 1

    def __post_init__(self) -> None:
        _check_int(f"the length of {self.json_name}", self.length, 1, MAX_LENGTH)

    def _name(self) -> str:
        return f"{self.json_name.lower()}({self.length})"


class CharType(_TypeWithLength):
    """A string of a declared length."""

    json_name = "CHAR"
    arrow_type = pa.string()


class StringType(DataType):
    """A string of any length."""

    json_name = "STRING"
    arrow_type = pa.string()


class BinaryType(_TypeWithLength):
    """A byte string of a fixed length."""

    json_name = "BINARY"

    def to_arrow(self) -> pa.DataType:
        return pa.binary(self.length)


class BytesType(DataType):
    """A byte string of any length."""

    json_name = "BYTES"
    arrow_type = pa.binary()


@dataclass(frozen=True, eq=False, repr=False)
class DecimalType(DataType):
    """An exact decimal number."""

    json_name = "DECIMAL"

    precision: int = 10
    scale: int = 0

    def __post_init__(self) -> None:
        _check_int("the precision of DECIMAL", self.precision, 1, 38)
        _check_int("the scale of DECIMAL", self.scale, 0, self.precision)

    def to_arrow(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)

    def _name(self) -> str:
        return f"decimal({self.precision},{self.scale})"


class DateType(DataType):
    """A calendar day."""

    json_name = "DATE"
    arrow_type = pa.date32()


def arrow_time_unit(precision: int) -> str:
    """The Arrow unit that holds `precision` digits of a second."""
    return ("s", "ms", "us", "ns")[(precision + 2) // 3]


@dataclass(frozen=True, eq=False, repr=False)
class _TypeWithPrecision(DataType):
    sql_name: ClassVar[str]

    precision: int = 6

    def __post_init__(self) -> None:
        _check_int(f"the precision of {self.sql_name.upper()}", self.precision, 0, 9)

    def _name(self) -> str:
        default = type(self).precision
        return self.sql_name if self.precision == default else f"{self.sql_name}({self.precision})"


@dataclass(frozen=True, eq=False, repr=False)
class TimeType(_TypeWithPrecision):
    """A time of day. Whatever the precision, values are kept in milliseconds."""

    json_name = "TIME_WITHOUT_TIME_ZONE"
    sql_name = "time"

    precision: int = 0

    def to_arrow(self) -> pa.DataType:
        unit = arrow_time_unit(self.precision)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)


class TimestampType(_TypeWithPrecision):
    """A date and time of a wall clock, without a zone."""

    json_name = "TIMESTAMP_WITHOUT_TIME_ZONE"
    sql_name = "timestamp"

    def to_arrow(self) -> pa.DataType:
        return pa.timestamp(arrow_time_unit(self.precision))


class TimestampLtzType(_TypeWithPrecision):
    """An instant, shown in the zone of the reader."""

    json_name = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
    sql_name = "timestamp_ltz"

    def to_arrow(self) -> pa.DataType:
        return pa.timestamp(arrow_time_unit(self.precision), tz="UTC")


@dataclass(frozen=True, eq=False, repr=False)
class ArrayType(DataType):
    """A list of values of one type."""

    json_name = "ARRAY"

    element_type: DataType

    def __post_init__(self) -> None:
        _check_type("the element type of ARRAY", self.element_type)

    def to_arrow(self) -> pa.DataType:
        return pa.list_(pa.field("element", self.element_type.to_arrow(), nullable=self.element_type.nullable))

    def _name(self) -> str:
        return f"array<{self.element_type}>"


@dataclass(frozen=True, eq=False, repr=False)
class MapType(DataType):
    """Pairs of keys and values. Keys are never null."""

    json_name = "MAP"

    key_type: DataType
    value_type: DataType

    def __post_init__(self) -> None:
        _check_type("the key type of MAP", self.key_type)
        _check_type("the value type of MAP", self.value_type)
        object.__setattr__(self, "key_type", self.key_type.with_nullable(False))

    def to_arrow(self) -> pa.DataType:
        return pa.map_(
            pa.field("key", self.key_type.to_arrow(), nullable=False),
            pa.field("value", self.value_type.to_arrow(), nullable=self.value_type.nullable),
        )

    def _name(self) -> str:
        return f"map<{self.key_type},{self.value_type}>"


@dataclass(frozen=True)
class DataField:
    """One field of a ROW."""

    name: str
    data_type: DataType
    description: str | None = None
    field_id: int = -1
    """The id of the field in its schema; -1 until a schema gives it one."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidArgumentError(f"the name of a field must be a string, not {self.name!r}")
        _check_type(f"the type of field {self.name!r}", self.data_type)
        _check_int(f"the id of field {self.name!r}", self.field_id, -1, MAX_LENGTH)

    def to_json(self) -> dict[str, Any]:
        """The field object of the JSON documents."""
        document: dict[str, Any] = {"name": self.name, "field_type": self.data_type.to_json()}
        if self.description is not None:
            document["description"] = self.description
        document["field_id"] = self.field_id
        return document

    def to_arrow(self) -> pa.Field:
        """The Arrow field that holds this field."""
        return pa.field(self.name, self.data_type.to_arrow(), nullable=self.data_type.nullable)

    def __str__(self) -> str:
        return f"{self.name}: {self.data_type}"


@dataclass(frozen=True, eq=False, repr=False)
class RowType(DataType):
    """A nested row of named fields."""

    json_name = "ROW"

    fields: tuple[DataField, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "fields", tuple(list_of("the fields of ROW", "a list of DataFields", self.fields)))
        seen: set[str] = set()
        for item in self.fields:
            if not isinstance(item, DataField):
                raise InvalidArgumentError(f"the fields of ROW must be DataFields, not {item!r}")
            if item.name in seen:
                raise InvalidArgumentError(f"ROW has two fields named {item.name!r}")
            seen.add(item.name)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields, in order."""
        return tuple(item.name for item in self.fields)

    @property
    def field_types(self) -> tuple[DataType, ...]:
        """The types of the fields, in order."""
        return tuple(item.data_type for item in self.fields)

    def to_arrow(self) -> pa.DataType:
        return pa.struct([item.to_arrow() for item in self.fields])

    def to_json(self) -> dict[str, Any]:
        return {**super().to_json(), "fields": [item.to_json() for item in self.fields]}

    def _name(self) -> str:
        return f"row<{', '.join(map(str, self.fields))}>"


PLAIN_TYPES: dict[str, type[DataType]] = {
    cls.json_name: cls
    for cls in (
        BooleanType,
        TinyIntType,
        SmallIntType,
        IntType,
        BigIntType,
        FloatType,
        DoubleType,
        StringType,
        BytesType,
        DateType,
    )
}
"""The types without parameters, by their names in JSON documents."""

INTEGER_TYPES = (TinyIntType, SmallIntType, IntType, BigIntType)
FLOAT_TYPES = (FloatType, DoubleType)
TEXT_TYPES = (CharType, StringType)
BYTES_TYPES = (BinaryType, BytesType)
TIMESTAMP_TYPES = (TimestampType, TimestampLtzType)
NESTED_TYPES = (ArrayType, MapType, RowType)


class DataTypes:
    """Short names for building types: ``DataTypes.decimal(10, 2)``, ``DataTypes.array(DataTypes.int())``."""

    boolean = BooleanType
    tinyint = TinyIntType
    smallint = SmallIntType
    int = IntType
    bigint = BigIntType
    float = FloatType
    double = DoubleType
    decimal = DecimalType
    char = CharType
    string = StringType
    binary = BinaryType
    bytes = BytesType
    date = DateType
    time = TimeType
    timestamp = TimestampType
    timestamp_ltz = TimestampLtzType
    array = ArrayType
    map = MapType
    row = RowType
    field = DataField


_SIZED_TYPES: dict[str, type[DataType]] = {
    cls.json_name: cls for cls in (CharType, BinaryType, DecimalType, TimeType, TimestampType, TimestampLtzType)
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
    if name in _SIZED_TYPES:
        cls = _SIZED_TYPES[name]
        return cls(**{key: document[key] for key in cls.__dataclass_fields__ if key in document})
    if name == ArrayType.json_name:
        element_type = _from_json(document.get("element_type"), f"{where}.element_type", depth + 1)
        return ArrayType(element_type, nullable=nullable)
    if name == MapType.json_name:
        # Two levels in Arrow, which has a struct of key and value in between.
        key_type = _from_json(document.get("key_type"), f"{where}.key_type", depth + 2)
        value_type = _from_json(document.get("value_type"), f"{where}.value_type", depth + 2)
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


_OF_ARROW_ID: dict[int, type[DataType]] = {
    **{cls().to_arrow().id: cls for cls in PLAIN_TYPES.values()},
    pa.uint8().id: TinyIntType,
    pa.uint16().id: SmallIntType,
    pa.uint32().id: IntType,
    pa.uint64().id: BigIntType,
    pa.large_string().id: StringType,
    pa.large_binary().id: BytesType,
    pa.date64().id: DateType,
}

_PRECISION_OF_UNIT = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def _from_arrow(arrow_type: pa.DataType, nullable: bool, depth: int) -> DataType:
    if depth > MAX_TYPE_DEPTH:
        raise InvalidArgumentError(f"Arrow type is nested deeper than {MAX_TYPE_DEPTH} levels")
    if not isinstance(arrow_type, pa.DataType):
        raise InvalidArgumentError(f"expected an Arrow data type, not {arrow_type!r:.80}")
    if arrow_type.id in _OF_ARROW_ID:
        return _OF_ARROW_ID[arrow_type.id](nullable=nullable)
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
