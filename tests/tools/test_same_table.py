# SPDX-License-Identifier: Apache-2.0
"""A table that is restored, copied or created like another one is the same: descriptor, partitions, rows, counts."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import fluss
from fluss.db.internals import admin_call
from fluss.db.schemas import source_of
from fluss.errors import FlussError, InvalidArgumentError
from fluss.metadata import (
    AggFunction,
    Column,
    DatabaseDescriptor,
    DataField,
    DataType,
    DataTypes,
    RowType,
    Schema,
    TableDescriptor,
)
from fluss.metadata.validation import AGG_FUNCTION_TYPES
from fluss.rows import bitmaps
from fluss.tools.backups import restore_backup, write_backup
from fluss.tools.copying import TableCopy, fingerprint
from fluss.tools.drafts import TableDraft, check_partitions, check_same, draft_like
from fluss.tools.status import measure_table

NESTED = RowType(
    (DataField("a", DataTypes.int().with_nullable(False), "what a is"), DataField("b", DataTypes.string()))
)
TYPES: list[tuple[DataType, Callable[[int], Any]]] = [
    (DataTypes.boolean(), lambda i: i % 2 == 0),
    (DataTypes.tinyint(), lambda i: i),
    (DataTypes.smallint(), lambda i: -i),
    (DataTypes.int(), lambda i: i),
    (DataTypes.bigint(), lambda i: 12 + i),
    (DataTypes.float(), lambda i: i / 2),
    (DataTypes.double(), lambda i: i / 4),
    (DataTypes.char(5), lambda i: f"c{i}"),
    (DataTypes.string(), lambda i: f"text {i}"),
    (DataTypes.binary(4), lambda i: bytes([1, 2, 3, i + 1])),
    (DataTypes.bytes(), lambda i: b""),
    (DataTypes.decimal(20, 3), lambda i: Decimal(i) / 8),
    (DataTypes.date(), lambda i: dt.date(2026, 1, 1 + i)),
    (DataTypes.time(3), lambda i: dt.time(1, 2, i)),
    (DataTypes.timestamp(6), lambda i: dt.datetime(2026, 1, 1, 0, 0, i, 7)),
    (DataTypes.timestamp_ltz(3), lambda i: dt.datetime(2026, 1, 1, i, tzinfo=dt.timezone.utc)),
    (DataTypes.array(DataTypes.array(DataTypes.string())), lambda i: [["x"], [], None] * i),
    (DataTypes.map(DataTypes.string().with_nullable(False), DataTypes.bigint()), lambda i: [("k", i)]),
    (NESTED, lambda i: {"a": i, "b": None}),
]
BITMAPS: dict[str, Callable[[int], bytes]] = {
    "rbm32": lambda i: bitmaps.bitmap32(np.array([i], np.uint32)),
    "rbm64": lambda i: bitmaps.write64({0: bitmaps.container_of(bitmaps.bits_of_values(np.array([i])))}),
}
"""The columns that unite bitmaps take nothing else."""
OWN = {
    "table.log.ttl": "3d",
    "table.log.tiered.local-segments": "3",
    "table.log.arrow.compression.type": "LZ4_FRAME",
    "table.kv.format": "INDEXED",
}
AUTO = {"table.auto-partition.enabled": "true", "table.auto-partition.num-retention": "-1"}


@dataclass
class Case:
    descriptor: TableDescriptor
    partitions: list[str] = field(default_factory=list)
    """Among them empty ones."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    later: list[dict[str, Any]] = field(default_factory=list)
    """Written to the table and to what was made from it: both must come to the same."""


