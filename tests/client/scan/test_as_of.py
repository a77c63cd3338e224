# SPDX-License-Identifier: Apache-2.0
"""The rows of a bucket as of every offset of its changelog, also where the server reports no offset of its list."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.client.scan import as_of
from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket


@pytest.mark.parametrize("reported", [True, False])
def test_rows_as_of_every_offset(monkeypatch: pytest.MonkeyPatch, reported: bool) -> None:
    if not reported:
        monkeypatch.setattr(as_of._ListedRows, "offset", None)
    with fluss.LocalServer() as server, fluss.connect(server.bootstrap_servers) as db:
        table = db.create_table("t", "id int, v int", primary_key="id", buckets=1)
        model: dict[int, int] = {}
        states: list[dict[int, int] | None] = [{}]
        for number in range(12):
            key = number % 5
            if number in (6, 9):
                table.delete(key)
                del model[key]
                states.append(dict(model))
                continue
            if key in model:  # an update is two records of the changelog: there is no state between them
                states.append(None)
            table.upsert((key, number))
            model[key] = number
            states.append(dict(model))
        with BlockingClient({"bootstrap.servers": server.bootstrap_servers}) as client:
            bucket = TableBucket(table.info.table_id, 0)
            for offset, expected in enumerate(states):
                if expected is None:
                    continue
                parts = client.rows_as_of(table.info, bucket, offset, ["v", "id"])
                found = [row for part in parts for row in part.batch.to_pylist()]
                assert {row["id"]: row["v"] for row in found} == expected, offset
                assert len(found) == len(expected)
            end = client.offsets(table.info, client.buckets(table.info), fluss.OffsetSpec.latest())
            assert end == {bucket: len(states) - 1}


def test_without_images_before_updates_an_older_state_is_refused() -> None:
    with fluss.LocalServer() as server, fluss.connect(server.bootstrap_servers) as db:
        wal = {"table.changelog.image": "wal"}
        table = db.create_table("t", "id int, v int", primary_key="id", buckets=1, properties=wal)
        table.upsert((1, 1))
        table.upsert((1, 2))
        with BlockingClient({"bootstrap.servers": server.bootstrap_servers}) as client:
            bucket = TableBucket(table.info.table_id, 0)
            assert [p.batch.num_rows for p in client.rows_as_of(table.info, bucket, 2, ["id"])] == [1]
            with pytest.raises(InvalidArgumentError, match=r"no images before updates.*; read the current ones"):
                list(client.rows_as_of(table.info, bucket, 1, ["id"]))


async def _numbers(first: int, cancelled: bool = False) -> AsyncGenerator[int, None]:
    for number in range(first, first + 20):
        yield number
    if cancelled:
        raise asyncio.CancelledError


async def test_a_source_that_is_cancelled_ends_the_read_of_several() -> None:
    found: list[int] = []

    async def read() -> None:
        async for number in as_of.merged([_numbers(0), _numbers(100, cancelled=True), _numbers(200)]):
            found.append(number)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(read(), 5)
    assert set(range(100, 120)) <= set(found)


async def test_a_read_of_several_sources_that_is_left_early_ends() -> None:
    reading = as_of.merged([_numbers(0), _numbers(100), _numbers(200, cancelled=True)])
    assert await anext(reading) == 0
    await asyncio.wait_for(reading.aclose(), 5)


async def test_sources_that_are_cancelled_end_without_a_reader() -> None:
    before = asyncio.all_tasks()
    reading = as_of.merged([_numbers(0), _numbers(100)])
    assert await anext(reading) == 0
    await asyncio.sleep(0.01)  # the queue is full by now
    tasks = asyncio.all_tasks() - before
    for task in tasks:  # as asyncio.run() does when it ends
        task.cancel()
    _, pending = await asyncio.wait(tasks, timeout=5)
    assert not pending

    async def read_on() -> list[int]:
        return [number async for number in reading]

    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(read_on(), 5)
