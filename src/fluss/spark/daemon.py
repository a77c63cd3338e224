# SPDX-License-Identifier: Apache-2.0
"""Spark's own daemon of Python workers, with this package loaded before the workers are forked.

A worker that is forked from it starts at once; loading PyArrow and the client takes half a second otherwise. Nothing
here may start a thread: threads do not survive a fork.
"""

from __future__ import annotations

import pyspark.worker  # noqa: F401
from pyspark import daemon

import fluss.aio
import fluss.spark.source
from fluss.spark.connect import freeze_loaded_modules

# Names of the client load when they are first used; here, before the fork.
for _name in ("FlussConnection", "TableScan", "FlussAdmin", "Lookuper"):
    getattr(fluss.aio, _name)

if __name__ == "__main__":
    freeze_loaded_modules()
    daemon.manager()
