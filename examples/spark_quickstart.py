# SPDX-License-Identifier: Apache-2.0
"""Write a DataFrame to a Fluss table, read it back, upsert into a primary-key table, look a row up.

Run: `python examples/spark_quickstart.py` (needs `pip install 'fluss-python[spark]'`).
"""

from __future__ import annotations

import asyncio

import fluss
from fluss.spark import create_table, session, tables


async def look_up(servers: str, customer: int) -> object:
    with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": servers})) as connection:
        table = await connection.get_table(fluss.TablePath("shop", "totals"))
        return await table.new_lookup().create_lookuper().lookup({"customer": customer})


def main() -> None:
    with fluss.LocalServer() as server:
        servers = server.bootstrap_servers
        spark = session("quickstart", master="local[2]")
        try:
            orders = spark.range(10_000).selectExpr("id", "id % 7 as customer", "cast(id as double) / 4 as amount")
            create_table(orders, "shop.orders", servers, buckets=2)
            orders.write.format("fluss").option("bootstrap.servers", servers).mode("append").save("shop.orders")

            tables(spark, servers)
            totals = spark.sql(
                "select customer, count(*) as n, sum(amount) as total from shop.orders group by customer"
            )
            create_table(totals, "shop.totals", servers, primary_key=["customer"], buckets=2)
            totals.write.format("fluss").option("bootstrap.servers", servers).mode("append").save("shop.totals")
            spark.read.format("fluss").option("bootstrap.servers", servers).load("shop.totals").orderBy(
                "customer"
            ).show()
        finally:
            spark.stop()
        print("looked up from plain Python:", asyncio.run(look_up(servers, 3)))


if __name__ == "__main__":
    main()
