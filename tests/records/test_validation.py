# SPDX-License-Identifier: Apache-2.0
"""Batches with a valid checksum and invalid content: refused before Arrow trusts them."""

from __future__ import annotations

import gc
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from tests.records.forge import CODECS, Parts, resealed, sealed
from tests.records.tables import ALL_TYPES, ID_NAME, NESTED, NESTED_ROWS, ROW_A, ROW_B, tables, to_batch, to_rows

from fluss.errors import FormatError
from fluss.metadata import Schema
from fluss.records import LogBatch, check_log_batch, decode_arrow_batch, encode_arrow_body, encode_row_body
from fluss.records.arrow_layout import RECORDS_MAX
from fluss.records.arrow_message import read_message

Change = Callable[[Parts], None]

ROWS = [(1, "one"), (2, "zwei"), (3, "trois")]
NAME_OFFSETS, NAME_BYTES = 3, 4
# Nodes of NESTED: id, numbers, its items, words, its items, properties, entries, keys, values, pair, a, b.
NUMBERS, WORDS, WORD_ITEMS, PROPERTIES, ENTRIES, KEYS, PAIR, PAIR_A = 1, 3, 4, 5, 6, 7, 9, 10
NUMBERS_OFFSETS, WORDS_OFFSETS, WORD_ITEM_OFFSETS, PROPERTIES_OFFSETS = 3, 7, 9, 12


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def buffer(index: int, content: bytes) -> Change:
    def change(parts: Parts) -> None:
        parts.buffers[index] = content

    return change


def node(index: int, *, length: int | None = None, nulls: int | None = None) -> Change:
    def change(parts: Parts) -> None:
        if length is not None:
            parts.nodes[2 * index] = length
        if nulls is not None:
            parts.nodes[2 * index + 1] = nulls

    return change


def forged(schema: Schema, rows: list[Any], change: Change) -> Parts:
    parts = Parts.of(to_batch(schema, rows))
    change(parts)
    return parts


