# SPDX-License-Identifier: Apache-2.0
"""One row, and many rows column by column: row formats, keys and buckets."""

from fluss._lazy import lazy_names

NAMES = {
    "fluss.rows.bucketing": "bucket_hash bucket_hashes bucket_of buckets_of fluss_hash murmur3_32 scramble",
    "fluss.rows.keys": """
        CompactedKeyEncoder IcebergKeyEncoder KeyEncoder PaimonKeyEncoder bucket_key_encoder
        kv_key_encoder prefix_key_encoder
    """,
    "fluss.rows.logical": "conform from_arrow from_python to_arrow to_python",
    "fluss.rows.python_columns": "BadValues ColumnConverter LogicalConverter column_from_python",
    "fluss.rows.slices": "Slices",
    "fluss.rows.vector": """
        decode_compacted decode_compacted_key decode_rows encode_compacted encode_compacted_key encode_rows
    """,
    "fluss.rows.aligned": "encode_aligned",
}

__getattr__, __all__ = lazy_names(__name__, NAMES)
