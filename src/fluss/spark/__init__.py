# SPDX-License-Identifier: Apache-2.0
"""The pipeline on Spark: read, write and stream Fluss tables with PySpark. Needs `pip install 'fluss-python[spark]'`.

The data source `fluss` is found by Spark itself (see `pyspark_fluss`); this module has what goes beyond it.
"""

from __future__ import annotations

from fluss.spark.launch import ensure_java, session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fluss.spark.catalog import create_table, tables
    from fluss.spark.lookup import lookup_join
    from fluss.spark.options import OPTIONS
    from fluss.spark.source import FlussDataSource
    from fluss.spark.threads import activate
    from fluss.spark.types import to_fluss_schema, to_spark_schema

__all__ = [
    "OPTIONS",
    "FlussDataSource",
    "activate",
    "create_table",
    "ensure_java",
    "lookup_join",
    "session",
    "tables",
    "to_fluss_schema",
    "to_spark_schema",
]

_HOMES = {
    "OPTIONS": "options",
    "FlussDataSource": "source",
    "activate": "threads",
    "create_table": "catalog",
    "lookup_join": "lookup",
    "tables": "catalog",
    "to_fluss_schema": "types",
    "to_spark_schema": "types",
}


def __getattr__(name: str) -> object:
    # `fluss.spark.session()` must be able to find a JRE and an interpreter before PySpark is imported.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'fluss.spark' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"fluss.spark.{home}"), name)
    globals()[name] = value
    return value
