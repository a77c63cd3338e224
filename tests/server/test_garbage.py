# SPDX-License-Identifier: Apache-2.0
"""The garbage collector never searches much at once, because what survives is frozen; so nothing may depend on it."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.server.log_support import OPENED, Client, LogHarness, connected, make_batch, run, running_server

from fluss.metadata import TableBucket
from fluss.server.config import ServerConfig
from fluss.server.log.files import DamagedLogError
from fluss.server.log.tablet import LogTablet, Opened
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
    harness.log.drop()
    harness.executor.shutdown()
    harness.dirty.clear()
    OPENED.remove(harness)
    del harness
    assert log() is None


async def test_a_damaged_log_keeps_nothing_of_the_requests_it_refuses(server: Server, client: Client) -> None:
    table_id = await client.create_table()
    log = server.tablets.tablet(TableBucket(table_id, 0))
    log.put_out_of_service(DamagedLogError("a file is gone"))
    for _ in range(20):
        assert "a file is gone" in (await client.produce(table_id, make_batch(0))).error_message
        assert "a file is gone" in (await client.fetch(table_id, 0)).error_message
    assert list(traceback.walk_tb(log.damage.__traceback__)) == []


async def test_the_traceback_of_an_unexpected_error_is_logged_before_it_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def open_active(self: LogTablet) -> Opened:
        raise ZeroDivisionError

    monkeypatch.setattr(LogTablet, "open_active", open_active)

    async with running_server(tmp_path) as server, connected(server) as client:
        table_id = await client.create_table()
        assert "cannot open a log file" in (await client.produce(table_id, make_batch(0))).error_message
    (logged,) = [record.exc_info for record in caplog.records if record.exc_info]
    assert "in open_active" in "".join(traceback.format_exception(*logged))


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

REFUSED = """
import asyncio, contextlib, sys
import fluss.aio as fluss, pyarrow as pa
from fluss.net.connection import Connection
from fluss.protocol import apis, messages as pb

async def refused(work):
    with contextlib.suppress(fluss.FlussError):
        await work

async def use(number):
    config = fluss.Config({"bootstrap.servers": sys.argv[1], "writer.retries": 0, "request-timeout": 1000})
    async with await fluss.FlussConnection.create(config) as connection:
        admin, path = connection.get_admin(), fluss.TablePath("fluss", f"t{number}")
        await refused(admin.create_database("fluss"))
        await refused(admin.drop_table(fluss.TablePath("fluss", "missing")))
        await refused(admin.drop_partition(fluss.TablePath("fluss", "missing"), {"a": "b"}))
        schema = fluss.Schema(pa.schema([("id", pa.int64()), ("name", pa.string())]), primary_keys=["id"])
        await admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        table_id = (await admin.get_table_info(path)).table_id
        host, _, port = sys.argv[1].rpartition(":")
        raw = await Connection.open(
            host, int(port), software_name="x", connect_timeout_ms=5000, request_timeout_ms=5000, credentials=None,
            max_frame_bytes=2**20, expected_server_type=None,
        )
        put = pb.PutKvRequest(acks=-1, table_id=table_id, timeout_ms=1000)
        put.buckets_req.add(bucket_id=0, records=b"no batch" * 1000)
        await raw.call(apis.PUT_KV, put)
        produce = pb.ProduceLogRequest(acks=-1, table_id=table_id, timeout_ms=1000)
        produce.buckets_req.add(bucket_id=0, records=b"no batch" * 1000)
        await refused(raw.call(apis.PRODUCE_LOG, produce))
        await refused(raw.call(apis.SCAN_KV, pb.ScanKvRequest(scanner_id=b"x", call_seq_id=1, batch_size_bytes=1)))
        await raw.close()
        table = await connection.get_table(path)
        writer = table.new_upsert().create_writer()
        for key in range(200):
            writer.upsert((key, "b" * 1000))
        # The table goes while its first rows are written.
        await asyncio.gather(refused(writer.flush()), admin.drop_table(path))

for number in range(int(sys.argv[2])):
    asyncio.run(use(f"{sys.argv[2]}_{number}"))
"""


@pytest.mark.parametrize("program", [CLIENT, REFUSED], ids=["served", "refused"])
def test_connections_and_dropped_tables_leave_no_circles(tmp_path: Path, no_collector: None, program: str) -> None:
    async def work() -> None:
        server = Server(ServerConfig({"data.dir": str(tmp_path), "bind.listeners": "FLUSS://127.0.0.1:0"}))
        await server.start()
        [listener] = server.listeners.values()
        address = listener.address.rpartition("//")[2]

        async def use(times: int) -> None:
            client = await asyncio.create_subprocess_exec(sys.executable, "-c", program, address, str(times))
            assert await asyncio.wait_for(client.wait(), 60) == 0
            await asyncio.sleep(0.3)

        await use(1)
        gc.collect()
        await use(5)
        assert gc.collect() < 50  # each of the five would leave that much alone, if it left something
        await server.stop()

    run(work(), seconds=120)
