# SPDX-License-Identifier: Apache-2.0
"""A table as an Arrow dataset: what DuckDB, polars and pyarrow read from it, and how much of the table that takes."""

from __future__ import annotations

import gc
import math
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

import fluss
from fluss.db import dataset as dataset_module
from fluss.db import read_ahead
from fluss.db.read_plan import Read, plan_read
from fluss.errors import ConnectionClosedError, FlussError, InvalidArgumentError

PRICES = [*map(float, range(19)), math.nan]
ROWS = pa.table({"id": pa.array(range(20), pa.int64()), "item": ["tea", "milk", None, "rum"] * 5, "price": PRICES})


@pytest.fixture
def orders(db: fluss.Database) -> fluss.Table[dict[str, Any]]:
    return db.create_table("orders", ROWS, primary_key="id", buckets=3)


@pytest.fixture
def events(db: fluss.Database) -> fluss.Table[dict[str, Any]]:
    return db.create_table("events", ROWS, buckets=2)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], str, str | None]]:
    """What is read from now on: the columns, where from, and whether a filter was passed on."""
    seen: list[tuple[list[str], str, str | None]] = []

    async def recording(connection: Any, path: Any, **options: Any) -> Any:
        read = await plan_read(connection, path, **options)
        seen.append((read.columns, read.sources, None if read.predicate is None else "filtered"))
        return read

    monkeypatch.setattr(dataset_module, "plan_read", recording)
    return seen


def sorted_ids(table: pa.Table) -> list[int]:
    return sorted(table["id"].to_pylist())


def test_it_is_a_dataset(orders: fluss.Table[Any]) -> None:
    data = orders.dataset()
    assert isinstance(data, ds.Dataset)
    assert data.schema == orders.schema.arrow_schema
    assert data.count_rows() == 20
    assert sorted_ids(data.to_table()) == list(range(20))
    assert data.to_table(columns=["price", "id"]).column_names == ["price", "id"]
    assert data.to_table(columns=["id", "id"]).column_names == ["id", "id"]
    assert sorted_ids(data.to_table(filter=pc.field("id") < 5)) == [0, 1, 2, 3, 4]
    assert data.head(7).num_rows == 7
    assert data.head(3, filter=pc.field("id") + 0 > 10).num_rows == 3
    assert data.head(0).num_rows == 0
    assert data.to_table(filter=pc.field("id") + 0 > 1000).num_rows == 0
    assert data.to_table(filter=pc.field("id") > 1000).num_rows == 0
    assert data.take([1, 3]).num_rows == 2
    assert data.count_rows(filter=pc.field("item") == "tea") == 5
    assert sum(batch.num_rows for batch in data.to_batches(batch_size=2)) == 20
    assert max(batch.num_rows for batch in data.to_batches(batch_size=2)) == 2
    assert data.scanner(columns=[]).count_rows() == 20
    assert sum(batch.num_rows for batch in data.scanner(columns=[]).to_batches()) == 20
    assert repr(data) == "<FlussDataset of fluss.orders>"


def test_scanners(orders: fluss.Table[Any]) -> None:
    scanner = orders.dataset().scanner(columns=["id"], filter=pc.field("id") < 3)
    assert isinstance(scanner, ds.Scanner)
    assert scanner.projected_schema.names == ["id"]
    assert scanner.dataset_schema.names == ["id", "item", "price"]
    # Unlike a reader, a scanner can be read again, and reads the table as it is then.
    assert scanner.to_reader().read_all().num_rows == 3
    orders.delete(1)
    assert sorted_ids(scanner.to_table()) == [0, 2]
    assert [tagged.record_batch.num_rows for tagged in scanner.scan_batches()]


def test_columns_that_are_computed(events: fluss.Table[Any], reads: list[Any]) -> None:
    scanner = events.dataset().scanner(columns={"twice": pc.field("id") * 2}, filter=pc.field("item") == "rum")
    assert sorted(scanner.to_table()["twice"].to_pylist()) == [6, 14, 22, 30, 38]
    assert reads == [(["id"], "log", "filtered")]


def test_filters_of_a_dataset_add_up(orders: fluss.Table[Any]) -> None:
    data = orders.dataset().filter(pc.field("id") > 3).filter(pc.field("id") < 8)
    assert data.count_rows() == 4
    assert sorted_ids(data.to_table(filter=pc.field("id") != 5)) == [4, 6, 7]


