# SPDX-License-Identifier: Apache-2.0
"""One fixed workload, and one operation of the disk that fails in it.

The workload writes to log tables and primary-key tables, rolls segments, checkpoints, spills and drops. It retries what
is refused, as a client does. Whichever operation fails: every row that was acknowledged is there once, other buckets
were not disturbed, everything is written in the end without a restart, and a restart reads the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.server.kv.support import SCHEMA, kv_batch
from tests.server.log_support import Client, connected, ids_of, make_batch, running_server
from tests.waiting import wait_until

from fluss.errors import FlussError
from fluss.metadata import TableBucket, TableDescriptor, TablePath
from fluss.protocol import apis
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.record_messages import encode_put_kv
from fluss.server import disk
from fluss.server.server import Server

TRIAL_SECONDS_MAX = 60.0
_RETRY_SECONDS = 0.02
_ROUNDS = 3
_BATCHES = 3
_LOG_BUCKETS = 3
_KV_BUCKETS = 2
HEALTH_GREEN = 0


@contextlib.contextmanager
def trial_folder() -> Iterator[Path]:
    """A folder in memory where there is one: what is asked here does not depend on the time that a flush takes."""
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="fluss-faults-", dir=memory if memory.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class FaultyDisk:
    """Counts the operations of the disk and makes one of them fail, or all of a kind for a while after it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.kind: str | None = None
        self.number = 0
        self.code = errno.EIO
        self.length = 1
        self.failed: list[str] = []
        self._lock = threading.Lock()

    def fail(self, kind: str, number: int, code: int = errno.EIO, length: int = 1) -> None:
        """Have `length` operations of a kind fail, the one with this number first."""
        self.kind, self.number, self.code, self.length = kind, number, code, length

    @contextlib.contextmanager
    def installed(self) -> Iterator[FaultyDisk]:
        real = {name: getattr(disk, name) for names in disk.OPERATIONS.values() for name in names}
        for kind, names in disk.OPERATIONS.items():
            for name in names:
                setattr(disk, name, self._wrapped(kind, name, real[name]))
        try:
            yield self
        finally:
            for name, operation in real.items():
                setattr(disk, name, operation)

    def _wrapped(self, kind: str, name: str, operation: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            with self._lock:
                number = self.counts[kind]
                self.counts[kind] += 1
                fails = kind == self.kind and self.number <= number < self.number + self.length
                if fails:
                    target = args[0] if not isinstance(args[0], int) else _path_of(args[0])
                    self.failed.append(f"{name}({target})")
            if fails:
                raise OSError(self.code, os.strerror(self.code), self.failed[-1])
            return operation(*args)

        return call


def _path_of(fd: int) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return f"fd {fd}"


class _Complaints(logging.Handler):
    """What asyncio says about callbacks and tasks that died."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.getMessage()} {record.exc_info[1] if record.exc_info else ''}")


@dataclass
class Trial:
    """One run of the workload in a folder."""

    folder: Path
    faults: FaultyDisk
    wrong: list[str] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """How often each part of the workload was refused."""

    def run(self) -> None:
        complaints = _Complaints()
        logging.getLogger("asyncio").addHandler(complaints)
        try:
            asyncio.run(asyncio.wait_for(self._run(), TRIAL_SECONDS_MAX))
        except asyncio.TimeoutError:
            self.wrong.append(f"did not end within {TRIAL_SECONDS_MAX} s")
        except Exception as error:
            self.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            logging.getLogger("asyncio").removeHandler(complaints)
        self.wrong += complaints.lines

    async def _run(self) -> None:
        with self.faults.installed():
            await self._server(self._workload)
        await self._server(self._check)

    async def _server(self, work: Callable[[Server, Client], Awaitable[None]]) -> None:
        options = {"log_segment_file__size": "2kb", "log_index_interval__size": "0"}
        attempts = self.faults.length + 3
        for attempt in range(attempts):
            server = running_server(self.folder / "data", **options)
            try:
                started = await server.__aenter__()
            except (FlussError, OSError):
                self.refused["start"] += 1
                if attempt == attempts - 1:
                    raise
                continue
            break
        try:
            async with connected(started) as client:
                await work(started, client)
        finally:
            await server.__aexit__(None, None, None)

    # The workload -----------------------------------------------------------------------------------------------------

    async def _workload(self, server: Server, client: Client) -> None:
        await self._create(client, "bystander")
        await self._append(server, client, "bystander", 0, 0)
        stop = asyncio.Event()
        bystander = asyncio.ensure_future(self._write_on(server, client, stop))
        try:
            await self._create(client, "events", buckets=_LOG_BUCKETS)
            await self._create(client, "users", buckets=_KV_BUCKETS, keyed=True)
            for number in range(_ROUNDS):
                writes = [
                    *(self._append(server, client, "events", bucket, number) for bucket in range(_LOG_BUCKETS)),
                    *(self._upsert(server, client, bucket, number) for bucket in range(_KV_BUCKETS)),
                ]
                await asyncio.gather(*writes)
                await server.tablets.checkpoint()
                if number == 1:
                    await self._spill(server)
            await self._drop(server, client)
        finally:
            stop.set()
            self._bystander_batches = await bystander
        await self._check(server, client)
        if len(self.refused.keys() - {"start"}) > 1 and self.faults.length == 1:
            # One operation failed. It may be one that several buckets share, but then the bystander is none of them.
            others = [name for name in self.refused if name.startswith("bystander")]
            if others:
                self.wrong.append(f"one failure disturbed {dict(self.refused)}")

    async def _retried(self, what: str, attempt: Callable[[], Awaitable[str | None]]) -> None:
        """Repeat what is refused until it is accepted."""
        while (problem := await attempt()) is not None:
            self.refused[what] += 1
            if self.refused[what] > 500:
                raise AssertionError(f"{what} is refused for good: {problem}")
            await asyncio.sleep(_RETRY_SECONDS)

    async def _create(self, client: Client, name: str, *, buckets: int = 1, keyed: bool = False) -> None:
        async def attempt() -> str | None:
            try:
                if keyed:
                    descriptor = TableDescriptor(SCHEMA, bucket_count=buckets)
                    path = pb.PbTablePath(database_name="fluss", table_name=name)
                    request = pb.CreateTableRequest(table_path=path, table_json=descriptor.to_json_bytes())
                    request.ignore_if_exists = False
                    await client.call(apis.CREATE_TABLE, request)
                else:
                    await client.create_table(name, buckets=buckets)
            except FlussError as error:
                return error.message
            return None

        await self._retried(f"create {name}", attempt)

    async def _append(self, server: Server, client: Client, name: str, bucket: int, number: int) -> None:
        table = server.catalog.table(TablePath("fluss", name)).table_id
        for batch in range(_BATCHES):
            sequence = number * _BATCHES + batch

            async def attempt(sequence: int = sequence) -> str | None:
                records = make_batch(sequence * 3, writer_id=1000 + bucket, sequence=sequence)
                answer = await client.produce(table, records, bucket=bucket)
                return answer.error_message if answer.error_code else None

            await self._retried(f"{name} {bucket}", attempt)

    async def _upsert(self, server: Server, client: Client, bucket: int, number: int) -> None:
        info = server.catalog.table(TablePath("fluss", "users")).table_info
        for batch in range(_BATCHES):
            sequence = number * _BATCHES + batch
            rows = [(sequence * 3 + i, f"user {sequence}", None) for i in range(3)]

            async def attempt(rows: list[Any] = rows, sequence: int = sequence) -> str | None:
                data = kv_batch(info, info.schema, info.schema_id, rows, writer_id=2000 + bucket, sequence=sequence)
                body = encode_put_kv(-1, info.table_id, 10_000, [(None, bucket, [data])])
                answer = await client.connection.call_parts(apis.PUT_KV, body)
                (put,) = pb.PutKvResponse.FromString(bytes(answer)).buckets_resp
                return put.error_message if put.error_code else None

            await self._retried(f"users {bucket}", attempt)

    async def _write_on(self, server: Server, client: Client, stop: asyncio.Event) -> int:
        number = 1
        while not stop.is_set():
            await self._append(server, client, "bystander", 0, number)
            number += 1
            await asyncio.sleep(0.03)
        return number

    async def _spill(self, server: Server) -> None:
        entry = server.catalog.table(TablePath("fluss", "users"))
        tablet = server.kv.tablet(entry, TableBucket(entry.table_id, 0))
        tablet.store.budget.spill(tablet.store)
        await wait_until(lambda: not tablet.store.is_spilling and not tablet.store.spill_failed, TRIAL_SECONDS_MAX)

    async def _drop(self, server: Server, client: Client) -> None:
        await self._create(client, "dropped")
        await self._append(server, client, "dropped", 0, 0)
        path = pb.PbTablePath(database_name="fluss", table_name="dropped")

        async def attempt() -> str | None:
            try:
                await client.call(apis.DROP_TABLE, pb.DropTableRequest(table_path=path, ignore_if_not_exists=False))
            except FlussError as error:
                if "was dropped" in error.message:
                    return None
                return error.message
            return None

        await self._retried("drop", attempt)

    # Checks -----------------------------------------------------------------------------------------------------------

    async def _check(self, server: Server, client: Client) -> None:
        ids = list(range(_ROUNDS * _BATCHES * 3))
        for bucket in range(_LOG_BUCKETS):
            self._compare(f"events {bucket}", await self._read(server, client, "events", bucket), ids)
        count = self._bystander_batches * _BATCHES * 3
        self._compare("bystander", await self._read(server, client, "bystander", 0), list(range(count)))
        entry = server.catalog.table(TablePath("fluss", "users"))
        for bucket in range(_KV_BUCKETS):
            tablet = server.kv.tablet(entry, TableBucket(entry.table_id, bucket))
            parts, offset = await tablet.snapshot()
            rows = tablet.codec.to_rows(
                tablet.codec.decode_values(_slices([value for part in parts for value in part]))
            )
            self._compare(f"users {bucket}", sorted(row[0] for row in rows), ids)
            self._compare(f"changelog of users {bucket}", [offset], [len(ids)])
        if server.catalog.find_table(TablePath("fluss", "dropped")) is not None:
            self.wrong.append("the dropped table is there")
        with contextlib.suppress(AssertionError):
            await wait_until(lambda: not server.damaged_bucket_count, 5)  # a repair may be in progress
        if server.damaged_bucket_count or server.catalog.damages:
            self.wrong.append(f"{server.damaged_bucket_count} buckets are out of service")

    async def _read(self, server: Server, client: Client, name: str, bucket: int) -> list[int]:
        table = server.catalog.table(TablePath("fluss", name)).table_id
        ids: list[int] = []
        end = server.tablets.tablet(TableBucket(table, bucket)).high_watermark
        refused = 0
        while len(ids) < end:
            answer = await client.fetch(table, len(ids), bucket=bucket)
            if answer.error_code and refused < 3:
                refused += 1
                continue
            if answer.error_code or not answer.records:
                self.wrong.append(f"{name} {bucket} cannot be read at offset {len(ids)}: {answer.error_message}")
                break
            ids += ids_of(answer.records)
        return ids

    def _compare(self, what: str, found: list[int], expected: list[int]) -> None:
        if found != expected:
            lost, more = Counter(expected) - Counter(found), Counter(found) - Counter(expected)
            self.wrong.append(f"{what}: lost {sorted(lost)[:10]}, unexpected {sorted(more)[:10]}")


def _slices(values: list[bytes]) -> Any:
    from fluss.rows import Slices

    return Slices.from_list(values)


def count_operations(folder: Path) -> Counter[str]:
    """How many operations of each kind the workload has, when nothing fails."""
    trial = Trial(folder, FaultyDisk())
    trial.run()
    assert trial.wrong == [], trial.wrong
    return trial.faults.counts


def run_trial(folder: Path, kind: str, number: int, *, code: int = errno.EIO, length: int = 1) -> Trial:
    faults = FaultyDisk()
    faults.fail(kind, number, code, length)
    trial = Trial(folder, faults)
    trial.run()
    return trial
