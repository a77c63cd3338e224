# SPDX-License-Identifier: Apache-2.0
"""Many byte strings in one buffer.

A batch of rows or keys is one numpy buffer plus where each byte string starts and how long it is. The strings need
not be contiguous nor in order, so that a parser can point into the bytes it was given, and an encoder can leave room
between rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import array_of, taken, valid_mask
from fluss.errors import FormatError, InvalidArgumentError

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

WORD_BYTES = 8
"""Kernels read and write whole words at any byte position, so a written value may spill up to this many bytes."""

_LONG_BYTES = 128
"""From this length on one memory copy per string is cheaper than one vectorised step per word."""

# When `Slices.to_list` groups strings by length: enough strings, short ones, and enough of each length.
_GROUPING_MIN = 256
_GROUPED_BYTES_MAX = 2048
_GROUP_ROWS_MIN = 32

_INT32_MAX = 2**31 - 1


class Slices:
    """Many byte strings in one buffer: string ``i`` is ``data[starts[i] : starts[i] + lengths[i]]``."""

    __slots__ = ("data", "lengths", "starts")

    data: Bytes
    starts: Ints
    lengths: Ints

    def __init__(self, data: Any, starts: npt.ArrayLike, lengths: npt.ArrayLike) -> None:
        """Check that every string lies inside ``data`` (an array or anything with the buffer protocol)."""
        self.data = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        self.starts = np.ascontiguousarray(starts, np.int64)
        self.lengths = np.ascontiguousarray(lengths, np.int64)
        if self.data.dtype != np.uint8 or self.data.ndim != 1 or self.starts.shape != self.lengths.shape:
            raise InvalidArgumentError("slices need a flat array of bytes, and as many starts as lengths")
        size = self.data.size
        # Compared as `start > size - length`, which cannot overflow once both are known to be in 0..size.
        bad = (self.starts < 0) | (self.lengths < 0) | (self.lengths > size)
        bad |= self.starts > size - self.lengths
        if bad.any():
            i = int(np.flatnonzero(bad)[0])
            raise FormatError(
                f"byte string {i} starts at byte {int(self.starts[i])} and is {int(self.lengths[i])} bytes long, "
                f"but the buffer has {size} bytes"
            )

    @classmethod
    def trusted(cls, data: Bytes, starts: Ints, lengths: Ints) -> Slices:
        """Build without checks, for callers that computed the positions themselves."""
        self = cls.__new__(cls)
        self.data, self.starts, self.lengths = data, starts, lengths
        return self

    @classmethod
    def from_list(cls, values: Sequence[bytes | bytearray | memoryview]) -> Slices:
        """Copy byte strings into one buffer."""
        lengths = np.fromiter(map(len, values), np.int64, len(values))
        return cls.trusted(np.frombuffer(b"".join(values), np.uint8), starts_of(lengths), lengths)

    @classmethod
    def from_arrow(cls, array: pa.Array) -> Slices:
        """Look at a binary or string array without copying; nulls become empty byte strings."""
        offset_type = np.int64 if is_large(array.type) else np.int32
        n = len(array)
        _, offsets_buffer, data_buffer = array.buffers()
        data = np.frombuffer(data_buffer or b"", np.uint8)
        if n == 0:
            return cls.trusted(data, np.empty(0, np.int64), np.empty(0, np.int64))
        offsets = np.frombuffer(offsets_buffer, offset_type)[array.offset : array.offset + n + 1].astype(np.int64)
        lengths = np.diff(offsets)
        if array.null_count:
            lengths *= valid_mask(array)
        # A slice of a large array begins far into its data.
        first = int(offsets[0])
        return cls.trusted(data[first:], offsets[:-1] - first, lengths)

    @classmethod
    def concat(cls, parts: Sequence[Slices]) -> Slices:
        """All strings of the parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls.from_list([])
        shifts = np.cumsum([0] + [part.data.size for part in parts[:-1]])
        return cls.trusted(
            np.concatenate([part.data for part in parts]),
            np.concatenate([part.starts + shift for part, shift in zip(parts, shifts)]),
            np.concatenate([part.lengths for part in parts]),
        )

    def __len__(self) -> int:
        return self.starts.size

    def __getitem__(self, index: int) -> bytes:
        start = int(self.starts[index])
        return self.data[start : start + int(self.lengths[index])].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.to_list())

    def __repr__(self) -> str:
        return f"Slices(count={len(self)}, total_bytes={self.total_bytes})"

    @property
    def total_bytes(self) -> int:
        """The length of all strings together."""
        return int(self.lengths.sum())

    def to_list(self) -> list[bytes]:
        """The strings as Python objects."""
        lengths = self.lengths
        # numpy makes objects of many strings of one length faster than Python cuts them out one by one.
        if lengths.size >= _GROUPING_MIN and int(lengths.max()) <= _GROUPED_BYTES_MAX:
            counts = np.bincount(lengths)
            if np.count_nonzero(counts) * _GROUP_ROWS_MIN <= lengths.size:
                return self._grouped_list(counts)
        dense = self.dense()
        data = dense.data.tobytes()
        ends = dense.starts + lengths
        return [data[start:end] for start, end in zip(dense.starts.tolist(), ends.tolist())]

    def _grouped_list(self, counts: npt.NDArray[np.intp]) -> list[bytes]:
        order = np.argsort(self.lengths.astype(np.uint16), kind="stable")
        starts = self.starts[order]
        strings = np.empty(order.size, object)
        end = 0
        for length in np.flatnonzero(counts).tolist():
            begin, end = end, end + int(counts[length])
            if length == 0:
                strings[order[begin:end]] = b""
                continue
            cells: Any = np.ndarray((self.data.size - length + 1,), f"V{length}", buffer=self.data, strides=(1,))
            strings[order[begin:end]] = cells[starts[begin:end]].tolist()
        result: list[bytes] = strings.tolist()
        return result

    def take(self, indices: npt.ArrayLike) -> Slices:
        """The strings at ``indices`` (or where a boolean mask is true); the bytes are shared, not copied."""
        index = np.asarray(indices)
        return Slices.trusted(self.data, self.starts[index], self.lengths[index])

    def slice(self, start: int, stop: int) -> Slices:
        """The strings ``start`` to ``stop``; nothing is copied."""
        return Slices.trusted(self.data, self.starts[start:stop], self.lengths[start:stop])

    def dense(self) -> Slices:
        """The same strings in a buffer that is not much larger than they are, for work that copies the buffer."""
        return self if self.data.size <= 4 * self.total_bytes + 4096 else Slices.from_arrow(self.to_arrow())

    def to_arrow(self) -> pa.Array:
        """The strings as a binary array (large_binary if they do not fit 32-bit offsets)."""
        return gather_array(self)


