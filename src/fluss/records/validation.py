# SPDX-License-Identifier: Apache-2.0
"""Whether the bytes of a log batch are what their metadata says, checked before Arrow trusts them.

Arrow believes lengths, null counts and offsets. A batch whose checksum fits may still hold others than its buffers have
room for, and reading one ends in a crash or in bytes of another value. So a server checks batches once, before it
writes them, and every reader checks what it decodes.

Everything is vectorised: a column costs a few passes over its offsets, and one over the bytes of its strings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.records._bytes import malformed
from fluss.records.arrow_layout import NodeKind, SchemaLayout, layout_of
from fluss.records.arrow_message import ZSTD, ArrowMessage, read_message
from fluss.records.log_batch import LogBatch

DECODED_BYTES_MAX = 512 * 1024 * 1024
"""Default limit of what one batch may grow to when it is decompressed."""
PREFIX_SIZE = 8
"""A compressed buffer starts with its uncompressed length."""
STORED_RAW = -1
"""The uncompressed length of a buffer that was not worth compressing."""

BufferAt = Callable[[int], Any]
"""The bytes of a buffer by its number, as anything with the buffer protocol; None if it is empty."""

_WHAT = "Arrow message"
_OFFSET_SIZE = 4
_ROW_RECORD_BYTES_MIN = 6
"""Length, change type, and at least the null bits of a row."""
_NON_ASCII = 0x80
_CONTINUATION_MAX = -65
"""UTF-8 bytes in the middle of a character are 0x80 to 0xbf: the lowest signed bytes."""


def check_log_batch(
    batch: LogBatch,
    arrow_schema: pa.Schema,
    log_format: str = "ARROW",
    *,
    max_bytes: int = DECODED_BYTES_MAX,
    check_bytes_max: int = DECODED_BYTES_MAX,
) -> int:
    """Refuse a batch that no reader could use. For servers, before they write it.

    Of ARROW batches everything is checked that Arrow trusts: of compressed ones, null bits and offsets are decompressed
    for it. The values stay as they are, and whether text is UTF-8 is left to the readers: that takes longer than the
    whole append. Of batches in row formats only the number of records is checked: their lengths chain the records
    together, and readers have to follow them.

    Args:
        arrow_schema: The schema the batch was written with.
        max_bytes: Limit of what the batch may decompress to.
        check_bytes_max: Limit of what may be decompressed to be checked.

    Returns:
        How many bytes were decompressed to be checked.

    Raises:
        FormatError: The batch is malformed; the message says where and how.
    """
    header = batch.header
    if header.record_count == 0:
        if header.records_position != header.size_bytes:
            malformed("log batch", "records", header.records_position, "an empty batch carries bytes after its header")
        return 0
    if log_format != "ARROW":
        available = header.size_bytes - header.records_position
        if header.record_count * _ROW_RECORD_BYTES_MIN > available:
            problem = f"{header.record_count} records do not fit into {available} bytes"
            malformed("log batch", "record count", header.records_position, problem)
        return 0
    if not header.append_only:
        batch.change_types()
    view = batch.arrow_view
    message = read_message(view)
    layout = layout_of(arrow_schema)
    layout.check(message, header)
    if message.codec is None:
        check_message(view, message, layout, max_bytes, text=False)
        return 0
    return _check_compressed(view, message, layout, max_bytes, check_bytes_max)


def check_message(
    view: memoryview, message: ArrowMessage, layout: SchemaLayout, max_bytes: int, *, text: bool = True
) -> None:
    """Check the buffers of a message: their sizes, and unless they are compressed, what they hold.

    That is null counts, offsets, and (if `text`) that strings are UTF-8.
    """
    if message.codec is not None:
        check_sizes(layout, message.nodes, declared_sizes(view, message, max_bytes))
        return
    if message.body_length > max_bytes:
        malformed(_WHAT, "body length", 0, f"{message.body_length} bytes are more than {max_bytes} allowed")
    lengths = message.buffers[1::2]
    check_sizes(layout, message.nodes, lengths)
    offsets, body_start = message.buffers[::2], message.body_start

    def buffer_at(number: int) -> memoryview:
        start = body_start + offsets[number]
        return view[start : start + lengths[number]]

    check_values(layout, message.nodes, lengths, buffer_at, text=text)


def _check_compressed(
    view: memoryview, message: ArrowMessage, layout: SchemaLayout, max_bytes: int, check_bytes_max: int
) -> int:
    """Decompress and check what says where values are: null bits and offsets. Returns how many bytes that were."""
    sizes = declared_sizes(view, message, max_bytes)
    check_sizes(layout, message.nodes, sizes)
    needed = _buffers_to_check(layout, message.nodes)
    total = sum(sizes[number] for number in needed)
    if total > check_bytes_max:
        problem = f"{total} bytes to check are more than the {check_bytes_max} that a request may bring"
        malformed(_WHAT, "null bits and offsets", 0, f"{problem}; write fewer rows at a time")

    def buffer_at(number: int) -> Any:
        start = message.body_start + message.buffers[2 * number]
        stored = view[start : start + message.buffers[2 * number + 1]]
        try:
            return decompress_buffer(stored, sizes[number], message.codec)
        except (pa.ArrowException, OSError, ValueError) as error:
            malformed(_WHAT, f"buffer {number}", start, f"it cannot be decompressed: {error}")

    if needed:
        check_values(layout, message.nodes, sizes, buffer_at, text=False)
    return total


def _buffers_to_check(layout: SchemaLayout, nodes: tuple[int, ...]) -> list[int]:
    """Which buffers `check_values` looks into if it leaves text alone."""
    needed: list[int] = []
    for number, (kind, buffer, _, _) in enumerate(layout.nodes):
        if nodes[2 * number + 1]:
            needed.append(buffer)
        if nodes[2 * number] and kind != NodeKind.FIXED and kind != NodeKind.STRUCT:
            needed.append(buffer + 1)
    return needed


def decompress_buffer(stored: memoryview, size: int, codec: int | None) -> Any:
    """One buffer of a compressed message, which says that it has `size` bytes.

    Raises:
        OSError, ValueError or an error of Arrow: It cannot be decompressed, or to more or fewer bytes.
    """
    content = stored[PREFIX_SIZE:]
    if int.from_bytes(stored[:PREFIX_SIZE], "little", signed=True) == STORED_RAW:
        return content
    if codec == ZSTD:
        return pa.Codec("zstd").decompress(content, decompressed_size=size, memory_pool=pa.system_memory_pool())
    # Arrow's codec of LZ4 leaves foreign memory at the end of a buffer whose last bytes are missing.
    # And `read` of its streams never gives back the memory of a read that fails.
    with pa.CompressedInputStream(pa.BufferReader(content), "lz4") as stream:
        data = stream.read_buffer(size + 1)
    if data.size != size:
        raise ValueError(f"{size} bytes are announced, {data.size} or more are stored")
    return data


def declared_sizes(view: memoryview, message: ArrowMessage, max_bytes: int) -> list[int]:
    """What each buffer of a compressed message says to decompress to. Refused if that is too much altogether."""
    sizes: list[int] = []
    total = 0
    body_start = message.body_start
    for index, (offset, length) in enumerate(zip(message.buffers[::2], message.buffers[1::2])):
        if length == 0:
            sizes.append(0)
            continue
        start = body_start + offset
        if length < PREFIX_SIZE:
            malformed(_WHAT, f"buffer {index}", start, f"{length} bytes are too few for its length prefix")
        declared = int.from_bytes(view[start : start + PREFIX_SIZE], "little", signed=True)
        if declared < STORED_RAW:
            malformed(_WHAT, f"buffer {index}", start, f"uncompressed length {declared} is negative")
        if declared == STORED_RAW:
            declared = length - PREFIX_SIZE
        elif declared and length == PREFIX_SIZE:
            malformed(_WHAT, f"buffer {index}", start, f"{declared} bytes are announced, none are stored")
        sizes.append(declared)
        total += declared
        if total > max_bytes:
            malformed(_WHAT, f"buffer {index}", start, f"decompresses to more than {max_bytes} allowed bytes")
    return sizes


def expanded_bytes(view: memoryview) -> int:
    """What the Arrow message of a batch says to decompress to. Nothing is decompressed.

    Raises:
        FormatError: The message is malformed, or says more than `DECODED_BYTES_MAX`.
    """
    message = read_message(view)
    return message.body_length if message.codec is None else sum(declared_sizes(view, message, DECODED_BYTES_MAX))


def check_sizes(layout: SchemaLayout, nodes: tuple[int, ...], sizes: list[int] | tuple[int, ...]) -> None:
    """Check that every buffer is as large as the length of its node asks for, and children as long as their parents.

    Must come before Arrow sees any of it: Arrow aborts the process for a map whose keys have nulls.
    """
    for number, (kind, buffer, bits, children) in enumerate(layout.nodes):
        length, null_count = nodes[2 * number], nodes[2 * number + 1]
        if null_count and 8 * sizes[buffer] < length:
            _too_small(number, buffer, sizes[buffer], f"the validity of {length} values")
        if kind == NodeKind.FIXED:
            if 8 * sizes[buffer + 1] < length * bits:
                _too_small(number, buffer + 1, sizes[buffer + 1], f"{length} values of {bits} bits")
            continue
        if kind != NodeKind.STRUCT and length and sizes[buffer + 1] < _OFFSET_SIZE * (length + 1):
            _too_small(number, buffer + 1, sizes[buffer + 1], f"the offsets of {length} values")
        if children:
            _check_children(layout, nodes, number)


def _check_children(layout: SchemaLayout, nodes: tuple[int, ...], number: int) -> None:
    """Children of a struct are as long as it is; entries and keys of a map are never null."""
    kind, _, _, children = layout.nodes[number]
    length = nodes[2 * number]
    if kind == NodeKind.STRUCT:
        for child in children:
            if nodes[2 * child] < length:
                malformed(_WHAT, f"field node {child}", 0, f"{nodes[2 * child]} values in a struct of {length}")
    elif kind == NodeKind.MAP:
        [entries] = children
        keys = layout.nodes[entries].children[0]
        if nodes[2 * entries + 1] or nodes[2 * keys + 1]:
            malformed(_WHAT, f"field node {entries}", 0, "the entries or keys of a map are null")


def _too_small(node: int, buffer: int, size: int, needed: str) -> None:
    malformed(_WHAT, f"buffer {buffer} of field node {node}", 0, f"{size} bytes are too few for {needed}")


def check_values(
    layout: SchemaLayout, nodes: tuple[int, ...], sizes: Sequence[int], buffer_at: BufferAt, *, text: bool = True
) -> None:
    """Check null counts, offsets and (if `text`) strings of buffers that passed `check_sizes`."""
    for number, (kind, buffer, _, children) in enumerate(layout.nodes):
        length, null_count = nodes[2 * number], nodes[2 * number + 1]
        if null_count:
            _check_null_count(number, length, null_count, buffer_at(buffer))
        if not length or kind == NodeKind.FIXED or kind == NodeKind.STRUCT:
            continue
        offsets = np.frombuffer(buffer_at(buffer + 1), "<i4", length + 1)
        if not offsets.flags.aligned:
            offsets = offsets.copy()  # comparing takes twice as long where numbers cross words
        if children:
            _check_offsets(number, buffer + 1, offsets, nodes[2 * children[0]])
            continue
        _check_offsets(number, buffer + 1, offsets, sizes[buffer + 2])
        if (
            text
            and kind == NodeKind.TEXT
            and sizes[buffer + 2]
            and not _is_text(offsets, data := buffer_at(buffer + 2))
        ):
            _check_strings(number, length, buffer_at(buffer) if null_count else None, offsets, data)


def _check_null_count(node: int, length: int, null_count: int, validity: Any) -> None:
    bits = pa.Array.from_buffers(pa.bool_(), length, [None, pa.py_buffer(validity)])
    if bits.true_count != length - null_count:
        problem = f"{null_count} nulls are announced, the validity bits say {length - bits.true_count}"
        malformed(_WHAT, f"field node {node}", 0, problem)


def _check_offsets(node: int, buffer: int, offsets: npt.NDArray[np.int32], end: int) -> None:
    """Offsets never fall, and lie within 0 and `end`."""
    if int(offsets[0]) >= 0 and int(offsets[-1]) <= end and not bool((offsets[1:] < offsets[:-1]).any()):
        return
    falls = np.flatnonzero(offsets[1:] < offsets[:-1])
    if len(falls):
        at = int(falls[0])
        problem = f"offset {at + 1} is {offsets[at + 1]} after {offsets[at]}"
    else:
        problem = f"they reach from {offsets[0]} to {offsets[-1]}, but must lie within 0..{end}"
    malformed(_WHAT, f"offsets (buffer {buffer}) of field node {node}", 0, problem)


def _is_text(offsets: npt.NDArray[np.int32], data: Any) -> bool:
    """Whether the bytes are UTF-8 and every string starts with the start of a character.

    That is sufficient and takes half the time of Arrow's check, which looks at string by string. It is not necessary:
    behind the offsets of a null may be anything.
    """
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return True
    text = np.frombuffer(data, np.uint8, last - first, first)
    if int(text.max()) < _NON_ASCII:
        return True
    # A string may start at the very end, where there is no byte left to look at.
    starts = offsets[: int(np.searchsorted(offsets, last))] - first
    if bool((text.view(np.int8).take(starts) <= _CONTINUATION_MAX).any()):
        return False
    whole = pa.py_buffer(np.array((0, len(text)), np.int32))
    try:
        pa.Array.from_buffers(pa.string(), 1, [None, whole, pa.py_buffer(text)]).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _check_strings(node: int, length: int, validity: Any, offsets: npt.NDArray[np.int32], data: Any) -> None:
    """Let Arrow look at each string that is not null."""
    bits = None if validity is None else pa.py_buffer(validity)
    try:
        pa.Array.from_buffers(pa.string(), length, [bits, pa.py_buffer(offsets), pa.py_buffer(data)]).validate(
            full=True
        )
    except pa.ArrowInvalid as error:
        malformed(_WHAT, f"strings of field node {node}", 0, str(error))
