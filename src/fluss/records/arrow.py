# SPDX-License-Identifier: Apache-2.0
"""Log batches in the ARROW format: encoding and decoding record batches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.errors import FormatError, InvalidArgumentError
from fluss.records._bytes import INT32_MAX, Part, as_view, malformed, parts_size
from fluss.records.arrow_layout import RECORDS_MAX, SchemaLayout, layout_of
from fluss.records.arrow_message import ArrowMessage, message_of, read_message, write_metadata
from fluss.records.log_batch import CHANGE_TYPE_MAX, EncodedBody, LogBatch
from fluss.records.projection import project_message
from fluss.records.validation import (
    DECODED_BYTES_MAX,
    PREFIX_SIZE,
    STORED_RAW,
    check_message,
    check_values,
    declared_sizes,
)

_THREADS_VALUES_MIN = 50_000
"""Below this many values waking the threads of Arrow's codecs costs more than it saves."""
_READ_ALONE = pa.ipc.IpcReadOptions(use_threads=False)
_READ_TOGETHER = pa.ipc.IpcReadOptions(use_threads=True)
_ALIGNMENT = 8
_RAW_BYTES_MIN = 4096
_RAW_SHARE_MIN = 0.9
"""Buffers of at least so many bytes that compression leaves larger than this share of them are stored as they are."""
_UNLIMITED = 1 << 62
_RAW_PREFIX = STORED_RAW.to_bytes(PREFIX_SIZE, "little", signed=True)


def encode_arrow_body(
    batch: pa.RecordBatch,
    *,
    compression: str = "ZSTD",
    level: int = 3,
    change_types: Any = None,
    statistics: bytes | None = None,
) -> EncodedBody:
    """Encode the rows of a record batch, and only those: a slice is encoded as a slice.

    Args:
        batch: Columns of exactly the table's Arrow types.
        compression: ``NONE``, ``LZ4_FRAME`` or ``ZSTD``.
        level: Level of ZSTD, 1 to 22.
        change_types: One byte per row; without them the batch is append-only.
        statistics: What `build_statistics` made of the same rows.
    """
    rows = batch.num_rows
    if rows > RECORDS_MAX:
        raise InvalidArgumentError(f"{rows} rows are more than the {RECORDS_MAX} of one batch; split them")
    layout_of(batch.schema)  # refuses types that cannot stand in a log batch
    parts: list[Part] = []
    if change_types is not None:
        vector = change_type_vector(change_types, rows)
        if rows:
            parts.append(as_view(vector))
    if rows:
        if compression == "NONE":
            # Arrow's own allocator gives large buffers back to the system at once, and getting them anew takes longer.
            parts.append(as_view(batch.serialize(memory_pool=pa.system_memory_pool())))
        else:
            use_threads = rows * batch.num_columns >= _THREADS_VALUES_MIN
            options = _write_options(compression, level, use_threads)
            parts.append(_with_raw_buffers(message_of(batch, options), batch))
    size = parts_size(parts)
    if size > INT32_MAX - 64:
        raise InvalidArgumentError(f"{rows} rows encode to {size} bytes, too many for one batch; split it")
    return EncodedBody(parts, size, rows, change_types is None, statistics)


def change_type_vector(change_types: Any, rows: int) -> npt.NDArray[np.uint8]:
    """Change types (an array, bytes, or a sequence of `ChangeType`) as one byte per row."""
    if isinstance(change_types, (bytes, bytearray, memoryview)):
        vector = np.frombuffer(change_types, dtype=np.uint8)
    else:
        values = np.asarray(change_types)
        if values.size and (values.dtype.kind not in "iu" or values.min() < 0 or values.max() > CHANGE_TYPE_MAX):
            raise InvalidArgumentError(f"change types must be integers from 0 to {CHANGE_TYPE_MAX}")
        vector = np.ascontiguousarray(values, dtype=np.uint8)
    if vector.ndim != 1 or len(vector) != rows:
        raise InvalidArgumentError(f"{vector.size} change types were given for {rows} rows")
    if rows and int(vector.max()) > CHANGE_TYPE_MAX:
        raise InvalidArgumentError(f"change types must be integers from 0 to {CHANGE_TYPE_MAX}")
    return vector


# -- encoding ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def _write_options(compression: str, level: int, use_threads: bool) -> pa.ipc.IpcWriteOptions:
    if compression == "ZSTD":
        if not 1 <= level <= 22:
            raise InvalidArgumentError(f"ZSTD level {level} is outside 1..22")
        codec = pa.Codec("zstd", compression_level=level)
    elif compression == "LZ4_FRAME":
        codec = pa.Codec("lz4")
    else:
        raise InvalidArgumentError(f"compression {compression!r} is not known; use NONE, LZ4_FRAME or ZSTD")
    return pa.ipc.IpcWriteOptions(compression=codec, use_threads=use_threads)


