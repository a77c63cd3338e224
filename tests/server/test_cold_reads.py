# SPDX-License-Identifier: Apache-2.0
"""Who reads what only the disk has waits for it, and no other client does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.server.log_support import SCHEMA, connected, make_batch, running_server

from fluss.metadata import Schema, TableDescriptor
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.server import disk
from fluss.server.log.appends import split_batches
from fluss.server.server import Server

BYTES_PER_SECOND = 10e6
BATCHES = 6
ROWS = 30_000
"""Of a batch, which takes a little less than 1 MB."""
PAGE_BYTES = 64 * 1024
ATTEMPTS = 3


class SlowDisk:
    """Gives the bytes of logs slowly, but for those that were read already."""

    def __init__(self) -> None:
        self._read, self._send = disk.read_into_at, disk.send_file
        self._cached: set[tuple[str, int]] = set()

    def _missing(self, fd: int, position: int, size_bytes: int) -> set[tuple[str, int]]:
        path = os.readlink(f"/proc/self/fd/{fd}")
        if "/log-0/" not in path:
            return set()
        pages = range(position // PAGE_BYTES, (position + size_bytes - 1) // PAGE_BYTES + 1)
        return {(path, page) for page in pages} - self._cached

    def _wait(self, fd: int, position: int, size_bytes: int) -> None:
        missing = self._missing(fd, position, size_bytes)
        time.sleep(len(missing) * PAGE_BYTES / BYTES_PER_SECOND)
        self._cached |= missing

    def is_cached(self, fd: int, position: int, size_bytes: int) -> bool:
        return not self._missing(fd, position, size_bytes)

    def read_into_at(self, fd: int, buffers: Sequence[memoryview], position: int) -> int:
        self._wait(fd, position, sum(map(len, buffers)))
        return self._read(fd, buffers, position)

    def send_file(self, target: int, fd: int, position: int, size_bytes: int) -> int:
        self._wait(fd, position, size_bytes)
        return self._send(target, fd, position, size_bytes)


@contextlib.contextmanager
def slow_disk() -> Iterator[None]:
    names = ("read_into_at", "send_file", "is_cached")
    real, slow = [getattr(disk, name) for name in names], SlowDisk()
    try:
        for name in names:
            setattr(disk, name, getattr(slow, name))
        yield
    finally:
        for name, function in zip(names, real):
            setattr(disk, name, function)


async def read_all(server: Server, table: int, max_bytes: int) -> None:
    async with connected(server) as client:
        offset = 0
        while offset < BATCHES * ROWS:
            answer = await client.fetch(table, offset, max_bytes=max_bytes)
            offset = split_batches(memoryview(answer.records))[-1].last_offset + 1


async def longest_lookup(server: Server, table: int, reading: asyncio.Task[None]) -> float:
    """How long a lookup took at most while another client read."""
    request = pb.LookupRequest(table_id=table)
    request.buckets_req.add(bucket_id=0, keys=[bytes(8)])
    longest = 0.0
    async with connected(server) as client:
        while not reading.done():
            began = time.monotonic()
            await client.call(apis.LOOKUP, request)
            longest = max(longest, time.monotonic() - began)
            await asyncio.sleep(0.002)
    await reading
    return longest


@pytest.mark.parametrize("is_checked", [True, False], ids=["in use", "after a restart"])
@pytest.mark.parametrize("max_bytes", [1 << 24, 1 << 16], ids=["large answers", "small answers"])
async def test_a_reader_of_a_slow_disk_holds_up_no_lookup(tmp_path: Path, max_bytes: int, is_checked: bool) -> None:
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(running_server(tmp_path))
        async with connected(server) as client:
            log = await client.create_table(table_log_arrow_compression_type="NONE")
            keyed = Schema.of(SCHEMA.columns, primary_key=("id",))
            rows = await client.create(TableDescriptor(keyed, bucket_count=1), "rows")
            for number in range(BATCHES):
                await client.produce(log, make_batch(number * ROWS, ROWS))
        found = []
        for _ in range(ATTEMPTS):
            if not is_checked:
                await stack.aclose()
                server = await stack.enter_async_context(running_server(tmp_path))
            with slow_disk():
                began = time.monotonic()
                reading = asyncio.create_task(read_all(server, log, max_bytes))
                found.append(await longest_lookup(server, rows, reading))
                assert time.monotonic() - began > BATCHES * len(make_batch(0, ROWS)) / BYTES_PER_SECOND * 0.8
            if found[-1] < 0.05:
                return
        pytest.fail(f"the longest lookups took {found} s")
