# SPDX-License-Identifier: Apache-2.0
"""Spans say the same as headers, which are the readable twin."""

from __future__ import annotations

import pytest
from tests.records import vectors
from tests.records.tables import ID_NAME, to_batch

from fluss.errors import FormatError
from fluss.records import LogBatch, encode_arrow_body, seal_log_batch
from fluss.records.log_batch import NeedMoreBytes, crc_fits, read_span

BATCH = to_batch(ID_NAME, [(1, "one"), (2, "two")])


def sealed(magic: int, statistics: bytes | None = None) -> bytes:
    body = encode_arrow_body(BATCH, statistics=statistics)
    return b"".join(seal_log_batch(body, schema_id=3, writer_id=7, batch_sequence=2, magic=magic))


SEALED = [*vectors.LOG_BATCHES.values(), sealed(0), sealed(1, b"statistics"), sealed(2, b"statistics"), sealed(2)]


@pytest.mark.parametrize("data", SEALED, ids=range(len(SEALED)))
def test_spans_and_headers_agree(data: bytes) -> None:
    view = memoryview(b"before" + data + b"after")
    span = read_span(view, 6)
    header = LogBatch(data).header
    assert (span.start, span.end) == (6, 6 + header.size_bytes)
    assert (span.base_offset, span.last_offset) == (header.base_offset, header.last_offset)
    assert (span.timestamp, span.writer_id, span.sequence) == (
        header.commit_timestamp_ms, header.writer_id, header.batch_sequence,
    )  # fmt: skip
    assert (span.record_count, span.schema_id, span.statistics_length) == (
        header.record_count, header.schema_id, header.statistics_length,
    )  # fmt: skip
    assert (span.crc, span.crc_start) == (header.crc, 6 + header.schema_id_position)
    assert crc_fits(view, span) == LogBatch(data).crc_is_valid


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_changed_byte_of_a_header_is_seen_alike(magic: int) -> None:
    data = sealed(magic)
    for at in range(LogBatch(data).header.header_size):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] = value
            try:
                header = LogBatch(changed).header
            except FormatError:
                with pytest.raises((ValueError, NeedMoreBytes)):
                    read_span(memoryview(changed), 0)
            else:
                assert read_span(memoryview(changed), 0).end == header.size_bytes


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_cut_batches_say_what_they_need(magic: int) -> None:
    data = sealed(magic)
    for size in range(len(data)):
        with pytest.raises(NeedMoreBytes) as caught:
            read_span(memoryview(data)[:size], 0)
        assert size < caught.value.size_bytes <= len(data)
