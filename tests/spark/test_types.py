# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from pyspark.sql import types as s

from fluss import metadata as f
from fluss.errors import InvalidArgumentError
from fluss.spark.types import to_fluss_schema, to_fluss_type, to_spark_schema, to_spark_type
from fluss.spark.versions import TimeType

PAIRS = [
    (f.BooleanType(), s.BooleanType()),
    (f.TinyIntType(), s.ByteType()),
    (f.SmallIntType(), s.ShortType()),
    (f.IntType(), s.IntegerType()),
    (f.BigIntType(), s.LongType()),
    (f.FloatType(), s.FloatType()),
    (f.DoubleType(), s.DoubleType()),
    (f.StringType(), s.StringType()),
    (f.BytesType(), s.BinaryType()),
    (f.DecimalType(12, 3), s.DecimalType(12, 3)),
    (f.DateType(), s.DateType()),
    *([(f.TimeType(3), TimeType(3))] if TimeType is not None else []),
    (f.TimestampType(6), s.TimestampNTZType()),
    (f.TimestampLtzType(6), s.TimestampType()),
    (f.ArrayType(f.IntType(nullable=False)), s.ArrayType(s.IntegerType(), False)),
    (f.MapType(f.StringType(nullable=False), f.BigIntType()), s.MapType(s.StringType(), s.LongType(), True)),
    (
        f.RowType((f.DataField("a", f.IntType()), f.DataField("b", f.ArrayType(f.StringType())))),
        s.StructType([s.StructField("a", s.IntegerType()), s.StructField("b", s.ArrayType(s.StringType()))]),
    ),
]


@pytest.mark.parametrize(("fluss_type", "spark_type"), PAIRS, ids=lambda one: str(one))
def test_types_go_both_ways(fluss_type: f.DataType, spark_type: s.DataType) -> None:
    assert to_spark_type(fluss_type, "c") == spark_type
    assert to_fluss_type(spark_type, True, "c") == fluss_type


def test_types_that_only_fluss_has_become_the_nearest() -> None:
    assert to_spark_type(f.CharType(5), "c") == s.StringType()
    assert to_spark_type(f.BinaryType(5), "c") == s.BinaryType()
    assert to_spark_type(f.TimestampType(9), "c") == s.TimestampNTZType()
    assert to_fluss_type(s.CharType(5), True, "c") == f.CharType(5)
    assert to_fluss_type(s.VarcharType(5), True, "c") == f.StringType()


@pytest.mark.parametrize(
    "bad",
    [s.DayTimeIntervalType(), s.YearMonthIntervalType(), s.CalendarIntervalType(), s.NullType(), s.VariantType()],
    ids=lambda one: one.simpleString(),
)
def test_types_that_only_spark_has_are_refused_by_name_and_place(bad: s.DataType) -> None:
    nested = s.StructType([s.StructField("outer", s.ArrayType(s.StructType([s.StructField("inner", bad)])))])
    with pytest.raises(InvalidArgumentError) as caught:
        to_fluss_schema(nested)
    assert "'outer.element.inner'" in caught.value.message
    assert bad.simpleString() in caught.value.message


def test_schemas_keep_keys_nulls_and_comments() -> None:
    spark_schema = s.StructType(
        [s.StructField("id", s.LongType()), s.StructField("v", s.StringType(), True, {"comment": "a value"})]
    )
    schema = to_fluss_schema(spark_schema, ["id"])
    assert schema.primary_key == ("id",)
    assert not schema.column("id").data_type.nullable
    assert schema.column("v").comment == "a value"
    assert to_spark_schema(schema).fields[1].metadata == {"comment": "a value"}
    assert to_spark_schema(schema, ["v"]).names == ["v"]
    with pytest.raises(InvalidArgumentError, match="primary key column 'nope'"):
        to_fluss_schema(spark_schema, ["nope"])
