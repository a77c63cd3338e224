# SPDX-License-Identifier: Apache-2.0
"""Arrow, pandas and polars in: other orders and kindred types are fine, losses are not."""

from __future__ import annotations

import asyncio
import datetime as dt
from contextlib import suppress
from decimal import Decimal

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.client.support import open_table, read_all

import fluss
from fluss.client.write.arrow_input import BatchReader
from fluss.metadata import Column, DataTypes

UTC = dt.timezone.utc
NOON = dt.datetime(2024, 1, 1, 12)
MICROSECOND = "datetime.datetime(1970, 1, 1, 0, 0, 0, 1)"


def reader(data_type, name="v"):
    return BatchReader("d.t", [Column(name, data_type)])


def batch_of(array, name="v"):
    return pa.RecordBatch.from_arrays([array], names=[name])


@pytest.mark.parametrize(
    ("data_type", "array", "expected"),
    [
        (DataTypes.int(), pa.array([1, None], pa.int8()), [1, None]),
        (DataTypes.int(), pa.array([1, 2], pa.int64()), [1, 2]),
        (DataTypes.int(), pa.array([1.0, None], pa.float64()), [1, None]),
        (DataTypes.int(), pa.array([None, None]), [None, None]),
        (DataTypes.bigint(), pa.array([7], pa.uint64()), [7]),
        (DataTypes.double(), pa.array([1, 2], pa.int32()), [1.0, 2.0]),
        (DataTypes.float(), pa.array([0.1], pa.float64()), [pytest.approx(0.1, 1e-6)]),
        (DataTypes.string(), pa.array(["a"], pa.large_string()), ["a"]),
        (DataTypes.string(), pa.array(["a", "a", None]).dictionary_encode(), ["a", "a", None]),
        (DataTypes.string(), pa.array(["a"], pa.string_view()), ["a"]),
        (DataTypes.bytes(), pa.array([b"a"], pa.large_binary()), [b"a"]),
        (DataTypes.binary(2), pa.array([b"ab"], pa.binary()), [b"ab"]),
        (DataTypes.decimal(10, 2), pa.array([Decimal("1.50")], pa.decimal128(20, 4)), [Decimal("1.50")]),
        (DataTypes.decimal(10, 2), pa.array([3, None], pa.int64()), [Decimal("3.00"), None]),
        (DataTypes.date(), pa.array([dt.date(2024, 1, 1)], pa.date64()), [dt.date(2024, 1, 1)]),
        (DataTypes.timestamp(3), pa.array([dt.datetime(2024, 1, 1)], pa.timestamp("us")), [dt.datetime(2024, 1, 1)]),
        (DataTypes.timestamp_ltz(6), pa.array([NOON], pa.timestamp("s", "Europe/Berlin")), [NOON.replace(tzinfo=UTC)]),
        (DataTypes.array(DataTypes.int()), pa.array([[1], None], pa.large_list(pa.int64())), [[1], None]),
        (
            DataTypes.row([fluss.DataField("a", DataTypes.int()), fluss.DataField("b", DataTypes.string())]),
            pa.array([{"b": "x", "a": 1}, None], pa.struct([("b", pa.large_string()), ("a", pa.int64())])),
            [{"a": 1, "b": "x"}, None],
        ),
    ],
)
def test_kindred_types_are_cast(data_type, array, expected):
    read = reader(data_type).read(batch_of(array))
    assert read.schema.field("v").type == data_type.to_arrow()
    assert read.column(0).to_pylist() == expected


