# SPDX-License-Identifier: Apache-2.0
"""Arrow batches and data frames from the user, brought to the table's own columns without losing anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss._lazy import LazyModule
from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import CharType, Column, DateType, TimestampLtzType, TimestampType, TimeType
from fluss.rows import BadValues, ColumnConverter, conform

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")


_TIMES = (DateType, TimeType, TimestampType, TimestampLtzType)


def arrow_batches(data: Any, what: str) -> list[pa.RecordBatch]:
    """The record batches of anything that offers Arrow data: a table, a batch, a reader, a frame of another library.

    Objects of other libraries are read through the Arrow PyCapsule interface, which copies nothing.
    """
    if isinstance(data, pa.Table):
        return data.to_batches()  # type: ignore[no-any-return]
    if isinstance(data, pa.RecordBatch):
        return [data]
    try:
        if hasattr(data, "__arrow_c_stream__"):
            return list(pa.RecordBatchReader.from_stream(data))
        if hasattr(data, "__arrow_c_array__"):
            return [pa.record_batch(data)]
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise InvalidRowError(f"{what}: the Arrow data of a {type(data).__name__} cannot be read: {error}") from None
    raise InvalidArgumentError(
        f"{what}: expected Arrow data (a pyarrow.Table, or an object with __arrow_c_stream__ or __arrow_c_array__), "
        f"got {type(data).__name__}; single rows are written with append() or upsert()"
    )


class BatchReader:
    """Takes record batches in whatever column order and kindred types they come."""

    def __init__(self, table: str, columns: Sequence[Column]) -> None:
        self.table = table
        self.columns = list(columns)
        self.schema = pa.schema([pa.field(c.name, c.data_type.to_arrow(), c.data_type.nullable) for c in columns])
        self._names = {column.name for column in columns}
        self._checked = [
            i
            for i, column in enumerate(columns)
            if not column.data_type.nullable or isinstance(column.data_type, (CharType, TimeType))
        ]

    def read(self, batch: pa.RecordBatch, first_row: int = 0) -> pa.RecordBatch:
        """The batch with exactly the table's columns and types, or `InvalidRowError`.

        `first_row` is the number of the batch's first row in what the user gave, for errors.
        """
        if not batch.schema.equals(self.schema, check_metadata=True):
            if batch.schema.names == self.schema.names and batch.schema.types == self.schema.types:
                # What a schema says beyond that (metadata, nullability) would keep batches from being joined.
                batch = pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
            else:
                batch = self._rebuild(batch, first_row)
        for i in self._checked:
            self._check(batch.column(i), self.columns[i], first_row)
        return batch

    def _rebuild(self, batch: pa.RecordBatch, first_row: int) -> pa.RecordBatch:
        given = batch.schema.names
        self._check_names(given)
        arrays = []
        for column, field in zip(self.columns, self.schema):
            if column.name in given:
                arrays.append(self._cast(batch.column(given.index(column.name)), column, first_row))
            else:
                arrays.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _check_names(self, given: Sequence[Any]) -> None:
        unknown = [name for name in given if name not in self._names]
        if unknown:
            raise InvalidRowError(
                f"unknown column {', '.join(map(repr, unknown))}; the columns are {', '.join(self.schema.names)}",
                table=self.table,
            )
        twice = {name for name in given if given.count(name) > 1}
        if twice:
            raise InvalidRowError(
                f"column {', '.join(map(repr, sorted(twice)))} is given more than once", table=self.table
            )
        missing = [c.name for c in self.columns if not c.data_type.nullable and c.name not in given]
        if missing:
            fields = f"field{'s' if len(missing) > 1 else ''} {', '.join(map(repr, missing))}"
            raise InvalidRowError(f"Missing value for non-nullable {fields}: no such column is given", table=self.table)

    def _cast(self, array: pa.Array, column: Column, first_row: int) -> pa.Array:
        # A timestamp without a zone is one of UTC in a TIMESTAMP_LTZ column, as it is for the values of rows.
        data_type = column.data_type
        if isinstance(data_type, _TIMES) and (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            return self._converted(array.to_pylist(), column, first_row)
        try:
            return conform(array, data_type)
        except InvalidRowError as error:
            row = _first_lossy(array, column)
            if row is None:
                raise self._error(error.message, column) from None
            value = f"{array[row].as_py()!r:.80}"
            raise self._error(f"{value} does not fit without loss: {error.message}", column, first_row + row) from None

    def _converted(self, values: Sequence[Any], column: Column, first_row: int = 0) -> pa.Array:
        """Python values, and dates and times as texts in ISO form, as the values of rows are read."""
        try:
            return ColumnConverter(column.data_type, column.name).to_arrow(values)
        except BadValues as found:
            row, error = next(iter(found.errors.items()))
            raise error.replace(table=self.table, row=first_row + row) from None

    def _error(self, reason: str, column: Column, row: int | None = None) -> InvalidRowError:
        return InvalidRowError(reason, table=self.table, row=row, column=column.name, column_type=column.data_type)

    def _check(self, array: pa.Array, column: Column, first_row: int) -> None:
        """What a column asks for beyond its Arrow type."""
        data_type = column.data_type
        if not data_type.nullable and array.null_count:
            row = first_row + pc.index(array.is_null(), True).as_py()
            raise self._error("no value (null) in a non-nullable column", column, row)
        if isinstance(data_type, CharType):
            long = pc.index(pc.greater(pc.utf8_length(array), data_type.length), True).as_py()
            if long >= 0:
                value = f"{array[long].as_py()!r:.80}"
                raise self._error(f"{value} has more characters than there is room for", column, first_row + long)
        elif isinstance(data_type, TimeType) and data_type.precision > 3:
            try:
                array.cast(pa.time32("ms"), safe=True)
            except pa.ArrowException as error:
                reason = f"a time of day is kept in milliseconds, so round it to them first: {error}"
                raise self._error(reason, column) from None

    def from_pandas(self, frame: Any) -> pa.Table:
        """A pandas DataFrame as an Arrow table; what pandas keeps as Python objects is converted strictly."""
        names = list(frame.columns)
        self._check_names(names)
        arrays = []
        fields = []
        by_name = {column.name: column for column in self.columns}
        for name in names:
            column, series = by_name[name], frame[name]
            if series.dtype == object:
                values = [None if gone else value for value, gone in zip(series.tolist(), series.isna().tolist())]
                array = self._converted(values, column)
            else:
                array = pa.Array.from_pandas(series)
                if isinstance(array, pa.ChunkedArray):
                    array = array.combine_chunks()
            arrays.append(array)
            fields.append(pa.field(name, array.type))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _first_lossy(array: pa.Array, column: Column) -> int | None:
    """Where the first value is that cannot be cast, by halving; None if it is the type as such that cannot be."""
    if not _fails(array, column) or _fails(array.slice(0, 0), column):
        return None
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        if _fails(array.slice(low, middle - low), column):
            high = middle
        else:
            low = middle
    return low


def _fails(array: pa.Array, column: Column) -> bool:
    try:
        conform(array, column.data_type)
    except InvalidRowError:
        return True
    return False


def polars_to_arrow(frame: Any) -> pa.Table:
    """A polars DataFrame as an Arrow table.

    A column of type Object is refused: polars exports the memory addresses of its values as bytes.
    """
    for name, kind in frame.schema.items():
        if "Object" in str(kind) and _holds_objects(kind):
            raise InvalidArgumentError(
                f"column {name!r} has the polars type Object, which Arrow does not know; convert its values first, "
                "such as to texts or structs"
            )
    return frame.to_arrow()


def _holds_objects(kind: Any) -> bool:
    if type(kind).__name__ == "Object" or getattr(kind, "__name__", "") == "Object":
        return True
    fields = getattr(kind, "fields", None) or ()
    inner = getattr(kind, "inner", None)
    return (inner is not None and _holds_objects(inner)) or any(_holds_objects(field.dtype) for field in fields)
