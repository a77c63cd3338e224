# SPDX-License-Identifier: Apache-2.0
"""A checksum put together from those of two stretches is that of the whole."""

from __future__ import annotations

import crc32c
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.records import LogBatch, encode_arrow_body, seal_log_batch
from fluss.records._bytes import checksum_joined


@given(st.binary(max_size=300), st.binary(max_size=2000))
def test_joined_is_that_of_the_whole(head: bytes, tail: bytes) -> None:
    assert checksum_joined(crc32c.crc32c(head), crc32c.crc32c(tail), len(tail)) == crc32c.crc32c(head + tail)


@pytest.mark.parametrize("size", [255, 256, 257, 65_535, 65_536, 1_834_567, 16_777_216])
def test_long_stretches(size: int) -> None:
    tail = bytes(range(256)) * (size // 256 + 1)
    tail = tail[:size]
    assert checksum_joined(crc32c.crc32c(b"head"), crc32c.crc32c(tail), size) == crc32c.crc32c(b"head" + tail)


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_a_large_batch_may_be_sealed_more_than_once(compression: str) -> None:
    rows = pa.RecordBatch.from_pydict({"a": list(range(100_000)), "b": [f"{i * 7919}" for i in range(100_000)]})
    body = encode_arrow_body(rows, compression=compression)
    assert body.crc is not None
    for sequence in range(3):
        parts = seal_log_batch(body, schema_id=1, writer_id=77, batch_sequence=sequence)
        batch = LogBatch(memoryview(b"".join(parts)))
        batch.verify_crc()
        assert batch.header.batch_sequence == sequence
