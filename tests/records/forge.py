# SPDX-License-Identifier: Apache-2.0
"""Log batches with a valid checksum around buffers that no correct writer would send."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from fluss._checksum import crc32c
from fluss.records import LogBatch, encode_arrow_body, seal_log_batch
from fluss.records.arrow_message import LZ4_FRAME, ZSTD, read_message, write_metadata
from fluss.records.log_batch import EncodedBody

CODECS: dict[str, int | None] = {"NONE": None, "LZ4_FRAME": LZ4_FRAME, "ZSTD": ZSTD}
_CODEC_NAMES = {LZ4_FRAME: "lz4", ZSTD: "zstd"}


@dataclass
class Parts:
    """A record batch message taken apart: change what you like, and have it put together again."""

    rows: int
    nodes: list[int]
    """Length and null count of each field node."""
    buffers: list[bytes]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Parts:
        view = memoryview(b"".join(encode_arrow_body(batch, compression="NONE").parts))
        message = read_message(view)
        buffers = [
            bytes(view[message.body_start + offset : message.body_start + offset + length])
            for offset, length in zip(message.buffers[::2], message.buffers[1::2])
        ]
        return cls(message.row_count, list(message.nodes), buffers)

    def message(self, codec: str = "NONE", *, declared: dict[int, int] | None = None) -> bytes:
        """The message. `declared` replaces the uncompressed length that a buffer announces."""
        number = CODECS[codec]
        body = bytearray()
        places: list[int] = []
        for index, buffer in enumerate(self.buffers):
            stored = buffer
            if number is not None and buffer:
                compressed = pa.Codec(_CODEC_NAMES[number]).compress(buffer, asbytes=True)
                size = (declared or {}).get(index, len(buffer))
                stored = size.to_bytes(8, "little", signed=True) + compressed
            places += (len(body), len(stored))
            body += stored + bytes(-len(stored) % 8)
        return write_metadata(self.rows, self.nodes, places, number, len(body)) + bytes(body)

    def batch(
        self,
        codec: str = "NONE",
        *,
        record_count: int | None = None,
        change_types: bytes | None = None,
        declared: dict[int, int] | None = None,
        schema_id: int = 1,
    ) -> bytes:
        """A sealed log batch around the message."""
        message = self.message(codec, declared=declared)
        return sealed(
            message, self.rows if record_count is None else record_count, change_types=change_types, schema_id=schema_id
        )


def sealed(records: bytes, record_count: int, *, change_types: bytes | None = None, schema_id: int = 1) -> bytes:
    """Header and checksum around a records section."""
    parts: Sequence[bytes] = [records] if change_types is None else [change_types, records]
    size = sum(map(len, parts))
    body = EncodedBody(list(parts), size, record_count, change_types is None)
    return b"".join(seal_log_batch(body, schema_id=schema_id))


def resealed(data: bytes) -> bytes:
    """The batch with the checksum that belongs to its bytes, whatever they are."""
    batch = LogBatch(data)
    changed = bytearray(batch.view)
    start = batch.header.schema_id_position
    changed[start - 4 : start] = int(crc32c(changed[start:])).to_bytes(4, "little")
    return bytes(changed)
