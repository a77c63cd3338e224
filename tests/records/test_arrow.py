# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import math
import random
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.records import vectors
from tests.records.tables import ALL_TYPES, ID_NAME, NESTED, NESTED_ROWS, ROW_A, ROW_B, tables, to_batch, to_rows

from fluss.errors import FormatError, InvalidArgumentError
from fluss.metadata import ChangeType, Schema
from fluss.metadata.types import data_type_from_json
from fluss.records import LogBatch, decode_arrow_batch, decode_log_batch, encode_arrow_body, read_header, seal_log_batch
from fluss.records import arrow as arrow_module
from fluss.records.arrow_layout import layout_of
from fluss.records.arrow_message import LZ4_FRAME, ZSTD, read_message, write_metadata
from fluss.records.log_batch import EncodedBody
from fluss.records.validation import STORED_RAW

COMPRESSIONS = ["NONE", "LZ4_FRAME", "ZSTD"]
TWO_ROWS = [(1, "a"), (2, "bb")]
LONG_ROWS = [(1, "a" * 40), (2, "b" * 40)]
CONTENT: dict[str, tuple[Schema, list[Any]]] = {
    "ARROW_PLAIN": (ID_NAME, TWO_ROWS),
    "ARROW_PLAIN_64": (ID_NAME, TWO_ROWS),
    "ARROW_NULLS": (ID_NAME, [(3, None), (None, "x")]),
    "ARROW_ZSTD_RAW": (ID_NAME, TWO_ROWS),
    "ARROW_ZSTD": (ID_NAME, LONG_ROWS),
    "ARROW_ZSTD_64": (ID_NAME, LONG_ROWS),
    "ARROW_LZ4": (ID_NAME, LONG_ROWS),
    "CHANGELOG": (ID_NAME, TWO_ROWS),
    "EMPTY": (ID_NAME, []),
    "V1_STATISTICS": (ID_NAME, TWO_ROWS),
    "V1_STATISTICS_64": (ID_NAME, TWO_ROWS),
    "V2": (ID_NAME, TWO_ROWS),
    "ALL_TYPES": (ALL_TYPES, [ROW_A, ROW_B]),
    "NESTED": (NESTED, NESTED_ROWS),
}


def sealed(batch: pa.RecordBatch, **options: Any) -> LogBatch:
    return LogBatch(b"".join(seal_log_batch(encode_arrow_body(batch, **options), schema_id=1, writer_id=7)))


def with_message(message: bytes, record_count: int = 2) -> LogBatch:
    return LogBatch(b"".join(seal_log_batch(EncodedBody([message], len(message), record_count, True), schema_id=1)))


@pytest.mark.parametrize("name", CONTENT)
def test_batches_of_other_implementations(name: str) -> None:
    schema, rows = CONTENT[name]
    batch = LogBatch(vectors.LOG_BATCHES[name])
    decoded = decode_arrow_batch(batch, schema.arrow_schema)
    assert to_rows(decoded, schema) == rows
    assert decoded.schema == schema.arrow_schema
    assert to_rows(decode_log_batch(batch, schema), schema) == rows


@pytest.mark.parametrize("name", ["ALL_TYPES", "NESTED"])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_our_batches_of_the_same_rows(name: str, compression: str) -> None:
    schema, rows = CONTENT[name]
    batch = sealed(to_batch(schema, rows), compression=compression)
    batch.verify_crc()
    assert to_rows(decode_arrow_batch(batch, schema.arrow_schema), schema) == rows


def test_empty_batch_byte_for_byte() -> None:
    body = encode_arrow_body(to_batch(ID_NAME, []), change_types=[])
    assert b"".join(seal_log_batch(body, schema_id=1, writer_id=7, batch_sequence=3)) == vectors.EMPTY


@pytest.mark.parametrize("magic", [0, 1, 2])
@pytest.mark.parametrize("change_types", [None, [2, 3]])
def test_bodies_do_not_depend_on_the_header(magic: int, change_types: Any) -> None:
    body = encode_arrow_body(to_batch(ID_NAME, TWO_ROWS), compression="NONE", change_types=change_types)
    batch = LogBatch(b"".join(seal_log_batch(body, schema_id=1, writer_id=7, batch_sequence=0, magic=magic)))
    batch.verify_crc()
    assert batch.header.magic == magic
    assert to_rows(decode_arrow_batch(batch, ID_NAME.arrow_schema), ID_NAME) == TWO_ROWS
    found = batch.change_types()
    assert (None if found is None else found.tolist()) == change_types


