# SPDX-License-Identifier: Apache-2.0
"""A primary-key table: upsert, partial update, delete, and three ways to look rows up."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import fluss

PATH = fluss.TablePath("fluss", "order_lines")


async def main() -> None:
    with fluss.LocalServer() as server, await fluss.FlussConnection.create(server.config()) as conn:
        admin = await conn.get_admin()
        columns = pa.schema([("order", pa.int64()), ("line", pa.int32()), ("sku", pa.string()), ("count", pa.int32())])
        schema = fluss.Schema(columns, primary_keys=["order", "line"])
        # Bucketed by the first key column alone: all lines of an order can be found with one prefix lookup.
        await admin.create_table(PATH, fluss.TableDescriptor(schema, bucket_count=4, bucket_keys=["order"]))
        table = await conn.get_table(PATH)

        writer = table.new_upsert().create_writer()
        for order in (1, 2):
            for line in (1, 2, 3):
                writer.upsert({"order": order, "line": line, "sku": f"sku-{line}", "count": 1})
        await writer.flush()

        writer.delete({"order": 1, "line": 3})
        counts = table.new_upsert().partial_update_by_name(["order", "line", "count"]).create_writer()
        counts.upsert({"order": 1, "line": 1, "count": 12})
        await writer.flush()
        await counts.flush()

        lookuper = table.new_lookup().create_lookuper()
        print("one key:  ", await lookuper.lookup({"order": 1, "line": 1}))
        print("gone:     ", await lookuper.lookup({"order": 1, "line": 3}))

        many = await lookuper.lookup_many([(1, 1), (9, 9), (2, 3)], missing="null")
        print("many keys:", many.column("sku").to_pylist())

        by_order = table.new_lookup().lookup_by(["order"]).create_lookuper()
        for row in await by_order.lookup({"order": 1}):
            print("order 1:  ", row)


if __name__ == "__main__":
    asyncio.run(main())
