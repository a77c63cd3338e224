# SPDX-License-Identifier: Apache-2.0
"""The Arrow record batch message: its metadata read and written without decoding the body.

A batch carries exactly one encapsulated message: ``ff ff ff ff``, the size of the metadata, the metadata, the body. The
metadata is a flatbuffer of a handful of fields, so this module reads just those, with every offset checked. It exists
because a server must project columns without touching the buffers, and because nothing may be handed to Arrow before
its lengths are validated.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from fluss.records._bytes import INT32_MAX, as_view, malformed

LZ4_FRAME = 0
ZSTD = 1

_WHAT = "Arrow message"
_CONTINUATION = b"\xff\xff\xff\xff"
_PREFIX_SIZE = 8
_METADATA_V5 = 4
_HEADER_RECORD_BATCH = 3
_STRUCT_SIZE = 16
"""Field nodes and buffers are both two 64-bit numbers."""
_KNOWN_BYTES_MAX = 1024
_KNOWN_MAX = 256
"""Batches of few plain columns often have the same number of rows, and then the same metadata."""

_I8 = struct.Struct("<b")
_U8 = struct.Struct("<B")
_I16 = struct.Struct("<h")
_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")


class ArrowMessage(NamedTuple):
    """The metadata of one record batch message, checked against the bytes it came with."""

    row_count: int
    nodes: tuple[int, ...]
    """Two numbers per field, depth first: length and null count."""
    buffers: tuple[int, ...]
    """Two numbers per buffer: offset in the body and length."""
    codec: int | None
    """How buffers are compressed: None, `LZ4_FRAME` or `ZSTD`."""
    body_start: int
    """Where the body starts, counted from the start of the message."""
    body_length: int


class _Table:
    """A flatbuffer table whose fields are looked up with bounds checks."""

    __slots__ = ("base", "end", "pos", "slots", "view", "vtable")

    def __init__(self, view: memoryview, base: int, end: int, pos: int) -> None:
        self.view, self.base, self.end, self.pos = view, base, end, pos
        if pos < base or pos + 4 > end:
            malformed(_WHAT, "metadata table", pos, "it lies outside of the metadata")
        vtable = pos - _I32.unpack_from(view, pos)[0]
        if vtable < base or vtable + 4 > end:
            malformed(_WHAT, "metadata vtable", pos, "it lies outside of the metadata")
        size = _U16.unpack_from(view, vtable)[0]
        if size < 4 or size % 2 or vtable + size > end:
            malformed(_WHAT, "metadata vtable", vtable, f"its size {size} is impossible")
        self.vtable = vtable
        self.slots = (size - 4) // 2

    def find(self, slot: int, size: int) -> int:
        """Position of a field of `size` bytes, or 0 when the table leaves it at its default."""
        if slot >= self.slots:
            return 0
        offset: int = _U16.unpack_from(self.view, self.vtable + 4 + 2 * slot)[0]
        if offset == 0:
            return 0
        pos = self.pos + offset
        if offset < 4 or pos + size > self.end:
            malformed(_WHAT, f"metadata field {slot}", self.pos, "it lies outside of the metadata")
        return pos

    def integer(self, slot: int, kind: struct.Struct, default: int) -> int:
        pos = self.find(slot, kind.size)
        return int(kind.unpack_from(self.view, pos)[0]) if pos else default

    def table(self, slot: int) -> _Table | None:
        pos = self.find(slot, 4)
        if not pos:
            return None
        return _Table(self.view, self.base, self.end, pos + _U32.unpack_from(self.view, pos)[0])

    def pairs(self, slot: int, field: str) -> tuple[int, ...]:
        """The numbers of a vector of structs of two 64-bit numbers each."""
        pos = self.find(slot, 4)
        if not pos:
            return ()
        start = pos + _U32.unpack_from(self.view, pos)[0]
        if start + 4 > self.end:
            malformed(_WHAT, field, pos, "the vector lies outside of the metadata")
        count = _U32.unpack_from(self.view, start)[0]
        if count * _STRUCT_SIZE > self.end - start - 4:
            malformed(_WHAT, field, start, f"{count} entries do not fit into the metadata")
        return struct.unpack_from(f"<{2 * count}q", self.view, start + 4)


def message_of(batch: pa.RecordBatch, options: pa.ipc.IpcWriteOptions) -> memoryview:
    """The record batch message out of a stream, which Arrow can compress with several threads."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream = as_view(sink.getvalue())
    schema_size = _PREFIX_SIZE + int.from_bytes(stream[4:8], "little")
    return stream[schema_size:-_PREFIX_SIZE]  # the stream ends with a marker of 8 bytes


