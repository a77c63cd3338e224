# SPDX-License-Identifier: Apache-2.0
"""A Fluss table as an Iceberg schema, partition spec and properties, and whether a table that is there fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    PrimitiveType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from fluss import metadata as m
from fluss.errors import InvalidTableError
from fluss.lake.layout import (
    BUCKET_COLUMN,
    OFFSET_COLUMN,
    SYSTEM_COLUMNS,
    TIMESTAMP_COLUMN,
    check_column_names,
    column_differences,
    lake_properties,
)

_PLAIN: dict[type[m.DataType], PrimitiveType] = {
    m.BooleanType: BooleanType(),
    m.TinyIntType: IntegerType(),
    m.SmallIntType: IntegerType(),
    m.IntType: IntegerType(),
    m.BigIntType: LongType(),
    m.FloatType: FloatType(),
    m.DoubleType: DoubleType(),
    m.CharType: StringType(),
    m.StringType: StringType(),
    m.BinaryType: BinaryType(),
    m.BytesType: BinaryType(),
    m.DateType: DateType(),
    m.TimeType: TimeType(),
    m.TimestampType: TimestampType(),
    m.TimestampLtzType: TimestamptzType(),
}

_SYSTEM_TYPES: dict[str, PrimitiveType] = {
    BUCKET_COLUMN: IntegerType(),
    OFFSET_COLUMN: LongType(),
    TIMESTAMP_COLUMN: TimestamptzType(),
}

_MERGE_ON_READ = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}


def iceberg_type(data_type: m.DataType, next_id: Callable[[], int]) -> IcebergType:
    """The Iceberg type of a Fluss type."""
    if isinstance(data_type, m.DecimalType):
        return DecimalType(data_type.precision, data_type.scale)
    if isinstance(data_type, m.ArrayType):
        element_id = next_id()
        element = data_type.element_type
        return ListType(element_id, iceberg_type(element, next_id), element_required=not element.nullable)
    if isinstance(data_type, m.MapType):
        key_id, value_id = next_id(), next_id()
        key = iceberg_type(data_type.key_type, next_id)
        value = iceberg_type(data_type.value_type, next_id)
        return MapType(key_id, key, value_id, value, value_required=not data_type.value_type.nullable)
    if isinstance(data_type, m.RowType):
        ids = [next_id() for _ in data_type.fields]
        return StructType(
            *(
                NestedField(
                    field_id,
                    field.name,
                    iceberg_type(field.data_type, next_id),
                    required=not field.data_type.nullable,
                    doc=field.description,
                )
                for field_id, field in zip(ids, data_type.fields)
            )
        )
    return _PLAIN[type(data_type)]


def iceberg_schema(descriptor: m.TableDescriptor, *, clean: bool = False) -> Schema:
    """User columns, then the three system columns, which are required; the primary key as identifier fields.

    A clean table has no system columns: Apache Fluss creates such tables from 1.0 on.
    """
    check_column_names(descriptor)
    columns = descriptor.schema.columns
    for column in columns:
        kind = column.data_type
        fine = isinstance(kind, (m.TimestampType, m.TimestampLtzType)) and kind.precision > 6
        if fine and column.name in descriptor.schema.primary_key:
            raise InvalidTableError(
                f"Iceberg keeps microseconds, so keys of '{column.name}' ({kind}) could become one; use precision 6"
            )
    system = {} if clean else _SYSTEM_TYPES
    next_id = itertools.count(len(columns) + len(system) + 1).__next__
    fields = [
        NestedField(
            i,
            column.name,
            iceberg_type(column.data_type, next_id),
            required=not column.data_type.nullable,
            doc=column.comment,
        )
        for i, column in enumerate(columns, 1)
    ]
    fields += [
        NestedField(len(columns) + i, name, kind, required=True) for i, (name, kind) in enumerate(system.items(), 1)
    ]
    key = [field.field_id for field in fields if field.name in descriptor.schema.primary_key]
    return Schema(*fields, identifier_field_ids=key)


def iceberg_spec(descriptor: m.TableDescriptor, schema: Schema) -> PartitionSpec:
    """The partition keys as they are, then the bucket: of the bucket key, or the column that holds it, if any."""
    if len(descriptor.bucket_keys) > 1:
        raise InvalidTableError(
            f"Iceberg tables have at most one bucket key, this one has {', '.join(descriptor.bucket_keys)}"
        )
    fields = []
    for i, name in enumerate(descriptor.partition_keys):
        source = schema.find_field(name)
        if not isinstance(source.field_type, StringType):
            raise InvalidTableError(f"partition keys of Iceberg tables are strings; column '{name}' is not")
        fields.append(PartitionField(source.field_id, 1000 + i, IdentityTransform(), name))
    field_id = 1000 + len(fields)
    if descriptor.bucket_keys:
        source = schema.find_field(descriptor.bucket_keys[0])
        transform: BucketTransform[Any] = BucketTransform(num_buckets=descriptor.bucket_count or 1)
        fields.append(PartitionField(source.field_id, field_id, transform, f"{source.name}_bucket"))
    elif not is_clean(schema):
        source = schema.find_field(BUCKET_COLUMN)
        fields.append(PartitionField(source.field_id, field_id, IdentityTransform(), BUCKET_COLUMN))
    return PartitionSpec(*fields)


def is_clean(schema: Schema) -> bool:
    """Return whether a table has no system columns."""
    return not any(field.name in SYSTEM_COLUMNS for field in schema.fields)


def has_bucket_field(spec: PartitionSpec) -> bool:
    """Return whether files are partitioned by bucket; those of a clean log table without a bucket key are not."""
    if not spec.fields:
        return False
    last = spec.fields[-1]
    return isinstance(last.transform, BucketTransform) or last.name == BUCKET_COLUMN


def iceberg_sort_order(schema: Schema) -> SortOrder:
    source = schema.find_field(OFFSET_COLUMN)
    return SortOrder(SortField(source.field_id, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST))


def iceberg_properties(descriptor: m.TableDescriptor) -> dict[str, str]:
    return {**(_MERGE_ON_READ if descriptor.has_primary_key() else {}), **lake_properties("iceberg", descriptor)}


def type_text(kind: IcebergType) -> str:
    """A type without field ids."""
    if isinstance(kind, ListType):
        return f"list<{type_text(kind.element_type)}{'' if kind.element_required else '?'}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.key_type)}, {type_text(kind.value_type)}{'' if kind.value_required else '?'}>"
    if isinstance(kind, StructType):
        inner = ", ".join(f"{f.name}: {type_text(f.field_type)}{'' if f.required else '?'}" for f in kind.fields)
        return f"struct<{inner}>"
    return str(kind)


def differences(schema: Schema, columns: Sequence[m.Column]) -> tuple[list[m.Column], list[str]]:
    """Columns that an Iceberg table lacks, and what cannot be mended."""

    def difference(field: NestedField, column: m.Column) -> str | None:
        found = _required_text(field.required, field.field_type)
        wanted = iceberg_type(column.data_type, itertools.count(1).__next__)
        wanted_text = _required_text(not column.data_type.nullable, wanted)
        return None if found == wanted_text else f"is {found}, not {wanted_text}"

    known = {field.name: field for field in schema.fields}
    missing, wrong = column_differences(known, columns, difference, lambda field: field.required)
    if not is_clean(schema):
        wrong += [f"column '{name}' is missing" for name in SYSTEM_COLUMNS if name not in known]
    return missing, wrong


def _required_text(required: bool, kind: IcebergType) -> str:
    return f"required {type_text(kind)}" if required else type_text(kind)


def layout_differences(table: TableMetadata, descriptor: m.TableDescriptor) -> list[str]:
    """What of keys and partitions of an Iceberg table does not fit."""
    schema = table.schema()
    wanted_schema = iceberg_schema(descriptor, clean=is_clean(schema))
    wanted = _spec_text(iceberg_spec(descriptor, wanted_schema), wanted_schema)
    found = _spec_text(table.spec(), schema)
    wrong = [] if found == wanted else [f"it is partitioned by {found}, not {wanted}"]
    key = sorted(schema.identifier_field_names())
    if key != sorted(descriptor.schema.primary_key):
        wrong.append(f"its identifier fields are {key}, not {sorted(descriptor.schema.primary_key)}")
    return wrong


def _spec_text(spec: PartitionSpec, schema: Schema) -> str:
    return ", ".join(f"{field.transform}({schema.find_column_name(field.source_id)})" for field in spec.fields)
