# SPDX-License-Identifier: Apache-2.0
"""Random tables against a model, while another writer is at work: nothing is ever missing, and nothing is doubled."""

from __future__ import annotations

import collections
import itertools
from contextlib import AbstractContextManager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.threads import in_background

import fluss

BACKGROUND = 1_000_000
"""Rows of the other writer have ids from here on."""
DAYS = ("mon", "tue", "wed")

Row = dict[str, Any]
_numbers = itertools.count()


class Model:
    """What the table should hold, without the rows of the other writer."""

    def __init__(self, columns: list[str], key: list[str] | None) -> None:
        self.columns = columns
        self.key = key
        self.rows: list[Row] = []

    def _key(self, row: Row) -> tuple[Any, ...]:
        assert self.key is not None
        return tuple(row[name] for name in self.key)

    def write(self, rows: list[Row]) -> None:
        for row in rows:
            whole = {name: row.get(name) for name in self.columns}
            if self.key is not None:
                self.rows = [old for old in self.rows if self._key(old) != self._key(row)]
            self.rows.append(whole)

    def update(self, row: Row) -> None:
        old = next((old for old in self.rows if self._key(old) == self._key(row)), dict.fromkeys(self.columns))
        self.write([{**old, **row}])

    def delete(self, keys: list[Row]) -> None:
        gone = {self._key(key) for key in keys}
        self.rows = [row for row in self.rows if self._key(row) not in gone]

    def add_column(self, name: str) -> None:
        self.columns.append(name)
        for row in self.rows:
            row[name] = None


def counted(rows: list[Row]) -> collections.Counter[str]:
    return collections.Counter(repr(sorted(row.items())) for row in rows)


def split(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of the test, and those of the other writer."""
    return [row for row in rows if row["id"] < BACKGROUND], [row for row in rows if row["id"] >= BACKGROUND]


def check_background(rows: list[Row], at_least: int) -> int:
    """The other writer writes one row after the other: what is there begins with its first, and has no holes."""
    ids = sorted(row["id"] - BACKGROUND for row in rows)
    assert ids == list(range(len(ids)))
    assert len(ids) >= at_least
    return len(ids)


def other_writer(db: fluss.Database, name: str, written: list[int]) -> AbstractContextManager[None]:
    table = db.table(name)

    def write(number: int) -> None:
        (table.upsert if table.primary_key else table.append)((BACKGROUND + number, DAYS[0], 0.0))
        written[0] = number + 1

    return in_background(write)


ids = st.integers(0, 15)
values = st.none() | st.sampled_from([0.0, 1.5, -2.0])
rows = st.lists(st.fixed_dictionaries({"id": ids, "day": st.sampled_from(DAYS), "v": values}), max_size=12)
steps = st.lists(
    st.one_of(
        *(st.tuples(st.just(kind), rows) for kind in ("write", "write", "delete", "update")),
        *(st.tuples(st.just(kind), st.just([])) for kind in ("column", "check", "tier")),
    ),
    min_size=3,
    max_size=8,
)
shapes = st.fixed_dictionaries({"keyed": st.booleans(), "partitioned": st.booleans(), "buckets": st.integers(1, 5)})


def run_steps(db: fluss.Database, shape: dict[str, Any], steps: list[tuple[str, list[Row]]], tier: Any = None) -> None:
    name = f"t{next(_numbers)}"
    key = (["id", "day"] if shape["partitioned"] else ["id"]) if shape["keyed"] else None
    table = db.create_table(
        name,
        "id bigint, day string, v double",
        primary_key=key,
        partition_by="day" if shape["partitioned"] else None,
        buckets=shape["buckets"],
        properties={"table.datalake.enabled": True} if tier else None,
    )
    model = Model(["id", "day", "v"], key)
    written = [0]
    with other_writer(db, name, written):
        for kind, given_rows in [*steps, ("check", [])]:
            if kind == "write":
                if key:
                    table.upsert(given_rows, missing="null")  # columns that were added meanwhile
                else:
                    table.append(given_rows)
                model.write(given_rows)
            elif kind == "delete" and key and given_rows:
                table.delete([{name: row[name] for name in key} for row in given_rows])
                model.delete(given_rows)
            elif kind == "update" and key:
                for row in given_rows:
                    changed = {name: row[name] for name in [*key, "v"]}
                    table.update(changed, upsert=True)
                    model.update(changed)
            elif kind == "column" and len(model.columns) < 6:
                column = f"c{len(model.columns)}"
                table.add_column(column, "string")
                model.add_column(column)
            elif kind == "tier" and tier is not None:
                tier()
            elif kind == "check":
                check(db, table, model, written[0])
    check(db, table, model, written[0])
    assert len(split(table.to_pylist())[1]) == written[0]
    assert table.count() == len(model.rows) + written[0]
    assert db.sql(f"select count(*) from {name}").fetchall() == [(table.count(),)]
    db.drop_table(name)


def check(db: fluss.Database, table: fluss.Table, model: Model, at_least: int) -> None:
    found, background = split(table.to_pylist())
    assert counted(found) == counted(model.rows)
    seen = check_background(background, at_least)
    assert counted(split(table.to_arrow().to_pylist())[0]) == counted(model.rows)
    mine = f"id < {BACKGROUND}"
    assert table.count(where=mine) == len(model.rows)
    assert table.count() >= len(model.rows) + seen
    positive = [row for row in model.rows if row["v"] is not None and row["v"] > 0]
    assert counted(table.to_pylist(where=f"v > 0 and {mine}")) == counted(positive)
    assert table.count(where=f"day = 'tue' and {mine}") == sum(row["day"] == "tue" for row in model.rows)
    wanted = model.rows[0]["id"] if model.rows else 3
    assert counted(table.to_pylist(where=f"id = {wanted}")) == counted(
        [row for row in model.rows if row["id"] == wanted]
    )
    limit = len(model.rows) // 2
    assert len(table.to_pylist(where=mine, limit=limit)) == limit
    by_day = dict(db.sql(f"select day, count(*) from {table.path.table_name} where {mine} group by day").fetchall())
    assert by_day == collections.Counter(row["day"] for row in model.rows)
    if model.key is None:
        followed, rest = split([change.row for change in table.follow(stop_at_end=True)])
        assert counted(followed) == counted(model.rows)
        check_background(rest, seen)
        return
    state: dict[tuple[Any, ...], Row] = {}
    for change in table.changes():
        row_key = tuple((change.new or change.old or {})[name] for name in model.key)
        if change.kind == "delete":
            assert state.pop(row_key) == change.old
        else:
            before = state.get(row_key)
            assert before == change.old, "the old row of a change is the row there was"
            assert change.new is not None
            state[row_key] = change.new
    followed, rest = split(list(state.values()))
    assert counted(followed) == counted(model.rows)
    check_background(rest, seen)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(shape=shapes, steps=steps)
def test_tables_hold_what_was_written(db: fluss.Database, shape: dict[str, Any], steps: Any) -> None:
    run_steps(db, shape, steps)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(shape=shapes, steps=steps)
def test_tables_hold_what_was_written_at_length(db: fluss.Database, shape: dict[str, Any], steps: Any) -> None:
    run_steps(db, shape, steps)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(shape=shapes, steps=steps)
def test_tiered_tables_hold_what_was_written(lake_db: fluss.Database, shape: dict[str, Any], steps: Any) -> None:
    from fluss.lake import TieringService

    def tier() -> None:
        TieringService({"bootstrap.servers": lake_db.address}).run_once()

    run_steps(lake_db, shape, steps, tier)
