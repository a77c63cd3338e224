# SPDX-License-Identifier: Apache-2.0
"""Unions of roaring bitmaps, against their formats."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata import AggFunction, BytesType, Column
from fluss.rows import bitmaps
from fluss.server.kv.aggregate import aggregate_of

Union = Callable[[bytes, bytes], bytes]
Write = Callable[[bitmaps.Containers], bytes]
BOTH = pytest.mark.parametrize(
    ("union", "write"), [(bitmaps.union32, bitmaps.write32), (bitmaps.union64, bitmaps.write64)]
)


def _containers(values: set[int]) -> bitmaps.Containers:
    highs: dict[int, list[int]] = {}
    for value in sorted(values):
        highs.setdefault(value >> 16, []).append(value & 0xFFFF)
    return {high: _container(lows) for high, lows in highs.items()}


def _container(lows: Sequence[int]) -> bitmaps.Container:
    return bitmaps.container_of(bitmaps.bits_of_values(np.array(lows)))


def _read(data: bytes, read: Callable[[bytes], bitmaps.Containers]) -> set[int]:
    return {
        high << 16 | low
        for high, container in read(data).items()
        for low in np.flatnonzero(bitmaps.bits_of_container(container)).tolist()
    }


def _sets(bits: int) -> st.SearchStrategy[set[int]]:
    single = st.integers(0, 2**bits - 1)
    near = st.integers(0, 2**bits // 2**16 - 1).flatmap(
        lambda high: st.sets(st.integers(0, 0xFFFF), max_size=30).map(lambda lows: {high << 16 | low for low in lows})
    )
    run = st.tuples(single, st.integers(1, 9000)).map(lambda pair: set(range(pair[0], min(pair[0] + pair[1], 2**bits))))
    spread = st.tuples(st.integers(0, 2**bits // 2**16 - 1), st.integers(2, 12)).map(
        lambda pair: {pair[0] << 16 | low for low in range(0, 1 << 16, pair[1])}
    )
    parts = st.one_of(st.sets(single, max_size=40), near, run, spread)
    return st.lists(parts, max_size=4).map(lambda sets: set[int]().union(*sets))


@settings(max_examples=40, deadline=None)
@given(_sets(32), _sets(32))
def test_union_of_32_bits(one: set[int], other: set[int]) -> None:
    first, second = bitmaps.write32(_containers(one)), bitmaps.write32(_containers(other))
    assert _read(bitmaps.union32(first, second), bitmaps.read32) == one | other


@settings(max_examples=40, deadline=None)
@given(_sets(64), _sets(64))
def test_union_of_64_bits(one: set[int], other: set[int]) -> None:
    first, second = bitmaps.write64(_containers(one)), bitmaps.write64(_containers(other))
    assert _read(bitmaps.union64(first, second), bitmaps.read64) == one | other


@settings(max_examples=25, deadline=None)
@given(_sets(32), _sets(32))
def test_32_bits_as_another_library_writes_them(one: set[int], other: set[int]) -> None:
    roaring = pytest.importorskip("pyroaring")
    first, second = roaring.BitMap(one), roaring.BitMap(other)
    second.run_optimize()
    merged = roaring.BitMap.deserialize(bitmaps.union32(first.serialize(), second.serialize()))
    assert set(merged) == one | other
    assert bitmaps.values32(second.serialize()).tolist() == sorted(other)
    assert set(roaring.BitMap.deserialize(bitmaps.bitmap32(np.array([*one, *one], np.uint32)))) == one


def test_the_tree_of_64_bits() -> None:
    """Bytes spelled out: two keys that part in their last byte, under a node with five bytes of prefix."""
    data = bitmaps.write64(_containers({0x0102030405_06_0007, 0x0102030405_09_0001, 0x0102030405_09_0003}))
    expected = (
        b"\x01" + struct.pack("<Q", 2)
        + b"\x00\x02\x00\x05" + bytes([1, 2, 3, 4, 5]) + bytes([0, 0, 9, 6])
        + b"\x04\x00\x00\x00" + bytes([1, 2, 3, 4, 5, 6]) + struct.pack("<Q", 0)
        + b"\x04\x00\x00\x00" + bytes([1, 2, 3, 4, 5, 9]) + struct.pack("<Q", 1)
        + struct.pack("<IBI", 1, 0xFE, 2)
        + b"\x01\x02" + struct.pack("<iH", 1, 7)
        + b"\x01\x02" + struct.pack("<iHH", 2, 1, 3)
        + struct.pack("<Qii", 2, 0, 1)
    )  # fmt: skip
    assert data == expected
    assert bitmaps.union64(data, b"\x00") == data
    assert bitmaps.union64(b"\x00", b"\x00") == b"\x00"


@pytest.mark.parametrize("count", [2, 4, 5, 16, 17, 48, 49, 256])
def test_every_kind_of_node(count: int) -> None:
    values = {(i * 255 // (count - 1)) << 56 | 5 for i in range(count)}
    data = bitmaps.write64(_containers(values))
    assert data[9] == [4, 16, 48, 256].index(next(c for c in (4, 16, 48, 256) if count <= c))
    assert _read(data, bitmaps.read64) == values


def test_containers_take_their_smallest_form() -> None:
    forms = {
        name: _container(values).kind
        for name, values in {
            "run": range(100),
            "array": range(0, 8000, 2),
            "bitmap": range(0, 16_000, 2),
            "full": range(1 << 16),
        }.items()
    }
    assert forms == {"run": bitmaps.RUN, "array": bitmaps.ARRAY, "bitmap": bitmaps.BITMAP, "full": bitmaps.RUN}


@BOTH
def test_other_bytes_are_refused(union: Union, write: Write) -> None:
    good = write(_containers({*range(50), *range(1 << 20, (1 << 20) + 9000, 3), 1 << 31}))
    for end in range(len(good)):
        if end < 40 or end % 97 == 0:
            with pytest.raises(FormatError, match="not a serialised bitmap"):
                union(good[: max(end - 16, 0)], good)
    for at in range(60):
        bad = bytearray(good)
        bad[at] ^= 0xFF
        with contextlib.suppress(FormatError):
            union(good, bytes(bad))
    with pytest.raises(FormatError):
        union(b"", good)


@BOTH
def test_a_long_run_takes_little_memory(union: Union, write: Write) -> None:
    """Each container of 6 bytes stands for 65536 values."""
    full = write(dict.fromkeys(range(500), _container(range(1 << 16))))
    tracemalloc.start()
    try:
        assert union(full, full) == full
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()


def test_leaves_that_share_a_container_are_refused() -> None:
    data = bitmaps.write64(_containers({1, 1 << 20}))
    second = data.index(struct.pack("<Q", 1), 9)
    with pytest.raises(FormatError, match="two leaves lead to one container"):
        bitmaps.union64(data[:second] + bytes(8) + data[second + 8 :], data)


@BOTH
def test_a_container_without_values_is_left_out(union: Union, write: Write) -> None:
    empty = write({0: bitmaps.Container(bitmaps.RUN, 1, bytes(2))})
    assert union(empty, empty) == write({})


def test_values_that_are_too_many_to_list() -> None:
    data = bitmaps.write32(dict.fromkeys(range(1 << 11 | 1), _container(range(1 << 16))))
    assert bitmaps.cardinality32(data) == (1 << 27) + (1 << 16)
    assert bitmaps.contains32(data, 1 << 27)
    assert not bitmaps.contains32(data, (1 << 27) + (1 << 16))
    with pytest.raises(InvalidArgumentError, match="more than the 134217728 that are listed"):
        bitmaps.values32(data)


def test_through_the_functions() -> None:
    for name, write in (("rbm32", bitmaps.write32), ("rbm64", bitmaps.write64)):
        function = aggregate_of(Column("c", BytesType(), agg_function=AggFunction(name, {})))
        one, other = write(_containers({1, 2})), write(_containers({2, 70_000}))
        assert function(one, None) == one
        assert function(None, other) == other
        assert function(one, other) == write(_containers({1, 2, 70_000}))
