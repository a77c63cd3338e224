# SPDX-License-Identifier: Apache-2.0
"""Writes and stream starts in threads other than the main one.

Spark looks the source of a write up in the session that is active in the calling thread. A thread that was started by
Python has none in the JVM, so that Spark knows no Python source there and answers DATA_SOURCE_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def activate(spark: SparkSession) -> None:
    """Make a session the active one of the calling thread, so that `format("fluss")` can be written to in it.

    With the bridge, which `fluss.spark.session()` and `configure()` load, that needs no call. Without it, call this in
    each thread but the main one, before its first write or stream start.

    Example:
        with ThreadPoolExecutor(initializer=fluss.spark.activate, initargs=(spark,)) as pool:
            pool.map(write_one_day, days)
    """
    session = getattr(spark, "_jsparkSession", None)
    if session is not None:  # a session of Spark Connect has its threads on the server
        spark._jvm.SparkSession.setActiveSession(session)
