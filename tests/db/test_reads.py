# SPDX-License-Identifier: Apache-2.0
"""Reading whole tables: everything, exactly filtered, at one point in time."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from typing import Any
from unittest import mock

import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.client.support import without_cursors
from tests.shared import raising
from tests.threads import in_background, in_threads

import fluss
from fluss import col
from fluss.client.scan import as_of
from fluss.db import read_plan
from fluss.errors import FlussError, UnsupportedVersionError
from fluss.net.connection import Connection
from fluss.protocol import apis


def ids(table: pa.Table) -> list[int]:
    return sorted(table.column("id").to_pylist())


@pytest.fixture
def log(db: fluss.Database) -> fluss.Table:
    return db.create_table("log", [{"id": i, "name": f"n{i % 3}", "v": i / 2} for i in range(100)], buckets=4)


@pytest.fixture
def keyed(db: fluss.Database) -> fluss.Table:
    table = db.create_table("keyed", "id bigint, name string, v double", primary_key="id", buckets=4)
    table.upsert([(i, "old", 0.0) for i in range(120)])
    table.upsert([(i, f"n{i % 3}", i / 2) for i in range(100)])
    table.delete(list(range(100, 120)))
    return table


@pytest.mark.parametrize("name", ["log", "keyed"])
def test_the_whole_table_in_every_form(request: pytest.FixtureRequest, name: str) -> None:
    table = request.getfixturevalue(name)
    arrow = table.to_arrow()
    assert ids(arrow) == list(range(100))
    assert arrow.schema.equals(table.schema.arrow_schema)
    assert isinstance(table.to_pandas(), pd.DataFrame)
    assert sorted(table.to_pandas()["id"]) == list(range(100))
    assert isinstance(table.to_polars(), pl.DataFrame)
    assert table.to_polars()["id"].sort().to_list() == list(range(100))
    assert sorted(table.to_pylist(), key=lambda row: row["id"])[7] == {"id": 7, "name": "n1", "v": 3.5}
    assert sum(batch.num_rows for batch in table.batches()) == 100
    assert ids(table.to_reader().read_all()) == list(range(100))
    assert ids(pa.table(table)) == list(range(100))
    assert table.count() == len(table) == 100


@pytest.mark.parametrize("name", ["log", "keyed"])
def test_columns_where_and_limit(request: pytest.FixtureRequest, name: str) -> None:
    table = request.getfixturevalue(name)
    assert table.to_arrow(columns=["v", "id"]).column_names == ["v", "id"]
    assert table.to_arrow(columns="name").column_names == ["name"]
    assert table.to_arrow(columns="name, id").column_names == ["name", "id"]
    some = table.to_arrow(columns=["id"], where="v > 10 and name = 'n1'")
    assert ids(some) == [i for i in range(100) if i / 2 > 10 and i % 3 == 1]
    assert some.column_names == ["id"]
    assert ids(table.to_arrow(where=(col("id") < 5) | (col("id") > 97))) == [0, 1, 2, 3, 4, 98, 99]
    assert ids(table.to_arrow(where="not (id between 3 and 98)")) == [0, 1, 2, 99]
    assert len(table.to_arrow(limit=7)) == 7
    assert len(set(table.to_arrow(limit=7)["id"].to_pylist())) == 7
    assert len(table.to_arrow(limit=0)) == 0
    assert len(table.to_arrow(limit=1_000)) == 100
    assert ids(table.to_arrow(where="id >= 90", limit=1_000)) == list(range(90, 100))
    assert len(table.to_arrow(where="id >= 90", limit=4)) == 4
    assert len(table.head(3)) == 3
    assert table.count(where="id < 10") == 10
    assert table.count(where="id < 0") == 0


def test_a_filter_by_primary_key_looks_up(keyed: fluss.Table) -> None:
    read = keyed._bridge.run(keyed._core._plan(None, "id = 7", None, None))
    assert read.sources == "keys"
    assert keyed.to_pylist(where="id = 7") == [{"id": 7, "name": "n1", "v": 3.5}]
    assert keyed.to_pylist(where="id = 7 and v > 100") == []
    assert keyed.to_pylist(where="id in (1, 2, 105)", columns=["id"]) == [{"id": 1}, {"id": 2}]
    assert keyed.count(where="id = 105") == 0


def test_partitions(db: fluss.Database) -> None:
    rows = [{"id": i, "day": f"2026-07-0{i % 3 + 1}", "v": i} for i in range(30)]
    for name, key in (("plog", None), ("pkeyed", ["id", "day"])):
        table = db.create_table(name, rows, primary_key=key, partition_by="day", buckets=2)
        assert ids(table.to_arrow()) == list(range(30))
        assert table.count() == 30
        assert ids(table.to_arrow(where="day = '2026-07-02'")) == list(range(1, 30, 3))
        assert table.count(where="day > '2026-07-01' and v < 10") == 6


def test_more_buckets_than_cursors(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(as_of, "CURSORS_MAX", 3)
    table = db.create_table("t", [{"id": i} for i in range(500)], primary_key="id", buckets=16)
    assert ids(table.to_arrow()) == list(range(500))
    time.sleep(0.01)
    then = dt.datetime.now(dt.timezone.utc)
    time.sleep(0.01)
    open_lists: set[as_of._ListedRows] = set()
    most = 0
    begin, close = as_of._ListedRows.begin, as_of._ListedRows.close

    async def counted(one: as_of._ListedRows) -> None:
        nonlocal most
        open_lists.add(one)
        most = max(most, len(open_lists))
        await begin(one)

    async def ended(one: as_of._ListedRows) -> None:
        await close(one)
        open_lists.discard(one)

    monkeypatch.setattr(as_of._ListedRows, "begin", counted)
    monkeypatch.setattr(as_of._ListedRows, "close", ended)
    monkeypatch.setattr(read_plan, "CURSORS_MAX", 3, raising=False)
    assert ids(table.to_arrow(at=then)) == list(range(500))
    assert (most, open_lists) == (3, set())


def test_rows_of_keys_are_counted_by_the_server(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = db.create_table("plain", [{"id": i} for i in range(50)], primary_key="id", buckets=3)
    rows = [{"id": i, "day": f"d{i % 40}"} for i in range(200)]
    parts = db.create_table("parts", rows, primary_key=["id", "day"], partition_by="day", buckets=2)
    uncounted = db.create_table(
        "uncounted", [{"id": i} for i in range(7)], primary_key="id", properties={"table.changelog.image": "wal"}
    )
    plain.delete([1, 2, 3])
    with mock.patch.object(read_plan, "_current_rows", raising(AssertionError, "rows were read")):
        assert plain.count() == len(plain) == 47
        assert parts.count() == 200
        parts.drop_partition("d0")
        assert parts.count() == 195
        assert plain.dataset().count_rows() == 47
        with pytest.raises(AssertionError, match="rows were read"):
            uncounted.count()
    assert uncounted.count() == 7, "without counts, keys are read"
    without_cursors(monkeypatch)
    version = Connection.version_of

    def old_version(self: Connection, api: apis.Api[Any, Any]) -> int:
        if api is apis.GET_TABLE_STATS:
            raise UnsupportedVersionError("an old server")
        return version(self, api)

    monkeypatch.setattr(Connection, "version_of", old_version)
    assert plain.count() == 47


def test_servers_that_cannot_list_rows(keyed: fluss.Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apache Fluss before 1.0 has no cursors: the changelog is folded instead, while others write."""
    without_cursors(monkeypatch)
    assert ids(keyed.to_arrow()) == list(range(100))
    assert keyed.count() == 100
    assert ids(keyed.to_arrow(where="v > 48")) == [97, 98, 99]

    with in_background(lambda turn: keyed.upsert((100 + turn, "new", 0.0))):
        for _ in range(5):
            found = ids(keyed.to_arrow())
            assert found == list(range(len(found)))


