# SPDX-License-Identifier: Apache-2.0
"""Many byte strings in one buffer."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FormatError, InvalidArgumentError
from fluss.rows.slices import Slices, scatter, spaced

byte_strings = st.lists(st.one_of(st.binary(max_size=20), st.binary(min_size=120, max_size=300)), max_size=12)


@given(byte_strings, st.randoms())
def test_views_and_copies(values: list[bytes], random: object) -> None:
    slices = Slices.from_list(values)
    assert len(slices) == len(values)
    assert slices.to_list() == list(slices) == values
    assert slices.total_bytes == sum(map(len, values))
    order = list(range(len(values)))
    random.shuffle(order)  # type: ignore[attr-defined]
    shuffled = slices.take(np.array(order, np.int64))
    expected = [values[i] for i in order]
    assert shuffled.to_list() == expected
    assert shuffled.to_arrow().to_pylist() == expected
    assert Slices.from_arrow(shuffled.to_arrow()).to_list() == expected


def scattered(parts: list[Slices]) -> Slices:
    """String `i` of all parts, one behind the other."""
    lengths = sum((part.lengths for part in parts), np.zeros(len(parts[0]), np.int64))
    starts, out = spaced(lengths)
    pos = starts.copy()
    for part in parts:
        scatter(out, pos, part.data, part.starts, part.lengths)
        pos += part.lengths
    return Slices.trusted(out, starts, lengths)


@given(st.lists(st.tuples(st.binary(max_size=300), st.binary(max_size=20)), min_size=1, max_size=10))
def test_scatter(pairs: list[tuple[bytes, bytes]]) -> None:
    left, right = (Slices.from_list(list(side)) for side in zip(*pairs))
    joined = scattered([left, right, left])
    assert joined.to_list() == [a + b + a for a, b in pairs]


def test_scatter_long_with_short() -> None:
    for short in (b"", b"a", b"abcdefgh", b"abcdefghi"):
        parts = [Slices.from_list([bytes(200), short]), Slices.from_list([b"x", b"y"])]
        assert scattered(parts).to_list() == [bytes(200) + b"x", short + b"y"]


def test_concat() -> None:
    one, two = Slices.from_list([b"a", b"bc"]), Slices.from_list([b"", b"d"])
    assert Slices.concat([one, two]).to_list() == [b"a", b"bc", b"", b"d"]
    assert Slices.concat([one]) is one
    assert Slices.concat([]).to_list() == []


def test_indexing() -> None:
    slices = Slices(b"abcdef", [4, 0], [2, 3])
    assert slices[0] == b"ef"
    assert slices[-1] == b"abc"
    assert slices.slice(1, 2).to_list() == [b"abc"]
    assert slices.take([True, False]).to_list() == [b"ef"]
    assert repr(slices) == "Slices(count=2, total_bytes=5)"
    assert Slices(b"", [], []).to_arrow().to_pylist() == []


@pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1), (0, 4), (3, 1), (2**62, 1), (0, 2**62), (2, 2)])
def test_every_string_lies_inside(start: int, length: int) -> None:
    with pytest.raises(FormatError, match="byte string 1 starts at"):
        Slices(b"abc", [0, start], [1, length])
    assert Slices(b"abc", [3], [0]).to_list() == [b""]


def test_a_few_strings_of_a_large_buffer() -> None:
    few = Slices(bytes(100_000) + b"abc", [0, 100_000], [1, 3])
    assert few.dense().data.size == 4
    assert few.to_list() == few.dense().to_list() == [b"\0", b"abc"]
    many = Slices.from_list([b"abc"])
    assert many.dense() is many


def test_shapes() -> None:
    with pytest.raises(InvalidArgumentError):
        Slices(np.zeros(4, np.int32), [0], [1])
    with pytest.raises(InvalidArgumentError):
        Slices(np.zeros(4, np.uint8), [0], [1, 1])


def test_from_arrow() -> None:
    for kind in (pa.binary(), pa.large_binary()):
        array = pa.array([b"a", None, b"bcd", b""], kind)
        assert Slices.from_arrow(array).to_list() == [b"a", b"", b"bcd", b""]
        assert Slices.from_arrow(array[2:]).to_list() == [b"bcd", b""]
        assert Slices.from_arrow(array[:0]).to_list() == []
    # A null may hide bytes.
    hidden = pa.Array.from_buffers(
        pa.binary(), 2, [pa.py_buffer(b"\2"), pa.py_buffer(np.array([0, 2, 3], np.int32)), pa.py_buffer(b"xyz")]
    )
    assert Slices.from_arrow(hidden).to_list() == [b"", b"z"]


@pytest.mark.parametrize("longest", [0, 9, 300, 3000])
def test_many_strings(longest: int) -> None:
    rng = np.random.default_rng(longest)
    values = [rng.bytes(int(size)) for size in rng.integers(0, longest + 1, 1000)]
    slices = Slices.from_list(values).take(rng.permutation(1000))
    expected = [slices[i] for i in range(1000)]
    assert slices.to_list() == expected
    assert sorted(expected) == sorted(values)
    assert all(type(value) is bytes for value in slices.to_list())
