# SPDX-License-Identifier: Apache-2.0
"""The sparse indexes of a segment: offset to position, timestamp to offset.

Kept as packed arrays in memory and written as whole files. The file formats are those of the remote log (big-endian),
so that the files can be copied there as they are.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

import numpy as np

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
_TIME_DTYPE = np.dtype([("timestamp", ">i8"), ("offset", ">i4")])
INT32_MAX = 2**31 - 1


class SegmentIndex:
    """Both indexes of one segment. Offsets are relative to the segment's base offset.

    An entry stands for one batch: its last offset, its position, its commit timestamp and its first offset. Timestamps
    never fall along a log, so the time index is sorted as well.
    """

    __slots__ = ("first_offsets", "last_offsets", "positions", "timestamps", "trusted")

    def __init__(self) -> None:
        self.trusted = False
        """Known to be what was written, so that a batch which contradicts it is damaged, and not the index."""
        self.last_offsets = array("i")
        self.positions = array("i")
        self.timestamps = array("q")
        self.first_offsets = array("i")

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def size_bytes(self) -> int:
        """Size of the larger of the two files."""
        return len(self.positions) * TIME_ENTRY_BYTES

    def append(self, last_offset: int, position: int, timestamp: int, first_offset: int) -> None:
        self.last_offsets.append(last_offset)
        self.positions.append(position)
        self.timestamps.append(timestamp)
        self.first_offsets.append(first_offset)

    def floor(self, offset: int) -> tuple[int, int] | None:
        """The last entry whose batch ends at or before ``offset``: its last offset and its position."""
        at = bisect_right(self.last_offsets, offset) - 1
        return None if at < 0 else (self.last_offsets[at], self.positions[at])

    def before_timestamp(self, timestamp: int) -> tuple[int, int] | None:
        """The last entry older than ``timestamp``: its last offset and its position."""
        at = bisect_left(self.timestamps, timestamp) - 1
        return None if at < 0 else (self.last_offsets[at], self.positions[at])

    def entry_at_or_after(self, position: int) -> int:
        """The number of the first entry that does not lie before a position."""
        return bisect_left(self.positions, position)

    def count_between(self, start: int, end: int) -> int:
        """How many entries lie from one position up to another."""
        return bisect_left(self.positions, end) - bisect_left(self.positions, start)

    def truncate(self, position: int) -> None:
        """Forget the entries at or after a position."""
        keep = bisect_left(self.positions, position)
        for values in (self.last_offsets, self.positions, self.timestamps, self.first_offsets):
            del values[keep:]

    def copy(self) -> SegmentIndex:
        other = SegmentIndex()
        other.trusted = self.trusted
        other.last_offsets = self.last_offsets[:]
        other.positions = self.positions[:]
        other.timestamps = self.timestamps[:]
        other.first_offsets = self.first_offsets[:]
        return other

    def offset_file(self) -> bytes:
        pairs = np.empty((len(self), 2), dtype=">i4")
        pairs[:, 0] = np.frombuffer(self.last_offsets, dtype=np.int32) if len(self) else ()
        pairs[:, 1] = np.frombuffer(self.positions, dtype=np.int32) if len(self) else ()
        return pairs.tobytes()

    def time_file(self) -> bytes:
        entries = np.empty(len(self), dtype=_TIME_DTYPE)
        if len(self):
            entries["timestamp"] = np.frombuffer(self.timestamps, dtype=np.int64)
            entries["offset"] = np.frombuffer(self.first_offsets, dtype=np.int32)
        return entries.tobytes()

    @classmethod
    def parse(cls, offset_file: bytes, time_file: bytes, limit_bytes: int) -> SegmentIndex | None:
        """Read the files back; None when they cannot be what was written, so that they are rebuilt.

        What passes here is still only a hint: a reader compares every entry that it uses with the batch found there.
        """
        count, rest = divmod(len(offset_file), OFFSET_ENTRY_BYTES)
        if rest or len(time_file) != count * TIME_ENTRY_BYTES:
            return None
        index = cls()
        if count == 0:
            return index
        pairs = np.frombuffer(offset_file, dtype=">i4").reshape(-1, 2).astype(np.int32)
        times = np.frombuffer(time_file, dtype=_TIME_DTYPE)
        timestamps, first = times["timestamp"].astype(np.int64), times["offset"].astype(np.int32)
        if (
            pairs.min() < 0
            or int(pairs[-1, 1]) >= limit_bytes
            or not bool(np.all(np.diff(pairs.astype(np.int64), axis=0) > 0))
            or not bool(np.all(np.diff(timestamps) >= 0))
            or not bool(np.all((first >= 0) & (first <= pairs[:, 0])))
        ):
            return None
        index.last_offsets.frombytes(np.ascontiguousarray(pairs[:, 0]).tobytes())
        index.positions.frombytes(np.ascontiguousarray(pairs[:, 1]).tobytes())
        index.timestamps.frombytes(timestamps.tobytes())
        index.first_offsets.frombytes(first.tobytes())
        return index


__all__ = ["INT32_MAX", "OFFSET_ENTRY_BYTES", "TIME_ENTRY_BYTES", "SegmentIndex"]
