# SPDX-License-Identifier: Apache-2.0
"""The clients of a crash run. Each has a thread, a connection and keys of its own, and remembers what it was told.

A client keeps its connection over all crashes: it is not told that the server went away or came back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

import fluss.aio as fluss
from fluss.metadata import AggFunction, Column, DataTypes, Schema, TableDescriptor

DATABASE = "crash"
PENDING, ACKNOWLEDGED, FAILED = "pending", "acknowledged", "failed"
SETTLE_SECONDS = 60.0

EVENTS = fluss.TablePath(DATABASE, "events")
PLAIN = fluss.TablePath(DATABASE, "plain")
PARTIAL = fluss.TablePath(DATABASE, "partial")
TOTALS = fluss.TablePath(DATABASE, "totals")
KEYS = 60
BUCKETS = {EVENTS: 3, PLAIN: 3, PARTIAL: 2, TOTALS: 2}


def text_of(number: int) -> str:
    """Contents that tell a row from every other, of differing lengths."""
    return f"{number}:" + chr(97 + number % 26) * (number * 7 % 150)


def descriptors() -> dict[fluss.TablePath, TableDescriptor]:
    key = Column("k", DataTypes.int().with_nullable(False))
    log = Schema(pa.schema([("id", pa.int64()), ("worker", pa.int32()), ("text", pa.string())]))
    plain = Schema.of([key, Column("v", DataTypes.bigint()), Column("text", DataTypes.string())], primary_key=("k",))
    partial = Schema.of([key, Column("a", DataTypes.bigint()), Column("b", DataTypes.bigint())], primary_key=("k",))
    totals = Schema.of(
        [
            key,
            Column("total", DataTypes.bigint(), agg_function=AggFunction("sum")),
            Column("a", DataTypes.bigint(), agg_function=AggFunction("last_value_ignore_nulls")),
            Column("b", DataTypes.bigint(), agg_function=AggFunction("max")),
        ],
        primary_key=("k",),
    )
    aggregation = {"table.merge-engine": "aggregation"}
    return {
        EVENTS: TableDescriptor(log, bucket_count=BUCKETS[EVENTS]),
        PLAIN: TableDescriptor(plain, bucket_count=BUCKETS[PLAIN]),
        PARTIAL: TableDescriptor(partial, bucket_count=BUCKETS[PARTIAL]),
        TOTALS: TableDescriptor(totals, bucket_count=BUCKETS[TOTALS], properties=aggregation),
    }


class Worker(threading.Thread):
    """A client in a thread. Errors that it does not expect end it and are shown at the end."""

    def __init__(self, name: str, config: Callable[[], fluss.Config], seed: int) -> None:
        super().__init__(name=name, daemon=True)
        self.config = config
        self.random = random.Random(f"{name} {seed}")
        self.stopping = threading.Event()
        self.connected = threading.Event()
        self.error: BaseException | None = None
        self.operations = 0

    def run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self.error = error
        finally:
            self.connected.set()

    async def _main(self) -> None:
        connection = await fluss.FlussConnection.create(self.config())
        try:
            self.connected.set()
            await self.work(connection)
        finally:
            await connection.close()

    async def work(self, connection: fluss.FlussConnection) -> None:
        raise NotImplementedError

    async def pause(self) -> None:
        await asyncio.sleep(self.random.random() * 0.03)


@dataclass
class Operation:
    """One write and what its writer was told about it."""

    key: int
    value: int | None
    fate: str = PENDING
    error: str = ""


class Writer(Worker):
    """Keeps some writes in flight and notes their fates in the order in which they were made."""

    def __init__(self, name: str, config: Callable[[], fluss.Config], seed: int) -> None:
        super().__init__(name, config, seed)
        self.made: list[Operation] = []
        self._flying: deque[tuple[Operation, Any]] = deque()

    def fly(self, operation: Operation, handle: Any) -> None:
        self.made.append(operation)
        self._flying.append((operation, handle))

    async def drain(self, flying_max: int) -> None:
        """Wait for the oldest writes until only some are in flight."""
        while len(self._flying) > flying_max:
            operation, handle = self._flying.popleft()
            try:
                await asyncio.wait_for(handle.wait(), SETTLE_SECONDS)
                operation.fate = ACKNOWLEDGED
                self.operations += 1
            except (fluss.FlussError, asyncio.TimeoutError) as error:
                operation.fate, operation.error = FAILED, repr(error)


class Appender(Writer):
    """Appends rows with ids that no other row has."""

    def __init__(self, number: int, config: Callable[[], fluss.Config], seed: int) -> None:
        super().__init__(f"appender {number}", config, seed)
        self.number = number

    async def work(self, connection: fluss.FlussConnection) -> None:
        table = await connection.get_table(EVENTS)
        writer = table.new_append().create_writer()
        number = 0
        while not self.stopping.is_set():
            for _ in range(self.random.randint(1, 25)):
                row_id = self.number * 1_000_000_000 + number
                self.fly(Operation(row_id, row_id), writer.append((row_id, self.number, text_of(row_id))))
                number += 1
            await self.drain(self.random.choice((0, 50, 200)))
            await self.pause()
        await self.drain(0)


class Upserter(Writer):
    """Writes one column of its keys: rising values, and None for a delete."""

    def __init__(
        self, table: fluss.TablePath, column: str, config: Callable[[], fluss.Config], seed: int, keys: range
    ) -> None:
        super().__init__(f"upserter of {table.table_name}.{column} {keys.start}", config, seed)
        self.table = table
        self.column = column
        self.keys = keys

    def row(self, key: int, value: int) -> dict[str, Any]:
        if self.table == PLAIN:
            return {"k": key, "v": value, "text": text_of(value)}
        if self.table == TOTALS:
            return {"k": key, "total": value, "a": None, "b": None, self.column: value}
        return {"k": key, self.column: value}

    async def work(self, connection: fluss.FlussConnection) -> None:
        table = await connection.get_table(self.table)
        upsert = table.new_upsert()
        if self.table == PARTIAL:
            upsert = upsert.partial_update_by_name(["k", self.column])
        writer = upsert.create_writer()
        lookuper = table.new_lookup().create_lookuper()
        last: dict[int, Operation] = {}
        value = 0
        while not self.stopping.is_set():
            for _ in range(self.random.randint(1, 15)):
                key = self.random.choice(self.keys)
                before = last.get(key)
                can_delete = self.table != TOTALS and before is not None and before.value is not None
                if can_delete and self.random.random() < 0.2:
                    last[key] = Operation(key, None)
                    self.fly(last[key], writer.delete({"k": key}))
                else:
                    value += 1
                    last[key] = Operation(key, value)
                    self.fly(last[key], writer.upsert(self.row(key, value)))
            await self.drain(self.random.choice((0, 30, 100)))
            if self.random.random() < 0.2:
                await self.check_own_writes(lookuper)
            await self.pause()
        await self.drain(0)

    async def check_own_writes(self, lookuper: Any) -> None:
        """What was acknowledged is seen at once, and nothing older is seen after it."""
        key = self.random.choice(self.keys)
        own = [operation for operation in self.made if operation.key == key]
        known = max((i for i, operation in enumerate(own) if operation.fate == ACKNOWLEDGED), default=-1)
        row = await asyncio.wait_for(lookuper.lookup([key]), SETTLE_SECONDS)
        value = row[self.column if self.table != PLAIN else "v"] if row is not None else None
        possible = [operation.value for operation in own[max(known, 0) :]]
        if known < 0:
            possible.append(None)
        if value not in possible:
            raise AssertionError(f"{self.name}: key {key} reads {value}, but only {possible} were written since")


@dataclass
class SmallTable:
    """What the DDL worker knows of a table it made: rows of its partitions (the key None: it has no partitions)."""

    partitions: dict[str | None, list[int]] = field(default_factory=dict)
    is_partitioned: bool = False
    columns: int = 1


class DdlWorker(Worker):
    """Creates, alters and drops tables, partitions and databases. After a lost answer it looks what became of it."""

    NAMES = 5

    def __init__(self, number: int, config: Callable[[], fluss.Config], seed: int) -> None:
        super().__init__(f"ddl {number}", config, seed)
        self.database = f"ddl_{number}"
        self.tables: dict[str, SmallTable] = {}
        self.databases: set[str] = set()
        self.unanswered = 0
        self._next = 0

    async def work(self, connection: fluss.FlussConnection) -> None:
        self.admin = connection.get_admin()
        self.connection = connection
        await self.admin.create_database(self.database, ignore_if_exists=True)
        while not self.stopping.is_set():
            name = f"t{self.random.randrange(self.NAMES)}"
            known = self.tables.get(name)
            dice = self.random.random()
            if dice < 0.1:
                await self.change_database()
            elif known is None:
                await self.create(name)
            elif dice < 0.3:
                await self.drop(name)
            elif dice < 0.4:
                await self.add_column(name, known)
            elif known.is_partitioned and dice < 0.7:
                await self.change_partition(name, known)
            else:
                await self.write(name, known)
            self.operations += 1
            await self.pause()

    async def change(self, change: Any, exists: Callable[[], Any], wanted: bool) -> bool:
        """Make a change; True when it took effect. Without an answer, look."""
        try:
            await change
            return True
        except fluss.FlussError as error:
            if error.error_code != fluss.ErrorCode.NETWORK_EXCEPTION:
                raise
            self.unanswered += 1
            return bool((await self.asked(exists)) == wanted)

    async def asked(self, question: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            try:
                return await question()
            except fluss.FlussError as error:
                if not error.is_retriable or time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    def path(self, name: str) -> fluss.TablePath:
        return fluss.TablePath(self.database, name)

    async def change_database(self) -> None:
        name = f"{self.database}_db{self.random.randrange(3)}"

        async def exists() -> bool:
            return name in await self.admin.list_databases()

        if name in self.databases:
            if await self.change(self.admin.drop_database(name), exists, False):
                self.databases.discard(name)
        elif await self.change(self.admin.create_database(name), exists, True):
            self.databases.add(name)

    async def create(self, name: str) -> None:
        is_partitioned = self.random.random() < 0.5
        schema = Schema(pa.schema([("id", pa.int64()), ("part", pa.string())]))
        keys = ["part"] if is_partitioned else []
        descriptor = TableDescriptor(schema, partition_keys=keys, bucket_count=1)
        create = self.admin.create_table(self.path(name), descriptor)
        if await self.change(create, lambda: self.admin.table_exists(self.path(name)), True):
            self.tables[name] = SmallTable({} if is_partitioned else {None: []}, is_partitioned)

    async def drop(self, name: str) -> None:
        drop = self.admin.drop_table(self.path(name))
        if await self.change(drop, lambda: self.admin.table_exists(self.path(name)), False):
            del self.tables[name]

    async def add_column(self, name: str, known: SmallTable) -> None:
        async def added() -> bool:
            return len((await self.admin.get_table_info(self.path(name))).schema.columns) == known.columns + 2

        alter = self.admin.alter_table(self.path(name), add_columns={f"extra{known.columns}": pa.int32()})
        if await self.change(alter, added, True):
            known.columns += 1

    async def change_partition(self, name: str, known: SmallTable) -> None:
        value = f"p{self.random.randrange(4)}"

        async def exists() -> bool:
            infos = await self.admin.list_partition_infos(self.path(name))
            return value in [info.partition_name for info in infos]

        if value in known.partitions:
            if await self.change(self.admin.drop_partition(self.path(name), {"part": value}), exists, False):
                del known.partitions[value]
        elif await self.change(self.admin.create_partition(self.path(name), {"part": value}), exists, True):
            known.partitions[value] = []

    async def write(self, name: str, known: SmallTable) -> None:
        if not known.partitions:
            return
        part = self.random.choice(list(known.partitions))
        table = await self.asked(lambda: self.connection.get_table(self.path(name)))
        ids = list(range(self._next, self._next + self.random.randint(1, 5)))
        self._next = ids[-1] + 1
        writer = table.new_append().create_writer()
        extra = [None] * (len(table.get_table_info().schema.columns) - 2)
        for row_id in ids:
            writer.append([row_id, part or "", *extra])
        await asyncio.wait_for(writer.flush(), SETTLE_SECONDS)
        known.partitions[part] += ids


@contextlib.contextmanager
def stopped_at_end(workers: list[Worker]) -> Any:
    """Whatever happens in between, no thread goes on for long."""
    try:
        yield
    finally:
        for worker in workers:
            worker.stopping.set()
