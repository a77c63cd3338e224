# SPDX-License-Identifier: Apache-2.0
"""`where=`: conditions beyond comparisons of columns with values, which DuckDB evaluates, and their parameters."""

from __future__ import annotations

import asyncio
import datetime
import math
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fluss
import fluss.aio
from fluss.db.conditions import parse_condition
from fluss.db.schemas import source_of
from fluss.errors import InvalidArgumentError
from fluss.lake import TieringService

duckdb = pytest.importorskip("duckdb")
COLUMNS = "id bigint, item string, price double, day string, moment timestamp, cost decimal(10,2), tags array<string>"
KINDS: dict[str, dict[str, Any]] = {
    "log": {},
    "keyed": {"primary_key": "id", "buckets": 2},
    "parts": {"partition_by": "day", "primary_key": ["id", "day"]},
}
Tables = dict[str, fluss.Table[Any]]
PRICES = [None, 0.0, -2.5, 12.0, math.nan, math.inf]
ROWS = [
    {
        "id": number,
        "item": [None, "Tea", "tea", "rum ", "it's", ""][number % 6],
        "price": PRICES[number // 2 % 6],
        "day": f"d{number % 3}",
        "moment": None if number % 7 == 0 else datetime.datetime(2024, 1 + number % 3, 1 + number, 10),
        "cost": None if number % 5 == 0 else Decimal(number * 25) / 100,
        "tags": None if number % 4 == 0 else ["a", "b"][: number % 3],
    }
    for number in range(24)
]


def made(db: fluss.Database, name: str, **options: Any) -> fluss.Table[Any]:
    """A table of the database `conditions` with the rows."""
    table = db.create_table(f"conditions.{name}", COLUMNS, **KINDS[name], **options)
    (table.upsert if table.primary_key else table.append)(ROWS)
    return table


@pytest.fixture(scope="module")
def tables(shared: fluss.Database) -> Iterator[Tables]:
    """The same rows in a log table, in one with a primary key, and in one with partitions, too."""
    yield {name: made(shared, name) for name in KINDS}
    shared.drop_database("conditions", cascade=True)


@pytest.fixture(scope="module")
def tiered(lake_db: fluss.Database) -> Tables:
    """The same rows in tables with a lake; some were written again after it was."""
    found = {name: made(lake_db, name, properties={"table.datalake.enabled": True}) for name in KINDS}
    TieringService({"bootstrap.servers": lake_db.address}).run_once()
    for table in found.values():
        if table.primary_key:
            table.upsert(ROWS[::3])
    return found


@pytest.fixture(scope="module")
def theirs() -> Any:
    """A table of DuckDB's own with the same rows."""
    connection = duckdb.connect(":memory:")
    connection.execute("set timezone='UTC'")
    source = pa.Table.from_pylist(ROWS, schema=source_of(COLUMNS, None).schema.arrow_schema)
    connection.register("source", source)
    connection.execute("create table t as select * from source")
    return connection


def ids(table: fluss.Table[Any], where: Any, **options: Any) -> list[int]:
    return sorted(row["id"] for row in table.to_pylist(where=where, columns=["id"], **options))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("id * 2 + 1 = 7", [3]),
        ("lower(item) = 'tea' and id < 9", [1, 2, 7, 8]),
        ("length(trim(item)) = 3 and id + 0 < 4", [1, 2, 3]),
        ("date_trunc('month', moment) = '2024-03-01' and id < 6", [2, 5]),
        ("isnan(price) and id % 2 = 0", [8, 20]),
        ("abs(price) > 2 and abs(price) < 5", [4, 5, 16, 17]),
        ("id = cost * 4 and id in (1, 2, 99)", [1, 2]),
        ("tags[2] = 'b' and id < 6", [2, 5]),
        ("case when id < 2 then true else item is null end", [0, 1, 6, 12, 18]),
        ("1 = 2 and length(item) > 3", []),
        ("id in (select 5)", [5]),
        ("id = 3 -- or not", [3]),
    ],
)
def test_duckdb_evaluates_other_conditions(tables: Tables, name: str, where: str, expected: list[int]) -> None:
    table = tables[name]
    assert ids(table, where) == expected
    assert table.count(where=where) == len(expected)
    assert len(table.to_arrow(where=where, limit=1)) == min(1, len(expected))
    assert sum(batch.num_rows for batch in table.to_reader(where=where)) == len(expected)


