# SPDX-License-Identifier: Apache-2.0
"""A partitioned table: partitions are created by the first row or explicitly, read one by one, and dropped."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import fluss

PATH = fluss.TablePath("fluss", "measurements")


async def main() -> None:
    with fluss.LocalServer() as server, await fluss.FlussConnection.create(server.config()) as conn:
        admin = await conn.get_admin()
        schema = fluss.Schema(pa.schema([("region", pa.string()), ("value", pa.float64())]))
        await admin.create_table(PATH, fluss.TableDescriptor(schema, partition_keys=["region"]))
        await admin.create_partition(PATH, {"region": "empty"})
        table = await conn.get_table(PATH)

        with table.new_append().create_writer() as writer:
            for region in ("north", "south", "north"):
                writer.append({"region": region, "value": 1.5})

        for partition in await admin.list_partition_infos(PATH):
            scanner = await table.new_scan().create_record_batch_log_scanner()
            scanner.subscribe_partition(partition.partition_id, 0, fluss.EARLIEST_OFFSET)
            print(partition.partition_name, scanner.to_arrow().num_rows, "rows")

        await admin.drop_partition(PATH, {"region": "south"})
        print("left:", sorted(p.partition_name for p in await admin.list_partition_infos(PATH)))


if __name__ == "__main__":
    asyncio.run(main())