def test_statistics_make_it_magic_1() -> None:
    statistics = LogBatch(vectors.V1_STATISTICS).statistics_view
    assert statistics is not None
    body = encode_arrow_body(
        to_batch(ID_NAME, TWO_ROWS), compression="NONE", change_types=b"\0\0", statistics=bytes(statistics)
    )
    batch = LogBatch(b"".join(seal_log_batch(body, schema_id=1, writer_id=7, batch_sequence=0)))
    assert batch.header.magic == 1
    assert batch.statistics_view == statistics
    # The Arrow message is longer than Java's by a few bytes, everything in front of it is the same but for that.
    expected = read_header(vectors.V1_STATISTICS)
    assert batch.header._replace(length=0, crc=0) == expected._replace(length=0, crc=0)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("large", [False, True])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_round_trip(compression: str, large: bool, data: st.DataObject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_module, "_THREADS_VALUES_MIN", 0 if large else 10**9)
    if data.draw(st.booleans()):  # as if nothing became smaller
        monkeypatch.setattr(arrow_module, "_RAW_BYTES_MIN", 1)
        monkeypatch.setattr(arrow_module, "_RAW_SHARE_MIN", data.draw(st.sampled_from([0, 0.9])))
    else:
        monkeypatch.setattr(arrow_module, "_RAW_BYTES_MIN", 10**9)
    schema, rows = data.draw(tables())
    whole = to_batch(schema, rows)
    start = data.draw(st.integers(0, len(rows)))
    stop = data.draw(st.integers(start, len(rows)))
    change_types = data.draw(st.none() | st.lists(st.integers(0, 4), min_size=stop - start, max_size=stop - start))
    part = whole.slice(start, stop - start)
    batch = sealed(part, compression=compression, level=1, change_types=change_types)
    batch.verify_crc()
    decoded = decode_arrow_batch(batch, schema.arrow_schema)
    assert decoded.equals(part)
    assert to_rows(decoded, schema) == rows[start:stop]
    found = batch.change_types()
    assert (None if found is None else found.tolist()) == change_types


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_round_trip_of_many_columns(compression: str) -> None:
    columns = 200
    arrays = [pa.array([None, "a", str(i)]) if i % 2 else pa.array([i, None, -i]) for i in range(columns)]
    batch = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(columns)])
    assert decode_arrow_batch(sealed(batch, compression=compression), batch.schema).equals(batch)


@pytest.mark.parametrize("offset", [1, 8, 13])
def test_large_slices_are_sent_as_slices(offset: int) -> None:
    rows = 5000
    whole = pa.record_batch(
        {
            "number": pa.array(range(rows)),
            "text": pa.array([f"text {i}" for i in range(rows)]),
            "holes": pa.array([None if i % 3 else i for i in range(rows)]),
            "flag": pa.array([bool(i % 5) for i in range(rows)]),
            "list": pa.array([[i, i + 1] if i % 4 else None for i in range(rows)]),
            "nothing": pa.array([None] * rows, pa.string()),
            "empty": pa.array([b""] * rows),
        }
    )
    part = whole.slice(offset, 100)
    body = encode_arrow_body(part, compression="NONE")
    assert body.size_bytes < 12_000
    batch = LogBatch(b"".join(seal_log_batch(body, schema_id=1)))
    assert decode_arrow_batch(batch, part.schema).equals(part)


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_a_batch_may_be_sealed_more_than_once(compression: str) -> None:
    rows = pa.RecordBatch.from_pydict({"a": list(range(100_000)), "b": [f"{i * 7919}" for i in range(100_000)]})
    body = encode_arrow_body(rows, compression=compression)
    for sequence in range(3):
        batch = LogBatch(b"".join(seal_log_batch(body, schema_id=1, writer_id=77, batch_sequence=sequence)))
        batch.verify_crc()
        assert batch.header.batch_sequence == sequence


