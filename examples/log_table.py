# SPDX-License-Identifier: Apache-2.0
"""A log table: append rows, read them back, go on where the last reader stopped."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import fluss

PATH = fluss.TablePath("fluss", "clicks")


async def main() -> None:
    with fluss.LocalServer() as server, await fluss.FlussConnection.create(server.config()) as conn:
        admin = await conn.get_admin()
        schema = fluss.Schema(pa.schema([("user", pa.int64()), ("page", pa.string())]))
        # The same user always goes to the same bucket, so the clicks of a user stay in order.
        await admin.create_table(PATH, fluss.TableDescriptor(schema, bucket_count=2, bucket_keys=["user"]))
        table = await conn.get_table(PATH)

        with table.new_append().create_writer() as writer:
            for number in range(10):
                writer.append({"user": number % 3, "page": f"/{number}"})

        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe_buckets({0: fluss.EARLIEST_OFFSET, 1: fluss.EARLIEST_OFFSET})
        position = {0: 0, 1: 0}
        count = 0
        while count < 10:
            for bucket, records in scanner.poll(timeout_ms=1000).items():
                position[bucket.bucket_id] = records[-1].offset + 1
                count += len(records)
        print(f"read {count} clicks up to {position}")

        writer = table.new_append().create_writer()
        writer.append({"user": 7, "page": "/new"})
        await writer.flush()

        # A program that kept its position goes on from there.
        scanner = await table.new_scan().create_record_batch_log_scanner()
        scanner.subscribe_buckets(position)
        print("new since then:", scanner.to_arrow().to_pylist())


if __name__ == "__main__":
    asyncio.run(main())
