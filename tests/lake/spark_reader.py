# SPDX-License-Identifier: Apache-2.0
"""Run by a Spark of its own: read lake tables with their own connectors and print every row in one form.

Arguments: the jars, then triples of a label, a format and a location.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from decimal import Decimal
from typing import Any


def canonical(value: Any) -> Any:
    """One form for the values of Spark and of Arrow."""
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    if isinstance(value, dt.datetime):
        plain = value if value.tzinfo is None else value.astimezone(dt.timezone.utc).replace(tzinfo=None)
        return plain.isoformat(sep=" ")
    if isinstance(value, (Decimal, dt.date, dt.time)):
        return str(value)
    if hasattr(value, "asDict"):
        return canonical(value.asDict())
    if isinstance(value, dict):
        return {str(name): canonical(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [canonical(one) for one in value]
    return value


def main() -> None:
    from pyspark.sql import SparkSession

    jars, *rest = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        # Tables are named by where they lie; the connector would ask a Hive metastore for them otherwise.
        .config("spark.sql.catalog.default_iceberg", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.default_iceberg.type", "hadoop")
        .config("spark.sql.catalog.default_iceberg.warehouse", "warehouse")
        .config("spark.sql.catalogImplementation", "in-memory")
        .getOrCreate()
    )
    found = {}
    for label, kind, location in zip(rest[::3], rest[1::3], rest[2::3]):
        rows = spark.read.format(kind).load(location).collect()
        found[label] = [canonical(row.asDict()) for row in rows]
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
