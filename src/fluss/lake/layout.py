# SPDX-License-Identifier: Apache-2.0
"""What lake tables look like, whatever the format: which lake, which extra columns, which properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from fluss.errors import ConfigError, InvalidArgumentError, InvalidConfigError, InvalidTableError
from fluss.lake.api import LakeTableChangedError, LakeWriter, Rows, WrittenFiles
from fluss.metadata import Column, StringType, TableDescriptor, TableInfo
from fluss.metadata.properties import check_lake_properties, lake_options

FieldT = TypeVar("FieldT")

BUCKET_COLUMN = "__bucket"
OFFSET_COLUMN = "__offset"
TIMESTAMP_COLUMN = "__timestamp"
SYSTEM_COLUMNS = (BUCKET_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN)
SYSTEM_FIELDS = {
    BUCKET_COLUMN: pa.field(BUCKET_COLUMN, pa.int32()),
    OFFSET_COLUMN: pa.field(OFFSET_COLUMN, pa.int64()),
    TIMESTAMP_COLUMN: pa.field(TIMESTAMP_COLUMN, pa.timestamp("us", tz="UTC")),
}


@dataclass(frozen=True)
class LakeConfig:
    """Which lake a table lies in: the format, and the options of its catalog."""

    lake_format: str
    options: Mapping[str, str]

    def __repr__(self) -> str:
        # The values may hold credentials.
        return f"LakeConfig({self.lake_format!r}, options {sorted(self.options)})"


def lake_config(info: TableInfo, extra: Mapping[str, str] | None = None) -> LakeConfig:
    """The lake of a table as the server describes it, with options that only the caller has (credentials) on top.

    `extra` may name options as the server does (``datalake.paimon.warehouse``) or without the prefix (``warehouse``).
    """
    lake_format = info.lake_format
    if lake_format is None:
        raise ConfigError(
            f"table {info.table_path} has no lake: set datalake.format on the server and create it again with "
            "table.datalake.enabled"
        )
    try:
        check_lake_properties({**info.properties, **info.custom_properties})
    except InvalidConfigError as error:
        # A table of a server that took any property: nothing of the lake is opened with it.
        hint = "take it off with alter_table(reset_properties=[...]) or 'fluss alter TABLE reset KEY', or correct it"
        raise error.replace(table=str(info.table_path), hint=hint) from None
    prefix = f"table.datalake.{lake_format}."
    options = {name[len(prefix) :]: value for name, value in info.properties.items() if name.startswith(prefix)}
    options |= strip_prefix(lake_format, extra or {})
    return LakeConfig(lake_format, options)


def strip_prefix(lake_format: str, options: Mapping[str, str]) -> dict[str, str]:
    """Options without ``datalake.<format>.``; those of other formats are left out."""
    prefix = f"datalake.{lake_format}."
    found = {}
    for name, value in options.items():
        if name.startswith(prefix):
            found[name[len(prefix) :]] = value
        elif not name.startswith("datalake."):
            found[name] = value
    return found


def lake_properties(lake_format: str, descriptor: TableDescriptor) -> dict[str, str]:
    """Properties of the lake table: those meant for the format bare, all others under ``fluss.``."""
    properties = {**descriptor.properties, **descriptor.custom_properties}
    # Settings of the catalog are shown on the table to its readers; they are no part of the table.
    handed = (f"{lake_format}.", f"table.datalake.{lake_format}.")
    others = {f"fluss.{name}": value for name, value in properties.items() if not name.startswith(handed)}
    return {**lake_options(lake_format, properties), **others}


def check_column_names(descriptor: TableDescriptor) -> None:
    for column in descriptor.schema.columns:
        if column.name in SYSTEM_COLUMNS:
            raise InvalidArgumentError(
                f"column '{column.name}' has the name of a column that lake tables add; please rename it"
            )


def check_string_partitions(descriptor: TableDescriptor, lake: str) -> None:
    for name in descriptor.partition_keys:
        if not isinstance(descriptor.schema.column(name).data_type, StringType):
            raise InvalidTableError(f"partition keys of tables in {lake} are strings; column '{name}' is not")


class LakeBatchConverter:
    """Rows of a Fluss table in the columns and types of a lake table."""

    def __init__(self, target: pa.Schema, bucket: int, what: str) -> None:
        self._target = target
        self._bucket = bucket
        self._what = what

    def convert(self, rows: Rows) -> pa.RecordBatch:
        batch = rows.batch
        known = {name: i for i, name in enumerate(batch.schema.names)}
        left = set(known) - set(self._target.names)
        if left:
            raise LakeTableChangedError(f"{self._what} has no column {', '.join(sorted(left))}")
        count = batch.num_rows
        arrays = []
        for field in self._target:
            if field.name in known:
                arrays.append(self._cast(batch.column(known[field.name]), field))
            elif field.name == BUCKET_COLUMN:
                arrays.append(pa.array(np.full(count, self._bucket, np.int32)))
            elif field.name == OFFSET_COLUMN:
                arrays.append(pa.array(rows.offsets))
            elif field.name == TIMESTAMP_COLUMN:
                arrays.append(cast_array(pa.array(rows.timestamps_ms, pa.timestamp("ms", "UTC")), field.type))
            else:
                arrays.append(pa.nulls(count, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self._target)

    def _cast(self, array: pa.Array, field: pa.Field) -> pa.Array:
        try:
            return cast_array(array, field.type)
        except pa.ArrowInvalid as error:
            raise InvalidArgumentError(
                f"values do not fit the type {field.type} in {self._what}: {error}", column=field.name
            ) from None


class LakeFiles(Protocol):
    """New files with rows of one bucket."""

    schema: pa.Schema

    def write(self, batch: pa.RecordBatch) -> None: ...

    def finish(self) -> WrittenFiles:
        """Close the files."""

    def remove(self) -> None:
        """Delete everything written so far. Never raises."""


class LakeAppendWriter(LakeWriter):
    """Rows of one bucket of a log table."""

    def __init__(self, files: LakeFiles, converter: LakeBatchConverter) -> None:
        self._files = files
        self._converter = converter
        self._has_rows = False

    def write(self, rows: Rows) -> None:
        self._files.write(self._converter.convert(rows))
        self._has_rows = True

    def finish(self) -> WrittenFiles | None:
        return self._files.finish() if self._has_rows else None

    def abort(self) -> None:
        self._files.remove()


def cast_array(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """An array in another type that can hold its values."""
    if array.type == dtype:
        return array
    # Finer digits of a timestamp than the column keeps are cut, as every writer of the format does.
    return array.cast(dtype, safe=not (pa.types.is_timestamp(array.type) and pa.types.is_timestamp(dtype)))


def map_types(
    kind: pa.DataType, convert: Callable[[pa.DataType], pa.DataType], *, nullable_fields: bool = False
) -> pa.DataType:
    """Return a type with all plain types in it converted; with `nullable_fields`, fields of rows take nulls."""

    def mapped(field: pa.Field) -> pa.Field:
        return field.with_type(map_types(field.type, convert, nullable_fields=nullable_fields))

    if pa.types.is_list(kind):
        return pa.list_(mapped(kind.value_field))
    if pa.types.is_map(kind):
        return pa.map_(mapped(kind.key_field), mapped(kind.item_field))
    if pa.types.is_struct(kind):
        return pa.struct([mapped(field).with_nullable(field.nullable or nullable_fields) for field in kind])
    return convert(kind)


def _bare_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without what does not change values: names of elements and entries, and whether they take nulls."""
    if pa.types.is_list(kind):
        return pa.list_(_bare_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_bare_type(kind.key_type), _bare_type(kind.item_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _bare_type(field.type)) for field in kind])
    return kind


