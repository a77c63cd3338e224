# SPDX-License-Identifier: Apache-2.0
"""One user floods the server from a process of its own; the lookups of another take not much longer than on a server
that nobody floods, on the same machine at the same time."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from tests.abuse.attackers import exchange, frame
from tests.abuse.test_budgets import Watched
from tests.abuse.test_hostile_clients import OPTIONS, logged_in
from tests.server.catalog.support import create
from tests.server.kv.support import kv_batch

import fluss.aio as fluss
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.record_messages import encode_produce_log, encode_put_kv
from fluss.records import encode_arrow_body, seal_log_batch
from fluss.rows import kv_key_encoder

ROOT = Path(__file__).parents[2]
LOOKUPS = 400
LOG_BYTES = 32 << 20
ROWS = 20_000
SLOWER_MAX = 5
NOISE_SECONDS = 0.01
"""What other processes add to the server that works, and not to the idle one, for each that wants a core."""

ATTEMPTS = 5
"""The flooded server has much work, so a busy machine delays it more often than the idle one."""

Requests = Mapping[str, bytes]


async def make_requests(config: fluss.Config) -> Requests:
    """Make a primary-key table and a log of 32 MiB; returns frames that read, write and change them."""
    async with await fluss.FlussConnection.create(config) as connection:
        admin = connection.get_admin()
        row_path, log_path = fluss.TablePath("fluss", "rows"), fluss.TablePath("fluss", "log")
        columns = pa.schema([("k", pa.int32()), ("v", pa.string())])
        keyed = fluss.Schema(columns.insert(1, pa.field("part", pa.int32())), primary_keys=["k", "part"])
        await admin.create_table(row_path, fluss.TableDescriptor(keyed, bucket_count=1, bucket_keys=["k"]))
        await admin.create_table(log_path, fluss.TableDescriptor(fluss.Schema(columns), bucket_count=1))
        table, log = await connection.get_table(row_path), await connection.get_table(log_path)
        async with table.new_upsert().create_writer() as writer:
            numbers = pa.array(range(ROWS), pa.int32())
            writer.write_arrow(pa.table([numbers, numbers, pa.array(["x"] * ROWS)], schema=keyed.arrow_schema))
        async with log.new_append().create_writer() as appender:
            texts = pa.array([os.urandom(500).hex() for _ in range(1024)])
            rows = pa.record_batch([pa.array(range(1024), pa.int32()), texts], schema=columns)
            for _ in range(LOG_BYTES >> 20):
                appender.write_arrow_batch(rows)
        info, log_id = table.get_table_info(), log.get_table_info().table_id
    encoder = kv_key_encoder(info)
    put = kv_batch(info, info.schema, 1, [(number, number, "y") for number in range(500)])
    small = encode_arrow_body(rows.slice(0, 1), compression="NONE")
    append = b"".join(bytes(part) for part in seal_log_batch(small, schema_id=1))
    lookup = pb.LookupRequest(table_id=info.table_id)
    lookup.buckets_req.add(bucket_id=0, keys=[bytes(encoder.encode((1, 1)))])
    fetch = pb.FetchLogRequest(follower_server_id=-1, max_bytes=LOG_BYTES)
    fetch.tables_req.add(table_id=log_id, projection_pushdown_enabled=False).buckets_req.add(
        bucket_id=0, fetch_offset=0, max_fetch_bytes=LOG_BYTES
    )
    projected = pb.FetchLogRequest(follower_server_id=-1, max_bytes=LOG_BYTES)
    projected.tables_req.add(table_id=log_id, projection_pushdown_enabled=True, projected_fields=[1]).buckets_req.add(
        bucket_id=0, fetch_offset=0, max_fetch_bytes=LOG_BYTES
    )
    limited = pb.LimitScanRequest(table_id=info.table_id, bucket_id=0, limit=ROWS)
    prefixes = pb.PrefixLookupRequest(table_id=info.table_id)
    prefixes.buckets_req.add(bucket_id=0, keys=[b""])
    scan = pb.ScanKvRequest(call_seq_id=0, batch_size_bytes=1 << 16)  # one that is never read to its end
    scan.bucket_scan_req.table_id, scan.bucket_scan_req.bucket_id = info.table_id, 0
    made = create(fluss.TableDescriptor(fluss.Schema(columns)), "made", ignore=True)
    drop = pb.DropTableRequest(table_path=made.table_path, ignore_if_not_exists=True)
    return {
        "limit scan": frame(apis.LIMIT_SCAN.key, 0, 1, limited.SerializeToString()),
        "prefix lookup": frame(apis.PREFIX_LOOKUP.key, 1, 1, prefixes.SerializeToString()),
        "scan": frame(apis.SCAN_KV.key, 0, 1, scan.SerializeToString()),
        "DDL": frame(apis.CREATE_TABLE.key, 0, 1, made.SerializeToString())
        + frame(apis.DROP_TABLE.key, 0, 1, drop.SerializeToString()),
        "lookup": frame(apis.LOOKUP.key, 1, 1, lookup.SerializeToString()),
        "fetch": frame(apis.FETCH_LOG.key, 0, 1, fetch.SerializeToString()),
        "projected fetch": frame(apis.FETCH_LOG.key, 0, 1, projected.SerializeToString()),
        "put": frame(apis.PUT_KV.key, 0, 1, _joined(encode_put_kv(-1, info.table_id, 10_000, [(None, 0, [put])]))),
        "append": frame(
            apis.PRODUCE_LOG.key, 0, 1, _joined(encode_produce_log(-1, log_id, 10_000, [(None, 0, [append])]))
        ),
    }


def _joined(parts: object) -> bytes:
    return b"".join(bytes(part) for part in parts)  # type: ignore[attr-defined]


@contextlib.contextmanager
def flood(watched: Watched, requests: list[tuple[int, bytes]]) -> Iterator[None]:
    """Connections of one user, each of which always has requests on their way."""
    order = {
        "address": watched.sasl,
        "user": "mallory",
        "password": "m",
        "requests": [(count, base64.b64encode(request).decode()) for count, request in requests],
    }
    command = [sys.executable, "-m", "tests.abuse.flood"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "flooding\n"
            yield
        finally:
            process.kill()


def p99_seconds(*asked: tuple[socket.socket, bytes]) -> list[float]:
    """The time of lookups on each connection, one after the other."""
    took: list[list[float]] = [[] for _ in asked]
    for _ in range(LOOKUPS):
        for (sock, lookup), seconds in zip(asked, took):
            began = time.monotonic()
            assert exchange(sock, lookup, 60) is not None
            seconds.append(time.monotonic() - began)
            time.sleep(0.001)
    return [sorted(seconds)[LOOKUPS * 99 // 100 - 1] for seconds in took]


MEANS = {
    "lookup": 40,
    "fetch": 10,
    "projected fetch": 10,
    "put": 40,
    "append": 40,
    "scan": 10,
    "limit scan": 10,
    "prefix lookup": 10,
    "DDL": 10,
}
"""With how many connections each of them floods; half of them when all do."""


@pytest.mark.parametrize(
    "means",
    [
        *(pytest.param({name: count}, marks=pytest.mark.slow, id=name) for name, count in MEANS.items()),
        pytest.param({name: count // 2 for name, count in MEANS.items()}, id="all"),
    ],
)
def test_a_flood_of_one_user_leaves_others_served(tmp_path: Path, means: dict[str, int]) -> None:
    options = {**OPTIONS, "server.max-connections": "200", "kv.scanner.ttl": "1 s"}
    with Watched(tmp_path / "flooded", **options) as watched, Watched(tmp_path / "quiet", **options) as quiet:
        requests, quiet_requests = (asyncio.run(make_requests(each.server.config())) for each in (watched, quiet))
        with (
            logged_in(watched, "alice", "a") as sock,
            logged_in(quiet, "alice", "a") as quiet_sock,
            flood(watched, [(count, requests[name]) for name, count in means.items()]),
        ):
            time.sleep(1)
            found = []
            for _ in range(ATTEMPTS):
                loaded, unloaded = p99_seconds((sock, requests["lookup"]), (quiet_sock, quiet_requests["lookup"]))
                print(f"\n{means}: p99 of a lookup {loaded * 1000:.1f} ms, unloaded {unloaded * 1000:.1f} ms", end="")
                if loaded <= SLOWER_MAX * unloaded + NOISE_SECONDS * max(1, os.getloadavg()[0] / (os.cpu_count() or 1)):
                    return
                found.append((unloaded, loaded))
    pytest.fail(f"p99 of a lookup, unloaded and loaded: {found}")
