# SPDX-License-Identifier: Apache-2.0
"""Found by Spark itself: it looks for modules named `pyspark_*` and takes their `DefaultSource`."""

from fluss.spark.source import FlussDataSource as DefaultSource

__all__ = ["DefaultSource"]
