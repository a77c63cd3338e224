# SPDX-License-Identifier: Apache-2.0
"""A job of its own process, in a Spark session that knows nothing of this package but the jar.

`plain_session_job.py BOOTSTRAP SOURCE TARGET session|table WAREHOUSE`, with the place where the address of the server
is given. In another thread, it copies SOURCE to TARGET, doubles TARGET by a table of Spark's own catalog, and prints
how many rows it then has.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

from pyspark.sql import SparkSession

from fluss.spark import bridge_jar


def main() -> None:
    bootstrap, source, target, given = sys.argv[1:5]
    builder = SparkSession.builder.master("local[2]").config("spark.jars", bridge_jar())
    # Nothing listens where others reach it.
    builder = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
    builder = builder.config("spark.driver.bindAddress", "127.0.0.1").config("spark.sql.warehouse.dir", sys.argv[5])
    address = {"bootstrap.servers": bootstrap} if given == "table" else {}
    if given == "session":
        builder = builder.config("spark.fluss.bootstrap.servers", bootstrap)
    spark = builder.getOrCreate()
    options = ", ".join(f"`{name}` '{value}'" for name, value in {"table": target, **address}.items())
    spark.sql(f"create table copied using fluss options ({options})")

    def copy() -> None:
        rows = spark.read.format("fluss").options(**address).load(source)
        rows.write.format("fluss").options(**address).mode("append").save(target)
        spark.sql("insert into copied select * from copied")

    with ThreadPoolExecutor(1) as pool:
        pool.submit(copy).result()
    print("rows:", spark.table("copied").count(), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
