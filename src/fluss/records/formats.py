# SPDX-License-Identifier: Apache-2.0
"""Log batches of any log format."""

from __future__ import annotations

import pyarrow as pa

from fluss.metadata.schema import Schema
from fluss.records.arrow import DECODED_BYTES_MAX, decode_arrow_batch
from fluss.records.log_batch import LogBatch


def decode_log_batch(
    batch: LogBatch,
    schema: Schema,
    log_format: str = "ARROW",
    *,
    max_bytes: int = DECODED_BYTES_MAX,
) -> pa.RecordBatch:
    """Decode a batch of any log format, written with `schema`."""
    if log_format == "ARROW":
        return decode_arrow_batch(batch, schema.arrow_schema, max_bytes=max_bytes)
    from fluss.records.row_batch import decode_row_batch

    return decode_row_batch(batch, log_format, schema.row_type)
