# SPDX-License-Identifier: Apache-2.0
"""Lookups against the embedded server."""

from __future__ import annotations

import asyncio
import datetime as dt

import pyarrow as pa
import pytest
from tests.client.support import write

import fluss
import fluss.aio


@pytest.fixture
async def conn(config):
    with await fluss.FlussConnection.create(config) as conn:
        yield conn


@pytest.fixture
async def create(conn, database):
    """Makes a table and gives it: `create(name, fields, keys, …)`."""
    admin = await conn.get_admin()
    await admin.create_database(database)

    async def create(name, fields, keys, **options):
        path = fluss.TablePath(database, name)
        schema = fluss.Schema(pa.schema(fields), primary_keys=keys)
        await admin.create_table(path, fluss.TableDescriptor(schema, **options))
        return await conn.get_table(path)

    yield create
    await admin.drop_database(database)


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
async def test_lookup(create, kv_format):
    fields = [("id", pa.int32()), ("name", pa.string()), ("age", pa.int64())]
    table = await create("t", fields, ["id"], bucket_count=3, kv_format=kv_format)
    writer = table.new_upsert().create_writer()
    for number in range(20):
        writer.upsert({"id": number, "name": f"n{number}", "age": None if number % 2 else number})
    await writer.flush()
    lookuper = table.new_lookup().create_lookuper()
    assert await lookuper.lookup({"id": 4}) == {"id": 4, "name": "n4", "age": 4}
    assert await lookuper.lookup([5]) == {"id": 5, "name": "n5", "age": None}
    assert await lookuper.lookup((99,)) is None
    await writer.upsert({"id": 4, "name": "changed", "age": 0}).wait()
    assert (await lookuper.lookup((4,)))["name"] == "changed"
    await writer.delete({"id": 4}).wait()
    assert await lookuper.lookup((4,)) is None
    found = await asyncio.gather(*(lookuper.lookup([number % 25]) for number in range(200)))
    assert [row and row["id"] for row in found] == [
        None if number % 25 in (4, 20, 21, 22, 23, 24) else number % 25 for number in range(200)
    ]
    many = await lookuper.lookup_many([[number] for number in range(25)])
    assert many.column("id").to_pylist() == [number for number in range(20) if number != 4]
    assert many.schema.names == ["id", "name", "age"]
    lined_up = await lookuper.lookup_many(pa.table({"id": pa.array([3, 4, 3], pa.int32())}), missing="null")
    assert lined_up.column("name").to_pylist() == ["n3", None, "n3"]
    assert (await lookuper.lookup_many([])).num_rows == 0
    with pytest.raises(fluss.InvalidArgumentError, match="missing must be"):
        await lookuper.lookup_many([], missing="what")
    with pytest.raises(fluss.InvalidRowError, match="'id'"):
        await lookuper.lookup({"id": "x"})


async def test_the_builder_is_the_lookuper_too(create):
    table = await create("t", [("id", pa.int32()), ("name", pa.string())], ["id"])
    writer = table.new_upsert()
    await writer.upsert({"id": 1, "name": "a"}).wait()
    writer.delete({"id": 2})
    await writer.flush()
    assert await table.new_lookup().lookup({"id": 1}) == {"id": 1, "name": "a"}
    partial = table.new_upsert(columns=["id", "name"])
    partial.upsert({"id": 1, "name": "b"})
    await partial.flush()
    assert await table.new_lookup().lookup({"id": 1}) == {"id": 1, "name": "b"}
    with pytest.raises(fluss.InvalidArgumentError, match="Unknown column name 'nope'"):
        table.new_upsert(columns=["id", "nope"])
    with pytest.raises(fluss.InvalidArgumentError, match="Column index 7"):
        table.new_upsert().partial_update_by_index([0, 7])
    with pytest.raises(fluss.InvalidArgumentError, match="new_upsert"):
        table.new_append()


async def test_partitioned_tables(conn, create):
    fields = [("id", pa.int32()), ("region", pa.string()), ("score", pa.int64())]
    table = await create("t", fields, ["id", "region"], partition_keys=["region"], bucket_count=2)
    admin = await conn.get_admin()
    for region in ("US", "EU"):
        await admin.create_partition(table.get_table_path(), {"region": region})
    await write(table, [(number, "US" if number % 2 else "EU", number) for number in range(10)])
    lookuper = table.new_lookup().create_lookuper()
    assert (await lookuper.lookup({"id": 3, "region": "US"}))["score"] == 3
    assert await lookuper.lookup({"id": 3, "region": "EU"}) is None
    assert await lookuper.lookup({"id": 3, "region": "MARS"}) is None
    keys = [{"id": number, "region": region} for number in range(10) for region in ("US", "EU", "MARS")]
    found = await lookuper.lookup_many(keys)
    assert found.column("score").to_pylist() == list(range(10))


