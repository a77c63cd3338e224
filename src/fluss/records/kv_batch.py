# SPDX-License-Identifier: Apache-2.0
"""KV batches, which a client sends to a primary-key table, and value batches, which scans of one return.

There is one KV batch per bucket and request. A value is what the server stores for a key: an i16 schema id and a row in
the table's kv format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fluss.errors import CorruptMessageError, InvalidArgumentError, RecordTooLargeError
from fluss.records._bytes import (
    INT32_MAX,
    Int64Array,
    Part,
    as_view,
    checksum,
    fixed_width_binary,
    join_columns,
    malformed,
    record_starts,
)
from fluss.records.log_batch import NO_BATCH_SEQUENCE, NO_WRITER_ID, SCHEMA_ID_MAX
from fluss.rows.slices import Slices

KV_MAGIC = 0
KV_HEADER_SIZE = 28
KV_RECORDS_MAX = 1 << 18
"""A batch of 2 MB, which is the default of clients, has no more: a record takes 8 bytes at least. The server applies
a batch in one step."""
_LENGTH_END = 4
_CRC_POSITION = 5
_SCHEMA_ID_POSITION = 9
_HEADER = struct.Struct("<ibIhbqii")
_COUNT = struct.Struct("<i")
_COUNT_POSITION = _HEADER.size - _COUNT.size
_RECORD_SIZE_MIN = 1
"""A key length at least; an empty key is the encoding of no column at all and is left to the key coder to refuse."""
_WHAT = "KV batch"


class KvBatch(NamedTuple):
    """A parsed KV batch; keys and rows point into the bytes it was parsed from."""

    schema_id: int
    writer_id: int
    batch_sequence: int
    record_count: int
    keys: Slices
    rows: Slices
    """Rows in the table's kv format; empty where the record is a delete."""
    deletes: npt.NDArray[np.bool_]
    size_bytes: int

    @staticmethod
    def parse(view: Any, *, verify: bool = True) -> KvBatch:
        """Parse the batch that fills `view`.

        Raises:
            CorruptMessageError: The checksum does not fit.
            FormatError: The bytes are not one complete KV batch.
            RecordTooLargeError: It has more than `KV_RECORDS_MAX` records.
        """
        view = as_view(view)
        size = len(view)
        if size < KV_HEADER_SIZE:
            malformed(_WHAT, "header", 0, f"{size} bytes are too few for a header")
        length, magic, crc, schema_id, _, writer_id, batch_sequence, count = _HEADER.unpack_from(view)
        if magic != KV_MAGIC:
            malformed(_WHAT, "magic", _LENGTH_END, f"version {magic} is not known (only {KV_MAGIC} is)")
        if length != size - _LENGTH_END:
            malformed(_WHAT, "length", 0, f"{length} bytes are announced, {size - _LENGTH_END} follow")
        if verify:
            actual = checksum((view[_SCHEMA_ID_POSITION:],))
            if actual != crc:
                raise CorruptMessageError(
                    f"a KV batch of {count} records is damaged: its header says CRC {crc:#010x}, "
                    f"its {size} bytes have {actual:#010x}"
                )
        if count > KV_RECORDS_MAX:
            raise RecordTooLargeError(
                f"a KV batch of {count} records has more than {KV_RECORDS_MAX}. "
                "Send several batches: lower 'writer.batch-size' of the client."
            )
        starts, lengths = record_starts(view, KV_HEADER_SIZE, count, _WHAT, _RECORD_SIZE_MIN)
        data = np.frombuffer(view, dtype=np.uint8)
        key_starts, key_lengths = _read_key_lengths(data, starts, lengths)
        row_starts = key_starts + key_lengths
        row_lengths = starts + lengths - row_starts
        return KvBatch(
            schema_id,
            writer_id,
            batch_sequence,
            count,
            Slices.trusted(data, key_starts, key_lengths),
            Slices.trusted(data, row_starts, row_lengths),
            row_lengths == 0,
            size,
        )


def kv_record_count(view: memoryview) -> int:
    """The number of records that the header of a KV batch announces."""
    return _COUNT.unpack_from(view, _COUNT_POSITION)[0]  # type: ignore[no-any-return]


