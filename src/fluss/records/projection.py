# SPDX-License-Identifier: Apache-2.0
"""Column projection by a server: a smaller batch cut out of a stored one, without decoding or decompressing it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from fluss.records._bytes import Part, checksum
from fluss.records.arrow_layout import Selection, layout_of
from fluss.records.arrow_message import LZ4_FRAME, ZSTD, ArrowMessage, message_of, read_message, write_metadata
from fluss.records.log_batch import LENGTH_END, LogBatch, seal_header

_ALIGNMENT = 8
_CODECS = {None: None, LZ4_FRAME: "lz4", ZSTD: "zstd"}
_REMEMBERED_MAX = 64
_REMEMBERED_ROWS_MAX = 4096

Piece = bytes | slice
"""Bytes of its own, or where they lie in something else."""


class ProjectedBatch(NamedTuple):
    """A batch with fewer columns, described by the one that it is cut out of."""

    header: bytes
    """With its own length and checksum."""
    checked_from: int
    """Where in the header the bytes begin that the checksum covers."""
    pieces: tuple[Piece, ...]
    """What follows the header; places count from the start of the other batch."""

    def parts(self, view: memoryview) -> list[Part]:
        """The bytes of the batch; `view` has those of the other one, and the parts point into it."""
        return [self.header, *_parts_of(self.pieces, view)]

    def fits(self, parts: Sequence[Part]) -> bool:
        """Whether `parts` are those that the checksum was computed of."""
        start = self.checked_from
        crc = checksum(parts[1:], checksum((self.header[start:],)))
        return self.header[start - 4 : start] == crc.to_bytes(4, "little")


def cut_batch(
    batch: LogBatch, positions: Sequence[int], arrow_schema: pa.Schema, added: pa.Schema | None = None
) -> ProjectedBatch:
    """The batch with only the columns at `positions`.

    Offsets, timestamp, writer and change types stay; statistics are dropped, since their column positions would no
    longer fit; length and checksum are made right for the new bytes.

    Args:
        positions: Strictly ascending column positions in the schema the batch was written with.
        arrow_schema: That schema.
        added: Columns that are younger than the batch and follow the others; they are null. A reader decodes what it
            asked for, whatever schema the batch header names: the official clients fail if a column is missing.

    Raises:
        InvalidColumnProjectionError: The positions do not fit the schema.
        FormatError: The batch is malformed.
    """
    layout = layout_of(arrow_schema)
    selection = layout.select(positions) if positions or added is None else None
    header = batch.header
    if header.record_count == 0:
        rest = slice(header.header_size, header.size_bytes)
        return ProjectedBatch(bytes(batch.view[: header.header_size]), header.schema_id_position, (rest,))
    message = read_message(batch.arrow_view)
    layout.check(message, header)
    start = header.records_position
    pieces: list[Piece] = []
    if not header.append_only:
        start += header.record_count  # change types lie before the message, one byte each
        pieces.append(slice(header.records_position, start))
    pieces += _pieces_of(message, start, selection, added)
    parts = _parts_of(pieces, batch.view)
    length = header.header_size - LENGTH_END + sum(map(len, parts))
    sealed, *_ = seal_header(header._replace(length=length, statistics_length=0), b"", parts)
    return ProjectedBatch(bytes(sealed), header.schema_id_position, tuple(pieces))


def has_columns(batch: LogBatch, arrow_schema: pa.Schema) -> bool:
    """Whether the batch has as many field nodes as this schema: whether a server sent columns it has to make up."""
    message = read_message(batch.arrow_view) if batch.header.record_count else None
    return message is None or len(message.nodes) // 2 == layout_of(arrow_schema).node_count


def project_message(view: memoryview, message: ArrowMessage, selection: Selection) -> list[Part]:
    """The message with only some top-level columns."""
    return _parts_of(_pieces_of(message, 0, selection, None), view)


def _parts_of(pieces: Sequence[Piece], view: memoryview) -> list[Part]:
    return [view[piece] if isinstance(piece, slice) else piece for piece in pieces]


def _pieces_of(
    message: ArrowMessage, message_start: int, selection: Selection | None, added: pa.Schema | None
) -> list[Piece]:
    """A message with only some top-level columns: new metadata, and stretches of the old body.

    Without a selection none of the old columns is kept; the columns `added` follow, and are null.
    """
    body_start = message_start + message.body_start
    chosen = selection.buffers(message.buffers) if selection is not None else ()
    nodes = selection.nodes(message.nodes) if selection is not None else ()
    buffers: list[int] = []
    body: list[Piece] = []
    position = 0
    start = end = body_start  # the stretch of neighbouring buffers that is not yet in `body`
    for offset, length in zip(chosen[::2], chosen[1::2]):
        buffers += (position, length)
        if length == 0:
            continue
        at = body_start + offset
        padded = length + -length % _ALIGNMENT
        if at != end or offset + padded > message.body_length:
            if end > start:
                body.append(slice(start, end))
            start = at
        position += padded
        end = at + padded
        if offset + padded > message.body_length:  # the last buffer of a body that is not padded
            body += (slice(start, at + length), bytes(padded - length))
            start = end
    if end > start:
        body.append(slice(start, end))
    if added is not None:
        null_nodes, null_buffers, null_body = _null_columns(added, message.row_count, message.codec)
        nodes = (*nodes, *null_nodes)
        for offset, length in zip(null_buffers[::2], null_buffers[1::2]):
            buffers += (position + offset, length)
        body.append(null_body)
        position += len(null_body)
    metadata = write_metadata(message.row_count, nodes, buffers, message.codec, position)
    return [metadata, *body]


def _null_columns(schema: pa.Schema, rows: int, codec: int | None) -> tuple[tuple[int, ...], tuple[int, ...], bytes]:
    """Field nodes, buffers and body of columns that are null in all rows."""
    return (_remembered_nulls if rows <= _REMEMBERED_ROWS_MAX else _made_nulls)(schema, rows, codec)


def _made_nulls(schema: pa.Schema, rows: int, codec: int | None) -> tuple[tuple[int, ...], tuple[int, ...], bytes]:
    batch = pa.RecordBatch.from_arrays([pa.nulls(rows, field.type) for field in schema], names=schema.names)
    view = message_of(batch, pa.ipc.IpcWriteOptions(compression=_CODECS[codec]))
    message = read_message(view)
    return message.nodes, message.buffers, bytes(view[message.body_start : message.body_start + message.body_length])


_remembered_nulls = lru_cache(maxsize=_REMEMBERED_MAX)(_made_nulls)
