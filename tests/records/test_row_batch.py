# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.records import vectors
from tests.records.tables import ALL_TYPES, ID_NAME, ROW_A, ROW_B, tables, to_batch, to_rows

from fluss.errors import FormatError, InvalidArgumentError
from fluss.records import (
    LogBatch,
    decode_log_batch,
    decode_row_batch,
    encode_row_body,
    read_row_records,
    row_batch,
    seal_log_batch,
)
from fluss.rows import compacted, indexed

FORMATS = ["INDEXED", "COMPACTED"]
TWO_ROWS = [(1, "a"), (2, "bb")]


def sealed(body: Any) -> bytes:
    return b"".join(seal_log_batch(body, schema_id=1, writer_id=7, batch_sequence=0))


@pytest.mark.parametrize("rows", [TWO_ROWS, to_batch(ID_NAME, TWO_ROWS)], ids=["rows", "batch"])
def test_batches_of_a_java_client_byte_for_byte(rows: Any) -> None:
    types = ID_NAME.data_types
    assert sealed(encode_row_body("INDEXED", types, rows)) == vectors.INDEXED
    assert sealed(encode_row_body("COMPACTED", types, rows, [1, 1])) == vectors.COMPACTED


def test_batches_of_a_java_client_are_read() -> None:
    for fmt, data in (("INDEXED", vectors.INDEXED), ("COMPACTED", vectors.COMPACTED)):
        batch = LogBatch(data)
        decoded = decode_row_batch(batch, fmt, ID_NAME.row_type)
        assert decoded.schema == ID_NAME.arrow_schema
        assert to_rows(decoded, ID_NAME) == TWO_ROWS
        assert decode_log_batch(batch, ID_NAME, fmt).equals(decoded)
    assert read_row_records(LogBatch(vectors.COMPACTED)).change_types.tolist() == [1, 1]


@pytest.mark.parametrize("fmt", FORMATS)
def test_all_types(fmt: str) -> None:
    rows = [ROW_A, ROW_B]
    data = sealed(encode_row_body(fmt, ALL_TYPES.data_types, to_batch(ALL_TYPES, rows)))
    assert data == sealed(encode_row_body(fmt, ALL_TYPES.data_types, rows))
    assert to_rows(decode_row_batch(LogBatch(data), fmt, ALL_TYPES.row_type), ALL_TYPES) == rows


@pytest.mark.parametrize("fmt", FORMATS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_round_trip(fmt: str, data: st.DataObject) -> None:
    schema, rows = data.draw(tables())
    change_types = data.draw(st.none() | st.lists(st.integers(0, 4), min_size=len(rows), max_size=len(rows)))
    encoded = sealed(encode_row_body(fmt, schema.data_types, to_batch(schema, rows), change_types))
    batch = LogBatch(encoded)
    batch.verify_crc()
    assert to_rows(decode_row_batch(batch, fmt, schema.row_type), schema) == rows
    found = batch.change_types(fmt)
    assert (None if found is None else found.tolist()) == change_types
    # Byte for byte what the scalar coder makes of each row.
    encode = compacted.encode_row if fmt == "COMPACTED" else indexed.encode_row
    expected = b""
    for row, kind in zip(rows, change_types or [0] * len(rows)):
        row_bytes = encode(schema.data_types, row)
        expected += struct.pack("<ib", len(row_bytes) + 1, kind) + row_bytes
    assert batch.records_view.tobytes() == expected
    assert sealed(encode_row_body(fmt, schema.data_types, read_row_records(batch).rows, change_types)) == encoded


def test_arguments_that_make_no_sense(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="'ARROW' is not a row format"):
        encode_row_body("ARROW", ID_NAME.data_types, TWO_ROWS)
    with pytest.raises(InvalidArgumentError, match="'ARROW' is not a row format"):
        decode_row_batch(LogBatch(vectors.INDEXED), "ARROW", ID_NAME.row_type)
    with pytest.raises(InvalidArgumentError, match="2 columns, the table 1"):
        encode_row_body("INDEXED", ID_NAME.data_types[:1], to_batch(ID_NAME, TWO_ROWS))
    with pytest.raises(InvalidArgumentError, match="3 change types were given for 2 rows"):
        encode_row_body("INDEXED", ID_NAME.data_types, TWO_ROWS, np.zeros(3, dtype=np.uint8))
    monkeypatch.setattr(row_batch, "INT32_MAX", 70)
    with pytest.raises(InvalidArgumentError, match="too many for one batch"):
        encode_row_body("INDEXED", ID_NAME.data_types, TWO_ROWS)


def test_an_arrow_body_in_a_row_table_is_seen() -> None:
    for name in ("ARROW_PLAIN", "CHANGELOG", "ARROW_ZSTD"):
        with pytest.raises(FormatError, match="length of record"):
            read_row_records(LogBatch(vectors.LOG_BATCHES[name]))
    with pytest.raises(FormatError, match="ARROW log table"):
        decode_log_batch(LogBatch(vectors.INDEXED), ID_NAME)


def test_bad_change_types_are_seen() -> None:
    data = bytearray(vectors.COMPACTED)
    data[52] = 5
    with pytest.raises(FormatError, match="change type of record 0"):
        read_row_records(LogBatch(data))
