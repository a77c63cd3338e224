# SPDX-License-Identifier: Apache-2.0
"""Many rows: log batches, KV batches, value batches, statistics. No I/O, and no payload is copied."""

from fluss._lazy import lazy_names

NAMES = {
    "fluss.records._bytes": "Part",
    "fluss.records.arrow": "decode_arrow_batch encode_arrow_body",
    "fluss.records.evolution": "align_batch decode_log_batch",
    "fluss.records.kv_batch": """
        EncodedKvBody KV_RECORDS_MAX KvBatch decode_value_batch encode_kv_body encode_kv_records encode_value_batch
        encode_values kv_record_count seal_kv_batch value_batch_header
    """,
    "fluss.records.log_batch": """
        EncodedBody HEADER_SIZE_MIN LogBatch LogBatchHeader MAGIC_V0 MAGIC_V1 MAGIC_V2 NO_BATCH_SEQUENCE NO_WRITER_ID
        iter_log_batches patch_batch read_header seal_log_batch
    """,
    "fluss.records.projection": "ProjectedBatch cut_batch has_columns",
    "fluss.records.row_batch": "RowRecords decode_row_batch encode_row_body read_row_records",
    "fluss.records.statistics": "Statistics build_statistics may_match",
    "fluss.records.stored_values": "SCHEMA_ID_BYTES decode_stored_rows decode_values schema_ids_of",
    "fluss.records.validation": "DECODED_BYTES_MAX check_log_batch expanded_bytes",
}

__getattr__, __all__ = lazy_names(__name__, NAMES)