def _read_key_lengths(
    data: npt.NDArray[np.uint8], starts: Int64Array, lengths: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Key starts and lengths of all records at once; the length of a key is a varint of at most five bytes."""
    if not len(starts):
        return starts, lengths
    first = data[starts]
    key_lengths = (first & 0x7F).astype(np.int64)
    sizes = np.ones(len(starts), dtype=np.int64)
    more = np.flatnonzero(first >= 0x80)
    shift = 7
    while len(more):
        short = sizes[more] >= lengths[more]
        if shift > 28 or bool(short.any()):
            index = int(more[int(np.argmax(short))])
            malformed(_WHAT, f"key length of record {index}", int(starts[index]), "the varint does not end")
        byte = data[starts[more] + sizes[more]]
        key_lengths[more] |= (byte & 0x7F).astype(np.int64) << shift
        sizes[more] += 1
        more = more[byte >= 0x80]
        shift += 7
    if bool((key_lengths > lengths - sizes).any()):
        index = int(np.argmax(key_lengths > lengths - sizes))
        malformed(
            _WHAT,
            f"key length of record {index}",
            int(starts[index]),
            f"{key_lengths[index]} bytes do not fit into a record of {lengths[index]}",
        )
    return starts + sizes, key_lengths


class EncodedKvBody(NamedTuple):
    """The finished records of a KV batch, waiting for their header."""

    parts: list[Part]
    size_bytes: int
    record_count: int


def encode_kv_body(keys: Slices, rows: Slices, deletes: npt.NDArray[np.bool_] | None = None) -> EncodedKvBody:
    """Encode records from encoded keys and rows.

    Args:
        deletes: True where the record deletes its key; its row is ignored. Without it every record is an upsert.
    """
    records, ends = encode_kv_records(keys, rows, deletes)
    return EncodedKvBody([records] if len(ends) else [], len(records), len(ends))


def encode_kv_records(
    keys: Slices, rows: Slices, deletes: npt.NDArray[np.bool_] | None = None
) -> tuple[memoryview, Int64Array]:
    """Encode records behind one another, and say where each of them ends.

    Records stand alone: any stretch of whole ones is the body of a KV batch.
    """
    count = len(keys)
    if len(rows) != count or (deletes is not None and len(deletes) != count):
        raise InvalidArgumentError(f"{count} keys need as many rows and delete marks")
    row_lengths = rows.lengths
    if deletes is not None and bool(deletes.any()):
        row_lengths = np.where(deletes, 0, row_lengths)
        empty = (row_lengths == 0) & ~deletes
        rows = Slices.trusted(rows.data, rows.starts, row_lengths)
    else:
        empty = row_lengths == 0
    if bool(empty.any()):
        raise InvalidArgumentError(
            f"record {int(np.argmax(empty))} has an empty row, which would mean a delete; mark it as one"
        )
    if count == 0:
        return memoryview(b""), np.empty(0, np.int64)
    key_lengths = keys.lengths
    varint_sizes = _varint_sizes(key_lengths)
    lengths = varint_sizes + key_lengths + row_lengths
    ends = np.cumsum(lengths + 4)
    total = int(ends[-1])
    if total > INT32_MAX - KV_HEADER_SIZE:
        raise InvalidArgumentError(f"{count} records take {total} bytes, too many for one KV batch; split it")
    heads = _record_heads(lengths, key_lengths, varint_sizes)
    return join_columns([heads, keys.to_arrow(), rows.to_arrow()], total), ends


def _varint_sizes(values: Int64Array) -> Int64Array:
    sizes = np.ones(len(values), dtype=np.int64)
    for bits in (7, 14, 21, 28):
        if int(values.max()) < 1 << bits:
            break
        sizes += values >= 1 << bits
    return sizes


def _record_heads(lengths: Int64Array, key_lengths: Int64Array, varint_sizes: Int64Array) -> Any:
    """The i32 length and the varint key length of each record, as a binary array."""
    count, width = len(lengths), int(varint_sizes.max())
    matrix = np.empty((count, 4 + width), dtype=np.uint8)
    matrix[:, :4] = lengths.astype("<i4").view(np.uint8).reshape(count, 4)
    for i in range(width):
        matrix[:, 4 + i] = (key_lengths >> (7 * i)) & 0x7F | np.where(varint_sizes > i + 1, 0x80, 0)
    if width == int(varint_sizes.min()):
        return fixed_width_binary(matrix)
    used = np.arange(4 + width) < (4 + varint_sizes)[:, None]
    flat = matrix[used]
    return Slices.trusted(flat, np.cumsum(varint_sizes + 4) - varint_sizes - 4, varint_sizes + 4).to_arrow()


def seal_kv_batch(
    body: EncodedKvBody,
    schema_id: int,
    writer_id: int = NO_WRITER_ID,
    batch_sequence: int = NO_BATCH_SEQUENCE,
) -> list[Part]:
    """Put the header in front of encoded records."""
    if not 0 <= schema_id <= SCHEMA_ID_MAX:
        raise InvalidArgumentError(f"schema id {schema_id} is outside 0..{SCHEMA_ID_MAX}")
    length = KV_HEADER_SIZE - _LENGTH_END + body.size_bytes
    head = bytearray(_HEADER.pack(length, KV_MAGIC, 0, schema_id, 0, writer_id, batch_sequence, body.record_count))
    crc = checksum(body.parts, checksum((memoryview(head)[_SCHEMA_ID_POSITION:],)))
    head[_CRC_POSITION:_SCHEMA_ID_POSITION] = crc.to_bytes(4, "little")
    return [bytes(head), *body.parts]


# -- value batches ------------------------------------------------------------------------------------------------

VALUE_MAGIC = 0
VALUE_HEADER_SIZE = 9
_LENGTH_PLACEHOLDER = bytearray(_LENGTH_END)
_VALUE_HEADER = struct.Struct("<ibi")
_SCHEMA_ID_SIZE = 2
_VALUE_WHAT = "value batch"


def encode_value_batch(values: Sequence[bytes] | Slices) -> bytes:
    """Encode stored values (schema id and row each) into one batch."""
    body = encode_values(values)
    return value_batch_header(len(values), len(body)) + body


def value_batch_header(count: int, size_bytes: int) -> bytes:
    """The header of a batch whose values were encoded in pieces of `size_bytes` altogether, with `encode_values`."""
    if size_bytes > INT32_MAX - VALUE_HEADER_SIZE:
        raise InvalidArgumentError(f"{count} values take {size_bytes} bytes, too many for one batch")
    return _VALUE_HEADER.pack(VALUE_HEADER_SIZE - _LENGTH_END + size_bytes, VALUE_MAGIC, count)


def encode_values(values: Sequence[bytes] | Slices) -> memoryview:
    """Encode stored values (schema id and row each) as they stand in a batch, without its header."""
    count = len(values)
    if not count:
        return memoryview(b"")
    lengths = values.lengths if isinstance(values, Slices) else np.fromiter(map(len, values), np.int64, count)
    if int(lengths.min()) < _SCHEMA_ID_SIZE:
        raise InvalidArgumentError(f"value {int(np.argmin(lengths))} is too short to hold a schema id")
    if isinstance(values, Slices):
        heads = fixed_width_binary(lengths.astype("<i4").view(np.uint8).reshape(count, 4))
        return join_columns([heads, values.to_arrow()], int(lengths.sum()) + 4 * count)
    # Joined with a placeholder in front of each value, where all lengths are then written at once.
    body = _LENGTH_PLACEHOLDER.join((b"", *values))
    heads_at = np.zeros(count, np.int64)
    np.cumsum(lengths[:-1] + _LENGTH_END, out=heads_at[1:])
    np.ndarray((len(body) - 3,), "<i4", body, strides=(1,))[heads_at] = lengths
    return memoryview(body)


def decode_value_batch(view: Any) -> Slices:
    """The stored values of a batch, pointing into its bytes.

    Raises:
        FormatError: The bytes are not one complete value batch.
    """
    view = as_view(view)
    size = len(view)
    if size < VALUE_HEADER_SIZE:
        malformed(_VALUE_WHAT, "header", 0, f"{size} bytes are too few for a header")
    length, magic, count = _VALUE_HEADER.unpack_from(view)
    if magic != VALUE_MAGIC:
        malformed(_VALUE_WHAT, "magic", _LENGTH_END, f"version {magic} is not known (only {VALUE_MAGIC} is)")
    if length != size - _LENGTH_END:
        malformed(_VALUE_WHAT, "length", 0, f"{length} bytes are announced, {size - _LENGTH_END} follow")
    starts, lengths = record_starts(view, VALUE_HEADER_SIZE, count, _VALUE_WHAT, _SCHEMA_ID_SIZE)
    return Slices.trusted(np.frombuffer(view, dtype=np.uint8), starts, lengths)
