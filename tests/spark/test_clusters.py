# SPDX-License-Identifier: Apache-2.0
"""The same job on a standalone cluster and over Spark Connect, both started from the PySpark distribution.

What `docs/spark.md` shows of each place is run there too, as a program of its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from tests.docs.blocks import ROOT, read_blocks
from tests.ports import free_port
from tests.spark import cluster_job

import fluss
from fluss.client.blocking_client import BlockingClient
from fluss.errors import MissingDependencyError
from fluss.metadata import Schema, TableDescriptor, TablePath
from fluss.spark import bridge_jar, ensure_java
from fluss.spark.pipelines import check_installed, write_project
from fluss.spark.presets import CATALOG

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

JOB = Path(cluster_job.__file__)
BIN = Path(pyspark.__file__).parent / "bin"
START_SECONDS_MAX = 180.0
CONNECT = "spark-submit --class org.apache.spark.sql.connect.service.SparkConnectServer"
CONNECT_PACKAGES = ("grpc", "grpc_status", "google.rpc", "zstandard")


class Processes:
    """Java processes of a cluster; each is ended with all that it started itself."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        ensure_java()
        environment = {
            **os.environ,
            "SPARK_NO_DAEMONIZE": "1",
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "512m",
            "PYSPARK_PYTHON": sys.executable,
            "PATH": os.pathsep.join([str(BIN), str(Path(sys.executable).parent), os.environ["PATH"]]),
        }
        with open(self.folder / "cluster.log", "ab") as log:
            process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
            )
        self._running.append(process)
        return process

    def wait_for_port(self, process: subprocess.Popen[bytes], port: int) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            assert process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.1)

    def log(self) -> str:
        return (self.folder / "cluster.log").read_text(errors="replace")[-4000:]

    def end(self) -> None:
        for process in reversed(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
        for process in reversed(self._running):
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path)
    yield made
    made.end()


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A server with the tables of the job."""
    with fluss.LocalServer() as server:
        client = BlockingClient({"bootstrap.servers": server.bootstrap_servers})
        log = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("note", pa.string())])
        totals = pa.schema([pa.field("customer", pa.int64(), nullable=False), ("orders", pa.int64())])
        for name, schema in (
            ("source", Schema(log)),
            ("target", Schema(log)),
            ("totals", Schema(totals, primary_keys=["customer"])),
        ):
            descriptor = TableDescriptor(schema, bucket_count=2)
            client.run(client.admin.create_table(TablePath("fluss", name), descriptor))
        fill_page_table(client)
        client.close()
        yield server.bootstrap_servers


def fill_page_table(client: BlockingClient) -> None:
    """The table that the page reads."""
    path = TablePath("shop", "orders")
    schema = pa.schema([("id", pa.int64())])
    client.run(client.admin.create_database("shop", None, True))
    client.run(client.admin.create_table(path, TableDescriptor(Schema(schema), bucket_count=2)))
    table = client.table(path)
    writer = client.call(lambda: table.new_append().create_writer())
    writer.write_arrow(pa.table({"id": range(11)}, schema=schema))
    client.run(writer.flush())


def run_page_block(master: str, bootstrap: str, folder: Path) -> None:
    """Run what the page shows for this kind of master, with the addresses of the test."""
    kind = master.partition("//")[0].partition("[")[0]
    [block] = [
        block
        for block in read_blocks(ROOT / "docs" / "spark.md")
        if block.needs == "cluster" and re.search(rf'"{kind}[\[/]', block.text)
    ]
    text = re.sub(rf'"{kind}[\[/][^"]*"', f'"{master}"', block.text).replace("localhost:9123", bootstrap)
    (folder / "page.py").write_text(text + "spark.stop()\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "page.py"], capture_output=True, text=True, timeout=300, cwd=folder, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "11 orders"


def run_job(master: str, bootstrap: str, processes: Processes) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(JOB), master, bootstrap, str(processes.folder / "checkpoint")],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=processes.folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:] + processes.log()
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any], *, catalog: bool = True) -> None:
    rows = cluster_job.ROWS
    assert found["ended"]
    assert found["batches"] == 2
    assert found["source"] == rows
    assert found["filtered"] == 10
    totals = [len(range(i, rows, 7)) for i in range(7)]
    assert found["totals"] == [[i, count] for i, count in enumerate(totals)]
    changed = [[0, totals[0] + 1000], [1, totals[1] + 1000], [3, totals[3]], [4, totals[4]], [6, -1], [7, 0], [8, 0]]
    assert found["changed"] == (changed if catalog else None)
    assert found["target"] == list(range(rows))
    assert "fluss.nothing" in found["refused"]
    assert "Traceback" not in found["refused"]


def start_standalone(processes: Processes) -> tuple[str, list[Path]]:
    """A master and two workers; returns the address of the master, and the folders of the workers."""
    port = free_port()
    address = f"spark://127.0.0.1:{port}"
    loopback = ("--host", "127.0.0.1", "--webui-port", "0")
    master = processes.start("spark-class", "org.apache.spark.deploy.master.Master", *loopback, "--port", str(port))
    processes.wait_for_port(master, port)
    worker = ("spark-class", "org.apache.spark.deploy.worker.Worker", *loopback, "--cores", "1", "--memory", "1g")
    folders = [processes.folder / name for name in ("first", "second")]
    for folder in folders:
        processes.start(*worker, "--work-dir", str(folder), address)
    return address, folders


def start_connect(processes: Processes, settings: dict[str, str], command: str = CONNECT) -> str:
    """A server of Spark Connect; returns its address."""
    missing = [name for name in CONNECT_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"the client of Spark Connect needs {', '.join(missing)}: pip install 'pyspark[connect]'")
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.python.daemon.module": "fluss.spark.daemon",
        "spark.ui.enabled": "false",
        **settings,
    }
    more = [f"--conf={name}={value}" for name, value in settings.items()]
    server = processes.start("bash", "-c", f"exec {command.strip()} {shlex.join(['--master', 'local[2]', *more])}")
    processes.wait_for_port(server, port)
    return f"sc://127.0.0.1:{port}"


WITH_BRIDGE = {**CATALOG, "spark.jars": bridge_jar()}


def test_a_standalone_cluster_of_two_workers(bootstrap: str, processes: Processes) -> None:
    address, folders = start_standalone(processes)
    check(run_job(address, bootstrap, processes))
    # Tasks ran in an executor of each worker, and not in the process of the job.
    assert all(list(folder.glob("app-*/*/stderr")) for folder in folders)
    run_page_block(address, bootstrap, processes.folder)


@pytest.mark.parametrize("bridge", [True, False], ids=["bridge", "python"])
def test_spark_connect(bootstrap: str, processes: Processes, bridge: bool) -> None:
    if bridge:  # with the jar and the catalog as the page names them
        [shown] = [block.text for block in read_blocks(ROOT / "docs" / "spark.md") if CONNECT in block.text]
        address = start_connect(processes, {"spark.fluss.bootstrap.servers": bootstrap}, shown)
    else:
        address = start_connect(processes, {})
    check(run_job(address, bootstrap, processes), catalog=bridge)
    run_page_block(address, bootstrap, processes.folder)


@pytest.mark.parametrize("option", ["--master", "--remote"])
def test_a_pipeline_runs_on_a_cluster(bootstrap: str, processes: Processes, option: str) -> None:
    try:
        check_installed()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    project = processes.folder / "store"
    write_project(project)
    folders: list[Path] = []
    if option == "--master":
        address, folders = start_standalone(processes)
    else:
        address = start_connect(processes, {**WITH_BRIDGE, "spark.fluss.bootstrap.servers": bootstrap})
    command = [sys.executable, "-m", "fluss", "pipeline", "run", str(project), "-b", bootstrap, option, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=processes.folder, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-4000:] + processes.log()
    with fluss.connect(bootstrap, database="store") as db:
        found = sorted(tuple(row.values()) for row in db.table("sales").to_arrow().to_pylist())
    assert found == [("FR", 2, 15.0), ("JP", 1, 20.0)]
    assert all(list(folder.glob("app-*/*/stderr")) for folder in folders)


def test_separate_executors_on_one_machine(bootstrap: str, tmp_path: Path) -> None:
    run_page_block("local-cluster[2,1,1024]", bootstrap, tmp_path)


def test_a_session_runs_where_it_was_submitted_to(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("from fluss.spark import session\nprint(session().sparkContext.master)\n", encoding="utf-8")
    ensure_java()
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    command = [str(BIN / "spark-submit"), "--master", "local[3]", str(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1] == "local[3]"
