# SPDX-License-Identifier: Apache-2.0
"""The bridge: Java classes in front of the Python source, which learn from Spark which columns and filters it needs.

`format("fluss")` means `fluss.spark.FlussSource` where the jar is on the class path of the driver, and the Python
source alone elsewhere: same options, same rows. Executors need the jar as well, and get it from the driver.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAR = Path(__file__).parent / "fluss-spark-bridge.jar"
_SOURCE = "fluss.spark.FlussSource"
_LOADER = "org.apache.spark.util.MutableURLClassLoader"


def bridge_jar() -> str:
    """Return the path of the jar that lets Spark's optimizer choose columns and filters.

    `fluss.spark.session()` and `fluss.spark.configure()` load it. Name it in `spark.jars` or `spark-submit --jars` for
    drivers where neither runs, such as a server of Spark Connect.

    Example:
        SparkSession.builder.config("spark.jars", fluss.spark.bridge_jar())
    """
    return str(JAR)


def load_bridge(spark: SparkSession) -> bool:
    """Load the jar into the driver of a session, for all its threads, and its executors; return whether it is loaded.

    It cannot be loaded through Spark Connect, whose driver is elsewhere.
    """
    jvm = getattr(spark, "_jvm", None)
    if jvm is None:
        return False
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    if loader.getResource(_SOURCE.replace(".", "/") + ".class") is not None:
        return True
    while loader is not None and loader.getClass().getName() != _LOADER:
        loader = loader.getParent()
    if loader is None:
        return False
    loader.addURL(jvm.java.io.File(str(JAR)).toURI().toURL())
    spark.sparkContext._jsc.addJar(str(JAR))
    return True
