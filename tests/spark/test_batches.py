# SPDX-License-Identifier: Apache-2.0
"""Batches for Spark hold every row, and are bounded in rows and in bytes."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as s

from fluss.aio import RecordBatch
from fluss.metadata import TableBucket
from fluss.spark import batches
from fluss.spark.batches import SparkBatchConverter, bounded

SCHEMA = s.StructType([s.StructField("id", s.LongType()), s.StructField("text", s.StringType())])
ROWS_MAX, BYTES_MAX = 50, 2_000


def found(sizes: list[int], first: int) -> RecordBatch:
    """A batch of rows with texts of these sizes."""
    rows = pa.record_batch(
        {"id": pa.array(range(first, first + len(sizes)), pa.int64()), "text": ["x" * size for size in sizes]}
    )
    return RecordBatch(rows, TableBucket(1, 0), first, first + len(sizes) - 1)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.one_of(st.integers(0, 40), st.integers(0, 5_000)), max_size=120), max_size=12))
def test_every_row_comes_once_in_bounded_batches(found_sizes: list[list[int]]) -> None:
    items, first = [], 0
    for sizes in found_sizes:
        items.append(found(sizes, first))
        first += len(sizes)
    converter = SparkBatchConverter(SCHEMA, rows_max=ROWS_MAX, bytes_max=BYTES_MAX)
    given_to_spark = list(converter.convert(items))
    for batch in given_to_spark:
        assert 0 < batch.num_rows <= ROWS_MAX
        assert batch.num_rows == 1 or batch.nbytes <= BYTES_MAX
    assert [row for batch in given_to_spark for row in batch.to_pylist()] == [
        row for item in items for row in item.batch.to_pylist()
    ]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 5_000), max_size=300))
def test_a_batch_is_cut_by_rows_and_bytes(sizes: list[int]) -> None:
    batch = found(sizes, 0).batch
    pieces = list(bounded(batch, ROWS_MAX, BYTES_MAX))
    assert all(piece.num_rows == 1 or piece.nbytes <= BYTES_MAX for piece in pieces)
    assert all(piece.num_rows <= ROWS_MAX for piece in pieces)
    assert [i for piece in pieces for i in piece.column(0).to_pylist()] == list(range(len(sizes)))


def test_small_batches_are_joined() -> None:
    items = [found([3], i) for i in range(120)]
    sizes = [b.num_rows for b in SparkBatchConverter(SCHEMA, rows_max=ROWS_MAX).convert(items)]
    assert sizes == [50, 50, 20]


def test_limits_are_below_those_of_arrow() -> None:
    """Offsets of texts in Arrow batches have 31 bits, and so has the length of a message to the JVM."""
    assert batches.BATCH_BYTES <= 2**28
    assert batches.BATCH_ROWS <= 2**20


def test_rows_that_an_arrow_batch_cannot_hold_are_not_lost() -> None:
    """Three texts of 800 MB in one batch are more than 2^31 bytes: two batches, not the first two texts."""
    text = pa.array(["x" * 800_000_000])
    parts = [pa.record_batch({"id": pa.array([i], pa.int64()), "text": text}) for i in range(3)]
    items = [RecordBatch(part, TableBucket(1, 0), i, i) for i, part in enumerate(parts)]
    assert [b.column(0).to_pylist() for b in SparkBatchConverter(SCHEMA).convert(items)] == [[0], [1], [2]]


def test_digits_that_spark_has_not_are_cut_off_before_1970_too() -> None:
    times = pa.record_batch({"t": pa.array([-1, -1_500, None, 1_500, -2_000], pa.timestamp("ns"))})
    schema = s.StructType([s.StructField("t", s.TimestampNTZType())])
    [shown] = SparkBatchConverter(schema).convert([RecordBatch(times, TableBucket(1, 0), 0, 4)])
    assert shown.column("t").cast(pa.int64()).to_pylist() == [-1, -2, None, 1, -2]
