# SPDX-License-Identifier: Apache-2.0
"""Feeds that browsers share, and lists of rows that are read page by page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pyarrow as pa
import pytest

from fluss.console.clients import CURSOR_IDLE_S, CURSORS_MAX, Client
from fluss.console.feeds import SharedFeed
from fluss.console.settings import SQL_SESSIONS_OF_USER_MAX, Settings
from fluss.console.sql import SqlSessions
from fluss.errors import InvalidArgumentError, TableNotExistError
from fluss.net.deadline import wait_for


def test_browsers_share_one_reader_and_a_slow_one_delays_none() -> None:
    asyncio.run(_share())


async def _share() -> None:
    opened = 0
    go = asyncio.Event()

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        nonlocal opened
        opened += 1
        yield {"columns": ["a"]}
        await go.wait()
        for number in range(100):
            yield {"changes": [number], "count": 1, "skipped": 0}
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    feed = SharedFeed(events)
    quick, slow = feed.subscribe(), feed.subscribe()
    assert json.loads(await anext(quick)) == {"columns": ["a"]}
    assert json.loads(await anext(slow)) == {"columns": ["a"]}
    go.set()
    seen = [json.loads(await anext(quick))["changes"][0] for _ in range(100)]
    assert seen == list(range(100))
    counted, shown = 0, []
    while counted < 100:
        event = json.loads(await anext(slow))
        counted += event["count"]
        shown += event["changes"]
    assert opened == 1
    assert shown[-1] == 99
    assert len(shown) < 100
    await quick.aclose()
    assert not feed.ended
    await slow.aclose()
    assert feed.ended


async def test_a_feed_that_ends_late_leaves_the_next_one_shared() -> None:
    opened = 0
    go = asyncio.Event()

    async def events() -> AsyncGenerator[dict[str, Any], None]:
        nonlocal opened
        opened += 1
        try:
            yield {"columns": []}
            await asyncio.Event().wait()
        finally:
            await go.wait()

    client = Client(Settings(""), None, None)
    first = client.shared_feed("orders", events)
    await anext(first)
    closing = asyncio.create_task(first.aclose())
    await asyncio.sleep(0)
    second = client.shared_feed("orders", events)
    await anext(second)
    go.set()
    await closing
    third = client.shared_feed("orders", events)
    await anext(third)
    assert opened == 2
    await client.close()
    assert [one async for one in second] == [one async for one in third] == []


async def test_a_list_that_is_read_for_long_holds_up_no_other() -> None:
    go = asyncio.Event()

    async def batches() -> AsyncGenerator[pa.RecordBatch, None]:
        await go.wait()
        yield pa.record_batch({"n": [1, 2]})

    client = Client(Settings(""), None, None)
    cursor = await client.open_cursor(batches())
    page = asyncio.create_task(cursor.page(1))
    await asyncio.sleep(0)
    cursor.used_at -= 2 * CURSOR_IDLE_S
    await wait_for(client.close_idle(), 10)
    for _ in range(CURSORS_MAX):
        await wait_for(client.open_cursor(batches()), 10)
    go.set()
    assert [one.num_rows for one in (await page)[0]] == [1]
    await client.close_idle()
    assert (await client.cursor(cursor.id).page(1))[1] is False
    await client.close()


async def test_lists_that_are_all_being_read_refuse_one_more() -> None:
    async def batches() -> AsyncGenerator[pa.RecordBatch, None]:
        await asyncio.Event().wait()
        yield

    client = Client(Settings(""), None, None)
    pages = [asyncio.create_task((await client.open_cursor(batches())).page(1)) for _ in range(CURSORS_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(InvalidArgumentError, match="being read"):
        await client.open_cursor(batches())
    await wait_for(client.close(), 10)
    for page in pages:
        page.cancel()
    await asyncio.wait(pages)


async def test_requests_of_a_tab_that_wait_for_room_get_one_sql_session() -> None:
    client, sessions = Client(Settings(""), None, None), SqlSessions()
    for number in range(SQL_SESSIONS_OF_USER_MAX):
        await sessions._session(client, f"tab {number}")
    first, second = await asyncio.gather(sessions._session(client, "new"), sessions._session(client, "new"))
    assert first is second
    await sessions.close()


async def test_an_error_reaches_all_browsers() -> None:
    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {"columns": []}
        raise TableNotExistError("the table is gone")

    feed = SharedFeed(events)
    with pytest.raises(TableNotExistError):
        async for _ in feed.subscribe():
            pass
    assert feed.ended
