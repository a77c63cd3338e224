# SPDX-License-Identifier: Apache-2.0
"""The rules a server applies to tables."""

from __future__ import annotations

from typing import Any

import pytest

from fluss.errors import FlussError, InvalidConfigError
from fluss.metadata import (
    AggFunction,
    Column,
    Schema,
    TableDescriptor,
    statistics_columns,
    validate_properties,
    validate_table_descriptor,
)
from fluss.metadata import types as t
from fluss.metadata.validation import AGG_FUNCTION_TYPES, SYSTEM_COLUMNS, validate_agg_function


def table(
    columns: dict[str, t.DataType | Column] | None = None, pk: tuple[str, ...] = (), **options: Any
) -> TableDescriptor:
    columns = columns or {"id": t.IntType(), "dt": t.StringType(), "v": t.StringType(), "n": t.TimestampType()}
    schema = Schema.of([c if isinstance(c, Column) else Column(name, c) for name, c in columns.items()], pk)
    properties = {key: value for key, value in options.items() if "." in key}
    others = {key: value for key, value in options.items() if "." not in key}
    others.setdefault("bucket_count", 3)
    return TableDescriptor(schema, properties=properties, **others)


PK = ("id", "dt")
AUTO = {"table.auto-partition.enabled": "true"}
BY_DT = {**AUTO, "table.auto-partition.key": "dt"}
INT_MAP = t.MapType(t.IntType(), t.IntType())
VERSIONED = {"table.merge-engine": "versioned"}
VERSION = "table.merge-engine.versioned.ver-column"
HISTORICAL = {"table.datalake.historical-partition.enabled": "true"}

GOOD: list[TableDescriptor] = [
    table(),
    table(pk=PK),
    table(pk=PK, partition_keys=["dt"], **AUTO),
    table(partition_keys=["dt"], **AUTO, **{"table.auto-partition.time-zone": "Asia/Shanghai"}),
    table(partition_keys=["dt"], **{"table.auto-partition.time-format": "yyyy-MM-dd"}),
    table(partition_keys=["dt", "v"], **BY_DT, **{"table.auto-partition.num-precreate": "0"}),
    table({"d": t.DateType()}, partition_keys=["d"], **AUTO, **{"table.auto-partition.time-format": "yyyy-MM-dd"}),
    table({"d": t.DateType()}, partition_keys=["d"]),
    table(pk=PK, **{"table.merge-engine": "first_row"}),
    table(pk=PK, **{"table.merge-engine": "first_row", "table.delete.behavior": "disable"}),
    table(pk=PK, **{"table.merge-engine": "aggregation", "table.delete.behavior": "allow"}),
    table(pk=PK, **VERSIONED, **{VERSION: "n"}),
    table(pk=PK, **{"table.delete.behavior": "ALLOW"}),
    table(
        {"id": t.IntType(), "s": Column("s", t.StringType(), agg_function=AggFunction("listagg", {"delimiter": ";"}))},
        pk=("id",),
        **{"table.merge-engine": "aggregation"},
    ),
    table(pk=PK, **{"table.log.format": "INDEXED", "table.kv.format": "INDEXED"}),
    table(pk=PK, **{"table.log.format": "COMPACTED"}),
    table(**{"table.log.format": "INDEXED"}),
    table(**{"table.statistics.columns": "*"}),
    table(**{"table.statistics.columns": "id, v"}),
    table(**{"table.log.ttl": "0ms", "table.log.local-ttl": "1 d"}),
    table(**{"table.log.arrow.compression.zstd.level": "22"}),
    table({"__x": t.IntType(), "offset": t.IntType()}),
    table(
        pk=PK,
        partition_keys=["dt"],
        **AUTO,
        **{"table.datalake.enabled": "true", "table.datalake.format": "paimon", **HISTORICAL},
    ),
]


@pytest.mark.parametrize("descriptor", GOOD, ids=lambda item: repr(item)[-60:])
def test_good_tables(descriptor: TableDescriptor) -> None:
    validate_table_descriptor(descriptor)


