# SPDX-License-Identifier: Apache-2.0
"""What counts as a row, what values fit, and what happens to those that do not."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from collections import OrderedDict, UserDict, namedtuple
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pydantic
import pytest
from tests.client.support import open_table, read_all, records_from, write

import fluss
from fluss.metadata import DataField, DataTypes

UTC = dt.timezone.utc
FIELDS = [("id", pa.int32()), ("name", pa.string()), ("score", pa.float64())]


@dataclasses.dataclass
class User:
    id: int
    name: str
    score: float | None = None


Point = namedtuple("Point", "score name id")
Other = namedtuple("Other", "a b c")
Part = namedtuple("Part", "name more")
Short = namedtuple("Short", "name id")


class Model(pydantic.BaseModel):
    id: int
    name: str


async def test_every_shape_of_a_row(table, writer):
    writer.append({"id": 1, "name": "dict", "score": 1.0})
    writer.append({"score": 2.0, "name": "other order", "id": 2})
    writer.append({"id": 3})
    writer.append([4, "list", 4.0])
    writer.append((5, "tuple", 5.0))
    writer.append(OrderedDict(id=6, name="ordered"))
    writer.append(UserDict({"id": 7, "name": "user dict"}))
    writer.append(MappingProxyType({"id": 8}))
    writer.append(Point(9.0, "by field name", 9))
    writer.append(Other(10, "by position", 10.0))
    writer.append(User(11, "dataclass"))
    writer.append(Model(id=12, name="pydantic"))
    writer.append(Short("some field names", 13))
    await writer.flush()
    rows = (await read_all(table)).to_pylist()
    assert [row["id"] for row in rows] == list(range(1, 14))
    assert rows[1] == {"id": 2, "name": "other order", "score": 2.0}
    assert rows[2] == {"id": 3, "name": None, "score": None}
    assert rows[8] == {"id": 9, "name": "by field name", "score": 9.0}
    assert rows[9] == {"id": 10, "name": "by position", "score": 10.0}
    assert rows[10] == {"id": 11, "name": "dataclass", "score": None}
    assert rows[11] == {"id": 12, "name": "pydantic", "score": None}
    assert rows[12] == {"id": 13, "name": "some field names", "score": None}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"id": 1, "nmae": "x"}, ["unknown column 'nmae'; did you mean 'name'?"]),
        ([1, "x"], ["a list of 2 values", "the columns are 3"]),
        ((1, "x", 1.0, 2), ["a tuple of 4 values"]),
        ("text", ["a row is a dict", "not str 'text'"]),
        (7, ["not int 7"]),
        (User, ["not type"]),
        (None, ["not NoneType"]),
        (Part(name="x", more=1), ["unknown column 'more'"]),
    ],
)
async def test_what_is_not_a_row_is_refused_at_once(table, writer, row, words):
    with pytest.raises(fluss.InvalidRowError) as caught:
        writer.append(row)
    assert str(table.get_table_path()) in caught.value.message
    for word in words:
        assert word in caught.value.message
    writer.append((1, "good", 1.0))
    await writer.flush()
    assert (await read_all(table)).num_rows == 1


async def test_a_row_may_be_reused_and_changed(config, database):
    kinds = [pa.int32(), pa.binary(), pa.list_(pa.string()), pa.map_(pa.string(), pa.int32())]
    async with open_table(config, database, list(zip(("id", "data", "tags", "m"), kinds))) as (_, table):
        writer = table.new_append().create_writer()
        row: dict[str, Any] = {"id": 0, "data": bytearray(b"00"), "tags": ["a"], "m": {"k": 0}}
        as_list: list[Any] = [0, bytearray(b"xx"), [], {}]
        for i in range(3):
            row["id"] = i
            row["data"][:] = b"%02d" % i
            row["tags"].append(str(i))
            row["m"]["k"] = i
            writer.append(row)
            as_list[0] = 10 + i
            as_list[1][:] = b"%02d" % (10 + i)
            writer.append(as_list)
        row["tags"].clear()
        await writer.flush()
        rows = (await read_all(table)).to_pylist()
        assert [row["id"] for row in rows] == [0, 10, 1, 11, 2, 12]
        assert [row["data"] for row in rows] == [b"00", b"10", b"01", b"11", b"02", b"12"]
        assert rows[4]["tags"] == ["a", "0", "1", "2"]
        assert [rows[i]["m"] for i in (0, 2, 4)] == [[("k", 0)], [("k", 1)], [("k", 2)]]


# Which values a type refuses is tested in tests/rows/test_logical.py; here, one for each kind of Arrow conversion.
BAD = [
    (pa.int32(), 2**31, ["INT", str(2**31)]),
    (pa.bool_(), 1, ["BOOLEAN", "1", "int"]),
    (pa.float32(), 2**24 + 1, ["FLOAT", str(2**24 + 1)]),
    (pa.string(), b"x", ["STRING", "bytes"]),
    (pa.decimal128(10, 2), Decimal("1.234"), ["decimal(10,2)", "1.234"]),
    (pa.date32(), "first of May", ["DATE", "str"]),
    (pa.timestamp("ns"), dt.datetime(2300, 1, 1), ["TIMESTAMP(9)", "2300"]),
]
BAD_NESTED = [
    (pa.list_(pa.int32()), [1, "x"], ["element 1", "'x'"]),
    (pa.list_(pa.int32()), "xy", ["Expected sequence for Array column", "str", "'xy'"]),
    (pa.list_(pa.list_(pa.int32())), [[1], 2], ["element 1", "Expected sequence for Array column", "int", "2"]),
    (pa.map_(pa.string(), pa.int32()), {"k": 2**40}, ["entry 'k'", str(2**40)]),
    (pa.map_(pa.string(), pa.int32()), [("k", 1, 2)], ["pairs"]),
    (pa.struct([("a", pa.int32())]), {"b": 1}, ["'b'"]),
    (pa.struct([("a", pa.int32())]), {"a": None, "b": 2}, ["'b'"]),
    (
        pa.struct([("a", pa.int32()), pa.field("b", pa.int32(), nullable=False)]),
        {"a": 1},
        ["non-nullable row field 'b'"],
    ),
]


@pytest.mark.parametrize(("arrow_type", "value", "words"), BAD, ids=lambda x: str(x)[:30])
async def test_a_value_that_does_not_fit_fails_its_row_alone(config, database, arrow_type, value, words):
    good = {pa.bool_(): True, pa.string(): "s", pa.binary(): b"b"}
    async with open_table(config, database, [("id", pa.int32()), ("v", arrow_type)]) as (_, table):
        writer = table.new_append().create_writer()
        handles = [writer.append((i, value if i in (3, 7) else good.get(arrow_type))) for i in range(10)]
        for i, handle in enumerate(handles):
            if i in (3, 7):
                with pytest.raises(fluss.InvalidRowError) as caught:
                    await handle.wait()
                message = caught.value.message
                assert (caught.value.row, caught.value.column) == (i, "v")
                assert caught.value.table == str(table.get_table_path())
                for word in words:
                    assert word.lower() in message.lower(), message
            else:
                await handle.wait()
        await writer.flush()
        rows = await read_all(table)
        assert rows.column("id").to_pylist() == [0, 1, 2, 4, 5, 6, 8, 9]


@pytest.mark.parametrize(("arrow_type", "value", "words"), BAD_NESTED, ids=lambda x: str(x)[:30])
async def test_a_nested_value_that_does_not_fit_is_refused_at_once(config, database, arrow_type, value, words):
    async with open_table(config, database, [("id", pa.int32()), ("v", arrow_type)]) as (_, table):
        writer = table.new_append().create_writer()
        writer.append((1, None))
        for row in ({"id": 2, "v": value}, (3, value)):
            with pytest.raises(fluss.InvalidRowError) as caught:
                writer.append(row)
            for word in ["column 'v'", str(table.get_table_path()), *words]:
                assert word in caught.value.message
        await writer.flush()
        assert (await read_all(table)).column("id").to_pylist() == [1]


async def test_flush_does_not_raise_again_what_wait_raised(writer):
    handles = [writer.append((2**40 if i in (3, 7, 9) else i, "x", 1.0)) for i in range(10)]
    for _ in range(2):  # the second time reports nothing new
        with pytest.raises(fluss.InvalidRowError, match="row 3"):
            await handles[3].wait()
    with pytest.raises(fluss.InvalidRowError, match=r"2 rows were not written to .*; the first of them: .*row 7"):
        await writer.flush()
    await writer.flush()
    with pytest.raises(fluss.InvalidRowError, match="row 7"):
        await handles[7].wait()  # may be asked for after the flush as well
    await writer.flush()
    with pytest.raises(fluss.InvalidRowError, match="row 10"):
        await writer.append((2**40, "x", 1.0)).wait()
    await writer.flush()


async def test_rows_are_counted_from_the_writers_first(writer):
    for i in range(50):
        writer.append((i, "x", 1.0))
    await writer.flush()
    writer.append((50, "x", 1.0))
    with pytest.raises(fluss.InvalidRowError, match=r"row 51, column 'id' \(int\)"):
        await writer.append((2**40, "x", 1.0)).wait()
    writer.append((2**40, "x", 1.0))
    with pytest.raises(fluss.InvalidRowError, match=r"1 row was not written to .*row 52"):
        await writer.flush()


async def test_a_value_that_loses_nothing_is_taken(config, database):
    fields = [("i", pa.int32()), ("f", pa.float64()), ("d", pa.decimal128(10, 2)), ("t", pa.timestamp("ms", "UTC"))]
    berlin = dt.timezone(dt.timedelta(hours=2))
    async with open_table(config, database, fields) as (_, table):
        writer = table.new_append().create_writer()
        writer.append((1, 1, Decimal("1.5"), dt.datetime(2024, 1, 1, 12, tzinfo=UTC)))
        writer.append((2.0, 2.5, 2, dt.datetime(2024, 1, 1, 14, tzinfo=berlin)))
        writer.append((np.int64(3), np.float32(0.5), Decimal("3.10"), np.datetime64("2024-01-01T12:00")))
        writer.append((4, float("nan"), Decimal("1E+2"), None))
        await writer.flush()
        rows = (await read_all(table)).to_pylist()
        assert [row["i"] for row in rows] == [1, 2, 3, 4]
        assert [row["f"] for row in rows][:3] == [1.0, 2.5, 0.5]
        assert [row["d"] for row in rows] == [Decimal("1.50"), Decimal("2.00"), Decimal("3.10"), Decimal("100.00")]
        assert len({row["t"] for row in rows[:3]}) == 1


async def test_not_null(config, database):
    fields = [pa.field("id", pa.int32(), nullable=False), pa.field("name", pa.string())]
    async with open_table(config, database, fields) as (_, table):
        writer = table.new_append().create_writer()
        with pytest.raises(fluss.InvalidRowError, match="Missing value for non-nullable field 'id'"):
            writer.append({"name": "x"})
        handle = writer.append((None, "x"))
        good = writer.append((1, None))
        with pytest.raises(fluss.InvalidRowError, match=r"column 'id' \(int NOT NULL\): null"):
            await handle.wait()
        await good.wait()
        await writer.flush()
        assert (await read_all(table)).to_pylist() == [{"id": 1, "name": None}]


@pytest.mark.table(keys=["id"])
async def test_keys_must_be_there(writer):
    with pytest.raises(fluss.InvalidRowError, match="Missing value for non-nullable field 'id'"):
        writer.upsert({"name": "x"})
    with pytest.raises(fluss.InvalidRowError, match="'id'"):
        writer.delete({"name": "x"})
    with pytest.raises(fluss.InvalidRowError, match="NOT NULL"):
        await writer.upsert((None, "x", 1.0)).wait()
    await writer.flush()


async def test_required_columns_of_upserts(config, database):
    """A bad value in one row must not hide a missing one in another."""
    fields = [pa.field("id", pa.int32()), pa.field("v", pa.int32(), nullable=False), pa.field("w", pa.int32())]
    async with open_table(config, database, fields, keys=["id"]) as (_, table):
        writer = table.new_upsert().create_writer()
        handles = [writer.upsert(row) for row in [(1, 1, 1), (2, None, 1), (3, 1, "x"), (4, None, "x"), (5, 1, None)]]
        outcomes = await asyncio.gather(*(handle.wait() for handle in handles), return_exceptions=True)
        refused, taken = fluss.InvalidRowError, type(None)
        assert [type(outcome) for outcome in outcomes] == [taken, refused, refused, refused, taken]
        assert "column 'v' (int NOT NULL)" in str(outcomes[1])
        await writer.flush()
        await writer.delete((1,)).wait()
        rows = await table.new_lookup().create_lookuper().lookup_many([[i] for i in range(1, 6)])
        assert rows.to_pylist() == [{"id": 5, "v": 1, "w": None}]


ALL_TYPES = {
    "boolean": (DataTypes.boolean(), [True, False]),
    "tinyint": (DataTypes.tinyint(), [-128, 127]),
    "smallint": (DataTypes.smallint(), [-(2**15), 2**15 - 1]),
    "int": (DataTypes.int(), [-(2**31), 2**31 - 1]),
    "bigint": (DataTypes.bigint(), [-(2**63), 2**63 - 1]),
    "float": (DataTypes.float(), [0.5, -1.25]),
    "double": (DataTypes.double(), [0.1, 1e300]),
    "char": (DataTypes.char(3), ["abc", "ä"]),
    "string": (DataTypes.string(), ["", "grüße 🦆"]),
    "binary": (DataTypes.binary(3), [b"abc", b"\x00\x01\x02"]),
    "bytes": (DataTypes.bytes(), [b"", b"\x00\xff"]),
    "decimal": (DataTypes.decimal(10, 2), [Decimal("12345678.90"), Decimal("-0.01")]),
    "wide": (DataTypes.decimal(38, 10), [Decimal("1234567890123456789012345678.0123456789"), Decimal("0")]),
    "date": (DataTypes.date(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "time": (DataTypes.time(), [dt.time(0, 0), dt.time(23, 59, 59)]),
    "ntz3": (DataTypes.timestamp(3), [dt.datetime(1969, 1, 1, 0, 0, 0, 1000), dt.datetime(2024, 1, 1)]),
    "ntz6": (DataTypes.timestamp(6), [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)]),
    "ntz9": (DataTypes.timestamp(9), [dt.datetime(1700, 1, 1, 0, 0, 0, 1), dt.datetime(2024, 1, 1)]),
    "ltz6": (DataTypes.timestamp_ltz(6), [dt.datetime(2024, 1, 1, tzinfo=UTC), dt.datetime(1960, 1, 1, tzinfo=UTC)]),
    "array": (DataTypes.array(DataTypes.int()), [[1, None, 3], []]),
    "map": (DataTypes.map(DataTypes.string(), DataTypes.double()), [{"a": 1.5, "b": None}, {}]),
    "row": (
        DataTypes.row([DataField("x", DataTypes.int()), DataField("y", DataTypes.array(DataTypes.string()))]),
        [{"x": 1, "y": ["a", None]}, {"x": None, "y": None}],
    ),
    "deep": (
        DataTypes.array(DataTypes.map(DataTypes.int(), DataTypes.row([DataField("d", DataTypes.decimal(5, 2))]))),
        [[{1: {"d": Decimal("1.25")}}, None], []],
    ),
}


def all_types_schema(keys=()):
    builder = fluss.Schema.builder().column("id", DataTypes.int())
    for name, (data_type, _) in ALL_TYPES.items():
        builder = builder.column(f"c_{name}", data_type)
    return (builder.primary_key(list(keys)) if keys else builder).build()


def all_types_rows():
    first = {"id": 1, **{f"c_{name}": values[0] for name, (_, values) in ALL_TYPES.items()}}
    second = {"id": 2, **{f"c_{name}": values[1] for name, (_, values) in ALL_TYPES.items()}}
    return [first, second, {"id": 3, **{f"c_{name}": None for name in ALL_TYPES}}]


def with_map_pairs(row):
    """The row as `fluss.aio` gives it: maps are lists of pairs."""

    def pairs(value):
        return None if value is None else list(value.items())

    deep = row["c_deep"]
    return {**row, "c_map": pairs(row["c_map"]), "c_deep": None if deep is None else [pairs(value) for value in deep]}


def read_rows_blocking(config, path, count):
    """The rows of a log, and of lookups where there is a key, with `fluss` instead of `fluss.aio`."""

    async def read():
        with await fluss.FlussConnection.create(config) as conn:
            table = await conn.get_table(path)
            with await table.new_scan().create_log_scanner() as scanner:
                scanner.subscribe(0, fluss.EARLIEST_OFFSET)
                logged = []
                while len(logged) < count:
                    logged += [record.row for record in scanner.poll(5000)]
            if not table.has_primary_key():
                return logged, None
            lookuper = table.new_lookup().create_lookuper()
            return logged, [await lookuper.lookup([row["id"]]) for row in logged]

    return asyncio.run(read())


@pytest.mark.parametrize("log_format", ["ARROW", "INDEXED", "COMPACTED"])
async def test_all_types_in_and_out_of_a_log(config, database, log_format):
    async with open_table(config, database, all_types_schema(), log_format=log_format) as (_, table):
        rows = all_types_rows()
        writer = table.new_append().create_writer()
        with_pairs = [with_map_pairs(row) for row in rows]
        for row in [*rows, *with_pairs]:
            writer.append(row)
        await writer.flush()
        async with records_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
            assert [record.row for record in await scanner.poll(5000)] == with_pairs + with_pairs
        in_thread = await asyncio.to_thread(read_rows_blocking, config, table.get_table_path(), 6)
        assert in_thread == (rows + rows, None)
        # And once more as Arrow, out and in.
        stored = await read_all(table)
        await writer.write_arrow(stored).wait()
        again = await read_all(table)
        assert again.slice(6).equals(stored)


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
async def test_all_types_in_and_out_of_a_primary_key_table(config, database, kv_format):
    async with open_table(config, database, all_types_schema(["id"]), kv_format=kv_format) as (_, table):
        rows = all_types_rows()
        await write(table, rows)
        lookuper = table.new_lookup().create_lookuper()
        for row in rows:
            assert await lookuper.lookup([row["id"]]) == with_map_pairs(row)
        async with records_from(fluss.EARLIEST_OFFSET, table.new_scan()) as scanner:
            assert [record.row for record in await scanner.poll(5000)] == [with_map_pairs(row) for row in rows]
        in_thread = await asyncio.to_thread(read_rows_blocking, config, table.get_table_path(), 3)
        assert in_thread == (rows, rows)
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        listed = await table.new_scan().create_bucket_batch_scanner(bucket).to_arrow()
        assert sorted(listed.column("id").to_pylist()) == [1, 2, 3]
        many = await lookuper.lookup_many([[row["id"]] for row in rows])
        assert many.equals(listed.sort_by("id"))
        await table.new_upsert().create_writer().write_arrow(listed).wait()


@pytest.mark.client(writer_request_max_size=300_000)
async def test_a_row_too_large_fails_alone(table, writer):
    handles = [writer.append((i, "x" * (400_000 if i == 5 else 10), 0.0)) for i in range(12)]
    with pytest.raises(fluss.RecordTooLargeError, match=r"row 5.*400\d\d\d bytes.*300000"):
        await handles[5].wait()
    await asyncio.gather(*(handle.wait() for i, handle in enumerate(handles) if i != 5))
    await writer.flush()
    batch = pa.RecordBatch.from_pydict({"id": [1, 2], "name": ["a", "x" * 400_000]})
    with pytest.raises(fluss.RecordTooLargeError, match="row 1: a row of"):
        writer.write_arrow_batch(batch)
    assert (await read_all(table)).column("id").to_pylist() == [i for i in range(12) if i != 5]


@pytest.mark.client(writer_request_max_size=300000)
@pytest.mark.table(keys=["id"], bucket_count=3)
async def test_an_upsert_too_large_fails_alone(table, writer):
    handles = [writer.upsert((i, "x" * (400_000 if i == 5 else 10), 0.0)) for i in range(12)]
    with pytest.raises(fluss.RecordTooLargeError, match="row 5"):
        await handles[5].wait()
    await asyncio.gather(*(handle.wait() for i, handle in enumerate(handles) if i != 5))
    await writer.flush()
    rows = await table.new_lookup().create_lookuper().lookup_many([[i] for i in range(12)])
    assert rows.num_rows == 11
