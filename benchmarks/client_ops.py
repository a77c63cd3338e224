# SPDX-License-Identifier: Apache-2.0
"""What is measured of a client, written once for both: the reference API, awaited wherever a call can be awaited."""

from __future__ import annotations

import asyncio
import gc
import inspect
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa

import fluss

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), pa.field("score", pa.float64())])


READY_S_MAX = 20.0
CREATED_MAX = 3
SETTLE_S = 0.3
"""Until the files of the table before are gone. Servers delete them after they have answered; it is no part of what
comes next, which it would share the disk and a processor with."""


async def done(value: Any) -> Any:
    """The two clients differ in what has to be awaited."""
    return await value if inspect.isawaitable(value) else value


def fingerprint(table: pa.Table) -> list[Any]:
    """Enough to see that two sides hold the same rows, in whatever order they came."""
    import pyarrow.compute as pc

    texts = (pa.types.is_string, pa.types.is_binary)
    columns = [pc.binary_length(c) if any(kind(c.type) for kind in texts) else c for c in table.columns]
    return [table.num_rows, *(pc.sum(column).as_py() for column in columns)]


def peak_bytes() -> int:
    """The most memory this process held, without pages of files: the kernel maps more or fewer of the same library."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    kilobytes = {words[0]: int(words[1]) for words in lines if words[0] in ("VmHWM:", "RssFile:")}
    return (kilobytes["VmHWM:"] - kilobytes["RssFile:"]) * 1024


class Watch:
    """Started when it is made; counts the seconds on the wall, and those of the processor over all threads."""

    def __init__(self) -> None:
        self._cpu = time.process_time()
        self._started = time.perf_counter()

    def answer(self, result: Any = None) -> dict[str, Any]:
        seconds = time.perf_counter() - self._started
        return {"seconds": seconds, "cpu": time.process_time() - self._cpu, "result": result}


def wide_schema(columns: int) -> pa.Schema:
    return pa.schema([pa.field(f"c{i}", pa.int64()) for i in range(columns)])


def arrow_batches(rows: int, batch_rows: int) -> list[pa.RecordBatch]:
    import numpy as np

    batches = []
    for start in range(0, rows, batch_rows):
        ids = np.arange(start, min(start + batch_rows, rows))
        names = pa.array([f"user-{i % 1000}" for i in ids.tolist()])
        batches.append(pa.RecordBatch.from_arrays([pa.array(ids), names, pa.array(ids * 0.5)], schema=SCHEMA))
    return batches


class Side:
    """One client, on one server at a time."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._connections: dict[str, Any] = {}
        self._rows: dict[str, Any] = {}
        self._batches: dict[tuple[int, int], list[pa.RecordBatch]] = {}

    async def connect(self, servers: str, **options: Any) -> dict[str, Any]:
        """Turn to a server; the connection to it stays."""
        if servers not in self._connections:
            config = fluss.Config({"bootstrap.servers": servers, **options})
            self._connections[servers] = await fluss.FlussConnection.create(config)
        self._connection = self._connections[servers]
        return {"result": getattr(fluss, "__file__", "?")}

    async def close(self) -> None:
        for connection in self._connections.values():
            await done(connection.close())

    async def create(
        self,
        table: str,
        primary_key: bool = False,
        properties: dict[str, str] | None = None,
        columns: int = 3,
        buckets: int = 1,
    ) -> dict[str, Any]:
        admin = await done(self._connection.get_admin())
        path = fluss.TablePath("fluss", table)
        arrow = SCHEMA if columns == 3 else wide_schema(columns)
        schema = fluss.Schema(arrow, primary_keys=[arrow.names[0]]) if primary_key else fluss.Schema(arrow)
        descriptor = fluss.TableDescriptor(schema, bucket_count=buckets, properties=properties or {})
        for _ in range(CREATED_MAX):
            await admin.drop_table(path, ignore_if_not_exists=True)
            await asyncio.sleep(SETTLE_S)
            await admin.create_table(path, descriptor)
            if await self._usable(admin, path, buckets):
                return {"result": True}
        raise RuntimeError(f"{path} was created {CREATED_MAX} times and never got a leader")

    async def _usable(self, admin: Any, path: Any, buckets: int) -> bool:
        """A cluster elects the leaders of a new table after it has answered; that is no part of what is timed.

        Now and then the Java server elects none for minutes; then the table is dropped and created again.
        """
        deadline = time.monotonic() + READY_S_MAX
        while (left := deadline - time.monotonic()) > 0:
            try:
                latest = admin.list_offsets(path, list(range(buckets)), fluss.OffsetSpec.latest())
                await asyncio.wait_for(latest, left)
                return True
            except (fluss.FlussError, asyncio.TimeoutError):
                await asyncio.sleep(0.05)
        return False

    async def drop(self, table: str) -> dict[str, Any]:
        admin = await done(self._connection.get_admin())
        await admin.drop_table(fluss.TablePath("fluss", table), ignore_if_not_exists=True)
        return {"result": True}

    async def _table(self, table: str) -> Any:
        return await self._connection.get_table(fluss.TablePath("fluss", table))

    def _make_rows(self, kind: str, rows: int) -> list[Any]:
        key = f"{kind}-{rows}"
        if key not in self._rows:
            dicts = [{"id": i, "name": f"user-{i % 1000}", "score": i * 0.5} for i in range(rows)]
            self._rows = {key: dicts if kind == "dict" else [tuple(row.values()) for row in dicts]}
        return self._rows[key]  # type: ignore[no-any-return]

    # -- writing --------------------------------------------------------------------------------------------------

    async def append_rows(self, table: str, rows: int, kind: str = "dict") -> dict[str, Any]:
        data = self._make_rows(kind, rows)
        writer = (await self._table(table)).new_append().create_writer()
        gc.collect()
        append = writer.append
        watch = Watch()
        for row in data:
            append(row)
        await writer.flush()
        return watch.answer()

    async def upsert_rows(self, table: str, rows: int) -> dict[str, Any]:
        data = self._make_rows("dict", rows)
        writer = (await self._table(table)).new_upsert().create_writer()
        gc.collect()
        upsert = writer.upsert
        watch = Watch()
        for row in data:
            upsert(row)
        await writer.flush()
        return watch.answer()

    async def write_batches(self, table: str, rows: int, batch_rows: int = 65_536) -> dict[str, Any]:
        if (rows, batch_rows) not in self._batches:
            self._batches = {(rows, batch_rows): arrow_batches(rows, batch_rows)}
        batches = self._batches[rows, batch_rows]
        writer = (await self._table(table)).new_append().create_writer()
        watch = Watch()
        for batch in batches:
            writer.write_arrow_batch(batch)
        await writer.flush()
        return watch.answer()

    async def write_wide(self, table: str, rows: int, columns: int, batch_rows: int = 65_536) -> dict[str, Any]:
        import numpy as np

        schema = wide_schema(columns)
        writer = (await self._table(table)).new_append().create_writer()
        watch = Watch()
        for start in range(0, rows, batch_rows):
            ids = np.arange(start, min(start + batch_rows, rows))
            writer.write_arrow_batch(
                pa.RecordBatch.from_arrays([pa.array(ids + i) for i in range(columns)], schema=schema)
            )
        await writer.flush()
        return watch.answer()

    # -- reading --------------------------------------------------------------------------------------------------

    async def to_arrow(self, table: str, columns: list[str] | None = None, buckets: int = 1) -> dict[str, Any]:
        scan = (await self._table(table)).new_scan()
        if columns is not None:
            scan = scan.project_by_name(columns)
        scanner = await scan.create_record_batch_log_scanner()
        scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
        watch = Watch()
        table_read = await done(scanner.to_arrow())
        answer = watch.answer()
        # Before the rows are added up, which takes memory of its own.
        return {**answer, "peak_bytes": peak_bytes(), "result": fingerprint(table_read)}

    async def poll_rows(self, table: str, rows: int) -> dict[str, Any]:
        scanner = await (await self._table(table)).new_scan().create_log_scanner()
        scanner.subscribe(0, fluss.EARLIEST_OFFSET)
        gc.collect()
        seen = total = 0
        watch = Watch()
        while seen < rows:
            records = await done(scanner.poll(1000))
            for record in records:
                total += record.row["id"]
                seen += 1
        return watch.answer([seen, total])

    async def lookups(self, table: str, count: int, keys: int) -> dict[str, Any]:
        """One after another; the answer's seconds are those of the middle one."""
        lookuper = (await self._table(table)).new_lookup().create_lookuper()
        await lookuper.lookup({"id": 0})
        times = []
        total = 0.0
        watch = Watch()
        for i in range(count):
            started = time.perf_counter()
            row = await lookuper.lookup({"id": (i * 7919) % keys})
            times.append(time.perf_counter() - started)
            total += row["score"]
        return {**watch.answer([count, total]), "seconds": statistics.median(times)}

    async def lookups_together(
        self, table: str, count: int, keys: int, together: int = 64, lookupers: int = 1
    ) -> dict[str, Any]:
        """So many users, each looking up one row after another.

        The official client answers one at a time for each lookuper, so it is given many.
        """
        found = await self._table(table)
        makers = [found.new_lookup().create_lookuper() for _ in range(lookupers)]
        await makers[0].lookup({"id": 0})

        async def user(first: int) -> float:
            total = 0.0
            for i in range(first, count, together):
                total += (await makers[i % lookupers].lookup({"id": (i * 7919) % keys}))["score"]
            return total

        watch = Watch()
        totals = await asyncio.gather(*(user(first) for first in range(together)))
        return watch.answer([count, sum(totals)])

    async def version(self) -> dict[str, Any]:
        return {"result": [getattr(fluss, "__version__", "?"), sys.version.split()[0], pa.__version__]}
