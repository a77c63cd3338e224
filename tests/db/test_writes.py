# SPDX-License-Identifier: Apache-2.0
"""Writing: every kind of input, results, and rows that do not fit."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import datetime as dt
import decimal
import itertools
import sqlite3
import sys
import threading
import zoneinfo
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pydantic
import pytest

import fluss
from fluss.db.write_results import RowRejectedError
from fluss.errors import DiskWriteLockedError


@dataclasses.dataclass
class Item:
    id: int
    name: str | None = None


class Model(pydantic.BaseModel):
    id: int
    name: str | None = None


Named = collections.namedtuple("Named", "name id")

ONE = [{"id": 1, "name": "a"}]
TWO = [*ONE, {"id": 2, "name": None}]


def rows_of(table: fluss.Table) -> list[dict]:
    return sorted(table.to_pylist(), key=lambda row: row["id"])


class Capsule:
    """Anything that gives Arrow, without being of a library that is known by name."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


INPUTS: dict[str, tuple[Any, Any]] = {
    "dict": (lambda: ONE[0], ONE),
    "tuple": (lambda: (1, "a"), ONE),
    "namedtuple": (lambda: Named("a", 1), ONE),
    "dataclass": (lambda: Item(1, "a"), ONE),
    "pydantic": (lambda: Model(id=1, name="a"), ONE),
    "dicts": (lambda: TWO, TWO),
    "tuples": (lambda: [(1, "a"), (2, None)], TWO),
    "tuple of tuples": (lambda: ((1, "a"), (2, None)), TWO),
    "models": (lambda: [Item(1, "a"), Model(id=2)], TWO),
    "generator": (lambda: (row for row in TWO), TWO),
    "table": (lambda: pa.Table.from_pylist(TWO), TWO),
    "batch": (lambda: pa.RecordBatch.from_pylist(TWO), TWO),
    "reader": (lambda: pa.Table.from_pylist(TWO).to_reader(max_chunksize=1), TWO),
    "batches": (lambda: iter(pa.Table.from_pylist(TWO).to_batches(max_chunksize=1)), TWO),
    "frames": (lambda: (pd.DataFrame([row]) for row in TWO), TWO),
    "capsule": (lambda: Capsule(pa.Table.from_pylist(TWO)), TWO),
    "other order": (lambda: pa.Table.from_pylist([{"name": r["name"], "id": r["id"]} for r in TWO]), TWO),
    "pandas": (lambda: pd.DataFrame(TWO), TWO),
    "pandas objects": (lambda: pd.DataFrame(TWO, dtype=object), TWO),
    "pandas categories": (lambda: pd.DataFrame(TWO).astype({"name": "category"}), TWO),
    "pandas strings": (lambda: pd.DataFrame(TWO).astype({"name": "string"}), TWO),
    "pandas arrow strings": (lambda: pd.DataFrame(TWO).astype({"name": "string[pyarrow]"}), TWO),
    "polars": (lambda: pl.DataFrame(TWO), TWO),
    "polars categories": (lambda: pl.DataFrame(TWO).with_columns(pl.col("name").cast(pl.Categorical)), TWO),
    "polars lazy": (lambda: pl.LazyFrame(TWO), TWO),
    "nothing": (list, []),
    "empty table": (lambda: pa.Table.from_pylist([], pa.schema({"id": pa.int64(), "name": pa.string()})), []),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_every_input_of_append(db: fluss.Database, kind: str) -> None:
    make, expected = INPUTS[kind]
    table = db.create_table("t", "id bigint, name string", buckets=2)
    result = table.append(make())
    assert result.rows == len(expected)
    assert result.seconds > 0
    assert rows_of(table) == expected


@pytest.mark.parametrize("kind", INPUTS)
def test_every_input_of_upsert_and_delete(db: fluss.Database, kind: str) -> None:
    make, expected = INPUTS[kind]
    table = db.create_table("t", "id bigint, name string", primary_key="id", buckets=2)
    table.upsert([(1, "old"), (2, "old"), (3, "old")])
    assert table.upsert(make()).rows == len(expected)
    assert [table.get(row["id"]) for row in expected] == expected
    if kind != "tuple" and "tuples" not in kind:  # a tuple is a key, and this key has one column
        assert table.delete(make()).rows == len(expected)
        assert {row["id"] for row in table.to_pylist()} == {1, 2, 3} - {row["id"] for row in expected}


def test_pandas_3_strings(db: fluss.Database) -> None:
    is_default = int(pd.__version__.partition(".")[0]) >= 3
    with contextlib.nullcontext() if is_default else pd.option_context("future.infer_string", True):
        frame = pd.DataFrame(TWO)
        assert str(frame["name"].dtype) in ("str", "string")  # the latter in pandas 2.2
        table = db.create_table("t", frame)
        table.append(frame)
    assert rows_of(table) == sorted(TWO * 2, key=lambda row: row["id"])


def test_delete_by_keys(db: fluss.Database) -> None:
    table = db.create_table("t", "a int, b string, v double", primary_key=["a", "b"])
    rows = [(i, f"k{i}", float(i)) for i in range(8)]
    table.upsert(rows)
    table.delete((0, "k0"))
    table.delete({"a": 1, "b": "k1"})
    table.delete([(2, "k2"), {"a": 3, "b": "k3"}])
    table.delete(pd.DataFrame({"b": ["k4"], "a": [4], "v": [0.0]}))
    assert sorted(row["a"] for row in table.to_pylist()) == [5, 6, 7]
    assert table.delete(where="v >= 6 or a = 5").rows == 3
    assert table.to_pylist() == []
    single = db.create_table("s", "id int, v int", primary_key="id")
    single.upsert([(i, i) for i in range(6)])
    single.delete(0)
    single.delete([1, 2])
    single.delete(np.array([3]))
    single.delete(pa.array([4]))
    with pytest.raises(fluss.FlussError, match="column without one type"):
        single.delete(pd.DataFrame({"id": [5, "x"]}))
    assert single.to_pylist() == [{"id": 5, "v": 5}]


def test_deleting_keys_that_do_not_exist_creates_no_partition(db: fluss.Database) -> None:
    table = db.create_table("t", "day string, id int", primary_key="day,id", partition_by="day")
    table.upsert([("a", 1), ("a", 2)])
    assert table.delete([("b", 1), ("a", 2), ("a", 2)]).rows == 1
    assert table.delete(("c", 1)).rows == 0
    assert [one.partition_name for one in table.partitions()] == ["a"]
    assert table.to_pylist() == [{"day": "a", "id": 1}]


def test_update_changes_some_columns(db: fluss.Database) -> None:
    table = db.create_table("t", "id int, a string, b double", primary_key="id", buckets=2)
    table.upsert([(1, "x", 1.0), (2, "y", 2.0), (3, "z", 3.0)])
    table.update(1, b=9.0)
    table.update([{"id": 2, "a": "new"}, {"id": 3, "a": "new"}])
    table.update(pl.DataFrame({"id": [3], "b": [7.5]}).with_columns(pl.col("id").cast(pl.Int32)))
    table.update({"id": 4, "b": 4.0}, upsert=True)
    table.update(pd.DataFrame({"id": [4], "b": [5.0]}).set_index("id"))
    table.upsert(pd.DataFrame({"id": [4], "b": [6.0]}).set_index("id"), missing="keep")
    table.upsert(pa.table({"id": [4], "b": [6.0]}).to_reader(), missing="keep")
    expected = [(1, "x", 9.0), (2, "new", 2.0), (3, "new", 7.5), (4, None, 6.0)]
    assert rows_of(table) == [dict(zip(("id", "a", "b"), row)) for row in expected]
    with pytest.raises(fluss.InvalidArgumentError, match="did you mean 'b'"):
        table.update(1, bb=1.0)
    with pytest.raises(fluss.InvalidArgumentError, match="needs the primary key"):
        table.update([{"a": "x"}])
    with pytest.raises(fluss.InvalidArgumentError, match="row 1 has"):
        table.update([{"id": 1, "a": "x"}, {"id": 2, "b": 1.0}])
    for key in (1, "one"):
        with pytest.raises(fluss.InvalidArgumentError, match=f"needs the columns to change, as in update\\({key!r}, "):
            table.update(key)


def test_update_does_not_move_a_row_to_another_key(db: fluss.Database) -> None:
    table = db.create_table("t", "id int, a string", primary_key="id")
    table.upsert((1, "x"))
    with pytest.raises(fluss.InvalidArgumentError, match="cannot change 'id': it is part of the primary key"):
        table.update(1, id=7, a="y")
    assert table.to_pylist() == [{"id": 1, "a": "x"}]
    table.update(1, id=1, a="y")
    assert table.to_pylist() == [{"id": 1, "a": "y"}]


def test_update_of_a_table_with_columns_that_are_not_null(db: fluss.Database) -> None:
    table = db.create_table("t", "id int, a string not null, b double, at timestamp(9)", primary_key="id")
    at = pa.array([1_000_000_000_000_000_001], pa.timestamp("ns"))
    table.upsert(pa.table({"id": pa.array([1], pa.int32()), "a": ["x"], "b": [1.0], "at": at}))
    with pytest.raises(fluss.InvalidArgumentError, match="'a' is NOT NULL"):
        table.update(1, b=2.0, upsert=True)
    assert table.update([{"id": 1, "b": 2.0}, {"id": 2, "b": 3.0}]).rows == 1
    table.update(1, a="y")
    assert table.to_arrow(["id", "a", "b"]).to_pylist() == [{"id": 1, "a": "y", "b": 2.0}]
    assert table.to_arrow("at")["at"].combine_chunks() == at, "with every digit"


@pytest.mark.parametrize("engine", ["aggregation", "first_row", "versioned"])
@pytest.mark.parametrize("required", ["", " not null"])
def test_tables_with_a_merge_engine_refuse_updates_and_deletes(db: fluss.Database, engine: str, required: str) -> None:
    properties = {"table.merge-engine": engine}
    if engine == "versioned":
        properties["table.merge-engine.versioned.ver-column"] = "n"
    table = db.create_table("t", f"id int, n int, spent int{required}", primary_key="id", properties=properties)
    table.upsert((1, 3, 35))
    with pytest.raises(fluss.InvalidArgumentError, match=rf"update\(\) of table .* merge engine '{engine}' decides"):
        table.update(1, n=4)
    with pytest.raises(fluss.InvalidArgumentError, match=r"delete\(\) of table .*'table.delete.behavior' is IGNORE"):
        table.delete(1)
    assert table.to_pylist() == [{"id": 1, "n": 3, "spent": 35}]


def test_a_failed_write_is_reported_once(db_server: fluss.LocalServer, db: fluss.Database) -> None:
    with fluss.connect(db_server.bootstrap_servers, timeout=30) as other:
        properties = {"table.delete.behavior": "disable"}
        table = other.create_table("t", "id int", primary_key="id", properties=properties)
        table.upsert((1,))
        with pytest.raises(fluss.DeletionDisabledError, match="0 of 1 rows were written for certain"):
            table.delete(1)
    assert other.connection.closed, "and not again when the connection closes"


@pytest.mark.parametrize("bad_at", [0, 1, 999, 1_000, 3_500])
@pytest.mark.parametrize("make", [list, iter], ids=["list", "iterator"])
def test_a_bad_row_is_reported_with_its_position(db: fluss.Database, bad_at: int, make) -> None:
    rows = [{"id": i, "name": "x"} for i in range(4_000)]
    rows[bad_at] = {"id": "seven", "name": "x"}
    rows[3_999] = {"id": None, "nome": 1}
    table = db.create_table("t", "id bigint not null, name string", buckets=2)
    with pytest.raises(fluss.InvalidRowError, match=f": row {bad_at}, column 'id'.*seven") as caught:
        table.append(make(rows))
    assert caught.value.position == bad_at  # type: ignore[attr-defined]
    assert caught.value.written == bad_at  # type: ignore[attr-defined]
    assert len(table) == bad_at
    assert rows_of(table) == rows[:bad_at]


def test_bad_rows_of_all_kinds(db: fluss.Database) -> None:
    table = db.create_table("t", "id bigint not null, name string")
    for rows, problem in [
        ([(1, "a"), (2,)], "row 1: a tuple of 1 values was given, but the columns are 2: id, name"),
        ([(1, "a"), 7], "row 1: a row is a dict, a tuple"),
        ([row for _, row in pd.DataFrame(ONE).iterrows()], r"row 0: a row is .*, not Series: give its to_dict\(\); "),
        ([{"id": 1}, {"id": 2, "nam": "x"}], "row 1: unknown column 'nam'; did you mean 'name'"),
        ([{"id": 1}, {"name": "x"}], "row 1, .*NOT NULL"),
        ({"id": 1, "name": 3}, "row 0, column 'name'"),
        (pa.table({"id": [1, None], "name": ["a", "b"]}), "row 1[:,] .*non-nullable.*nothing was written"),
        (pd.DataFrame({"id": [1, 2], "name": ["a", 7]}), "row 1[:,] .*name"),
    ]:
        with pytest.raises(fluss.InvalidRowError, match=problem):
            table.append(rows)
    days = db.create_table("days", "id int, day string", partition_by="day")
    with pytest.raises(fluss.InvalidRowError, match=r": row 1.*: .*partition value") as caught:
        days.append([(1, "a"), (2, "not/a/name")])
    assert caught.value.position == 1  # type: ignore[attr-defined]
    with pytest.raises(fluss.InvalidArgumentError, match="rows are a dict"):
        table.append("abc")
    with pytest.raises(fluss.InvalidRowError, match="unknown column"):
        table.append(pa.table({"id": [1], "nome": ["a"]}))


@pytest.mark.parametrize("make", [list, iter], ids=["list", "iterator"])
def test_none_among_rows_or_keys_is_refused_at_any_place(db: fluss.Database, make) -> None:
    table = db.create_table("t", "id bigint, name string", primary_key="id")
    for position in (0, 1):
        rows: list[Any] = [(1, "a"), (2, "b")]
        rows.insert(position, None)
        with pytest.raises(fluss.InvalidRowError, match=f": row {position}: a row is a dict.*not NoneType None"):
            table.upsert(make(rows))
        assert len(table) == position
    table.upsert([(1, "a"), (2, "b")])
    with pytest.raises(fluss.InvalidRowError, match=r": row 0, column 'id'.*null"):
        table.delete(make([None, 2]))
    assert len(table) == 2


def test_one_column_is_not_rows(db: fluss.Database) -> None:
    table = db.create_table("t", "id bigint, name string", primary_key="id")
    for column in (pd.Series([1, 2]), pl.Series([1, 2]), pa.array([1, 2]), pd.Index([1])):
        with pytest.raises(fluss.InvalidArgumentError, match="is one column"):
            table.upsert(column)
    with pytest.raises(fluss.InvalidArgumentError, match="polars type Object"):
        table.upsert(pl.DataFrame({"id": [1], "name": [object()]}, schema={"id": pl.Int64, "name": pl.Object}))
    assert len(table) == 0


@pytest.mark.parametrize(
    "make", [list, np.array, pd.Series, pd.Index, pl.Series, pa.array, lambda v: pa.chunked_array([v])]
)
def test_a_column_of_keys(db: fluss.Database, make) -> None:
    table = db.create_table("t", [{"id": 1}, {"id": 2}, {"id": 3}], primary_key="id")
    assert table.get_many(make([2, 9])) == [{"id": 2}, None]
    table.delete(make([2, 3]))
    assert table.to_pylist() == [{"id": 1}]


def test_rows_come_from_the_thread_of_the_caller(db: fluss.Database) -> None:
    source = sqlite3.connect(":memory:")  # its cursors refuse to be used in another thread
    source.execute("create table s (id integer, name text)")
    source.executemany("insert into s values (?, ?)", [(i, f"n{i}") for i in range(5_000)])
    table = db.create_table("t", "id bigint, name string", buckets=2)
    assert table.append(source.execute("select id, name from s")).rows == 5_000
    source.close()
    seen = set()

    def rows() -> Iterator[tuple[int, str]]:
        seen.add(threading.current_thread())
        yield 1, "x"
        assert len(table) == 5_000, "the API can be used while rows are taken"

    table.append(rows())
    assert seen == {threading.current_thread()}


@pytest.mark.parametrize("count", [0, 1, 1_000, 1_700])
def test_an_error_of_the_source_is_the_callers(db: fluss.Database, count: int) -> None:
    table = db.create_table("t", "id bigint, name string")

    def rows() -> Iterator[tuple[int, str]]:
        for i in range(count):
            yield i, "x"
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more") as caught:
        table.append(rows())
    assert len(table) == count, "what came before it is written"
    if sys.version_info >= (3, 11):
        said = {0: [], 1: ["fluss: the row before it was written"]}
        notes = said.get(count, [f"fluss: the {count} rows before it were written"])
        assert getattr(caught.value, "__notes__", []) == notes


def test_an_error_of_a_write_within_the_source_keeps_what_it_says(db: fluss.Database) -> None:
    table, other = db.create_table("t", "id bigint"), db.create_table("other", "id bigint")

    def rows() -> Iterator[tuple[int]]:
        yield (1,)
        other.append([(1,), (2,), ("three",)])

    with pytest.raises(RowRejectedError) as caught:
        table.append(rows())
    assert caught.value.message.endswith("the 2 rows before it were written, it and those after it were not")
    assert (caught.value.position, caught.value.written) == (2, 2)
    assert (len(table), len(other)) == (1, 2)


def test_a_batch_that_does_not_fit_says_what_was_written_before_it(db: fluss.Database) -> None:
    table = db.create_table("t", "id bigint, name string")
    batches = [pa.RecordBatch.from_pylist(TWO), pa.RecordBatch.from_pylist([{"id": 3, "nome": "a"}])]
    with pytest.raises(fluss.InvalidRowError, match=r"unknown column 'nome'.*the 2 rows before it were written"):
        table.append(iter(batches))
    assert rows_of(table) == TWO


def test_forgiving_values(db: fluss.Database) -> None:
    table = db.create_table(
        "t", "id bigint, f double, d decimal(10,2), b boolean, at timestamp_ltz, day date, s string, x array<int>"
    )
    berlin = dt.datetime(2026, 7, 1, 12, tzinfo=zoneinfo.ZoneInfo("Europe/Berlin"))
    table.append(
        {
            "id": np.int32(7),
            "f": np.float32(0.5),
            "d": decimal.Decimal("1.5"),
            "b": np.bool_(True),
            "at": berlin,
            "day": np.datetime64("2026-07-01"),
            "s": pd.NA,
            "x": np.array([1, 2]),
        }
    )
    table.append({"id": pd.NA, "at": pd.Timestamp("2026-07-01 06:00", tz="America/New_York"), "d": 3, "day": pd.NaT})
    utc = dt.datetime(2026, 7, 1, 10, tzinfo=dt.timezone.utc)
    first, second = table.to_pylist()
    assert first == dict(
        zip(table.columns, (7, 0.5, decimal.Decimal("1.50"), True, utc, dt.date(2026, 7, 1), None, [1, 2]))
    )
    assert (second["id"], second["at"], second["d"], second["day"]) == (None, utc, decimal.Decimal("3.00"), None)
    table.append([{"id": decimal.Decimal("8"), "f": decimal.Decimal("0.25"), "d": 0.1}, {"d": np.float64(2.5)}])
    found = [(row["id"], row["f"], row["d"]) for row in table.to_pylist()[2:]]
    assert found == [(8, 0.25, decimal.Decimal("0.10")), (None, None, decimal.Decimal("2.50"))]
    for bad in ({"id": decimal.Decimal("8.5")}, {"d": 0.125}, {"d": float("nan")}):
        with pytest.raises(fluss.InvalidRowError, match="row 0"):
            table.append(bad)


def test_writer(db: fluss.Database) -> None:
    log = db.create_table("log", "id bigint, name string", buckets=2)
    with log.writer() as writer:
        for i in range(3_000):
            writer.append({"id": i, "name": "x"})
        writer.append(Model(id=3_000))
    assert len(log) == 3_001
    keyed = db.create_table("keyed", "id bigint, name string", primary_key="id")
    with keyed.writer() as writer:
        for i in range(100):
            writer.upsert((i, "x"))
        writer.delete(5)
        writer.delete({"id": 6})
        writer.flush()
        assert len(keyed) == 98
    with pytest.raises(fluss.InvalidArgumentError, match="use upsert"):
        keyed.writer().append({})
    with pytest.raises(fluss.InvalidArgumentError, match="use append"):
        log.writer().upsert({})
    with pytest.raises(fluss.InvalidRowError), log.writer() as writer:
        writer.append(("bad", "x"))


def test_calls_that_a_table_does_not_have(db: fluss.Database) -> None:
    log = db.create_table("log", "id bigint")
    keyed = db.create_table("keyed", "id bigint", primary_key="id")
    with pytest.raises(fluss.InvalidArgumentError, match=r"upsert\(\)"):
        keyed.append((1,))
    for call in (log.upsert, log.delete, log.update, log.get, log.prefix):
        with pytest.raises(fluss.NonPrimaryKeyTableError, match="create_table"):
            call((1,))
    with pytest.raises(fluss.InvalidArgumentError, match="delete"):
        keyed.delete()


def test_progress_is_shown(db: fluss.Database, capfd: pytest.CaptureFixture[str]) -> None:
    table = db.create_table("t", "id bigint")
    table.append(pa.table({"id": range(100_000)}), progress=True)
    table.append(((i,) for i in range(10)), progress=True)
    table.append(pd.DataFrame({"id": range(10)}), progress=True)
    assert "100000/100000" in capfd.readouterr().err
    assert len(table) == 100_020


def test_results_show_themselves() -> None:
    result = fluss.WriteResult(1_000, 0.5)
    assert repr(result) == "1000 rows in 0.500 s"
    assert "1,000" in result._repr_html_()
    assert result.rows_per_second == 2_000


def test_errors_are_read_from_attributes_and_not_from_text(db: fluss.Database) -> None:
    """The name of a column may look like the position of a row."""
    table = db.create_table("t", {"row 7": "int", "n": "int"})
    with pytest.raises(fluss.InvalidRowError, match="unknown column 'row 8'"):
        table.append(pa.table({"row 8": [1]}))
    with pytest.raises(RowRejectedError) as caught:
        table.append(pa.table({"row 7": [1, 2**40]}))
    error = caught.value
    assert (error.row, error.column, error.column_type, error.table) == (1, "row 7", "int", "fluss.t")
    assert (error.position, error.written) == (1, 0)
    with pytest.raises(RowRejectedError) as caught:
        table.append([{"n": 1}, {"n": "x"}])
    assert (caught.value.row, caught.value.column, caught.value.written) == (1, "n", 1)
    assert caught.value.hint == "the row before it was written, it and those after it were not"


@pytest.mark.parametrize(
    "rows",
    [
        {"id": 1, "a": "x"},
        [{"id": 1, "a": "x"}],
        pa.table({"id": [1], "a": ["x"]}),
        iter([{"id": 1, "a": "x"}]),
    ],
    ids=["row", "rows", "arrow", "iterator"],
)
def test_columns_that_are_not_given_are_not_lost_by_accident(db: fluss.Database, rows: Any) -> None:
    table = db.create_table("t", [{"id": 1, "a": "a", "b": "b"}, {"id": 2, "a": "a", "b": "b"}], primary_key="id")
    with pytest.raises(fluss.InvalidRowError, match=r"'b' is not given.*missing='keep'"):
        table.upsert(rows)
    assert table.get(1) == {"id": 1, "a": "a", "b": "b"}


@pytest.mark.parametrize("missing", ["keep", "null"])
def test_columns_that_are_not_given_are_kept_or_null(db: fluss.Database, missing: Any) -> None:
    table = db.create_table("t", [{"id": number, "a": "a", "b": "b"} for number in range(3)], primary_key="id")
    left = "b" if missing == "keep" else None
    assert table.upsert({"id": 0, "a": "x"}, missing=missing).rows == 1
    assert table.upsert(pa.table({"id": [1, 9], "a": ["x", "x"]}), missing=missing).rows == 2
    assert table.upsert([{"id": 2, "a": "x", "b": "y"}], missing=missing).rows == 1
    expected = [(0, "x", left), (1, "x", left), (2, "x", "y"), (9, "x", None)]
    assert list(table.get_many([0, 1, 2, 9])) == [dict(zip(("id", "a", "b"), row)) for row in expected]
    with pytest.raises(fluss.InvalidArgumentError, match="missing must be"):
        table.upsert({"id": 0}, missing="drop")  # type: ignore[arg-type]


def test_a_writer_refuses_rows_that_lack_columns(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": 1, "a": "a", "b": "b"}], primary_key="id")
    with table.writer() as writer, pytest.raises(fluss.InvalidRowError, match="'b' is not given"):
        writer.upsert({"id": 1, "a": "x"})
    with table.writer(columns=["id", "a"]) as writer:
        writer.upsert({"id": 1, "a": "x"})
    assert table.get(1) == {"id": 1, "a": "x", "b": "b"}
    with table.writer(missing="null") as writer:
        writer.upsert({"id": 1, "a": "x"})
    assert table.get(1) == {"id": 1, "a": "x", "b": None}


def test_a_writer_takes_named_tuples_like_other_calls(db: fluss.Database) -> None:
    """By name if one of the names is a column, else by position."""
    table = db.create_table("t", [{"id": 1, "a": "a", "b": "b"}], primary_key="id")
    Named = collections.namedtuple("Named", "b id a")
    Other = collections.namedtuple("Other", "first second third")
    Part = collections.namedtuple("Part", "id a")
    with table.writer() as writer:
        writer.upsert(Named("b2", 2, "a2"))
        writer.upsert(Other(3, "a3", "b3"))
        with pytest.raises(fluss.InvalidRowError, match="'b' is not given"):
            writer.upsert(Part(1, "x"))
    assert list(table.get_many([1, 2, 3])) == [
        {"id": number, "a": "a" + end, "b": "b" + end} for number, end in ((1, ""), (2, "2"), (3, "3"))
    ]


def test_keys_that_do_not_exist_are_neither_updated_nor_counted(db: fluss.Database) -> None:
    table = db.create_table("t", [{"id": 1, "a": "a"}, {"id": 2, "a": "a"}], primary_key="id")
    assert table.update(7, a="x").rows == 0
    assert table.update([{"id": 1, "a": "y"}, {"id": 8, "a": "y"}]).rows == 1
    assert table.update(pa.table({"id": [2, 9], "a": ["z", "z"]})).rows == 1
    assert table.to_pylist() == [{"id": 1, "a": "y"}, {"id": 2, "a": "z"}]
    assert table.update(7, a="x", upsert=True).rows == 1
    assert table.get(7) == {"id": 7, "a": "x"}
    assert table.delete(99).rows == 0
    assert table.delete([1, 99, 1]).rows == 1
    assert table.delete(pa.table({"id": [2, 98]})).rows == 1
    assert table.delete(where="id = 7").rows == 1
    assert table.delete(where="id = 7").rows == 0
    assert table.delete([]).rows == 0
    assert len(table) == 0


@pytest.mark.parametrize("form", ["dict", "list", "arrow", "pandas", "polars", "writer"])
def test_dates_and_times_as_iso_texts(db: fluss.Database, form: str) -> None:
    table = db.create_table(
        "t", "day date, at timestamp(6), zoned timestamp_ltz(3), hour time, days array<date>", primary_key="day"
    )
    row = {"day": "2026-07-01", "at": "2026-07-01T12:00:00.123456", "zoned": "2026-07-01T12:00Z", "hour": "10:30"}
    row_of_all = {**row, "days": ["2026-07-02"]}
    if form == "writer":
        with table.writer() as writer:
            writer.upsert(row_of_all)
    elif form in ("dict", "list"):
        table.upsert(row_of_all if form == "dict" else [row_of_all])
    else:
        columns = {name: [value] for name, value in row.items()}
        frame = {"arrow": pa.table, "pandas": pd.DataFrame, "polars": pl.DataFrame}[form](columns)
        table.upsert(frame, missing="null")
    day = dt.date(2026, 7, 1)
    found, noon = table.get("2026-07-01"), dt.datetime(2026, 7, 1, 12)
    times = (day, noon.replace(microsecond=123456), noon.replace(tzinfo=dt.timezone.utc), dt.time(10, 30))
    assert (found["day"], found["at"], found["zoned"], found["hour"]) == times
    for where in ("day = '2026-07-01'", fluss.col("day") == "2026-07-01", fluss.col("at") < "2026-07-01T12:01"):
        assert table.count(where) == 1
    assert [key in table for key in ("2026-07-01", day, "2026-07-02")] == [True, True, False]
    assert table.update("2026-07-01", at="2026-07-03").rows == 1
    assert table.delete(["2026-07-01"]).rows == 1


@pytest.mark.parametrize(
    ("column", "text"),
    [("day date", "soon"), ("day date", "2026-07-01T10:00"), ("at timestamp(9)", "2026-07-01T10:00:00.123456789"),
     ("at timestamp(3)", "2026-07-01T10:00Z"), ("hour time", "25:00"), ("at timestamp(0)", "2026-07-01T10:00:00.5")],
)  # fmt: skip
def test_texts_that_are_not_the_date_or_time_of_a_column(db: fluss.Database, column: str, text: str) -> None:
    table = db.create_table("t", f"id int, {column}")
    name = column.split()[0]
    for rows in ([{"id": 1, name: text}], pa.table({"id": pa.array([1], pa.int32()), name: [text]})):
        with pytest.raises(fluss.InvalidRowError) as caught:
            table.append(rows)
        assert (caught.value.row, caught.value.column) == (0, name)
    assert table.count() == 0


@pytest.mark.filterwarnings("ignore:the server of .* reports")
def test_a_full_disk_is_reported_in_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk = "server.data-disk"
    server = {f"{disk}.write-limit-ratio": 0, f"{disk}.write-recover-ratio": 0, f"{disk}.check-interval": "10ms"}
    with fluss.connect(tmp_path, server=server, options={"writer.delivery-timeout": "500ms"}) as db:
        log, keyed = db.create_table("log", "id int"), db.create_table("keyed", "id int", primary_key="id")
        for write in (log.append, keyed.upsert):
            with pytest.raises(DiskWriteLockedError, match=r"1 rows to .* nearly full.* Free space"):
                collections.deque(
                    (write({"id": 1}) for _ in itertools.count()), 0
                )  # until the server looks at the disk
    assert "nearly full" in caplog.text
    assert "retrying for up to" in caplog.text


def test_a_table_in_chunks_says_what_was_written(db: fluss.Database) -> None:
    """A row that no partition can hold is found after the chunks before it were taken."""
    table = db.create_table("t", "id bigint not null, day string", partition_by="day")
    good, bad = {"id": [1, 2], "day": ["a", "b"]}, {"id": [3, 4], "day": ["a", "b/c"]}
    with pytest.raises(RowRejectedError) as caught:
        table.append(pa.concat_tables([pa.table(good), pa.table(bad)]))
    assert (caught.value.row, caught.value.written) == (3, 2)
    assert caught.value.hint.endswith("the first 2 rows were written, those after them were not")
    assert sorted(row["id"] for row in rows_of(table)) == [1, 2]
    null = pa.table({"id": pa.array([None], pa.int64()), "day": ["a"]})
    with pytest.raises(fluss.InvalidRowError, match=r"row 2, .*nothing was written"):
        table.append(pa.concat_tables([pa.table(good), null]))
    assert len(table) == 2, "what is checked first is checked of all chunks"


@pytest.mark.parametrize("bad_at", [1, 40, 3_500])
def test_rows_before_one_without_a_partition_are_written(db: fluss.Database, bad_at: int) -> None:
    table = db.create_table("t", "id bigint, day string, hour string", partition_by=["day", "hour"])
    rows = [{"id": i, "day": "a", "hour": "b"} for i in range(4_000)]
    rows[bad_at] = {"id": -1, "day": "a", "hour": "b/c"}
    rows[3_999] = {"id": -1, "day": "b/c", "hour": "b"}
    with pytest.raises(RowRejectedError) as caught:
        table.append(rows)
    assert (caught.value.row, caught.value.written, len(table)) == (bad_at, bad_at, bad_at)
