# SPDX-License-Identifier: Apache-2.0
"""Log record batches: the three header layouts, checksums, and walking through concatenated batches.

Bytes 0 to 20 are the same in every layout; the byte at 12 ("magic") selects the rest. The checksum covers everything
from the schema id on, so that a server can fill in offset and timestamp without touching it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fluss._checksum import crc32c
from fluss.errors import CorruptMessageError, FormatError, InvalidArgumentError
from fluss.records._bytes import INT32_MAX, Part, as_view, checksum, malformed, record_starts

MAGIC_V0 = 0
MAGIC_V1 = 1
"""V0 and statistics."""
MAGIC_V2 = 2
"""V1 and a leader epoch."""

LENGTH_END = 12
"""The length field counts the bytes after this position."""
MAGIC_POSITION = 12
TIMESTAMP_POSITION = 13
APPEND_ONLY_FLAG = 0x01
CHANGE_TYPE_MAX = 4
SCHEMA_ID_MAX = 2**15 - 1
_ROW_RECORD_SIZE_MIN = 2
"""A change type, and at least the null bits of the row."""
NO_WRITER_ID = -1
NO_BATCH_SEQUENCE = -1
UNKNOWN_LEADER_EPOCH = -1

_I8 = struct.Struct("<b")
_I64 = struct.Struct("<q")
_I32 = struct.Struct("<i")
LENGTH_POSITION = 8
HEADER_LAYOUTS = (
    struct.Struct("<qibqIhbiqii"),
    struct.Struct("<qibqIhbiqiii"),
    struct.Struct("<qibqiIhbiqiii"),
)
"""One per magic: the fields of `LogBatchHeader`, those that the layout has."""
HEADER_SIZES = tuple(layout.size for layout in HEADER_LAYOUTS)
SCHEMA_ID_POSITIONS = (25, 25, 29)
"""Where the checksummed part starts; the checksum itself is right before it."""
HEADER_SIZE_MIN = HEADER_SIZES[0]


class LogBatchHeader(NamedTuple):
    """The header of one log batch, whatever its layout."""

    base_offset: int
    length: int
    magic: int
    commit_timestamp_ms: int
    leader_epoch: int
    crc: int
    schema_id: int
    attributes: int
    last_offset_delta: int
    writer_id: int
    batch_sequence: int
    record_count: int
    statistics_length: int

    @property
    def size_bytes(self) -> int:
        """Size of the whole batch, header included."""
        return LENGTH_END + self.length

    @property
    def header_size(self) -> int:
        """Size of the header alone, without statistics."""
        return HEADER_SIZES[self.magic]

    @property
    def records_position(self) -> int:
        """Where the records section starts, counted from the start of the batch."""
        return HEADER_SIZES[self.magic] + self.statistics_length

    @property
    def schema_id_position(self) -> int:
        """Where the checksummed part starts."""
        return SCHEMA_ID_POSITIONS[self.magic]

    @property
    def last_offset(self) -> int:
        """Offset of the last record; an empty batch still takes one offset."""
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        """The offset after this batch."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def append_only(self) -> bool:
        """Whether every record is an append, in which case no change types are stored."""
        return bool(self.attributes & APPEND_ONLY_FLAG)

    def pack(self) -> bytes:
        """The bytes of this header."""
        values = self if self.magic == MAGIC_V2 else (*self[:4], *self[5:])  # without the leader epoch
        return HEADER_LAYOUTS[self.magic].pack(*(values[:-1] if self.magic == MAGIC_V0 else values))


def read_header(view: Any, pos: int = 0) -> LogBatchHeader:
    """Read the header at `pos`. The batch need not be complete, but its header must be.

    Raises:
        FormatError: The bytes are too short for a header, or a field holds what no writer could have meant.
    """
    available = len(view) - pos
    if pos < 0 or available < HEADER_SIZE_MIN:
        malformed("log batch", "header", pos, f"{max(available, 0)} bytes are too few for a header")
    magic = _I8.unpack_from(view, pos + MAGIC_POSITION)[0]
    if not MAGIC_V0 <= magic <= MAGIC_V2:
        malformed("log batch", "magic", pos + MAGIC_POSITION, f"version {magic} is not known (0, 1 and 2 are)")
    layout = HEADER_LAYOUTS[magic]
    if available < layout.size:
        malformed("log batch", "header", pos, f"{available} bytes are too few for a header of magic {magic}")
    values = layout.unpack_from(view, pos)
    if magic != MAGIC_V2:
        values = (*values[:4], UNKNOWN_LEADER_EPOCH, *values[4:])
    header = LogBatchHeader._make(values if magic != MAGIC_V0 else (*values, 0))
    if header.length < layout.size - LENGTH_END:
        malformed("log batch", "length", pos + 8, f"{header.length} is less than the header takes")
    if header.base_offset < 0:
        malformed("log batch", "base offset", pos, f"{header.base_offset} is negative")
    if header.last_offset_delta < 0:
        position = pos + SCHEMA_ID_POSITIONS[magic] + 3
        malformed("log batch", "last offset delta", position, f"{header.last_offset_delta} is negative")
    if header.record_count < 0:
        position = pos + SCHEMA_ID_POSITIONS[magic] + 19
        malformed("log batch", "record count", position, f"{header.record_count} is negative")
    if not 0 <= header.statistics_length <= header.size_bytes - layout.size:
        problem = f"{header.statistics_length} does not fit into a batch of {header.size_bytes} bytes"
        malformed("log batch", "statistics length", pos + layout.size - 4, problem)
    return header


