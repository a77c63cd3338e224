# SPDX-License-Identifier: Apache-2.0
"""Projected batches: some columns of a batch, checked without reading the others every time.

The checksum of a batch covers all its columns, so a check reads them all. A projected batch has a checksum of its own
columns. So it is remembered how a batch was cut when it was intact as a whole: if a later cut has the same checksum it
has the same bytes, and neither the other columns nor the description of them all need be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fluss.metadata import TableBucket
from fluss.records import HEADER_SIZE_MIN, ProjectedBatch
from fluss.records.log_batch import BatchSpan

Buffer = bytes | bytearray | memoryview
Key = tuple[TableBucket, tuple[int, ...], int]

_CUTS_BYTES_MAX = 16 * 1024 * 1024
_CUT_BYTES = 500
"""What a cut takes beside its bytes."""
_PIECE_BYTES = 150
_BATCH_BYTES_MIN = 32 * 1024


class _Cut(NamedTuple):
    stored_header: bytes
    """What no checksum covers stands here: offset, length and time."""
    size_bytes: int
    projected: ProjectedBatch


class IntactCuts:
    """How batches were cut that were intact, in bounded memory: all of it can be made anew."""

    def __init__(self, bytes_max: int = _CUTS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._cuts: dict[Key, _Cut] = {}

    def __len__(self) -> int:
        return len(self._cuts)

    def __contains__(self, key: Key) -> bool:
        return key in self._cuts

    def get(self, key: Key) -> _Cut | None:
        return self._cuts.get(key)

    def add(self, key: Key, cut: _Cut) -> None:
        """Remember a cut. Called by threads: each step is one operation of the dict."""
        pieces = cut.projected.pieces
        size_bytes = _CUT_BYTES + sum(_PIECE_BYTES if isinstance(piece, slice) else len(piece) for piece in pieces)
        if self._size_bytes + size_bytes > self._bytes_max:
            self._cuts.clear()
            self._size_bytes = 0
        self._size_bytes += size_bytes
        self._cuts[key] = cut


@dataclass(frozen=True)
class Projection:
    """Cuts `columns` out of batches."""

    columns: tuple[int, ...]
    cut: Callable[[memoryview, BatchSpan], ProjectedBatch]
    intact: IntactCuts

    def is_known(self, bucket: TableBucket, base_offset: int) -> bool:
        """Whether the batch that begins at this offset was checked as a whole."""
        return (bucket, self.columns, base_offset) in self.intact

    def cut_again(
        self, bucket: TableBucket, view: memoryview, span: BatchSpan, read: Callable[[slice], memoryview]
    ) -> Sequence[Buffer] | None:
        """The wanted columns of a batch that was checked as a whole before; None if it has to be checked again.

        Args:
            view: Where the header of the batch lies.
            read: Reads a part of the batch; positions count from its start.
        """
        known = self.intact.get((bucket, self.columns, span.base_offset))
        if known is None or known.size_bytes != span.end - span.start:
            return None
        if known.stored_header != view[span.start : span.start + len(known.stored_header)]:
            return None
        pieces = known.projected.pieces
        parts = [known.projected.header, *(read(piece) if isinstance(piece, slice) else piece for piece in pieces)]
        return parts if known.projected.fits(parts) else None

    def cut_intact(self, bucket: TableBucket, view: memoryview, span: BatchSpan) -> Sequence[Buffer]:
        """The wanted columns of a batch that was checked as a whole; remembered if a check of it costs much.

        They are copied: the rest of what was read with them would stay in memory until they are sent.
        """
        batch = view[span.start : span.end]
        projected = self.cut(view, span)
        if len(batch) >= _BATCH_BYTES_MIN:
            self.intact.add(
                (bucket, self.columns, span.base_offset), _Cut(bytes(batch[:HEADER_SIZE_MIN]), len(batch), projected)
            )
        return [b"".join(projected.parts(batch))]