@pytest.mark.parametrize(
    ("data_type", "array", "row", "words"),
    [
        (DataTypes.int(), pa.array([1, 2, 2**40], pa.int64()), 2, [str(2**40), "int"]),
        (DataTypes.int(), pa.array([1.0, 1.5], pa.float64()), 1, ["1.5", "int"]),
        (DataTypes.tinyint(), pa.array([-1, 300], pa.int32()), 1, ["300", "tinyint"]),
        (DataTypes.double(), pa.array([2**53 + 1], pa.int64()), 0, [str(2**53 + 1)]),
        (DataTypes.float(), pa.array([1.0, 1e300], pa.float64()), 1, ["1e+300"]),
        (DataTypes.decimal(5, 1), pa.array([Decimal("1.10"), Decimal("1.15")], pa.decimal128(10, 2)), 1, ["1.15"]),
        (DataTypes.decimal(3, 1), pa.array([1, 100], pa.int64()), 1, ["100"]),
        (DataTypes.timestamp(3), pa.array([0, 1], pa.timestamp("us")), 1, [MICROSECOND]),
        (DataTypes.binary(2), pa.array([b"ab", b"abc"], pa.binary()), 1, ["b'abc'"]),
        (DataTypes.char(2), pa.array(["ab", "äöü"]), 1, ["äöü"]),
    ],
)
def test_a_lossy_value_is_named(data_type, array, row, words):
    with pytest.raises(fluss.InvalidRowError) as caught:
        reader(data_type).read(batch_of(array), first_row=1000)
    message = caught.value.message
    for word in ("table d.t", "'v'", f"row {1000 + row}"):
        assert word in message
    assert any(word in message for word in words), message


@pytest.mark.parametrize(
    ("data_type", "array"),
    [
        (DataTypes.int(), pa.array(["1"])),
        (DataTypes.string(), pa.array([1])),
        (DataTypes.boolean(), pa.array([1])),
        (DataTypes.date(), pa.array([dt.datetime(2024, 1, 1)])),
        (DataTypes.timestamp(6), pa.array([0], pa.timestamp("us", "UTC"))),
        (DataTypes.decimal(10, 2), pa.array([1.239])),
        (DataTypes.double(), pa.array([Decimal("0.1")])),
        (DataTypes.bytes(), pa.array(["text"])),
    ],
)
def test_other_types_are_refused_with_both_types(data_type, array):
    with pytest.raises(fluss.InvalidRowError) as caught:
        reader(data_type).read(batch_of(array))
    assert str(data_type) in caught.value.message
    assert str(array.type) in caught.value.message


def test_sub_millisecond_times_are_refused():
    with pytest.raises(fluss.InvalidRowError, match="milliseconds"):
        reader(DataTypes.time(6)).read(batch_of(pa.array([1], pa.time64("us"))))
    assert reader(DataTypes.time(6)).read(batch_of(pa.array([5000], pa.time64("us")))).num_rows == 1


def test_columns_by_name():
    columns = [Column("a", DataTypes.int().with_nullable(False)), Column("b", DataTypes.string())]
    what = BatchReader("d.t", columns)
    read = what.read(pa.RecordBatch.from_pydict({"b": ["x"], "a": [1]}))
    assert read.schema.names == ["a", "b"]
    assert what.read(pa.RecordBatch.from_pydict({"a": [1]})).to_pylist() == [{"a": 1, "b": None}]
    with pytest.raises(fluss.InvalidRowError, match=r"unknown column 'c'; the columns are a, b"):
        what.read(pa.RecordBatch.from_pydict({"a": [1], "c": [2]}))
    with pytest.raises(fluss.InvalidRowError, match="Missing value for non-nullable field 'a'"):
        what.read(pa.RecordBatch.from_pydict({"b": ["x"]}))
    with pytest.raises(fluss.InvalidRowError, match=r"row 12, column 'a' \(int NOT NULL\): no value \(null\)"):
        what.read(pa.RecordBatch.from_pydict({"a": pa.array([1, 2, None], pa.int32())}), first_row=10)
    twice = pa.RecordBatch.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(fluss.InvalidRowError, match="'a' is given more than once"):
        what.read(twice)


FIELDS = [("id", pa.int32()), ("name", pa.string()), ("price", pa.decimal128(10, 2)), ("day", pa.date32())]
ROWS = {
    "day": [dt.date(2024, 1, 1), None, dt.date(2024, 1, 3)],
    "name": ["a", None, "c"],
    "id": [1, 2, 3],
    "price": [Decimal("1.50"), Decimal("2"), None],
}
EXPECTED = [
    {"id": 1, "name": "a", "price": Decimal("1.50"), "day": dt.date(2024, 1, 1)},
    {"id": 2, "name": None, "price": Decimal("2.00"), "day": None},
    {"id": 3, "name": "c", "price": None, "day": dt.date(2024, 1, 3)},
]


