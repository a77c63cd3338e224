# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records import vectors
from tests.records.tables import ID_NAME, NESTED, NESTED_ROWS, project_batch, tables, to_batch, to_rows

from fluss.errors import FormatError, InvalidColumnProjectionError
from fluss.metadata import Column, Schema, StringType
from fluss.records import (
    LogBatch,
    Part,
    decode_arrow_batch,
    encode_arrow_body,
    has_columns,
    patch_batch,
    seal_log_batch,
)
from fluss.records.arrow_message import read_message, write_metadata
from fluss.records.log_batch import EncodedBody

NAME = Schema.of([Column("name", StringType())])


def glued(parts: list[Part]) -> LogBatch:
    return LogBatch(b"".join(parts))


@pytest.mark.parametrize(
    ("source", "expected"),
    [("ARROW_PLAIN", "PROJECTED"), ("CHANGELOG", "CHANGELOG_PROJECTED"), ("V1_STATISTICS", "V1_PROJECTED")],
)
def test_projections_of_a_java_server(source: str, expected: str) -> None:
    theirs = LogBatch(vectors.LOG_BATCHES[expected])
    ours = glued(project_batch(LogBatch(vectors.LOG_BATCHES[source]), [1], ID_NAME.arrow_schema))
    ours.verify_crc()  # theirs is stale
    assert ours.header._replace(length=0, crc=0) == theirs.header._replace(length=0, crc=0)
    decoded = decode_arrow_batch(ours, NAME.arrow_schema)
    assert decoded.equals(decode_arrow_batch(theirs, NAME.arrow_schema))
    assert to_rows(decoded, NAME) == [("a",), ("bb",)]
    mine, yours = read_message(ours.arrow_view), read_message(theirs.arrow_view)
    assert (mine.nodes, mine.codec, mine.row_count) == (yours.nodes, yours.codec, yours.row_count)
    assert mine.buffers == yours.buffers
    assert bytes(ours.arrow_view[mine.body_start :]) == bytes(theirs.arrow_view[yours.body_start :])


