# SPDX-License-Identifier: Apache-2.0
"""Where batches lie in a buffer: only the fields that storage needs, in one tuple per batch.

Storage looks at every batch it writes, serves or recovers. Reading a span takes half the time of a `LogBatch`.
"""

from __future__ import annotations

from typing import NamedTuple

from fluss._checksum import crc32c
from fluss.records.log_batch import (
    HEADER_LAYOUTS,
    HEADER_SIZE_MIN,
    HEADER_SIZES,
    LENGTH_END,
    MAGIC_V0,
    MAGIC_V1,
    MAGIC_V2,
    SCHEMA_ID_POSITIONS,
)

_V0, _V1, _V2 = HEADER_LAYOUTS
_CRC_START = SCHEMA_ID_POSITIONS[MAGIC_V0]


class BatchSpan(NamedTuple):
    """Where a batch lies in a buffer, and what storage must know of it."""

    start: int
    end: int
    base_offset: int
    last_offset: int
    timestamp: int
    writer_id: int
    sequence: int
    record_count: int
    schema_id: int
    crc: int
    crc_start: int
    statistics_length: int


class NeedMoreBytes(Exception):
    """The batch at this position goes on beyond the buffer."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


def read_span(view: memoryview, pos: int, *, whole: bool = True) -> BatchSpan:
    """The batch at ``pos``.

    Args:
        whole: Whether the buffer must have all of the batch, and not its header only.

    Raises:
        NeedMoreBytes: the buffer ends before the batch does (the needed size, as far as it is known).
        ValueError: the bytes are no batch header; the text says why.
    """
    left = len(view) - pos
    if left < HEADER_SIZE_MIN:
        raise NeedMoreBytes(HEADER_SIZE_MIN)
    base, length, magic, timestamp, crc, schema_id, _, delta, writer, sequence, count = _V0.unpack_from(view, pos)
    statistics = 0
    header = HEADER_SIZE_MIN
    crc_start = _CRC_START
    if magic:
        if magic not in (MAGIC_V1, MAGIC_V2):
            raise ValueError(f"the magic byte is {magic}, expected 0, 1 or 2")
        header = HEADER_SIZES[magic]
        crc_start = SCHEMA_ID_POSITIONS[magic]
        if left < header:
            raise NeedMoreBytes(header)
        if magic == MAGIC_V1:
            statistics = _V1.unpack_from(view, pos)[11]
        else:
            crc, schema_id, _, delta, writer, sequence, count, statistics = _V2.unpack_from(view, pos)[5:13]
    size = LENGTH_END + length
    if size < header:
        raise ValueError(f"the length field is {length}, less than a header")
    if base < 0 or delta < 0 or count < 0 or not 0 <= statistics <= size - header:
        raise ValueError("a header field is out of range")
    if whole and left < size:
        raise NeedMoreBytes(size)
    return BatchSpan(
        pos, pos + size, base, base + delta, timestamp, writer, sequence, count, schema_id, crc,
        pos + crc_start, statistics,
    )  # fmt: skip


def crc_fits(view: memoryview, span: BatchSpan) -> bool:
    """Whether the checksum in the header fits the bytes."""
    return bool(crc32c(view[span.crc_start : span.end]) == span.crc)
