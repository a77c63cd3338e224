# SPDX-License-Identifier: Apache-2.0
"""Options of a session, such as servers and logins, for all its reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fluss.spark.bridge import load_bridge
from fluss.spark.catalog import session_options
from fluss.spark.save_modes import wrap_writers
from fluss.spark.session_defaults import wrap_readers_and_writers
from fluss.spark.source import FlussDataSource
from fluss.spark.statements import wrap_sql
from fluss.spark.versions import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MARK = "_fluss_configured"


def configure(spark: SparkSession, *, bridge: bool = True) -> None:
    """Use what the configuration of a session says under `spark.fluss.` for all its reads and writes, SQL included.

    `fluss.spark.session()` does this by itself. Call it for a session of your own, and after changes of its
    configuration. It also gives `df.write.format("fluss")` the save modes `error` and `ignore`, and `spark.sql` the
    statements `CREATE TABLE … USING fluss` with columns and with `AS SELECT`.

    Args:
        spark: The session.
        bridge: Load the jar of `bridge_jar()`, so that Spark reads only the columns and rows that a query needs.

    Example:
        spark.conf.set("spark.fluss.bootstrap.servers", "localhost:9123")
        fluss.spark.configure(spark)
        spark.read.format("fluss").load("shop.orders")
    """
    wrap_writers()
    wrap_sql()
    if bridge and load_bridge(spark):
        return  # it hands the options of the session over with every query
    if VERSION < (4, 1):
        wrap_readers_and_writers()
        return
    preset = session_options(spark)
    if preset or getattr(spark, _MARK, False):
        # A class without a name in a module travels by value, its options included.
        spark.dataSource.register(type("PresetDataSource", (FlussDataSource,), {"PRESET": preset}))
        setattr(spark, _MARK, True)
