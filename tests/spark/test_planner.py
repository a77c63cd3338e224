# SPDX-License-Identifier: Apache-2.0
"""What the processes cost in which Spark plans: only what a step needs, loaded before they are forked, compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from fluss.spark import planner

if TYPE_CHECKING:
    from tests.spark.conftest import SparkHarness

STEP = "pyspark.sql.worker.plan_data_source_read"
OWN_ENVIRONMENT = "spark.sql.execution.pyspark.udf.hideTraceback.enabled"
PROC = Path("/proc")


def stat(process_id: int) -> list[str]:
    return (PROC / str(process_id) / "stat").read_text().rpartition(")")[2].split()


def children(parent: int) -> list[int]:
    """The processes that `parent` started, the newest last. Process ids wrap around: they say nothing of age."""
    started: dict[int, int] = {}
    for folder in PROC.iterdir():
        try:
            if folder.name.isdigit() and int((fields := stat(int(folder.name)))[1]) == parent:
                started[int(folder.name)] = int(fields[19])
        except OSError:
            continue  # it ended meanwhile
    return sorted(started, key=started.__getitem__)


def libraries(process_id: int) -> set[str]:
    return {line.split()[-1] for line in (PROC / str(process_id) / "maps").read_text().splitlines() if ".so" in line}


def cpu_s(process_id: int) -> float:
    fields = stat(process_id)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the files of a Linux kernel")
def test_planning_is_forked_with_everything_loaded_but_pandas(harness: SparkHarness) -> None:
    path = harness.create(pa.schema([("id", pa.int64())]), buckets=1)
    harness.put(path, [{"id": 1}])
    # An environment of its own, so that the workers are not those that other tests had plan.
    harness.spark.conf.set(OWN_ENVIRONMENT, "true")
    try:
        assert harness.read(path).where("id > 0").count() == 1
    finally:
        harness.spark.conf.unset(OWN_ENVIRONMENT)
    jvm = harness.spark._jvm.java.lang.ProcessHandle.current().pid()
    daemon = [one for one in children(jvm) if STEP in (PROC / str(one) / "cmdline").read_text().split("\0")][-1]
    [worker] = children(daemon)
    assert any("libarrow" in name for name in libraries(daemon)), "PyArrow is loaded after the fork"
    assert not any("pandas" in name for name in libraries(worker))
    assert cpu_s(worker) < 1


def fluss_modules(code: str) -> set[str]:
    """The modules of this package that a new process has loaded after running some code."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    return {name for name in done.stdout.split() if name.startswith("fluss.")}


def test_the_search_for_sources_loads_neither_client_nor_readers() -> None:
    found = fluss_modules("import pyspark_fluss")
    assert "fluss.spark.source" in found
    assert not found & {"fluss.client", "fluss.metadata", "fluss.spark.options", "fluss.spark.reader"}


@pytest.mark.parametrize(
    ("step", "act", "spared"),
    [
        ("create_data_source", "source.schema()", {"fluss.spark.reader", "fluss.spark.writer"}),
        ("plan_data_source_read", "source.reader(schema).partitions()", {"fluss.spark.writer"}),
        ("write_into_data_source", "source.writer(schema, False)", {"fluss.spark.reader"}),
    ],
)
def test_a_step_has_what_it_needs_before_the_fork(harness: SparkHarness, step: str, act: str, spared: set[str]) -> None:
    path = harness.create(pa.schema([("id", pa.int64())]), buckets=1)
    harness.put(path, [{"id": 1}])
    preloaded = f"from fluss.spark import planner\nplanner.preload('pyspark.sql.worker.{step}')"
    code = f"""{preloaded}
from fluss.spark.source import FlussDataSource
from pyspark.sql.types import LongType, StructField, StructType
schema = StructType([StructField("id", LongType())])
source = FlussDataSource({{"bootstrap.servers": "{harness.bootstrap}", "path": "{path}"}})
{act}"""
    before, after = fluss_modules(preloaded), fluss_modules(code)
    assert after <= before
    assert not after & spared


def test_only_steps_of_planning_are_prepared() -> None:
    assert planner.planning_step(["python", "-m", "pyspark.daemon", STEP]) == STEP
    for other in (["python"], ["python", "-m", "pyspark.daemon", "pyspark.worker"], ["python", "x.py", STEP]):
        assert planner.planning_step(other) is None


def test_compiled_modules_come_before_the_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("pip/pyspark", "archive/python/pyspark", "pip/pyspark/python/lib", "archive/python/lib"):
        (tmp_path / folder).mkdir(parents=True)
    for module in ("pip/pyspark/daemon.py", "archive/python/pyspark/daemon.py"):
        (tmp_path / module).touch()
    zips = [f"{tmp_path}/{home}/python/lib/pyspark.zip" for home in ("pip/pyspark", "archive", "other")]
    monkeypatch.setattr(sys, "path", ["a.jar", *zips, "b"])
    planner.prefer_compiled()
    assert sys.path == [f"{tmp_path}/pip", f"{tmp_path}/archive/python", zips[2], "b", "a.jar"]


def test_the_hook_runs_the_module_that_it_hides(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('hidden')")
    code = "import sys; print('pyspark' in sys.modules)"
    environment = {
        **os.environ,
        "PYTHONPATH": planner.with_hook(f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"),
    }
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout.split(), done.stderr) == (["hidden", "False"], "")
    alone = subprocess.run(
        [sys.executable, "-c", "import sitecustomize"],
        env={**os.environ, "PYTHONPATH": planner.with_hook(None)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert alone.stderr == ""