def test_uncompressed_columns_point_into_the_batch() -> None:
    source = pa.record_batch({"n": pa.array(range(1000)), "s": pa.array(["x"] * 1000)})
    data = b"".join(seal_log_batch(encode_arrow_body(source, compression="NONE"), schema_id=1))
    start = pa.py_buffer(data).address
    decoded = decode_arrow_batch(LogBatch(data), source.schema)
    assert start < decoded.column(0).buffers()[1].address < start + len(data)


@pytest.mark.parametrize("shift", range(8))
def test_decoded_buffers_are_aligned(shift: int) -> None:
    source = pa.record_batch({"n": pa.array(range(1000)), "s": pa.array(["x"] * 1000)})
    data = bytes(shift) + b"".join(
        seal_log_batch(encode_arrow_body(source, compression="NONE", change_types=[1] * 1000), schema_id=1)
    )
    batch = LogBatch(memoryview(data)[shift:])
    decoded = decode_arrow_batch(batch, source.schema)
    assert decoded.column(0).buffers()[1].address % 8 == 0
    assert decoded.equals(source)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_decoding_some_columns(compression: str, data: st.DataObject) -> None:
    schema, rows = data.draw(tables())
    source = to_batch(schema, rows)
    batch = sealed(source, compression=compression)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(schema.columns) - 1), min_size=1)))
    decoded = decode_arrow_batch(batch, schema.arrow_schema, columns=chosen)
    assert decoded.equals(source.select(chosen))


@pytest.mark.parametrize("codec", [LZ4_FRAME, ZSTD])
def test_empty_buffers_as_java_writes_them(codec: int) -> None:
    """An empty buffer is a length of zero without a frame behind it."""

    def raw(data: bytes) -> bytes:
        return b"\xff" * 8 + data

    pieces = [bytes(8), raw(struct.pack("<2i", 1, 2)), raw(b"\x03"), raw(bytes(12)), bytes(8)]
    buffers: list[int] = []
    body = b""
    for piece in pieces:
        buffers += (len(body), len(piece))
        body += piece + bytes(-len(piece) % 8)
    message = write_metadata(2, [2, 0, 2, 0], buffers, codec, len(body)) + body
    decoded = decode_arrow_batch(with_message(message), ID_NAME.arrow_schema)
    assert to_rows(decoded, ID_NAME) == [(1, ""), (2, "")]


@pytest.mark.parametrize(
    "around",
    [
        lambda inner: {"type": "ARRAY", "element_type": inner},
        lambda inner: {"type": "MAP", "key_type": {"type": "INTEGER"}, "value_type": inner},
        lambda inner: {"type": "ROW", "fields": [{"name": "x", "field_type": inner}]},
    ],
)
def test_the_deepest_types_of_tables_can_be_written(around: Callable[[Any], Any]) -> None:
    document: Any = {"type": "INTEGER"}
    deepest = data_type_from_json(document)
    with contextlib.suppress(FormatError):
        while True:
            document = around(document)
            deepest = data_type_from_json(document)
    layout_of(pa.schema([("c", deepest.to_arrow())]))


def test_arguments_that_make_no_sense() -> None:
    batch = to_batch(ID_NAME, TWO_ROWS)
    with pytest.raises(InvalidArgumentError, match="compression 'SNAPPY' is not known"):
        encode_arrow_body(batch, compression="SNAPPY")
    with pytest.raises(InvalidArgumentError, match=r"ZSTD level 23 is outside 1\.\.22"):
        encode_arrow_body(batch, level=23)
    for change_types in ([1], [1, 5], [1, -1], [0.5, 1], b"\x00\x07", [[1, 2]]):
        with pytest.raises(InvalidArgumentError, match="change types"):
            encode_arrow_body(batch, change_types=change_types)
    assert encode_arrow_body(batch, change_types=[ChangeType.INSERT, ChangeType.DELETE]).parts[0] == b"\x01\x04"
    for column in (pa.array(["a"]).dictionary_encode(), pa.array(["a"], pa.large_string()), pa.nulls(1)):
        with pytest.raises(InvalidArgumentError, match="cannot stand in a log batch"):
            encode_arrow_body(pa.record_batch({"c": column}))
    deep = pa.int32()
    for _ in range(70):
        deep = pa.list_(deep)
    with pytest.raises(InvalidArgumentError, match="nested deeper than 64"):
        layout_of(pa.schema([("c", deep)]))


