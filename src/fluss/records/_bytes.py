# SPDX-License-Identifier: Apache-2.0
"""What all codecs of this package share: parts, checksums, length-prefixed records, and how bad bytes are reported."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any, NoReturn, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import bytes_array, joined_elements
from fluss._checksum import crc32c
from fluss.errors import FormatError

Part: TypeAlias = bytes | bytearray | memoryview
"""One stretch of a message. Messages travel as lists of parts, so that a payload is never copied to get a header."""

INT32_MAX = 2**31 - 1


def as_view(data: Any) -> memoryview:
    """The bytes behind any buffer (bytes, memoryview, numpy array, Arrow buffer), as a flat view without a copy."""
    view = memoryview(data)
    if not view.c_contiguous:
        return memoryview(view.tobytes())
    return view if view.ndim == 1 and view.format == "B" else view.cast("B")


def checksum(parts: Iterable[Part], value: int = 0) -> int:
    """CRC-32C over parts, continuing from the checksum `value` of the bytes before them."""
    for part in parts:
        value = crc32c(part, value)
    return value


def parts_size(parts: Iterable[Part]) -> int:
    """How many bytes the parts hold together."""
    return sum(len(part) for part in parts)


def malformed(what: str, field: str, position: int, problem: str) -> NoReturn:
    """Refuse bytes: `what` is the thing being read, `position` counts from its first byte."""
    raise FormatError(f"malformed {what}: {field} at byte {position}: {problem}")


_I32 = struct.Struct("<i")
_SHORT_MEAN_MAX = 200
"""If records are longer than this on average, too many will be longer than a byte can say."""

Int64Array = npt.NDArray[np.int64]


def record_starts(view: memoryview, pos: int, count: int, what: str, size_min: int) -> tuple[Int64Array, Int64Array]:
    """Starts and lengths of `count` records, each an i32 length and as many bytes, which fill `view` from `pos` on.

    Where a record starts is only known from the one before it, which makes this the one loop over records in Python.
    So it guesses first, in ways that are cheap and can be verified for all records at once.
    """
    end = len(view)
    if count < 0 or count * (4 + size_min) > end - pos:
        malformed(what, "record count", pos, f"{count} records do not fit into {end - pos} bytes")
    if count == 0:
        if pos != end:
            malformed(what, "records", pos, f"{end - pos} bytes are left after 0 records")
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    heads = _equally_long(view, pos, count)
    if heads is None and end - pos <= _SHORT_MEAN_MAX * count:
        heads = _short(view, pos, count)
    if heads is not None:
        lengths = np.diff(heads, append=end) - 4
        # One 32-bit number starting at every byte: what the records themselves say.
        said = np.ndarray((end - 3,), dtype="<i4", buffer=view, strides=(1,))[heads]
        if int(lengths.min()) >= size_min and bool((said == lengths).all()):
            return heads + 4, lengths
    heads = np.asarray(_careful(view, pos, count, what, size_min), dtype=np.int64)
    return heads + 4, np.diff(heads, append=end) - 4


def _equally_long(view: memoryview, pos: int, count: int) -> Int64Array | None:
    """Where the records start if they are all as long as the first."""
    stride = _I32.unpack_from(view, pos)[0] + 4
    if stride * count != len(view) - pos:
        return None
    return np.arange(pos, len(view), stride, dtype=np.int64)


def _short(view: memoryview, pos: int, count: int) -> Int64Array | None:
    """Where the records start if all are shorter than 256 bytes: reading one byte is cheaper than decoding four."""
    data = bytes(view)
    start = pos
    try:
        ends = [pos := pos + data[pos] + 4 for _ in range(count)]
    except IndexError:
        return None
    if pos != len(data):
        return None
    heads = np.empty(count, dtype=np.int64)
    heads[0], heads[1:] = start, ends[:-1]
    return heads


def _careful(view: memoryview, pos: int, count: int, what: str, size_min: int) -> list[int]:
    """Where the records start, each length checked."""
    end = len(view)
    unpack = _I32.unpack_from
    heads: list[int] = []
    for index in range(count):
        if pos + 4 > end:
            malformed(what, f"length of record {index}", pos, "the bytes end before it")
        length = unpack(view, pos)[0]
        if length < size_min or length > end - pos - 4:
            malformed(what, f"length of record {index}", pos, f"{length} bytes, but {size_min} to {end - pos - 4} fit")
        heads.append(pos)
        pos += length + 4
    if pos != end:
        malformed(what, "records", pos, f"{end - pos} bytes are left after {count} records")
    return heads


def fixed_width_binary(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    """Rows of a byte matrix as a binary array, without a copy."""
    rows, width = matrix.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    flat = np.ascontiguousarray(matrix).reshape(-1)
    return pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(flat)], 0)


_NO_BYTES = bytes_array([b""])[0]


def join_columns(columns: list[pa.Array], size_bytes: int) -> memoryview:
    """Row by row, the byte strings of all columns behind one another, in one stretch of `size_bytes` bytes."""
    if len(columns[0]) == 0:
        return memoryview(b"")
    joined = joined_elements(columns, _NO_BYTES)
    return memoryview(joined.buffers()[2]).cast("B")[:size_bytes]