@st.composite
def cases(draw: st.DrawFn) -> Case:
    keyed = draw(st.booleans())
    engine = draw(st.sampled_from([None, "first_row", "versioned", "aggregation"])) if keyed else None
    numbered = keyed and engine is None and draw(st.booleans())
    partitioned = draw(st.sampled_from(["no", "yes", "auto"]))
    comments = st.none() | st.sampled_from(["what it is", "é'\"\n"])
    columns = [Column("k", DataTypes.bigint()), Column("k2", DataTypes.string())]
    values: list[Callable[[int], Any]] = []
    for number, (data_type, value) in enumerate(draw(st.lists(st.sampled_from(TYPES), max_size=4))):
        function = None
        if engine == "aggregation" and draw(st.booleans()):
            fitting = [name for name, kinds in AGG_FUNCTION_TYPES.items() if isinstance(data_type, kinds)]
            name = draw(st.sampled_from(fitting))
            delimiter = name in ("listagg", "string_agg") and draw(st.booleans())
            function = AggFunction(name, {"delimiter": "|"} if delimiter else {})
        nullable = numbered or draw(st.booleans())
        columns.append(Column(f"c {number}", data_type.with_nullable(nullable), draw(comments), agg_function=function))
        values.append(BITMAPS.get(function.name, value) if function else value)
    properties = dict(draw(st.sets(st.sampled_from(sorted(OWN.items())), max_size=3)))
    if not keyed:
        properties.pop("table.kv.format", None)
    if engine is not None:
        properties["table.merge-engine"] = engine
    if engine == "versioned":
        columns.append(Column("version", DataTypes.bigint()))
        values.append(lambda i: i)
        properties["table.merge-engine.versioned.ver-column"] = "version"
    if partitioned != "no":
        columns.append(Column("day", DataTypes.string(), draw(comments)))
        properties |= AUTO if partitioned == "auto" else {}
    if numbered:
        columns.append(Column("nr", DataTypes.bigint()))
    key = ["k", "k2", *(["day"] if partitioned != "no" else [])] if keyed else []
    descriptor = TableDescriptor(
        Schema.of(columns, key, ["nr"] if numbered else []),
        partition_keys=["day"] if partitioned != "no" else [],
        bucket_count=draw(st.integers(1, 3)),
        bucket_keys=["k"] if draw(st.booleans()) else [],
        comment=draw(comments),
        properties=properties,
        custom_properties=draw(st.sampled_from([{}, {"owner": "anna", "x.y": "=ö="}])),
    )

    def row(number: int) -> dict[str, Any]:
        made: dict[str, Any] = {"k": number % 2, "k2": "é"}
        named = [column.name for column in columns[2 : 2 + len(values)]]
        made |= {name: value(number) for name, value in zip(named, values)}
        return made | ({"day": "20260101"} if partitioned != "no" else {})

    count = draw(st.integers(0, 5))
    partitions = ["20260101", "20260102"] if partitioned != "no" else []
    return Case(descriptor, partitions, [row(i) for i in range(count)], [row(i) for i in (5, 6)])


SUM = Case(
    TableDescriptor(
        Schema.of([Column("k", DataTypes.int()), Column("n", DataTypes.int(), agg_function=AggFunction("sum"))], ["k"]),
        bucket_count=1,
        properties={"table.merge-engine": "aggregation"},
    ),
    rows=[{"k": 1, "n": 20}, {"k": 1, "n": 5}],
    later=[{"k": 1, "n": 1}],
)
"""After a restore, 25 and 1 are 26."""

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as server:
        yield server


@pytest.fixture(scope="module")
def db(server: fluss.LocalServer) -> Iterator[fluss.Database]:
    with fluss.connect(server.bootstrap_servers) as db:
        yield db


def facts(db: fluss.Database, name: str) -> dict[str, Any]:
    """Everything that is known about a table, but for its name, ids and times."""
    table = db.table(name)
    return {
        "descriptor": table.info.descriptor.to_json(),
        "partitions": sorted(one.partition_name for one in table.partitions()),
        "rows": fingerprint(table),
        "row_count": measure_table(db, table).rows,
    }


def write(table: fluss.Table[Any], rows: list[dict[str, Any]]) -> None:
    for row in rows:  # one by one: each meets what the one before left
        (table.upsert if table.primary_key else table.append)(row)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
@example(case=SUM)
def test_restored_and_copied_tables(db: fluss.Database, tmp_path_factory: pytest.TempPathFactory, case: Case) -> None:
    name = f"fluss.t{next(_numbers)}"
    table = db.create_table(name, case.descriptor)
    for day in case.partitions:
        table.add_partition(day, exist_ok=True)
    write(table, case.rows)
    before = facts(db, name)

    draft_like(db, f"{name}_like", name).create(db)
    assert facts(db, f"{name}_like")["descriptor"] == before["descriptor"]
    TableCopy(db, name, db, f"{name}_copy", renumber=True).run()
    assert facts(db, f"{name}_copy") == before
    folder = tmp_path_factory.mktemp("backup")
    write_backup(db, str(folder / "b"), [name])
    write(table, case.later)
    after = facts(db, name)
    db.drop_table(name)
    restore_backup(db, str(folder / "b"), renumber=True)
    assert facts(db, name) == before

    for again in (name, f"{name}_copy"):
        write(db.table(again), case.later)
        assert facts(db, again) == after
        db.drop_table(again)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(case=cases())
