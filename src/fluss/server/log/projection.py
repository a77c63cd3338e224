# SPDX-License-Identifier: Apache-2.0
"""Projected batches: some columns of a batch, checked without reading the others every time.

The checksum of a batch covers all its columns, so a check reads them all. A projected batch gets a header with a
checksum of its own columns. If a batch was intact as a whole when its projection had a certain header, then a later
projection with that header has the same bytes, and the other columns need not be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fluss.metadata import TableBucket
from fluss.server.log.walk import BatchSpan

Buffer = bytes | bytearray | memoryview
Key = tuple[TableBucket, tuple[int, ...], int]

_HEADERS_MAX = 16_384
_BATCH_BYTES_MIN = 32 * 1024


class IntactHeaders:
    """The headers of projections of batches that were intact: a bounded number, as all others can be made anew."""

    def __init__(self, headers_max: int = _HEADERS_MAX) -> None:
        self._headers_max = headers_max
        self._headers: dict[Key, Buffer] = {}

    def __len__(self) -> int:
        return len(self._headers)

    def __contains__(self, key: Key) -> bool:
        return key in self._headers

    def holds(self, key: Key, header: Buffer) -> bool:
        return self._headers.get(key) == header

    def add(self, key: Key, header: Buffer) -> None:
        """Remember a header. Called by threads: each step is one operation of the dict."""
        if len(self._headers) >= self._headers_max:
            self._headers.clear()
        self._headers[key] = header


@dataclass(frozen=True)
class Projection:
    """Cuts `columns` out of batches; the first part of what it returns is the header."""

    columns: tuple[int, ...]
    cut: Callable[[memoryview, BatchSpan], Sequence[Buffer]]
    intact: IntactHeaders

    def is_known(self, bucket: TableBucket, base_offset: int) -> bool:
        """Whether the batch that begins at this offset was checked as a whole."""
        return (bucket, self.columns, base_offset) in self.intact

    def is_intact(self, bucket: TableBucket, span: BatchSpan, parts: Sequence[Buffer]) -> bool:
        """Whether these parts were cut from this batch before, when it was checked as a whole."""
        return self.intact.holds((bucket, self.columns, span.base_offset), parts[0])

    def note_intact(self, bucket: TableBucket, span: BatchSpan, parts: Sequence[Buffer]) -> None:
        """Remember the parts of a batch that was checked as a whole, if checking it again would cost much."""
        if span.end - span.start >= _BATCH_BYTES_MIN:
            self.intact.add((bucket, self.columns, span.base_offset), parts[0])