async def test_rows_of_a_partition_that_was_dropped_are_not_found(conn, create, caplog):
    """As retention does it, without a word to this connection: the answer is the same as if it had never been."""
    fields = [("region", pa.string()), ("id", pa.int32()), ("at", pa.int32())]
    table = await create(
        "t", fields, ["region", "id", "at"], partition_keys=["region"], bucket_keys=["id"], bucket_count=2
    )
    path, key = table.get_table_path(), {"region": "EU", "id": 1, "at": 1}
    one = table.new_lookup().create_lookuper()
    by_prefix = table.new_lookup().lookup_by(["region", "id"]).create_lookuper()
    async with await fluss.aio.FlussConnection.create(conn.config) as other:
        admin = other.get_admin()
        for ask, found, missing in (
            (lambda: one.lookup(key), key, None),
            (lambda: by_prefix.lookup(("EU", 1)), [key], []),
            (lambda: one.lookup_many([key]), 1, 0),
        ):
            await admin.create_partition(path, {"region": "EU"})
            await write(table, [key])
            for expected in (found, missing):
                answer = await asyncio.wait_for(ask(), 10)
                assert (answer.num_rows if isinstance(answer, pa.Table) else answer) == expected
                if expected is found:
                    await admin.drop_partition(path, {"region": "EU"})

    assert [record.getMessage() for record in caplog.records if "lookup" in record.getMessage().lower()] == []


async def test_prefix_lookup(create):
    fields = [("region", pa.string()), ("user", pa.int32()), ("event", pa.int64()), ("v", pa.string())]
    table = await create("t", fields, ["region", "user", "event"], bucket_keys=["region", "user"], bucket_count=3)
    await write(table, [*(("eu", 1, event, f"e{event}") for event in (3, 1, 2)), ("us", 1, 1, "u")])
    lookuper = table.new_lookup().lookup_by(["region", "user"]).create_lookuper()
    rows = await lookuper.lookup({"region": "eu", "user": 1})
    assert sorted(row["event"] for row in rows) == [1, 2, 3]
    assert rows[0].keys() == {"region", "user", "event", "v"}
    assert [row["v"] for row in await lookuper.lookup(("us", 1))] == ["u"]
    assert await lookuper.lookup(["us", 2]) == []
    assert "PrefixLookuper" in repr(lookuper)


async def test_prefix_lookup_of_an_unknown_partition_is_empty(create):
    fields = [("region", pa.string()), ("user", pa.int32()), ("event", pa.int64())]
    table = await create(
        "t", fields, ["region", "user", "event"], partition_keys=["region"], bucket_keys=["user"], bucket_count=3
    )
    lookuper = table.new_lookup().lookup_by(["region", "user"]).create_lookuper()
    assert await lookuper.lookup({"region": "nowhere", "user": 1}) == []


@pytest.mark.parametrize("kv_format", ["COMPACTED", "INDEXED"])
async def test_rows_of_older_schemas_have_nulls_in_new_columns(conn, create, kv_format):
    old = await create("t", [("id", pa.int32()), ("name", pa.string())], ["id"], kv_format=kv_format)
    await write(old, [(1, "old")])
    path = old.get_table_path()
    await conn.get_admin().alter_table(path, add_columns={"age": pa.int64()})
    new = await conn.get_table(path)
    await write(new, [(2, "new", 7)])
    lookuper = new.new_lookup().create_lookuper()
    assert await lookuper.lookup([1]) == {"id": 1, "name": "old", "age": None}
    assert await lookuper.lookup([2]) == {"id": 2, "name": "new", "age": 7}
    many = await lookuper.lookup_many([[2], [1], [2]])
    assert many.column_names == ["id", "name", "age"]
    assert [tuple(row.values()) for row in many.to_pylist()] == [(2, "new", 7), (1, "old", None), (2, "new", 7)]
    # A table obtained before the change keeps its columns.
    assert await old.new_lookup().create_lookuper().lookup([2]) == {"id": 2, "name": "new"}


async def test_kv_snapshots_and_stats(conn, create):
    table = await create("t", [("id", pa.int32()), ("name", pa.string())], ["id"], bucket_count=2)
    await write(table, [(number % 5, "x") for number in range(10)])
    admin = conn.get_admin()
    stats = await admin.get_table_stats(table.get_table_path())
    assert stats.row_count == 5
    snapshots = await admin.get_latest_kv_snapshots(table.get_table_path())
    assert [snapshot.bucket.bucket_id for snapshot in snapshots] == [0, 1]


