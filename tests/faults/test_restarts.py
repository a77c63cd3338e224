# SPDX-License-Identifier: Apache-2.0
"""The server is killed and started again on the same port, in the middle of writes and scans."""

from __future__ import annotations

import asyncio
import contextlib

import pyarrow as pa
import pytest
from tests.ports import free_port

import fluss
import fluss.aio
from fluss.server.local import LocalServer


@pytest.fixture
def server(tmp_path):
    port = free_port()
    with LocalServer(tmp_path / "data", port=port) as server:
        yield server


async def restart(server):
    """As a crash does, with no time to say goodbye."""
    await asyncio.to_thread(server.crash)
    await asyncio.sleep(0.1)
    await asyncio.to_thread(server.start)


@pytest.fixture
def connected(server):
    @contextlib.asynccontextmanager
    async def open_table():
        config = fluss.Config(
            {
                "bootstrap.servers": server.bootstrap_servers,
                "connect-timeout": 3000,
                "request-timeout": 5000,
                "writer.batch-timeout-ms": 5,
                "writer.batch-size": 4000,
            }
        )
        async with await fluss.aio.FlussConnection.create(config) as conn:
            admin = conn.get_admin()
            await admin.create_database("d")
            path = fluss.TablePath("d", "t")
            schema = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]))
            await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=2))
            yield conn, await conn.get_table(path)

    return open_table


@pytest.mark.parametrize("rounds", [1, pytest.param(6, marks=pytest.mark.slow)])
async def test_appends_and_scans_outlive_the_server(server, connected, rounds):
    async with connected() as (_, table):
        writer = table.new_append().create_writer()
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
        written, seen = [], []
        stop = asyncio.Event()

        async def write():
            while not stop.is_set():
                for _ in range(20):
                    writer.append((len(written), "x" * 20))
                    written.append(len(written))
                await asyncio.sleep(0.003)
            await writer.flush()

        async def read():
            while not (writing.done() and len(seen) >= len(written)):
                seen.extend(record.row["id"] for record in await scanner.poll(200))

        writing = asyncio.ensure_future(write())
        reading = asyncio.ensure_future(read())
        for _ in range(rounds):
            await asyncio.sleep(0.4)
            await restart(server)
            await asyncio.sleep(0.4)
        stop.set()
        await writing
        await asyncio.wait_for(reading, 30)
        await scanner.close()
        assert sorted(seen) == written, "every row once, as the running scan saw it"
        batches = await table.new_scan().create_record_batch_log_scanner()
        batches.subscribe_buckets({0: 0, 1: 0})
        stored = sorted((await batches.to_arrow()).column("id").to_pylist())
        await batches.close()
        assert stored == written, "every row once, as it is stored"