class LogBatch:
    """One log batch over bytes that are not copied.

    `view` starts with the batch; what follows the batch is left out of `view`.
    """

    __slots__ = ("header", "view")

    def __init__(self, view: Any) -> None:
        view = as_view(view)
        self.header: LogBatchHeader = read_header(view)
        size = self.header.size_bytes
        if len(view) < size:
            malformed("log batch", "length", 8, f"the batch says {size} bytes, {len(view)} are there")
        self.view: memoryview = view if len(view) == size else view[:size]

    def __repr__(self) -> str:
        header = self.header
        return (
            f"LogBatch(offsets {header.base_offset}..{header.last_offset}, {header.record_count} records, "
            f"{header.size_bytes} bytes, magic {header.magic}, schema {header.schema_id})"
        )

    @property
    def crc_is_valid(self) -> bool:
        """Whether the checksum in the header fits the bytes."""
        return checksum((self.view[self.header.schema_id_position :],)) == self.header.crc

    def verify_crc(self) -> None:
        """Refuse the batch if its checksum does not fit.

        Batches that another server projected carry the checksum of the unprojected batch: do not verify those.
        """
        actual = checksum((self.view[self.header.schema_id_position :],))
        if actual != self.header.crc:
            raise CorruptMessageError(
                f"the log batch at base offset {self.header.base_offset} is damaged: its header says CRC "
                f"{self.header.crc:#010x}, its {self.header.size_bytes} bytes have {actual:#010x}"
            )

    @property
    def records_view(self) -> memoryview:
        """The records section: change types and Arrow message, or row records."""
        return self.view[self.header.records_position :]

    @property
    def statistics_view(self) -> memoryview | None:
        """The statistics section, or None when the batch carries none."""
        header = self.header
        if header.statistics_length == 0:
            return None
        return self.view[header.header_size : header.records_position]

    def change_types(self, log_format: str = "ARROW") -> npt.NDArray[np.uint8] | None:
        """One change type per record, or None for an append-only batch.

        The row formats (INDEXED, COMPACTED) keep the change type inside each record, Arrow in front of the message.
        """
        header = self.header
        if header.append_only:
            return None
        if log_format != "ARROW":
            types = np.frombuffer(self.view, dtype=np.uint8)[self.row_positions()[0]]
            check_change_types(types, header.records_position)
            return types
        types = np.frombuffer(self._change_types_view(), dtype=np.uint8)
        check_change_types(types, header.records_position)
        return types

    def _change_types_view(self) -> memoryview:
        """What stands in front of the Arrow message: one byte per record, unless all are appended."""
        header = self.header
        size = 0 if header.append_only else header.record_count
        section = self.records_view
        if len(section) < size:
            problem = f"{size} records need as many bytes, {len(section)} are there"
            malformed("log batch", "change types", header.records_position, problem)
        return section[:size]

    def row_positions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Find where each record of a row-format batch begins in the view (with its change type), and its length."""
        return record_starts(
            self.view, self.header.records_position, self.header.record_count, "log batch", _ROW_RECORD_SIZE_MIN
        )

    @property
    def arrow_view(self) -> memoryview:
        """The Arrow message of a batch in the ARROW log format; empty when there are no records."""
        return self.records_view[len(self._change_types_view()) :]


def check_change_types(types: npt.NDArray[np.uint8], position: int) -> None:
    """Refuse change type bytes that stand for nothing."""
    if len(types) and int(types.max()) > CHANGE_TYPE_MAX:
        index = int(np.argmax(types > CHANGE_TYPE_MAX))
        malformed("log batch", f"change type of record {index}", position, f"{types[index]} is not a change type")


def iter_log_batches(view: Any, *, verify: bool = False, strict: bool = False) -> Iterator[LogBatch]:
    """Walk through concatenated batches.

    A server cuts the last batch of a fetch response at its byte limit, so an incomplete tail ends the walk silently.

    Args:
        verify: Check each checksum (not for batches that were projected by a server).
        strict: For servers receiving batches: an incomplete tail, a checksum that does not fit (if `verify`), or a
            header that contradicts itself is a `CorruptMessageError`.
    """
    view = as_view(view)
    size = len(view)
    pos = 0
    while pos < size:
        remaining = size - pos
        if remaining >= LENGTH_END:
            length = _I32.unpack_from(view, pos + LENGTH_POSITION)[0]
            if length < HEADER_SIZE_MIN - LENGTH_END:
                _refuse(strict, f"length at byte {pos + 8}: {length} is less than a header takes")
            complete = remaining >= LENGTH_END + length
        else:
            complete = False
        if not complete:
            if strict:
                _refuse(strict, f"the batch at byte {pos} is cut: {remaining} bytes are left")
            return
        try:
            batch = LogBatch(view[pos : pos + LENGTH_END + length])
        except FormatError as error:
            _refuse(strict, f"in the batch at byte {pos}: {error.message}", error)
        if strict and batch.header.last_offset_delta != max(batch.header.record_count - 1, 0):
            _refuse(
                strict,
                f"the batch at byte {pos} has {batch.header.record_count} records "
                f"but a last offset delta of {batch.header.last_offset_delta}",
            )
        if verify:
            batch.verify_crc()
        yield batch
        pos += LENGTH_END + length


def _refuse(strict: bool, problem: str, cause: Exception | None = None) -> None:
    kind = CorruptMessageError if strict else FormatError
    raise kind(f"malformed log batches: {problem}") from cause


def patch_batch(buf: bytearray | memoryview, pos: int, base_offset: int, commit_timestamp_ms: int) -> None:
    """Write the server's two fields, base offset and commit timestamp, into the batch at `pos`, in place."""
    if pos < 0 or len(buf) - pos < HEADER_SIZE_MIN:
        raise InvalidArgumentError(f"there is no log batch at byte {pos} of a buffer of {len(buf)} bytes")
    _I64.pack_into(buf, pos, base_offset)
    _I64.pack_into(buf, pos + TIMESTAMP_POSITION, commit_timestamp_ms)


