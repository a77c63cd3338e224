# SPDX-License-Identifier: Apache-2.0
"""Conversions through buffers against those of pyarrow, which import pandas."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import _arrow_buffers as ab

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(["", "\0", "a\0b", "é" * 40])
COLUMNS: list[tuple[Any, pa.DataType, Any]] = [
    (ab.strings_array, pa.string(), TEXT),
    (ab.bytes_array, pa.binary(), st.binary(max_size=60)),
    (ab.doubles_array, pa.float64(), st.floats(allow_nan=False)),
    (ab.integers_array, pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (ab.booleans_array, pa.bool_(), st.booleans()),
    (ab.dates_array, pa.date32(), st.dates()),
]


@pytest.mark.parametrize(("make", "kind", "values"), COLUMNS, ids=lambda item: getattr(item, "__name__", None))
@given(data=st.data())
def test_python_values_become_the_same_arrays(make: Any, kind: pa.DataType, values: Any, data: st.DataObject) -> None:
    drawn = data.draw(st.lists(values, max_size=40) | st.lists(st.none() | values, max_size=40))
    made = make(drawn)
    made.validate(full=True)
    assert made == pa.array(drawn, kind)


@given(st.lists(st.none() | st.datetimes() | st.datetimes(timezones=st.timezones()), max_size=20))
def test_datetimes(values: list[dt.datetime | None]) -> None:
    found = ab.micros_array(values).view(pa.timestamp("us", "UTC")).to_pylist()
    utc = dt.timezone.utc
    expected = [value and (value.astimezone(utc) if value.tzinfo else value.replace(tzinfo=utc)) for value in values]
    assert found == expected


@given(st.lists(st.none() | TEXT, max_size=40), st.integers(0, 20), st.integers(0, 20))
def test_strings_and_bytes_come_back(values: list[str | None], start: int, count: int) -> None:
    """Also from slices, which begin in the middle of their buffers."""
    array = pa.array(values, pa.string()).slice(start, count)
    assert ab.string_list(array) == array.to_pylist()
    assert ab.bytes_list(array.cast(pa.binary())) == array.cast(pa.binary()).to_pylist()
    assert ab.valid_mask(array).tolist() == array.is_valid().to_pylist()


def test_nulls_may_hold_anything() -> None:
    """The bytes below a null are of no meaning, and need not be a string."""
    offsets = np.array([0, 1, 3, 4], np.int32)
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(offsets), pa.py_buffer(b"a\xff\xffb")]
    array = pa.Array.from_buffers(pa.string(), 3, buffers)
    assert ab.string_list(array) == ["a", None, "b"]


@pytest.mark.parametrize("values", [["a", 1], ["a", b"b"], [None, 1.5]])
def test_what_is_no_string_is_refused(values: list[Any]) -> None:
    with pytest.raises(TypeError):
        ab.strings_array(values)


@pytest.mark.parametrize("kind", ["int8", "int16", "int32", "int64", "uint8", "float32", "float64", "bool"])
def test_numpy_and_back(kind: str) -> None:
    values = np.arange(20).astype(kind)
    assert ab.array_of(values) == pa.array(values)
    nulls = np.arange(20) % 3 == 0
    assert ab.array_of(values, nulls) == pa.array(values, mask=nulls)
    for array in (pa.array(values), pa.array(values).slice(11, 5), pa.array(values).slice(3, 0)):
        assert ab.numpy_of(array).tolist() == array.to_pylist()
    assert len(ab.numpy_of(pa.nulls(3, pa.array(values).type))) == 3


def test_every_other_number_is_copied() -> None:
    assert ab.array_of(np.arange(10)[::2]).to_pylist() == [0, 2, 4, 6, 8]


def test_narrowed_integers() -> None:
    array = pa.array([1, None, -128])
    assert ab.narrowed(array, pa.int8()) == pa.array([1, None, -128], pa.int8())
    assert ab.narrowed(array, pa.int64()) is array
    assert ab.narrowed(pa.array([128]), pa.int8()) is None
