# SPDX-License-Identifier: Apache-2.0
"""Which bucket a row belongs to.

The client computes the bucket from the bytes of the bucket key and the server trusts it, so every client of a table
must agree. The lake format decides the function, so that a bucket of Fluss is a bucket of the lake table.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fluss.errors import InvalidArgumentError
from fluss.rows.hashing import (
    Variant,
    check_variant,
    fluss_hash,
    fluss_hashes,
    murmur3_32,
    murmur3_32s,
    scramble,
    scrambles,
)
from fluss.rows.slices import Slices

__all__ = [
    "Variant",
    "bucket_of",
    "buckets_of",
    "fluss_hash",
    "fluss_hashes",
    "murmur3_32",
    "murmur3_32s",
    "scramble",
    "scrambles",
]

_FLUSS_FORMATS = (None, "lance", "delta")


def bucket_of(key: bytes, num_buckets: int, lake_format: str | None = None, variant: str = "java") -> int:
    """The bucket of one encoded bucket key.

    Args:
        key: The bytes of a bucket key encoder.
        num_buckets: The bucket count of the table (of each partition, if it is partitioned).
        lake_format: The ``table.datalake.format`` of the table.
        variant: Which client to agree with on keys with tail bytes of 0x80 and above: ``java`` or ``pyfluss``.
    """
    lake = _check(num_buckets, lake_format, variant)
    if lake in _FLUSS_FORMATS:
        if not key:
            raise InvalidArgumentError("an empty bucket key has no bucket")
        return scramble(fluss_hash(key, variant)) % num_buckets
    if lake == "paimon":
        return abs(fluss_hash(key, variant)) % num_buckets
    return (murmur3_32(key) & 0x7FFF_FFFF) % num_buckets


def buckets_of(
    keys: Slices, num_buckets: int, lake_format: str | None = None, variant: str = "java"
) -> npt.NDArray[np.int32]:
    """The bucket of every key: `bucket_of`, vectorised."""
    lake = _check(num_buckets, lake_format, variant)
    if lake in _FLUSS_FORMATS:
        if not keys.lengths.all():
            raise InvalidArgumentError("an empty bucket key has no bucket")
        hashes = scrambles(fluss_hashes(keys, variant)).astype(np.int64)
    elif lake == "paimon":
        hashes = np.abs(fluss_hashes(keys, variant).astype(np.int64))
    else:
        hashes = murmur3_32s(keys).astype(np.int64) & 0x7FFF_FFFF
    return (hashes % num_buckets).astype(np.int32)


def _check(num_buckets: int, lake_format: str | None, variant: str) -> str | None:
    if num_buckets < 1:
        raise InvalidArgumentError(f"a table has at least one bucket, not {num_buckets}")
    check_variant(variant)
    lake = lake_format.lower() if lake_format else None
    if lake not in (None, "lance", "delta", "paimon", "iceberg"):
        raise InvalidArgumentError(
            f"tables of lake format {lake_format!r} cannot be written or looked up; the formats are paimon, iceberg, "
            "lance and delta"
        )
    return lake
