# SPDX-License-Identifier: Apache-2.0
"""Stored values: a row in the table's kv format behind the id of the schema it was written with."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import array_of
from fluss.errors import FormatError
from fluss.metadata import Schema
from fluss.records import align_batch
from fluss.rows import Slices, decode_compacted, encode_compacted, indexed, logical

_SCHEMA_ID = struct.Struct("<h")
SCHEMA_ID_BYTES = 2

Row = tuple[Any, ...]
"""The logical values of one row in table order."""


def schema_prefix(schema_id: int) -> bytes:
    return _SCHEMA_ID.pack(schema_id)


def values_of(rows: Slices, schema_id: int | npt.NDArray[np.int64]) -> Slices:
    """Rows of KV batches as stored values, made in one copy of the batches; `schema_id` is that of all or of each.

    Before every row of a batch lie at least five bytes of its record (two lengths and the key), so the schema id fits
    in front of it. The keys of the result's buffer are thereby destroyed; read them from the batch.
    """
    data = rows.data.copy()
    starts = rows.starts - SCHEMA_ID_BYTES
    data[starts] = schema_id & 0xFF
    data[starts + 1] = schema_id >> 8
    return Slices.trusted(data, starts, rows.lengths + SCHEMA_ID_BYTES)


class ValueCodec:
    """Rows of one table, in its kv format and all its schema versions."""

    def __init__(self, kv_format: str, schemas: Mapping[int, Schema], schema_id: int) -> None:
        self.kv_format = kv_format
        self.schemas = schemas
        self.schema_id = schema_id
        self.schema = schemas[schema_id]
        self.types = [column.data_type for column in self.schema.columns]
        self.prefix = schema_prefix(schema_id)
        # Nullability may have been looser when a row was written by an odd client: the batch takes any null.
        self.arrow_schema = pa.schema([pa.field(c.name, c.data_type.to_arrow()) for c in self.schema.columns])

    # -- rows in bytes to columns -----------------------------------------------------------------------------------

    def decode_rows(self, schema_id: int, rows: Slices) -> pa.RecordBatch:
        """Rows written with one schema, as rows of the table's present schema."""
        written = self.schemas.get(schema_id)
        if written is None:
            raise FormatError(f"a stored row has schema id {schema_id}, which the table never had")
        types = [column.data_type for column in written.columns]
        if self.kv_format == "COMPACTED":
            arrays = decode_compacted(types, rows)
        else:
            decoded = [indexed.decode_row(types, row) for row in rows.to_list()]
            columns: list[Any] = [list(column) for column in zip(*decoded)] or [[] for _ in types]
            arrays = [logical.to_arrow(column, data_type) for column, data_type in zip(columns, types)]
        if schema_id == self.schema_id:
            return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)
        fields = pa.schema([pa.field(c.name, c.data_type.to_arrow()) for c in written.columns])
        return self._nullable(align_batch(pa.RecordBatch.from_arrays(arrays, schema=fields), written, self.schema))

    def decode_values(self, values: Slices) -> pa.RecordBatch:
        """Stored values of any schema versions, in their order."""
        if len(values) and int(values.lengths.min()) < SCHEMA_ID_BYTES:
            raise FormatError("a stored value is too short for its schema id")
        rows = Slices.trusted(values.data, values.starts + SCHEMA_ID_BYTES, values.lengths - SCHEMA_ID_BYTES)
        low, high = values.data[values.starts], values.data[values.starts + 1]
        ids = low.astype(np.int16) | (high.astype(np.int16) << 8)
        first = int(ids[0]) if len(ids) else self.schema_id
        if bool((ids == first).all()):
            return self.decode_rows(first, rows)
        order = np.argsort(ids, kind="stable")
        parts = [self.decode_rows(int(i), rows.take(order[ids[order] == i])) for i in np.unique(ids)]
        table = pa.Table.from_batches(parts)
        return table.take(array_of(np.argsort(order, kind="stable"))).combine_chunks().to_batches()[0]

    def _nullable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.arrow_schema)

    # -- columns and logical rows -----------------------------------------------------------------------------------

    def to_rows(self, batch: pa.RecordBatch) -> list[Row]:
        """A batch as logical rows."""
        columns = [logical.from_arrow(batch.column(i), data_type) for i, data_type in enumerate(self.types)]
        return list(zip(*columns))

    def to_batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Logical rows as a batch."""
        columns = list(zip(*rows)) if rows else [() for _ in self.types]
        arrays = [logical.to_arrow(list(column), data_type) for column, data_type in zip(columns, self.types)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def encode_batch(self, batch: pa.RecordBatch) -> list[bytes]:
        """The rows of a batch as values to store."""
        if self.kv_format == "COMPACTED":
            rows = encode_compacted(self.types, batch.columns).to_list()
        else:
            rows = [indexed.encode_row(self.types, row) for row in self.to_rows(batch)]
        prefix = self.prefix
        return [prefix + row for row in rows]