def column_differences(
    known: Mapping[str, FieldT],
    columns: Sequence[Column],
    difference: Callable[[FieldT, Column], str | None],
    is_required: Callable[[FieldT], bool],
) -> tuple[list[Column], list[str]]:
    """Columns of a Fluss table that a lake table lacks, and what of the others does not fit.

    Columns that only the lake has are fine while they may be null: a column is added there first.
    """
    missing, wrong = [], []
    others = {name: field for name, field in known.items() if name not in SYSTEM_COLUMNS}
    for column in columns:
        field = others.pop(column.name, None)
        if field is None:
            missing.append(column)
        elif problem := difference(field, column):
            wrong.append(f"column '{column.name}' {problem}")
    unknown = [name for name, field in others.items() if is_required(field)]
    return missing, wrong + [f"column '{name}' takes no nulls and is unknown to Fluss" for name in unknown]


def arrow_differences(
    schema: pa.Schema,
    columns: Sequence[Column],
    wanted_type: Callable[[Column], pa.DataType],
    found_type: Callable[[pa.DataType], pa.DataType] = lambda found: found,
) -> tuple[list[Column], list[str]]:
    """`column_differences` of a lake table whose columns are known as an Arrow schema."""

    def difference(field: pa.Field, column: Column) -> str | None:
        if _bare_type(found_type(field.type)) != _bare_type(wanted_type(column)):
            return f"is {field.type}, not {wanted_type(column)}"
        return "takes no nulls" if column.data_type.nullable and not field.nullable else None

    return column_differences(
        {field.name: field for field in schema}, columns, difference, lambda field: not field.nullable
    )


def read_schema(info: TableInfo, columns: Sequence[str]) -> pa.Schema:
    """The Arrow schema of some columns of a Fluss table, and of those that lake tables add to them."""
    schema = info.schema.arrow_schema
    return pa.schema([SYSTEM_FIELDS[name] if name in SYSTEM_FIELDS else schema.field(name) for name in columns])


def to_fluss(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A batch read from the lake in the columns and types of the Fluss table; columns added later are null."""
    known = {name: i for i, name in enumerate(batch.schema.names)}
    for name in (BUCKET_COLUMN, OFFSET_COLUMN):
        if name in schema.names and name not in known:
            # Null would be read as 0 by readers that know these columns as never null.
            raise InvalidArgumentError(
                f"the lake table has no column {name}: it does not keep where rows were in the log. Leave out the "
                "columns of bucket and offset (_bucket and _log_offset in Spark)"
            )
    arrays = [
        cast_array(batch.column(known[field.name]), field.type)
        if field.name in known
        else pa.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
