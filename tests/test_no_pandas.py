# SPDX-License-Identifier: Apache-2.0
"""pandas is loaded when a data frame is asked for, and not by writing or reading rows.

pyarrow imports it for the first conversion it makes itself. Client and server are processes that may live for one row.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("pandas")

CODE = """
import asyncio, datetime as dt, sys, traceback

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            traceback.print_stack(limit=30)
            sys.exit(7)

sys.meta_path.insert(0, Refuse())
import pyarrow as pa
import fluss
from fluss import aio
from fluss.server.server import Server

SCHEMA = pa.schema([
    ("id", pa.int64()), ("name", pa.string()), ("score", pa.float64()), ("small", pa.int16()), ("flag", pa.bool_()),
    ("data", pa.binary()), ("day", pa.date32()), ("at", pa.timestamp("us")), ("seen", pa.timestamp("us", "UTC")),
    ("single", pa.float32()),
])
ROWS = [
    {"id": i, "name": f"user-{i}", "score": i * 0.5, "small": i, "flag": i % 2 == 0, "data": b"x" * i,
     "day": dt.date(2024, 1, 1 + i), "at": dt.datetime(2024, 1, 1, i), "single": i * 0.5,
     "seen": dt.datetime(2024, 1, 1, i, tzinfo=dt.timezone.utc)}
    for i in range(20)
] + [{"id": 20, **dict.fromkeys(SCHEMA.names[1:])}]

async def main(folder):
    server = Server({"data.dir": folder, "bind.listeners": "FLUSS://127.0.0.1:0"})
    await server.start()
    try:
        config = fluss.Config({"bootstrap.servers": f"127.0.0.1:{server.listeners['FLUSS'].port}"})
        async with await aio.FlussConnection.create(config) as connection:
            await use(connection)
    finally:
        await server.stop()

async def use(connection):
    admin = await connection.get_admin()
    for name, keys in (("log", None), ("keyed", ["id"])):
        schema = fluss.Schema(SCHEMA, primary_keys=keys)
        await admin.create_table(fluss.TablePath("fluss", name), fluss.TableDescriptor(schema, bucket_count=3))
    log = await connection.get_table("fluss.log")
    writer = log.new_append().create_writer()
    for row in ROWS:
        writer.append(row)
    await writer.flush()
    scanner = await log.new_scan().create_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(3), fluss.EARLIEST_OFFSET))
    found = []
    while len(found) < len(ROWS):
        found += [record.row for record in await scanner.poll(1000)]
    assert sorted(found, key=lambda row: row["id"]) == ROWS, found
    scanner = await log.new_scan().create_record_batch_log_scanner()
    scanner.subscribe_buckets(dict.fromkeys(range(3), fluss.EARLIEST_OFFSET))
    assert (await scanner.to_arrow()).num_rows == 21
    keyed = await connection.get_table("fluss.keyed")
    for _ in range(2):
        writer = keyed.new_upsert().create_writer()
        for row in ROWS:
            writer.upsert(row)
        await writer.flush()
    lookuper = keyed.new_lookup().create_lookuper()
    assert [await lookuper.lookup({"id": row["id"]}) for row in ROWS] == ROWS
    assert (await lookuper.lookup_many([{"id": i} for i in range(30)])).num_rows == 21
    writer.delete({"id": 3})
    await writer.flush()
    assert await lookuper.lookup({"id": 3}) is None

asyncio.run(main(sys.argv[1]))
print("done")
"""


def test_rows_are_written_and_read_without_pandas(tmp_path: object) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "done", done.stderr
