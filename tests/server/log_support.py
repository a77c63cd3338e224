# SPDX-License-Identifier: Apache-2.0
"""Batches, logs and servers for the tests of the server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from fluss.metadata import Schema, TableBucket, TableDescriptor
from fluss.net.connection import Connection
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.record_messages import encode_produce_log
from fluss.records import build_statistics, encode_arrow_body, iter_log_batches, seal_log_batch
from fluss.records.arrow import decode_arrow_batch
from fluss.server import disk
from fluss.server.clock import Clock
from fluss.server.commit import run_sync
from fluss.server.environment import Environment
from fluss.server.log import reader
from fluss.server.log.appends import AppendResult
from fluss.server.log.files import OpenFiles
from fluss.server.log.recovery import write_checkpoint
from fluss.server.log.segment import LogSettings
from fluss.server.log.tablet import LogTablet
from fluss.server.server import Server

T = TypeVar("T")

OPENED: list[Any] = []
"""Harnesses that are closed after the test that opened them."""

ARROW_SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string()), ("score", pa.float64())])
SCHEMA = Schema(ARROW_SCHEMA)
BUCKET = TableBucket(1, 0)


class FakeClock(Clock):
    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.time_ms = now_ms

    def _read_ms(self) -> tuple[int, int]:
        return self.time_ms, self.time_ms


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = range(first, first + count)
    return pa.RecordBatch.from_pydict(
        {"id": list(ids), "name": [f"user-{i}" for i in ids], "score": [i / 2 for i in ids]}, schema=ARROW_SCHEMA
    )


def make_batch(
    first: int = 0, count: int = 3, *, writer_id: int = -1, sequence: int = -1, statistics: bool = False
) -> bytearray:
    """One uncompressed log batch with the ids ``first``… in it."""
    batch = rows(first, count)
    stats = build_statistics(batch, SCHEMA, [0, 1]) if statistics else None
    body = encode_arrow_body(batch, compression="NONE", statistics=stats)
    parts = seal_log_batch(body, schema_id=1, writer_id=writer_id, batch_sequence=sequence)
    return bytearray(b"".join(bytes(part) for part in parts))


def ids_of(data: bytes | memoryview, schema: pa.Schema = ARROW_SCHEMA) -> list[int]:
    """The ids of all records in served bytes; offsets must follow one another."""
    ids: list[int] = []
    expected: int | None = None
    for batch in iter_log_batches(data, verify=True):
        assert expected is None or batch.header.base_offset == expected
        expected = batch.header.next_offset
        ids += decode_arrow_batch(batch, schema).column(0).to_pylist()
    return ids


def append(log: LogTablet, records: bytes | bytearray) -> AppendResult:
    """Append a few rows, which needs no event loop."""
    outcomes: list[AppendResult | Exception] = []
    log.append_then(memoryview(records), outcomes.append)
    if isinstance(outcomes[0], Exception):
        raise outcomes[0]
    return outcomes[0]


class LogHarness:
    """A log without a server: commits are made by hand."""

    def __init__(self, folder: Path, *, clock: Clock | None = None, **settings: int) -> None:
        self.folder = folder
        self.clock: Any = clock or FakeClock()
        self.settings = LogSettings(**settings)
        self.executor = ThreadPoolExecutor(1)
        self.dirty: list[LogTablet] = []
        self.log = LogTablet(
            BUCKET,
            folder,
            self.settings,
            clock=self.clock,
            open_files=OpenFiles(),
            executor=self.executor,
            on_append=self.dirty.append,
        )
        self.log.open()
        self._crashed = False
        OPENED.append(self)

    def append(self, *batches: bytearray) -> int:
        return append(self.log, b"".join(batches)).base_offset

    def commit(self, *, checkpoint: bool = False) -> None:
        plan = self.log.sync_plan(checkpoint=checkpoint)
        run_sync(plan)
        if plan.checkpoint is not None:
            write_checkpoint(plan.checkpoint)
            self.log.checkpoint_written(plan.checkpoint)
        self.log.commit(plan)

    def expire(self, offset: int) -> int:
        """Delete the segments before an offset; returns how many are gone."""
        self.log.detach_segments_before(offset)
        self.commit(checkpoint=True)
        return self.log.expired.delete_now()

    def write(self, *batches: bytearray) -> int:
        offset = self.append(*batches)
        self.commit()
        return offset

    def read(self, offset: int, bytes_max: int = 1 << 30, **options: Any) -> reader.ReadResult:
        options.setdefault("first_batch_always", True)
        return reader.read(reader.plan_read(self.log, reader.resolve_offset(self.log, offset), bytes_max, **options))

    def read_all(self) -> list[int]:
        """All ids from the first offset to the high watermark."""
        self.log.check_usable()
        ids: list[int] = []
        offset = self.log.start_offset
        while offset < self.log.high_watermark:
            data = b"".join(bytes(part) for part in self.read(offset).parts)
            ids += ids_of(data)
            offset = max(batch.header.next_offset for batch in iter_log_batches(data))
        return ids

    def crash(self) -> None:
        """Forget everything in memory, as a kill would; the operating system keeps what was written."""
        if not self._crashed:
            self._crashed = True
            self.log.release()
            self.executor.shutdown()

    def close(self) -> None:
        if self.log.needs_checkpoint:
            self.commit(checkpoint=True)
        self.crash()


@contextlib.contextmanager
def failing(name: str, wanted: Callable[[Any], bool], code: int = errno.EIO) -> Iterator[list[int]]:
    """Make an operation of the disk fail where it is wanted; the list counts how often it did."""
    real, count = getattr(disk, name), [0]

    def operation(first: Any, *rest: Any) -> Any:
        if wanted(first):
            count[0] += 1
            raise OSError(code, os.strerror(code))
        return real(first, *rest)

    setattr(disk, name, operation)
    try:
        yield count
    finally:
        setattr(disk, name, real)


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)


def path_of(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def run(work: Coroutine[Any, Any, T], seconds: float = 30) -> T:
    return asyncio.run(asyncio.wait_for(work, seconds))


def fetch_request(
    table_id: int, offset: int, *, buckets: Iterable[int] = (0,), max_bytes: int = 1 << 24, **fields: Any
) -> pb.FetchLogRequest:
    request = pb.FetchLogRequest(follower_server_id=-1, max_bytes=max_bytes, **fields)
    table = request.tables_req.add(table_id=table_id, projection_pushdown_enabled=False)
    for bucket in buckets:
        table.buckets_req.add(bucket_id=bucket, fetch_offset=offset, max_fetch_bytes=max_bytes)
    return request


class Client:
    """A bare connection with the calls that the tests need."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def call(self, api: apis.Api[Any, Any], message: Any) -> Any:
        return await self.connection.call(api, message)

    async def send(self, message: Any) -> Any:
        """Call the API whose request this is."""
        api = next(api for api in apis.APIS.values() if api.request is type(message))
        return await self.call(api, message)

    async def create(self, descriptor: TableDescriptor, name: str = "t", database: str = "fluss") -> int:
        path, document = pb.PbTablePath(database_name=database, table_name=name), descriptor.to_json_bytes()
        await self.send(pb.CreateTableRequest(table_path=path, table_json=document, ignore_if_exists=False))
        return int((await self.send(pb.GetTableInfoRequest(table_path=path))).table_id)

    async def create_table(self, name: str = "t", *, buckets: int = 1, **properties: str) -> int:
        settings = {key.replace("__", "-").replace("_", "."): value for key, value in properties.items()}
        return await self.create(TableDescriptor(SCHEMA, bucket_count=buckets, properties=settings), name)

    async def produce(
        self, table_id: int, *batches: bytearray, bucket: int = 0, acks: int = -1
    ) -> pb.PbProduceLogRespForBucket:
        body = encode_produce_log(acks, table_id, 10_000, [(None, bucket, list(batches))])
        answer = pb.ProduceLogResponse.FromString(bytes(await self.connection.call_parts(apis.PRODUCE_LOG, body)))
        assert len(answer.buckets_resp) == 1
        return answer.buckets_resp[0]

    async def fetch(
        self,
        table_id: int,
        offset: int,
        *,
        bucket: int = 0,
        max_bytes: int = 1 << 24,
        min_bytes: int | None = None,
        max_wait_ms: int | None = None,
        columns: list[int] | None = None,
    ) -> pb.PbFetchLogRespForBucket:
        request = fetch_request(
            table_id, offset, buckets=[bucket], max_bytes=max_bytes, min_bytes=min_bytes, max_wait_ms=max_wait_ms
        )
        request.tables_req[0].projection_pushdown_enabled = columns is not None
        request.tables_req[0].projected_fields.extend(columns or [])
        return (await self.send(request)).tables_resp[0].buckets_resp[0]

    async def offsets(self, table_id: int, kind: int, timestamp: int | None = None) -> pb.PbListOffsetsRespForBucket:
        request = pb.ListOffsetsRequest(
            follower_server_id=-1, offset_type=kind, table_id=table_id, bucket_id=[0], startTimestamp=timestamp
        )
        return (await self.send(request)).buckets_resp[0]


@contextlib.asynccontextmanager
async def running_server(data_dir: Path, clock: Clock | None = None, **options: object) -> AsyncIterator[Server]:
    """A server in this process on a free port. Option names: ``_`` for a dot, ``__`` for a hyphen."""
    named: dict[str, object] = {"data.dir": str(data_dir), "bind.listeners": "FLUSS://127.0.0.1:0"}
    named.update({key.replace("__", "-").replace("_", "."): value for key, value in options.items()})
    server = Server(named, environment=Environment(clock))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


@contextlib.asynccontextmanager
async def connected(server: Server, listener: str = "FLUSS", **options: Any) -> AsyncIterator[Client]:
    bound = server.listeners[listener]
    options.setdefault("max_frame_bytes", 1 << 28)
    options = {"connect_timeout_ms": 5000, "request_timeout_ms": 20_000, **options}
    connection = await Connection.open(bound.host, bound.port, software_name="test", **options)
    try:
        yield Client(connection)
    finally:
        await connection.close()
