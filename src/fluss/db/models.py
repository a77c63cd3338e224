# SPDX-License-Identifier: Apache-2.0
"""Row models: dataclasses and pydantic models as rows of a table, and as the description of one."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

from fluss._text import did_you_mean
from fluss.errors import InvalidArgumentError
from fluss.metadata import Column, Schema, TableInfo
from fluss.metadata import types as t
from fluss.metadata.type_text import parse_data_type
from fluss.rows.named_fields import is_pydantic

T = TypeVar("T")

_SIMPLE: dict[type, t.DataType] = {
    bool: t.BooleanType(),
    int: t.BigIntType(),
    float: t.DoubleType(),
    str: t.StringType(),
    bytes: t.BytesType(),
    decimal.Decimal: t.DecimalType(38, 18),
    dt.datetime: t.TimestampType(6),
    dt.date: t.DateType(),  # after datetime, which is a subclass of it
    dt.time: t.TimeType(3),
}

_OF_PYDANTIC: dict[type, t.DataType] = {**_SIMPLE, dt.datetime: t.TimestampLtzType(6)}
"""Pydantic reads times with a zone and without one: only this type takes both."""

_PYDANTIC_NAMES: dict[str, t.DataType] = {
    **dict.fromkeys(("AwareDatetime", "PastDatetime", "FutureDatetime"), t.TimestampLtzType(6)),
    "NaiveDatetime": t.TimestampType(6),
    **dict.fromkeys(("PastDate", "FutureDate"), t.DateType()),
}

_VALUES: tuple[tuple[tuple[type[t.DataType], ...], tuple[type, ...]], ...] = (
    ((t.BooleanType,), (bool,)),
    (t.INTEGER_TYPES, (int,)),
    (t.FLOAT_TYPES, (float,)),
    (t.TEXT_TYPES, (str,)),
    (t.BYTES_TYPES, (bytes,)),
    ((t.DecimalType,), (decimal.Decimal,)),
    ((t.DateType,), (dt.date,)),
    ((t.TimeType,), (dt.time,)),
    (t.TIMESTAMP_TYPES, (dt.datetime,)),
    ((t.ArrayType,), (list, tuple, set, frozenset)),
    ((t.MapType,), (dict,)),
)
"""Which Python types a column of a type can fill."""


@dataclasses.dataclass(frozen=True)
class ModelField:
    """One field of a model."""

    name: str
    annotation: Any
    metadata: tuple[Any, ...] = ()
    has_default: bool = False


class RowModel(Generic[T]):
    """How rows of a table become Python objects and back. The plain one gives dicts."""

    columns: list[str] | None = None
    """The columns that a row needs; None for all."""

    def make(self, rows: Sequence[dict[str, Any]]) -> list[T]:
        """Rows as objects."""
        return cast("list[T]", rows)

    def one(self, row: dict[str, Any]) -> T:
        """One row as an object."""
        return cast("T", row)


PLAIN: RowModel[dict[str, Any]] = RowModel()


class ClassModel(RowModel[T]):
    """Rows as instances of a dataclass or of a pydantic model."""

    def __init__(self, cls: type[T], info: TableInfo) -> None:
        fields = model_fields(cls)
        check_model(cls, fields, info)
        known = set(info.schema.column_names)
        self.columns = [field.name for field in fields if field.name in known]
        self._make: Callable[..., T] = cls
        if is_pydantic(cls):
            validate = cls.model_validate  # type: ignore[attr-defined]
            self._make = lambda **row: cast("T", validate(row))
        self._nested: dict[str, Callable[[Any], Any]] = {}
        if dataclasses.is_dataclass(cls):
            self._nested = _field_makers(fields)
        self._exact = self.columns == list(info.schema.column_names) and not self._nested

    def make(self, rows: Sequence[dict[str, Any]]) -> list[T]:
        make = self._make
        if self._exact:
            return [make(**row) for row in rows]
        return [self.one(row) for row in rows]

    def one(self, row: dict[str, Any]) -> T:
        values = {name: row[name] for name in self.columns or ()}
        for name, nested in self._nested.items():
            if values.get(name) is not None:
                values[name] = nested(values[name])
        return self._make(**values)


def _field_makers(fields: Sequence[ModelField]) -> dict[str, Callable[[Any], Any]]:
    makers = {field.name: _maker(field.annotation) for field in fields}
    return {name: make for name, make in makers.items() if make is not None}


def _maker(annotation: Any) -> Callable[[Any], Any] | None:
    """What makes a value of a field of a dataclass from that of a column; None if it is the same value."""
    plain, _ = _without_none(annotation)
    if typing.get_origin(plain) is Annotated:
        plain, _ = _without_none(typing.get_args(plain)[0])
    if isinstance(plain, type) and typing.get_origin(plain) is None:
        if issubclass(plain, enum.Enum):
            return plain
        if is_pydantic(plain):
            return cast("Callable[[Any], Any]", plain.model_validate)  # type: ignore[attr-defined]
        return _NestedMaker(plain) if dataclasses.is_dataclass(plain) else None
    origin, arguments = typing.get_origin(plain), typing.get_args(plain)
    if origin in (list, set, frozenset, tuple, Sequence) and arguments:
        collect: Callable[[Any], Any] = list if origin is Sequence else origin
        make = _maker(arguments[0])
        if make is None:
            return None if collect is list else collect
        return lambda values: collect(None if value is None else make(value) for value in values)
    if origin in (dict, Mapping) and arguments:
        key, item = _maker(arguments[0]) or _same, _maker(arguments[1]) or _same
        if key is not _same or item is not _same:
            return lambda values: {key(k): None if value is None else item(value) for k, value in values.items()}
    return None


def _same(value: Any) -> Any:
    return value


class _NestedMaker:
    """Makes instances of a dataclass inside a row. Its fields are looked at when the first one is made."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._nested: dict[str, Callable[[Any], Any]] | None = None

    def __call__(self, row: Mapping[str, Any]) -> Any:
        if self._nested is None:
            self._nested = _field_makers(model_fields(self._cls))
        values = dict(row)
        for name, nested in self._nested.items():
            if values.get(name) is not None:
                values[name] = nested(values[name])
        return self._cls(**values)


