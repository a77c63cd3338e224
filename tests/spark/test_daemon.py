# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_workers_begin_with_everything_loaded_and_frozen(spark: SparkSession) -> None:
    """What the daemon loaded before it forked is neither loaded again nor searched for garbage."""

    def look(_: Iterator[int]) -> Iterator[tuple[bool, int, int]]:
        yield "fluss.spark.reader" in sys.modules, gc.get_freeze_count(), len(gc.get_objects())

    [(loaded, frozen, searched)] = spark.sparkContext.parallelize([0], 1).mapPartitions(look).collect()
    assert loaded
    assert frozen > 10_000
    assert searched < frozen / 2
