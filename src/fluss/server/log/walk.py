# SPDX-License-Identifier: Apache-2.0
"""Walking through the batches of a log quickly: only the fields that storage needs, without an object per batch."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from fluss._checksum import crc32c

BATCH_BYTES_MIN = 48
_V0 = struct.Struct("<qibqIhbiqii")
_V1 = struct.Struct("<qibqIhbiqiii")
_V2 = struct.Struct("<qibqiIhbiqiii")


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


def read_span(view: memoryview, pos: int) -> BatchSpan:
    """The batch at ``pos``.

    Raises:
        NeedMoreBytes: the buffer ends before the batch does (the needed size, as far as it is known).
        ValueError: the bytes are no batch header; the text says why.
    """
    left = len(view) - pos
    if left < BATCH_BYTES_MIN:
        raise NeedMoreBytes(BATCH_BYTES_MIN)
    base, length, magic, timestamp, crc, schema_id, _, delta, writer, sequence, count = _V0.unpack_from(view, pos)
    statistics = 0
    crc_start = 25
    header = 48
    if magic != 0:
        if magic == 1:
            header = 52
            if left < header:
                raise NeedMoreBytes(header)
            statistics = _V1.unpack_from(view, pos)[11]
        elif magic == 2:
            header = 56
            crc_start = 29
            if left < header:
                raise NeedMoreBytes(header)
            values = _V2.unpack_from(view, pos)
            crc, schema_id, _, delta, writer, sequence, count, statistics = values[5:13]
        else:
            raise ValueError(f"the magic byte is {magic}, expected 0, 1 or 2")
    size = 12 + length
    if size < header:
        raise ValueError(f"the length field is {length}, less than a header")
    if base < 0 or delta < 0 or count < 0 or not 0 <= statistics <= size - header:
        raise ValueError("a header field is out of range")
    if left < size:
        raise NeedMoreBytes(size)
    return BatchSpan(
        pos, pos + size, base, base + delta, timestamp, writer, sequence, count, schema_id, crc, pos + crc_start,
        statistics,
    )  # fmt: skip


def crc_fits(view: memoryview, span: BatchSpan) -> bool:
    return bool(crc32c(view[span.crc_start : span.end]) == span.crc)


class BadBatch(Exception):
    """The bytes at a position of a file are no batch, or not a whole one."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(reason)
        self.position = position
        self.reason = reason


class ReadableFile(Protocol):
    def read(self, position: int, size_bytes: int) -> memoryview: ...


def walk_file(
    file: ReadableFile,
    position: int,
    end: int,
    window_bytes: int,
    wanted: Callable[[int], bool] | None = None,
) -> Iterator[tuple[memoryview, BatchSpan, int]]:
    """All batches between two positions: the bytes read, where the batch lies in them, and its position in the file.

    Checksums are left to the caller. Raises BadBatch where the bytes stop being whole batches. `wanted` is asked, with
    its size, whether more has to be read for a batch that goes on beyond what was read; if not, the walk ends.
    """
    while position < end:
        view = file.read(position, min(window_bytes, end - position))
        at = 0
        while at < len(view):
            try:
                span = read_span(view, at)
            except NeedMoreBytes as more:
                if at > 0:
                    if wanted is not None and not wanted(more.size_bytes):
                        return
                    break
                if position + more.size_bytes > end:
                    raise BadBatch(position, "the batch is cut off") from None
                view = file.read(position, more.size_bytes)
                if len(view) < more.size_bytes:
                    raise BadBatch(position, "the file ends inside the batch") from None
                continue
            except ValueError as error:
                raise BadBatch(position + at, str(error)) from None
            yield view, span, position + at
            at = span.end
        if at == 0:
            raise BadBatch(position, "the file ends before the log does")
        position += at
