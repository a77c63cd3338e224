# SPDX-License-Identifier: Apache-2.0
"""Arrow batches from the user, brought to the table's own columns without losing anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from fluss.errors import InvalidRowError
from fluss.metadata import Column

_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_NUMBER = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
_FAMILIES = (
    _TEXT,
    _BYTES,
    _NUMBER,
    (pa.types.is_boolean,),
    (pa.types.is_date,),
    (pa.types.is_time,),
    (pa.types.is_timestamp,),
    (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    (pa.types.is_map,),
    (pa.types.is_struct,),
)


def _kin(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether a value of one type can be one of the other: numbers and numbers, text and text, ..."""
    if pa.types.is_null(given):
        return True
    if pa.types.is_dictionary(given):
        return _kin(given.value_type, wanted)
    if pa.types.is_timestamp(given) and pa.types.is_timestamp(wanted):
        # With a zone it is an instant, without one a wall clock: neither can be guessed from the other.
        return (given.tz is None) == (wanted.tz is None)
    return any(any(test(given) for test in family) and any(test(wanted) for test in family) for family in _FAMILIES)


class BatchReader:
    """Takes record batches in whatever column order and kindred types they come."""

    def __init__(self, what: str, columns: Sequence[Column]) -> None:
        self.what = what
        self.columns = list(columns)
        self.schema = pa.schema([pa.field(c.name, c.data_type.to_arrow(), c.data_type.nullable) for c in columns])
        self._names = {column.name for column in columns}
        self._required = [i for i, column in enumerate(columns) if not column.data_type.nullable]

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with exactly the table's columns and types, or `InvalidRowError`."""
        if [field.name for field in batch.schema] != self.schema.names or batch.schema.types != self.schema.types:
            batch = self._rebuild(batch)
        for i in self._required:
            if batch.column(i).null_count:
                row = pc.index(batch.column(i).is_null(), True).as_py()
                raise InvalidRowError(
                    f"{self.what}: row {row} has no value (null) in column '{self.columns[i].name}', which is NOT NULL"
                )
        return batch

    def _rebuild(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        given = batch.schema.names
        unknown = [name for name in given if name not in self._names]
        if unknown:
            raise InvalidRowError(
                f"{self.what}: unknown column {', '.join(map(repr, unknown))}; "
                f"the columns are {', '.join(self.schema.names)}"
            )
        twice = {name for name in given if given.count(name) > 1}
        if twice:
            raise InvalidRowError(f"{self.what}: column {', '.join(map(repr, sorted(twice)))} is given more than once")
        arrays = []
        for column, field in zip(self.columns, self.schema):
            if column.name not in given:
                if not column.data_type.nullable:
                    raise InvalidRowError(f"{self.what}: column '{column.name}' is NOT NULL and is not given")
                arrays.append(pa.nulls(batch.num_rows, field.type))
            else:
                arrays.append(self._cast(batch.column(given.index(column.name)), column, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _cast(self, array: pa.Array, column: Column, wanted: pa.DataType) -> pa.Array:
        if array.type == wanted:
            return array
        if not _kin(array.type, wanted):
            raise InvalidRowError(
                f"{self.what}: column '{column.name}' is {column.data_type} (Arrow {wanted}), "
                f"but Arrow {array.type} was given"
            )
        try:
            return array.cast(wanted, safe=True)
        except pa.ArrowException as error:
            row, value = _first_lossy(array, wanted)
            raise InvalidRowError(
                f"{self.what}: row {row}, column '{column.name}': {value!r} does not fit {column.data_type} "
                f"(Arrow {wanted}) without loss: {error}"
            ) from None


def _first_lossy(array: pa.Array, wanted: pa.DataType) -> tuple[int, Any]:
    """Where the first value is that cannot be cast, by halving."""
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            array.slice(low, middle - low).cast(wanted, safe=True)
            low = middle
        except pa.ArrowException:
            high = middle
    return low, array[low].as_py() if low < len(array) else None
