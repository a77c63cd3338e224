# SPDX-License-Identifier: Apache-2.0
"""What is asked of our client alone, beyond the operations of `client_ops.py`."""

from __future__ import annotations

import functools
import gc
import time
from typing import Any

import client_ops
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from client_ops import SCHEMA, Watch, arrow_batches, done, wide_schema

import fluss

PAYLOAD = pa.schema([pa.field("id", pa.int64()), pa.field("payload", pa.binary())])


def path(table: str) -> Any:
    return fluss.TablePath("fluss", table)


def noise(rows: int, size_bytes: int) -> pa.RecordBatch:
    """Rows that do not compress, so that a byte is a byte on the wire and on disk."""
    random = np.random.default_rng(rows * 31 + size_bytes)
    data = random.bytes(rows * size_bytes)
    offsets = np.arange(rows + 1, dtype=np.int32) * size_bytes
    payload = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.RecordBatch.from_arrays([pa.array(np.arange(rows)), payload], schema=PAYLOAD)


@functools.lru_cache(maxsize=2)
def same_batch(rows: int, columns: int, first: int = 0) -> pa.RecordBatch:
    if columns == 3:
        return arrow_batches(rows, rows)[0]
    ids = np.arange(first, first + rows)
    return pa.RecordBatch.from_arrays([pa.array(ids + i) for i in range(columns)], schema=wide_schema(columns))


