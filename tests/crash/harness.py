# SPDX-License-Identifier: Apache-2.0
"""One crash run: clients at work, a server that is killed again and again, and the reckoning at the end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import struct
import threading
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.crash.reading import WrongRowsError, read_bucket, read_state
from tests.crash.workers import (
    ACKNOWLEDGED,
    BUCKETS,
    DATABASE,
    EVENTS,
    FAILED,
    KEYS,
    PARTIAL,
    PLAIN,
    SETTLE_SECONDS,
    TOTALS,
    Appender,
    DdlWorker,
    Operation,
    Upserter,
    Worker,
    Writer,
    descriptors,
    stopped_at_end,
    text_of,
)
from tests.ports import free_port

import fluss.aio as fluss
from fluss.errors import FlussError
from fluss.metadata import TableBucket
from fluss.records.log_batch import iter_log_batches
from fluss.server.local import LocalServer

# Small files and short intervals, so that crashes meet new segments, moving recovery points, rows being spilled and
# snapshots being written.
SERVER_OPTIONS: dict[str, object] = {
    "log.segment.file-size": "48kb",
    "log.recovery-point.interval-size": "24kb",
    "log.flush.offset.checkpoint-interval": "300ms",
    "log.index.interval-size": "1kb",
    "kv.memory-size": "16kb",
    "kv.snapshot.interval": "200ms",
}
WORK_SECONDS_MAX = 5.0


class CrashingServer:
    """A server that dies in different ways and comes back on the same folder and port."""

    def __init__(self, folder: Path, randomness: random.Random) -> None:
        self.folder = folder
        self.random = randomness
        self.port = free_port()
        self.local = LocalServer(folder, port=self.port, options=SERVER_OPTIONS)
        self.kills = 0
        self.complaints: list[str] = []
        self.start_seconds: list[float] = []

    def start(self) -> None:
        started = time.monotonic()
        self.local.start()
        self.start_seconds.append(time.monotonic() - started)

    def die(self) -> None:
        """SIGKILL at once, or a moment after SIGTERM began a clean stop."""
        if self.random.random() < 0.15 and self.local.pid is not None:
            os.kill(self.local.pid, signal.SIGTERM)
            time.sleep(self.random.random() * 0.15)
        self.note_complaints()
        self.local.crash()
        self.kills += 1
        if self.random.random() < 0.3:
            tear_tails(self.folder, self.random)

    def die_while_starting(self) -> None:
        """SIGKILL during recovery."""

        def start() -> None:
            with contextlib.suppress(FlussError):
                self.local.start()

        thread = threading.Thread(target=start)
        thread.start()
        time.sleep(self.random.uniform(0.2, 0.6))
        with contextlib.suppress(ProcessLookupError, TypeError):
            os.kill(self.local.pid, signal.SIGKILL)  # type: ignore[arg-type]
        thread.join()
        self.note_complaints()
        self.local.crash()
        self.kills += 1

    def stop(self) -> None:
        self.note_complaints()
        self.local.stop()

    def note_complaints(self) -> None:
        """A crash is no reason for an error in the server's log."""
        lines = self.local.log_text.splitlines()
        for at, line in enumerate(lines):
            if re.search(r"\b(ERROR|CRITICAL)\b", line):
                self.complaints.append("\n".join(lines[at : at + 30]))


def tear_tails(folder: Path, randomness: random.Random) -> None:
    """Do to unacknowledged ends of logs what a power cut may do: cut them anywhere, or leave other bytes there."""
    for mark in folder.glob("tables/**/committed"):
        data = mark.read_bytes()
        if len(data) != 12 or zlib.crc32(data[:8]).to_bytes(4, "little") != data[8:]:
            continue  # its writing was cut off by the kill
        (committed,) = struct.unpack("<q", data[:8])
        for path in sorted(mark.parent.glob("*.log")):
            content = path.read_bytes()
            position = 0
            for batch in iter_log_batches(memoryview(content)):
                if batch.header.base_offset >= committed:
                    break
                position += batch.header.size_bytes
            if int(path.stem) < committed and position == len(content):
                continue
            cut = randomness.randint(position, len(content))
            tail = content[cut:] if randomness.random() < 0.5 else b""
            if tail:
                tail = randomness.randbytes(min(len(tail), 200)) + tail[200:]
            elif randomness.random() < 0.3:
                tail = randomness.randbytes(randomness.randint(1, 100))
            path.write_bytes(content[:cut] + tail)


