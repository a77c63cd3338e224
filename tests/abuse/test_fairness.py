# SPDX-License-Identifier: Apache-2.0
"""One user floods the server; the lookups of another take not much longer than without."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from tests.abuse.attackers import exchange, frame
from tests.abuse.test_budgets import Watched
from tests.abuse.test_hostile_clients import OPTIONS, logged_in

import fluss.aio as fluss
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.rows import kv_key_encoder

CONNECTIONS = 40
PIPELINED = 200
LOOKUPS = 200
SLOWER_MAX = 5
NOISE_SECONDS = 0.25
"""What the threads of the attacker, which share an interpreter with the client, and a busy machine add."""


async def make_table(config: fluss.Config) -> tuple[int, bytes]:
    """A table with a row; its id, and the key of the row."""
    path = fluss.TablePath("fluss", "rows")
    async with await fluss.FlussConnection.create(config) as connection:
        schema = fluss.Schema(pa.schema([("k", pa.int32()), ("v", pa.int64())]), primary_keys=["k"])
        await connection.get_admin().create_table(path, fluss.TableDescriptor(schema, bucket_count=1))
        table = await connection.get_table(path)
        async with table.new_upsert().create_writer() as writer:
            writer.upsert((1, 1))
        info = table.get_table_info()
    return info.table_id, bytes(kv_key_encoder(info).encode((1,)))


@contextlib.contextmanager
def flood(watched: Watched, request: bytes) -> Iterator[None]:
    """40 connections of one user that always have requests on their way."""
    ended = threading.Event()

    def send(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while not ended.is_set():
                sock.sendall(request * PIPELINED)

    def take(sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while sock.recv(1 << 20):
                pass

    sockets = [logged_in(watched, "mallory", "m") for _ in range(CONNECTIONS)]
    threads = [threading.Thread(target=work, args=(sock,), daemon=True) for sock in sockets for work in (send, take)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for sock in sockets:
            sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(10)
        for sock in sockets:
            sock.close()


def p99_seconds(sock: socket.socket, lookup: bytes) -> float:
    took = []
    for _ in range(LOOKUPS):
        began = time.monotonic()
        assert exchange(sock, lookup, 60) is not None
        took.append(time.monotonic() - began)
    return sorted(took)[LOOKUPS * 99 // 100 - 1]


def test_forty_pipelining_connections_of_one_user_leave_others_served(tmp_path: Path) -> None:
    with Watched(tmp_path, **{**OPTIONS, "server.max-connections": "200"}) as watched:
        table_id, key = asyncio.run(make_table(watched.server.config()))
        request = pb.LookupRequest(table_id=table_id)
        request.buckets_req.add(bucket_id=0, keys=[key])
        lookup = frame(apis.LOOKUP.key, 1, 1, request.SerializeToString())
        with logged_in(watched, "alice", "a") as sock:
            unloaded = p99_seconds(sock, lookup)
            with flood(watched, lookup):
                time.sleep(0.5)
                loaded = p99_seconds(sock, lookup)
    assert loaded <= SLOWER_MAX * unloaded + NOISE_SECONDS, (unloaded, loaded)
