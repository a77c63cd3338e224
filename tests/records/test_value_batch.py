# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records import vectors

from fluss.errors import FlussError, FormatError, InvalidArgumentError
from fluss.records import decode_value_batch, encode_value_batch, kv_batch
from fluss.rows.slices import Slices


def test_the_batch_of_a_java_server_byte_for_byte() -> None:
    assert decode_value_batch(vectors.VALUE_BATCH).to_list() == [vectors.STORED_VALUE] * 2
    assert encode_value_batch([vectors.STORED_VALUE] * 2) == vectors.VALUE_BATCH
    assert encode_value_batch(Slices.from_list([vectors.STORED_VALUE] * 2)) == vectors.VALUE_BATCH


@given(st.lists(st.binary(min_size=2, max_size=300), max_size=50))
def test_round_trip(values: list[bytes]) -> None:
    data = encode_value_batch(values)
    assert encode_value_batch(Slices.from_list(values)) == data
    assert decode_value_batch(data).to_list() == values
    head = struct.pack("<ibi", len(data) - 4, 0, len(values))
    assert data == head + b"".join(struct.pack("<i", len(value)) + value for value in values)


def test_values_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="value 1 is too short"):
        encode_value_batch([b"ok!", b"x"])
    monkeypatch.setattr(kv_batch, "INT32_MAX", 10)
    with pytest.raises(InvalidArgumentError, match="too many for one batch"):
        encode_value_batch([b"12345678"])


@pytest.mark.parametrize(
    ("position", "fmt", "value", "problem"),
    [
        (0, "<i", 30, "length at byte 0"),
        (4, "<b", 1, "magic at byte 4"),
        (5, "<i", 2**30, "record count at byte 9"),
        (5, "<i", -1, "record count at byte 9"),
        (5, "<i", 0, "26 bytes are left after 0 records"),
        (5, "<i", 1, "13 bytes are left after 1 records"),
        (9, "<i", 1, "length of record 0 at byte 9"),
        (22, "<i", 10, "length of record 1 at byte 22"),
    ],
)
def test_bytes_that_cannot_be(position: int, fmt: str, value: int, problem: str) -> None:
    data = bytearray(vectors.VALUE_BATCH)
    struct.pack_into(fmt, data, position, value)
    with pytest.raises(FormatError, match=problem):
        decode_value_batch(data)


def test_cut_batches() -> None:
    for cut in range(len(vectors.VALUE_BATCH)):
        with pytest.raises(FormatError):
            decode_value_batch(vectors.VALUE_BATCH[:cut])


@given(st.lists(st.tuples(st.integers(0, 34), st.integers(0, 255)), min_size=1, max_size=4))
def test_mutated_batches_raise_our_errors_only(changes: list[tuple[int, int]]) -> None:
    data = bytearray(vectors.VALUE_BATCH)
    for position, value in changes:
        data[position] = value
    with contextlib.suppress(FlussError):
        assert len(decode_value_batch(data).to_list()) * 6 <= len(data)
