# SPDX-License-Identifier: Apache-2.0
"""The logical data types of a table, and how they map to JSON documents and to Arrow."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, TypeVar

import pyarrow as pa

from fluss.errors import InvalidArgumentError
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
        document.update(self._json_parameters())
        return document

    def to_arrow(self) -> pa.DataType:
        """The Arrow type that holds columns of this type."""
        raise InvalidArgumentError(f"{type(self).__name__} is not a concrete data type")

    def _json_parameters(self) -> dict[str, Any]:
        return {}

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

    json_name: ClassVar[str] = "BOOLEAN"

    def to_arrow(self) -> pa.DataType:
        return pa.bool_()


class TinyIntType(DataType):
    """An 8-bit signed integer."""

    json_name: ClassVar[str] = "TINYINT"

    def to_arrow(self) -> pa.DataType:
        return pa.int8()


class SmallIntType(DataType):
    """A 16-bit signed integer."""

    json_name: ClassVar[str] = "SMALLINT"

    def to_arrow(self) -> pa.DataType:
        return pa.int16()


class IntType(DataType):
    """A 32-bit signed integer."""

    json_name: ClassVar[str] = "INTEGER"

    def to_arrow(self) -> pa.DataType:
        return pa.int32()

    def _name(self) -> str:
        return "int"


class BigIntType(DataType):
    """A 64-bit signed integer."""

    json_name: ClassVar[str] = "BIGINT"

    def to_arrow(self) -> pa.DataType:
        return pa.int64()


class FloatType(DataType):
    """A 32-bit floating point number."""

    json_name: ClassVar[str] = "FLOAT"

    def to_arrow(self) -> pa.DataType:
        return pa.float32()


class DoubleType(DataType):
    """A 64-bit floating point number."""

    json_name: ClassVar[str] = "DOUBLE"

    def to_arrow(self) -> pa.DataType:
        return pa.float64()


@dataclass(frozen=True, eq=False, repr=False)
class CharType(DataType):
    """A string of a declared length."""

    json_name: ClassVar[str] = "CHAR"

    length: int = 1

    def __post_init__(self) -> None:
        _check_int("the length of CHAR", self.length, 1, MAX_LENGTH)

    def to_arrow(self) -> pa.DataType:
        return pa.string()

    def _json_parameters(self) -> dict[str, Any]:
        return {"length": self.length}

    def _name(self) -> str:
        return f"char({self.length})"


class StringType(DataType):
    """A string of any length."""

    json_name: ClassVar[str] = "STRING"

    def to_arrow(self) -> pa.DataType:
        return pa.string()


@dataclass(frozen=True, eq=False, repr=False)
class BinaryType(DataType):
    """A byte string of a fixed length."""

    json_name: ClassVar[str] = "BINARY"

    length: int = 1

    def __post_init__(self) -> None:
        _check_int("the length of BINARY", self.length, 1, MAX_LENGTH)

    def to_arrow(self) -> pa.DataType:
        return pa.binary(self.length)

    def _json_parameters(self) -> dict[str, Any]:
        return {"length": self.length}

    def _name(self) -> str:
        return f"binary({self.length})"


class BytesType(DataType):
    """A byte string of any length."""

    json_name: ClassVar[str] = "BYTES"

    def to_arrow(self) -> pa.DataType:
        return pa.binary()


@dataclass(frozen=True, eq=False, repr=False)
class DecimalType(DataType):
    """An exact decimal number."""

    json_name: ClassVar[str] = "DECIMAL"

    precision: int = 10
    scale: int = 0

    def __post_init__(self) -> None:
        _check_int("the precision of DECIMAL", self.precision, 1, 38)
        _check_int("the scale of DECIMAL", self.scale, 0, self.precision)

    def to_arrow(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)

    def _json_parameters(self) -> dict[str, Any]:
        return {"precision": self.precision, "scale": self.scale}

    def _name(self) -> str:
        return f"decimal({self.precision},{self.scale})"


class DateType(DataType):
    """A calendar day."""

    json_name: ClassVar[str] = "DATE"

    def to_arrow(self) -> pa.DataType:
        return pa.date32()


def arrow_time_unit(precision: int) -> str:
    """The Arrow unit that holds `precision` digits of a second."""
    return ("s", "ms", "us", "ns")[(precision + 2) // 3]


@dataclass(frozen=True, eq=False, repr=False)
class TimeType(DataType):
    """A time of day. Whatever the precision, values are kept in milliseconds."""

    json_name: ClassVar[str] = "TIME_WITHOUT_TIME_ZONE"

    precision: int = 0

    def __post_init__(self) -> None:
        _check_int("the precision of TIME", self.precision, 0, 9)

    def to_arrow(self) -> pa.DataType:
        unit = arrow_time_unit(self.precision)
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)

    def _json_parameters(self) -> dict[str, Any]:
        return {"precision": self.precision}

    def _name(self) -> str:
        return f"time({self.precision})" if self.precision else "time"


@dataclass(frozen=True, eq=False, repr=False)
class TimestampType(DataType):
    """A date and time of a wall clock, without a zone."""

    json_name: ClassVar[str] = "TIMESTAMP_WITHOUT_TIME_ZONE"

    precision: int = 6

    def __post_init__(self) -> None:
        _check_int("the precision of TIMESTAMP", self.precision, 0, 9)

    def to_arrow(self) -> pa.DataType:
        return pa.timestamp(arrow_time_unit(self.precision))

    def _json_parameters(self) -> dict[str, Any]:
        return {"precision": self.precision}

    def _name(self) -> str:
        return "timestamp" if self.precision == 6 else f"timestamp({self.precision})"


@dataclass(frozen=True, eq=False, repr=False)
class TimestampLtzType(DataType):
    """An instant, shown in the zone of the reader."""

    json_name: ClassVar[str] = "TIMESTAMP_WITH_LOCAL_TIME_ZONE"

    precision: int = 6

    def __post_init__(self) -> None:
        _check_int("the precision of TIMESTAMP_LTZ", self.precision, 0, 9)

    def to_arrow(self) -> pa.DataType:
        return pa.timestamp(arrow_time_unit(self.precision), tz="UTC")

    def _json_parameters(self) -> dict[str, Any]:
        return {"precision": self.precision}

    def _name(self) -> str:
        return "timestamp_ltz" if self.precision == 6 else f"timestamp_ltz({self.precision})"


@dataclass(frozen=True, eq=False, repr=False)
class ArrayType(DataType):
    """A list of values of one type."""

    json_name: ClassVar[str] = "ARRAY"

    element_type: DataType

    def __post_init__(self) -> None:
        _check_type("the element type of ARRAY", self.element_type)

    def to_arrow(self) -> pa.DataType:
        return pa.list_(pa.field("element", self.element_type.to_arrow(), nullable=self.element_type.nullable))

    def _json_parameters(self) -> dict[str, Any]:
        return {"element_type": self.element_type.to_json()}

    def _name(self) -> str:
        return f"array<{self.element_type}>"


@dataclass(frozen=True, eq=False, repr=False)
class MapType(DataType):
    """Pairs of keys and values. Keys are never null."""

    json_name: ClassVar[str] = "MAP"

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

    def _json_parameters(self) -> dict[str, Any]:
        return {"key_type": self.key_type.to_json(), "value_type": self.value_type.to_json()}

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

    json_name: ClassVar[str] = "ROW"

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

    def _json_parameters(self) -> dict[str, Any]:
        return {"fields": [item.to_json() for item in self.fields]}

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


class DataTypes:
    """Short names for building types: ``DataTypes.decimal(10, 2)``, ``DataTypes.array(DataTypes.int())``."""

    @staticmethod
    def boolean() -> BooleanType:
        return BooleanType()

    @staticmethod
    def tinyint() -> TinyIntType:
        return TinyIntType()

    @staticmethod
    def smallint() -> SmallIntType:
        return SmallIntType()

    @staticmethod
    def int() -> IntType:
        return IntType()

    @staticmethod
    def bigint() -> BigIntType:
        return BigIntType()

    @staticmethod
    def float() -> FloatType:
        return FloatType()

    @staticmethod
    def double() -> DoubleType:
        return DoubleType()

    @staticmethod
    def string() -> StringType:
        return StringType()

    @staticmethod
    def bytes() -> BytesType:
        return BytesType()

    @staticmethod
    def date() -> DateType:
        return DateType()

    # The factory `int` above hides the builtin inside this class body, hence Any for plain numbers.

    @staticmethod
    def time(precision: Any = 0) -> TimeType:
        return TimeType(precision)

    @staticmethod
    def timestamp(precision: Any = 6) -> TimestampType:
        return TimestampType(precision)

    @staticmethod
    def timestamp_ltz(precision: Any = 6) -> TimestampLtzType:
        return TimestampLtzType(precision)

    @staticmethod
    def decimal(precision: Any, scale: Any = 0) -> DecimalType:
        return DecimalType(precision, scale)

    @staticmethod
    def char(length: Any) -> CharType:
        return CharType(length)

    @staticmethod
    def binary(length: Any) -> BinaryType:
        return BinaryType(length)

    @staticmethod
    def array(element_type: DataType) -> ArrayType:
        return ArrayType(element_type)

    @staticmethod
    def map(key_type: DataType, value_type: DataType) -> MapType:
        return MapType(key_type, value_type)

    @staticmethod
    def row(fields: Iterable[DataField]) -> RowType:
        return RowType(fields)  # type: ignore[arg-type]

    @staticmethod
    def field(name: str, data_type: DataType, description: str | None = None) -> DataField:
        return DataField(name, data_type, description)