def test_whole_tables_in_memory(db: fluss.Database, orders: fluss.Table[Any], events: fluss.Table[Any]) -> None:
    data = orders.dataset()
    assert data.sort_by([("id", "descending")]).to_table()["id"][0].as_py() == 19
    assert data.join(events.dataset(), keys="id", right_suffix="_2").to_table().num_rows == 20
    near = pa.table({"at": [5, 12], "id": [3, 4], "note": ["x", "y"]})
    times = db.create_table("times", pa.table({"id": [4, 3, 3], "at": [13, 6, 90]}))
    joined = times.dataset().join_asof(ds.dataset(near), on="at", by="id", tolerance=-3).to_table()
    notes = {row["at"]: row["note"] for row in joined.to_pylist()}
    assert notes == {6: "x", 13: "y", 90: None}


def test_what_a_dataset_cannot_do(orders: fluss.Table[Any]) -> None:
    data = orders.dataset()
    with pytest.raises(NotImplementedError, match="no fragments"):
        data.get_fragments()
    with pytest.raises(NotImplementedError, match="cast what to_table"):
        data.replace_schema(data.schema)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(data)
    with pytest.raises(InvalidArgumentError, match=r"no column 'prise'; did you mean 'price'\?"):
        data.to_table(columns=["prise"])
    assert data.partition_expression.equals(pc.scalar(True))


def test_only_what_is_needed_is_read(
    orders: fluss.Table[Any], events: fluss.Table[Any], reads: list[tuple[list[str], str, str | None]]
) -> None:
    duckdb = pytest.importorskip("duckdb")
    connection = duckdb.connect()
    connection.register("orders", orders.dataset())
    connection.register("events", events.dataset())
    assert connection.execute("select item from orders where id = 7").fetchall() == [("rum",)]
    assert connection.execute("select count(*) from orders where id in (3, 5, 300)").fetchall() == [(2,)]
    assert connection.execute("select sum(price) from events where id < 4").fetchall() == [(6.0,)]
    assert connection.execute("select sum(id) from events").fetchall() == [(190,)]
    # Before 2.0, DuckDB reads columns that it only filters by.
    assert [(set(columns) - {"id"}, source, how) for columns, source, how in reads] == [
        ({"item"}, "keys", "filtered"),
        (set(), "keys", "filtered"),
        ({"price"}, "log", "filtered"),
        (set(), "log", None),
    ]


