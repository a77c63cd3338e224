# SPDX-License-Identifier: Apache-2.0
"""Keep a copy of a table up to date by following its changelog, as a cache or a search index would."""

from __future__ import annotations

import asyncio
from typing import Any

import pyarrow as pa

import fluss

PATH = fluss.TablePath("fluss", "prices")


def apply(copy: dict[str, float], record: Any) -> None:
    """One change. The old row of an update carries nothing that the new one does not replace."""
    name, price = record.row["name"], record.row["price"]
    if record.change_type in (fluss.ChangeType.Insert, fluss.ChangeType.UpdateAfter):
        copy[name] = price
    elif record.change_type is fluss.ChangeType.Delete:
        del copy[name]


async def main() -> None:
    with fluss.LocalServer() as server, await fluss.FlussConnection.create(server.config()) as conn:
        admin = await conn.get_admin()
        schema = fluss.Schema(pa.schema([("name", pa.string()), ("price", pa.float64())]), primary_keys=["name"])
        await admin.create_table(PATH, fluss.TableDescriptor(schema))
        table = await conn.get_table(PATH)

        writer = table.new_upsert().create_writer()
        writer.upsert({"name": "tea", "price": 3.0})
        writer.upsert({"name": "mug", "price": 9.0})
        await writer.flush()
        writer.upsert({"name": "tea", "price": 3.5})
        writer.delete({"name": "mug"})
        await writer.flush()

        copy: dict[str, float] = {}
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        end = (await admin.list_offsets(PATH, [0], fluss.OffsetSpec.latest()))[0]
        position = 0
        while position < end:
            for record in scanner.poll(timeout_ms=1000):
                print(record.offset, record.change_type.short_string(), record.row)
                apply(copy, record)
                position = record.offset + 1
        print("copy:", copy)


if __name__ == "__main__":
    asyncio.run(main())