ADDED = pa.schema(
    [
        ("i", pa.int32()),
        ("b", pa.bool_()),
        ("s", pa.string()),
        ("d", pa.decimal128(10, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("f", pa.binary(3)),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("r", pa.struct([("x", pa.int64()), ("y", pa.list_(pa.int8()))])),
    ]
)


@pytest.mark.parametrize("positions", [[0], [1], [0, 1], []])
@pytest.mark.parametrize(
    "name", ["ARROW_PLAIN", "ARROW_NULLS", "ARROW_ZSTD", "ARROW_ZSTD_RAW", "ARROW_LZ4", "CHANGELOG"]
)
def test_columns_that_are_younger_than_the_batch_are_null(name: str, positions: list[int]) -> None:
    batch = LogBatch(vectors.LOG_BATCHES[name])
    whole = decode_arrow_batch(batch, ID_NAME.arrow_schema)
    projected = glued(project_batch(batch, positions, ID_NAME.arrow_schema, ADDED))
    projected.verify_crc()
    schema = pa.schema([*(whole.schema.field(position) for position in positions), *ADDED])
    decoded = decode_arrow_batch(projected, schema)
    decoded.validate(full=True)
    assert decoded.select(range(len(positions))).equals(whole.select(positions))
    for column in decoded.columns[len(positions) :]:
        assert column.null_count == whole.num_rows
    assert has_columns(projected, schema)
    assert not has_columns(projected, pa.schema(list(schema)[:-1]))
    # Any reader of Arrow takes the message as it is, with the schema in front of it.
    stream = schema.serialize().to_pybytes() + bytes(projected.arrow_view)
    assert pa.ipc.open_stream(stream).read_next_batch().num_rows == whole.num_rows


@pytest.mark.parametrize("name", [
    "ARROW_PLAIN", "ARROW_PLAIN_64", "ARROW_NULLS", "ARROW_ZSTD_RAW", "ARROW_ZSTD", "ARROW_ZSTD_64", "ARROW_LZ4", "V2",
])  # fmt: skip
@pytest.mark.parametrize("position", [0, 1])
def test_projections_of_every_kind_of_batch(name: str, position: int) -> None:
    batch = LogBatch(vectors.LOG_BATCHES[name])
    whole = decode_arrow_batch(batch, ID_NAME.arrow_schema)
    projected = glued(project_batch(batch, [position], ID_NAME.arrow_schema))
    projected.verify_crc()
    assert projected.header.size_bytes < batch.header.size_bytes
    assert read_message(projected.arrow_view).codec == read_message(batch.arrow_view).codec
    expected = whole.select([position])
    assert decode_arrow_batch(projected, expected.schema).equals(expected)


@pytest.mark.parametrize("compression", ["NONE", "LZ4_FRAME", "ZSTD"])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_projection_is_selection(compression: str, data: st.DataObject) -> None:
    schema, rows = data.draw(tables(rows_min=1))
    source = to_batch(schema, rows)
    chosen = sorted(data.draw(st.sets(st.integers(0, len(schema.columns) - 1), min_size=1)))
    change_types = data.draw(st.none() | st.just([4] * len(rows)))
    magic = data.draw(st.integers(0, 2))
    statistics = b"whatever" if magic else None
    body = encode_arrow_body(source, compression=compression, change_types=change_types, statistics=statistics)
    data_bytes = bytearray(b"".join(seal_log_batch(body, schema_id=3, writer_id=9, batch_sequence=4, magic=magic)))
    patch_batch(data_bytes, 0, 500, 1_700_000_000_000)
    batch = LogBatch(data_bytes)
    projected = glued(project_batch(batch, chosen, schema.arrow_schema))
    projected.verify_crc()
    assert projected.header == batch.header._replace(
        length=projected.header.length, crc=projected.header.crc, statistics_length=0
    )
    assert projected.statistics_view is None
    expected = source.select(chosen)
    assert decode_arrow_batch(projected, expected.schema).equals(expected)
    found = projected.change_types()
    assert (None if found is None else found.tolist()) == change_types
    # Projecting again, to the first of what is left, is the same as projecting to it at once.
    again = glued(project_batch(projected, [0], expected.schema))
    assert bytes(again.view) == b"".join(project_batch(batch, chosen[:1], schema.arrow_schema))


def test_nested_columns_take_their_children_along() -> None:
    batch = LogBatch(vectors.NESTED)
    for position, column in enumerate(NESTED.columns):
        projected = glued(project_batch(batch, [position], NESTED.arrow_schema))
        schema = Schema.of([column])
        rows = to_rows(decode_arrow_batch(projected, schema.arrow_schema), schema)
        assert rows == [(row[position],) for row in NESTED_ROWS]


def test_empty_batches_pass() -> None:
    assert b"".join(project_batch(LogBatch(vectors.EMPTY), [1], ID_NAME.arrow_schema)) == vectors.EMPTY


def test_payload_is_not_copied() -> None:
    source = pa.record_batch({"a": pa.array(range(1000)), "b": pa.array(range(1000)), "c": pa.array(range(1000))})
    data = b"".join(seal_log_batch(encode_arrow_body(source, compression="NONE"), schema_id=1))
    start = pa.py_buffer(data).address
    parts = project_batch(LogBatch(data), [0, 1], source.schema)
    assert len(parts) == 3  # header, metadata, and the two neighbouring columns in one stretch
    assert start < pa.py_buffer(parts[2]).address < start + len(data)
    assert len(parts[2]) == 16_000
    assert len(project_batch(LogBatch(data), [0, 2], source.schema)) == 4


@pytest.mark.parametrize(
    ("positions", "problem"),
    [
        ([], "selects no column"),
        ([2], r"outside 0\.\.1"),
        ([-1], r"outside 0\.\.1"),
        ([1, 0], "ascending"),
        ([1, 1], "ascending"),
    ],
)
@pytest.mark.parametrize("name", ["ARROW_PLAIN", "EMPTY"])
def test_projections_that_make_no_sense(positions: list[int], problem: str, name: str) -> None:
    with pytest.raises(InvalidColumnProjectionError, match=problem):
        project_batch(LogBatch(vectors.LOG_BATCHES[name]), positions, ID_NAME.arrow_schema)


def test_buffers_in_any_order() -> None:
    body = struct.pack("<3i4x", 0, 1, 3) + b"abb?????" + struct.pack("<2i", 1, 2)
    message = write_metadata(2, [2, 0, 2, 0], [0, 0, 24, 8, 0, 0, 0, 12, 16, 3], None, len(body)) + body
    batch = glued(seal_log_batch(EncodedBody([message], len(message), 2, True), schema_id=1))
    whole = decode_arrow_batch(batch, ID_NAME.arrow_schema)
    assert to_rows(whole, ID_NAME) == [(1, "a"), (2, "bb")]
    for chosen in ([0], [1], [0, 1]):
        projected = glued(project_batch(batch, chosen, ID_NAME.arrow_schema))
        expected = whole.select(chosen)
        assert decode_arrow_batch(projected, expected.schema).equals(expected)


def test_buffers_at_odd_places_are_put_right() -> None:
    body = struct.pack("<3i", 0, 1, 3) + b"abb" + struct.pack("<2i", 1, 2)
    message = write_metadata(2, [2, 0, 2, 0], [0, 0, 15, 8, 0, 0, 0, 12, 12, 3], None, len(body)) + body
    batch = glued(seal_log_batch(EncodedBody([message], len(message), 2, True), schema_id=1))
    with pytest.raises(FormatError, match="aligned"):
        decode_arrow_batch(batch, ID_NAME.arrow_schema)
    for chosen, rows in (([0], [(1,), (2,)]), ([1], [("a",), ("bb",)]), ([0, 1], [(1, "a"), (2, "bb")])):
        schema = Schema.of([ID_NAME.columns[i] for i in chosen])
        projected = glued(project_batch(batch, chosen, ID_NAME.arrow_schema))
        assert to_rows(decode_arrow_batch(projected, schema.arrow_schema), schema) == rows
        assert read_message(projected.arrow_view).body_length % 8 == 0


def test_padding_beyond_the_body_is_made_up() -> None:
    body = struct.pack("<2i", 1, 2) + struct.pack("<3i4x", 0, 1, 3) + b"abb"
    metadata = write_metadata(2, [2, 0, 2, 0], [0, 0, 0, 8, 8, 0, 8, 12, 24, 3], None, len(body))
    message = metadata + body
    batch = glued(seal_log_batch(EncodedBody([message], len(message), 2, True), schema_id=1))
    for chosen in ([1], [0, 1]):
        projected = glued(project_batch(batch, chosen, ID_NAME.arrow_schema))
        assert decode_arrow_batch(projected, pa.schema([ID_NAME.arrow_schema.field(i) for i in chosen])).column(
            len(chosen) - 1
        ).to_pylist() == ["a", "bb"]


def test_batches_of_another_schema() -> None:
    with pytest.raises(FormatError, match="12 field nodes and 25 buffers, but schema 1 has 2 and 5"):
        project_batch(LogBatch(vectors.NESTED), [1], ID_NAME.arrow_schema)
