# SPDX-License-Identifier: Apache-2.0
"""Uploaded files: a small file that decodes to much more is refused before it takes memory."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fluss.console.routes.upload import read_file
from fluss.console.settings import DECODED_BYTES_MAX
from fluss.errors import InvalidArgumentError

MB = 1024 * 1024


def parquet(table: pa.Table, **options: object) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def repeated_text(*, store_schema: bool = False) -> bytes:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 1_700, pa.int32()), pa.array(["x" * MB]))
    table = pa.table({"text": values, "n": pa.array(range(1_700))})
    return parquet(table, compression="zstd", store_schema=store_schema)


def repeated_text_in_a_dictionary() -> bytes:
    return repeated_text(store_schema=True)


def repeated_numbers() -> bytes:
    rows = DECODED_BYTES_MAX // 8 + 1
    return parquet(pa.table({"n": pa.repeat(pa.scalar(1, pa.int64()), rows)}), compression="zstd")


def long_list() -> bytes:
    values = pa.repeat(pa.scalar(1, pa.int64()), DECODED_BYTES_MAX // 8 + 1)
    return parquet(pa.table({"list": pa.ListArray.from_arrays([0, len(values)], values)}), compression="zstd")


@pytest.mark.parametrize("make", [repeated_text, repeated_text_in_a_dictionary, repeated_numbers, long_list])
def test_a_small_file_with_much_in_it_is_refused(make: object) -> None:
    assert callable(make)
    content = make()
    assert len(content) < 2 * MB
    pool = pa.system_memory_pool()
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        peak_before = pool.max_memory() or 0
        with pytest.raises(InvalidArgumentError, match="would take more than"):
            read_file("a.parquet", content)
        peak = (pool.max_memory() or 0) - peak_before
    finally:
        pa.set_memory_pool(before)
    assert peak < 200 * MB


def test_a_csv_file_with_much_in_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.console.routes.upload.DECODED_BYTES_MAX", MB)
    assert read_file("a.csv", b"n,m\n" + b"1,1\n" * 60_000).num_rows == 60_000
    with pytest.raises(InvalidArgumentError, match="would take more than"):
        read_file("a.csv", b"n,m\n" + b"1,1\n" * 70_000)


def test_a_csv_file_whose_last_quote_is_never_closed_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="the quote before 'open' is never closed"):
        read_file("a.csv", b'n,t\n1,a\n2,"open\n3,b\n')
    assert read_file("a.csv", b'n,t\n1,"a\nb"\r\n\n').num_rows == 1


def test_nulls_of_a_csv_file_are_those_of_fluss_load() -> None:
    assert read_file("a.csv", b"n\n1\n\n2\n")["n"].to_pylist() == [1, None, 2]
    found = read_file("a.csv", b'n,t,q\n1,NA,""\n,,null\n')
    assert found.to_pylist() == [{"n": 1, "t": "NA", "q": ""}, {"n": None, "t": None, "q": "null"}]


def test_rows_of_a_file_are_read_as_they_are() -> None:
    table = pa.table(
        {
            "text": pa.array(["a", None, "a", "b"]),
            "bytes": pa.array([b"a", None, b"a", b"b"]),
            "n": pa.array([1, 2, None, 4], pa.int32()),
            "kind": pa.array(["a", "b", "a", None]).dictionary_encode(),
            "list": pa.array([["x", "y"], None, [], ["x"]]),
            "row": pa.array([{"s": "x"}, None, {"s": None}, {"s": "y"}]),
        }
    )
    assert read_file("a.parquet", parquet(table, row_group_size=2)).equals(table)
    assert read_file("a.parquet", parquet(table.slice(0, 0))).schema == table.schema
