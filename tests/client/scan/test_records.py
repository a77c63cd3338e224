# SPDX-License-Identifier: Apache-2.0
"""What a poll gives: a sequence and a mapping in one, made when it is looked at."""

from __future__ import annotations

import datetime as dt
import gc
from decimal import Decimal

import pyarrow as pa
import pytest

import fluss
from fluss.client.scan.fold import fold_batches
from fluss.client.scan.records import RecordBatch, Run, ScanRecords, column_to_python, part_of, rows_to_python
from fluss.errors import InvalidRowError
from fluss.metadata import DataTypes

B0, B1, B2 = (fluss.TableBucket(1, i) for i in range(3))
UTC = dt.timezone.utc


def run_of(start, count, change_types=None, offsets=None):
    batch = pa.RecordBatch.from_pydict({"id": pa.array(range(start, start + count), pa.int64())})
    return Run(batch, [DataTypes.bigint()], offsets or range(start, start + count), 1000, change_types)


@pytest.fixture
def records():
    return ScanRecords({B0: [run_of(0, 3), run_of(3, 2)], B1: [run_of(10, 2, bytes([1, 4]))]})


def test_a_sequence(records):
    assert len(records) == records.count() == 7
    assert not records.is_empty()
    assert records[0].row == {"id": 0}
    assert records[-1].row == {"id": 11}
    assert [record.offset for record in records[3:6]] == [3, 4, 10]
    assert [record.row["id"] for record in records] == [0, 1, 2, 3, 4, 10, 11]
    with pytest.raises(IndexError):
        records[7]


def test_a_mapping(records):
    assert records.buckets() == records.keys() == [B0, B1]
    assert [record.offset for record in records[B0]] == [0, 1, 2, 3, 4]
    assert [len(found) for found in records.values()] == [5, 2]
    assert {bucket: len(found) for bucket, found in records.items()} == {B0: 5, B1: 2}
    assert B1 in records
    assert B2 not in records
    assert records.records(B2) == []
    assert records[B2] == []
    assert set(records.records_by_buckets()) == {B0, B1}
    assert [record.change_type for record in records[B1]] == [fluss.ChangeType.Insert, fluss.ChangeType.Delete]
    assert records[0].change_type is fluss.ChangeType.AppendOnly
    assert "7 records of 2 buckets" in repr(records)


def test_lists_are_the_callers_own(records):
    records.records(B0).clear()
    assert len(records.records(B0)) == 5


def test_nothing():
    records = ScanRecords({})
    assert records.is_empty()
    assert list(records) == []
    assert records.buckets() == []
    assert len(records) == 0


def test_offsets_with_gaps():
    run = run_of(0, 3, offsets=[5, 9, 12])
    assert [record.offset for record in run.records()] == [5, 9, 12]


def test_records_compare_by_what_they_hold():
    def first(change):
        return next(run_of(1, 1, bytes([change])).records())

    assert first(0) == first(0)
    assert first(0) != first(1)
    assert first(0) != "x"


def test_going_through_the_records_twice_shows_the_same_rows(records):
    for record in records:
        record.row["seen"] = True
    assert all(record.row["seen"] for record in records)
    assert records[0].row["seen"]


def test_records_that_are_dropped_at_once_keep_the_garbage_collector_away():
    """After every 700 objects it looks at all of them; a reader of single records would pay for it."""
    records = ScanRecords({B0: [run_of(start, 500) for start in range(0, 20_000, 500)]})
    collections = gc.get_stats()[0]["collections"]
    seen = 0
    for record in records:
        seen += record.offset >= 0
    assert seen == 20_000
    # The rows are kept, 20,000 dicts: once for 700 of them, and not again for the records.
    assert gc.get_stats()[0]["collections"] - collections < 20_000 / 700 * 1.5


def test_slices_of_a_batch_keep_offsets():
    batch = pa.RecordBatch.from_pydict({"id": list(range(10))})
    whole = RecordBatch(batch, B0, 100, 109, 5, bytes(range(10)), None, 7)
    part = part_of(whole, 3, 4)
    assert (part.base_offset, part.last_offset, part.num_records, part.writer_id) == (103, 106, 4, 7)
    assert part.change_types == bytes([3, 4, 5, 6])
    gaps = RecordBatch(batch.slice(0, 3), B0, 100, 120, 5, None, [101, 110, 115])
    first, rest = part_of(gaps, 0, 1), part_of(gaps, 1, 2)
    assert (first.base_offset, first.last_offset) == (101, 101)
    assert (rest.base_offset, rest.last_offset, rest.offsets) == (110, 120, [110, 115])
    assert [found.offsets for found in fold_batches([gaps], [0])] == [[101, 110, 115]]