def test_the_code_of_a_draft_describes_the_same_table(case: Case) -> None:
    made: dict[str, Any] = {}

    class Recorder:
        @staticmethod
        def create_table(name: str, schema: Any, **options: Any) -> None:
            made.update(name=name, schema=schema, **options)

    code = TableDraft("t", case.descriptor).code.replace("db = fluss.connect()", "")
    exec(code, {"db": Recorder()})
    assert made["name"] == "t"
    assert made.get("properties", {}) == {**case.descriptor.properties, **case.descriptor.custom_properties}
    schema = source_of(made["schema"], made.get("primary_key")).schema
    assert schema == case.descriptor.schema


def test_a_table_with_a_lake_is_created_like_another_one(tmp_path: Path) -> None:
    """The server shows the settings of its lake as properties of the table, and takes none of them."""
    pytest.importorskip("pypaimon")
    options = {"datalake.format": "paimon", "datalake.paimon.warehouse": str(tmp_path / "warehouse")}
    with fluss.connect(tmp_path / "data", server=options) as db:
        made = db.create_table("first", "id bigint", properties={"table.datalake.enabled": True})
        assert "table.datalake.paimon.warehouse" in made.info.properties
        draft_like(db, "second", "first").create(db)
        assert facts(db, "second") == facts(db, "first")


def test_changes_of_an_aggregating_table_are_not_aggregated_again(db: fluss.Database, tmp_path: Path) -> None:
    table = db.create_table("sums", SUM.descriptor)
    write(table, SUM.rows)
    checkpoint = str(tmp_path / "state.json")
    TableCopy(db, "sums", db, "sums_2", checkpoint=checkpoint).run()
    write(table, SUM.later)
    assert TableCopy(db, "sums", db, "sums_2", checkpoint=checkpoint).run().resumed
    assert db.table("sums_2").get(1) == {"k": 1, "n": 26}
    db.create_table("plain", "k int, n int", primary_key="k", properties={"table.merge-engine": "aggregation"})
    with pytest.raises(InvalidArgumentError, match=r"exists with other aggregation functions than fluss\.sums"):
        TableCopy(db, "sums", db, "plain")


def test_rows_with_numbers_of_the_server_are_not_renumbered_unasked(db: fluss.Database, tmp_path: Path) -> None:
    columns = [Column("k", DataTypes.int()), Column("nr", DataTypes.bigint())]
    table = db.create_table("numbered", TableDescriptor(Schema.of(columns, ["k"], ["nr"]), bucket_count=1))
    table.upsert({"k": 1})
    write_backup(db, str(tmp_path / "b"), ["numbered"])
    with pytest.raises(InvalidArgumentError, match="auto-increment column 'nr'"):
        TableCopy(db, "numbered", db, "numbered_2")
    assert "numbered_2" not in db
    db.drop_table("numbered")
    with pytest.raises(InvalidArgumentError, match="auto-increment column 'nr'"):
        restore_backup(db, str(tmp_path / "b"))
    assert "numbered" not in db


def test_backups_are_private_and_keep_databases(db: fluss.Database, tmp_path: Path) -> None:
    descriptor = DatabaseDescriptor("a shop", {"owner": "anna"})
    admin_call(db, lambda admin: admin.create_database("shop", descriptor))
    db.create_table("shop.orders", [{"id": 1}])
    folder = tmp_path / "b"
    write_backup(db, str(folder), ["shop.orders"])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    db.drop_database("shop", cascade=True)
    restore_backup(db, str(folder), ["shop.orders"])
    assert admin_call(db, lambda admin: admin.get_database_info("shop")).database_descriptor == descriptor


def test_a_difference_is_an_error(db: fluss.Database, tmp_path: Path) -> None:
    days = db.create_table("days", "id int, day string", partition_by="day", buckets=2)
    days.add_partition("mon")
    with pytest.raises(FlussError, match=r"lacks the partition \{'day': 'tue'\}"):
        check_partitions(days, [{"day": "mon"}, {"day": "tue"}])
    with pytest.raises(FlussError, match="other number of buckets and comment than asked for"):
        check_same(days.info.descriptor.replace(bucket_count=3, comment="x"), days)
    write_backup(db, str(tmp_path / "b"), ["days"])
    manifest = tmp_path / "b" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["tables"][0]["rows"] = 1  # as if a row were lost
    manifest.write_text(json.dumps(document))
    db.drop_table("days")
    with pytest.raises(FlussError, match="has 0 rows after 0 of the 1 of its backup"):
        restore_backup(db, str(tmp_path / "b"))
