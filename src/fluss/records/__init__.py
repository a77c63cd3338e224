# SPDX-License-Identifier: Apache-2.0
"""Many rows: log batches, KV batches, value batches, statistics. No I/O, and no payload is copied."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from fluss._lazy import lazy_names
from fluss.metadata.schema import Schema
from fluss.records._bytes import Part
from fluss.records.arrow import (
    DECODED_BYTES_MAX,
    EncodedBody,
    decode_arrow_batch,
    encode_arrow_body,
    project_batch,
    seal_log_batch,
)
from fluss.records.evolution import align_batch, column_mapping
from fluss.records.log_batch import (
    HEADER_SIZE_MIN,
    MAGIC_V0,
    MAGIC_V1,
    MAGIC_V2,
    NO_BATCH_SEQUENCE,
    NO_WRITER_ID,
    LogBatch,
    LogBatchHeader,
    iter_log_batches,
    patch_batch,
    read_header,
)
from fluss.records.validation import check_log_batch

if TYPE_CHECKING:
    from fluss.records.kv_batch import EncodedKvBody, KvBatch, encode_kv_body, seal_kv_batch
    from fluss.records.pruning import may_match
    from fluss.records.row_batch import RowRecords, decode_row_batch, encode_row_body, read_row_records
    from fluss.records.statistics import Statistics, build_statistics, statistics_columns, supports_statistics
    from fluss.records.value_batch import decode_value_batch, encode_value_batch, encode_values, value_batch_header

__all__ = [
    "DECODED_BYTES_MAX",
    "EncodedBody",
    "EncodedKvBody",
    "HEADER_SIZE_MIN",
    "KvBatch",
    "LogBatch",
    "LogBatchHeader",
    "MAGIC_V0",
    "MAGIC_V1",
    "MAGIC_V2",
    "NO_BATCH_SEQUENCE",
    "NO_WRITER_ID",
    "Part",
    "RowRecords",
    "Statistics",
    "align_batch",
    "build_statistics",
    "check_log_batch",
    "column_mapping",
    "decode_arrow_batch",
    "decode_log_batch",
    "decode_row_batch",
    "decode_value_batch",
    "encode_arrow_body",
    "encode_kv_body",
    "encode_row_body",
    "encode_value_batch",
    "encode_values",
    "iter_log_batches",
    "may_match",
    "patch_batch",
    "project_batch",
    "read_header",
    "read_row_records",
    "seal_kv_batch",
    "seal_log_batch",
    "statistics_columns",
    "supports_statistics",
    "value_batch_header",
]

__getattr__ = lazy_names(
    __name__,
    {
        "fluss.records.kv_batch": "EncodedKvBody KvBatch encode_kv_body seal_kv_batch",
        "fluss.records.pruning": "may_match",
        "fluss.records.row_batch": "RowRecords decode_row_batch encode_row_body read_row_records",
        "fluss.records.statistics": "Statistics build_statistics statistics_columns supports_statistics",
        "fluss.records.value_batch": "decode_value_batch encode_value_batch encode_values value_batch_header",
    },
)


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
