# SPDX-License-Identifier: Apache-2.0
"""A job of its own process for the tests on clusters: write, read and stream, on whatever master it is given.

`cluster_job.py MASTER BOOTSTRAP FOLDER`; prints one JSON document with what it saw. A master `sc://host:port` is a
server of Spark Connect: then only plain PySpark is used on this side. The tables are there already: `fluss.source` and
`fluss.target` (logs), `fluss.totals` (primary key `customer`).
"""

from __future__ import annotations

import json
import sys
from typing import Any

ROWS = 2_000


def main() -> None:
    master, bootstrap, folder = sys.argv[1:4]
    if master.startswith("sc://"):
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(master).getOrCreate()
    else:
        from fluss.spark import session

        spark = session("clusters", master=master, config={"spark.executor.memory": "512m"})
    print(json.dumps(run(spark, bootstrap, folder)), flush=True)
    spark.stop()


def run(spark: Any, bootstrap: str, folder: str) -> dict[str, Any]:
    def load(table: str, **options: str) -> Any:
        reader = spark.read.format("fluss").option("bootstrap.servers", bootstrap)
        return reader.options(**options).load(table)

    def save(frame: Any, table: str) -> None:
        frame.write.format("fluss").option("bootstrap.servers", bootstrap).mode("append").save(table)

    rows = spark.range(ROWS).selectExpr("id", "id % 7 as customer", "cast(id as string) as note")
    save(rows, "fluss.source")
    source = load("fluss.source")
    save(source.groupBy("customer").count().withColumnRenamed("count", "orders"), "fluss.totals")
    query = (
        spark.readStream.format("fluss")
        .option("bootstrap.servers", bootstrap)
        .option("maxRowsPerTrigger", ROWS // 2)
        .load("fluss.source")
        .writeStream.format("fluss")
        .option("bootstrap.servers", bootstrap)
        .option("checkpointLocation", folder)
        .trigger(availableNow=True)
        .start("fluss.target")
    )
    ended = query.awaitTermination(120)
    try:
        load("fluss.nothing").count()
        refused = "nothing was refused"
    except Exception as error:
        refused = str(error)
    return {
        "ended": ended,
        "batches": query.lastProgress["batchId"] + 1,
        "source": source.count(),
        "filtered": load("fluss.source", **{"scan.filter": "id < 10", "columns": "id"}).count(),
        "totals": sorted(list(row) for row in load("fluss.totals").collect()),
        "target": sorted(row.id for row in load("fluss.target").collect()),
        "refused": refused,
        "changed": change(spark, bootstrap),
    }


def change(spark: Any, bootstrap: str) -> list[list[int]] | None:
    """The totals after statements that change rows; None without the catalog."""
    if spark.conf.get("spark.sql.catalog.fluss", None) is None:
        return None
    spark.conf.set("spark.sql.catalog.fluss.bootstrap.servers", bootstrap)
    spark.sql("UPDATE fluss.fluss.totals SET orders = orders + 1000 WHERE customer < 2")
    spark.sql("DELETE FROM fluss.fluss.totals WHERE customer = 2")
    spark.sql(
        """MERGE INTO fluss.fluss.totals t USING (SELECT id + 5 AS customer FROM range(4)) s ON t.customer = s.customer
        WHEN MATCHED AND t.customer = 5 THEN DELETE
        WHEN MATCHED THEN UPDATE SET orders = -1
        WHEN NOT MATCHED THEN INSERT (customer, orders) VALUES (s.customer, 0)"""
    )
    return sorted(list(row) for row in spark.table("fluss.fluss.totals").collect())


if __name__ == "__main__":
    main()
