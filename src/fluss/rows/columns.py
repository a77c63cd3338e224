# SPDX-License-Identifier: Apache-2.0
"""What the vectorised encoders need to know about an Arrow column, as numpy arrays.

Arrays have passed `fluss.rows.arrow_values.conform`, so their Arrow type is that of their column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import numpy_of, valid_mask
from fluss.errors import InvalidRowError
from fluss.metadata.types import BinaryType, DataType, DecimalType, TimeType
from fluss.rows import value_checks as v
from fluss.rows.arrow_values import NANOS_PER_UNIT
from fluss.rows.kernels import BadRowError, Mask, refuse_rows
from fluss.rows.slices import Ints, Slices, Words


def check_columns(types: Sequence[DataType], arrays: Sequence[pa.Array]) -> int:
    if len(types) != len(arrays):
        raise InvalidRowError(f"expected {len(types)} columns, got {len(arrays)}")
    sizes = {len(array) for array in arrays}
    if len(sizes) > 1:
        raise InvalidRowError(f"columns of different lengths: {sorted(sizes)}")
    return sizes.pop() if sizes else 0


def validity(array: pa.Array, dtype: DataType) -> Mask | None:
    """Which positions are not null (None if all are); refuses nulls where the type does."""
    if not array.null_count:
        return None
    valid: Mask = valid_mask(array)
    if not dtype.nullable:
        raise InvalidRowError(f"null in row {int(np.flatnonzero(~valid)[0])}, but the type is NOT NULL")
    return valid


def booleans(array: pa.Array, valid: Mask | None) -> npt.NDArray[np.uint8]:
    """Booleans as bytes."""
    flags = numpy_of(array)
    return (flags if valid is None else flags & valid).view(np.uint8)


def primitives(array: pa.Array, kind: Any) -> npt.NDArray[Any]:
    """The values of a fixed-width array, without copying; nulls hold anything."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(len(array), kind)
    return np.frombuffer(buffer, kind, count=array.offset + len(array))[array.offset :]


def byte_strings(dtype: DataType, array: pa.Array) -> Slices:
    """The bytes of CHAR, STRING, BINARY and BYTES values; nulls are empty."""
    if isinstance(dtype, BinaryType):
        n = len(array)
        data = np.frombuffer(array.buffers()[1] or b"", np.uint8)
        starts = (np.arange(n, dtype=np.int64) + array.offset) * dtype.length
        valid = validity(array, dtype)
        lengths = np.full(n, dtype.length, np.int64)
        if valid is not None:
            lengths *= valid
            # The buffer of an all-null array may be shorter than its length says.
            starts *= valid
        return Slices.trusted(data, starts, lengths)
    if isinstance(dtype, v.STRINGS):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise InvalidRowError(f"an Arrow array that is not valid: {error}") from None
    return Slices.from_arrow(array)


def time_millis(array: pa.Array, dtype: TimeType, valid: Mask | None) -> Ints:
    """Milliseconds of the day."""
    nanos = NANOS_PER_UNIT[array.type.unit]
    if nanos >= v.NANOS_PER_MILLI:
        millis = primitives(array, np.int32).astype(np.int64) * (nanos // v.NANOS_PER_MILLI)
    else:
        ints = primitives(array, np.int64)
        per_milli = v.NANOS_PER_MILLI // nanos
        millis = ints // per_milli
        refuse_values(ints != millis * per_milli, valid, f"has a part below the millisecond, {dtype} loses it")
    refuse_values((millis < 0) | (millis >= v.MILLIS_PER_DAY), valid, "is not a time of the day")
    return millis


def timestamp_parts(array: pa.Array, valid: Mask | None) -> tuple[Ints, Ints]:
    """Milliseconds since the epoch (rounded down) and nanoseconds within them."""
    nanos = NANOS_PER_UNIT[array.type.unit]
    ints = primitives(array, np.int64)
    if nanos == v.NANOS_PER_MILLI:
        return ints, np.zeros(ints.size, np.int64)
    if nanos > v.NANOS_PER_MILLI:
        limit = v.INT64_MAX // 1000
        refuse_values((ints > limit) | (ints < -limit), valid, "is out of the range of a timestamp")
        return ints * 1000, np.zeros(ints.size, np.int64)
    per_milli = v.NANOS_PER_MILLI // nanos
    millis = ints // per_milli
    return millis, (ints - millis * per_milli) * nanos


def refuse_values(bad: Mask, valid: Mask | None, reason: str) -> None:
    """Raise for the first bad value that is not null."""
    try:
        refuse_rows(bad, valid, reason)
    except BadRowError as error:
        raise InvalidRowError(f"the value in row {error.row} {reason}") from None


def check_decimals(array: pa.Array, dtype: DecimalType) -> None:
    """Arrays from foreign memory may hold numbers with more digits than their type has."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid as error:
        raise InvalidRowError(f"a value does not fit {dtype}: {error}") from None


def decimal_words(array: pa.Array) -> Words:
    """Unscaled values as two words per row, least significant first."""
    n = len(array)
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros((n, 2), np.uint64)
    words: Words = np.frombuffer(buffer, np.uint64, count=2 * (array.offset + n)).reshape(-1, 2)[array.offset :]
    return words


def big_endian_decimals(array: pa.Array, valid: Mask | None) -> Slices:
    """Unscaled values as minimal two's-complement bytes, most significant first; nulls are empty."""
    words = decimal_words(array)
    signs = (words[:, 1].view(np.int64) >> 63).view(np.uint64)
    low, high = words[:, 0] ^ signs, words[:, 1] ^ signs
    lengths = np.ones(len(array), np.int64)
    for bits in range(7, 64, 8):
        lengths += low >= np.uint64(1 << bits)
    wide = high != 0
    lengths[wide] = 9 if lengths.size else 0
    for bits in range(7, 64, 8):
        lengths += high >= np.uint64(1 << bits)
    # A number of exactly 64 bits has no word above it but needs a ninth byte for its sign: that is what comparing
    # with 1 << 63 above counted.
    data = np.ascontiguousarray(words.view(np.uint8).reshape(-1, 16)[:, ::-1])
    starts = np.arange(len(array), dtype=np.int64) * 16 + (16 - lengths)
    if valid is not None:
        lengths *= valid
    return Slices.trusted(data.reshape(-1), starts, lengths)
