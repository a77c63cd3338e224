# SPDX-License-Identifier: Apache-2.0
"""Stored values (schema id, then the row) to Arrow and back, whatever schema they were written with."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

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


def schema_id_of(value: bytes) -> int:
    if len(value) < SCHEMA_ID_BYTES:
        raise FormatError(f"a stored value of {len(value)} bytes is too short for its schema id")
    return int(_SCHEMA_ID.unpack_from(value)[0])


class ValueCodec:
    """Rows of one table, in its kv format and all its schema versions."""

    def __init__(self, kv_format: str, schemas: Mapping[int, Schema], schema_id: int) -> None:
        self.kv_format = kv_format
        self.schemas = schemas
        self.schema_id = schema_id
        self.schema = schemas[schema_id]
        self.types = [column.data_type for column in self.schema.columns]
        self.prefix = schema_prefix(schema_id)

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
        # Nullability may have been looser when the row was written by an odd client: the table's schema decides.
        fields = pa.schema([pa.field(c.name, c.data_type.to_arrow()) for c in written.columns])
        batch = pa.RecordBatch.from_arrays(arrays, schema=fields)
        return batch if schema_id == self.schema_id else align_batch(batch, written, self.schema)

    def decode_values(self, values: Sequence[bytes]) -> pa.RecordBatch:
        """Stored values of any schema versions, in their order."""
        slices = Slices.from_list(values)
        ids = {schema_id_of(value) for value in values}
        rows = Slices.trusted(slices.data, slices.starts + SCHEMA_ID_BYTES, slices.lengths - SCHEMA_ID_BYTES)
        if len(ids) == 1:
            return self.decode_rows(ids.pop(), rows)
        each = np.fromiter(map(schema_id_of, values), np.int64, len(values))
        order = np.argsort(each, kind="stable")
        parts = [self.decode_rows(i, rows.take(order[each[order] == i])) for i in sorted(ids)]
        table = pa.Table.from_batches(parts)
        return table.take(pa.array(np.argsort(order, kind="stable"))).combine_chunks().to_batches()[0]

    # -- columns and logical rows -----------------------------------------------------------------------------------

    def to_rows(self, batch: pa.RecordBatch) -> list[Row]:
        """A batch as logical rows."""
        columns = [logical.from_arrow(batch.column(i), data_type) for i, data_type in enumerate(self.types)]
        return list(zip(*columns))

    def to_batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Logical rows as a batch."""
        columns = list(zip(*rows)) if rows else [() for _ in self.types]
        arrays = [logical.to_arrow(list(column), data_type) for column, data_type in zip(columns, self.types)]
        fields = pa.schema([pa.field(c.name, c.data_type.to_arrow()) for c in self.schema.columns])
        return pa.RecordBatch.from_arrays(arrays, schema=fields)

    def encode_batch(self, batch: pa.RecordBatch) -> list[bytes]:
        """The rows of a batch as values to store."""
        if self.kv_format == "COMPACTED":
            rows = encode_compacted(self.types, batch.columns).to_list()
        else:
            rows = [indexed.encode_row(self.types, row) for row in self.to_rows(batch)]
        return [self.prefix + row for row in rows]
