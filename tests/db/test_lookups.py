# SPDX-License-Identifier: Apache-2.0
"""Lookups by key, by many keys and by prefix."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import fluss


@pytest.fixture
def orders(db: fluss.Database) -> fluss.Table:
    return db.create_table("orders", [{"id": i, "item": f"i{i}"} for i in range(50)], primary_key="id", buckets=3)


def test_get(orders: fluss.Table) -> None:
    seven = {"id": 7, "item": "i7"}
    for key in (7, (7,), {"id": 7}, np.int64(7), {"id": 7, "item": "whatever"}):
        assert orders.get(key) == seven
    assert orders.get(99) is None
    assert orders.get(99, {"id": -1}) == {"id": -1}
    assert 7 in orders
    assert 99 not in orders


def test_get_often_and_in_other_threads(orders: fluss.Table) -> None:
    def run() -> None:
        for i in range(200):
            assert orders.get(i % 50) == {"id": i % 50, "item": f"i{i % 50}"}

    run()  # from some lookups on, they take a connection of this thread
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


async def test_get_inside_a_running_loop(orders: fluss.Table) -> None:
    for _ in range(30):
        assert orders.get(7) == {"id": 7, "item": "i7"}


def test_get_many(orders: fluss.Table) -> None:
    assert orders.get_many([3, 99, 1]) == [{"id": 3, "item": "i3"}, None, {"id": 1, "item": "i1"}]
    assert orders.get_many([(3,), {"id": 1}])[1] == {"id": 1, "item": "i1"}
    assert orders.get_many(np.array([4, 5]))[1] == {"id": 5, "item": "i5"}
    assert orders.get_many(pa.table({"id": [4]})) == [{"id": 4, "item": "i4"}]
    assert orders.get_many(pd.DataFrame({"id": [4, 99]})) == [{"id": 4, "item": "i4"}, None]
    assert orders.get_many([]) == []
    table = orders.get_many([3, 99], arrow=True)
    assert table.to_pylist() == [{"id": 3, "item": "i3"}, {"id": None, "item": None}]


def test_prefix(db: fluss.Database) -> None:
    lines = db.create_table(
        "lines", "order_id bigint, line int, item string", primary_key=["order_id", "line"], bucket_key="order_id"
    )
    lines.upsert([(o, n, f"{o}-{n}") for o in range(5) for n in range(3)])
    found = lines.prefix(3)
    assert sorted(row["item"] for row in found) == ["3-0", "3-1", "3-2"]
    assert lines.prefix(order_id=3) == found
    assert lines.prefix({"order_id": 3}) == found
    assert lines.prefix(77) == []
    assert lines.get((3, 1)) == {"order_id": 3, "line": 1, "item": "3-1"}
    with pytest.raises(fluss.InvalidArgumentError, match="did you mean 'order_id'"):
        lines.prefix(orderid=3)
    for values, columns in (((5,), {"order_id": 3}), ((), {"order_id": 3, "line": 1}), ((), {"line": 1})):
        with pytest.raises(fluss.InvalidArgumentError, match="takes the values of order_id"):
            lines.prefix(*values, **columns)


def test_prefix_of_partitions(db: fluss.Database) -> None:
    lines = db.create_table(
        "lines",
        "day string, order_id bigint, line int",
        primary_key=["day", "order_id", "line"],
        bucket_key="order_id",
        partition_by="day",
    )
    lines.upsert([("mon", 1, 1), ("mon", 1, 2), ("tue", 1, 1)])
    assert len(lines.prefix("mon", 1)) == 2
    assert len(lines.prefix(day="tue", order_id=1)) == len(lines.prefix(1, day="tue")) == 1
    with pytest.raises(fluss.InvalidArgumentError, match="the key lacks 'day'; it needs day, order_id"):
        lines.prefix(order_id=1)
    assert lines.get({"day": "mon", "order_id": 1, "line": 2}) == {"day": "mon", "order_id": 1, "line": 2}
    assert lines.get(("wed", 1, 2)) is None


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ((1, 2), "the key is the value of 'id'"),
        ({"idd": 1}, "did you mean 'id'"),
        ({"item": "x"}, "the key lacks 'id'"),
        ([1], "not the list"),
        ("seven", "id"),
    ],
)
def test_keys_that_are_none(orders: fluss.Table, key: object, problem: str) -> None:
    with pytest.raises(fluss.FlussError, match=problem):
        orders.get(key)


@dataclasses.dataclass
class Order:
    id: int
    item: str


def test_typed_keys(db: fluss.Database, orders: fluss.Table) -> None:
    typed = db.table("orders", Order)
    assert typed.get(Order(7, "")) == Order(7, "i7")
    assert typed.get_many([1, 99]) == [Order(1, "i1"), None]
