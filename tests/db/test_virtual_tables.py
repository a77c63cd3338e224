# SPDX-License-Identifier: Apache-2.0
"""`$changelog` and `$binlog` as tables of `fluss.connect()`, and in SQL. `$lake` is in tests/lake/test_virtual.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import fluss

CHANGES = [
    ("insert", 0, 1, "tea"),
    ("insert", 1, 2, "mug"),
    ("update_before", 2, 1, "tea"),
    ("update_after", 3, 1, "pot"),
    ("delete", 4, 2, "mug"),
]


@pytest.fixture
def orders(db: fluss.Database) -> fluss.Table:
    table = db.create_table("orders", "id int, item string, spec row<a int, b array<string>>, primary key (id)")
    table.upsert([{"id": 1, "item": "tea", "spec": {"a": 7, "b": ["x"]}}, {"id": 2, "item": "mug"}], missing="null")
    table.upsert({"id": 1, "item": "pot"}, missing="null")
    table.delete(2)
    return table


def test_the_changelog_is_read_like_a_table(db: fluss.Database, orders: fluss.Table) -> None:
    view = db.table("orders$changelog")
    assert view.columns == ["_change_type", "_log_offset", "_commit_timestamp", "id", "item", "spec"]
    assert view.name == "fluss.orders$changelog"
    rows = view.to_pylist()
    assert [(row["_change_type"], row["_log_offset"], row["id"], row["item"]) for row in rows] == CHANGES
    assert rows[0]["spec"] == {"a": 7, "b": ["x"]}
    assert view.to_arrow(columns=["item", "_change_type"], where="id = 2 and _log_offset > 1").to_pylist() == [
        {"item": "mug", "_change_type": "delete"}
    ]
    assert (view.count(), view.count(where="_change_type = 'insert'"), len(view.head(2))) == (5, 2, 2)
    assert view.to_arrow().schema.equals(view.schema.arrow_schema)
    orders.upsert({"id": 9}, missing="null")
    assert view.count() == 6


def test_the_binlog_has_rows_before_and_after(db: fluss.Database, orders: fluss.Table) -> None:
    rows = db.table("orders$binlog").to_pylist()
    assert [row["_change_type"] for row in rows] == ["insert", "insert", "update", "delete"]
    assert rows[2]["before"] == {"id": 1, "item": "tea", "spec": {"a": 7, "b": ["x"]}}
    assert rows[2]["after"] == {"id": 1, "item": "pot", "spec": None}


def test_partitions_and_logs(db: fluss.Database) -> None:
    parts = db.create_table("parts", "id int, day string", partition_by="day")
    parts.append([{"id": 1, "day": "mon"}, {"id": 2, "day": "tue"}])
    found = db.table("parts$changelog").to_pylist()
    assert sorted((row["_change_type"], row["_log_offset"], row["day"]) for row in found) == [
        ("insert", 0, "mon"),
        ("insert", 0, "tue"),
    ]


def test_in_sql(db: fluss.Database, orders: fluss.Table) -> None:
    found = db.sql("select _change_type, count(*) as n from orders$changelog where id = 1 group by 1 order by 1")
    assert found.fetchall() == [("insert", 1), ("update_after", 1), ("update_before", 1)]
    quoted = db.sql('select "after".item as item from fluss."Orders$binlog" where _change_type = \'update\'')
    assert quoted.fetchall() == [("pot",)]


@pytest.mark.parametrize(
    "call",
    [
        lambda view: view.append({"_change_type": "insert"}),
        lambda view: view.upsert({"id": 1}),
        lambda view: view.delete(1),
        lambda view: view.get(1),
        lambda view: view.follow(),
        lambda view: view.to_arrow(snapshot=1),
    ],
)
def test_it_can_only_be_read(db: fluss.Database, orders: fluss.Table, call: Callable[[fluss.Table], Any]) -> None:
    with pytest.raises(fluss.InvalidArgumentError, match=r"orders\$changelog"):
        call(db.table("orders$changelog"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("log$binlog", "only primary-key tables have a binlog"),
        ("log$lake", "table.datalake.enabled"),
        ("log$other", "changelog, .binlog and .lake"),
    ],
)
def test_views_that_a_table_does_not_have(db: fluss.Database, name: str, message: str) -> None:
    db.create_table("log", "id int")
    with pytest.raises(fluss.InvalidArgumentError, match=message):
        db.table(name)
