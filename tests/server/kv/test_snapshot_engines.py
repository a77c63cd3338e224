# SPDX-License-Identifier: Apache-2.0
"""Merge engines and writers go on after a recovery from a snapshot and the changelog behind it, as if none had been."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.server.kv.support import keyed_schema
from tests.server.kv.test_snapshots import MINUTE_MS, TTL, a_table, lose_state, snapshots_of, take
from tests.server.log_support import FakeClock
from tests.server.test_handlers_kv import Table

from fluss.errors import ErrorCode
from fluss.metadata import AggFunction, BigIntType, Column, Schema, StringType, TableBucket
from fluss.server.server import Server

PLAIN = keyed_schema("id", id=BigIntType(), n=BigIntType(), text=StringType())
SUMS = Schema.of(
    [
        Column("id", BigIntType(nullable=False)),
        Column("n", BigIntType(), agg_function=AggFunction("sum", {})),
        Column("text", StringType(), agg_function=AggFunction("last_value", {})),
    ],
    primary_key=("id",),
)
FIRST_ROW = {"table.merge-engine": "first_row"}
VERSIONED = {"table.merge-engine": "versioned", "table.merge-engine.versioned.ver-column": "n"}
AGGREGATION = {"table.merge-engine": "aggregation"}
WRITER = 77
RECOVERIES = ("stopped", "killed", "wiped")
"""After a clean stop; as a kill leaves the folder; and with the state on disk gone as well."""


async def expire_history(server: Server, table: Table, clock: FakeClock) -> None:
    """Write more rows than a segment holds, take a snapshot, and let the changelog before it expire."""
    for first in range(1_000, 1_200, 10):
        await table.put([(number, 1, "z" * 100) for number in range(first, first + 10)])
    await take(server)
    clock.time_ms += 2 * MINUTE_MS
    await server.tablets.expire_segments()
    log = server.tablets.tablet(TableBucket(table.info.table_id, 0))
    assert 0 < log.start_offset <= snapshots_of(server).log_offset


class Scenario:
    """A table whose rows were written before a snapshot (`before`) and behind it (`after`), then recovered."""

    def __init__(self, folder: Path, recovery: str, schema: Schema, properties: dict[str, str]) -> None:
        self._folder, self._recovery = folder, recovery
        self._schema, self._properties = schema, {**TTL, **properties}
        self._clock = FakeClock()

    async def write(self, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> None:
        """Each dict has the arguments of one put."""
        data = self._folder / "data"
        async with a_table(data, self._schema, clock=self._clock, properties=self._properties) as (server, table):
            for put in before:
                assert not (await table.put(**put)).error_code
            await expire_history(server, table, self._clock)
            for put in after:
                assert not (await table.put(**put)).error_code
            await server.tablets.checkpoint()  # so that no file changes while the folder is copied
            shutil.copytree(data, self._folder / "killed")
        shutil.copytree(data, self._folder / "stopped")
        shutil.copytree(data, self._folder / "wiped")
        lose_state(self._folder / "wiped")

    @asynccontextmanager
    async def recovered(self) -> AsyncIterator[Table]:
        async with a_table(self._folder / self._recovery, clock=self._clock) as (_, table):
            yield table


@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_the_first_row_stays_the_first(tmp_path: Path, recovery: str) -> None:
    scenario = Scenario(tmp_path, recovery, PLAIN, FIRST_ROW)
    await scenario.write(
        before=[{"writes": [(1, 1, "first"), (2, 1, "first")]}],
        after=[{"writes": [(1, 2, "second"), (3, 1, "first")]}],
    )
    async with scenario.recovered() as table:
        await table.put([(1, 9, "late"), (2, 9, "late"), (3, 9, "late"), (4, 1, "first")])
        assert await table.lookup(1, 2, 3, 4) == [(key, 1, "first") for key in (1, 2, 3, 4)]


@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_an_older_version_never_replaces_a_newer_one(tmp_path: Path, recovery: str) -> None:
    scenario = Scenario(tmp_path, recovery, PLAIN, VERSIONED)
    await scenario.write(
        before=[{"writes": [(1, 5, "five"), (2, 5, "five")]}],
        after=[{"writes": [(1, 7, "seven"), (2, 3, "three"), (3, 4, "four")]}],
    )
    async with scenario.recovered() as table:
        await table.put([(1, 6, "six"), (2, 4, "four"), (3, 5, "five")])
        assert await table.lookup(1, 2, 3) == [(1, 7, "seven"), (2, 5, "five"), (3, 5, "five")]


@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_nothing_is_added_twice(tmp_path: Path, recovery: str) -> None:
    """The changelog behind the snapshot holds sums, not what was added."""
    scenario = Scenario(tmp_path, recovery, SUMS, AGGREGATION)
    await scenario.write(
        before=[{"writes": [(1, 10, "a"), (2, 1, "a")]}, {"writes": [(1, 20, "b")]}],
        after=[{"writes": [(1, 300, "c"), (3, 5, "c")]}, {"writes": [(1, 4_000, "d")]}],
    )
    async with scenario.recovered() as table:
        await table.put([(1, 50_000, "e"), (2, 1, "e"), (3, 5, "e")])
        assert await table.lookup(1, 2, 3) == [(1, 54_330, "e"), (2, 2, "e"), (3, 10, "e")]


@pytest.mark.parametrize("recovery", RECOVERIES)
async def test_writers_are_still_known(tmp_path: Path, recovery: str) -> None:
    """One that got no answer sends its batch again: whether it stands before the snapshot or behind it, once counts."""

    def put(sequence: int, number: int) -> dict[str, Any]:
        return {"writes": [(1, number, f"batch {sequence}")], "writer_id": WRITER, "sequence": sequence}

    scenario = Scenario(tmp_path, recovery, SUMS, AGGREGATION)
    await scenario.write(before=[put(0, 1), put(1, 10)], after=[put(2, 100)])
    async with scenario.recovered() as table:
        for repeated in (put(1, 10), put(2, 100)):
            assert not (await table.put(**repeated)).error_code
        assert await table.lookup(1) == [(1, 111, "batch 2")]
        gap = await table.put(**put(5, 10_000))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_EXCEPTION
        assert not (await table.put(**put(3, 1_000))).error_code
        assert await table.lookup(1) == [(1, 1_111, "batch 3")]