async def test_many_keys_at_once(create):
    table = await create("t", [("id", pa.int64()), ("name", pa.string())], ["id"], bucket_count=3)
    count = 20_000
    rows = pa.table({"id": range(count), "name": [f"n{number}" for number in range(count)]})
    async with table.new_upsert().create_writer() as writer:
        writer.write_arrow(rows)
    lookuper = table.new_lookup().create_lookuper()
    found = await lookuper.lookup_many(rows.select(["id"]))
    assert found.to_pydict() == rows.to_pydict()


async def test_insert_if_not_exists_hands_out_numbers(config, database, face):
    """The table of identifiers for which the option was made: a name gets the next number, once."""
    async with await face.FlussConnection.create(config) as conn:
        admin = conn.get_admin()
        await admin.create_database(database)
        path = fluss.TablePath(database, "ids")
        fields = pa.schema([("name", pa.string()), ("id", pa.int64()), ("note", pa.string())])
        schema = fluss.Schema(fields, primary_keys=["name"], auto_increment_column="id")
        await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        table = await conn.get_table(path)
        plain = table.new_lookup()
        ids = plain.enable_insert_if_not_exists().create_lookuper()
        assert await plain.lookup(["ada"]) is None, "the builder it was made from is left as it was"
        ada = await ids.lookup({"name": "ada"})
        assert ada["note"] is None
        assert await ids.lookup(["ada"]) == ada == await plain.lookup(["ada"])
        rows = await asyncio.gather(*(ids.lookup([f"n{i % 50}"], timeout=20) for i in range(200)))
        numbers = {row["name"]: row["id"] for row in rows}
        assert len(set(numbers.values())) == 50
        assert ada["id"] not in numbers.values()
        assert all(numbers[row["name"]] == row["id"] for row in rows)
        many = await ids.lookup_many([["n1"], ["new"], ["n2"]])
        assert many.column("name").to_pylist() == ["n1", "new", "n2"]
        assert many.column("id").null_count == 0
        assert many.column("id")[0].as_py() == numbers["n1"]


async def test_insert_if_not_exists_in_partitions(config, database, face):
    async with await face.FlussConnection.create(config) as conn:
        admin = conn.get_admin()
        await admin.create_database(database)
        path = fluss.TablePath(database, "ids")
        fields = pa.schema([("name", pa.string()), ("day", pa.date32()), ("nr", pa.int32()), ("id", pa.int64())])
        schema = fluss.Schema(fields, primary_keys=["name", "day", "nr"], auto_increment_column="id")
        descriptor = fluss.TableDescriptor(schema, partition_keys=["day", "nr"], bucket_count=1)
        await admin.create_table(path, descriptor)
        first, second = dt.date(2024, 5, 1), dt.date(2024, 5, 2)
        for day in (first, second):
            await admin.create_partition(path, {"day": str(day), "nr": "7"})
        table = await conn.get_table(path)
        ids = table.new_lookup().enable_insert_if_not_exists().create_lookuper()
        ada = await ids.lookup({"name": "ada", "day": first, "nr": 7})
        assert ada == {"name": "ada", "day": first, "nr": 7, "id": ada["id"]}
        assert await ids.lookup(("ada", first, 7)) == ada == await table.new_lookup().lookup(("ada", first, 7))
        other = await ids.lookup(("ada", second, 7))
        assert (other["day"], other["id"] == ada["id"]) == (second, False)
        many = await ids.lookup_many([("ada", first, 7), ("bob", second, 7)])
        assert many.column("day").to_pylist() == [first, second]
        assert await ids.lookup(("ada", dt.date(2024, 5, 3), 7)) is None, "there is no such partition"


async def test_insert_if_not_exists_where_it_cannot_be(create):
    strict = await create("strict", [("id", pa.int32()), pa.field("v", pa.int32(), nullable=False)], ["id"])
    with pytest.raises(fluss.InvalidArgumentError, match="non-nullable field 'v'"):
        strict.new_lookup().enable_insert_if_not_exists().create_lookuper()
    table = await create(
        "p", [("region", pa.string()), ("id", pa.int32()), ("v", pa.int32())], ["region", "id"],
        partition_keys=["region"], bucket_count=1,
    )  # fmt: skip
    builder = table.new_lookup().enable_insert_if_not_exists()
    with pytest.raises(fluss.InvalidArgumentError, match="a prefix is not a whole key"):
        builder.lookup_by(["region", "id"])
