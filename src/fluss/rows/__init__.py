# SPDX-License-Identifier: Apache-2.0
"""One row, and many rows column by column: row formats, keys and buckets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss._lazy import lazy_names

if TYPE_CHECKING:
    from fluss.rows.bucketing import bucket_of, buckets_of, fluss_hash, murmur3_32, scramble
    from fluss.rows.keys import (
        CompactedKeyEncoder,
        HudiBucketKeyEncoder,
        IcebergKeyEncoder,
        KeyEncoder,
        PaimonKeyEncoder,
        bucket_key_encoder,
        kv_key_encoder,
        prefix_key_encoder,
    )
    from fluss.rows.logical import conform, from_arrow, from_python, to_arrow, to_python
    from fluss.rows.python_columns import BadValues, ColumnConverter, column_from_python
    from fluss.rows.slices import Slices
    from fluss.rows.vector import decode_compacted, decode_compacted_key, encode_compacted, encode_compacted_key
    from fluss.rows.vector_aligned import encode_aligned

__all__ = [
    "BadValues",
    "ColumnConverter",
    "CompactedKeyEncoder",
    "HudiBucketKeyEncoder",
    "IcebergKeyEncoder",
    "KeyEncoder",
    "PaimonKeyEncoder",
    "Slices",
    "bucket_key_encoder",
    "bucket_of",
    "buckets_of",
    "column_from_python",
    "conform",
    "decode_compacted",
    "decode_compacted_key",
    "encode_aligned",
    "encode_compacted",
    "encode_compacted_key",
    "fluss_hash",
    "from_arrow",
    "from_python",
    "kv_key_encoder",
    "murmur3_32",
    "prefix_key_encoder",
    "scramble",
    "to_arrow",
    "to_python",
]

__getattr__ = lazy_names(
    __name__,
    {
        "fluss.rows.bucketing": "bucket_of buckets_of fluss_hash murmur3_32 scramble",
        "fluss.rows.keys": "CompactedKeyEncoder HudiBucketKeyEncoder IcebergKeyEncoder KeyEncoder PaimonKeyEncoder "
        "bucket_key_encoder kv_key_encoder prefix_key_encoder",
        "fluss.rows.logical": "conform from_arrow from_python to_arrow to_python",
        "fluss.rows.python_columns": "BadValues ColumnConverter column_from_python",
        "fluss.rows.slices": "Slices",
        "fluss.rows.vector": "decode_compacted decode_compacted_key encode_compacted encode_compacted_key",
        "fluss.rows.vector_aligned": "encode_aligned",
    },
)
