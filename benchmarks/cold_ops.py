# SPDX-License-Identifier: Apache-2.0
"""What is measured of a client in a fresh process: the first operation, from `get_table` on, with unique strings.

Nothing here may load what a program with the same rows would not: no numpy, no pandas, no computing with Arrow before
the clock has stopped.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any

from client_ops import Side as WarmSide
from client_ops import Watch, done, fingerprint

import fluss


def unique_rows(rows: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"user-{i:07d}", "score": i * 0.5} for i in range(rows)]


class Side(WarmSide):
    """One client, in a process that has done nothing before."""

    async def connect(self, servers: str, **options: Any) -> dict[str, Any]:
        """Connect, and say how long it took from `import fluss` on, which has been done: it loads next to nothing."""
        modules = len(sys.modules)
        watch = Watch()
        await super().connect(servers, **options)
        return {**watch.answer(), "modules": len(sys.modules) - modules}

    async def cold_append(self, table: str, rows: int) -> dict[str, Any]:
        data = unique_rows(rows)
        gc.collect()
        watch = Watch()
        writer = (await self._table(table)).new_append().create_writer()
        append = writer.append
        for row in data:
            append(row)
        await writer.flush()
        return watch.answer(rows)

    async def cold_upsert(self, table: str, rows: int) -> dict[str, Any]:
        data = unique_rows(rows)
        gc.collect()
        watch = Watch()
        writer = (await self._table(table)).new_upsert().create_writer()
        upsert = writer.upsert
        for row in data:
            upsert(row)
        await writer.flush()
        return watch.answer(rows)

    async def cold_to_arrow(self, table: str) -> dict[str, Any]:
        watch = Watch()
        scanner = await (await self._table(table)).new_scan().create_record_batch_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        found = await done(scanner.to_arrow())
        answer = watch.answer()
        return {**answer, "result": fingerprint(found)}

    async def cold_poll(self, table: str, rows: int) -> dict[str, Any]:
        watch = Watch()
        scanner = await (await self._table(table)).new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        seen = total = 0
        while seen < rows:
            for record in await done(scanner.poll(1000)):
                total += record.row["id"]
                seen += 1
        return watch.answer([seen, total])

    async def cold_lookups(self, table: str, count: int, keys: int, lookupers: int) -> dict[str, Any]:
        """By 64 tasks, with one lookuper for all of them or one each."""
        watch = Watch()
        found = await self._table(table)
        made = [found.new_lookup().create_lookuper() for _ in range(lookupers)]

        async def task(first: int) -> float:
            total = 0.0
            lookuper = made[first % lookupers]
            for i in range(first, count, 64):
                total += (await lookuper.lookup({"id": (i * 7919) % keys}))["score"]
            return total

        totals = await asyncio.gather(*(task(first) for first in range(64)))
        return watch.answer([count, sum(totals)])
