# SPDX-License-Identifier: Apache-2.0
"""Small helpers of the tests that write and read tables."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pyarrow as pa
import pytest

import fluss
import fluss.aio
from fluss.net.connection import Connection
from fluss.protocol import apis


@contextlib.asynccontextmanager
async def open_table(
    config: fluss.Config, database: str, schema: Any, *, keys: list[str] | None = None, **options: Any
) -> AsyncIterator[tuple[Any, Any]]:
    """Open a connection and a new table `t` of the database."""
    async with await fluss.aio.FlussConnection.create(config) as conn:
        admin = conn.get_admin()
        await admin.create_database(database, ignore_if_exists=True)
        path = fluss.TablePath(database, "t")
        if not isinstance(schema, fluss.Schema):
            schema = fluss.Schema(pa.schema(schema), primary_keys=keys)
        await admin.create_table(path, fluss.TableDescriptor(schema, **{"bucket_count": 1, **options}))
        yield conn, await conn.get_table(path)


@contextlib.asynccontextmanager
async def records_from(start: int, scan: Any) -> AsyncIterator[Any]:
    """Open a scanner of records that begins at an offset of bucket 0."""
    async with await scan.create_log_scanner() as scanner:
        scanner.subscribe(0, start)
        yield scanner


@contextlib.asynccontextmanager
async def batches_from(start: int, scan: Any) -> AsyncIterator[Any]:
    """Open a scanner of batches that begins at an offset of bucket 0."""
    async with await scan.create_record_batch_log_scanner() as scanner:
        scanner.subscribe(0, start)
        yield scanner


async def write(table: Any, rows: Iterable[Any]) -> None:
    """Append rows, or upsert them where there is a key, and wait until they are written."""
    keyed = table.has_primary_key()
    writer = (table.new_upsert() if keyed else table.new_append()).create_writer()
    for row in rows:
        (writer.upsert if keyed else writer.append)(row)
    await writer.flush()


def without_cursors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let servers be as Apache Fluss before 1.0, which cannot list the rows of a bucket."""
    supports = Connection.supports
    monkeypatch.setattr(Connection, "supports", lambda self, api: api is not apis.SCAN_KV and supports(self, api))


async def closed(*things: Any) -> None:
    """Close things of either face: `fluss` blocks, `fluss.aio` is awaited."""
    for thing in things:
        closing = thing.close()
        if closing is not None:
            await closing


async def read_all(table: Any, scan: Any = None) -> pa.Table:
    """The rows in the log of a table without partitions, bucket after bucket, without what they did."""
    tables = []
    async with await (scan or table.new_scan()).create_record_batch_log_scanner() as scanner:
        for bucket in range(table.get_table_info().num_buckets):
            scanner.subscribe(bucket, fluss.EARLIEST_OFFSET)
            tables.append(await scanner.to_arrow())
            scanner.unsubscribe(bucket)
    rows = pa.concat_tables(tables)
    return rows.drop_columns(["_change_type"]) if "_change_type" in rows.column_names else rows


LOG_FIELDS = [("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())]


async def fill_log(table: Any, batches: int = 4, rows: int = 25, writer: Any = None) -> Any:
    """`batches` log batches in bucket 0 of a table of `LOG_FIELDS`, with ids from 0 on; gives the writer."""
    writer = writer or table.new_append().create_writer()
    for start in range(0, batches * rows, rows):
        ids = list(range(start, start + rows))
        data = {"id": ids, "name": [f"n{i}" for i in ids], "score": [i / 2 for i in ids]}
        await writer.write_arrow_batch(pa.RecordBatch.from_pydict(data)).wait()
    return writer


async def poll_all(scanner: Any, count: int, timeout_ms: int = 5000) -> list[Any]:
    """At least `count` records."""
    records: list[Any] = []
    while len(records) < count:
        found = await scanner.poll(timeout_ms)
        assert len(found), "nothing came"
        records += list(found)
    return records