@pytest.mark.parametrize("rows", [1, 50])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_digits_beyond_a_precision_pass_whatever_the_number_of_rows(compression: str, rows: int) -> None:
    schema = pa.schema([("d", pa.decimal128(5, 2))])
    wide = pa.array([Decimal("12345678.90")] * rows, pa.decimal128(10, 2)).buffers()
    batch = pa.record_batch([pa.Array.from_buffers(schema.field(0).type, rows, wide)], schema=schema)
    body = encode_arrow_body(batch, compression=compression)
    decoded = decode_arrow_batch(LogBatch(b"".join(map(bytes, seal_log_batch(body, schema_id=1)))), schema)
    assert decoded.num_rows == rows


def test_bodies_that_are_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_module, "INT32_MAX", 300)
    with pytest.raises(InvalidArgumentError, match=r"2 rows encode to .* too many for one batch"):
        encode_arrow_body(to_batch(ID_NAME, TWO_ROWS), compression="NONE")


def test_layouts_are_remembered_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from fluss.records import arrow_layout

    monkeypatch.setattr(arrow_layout, "_REMEMBERED_MAX", 3)
    arrow_layout._layouts_by_identity.clear()
    schemas = [pa.schema([(f"c{i}", pa.int32()), ("s", pa.string()), ("t", pa.string())]) for i in range(10)]
    for schema in schemas * 2:
        layout = layout_of(schema)
        assert layout.schema == schema
        for positions in ((0,), (1,), (0, 1), (1, 2), (1,)):
            assert layout.select(positions).schema.names == [schema.names[p] for p in positions]
        assert len(arrow_layout._layouts_by_identity) <= 3
        assert len(layout._selections) <= 3
    assert layout_of(pa.schema([])).node_count == 0


# -- bad bytes ---------------------------------------------------------------------------------------------------------


def message_of(name: str) -> bytes:
    return LogBatch(vectors.LOG_BATCHES[name]).arrow_view.tobytes()


def test_decompression_bombs_are_refused_before_anything_is_allocated() -> None:
    source = pa.record_batch({"s": pa.array(["\0" * 50_000_000])})
    for compression in ("LZ4_FRAME", "ZSTD"):
        batch = sealed(source, compression=compression)
        assert batch.header.size_bytes < 300_000
        with pytest.raises(FormatError, match=r"buffer 2.* decompresses to more than 1000000 allowed bytes"):
            decode_arrow_batch(batch, source.schema, max_bytes=1_000_000)
        assert decode_arrow_batch(batch, source.schema).equals(source)
    plain = sealed(source, compression="NONE")
    with pytest.raises(FormatError, match="more than 1000000 allowed"):
        decode_arrow_batch(plain, source.schema, max_bytes=1_000_000)


def test_declared_lengths_that_lie() -> None:
    message = bytearray(message_of("ARROW_ZSTD"))
    start = message.index(struct.pack("<q", 80) + b"\x28\xb5\x2f\xfd")
    for declared, problem in [
        (2**40, "decompresses to more than"),
        (-2, "uncompressed length -2 is negative"),
        (81, "malformed Arrow message"),
        (79, "malformed Arrow message"),
        (0, "malformed Arrow message"),
    ]:
        message[start : start + 8] = struct.pack("<q", declared)
        with pytest.raises(FormatError, match=problem):
            decode_arrow_batch(with_message(bytes(message)), ID_NAME.arrow_schema)


def build(
    *,
    rows: int = 2,
    nodes: tuple[int, ...] = (2, 0, 2, 0),
    buffers: tuple[int, ...] = (0, 0, 0, 8, 8, 0, 8, 12, 24, 3),
    codec: int | None = None,
    body: bytes = struct.pack("<2i3i4x", 1, 2, 0, 1, 3) + b"abb\0\0\0\0\0",
    body_length: int | None = None,
) -> bytes:
    return write_metadata(rows, nodes, buffers, codec, len(body) if body_length is None else body_length) + body