BAD: list[tuple[TableDescriptor, int, str]] = [
    (table(**{"table.nonsense": "1"}), 39, "not a table property that this version"),
    (table(**{"my.key": "1"}), 39, "'my.key' is not a Fluss table property. "),
    (table(**{"table.log.ttl": "soon"}), 39, "Invalid value for config 'table.log.ttl'"),
    (table(**{"table.auto-partition.time-zone": "Moon"}), 39, "config 'table.auto-partition.time-zone'"),
    (table(bucket_count=None), 15, "number of buckets must be set"),
    (table(bucket_count=128_001), 49, "Bucket count 128001 exceeds the maximum limit 128000"),
    (table({"_change_type": t.IntType()}), 15, "reserved"),
    (table({"a": t.ArrayType(t.MapType(t.IntType(), t.RowType()))}), 15, "a row needs a field"),
    (table({"a": t.ArrayType(t.IntType())}, bucket_keys=["a"]), 15, "Bucket key column 'a' has type array<int>"),
    (table({"m": INT_MAP, "i": t.IntType()}, pk=("m", "i"), bucket_keys=["i"]), 15, "Primary key"),
    (table(**{"table.replication.factor": "0"}), 39, "must be greater than 0. It is 0"),
    (table(pk=PK, **{"table.log.format": "INDEXED"}), 39, "ARROW or COMPACTED"),
    (table(**{"table.log.arrow.compression.zstd.level": "23"}), 39, "from 1 to 22"),
    (table(pk=PK, **{"table.kv.format-version": "3"}), 39, "format-version' 3 is not supported"),
    (table(**{"table.merge-engine": "first_row"}), 39, "primary key only"),
    (table(pk=PK, **VERSIONED), 39, "must be set for versioned merge engine"),
    (table(pk=PK, **VERSIONED, **{VERSION: "x"}), 39, "for versioned merge engine doesn't exist in schema"),
    (table(pk=PK, **VERSIONED, **{VERSION: "v"}), 39, "[INT, BIGINT, TIMESTAMP, TIMESTAMP_LTZ], but got STRING"),
    (table(pk=PK, **{"table.merge-engine": "aggregation", "table.changelog.image": "WAL"}), 39, "must be FULL"),
    (
        table({"id": t.IntType(), "s": Column("s", t.IntType(), agg_function=AggFunction("sum"))}, pk=("id",)),
        39,
        "only supported for aggregation merge engine table",
    ),
    (table(**{"table.delete.behavior": "ignore"}), 39, "only supported for primary key tables"),
    (
        table(pk=PK, **{"table.merge-engine": "first_row", "table.delete.behavior": "allow"}),
        39,
        "'FIRST_ROW' merge engine does not support delete operations",
    ),
    (table(**{"table.log.tiered.local-segments": "0"}), 39, "greater than 0"),
    (table(**{"table.log.ttl": "1 d", "table.log.local-ttl": "2 d"}), 39, "must be less than or equal to"),
    (table(**AUTO), 39, "partitioned tables only"),
    (table({"d": t.DecimalType(5, 2)}, partition_keys=["d"]), 15, "which partition keys cannot have"),
    (table(partition_keys=["dt"], **{"table.auto-partition.time-format": "MM"}), 15, "time-format'"),
    (table(partition_keys=["dt", "v"], **AUTO), 15, "'table.auto-partition.key' must be set"),
    (table(partition_keys=["dt", "v"], **BY_DT), 15, "num-precreate' must be 0"),
    (table(partition_keys=["dt"], **AUTO, **{"table.auto-partition.key": "x"}), 15, "not among the partition keys"),
    (table({"d": t.DateType()}, partition_keys=["d"], **AUTO), 15, "is of type DATE"),
    (
        table(
            {"d": t.DateType()},
            partition_keys=["d"],
            **AUTO,
            **{"table.auto-partition.time-unit": "MONTH", "table.auto-partition.time-format": "yyyy-MM"},
        ),
        15,
        "is of type DATE",
    ),
    (table(pk=PK, **{"table.statistics.columns": "*"}), 39, "without a primary key"),
    (table(**{"table.statistics.columns": "x"}), 39, "no column 'x'"),
    (table(**{"table.statistics.columns": "id,"}), 39, "without empty ones"),
    (table(**{"table.statistics.columns": "id,id"}), 39, "twice"),
    (table({"b": t.BytesType()}, **{"table.statistics.columns": "b"}), 39, "has no statistics"),
    (
        table(**HISTORICAL),
        39,
        "needs 'table.auto-partition.enabled' true, 'table.datalake.enabled' true, 'table.datalake.format' paimon, "
        "a primary key, exactly one partition key",
    ),
]


