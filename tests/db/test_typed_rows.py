# SPDX-License-Identifier: Apache-2.0
"""Typed rows: dataclasses and pydantic models, at run time; `tests/test_types.py` has what type checkers see."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import sys

import pandas as pd
import pyarrow as pa
import pydantic
import pytest
from tests.db.conftest import columns

import fluss
from fluss.rows.named_fields import as_mapping


@dataclasses.dataclass
class Address:
    street: str
    number: int


@dataclasses.dataclass
class Order:
    id: int
    item: str
    price: float | None = None
    to: Address | None = None


class Reading(pydantic.BaseModel):
    id: int
    at: dt.datetime
    values: list[float]


class Colour(enum.Enum):
    RED = "red"


def test_dataclasses_everywhere(db: fluss.Database) -> None:
    rows = [Order(1, "tea", 2.5, Address("Elm", 7)), Order(2, "milk")]
    db.create_table("orders", Order, primary_key="id", buckets=2).upsert(rows)
    orders = db.table("orders", Order)
    assert sorted(orders.to_pylist(), key=lambda row: row.id) == rows
    assert orders.get(1) == rows[0]
    assert orders.get_many([2, 1]) == rows[::-1]
    assert sorted(change.row.id for change in orders.follow(stop_at_end=True)) == [1, 2]
    assert {type(change.new) for change in orders.changes()} == {Order}
    assert isinstance(orders.head(1)[0], Order)
    orders.upsert(Order(3, "jam"))
    assert orders.get(3) == Order(3, "jam")
    assert "Order" in repr(orders)
    with pytest.raises(fluss.InvalidArgumentError, match="all its columns"):
        orders.to_pylist(columns=["id"])


def test_pydantic_everywhere(db: fluss.Database) -> None:
    row = Reading(id=1, at=dt.datetime(2026, 7, 1, 12, tzinfo=dt.timezone.utc), values=[1.0, 2.0])
    readings = db.create_table("readings", Reading, primary_key="id")
    readings.upsert(row)
    assert readings.to_pylist() == [row]
    assert readings.get(1) == row
    assert [change.row for change in readings.follow(stop_at_end=True)] == [row]


def test_created_tables_have_typed_rows_that_can_be_updated(db: fluss.Database) -> None:
    orders = db.create_table("orders", Order, primary_key="id", buckets=2)
    orders.upsert([Order(1, "tea", 2.5, Address("Elm", 7)), Order(2, "milk")])
    assert orders.update(1, price=3.0).rows == 1
    assert orders.get(1) == Order(1, "tea", 3.0, Address("Elm", 7))
    assert orders.update([{"id": 2, "item": "jam"}, {"id": 3, "item": "none"}]).rows == 1
    assert orders.update(pa.table({"id": [2, 9], "price": [4, 5]})).rows == 1
    assert orders.update(pd.DataFrame({"id": [1], "item": ["coffee"]})).rows == 1
    assert orders.update(Order(2, "jam", 5.0)).rows == 1
    assert sorted(orders.to_pylist(), key=lambda row: row.id) == [
        Order(1, "coffee", 3.0, Address("Elm", 7)),
        Order(2, "jam", 5.0),
    ]
    with pytest.raises(fluss.InvalidRowError) as caught:
        orders.update([{"id": 1, "price": 1.0}, {"id": 2, "price": "dear"}])
    assert (caught.value.row, caught.value.column) == (1, "price")
    with pytest.raises(fluss.InvalidArgumentError, match="'item' is NOT NULL"):
        orders.update(3, price=1.0, upsert=True)
    assert isinstance(db.create_table("orders", Order, exist_ok=True, primary_key="id").get(1), Order)


class Visit(pydantic.BaseModel):
    id: int
    at: dt.datetime
    aware: pydantic.AwareDatetime
    naive: pydantic.NaiveDatetime | None = None
    days: list[dt.date] = []
    times: list[dt.datetime] = []


def test_times_of_pydantic(db: fluss.Database) -> None:
    visits = db.create_table("visits", Visit, primary_key="id")
    assert columns(visits) == (
        "id bigint NOT NULL, at timestamp_ltz NOT NULL, aware timestamp_ltz NOT NULL, naive timestamp, "
        "days array<date NOT NULL> NOT NULL, times array<timestamp_ltz NOT NULL> NOT NULL"
    )
    text = "2026-07-01T12:00:00+02:00"
    row = Visit(id=1, at=text, aware=text, naive="2026-07-01T12:00:00", days=["2026-07-01"], times=[text])
    visits.upsert(row)
    assert visits.get(1) == row
    visits.upsert(row.model_copy(update={"id": 2, "at": dt.datetime(2026, 7, 1, 12)}))
    assert visits.get(2).at == dt.datetime(2026, 7, 1, 12, tzinfo=dt.timezone.utc), "without a zone, it is UTC"


class Size(enum.IntEnum):
    LARGE = 3


@dataclasses.dataclass
class Line:
    item: str
    colour: Colour | None = None


@dataclasses.dataclass
class Parcel:
    id: int
    colour: Colour
    size: Size = Size.LARGE
    first: Line | None = None
    lines: list[Line] = dataclasses.field(default_factory=list)
    tags: set[str] = dataclasses.field(default_factory=set)
    colours: tuple[Colour, ...] = ()
    by_name: dict[str, Line] = dataclasses.field(default_factory=dict)
    where: Where | None = None


class Where(pydantic.BaseModel):
    city: str
    colour: Colour | None = None


class Shipment(pydantic.BaseModel):
    id: int
    colour: Colour
    places: list[Where] = []
    tags: set[str] = set()


@pytest.mark.parametrize(
    "row",
    [
        Parcel(1, Colour.RED),
        Parcel(1, Colour.RED, first=Line("tea", Colour.RED), lines=[Line("jam"), Line("oil", Colour.RED)]),
        Parcel(1, Colour.RED, tags={"a", "b"}, colours=(Colour.RED,), by_name={"x": Line("y", Colour.RED)}),
        Parcel(1, Colour.RED, where=Where(city="Oslo", colour=Colour.RED)),
        Shipment(id=1, colour=Colour.RED),
        Shipment(id=1, colour=Colour.RED, places=[Where(city="Oslo", colour=Colour.RED)], tags={"a"}),
    ],
    ids=["enum", "dataclasses", "sets and maps", "pydantic inside", "pydantic enum", "pydantic nested"],
)
def test_every_annotation_that_makes_a_table_is_written_and_read(db: fluss.Database, row: Parcel | Shipment) -> None:
    model: type = type(row)
    db.create_table("t", model, primary_key="id").upsert([row])
    table = db.table("t", model)
    assert table.to_pylist() == [row]
    assert table.get(1) == row
    with table.writer() as writer:
        writer.upsert(row)
    assert table.to_pylist() == [row]


def test_a_plain_value_of_a_row_costs_one_call() -> None:
    row = Order(1, "apple", 1.5)
    calls: list[str] = []
    sys.setprofile(lambda frame, event, _: calls.append(frame.f_code.co_name) if event == "call" else None)
    try:
        as_mapping(row)
    finally:
        sys.setprofile(None)
    assert calls.count("_plain") == len(dataclasses.fields(Order))
    assert calls.count("as_mapping") == 1


def test_a_model_with_fewer_columns_reads_only_those(db: fluss.Database) -> None:
    @dataclasses.dataclass
    class Short:
        id: int
        more: str = "not in the table"

    db.create_table("t", [{"id": 1, "a": "x", "b": "y"}], primary_key="id")
    short = db.table("t", Short)
    assert short.to_pylist() == [Short(1)]
    assert short.get(1) == Short(1)
    assert [change.row for change in short.follow(stop_at_end=True)] == [Short(1)]


def test_mismatches_are_named(db: fluss.Database) -> None:
    @dataclasses.dataclass
    class Wrong:
        id: str
        itm: str
        price: float

    db.create_table("orders", "id bigint, item string, price double")
    with pytest.raises(fluss.InvalidArgumentError) as caught:
        db.table("orders", Wrong)
    assert "no column 'itm'; did you mean 'item'" in caught.value.message
    assert "'id' is bigint in the table and str in the model" in caught.value.message
    assert "price" not in caught.value.message
    with pytest.raises(fluss.InvalidArgumentError, match="dataclass or a pydantic model"):
        db.table("orders", int)


@dataclasses.dataclass
class Person:
    id: int
    parent: Person | None = None


class Folder(pydantic.BaseModel):
    id: int
    folders: list[Folder] = []


@pytest.mark.parametrize("model", [Person, Folder])
def test_a_model_that_contains_itself_is_refused(db: fluss.Database, model: type) -> None:
    with pytest.raises(fluss.InvalidArgumentError, match=f"{model.__name__} contains itself, which no type"):
        db.create_table("t", model)


def test_other_annotations(db: fluss.Database) -> None:
    @dataclasses.dataclass
    class Many:
        a: dict[str, int]
        b: tuple[int, ...]
        c: Colour
        d: bytes
        e: pd.Timestamp

    assert columns(db.create_table("t", Many)) == (
        "a map<string NOT NULL,bigint NOT NULL> NOT NULL, b array<bigint NOT NULL> NOT NULL, c string NOT NULL, "
        "d bytes NOT NULL, e timestamp NOT NULL"
    )
    db.t.append(Many({"x": 1}, (1, 2), Colour.RED, b"z", pd.Timestamp("2026-07-01 12:00")))
    assert db.t.to_pylist()[0]["c"] == "red"

    @dataclasses.dataclass
    class Odd:
        x: complex

    with pytest.raises(fluss.InvalidArgumentError, match=r"field 'x' of Odd: complex.*Annotated"):
        db.create_table("odd", Odd)
