# SPDX-License-Identifier: Apache-2.0
"""A Fluss table as the Arrow schema of a Lance dataset, and whether a dataset that is there fits.

The schema is that of Apache Fluss: the columns of the table and no others, time stamps without a zone, and fixed-size
lists for ARRAY columns whose length the table gives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from fluss import metadata as m
from fluss.errors import InvalidTableError
from fluss.lake.layout import column_differences
from fluss.metadata.properties import LIST_SIZE_SUFFIX, check_lake_properties

_PROPERTY = "fluss."


def list_sizes(properties: Mapping[str, str]) -> dict[str, int]:
    """Read the lengths that a table gives to its ARRAY columns."""
    found = {}
    for name, text in properties.items():
        if not name.endswith(LIST_SIZE_SUFFIX):
            continue
        if not text.strip().isdecimal() or int(text) < 1:
            raise InvalidTableError(f"table property '{name}': got {text!r:.100}, but it takes a positive integer")
        found[name.removesuffix(LIST_SIZE_SUFFIX)] = int(text)
    return found


def check_table(descriptor: m.TableDescriptor) -> None:
    """Refuse what a Lance dataset cannot hold."""
    if descriptor.has_primary_key():
        raise InvalidTableError(
            "primary-key tables cannot be tiered to Lance: a dataset has no way to replace rows by key in the commit "
            "that carries the offsets. Use Paimon or Iceberg, or a log table"
        )
    names = {column.name: column.data_type for column in descriptor.schema.columns}
    dotted = [name for name in names if "." in name]
    if dotted:
        raise InvalidTableError(f"columns of Lance datasets have no dots in their names; rename {', '.join(dotted)}")
    for name in descriptor.partition_keys:
        if not isinstance(names[name], m.StringType):
            raise InvalidTableError(f"partition keys of tables in Lance are strings; column '{name}' is not")
    check_lake_properties(descriptor.custom_properties)
    for name in list_sizes(descriptor.custom_properties | descriptor.properties):
        if name not in names:
            continue  # a column that may be added later
        if not isinstance(names[name], m.ArrayType):
            raise InvalidTableError(f"table property '{name}{LIST_SIZE_SUFFIX}': column '{name}' is no ARRAY")


def lance_schema(
    columns: Sequence[m.Column], sizes: Mapping[str, int], properties: Mapping[str, str] | None = None
) -> pa.Schema:
    """The schema of a dataset; the properties are kept with it."""
    fields = []
    for column in columns:
        found = column_type(column, sizes)
        comment = {b"comment": column.comment.encode()} if column.comment else None
        fields.append(pa.field(column.name, found, nullable=column.data_type.nullable, metadata=comment))
    kept = {f"{_PROPERTY}{name}": text for name, text in (properties or {}).items()}
    return pa.schema(fields, metadata=kept or None)


def kept_sizes(schema: pa.Schema) -> dict[str, int]:
    """The lengths of ARRAY columns that were kept with a dataset, for columns that are added later."""
    kept = {key.decode(): text.decode() for key, text in (schema.metadata or {}).items()}
    return list_sizes({key[len(_PROPERTY) :]: text for key, text in kept.items() if key.startswith(_PROPERTY)})


def column_type(column: m.Column, sizes: Mapping[str, int]) -> pa.DataType:
    """The Arrow type of a column in Lance."""
    plain = _without_zone(column.data_type.to_arrow())
    if column.name in sizes and pa.types.is_list(plain):
        return pa.list_(plain.value_field, sizes[column.name])
    return plain


def _without_zone(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return pa.timestamp(kind.unit)
    if pa.types.is_list(kind):
        field = kind.value_field
        return pa.list_(field.with_type(_without_zone(field.type)))
    if pa.types.is_map(kind):
        item = kind.item_field
        return pa.map_(_without_zone(kind.key_type), item.with_type(_without_zone(item.type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_zone(field.type)) for field in kind])
    return kind


def differences(schema: pa.Schema, columns: Sequence[m.Column]) -> tuple[list[m.Column], list[str]]:
    """Columns that a dataset lacks, and what cannot be mended."""
    return column_differences(
        schema, columns, lambda column: column_type(column, {}), lambda found: _without_zone(_as_list(found))
    )


def _as_list(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_field) if pa.types.is_fixed_size_list(kind) else kind
