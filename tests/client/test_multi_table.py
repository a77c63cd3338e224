# SPDX-License-Identifier: Apache-2.0
"""One writer and one scanner for many tables."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

import fluss
import fluss.aio

FIELDS = pa.schema([("id", pa.int32()), ("name", pa.string())])


async def make_tables(conn, database):
    admin = conn.get_admin()
    await admin.create_database(database)
    for name, keys in (("log", None), ("pk", ["id"]), ("other", None)):
        schema = fluss.Schema(FIELDS, primary_keys=keys)
        await admin.create_table(fluss.TablePath(database, name), fluss.TableDescriptor(schema, bucket_count=1))


async def test_many_tables_on_one_connection(config, database):
    log, pk, other = (f"{database}.{name}" for name in ("log", "pk", "other"))
    async with await fluss.aio.FlussConnection.create(config) as conn:
        await make_tables(conn, database)
        multi = conn.get_multi_table()
        async with multi.new_multi_table_write().create_writer() as writer:
            for i in range(10):
                await writer.append(log, (i, f"n{i}"))
                await writer.upsert(fluss.TablePath(database, "pk"), (i, "x"))
            await (await writer.delete(pk, {"id": 3})).wait()
            with pytest.raises(fluss.InvalidArgumentError, match=r"has a primary key: write to it with upsert\(\)"):
                await writer.append(pk, (1, "a"))
            with pytest.raises(fluss.InvalidArgumentError, match=r"has no primary key: .* with append\(\)"):
                await writer.delete(log, (1,))
            with pytest.raises(fluss.TableNotExistError):
                await writer.append(f"{database}.none", (1, "a"))
        scan = multi.new_multi_table_scan().project_by_name(log, ["name"]).filter(pk, fluss.col("id") == 3)
        async with scan.create_log_scanner() as scanner:
            with pytest.raises(fluss.InvalidArgumentError, match="No buckets subscribed"):
                await scanner.poll(10)
            await scanner.subscribe_from_beginning(log, 0)
            await scanner.subscribe(pk, 0, fluss.EARLIEST_OFFSET)
            await scanner.subscribe(other, 0, 0)
            found = []
            while len(found) < 12:
                records = await scanner.poll(5000)
                found += list(records)
            by_table = {}
            for path, record in found:
                by_table.setdefault(str(path), []).append((record.change_type.short_string(), record.row))
            assert by_table[log] == [("+A", {"name": f"n{i}"}) for i in range(10)]
            assert by_table[pk] == [("+I", {"id": 3, "name": "x"}), ("-D", {"id": 3, "name": "x"})]
            assert other not in by_table
            empty = await scanner.poll(50)
            assert (empty.count(), empty.is_empty(), empty.tables()) == (0, True, [])
            assert len(empty.records(log)) == 0
            waiting = asyncio.ensure_future(scanner.poll(30_000))
            await asyncio.sleep(0.05)
            scanner.wakeup()
            assert len(await asyncio.wait_for(waiting, 20)) == 0
            await scanner.unsubscribe(log, 0)
            assert [len(buckets) for buckets in scanner.get_subscribed_buckets().values()] == [0, 1, 1]


async def test_many_tables_with_plain_calls(config, database):
    with await fluss.FlussConnection.create(config) as conn:
        await make_tables(conn, database)
        multi = conn.get_multi_table()
        with multi.new_multi_table_write().create_writer() as writer:
            writer.append(f"{database}.log", (1, "a"))
            await writer.upsert(f"{database}.pk", (1, "b")).wait()
        with multi.new_multi_table_scan().create_log_scanner() as scanner:
            for name in ("log", "pk"):
                scanner.subscribe_from_beginning(f"{database}.{name}", 0)
            rows = []
            while len(rows) < 2:
                rows += [(path.table_name, record.row["name"]) for path, record in scanner.poll(5000)]
            assert sorted(rows) == [("log", "a"), ("pk", "b")]