def test_what_a_scan_can_apply_is_pushed_down(tables: Tables) -> None:
    schema = tables["keyed"].schema
    condition = parse_condition("id + 1 = 8 and lower(item) = 'tea' and day > 'd0'", schema)
    assert condition.computed is not None
    assert condition.predicate == (fluss.col("id") == 7) & (fluss.col("day") > "d0")
    assert sorted(condition.columns()) == ["day", "id", "item"]
    assert parse_condition("id = 7 and day > 'd0'", schema).computed is None


@pytest.mark.parametrize(
    ("where", "params", "expected"),
    [
        ("id > ? and id <= ?", [20, 22], [21, 22]),
        ("id between $low and $high", {"low": 3, "high": 4}, [3, 4]),
        ("id in (?, ?, ?)", [1, 2, 99], [1, 2]),
        ("item = ? and id < ?", ["it's", 10], [4]),
        ("item like ?", ["ru%"], [3, 9, 15, 21]),
        ("moment = ?", [datetime.datetime(2024, 2, 2, 10)], [1]),
        ("moment >= ?", ["2024-03-24"], [23]),
        ("cost = ?", [Decimal("0.25")], [1]),
        ("price = ? and id < 12", [math.nan], [8, 9]),
        ("item is not distinct from ? and id < 12", [None], [0, 6]),
        ("lower(item) = $1 and id < $2", ["tea", 5], [1, 2]),
        ("id + ? = ?", [1, 5], [4]),
        ("list_contains(?, id)", [[7, 9]], [7, 9]),
    ],
)
def test_parameters(tables: Tables, where: str, params: Any, expected: list[int]) -> None:
    assert ids(tables["log"], where, params=params) == expected
    assert tables["keyed"].count(where=where, params=params) == len(expected)


def test_deletes_take_parameters(db: fluss.Database) -> None:
    table = db.create_table("t", "id bigint, item string", primary_key="id")
    table.upsert([(1, "Tea"), (2, "rum"), (3, "TEA")])
    assert table.delete(where="lower(item) = ?", params=["tea"]).rows == 2
    assert table.to_pylist() == [{"id": 2, "item": "rum"}]