def is_model(value: object) -> bool:
    """Whether a class can describe rows."""
    return isinstance(value, type) and (dataclasses.is_dataclass(value) or is_pydantic(value))


def model_fields(cls: type) -> list[ModelField]:
    """The fields of a dataclass or pydantic model, with their annotations resolved."""
    if is_pydantic(cls):
        return [
            ModelField(name, field.annotation, tuple(field.metadata), not field.is_required())
            for name, field in cls.model_fields.items()  # type: ignore[attr-defined]
        ]
    if not dataclasses.is_dataclass(cls):
        raise InvalidArgumentError(f"rows are described by a dataclass or a pydantic model, and {cls!r:.80} is neither")
    try:
        hints = typing.get_type_hints(cls, include_extras=True)
    except NameError as error:
        raise InvalidArgumentError(f"cannot read the annotations of {cls.__name__}: {error}") from None
    missing = dataclasses.MISSING
    return [
        ModelField(
            field.name,
            hints[field.name],
            has_default=field.default is not missing or field.default_factory is not missing,
        )
        for field in dataclasses.fields(cls)
        if field.init
    ]


def model_schema(cls: type, primary_key: Sequence[str] = ()) -> Schema:
    """The schema of a table that holds instances of a dataclass or pydantic model.

    ``int`` is bigint, ``float`` double, ``datetime`` timestamp (of pydantic, whose datetimes may have a zone,
    timestamp_ltz); ``X | None`` is nullable, everything else is not.
    Another type is chosen with ``Annotated[decimal.Decimal, "decimal(10,2)"]``.
    """
    columns = []
    for field in model_fields(cls):
        try:
            columns.append(Column(field.name, _field_type(cls, field)))
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"field {field.name!r} of {cls.__name__}: {error.message}") from None
    return Schema.of(columns, primary_key)


def _field_type(cls: type, field: ModelField) -> t.DataType:
    return annotated_data_type(field.annotation, field.metadata, _OF_PYDANTIC if is_pydantic(cls) else _SIMPLE)


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        choices = [choice for choice in typing.get_args(annotation) if choice is not type(None)]
        if len(choices) < len(typing.get_args(annotation)) and len(choices) == 1:
            return choices[0], True
    return annotation, False


