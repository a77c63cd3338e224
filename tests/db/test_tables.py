# SPDX-License-Identifier: Apache-2.0
"""Tables: what they are made from, how they are found, changed and dropped."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pydantic
import pytest
from tests.db.conftest import columns

import fluss
import fluss.aio


@dataclasses.dataclass
class Order:
    id: int
    item: str
    price: Annotated[decimal.Decimal, "decimal(10,2)"] | None = None
    tags: list[str] | None = None


class Event(pydantic.BaseModel):
    id: int
    at: dt.datetime
    note: str | None = None


def test_from_text(db: fluss.Database) -> None:
    table = db.create_table(
        "t",
        "id bigint not null, name string, tags array<string>",
        primary_key="id",
        buckets=3,
        comment="people",
        properties={"table.log.ttl": "3d", "team": "web"},
    )
    assert columns(table) == "id bigint NOT NULL, name string, tags array<string>"
    assert (table.primary_key, table.info.num_buckets, table.info.comment) == (["id"], 3, "people")
    assert table.info.properties["table.log.ttl"] == "3d"
    assert table.info.custom_properties["team"] == "web"


def test_from_schemas(db: fluss.Database) -> None:
    arrow = pa.schema([pa.field("id", pa.int32(), nullable=False), ("v", pa.float64())])
    assert columns(db.create_table("a", arrow, primary_key=["id"])) == "id int NOT NULL, v double"
    assert columns(db.create_table("b", fluss.Schema(arrow), primary_key="id")) == columns(db.a)
    assert columns(db.create_table("c", {"id": "bigint", "v": pa.string()})) == "id bigint, v string"


def test_from_models(db: fluss.Database) -> None:
    orders = columns(db.create_table("orders", Order, primary_key="id"))
    assert orders == "id bigint NOT NULL, item string NOT NULL, price decimal(10,2), tags array<string NOT NULL>"
    events = columns(db.create_table("events", Event))
    assert events == "id bigint NOT NULL, at timestamp_ltz NOT NULL, note string"


ROWS = [{"id": 1, "item": "tea", "price": 2.5}, {"id": 2, "item": None, "price": None}]


@pytest.mark.parametrize(
    "make",
    [
        lambda: pa.Table.from_pylist(ROWS),
        lambda: pa.RecordBatch.from_pylist(ROWS),
        lambda: pa.Table.from_pylist(ROWS).to_reader(),
        lambda: pd.DataFrame(ROWS),
        lambda: pl.DataFrame(ROWS),
        lambda: pl.LazyFrame(ROWS),
        lambda: ROWS,
        lambda: {"id": [1, 2], "item": ["tea", None], "price": [2.5, None]},
    ],
    ids=["table", "batch", "reader", "pandas", "polars", "lazy", "rows", "columns"],
)
def test_from_data_which_is_loaded(db: fluss.Database, make) -> None:
    table = db.create_table("t", make(), primary_key="id", buckets=2)
    assert columns(table) == "id bigint NOT NULL, item string, price double"
    assert sorted(table.to_pylist(), key=lambda row: row["id"]) == ROWS


def test_from_a_frame_with_categories_unsigned_numbers_and_an_index(db: fluss.Database) -> None:
    frame = pd.DataFrame(
        {"kind": pd.Categorical(["a", "b", "a"]), "size": pd.array([1, 2, 255], "UInt8")},
        index=pd.Index([10, 20, 30], name="id"),
    )
    table = db.create_table("t", frame, primary_key="id")
    assert columns(table) == "id bigint NOT NULL, kind string, size smallint"
    assert table.get(30) == {"id": 30, "kind": "a", "size": 255}


def test_an_index_with_a_name_is_data_too(db: fluss.Database) -> None:
    sold = pd.DataFrame({"item": ["tea", "tea", "jam"], "day": [1, 1, 2], "price": [1.0, 2.0, 3.0]})
    totals = sold.groupby(["item", "day"]).sum()
    table = db.create_table("t", totals)
    assert columns(table) == "item string, day bigint, price double"
    table.append(totals)
    assert table.to_pandas(where="item = 'jam'").values.tolist() == [["jam", 2, 3.0]] * 2
    for name, frame in (("named", sold.rename_axis("item")), ("plain", sold[sold.price > 1])):
        assert columns(db.create_table(name, frame)) == "item string, day bigint, price double"


def test_names_of_columns_that_are_no_texts(db: fluss.Database) -> None:
    frame = pd.DataFrame([[1, 2]])
    table = db.create_table("t", frame)
    table.append(frame)
    assert table.to_pylist() == [{"0": 1, "1": 2}] * 2
    keyed = frame.set_index(0)
    assert db.create_table("indexed", keyed, primary_key="0").to_pylist() == [{"0": 1, "1": 2}]
    assert keyed.index.name == 0
    keyed = db.create_table("keyed", frame, primary_key="0")
    keyed.upsert(frame)
    keyed.delete(frame)
    assert len(keyed) == 0


def test_categories_inside_lists_and_structs(db: fluss.Database) -> None:
    kinds = {"a": pl.List(pl.Categorical), "b": pl.Struct({"k": pl.Enum(["x", "y"])})}
    frame = pl.DataFrame({"a": [["x", None], None], "b": [{"k": "y"}, {"k": None}]}, schema=kinds)
    table = db.create_table("t", frame)
    assert columns(table) == "a array<string>, b row<k: string>"
    assert table.to_pylist() == frame.to_dicts()


def test_from_python_types(db: fluss.Database) -> None:
    table = db.create_table("t", {"id": int, "at": dt.datetime, "tags": list[str], "note": str | None})
    assert columns(table) == "id bigint, at timestamp, tags array<string NOT NULL>, note string"
    text = db.create_table("text", "a str, at datetime, more datetime(3)")
    assert columns(text) == "a string, at timestamp, more timestamp(3)"


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ({"a": 1}, r"'a' has 1\. One row goes into a list"),
        ({"a": "xyz"}, "'a' has 'xyz'. One row"),
        ({"a": [1, 2], "b": [1]}, "the columns make no table"),
        ([{"a": 1}, {"a": "x"}], "type of column 'a'.*create the table with a schema"),
        ([{"a": 2**64}], "type of column 'a': a number is too large"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "more than one column 'a'"),
        (pd.DataFrame({"a": [1, "x"]}), r"without one type: .*column a .*astype\(str\)"),
        (pd.DataFrame({"a": pd.period_range("2024-01", periods=1, freq="M")}), "'a': .*convert it first"),
        (pd.DataFrame({"a": pd.to_timedelta([1], unit="s")}), "'a': .*total seconds"),
        (pd.Series([1, 2], name="a"), r"a Series is one column: .*to_dict\(\)"),
        (pl.Series("a", [1, 2]), "a Series is one column: put it into a frame"),
        (pa.chunked_array([[1]]), "a ChunkedArray is one column"),
        (pl.DataFrame({"a": [object()]}, schema={"a": pl.Object}), "'a' has the polars type Object"),
        (pl.DataFrame({"a": [2**70]}, schema={"a": pl.Int128}), "a DataFrame cannot be read as Arrow"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_data_without_types_of_a_table_is_refused_in_words(db: fluss.Database, source: object, problem: str) -> None:
    with pytest.raises(fluss.InvalidArgumentError, match=problem) as caught:
        db.create_table("t", source)
    assert "\n" not in str(caught.value)
    assert "t" not in db


def test_exist_ok_and_replace(db: fluss.Database) -> None:
    db.create_table("t", "a int").append((1,))
    with pytest.raises(fluss.TableAlreadyExistError, match="exist_ok=True"):
        db.create_table("t", "a int")
    assert db.create_table("t", "a int not null", exist_ok=True).columns == ["a"]
    for asked, key, problem in [
        ("a int, b string", None, "other columns: b string was asked for, and it has no such column"),
        ("a bigint", None, "other columns: a bigint was asked for, and it has it as int"),
        ("a int", "a", "another primary key: none"),
    ]:
        with pytest.raises(fluss.InvalidArgumentError, match=problem):
            db.create_table("t", asked, primary_key=key, exist_ok=True)
    assert db.create_table("t", [{"a": 7}], exist_ok=True).columns == ["a"], "whose type is not that of the data"
    with pytest.raises(fluss.InvalidArgumentError, match="other columns: b string was asked for"):
        db.create_table("t", [{"a": 7, "b": "x"}], exist_ok=True)
    assert len(db.t) == 1
    assert db.create_table("t", "b string", replace=True).columns == ["b"]
    assert len(db.t) == 0


LONG = "x" * 11_000_000
"""Longer than a request may be."""


@pytest.mark.parametrize(
    ("data", "options", "problem"),
    [
        ({"id": [1, None]}, {"primary_key": "id"}, "row 1, column 'id' .*: no value .*; nothing was written"),
        ({"id": np.array([1, 2**64 - 1], "uint64")}, {}, r"row 1, column 'id' \(bigint\): .*does not fit"),
        ({"at": [dt.time(1, 2, 3, 456_789)]}, {}, "'at' .*: a time of day is kept in milliseconds"),
        ({"id": [1], "day": ["not/a/name"]}, {"partition_by": "day"}, "row 0: .*partition value"),
    ],
    ids=["null key", "large number", "time", "partition"],
)
def test_data_that_does_not_fit_leaves_no_table(db: fluss.Database, data, options, problem: str) -> None:
    with pytest.raises(fluss.InvalidRowError, match=problem):
        db.create_table("t", data, **options)
    assert "t" not in db


@pytest.mark.parametrize(
    ("data", "options", "problem"),
    [
        ({"id": [2, None]}, {"primary_key": "id"}, r"row 1, .*nothing was written"),
        ({"id": ["a", "b/c"]}, {"partition_by": "id"}, r"row 1: .*partition value.*nothing was written"),
        ({"id": [[1]]}, {"partition_by": "id"}, "partition"),
        ({"id": [2]}, {"properties": {"table.log.ttl": "later"}}, "table.log.ttl"),
        ({"id": [2]}, {"buckets": 1_000_000}, "Bucket count 1000000"),
        ("id bigint", {"buckets": 1_000_000}, "Bucket count 1000000"),
        ({"id": [2, 3], "text": ["a", LONG]}, {}, r"row 1: a row of \d+ bytes is larger .*nothing was written"),
        ({"id": [2, 3], "text": ["a", LONG]}, {"primary_key": "id"}, r"row 1: a row of \d+ bytes is larger"),
        ({"id": [LONG[: len(LONG) // 2]]}, {"primary_key": "id"}, r"row 0: a row of \d+ bytes is larger"),
    ],
    ids=["null key", "partition", "partition type", "property", "buckets", "no data", "long", "long value", "long key"],
)
def test_replace_keeps_the_table_if_there_cannot_be_another(db: fluss.Database, data, options, problem: str) -> None:
    db.create_table("t", [{"id": 1}])
    with pytest.raises(fluss.FlussError, match=problem):
        db.create_table("t", data, replace=True, **options)
    assert db.t.to_pylist() == [{"id": 1}]
    assert db.create_table("t", {"id": [2, 3]}, primary_key="id", replace=True).count() == 2


def test_names(db: fluss.Database) -> None:
    db.create_table("orders", "a int")
    try:
        db.create_table("shop.orders", "b int")
        assert db.tables() == ["orders"]
        assert db.tables("shop") == ["orders"]
        assert {"fluss", "shop"} <= set(db.databases())  # those of groups and of other tests are there too
        names = ("orders", "shop.orders", "nothing", "no.thing", 7)
        assert [name in db for name in names] == [True, True, False, False, False]
        assert db.table("shop.orders").columns == db["shop.orders"].columns == ["b"]
        assert db.orders.columns == ["a"]
        assert db.table(fluss.TablePath("shop", "orders")).name == "shop.orders"
        assert "orders" in dir(db)
        assert "shop.orders" in db.table("shop.orders")._repr_html_()
        assert "orders" in db._repr_html_()
    finally:
        db.drop_database("shop", cascade=True)
    db.drop_table("orders")
    assert db.tables() == []
    db.drop_table("orders", missing_ok=True)
    with pytest.raises(fluss.TableNotExistError):
        db.drop_table("orders")


def test_unknown_names_suggest_the_nearest(db: fluss.Database) -> None:
    db.create_table("orders", "a int, b int")
    with pytest.raises(fluss.TableNotExistError, match="did you mean 'orders'"):
        db.table("oders")
    with pytest.raises(AttributeError, match="did you mean 'orders'"):
        db.oders  # noqa: B018
    with pytest.raises(fluss.DatabaseNotExistError, match="did you mean 'fluss'"):
        db.table("flus.orders")
    with pytest.raises(fluss.InvalidArgumentError, match=r"did you mean 'table\.log\.ttl'"):
        db.create_table("x", "a int", properties={"table.log.tll": "1d"})


def test_columns_are_added(db: fluss.Database) -> None:
    table = db.create_table("t", "id int", primary_key="id")
    table.upsert({"id": 1})
    table.add_column("note", "string", comment="free text")
    table.add_column("price double")
    table.add_column("at", pa.timestamp("us"))
    assert table.columns == ["id", "note", "price", "at"]
    table.upsert({"id": 2, "note": "x", "price": 1.5}, missing="null")
    first, second = {"id": 1, "note": None, "price": None, "at": None}, {"id": 2, "note": "x", "price": 1.5, "at": None}
    assert sorted(table.to_pylist(), key=lambda row: row["id"]) == [first, second]
    assert table.get(1) == first


def test_columns_that_another_program_added_are_read(db: fluss.Database, db_server: fluss.LocalServer) -> None:
    mine = db.create_table("t", "id int", buckets=2)
    mine.append([(1,), (2,)])
    with fluss.connect(db_server.bootstrap_servers, timeout=30) as other:
        other.t.add_column("note", "string")
        other.t.append((3, "new"))
    assert sorted(mine.to_pylist(), key=lambda row: row["id"])[2] == {"id": 3, "note": "new"}
    assert mine.count(where="note is null") == 2


def test_partitions(db: fluss.Database) -> None:
    table = db.create_table("t", "id int, day string", primary_key=["id", "day"], partition_by="day")
    assert table.partitions() == []
    table.upsert([(1, "2026-07-01"), (2, "2026-07-02"), (3, "2026-07-02")])
    assert sorted(p.partition_name for p in table.partitions()) == ["2026-07-01", "2026-07-02"]
    assert len(table) == 3
    assert table.count(where="day = '2026-07-02'") == 2
    table.drop_partition("2026-07-02")
    assert table.to_pylist() == [{"id": 1, "day": "2026-07-01"}]
    table.add_partition({"day": "2026-07-03"})
    table.add_partition("2026-07-03", exist_ok=True)
    assert len(table.partitions()) == 2
    assert db.create_table("u", "id int").partitions() == []


def test_properties_are_changed(db: fluss.Database) -> None:
    table = db.create_table("t", "id int")
    table.set_properties({"table.log.ttl": "2d"})
    assert table.info.properties["table.log.ttl"] == "2d"
    table.set_properties({"table.log.ttl": None})
    assert table.info.properties.get("table.log.ttl") != "2d"


@pytest.mark.parametrize("source", [7, [], [1, 2], int, object()])
def test_what_no_table_can_be_made_from(db: fluss.Database, source: object) -> None:
    with pytest.raises(fluss.InvalidArgumentError):
        db.create_table("t", source)
    assert "t" not in db


def test_notebooks(db: fluss.Database) -> None:
    table = db.create_table("t", [{"a<b>": 1, "n": 2}], comment="<script>", primary_key="n")
    for html in (table._repr_html_(), table.schema._repr_html_()):
        assert "<script>" not in html
        assert "a<b>" not in html
        assert "bigint" in html
    assert table._ipython_key_completions_() == ["a<b>", "n"]
    assert db._ipython_key_completions_() == ["t"]
    assert table.to_pylist(where=table["n"] == 2) == [{"a<b>": 1, "n": 2}]
    with pytest.raises(fluss.InvalidArgumentError, match="no column 'm'"):
        table["m"]


async def test_what_tables_and_databases_are_iterated_for(db: fluss.Database, db_server: fluss.LocalServer) -> None:
    table = db.create_table("t", [{"id": 1}], primary_key="id")
    assert list(db) == ["t"]
    with pytest.raises(TypeError, match=r"to_pylist\(\) gives its rows, follow\(\) its changes"):
        list(table)
    with pytest.raises(fluss.InvalidArgumentError, match=r"name of a column.*not 1\. get\(\) looks up a row"):
        table[1]  # type: ignore[index]
    assert pl.DataFrame(table).to_dicts() == [{"id": 1}]
    assert pa.table(table).to_pylist() == [{"id": 1}]
    async with await fluss.aio.connect(db_server.bootstrap_servers, timeout=30) as twin:
        with pytest.raises(TypeError, match=r"await table\.contains\(key\)"):
            1 in await twin.table("t")  # noqa: B015
        assert repr((await twin.table("t")).follow("latest")) == "Follow(fluss.t from latest, endless)"


def test_to_files(db: fluss.Database, tmp_path: Path) -> None:
    table = db.create_table("t", [{"id": i, "name": None if i % 2 else f"n{i}"} for i in range(10)], primary_key="id")
    assert table.to_parquet(tmp_path / "t.parquet", where="id < 4") == 4
    assert sorted(pq.read_table(tmp_path / "t.parquet")["id"].to_pylist()) == [0, 1, 2, 3]
    assert table.to_csv(str(tmp_path / "t.csv"), columns="name", limit=3) == 3
    assert (tmp_path / "t.csv").read_text().startswith("name\n")
    with pytest.raises(fluss.InvalidArgumentError, match="there is no folder"):
        table.to_csv(tmp_path / "nowhere" / "t.csv")
    with pytest.raises(fluss.InvalidArgumentError, match="no column 'nme'"):
        table.to_csv(tmp_path / "other.csv", columns="nme")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["t.csv", "t.parquet"]
    os.mkfifo(tmp_path / "pipe")
    with ThreadPoolExecutor(1) as pool:
        text = pool.submit((tmp_path / "pipe").read_text)
        assert table.to_csv(tmp_path / "pipe", columns="id", where="id = 3") == 1
        assert text.result() == "id\n3\n"


def test_to_duckdb(db: fluss.Database) -> None:
    duckdb = pytest.importorskip("duckdb")
    table = db.create_table("t", [{"id": i, "price": i * 1.5} for i in range(10)], primary_key="id")
    assert table.to_duckdb().filter("id > 7").order("id").fetchall() == [(8, 12.0), (9, 13.5)]
    with duckdb.connect() as own:
        own.execute("create table names as select 3 as id, 'three' as name")
        assert table.to_duckdb(own).join(own.table("names"), "id").fetchall() == [(3, 4.5, "three")]


def test_a_column_that_cannot_be_added(db: fluss.Database) -> None:
    table = db.create_table("t", "id int", primary_key="id")
    for arguments in (("n int not null",), ("n", "int not null")):
        with pytest.raises(fluss.InvalidArgumentError, match="'n' cannot be NOT NULL"):
            table.add_column(*arguments)
    with pytest.raises(fluss.InvalidArgumentError, match=r"did you mean 'table\.log\.ttl'"):
        table.set_properties({"table.log.tll": "1d"})
    assert table.columns == ["id"]


@pytest.mark.parametrize("kind", ["date", "string"])
def test_partitions_of_days_in_iso_form(db: fluss.Database, kind: str) -> None:
    auto = "table.auto-partition"
    days = {f"{auto}.enabled": True, f"{auto}.time-unit": "day", f"{auto}.time-format": "yyyy-MM-dd"}
    table = db.create_table("events", f"day {kind}, n int", partition_by="day", properties=days)
    today = dt.datetime.now(dt.timezone.utc).date()
    table.append([{"day": today.isoformat(), "n": 1}])
    assert table.count(f"day = '{today.isoformat()}'") == 1
    assert today.isoformat() in [partition.partition_name for partition in table.partitions()]
    if kind == "string":
        other = db.create_table("other", "day string", partition_by="day", properties={f"{auto}.enabled": True})
        with pytest.raises(fluss.FlussError, match=r"time-format' takes others"):
            other.append({"day": today.isoformat()})


AGGREGATED = {
    "table.merge-engine": "aggregation",
    "fields.spent.agg": "sum",
    "fields.largest.agg": "MAX",
    "fields.tags.listagg.delimiter": "|",
    "fields.tags.agg": "listagg",
}


@pytest.mark.parametrize("way", ["python", "sql"])
def test_properties_of_columns_as_in_flink(db: fluss.Database, way: str) -> None:
    if way == "python":
        columns = "id int, spent bigint, largest double, tags string, name string"
        table = db.create_table("totals", columns, primary_key="id", properties=AGGREGATED)
    else:
        options = ", ".join(f"'{name}' = '{value}'" for name, value in AGGREGATED.items())
        columns = "id int primary key, spent bigint, largest double, tags text, name text"
        db.sql(f"create table totals ({columns}) with ({options})")
        table = db.table("totals")
    table.upsert([(1, 2, 3.0, "a", "x"), (1, 5, 1.0, "b", None)])
    assert table.get(1) == {"id": 1, "spent": 7, "largest": 3.0, "tags": "a|b", "name": "x"}
    numbered = db.create_table(
        "numbered", "name string, number bigint", primary_key="name", properties={"auto-increment.fields": "number"}
    )
    numbered.upsert([{"name": "ada"}, {"name": "bob"}], missing="keep")
    assert numbered.get("bob") == {"name": "bob", "number": 2}


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"fields.spend.agg": "sum"}, r"'fields\.spend\.agg': there is no column 'spend'; did you mean 'spent'"),
        ({"fields.spent.sum.x": "1"}, r"'fields\.spent\.sum\.x' belongs to no aggregation function"),
        ({"fields.spent": "sum"}, r"'fields\.spent' belongs to no aggregation function"),
        ({"fields.spent.agg": "sum"}, "set 'table.merge-engine' to 'aggregation'"),
        ({**AGGREGATED, "fields.spent.agg": "summ"}, "summ"),
        ({"auto-increment.fields": "nunber"}, "nunber"),
    ],
)
def test_unknown_column_properties_are_refused(db: fluss.Database, properties: dict[str, str], reason: str) -> None:
    with pytest.raises(fluss.FlussError, match=reason):
        db.create_table(
            "t", "id int, spent bigint, largest double, tags string", primary_key="id", properties=properties
        )


def test_properties_of_columns_do_not_change(db: fluss.Database) -> None:
    table = db.create_table("t", "id int, spent bigint", primary_key="id")
    with pytest.raises(fluss.InvalidArgumentError, match=r"'fields\.spent\.agg' is about columns: give it when"):
        table.set_properties({"fields.spent.agg": "sum"})
