# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.records import vectors
from tests.records.tables import ALL_TYPES, ROW_A, ROW_B

from fluss.errors import CorruptMessageError, FormatError, InvalidArgumentError, RecordTooLargeError
from fluss.metadata import IntType
from fluss.records import (
    KV_RECORDS_MAX,
    KvBatch,
    decode_value_batch,
    encode_kv_body,
    encode_value_batch,
    kv_batch,
    seal_kv_batch,
)
from fluss.rows import compacted
from fluss.rows.slices import Slices


def encoded(
    keys: list[bytes], rows: list[bytes], deletes: list[bool] | None = None, schema_id: int = 1, **ids: int
) -> bytes:
    marks = None if deletes is None else np.array(deletes, dtype=bool)
    body = encode_kv_body(Slices.from_list(keys), Slices.from_list(rows), marks)
    return b"".join(seal_kv_batch(body, schema_id, **ids))


@pytest.mark.parametrize("name", vectors.KV_BATCHES)
def test_batches_of_other_implementations_byte_for_byte(name: str) -> None:
    data = vectors.KV_BATCHES[name]
    batch = KvBatch.parse(data)
    assert (batch.schema_id, batch.size_bytes) == (1, len(data))
    again = encoded(
        batch.keys.to_list(),
        batch.rows.to_list(),
        batch.deletes.tolist(),
        writer_id=batch.writer_id,
        batch_sequence=batch.batch_sequence,
    )
    assert again == data


def test_upsert_and_delete() -> None:
    batch = KvBatch.parse(vectors.KV_UPSERT_DELETE)
    assert (batch.writer_id, batch.batch_sequence, batch.record_count) == (7, 0, 2)
    assert batch.keys.to_list() == [b"\x01", b"\x01"]
    assert batch.rows.to_list() == [bytes.fromhex("0001036f6e6564"), b""]
    assert batch.deletes.tolist() == [False, True]


def test_rows_of_all_types() -> None:
    types = [IntType(nullable=False), *ALL_TYPES.data_types]
    batch = KvBatch.parse(vectors.KV_ALL_TYPES)
    assert batch.keys.to_list() == [b"\x01", b"\x02"]
    rows = [compacted.decode_row(types, row) for row in batch.rows.to_list()]
    assert rows == [[1, *ROW_A], [2, *ROW_B]]
    data = encoded(
        [b"\x01", b"\x02"], [compacted.encode_row(types, row) for row in rows], writer_id=7, batch_sequence=0
    )
    assert data == vectors.KV_ALL_TYPES


def test_no_writer() -> None:
    batch = KvBatch.parse(vectors.KV_NO_WRITER)
    assert (batch.writer_id, batch.batch_sequence) == (-1, -1)
    assert encoded([b"\x05"], [bytes.fromhex("0005017801")]) == vectors.KV_NO_WRITER


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.binary(max_size=200), st.binary(min_size=1, max_size=40), st.booleans()), max_size=60),
    st.integers(0, 2**15 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
)
@example([(b"k" * size, b"row", False) for size in (0, 127, 128, 16383, 16384, 2097151, 2097152)], 1, 1, 1)
def test_round_trip(records: list[tuple[bytes, bytes, bool]], schema_id: int, writer_id: int, sequence: int) -> None:
    keys, rows, deletes = (list(column) for column in zip(*records)) if records else ([], [], [])
    data = encoded(keys, rows, deletes, schema_id, writer_id=writer_id, batch_sequence=sequence)
    batch = KvBatch.parse(data)
    assert (batch.schema_id, batch.writer_id, batch.batch_sequence) == (schema_id, writer_id, sequence)
    assert batch.keys.to_list() == keys
    assert batch.deletes.tolist() == deletes
    assert batch.rows.to_list() == [b"" if gone else row for row, gone in zip(rows, deletes)]
    # The readable twin: one record after the other.
    expected = b"".join(
        struct.pack("<i", len(head) + len(key) + len(row)) + head + key + row
        for key, row in zip(keys, batch.rows.to_list())
        for head in [_varint(len(key))]
    )
    assert data[28:] == expected


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize(
    "lengths",
    [[8] * 2000, [7, 8, 9] * 500, [8] * 500 + [300] + [8] * 500, [300] * 100, [300, 301] * 50, [2, 251, 252, 253, 3]],
    ids=["equal", "short", "one long", "equally long", "long", "around a byte"],
)
def test_records_of_many_lengths(lengths: list[int]) -> None:
    keys = [i.to_bytes(length, "big") for i, length in enumerate(lengths)]
    batch = KvBatch.parse(encoded(keys, [b"row"] * len(keys)))
    assert batch.keys.to_list() == keys
    assert set(batch.rows.to_list()) == {b"row"}


@pytest.mark.parametrize("keys", [[b"12345678"] * 300, [b"1", b"123"] * 150])
def test_one_wrong_length_among_many(keys: list[bytes]) -> None:
    data = encoded(keys, [b"row"] * 300)
    batch = KvBatch.parse(data)
    for record in (0, 1, 150, 299):
        position = int(batch.keys.starts[record]) - 5
        length = len(keys[record]) + 4
        broken = bytearray(data)
        struct.pack_into("<i", broken, position, length + 256)  # the lowest byte still tells the truth
        with pytest.raises(FormatError):
            KvBatch.parse(broken, verify=False)
        for wrong in (2**30, -1, 0):
            struct.pack_into("<i", broken, position, wrong)
            with pytest.raises(FormatError, match=f"length of record {record} at byte {position}: {wrong} bytes"):
                KvBatch.parse(broken, verify=False)


