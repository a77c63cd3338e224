# SPDX-License-Identifier: Apache-2.0
"""The changelog that the rows of a bucket are rebuilt from never expires, however old it is."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.server.kv.test_snapshots import TTL, a_table, snapshots_of, take
from tests.server.log_support import FakeClock
from tests.server.test_handlers_kv import Table

from fluss.metadata import TableBucket
from fluss.server.log.tablet import LogTablet
from fluss.server.server import Server

DAY_MS = 24 * 3_600_000
ROWS = 200


async def put_each(table: Table, text: str) -> None:
    """Give every row a text, in batches that fill several segments."""
    for first in range(0, ROWS, 20):
        await table.put([(i, f"{text}-{i}" * 5, i / 2) for i in range(first, first + 20)])


async def by_time(server: Server) -> None:
    await server.tablets.expire_segments()


async def to_remote(server: Server) -> None:
    for _ in range(3):  # a round copies some segments, the next may delete those
        await server.tablets.move_to_remote()
        await server.tablets.expire_segments()


@pytest.mark.parametrize("retained", [1, 2])
@pytest.mark.parametrize("roll_active", ["false", "true"])
@pytest.mark.parametrize("expire", [by_time, to_remote])
async def test_rows_are_rebuilt_after_everything_that_may_expire_has_expired(
    tmp_path: Path, expire: Callable[[Server], Awaitable[None]], roll_active: str, retained: int
) -> None:
    clock = FakeClock()
    options: dict[str, object] = {"log_retention_roll__active__segment_enabled": roll_active}
    if expire is to_remote:
        options["remote_data_dir"] = str(tmp_path / "remote")

    async def expired(server: Server, log: LogTablet) -> None:
        clock.time_ms += DAY_MS
        await expire(server)
        kept = [snapshot.log_offset for snapshot in snapshots_of(server).snapshots]
        assert log.start_offset <= min(kept, default=0), "readers of the older snapshot need the changelog after it"
        await server.tablets.checkpoint()  # so that no file changes while the folder is copied

    async def check_rebuilt(text: str) -> None:
        killed = tmp_path / "killed"
        shutil.copytree(tmp_path / "data", killed)
        for state in (killed / "tables").rglob("kv-0"):
            shutil.rmtree(state)
        async with a_table(killed, clock=clock, **options) as (_, table):
            expected = [(i, f"{text}-{i}" * 5, i / 2) for i in range(ROWS)]
            assert await table.lookup(*range(ROWS)) == expected
        shutil.rmtree(killed)

    properties = {**TTL, "table.log.tiered.local-segments": "1"}
    async with a_table(tmp_path / "data", clock=clock, properties=properties, **options) as (server, table):
        log = server.tablets.tablet(TableBucket(table.info.table_id, 0))
        await put_each(table, "first")
        await expired(server, log)
        assert log.start_offset == 0
        await check_rebuilt("first")
        for text in ("second", "third", "fourth"):
            await take(server, retained)
            await put_each(table, text)
            await expired(server, log)
            assert log.start_offset > 0
            await check_rebuilt(text)
        assert len(snapshots_of(server).snapshots) == retained
