# SPDX-License-Identifier: Apache-2.0
"""Serialised roaring bitmaps: what the aggregation functions rbm32 and rbm64 keep, and SQL works with.

A bitmap is kept in parts: the low 16 bits of its values lie in one container per high part. ``rbm32`` values have the
portable format of the roaring bitmap specification. ``rbm64`` values have the format of Java's ``Roaring64Bitmap``,
where a radix tree over the high 48 bits leads to the containers.

Written here because the Python libraries for roaring bitmaps do not read the format of ``rbm64``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from fluss.errors import FormatError

Values = npt.NDArray[np.uint16]
"""The low bits in a container, ascending."""
Containers = dict[int, Values]
"""Containers by the high bits of their values."""

_COOKIE_PLAIN = 12346
_COOKIE_RUNS = 12347
_OFFSETS_FROM = 4
"""A bitmap with runs lists the places of its containers only when it has at least so many."""
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_CONTAINERS_32_MAX = 1 << 16
_RUN, _BITMAP, _ARRAY = range(3)
_NODE_BODY_BYTES = {0: 4, 1: 16, 2: 256, 3: 32}
_NODE_CAPACITY = (4, 16, 48, 256)
_LEAF = 4
_KEY_BYTES = 6
_ABSENT, _PRESENT = 0, 1
_NOT_TRIMMED = 0xFE


def union32(acc: bytes, new: bytes) -> bytes:
    """The union of two bitmaps of 32-bit integers."""
    return _write32(_union(_parsed(_read32, acc, "rbm32"), _parsed(_read32, new, "rbm32")))


def union64(acc: bytes, new: bytes) -> bytes:
    """The union of two bitmaps of 64-bit integers."""
    return _write64(_union(_parsed(_read64, acc, "rbm64"), _parsed(_read64, new, "rbm64")))


def values32(data: bytes) -> npt.NDArray[np.uint32]:
    """The values of a bitmap of 32-bit integers, ascending; none where there are no bytes."""
    containers = _parsed(_read32, data, "rbm32") if data else {}
    parts = [np.uint32(high << 16) | containers[high].astype(np.uint32) for high in sorted(containers)]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def bitmap32(values: npt.NDArray[np.uint32]) -> bytes:
    """The bitmap of some 32-bit integers, in any order."""
    unique = np.unique(values)
    highs, starts = np.unique(unique >> 16, return_index=True)
    parts = np.split(unique.astype(np.uint16), starts[1:])
    return _write32(dict(zip(highs.tolist(), parts)))


def _parsed(read: Callable[[_Reader], Containers], data: bytes, function: str) -> Containers:
    reader = _Reader(data)
    try:
        containers = read(reader)
    except (struct.error, ValueError) as error:
        raise FormatError(
            f"a value of a '{function}' column is not a serialised bitmap: {error} (near byte {reader.at})"
        ) from None
    return containers


def _union(one: Containers, other: Containers) -> Containers:
    merged = dict(one)
    for high, values in other.items():
        merged[high] = np.union1d(merged[high], values) if high in merged else values
    return merged


class _Reader:
    """Takes bytes from the front."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, count: int) -> bytes:
        taken = self.data[self.at : self.at + count]
        if len(taken) < count:
            raise ValueError(f"{count} bytes are missing")
        self.at += count
        return taken

    def number(self, form: str) -> int:
        return int(struct.unpack(form, self.take(struct.calcsize(form)))[0])

    def shorts(self, count: int) -> Values:
        return np.frombuffer(self.take(2 * count), "<u2").astype(np.uint16)


# -- containers -------------------------------------------------------------------------------------------------------


