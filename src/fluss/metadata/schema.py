# SPDX-License-Identifier: Apache-2.0
"""The schema of a table: columns with ids, primary key, auto-increment column."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from fluss.errors import InvalidArgumentError, InvalidConfigError, InvalidTableError
from fluss.metadata import types as t
from fluss.metadata.checks import (
    JsonDocument,
    check_string,
    list_of,
    mapping_of,
    member,
    optional_member,
    read_document,
    read_names,
    read_strings,
    require,
    wrong_value,
)

SCHEMA_JSON_VERSION = 1

NUMERIC_TYPES = (*t.INTEGER_TYPES, *t.FLOAT_TYPES, t.DecimalType)
COMPARABLE_TYPES = (*t.TEXT_TYPES, *NUMERIC_TYPES, t.DateType, t.TimeType, *t.TIMESTAMP_TYPES)
STATISTICS_TYPES = (t.BooleanType, *COMPARABLE_TYPES)
"""The types that batches of a log table can carry statistics of."""


@dataclass(frozen=True)
class AggFunction:
    """How the aggregation merge engine combines the values of a column. Names are read in any case, with - or _."""

    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_string("the name of an AggFunction", self.name)
        object.__setattr__(self, "name", self.name.lower().replace("-", "_"))
        object.__setattr__(self, "parameters", dict(mapping_of("the parameters of an AggFunction", self.parameters)))

    def to_json(self) -> dict[str, Any]:
        """The object of the JSON documents."""
        document: dict[str, Any] = {"type": self.name}
        if self.parameters:
            document["parameters"] = dict(self.parameters)
        return document

    @staticmethod
    def from_json(document: Any, where: str = "agg_function") -> AggFunction:
        """Read the object of the JSON documents."""
        document = require(document, dict, where)
        name = member(document, "type", str, where)
        return AggFunction(name, read_strings(document.get("parameters", {}), f"{where}.parameters"))

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.parameters.items()))))


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    data_type: t.DataType
    comment: str | None = None
    column_id: int = -1
    """The id that stays with the column for ever; -1 until a schema gives it one."""
    agg_function: AggFunction | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidArgumentError(f"the name of a column must be a non-empty string, not {self.name!r}")
        if not isinstance(self.data_type, t.DataType):
            raise InvalidArgumentError(f"the type of column {self.name!r} must be a DataType, not {self.data_type!r}")
        if not isinstance(self.column_id, int) or isinstance(self.column_id, bool) or self.column_id < -1:
            raise InvalidArgumentError(f"the id of column {self.name!r} must be a number, not {self.column_id!r}")

    def to_json(self) -> dict[str, Any]:
        """The column object of the JSON documents."""
        document: dict[str, Any] = {"name": self.name, "data_type": self.data_type.to_json()}
        if self.comment is not None:
            document["comment"] = self.comment
        if self.agg_function is not None:
            document["agg_function"] = self.agg_function.to_json()
        document["id"] = self.column_id
        return document

    @staticmethod
    def from_json(document: Any, where: str = "column") -> Column:
        """Read the column object of the JSON documents."""
        document = require(document, dict, where)
        name = member(document, "name", str, where)
        if not name:
            raise InvalidTableError(f"{where}.name: the name of a column must not be empty")
        agg_function = document.get("agg_function")
        return Column(
            name,
            t.data_type_from_json(document.get("data_type"), f"{where}.data_type"),
            optional_member(document, "comment", str, where),
            max(require(document.get("id", -1), int, f"{where}.id"), -1),
            None if agg_function is None else AggFunction.from_json(agg_function, f"{where}.agg_function"),
        )

    def to_arrow(self) -> pa.Field:
        """The Arrow field that holds this column."""
        return pa.field(self.name, self.data_type.to_arrow(), nullable=self.data_type.nullable)


def _number_type(data_type: t.DataType, next_id: int) -> tuple[t.DataType, int]:
    """Give ids to the fields of all rows inside a type, depth first; returns the next free id."""
    if isinstance(data_type, t.ArrayType):
        element_type, next_id = _number_type(data_type.element_type, next_id)
        return replace(data_type, element_type=element_type), next_id
    if isinstance(data_type, t.MapType):
        key_type, next_id = _number_type(data_type.key_type, next_id)
        value_type, next_id = _number_type(data_type.value_type, next_id)
        return replace(data_type, key_type=key_type, value_type=value_type), next_id
    if isinstance(data_type, t.RowType):
        fields = []
        for item in data_type.fields:
            field_id = next_id
            field_type, next_id = _number_type(item.data_type, next_id + 1)
            fields.append(replace(item, data_type=field_type, field_id=field_id))
        return replace(data_type, fields=tuple(fields)), next_id
    return data_type, next_id


def _number_column(column: Column, next_id: int) -> tuple[Column, int]:
    """Give a column the id `next_id` and its nested fields the ids after it; returns the next free id."""
    data_type, after = _number_type(column.data_type, next_id + 1)
    return replace(column, column_id=next_id, data_type=data_type), after


def _nested_ids(data_type: t.DataType) -> list[int]:
    if isinstance(data_type, t.ArrayType):
        return _nested_ids(data_type.element_type)
    if isinstance(data_type, t.MapType):
        return _nested_ids(data_type.key_type) + _nested_ids(data_type.value_type)
    if isinstance(data_type, t.RowType):
        ids: list[int] = []
        for item in data_type.fields:
            ids.append(item.field_id)
            ids += _nested_ids(item.data_type)
        return ids
    return []


def _duplicates(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]


class Schema(JsonDocument):
    """The columns of a table, its primary key and its auto-increment column.

    ``Schema(arrow_schema, primary_keys=["id"])`` is the usual way; `Schema.builder` and `Schema.of` build one from
    logical types. Columns of the primary key become NOT NULL. A schema never changes.
    """

    document_name = "schema"

    columns: tuple[Column, ...]
    primary_key: tuple[str, ...]
    auto_increment_columns: tuple[str, ...]
    highest_field_id: int
    """The largest id ever given to a column or nested field of this table."""

    def __init__(
        self,
        schema: pa.Schema,
        primary_keys: Sequence[str] | None = None,
        auto_increment_column: str | None = None,
    ) -> None:
        if not isinstance(schema, pa.Schema):
            raise InvalidArgumentError(f"Schema takes a pyarrow.Schema, not {type(schema).__name__}")
        columns = []
        for item in schema:
            try:
                columns.append(Column(item.name, t.data_type_from_arrow(item.type, item.nullable)))
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"column {item.name!r}: {error.message}") from error
        auto_increment = () if auto_increment_column is None else (auto_increment_column,)
        self._init(columns, names_tuple("primary_keys", primary_keys), auto_increment, None)

    @classmethod
    def of(
        cls,
        columns: Iterable[Column],
        primary_key: Sequence[str] = (),
        auto_increment_columns: Sequence[str] = (),
        highest_field_id: int | None = None,
    ) -> Schema:
        """A schema of logical columns. Ids are kept if every column has one, and given out if none has."""
        schema = cls.__new__(cls)
        primary_key = names_tuple("primary_key", primary_key)
        schema._init(
            list(columns), primary_key, names_tuple("auto_increment_columns", auto_increment_columns), highest_field_id
        )
        return schema

    @staticmethod
    def builder() -> SchemaBuilder:
        """Build a schema column by column."""
        return SchemaBuilder()

    def _init(
        self,
        columns: list[Column],
        primary_key: tuple[str, ...],
        auto_increment_columns: tuple[str, ...],
        highest_field_id: int | None,
    ) -> None:
        _check_names(columns, primary_key)
        keys = set(primary_key)
        columns = [
            replace(column, data_type=column.data_type.with_nullable(False)) if column.name in keys else column
            for column in columns
        ]
        columns, highest = _with_ids(columns, highest_field_id)
        self.columns = tuple(columns)
        self.primary_key = primary_key
        self.auto_increment_columns = auto_increment_columns
        self.highest_field_id = highest
        self._check_auto_increment()
        for column in columns:
            if column.agg_function is not None and column.name in keys:
                raise InvalidTableError(
                    f"column {column.name!r} is part of the primary key and cannot have an aggregation function"
                )

    def _check_auto_increment(self) -> None:
        names = self.auto_increment_columns
        if not names:
            return
        if len(names) > 1:
            raise InvalidTableError(f"a table can have one auto-increment column, not {len(names)}: {', '.join(names)}")
        name = names[0]
        if name not in self.column_names:
            raise InvalidTableError(f"auto-increment column {name!r} is not among the columns")
        if not self.primary_key:
            raise InvalidTableError(f"auto-increment column {name!r}: only tables with a primary key can have one")
        if name in self.primary_key:
            raise InvalidTableError(f"auto-increment column {name!r} cannot be part of the primary key")
        data_type = self.column(name).data_type
        if not isinstance(data_type, (t.IntType, t.BigIntType)):
            raise InvalidTableError(f"auto-increment column {name!r} must be int or bigint, not {data_type}")

    def with_added_columns(self, columns: Iterable[Column]) -> Schema:
        """A schema with columns appended; their ids continue from the highest id ever used."""
        added, next_id = [], self.highest_field_id + 1
        for column in columns:
            column, next_id = _number_column(column, next_id)
            added.append(column)
        return Schema.of((*self.columns, *added), self.primary_key, self.auto_increment_columns, next_id - 1)

    # -- reading ---------------------------------------------------------------------------------------------------

    @cached_property
    def column_names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(column.name for column in self.columns)

    @cached_property
    def _index_of_name(self) -> dict[str, int]:
        return {name: index for index, name in enumerate(self.column_names)}

    def column_index(self, name: str) -> int:
        """The position of a column, from 0."""
        index = self._index_of_name.get(name)
        if index is None:
            raise InvalidArgumentError(f"no column {name!r}; the columns are {', '.join(self.column_names)}")
        return index

    def column(self, name: str) -> Column:
        """The column of this name."""
        return self.columns[self.column_index(name)]

    @property
    def has_primary_key(self) -> bool:
        """Whether the table has a primary key."""
        return bool(self.primary_key)

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of the table's batches."""
        return pa.schema([column.to_arrow() for column in self.columns])

    @cached_property
    def row_type(self) -> t.RowType:
        """The columns as one row type; field ids are the column ids."""
        return t.RowType(
            tuple(t.DataField(c.name, c.data_type, c.comment, c.column_id) for c in self.columns), nullable=False
        )

    @property
    def data_types(self) -> tuple[t.DataType, ...]:
        """The types of the columns, in order."""
        return tuple(column.data_type for column in self.columns)

    def get_column_names(self) -> list[str]:
        """The names of the columns, in order."""
        return list(self.column_names)

    def get_column_types(self) -> list[str]:
        """The types of the columns as text, for instance ``decimal(10,2) NOT NULL``."""
        return [str(column.data_type) for column in self.columns]

    def get_columns(self) -> list[tuple[str, str]]:
        """Pairs of name and type text."""
        return list(zip(self.get_column_names(), self.get_column_types()))

    def get_primary_keys(self) -> list[str]:
        """The columns of the primary key; empty for log tables."""
        return list(self.primary_key)

    def get_auto_increment_columns(self) -> list[str]:
        """The auto-increment columns: none or one."""
        return list(self.auto_increment_columns)

    # -- documents -------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The schema document."""
        document: dict[str, Any] = {
            "version": SCHEMA_JSON_VERSION,
            "columns": [column.to_json() for column in self.columns],
            "highest_field_id": self.highest_field_id,
        }
        if self.primary_key:
            document["primary_key"] = list(self.primary_key)
        if self.auto_increment_columns:
            document["auto_increment_column"] = list(self.auto_increment_columns)
        return document

    @classmethod
    def from_json(cls, document: Any, where: str = "schema") -> Schema:
        """Read a schema document. Broken documents are a FormatError, broken rules an InvalidTableError."""
        document = read_document(document, where, SCHEMA_JSON_VERSION)
        items = member(document, "columns", list, where)
        return cls.of(
            [Column.from_json(item, f"{where}.columns[{index}]") for index, item in enumerate(items)],
            read_names(document, "primary_key", where),
            read_names(document, "auto_increment_column", where),
            optional_member(document, "highest_field_id", int, where),
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return (
            self.columns == other.columns
            and self.primary_key == other.primary_key
            and self.auto_increment_columns == other.auto_increment_columns
            and self.highest_field_id == other.highest_field_id
        )

    def __hash__(self) -> int:
        return hash((self.columns, self.primary_key))

    def __reduce__(self) -> tuple[Any, ...]:
        return Schema.of, (self.columns, self.primary_key, self.auto_increment_columns, self.highest_field_id)

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from html import escape  # its table of entities is loaded for notebooks alone

        rows = "".join(
            f"<tr><td>{escape(column.name)}</td><td><code>{escape(str(column.data_type))}</code></td>"
            f"<td>{'primary key' if column.name in self.primary_key else ''}</td></tr>"
            for column in self.columns
        )
        return f"<table><thead><tr><th>column</th><th>type</th><th></th></tr></thead><tbody>{rows}</tbody></table>"

    def __str__(self) -> str:
        return f"Schema: columns={self.get_columns()}"

    def __repr__(self) -> str:
        parts = [", ".join(f"{name} {text}" for name, text in self.get_columns())]
        if self.primary_key:
            parts.append(f"primary_key={list(self.primary_key)}")
        if self.auto_increment_columns:
            parts.append(f"auto_increment_column={self.auto_increment_columns[0]!r}")
        return f"Schema({'; '.join(parts)})"


def names_tuple(what: str, names: Sequence[str] | None) -> tuple[str, ...]:
    """A list of names; a lone string would silently be taken for its characters."""
    if names is None:
        return ()
    listed = list_of(what, "a list of column names", names)
    if not all(isinstance(name, str) for name in listed):
        raise wrong_value(what, "a list of column names", names)
    return tuple(listed)


def _check_names(columns: list[Column], primary_key: tuple[str, ...]) -> None:
    if not columns:
        raise InvalidTableError("a table needs at least one column")
    names = [column.name for column in columns]
    if repeated := _duplicates(names):
        raise InvalidTableError(f"column names must be unique; repeated: {', '.join(repeated)}")
    if repeated := _duplicates(primary_key):
        raise InvalidTableError(f"columns of the primary key must be unique; repeated: {', '.join(repeated)}")
    if unknown := [name for name in primary_key if name not in names]:
        raise InvalidTableError(
            f"primary key columns {', '.join(unknown)} are not among the columns {', '.join(names)}"
        )


def _with_ids(columns: list[Column], highest_field_id: int | None) -> tuple[list[Column], int]:
    """Give ids to columns that have none, or check those they have; returns the highest id too."""
    with_id = [column for column in columns if column.column_id >= 0]
    if not with_id:
        numbered, next_id = [], 0
        for column in columns:
            column, next_id = _number_column(column, next_id)
            numbered.append(column)
        return numbered, max(next_id - 1, -1 if highest_field_id is None else highest_field_id)
    if len(with_id) < len(columns):
        missing = [column.name for column in columns if column.column_id < 0]
        raise InvalidTableError(f"either all columns carry an id or none; without one: {', '.join(missing)}")
    ids = [i for column in columns for i in (column.column_id, *_nested_ids(column.data_type))]
    if len(set(ids)) < len(ids):
        raise InvalidTableError(f"column and field ids must be unique over all levels, found {sorted(ids)}")
    highest = max(ids) if highest_field_id is None else highest_field_id
    if max(ids) > highest:
        raise InvalidTableError(f"highest_field_id {highest} is below the largest id in use, {max(ids)}")
    return columns, highest


def statistics_columns(schema: Schema, names: Sequence[str] | None) -> tuple[int, ...]:
    """The positions of the columns that `table.statistics.columns` names: ``*`` means all of a type that can have them.

    Raises:
        InvalidConfigError: A name is empty, unknown, named twice, or that of a column whose type has no statistics.
    """
    if not names:
        return ()
    if tuple(names) == ("*",):
        return tuple(i for i, c in enumerate(schema.columns) if isinstance(c.data_type, STATISTICS_TYPES))
    what = "'table.statistics.columns'"
    if "" in names:
        raise InvalidConfigError(f"{what} must be '*' or a list of column names, without empty ones.")
    if repeated := _duplicates(names):
        raise InvalidConfigError(f"{what} names a column twice: {repeated[0]!r}.")
    positions = []
    for name in names:
        try:
            position = schema.column_index(name)
        except InvalidArgumentError as error:
            raise InvalidConfigError(f"{what}: {error.message}") from None
        data_type = schema.columns[position].data_type
        if not isinstance(data_type, STATISTICS_TYPES):
            raise InvalidConfigError(f"{what}: column '{name}' has type {data_type}, which has no statistics.")
        positions.append(position)
    return tuple(positions)


class SchemaBuilder:
    """Builds a schema column by column. Every call returns the builder."""

    def __init__(self) -> None:
        self._columns: list[Column] = []
        self._primary_key: tuple[str, ...] = ()
        self._auto_increment: tuple[str, ...] = ()

    def column(
        self,
        name: str,
        data_type: t.DataType,
        comment: str | None = None,
        agg_function: AggFunction | str | None = None,
    ) -> SchemaBuilder:
        """Add a column."""
        if isinstance(agg_function, str):
            agg_function = AggFunction(agg_function)
        self._columns.append(Column(name, data_type, comment, agg_function=agg_function))
        return self

    def with_comment(self, comment: str) -> SchemaBuilder:
        """Set the comment of the column added last."""
        if not self._columns:
            raise InvalidArgumentError("with_comment: add a column first")
        self._columns[-1] = replace(self._columns[-1], comment=comment)
        return self

    def primary_key(self, keys: Sequence[str]) -> SchemaBuilder:
        """Set the columns of the primary key."""
        self._primary_key = names_tuple("primary_key", keys)
        return self

    def enable_auto_increment(self, name: str) -> SchemaBuilder:
        """Let the server fill this column with growing numbers."""
        self._auto_increment = (*self._auto_increment, name)
        return self

    def build(self) -> Schema:
        """The schema."""
        return Schema.of(self._columns, self._primary_key, self._auto_increment)
