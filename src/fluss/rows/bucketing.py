# SPDX-License-Identifier: Apache-2.0
"""Which bucket a row belongs to.

The client computes the bucket from the bytes of the bucket key and the server trusts it, so every client of a table
must agree. The lake format decides the function, so that a bucket of Fluss is a bucket of the lake table.

`fluss_hash` looks like Murmur3 but treats the last one to three bytes differently, and its users do not agree on the
sign of those bytes: see `Variant`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fluss.errors import InvalidArgumentError
from fluss.rows.slices import Slices, padded

_FLUSS_FORMATS = (None, "lance", "delta")


def bucket_of(key: bytes, num_buckets: int, lake_format: str | None = None, variant: str = "java") -> int:
    """The bucket of one encoded bucket key.

    Args:
        key: The bytes of a bucket key encoder.
        num_buckets: The bucket count of the table (of each partition, if it is partitioned).
        lake_format: The ``table.datalake.format`` of the table.
        variant: Which client to agree with on keys with tail bytes of 0x80 and above: ``java`` or ``pyfluss``.
    """
    _check_count(num_buckets)
    return bucket_hash(key, lake_format, variant) % num_buckets


def bucket_hash(key: bytes, lake_format: str | None = None, variant: str = "java") -> int:
    """The number, 0 or more, whose remainder is the bucket of a key: partitions may differ in their bucket counts."""
    check_variant(variant)
    lake = checked_lake_format(lake_format)
    if lake in _FLUSS_FORMATS:
        if not key:
            raise InvalidArgumentError("an empty bucket key has no bucket")
        return scramble(fluss_hash(key, variant))
    if lake == "paimon":
        return abs(fluss_hash(key, variant))
    return murmur3_32(key) & 0x7FFF_FFFF


def buckets_of(
    keys: Slices, num_buckets: int, lake_format: str | None = None, variant: str = "java"
) -> npt.NDArray[np.int32]:
    """The bucket of every key: `bucket_of`, vectorised."""
    _check_count(num_buckets)
    return (bucket_hashes(keys, lake_format, variant) % num_buckets).astype(np.int32)


def bucket_hashes(keys: Slices, lake_format: str | None = None, variant: str = "java") -> npt.NDArray[np.int64]:
    """The hash of every key: `bucket_hash`, vectorised."""
    check_variant(variant)
    lake = checked_lake_format(lake_format)
    if lake in _FLUSS_FORMATS:
        if not keys.lengths.all():
            raise InvalidArgumentError("an empty bucket key has no bucket")
        return scrambles(fluss_hashes(keys, variant)).astype(np.int64)
    if lake == "paimon":
        hashes: npt.NDArray[np.int64] = np.abs(fluss_hashes(keys, variant).astype(np.int64))
        return hashes
    return murmur3_32s(keys).astype(np.int64) & 0x7FFF_FFFF


def _check_count(num_buckets: int) -> None:
    if num_buckets < 1:
        raise InvalidArgumentError(f"a table has at least one bucket, not {num_buckets}")


def checked_lake_format(lake_format: str | None) -> str | None:
    """The lake format of a table in lower case; refuse one whose encoding of keys is not known."""
    lake = lake_format.lower() if lake_format else None
    if lake not in (*_FLUSS_FORMATS, "paimon", "iceberg"):
        raise InvalidArgumentError(
            f"tables of lake format {lake_format!r} cannot be written or looked up; the formats are paimon, iceberg, "
            "lance and delta"
        )
    return lake


Variant = Literal["java", "pyfluss"]
"""How tail bytes of 0x80 and above enter `fluss_hash`: sign-extended (Java, Flink, Spark) or not (pyfluss)."""

Hash = Any
"""A Python number of 32 bits, or a numpy array with one for each key. Arrays are cut to 32 bits by their type."""
U32 = npt.NDArray[np.uint32]

_MASK = 0xFFFF_FFFF
_C1 = 0xCC9E_2D51
_C2 = 0x1B87_3593
_FLUSS_SEED = 42

_LONG_WORDS = 64
"""Keys of more words are hashed one by one, so that one huge key does not cost a vectorised step per word."""


def check_variant(variant: str) -> None:
    """Refuse an unknown variant."""
    if variant not in ("java", "pyfluss"):
        raise InvalidArgumentError(f"bucketing variant must be 'java' or 'pyfluss', not {variant!r}")


def _rotl(value: Hash, by: int) -> Hash:
    return (value << by | value >> (32 - by)) & _MASK


def _mix_k(k: Hash) -> Hash:
    return _rotl(k * _C1 & _MASK, 15) * _C2 & _MASK


def _mix_h(h: Hash, k: Hash) -> Hash:
    return (_rotl(h ^ k, 13) * 5 + 0xE654_6B64) & _MASK


def _fmix(h: Hash) -> Hash:
    h = h ^ h >> 16
    h = h * 0x85EB_CA6B & _MASK
    h = h ^ h >> 13
    h = h * 0xC2B2_AE35 & _MASK
    return h ^ h >> 16


def _scrambled(code: Hash) -> Hash:
    return _fmix(_mix_h(_mix_k(code), 0) ^ 4)


def _signed(value: int) -> int:
    return (value ^ 0x8000_0000) - 0x8000_0000


def fluss_hash(data: bytes | memoryview, variant: str = "java") -> int:
    """The hash of Fluss, as a signed 32-bit number."""
    check_variant(variant)
    h = _body_hash(data, _FLUSS_SEED)
    for byte in data[len(data) & ~3 :]:
        if variant == "java" and byte > 0x7F:
            byte |= 0xFFFF_FF00
        h = _mix_h(h, _mix_k(byte))
    return _signed(_fmix(h ^ len(data) & _MASK))


def murmur3_32(data: bytes | memoryview, seed: int = 0) -> int:
    """Standard Murmur3 (x86, 32 bits), as a signed 32-bit number."""
    tail = int.from_bytes(data[len(data) & ~3 :], "little")
    return _signed(_fmix(_body_hash(data, seed) ^ _mix_k(tail) ^ len(data) & _MASK))


def _body_hash(data: bytes | memoryview, seed: int) -> int:
    """Mix the full 4-byte words of a key."""
    h = seed
    for pos in range(0, len(data) & ~3, 4):
        h = _mix_h(h, _mix_k(int.from_bytes(data[pos : pos + 4], "little")))
    return h


def scramble(code: int) -> int:
    """Spread a 32-bit hash code once more; the result is never negative."""
    value = abs(_signed(_scrambled(code & _MASK)))
    return 0 if value == 1 << 31 else value


# The vectorised twins.


def _body_hashes(keys: Slices, seed: int) -> U32:
    """Mix the full 4-byte words of every key."""
    h = np.full(len(keys), seed, np.uint32)
    counts = keys.lengths >> 2
    most = min(int(counts.max(initial=0)), _LONG_WORDS)
    if not most:
        return h
    words = np.ndarray((keys.data.size - 3,), "<u4", buffer=keys.data, strides=(1,))
    fewest = int(counts.min())
    rows: Any = slice(None)
    for k in range(most):
        if fewest <= k:
            rows = np.flatnonzero(counts > k)
        h[rows] = _mix_h(h[rows], _mix_k(words[keys.starts[rows] + 4 * k]))
    return h


def _tails(keys: Slices) -> Iterator[tuple[npt.NDArray[np.intp], npt.NDArray[np.uint8]]]:
    """Yield, for each byte behind the full words, the keys that have it, and the byte of each."""
    data = padded(keys.data, 1)
    starts = keys.starts + (keys.lengths & ~np.int64(3))
    for k in range(3):
        rows = np.flatnonzero(keys.lengths & 3 > k)
        yield rows, data[starts[rows] + k]


def _finished(h: U32, keys: Slices, scalar: Callable[[bytes], int]) -> npt.NDArray[np.int32]:
    hashes: npt.NDArray[np.int32] = _fmix(h ^ keys.lengths.astype(np.uint32)).view(np.int32)
    for i in np.flatnonzero(keys.lengths >= 4 * (_LONG_WORDS + 1)).tolist():
        hashes[i] = scalar(keys[i])
    return hashes


def fluss_hashes(keys: Slices, variant: str = "java") -> npt.NDArray[np.int32]:
    """`fluss_hash` of every key."""
    check_variant(variant)
    h = _body_hashes(keys, _FLUSS_SEED)
    tail_type = np.int8 if variant == "java" else np.uint8
    for rows, tail in _tails(keys):
        extended = tail.view(tail_type).astype(np.int32).view(np.uint32)
        h[rows] = _mix_h(h[rows], _mix_k(extended))
    return _finished(h, keys, lambda key: fluss_hash(key, variant))


def scrambles(codes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """`scramble` of every code."""
    values: npt.NDArray[np.int32] = np.abs(_scrambled(codes.view(np.uint32)).view(np.int32))
    values[values < 0] = 0
    return values


def murmur3_32s(keys: Slices, seed: int = 0) -> npt.NDArray[np.int32]:
    """`murmur3_32` of every key."""
    tails = np.zeros(len(keys), np.uint32)
    for k, (rows, tail) in enumerate(_tails(keys)):
        tails[rows] |= tail.astype(np.uint32) << np.uint32(8 * k)
    return _finished(_body_hashes(keys, seed) ^ _mix_k(tails), keys, lambda key: murmur3_32(key, seed))
