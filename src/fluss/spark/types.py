# SPDX-License-Identifier: Apache-2.0
"""Fluss types and Spark types, both ways. A type without a counterpart is refused by its name and place."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as s

from fluss import metadata as f
from fluss.errors import InvalidArgumentError
from fluss.spark.versions import TimeType

_TO_SPARK: dict[type[f.DataType], type[s.DataType]] = {
    f.BooleanType: s.BooleanType,
    f.TinyIntType: s.ByteType,
    f.SmallIntType: s.ShortType,
    f.IntType: s.IntegerType,
    f.BigIntType: s.LongType,
    f.FloatType: s.FloatType,
    f.DoubleType: s.DoubleType,
    f.CharType: s.StringType,
    f.StringType: s.StringType,
    f.BinaryType: s.BinaryType,
    f.BytesType: s.BinaryType,
    f.DateType: s.DateType,
    f.TimestampType: s.TimestampNTZType,
    f.TimestampLtzType: s.TimestampType,
}

_FROM_SPARK: dict[type[s.DataType], f.DataType] = {
    s.BooleanType: f.BooleanType(),
    s.ByteType: f.TinyIntType(),
    s.ShortType: f.SmallIntType(),
    s.IntegerType: f.IntType(),
    s.LongType: f.BigIntType(),
    s.FloatType: f.FloatType(),
    s.DoubleType: f.DoubleType(),
    s.StringType: f.StringType(),
    s.VarcharType: f.StringType(),
    s.BinaryType: f.BytesType(),
    s.DateType: f.DateType(),
    s.TimestampNTZType: f.TimestampType(6),
    s.TimestampType: f.TimestampLtzType(6),
}


def to_spark_type(data_type: f.DataType, where: str) -> s.DataType:
    """The Spark type that holds values of a Fluss type. `where` names the column for the error."""
    if isinstance(data_type, f.DecimalType):
        return s.DecimalType(data_type.precision, data_type.scale)
    if isinstance(data_type, f.TimeType):
        if TimeType is None:
            raise InvalidArgumentError(f"column '{where}' has type {data_type}, which Spark has from version 4.1 on")
        # Spark keeps at most microseconds; Fluss keeps milliseconds whatever the declared precision.
        return TimeType(min(data_type.precision, 6))
    if isinstance(data_type, f.ArrayType):
        element = data_type.element_type
        return s.ArrayType(to_spark_type(element, f"{where}.element"), element.nullable)
    if isinstance(data_type, f.MapType):
        return s.MapType(
            to_spark_type(data_type.key_type, f"{where}.key"),
            to_spark_type(data_type.value_type, f"{where}.value"),
            data_type.value_type.nullable,
        )
    if isinstance(data_type, f.RowType):
        return s.StructType(
            [
                s.StructField(x.name, to_spark_type(x.data_type, f"{where}.{x.name}"), x.data_type.nullable)
                for x in data_type.fields
            ]
        )
    found = _TO_SPARK.get(type(data_type))
    if found is None:
        raise InvalidArgumentError(f"column '{where}' has type {data_type}, which Spark has no type for")
    return found()


def to_fluss_type(data_type: s.DataType, nullable: bool, where: str) -> f.DataType:
    """The Fluss type for a Spark type. `where` names the column for the error."""
    if isinstance(data_type, s.DecimalType):
        if data_type.scale < 0:
            raise InvalidArgumentError(
                f"column '{where}' has type {data_type.simpleString()}, whose negative scale Fluss does not have"
            )
        return f.DecimalType(data_type.precision, data_type.scale, nullable=nullable)
    if isinstance(data_type, s.CharType):
        return f.CharType(data_type.length, nullable=nullable)
    if TimeType is not None and isinstance(data_type, TimeType):
        return f.TimeType(min(data_type.precision, 3), nullable=nullable)
    if isinstance(data_type, s.ArrayType):
        return f.ArrayType(
            to_fluss_type(data_type.elementType, data_type.containsNull, f"{where}.element"), nullable=nullable
        )
    if isinstance(data_type, s.MapType):
        return f.MapType(
            to_fluss_type(data_type.keyType, False, f"{where}.key"),
            to_fluss_type(data_type.valueType, data_type.valueContainsNull, f"{where}.value"),
            nullable=nullable,
        )
    if isinstance(data_type, s.StructType):
        fields = [
            f.DataField(x.name, to_fluss_type(x.dataType, x.nullable, f"{where}.{x.name}")) for x in data_type.fields
        ]
        return f.RowType(tuple(fields), nullable=nullable)
    found = _FROM_SPARK.get(type(data_type))
    if found is None:
        raise InvalidArgumentError(
            f"column '{where}' has Spark type {data_type.simpleString()}, which Fluss has no type for; "
            "cast it to another type or leave it out"
        )
    return found.with_nullable(nullable)


def to_spark_schema(schema: f.Schema, columns: Sequence[str] | None = None) -> s.StructType:
    """The Spark schema of a table, or of some of its columns in the order given."""
    names = schema.column_names if columns is None else columns
    fields = []
    for name in names:
        column = schema.column(name)
        metadata = {"comment": column.comment} if column.comment else None
        spark_type = to_spark_type(column.data_type, name)
        fields.append(s.StructField(name, spark_type, column.data_type.nullable, metadata))
    return s.StructType(fields)


def all_nullable(data_type: s.DataType) -> s.DataType:
    """The same type with every field, element and value nullable."""
    if isinstance(data_type, s.ArrayType):
        return s.ArrayType(all_nullable(data_type.elementType), True)
    if isinstance(data_type, s.MapType):
        return s.MapType(data_type.keyType, all_nullable(data_type.valueType), True)
    if isinstance(data_type, s.StructType):
        return s.StructType(
            [s.StructField(x.name, all_nullable(x.dataType), True, x.metadata) for x in data_type.fields]
        )
    return data_type


def to_fluss_schema(schema: s.StructType, primary_key: Sequence[str] = (), not_null: Sequence[str] = ()) -> f.Schema:
    """The schema of a Fluss table for rows of a Spark schema. Columns of the primary key become NOT NULL."""
    for name in primary_key:
        if name not in schema.names:
            raise InvalidArgumentError(f"primary key column '{name}' is not among {', '.join(schema.names)}")
    columns = [
        f.Column(
            x.name,
            to_fluss_type(x.dataType, x.nullable and x.name not in (*primary_key, *not_null), x.name),
            x.metadata.get("comment") if x.metadata else None,
        )
        for x in schema.fields
    ]
    return f.Schema.of(columns, tuple(primary_key))