FLAT_VALUES: dict[str, tuple[Change, str]] = {
    "far away": (buffer(NAME_OFFSETS, ints(0, 3, 2**30, 12)), "offset 3 is 12 after 1073741824"),
    "backwards": (buffer(NAME_OFFSETS, ints(0, 7, 3, 12)), "offset 2 is 3 after 7"),
    "negative": (buffer(NAME_OFFSETS, ints(-9, 3, 7, 12)), "reach from -9 to 12"),
    "beyond the bytes": (buffer(NAME_OFFSETS, ints(0, 3, 7, 13)), "reach from 0 to 13, but must lie within 0..12"),
    "no bytes": (buffer(NAME_BYTES, b""), "must lie within 0..0"),
    "nulls that are none": (
        lambda parts: (node(1, nulls=2)(parts), buffer(2, b"\x05")(parts))[0],
        "2 nulls are announced, the validity bits say 1",
    ),
}
FLAT_TEXT: dict[str, tuple[Change, str]] = {
    "not UTF-8": (buffer(NAME_BYTES, b"onezwei\xfftroi"), "strings of field node 1"),
    "half a character": (buffer(NAME_BYTES, "onezweé".encode() + b"rois"), "strings of field node 1"),
}
FLAT_SIZES: dict[str, tuple[Change, str]] = {
    "few values": (buffer(1, bytes(8)), "8 bytes are too few for 3 values of 32 bits"),
    "few offsets": (buffer(NAME_OFFSETS, ints(0, 3, 7)), "12 bytes are too few for the offsets of 3 values"),
    "no validity": (node(0, nulls=1), "0 bytes are too few for the validity of 3 values"),
}
NESTED_VALUES: dict[str, tuple[Change, str]] = {
    "list beyond its items": (buffer(NUMBERS_OFFSETS, ints(0, 3, 4)), "must lie within 0..3"),
    "list backwards": (buffer(NUMBERS_OFFSETS, ints(0, 2**30, 3)), "offset 2 is 3 after"),
    "strings in a list": (buffer(WORD_ITEM_OFFSETS, ints(0, 1, -5, 18)), "offset 2 is -5 after 1"),
    "map beyond its entries": (buffer(PROPERTIES_OFFSETS, ints(0, 2, 3)), "must lie within 0..2"),
}
NESTED_SIZES: dict[str, tuple[Change, str]] = {
    "null keys": (
        lambda parts: (node(KEYS, nulls=1)(parts), buffer(14, b"\x01")(parts))[0],
        "entries or keys of a map are null",
    ),
    "null entries": (
        lambda parts: (node(ENTRIES, nulls=1)(parts), buffer(13, b"\x01")(parts))[0],
        "entries or keys of a map are null",
    ),
    "short struct": (node(PAIR_A, length=1), "1 values in a struct of 2"),
    "long items": (node(WORD_ITEMS, length=2**31 - 1), "buffer . of field node 4"),
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("case", [*FLAT_VALUES, *FLAT_TEXT, *FLAT_SIZES])
def test_flat_columns(case: str, codec: str) -> None:
    change, problem = {**FLAT_VALUES, **FLAT_TEXT, **FLAT_SIZES}[case]
    data = forged(ID_NAME, ROWS, change).batch(codec)
    LogBatch(data).verify_crc()
    with pytest.raises(FormatError, match=problem):
        decode_arrow_batch(LogBatch(data), ID_NAME.arrow_schema)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("case", [*NESTED_VALUES, *NESTED_SIZES])
def test_nested_columns(case: str, codec: str) -> None:
    change, problem = {**NESTED_VALUES, **NESTED_SIZES}[case]
    data = forged(NESTED, NESTED_ROWS, change).batch(codec)
    with pytest.raises(FormatError, match=problem):
        decode_arrow_batch(LogBatch(data), NESTED.arrow_schema)


@pytest.mark.parametrize(("cases", "schema", "rows"), [
    (FLAT_VALUES, ID_NAME, ROWS), (FLAT_SIZES, ID_NAME, ROWS),
    (NESTED_VALUES, NESTED, NESTED_ROWS), (NESTED_SIZES, NESTED, NESTED_ROWS),
])  # fmt: skip
def test_servers_refuse_it_uncompressed(cases: dict[str, tuple[Change, str]], schema: Schema, rows: list[Any]) -> None:
    for change, problem in cases.values():
        batch = LogBatch(forged(schema, rows, change).batch())
        with pytest.raises(FormatError, match=problem):
            check_log_batch(batch, schema.arrow_schema)


@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD"])
@pytest.mark.parametrize(("cases", "schema", "rows"), [
    (FLAT_VALUES, ID_NAME, ROWS), (FLAT_SIZES, ID_NAME, ROWS),
    (NESTED_VALUES, NESTED, NESTED_ROWS), (NESTED_SIZES, NESTED, NESTED_ROWS),
])  # fmt: skip
def test_servers_refuse_all_of_it_in_compressed_batches(
    cases: dict[str, tuple[Change, str]], schema: Schema, rows: list[Any], codec: str
) -> None:
    for change, problem in cases.values():
        with pytest.raises(FormatError, match=problem):
            check_log_batch(LogBatch(forged(schema, rows, change).batch(codec)), schema.arrow_schema)


@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD"])
def test_servers_decompress_null_bits_and_offsets_and_no_more_than_they_may(codec: str) -> None:
    batch = LogBatch(Parts.of(to_batch(ID_NAME, ROWS)).batch(codec))
    checked = check_log_batch(batch, ID_NAME.arrow_schema)
    assert checked >= 4 * (len(ROWS) + 1)
    assert check_log_batch(batch, ID_NAME.arrow_schema, check_bytes_max=checked) == checked
    with pytest.raises(FormatError, match="write fewer rows at a time"):
        check_log_batch(batch, ID_NAME.arrow_schema, check_bytes_max=checked - 1)


@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD"])
@pytest.mark.parametrize("declared", [17, 100, 5000])
def test_servers_notice_offsets_that_are_announced_and_missing(codec: str, declared: int) -> None:
    batch = LogBatch(Parts.of(to_batch(ID_NAME, ROWS)).batch(codec, declared={3: declared}))
    with pytest.raises(FormatError, match="it cannot be decompressed"):
        check_log_batch(batch, ID_NAME.arrow_schema)


@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD"])
def test_content_that_does_not_decompress_leaves_no_memory_behind(codec: str) -> None:
    """Batches that are refused must not use up the memory of a server."""
    rows = [(i, f"name {i}") for i in range(20_000)]
    data = bytearray(Parts.of(to_batch(ID_NAME, rows)).batch(codec))
    message = read_message(LogBatch(data).arrow_view)
    first_block = message.body_start + message.buffers[2 * NAME_OFFSETS] + 8 + 7  # behind a length and a frame header
    start = len(data) - len(LogBatch(data).arrow_view)
    data[start + first_block : start + first_block + 4] = b"\xff\xff\xff\x7f"
    batch = LogBatch(resealed(bytes(data)))

    def used_after(times: int) -> int:
        for _ in range(times):
            with pytest.raises(FormatError, match="it cannot be decompressed"):
                check_log_batch(batch, ID_NAME.arrow_schema)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        first, last = used_after(1), used_after(19)
    finally:
        tracemalloc.stop()
    assert last - first < 20_000  # each read is of 80,000 bytes


@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD"])
@pytest.mark.parametrize(
    ("declared", "problem"),
    [
        (2**40, "decompresses to more than 536870912 allowed bytes"),
        (-2, "uncompressed length -2 is negative"),
        (4, "4 bytes are too few for 3 values of 32 bits"),
    ],
)
def test_sizes_that_compressed_buffers_announce(codec: str, declared: int, problem: str) -> None:
    batch = LogBatch(Parts.of(to_batch(ID_NAME, ROWS)).batch(codec, declared={1: declared}))
    for check in (check_log_batch, decode_arrow_batch):
        with pytest.raises(FormatError, match=problem):
            check(batch, ID_NAME.arrow_schema)


@pytest.mark.parametrize("codec", ["LZ4_FRAME", "ZSTD"])
@pytest.mark.parametrize("declared", [13, 100, 5000])
def test_readers_notice_bytes_that_are_announced_and_missing(codec: str, declared: int) -> None:
    # A decompressor that believed it would leave foreign memory at the end of the buffer.
    batch = LogBatch(Parts.of(to_batch(ID_NAME, ROWS)).batch(codec, declared={1: declared}))
    with pytest.raises(FormatError, match="malformed Arrow message"):
        decode_arrow_batch(batch, ID_NAME.arrow_schema)


def test_announced_bytes_of_which_none_are_stored() -> None:
    parts = Parts.of(to_batch(ID_NAME, ROWS))
    message = bytearray(parts.message("LZ4_FRAME"))
    # Shorten the entry of buffer 1 to its length prefix.
    entry = struct.pack("<2q", 0, len(pa.Codec("lz4").compress(parts.buffers[1])) + 8)
    at = message.index(entry)
    message[at : at + 16] = struct.pack("<2q", 0, 8)
    for check in (check_log_batch, decode_arrow_batch):
        with pytest.raises(FormatError, match="12 bytes are announced, none are stored"):
            check(LogBatch(sealed(bytes(message), 3)), ID_NAME.arrow_schema)


def test_counts_of_header_and_schema() -> None:
    parts = Parts.of(to_batch(ID_NAME, ROWS))
    with pytest.raises(FormatError, match="4 rows that the batch header says"):
        check_log_batch(LogBatch(parts.batch(record_count=4)), ID_NAME.arrow_schema)
    with pytest.raises(FormatError, match="16777217 records are more than 16777216 allowed"):
        check_log_batch(LogBatch(parts.batch(record_count=RECORDS_MAX + 1)), ID_NAME.arrow_schema)
    with pytest.raises(FormatError, match="2 field nodes and 5 buffers, but schema 1 has"):
        check_log_batch(LogBatch(parts.batch()), ALL_TYPES.arrow_schema)
    with pytest.raises(FormatError, match="empty batch carries bytes"):
        check_log_batch(LogBatch(parts.batch(record_count=0)), ID_NAME.arrow_schema)
    check_log_batch(LogBatch(sealed(b"", 0)), ID_NAME.arrow_schema)


def test_change_types() -> None:
    parts = Parts.of(to_batch(ID_NAME, ROWS))
    check_log_batch(LogBatch(parts.batch(change_types=bytes([1, 2, 3]))), ID_NAME.arrow_schema)
    with pytest.raises(FormatError, match="9 is not a change type"):
        check_log_batch(LogBatch(parts.batch(change_types=bytes([1, 9, 3]))), ID_NAME.arrow_schema)
    with pytest.raises(FormatError, match="255 is not a change type"):
        check_log_batch(LogBatch(parts.batch(change_types=bytes([1, 2]))), ID_NAME.arrow_schema)


@pytest.mark.parametrize("fmt", ["INDEXED", "COMPACTED"])
def test_row_formats(fmt: str) -> None:
    body = encode_row_body(fmt, ID_NAME.data_types, to_batch(ID_NAME, ROWS))
    records = b"".join(body.parts)
    check_log_batch(LogBatch(sealed(records, 3)), ID_NAME.arrow_schema, fmt)
    with pytest.raises(FormatError, match=f"1000 records do not fit into {len(records)} bytes"):
        check_log_batch(LogBatch(sealed(records, 1000)), ID_NAME.arrow_schema, fmt)


@pytest.mark.parametrize("codec", CODECS)
@settings(deadline=None, max_examples=60)
@given(table=tables(rows_min=1))
def test_honest_batches_pass(codec: str, table: tuple[Schema, list[Any]]) -> None:
    schema, rows = table
    batch = LogBatch(Parts.of(to_batch(schema, rows)).batch(codec))
    check_log_batch(batch, schema.arrow_schema)
    assert to_rows(decode_arrow_batch(batch, schema.arrow_schema), schema) == rows


@pytest.mark.parametrize("shift", range(8))
def test_bytes_at_any_address(shift: int) -> None:
    data = Parts.of(to_batch(ID_NAME, ROWS)).batch()
    view = memoryview(bytes(shift) + data)[shift:]
    check_log_batch(LogBatch(view), ID_NAME.arrow_schema)
    bad = forged(ID_NAME, ROWS, FLAT_VALUES["backwards"][0]).batch()
    with pytest.raises(FormatError, match="offset 2 is 3 after 7"):
        check_log_batch(LogBatch(memoryview(bytes(shift) + bad)[shift:]), ID_NAME.arrow_schema)


TEXT = Schema(pa.schema([("text", pa.string())]))


@pytest.mark.parametrize("codec", CODECS)
def test_text_of_all_alphabets(codec: str) -> None:
    words = ["", "plain", "héllo", "шесть", "漢字", "🙂", "", None, "é"]
    batch = LogBatch(Parts.of(to_batch(TEXT, [(word,) for word in words])).batch(codec))
    check_log_batch(batch, TEXT.arrow_schema)
    assert decode_arrow_batch(batch, TEXT.arrow_schema).column(0).to_pylist() == words


@pytest.mark.parametrize("codec", CODECS)
def test_anything_may_stand_behind_a_null(codec: str) -> None:
    parts = Parts.of(to_batch(TEXT, [("one",), (None,), ("é",)]))
    parts.buffers[1:] = [ints(0, 3, 5, 7), b"one\xff\xff\xc3\xa9"]
    batch = LogBatch(parts.batch(codec))
    check_log_batch(batch, TEXT.arrow_schema)
    assert decode_arrow_batch(batch, TEXT.arrow_schema).column(0).to_pylist() == ["one", None, "é"]


def test_bits_of_a_column_without_nulls_do_not_matter() -> None:
    # Java writes them always; nothing says how many they are where no null is announced.
    for codec in CODECS:
        parts = Parts.of(to_batch(ID_NAME, ROWS))
        parts.buffers[0] = b"\x00"
        batch = LogBatch(parts.batch(codec))
        check_log_batch(batch, ID_NAME.arrow_schema)
        decoded = decode_arrow_batch(batch, ID_NAME.arrow_schema)
        decoded.validate(full=True)
        assert decoded.column(0).to_pylist() == [1, 2, 3]


def test_all_types_pass() -> None:
    for codec in CODECS:
        data = Parts.of(to_batch(ALL_TYPES, [ROW_A, ROW_B] * 40)).batch(codec)
        check_log_batch(LogBatch(data), ALL_TYPES.arrow_schema)


def test_large_batches_pass_and_fail() -> None:
    count = 70_000
    rows = pa.RecordBatch.from_arrays(
        [pa.array(np.arange(count, dtype=np.int32)), pa.array([f"name-{i}" for i in range(count)])],
        schema=ID_NAME.arrow_schema,
    )
    data = b"".join(encode_arrow_body(rows, compression="NONE").parts)
    check_log_batch(LogBatch(sealed(data, count)), ID_NAME.arrow_schema)
    parts = Parts.of(rows)
    offsets = np.frombuffer(parts.buffers[NAME_OFFSETS], np.int32).copy()
    offsets[50_000] = offsets[50_002]
    parts.buffers[NAME_OFFSETS] = offsets.tobytes()
    with pytest.raises(FormatError, match="offset 50001 is "):
        check_log_batch(LogBatch(parts.batch()), ID_NAME.arrow_schema)