def test_sliced_keys_and_rows() -> None:
    keys, rows = Slices.from_list([b"a", b"b", b"c"]), Slices.from_list([b"1", b"2", b"3"])
    body = encode_kv_body(keys.take([2, 0]), rows.take([2, 0]))
    batch = KvBatch.parse(b"".join(seal_kv_batch(body, 1)))
    assert list(zip(batch.keys.to_list(), batch.rows.to_list())) == [(b"c", b"3"), (b"a", b"1")]


def test_arguments_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = Slices.from_list([b"k"]), Slices.from_list([b"1", b"2"])
    with pytest.raises(InvalidArgumentError, match="as many rows and delete marks"):
        encode_kv_body(one, two)
    with pytest.raises(InvalidArgumentError, match="as many rows and delete marks"):
        encode_kv_body(one, one, np.array([True, False]))
    with pytest.raises(InvalidArgumentError, match="record 1 has an empty row"):
        encode_kv_body(two, Slices.from_list([b"r", b""]))
    with pytest.raises(InvalidArgumentError, match="record 0 has an empty row"):
        encode_kv_body(two, Slices.from_list([b"", b""]), np.array([False, True]))
    with pytest.raises(InvalidArgumentError, match="schema id -1"):
        seal_kv_batch(encode_kv_body(one, one), -1)
    monkeypatch.setattr(kv_batch, "INT32_MAX", 30)
    with pytest.raises(InvalidArgumentError, match="too many for one KV batch"):
        encode_kv_body(one, one)


@pytest.mark.parametrize(
    ("position", "fmt", "value", "problem"),
    [
        (0, "<i", 44, "length at byte 0: 44 bytes are announced, 43 follow"),
        (0, "<i", -1, "length at byte 0"),
        (4, "<b", 1, "magic at byte 4"),
        (24, "<i", -1, "record count at byte 28"),
        (24, "<i", KV_RECORDS_MAX, "record count at byte 28"),
        (24, "<i", 1, "6 bytes are left after 1 records"),
        (24, "<i", 3, "length of record 2 at byte 47"),
        (28, "<i", 0, "length of record 0 at byte 28"),
        (28, "<i", -4, "length of record 0 at byte 28"),
        (28, "<i", 2**31 - 1, "length of record 0 at byte 28"),
        (32, "<B", 9, "key length of record 0 at byte 32: 9 bytes do not fit into a record of 9"),
        (45, "<B", 0x80, "key length of record 1"),
        (45, "<H", 0x8080, "key length of record 1 at byte 45: the varint does not end"),
        (32, "<Q", 2**64 - 1, "key length of record 0 at byte 32: the varint does not end"),
    ],
)
def test_bytes_that_cannot_be(position: int, fmt: str, value: int, problem: str) -> None:
    data = bytearray(vectors.KV_UPSERT_DELETE)
    struct.pack_into(fmt, data, position, value)
    with pytest.raises(FormatError, match=problem):
        KvBatch.parse(data, verify=False)


def test_records_have_a_limit() -> None:
    """A retry would not help, so it is no damage."""
    keys, values = [b"k"] * KV_RECORDS_MAX, [b"v"] * KV_RECORDS_MAX
    assert KvBatch.parse(encoded(keys, values)).record_count == KV_RECORDS_MAX
    with pytest.raises(
        RecordTooLargeError, match=r"262145 records has more than 262144\. .* lower 'writer.batch-size'"
    ):
        KvBatch.parse(encoded([*keys, b"k"], [*values, b"v"]))


def test_damage_is_seen() -> None:
    for position in range(9, len(vectors.KV_UPSERT_DELETE)):
        data = bytearray(vectors.KV_UPSERT_DELETE)
        data[position] ^= 0x10
        with pytest.raises(CorruptMessageError, match="is damaged"):
            KvBatch.parse(data)
    for cut in range(len(vectors.KV_UPSERT_DELETE)):
        with pytest.raises(FormatError):
            KvBatch.parse(vectors.KV_UPSERT_DELETE[:cut])


def test_the_batch_of_a_java_server_byte_for_byte() -> None:
    assert decode_value_batch(vectors.VALUE_BATCH).to_list() == [vectors.STORED_VALUE] * 2
    assert encode_value_batch([vectors.STORED_VALUE] * 2) == vectors.VALUE_BATCH
    assert encode_value_batch(Slices.from_list([vectors.STORED_VALUE] * 2)) == vectors.VALUE_BATCH


@given(st.lists(st.binary(min_size=2, max_size=300), max_size=50))
def test_value_batch_round_trip(values: list[bytes]) -> None:
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
def test_bytes_that_cannot_be_a_value_batch(position: int, fmt: str, value: int, problem: str) -> None:
    data = bytearray(vectors.VALUE_BATCH)
    struct.pack_into(fmt, data, position, value)
    with pytest.raises(FormatError, match=problem):
        decode_value_batch(data)


def test_cut_batches() -> None:
    for cut in range(len(vectors.VALUE_BATCH)):
        with pytest.raises(FormatError):
            decode_value_batch(vectors.VALUE_BATCH[:cut])
