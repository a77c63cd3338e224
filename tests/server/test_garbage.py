# SPDX-License-Identifier: Apache-2.0
"""The garbage collector never searches much at once, because what survives is frozen; so nothing may depend on it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.log_support import LogHarness, make_batch, run

from fluss.server.config import ServerConfig
from fluss.server.server import Server


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_no_search_looks_at_everything() -> None:
    code = """
import gc
from fluss.server.garbage import short_searches

searched = []
before = gc.get_threshold()
gc.callbacks.append(lambda phase, info: searched.append(len(gc.get_objects())) if phase == "start" else None)
with short_searches():
    searched.clear()
    kept = [[number] for number in range(300_000)]
    assert len(searched) > 10, searched
    assert max(searched) < 40_000, max(searched)
    assert gc.get_freeze_count() > 250_000
assert (gc.get_threshold(), gc.get_freeze_count(), len(gc.callbacks)) == (before, 0, 1)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_log_is_freed_without_the_collector(tmp_path: Path, no_collector: None) -> None:
    harness = LogHarness(tmp_path / "log")
    harness.write(make_batch(0))
    log = weakref.ref(harness.log)
    harness.log.forget()
    harness.executor.shutdown()
    harness.dirty.clear()
    del harness
    assert log() is None


CLIENT = """
import asyncio, sys
import fluss.aio as fluss, pyarrow as pa

async def use():
    async with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": sys.argv[1]})) as connection:
        admin, path = connection.get_admin(), fluss.TablePath("fluss", "t")
        schema = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_keys=["id"])
        await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        try:
            await connection.get_table(fluss.TablePath("fluss", "missing"))
        except fluss.FlussError:
            pass
        table = await connection.get_table(path)
        async with table.new_upsert().create_writer() as writer:
            writer.upsert((1, "a"))
        await table.new_lookup().create_lookuper().lookup({"id": 1})
        async with await table.new_scan().create_record_batch_log_scanner() as scanner:
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            await scanner.to_arrow()
        await admin.drop_table(path)

for _ in range(int(sys.argv[2])):
    asyncio.run(use())
"""


def test_connections_requests_and_dropped_tables_leave_no_circles(tmp_path: Path, no_collector: None) -> None:
    async def work() -> None:
        server = Server(ServerConfig({"data.dir": str(tmp_path), "bind.listeners": "FLUSS://127.0.0.1:0"}))
        await server.start()
        [listener] = server.listeners.values()
        address = listener.address.rpartition("//")[2]

        async def use(times: int) -> None:
            client = await asyncio.create_subprocess_exec(sys.executable, "-c", CLIENT, address, str(times))
            assert await asyncio.wait_for(client.wait(), 60) == 0
            await asyncio.sleep(0.3)

        await use(1)
        gc.collect()
        await use(5)
        assert gc.collect() < 50  # each of the five would leave that much alone, if it left something
        await server.stop()

    run(work(), seconds=120)
