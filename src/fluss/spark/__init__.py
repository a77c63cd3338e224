# SPDX-License-Identifier: Apache-2.0
"""The pipeline on Spark: read, write and stream Fluss tables with PySpark. Needs `pip install 'fluss-python[spark]'`.

The data source `fluss` is found by Spark itself (see `pyspark_fluss`); this module has what goes beyond it.
"""

from fluss._lazy import lazy_names

# Loaded at first use: `fluss.spark.session()` finds a JRE and an interpreter before PySpark is imported.
NAMES = {
    "fluss.spark.bridge": "bridge_jar",
    "fluss.spark.creation": "create_table",
    "fluss.spark.launch": "ensure_java session",
    "fluss.spark.lookup": "lookup_join",
    "fluss.spark.metrics": "LagListener",
    "fluss.spark.options": "OPTIONS",
    "fluss.spark.presets": "configure",
    "fluss.spark.registration": "tables",
    "fluss.spark.shortcuts": "activate read upsert_stream",
    "fluss.spark.source": "FlussDataSource",
    "fluss.spark.types": "to_fluss_schema to_spark_schema",
}

__getattr__, __all__ = lazy_names(__name__, NAMES)
