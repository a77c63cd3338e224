# SPDX-License-Identifier: Apache-2.0
"""Iterables that are slow, or have no end: their rows are written while they come."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait

import pyarrow as pa
import pytest
from tests.faults.proxy import FaultProxy, ProxiedServer, Refusal
from tests.waiting import wait_for, wait_until

import fluss
import fluss.aio
from fluss.client.write import WriteResultHandle
from fluss.db import inputs
from fluss.errors import ErrorCode
from fluss.protocol import apis

PAUSE_S = inputs.CHUNK_SECONDS * 2.5


def test_rows_of_a_slow_iterable_are_there_before_it_ends(db: fluss.Database) -> None:
    table = db.create_table("sensor", "n bigint")
    seen = []

    def measure() -> Iterator[dict[str, int]]:
        for n in range(5):
            yield {"n": n}
            time.sleep(PAUSE_S)
            seen.append(table.count())

    assert table.append(measure()).rows == 5
    assert seen[-1] >= 3


def test_rows_of_a_slow_asynchronous_iterable_are_there_before_it_ends(db: fluss.Database) -> None:
    db.create_table("sensor", "n bigint")

    async def main() -> list[int]:
        seen = []
        async with await fluss.aio.connect(db.address) as other:
            table = await other.table("sensor")

            async def measure() -> AsyncIterator[dict[str, int]]:
                for n in range(5):
                    yield {"n": n}
                    await asyncio.sleep(PAUSE_S)
                    seen.append(await table.count())

            assert (await table.append(measure())).rows == 5
        return seen

    assert asyncio.run(main())[-1] >= 3


def test_rows_that_come_quickly_are_written_many_at_a_time(db: fluss.Database) -> None:
    chunks = [len(chunk) for chunk in inputs.pieces_of(({"n": n} for n in range(40_000)), ["n"])]
    assert sum(chunks) == 40_000
    assert len(chunks) < 40


def test_a_long_write_keeps_no_handle_of_what_is_durable(db: fluss.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inputs, "CHUNK_SECONDS", 0.0)  # a write for each row
    table = db.create_table("sensor", "n bigint")
    kept = []

    def measure() -> Iterator[dict[str, int]]:
        for n in range(1_500):
            if n % 500 == 450:
                wait_for(lambda: table.count() >= n - 10)  # noqa: B023
            if n % 500 == 460:  # the writes after the wait have dropped what was durable before it
                kept.append(sum(isinstance(one, WriteResultHandle) for one in gc.get_objects()))
            yield {"n": n}

    assert table.append(measure()).rows == 1_500
    assert table.count() == 1_500
    assert max(kept) < 100


async def test_a_write_that_is_cancelled_takes_no_more_rows(db: fluss.Database) -> None:
    db.create_table("sensor", "n bigint")
    taken = 0
    released = threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))

    def measure() -> Iterator[dict[str, int]]:
        nonlocal taken
        for taken in range(200_000):
            if taken == 5_000:
                released.wait(30)
            yield {"n": taken}

    async with fluss.aio.connect(db.address) as other:
        table = await other.table("sensor")
        writing = asyncio.ensure_future(table.append(measure()))
        await wait_until(lambda: taken == 5_000)
        writing.cancel()
        await asyncio.wait([writing])
        released.set()
        await asyncio.to_thread(lambda: None)  # after the thread that takes the rows has ended
        assert writing.cancelled()
        assert taken < 100_000


@pytest.fixture(scope="module")
def proxy() -> Iterator[FaultProxy]:
    with FaultProxy() as proxy, ProxiedServer(proxy):
        yield proxy


def test_one_row_waits_for_room_in_the_buffer_as_many_do(proxy: FaultProxy) -> None:
    with fluss.connect(proxy.address, options={"writer.buffer.memory-size": "10kb"}) as db:
        table = db.create_table("sensor", "n bigint")
        table.append({"n": 0})
        memory = db._core.connection._cluster.sender.memory
        proxy.stall()
        with ThreadPoolExecutor(2) as pool:
            many = pool.submit(table.append, pa.table({"n": range(10_000)}))
            wait_for(lambda: memory.used_bytes > 10_240 or many.done())
            one = pool.submit(table.append, {"n": 1})
            wait([one], 0.2)
            proxy.resume()
            assert (many.result(30).rows, one.result(30).rows) == (10_000, 1)


def test_an_endless_iterable_ends_with_the_first_write_that_fails(proxy: FaultProxy) -> None:
    with fluss.connect(proxy.address) as db:
        table = db.create_table("failing", "n bigint")
        refusal = Refusal(ErrorCode.AUTHORIZATION_EXCEPTION, "you may not write")
        proxy.on_request = lambda api_key, body: refusal if api_key == apis.PRODUCE_LOG.key else None
        with pytest.raises(fluss.FlussError, match="you may not write"):
            table.append({"n": n} for n in itertools.count())

        def broken() -> Iterator[dict[str, int]]:
            yield {"n": 1}
            raise LookupError("no more")

        with pytest.raises(fluss.FlussError, match=r"you may not write.*0 of 1 rows") as caught:
            table.append(broken())
        assert isinstance(caught.value.__cause__, LookupError)
        proxy.calm()
