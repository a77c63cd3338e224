# SPDX-License-Identifier: Apache-2.0
"""Length-prefixed records, many at once: finding where each starts, and gluing columns of byte strings together."""

from __future__ import annotations

import struct

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fluss.records._bytes import malformed

_I32 = struct.Struct("<i")
_RUN_MIN = 16
"""So many equal lengths in a row make it worth guessing that more follow."""
_RUN_MAX = 8192

Int64Array = npt.NDArray[np.int64]


def record_starts(view: memoryview, pos: int, count: int, what: str, size_min: int) -> tuple[Int64Array, Int64Array]:
    """Starts and lengths of `count` records, each an i32 length and as many bytes, which fill `view` from `pos` on.

    Where a record starts is only known from the one before it, so this is a loop; but batches often hold long runs of
    records of one length, and those are checked with one strided comparison.
    """
    end = len(view)
    if count < 0 or count * (4 + size_min) > end - pos:
        malformed(what, "record count", pos, f"{count} records do not fit into {end - pos} bytes")
    unpack = _I32.unpack_from
    lengths: list[int] = []
    append = lengths.append
    runs: list[tuple[int, int, int]] = []  # (index in lengths, extra records, their length)
    found, last, same, start = 0, -1, 0, pos
    run_next = 64
    while found < count:
        if pos + 4 > end:
            malformed(what, f"length of record {found}", pos, "the bytes end before it")
        length = unpack(view, pos)[0]
        if length < size_min or length > end - pos - 4:
            malformed(
                what, f"length of record {found}", pos, f"{length} bytes do not fit between {size_min} and the end"
            )
        append(length)
        found += 1
        pos += length + 4
        if length != last:
            last, same = length, 0
            continue
        same += 1
        if same < _RUN_MIN:
            continue
        stride = length + 4
        guess = min(count - found, (end - pos) // stride, run_next)
        if guess > 0:
            heads = np.ndarray((guess,), dtype="<i4", buffer=view, offset=pos, strides=(stride,))
            equal = heads == length
            run = guess if bool(equal.all()) else int(np.argmin(equal))
            if run:
                runs.append((len(lengths), run, length))
                found += run
                pos += run * stride
            run_next = min(run_next * 2, _RUN_MAX) if run == guess else 64
        same = 0
    if pos != end:
        malformed(what, "records", pos, f"{end - pos} bytes are left after {count} records")
    sizes = np.asarray(lengths, dtype=np.int64)
    if runs:
        pieces: list[Int64Array] = []
        done = 0
        for index, run, length in runs:
            pieces.append(sizes[done:index])
            pieces.append(np.full(run, length, dtype=np.int64))
            done = index
        pieces.append(sizes[done:])
        sizes = np.concatenate(pieces)
    starts = np.empty(count, dtype=np.int64)
    if count:
        starts[0] = start + 4
        np.cumsum(sizes[:-1] + 4, out=starts[1:])
        starts[1:] += start + 4
    return starts, sizes


def fixed_width_binary(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    """Rows of a byte matrix as a binary array, without a copy."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    flat = np.ascontiguousarray(matrix).reshape(-1)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(flat)], 0)


def join_columns(columns: list[pa.Array], size_bytes: int) -> memoryview:
    """Row by row, the byte strings of all columns behind one another, in one stretch of `size_bytes` bytes."""
    if len(columns[0]) == 0:
        return memoryview(b"")
    joined = pc.binary_join_element_wise(*columns, b"")
    return memoryview(joined.buffers()[2]).cast("B")[:size_bytes]
