# SPDX-License-Identifier: Apache-2.0
"""Stored values of primary-key tables: the id of a schema, then a row in the kv format of the table."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import array_of
from fluss.errors import FormatError
from fluss.metadata.schema import Schema
from fluss.records.evolution import align_batch
from fluss.rows.slices import Slices
from fluss.rows.vector import decode_rows

SCHEMA_ID_BYTES = 2


def schema_ids_of(values: Slices) -> npt.NDArray[np.int16]:
    """The id of the schema that each value was written with."""
    if len(values) and int(values.lengths.min()) < SCHEMA_ID_BYTES:
        raise FormatError("a stored value is too short for its schema id")
    low, high = values.data[values.starts], values.data[values.starts + 1]
    ids: npt.NDArray[np.int16] = low.astype(np.int16) | (high.astype(np.int16) << 8)
    return ids


def decode_values(values: Slices, schemas: Mapping[int, Schema], wanted: Schema, kv_format: str) -> pa.RecordBatch:
    """Stored values of any schemas of a table, in their order, as rows of the wanted one."""
    ids = schema_ids_of(values)
    rows = Slices.trusted(values.data, values.starts + SCHEMA_ID_BYTES, values.lengths - SCHEMA_ID_BYTES)
    kinds = np.unique(ids)
    if not len(kinds):
        return pa.RecordBatch.from_pylist([], schema=wanted.arrow_schema)
    if len(kinds) == 1:
        return decode_stored_rows(rows, int(kinds[0]), schemas, wanted, kv_format)
    # Each schema at once, then back into the order they came in.
    order = np.argsort(ids, kind="stable")
    parts = [decode_stored_rows(rows.take(order[ids[order] == i]), int(i), schemas, wanted, kv_format) for i in kinds]
    table = pa.Table.from_batches(parts).take(array_of(np.argsort(order, kind="stable")))
    return table.combine_chunks().to_batches()[0]


def decode_stored_rows(
    rows: Slices, schema_id: int, schemas: Mapping[int, Schema], wanted: Schema, kv_format: str
) -> pa.RecordBatch:
    """Rows that were written with one schema of a table, as rows of the wanted one."""
    written = schemas.get(schema_id)
    if written is None:
        raise FormatError(f"a stored row has schema id {schema_id}, which the table never had")
    arrays = decode_rows(kv_format, written.data_types, rows)
    batch = pa.RecordBatch.from_arrays(arrays, schema=written.arrow_schema)
    return batch if written is wanted else align_batch(batch, written, wanted)