def _read_container(reader: _Reader, kind: int, cardinality: int) -> Values:
    if kind == _RUN:
        runs = reader.shorts(2 * reader.number("<H")).reshape(-1, 2).astype(np.int64)
        starts, ends = runs[:, 0], runs.sum(axis=1)
        if bool((ends > 0xFFFF).any()) or bool((starts[1:] <= ends[:-1]).any()):
            raise ValueError("the runs of a container are not in order")
        counts = ends - starts + 1
        offsets = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(np.repeat(starts, counts) + offsets, np.uint16)
    if kind == _BITMAP:
        bits = np.unpackbits(np.frombuffer(reader.take(_BITMAP_BYTES), np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.uint16)
    if kind != _ARRAY:
        raise ValueError(f"container type {kind} is not known")
    if not 0 <= cardinality <= 1 << 16:
        raise ValueError(f"a container cannot have {cardinality} values")
    values = reader.shorts(cardinality)
    if bool((values[1:] <= values[:-1]).any()):
        raise ValueError("the values of a container are not in order")
    return values


def _write_container(values: Values) -> tuple[int, bytes]:
    """The smallest form of a container, and which one that is."""
    wide = values.astype(np.int64)
    breaks = np.flatnonzero(np.diff(wide) != 1)
    starts = wide[np.concatenate(([0], breaks + 1))] if len(wide) else wide
    ends = wide[np.concatenate((breaks, [len(wide) - 1]))] if len(wide) else wide
    plain_bytes = 2 * len(wide) if len(wide) <= _ARRAY_MAX else _BITMAP_BYTES
    if 2 + 4 * len(starts) < plain_bytes:
        runs = np.stack((starts, ends - starts), axis=1).astype("<u2")
        return _RUN, struct.pack("<H", len(starts)) + runs.tobytes()
    if len(wide) <= _ARRAY_MAX:
        return _ARRAY, values.astype("<u2").tobytes()
    bits = np.zeros(1 << 16, np.uint8)
    bits[wide] = 1
    return _BITMAP, np.packbits(bits, bitorder="little").tobytes()


# -- 32 bits ----------------------------------------------------------------------------------------------------------


def _read32(reader: _Reader) -> Containers:
    cookie = reader.number("<I")
    runs = b""
    if cookie & 0xFFFF == _COOKIE_RUNS:
        count = (cookie >> 16) + 1
        runs = reader.take((count + 7) // 8)
    elif cookie == _COOKIE_PLAIN:
        count = reader.number("<I")
    else:
        raise ValueError(f"it begins with {cookie}")
    if count > _CONTAINERS_32_MAX:
        raise ValueError(f"it says that it has {count} containers")
    heads = reader.shorts(2 * count).reshape(-1, 2).tolist()
    if not runs or count >= _OFFSETS_FROM:
        reader.take(4 * count)
    containers: Containers = {}
    for i, (high, cardinality_less_one) in enumerate(heads):
        cardinality = cardinality_less_one + 1
        is_run = bool(runs and runs[i // 8] >> (i % 8) & 1)
        kind = _RUN if is_run else _ARRAY if cardinality <= _ARRAY_MAX else _BITMAP
        containers[high] = _read_container(reader, kind, cardinality)
    return containers


def _write32(containers: Containers) -> bytes:
    highs = sorted(containers)
    written = [_write_container(containers[high]) for high in highs]
    count = len(highs)
    flags = np.array([kind == _RUN for kind, _ in written], np.bool_)
    if bool(flags.any()):
        head = struct.pack("<I", _COOKIE_RUNS | (count - 1) << 16) + np.packbits(flags, bitorder="little").tobytes()
    else:
        head = struct.pack("<II", _COOKIE_PLAIN, count)
    head += b"".join(struct.pack("<HH", high, len(containers[high]) - 1) for high in highs)
    if not bool(flags.any()) or count >= _OFFSETS_FROM:
        sizes = np.array([len(body) for _, body in written], np.int64)
        head += (np.cumsum(sizes) - sizes + len(head) + 4 * count).astype("<u4").tobytes()
    return head + b"".join(body for _, body in written)


# -- 64 bits ----------------------------------------------------------------------------------------------------------


def _read64(reader: _Reader) -> Containers:
    if reader.number("<B") == _ABSENT:
        return {}
    reader.take(8)  # the number of keys, which the tree shows as well
    places = _read_leaves(reader)
    levels = [_read_level(reader) for _ in range(_bounded(reader, reader.number("<I")))]
    reader.take(16)  # where the next container would go
    containers: Containers = {}
    for high, place in places.items():
        level, index = place >> 32, place & 0xFFFFFFFF
        found = levels[level][index] if level < len(levels) and index < len(levels[level]) else None
        if found is None:
            raise ValueError(f"the container of {high:#x} is missing")
        containers[high] = found
    return containers


def _read_leaves(reader: _Reader) -> dict[int, int]:
    """High bits to the place of their container, from a tree that lists every node before its children."""
    places: dict[int, int] = {}
    nodes_left = 1
    while nodes_left:
        nodes_left -= 1
        kind, children, prefix_bytes = struct.unpack("<BHB", reader.take(4))
        if kind == _LEAF:
            high = int.from_bytes(reader.take(_KEY_BYTES), "big")
            places[high] = reader.number("<Q")
        elif kind in _NODE_BODY_BYTES and 0 < children <= _NODE_CAPACITY[kind]:
            reader.take(prefix_bytes + _NODE_BODY_BYTES[kind])
            nodes_left += children
        else:
            raise ValueError(f"a node of type {kind} with {children} children is not known")
    return places


def _read_level(reader: _Reader) -> list[Values | None]:
    reader.take(1)
    level: list[Values | None] = []
    for _ in range(_bounded(reader, reader.number("<I"))):
        if reader.number("<B") == _ABSENT:
            level.append(None)
            continue
        kind, cardinality = reader.number("<B"), reader.number("<i")
        level.append(_read_container(reader, kind, cardinality))
    return level


def _bounded(reader: _Reader, count: int) -> int:
    """Every element takes a byte at least, so more of them than bytes cannot be meant."""
    if count > len(reader.data):
        raise ValueError(f"it says that it has {count} elements")
    return count


def _write64(containers: Containers) -> bytes:
    if not containers:
        return bytes([_ABSENT])
    highs = sorted(containers)
    out = bytearray(struct.pack("<BQ", _PRESENT, len(highs)))
    _write_node(out, [high.to_bytes(_KEY_BYTES, "big") for high in highs], 0, 0)
    out += struct.pack("<IBI", 1, _NOT_TRIMMED, len(highs))
    for high in highs:
        kind, body = _write_container(containers[high])
        out += struct.pack("<BBi", _PRESENT, kind, len(containers[high])) + body
    return bytes(out + struct.pack("<Qii", len(highs), 0, len(highs) - 1))


def _write_node(out: bytearray, keys: Sequence[bytes], first: int, depth: int) -> None:
    """The tree over sorted keys; `first` is the number of the first of them."""
    if len(keys) == 1:
        out += struct.pack("<BHB", _LEAF, 0, 0) + keys[0] + struct.pack("<Q", first)
        return
    begin = depth
    while keys[0][depth] == keys[-1][depth]:
        depth += 1
    groups = [(byte, list(group)) for byte, group in groupby(keys, lambda key: key[depth])]
    kind = next(kind for kind, capacity in enumerate(_NODE_CAPACITY) if len(groups) <= capacity)
    out += struct.pack("<BHB", kind, len(groups), depth - begin) + keys[0][begin:depth]
    out += _node_body(kind, [byte for byte, _ in groups])
    for _, group in groups:
        _write_node(out, group, first, depth + 1)
        first += len(group)


def _node_body(kind: int, present: Sequence[int]) -> bytes:
    """Which children a node has. Words are written little-endian, but hold their bytes from the top."""
    if kind == 3:
        bits = np.zeros(256, np.uint8)
        bits[list(present)] = 1
        return np.packbits(bits, bitorder="little").tobytes()
    if kind == 2:
        body = bytearray(b"\xff" * 256)
        for index, byte in enumerate(present):
            body[byte] = index
        return _reversed_words(body, 8)
    width = _NODE_CAPACITY[kind]
    return _reversed_words(bytes(present) + bytes(width - len(present)), min(width, 8))


def _reversed_words(data: bytes | bytearray, word_bytes: int) -> bytes:
    return b"".join(bytes(data[at : at + word_bytes][::-1]) for at in range(0, len(data), word_bytes))
