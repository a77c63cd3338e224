# SPDX-License-Identifier: Apache-2.0
"""Declarative pipelines: the project of `fluss pipeline init` runs, and runs again with what is new."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.docs.blocks import ROOT, read_blocks
from tests.spark import jobs
from tests.waiting import wait_for

import fluss
from fluss.cli import main
from fluss.errors import InvalidArgumentError, MissingDependencyError
from fluss.spark.pipelines import check_installed, database_of, write_project


def test_a_project_is_written_once(tmp_path: Path) -> None:
    written = write_project(tmp_path / "my-shop")
    assert database_of(tmp_path / "my-shop" / "spark-pipeline.yml") == "my_shop"
    assert all(path.is_file() for path in written)
    with pytest.raises(InvalidArgumentError, match="exists"):
        write_project(tmp_path / "my-shop")
    with pytest.raises(InvalidArgumentError, match="use letters"):
        write_project(tmp_path / "my shop")


def test_a_run_needs_a_project(project: Path) -> None:
    shown = CliRunner().invoke(main, ["pipeline", "run", str(project.parent)])
    assert (shown.exit_code, "fluss pipeline init" in shown.output) == (1, True)


def test_remote_needs_the_address_of_the_server(project: Path) -> None:
    shown = CliRunner().invoke(main, ["pipeline", "run", str(project), "--remote", "sc://127.0.0.1:1"])
    assert (shown.exit_code, "give its address with -b" in shown.output) == (1, True)
    assert not (project / ".fluss").exists()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    try:
        check_installed()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    write_project(tmp_path / "shop")
    return tmp_path / "shop"


@contextlib.contextmanager
def watched(project: Path, server: fluss.LocalServer) -> Iterator[None]:
    """A pipeline that runs again and again, until Ctrl-C ends it."""
    command = [sys.executable, "-m", "fluss", "pipeline", "run", str(project), "-b", server.bootstrap_servers]
    command += ["--watch", "--every", "0", "--master", "local[2]"]
    running = subprocess.Popen(command, text=True, start_new_session=True)
    try:
        yield
        running.send_signal(signal.SIGINT)
        assert running.wait(600) == 0
    finally:
        jobs.end(running)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_only_its_user_can_connect_to_the_spark_of_a_pipeline(project: Path) -> None:
    """Each in a process of its own: a process has one Spark."""
    started = """
from fluss.config import Login
from fluss.spark.pipelines import connect_server
with connect_server("local[1]", "localhost:1", Login()) as remote:
    print(remote, flush=True)
    input()
"""
    asked = (
        "import sys; from pyspark.sql import SparkSession; SparkSession.builder.remote(sys.argv[1]).create().version"
    )

    def connects(remote: str) -> bool:
        return subprocess.run([sys.executable, "-c", asked, remote], check=False, timeout=200).returncode == 0

    command = [sys.executable, "-c", started]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        remote = running.stdout.readline().strip()
        assert connects(remote)
        assert not connects(remote.partition(";")[0])
        running.communicate("\n", timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_runs_bring_all_tables_up_to_date(project: Path) -> None:
    """Tables with a primary key, and the sink and the flows of the page, in runs of one pipeline."""
    flows = [block.text for block in read_blocks(ROOT / "docs" / "pipelines.md") if block.language == "python"]
    (project / "transformations" / "page.py").write_text("\n\n".join(flows))
    with fluss.LocalServer() as server, fluss.connect(server.bootstrap_servers, database="shop") as db:
        db.create_database("shop")
        db.create_database("crm")
        people = db.create_table("crm.customers", "id bigint not null, name string", primary_key=["id"])
        people.upsert([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}])
        sales = ("country", "orders", "revenue")

        def found(table: str, *columns: str) -> list[tuple[object, ...]]:
            """The rows; none while a run creates the table."""
            time.sleep(0.5)  # Spark needs the processor more than this test
            with contextlib.suppress(fluss.FlussError):
                return sorted(tuple(row.values()) for row in db.table(table).to_arrow(columns=columns).to_pylist())
            return []

        def versions() -> list[tuple[object, ...]]:
            history = found("customers_history", "id", "name", "__END_AT")
            return [(key, name, ended is not None) for key, name, ended in history]

        with watched(project, server):
            wait_for(lambda: found("sales", *sales) == [("FR", 2, 15.0), ("JP", 1, 20.0)], 900)
            wait_for(lambda: found("customers", "id", "name") == [(1, "a"), (2, "b")], 900)
            wait_for(lambda: found("crm.large_orders", "id") == [(1,), (2,)], 900)
            (project / "data" / "orders-2.csv").write_text("id,customer,country,amount\n4,3,FR,7.0\n5,3,IN,70.0\n")
            people.upsert([{"id": 2, "name": "c"}, {"id": 3, "name": "d"}])
            people.delete([{"id": 1}])
            wait_for(lambda: found("sales", *sales) == [("FR", 3, 22.0), ("IN", 1, 70.0), ("JP", 1, 20.0)], 900)
            wait_for(lambda: found("crm.large_orders", "id") == [(1,), (2,), (5,)], 900)
            wait_for(lambda: found("customers", "id", "name") == [(2, "c"), (3, "d")], 900)
            wait_for(lambda: versions() == [(1, "a", True), (2, "b", True), (2, "c", False), (3, "d", False)], 900)
        assert len(found("orders", "id")) == 5
        edges = {(target, source) for target, source in found("spark_flows", "target", "source")}
        assert {("shop.sales", "shop.orders"), ("shop.customers", "crm.customers")} <= edges


@contextlib.contextmanager
def shell(commands: str, folder: Path) -> Iterator[Iterator[str]]:
    """Run commands of the page; yields the lines that they print, and kills what still runs."""
    text = re.sub(r"^fluss ", f"{sys.executable} -m fluss ", commands, flags=re.MULTILINE)
    started = subprocess.Popen(
        ["bash", "-ec", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        assert started.stdout is not None
        yield started.stdout
    finally:
        jobs.end(started)


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_the_commands_of_the_page_run_in_their_order(project: Path) -> None:
    shutil.rmtree(project)
    blocks = read_blocks(ROOT / "docs" / "pipelines.md")
    create, run, look, watch, change = [block.text for block in blocks if block.language == "bash"]
    with shell(f"{create}{run}{look}", project.parent) as lines:
        printed = "".join(lines)
    assert re.findall(r"^([A-Z]{2}) +(\d)", printed, re.MULTILINE) == [("FR", "2"), ("JP", "1")], printed
    with shell(watch, project.parent) as lines:
        address = re.search(r"127\.0\.0\.1:\d+", next(lines))
        assert address is not None
        with shell(change.replace("127.0.0.1:9123", address[0]), project.parent) as followed:
            assert any(re.search(r"\bIN\b", line) for line in followed)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_test_of_a_project_passes(project: Path) -> None:
    subprocess.run([sys.executable, "-m", "pytest", "-q", str(project)], check=True, timeout=1100)