def test_partitions_are_pruned(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    duckdb = pytest.importorskip("duckdb")
    from fluss.db import read_plan as reads_module

    days = db.create_table("days", pa.table({"day": ["a", "b", "c"] * 4, "n": range(12)}), partition_by="day")
    seen: list[int] = []
    list_buckets = reads_module.list_buckets

    async def recording(*args: Any) -> Any:
        found = await list_buckets(*args)
        seen.append(len(found))
        return found

    monkeypatch.setattr(reads_module, "list_buckets", recording)
    connection = duckdb.connect()
    connection.register("days", days.dataset())
    assert connection.execute("select sum(n) from days where day = 'b'").fetchall() == [(22,)]
    assert connection.execute("select sum(n) from days where day <> 'b' and n > 3").fetchall() == [(39,)]
    assert seen == [1, 2]


def test_polars_reads_lazily(orders: fluss.Table[Any], reads: list[tuple[list[str], str, str | None]]) -> None:
    pl = pytest.importorskip("polars")
    frame = orders.lazy()
    assert frame.collect_schema().names() == ["id", "item", "price"]
    assert frame.filter(pl.col("id") == 7).select("item").collect().to_dicts() == [{"item": "rum"}]
    assert reads[-1][1:] == ("keys", "filtered")
    found = frame.filter((pl.col("price") > 16) & pl.col("item").is_not_null()).select("id").collect()
    # NaN is greater than every number for polars, too.
    assert sorted(found["id"].to_list()) == [17, 19]
    found = frame.filter(~pl.col("item").is_in(["tea", "milk"])).collect()
    assert sorted(found["id"].to_list()) == [3, 7, 11, 15, 19]
    assert frame.filter(pl.col("item").str.to_uppercase() == "TEA").collect().height == 5
    assert frame.head(3).collect().height == 3
    assert frame.select(pl.len()).collect().item() == 20
    plain = pl.scan_pyarrow_dataset(orders.dataset())
    assert plain.filter(pl.col("id") < 3).collect().height == 3


def test_tables_are_arrow_streams(orders: fluss.Table[Any]) -> None:
    assert pa.table(orders).num_rows == 20
    assert pa.schema(orders) == orders.schema.arrow_schema
    assert pa.schema(orders.dataset()).names == orders.columns
    assert pa.table(orders.dataset()).num_rows == 20
    pl = pytest.importorskip("polars")
    assert pl.DataFrame(orders).height == 20
    duckdb = pytest.importorskip("duckdb")
    assert duckdb.sql("select count(*) from orders").fetchall() == [(20,)]


def test_what_reads_a_table_keeps_its_connection(db_server: fluss.LocalServer, orders: fluss.Table[Any]) -> None:
    """A database that is dropped closes itself; not while something that reads from it is in use."""

    def open_table() -> fluss.Table[Any]:
        return fluss.connect(db_server.bootstrap_servers, timeout=30).table("orders")

    reader, data, capsule = open_table().to_reader(), open_table().dataset(), pa.table(open_table())
    gc.collect()
    assert (reader.read_all().num_rows, data.to_table().num_rows, capsule.num_rows) == (20, 20, 20)


def test_errors_reach_the_reader(orders: fluss.Table[Any], db: fluss.Database) -> None:
    data = orders.dataset()
    db.drop_table("orders")
    with pytest.raises(FlussError, match="orders"):
        data.to_table()


def test_a_reader_that_stops_early_ends_the_read(events: fluss.Table[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    closed = threading.Event()

    async def endless(read: Read) -> Any:
        try:
            while True:
                yield ROWS.to_batches()[0]
        finally:
            closed.set()

    monkeypatch.setattr(Read, "batches", endless)
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES_MAX", 10_000)
    batches = events.dataset().to_batches()
    assert next(batches).num_rows == 20
    assert next(batches).num_rows == 20
    batches.close()
    assert closed.wait(10)


def count_batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let every read give 200 batches, and note each when it is made."""
    made: list[int] = []

    async def counted(read: Read) -> Any:
        for number in range(200):
            made.append(number)
            yield ROWS.to_batches()[0]

    monkeypatch.setattr(Read, "batches", counted)
    return made


def test_reading_ahead_is_bounded(monkeypatch: pytest.MonkeyPatch, events: fluss.Table[Any]) -> None:
    made, batch = count_batches(monkeypatch), ROWS.to_batches()[0]
    monkeypatch.setattr(read_ahead, "AHEAD_BYTES_MAX", 5 * batch.nbytes)
    batches: Iterator[pa.RecordBatch] = events.dataset().to_batches()
    for taken in range(1, 201):
        assert next(batches).num_rows == 20
        assert len(made) <= taken + 7
    assert list(batches) == []


def test_little_is_read_ahead_of_the_first_rows(monkeypatch: pytest.MonkeyPatch, events: fluss.Table[Any]) -> None:
    """And more with each batch that is taken, up to the bound."""
    made, batch = count_batches(monkeypatch), ROWS.to_batches()[0]
    monkeypatch.setattr(read_ahead, "_FIRST_AHEAD_BYTES_MAX", 2 * batch.nbytes)
    batches: Iterator[pa.RecordBatch] = events.dataset().to_batches()
    next(batches)
    time.sleep(0.2)
    assert len(made) <= 6, "the first batch, and twice as much as at first"
    assert len(list(batches)) == 199


def test_closing_the_connection_ends_a_read(db_server: fluss.LocalServer, events: fluss.Table[Any]) -> None:
    other = fluss.connect(db_server.bootstrap_servers, timeout=30)
    started = threading.Event()

    async def stuck() -> Any:
        import asyncio

        started.set()
        await asyncio.sleep(600)
        yield ROWS.to_batches()[0]

    batches = read_ahead.read_ahead(other._bridge.submit, stuck)
    closing = threading.Thread(target=lambda: started.wait(10) and other.close())
    closing.start()
    with pytest.raises(ConnectionClosedError):
        next(batches)
    closing.join()
    with pytest.raises(ConnectionClosedError):
        next(read_ahead.read_ahead(other._bridge.submit, stuck))
