# SPDX-License-Identifier: Apache-2.0
"""Value batches: what limit scans and full scans of a primary-key table return.

A value is what the server stores for a key: an i16 schema id and a row in the table's kv format.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluss.errors import InvalidArgumentError
from fluss.records._bytes import INT32_MAX, as_view, malformed
from fluss.records.ragged import fixed_width_binary, join_columns, record_starts
from fluss.rows.slices import Slices

VALUE_MAGIC = 0
VALUE_HEADER_SIZE = 9
_LENGTH_END = 4
_LENGTH_PLACEHOLDER = bytearray(_LENGTH_END)
_HEADER = struct.Struct("<ibi")
_SCHEMA_ID_SIZE = 2
_WHAT = "value batch"


def encode_value_batch(values: Sequence[bytes] | Slices) -> bytes:
    """Encode stored values (schema id and row each) into one batch."""
    body = encode_values(values)
    return value_batch_header(len(values), len(body)) + body


def value_batch_header(count: int, size_bytes: int) -> bytes:
    """The header of a batch whose values were encoded in pieces of `size_bytes` altogether, with `encode_values`."""
    if size_bytes > INT32_MAX - VALUE_HEADER_SIZE:
        raise InvalidArgumentError(f"{count} values take {size_bytes} bytes, too many for one batch")
    return _HEADER.pack(VALUE_HEADER_SIZE - _LENGTH_END + size_bytes, VALUE_MAGIC, count)


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
        malformed(_WHAT, "header", 0, f"{size} bytes are too few for a header")
    length, magic, count = _HEADER.unpack_from(view)
    if magic != VALUE_MAGIC:
        malformed(_WHAT, "magic", _LENGTH_END, f"version {magic} is not known (only {VALUE_MAGIC} is)")
    if length != size - _LENGTH_END:
        malformed(_WHAT, "length", 0, f"{length} bytes are announced, {size - _LENGTH_END} follow")
    starts, lengths = record_starts(view, VALUE_HEADER_SIZE, count, _WHAT, _SCHEMA_ID_SIZE)
    return Slices.trusted(np.frombuffer(view, dtype=np.uint8), starts, lengths)
