# SPDX-License-Identifier: Apache-2.0
"""Whether a table makes sense: the rules a server applies to a descriptor, with its defaults filled in.

The structural rules (keys against columns) hold for every descriptor from its construction on; see `structure`. Rules
that depend on the cluster (live servers, its lake) are the server's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluss.errors import (
    BucketMaxNumError,
    InvalidConfigError,
    InvalidTableError,
    InvalidTargetColumnError,
    UnknownServerError,
)
from fluss.metadata import types as t
from fluss.metadata.auto_partition import AutoPartitionStrategy, TimeFormat, parse_time_zone
from fluss.metadata.descriptor import TableDescriptor
from fluss.metadata.partition import PARTITION_KEY_TYPES
from fluss.metadata.properties import TABLE_PREFIX, TABLE_PROPERTIES, check_lake_properties
from fluss.metadata.schema import COMPARABLE_TYPES, NUMERIC_TYPES, AggFunction, Column, Schema, statistics_columns

BUCKET_COUNT_MAX = 128_000
"""The most buckets of a table or partition, unless the server says otherwise."""

KV_FORMAT_VERSION_MAX = 2

SYSTEM_COLUMNS = frozenset(("__offset", "__timestamp", "__bucket", "_change_type", "_log_offset", "_commit_timestamp"))
"""Names that lake tables and changelogs give to columns of their own."""

_ANY: tuple[type[t.DataType], ...] = (t.DataType,)

AGG_FUNCTION_TYPES: dict[str, tuple[type[t.DataType], ...]] = {
    "sum": NUMERIC_TYPES,
    "product": NUMERIC_TYPES,
    "max": COMPARABLE_TYPES,
    "min": COMPARABLE_TYPES,
    "last_value": _ANY,
    "last_value_ignore_nulls": _ANY,
    "first_value": _ANY,
    "first_value_ignore_nulls": _ANY,
    "listagg": t.TEXT_TYPES,
    "string_agg": t.TEXT_TYPES,
    "bool_and": (t.BooleanType,),
    "bool_or": (t.BooleanType,),
    "rbm32": (t.BytesType,),
    "rbm64": (t.BytesType,),
}
"""The aggregation functions and the types they take."""


def validate_properties(properties: Mapping[str, str]) -> None:
    """Every property must be known and readable (code 39)."""
    for name, text in properties.items():
        row = TABLE_PROPERTIES.get(name)
        if row is not None:
            row.parse(text)
        elif name.startswith(TABLE_PREFIX):
            near = TABLE_PROPERTIES.suggest(name)
            hint = f" Did you mean '{near}'?" if near else ""
            raise InvalidConfigError(
                f"'{name:.200}' is not a table property that this version of the server knows.{hint}"
            )
        else:
            raise InvalidConfigError(
                f"'{name:.200}' is not a Fluss table property. They begin with '{TABLE_PREFIX}'; "
                "use custom properties for settings of your own."
            )
    zone = properties.get("table.auto-partition.time-zone")
    if zone is not None:
        try:
            parse_time_zone(zone)
        except InvalidConfigError as error:
            raise InvalidConfigError(
                f"Invalid value for config 'table.auto-partition.time-zone'. Reason: {error.message}"
            ) from None


def validate_table_descriptor(descriptor: TableDescriptor, *, bucket_count_max: int = BUCKET_COUNT_MAX) -> None:
    """Check a descriptor as it would be stored, with the server's defaults in it.

    Raises the error a client shall see: mostly InvalidTableError (15) and InvalidConfigError (39).
    """
    validate_properties(descriptor.properties)
    check_lake_properties(descriptor.custom_properties)
    _check_buckets(descriptor, bucket_count_max)
    _check_columns(descriptor.schema)
    _check_key_types(descriptor)
    _check_formats(descriptor)
    _check_merge_engine(descriptor)
    _check_delete_behavior(descriptor)
    _check_log(descriptor)
    _check_partitions(descriptor)
    _check_statistics(descriptor)
    _check_historical_partition(descriptor)


def check_target_columns(schema: Schema, targets: Sequence[int]) -> None:
    """Refuse columns that a partial update cannot have: the key must be among them, and no other column NOT NULL."""
    width = len(schema.columns)
    for index in targets:
        if not 0 <= index < width:
            raise InvalidTargetColumnError(f"target column {index} is out of range: the table has {width} columns")
    names = {schema.columns[index].name for index in targets}
    missing = [name for name in schema.primary_key if name not in names]
    if missing:
        raise InvalidTargetColumnError(
            f"a partial update must name all primary key columns; missing: {', '.join(missing)}"
        )
    fixed = [c.name for c in schema.columns if c.name not in schema.primary_key and not c.data_type.nullable]
    if fixed:
        raise InvalidTargetColumnError(
            f"a partial update needs all columns outside the primary key to be nullable; NOT NULL: {', '.join(fixed)}"
        )


def _check_buckets(descriptor: TableDescriptor, bucket_count_max: int) -> None:
    count = descriptor.bucket_count
    if count is None:
        raise InvalidTableError("The number of buckets must be set.")
    if count <= 0:
        raise UnknownServerError(f"The number of buckets must be larger than 0, not {count}.")
    if count > bucket_count_max:
        raise BucketMaxNumError(
            f"Bucket count {count} exceeds the maximum limit {bucket_count_max} for a non-partitioned table or "
            "partition. Choose fewer, or raise the option 'max.bucket.num'."
        )


def _check_columns(schema: Schema) -> None:
    if reserved := [name for name in schema.column_names if name in SYSTEM_COLUMNS]:
        raise InvalidTableError(
            f"{', '.join(reserved)} cannot be used as column names: they are reserved. "
            f"The reserved names are {', '.join(sorted(SYSTEM_COLUMNS))}."
        )
    # Any number of values of such a type takes no bytes, so that nothing bounds what a small batch stands for.
    for column in schema.columns:
        if _has_empty_row(column.data_type):
            raise InvalidTableError(f"Column '{column.name}' has type {column.data_type}: a row needs a field.")


def _has_empty_row(dtype: t.DataType) -> bool:
    if isinstance(dtype, t.ArrayType):
        return _has_empty_row(dtype.element_type)
    if isinstance(dtype, t.MapType):
        return _has_empty_row(dtype.key_type) or _has_empty_row(dtype.value_type)
    return isinstance(dtype, t.RowType) and (not dtype.fields or any(map(_has_empty_row, dtype.field_types)))


def _check_key_types(descriptor: TableDescriptor) -> None:
    schema = descriptor.schema
    for what, names in (("Bucket", descriptor.bucket_keys), ("Primary", schema.primary_key)):
        for name in names:
            data_type = schema.column(name).data_type
            if isinstance(data_type, t.NESTED_TYPES):
                raise InvalidTableError(
                    f"{what} key column '{name}' has type {data_type}; keys cannot be arrays, maps or rows."
                )


def _check_formats(descriptor: TableDescriptor) -> None:
    config = descriptor.config
    factor = config.replication_factor
    if factor is not None and factor <= 0:
        raise InvalidConfigError(f"'table.replication.factor' must be greater than 0. It is {factor}.")
    if descriptor.has_primary_key() and config.kv_format == "COMPACTED" and config.log_format == "INDEXED":
        raise InvalidConfigError(
            "Currently, Primary Key Table supports ARROW or COMPACTED log format when kv format is COMPACTED."
        )
    level = config.arrow_compression[1]
    if not 1 <= level <= 22:
        raise InvalidConfigError(f"'table.log.arrow.compression.zstd.level' must be from 1 to 22, not {level}.")
    if not 1 <= config.kv_format_version <= KV_FORMAT_VERSION_MAX:
        raise InvalidConfigError(
            f"'table.kv.format-version' {config.kv_format_version} is not supported; "
            f"the versions are 1 to {KV_FORMAT_VERSION_MAX}."
        )


def _check_merge_engine(descriptor: TableDescriptor) -> None:
    config, schema = descriptor.config, descriptor.schema
    engine = config.merge_engine
    if engine is not None and not schema.has_primary_key:
        raise InvalidConfigError("'table.merge-engine' is for tables with a primary key only.")
    if engine == "versioned":
        _check_version_column(config.version_column, schema)
    if engine == "aggregation" and config.changelog_image == "WAL":
        raise InvalidConfigError("'table.changelog.image' must be FULL with the aggregation merge engine, not WAL.")
    _check_agg_functions(schema.columns, engine)


def _check_version_column(name: str | None, schema: Schema) -> None:
    key = "table.merge-engine.versioned.ver-column"
    if name is None:
        raise InvalidConfigError(f"'{key}' must be set for versioned merge engine.")
    if name not in schema.column_names:
        raise InvalidConfigError(f"The version column '{name}' for versioned merge engine doesn't exist in schema.")
    data_type = schema.column(name).data_type
    if not isinstance(data_type, (t.IntType, t.BigIntType, t.TimestampType, t.TimestampLtzType)):
        raise InvalidConfigError(
            f"The version column '{name}' for versioned merge engine must be one type of "
            f"[INT, BIGINT, TIMESTAMP, TIMESTAMP_LTZ], but got {str(data_type).upper()}."
        )


def _check_agg_functions(columns: tuple[Column, ...], engine: str | None) -> None:
    for column in columns:
        if column.agg_function is None:
            continue
        if engine != "aggregation":
            raise InvalidConfigError(
                "Aggregation function is only supported for aggregation merge engine table. Column "
                f"'{column.name}' has '{column.agg_function.name}': set 'table.merge-engine' to 'aggregation'."
            )
        validate_agg_function(column.name, column.data_type, column.agg_function)


def validate_agg_function(column: str, data_type: t.DataType, function: AggFunction) -> None:
    """Check that an aggregation function exists and takes this type and these parameters (code 39)."""
    what = f"Invalid aggregation function '{function.name:.80}' for column '{column}':"
    types = AGG_FUNCTION_TYPES.get(function.name)
    if types is None:
        raise InvalidConfigError(f"{what} the functions are {', '.join(AGG_FUNCTION_TYPES)}.")
    if not isinstance(data_type, types):
        names = ", ".join(one.__name__.removesuffix("Type").upper() for one in types)
        raise InvalidConfigError(f"{what} Data type for {function.name} column must be {names}, not {data_type}.")
    takes_delimiter = function.name in ("listagg", "string_agg")
    for name, value in function.parameters.items():
        if name != "delimiter" or not takes_delimiter:
            raise InvalidConfigError(f"{what} it has no parameter '{name:.80}'.")
        if not value:
            raise InvalidConfigError(f"{what} the delimiter must not be empty.")


def _check_delete_behavior(descriptor: TableDescriptor) -> None:
    config = descriptor.config
    if not config.is_set("table.delete.behavior"):
        return
    if not descriptor.has_primary_key():
        raise InvalidConfigError("The 'table.delete.behavior' configuration is only supported for primary key tables.")
    if config.merge_engine in ("first_row", "versioned") and config.delete_behavior == "ALLOW":
        raise InvalidConfigError(
            f"Table with '{config.merge_engine.upper()}' merge engine does not support delete operations. "
            "The 'table.delete.behavior' config must be set to 'ignore' or 'disable', but got 'allow'."
        )


def _check_log(descriptor: TableDescriptor) -> None:
    config = descriptor.config
    if config.tiered_local_segments <= 0:
        raise InvalidConfigError("'table.log.tiered.local-segments' must be greater than 0.")
    if 0 < config.log_ttl_ms < config.log_local_ttl_ms:
        raise InvalidConfigError("'table.log.local-ttl' must be less than or equal to 'table.log.ttl'.")


def _check_partitions(descriptor: TableDescriptor) -> None:
    config, keys = descriptor.config, descriptor.partition_keys
    if not keys:
        if config.auto_partition_enabled:
            raise InvalidConfigError("'table.auto-partition.enabled' is for partitioned tables only.")
        return
    for name in keys:
        data_type = descriptor.schema.column(name).data_type
        if not isinstance(data_type, PARTITION_KEY_TYPES):
            raise InvalidTableError(f"Partition key '{name}' has type {data_type}, which partition keys cannot have.")
    pattern = config.auto_partition_time_format
    if pattern is not None:
        try:
            TimeFormat.parse(pattern, config.auto_partition_time_unit)
        except InvalidTableError as error:
            raise InvalidTableError(
                f"Invalid table property 'table.auto-partition.time-format': {error.message}"
            ) from None
    if config.auto_partition_enabled:
        _check_auto_partition(descriptor)


def _check_auto_partition(descriptor: TableDescriptor) -> None:
    config, keys = descriptor.config, descriptor.partition_keys
    key = config.auto_partition_key
    if len(keys) > 1:
        if key is None:
            raise InvalidTableError(
                f"'table.auto-partition.key' must be set, for there are several partition keys: {', '.join(keys)}."
            )
        if config.auto_partition_num_precreate > 0:
            raise InvalidTableError(
                "'table.auto-partition.num-precreate' must be 0, for there are several partition keys; "
                f"it is {config.auto_partition_num_precreate}."
            )
    if key is not None and key not in keys:
        raise InvalidTableError(
            f"'table.auto-partition.key' '{key}' is not among the partition keys {', '.join(keys)}."
        )
    strategy = AutoPartitionStrategy.of(config, keys)
    if isinstance(descriptor.schema.column(strategy.key).data_type, t.DateType) and (
        strategy.time_unit != "DAY" or strategy.time_format.pattern != "yyyy-MM-dd"
    ):
        raise InvalidTableError(
            f"The auto partition key '{strategy.key}' is of type DATE: 'table.auto-partition.time-unit' must be DAY "
            "and 'table.auto-partition.time-format' must be yyyy-MM-dd."
        )


def _check_statistics(descriptor: TableDescriptor) -> None:
    if descriptor.config.statistics_columns is None:
        return
    if descriptor.has_primary_key():
        raise InvalidConfigError("'table.statistics.columns' is for tables without a primary key only.")
    statistics_columns(descriptor.schema, descriptor.config.statistics_columns)


def _check_historical_partition(descriptor: TableDescriptor) -> None:
    key = "table.datalake.historical-partition.enabled"
    config = descriptor.config
    if not config.lake_historical_partition_enabled:
        return
    needs = [
        (config.auto_partition_enabled, "'table.auto-partition.enabled' true"),
        (config.lake_enabled, "'table.datalake.enabled' true"),
        (config.lake_format == "paimon", "'table.datalake.format' paimon"),
        (descriptor.has_primary_key(), "a primary key"),
        (len(descriptor.partition_keys) == 1, "exactly one partition key"),
    ]
    if missing := [text for holds, text in needs if not holds]:
        raise InvalidConfigError(f"'{key}' needs {', '.join(missing)}.")
