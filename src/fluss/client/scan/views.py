# SPDX-License-Identifier: Apache-2.0
"""The virtual tables `$changelog` and `$binlog`: the log of a table with what each record did, and when.

Columns and values are those of Apache Fluss' virtual tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import array_of, strings_array
from fluss.client.scan.records import RecordBatch, offset_array
from fluss.metadata import (
    BigIntType,
    ChangeType,
    Column,
    DataField,
    DataType,
    RowType,
    Schema,
    StringType,
    TableBucket,
    TableDescriptor,
    TableInfo,
    TablePath,
    TimestampLtzType,
)

if TYPE_CHECKING:
    import numpy.typing as npt

CHANGE_TYPE = "_change_type"
"""Named and spelled as in the `$changelog` tables of Apache Fluss."""
CHANGE_TYPE_FIELD = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
_NAMES = strings_array(["insert", "insert", "update_before", "update_after", "delete"])
"""By `ChangeType`. An appended row is an insert."""
_METADATA = (
    CHANGE_TYPE_FIELD,
    pa.field("_log_offset", pa.int64(), nullable=False),
    pa.field("_commit_timestamp", pa.timestamp("ms", "UTC"), nullable=False),
)
_METADATA_TYPES: tuple[DataType, ...] = tuple(
    data_type.with_nullable(False) for data_type in (StringType(), BigIntType(), TimestampLtzType(3))
)
_BINLOG_NAMES = strings_array(["insert", "insert", "update", "update", "delete"])


def change_names(change_types: bytes | None, rows: int) -> pa.Array:
    """What each row did: ``insert``, ``update_before``, ``update_after`` or ``delete``."""
    return _NAMES.take(array_of(np.frombuffer(change_types or bytes(rows), np.uint8)))


class View(ABC):
    """What a scan shows of the batches of a log. One reader uses one view: it may remember the last row."""

    @abstractmethod
    def schema(self, base: pa.Schema) -> pa.Schema:
        """The columns that are shown."""

    @abstractmethod
    def types(self, base: Sequence[Column]) -> list[DataType]:
        """The types of the columns that are shown."""

    @abstractmethod
    def apply(self, found: RecordBatch) -> RecordBatch:
        """Show a batch."""


class ChangeTypes(View):
    """The rows of a changelog, with the column `_change_type` at their end."""

    def schema(self, base: pa.Schema) -> pa.Schema:
        return base.append(CHANGE_TYPE_FIELD)

    def types(self, base: Sequence[Column]) -> list[DataType]:
        return [*(column.data_type for column in base), _METADATA_TYPES[0]]

    def apply(self, found: RecordBatch) -> RecordBatch:
        batch = found.batch
        names = change_names(found.change_types, batch.num_rows)
        found.batch = pa.RecordBatch.from_arrays([*batch.columns, names], schema=self.schema(batch.schema))
        return found


class Changelog(View):
    """`$changelog`: what each record did, its offset and time, then its row."""

    def schema(self, base: pa.Schema) -> pa.Schema:
        return pa.schema([*_METADATA, *base])

    def types(self, base: Sequence[Column]) -> list[DataType]:
        return [*_METADATA_TYPES, *(column.data_type for column in base)]

    def apply(self, found: RecordBatch) -> RecordBatch:
        batch = found.batch
        names = change_names(found.change_types, batch.num_rows)
        columns = [names, *_places(found, offset_array(found)), *batch.columns]
        found.batch = pa.RecordBatch.from_arrays(columns, schema=self.schema(batch.schema))
        return found


class Binlog(View):
    """`$binlog`: one record per change, with the row before and the row after it."""

    def __init__(self) -> None:
        self._before: dict[TableBucket, tuple[int, pa.StructArray]] = {}
        """Rows before an update whose row after it comes with the next batch, and their offsets."""

    def schema(self, base: pa.Schema) -> pa.Schema:
        # There may be no row before or after a change: then its columns have no values either.
        row = pa.struct([field.with_nullable(True) for field in base])
        return pa.schema([*_METADATA, pa.field("before", row), pa.field("after", row)])

    def types(self, base: Sequence[Column]) -> list[DataType]:
        row = RowType(tuple(DataField(column.name, column.data_type.with_nullable(True)) for column in base))
        return [*_METADATA_TYPES, row, row]

    def apply(self, found: RecordBatch) -> RecordBatch:
        batch = found.batch
        schema = self.schema(batch.schema)
        rows = pa.StructArray.from_arrays(batch.columns, fields=list(schema.field("after").type))
        offsets = offset_array(found)
        kinds = np.frombuffer(found.change_types or bytes(batch.num_rows), np.uint8)
        kept = self._before.pop(found.bucket, None)
        if kept is not None and len(offsets) and kept[0] == offsets[0] - 1:
            rows = pa.concat_arrays([kept[1], rows])
            offsets = np.concatenate([[kept[0]], offsets])
            kinds = np.concatenate([np.array([ChangeType.UpdateBefore], np.uint8), kinds])
        if len(kinds) and kinds[-1] == ChangeType.UpdateBefore:
            self._before[found.bucket] = int(offsets[-1]), rows.slice(len(rows) - 1)
        at = np.flatnonzero(kinds != ChangeType.UpdateBefore)
        is_delete, is_update = kinds[at] == ChangeType.Delete, kinds[at] == ChangeType.UpdateAfter
        # The row before an update is the record before it.
        paired = is_update & (at > 0) & (kinds[np.maximum(at - 1, 0)] == ChangeType.UpdateBefore)
        before = array_of(np.where(is_delete, at, at - 1), ~(is_delete | paired))
        after = array_of(at, is_delete)
        found.offsets = offsets[at].tolist()
        columns = [
            _BINLOG_NAMES.take(array_of(kinds[at])),
            *_places(found, offsets[at]),
            rows.take(before),
            rows.take(after),
        ]
        found.batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        return found


VIEWS: dict[str, type[View]] = {"changelog": Changelog, "binlog": Binlog}


def view_info(info: TableInfo, view: str) -> TableInfo:
    """Describe a virtual table as if it were a log table without partitions: rows that can only be read."""
    columns = list(info.schema.columns)
    if view in VIEWS:
        shown = VIEWS[view]()
        names = shown.schema(info.schema.arrow_schema).names
        columns = [Column(name, data_type) for name, data_type in zip(names, shown.types(columns))]
    path = TablePath(info.table_path.database_name, f"{info.table_path.table_name}${view}")
    descriptor = TableDescriptor(Schema.of(columns), bucket_count=info.num_buckets, comment=info.comment)
    return replace(info, table_path=path, descriptor=descriptor)


def _places(found: RecordBatch, offsets: npt.NDArray[np.int64]) -> list[pa.Array]:
    times = np.full(len(offsets), found.timestamp, np.int64)
    return [array_of(offsets), array_of(times).cast(_METADATA[2].type)]