class EncodedBody(NamedTuple):
    """A finished records section, waiting for its header."""

    parts: list[Part]
    size_bytes: int
    record_count: int
    append_only: bool
    statistics: bytes | None = None


def seal_log_batch(
    body: EncodedBody,
    *,
    schema_id: int,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
    magic: int | None = None,
) -> list[Part]:
    """Put the header and the statistics in front of a body, which is not copied.

    The magic is 0, or 1 when there are statistics, unless `magic` says otherwise.
    """
    statistics = body.statistics or b""
    if magic is None:
        magic = MAGIC_V1 if statistics else MAGIC_V0
    if magic not in (MAGIC_V0, MAGIC_V1, MAGIC_V2):
        raise InvalidArgumentError(f"magic {magic} is not known; use 0, 1 or 2")
    if statistics and magic == MAGIC_V0:
        raise InvalidArgumentError("a batch of magic 0 has no room for statistics; use magic 1 or 2")
    if not 0 <= schema_id <= SCHEMA_ID_MAX:
        raise InvalidArgumentError(f"schema id {schema_id} is outside 0..{SCHEMA_ID_MAX}")
    length = HEADER_SIZES[magic] + len(statistics) + body.size_bytes - LENGTH_END
    if length > INT32_MAX:
        raise InvalidArgumentError(f"a log batch of {length + LENGTH_END} bytes is too large; split it")
    header = LogBatchHeader(
        base_offset=0,
        length=length,
        magic=magic,
        commit_timestamp_ms=0,
        leader_epoch=UNKNOWN_LEADER_EPOCH,
        crc=0,
        schema_id=schema_id,
        attributes=APPEND_ONLY_FLAG if body.append_only else 0,
        last_offset_delta=max(body.record_count - 1, 0),
        writer_id=writer_id,
        batch_sequence=batch_sequence,
        record_count=body.record_count,
        statistics_length=len(statistics),
    )
    return seal_header(header, statistics, body.parts)


def seal_header(header: LogBatchHeader, statistics: bytes, parts: list[Part]) -> list[Part]:
    """The batch as parts, with the checksum that belongs to its bytes."""
    head = bytearray(header.pack())
    head += statistics
    start = header.schema_id_position
    crc = checksum(parts, checksum((memoryview(head)[start:],)))
    head[start - 4 : start] = crc.to_bytes(4, "little")
    return [bytes(head), *parts]


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
        FormatError: the bytes are no batch header; the text says why.
    """
    left = len(view) - pos
    magic = view[pos + MAGIC_POSITION] if left > MAGIC_POSITION else MAGIC_V0
    needed = HEADER_SIZES[magic] if magic <= MAGIC_V2 else HEADER_SIZE_MIN
    if left < needed:
        raise NeedMoreBytes(needed)
    # Its fields by position, not by name: servers walk through many small batches.
    base, length, _, timestamp, _, crc, schema_id, _, delta, writer, sequence, count, statistics = read_header(
        view, pos
    )
    end = pos + LENGTH_END + length
    if whole and len(view) < end:
        raise NeedMoreBytes(end - pos)
    crc_start = pos + SCHEMA_ID_POSITIONS[magic]
    return BatchSpan(
        pos, end, base, base + delta, timestamp, writer, sequence, count, schema_id, crc, crc_start, statistics
    )


def crc_fits(view: memoryview, span: BatchSpan) -> bool:
    """Whether the checksum in the header fits the bytes."""
    return bool(crc32c(view[span.crc_start : span.end]) == span.crc)