@pytest.mark.parametrize("source", ["batch", "table", "pandas", "polars", "pandas arrow"])
@pytest.mark.parametrize("keys", [None, ["id"]])
async def test_every_source_writes_the_same_rows(config, database, source, keys):
    async with open_table(config, database, FIELDS, keys=keys) as (_, table):
        writer = (table.new_upsert() if keys else table.new_append()).create_writer()
        frame = pd.DataFrame(ROWS)
        if source == "batch":
            handle = writer.write_arrow_batch(pa.RecordBatch.from_pydict(ROWS))
        elif source == "table":
            handle = writer.write_arrow(pa.concat_tables([pa.table(ROWS).slice(0, 1), pa.table(ROWS).slice(1)]))
        elif source == "pandas":
            handle = writer.write_pandas(frame)
        elif source == "pandas arrow":
            handle = writer.write_pandas(frame.convert_dtypes(dtype_backend="pyarrow"))
        else:
            handle = writer.write_polars(pl.DataFrame(ROWS))
        await handle.wait()
        assert handle.done()
        assert (await read_all(table)).to_pylist() == EXPECTED


async def test_rows_and_batches_of_any_origin_share_a_batch(table, writer):
    """A data frame's schema carries metadata of its own, which once kept batches from being joined."""
    writer.append(EXPECTED[0])
    writer.write_pandas(pd.DataFrame(ROWS))
    writer.write_arrow(pa.table(ROWS).replace_schema_metadata({"k": "v"}))
    writer.append(EXPECTED[1])
    await writer.flush()
    assert (await read_all(table)).to_pylist() == [EXPECTED[0], *EXPECTED, *EXPECTED, EXPECTED[1]]


@pytest.mark.table(keys=["id"])
async def test_batches_come_after_rows_that_were_given_before_them(table, writer):
    for version in range(40):
        writer.upsert({"id": 1, "name": f"row {version}"})
        writer.write_arrow_batch(pa.RecordBatch.from_pydict({"id": [1], "name": [f"batch {version}"]}))
    await writer.flush()
    assert (await table.new_lookup().create_lookuper().lookup([1]))["name"] == "batch 39"


async def test_a_bad_frame_is_refused_as_a_whole(table, writer):
    for frame, words in [
        (pd.DataFrame({"id": [1, 2.5]}), r"row 1, column 'id' \(int\): 2.5 does not fit"),
        (pd.DataFrame({"id": [1, 2], "name": ["a", 5]}), "row 1, column 'name'"),
        (pd.DataFrame({"id": [1], "other": [1]}), "unknown column 'other'"),
        (pd.DataFrame({"id": pd.Series([1, "x"], dtype=object)}), "row 1, column 'id'"),
    ]:
        with pytest.raises(fluss.InvalidRowError, match=words):
            writer.write_pandas(frame)
    table_with_bad_end = pa.table({"id": pa.chunked_array([[1, 2], [3, 2**40]])})
    with pytest.raises(fluss.InvalidRowError, match=rf"row 3, column 'id' \(int\): {2**40}"):
        writer.write_arrow(table_with_bad_end)
    await writer.write_pandas(pd.DataFrame({"id": [1.0, float("nan")]})).wait()
    await writer.flush()
    assert (await read_all(table)).column("id").to_pylist() == [1, None]


async def test_empty_batches_are_done_at_once(writer):
    for empty in (pa.table(ROWS).slice(0, 0), pa.schema(FIELDS).empty_table()):
        handle = writer.write_arrow(empty)
        assert handle.done()
        await handle.wait()


@pytest.mark.table(keys=["id"])
async def test_delete_arrow_batch(table, writer):
    writer.write_arrow(pa.table(ROWS))
    writer.delete_arrow_batch(pa.RecordBatch.from_pydict({"name": ["ignored", "x"], "id": [1, 3]}))
    await writer.flush()
    rows = await table.new_lookup().create_lookuper().lookup_many([[1], [2], [3]])
    assert rows.column("id").to_pylist() == [2]
    with pytest.raises(fluss.InvalidRowError, match="Missing value for non-nullable field 'id'"):
        writer.delete_arrow_batch(pa.RecordBatch.from_pydict({"name": ["x"]}))