@pytest.mark.parametrize(
    ("data_type", "values"),
    [
        (DataTypes.boolean(), [True, None, False]),
        (DataTypes.tinyint(), [1, None, -128]),
        (DataTypes.bigint(), [2**62, None, -1]),
        (DataTypes.float(), [0.5, None]),
        (DataTypes.double(), [0.1, None, float("inf")]),
        (DataTypes.string(), ["a", None, "ü"]),
        (DataTypes.bytes(), [b"", None]),
        (DataTypes.binary(2), [b"ab", None]),
        (DataTypes.decimal(5, 2), [Decimal("1.25"), None]),
        (DataTypes.date(), [dt.date(2024, 1, 1), None]),
        (DataTypes.time(), [dt.time(1, 2, 3), None]),
        (DataTypes.timestamp(6), [dt.datetime(1969, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 1, 1)]),
        (DataTypes.timestamp(6), [dt.datetime(2024, 1, 1), None]),
        (DataTypes.timestamp_ltz(3), [dt.datetime(2024, 1, 1, tzinfo=UTC), dt.datetime(1960, 1, 1, tzinfo=UTC)]),
        (DataTypes.array(DataTypes.int()), [[1, None], None]),
    ],
)
def test_columns_to_python(data_type, values):
    array = pa.array(values, data_type.to_arrow())
    assert column_to_python(array, data_type) == values
    assert column_to_python(array.slice(1), data_type) == values[1:]
    assert column_to_python(array.slice(0, 0), data_type) == []


def test_moments_beyond_pythons_years_are_an_error_not_a_number():
    array = pa.array([10**18], pa.timestamp("ms"))
    with pytest.raises(InvalidRowError, match="year"):
        column_to_python(array, DataTypes.timestamp(3))


def test_nanoseconds_are_cut_the_same_way_with_and_without_nulls():
    array = pa.array([-1, 1_999], pa.timestamp("ns"))
    with_null = pa.array([-1, 1_999, None], pa.timestamp("ns"))
    assert column_to_python(array, DataTypes.timestamp(9)) == column_to_python(with_null, DataTypes.timestamp(9))[:2]


def test_rows_without_columns():
    batch = pa.RecordBatch.from_pydict({"a": [1, 2]}).select([])
    assert rows_to_python(batch, []) == [{}] * batch.num_rows


@pytest.mark.parametrize("width", [1, 2, 64, 65])
def test_rows_of_any_width(width):
    names = [f"c{i}" for i in range(width)]
    batch = pa.RecordBatch.from_arrays([pa.array([i, None]) for i in range(width)], names=names)
    rows = rows_to_python(batch, [DataTypes.bigint()] * width)
    assert rows == [{f"c{i}": i for i in range(width)}, dict.fromkeys(names)]
    assert all(list(row) == names for row in rows), "columns keep their order"


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("ticks", [2**63 - 1, -(2**63), 2**62, 10**14 * 10**6, -62_135_596_801 * 10**6, -1])
@pytest.mark.parametrize(
    "data_type",
    [
        *(DataTypes.timestamp(precision) for precision in (0, 3, 6, 9)),
        *(DataTypes.timestamp_ltz(precision) for precision in (0, 3, 6, 9)),
        *(DataTypes.time(precision) for precision in (0, 3, 6, 9)),
        DataTypes.date(),
        DataTypes.decimal(10, 2),
        DataTypes.decimal(38, 5),
    ],
    ids=str,
)
def test_bits_that_are_no_value_of_python(data_type, ticks, nulls):
    """Every pattern of bits is the right value or an error of ours: numpy would wrap around, and Python overflow."""
    kind = data_type.to_arrow()
    bits = b"".join((ticks % 2**kind.bit_width).to_bytes(kind.bit_width // 8, "little") for _ in range(3))
    validity = pa.py_buffer(b"\x05") if nulls else None
    array = pa.Array.from_buffers(kind, 3, [validity, pa.py_buffer(bits)])
    try:
        values = column_to_python(array, data_type)
    except InvalidRowError:
        return
    assert (values[1] is None) == nulls
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        assert pa.array(values, kind).cast(pa.int64()).to_pylist() == array.cast(pa.int64()).to_pylist()


@pytest.mark.parametrize(("precision", "micros"), [(0, 0), (3, 999_000), (6, 999_999)])
def test_the_last_moments_of_python(precision, micros):
    data_type = DataTypes.timestamp(precision)
    for moment in (dt.datetime.min, dt.datetime(9999, 12, 31, 23, 59, 59, micros)):
        assert column_to_python(pa.array([moment], data_type.to_arrow()), data_type) == [moment]
