# SPDX-License-Identifier: Apache-2.0
"""The numpy kernels of the vectorised row coders.

The trick that carries them: numpy can read and write a 64-bit word at any byte position of a buffer, for all rows in
one call. A varint of up to 8 bytes, or any fixed-width value, is therefore one gather or one scatter. Writing whole
words spills over the end of shorter values; columns are written from left to right, so that the next column repairs
the spill, and rows are spaced (`fluss.rows.slices.spaced`), so that the last column has somewhere to spill to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import numpy_of, valid_mask
from fluss.errors import InvalidRowError
from fluss.metadata import types as t
from fluss.metadata.types import BinaryType, DataType, DecimalType, TimeType
from fluss.rows import value_checks as v
from fluss.rows.arrow_values import NANOS_PER_UNIT
from fluss.rows.slices import WORD_BYTES, Bytes, Ints, Slices, Words, padded, scatter, words_at

Mask = npt.NDArray[np.bool_]

_u64 = np.uint64

# What each length 0..8 of a varint sets in its word: the high bit of every byte but the last.
_CONTINUATION = np.array([0] + [sum(0x80 << 8 * i for i in range(size - 1)) for size in range(1, 9)], np.uint64)
_HIGH_BITS = _u64(0x8080_8080_8080_8080)
_LONG_VARINT = 1 << 56
_TO_BYTE_INDEX = _u64(0x0001_0203_0405_0607)


class Piece:
    """A part of every row that is known to the last byte: at most 8 bytes per row, in one word."""

    __slots__ = ("lengths", "words")

    def __init__(self, words: Words, lengths: Ints | int) -> None:
        self.words = words
        self.lengths = lengths

    def write(self, out: Bytes, target: Words, pos: Ints) -> None:
        """Write this part of all rows at their positions."""
        target[pos] = self.words


class LongVarintPiece(Piece):
    """Varints of which some take 9 or 10 bytes."""

    __slots__ = ("rows", "tails")

    def __init__(self, words: Words, lengths: Ints, rows: npt.NDArray[np.intp], tails: Words) -> None:
        super().__init__(words, lengths)
        self.rows = rows
        self.tails = tails

    def write(self, out: Bytes, target: Words, pos: Ints) -> None:
        target[pos] = self.words
        target[pos[self.rows] + WORD_BYTES] = self.tails


class BytesPiece(Piece):
    """Byte strings of any length, whose lengths are written by the piece before."""

    __slots__ = ("slices",)

    def __init__(self, slices: Slices) -> None:
        super().__init__(np.empty(0, np.uint64), slices.lengths)
        self.slices = slices

    def write(self, out: Bytes, target: Words, pos: Ints) -> None:
        scatter(out, pos, self.slices.data, self.slices.starts, self.slices.lengths)


def sized_pieces(slices: Slices, valid: Mask | None) -> list[Piece]:
    """Byte strings behind their varint lengths; null rows take no bytes."""
    return [varint_piece(slices.lengths.view(np.uint64), valid), BytesPiece(slices)]


def fixed_piece(values: npt.NDArray[Any], width: int, valid: Mask | None) -> Piece:
    """Fixed-width values, given as an array of that item size."""
    words = values.view(f"<u{width}").astype(np.uint64, copy=False)
    return Piece(words, width if valid is None else valid * np.int64(width))


def varint_piece(values: Words, valid: Mask | None) -> Piece:
    """Varints of unsigned values; null rows take no bytes."""
    n = values.size
    largest = int(values.max(initial=0))
    if largest < 0x80:
        return Piece(values, 1 if valid is None else valid.astype(np.int64))
    lengths = np.ones(n, np.int64)
    for bits in range(7, min(largest.bit_length(), 57), 7):
        lengths += values >= _u64(1 << bits)
    words = _spread(values)
    if largest < _LONG_VARINT:
        words |= _CONTINUATION[lengths]
        if valid is not None:
            lengths *= valid
        return Piece(words, lengths)
    np.minimum(lengths, 8, out=lengths)
    words |= _CONTINUATION[lengths]
    long = values >= _u64(_LONG_VARINT)
    if valid is not None:
        lengths *= valid
        long &= valid
    rows = np.flatnonzero(long)
    tops = values[rows] >> _u64(56)
    words[rows] |= _HIGH_BITS
    lengths[rows] = 9 + (tops >> _u64(7)).astype(np.int64)
    # Byte 9 of a 10-byte varint holds the one remaining bit, and then byte 8 says that it follows.
    last = tops >> _u64(7)
    return LongVarintPiece(words, lengths, rows, tops & _u64(0x7F) | last << _u64(7) | last << _u64(8))


def _spread(values: Words) -> Words:
    """Move the low 56 bits into the low 7 bits of 8 bytes."""
    x = values
    x = (x & _u64(0x0000_0000_0FFF_FFFF)) | ((x & _u64(0x00FF_FFFF_F000_0000)) << _u64(4))
    x = (x & _u64(0x0000_3FFF_0000_3FFF)) | ((x & _u64(0x0FFF_C000_0FFF_C000)) << _u64(2))
    spread: Words = (x & _u64(0x007F_007F_007F_007F)) | ((x & _u64(0x3F80_3F80_3F80_3F80)) << _u64(1))
    return spread


_SQUEEZES = (
    (0, _u64(0x007F_007F_007F_007F), _u64(0x7F00_7F00_7F00_7F00), _u64(1)),
    (2, _u64(0x0000_3FFF_0000_3FFF), _u64(0x3FFF_0000_3FFF_0000), _u64(2)),
    (4, _u64(0x0000_0000_0FFF_FFFF), _u64(0x0FFF_FFFF_0000_0000), _u64(4)),
)


def _squeeze(words: Words, scratch: Words, longest: int) -> None:
    """Undo `_spread` in place for varints of up to ``longest`` bytes; the high bit of each byte is dropped."""
    for above, low, high, shift in _SQUEEZES:
        if longest > above:
            np.bitwise_and(words, high, out=scratch)
            scratch >>= shift
            words &= low
            words |= scratch


class BadRowError(Exception):
    """A row that cannot be decoded; the scalar coder is asked why."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        self.reason = reason


