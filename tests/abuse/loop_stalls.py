# SPDX-License-Identifier: Apache-2.0
"""Measure how long requests keep the event loop of a server busy: ``python -m tests.abuse.loop_stalls [rows]``.

The server runs in a process of its own and measures itself; its figures are read from its metrics page.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.abuse.attackers import exchange, frame
from tests.ports import free_port

import fluss.aio as fluss
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.frames import ResponseKind, parse_response
from fluss.server.local import LocalServer

PATH = fluss.TablePath("stalls", "rows")
LOG_PATH = fluss.TablePath("stalls", "log")
WIDE_PATH = fluss.TablePath("stalls", "wide")


class MeasuredServer:
    """A server whose event loop is watched."""

    def __init__(self, folder: Path, **options: object) -> None:
        self.metrics_port = free_port()
        self.server = LocalServer(folder / "data", options={"metrics.prometheus.port": self.metrics_port, **options})
        self.table_id = self.log_table_id = -1

    def __enter__(self) -> MeasuredServer:
        self.server.start()
        host, _, port = self.server.bootstrap_servers.rpartition(":")
        self.address = (host, int(port))
        self.sock = socket.create_connection(self.address, timeout=120)
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()
        self.server.kill()

    def figure(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics") as page:
            text = page.read().decode()
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"fluss_{name} "))

    @property
    def stalls(self) -> int:
        """Iterations of the event loop so far that took more than 50 ms of processor time."""
        return int(self.figure("tabletserver_eventLoop_stalls"))

    def load(self, rows: int) -> None:
        """Fill one bucket of a primary-key table, and a log table, with this many rows."""
        asyncio.run(self._load(rows))

    async def _load(self, rows: int) -> None:
        config = self.server.config()
        async with await fluss.FlussConnection.create(config) as connection:
            admin = connection.get_admin()
            await admin.create_database("stalls", ignore_if_exists=True)
            columns = pa.schema([("id", pa.int64()), ("part", pa.int64()), ("name", pa.string())])
            keyed = fluss.Schema(columns, primary_keys=["id", "part"])
            await admin.create_table(PATH, fluss.TableDescriptor(keyed, bucket_count=1, bucket_keys=["id"]))
            await admin.create_table(LOG_PATH, fluss.TableDescriptor(fluss.Schema(columns), bucket_count=1))
            await admin.create_table(WIDE_PATH, fluss.TableDescriptor(fluss.Schema(columns), bucket_count=4096))
            ids = np.random.default_rng(1).permutation(rows).astype(np.int64)
            data = pa.table({"id": ids, "part": ids % 7, "name": [f"name of row {number}" for number in ids]})
            table = await connection.get_table(PATH)
            self.table_id = table.get_table_info().table_id
            async with table.new_upsert().create_writer() as upserter:
                upserter.write_arrow(data)
            table = await connection.get_table(LOG_PATH)
            self.log_table_id = table.get_table_info().table_id
            async with table.new_append().create_writer() as appender:
                appender.write_arrow(data)

    def ask(self, api: apis.Api[Any, Any], body: bytes, seconds: float = 120) -> bytes | None:
        """Send one request; returns the frame of the answer."""
        return exchange(self.sock, frame(api.key, api.max_version, 1, body), seconds)

    def requests(self) -> Iterator[tuple[str, apis.Api[Any, Any], bytes]]:
        """Requests that ask for as much as they can."""
        table, log = self.table_id, self.log_table_id
        for name, table_id in (("limit scan", table), ("limit scan of a log", log)):
            limit = pb.LimitScanRequest(table_id=table_id, bucket_id=0, limit=2**31 - 1)
            yield name, apis.LIMIT_SCAN, limit.SerializeToString()
        prefix = pb.PrefixLookupRequest(table_id=table)
        prefix.buckets_req.add(bucket_id=0, keys=[b""])
        yield "prefix lookup of everything", apis.PREFIX_LOOKUP, prefix.SerializeToString()
        many = pb.PrefixLookupRequest(table_id=table)
        many.buckets_req.add(bucket_id=0, keys=[number.to_bytes(2, "big") for number in range(20_000)])
        yield "many prefixes", apis.PREFIX_LOOKUP, many.SerializeToString()
        scan = pb.ScanKvRequest(call_seq_id=0, batch_size_bytes=2**31 - 1)
        scan.bucket_scan_req.table_id = table
        scan.bucket_scan_req.bucket_id = 0
        yield "scan", apis.SCAN_KV, scan.SerializeToString()
        lookup = pb.LookupRequest(table_id=table)
        lookup.buckets_req.add(bucket_id=0, keys=[number.to_bytes(8, "little") for number in range(99_000)])
        yield "99,000 keys", apis.LOOKUP, lookup.SerializeToString()
        empty = pb.LookupRequest(table_id=table)
        empty.buckets_req.add(bucket_id=0, keys=[b""] * 15_000_000)
        yield "15,000,000 empty keys", apis.LOOKUP, empty.SerializeToString()
        filters = pb.DropAclsRequest()
        filters.acl_filter.extend([pb.PbAclFilter()] * 2_000_000)
        yield "2,000,000 empty filters", apis.DROP_ACLS, filters.SerializePartialToString()
        buckets = pb.LookupRequest(table_id=table)
        for _ in range(50_000):
            buckets.buckets_req.add(bucket_id=0, keys=[b"x"])
        yield "50,000 buckets", apis.LOOKUP, buckets.SerializeToString()
        offsets = pb.ListOffsetsRequest(follower_server_id=-1, offset_type=1, table_id=log, bucket_id=[0] * 100_000)
        yield "offsets", apis.LIST_OFFSETS, offsets.SerializeToString()
        metadata = pb.MetadataRequest()
        for _ in range(100_000):
            metadata.table_path.add(database_name="stalls", table_name="rows")
        yield "metadata", apis.GET_METADATA, metadata.SerializeToString()
        wide = pb.MetadataRequest()
        wide.table_path.add(database_name="stalls", table_name="wide")
        yield "metadata of 4,096 buckets", apis.GET_METADATA, wide.SerializeToString()
        missing = pb.MetadataRequest()
        missing.table_path.add(database_name="stalls", table_name="rows")
        missing.partitions_id.extend([0] * 500_000)
        yield "partition ids", apis.GET_METADATA, missing.SerializeToString()
        stats = pb.GetTableStatsRequest(table_id=log)
        for _ in range(100_000):
            stats.buckets_req.add(bucket_id=0)
        yield "statistics", apis.GET_TABLE_STATS, stats.SerializeToString()
        fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=2**31 - 1, max_wait_ms=0)
        asked = fetch.tables_req.add(table_id=log, projection_pushdown_enabled=False)
        for _ in range(50_000):
            asked.buckets_req.add(bucket_id=0, fetch_offset=0, max_fetch_bytes=1)
        yield "fetch of many buckets", apis.FETCH_LOG, fetch.SerializeToString()
        waiting = pb.FetchLogRequest(follower_server_id=-1, max_bytes=2**31 - 1, min_bytes=2**31 - 1, max_wait_ms=300)
        waiting.tables_req.append(asked)
        yield "fetch that waits", apis.FETCH_LOG, waiting.SerializeToString()
        put = pb.PutKvRequest(acks=-1, table_id=table, timeout_ms=1000)
        produce = pb.ProduceLogRequest(acks=-1, table_id=log, timeout_ms=1000)
        for _ in range(49_990):
            put.buckets_req.add(bucket_id=0, records=b"")
            produce.buckets_req.add(bucket_id=0, records=b"")
        yield "put to many buckets", apis.PUT_KV, put.SerializeToString()
        yield "write to many buckets", apis.PRODUCE_LOG, produce.SerializeToString()
        literal = pb.FetchLogRequest(follower_server_id=-1, max_bytes=1)
        leaf = literal.tables_req.add(table_id=log, projection_pushdown_enabled=False).filter_predicate.leaf
        leaf.literals.extend([pb.PbLiteralValue()] * 2_000_000)
        yield "2,000,000 empty literals", apis.FETCH_LOG, literal.SerializePartialToString()
        writers = pb.InitWriterRequest()
        for _ in range(150_000):
            writers.table_path.add(database_name="stalls", table_name="rows")
        yield "writers", apis.INIT_WRITER, writers.SerializeToString()


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 500_000
    with tempfile.TemporaryDirectory() as folder, MeasuredServer(Path(folder)) as server:
        server.load(rows)
        print(f"{'loading':30} stalls {server.stalls:4}")
        for name, api, body in server.requests():
            for turn in ("first", "again"):
                before, began = server.stalls, time.monotonic()
                answer = server.ask(api, body)
                assert answer is not None, name
                response = parse_response(memoryview(answer))
                kind = ResponseKind(response.kind).name.lower()
                seconds = time.monotonic() - began
                time.sleep(0.05)
                longest = server.figure("tabletserver_eventLoop_longestBusyMs")
                stalls = server.stalls - before
                print(
                    f"{name:28} {turn} {seconds:6.2f} s  stalls {stalls:4}  longest so far {longest:7.0f} ms"
                    f"  {len(answer):11,} bytes {kind} {repr(bytes(response.body)[:60]) if response.kind else ''}"
                )


if __name__ == "__main__":
    main()