def annotated_data_type(
    annotation: Any, metadata: Sequence[Any] = (), simple: Mapping[type, t.DataType] = _SIMPLE
) -> t.DataType:
    """The type of a column for an annotation of a field: nullable with ``| None``, chosen with ``Annotated``."""
    plain, nullable = _without_none(annotation)
    if typing.get_origin(plain) is Annotated:
        plain, *more = typing.get_args(plain)
        metadata = [*metadata, *more]
        plain, nullable_inside = _without_none(plain)
        nullable = nullable or nullable_inside
    for note in metadata:
        if isinstance(note, t.DataType):
            return note.with_nullable(nullable)
        if isinstance(note, str):
            return parse_data_type(note).with_nullable(nullable)
    return python_data_type(plain, simple).with_nullable(nullable)


def python_data_type(annotation: Any, simple: Mapping[type, t.DataType] = _SIMPLE) -> t.DataType:
    """The type of a column that holds values of a Python type."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation in simple:
        return simple[annotation]
    if origin in (list, set, frozenset, Sequence) and arguments:
        return t.ArrayType(annotated_data_type(arguments[0], (), simple))
    if origin is tuple and len(arguments) == 2 and arguments[1] is Ellipsis:
        return t.ArrayType(annotated_data_type(arguments[0], (), simple))
    if origin in (dict, Mapping) and arguments:
        return t.MapType(annotated_data_type(arguments[0], (), simple), annotated_data_type(arguments[1], (), simple))
    if origin is Literal and arguments:
        return python_data_type(type(arguments[0]))
    if isinstance(annotation, type):
        if issubclass(annotation, enum.Enum):
            return python_data_type(type(next(iter(annotation)).value))
        if is_model(annotation):
            try:
                fields = [t.DataField(one.name, _field_type(annotation, one)) for one in model_fields(annotation)]
            except RecursionError:
                raise InvalidArgumentError(
                    f"{annotation.__name__} contains itself, which no type of a table can; "
                    "annotate the field, such as Annotated[…, 'string'], or leave it out"
                ) from None
            return t.RowType(tuple(fields))
        if annotation.__module__ == "pydantic.types" and annotation.__name__ in _PYDANTIC_NAMES:
            return _PYDANTIC_NAMES[annotation.__name__]
        for base, data_type in simple.items():
            if issubclass(annotation, base):
                return data_type
    name = getattr(annotation, "__name__", str(annotation))
    raise InvalidArgumentError(
        f"{name} has no counterpart among the types of a table; annotate it, such as Annotated[{name}, 'string']"
    )


def check_model(cls: type, fields: Sequence[ModelField], info: TableInfo) -> None:
    """Compare a model with a table; the error names every field that does not fit."""
    columns = {column.name: column.data_type for column in info.schema.columns}
    problems = []
    for field in fields:
        data_type = columns.get(field.name)
        if data_type is None:
            if not field.has_default:
                problems.append(f"the table has no column {field.name!r}{did_you_mean(field.name, columns)}")
        elif not _fits(field.annotation, data_type):
            shown = getattr(field.annotation, "__name__", None) or str(field.annotation)
            problems.append(f"{field.name!r} is {data_type} in the table and {shown} in the model")
    if problems:
        raise InvalidArgumentError(f"{cls.__name__} does not fit table {info.table_path}: {'; '.join(problems)}")


def _fits(annotation: Any, data_type: t.DataType) -> bool:
    """Whether values of a column can fill a field. What is not known to be wrong passes."""
    plain, _ = _without_none(annotation)
    if typing.get_origin(plain) is Annotated:
        plain, _ = _without_none(typing.get_args(plain)[0])
    origin = typing.get_origin(plain)
    found = origin if isinstance(origin, type) else plain
    if not isinstance(found, type) or found not in _KNOWN:
        return True
    accepted = [kinds for data_types, kinds in _VALUES if isinstance(data_type, data_types)]
    # Every bool is an int and every datetime a date to Python, but not to a table.
    return not accepted or found in accepted[0]


_KNOWN = frozenset(kind for _, kinds in _VALUES for kind in kinds)


def row_model(cls: type[T] | None, info: TableInfo) -> RowModel[T]:
    """The model of a table's rows: dicts without a class."""
    return cast("RowModel[T]", PLAIN) if cls is None else ClassModel(cls, info)