@pytest.mark.parametrize(
    ("where", "params", "message"),
    [
        ("prise * 2 > 3", None, "unknown column 'prise'; did you mean 'price'?"),
        ("lowr(item) = 'x'", None, "Scalar Function with name lowr does not exist"),
        ("id >", None, "expected a value, found the end"),
        ("id = 'x'", None, "'x' is not a value of column 'id'"),
        ("count(*) > 3", None, "WHERE clause cannot contain aggregates"),
        ("row_number() over () < 3", None, "WHERE clause cannot contain window functions"),
        ("id = 1) or (id = 2", None, "expected AND, OR or the end"),
        ("id in (select id from t)", None, "Table with name t does not exist"),
        ('item = "tea"', None, "texts stand in single quotes"),
        ("exists (from read_csv('/etc/hosts'))", None, "disabled by configuration"),
        ("item::int > 3", None, "the condition cannot be evaluated"),
        ("id > ?", None, "there is no value for the parameter"),
        ("id > ?", [1, 2], "there is no $2 for the parameter 2"),
        ("id + 1 > ?", [1, 2], "mismatch"),
        ("id > ?", "x", "params= takes a list of values"),
        ("id > ?", [{}], "column 'id'"),
        (fluss.col("id") > 3, [3], "params= are values for ? or $name of a where= that is text"),
        (None, [3], "params= are values for ? or $name of a where= that is text"),
    ],
)
def test_wrong_conditions_name_what_is_wrong(tables: Tables, where: Any, params: Any, message: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        tables["log"].count(where=where, params=params)
    assert message in str(caught.value)


async def test_the_time_of_a_condition_is_limited(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fluss.db.conditions.SECONDS_MAX", 0.5)
    async with fluss.aio.connect(tables["log"]._core._database.address) as twin:
        table = await twin.table("conditions.log")
        reading = asyncio.ensure_future(table.to_arrow(where="(select count(*) from range(1000000000000)) > id"))
        done = 0
        while not reading.done():
            await asyncio.sleep(0.01)
            done += 1
        assert done > 5, "the loop goes on"
        with pytest.raises(InvalidArgumentError, match="takes more than"):
            await reading


def test_without_duckdb_the_error_names_the_extra(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    assert ids(tables["log"], "id < ? and item = 'Tea'", params=[3]) == [1]
    with pytest.raises(InvalidArgumentError, match=r"functions such as lower.* need DuckDB: pip install 'fluss-"):
        tables["log"].count(where="lower(item) = 'tea'")


def test_a_row_by_the_columns_of_its_key(tables: Tables) -> None:
    found = tables["keyed"].get(id=5)
    assert found == tables["keyed"].get(5)
    assert found["id"] == 5
    assert tables["keyed"].get(id=99, default={}) == {}
    assert tables["parts"].get(id=5, day="d2") == found
    with pytest.raises(InvalidArgumentError, match=r"the key lacks 'day'"):
        tables["parts"].get(id=5)
    with pytest.raises(InvalidArgumentError, match=r"get\(\) takes a key, or its columns"):
        tables["keyed"].get(5, id=5)


def test_lists_of_values_under_the_name_of_pandas() -> None:
    assert fluss.col("id").isin([1, 2]) == fluss.col("id").is_in([1, 2])


# -- the same rows as DuckDB keeps -------------------------------------------------------------------------------------

numbers = st.recursive(
    st.sampled_from(["id", "price", "cost", "length(item)", "coalesce(price, 0)", "month(moment)", "len(tags)"])
    | st.integers(-3, 30).map(str)
    | st.sampled_from(["2.5", "-0.25", "'nan'::double"]),
    lambda inner: (
        st.tuples(inner, st.sampled_from("+-*/"), inner).map("({0[0]} {0[1]} {0[2]})".format)
        | inner.map("abs({})".format)
    ),
    max_leaves=4,
)
TEXTS = ["item", "lower(item)", "upper(trim(item))", "item || 'x'", "day", "coalesce(item, day)", "tags[1]"]
texts = st.sampled_from([*TEXTS, "'tea'", "'it''s'"])
MOMENTS = ["moment", "date_trunc('month', moment)", "moment + interval 1 day"]
moments = st.sampled_from([*MOMENTS, "timestamp '2024-02-02 10:00:00'", "'2024-03-01'::timestamp"])
signs = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])


def _comparison(side: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.tuples(side, signs, side).map(" ".join)
        | st.tuples(side, side, side).map("{0[0]} between {0[1]} and {0[2]}".format)
        | st.tuples(side, side, side).map("{0[0]} not in ({0[1]}, {0[2]})".format)
        | side.map("{} is null".format)
    )


conditions = st.recursive(
    _comparison(numbers) | _comparison(texts) | _comparison(moments) | texts.map("{} like 't%'".format),
    lambda inner: (
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map("({0[0]} {0[1]} {0[2]})".format)
        | inner.map("not ({})".format)
    ),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@example("price > 5 and id + 0 > 3", "log")
@given(conditions, st.sampled_from(list(KINDS)))
def test_conditions_keep_the_rows_that_duckdb_keeps(tables: Tables, theirs: Any, where: str, name: str) -> None:
    expected = [row for (row,) in theirs.execute(f"select id from t where {where} order by id").fetchall()]
    assert ids(tables[name], where) == expected


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(conditions, st.sampled_from(list(KINDS)))
def test_conditions_on_a_lake_keep_the_rows_of_duckdb(tiered: Tables, theirs: Any, where: str, name: str) -> None:
    expected = [row for (row,) in theirs.execute(f"select id from t where {where} order by id").fetchall()]
    assert ids(tiered[name], where) == expected