def is_large(arrow_type: pa.DataType) -> bool:
    """Whether a binary or string type has 64-bit offsets."""
    return bool(pa.types.is_large_string(arrow_type) or pa.types.is_large_binary(arrow_type))


def starts_of(lengths: Ints) -> Ints:
    """Where each string starts when they follow each other without gaps."""
    starts = np.zeros(lengths.size, np.int64)
    np.cumsum(lengths[:-1], out=starts[1:])
    return starts


def spaced(lengths: Ints) -> tuple[Ints, Bytes]:
    """Starts and a zeroed buffer for strings of these lengths, with room for one spilled word after each."""
    starts = starts_of(lengths + WORD_BYTES)
    size = int(starts[-1] + lengths[-1]) if lengths.size else 0
    return starts, np.zeros(size + 2 * WORD_BYTES, np.uint8)


def words_at(data: Bytes) -> Words:
    """A view of ``data`` with one little-endian 64-bit word starting at every byte."""
    words: Words = np.ndarray((data.size - WORD_BYTES + 1,), "<u8", buffer=data, strides=(1,))
    return words


def padded(data: Bytes, needed: int) -> Bytes:
    """``data``, copied into a larger zero-filled buffer if it is shorter than ``needed`` bytes."""
    if data.size >= needed:
        return data
    out = np.zeros(needed, np.uint8)
    out[: data.size] = data
    return out


def gather_array(slices: Slices) -> pa.Array:
    """Copy the strings into a binary array (large_binary if the positions need 64 bits)."""
    n = len(slices)
    data = slices.data
    large = data.size > _INT32_MAX or slices.total_bytes > _INT32_MAX
    # Arrow copies binary elements at memory speed, so the buffer is dressed up as a binary array in which string i
    # is element 2 i + 1 and the elements between them are the gaps. Gaps are never looked at: when the strings are out
    # of order their "lengths" are meaningless. The outermost offsets are real, since Arrow sizes its output by them.
    offsets = np.empty(2 * n + 2, np.int64 if large else np.int32)
    offsets[0] = 0
    offsets[1:-1:2] = slices.starts
    offsets[2:-1:2] = slices.starts + slices.lengths
    offsets[-1] = data.size
    kind = pa.large_binary() if large else pa.binary()
    dressed = pa.Array.from_buffers(kind, 2 * n + 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return taken(dressed, array_of(np.arange(1, 2 * n + 1, 2)))


def scatter(out: Bytes, positions: Ints, data: Bytes, starts: Ints, lengths: Ints) -> None:
    """Copy string ``i`` of ``data`` to ``out[positions[i]:]``.

    Whole words are written, so up to `WORD_BYTES` bytes after each string are overwritten with rubbish: leave room
    (`spaced`), and write what follows a string after it.
    """
    longest = int(lengths.max(initial=0))
    if longest > _LONG_BYTES:
        long = lengths > _LONG_BYTES
        _scatter_long(out, data, positions[long], starts[long], lengths[long])
        short = ~long
        positions, starts, lengths = positions[short], starts[short], lengths[short]
        longest = int(lengths.max(initial=0))
    if not longest:
        return
    data = padded(data, int((starts + lengths).max()) + 2 * WORD_BYTES)
    source, target = words_at(data), words_at(out)
    target[positions] = source[starts]
    done = WORD_BYTES
    while done < longest:
        longer = lengths > done
        if 2 * int(np.count_nonzero(longer)) < lengths.size:
            positions, starts, lengths = positions[longer], starts[longer], lengths[longer]
        # A last word ends where its string ends, overlapping the word before it. Strings that are already complete
        # write their last word once more, which is cheaper than picking out the others while those are many.
        at = np.clip(lengths - WORD_BYTES, 0, done)
        target[positions + at] = source[starts + at]
        done += WORD_BYTES


def _scatter_long(out: Bytes, data: Bytes, positions: Ints, starts: Ints, lengths: Ints) -> None:
    target, source = out.data, data.data
    for position, start, length in zip(positions.tolist(), starts.tolist(), lengths.tolist()):
        target[position : position + length] = source[start : start + length]