def test_the_message_that_the_next_test_breaks_is_good() -> None:
    decoded = decode_arrow_batch(with_message(build()), ID_NAME.arrow_schema)
    assert to_rows(decoded, ID_NAME) == [(1, "a"), (2, "bb")]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rows": 3}, "2 rows that the batch header says"),
        ({"rows": -1}, "row count"),
        ({"rows": 2**40}, "row count"),
        ({"nodes": (2, 0)}, "1 field nodes and 5 buffers, but schema 1 has 2 and 5"),
        ({"nodes": ()}, "0 field nodes"),
        ({"buffers": ()}, "2 field nodes and 0 buffers"),
        ({"nodes": (2, 0, 1, 0)}, "2 rows that the batch header says"),
        ({"nodes": (2, 3, 2, 0)}, "field node 0 .* length 2 and null count 3 cannot be"),
        ({"nodes": (2, 0, 2, -1)}, "field node 1"),
        ({"nodes": (2, 0, 2**40, 0)}, "field node 1"),
        ({"buffers": (0, 0, 0, 8, 8, 0, 8, 12, 24, 90)}, "buffer 4 .* outside of the body of 32 bytes"),
        ({"buffers": (0, 0, -8, 8, 8, 0, 8, 12, 24, 3)}, "buffer 1 .* outside"),
        ({"buffers": (0, 0, 0, -8, 8, 0, 8, 12, 24, 3)}, "buffer 1 .* outside"),
        ({"buffers": (0, 0, 2**62, 2**62, 8, 0, 8, 12, 24, 3)}, "buffer 1 .* outside"),
        ({"buffers": (0, 0, 0, 8, 8, 0, 0, 32, 0, 32)}, "overlap"),
        ({"buffers": (0, 0, 0, 4, 8, 0, 8, 12, 24, 3)}, "4 bytes are too few for 2 values of 32 bits"),
        ({"buffers": (0, 0, 0, 8, 8, 0, 8, 4, 24, 3)}, "malformed Arrow message"),
        ({"nodes": (2, 1, 2, 0)}, "malformed Arrow message"),
        ({"body_length": 100}, "body length"),
        ({"body_length": -1}, "body length"),
        ({"codec": 2}, "compression codec .* 2 is not known"),
        ({"codec": ZSTD, "buffers": (0, 0, 0, 7, 8, 0, 8, 12, 24, 3)}, "buffer 1 .* too few for its length prefix"),
        ({"codec": LZ4_FRAME}, "buffer"),
    ],
)
def test_messages_that_cannot_be(changes: dict[str, Any], problem: str) -> None:
    batch = with_message(build(**changes))
    with pytest.raises(FormatError, match=problem):
        decode_arrow_batch(batch, ID_NAME.arrow_schema)


@pytest.mark.parametrize("at", [0, 150, 199])
@pytest.mark.parametrize(
    ("node", "buffer", "problem"),
    [
        (None, None, None),
        ((2, 3), None, "length 2 and null count 3 cannot be"),
        ((2, -1), None, "null count -1 cannot be"),
        ((2**40, 0), None, "cannot be"),
        (None, (-8, 8), "outside of the body"),
        (None, (0, -8), "outside of the body"),
        (None, (2**62, 2**62), "outside of the body"),
        (None, (1600, 8), "outside of the body"),
        (None, (0, 1000), "they overlap"),
    ],
)
def test_wide_messages_that_cannot_be(
    at: int, node: tuple[int, int] | None, buffer: tuple[int, int] | None, problem: str | None
) -> None:
    """Many columns are checked at once."""
    nodes = [(2, 0)] * 200
    buffers = [(8 * i, 8) for i in range(200)]
    nodes[at] = node or nodes[at]
    buffers[at] = buffer or buffers[at]
    flat = tuple(tuple(number for pair in pairs for number in pair) for pairs in (nodes, buffers))
    message = memoryview(write_metadata(2, flat[0], flat[1], None, 1600) + bytes(1600))
    if problem is None:
        assert (read_message(message).nodes, read_message(message).buffers) == flat
        return
    with pytest.raises(FormatError, match=problem):
        read_message(message)


def test_offsets_that_go_backwards_and_text_that_is_none() -> None:
    body = struct.pack("<2i3i4x", 1, 2, 0, 9, 3) + b"abb\0\0\0\0\0"
    with pytest.raises(FormatError, match="malformed Arrow message"):
        decode_arrow_batch(with_message(build(body=body)), ID_NAME.arrow_schema)
    text = struct.pack("<2i3i4x", 1, 2, 0, 1, 3) + b"\xff\xfe\xfd\0\0\0\0\0"
    with pytest.raises(FormatError, match="UTF8"):
        decode_arrow_batch(with_message(build(body=text)), ID_NAME.arrow_schema)


