# SPDX-License-Identifier: Apache-2.0
"""A Fluss table as a Paimon schema, and whether a Paimon table that is there fits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any

from pypaimon import Schema as PaimonSchema
from pypaimon.schema.data_types import ArrayType as PaimonArray
from pypaimon.schema.data_types import AtomicType, DataField
from pypaimon.schema.data_types import MapType as PaimonMap
from pypaimon.schema.data_types import RowType as PaimonRow

from fluss.lake.layout import (
    BUCKET_COLUMN,
    OFFSET_COLUMN,
    TIMESTAMP_COLUMN,
    check_column_names,
    column_differences,
    lake_properties,
)
from fluss.metadata import Column, TableDescriptor
from fluss.metadata import types as t

_SYSTEM_TYPES = {BUCKET_COLUMN: "INT", OFFSET_COLUMN: "BIGINT", TIMESTAMP_COLUMN: "TIMESTAMP_LTZ(3)"}


def paimon_type(data_type: t.DataType) -> Any:
    """The Paimon type of a Fluss type. Ids of nested fields are numbered when the type joins a table."""
    nullable = data_type.nullable
    if isinstance(data_type, t.ArrayType):
        return PaimonArray(nullable, paimon_type(data_type.element_type))
    if isinstance(data_type, t.MapType):
        return PaimonMap(nullable, paimon_type(data_type.key_type), paimon_type(data_type.value_type))
    if isinstance(data_type, t.RowType):
        fields = [
            DataField(i, field.name, paimon_type(field.data_type), field.description)
            for i, field in enumerate(data_type.fields)
        ]
        return PaimonRow(nullable, fields)
    if isinstance(data_type, t.TimeType):
        return AtomicType("TIME(0)", nullable)
    if isinstance(data_type, t.TimestampType):
        return AtomicType(f"TIMESTAMP({data_type.precision})", nullable)
    if isinstance(data_type, t.TimestampLtzType):
        return AtomicType(f"TIMESTAMP_LTZ({data_type.precision})", nullable)
    return AtomicType(str(data_type.with_nullable(True)).upper(), nullable)


def paimon_schema(descriptor: TableDescriptor, *, clean: bool = False) -> Any:
    """The Paimon table of a Fluss table: user columns, the three system columns, aligned buckets.

    A clean table has no system columns: Apache Fluss creates such tables from 1.0 on.
    """
    check_column_names(descriptor)
    options = {"partition.legacy-name": "false"}
    if descriptor.bucket_keys:
        options["bucket"] = str(descriptor.bucket_count)
        options["bucket-key"] = ",".join(descriptor.bucket_keys)
    else:
        options["bucket"] = "-1"
    if descriptor.has_primary_key():
        options["changelog-producer"] = "input"
    options |= lake_properties("paimon", descriptor)
    next_id = itertools.count().__next__
    fields = [
        DataField(next_id(), column.name, paimon_type(column.data_type), column.comment)
        for column in descriptor.schema.columns
    ]
    if not clean:
        fields += [DataField(next_id(), name, AtomicType(text)) for name, text in _SYSTEM_TYPES.items()]
    for field in fields:
        _number(field.type, next_id)
    return PaimonSchema(
        fields=fields,
        partition_keys=list(descriptor.partition_keys),
        primary_keys=list(descriptor.schema.primary_key),
        options=options,
        comment=descriptor.comment,
    )


def _number(data_type: Any, next_id: Callable[[], int]) -> None:
    """Give nested fields ids of their own, after those of the columns."""
    if isinstance(data_type, PaimonArray):
        _number(data_type.element, next_id)
    elif isinstance(data_type, PaimonMap):
        _number(data_type.key, next_id)
        _number(data_type.value, next_id)
    elif isinstance(data_type, PaimonRow):
        for field in data_type.fields:
            field.id = next_id()
            _number(field.type, next_id)


def type_text(data_type: Any) -> str:
    """A Paimon type as text that does not depend on who wrote it, or on field ids."""
    suffix = "" if data_type.nullable else " NOT NULL"
    if isinstance(data_type, PaimonArray):
        return f"ARRAY<{type_text(data_type.element)}>{suffix}"
    if isinstance(data_type, PaimonMap):
        return f"MAP<{type_text(data_type.key)}, {type_text(data_type.value)}>{suffix}"
    if isinstance(data_type, PaimonRow):
        inner = ", ".join(f"{field.name} {type_text(field.type)}" for field in data_type.fields)
        return f"ROW<{inner}>{suffix}"
    name: str = data_type.type.upper().replace(", ", ",")
    local = re.fullmatch(r"TIMESTAMP(\(\d+\))? WITH LOCAL TIME ZONE", name)
    if local:
        name = f"TIMESTAMP_LTZ{local.group(1) or '(6)'}"
    if name == "TIMESTAMP":
        name = "TIMESTAMP(6)"
    if name.startswith("TIME("):
        name = "TIME"
    return name + suffix


def differences(fields: Sequence[Any], columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """How a Paimon table differs from the columns of a Fluss table: columns it lacks, and what cannot be mended."""

    def difference(field: Any, column: Column) -> str | None:
        found, wanted = type_text(field.type), type_text(paimon_type(column.data_type))
        return None if found == wanted else f"is {found}, not {wanted}"

    known = {field.name: field for field in fields}
    return column_differences(known, columns, difference, lambda field: not field.type.nullable)


def layout_differences(schema: Any, descriptor: TableDescriptor) -> list[str]:
    """What of keys and buckets of a Paimon table does not fit."""
    expected = paimon_schema(descriptor)
    wrong = []
    for what, found, wanted in (
        ("primary key", list(schema.primary_keys), expected.primary_keys),
        ("partition keys", list(schema.partition_keys), expected.partition_keys),
        *(
            (f"option '{name}'", schema.options.get(name), expected.options.get(name))
            for name in ("bucket-key", "partition.legacy-name")
        ),
        ("option 'bucket'", str(schema.options.get("bucket", "-1")), expected.options["bucket"]),
    ):
        if found != wanted:
            wrong.append(f"{what} is {found}, not {wanted}")
    return wrong
