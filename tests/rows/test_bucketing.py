# SPDX-License-Identifier: Apache-2.0
"""Hashes and buckets against known values of the Java implementation and of pyfluss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import InvalidArgumentError
from fluss.rows.bucketing import (
    bucket_of,
    buckets_of,
    fluss_hash,
    fluss_hashes,
    murmur3_32,
    murmur3_32s,
    scramble,
    scrambles,
)
from fluss.rows.slices import Slices

JAVA = [
    ("00", -783713497, 1599628232, 2, 2, 7, 7),
    ("01", -386724586, 1113307500, 0, 0, 6, 5),
    ("02", -976699032, 483081162, 0, 2, 2, 9),
    ("64", -295670906, 468747176, 2, 6, 6, 9),
    ("ffffffff0f", 571599, 1667198730, 0, 0, 9, 1),
    ("0161", -1819928467, 368203003, 1, 3, 7, 9),
    ("0568656c6c6f", 636232302, 162278591, 2, 1, 2, 9),
    ("09666c7573732d6b6579", 634803262, 1994259911, 2, 1, 2, 3),
    ("0a0b0c0d0e", -1463233843, 315156199, 1, 9, 3, 0),
    ("80", 775851899, 427788766, 1, 6, 9, 7),
]


@pytest.mark.parametrize(("key", "hashed", "scrambled", "mod3", "mod10", "paimon", "iceberg"), JAVA)
def test_java_hashes(key: str, hashed: int, scrambled: int, mod3: int, mod10: int, paimon: int, iceberg: int) -> None:
    data = bytes.fromhex(key)
    assert fluss_hash(data) == hashed
    assert scramble(hashed) == scrambled
    assert bucket_of(data, 3) == mod3
    assert bucket_of(data, 10) == mod10
    assert bucket_of(data, 10, "lance") == mod10
    assert bucket_of(data, 10, "paimon") == paimon
    assert bucket_of(data, 10, "ICEBERG") == iceberg


@pytest.mark.parametrize(
    ("key", "count", "fluss", "paimon", "iceberg"),
    [
        (b"\0\n", 7, 1, 1, 3),
        (b"\0\n\n\n", 12, 0, 11, 4),
        (b"2bb87d68-baf9-4e64-90f9-f80910419fa6", 16, 6, 12, 12),
        (b"The quick brown fox jumps over the lazy dog", 8, 6, 0, 3),
    ],
)
def test_longer_keys(key: bytes, count: int, fluss: int, paimon: int, iceberg: int) -> None:
    assert bucket_of(key, count) == fluss
    assert bucket_of(key, count, "paimon") == paimon
    assert bucket_of(key, count, "iceberg") == iceberg


@pytest.mark.parametrize(("key", "java", "pyfluss"), [
    ("7f", 346, 346), ("8001", 18, 783), ("ac02", 325, 427), ("e807", 123, 441), ("ffff03", 137, 6),
    ("fbffffff0f", 277, 277), ("ffffffff0f", 730, 730), ("ffffffff07", 822, 822),
])  # fmt: skip
def test_variants(key: str, java: int, pyfluss: int) -> None:
    data = bytes.fromhex(key)
    assert bucket_of(data, 1000) == java
    assert bucket_of(data, 1000, variant="pyfluss") == pyfluss
    keys = Slices.from_list([data, data])
    assert buckets_of(keys, 1000).tolist() == [java, java]
    assert buckets_of(keys, 1000, variant="pyfluss").tolist() == [pyfluss, pyfluss]


@given(
    st.lists(st.one_of(st.binary(min_size=1, max_size=20), st.binary(min_size=250, max_size=300)), max_size=12),
    st.integers(1, 2**31 - 1),
    st.sampled_from(["java", "pyfluss"]),
    st.sampled_from([None, "paimon", "iceberg"]),
)
def test_vectorised_agrees(keys: list[bytes], count: int, variant: str, lake: str | None) -> None:
    slices = Slices.from_list(keys)
    assert fluss_hashes(slices, variant).tolist() == [fluss_hash(key, variant) for key in keys]
    assert murmur3_32s(slices).tolist() == [murmur3_32(key) for key in keys]
    assert buckets_of(slices, count, lake, variant).tolist() == [bucket_of(key, count, lake, variant) for key in keys]


@given(st.lists(st.integers(-(2**31), 2**31 - 1)))
def test_scramble_agrees(codes: list[int]) -> None:
    result = scrambles(np.array(codes, np.int32)).tolist()
    assert result == [scramble(code) for code in codes]
    assert all(0 <= value < 2**31 for value in result)


def test_scramble_of_the_smallest_number() -> None:
    # The code whose mixed form is -2^31, found by inverting the mixing: its absolute value does not fit an int.
    def inverse(value: int, factor: int) -> int:
        return value * pow(factor, -1, 1 << 32) & 0xFFFF_FFFF

    def rotr(value: int, by: int) -> int:
        return (value >> by | value << (32 - by)) & 0xFFFF_FFFF

    c = 0x8000_0000
    c ^= c >> 16
    c = inverse(c, 0xC2B2_AE35)
    c ^= c >> 13 ^ c >> 26
    c = inverse(c, 0x85EB_CA6B)
    c ^= c >> 16
    c = inverse((c ^ 4) - 0xE654_6B64 & 0xFFFF_FFFF, 5)
    c = inverse(rotr(inverse(rotr(c, 13), 0x1B87_3593), 15), 0xCC9E_2D51)
    assert scramble(c) == 0
    assert scrambles(np.array([c], np.uint32).view(np.int32)).tolist() == [0]


def test_refusals() -> None:
    with pytest.raises(InvalidArgumentError, match="at least one bucket"):
        bucket_of(b"a", 0)
    with pytest.raises(InvalidArgumentError, match="variant"):
        bucket_of(b"a", 1, variant="rust")
    with pytest.raises(InvalidArgumentError, match="lake format 'other'"):
        bucket_of(b"a", 1, "other")
    with pytest.raises(InvalidArgumentError, match="empty bucket key"):
        bucket_of(b"", 1)
    with pytest.raises(InvalidArgumentError, match="empty bucket key"):
        buckets_of(Slices.from_list([b"a", b""]), 1)