@dataclass
class Report:
    """What a run did and found."""

    seed: int
    kills: int = 0
    seconds: float = 0.0
    operations: dict[str, int] = field(default_factory=dict)
    failed_writes: list[str] = field(default_factory=list)
    unanswered_ddl: int = 0
    complaints: list[str] = field(default_factory=list)
    start_seconds_max: float = 0.0

    def __str__(self) -> str:
        work = ", ".join(f"{name}: {count}" for name, count in self.operations.items())
        return (
            f"seed {self.seed}: {self.kills} kills in {self.seconds:.0f} s, "
            f"slowest start {self.start_seconds_max:.1f} s\n"
            f"acknowledged: {work}\n"
            f"DDL without an answer: {self.unanswered_ddl}, failed writes: {len(self.failed_writes)}"
        )


class CrashRun:
    """`rounds` kills, all random choices from `seed`."""

    def __init__(self, folder: Path, rounds: int, seed: int, *, life_seconds_max: float = 0.8) -> None:
        self.rounds = rounds
        self.seed = seed
        self.life_seconds_max = life_seconds_max
        self.random = random.Random(seed)
        self.server = CrashingServer(folder, self.random)
        self.appenders = [Appender(number, self.config, seed) for number in range(2)]
        half = KEYS // 2
        self.upserters = [
            Upserter(PLAIN, "v", self.config, seed, range(half)),
            Upserter(PLAIN, "v", self.config, seed, range(half, KEYS)),
            Upserter(PARTIAL, "a", self.config, seed, range(KEYS)),
            Upserter(PARTIAL, "b", self.config, seed, range(KEYS)),
            Upserter(TOTALS, "a", self.config, seed, range(KEYS)),
            Upserter(TOTALS, "b", self.config, seed, range(KEYS)),
        ]
        self.ddl = DdlWorker(0, self.config, seed)
        self.workers: list[Worker] = [*self.appenders, *self.upserters, self.ddl]

    def config(self) -> fluss.Config:
        return fluss.Config({"bootstrap.servers": f"127.0.0.1:{self.server.port}", "connect-timeout": 5000})

    def run(self) -> Report:
        started = time.monotonic()
        try:
            self.server.start()
            asyncio.run(self._create_tables())
            with stopped_at_end(self.workers):
                for worker in self.workers:
                    worker.start()
                for worker in self.workers:
                    worker.connected.wait(SETTLE_SECONDS)
                self._crash()
            for worker in self.workers:
                worker.join(2 * SETTLE_SECONDS)
            self._check_workers()
            asyncio.run(self.verify())
            # What is right after a crash must be right after a clean stop and after a start that has nothing to do.
            self.server.stop()
            self.server.start()
            asyncio.run(self.verify())
            self.server.stop()
        finally:
            self.server.local.kill()
        return self._report(time.monotonic() - started)

    def _report(self, seconds: float) -> Report:
        writers = [worker for worker in self.workers if isinstance(worker, Writer)]
        return Report(
            self.seed,
            self.server.kills,
            seconds,
            {worker.name: worker.operations for worker in self.workers},
            [f"{w.name}: {op}" for w in writers for op in w.made if op.fate == FAILED],
            self.ddl.unanswered,
            self.server.complaints,
            max(self.server.start_seconds),
        )

    async def _create_tables(self) -> None:
        async with await fluss.FlussConnection.create(self.config()) as connection:
            admin = connection.get_admin()
            await admin.create_database(DATABASE, ignore_if_exists=True)
            for path, descriptor in descriptors().items():
                await admin.create_table(path, descriptor)

    def _crash(self) -> None:
        while self.server.kills < self.rounds:
            if self.random.random() < 0.8:
                self._wait_for_work()
            time.sleep(self.random.random() ** 2 * self.life_seconds_max)
            self.server.die()
            if self.random.random() < 0.1 and self.server.kills < self.rounds:
                self.server.die_while_starting()
            if self.random.random() < 0.2:
                time.sleep(self.random.random() * 0.5)
            self.server.start()
            self._check_workers()

    def _wait_for_work(self) -> None:
        """A kill tells most while many are at work; so let most of the clients notice first that the server is back."""
        before = [worker.operations for worker in self.workers]
        deadline = time.monotonic() + WORK_SECONDS_MAX
        while time.monotonic() < deadline:
            time.sleep(0.005)
            if sum(worker.operations > count for worker, count in zip(self.workers, before)) >= len(before) * 2 // 3:
                return

    def _check_workers(self) -> None:
        for worker in self.workers:
            if worker.error is not None:
                raise AssertionError(f"{worker.name} ended with {worker.error!r}") from worker.error
            if worker.stopping.is_set() and worker.is_alive():
                raise AssertionError(f"{worker.name} did not end")

    # Verification ------------------------------------------------------------------------------------------------

    async def verify(self) -> None:
        async with await fluss.FlussConnection.create(self.config()) as connection:
            admin = connection.get_admin()
            await self._verify_events(connection, admin)
            for path in (PLAIN, PARTIAL, TOTALS):
                await self._verify_keyed(connection, admin, path)
            await self._verify_ddl(connection, admin)

    async def _buckets(self, admin: Any, path: fluss.TablePath) -> list[TableBucket]:
        table_id = (await admin.get_table_info(path)).table_id
        return [TableBucket(table_id, bucket) for bucket in range(BUCKETS[path])]

    async def _verify_events(self, connection: fluss.FlussConnection, admin: Any) -> None:
        ends = await admin.list_offsets(EVENTS, list(range(BUCKETS[EVENTS])), fluss.OffsetSpec.latest())
        seen: dict[int, int] = {}
        for bucket in await self._buckets(admin, EVENTS):
            changes, end = await read_bucket(connection, EVENTS, bucket)
            if [change.offset for change in changes] != list(range(end)) or end != ends[bucket.bucket_id]:
                raise WrongRowsError(f"{bucket}: offsets are not 0 to {ends[bucket.bucket_id] - 1}")
            newest: dict[int, int] = {}
            for change in changes:
                row_id, worker = change.row["id"], change.row["worker"]
                if change.row != {"id": row_id, "worker": row_id // 1_000_000_000, "text": text_of(row_id)}:
                    raise WrongRowsError(f"{bucket}: {change} was never written")
                if newest.get(worker, -1) >= row_id:
                    raise WrongRowsError(f"{bucket}: row {row_id} stands behind {newest[worker]} of the same writer")
                newest[worker] = row_id
                seen[row_id] = seen.get(row_id, 0) + 1
        for appender in self.appenders:
            check_counts(appender.name, appender.made, seen)
        strangers = set(seen) - {operation.key for appender in self.appenders for operation in appender.made}
        if strangers:
            raise WrongRowsError(f"rows that were never written: {sorted(strangers)[:10]}")

    async def _verify_keyed(self, connection: fluss.FlussConnection, admin: Any, path: fluss.TablePath) -> None:
        by_bucket = {
            bucket: (await read_bucket(connection, path, bucket))[0] for bucket in await self._buckets(admin, path)
        }
        changes = [change for bucket in by_bucket.values() for change in bucket]
        state = await read_state(connection, path, "k", by_bucket, list(range(KEYS)))
        upserters = [upserter for upserter in self.upserters if upserter.table == path]
        acknowledged = sum(op.fate == ACKNOWLEDGED for upserter in upserters for op in upserter.made)
        made = sum(len(upserter.made) for upserter in upserters)
        # Each write leaves one of these in the log, so a write that took effect twice shows here.
        written = sum(change.kind.short_string() in ("+I", "+U", "-D") for change in changes)
        if not acknowledged <= written <= made:
            raise WrongRowsError(f"{path}: {written} changes in the log, {acknowledged} acknowledged, {made} sent")
        for upserter in upserters:
            histories = history_of(changes, upserter.column)
            for key in upserter.keys:
                check_history(f"{upserter.name}: key {key}", upserter.made, key, histories.get(key, []))
        if path == PLAIN and any(row["text"] != text_of(row["v"]) for row in state.values()):
            raise WrongRowsError(f"{path}: a row has the text of another one")
        if path == TOTALS and acknowledged == made:
            for key in range(KEYS):
                total = sum(op.value or 0 for upserter in upserters for op in upserter.made if op.key == key)
                if state.get(key, {"total": 0})["total"] != total:
                    raise WrongRowsError(f"{path}: key {key} has {state[key]}, the sum of all writes is {total}")

    async def _verify_ddl(self, connection: fluss.FlussConnection, admin: Any) -> None:
        ddl = self.ddl
        found = {name for name in await admin.list_databases() if name.startswith(f"{ddl.database}_")}
        if found != ddl.databases:
            raise WrongRowsError(f"databases {sorted(found)}, expected {sorted(ddl.databases)}")
        tables = await admin.list_tables(ddl.database)
        if sorted(tables) != sorted(ddl.tables):
            raise WrongRowsError(f"tables {sorted(tables)}, expected {sorted(ddl.tables)}")
        for name, known in ddl.tables.items():
            path = ddl.path(name)
            info = await admin.get_table_info(path)
            if len(info.schema.columns) != known.columns + 1:
                raise WrongRowsError(f"{path} has the columns {info.schema.column_names}, expected {known.columns + 1}")
            ids: dict[str | None, int | None] = {None: None}
            if known.is_partitioned:
                ids = {p.partition_name: p.partition_id for p in await admin.list_partition_infos(path)}
            if set(ids) != set(known.partitions):
                raise WrongRowsError(f"{path}: partitions {sorted(map(str, ids))}, expected {list(known.partitions)}")
            for part, partition_id in ids.items():
                bucket = TableBucket(info.table_id, 0)
                if partition_id is not None:
                    bucket = TableBucket.with_partition(info.table_id, partition_id, 0)
                rows = [change.row["id"] for change in (await read_bucket(connection, path, bucket))[0]]
                if rows != known.partitions[part]:
                    raise WrongRowsError(f"{path} {part}: rows {rows}, expected {known.partitions[part]}")
        data = {entry.name.rpartition("-")[0] for entry in (self.server.folder / "tables" / ddl.database).glob("*-*")}
        left = {name.removesuffix(".deleted") for name in data} - set(ddl.tables)
        if left:
            raise WrongRowsError(f"data of dropped tables is still there: {sorted(left)}")


def check_counts(who: str, made: list[Operation], seen: dict[int, int]) -> None:
    lost = [op.key for op in made if op.fate == ACKNOWLEDGED and op.key not in seen]
    doubled = [op.key for op in made if seen.get(op.key, 0) > 1]
    if lost or doubled:
        raise WrongRowsError(
            f"{who}: {len(lost)} acknowledged rows lost {lost[:5]}, {len(doubled)} doubled {doubled[:5]}"
        )


def history_of(changes: list[Any], column: str) -> dict[int, list[int | None]]:
    """The values that a column went through, by key."""
    histories: dict[int, list[int | None]] = {}
    for change in changes:
        kind = change.kind.short_string()
        if kind == "-U":
            continue
        history = histories.setdefault(change.row["k"], [])
        value = None if kind == "-D" else change.row[column]
        if value != (history[-1] if history else None):
            history.append(value)
    return histories


def check_history(what: str, made: list[Operation], key: int, history: list[int | None]) -> None:
    """The log shows the writes to a key in their order; only those without an acknowledgement may lack."""
    at = 0
    for operation in (op for op in made if op.key == key):
        if at < len(history) and history[at] == operation.value:
            at += 1
        elif operation.fate == ACKNOWLEDGED:
            raise WrongRowsError(f"{what}: {operation} is lost; the log goes on with {history[at : at + 3]}")
    if at != len(history):
        raise WrongRowsError(f"{what}: the log has {history[at : at + 3]} more than was written")
