# SPDX-License-Identifier: Apache-2.0
"""The column `_change_type` of changelog batches, named and spelled as in the `$changelog` tables of Apache Fluss."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import array_of, strings_array
from fluss.client.scan.records import RecordBatch

CHANGE_TYPE = "_change_type"
CHANGE_TYPE_FIELD = pa.field(CHANGE_TYPE, pa.string(), nullable=False)
_NAMES = strings_array(["insert", "insert", "update_before", "update_after", "delete"])
"""By `ChangeType`. An appended row is an insert."""


def change_names(change_types: bytes | None, rows: int) -> pa.Array:
    """What each row did: ``insert``, ``update_before``, ``update_after`` or ``delete``."""
    kinds = np.zeros(rows, np.uint8) if change_types is None else np.frombuffer(change_types, np.uint8)
    return _NAMES.take(array_of(kinds))


def with_change_types(found: RecordBatch) -> RecordBatch:
    """Append the column `_change_type` to a batch of a changelog."""
    batch = found.batch
    names = change_names(found.change_types, batch.num_rows)
    schema = batch.schema.append(CHANGE_TYPE_FIELD)
    found.batch = pa.RecordBatch.from_arrays([*batch.columns, names], schema=schema)
    return found
