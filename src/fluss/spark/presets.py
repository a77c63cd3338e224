# SPDX-License-Identifier: Apache-2.0
"""What a session needs to know of Fluss: the bridge, the catalog, and options for all its reads and writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fluss.spark.bridge import load_bridge
from fluss.spark.source import FlussDataSource
from fluss.spark.versions import VERSION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CATALOG = {"spark.sql.catalog.fluss": "fluss.spark.FlussCatalog"}
"""The setting that makes the tables of a server those of a catalog of Spark."""
FLOWS = {"spark.extraListeners": "fluss.spark.FlowListener"}
"""The setting that shows in the console what a Spark fills tables from."""
_MARK = "_fluss_configured"


def configure(spark: SparkSession, *, bridge: bool = True) -> None:
    """Load the bridge into a session, and set up the catalog `fluss`.

    `fluss.spark.session()` does this by itself. Call it for a session of your own. Options under `spark.fluss.` in the
    configuration of the session, such as `spark.fluss.bootstrap.servers`, count for the catalog and for all reads and
    writes. Without the bridge there is no catalog; call this again after changes of the configuration then.

    Args:
        spark: The session.
        bridge: Load the jar of `bridge_jar()`, so that Spark has the catalog, and reads only the columns and rows that
            a query needs.

    Example:
        spark.conf.set("spark.fluss.bootstrap.servers", "localhost:9123")
        fluss.spark.configure(spark)
        spark.table("fluss.shop.orders")
    """
    if bridge and load_bridge(spark):
        for name, value in CATALOG.items():
            if spark.conf.get(name, None) is None:
                spark.conf.set(name, value)
        return  # the bridge hands the options of the session over with every query
    if VERSION < (4, 1):
        return  # it lets no session replace a source that it found itself
    preset = session_options(spark)
    if preset or getattr(spark, _MARK, False):
        # A class without a name in a module travels by value, its options included.
        spark.dataSource.register(type("PresetDataSource", (FlussDataSource,), {"PRESET": preset}))
        setattr(spark, _MARK, True)


def session_options(spark: SparkSession) -> dict[str, str]:
    """The options under `spark.fluss.` in the configuration of a session.

    Example:
        fluss.spark.session(config={"spark.fluss.bootstrap.servers": "localhost:9123"})
    """
    prefix = "spark.fluss."
    found: dict[str, str] = {}
    context = getattr(spark, "_sc", None)
    if context is not None:
        found.update((k[len(prefix) :], v) for k, v in context.getConf().getAll() if k.startswith(prefix))
    everything = getattr(spark.conf, "getAll", None)  # what was set while the session runs
    if isinstance(everything, Mapping):
        found.update((k[len(prefix) :], v) for k, v in everything.items() if k.startswith(prefix))
    return found
