# SPDX-License-Identifier: Apache-2.0
"""An asyncio service on `fluss.aio`: one task writes, one follows the changes, many look rows up, all on one loop."""

from __future__ import annotations

import asyncio

import pyarrow as pa

import fluss.aio as fluss

PATH = fluss.TablePath("fluss", "sessions")
USERS = 100


async def write(table: fluss.FlussTable) -> None:
    async with table.new_upsert().create_writer() as writer:
        for user in range(USERS):
            writer.upsert({"user": user, "state": "online"})


async def follow(table: fluss.FlussTable) -> int:
    scanner = await table.new_scan().create_log_scanner()
    scanner.subscribe(0, fluss.EARLIEST_OFFSET)
    seen = 0
    async for _ in scanner:
        seen += 1
        if seen == USERS:
            break
    await scanner.close()
    return seen


async def main() -> None:
    async with fluss.LocalServer() as server, await fluss.FlussConnection.create(server.config()) as conn:
        schema = fluss.Schema(pa.schema([("user", pa.int64()), ("state", pa.string())]), primary_keys=["user"])
        await conn.get_admin().create_table(PATH, fluss.TableDescriptor(schema))
        table = await conn.get_table(PATH)

        _, changes = await asyncio.gather(write(table), follow(table))
        print(f"{changes} changes seen")

        # A thousand lookups at once leave in a handful of requests.
        lookuper = table.new_lookup().create_lookuper()
        rows = await asyncio.gather(*(lookuper.lookup({"user": number % USERS}) for number in range(1000)))
        metrics = conn.metrics()
        assert all(row is not None for row in rows)
        print(f"{metrics['lookups_total']:.0f} lookups in {metrics['lookup_batches_total']:.0f} requests")


if __name__ == "__main__":
    asyncio.run(main())
