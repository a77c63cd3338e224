# SPDX-License-Identifier: Apache-2.0
"""Arrow batches for Spark: exactly its schema, of a suitable size, with metadata columns on request."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import types as s

from fluss._arrow_buffers import array_of, numpy_of, valid_mask
from fluss.aio import RecordBatch
from fluss.client.scan.records import offset_array
from fluss.client.scan.views import CHANGE_TYPE, VIEWS, change_names, view_info
from fluss.client.table import check_view
from fluss.errors import InvalidArgumentError
from fluss.metadata import ChangeType, TableInfo
from fluss.spark.types import to_spark_schema
from fluss.spark.versions import arrow_schema

BATCH_ROWS = 65_536
"""The maximum number of rows of a batch handed to Spark: smaller ones cost time per batch, larger ones memory."""

BATCH_BYTES = 32 * 1024 * 1024
"""The maximum size of a batch with more than one row. Arrow counts the bytes of a column of texts with 31 bits."""

_FINENESS = ("s", "ms", "us", "ns")

BUCKET = "_bucket"

METADATA_FIELDS: dict[str, s.StructField] = {
    CHANGE_TYPE: s.StructField(CHANGE_TYPE, s.StringType(), False),
    "_log_offset": s.StructField("_log_offset", s.LongType(), False),
    "_commit_timestamp": s.StructField("_commit_timestamp", s.TimestampType(), True),
    BUCKET: s.StructField(BUCKET, s.IntegerType(), False),
}


def source_schema(
    info: TableInfo,
    columns: tuple[str, ...] | None,
    *,
    metadata: bool,
    changelog: bool,
    view: str | None = None,
) -> s.StructType:
    """The schema of a read without one given by the user."""
    if view is not None and view in VIEWS and not metadata:
        check_view(info, view)
        shown = to_spark_schema(view_info(info, view).schema)
        shown = s.StructType([METADATA_FIELDS.get(field.name, field) for field in shown.fields])
        return shown if columns is None else s.StructType([shown[name] for name in _known(columns, shown)])
    if columns is not None:
        for name in columns:
            if name not in info.schema.column_names and name not in METADATA_FIELDS:
                raise InvalidArgumentError(
                    f"columns: table {info.table_path} has no column {name!r}; "
                    f"it has {', '.join(info.schema.column_names)}"
                )
        own = to_spark_schema(info.schema, [name for name in columns if name in info.schema.column_names])
        by_name = {field.name: field for field in own.fields}
        fields = [by_name[name] if name in by_name else METADATA_FIELDS[name] for name in columns]
    else:
        fields = list(to_spark_schema(info.schema).fields)
    given = {field.name for field in fields}
    extra = list(METADATA_FIELDS) if metadata else [CHANGE_TYPE] if changelog else []
    for name in extra:
        if name in info.schema.column_names:
            raise InvalidArgumentError(
                f"table {info.table_path} has a column {name!r} of its own, so metadata columns cannot be added"
            )
        if name not in given:
            fields.append(METADATA_FIELDS[name])
    return s.StructType(fields)


def _known(columns: tuple[str, ...], schema: s.StructType) -> tuple[str, ...]:
    for name in columns:
        if name not in schema.names:
            raise InvalidArgumentError(f"columns: there is no column {name!r}; there are {', '.join(schema.names)}")
    return columns


def check_schema(info: TableInfo, schema: s.StructType) -> None:
    """Refuse a schema given by the user that the table cannot fill, before anything runs."""
    for field in schema.fields:
        if field.name in info.schema.column_names:
            expected = to_spark_schema(info.schema, [field.name]).fields[0].dataType
        elif field.name in METADATA_FIELDS:
            expected = METADATA_FIELDS[field.name].dataType
        else:
            raise InvalidArgumentError(
                f"the schema given has a column {field.name!r}, which table {info.table_path} has not; "
                f"it has {', '.join(info.schema.column_names)}"
            )
        if not _same(expected, field.dataType):
            raise InvalidArgumentError(
                f"the schema given has column {field.name!r} as {field.dataType.simpleString()}, "
                f"but in table {info.table_path} it is {expected.simpleString()}"
            )


def _same(one: s.DataType, other: s.DataType) -> bool:
    """Equal but for nullability."""
    return bool(one.simpleString() == other.simpleString())


def table_columns(info: TableInfo, schema: s.StructType) -> list[str]:
    """The columns of the table that a read of this schema needs; at least one, since a scan needs one."""
    names = [name for name in schema.names if name in info.schema.column_names]
    return names or [info.schema.column_names[0]]


class SparkBatchConverter:
    """Brings record batches of a scan to one Spark schema, and to a size that suits Spark."""

    def __init__(
        self,
        schema: s.StructType,
        *,
        drop_deletes: bool = False,
        rows_max: int = BATCH_ROWS,
        bytes_max: int = BATCH_BYTES,
    ) -> None:
        self._schema: pa.Schema = arrow_schema(schema)
        self._drop_deletes = drop_deletes
        self._rows_max = rows_max
        self._bytes_max = bytes_max

    def convert(self, found: Iterable[RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Cut large batches and join small ones; a batch is over the limits only if one row is."""
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for item in found:
            for batch in bounded(self._one(item), self._rows_max, self._bytes_max):
                if waiting and (rows + batch.num_rows > self._rows_max or size + batch.nbytes > self._bytes_max):
                    yield self._join(waiting)
                    waiting, rows, size = [], 0, 0
                waiting.append(batch)
                rows, size = rows + batch.num_rows, size + batch.nbytes
        if waiting:
            yield self._join(waiting)

    def _join(self, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        if len(batches) == 1:
            return batches[0]
        # Fails if they do not fit into one.
        [joined] = pa.Table.from_batches(batches, self._schema).combine_chunks().to_batches()
        return joined

    def _one(self, item: RecordBatch) -> pa.RecordBatch:
        batch = item.batch
        columns = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
        arrays = [
            _fit(columns[field.name], field.type) if field.name in columns else _metadata(field, item)
            for field in self._schema
        ]
        shaped = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        if self._drop_deletes and item.change_types is not None:
            changes = np.frombuffer(item.change_types, np.uint8)
            keep = (changes != ChangeType.Delete) & (changes != ChangeType.UpdateBefore)
            if not keep.all():
                shaped = shaped.filter(pa.array(keep))
        return shaped


def bounded(
    batch: pa.RecordBatch, rows_max: int = BATCH_ROWS, bytes_max: int = BATCH_BYTES
) -> Iterator[pa.RecordBatch]:
    """Halve a batch until each piece is within the limits, or is one row; an empty batch gives none."""
    if batch.num_rows <= 1 or (batch.num_rows <= rows_max and batch.nbytes <= bytes_max):
        if batch.num_rows:
            yield batch
        return
    half = batch.num_rows // 2
    yield from bounded(batch.slice(0, half), rows_max, bytes_max)
    yield from bounded(batch.slice(half), rows_max, bytes_max)


PACKED = s.StructType([s.StructField("batch", s.BinaryType())])
"""The schema of packed batches."""


def packed(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Make one row of each batch, for the bridge: Spark would make rows of its columns one by one."""
    schema = arrow_schema(PACKED)
    for batch in batches:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        value = sink.getvalue()
        ends = pa.py_buffer(np.array([0, value.size], np.int32))
        yield pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.binary(), 1, [None, ends, value])], schema=schema)


def _fit(array: pa.Array, wanted: pa.DataType) -> pa.Array:
    if array.type == wanted:
        return array
    # Spark's timestamps hold microseconds: finer digits are cut off.
    if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(array.type):
        array = floor_times(array, wanted.unit)
    return array.cast(wanted, safe=False)


def floor_times(array: pa.Array, unit: str) -> pa.Array:
    """Cut times to a coarser unit; times that fit already stay as they are.

    The instants are floored, which are in UTC whatever the zone of the session. Local times would not do: those of the
    hour that is repeated when daylight saving ends stand for two instants each. As numbers they take an eighth of the
    time of Arrow's own function.
    """
    steps = _FINENESS.index(array.type.unit) - _FINENESS.index(unit)
    if steps <= 0 or not len(array):
        return array
    ticks = np.floor_divide(numpy_of(array.view(pa.int64())), 1000**steps)
    zone = None if array.type.tz is None else "UTC"
    return array_of(ticks, ~valid_mask(array)).view(pa.timestamp(unit, zone))


def _metadata(field: pa.Field, item: RecordBatch) -> pa.Array:
    rows = item.num_records
    if field.name == CHANGE_TYPE:
        return change_names(item.change_types, rows)
    if field.name == "_log_offset":
        return pa.array(offset_array(item))
    if field.name == BUCKET:
        return pa.array(np.full(rows, item.bucket.bucket_id, np.int32))
    if item.timestamp < 0:
        return pa.nulls(rows, field.type)
    return pa.array(np.full(rows, item.timestamp * 1000, np.int64)).cast(field.type)