def test_an_empty_table(db: fluss.Database) -> None:
    for key in (None, "id"):
        table = db.create_table("t", "id bigint, name string", primary_key=key, buckets=3, replace=True)
        assert table.to_arrow().num_rows == 0
        assert table.to_pandas().shape == (0, 2)
        assert table.to_pylist(where="id = 1") == []
        assert table.count() == 0
        assert table.head() == []
        assert table, "an empty table is still a table"
    partitioned = db.create_table("p", "id bigint, day string", partition_by="day")
    assert partitioned.to_pylist() == []
    assert partitioned.count() == 0


def test_mistakes(log: fluss.Table) -> None:
    for options, problem in (
        ({"columns": ["nme"]}, "did you mean 'name'"),
        ({"where": "nme = 'x'"}, "name"),
        ({"columns": []}, "at least one column"),
        ({"limit": -1}, "number of rows"),
        ({"columns": ["id", "id"]}, "named once"),
    ):
        with pytest.raises(fluss.InvalidArgumentError, match=problem):
            log.to_arrow(**options)


def test_dropped_and_created_again(db: fluss.Database) -> None:
    table = db.create_table("t", "id bigint")
    table.append((1,))
    db.create_table("t", "id bigint, more string", replace=True).append((2, "x"))
    with pytest.raises(fluss.TableNotExistError, match="dropped and created again"):
        table.to_pylist()
    table.refresh()
    assert table.to_pylist() == [{"id": 2, "more": "x"}]


