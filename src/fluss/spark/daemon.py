# SPDX-License-Identifier: Apache-2.0
"""Spark's own daemon of Python workers, with this package loaded before the workers are forked.

A worker that is forked from it starts at once; loading PyArrow and the client takes half a second otherwise. Nothing
here may start a thread: threads do not survive a fork.
"""

from __future__ import annotations

import importlib

from fluss.spark.planner import prefer_compiled


def load() -> None:
    """Load what tasks need, and exclude it from garbage collection."""
    import pyarrow as pa

    import fluss.aio
    from fluss.spark.connect import freeze_loaded_modules

    importlib.import_module("pyspark.worker")
    importlib.import_module("pyarrow.compute")
    for module in ("source", "reader", "stream_reader", "writer"):
        importlib.import_module(f"fluss.spark.{module}")
    pa.array([0])  # PyArrow loads pandas, where it is installed, with the first array it makes of Python objects
    # Names of the client load when they are first used; here, before the fork.
    for name in ("FlussConnection", "TableScan", "FlussAdmin", "Lookuper"):
        getattr(fluss.aio, name)
    freeze_loaded_modules()


if __name__ == "__main__":
    prefer_compiled()  # before anything of PySpark is imported
    load()

    from pyspark import daemon

    daemon.manager()
