# SPDX-License-Identifier: Apache-2.0
"""Column projection by a server: a smaller batch cut out of a stored one, without decoding or decompressing it."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from fluss.records._bytes import Part
from fluss.records.arrow_layout import Selection, layout_of
from fluss.records.arrow_message import ArrowMessage, read_message, write_metadata
from fluss.records.log_batch import LENGTH_END, LogBatch, seal_header

_ALIGNMENT = 8


def project_batch(batch: LogBatch, positions: Sequence[int], arrow_schema: pa.Schema) -> list[Part]:
    """The batch with only the columns at `positions`, as parts that point into the batch.

    Offsets, timestamp, writer and change types stay; statistics are dropped, since their column positions would no
    longer fit; length and checksum are made right for the new bytes.

    Args:
        positions: Strictly ascending column positions in the schema the batch was written with.
        arrow_schema: That schema.

    Raises:
        InvalidColumnProjectionError: The positions do not fit the schema.
        FormatError: The batch is malformed.
    """
    layout = layout_of(arrow_schema)
    selection = layout.select(positions)
    header = batch.header
    if header.record_count == 0:
        return [batch.view]
    view = batch.arrow_view
    message = read_message(view)
    layout.check(message, header)
    parts = project_message(view, message, selection)
    if not header.append_only:
        parts.insert(0, batch.records_view[: header.record_count])
    length = header.header_size - LENGTH_END + sum(map(len, parts))
    return seal_header(header._replace(length=length, statistics_length=0), b"", parts)


def project_message(view: memoryview, message: ArrowMessage, selection: Selection) -> list[Part]:
    """The message with only some top-level columns: new metadata, and stretches of the old body."""
    chosen = selection.buffers(message.buffers)
    buffers: list[int] = []
    body: list[Part] = []
    position = 0
    start = end = message.body_start  # the stretch of neighbouring buffers that is not yet in `body`
    for offset, length in zip(chosen[::2], chosen[1::2]):
        buffers += (position, length)
        if length == 0:
            continue
        at = message.body_start + offset
        padded = length + -length % _ALIGNMENT
        if at != end or offset + padded > message.body_length:
            if end > start:
                body.append(view[start:end])
            start = at
        position += padded
        end = at + padded
        if offset + padded > message.body_length:  # the last buffer of a body that is not padded
            body += (view[start : at + length], bytes(padded - length))
            start = end
    if end > start:
        body.append(view[start:end])
    metadata = write_metadata(message.row_count, selection.nodes(message.nodes), buffers, message.codec, position)
    return [metadata, *body]