def read_message(view: memoryview) -> ArrowMessage:
    """Read the metadata of the message that fills `view`; no buffer of the body is looked at.

    Raises:
        FormatError: The message is cut, or holds an offset, length or count that cannot be.
    """
    size = len(view)
    if size < _PREFIX_SIZE:
        malformed(_WHAT, "prefix", 0, f"{size} bytes are too few for a message")
    if view[:4] != _CONTINUATION:
        malformed(_WHAT, "continuation marker", 0, f"found {bytes(view[:4]).hex()}; is this an ARROW log table?")
    metadata_size = _I32.unpack_from(view, 4)[0]
    if metadata_size < 8 or metadata_size > size - _PREFIX_SIZE:
        malformed(_WHAT, "metadata size", 4, f"{metadata_size} bytes in a message of {size}")
    body_start = _PREFIX_SIZE + metadata_size
    head = view[:body_start]
    message = _read_known_metadata(bytes(head)) if body_start <= _KNOWN_BYTES_MAX else _read_metadata(head)
    if message.body_length > size - body_start:
        malformed(_WHAT, "body length", 0, f"{message.body_length} bytes, but {size - body_start} follow the metadata")
    return message


@lru_cache(maxsize=_KNOWN_MAX)
def _read_known_metadata(head: bytes) -> ArrowMessage:
    return _read_metadata(memoryview(head))


def _read_metadata(view: memoryview) -> ArrowMessage:
    """Read what stands in front of a body."""
    body_start = len(view)
    root = _PREFIX_SIZE + _U32.unpack_from(view, _PREFIX_SIZE)[0]
    message = _Table(view, _PREFIX_SIZE, body_start, root)
    version = message.integer(0, _I16, 0)
    if version != _METADATA_V5:
        malformed(_WHAT, "metadata version", root, f"found {version}, only {_METADATA_V5} (V5) is used")
    kind = message.integer(1, _U8, 0)
    if kind != _HEADER_RECORD_BATCH:
        malformed(_WHAT, "header type", root, f"found {kind}, expected {_HEADER_RECORD_BATCH} (a record batch)")
    body_length = message.integer(3, _I64, 0)
    if body_length < 0:
        malformed(_WHAT, "body length", root, f"{body_length} bytes")
    batch = message.table(2)
    if batch is None:
        malformed(_WHAT, "record batch", root, "it is missing")
    row_count = batch.integer(0, _I64, 0)
    if row_count < 0 or row_count > INT32_MAX:
        malformed(_WHAT, "row count", batch.pos, f"{row_count} is impossible")
    nodes = batch.pairs(1, "field nodes")
    buffers = batch.pairs(2, "buffers")
    _check_nodes(nodes)
    _check_buffers(buffers, body_length)
    if batch.find(4, 4):
        malformed(_WHAT, "variadic buffer counts", batch.pos, "view types are not used in log batches")
    return ArrowMessage(row_count, nodes, buffers, _read_codec(batch), body_start, body_length)


def _read_codec(batch: _Table) -> int | None:
    compression = batch.table(3)
    if compression is None:
        return None
    codec = compression.integer(0, _I8, LZ4_FRAME)
    if codec not in (LZ4_FRAME, ZSTD):
        malformed(_WHAT, "compression codec", compression.pos, f"{codec} is not known")
    method = compression.integer(1, _I8, 0)
    if method != 0:
        malformed(_WHAT, "compression method", compression.pos, f"{method} is not known")
    return codec


