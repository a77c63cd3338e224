# SPDX-License-Identifier: Apache-2.0
"""Serialised roaring bitmaps: what the aggregation functions rbm32 and rbm64 keep, and SQL works with.

A bitmap is kept in parts: the low 16 bits of its values lie in one container per high part. ``rbm32`` values have the
portable format of the roaring bitmap specification. ``rbm64`` values have the format of Java's ``Roaring64Bitmap``,
where a radix tree over the high 48 bits leads to the containers.

Written here because the Python libraries for roaring bitmaps do not read the format of ``rbm64``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fluss.errors import FormatError, InvalidArgumentError

Bits = npt.NDArray[np.bool_]
"""For each of the 65536 values that a container may hold, whether it does."""


class Container(NamedTuple):
    """A container as it is serialised: it may hold 65536 values in 6 bytes, so only two at a time are expanded."""

    kind: int
    cardinality: int
    body: bytes


Containers = dict[int, Container]
"""Containers by the high bits of their values."""
Keep = Callable[[Any, Any], Any]
"""(is in the one, is in the other) to whether it is in the result, for one value or for `Bits`."""

_COOKIE_PLAIN = 12346
_COOKIE_RUNS = 12347
_OFFSETS_FROM = 4
"""A bitmap with runs lists the places of its containers only when it has at least so many."""
_ARRAY_MAX = 4096
_BITMAP_BYTES = 8192
_CONTAINERS_32_MAX = 1 << 16
RUN, BITMAP, ARRAY = range(3)
_NODE_BODY_BYTES = {0: 4, 1: 16, 2: 256, 3: 32}
_NODE_CAPACITY = (4, 16, 48, 256)
_LEAF = 4
_KEY_BYTES = 6
_ABSENT, _PRESENT = 0, 1
_NOT_TRIMMED = 0xFE
VALUES_MAX = 1 << 27
"""How many values of a bitmap are listed at once, half a gigabyte."""


def union32(acc: bytes, new: bytes) -> bytes:
    """The union of two bitmaps of 32-bit integers."""
    with _refused("rbm32"):
        return write32(_combined(np.logical_or, read32(acc), read32(new)))


def union64(acc: bytes, new: bytes) -> bytes:
    """The union of two bitmaps of 64-bit integers."""
    with _refused("rbm64"):
        return write64(_combined(np.logical_or, read64(acc), read64(new)))


def combine32(keep: Keep, one: bytes, other: bytes) -> bytes:
    """Combine two bitmaps of 32-bit integers. Here and below no bytes are a bitmap without values."""
    with _refused("rbm32"):
        return write32(_combined(keep, _read_some32(one), _read_some32(other)))


def cardinality32(data: bytes) -> int:
    """How many values a bitmap of 32-bit integers has."""
    with _refused("rbm32"):
        return sum(int(np.count_nonzero(bits_of_container(container))) for container in _read_some32(data).values())


def contains32(data: bytes, value: int) -> bool:
    """Whether a bitmap of 32-bit integers has a value."""
    with _refused("rbm32"):
        container = _read_some32(data).get(value >> 16)
        return container is not None and bool(bits_of_container(container)[value & 0xFFFF])


def values32(data: bytes) -> npt.NDArray[np.uint32]:
    """The values of a bitmap of 32-bit integers, ascending."""
    count = cardinality32(data)
    if count > VALUES_MAX:
        raise InvalidArgumentError(f"the bitmap has {count} values, more than the {VALUES_MAX} that are listed at once")
    containers = _read_some32(data)
    parts = [
        np.uint32(high << 16) | np.flatnonzero(bits_of_container(containers[high])).astype(np.uint32)
        for high in sorted(containers)
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.uint32)


def bitmap32(values: npt.NDArray[np.uint32]) -> bytes:
    """The bitmap of some 32-bit integers, in any order."""
    unique = np.unique(values)
    highs, starts = np.unique(unique >> 16, return_index=True)
    parts = np.split(unique & 0xFFFF, starts[1:])
    return write32({high: container_of(bits_of_values(part)) for high, part in zip(highs.tolist(), parts)})


@contextmanager
def _refused(function: str) -> Iterator[None]:
    try:
        yield
    except (struct.error, ValueError) as error:
        raise FormatError(f"a value of a '{function}' column is not a serialised bitmap: {error}") from None


def _combined(keep: Keep, one: Containers, other: Containers) -> Containers:
    combined: Containers = {}
    for high in sorted(one.keys() | other.keys()):
        if high in one and high in other:
            bits = keep(bits_of_container(one[high]), bits_of_container(other[high]))
            if bits.any():
                combined[high] = container_of(bits)
        elif keep(high in one, high in other):
            combined[high] = one.get(high) or other[high]
    return combined


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

    def shorts(self, count: int) -> npt.NDArray[np.uint16]:
        return np.frombuffer(self.take(2 * count), "<u2")


# -- containers -------------------------------------------------------------------------------------------------------


def _read_container(reader: _Reader, kind: int, cardinality: int) -> Container:
    if not 0 < cardinality <= 1 << 16:
        raise ValueError(f"a container cannot have {cardinality} values")
    if kind == RUN:
        runs = reader.take(2)
        return Container(kind, cardinality, runs + reader.take(4 * int.from_bytes(runs, "little")))
    if kind not in (BITMAP, ARRAY):
        raise ValueError(f"container type {kind} is not known")
    return Container(kind, cardinality, reader.take(_BITMAP_BYTES if kind == BITMAP else 2 * cardinality))


def bits_of_container(container: Container) -> Bits:
    if container.kind == BITMAP:
        return np.unpackbits(np.frombuffer(container.body, np.uint8), bitorder="little").view(np.bool_)
    values = np.frombuffer(container.body, "<u2")
    if container.kind == ARRAY:
        return bits_of_values(values)
    # Where a run begins, where it has ended, where the next one begins, ...
    edges = np.append(values[1:].astype(np.int64), 1 << 16)
    edges[1:-1:2] += edges[:-1:2] + 1
    if bool((edges[1:] < edges[:-1]).any()):
        raise ValueError("the runs of a container are not in order")
    return np.repeat(np.arange(len(edges)) % 2 == 1, np.diff(edges, prepend=0))


def bits_of_values(values: npt.NDArray[Any]) -> Bits:
    bits = np.zeros(1 << 16, np.bool_)
    bits[values] = True
    return bits


def container_of(bits: Bits) -> Container:
    """The smallest form of a container."""
    cardinality = int(np.count_nonzero(bits))
    edges = np.flatnonzero(np.diff(bits, prepend=False, append=False))
    if 2 + 2 * len(edges) < (2 * cardinality if cardinality <= _ARRAY_MAX else _BITMAP_BYTES):
        runs = np.stack((edges[::2], edges[1::2] - edges[::2] - 1), axis=1).astype("<u2")
        return Container(RUN, cardinality, struct.pack("<H", len(runs)) + runs.tobytes())
    if cardinality <= _ARRAY_MAX:
        return Container(ARRAY, cardinality, np.flatnonzero(bits).astype("<u2").tobytes())
    return Container(BITMAP, cardinality, np.packbits(bits, bitorder="little").tobytes())


# -- 32 bits ----------------------------------------------------------------------------------------------------------


def _read_some32(data: bytes) -> Containers:
    return read32(data) if data else {}


def read32(data: bytes) -> Containers:
    reader = _Reader(data)
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
        kind = RUN if is_run else ARRAY if cardinality <= _ARRAY_MAX else BITMAP
        containers[high] = _read_container(reader, kind, cardinality)
    return containers


def write32(containers: Containers) -> bytes:
    """Serialise containers, which are in the order of their high bits."""
    count = len(containers)
    flags = np.array([container.kind == RUN for container in containers.values()], np.bool_)
    has_runs = bool(flags.any())
    if has_runs:
        head = struct.pack("<I", _COOKIE_RUNS | (count - 1) << 16) + np.packbits(flags, bitorder="little").tobytes()
    else:
        head = struct.pack("<II", _COOKIE_PLAIN, count)
    head += b"".join(struct.pack("<HH", high, found.cardinality - 1) for high, found in containers.items())
    if not has_runs or count >= _OFFSETS_FROM:
        sizes = np.array([len(container.body) for container in containers.values()], np.int64)
        head += (np.cumsum(sizes) - sizes + len(head) + 4 * count).astype("<u4").tobytes()
    return head + b"".join(container.body for container in containers.values())


# -- 64 bits ----------------------------------------------------------------------------------------------------------


def read64(data: bytes) -> Containers:
    reader = _Reader(data)
    if reader.number("<B") == _ABSENT:
        return {}
    reader.take(8)  # the number of keys, which the tree shows as well
    places = _read_leaves(reader)
    if len(set(places.values())) < len(places):
        raise ValueError("two leaves lead to one container")
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


def _read_level(reader: _Reader) -> list[Container | None]:
    reader.take(1)
    level: list[Container | None] = []
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


def write64(containers: Containers) -> bytes:
    """Serialise containers, which are in the order of their high bits."""
    if not containers:
        return bytes([_ABSENT])
    count = len(containers)
    out = bytearray(struct.pack("<BQ", _PRESENT, count))
    _write_node(out, [high.to_bytes(_KEY_BYTES, "big") for high in containers], 0, 0)
    out += struct.pack("<IBI", 1, _NOT_TRIMMED, count)
    for kind, cardinality, body in containers.values():
        out += struct.pack("<BBi", _PRESENT, kind, cardinality) + body
    return bytes(out + struct.pack("<Qii", count, 0, count - 1))


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