@pytest.mark.parametrize(("descriptor", "code", "text"), BAD, ids=lambda item: str(item)[:50])
def test_bad_tables(descriptor: TableDescriptor, code: int, text: str) -> None:
    with pytest.raises(FlussError) as caught:
        validate_table_descriptor(descriptor)
    assert caught.value.error_code == code, caught.value
    assert text in caught.value.message


def test_no_buckets_is_an_unforeseen_error_on_the_wire() -> None:
    document = table().to_json()
    document["bucket_count"] = 0
    with pytest.raises(FlussError, match="larger than 0") as caught:
        validate_table_descriptor(TableDescriptor.from_json(document))
    assert caught.value.error_code == -1


def test_limit_of_buckets_is_the_servers() -> None:
    validate_table_descriptor(table(bucket_count=8), bucket_count_max=8)
    with pytest.raises(FlussError) as caught:
        validate_table_descriptor(table(bucket_count=9), bucket_count_max=8)
    assert caught.value.error_code == 49


@pytest.mark.parametrize("name", sorted(SYSTEM_COLUMNS))
def test_system_columns(name: str) -> None:
    with pytest.raises(FlussError) as caught:
        validate_table_descriptor(table({"id": t.IntType(), name: t.IntType()}))
    assert caught.value.error_code == 15
    assert name in caught.value.message


ANY_FUNCTIONS = {"last_value", "last_value_ignore_nulls", "first_value", "first_value_ignore_nulls"}


@pytest.mark.parametrize(
    ("data_type", "functions"),
    [
        (t.IntType(), {"sum", "product", "max", "min"}),
        (t.StringType(), {"max", "min", "listagg", "string_agg"}),
        (t.CharType(2), {"max", "min", "listagg", "string_agg"}),
        (t.DateType(), {"max", "min"}),
        (t.BooleanType(), {"bool_and", "bool_or"}),
        (t.BytesType(), {"rbm32", "rbm64"}),
        (t.BinaryType(2), set()),
        (t.RowType(()), set()),
    ],
    ids=lambda value: str(value) if isinstance(value, t.DataType) else "",
)
def test_types_of_aggregation_functions(data_type: t.DataType, functions: set[str]) -> None:
    taken = set()
    for name in AGG_FUNCTION_TYPES:
        try:
            validate_agg_function("c", data_type, AggFunction(name))
        except InvalidConfigError:
            continue
        taken.add(name)
    assert taken == functions | ANY_FUNCTIONS


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (AggFunction("median"), "the functions are sum"),
        (AggFunction("max", {"delimiter": ","}), "has no parameter 'delimiter'"),
        (AggFunction("listagg", {"separator": ","}), "has no parameter 'separator'"),
        (AggFunction("listagg", {"delimiter": ""}), "must not be empty"),
    ],
)
def test_bad_aggregation_functions(function: AggFunction, text: str) -> None:
    with pytest.raises(InvalidConfigError, match=text):
        validate_agg_function("c", t.StringType(), function)


def test_statistics_columns() -> None:
    columns: dict[str, t.DataType | Column] = {"a": t.IntType(), "b": t.BytesType(), "c": t.StringType()}
    for setting, positions in ((None, ()), (" ", ()), ("*", (0, 2)), (" c , a", (2, 0))):
        properties = {} if setting is None else {"table.statistics.columns": setting}
        made = table(columns, **properties)
        assert statistics_columns(made.schema, made.config.statistics_columns) == positions


def test_properties_alone() -> None:
    validate_properties({"table.log.ttl": "1 d", "table.auto-partition.time-zone": "UTC"})
    with pytest.raises(InvalidConfigError):
        validate_properties({"x" * 500: "1"})
