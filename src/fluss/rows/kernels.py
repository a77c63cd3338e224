# SPDX-License-Identifier: Apache-2.0
"""The numpy kernels of the vectorised row coders.

The trick that carries them: numpy can read and write a 64-bit word at any byte position of a buffer, for all rows in
one call. A varint of up to 8 bytes, or any fixed-width value, is therefore one gather or one scatter. Writing whole
words spills over the end of shorter values; columns are written from left to right, so that the next column repairs
the spill, and rows are spaced (`fluss.rows.slices.spaced`), so that the last column has somewhere to spill to.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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


class ZeroPiece(Piece):
    """A part of every row that is zero, as the buffer already is."""

    __slots__ = ()

    def __init__(self, length: int) -> None:
        super().__init__(np.empty(0, np.uint64), length)

    def write(self, out: Bytes, target: Words, pos: Ints) -> None:
        """Nothing to do."""


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


class ShortBytesPiece(Piece):
    """Byte strings behind their lengths, none of which takes more than one byte.

    The length and the first 7 bytes are written as one word.
    """

    __slots__ = ("prefix", "slices")

    def __init__(self, slices: Slices, valid: Mask | None) -> None:
        slices = Slices.trusted(
            padded(slices.data, int((slices.starts + slices.lengths).max(initial=0)) + 2 * WORD_BYTES),
            slices.starts,
            slices.lengths,
        )
        words = words_at(slices.data)[slices.starts]
        words <<= _u64(8)
        words |= slices.lengths.view(np.uint64)
        self.prefix = 1 if valid is None else valid
        super().__init__(words, slices.lengths + self.prefix)
        self.slices = slices

    def write(self, out: Bytes, target: Words, pos: Ints) -> None:
        target[pos] = self.words
        scatter(out, pos + self.prefix, self.slices.data, self.slices.starts, self.slices.lengths, done=WORD_BYTES - 1)


def sized_pieces(slices: Slices, valid: Mask | None) -> list[Piece]:
    """Byte strings behind their varint lengths; null rows take no bytes."""
    if int(slices.lengths.max(initial=0)) < 0x80:
        return [ShortBytesPiece(slices, valid)]
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
