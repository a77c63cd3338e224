# SPDX-License-Identifier: Apache-2.0
"""Write a DataFrame to a Fluss table, read it back, upsert into a primary-key table, look a row up.

Run: `python examples/spark_quickstart.py` (needs `pip install 'fluss-python[spark]'`).
"""

from __future__ import annotations

import asyncio

import fluss
from fluss.spark import session


async def look_up(servers: str, customer: int) -> object:
    with await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": servers})) as connection:
        table = await connection.get_table(fluss.TablePath("shop", "totals"))
        return await table.new_lookup().create_lookuper().lookup({"customer": customer})


def main() -> None:
    with fluss.LocalServer() as server:
        servers = server.bootstrap_servers
        spark = session("quickstart", master="local[2]", config={"spark.fluss.bootstrap.servers": servers})
        try:
            spark.sql("CREATE DATABASE fluss.shop")
            orders = spark.range(10_000).selectExpr("id", "id % 7 as customer", "cast(id as double) / 4 as amount")
            orders.writeTo("fluss.shop.orders").tableProperty("bucket.num", "2").create()
            spark.sql(
                "CREATE TABLE fluss.shop.totals TBLPROPERTIES ('primary.key' 'customer', 'bucket.num' '2') AS "
                "SELECT customer, count(*) AS n, sum(amount) AS total FROM fluss.shop.orders GROUP BY customer"
            )
            spark.table("fluss.shop.totals").orderBy("customer").show()
        finally:
            spark.stop()
        print("looked up from plain Python:", asyncio.run(look_up(servers, 3)))


if __name__ == "__main__":
    main()