def _with_raw_buffers(view: memoryview, batch: pa.RecordBatch) -> memoryview:
    """The message with those buffers uncompressed that compression makes hardly smaller.

    Measurements, vectors and hashes stay nearly as large, and to decompress them takes longer than anything else that a
    query does with them.
    """
    if len(view) < _RAW_BYTES_MIN:
        return view
    message = read_message(view)
    lengths = message.buffers[1::2]
    sizes = declared_sizes(view, message, _UNLIMITED)
    kept = [size >= _RAW_BYTES_MIN and length > _RAW_SHARE_MIN * size for length, size in zip(lengths, sizes)]
    if not any(kept):
        return view
    plain = as_view(batch.serialize(memory_pool=pa.system_memory_pool()))
    raw = read_message(plain)
    body: list[Part] = []
    buffers: list[int] = []
    end = 0
    for number, is_raw in enumerate(kept):
        source, found = (plain, raw) if is_raw else (view, message)
        offset, length = found.buffers[2 * number : 2 * number + 2]
        start = found.body_start + offset
        padding = bytes(-length % _ALIGNMENT)
        body += [_RAW_PREFIX if is_raw else b"", source[start : start + length], padding]
        length += len(body[-3])
        buffers += [end, length]
        end += length + len(padding)
    return memoryview(b"".join((write_metadata(message.row_count, message.nodes, buffers, message.codec, end), *body)))


# -- decoding ----------------------------------------------------------------------------------------------------------


def decode_arrow_batch(
    batch: LogBatch,
    arrow_schema: pa.Schema,
    *,
    columns: Sequence[int] | None = None,
    max_bytes: int = DECODED_BYTES_MAX,
) -> pa.RecordBatch:
    """Decode the rows of a batch. Uncompressed columns point into the bytes of the batch.

    What Arrow would trust is checked first: counts, lengths, null counts, offsets, and that text is UTF-8.

    Args:
        arrow_schema: The schema the batch was written with (or projected to).
        columns: Positions to decode, strictly ascending; the others are not even decompressed.
        max_bytes: Limit of what the batch may decompress to.

    Raises:
        FormatError: The batch is malformed.
    """
    layout = layout_of(arrow_schema)
    selection = None if columns is None else layout.select(columns)
    if selection is not None:
        arrow_schema = selection.schema
    header = batch.header
    if header.record_count == 0:
        if header.records_position != header.size_bytes:
            malformed("log batch", "records", header.records_position, "an empty batch carries bytes after its header")
        return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in arrow_schema], schema=arrow_schema)
    view = batch.arrow_view
    message = read_message(view)
    layout.check(message, header)
    if selection is not None and len(arrow_schema) < len(layout.schema):
        view = memoryview(b"".join(project_message(view, message, selection)))
        message = read_message(view)
        layout = layout_of(arrow_schema)
    check_message(view, message, layout, max_bytes)
    try:
        if message.codec is not None:
            return _decompressed(view, message, layout)
        buffer = pa.py_buffer(view)
        if (buffer.address + message.body_start) % _ALIGNMENT:  # Arrow's engines complain about such buffers
            buffer = _aligned_copy(view, message.body_start)
        return pa.ipc.read_record_batch(buffer, arrow_schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise FormatError(
            f"malformed Arrow message in the log batch at base offset {header.base_offset}: {error}"
        ) from error


def _decompressed(view: memoryview, message: ArrowMessage, layout: SchemaLayout) -> pa.RecordBatch:
    """The rows of a compressed message, by Arrow's stream reader.

    It notices missing bytes, unlike Arrow's LZ4 codec, and takes memory of the system's allocator: Arrow's own takes
    megabytes with the first byte, and rounds large buffers up by a fifth and more.
    """
    source = pa.BufferReader(b"".join((layout.schema_message, _without_empty_frames(view, message))))
    is_large = message.row_count * len(layout.schema) >= _THREADS_VALUES_MIN
    options = _READ_TOGETHER if is_large else _READ_ALONE
    with pa.ipc.open_stream(source, options=options, memory_pool=pa.system_memory_pool()) as reader:
        decoded = reader.read_next_batch()
    buffers = [buffer for column in decoded.columns for buffer in column.buffers()]
    sizes = [0 if buffer is None else buffer.size for buffer in buffers]
    check_values(layout, message.nodes, sizes, buffers.__getitem__)
    return decoded


def _without_empty_frames(view: memoryview, message: ArrowMessage) -> memoryview:
    """The message with empty buffers the way Arrow writes them.

    Java writes an empty buffer as a length of zero and nothing else, which is no LZ4 frame: Arrow would refuse it.
    """
    if PREFIX_SIZE not in message.buffers[1::2]:
        return view
    buffers = list(message.buffers)
    for index in range(1, len(buffers), 2):
        if buffers[index] == PREFIX_SIZE:  # `declared_sizes` has seen that nothing is announced
            buffers[index] = 0
    metadata = write_metadata(message.row_count, message.nodes, buffers, message.codec, message.body_length)
    return memoryview(metadata + view[message.body_start : message.body_start + message.body_length])


def _aligned_copy(view: memoryview, body_start: int) -> pa.Buffer:
    """The message at an address that puts its body on a multiple of 8."""
    shift = -body_start % _ALIGNMENT
    copy = pa.allocate_buffer(len(view) + shift)
    target = memoryview(copy).cast("B")
    target[shift:] = view
    return copy.slice(shift)