async def test_an_invalid_batch_is_refused_and_not_retried_for_long(config, database):
    offsets = pa.py_buffer(pa.array([0, 3, 20_000_000, 6], pa.int32()).buffers()[1])
    names = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"abcdef"))
    invalid = pa.RecordBatch.from_arrays([pa.array([1, 2, 3], pa.int32()), names], names=["id", "name"])
    properties = {"table.log.arrow.compression.type": "NONE"}
    async with open_table(config, database, FIELDS, properties=properties) as (_, table):
        writer = table.new_append().create_writer()
        with pytest.raises(fluss.errors.CorruptRecordError, match="not valid, nothing of it was written"):
            await asyncio.wait_for(writer.write_arrow_batch(invalid).wait(), 20)
        with suppress(fluss.errors.CorruptRecordError):
            await writer.flush()
        await writer.append({"id": 4, "name": "later"}).wait()
        assert (await read_all(table)).column("id").to_pylist() == [4]


class Stream:
    """An object of another library, as far as Arrow is concerned."""

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, requested_schema=None):
        return self._table.__arrow_c_stream__(requested_schema)


class Array:
    """The same with a single batch."""

    def __init__(self, table):
        self._batch = table.to_batches()[0]

    def __arrow_c_array__(self, requested_schema=None):
        return self._batch.__arrow_c_array__(requested_schema)


@pytest.mark.parametrize(
    "make",
    [Stream, Array, pl.from_arrow, pa.Table.to_reader, lambda table: table.to_batches()[0]],
    ids=["stream", "array", "polars", "reader", "batch"],
)
async def test_anything_with_arrow_data_can_be_written(table, writer, make):
    await writer.write_arrow(make(pa.table(ROWS))).wait()
    await writer.write_arrow_batch(make(pa.table(ROWS))).wait()
    assert (await read_all(table)).to_pylist() == 2 * pa.table(ROWS).to_pylist()


@pytest.mark.table(keys=["id"])
async def test_deletes_take_arrow_data_of_other_libraries(table, writer):
    writer.write_arrow(Stream(pa.table(ROWS)))
    await writer.delete_arrow_batch(Stream(pa.table({"id": [1, 3]}))).wait()
    rows = await table.new_lookup().create_lookuper().lookup_many([[1], [2], [3]])
    assert rows.column("id").to_pylist() == [2]
    with pytest.raises(fluss.InvalidArgumentError, match=r"d*\.t: expected Arrow data .*, got list"):
        writer.write_arrow([{"id": 1}])


async def test_a_timestamp_without_a_zone_is_one_of_utc_everywhere(config, database):
    naive = dt.datetime(2024, 1, 15, 10, 30)
    zoned = naive.replace(tzinfo=UTC)
    columns = {"at": [naive], "many": [[naive]]}

    fields = [("at", pa.timestamp("us", "UTC")), ("many", pa.list_(pa.timestamp("us", "UTC")))]
    async with open_table(config, database, fields) as (_, table):
        writer = table.new_append().create_writer()
        writer.append({"at": naive, "many": [naive]})
        writer.append((naive, [naive]))
        writer.write_arrow(pa.table(columns))
        writer.write_arrow_batch(pa.table(columns, pa.schema([("at", pa.timestamp("ns"))])).to_batches()[0])
        writer.write_pandas(pd.DataFrame({"at": pd.Series([naive]), "many": [[naive]]}))
        writer.write_pandas(pd.DataFrame({"at": pd.Series([naive], dtype=object)}))
        writer.write_polars(pl.DataFrame({"at": [naive]}))
        await writer.flush()
        rows = (await read_all(table)).to_pylist()
        assert [row["at"] for row in rows] == 7 * [zoned]
        assert [row["many"] for row in rows] == [[zoned], [zoned], [zoned], None, [zoned], None, None]
