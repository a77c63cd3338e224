# SPDX-License-Identifier: Apache-2.0
"""SQL that changes tables: rows of primary-key tables, and the tables themselves."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.db.conftest import columns

import fluss
from fluss.errors import (
    DatabaseAlreadyExistError,
    FlussError,
    InvalidArgumentError,
    InvalidRowError,
    TableAlreadyExistError,
    TableNotExistError,
)
from fluss.lake import TieringService

duckdb = pytest.importorskip("duckdb")
COLUMNS = "id bigint, item string, n int, price double"
NOT_NULL_REFUSED = (InvalidArgumentError, duckdb.ParserException)
"""Of ADD COLUMN: before 2.0, DuckDB itself does not read it."""
ROWS = [(number, ["tea", "rum", None][number % 3], number * 2, number / 4) for number in range(8)]
Orders = fluss.Table[Any]


@pytest.fixture
def orders(db: fluss.Database) -> Orders:
    table = db.create_table("orders", COLUMNS, primary_key="id", buckets=2)
    table.upsert(ROWS)
    return table


def rows(db: fluss.Database, table: str = "orders") -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = db.sql(f"select * from {table} order by all").fetchall()
    return found


@pytest.mark.parametrize(
    "statement",
    [
        "with orders as (select 99 as id, 1 as n) update orders set n = 2",
        'with recursive a as (select 1), "ORDERS"(id) as (select 99) delete from orders',
    ],
)
def test_a_query_of_with_is_not_taken_for_the_table(db: fluss.Database, orders: Orders, statement: str) -> None:
    before = rows(db)
    with pytest.raises(InvalidArgumentError, match="WITH gives this name to a query"):
        db.sql(statement)
    assert rows(db) == before


@pytest.mark.parametrize(
    ("statement", "parameters", "count", "query", "expected"),
    [
        ("update orders set n = n + 1 where id = 3", None, 1, "select n from orders where id = 3", [(7,)]),
        ("update orders set item = ? where id = ?", ["x", 2], 1, "from orders where id = 2", [(2, "x", 4, 0.5)]),
        ("update ORDERS as o set N = o.n / 4 -- half\n", None, 8, "select sum(n) from orders", [(14,)]),
        ("update orders set item = null where id > 90", None, 0, "select count(item) from orders", [(6,)]),
        (
            "update fluss.orders set n = u.n, item = case when u.n > 5 then 'a' else 'b' end "
            "from (values (1, 5), (1, 5), (2, 6), (99, 7)) as u(id, n) where u.id = orders.id",
            None,
            2,
            "select id, item, n from orders where id in (1, 2) order by id",
            [(1, "b", 5), (2, "a", 6)],
        ),
        (
            "with big as (select id from orders where n > 10) update orders set price = 0 where id in (from big)",
            None,
            2,
            "select sum(price) from orders",
            [(3.75,)],
        ),
        ("update orders set n = (id is distinct from 3)::int", None, 8, "select sum(n) from orders", [(7,)]),
        ("delete from orders where item is null", None, 2, "select count(*) from orders", [(6,)]),
        ("delete from orders", None, 8, "select count(*) from orders", [(0,)]),
        ("delete from orders -- all\rwhere id = 0", None, 1, "select count(*) from orders", [(7,)]),
        ("delete from orders /* a /* b */ c */ where id = 0", None, 1, "select count(*) from orders", [(7,)]),
        ("truncate orders", None, 8, "select count(*) from orders", [(0,)]),
        ("delete from orders where id = $id", {"id": 7}, 1, "select max(id) from orders", [(6,)]),
        (
            "delete from orders o using (values (1), (2), (2)) as gone(id) where o.id = gone.id",
            None,
            2,
            "select count(*) from orders",
            [(6,)],
        ),
        ("with x as (select 99) insert into orders (id) from x", None, 1, "select max(id) from orders", [(99,)]),
        ("insert or replace into orders values (1, 'a', '4', 2)", None, 1, "from orders where id=1", [(1, "a", 4, 2)]),
        ("insert into orders (id, n) values (1, 2.6)", None, 1, "from orders where id = 1", [(1, "rum", 3, 0.25)]),
    ],
)  # fmt: skip
def test_rows_change(
    db: fluss.Database, orders: Orders, statement: str, parameters: Any, count: int, query: str, expected: list[Any]
) -> None:
    assert db.sql(statement, parameters).fetchall() == [(count,)]
    assert db.sql(query).fetchall() == expected


def test_an_update_changes_only_the_columns_it_sets(db: fluss.Database, orders: Orders) -> None:
    required = db.create_table("required", "id bigint, item string not null, n int", primary_key="id")
    required.upsert([(1, "a", 1), (2, "b", 2)])
    assert db.sql("update required set n = 5 where id = 1").fetchall() == [(1,)]
    assert rows(db, "required") == [(1, "a", 5), (2, "b", 2)]
    changes = [(change.kind, change.row) for change in orders.follow("latest", timeout=0.01)]
    assert changes == []
    db.sql("update orders set n = 0 where id = 1")
    assert orders.get(1) == {"id": 1, "item": "rum", "n": 0, "price": 0.25}


def test_updates_of_one_database_do_not_lose_each_other(db: fluss.Database, orders: Orders) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: db.sql("update orders set n = n + 1 where id = 0"), range(12)))
    assert db.sql("select n from orders where id = 0").fetchall() == [(12,)]


def test_partitioned_tables_change_too(db: fluss.Database) -> None:
    db.sql("create table days (id bigint, day text, n int, primary key (id, day)) partitioned by (day)")
    db.sql("insert into days values (1, 'a', 1), (1, 'b', 2), (2, 'b', 3)")
    assert db.sql("update days set n = n * 10 where day = 'b'").fetchall() == [(2,)]
    assert db.sql("delete from days where id = 1 and day = 'a'").fetchall() == [(1,)]
    assert rows(db, "days") == [(1, "b", 20), (2, "b", 30)]


def test_tables_are_created_changed_and_dropped(db: fluss.Database) -> None:
    db.sql(
        "create table if not exists made (id bigint primary key, name text not null, cost decimal(10, 2), tags text[], "
        "seen timestamptz) with ('bucket.num' = 3, 'table.log.ttl' = '3d')"
    )
    table = db.table("made")
    expected = "id bigint NOT NULL, name string NOT NULL, cost decimal(10,2), tags array<string>, seen timestamp_ltz"
    assert columns(table) == expected
    assert (table.primary_key, table.info.num_buckets) == (["id"], 3)
    assert table.info.properties["table.log.ttl"] == "3d"
    db.sql("insert into made values (1, 'a', 2.5, ['x'], '2024-01-01 10:00:00+02')")
    db.sql("alter table made add column note text; alter table made add if not exists note int")
    db.sql("alter table made set ('table.log.ttl' = '5d')")
    assert db.sql("select id, note, seen::text from made").fetchall()[0][:2] == (1, None)
    assert db.table("made").info.properties["table.log.ttl"] == "5d"
    db.sql("create or replace table made with ('primary.key' = 'id', 'bucket.num' = 2) as select id, name from made")
    assert (db.table("made").primary_key, db.table("made").to_pylist()) == (["id"], [{"id": 1, "name": "a"}])
    db.sql("create table renamed (a, b) as select id, name from made")
    assert db.table("renamed").columns == ["a", "b"]
    db.sql("drop table made; drop table if exists made")
    with pytest.raises(TableNotExistError):
        db.sql("drop table made")
    db.sql("create schema extra; create table extra.t (n int); drop schema extra cascade; drop schema if exists extra")
    assert "extra" not in db.databases()


def test_names_that_differ_in_case(db: fluss.Database) -> None:
    db.sql("create table Orders (id bigint primary key); create or replace table ORDERS (n int)")
    assert (db.tables(), db.table("Orders").columns) == (["Orders"], ["n"])
    db.sql("create table Shop.a (n int); create table SHOP.b (n int)")
    assert [name for name in db.databases() if name.lower() == "shop"] == ["Shop"]
    db.drop_database("Shop", cascade=True)
    db.create_table("orders", "n int")
    for statement in ("from ORDERS", 'drop table "Orders"', "insert into orders values (1)", "from fluss.orders"):
        with pytest.raises(InvalidArgumentError, match="cannot tell 'Orders' from 'orders'"):
            db.sql(statement)
    assert (len(db.table("orders")), db.tables()) == (0, ["Orders", "orders"])


def test_schemas_that_differ_in_case(db: fluss.Database) -> None:
    db.sql("create schema Shop; create schema if not exists SHOP")
    with pytest.raises(DatabaseAlreadyExistError, match="Shop"):
        db.sql("create schema shop")
    assert [name for name in db.databases() if name.lower() == "shop"] == ["Shop"]
    db.sql("create table shop.a (n int); drop schema if exists SHOP cascade")
    assert "Shop" not in db.databases()
    db.create_database("Shop")
    db.create_database("shop")
    for statement in ("drop schema SHOP", "create schema if not exists SHOP"):
        with pytest.raises(InvalidArgumentError, match="cannot tell 'Shop' from 'shop'"):
            db.sql(statement)
    with pytest.raises(DatabaseAlreadyExistError, match="Shop"):
        db.sql('create schema "Shop"')
    db.sql('drop schema "Shop"; drop schema shop')
    assert not {"Shop", "shop"} & set(db.databases())


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_keys_in_nanoseconds(db: fluss.Database, zone: str | None) -> None:
    times = pa.array([123_456_789, 123_456_000], pa.timestamp("ns", zone))
    table = db.create_table("moments", pa.table({"at": times, "n": [1, 2]}), primary_key="at")
    if zone and duckdb.__version__.startswith("1."):
        for statement in ("update moments set n = 3", "delete from moments"):
            with pytest.raises(InvalidArgumentError, match="'at' has times with a zone in nanoseconds"):
                db.sql(statement)
        return
    assert db.sql("update moments set n = 3 where n = 1").fetchall() == [(1,)]
    assert sorted(table.to_arrow()["n"].to_pylist()) == [2, 3]
    assert db.sql("delete from moments where n = 3").fetchall() == [(1,)]
    assert table.to_arrow()["at"].combine_chunks() == times[1:]


def test_explain_shows_how_the_rows_are_found(db: fluss.Database, orders: Orders) -> None:
    for statement in ("update orders set n = 1", "delete from orders", "from orders"):
        plan = db.sql(f"explain {statement} where id = 3").fetchall()[0][1]
        assert '"id" = 3' in plan.replace("id=3", '"id" = 3')
    with pytest.raises(InvalidArgumentError, match="EXPLAIN ANALYZE would change"):
        db.sql("explain analyze delete from orders")
    assert len(orders) == len(ROWS)


def test_counting_all_rows_reads_none(db: fluss.Database, orders: Orders, monkeypatch: Any) -> None:
    monkeypatch.setattr("fluss.db.dataset.DatasetSource.batches", None)
    assert db.sql("select count(*) from orders").fetchall() == [(8,)]
    named = db.sql("SELECT COUNT(*) AS many FROM fluss.orders;")
    assert (named.columns, named.fetchall()) == (["many"], [(8,)])
    assert db.sql("select count(*) from orders").columns == ["count_star()"]


@pytest.mark.parametrize(
    ("statement", "error", "message"),
    [
        ("update log set n = 1", InvalidArgumentError, "UPDATE fluss.log cannot be done: it is a log table"),
        ("delete from log where n = 1", InvalidArgumentError, "DELETE FROM fluss.log cannot be done: it is a log"),
        ("update first set n = 1", InvalidArgumentError, "merge engine 'first_row' decides"),
        ("delete from first", InvalidArgumentError, "'table.delete.behavior' is IGNORE"),
        ("update orders set id = 5", InvalidArgumentError, "cannot change 'id': it is part of the primary key"),
        ("update orders set nn = 5", InvalidArgumentError, "no column 'nn'; did you mean 'n'"),
        ("update orders set n = 1, item = 'x', N = 2", InvalidArgumentError, "sets 'n' twice"),
        ("create table t (n int) with ('bucket.num' = 'x')", InvalidArgumentError, "bucket.num is a number, not 'x'"),
        ("update orders set (n, item) = (1, 'x')", InvalidArgumentError, "one column after the other"),
        ("update orders set n = 1 returning *", InvalidArgumentError, "has no RETURNING"),
        ("update orders set n = 'many'", InvalidRowError, "UPDATE fluss.orders, columns id, n: Conversion Error"),
        ("update orders$changelog set n = 1", InvalidArgumentError, "it can only be read"),
        ("alter table orders drop column n", InvalidArgumentError, "takes ADD COLUMN name type, SET"),
        ("alter table orders rename n to m", InvalidArgumentError, "cannot be renamed, dropped"),
        ("alter table orders rename to others", InvalidArgumentError, "takes ADD COLUMN"),
        ("alter table orders add column m int not null", NOT_NULL_REFUSED, "'m' cannot be NOT NULL|with constraints"),
        ("alter table orders add column m int default 5", InvalidArgumentError, "Fluss has no DEFAULT"),
        ("alter table orders set ('table.log.tll' = '1d')", FlussError, "table.log.tll"),
        ("comment on table orders is 'x'", InvalidArgumentError, "takes ADD COLUMN"),
        ("create table t (n int check (n > 3))", InvalidArgumentError, r"Fluss has no CHECK \(of n\)"),
        ("create table t (n int default 3)", InvalidArgumentError, r"Fluss has no DEFAULT \(of n\)"),
        ("create table t (n interval)", InvalidArgumentError, "column 'n'"),
        ("create table t (n int) with ('table.log.tll' = '1d')", InvalidArgumentError, "unknown table property"),
        ("create view Orders as select 7 as n", TableAlreadyExistError, "view .* name of table fluss.orders"),
        ("create view if not exists orders as select 7 as n", TableAlreadyExistError, "give it another"),
        ("create or replace temp view orders as select 7 as n", TableAlreadyExistError, "give it another"),
        ("create recursive view orders(n) as select 7", TableAlreadyExistError, "give it another"),
        ("create or replace view fluss.orders as select 7 as n", TableAlreadyExistError, "give it another"),
        ("drop view orders", InvalidArgumentError, "write DROP TABLE fluss.orders"),
    ],
)  # fmt: skip
def test_what_cannot_be_changed(db: fluss.Database, orders: Orders, statement: str, error: Any, message: str) -> None:
    db.create_table("log", "n int")
    db.create_table("first", "n int", primary_key="n", properties={"table.merge-engine": "first_row"})
    with pytest.raises(error, match=message):
        db.sql(statement)
    assert len(orders) == len(ROWS)
    assert sorted(db.tables()) == ["first", "log", "orders"]


# -- the same rows as in DuckDB ----------------------------------------------------------------------------------------

numbers = st.sampled_from(["n", "n + 1", "id", "length(item)", "3", "2.5", "price * 2", "null", "coalesce(n, 7)"])
texts = st.sampled_from(["item", "upper(item)", "'x'", "null", "item || 'y'", "n::text"])
wheres = st.sampled_from(
    ["", "where id = 3", "where id in (1, 99)", "where item is null", "where n % 4 = 0", "where id > n"]
)
keys = st.integers(0, 12)
statements = st.one_of(
    st.tuples(numbers, texts, wheres).map("update {{t}} set n = {0[0]}, item = {0[1]} {0[2]}".format),
    st.tuples(numbers, wheres).map("update {{t}} as x set price = {0[0]} {0[1]}".format),
    wheres.map("delete from {{t}} {}".format),
    st.tuples(keys, texts).map(
        "insert or replace into {{t}} select {0[0]}, {0[1]}, n, price, day from {{t}} where id = 1".format
    ),
    st.tuples(keys, keys).map("insert or replace into {{t}} values ({0[0]}, 'v', {0[1]}, null, 'e')".format),
    keys.map("update {{t}} as x set n = u.id from (select id from {{t}} where id < {}) as u where u.id = x.id".format),
)  # fmt: skip


queries = st.tuples(texts, numbers, wheres, st.integers(0, 4)).map(
    "select {0[0]} a, count(*), sum({0[1]}), max({0[1]}) from {{t}} {0[2]} group by a order by all limit {0[3]}".format
)

Copies = tuple[fluss.Database, Any, str]
"""A database, a DuckDB, and the options of tables."""


@pytest.fixture(scope="module")
def copies(shared: fluss.Database) -> Iterator[Copies]:
    yield shared, duckdb.connect(":memory:"), ""
    shared.drop_database("changed", cascade=True)


@pytest.fixture(scope="module")
def lake_copies(lake_db: fluss.Database) -> Iterator[Copies]:
    yield lake_db, duckdb.connect(":memory:"), "with ('table.datalake.enabled' = 'true')"
    lake_db.drop_database("changed", cascade=True)


numbered = itertools.count()


def check(copies: Copies, kind: str, drawn: list[str], query: str, tier: Callable[[], object] = lambda: None) -> None:
    """Run statements on a new table with the same rows here and in DuckDB; log tables take inserts alone."""
    db, theirs, options = copies
    table, values = f"changed.t{next(numbered)}", ", ".join(str((*row, "d")).replace("None", "null") for row in ROWS)
    key = {"log": "", "keyed": ", primary key (id)", "partitioned": ", primary key (id, day)"}[kind]
    columns = f"(id bigint, item text, n int, price double, day text{key})"
    for side in (db.sql, theirs.execute):
        side("create schema if not exists changed")
        layout = f"{'partitioned by (day)' if kind == 'partitioned' else ''} {options}" if side == db.sql else ""
        side(f"create table {table} {columns} {layout}")
    if kind == "log":
        drawn = [text.replace("or replace ", "") for text in drawn if text.startswith("insert")]
    for statement in [f"insert into {table} values {values}", *drawn]:
        statement = statement.format(t=table)
        assert db.sql(statement).fetchall() == theirs.execute(statement).fetchall(), statement
        if statement.startswith("insert into"):
            tier()
    for text in ("select * from {t} order by all", "select count(*) from {t}", query):
        assert db.sql(text.format(t=table)).fetchall() == theirs.sql(text.format(t=table)).fetchall(), text
    db.drop_table(table)


drawn_statements = given(
    st.lists(statements, min_size=1, max_size=2), queries, st.sampled_from(["log", "keyed", "partitioned"])
)


@settings(max_examples=50, deadline=None)
@drawn_statements
def test_statements_leave_the_rows_that_duckdb_leaves(copies: Copies, drawn: list[str], query: str, kind: str) -> None:
    check(copies, kind, drawn, query)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@settings(max_examples=50, deadline=None)
@drawn_statements
def test_statements_on_a_lake_leave_the_rows_that_duckdb_leaves(
    lake_db: fluss.Database, lake_copies: Copies, drawn: list[str], query: str, kind: str
) -> None:
    check(lake_copies, kind, drawn, query, TieringService({"bootstrap.servers": lake_db.address}).run_once)


@pytest.mark.parametrize(
    "statement",
    ["begin", "begin transaction; insert into orders values (99, 'x', 1, 1.0); rollback", "commit", "rollback"],
)
def test_transactions_are_refused(db: fluss.Database, orders: Orders, statement: str) -> None:
    with pytest.raises(InvalidArgumentError, match="no transactions: each statement is durable when it returns"):
        db.sql(statement)
    assert orders.get(99) is None
    assert len(rows(db)) == len(ROWS)  # no transaction of DuckDB is open either


def test_an_export_that_would_hold_no_table_is_refused(db: fluss.Database, orders: Orders, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match=r"EXPORT DATABASE.*COPY orders TO.*fluss backup"):
        db.sql(f"export database '{tmp_path / 'out'}'")
    assert not (tmp_path / "out").exists()