def _check_nodes(nodes: tuple[int, ...]) -> None:
    for index, (length, nulls) in enumerate(zip(nodes[::2], nodes[1::2])):
        if not 0 <= nulls <= length <= INT32_MAX:
            malformed(_WHAT, f"field node {index}", 0, f"length {length} and null count {nulls} cannot be")


def _check_buffers(buffers: tuple[int, ...], body_length: int) -> None:
    total = 0
    for index, (offset, length) in enumerate(zip(buffers[::2], buffers[1::2])):
        if offset < 0 or length < 0 or offset + length > body_length:
            problem = f"offset {offset} and length {length} lie outside of the body of {body_length} bytes"
            malformed(_WHAT, f"buffer {index}", 0, problem)
        total += length
    # Buffers that share bytes would let a projection, or a decoder, grow a small batch without bound.
    if total > body_length:
        malformed(_WHAT, "buffers", 0, f"they overlap: {total} bytes in a body of {body_length}")


# The metadata is written with one fixed arrangement; positions count from its first byte, and are chosen so that every
# 64-bit number, also inside the vectors, lies on a multiple of 8:
#
#     0 root offset   4 vtable of Message   16 Message   44 vtable of RecordBatch   56 RecordBatch
#     80 vtable of BodyCompression   88 BodyCompression (both only when compressed)
#     then 4 bytes of padding, the node vector, 4 bytes of padding, the buffer vector
_TABLES = struct.Struct("<I 6H iIqhB5x 4x 6H iIqII")
_COMPRESSION = struct.Struct("<4H iBB2x")
_VECTOR_HEAD = struct.Struct("<4xI")
_MESSAGE_VTABLE = (12, 24, 16, 18, 4, 8)
"""Its size, the size of the table, then where in the table version, header type, header and body length are."""
_BATCH_VTABLE = (12, 24, 8, 4, 16, 20)
"""Its size, the size of the table, then where in the table row count, nodes, buffers and compression are."""
_COMPRESSION_VTABLE = (8, 8, 4, 5)
_MESSAGE_TABLE, _MESSAGE_HEADER_FIELD = 16, 20
_BATCH_TABLE, _NODES_FIELD, _BUFFERS_FIELD, _COMPRESSION_FIELD = 56, 60, 72, 76
_COMPRESSION_TABLE = 88


def write_metadata(
    row_count: int, nodes: Sequence[int], buffers: Sequence[int], codec: int | None, body_length: int
) -> bytes:
    """Everything of a message in front of its body: marker, size and metadata, together a multiple of 8 bytes.

    Nodes and buffers are flat, two numbers each, as in `ArrowMessage`.
    """
    compressed = codec is not None
    nodes_at = _TABLES.size + (_COMPRESSION.size if compressed else 0) + 4
    buffers_at = nodes_at + 4 + 8 * len(nodes) + 4
    batch_vtable = _BATCH_VTABLE if compressed else (*_BATCH_VTABLE[:-1], 0)
    tables = _TABLES.pack(
        _MESSAGE_TABLE,
        *_MESSAGE_VTABLE,
        12,  # back from the table to its vtable
        _BATCH_TABLE - _MESSAGE_HEADER_FIELD,
        body_length,
        _METADATA_V5,
        _HEADER_RECORD_BATCH,
        *batch_vtable,
        12,
        nodes_at - _NODES_FIELD,
        row_count,
        buffers_at - _BUFFERS_FIELD,
        _COMPRESSION_TABLE - _COMPRESSION_FIELD if compressed else 0,
    )
    size = buffers_at + 4 + 8 * len(buffers)
    return b"".join(
        (
            _CONTINUATION,
            _I32.pack(size),
            tables,
            _COMPRESSION.pack(*_COMPRESSION_VTABLE, 8, codec, 0) if compressed else b"",
            _VECTOR_HEAD.pack(len(nodes) // 2),
            struct.pack(f"<{len(nodes)}q", *nodes),
            _VECTOR_HEAD.pack(len(buffers) // 2),
            struct.pack(f"<{len(buffers)}q", *buffers),
        )
    )
