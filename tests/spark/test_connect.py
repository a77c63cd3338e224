# SPDX-License-Identifier: Apache-2.0
"""The connection of a process."""

from __future__ import annotations

import gc
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.client.scan import decode
from fluss.spark import connect


def run_as(main: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("__main__")
    module.__spec__ = None if main is None else ModuleSpec(main, None)
    monkeypatch.setitem(sys.modules, "__main__", module)
    monkeypatch.setattr(decode, "_ahead", True)  # restored after the test


@pytest.mark.parametrize(
    ("main", "frozen"), [("pyspark.daemon", 1), ("fluss.spark.daemon", 1), ("pytest", 0), (None, 0)]
)
def test_only_workers_of_spark_freeze_their_loaded_modules(
    server: fluss.LocalServer, monkeypatch: pytest.MonkeyPatch, main: str | None, frozen: int
) -> None:
    """Once, with its first connection: Spark has it collect garbage after every task."""
    run_as(main, monkeypatch)
    calls: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    options = {"bootstrap.servers": server.bootstrap_servers, "writer.retries": 1_000 + len(str(main))}
    client = connect.client_of(options)
    try:
        assert connect.client_of(options) is client
        assert len(calls) == frozen
        assert decode._ahead is not bool(frozen)
    finally:
        client.close()


@pytest.mark.parametrize(("main", "here"), [("fluss.spark.daemon", True), ("pytest", False)])
def test_a_task_that_reads_starts_no_thread(
    server: fluss.LocalServer, monkeypatch: pytest.MonkeyPatch, main: str, here: bool
) -> None:
    run_as(main, monkeypatch)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    options = {"bootstrap.servers": server.bootstrap_servers, "writer.retries": 2_000}
    before = set(threading.enumerate())
    client = connect.reader_of(options)
    try:
        assert connect.reader_of(options) is client
        names = client.run(client.admin.list_databases())
        assert "fluss" in names
        new = [thread.name for thread in threading.enumerate() if thread not in before]
        assert new == ([] if here else ["fluss-blocking"])
    finally:
        client.close()
        assert client.closed
        client.close()


def test_a_connection_whose_loop_stands_still_meanwhile_outlives_a_new_start_of_the_server(tmp_path: Path) -> None:
    """No thread notices the end of the old connection before the next task."""
    with fluss.LocalServer(tmp_path) as server:
        port = int(server.bootstrap_servers.rpartition(":")[2])
        client = BlockingClient({"bootstrap.servers": server.bootstrap_servers}, here=True)
        path = fluss.TablePath("fluss", "t")
        schema = fluss.Schema(pa.schema([("id", pa.int64())]))
        client.run(client.admin.create_table(path, fluss.TableDescriptor(schema, bucket_count=1)))
        table = client.table(path)
        writer = client.call(lambda: table.new_append().create_writer())
        for i in range(100):
            writer.append({"id": i})
        client.run(writer.flush())
        assert ids(client, path) == list(range(100))
    with fluss.LocalServer(tmp_path, port=port):
        assert ids(client, path) == list(range(100))
        client.close()


def ids(client: BlockingClient, path: fluss.TablePath) -> list[int]:
    table = client.table(path)
    bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
    scan = client.call(table.new_scan)
    return [i for found in client.iterate(scan.read_batches({bucket: 0})) for i in found.batch.column(0).to_pylist()]