class Side(client_ops.Side):
    """One client on one server, with more to do."""

    # -- many or few rows in a batch, many or few columns ------------------------------------------------------------

    async def write_same(self, table: str, batch_rows: int, batches: int, columns: int = 3) -> dict[str, Any]:
        """One batch, written many times over; then a flush."""
        return await self._write(table, [same_batch(batch_rows, columns)] * batches)

    async def write_ascending(self, table: str, batch_rows: int, batches: int, columns: int) -> dict[str, Any]:
        """Batches that continue each other: one that is repeated compresses to nothing where several are joined."""
        firsts = range(0, batches * batch_rows, batch_rows)
        return await self._write(table, [same_batch(batch_rows, columns, first) for first in firsts])

    async def _write(self, table: str, batches: list[pa.RecordBatch]) -> dict[str, Any]:
        writer = (await self._table(table)).new_append().create_writer()
        watch = Watch()
        for batch in batches:
            writer.write_arrow_batch(batch)
        await writer.flush()
        return watch.answer()

    async def append_flush(self, table: str, rows: int, flushes: int, columns: int = 3) -> dict[str, Any]:
        """Some rows as dicts and a flush, again and again."""
        names = SCHEMA.names if columns == 3 else wide_schema(columns).names
        texts = {"name": "user-1"} if columns == 3 else {}
        data = [{name: texts.get(name, i) for name in names} for i in range(rows)]
        writer = (await self._table(table)).new_append().create_writer()
        gc.collect()
        watch = Watch()
        for _ in range(flushes):
            for row in data:
                writer.append(row)
            await writer.flush()
        return watch.answer()

    async def read_through(self, table: str, buckets: int = 1, columns: list[str] | None = None) -> dict[str, Any]:
        """A whole table, batch by batch, keeping none of them."""
        scanner = await self._scanner(table, columns)
        scanner.subscribe_buckets(dict.fromkeys(range(buckets), fluss.EARLIEST_OFFSET))
        rows = 0
        watch = Watch()
        for batch in scanner.to_arrow_batch_reader():
            rows += batch.num_rows
        return watch.answer(rows)

    async def read_tail(self, table: str, rows: int) -> dict[str, Any]:
        """The newest rows of bucket 0."""
        admin = await done(self._connection.get_admin())
        end = (await admin.list_offsets(path(table), [0], fluss.OffsetSpec.latest()))[0]
        scanner = await self._scanner(table, None)
        watch = Watch()
        scanner.subscribe(0, end - rows)
        seen = 0
        for batch in scanner.to_arrow_batch_reader():
            seen += batch.num_rows
        return watch.answer(seen)

    async def _scanner(self, table: str, columns: list[str] | None) -> Any:
        scan = (await self._table(table)).new_scan()
        if columns is not None:
            scan = scan.project_by_name(columns)
        return await scan.create_record_batch_log_scanner()

    # -- small and large rows ----------------------------------------------------------------------------------------

    async def create_payload(self, table: str, primary_key: bool = False) -> dict[str, Any]:
        admin = await done(self._connection.get_admin())
        await admin.drop_table(path(table), ignore_if_not_exists=True)
        schema = fluss.Schema(PAYLOAD, primary_keys=["id"]) if primary_key else fluss.Schema(PAYLOAD)
        await admin.create_table(path(table), fluss.TableDescriptor(schema, bucket_count=1))
        return {"result": True}

    async def write_payload(self, table: str, rows: int, size_bytes: int, batch_rows: int) -> dict[str, Any]:
        batch = noise(batch_rows, size_bytes)
        writer = (await self._table(table)).new_append().create_writer()
        watch = Watch()
        for _ in range(rows // batch_rows):
            writer.write_arrow_batch(batch)
        await writer.flush()
        return watch.answer()

    async def upsert_payload(self, table: str, rows: int, size_bytes: int) -> dict[str, Any]:
        batch = noise(rows, size_bytes)
        writer = (await self._table(table)).new_upsert().create_writer()
        watch = Watch()
        writer.write_arrow_batch(batch)
        await writer.flush()
        return watch.answer()

    async def lookup_payload(self, table: str, count: int, keys: int) -> dict[str, Any]:
        lookuper = (await self._table(table)).new_lookup().create_lookuper()
        await lookuper.lookup({"id": 0})
        seen = 0
        watch = Watch()
        for i in range(count):
            seen += len((await lookuper.lookup({"id": (i * 7919) % keys}))["payload"])
        return watch.answer(seen)

    # -- many keys ---------------------------------------------------------------------------------------------------

    async def upsert_range(self, table: str, start: int, stop: int, batch_rows: int = 50_000) -> dict[str, Any]:
        """Keys from `start` on, as Arrow batches, so that the server is what is measured."""
        batches = []
        for first in range(start, stop, batch_rows):
            ids = np.arange(first, min(first + batch_rows, stop))
            names = pa.array(np.char.add("user-", (ids % 1000).astype(str)))
            batches.append(pa.RecordBatch.from_arrays([pa.array(ids), names, pa.array(ids * 0.5)], schema=SCHEMA))
        writer = (await self._table(table)).new_upsert().create_writer()
        watch = Watch()
        for batch in batches:
            writer.write_arrow_batch(batch)
        await writer.flush()
        return watch.answer()

    async def read_stored(self, table: str) -> dict[str, Any]:
        """All rows of a primary-key table, batch by batch, keeping none of them."""
        scanner = (await self._table(table)).new_scan().create_table_batch_scanner()
        rows = 0
        watch = Watch()
        while (found := await done(scanner.next_batch())) is not None:
            rows += found.batch.num_rows
        return watch.answer(rows)

    async def count(self, table: str) -> dict[str, Any]:
        """The number of rows that the server knows of."""
        admin = await done(self._connection.get_admin())
        watch = Watch()
        return watch.answer((await done(admin.get_table_stats(path(table)))).row_count)

    async def lookups_at_once(self, table: str, count: int, keys: int, size: int) -> dict[str, Any]:
        """So many keys in each call, one call after another."""
        lookuper = (await self._table(table)).new_lookup().create_lookuper()
        asked = [
            pa.table({"id": np.arange(first, min(first + size, count)) * 7919 % keys})
            for first in range(0, count, size)
        ]
        seen, total = 0, 0.0
        watch = Watch()
        for wanted in asked:
            found = await lookuper.lookup_many(wanted)
            seen += found.num_rows
            total += pc.sum(found["score"]).as_py()
        return watch.answer([seen, total])

    # -- many tables -------------------------------------------------------------------------------------------------

    async def create_many(self, start: int, stop: int) -> dict[str, Any]:
        admin = await done(self._connection.get_admin())
        descriptor = fluss.TableDescriptor(fluss.Schema(SCHEMA), bucket_count=1)
        watch = Watch()
        for i in range(start, stop):
            await admin.create_table(path(f"t{i}"), descriptor)
        return watch.answer()

    async def write_each(self, count: int) -> dict[str, Any]:
        """A row into each table, and a flush of all of them."""
        watch = Watch()
        writers = []
        for i in range(count):
            writer = (await self._table(f"t{i}")).new_append().create_writer()
            writer.append({"id": i, "name": "user-1", "score": 0.5})
            writers.append(writer)
        for writer in writers:
            await writer.flush()
        return watch.answer()

    async def list_tables(self, times: int) -> dict[str, Any]:
        admin = await done(self._connection.get_admin())
        started = time.perf_counter()
        for _ in range(times):
            names = await admin.list_tables("fluss")
        return {"seconds": (time.perf_counter() - started) / times, "result": len(names)}
