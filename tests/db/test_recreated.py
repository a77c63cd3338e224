# SPDX-License-Identifier: Apache-2.0
"""Tables that were dropped and created again: a handle of the one before is refused, and what it would have done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import fluss
from fluss.client.admin import FlussAdmin
from fluss.client.connection import FlussTable
from fluss.db.table_info import TableDescription
from fluss.metadata import PartitionInfo

READS: dict[str, Callable[[fluss.Table[Any]], object]] = {
    "to_arrow": lambda table: table.to_arrow(),
    "where": lambda table: table.to_pylist(where="v = 'x'"),
    "key": lambda table: table.to_pylist(where="day = 'mon' and id = 1"),
    "limit": lambda table: table.head(1),
    "past": lambda table: table.to_arrow(at="0s"),
    "as_of": lambda table: table.as_of("0s").to_arrow(),
    "batches": lambda table: list(table.batches()),
    "count": lambda table: table.count(),
    "count_where": lambda table: table.count(where="v = 'x'"),
    "len": len,
    "dataset": lambda table: table.dataset().to_table(),
    "dataset_count": lambda table: table.dataset().count_rows(),
    "reader": lambda table: table.to_reader().read_all(),
    "follow": lambda table: list(table.follow(stop_at_end=True)),
    "changes": lambda table: list(table.changes()),
    "group": lambda table: list(table.follow(group="again_of_recreated", timeout=1)),
    "partitions": lambda table: table.partitions(),
}
CHANGES: dict[str, Callable[[fluss.Table[Any]], object]] = {
    "add_column": lambda table: table.add_column("w", "int"),
    "set_properties": lambda table: table.set_properties({"table.log.ttl": "3d"}),
    "add_partition": lambda table: table.add_partition("tue"),
    "drop_partition": lambda table: table.drop_partition("mon"),
}


@pytest.fixture(params=["log", "keyed"])
def stale(db: fluss.Database, request: pytest.FixtureRequest) -> fluss.Table[Any]:
    def create() -> fluss.Table[Any]:
        key = ["id", "day"] if request.param == "keyed" else None
        return db.create_table("t", "id int, day string, v string", primary_key=key, partition_by="day", buckets=1)

    table = create()
    table.to_arrow()
    db.drop_table("t")
    again = create()
    (again.upsert if request.param == "keyed" else again.append)([(1, "mon", "x")])
    return table


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reads_are_refused(stale: fluss.Table[Any], read: Callable[[fluss.Table[Any]], object]) -> None:
    with pytest.raises(fluss.TableNotExistError, match="dropped and created again"):
        read(stale)
    stale.refresh()  # takes the new one
    assert len(stale) == 1


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changes_are_refused(
    db: fluss.Database, stale: fluss.Table[Any], change: Callable[[fluss.Table[Any]], object]
) -> None:
    before = db.table("t")
    with pytest.raises(fluss.TableNotExistError, match="dropped and created again"):
        change(stale)
    table = db.table("t")
    assert (table.columns, table.info.properties) == (before.columns, before.info.properties)
    assert [found.partition_name for found in table.partitions()] == ["mon"]


def test_partitions_are_asked_for_beside_the_table(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    table = db.create_table("t", "id int, day string", partition_by="day")
    table.add_partition("mon")
    asked = asyncio.Event()
    get_same, list_partitions = TableDescription._get_same, FlussAdmin.list_partition_infos

    async def get_same_later(self: TableDescription[Any]) -> FlussTable:
        await asyncio.wait_for(asked.wait(), 5)
        return await get_same(self)

    async def listed(self: FlussAdmin, *arguments: Any) -> list[PartitionInfo]:
        asked.set()
        return await list_partitions(self, *arguments)

    monkeypatch.setattr(TableDescription, "_get_same", get_same_later)
    monkeypatch.setattr(FlussAdmin, "list_partition_infos", listed)
    assert [found.partition_name for found in table.partitions()] == ["mon"]
