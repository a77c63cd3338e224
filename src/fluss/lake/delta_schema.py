# SPDX-License-Identifier: Apache-2.0
"""A Fluss table as the schema of a Delta table, and whether a table that is there fits.

All columns take nulls: Spark reads NOT NULL as a feature that a table has to list, and the library of Delta does not
list it, so that Spark would refuse the table. Fluss has checked the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss import metadata as m
from fluss.errors import InvalidTableError
from fluss.lake.layout import (
    BUCKET_COLUMN,
    OFFSET_COLUMN,
    SYSTEM_COLUMNS,
    TIMESTAMP_COLUMN,
    check_column_names,
    column_differences,
)

_SYSTEM_FIELDS = (
    pa.field(BUCKET_COLUMN, pa.int32()),
    pa.field(OFFSET_COLUMN, pa.int64()),
    pa.field(TIMESTAMP_COLUMN, pa.timestamp("us", "UTC")),
)


def check_table(descriptor: m.TableDescriptor) -> None:
    """Refuse what a Delta table cannot hold."""
    if descriptor.has_primary_key():
        raise InvalidTableError("the lake format delta takes log tables only, not tables with a primary key")
    check_column_names(descriptor)
    names = {column.name: column.data_type for column in descriptor.schema.columns}
    for name in descriptor.partition_keys:
        if not isinstance(names[name], m.StringType):
            raise InvalidTableError(f"partition keys of tables in Delta are strings; column '{name}' is not")
    for column in descriptor.schema.columns:
        delta_type(column)


def delta_schema(columns: Sequence[m.Column]) -> pa.Schema:
    """The columns of a table and those that lake tables add."""
    return pa.schema([*(delta_field(column) for column in columns), *_SYSTEM_FIELDS])


def delta_field(column: m.Column) -> pa.Field:
    """One column."""
    comment = {b"comment": column.comment.encode()} if column.comment else None
    return pa.field(column.name, delta_type(column), metadata=comment)


def delta_type(column: m.Column) -> pa.DataType:
    """The type of a column as Delta has it: microseconds, and no binary of fixed length."""
    return _converted(column.data_type.to_arrow(), column.name)


def _converted(kind: pa.DataType, name: str) -> pa.DataType:
    if pa.types.is_time(kind):
        raise InvalidTableError(f"Delta has no type for TIME; column '{name}' cannot be tiered")
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pa.types.is_fixed_size_binary(kind) and not pa.types.is_decimal(kind):
        return pa.binary()
    if pa.types.is_list(kind):
        field = kind.value_field
        return pa.list_(field.with_type(_converted(field.type, name)))
    if pa.types.is_map(kind):
        item = kind.item_field
        return pa.map_(_converted(kind.key_type, name), item.with_type(_converted(item.type, name)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_converted(field.type, name)).with_nullable(True) for field in kind])
    return kind


def differences(schema: pa.Schema, columns: Sequence[m.Column]) -> tuple[list[m.Column], list[str]]:
    """Columns that a Delta table lacks, and what cannot be mended."""
    missing, wrong = column_differences(schema, columns, delta_type)
    return missing, wrong + [f"column '{name}' is missing" for name in SYSTEM_COLUMNS if name not in schema.names]