def refuse_rows(bad: Mask, valid: Mask | None, reason: str) -> None:
    """Raise for the first bad row, if there is one; null rows are never bad."""
    if bad.any():
        rows = np.flatnonzero(bad if valid is None else bad & valid)
        if rows.size:
            raise BadRowError(int(rows[0]), reason)


class RowsCursor:
    """A reading position in each of many rows, moved column by column.

    Positions never pass the end of their row, and the buffer has room for two more words behind the last row, so that
    words can be read first and judged afterwards.
    """

    __slots__ = ("_words", "data", "ends", "pos")

    def __init__(self, rows: Slices) -> None:
        rows = rows.dense()
        self.ends = rows.starts + rows.lengths
        self.pos = rows.starts.copy()
        self.data = padded(rows.data, int(self.ends.max(initial=0)) + 3 * WORD_BYTES)
        self._words = words_at(self.data)

    def advance(self, lengths: Ints | int, valid: Mask | None) -> None:
        """Step over values of these lengths in the rows that have one."""
        if valid is not None:
            lengths = lengths * valid
        self.pos += lengths
        refuse_rows(self.pos > self.ends, None, "the row ends inside the value")

    def words(self) -> Words:
        """The word at each position."""
        words: Words = self._words[self.pos]
        return words

    def fixed(self, width: int, valid: Mask | None) -> Words:
        """Fixed-width values of up to 8 bytes; bytes above ``width`` are rubbish."""
        words = self.words()
        self.advance(width, valid)
        return words

    def varints(self, valid: Mask | None, bits: int) -> Words:
        """Varints as unsigned patterns of ``bits`` bits; what is read for null rows is rubbish."""
        firsts = self.data[self.pos]
        if int(firsts.max(initial=0)) < 0x80:
            self.advance(1, valid)
            small: Words = firsts.astype(np.uint64)
            return small
        # The lowest zero among the high bits of a word ends its varint. Operations are in place because fresh memory
        # costs more than the arithmetic.
        values = self.words()
        stops = np.invert(values)
        stops &= _HIGH_BITS
        scratch = np.negative(stops)
        stops &= scratch
        np.right_shift(stops, _u64(7), out=scratch)
        scratch *= _TO_BYTE_INDEX
        scratch >>= _u64(56)
        lengths = scratch.astype(np.int64)
        lengths += 1
        endless = None if stops.all() else np.flatnonzero(stops == 0)
        np.subtract(stops, _u64(1), out=scratch)
        scratch |= stops
        values &= scratch
        _squeeze(values, scratch, int(lengths.max()) if endless is None else 8)
        if endless is not None:
            self._long_varints(endless, valid, values, lengths)
        if bits == 32:
            refuse_rows((lengths > 5) | (values > _u64(0xFFFF_FFFF)), valid, "the varint does not fit 32 bits")
        self.advance(lengths, valid)
        return values

    def _long_varints(self, rows: npt.NDArray[np.intp], valid: Mask | None, values: Words, lengths: Ints) -> None:
        if valid is not None:
            rows = rows[valid[rows]]
        byte8 = self.data[self.pos[rows] + 8].astype(np.uint64)
        byte9 = self.data[self.pos[rows] + 9].astype(np.uint64)
        ten = byte8 >= _u64(0x80)
        broken = np.flatnonzero(ten & (byte9 > _u64(1)))
        if broken.size:
            raise BadRowError(int(rows[broken[0]]), "the varint does not fit 64 bits")
        values[rows] |= (byte8 & _u64(0x7F)) << _u64(56) | (byte9 * ten) << _u64(63)
        lengths[rows] = 9 + ten

    def sized(self, valid: Mask | None) -> Slices:
        """Byte strings behind a varint length; null rows give empty ones."""
        lengths = self.varints(valid, 32).astype(np.int64)
        if valid is not None:
            lengths *= valid
        # A negative 32-bit length is a huge unsigned one here, so this refuses it too.
        refuse_rows(lengths > self.ends - self.pos, None, "the row ends inside the value")
        slices = Slices.trusted(self.data, self.pos.copy(), lengths)
        self.pos += lengths
        return slices

    def finish(self) -> None:
        """Nothing may be left over."""
        refuse_rows(self.pos != self.ends, None, "bytes are left over behind the last value")


# -- Arrow columns as numpy arrays ---------------------------------------------------------------------------------
#
# Arrays have passed `fluss.rows.arrow_values.conform`, so their Arrow type is that of their column.


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
    if isinstance(dtype, t.TEXT_TYPES):
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
