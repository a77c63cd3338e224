# SPDX-License-Identifier: Apache-2.0
"""Feeds that browsers share."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from fluss.console.feeds import SharedFeed
from fluss.errors import TableNotExistError


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

    ended = asyncio.Event()
    feed = SharedFeed(events, ended.set)
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
    assert ended.is_set()


async def test_an_error_reaches_all_browsers() -> None:
    async def events() -> AsyncGenerator[dict[str, Any], None]:
        yield {"columns": []}
        raise TableNotExistError("the table is gone")

    feed = SharedFeed(events, lambda: None)
    with pytest.raises(TableNotExistError):
        async for _ in feed.subscribe():
            pass
    assert feed.ended
