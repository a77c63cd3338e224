# SPDX-License-Identifier: Apache-2.0
"""What lake tables look like, whatever the format: which lake, which extra columns, which properties."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.errors import ConfigError, InvalidArgumentError, InvalidConfigError
from fluss.lake.api import LakeTableChangedError, Rows
from fluss.metadata import Column, TableDescriptor, TableInfo
from fluss.metadata.properties import check_lake_properties, lake_options

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
                arrays.append(_timestamps(rows.timestamps_ms, field.type))
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


def _timestamps(timestamps_ms: np.ndarray[Any, Any], dtype: pa.DataType) -> pa.Array:
    values = pa.array(timestamps_ms, pa.timestamp("ms", "UTC"))
    return values if values.type == dtype else values.cast(dtype)


def cast_array(array: pa.Array, dtype: pa.DataType) -> pa.Array:
    """An array in another type that can hold its values."""
    if array.type == dtype:
        return array
    if pa.types.is_fixed_size_binary(array.type) and pa.types.is_binary(dtype):
        return array.cast(dtype)
    if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(dtype):
        # Finer digits than the column keeps are cut, as every writer of the format does.
        return array.cast(dtype, safe=False)
    return array.cast(dtype)


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


def same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether two types hold the same values; names of list elements and map entries do not count."""
    if found == wanted:
        return True
    if pa.types.is_list(found) and pa.types.is_list(wanted):
        return same_type(found.value_type, wanted.value_type)
    if pa.types.is_map(found) and pa.types.is_map(wanted):
        return same_type(found.key_type, wanted.key_type) and same_type(found.item_type, wanted.item_type)
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        pairs = list(zip(found, wanted))
        same_count = found.num_fields == wanted.num_fields
        return same_count and all(a.name == b.name and same_type(a.type, b.type) for a, b in pairs)
    return False


def column_differences(
    schema: pa.Schema,
    columns: Sequence[Column],
    wanted_type: Callable[[Column], pa.DataType],
    found_type: Callable[[pa.DataType], pa.DataType] = lambda found: found,
) -> tuple[list[Column], list[str]]:
    """Columns of a Fluss table that a lake table lacks, and what of the others does not fit."""
    missing, wrong = [], []
    others = {field.name: field for field in schema}
    for column in columns:
        field = others.pop(column.name, None)
        if field is None:
            missing.append(column)
        elif not same_type(found_type(field.type), wanted_type(column)):
            wrong.append(f"column '{column.name}' is {field.type}, not {wanted_type(column)}")
        elif not field.nullable and column.data_type.nullable:
            wrong.append(f"column '{column.name}' takes no nulls")
    wrong += [
        f"column '{name}' takes no nulls and is unknown to Fluss"
        for name, field in sorted(others.items())
        if name not in SYSTEM_COLUMNS and not field.nullable
    ]
    return missing, wrong


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