def test_bytes_after_an_empty_batch() -> None:
    with pytest.raises(FormatError, match="empty batch carries bytes"):
        decode_arrow_batch(with_message(b"more", record_count=0), ID_NAME.arrow_schema)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (b"", "prefix at byte 0: 0 bytes"),
        (b"\xff\xff\xff\xff\0\0", "prefix"),
        (b"\0\0\0\0" + bytes(60), "continuation marker at byte 0: found 00000000; is this an ARROW log table"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", -1) + bytes(60), "metadata size"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 61) + bytes(60), "metadata size"),
        (b"\xff\xff\xff\xff" + struct.pack("<i", 56) + bytes(60), "its size 0 is impossible"),
        (b"\xff\xff\xff\xff" + struct.pack("<iI", 56, 2**31) + bytes(60), "metadata table"),
        (b"\xff\xff\xff\xff" + struct.pack("<iIi", 56, 4, 2**30) + bytes(60), "metadata vtable"),
        (b"\xff\xff\xff\xff" + struct.pack("<iIiHH", 56, 4, -4, 400, 0) + bytes(60), "its size 400 is impossible"),
    ],
    ids=range(9),
)
def test_metadata_that_cannot_be(message: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read_message(memoryview(message))


def _changed(position: int, fmt: str, value: int) -> bytes:
    """The good message with one field of its metadata overwritten; positions as in `write_metadata`."""
    message = bytearray(build(codec=ZSTD, buffers=(0, 0, 0, 0, 0, 0, 0, 0, 0, 0)))
    struct.pack_into(fmt, message, 8 + position, value)
    return bytes(message)


@pytest.mark.parametrize(
    ("position", "fmt", "value", "problem"),
    [
        (32, "<h", 3, "metadata version .* found 3"),
        (34, "<B", 1, "header type .* found 1"),
        (12, "<H", 0, "record batch .* missing"),
        (12, "<H", 2, "metadata field 2"),
        (12, "<H", 60000, "metadata field 2"),
        (20, "<I", 2**31, "metadata table"),
        (60, "<I", 2**31, "field nodes .* outside"),
        (100, "<I", 2**20, "field nodes .* 1048576 entries do not fit"),
        (72, "<I", 100000, "buffers .* outside"),
        (76, "<I", 2**30, "metadata table"),
        (93, "<B", 1, "compression method .* 1 is not known"),
        (44, "<H", 5, "its size 5 is impossible"),
        (56, "<i", 2**30, "metadata vtable .* outside"),
    ],
)
def test_flatbuffer_offsets_out_of_range(position: int, fmt: str, value: int, problem: str) -> None:
    read_message(memoryview(build(codec=ZSTD)))
    with pytest.raises(FormatError, match=problem):
        read_message(memoryview(_changed(position, fmt, value)))


def test_view_types_are_refused() -> None:
    stream = pa.ipc.new_stream
    sink = pa.BufferOutputStream()
    with stream(sink, pa.schema([("v", pa.string_view())])) as writer:
        writer.write_batch(pa.record_batch({"v": pa.array(["a long enough string"] * 3, pa.string_view())}))
    data = sink.getvalue().to_pybytes()
    message = data[8 + int.from_bytes(data[4:8], "little") : -8]
    with pytest.raises(FormatError, match="variadic buffer counts"):
        read_message(memoryview(message))


def test_random_numbers_survive_every_codec() -> None:
    """They become hardly smaller, and are stored as they are beside numbers that do."""
    generator = random.Random(5)
    numbers = [generator.uniform(-1e300, 1e300) for _ in range(20_000)] + [math.inf, -0.0]
    source = pa.record_batch({"d": pa.array(numbers), "n": pa.array(range(len(numbers)))})
    for compression in COMPRESSIONS:
        for level in (1, 3, 22) if compression == "ZSTD" else (3,):
            batch = sealed(source, compression=compression, level=level)
            assert decode_arrow_batch(batch, source.schema).equals(source)
            if compression != "NONE":
                view = batch.arrow_view
                message = read_message(view)
                starts = [message.body_start + offset for offset in message.buffers[2::4]]
                declared = [int.from_bytes(view[at : at + 8], "little", signed=True) for at in starts]
                assert declared == [STORED_RAW, 8 * len(numbers)]
