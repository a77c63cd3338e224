# SPDX-License-Identifier: Apache-2.0
"""Faster starts of the Python processes in which Spark plans: compiled PySpark, and this package loaded before forks.

Spark runs `python -m pyspark.daemon` for each step of planning (schema, filters, partitions, commit) whatever
`spark.python.daemon.module` says, imports everything after the fork, and takes PySpark from a zip without compiled
modules: three seconds of CPU per step. `fluss.spark.session()` puts this folder on the PYTHONPATH of the driver, where
Python finds the module `sitecustomize` in it and runs it at every start.
"""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
_DAEMON = "pyspark.daemon"
_STEPS = "pyspark.sql.worker."
_NEEDED = {
    "create_data_source": ("fluss.spark.batches", "fluss.spark.connect", "fluss.spark.options"),
    "data_source_pushdown_filters": ("fluss.spark.reader",),
    "plan_data_source_read": ("fluss.spark.reader",),
    "write_into_data_source": ("fluss.spark.creation", "fluss.spark.writer"),
    "commit_data_source_write": ("fluss.spark.writer",),
    "python_streaming_sink_runner": ("fluss.spark.writer",),
}
"""What the source imports in a step, beyond its own module."""
_ZIP = os.path.join("python", "lib", "pyspark.zip")


def is_spark(argv: list[str]) -> bool:
    """Whether a process was started to run a module of PySpark: `python -m pyspark.…`."""
    return any(one == "-m" and other.startswith("pyspark.") for one, other in itertools.pairwise(argv))


def planning_step(argv: list[str]) -> str | None:
    """The module of the step of planning that a process was started for: `python -m pyspark.daemon <module>`."""
    if len(argv) < 4 or argv[-3:-1] != ["-m", _DAEMON] or not argv[-1].startswith(_STEPS):
        return None
    return argv[-1]


def prefer_compiled() -> None:
    """Import PySpark from its folder instead of the zip in it, which has no compiled modules; jars are searched last.

    Only where the zip and the folder belong to one installation, so that both are the same version.
    """
    jars = [entry for entry in sys.path if entry.endswith(".jar")]
    sys.path[:] = [_folder_of(entry) for entry in sys.path if entry not in jars] + jars


def _folder_of(entry: str) -> str:
    if not entry.endswith(_ZIP):
        return entry
    home = entry[: -len(_ZIP)].rstrip(os.sep)
    # Spark's own archive has its Python in a folder of its home; with pip the home is the package itself.
    for folder in (os.path.join(home, "python"), os.path.dirname(home)):
        if os.path.exists(os.path.join(folder, "pyspark", "daemon.py")):
            return folder
    return entry


def with_hook(path: str | None) -> str:
    """A PYTHONPATH that has this folder first."""
    return os.pathsep.join(entry for entry in (FOLDER, path) if entry)


def preload(step: str) -> None:
    """Load what a step of planning needs, and exclude it from garbage collection. Starts no threads."""
    importlib.import_module(step)
    for module in ("fluss.spark.source", *_NEEDED.get(step.removeprefix(_STEPS), ())):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