def test_the_past_has_the_columns_of_now(db: fluss.Database) -> None:
    for key in (None, "id"):
        table = db.create_table("t", "id bigint", primary_key=key, replace=True)
        (table.append if key is None else table.upsert)((1,))
        then = dt.datetime.now(dt.timezone.utc) + dt.timedelta(milliseconds=2)
        time.sleep(0.01)
        table.add_column("more", "string")
        (table.append if key is None else table.upsert)((2, "x"))
        assert table.as_of(then).to_pylist() == [{"id": 1, "more": None}]


def test_evolved_schemas(db: fluss.Database) -> None:
    for key in (None, "id"):
        table = db.create_table("t", "id bigint", primary_key=key, buckets=2, replace=True)
        write = table.append if key is None else table.upsert
        write([(1,), (2,)])
        table.add_column("a", "string")
        write([(3, "x")])
        table.add_column("b", "double")
        write([(4, "y", 1.5)])
        rows = sorted(tuple(row.items()) for row in table.to_pylist())
        expected = [(1, None, None), (2, None, None), (3, "x", None), (4, "y", 1.5)]
        assert rows == [tuple(zip(("id", "a", "b"), row)) for row in expected]
        assert ids(table.to_arrow(where="b is null and a is not null")) == [3]


@pytest.fixture
def _staggered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the lists of buckets begin one after the other, as they do on a busy cluster."""
    begin = as_of._ListedRows.begin

    async def late(self: as_of._ListedRows) -> None:
        await asyncio.sleep(0.01 * self.bucket.bucket_id)
        await begin(self)

    monkeypatch.setattr(as_of._ListedRows, "begin", late)


@pytest.mark.usefixtures("_staggered")
def test_one_point_in_time_while_rows_are_replaced(db: fluss.Database) -> None:
    """All buckets of a primary-key table are of one moment: writes come in the order in which they were made."""
    keys = 64
    table = db.create_table("t", "id bigint, turn bigint", primary_key="id", buckets=8)
    table.upsert([(i, -1) for i in range(keys)])

    # One key after the other, each durable before the next: at any moment the turns never grow along the keys.
    with in_background(lambda turn: table.upsert((turn % keys, turn // keys))):
        for _ in range(15):
            rows = sorted(table.to_pylist(), key=lambda row: row["id"])
            assert [row["id"] for row in rows] == list(range(keys))
            turns = [row["turn"] for row in rows]
            assert turns == sorted(turns, reverse=True), turns
            assert turns[0] - turns[-1] <= 1, turns


@pytest.mark.usefixtures("_staggered")
def test_one_point_in_time_while_rows_are_inserted_and_deleted(db: fluss.Database) -> None:
    """A window of live keys moves on: every read sees a window without holes."""
    width = 20
    table = db.create_table("t", "id bigint", primary_key="id", buckets=8)
    table.upsert([(i,) for i in range(width)])

    def work(turn: int) -> None:
        table.upsert((width + turn,))
        table.delete(turn)

    with in_background(work):
        for _ in range(15):
            found = sorted(row["id"] for row in table.to_pylist())
            assert found == list(range(found[0], found[0] + len(found)))
            assert width <= len(found) <= width + 1


def test_one_point_in_time_while_rows_are_appended(db: fluss.Database) -> None:
    table = db.create_table("t", "id bigint", buckets=8, bucket_key="id")
    with in_background(lambda turn: table.append((turn,))):
        seen = 0
        for _ in range(15):
            found = ids(table.to_arrow())
            assert found == list(range(len(found)))
            assert len(found) >= seen
            seen = len(found)
            assert table.count() >= seen


def test_reads_in_many_threads(keyed: fluss.Table) -> None:
    def read(_: int) -> None:
        for _ in range(5):
            assert len(keyed.to_arrow()) == 100
            assert keyed.get(7) == {"id": 7, "name": "n1", "v": 3.5}

    in_threads(read, range(6))


def test_a_reader_that_is_dropped_gives_its_cursors_back(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": i, "text": "x" * 1_000} for i in range(6_000)], primary_key="id", buckets=1)
    for _ in range(10):  # a server keeps eight cursors per bucket at most
        reader = table.to_reader()
        assert reader.read_next_batch().num_rows > 0
        del reader
    assert len(table) == 6_000


@pytest.mark.parametrize(
    "where", [True, {"id": 1}, lambda row: True, pl.col("id") == 1, pc.field("id") == 1], ids=lambda w: type(w).__name__
)
def test_what_is_no_condition_is_refused_in_words(db: fluss.Database, where: Any) -> None:
    table = db.create_table("t", [{"id": 1}], primary_key="id")
    for call in (table.to_pylist, table.count, table.delete):
        with pytest.raises(fluss.InvalidArgumentError, match=r"where= takes a text such as .* not "):
            call(where=where)
    assert len(table) == 1


@pytest.mark.parametrize("keyed", [False, True])
def test_a_table_as_it_was_at_a_time(db: fluss.Database, keyed: bool) -> None:
    table = db.create_table("past", "id bigint, n bigint", primary_key="id" if keyed else None, buckets=2)
    write = table.upsert if keyed else table.append
    write([(number, 0) for number in range(20)])
    time.sleep(0.05)
    then = dt.datetime.now(dt.timezone.utc)
    time.sleep(0.05)
    write([(number, 1) for number in range(10, 30)])
    if keyed:
        table.delete([0])
    rows = sorted(tuple(row.values()) for row in table.to_arrow(at=then).to_pylist())
    assert rows == [(number, 0) for number in range(20)]
    assert table.to_arrow(["n"], where="id = 12", at=then.isoformat()).to_pylist() == [{"n": 0}]
    assert table.to_arrow(at=then - dt.timedelta(hours=1)).num_rows == 0
    with pytest.raises(FlussError, match="future"):
        table.to_arrow(at=then + dt.timedelta(hours=1))
    assert table.as_of("1h").count() == table.to_arrow(at="60m").num_rows == 0
    past = table.as_of(then)
    assert f"as of {then}" in repr(past)
    for found in (past.to_arrow(), pa.table(past), past.dataset().to_table(), past.lazy().collect().to_arrow()):
        assert sorted(zip(*found.to_pydict().values())) == [(number, 0) for number in range(20)]
    assert sorted(past.to_pandas()["id"]) == sorted(past.to_polars()["id"]) == list(range(20))
    assert past.to_pylist(where="id = 12") == [{"id": 12, "n": 0}]
    assert len(past.head(3)) == 3
    assert len(past) == past.count() == past.dataset().count_rows() == 20
    assert past.count("n = 1") == 0
    changing = [lambda: past.upsert((1, 1)), lambda: past.delete(1), lambda: past.update(1, n=2), lambda: past.get(1)]
    for call in [
        *(changing if keyed else [lambda: past.append((1, 1))]),
        past.writer,
        past.follow,
        lambda: past.add_column("more string"),
        lambda: past.set_properties({"table.log.ttl": "1d"}),
        lambda: past.add_partition("p"),
    ]:
        with pytest.raises(fluss.InvalidArgumentError, match=r"table fluss\.past as of .* can only be read as a whole"):
            call()
    for refused in (lambda: table.to_arrow(at="yesterday"), lambda: table.as_of(7)):
        with pytest.raises(FlussError, match="takes a time"):
            refused()
    with pytest.raises(FlussError, match="moment of its own"):
        past.to_arrow(snapshot=1)
