# SPDX-License-Identifier: Apache-2.0
"""Rounds of writes with a fault in each, and a check after each.

Writers keep their connections over all faults. A round ends when every write was acknowledged or failed; then what the
server serves is compared with what the writers were told: the rows of all keys after every round, all logs after some.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from tests.crash.reading import Change, read_bucket, read_state
from tests.simulation.world import World

import fluss.aio as fluss
from fluss.metadata import Column, DataTypes, Schema, TableBucket, TableDescriptor

EVENTS = fluss.TablePath("fluss", "events")
STATE = fluss.TablePath("fluss", "state")
DAYS = fluss.TablePath("fluss", "days")
"""A log with partitions, which are created while rows are written."""
SHORT = fluss.TablePath("fluss", "short")
"""Rows whose changelog expires at once: only snapshots, and what they do not have yet, lead to them."""
NUMBERED = fluss.TablePath("fluss", "numbered")
"""Rows that the server numbers. Every key is written once."""
PIPELINED = {"writer.batch-timeout": "0 ms", "writer.batch-size": "256b"}
"""Options of a client that has several batches of a bucket on their way."""
BUCKETS = 2
KEYS_PER_WRITER = 6
WRITES_MAX = 12
"""Of one writer in one round."""
LOGS_READ_SHARE = 0.25
"""After so many of the rounds all logs are read, and when the world ends. A row that is lost stays lost, so no loss is
missed; to read everything takes as long as a round."""
ADDED_COLUMNS_MAX = 3
PARTITIONS_MAX = 4
SETTLED_AFTER_S = 600.0
"""Virtual seconds in which every write must have been acknowledged or failed after the faults are gone."""


class LostOrDoubledError(AssertionError):
    """What is read is not what was acknowledged."""


@dataclass
class Operation:
    key: int
    value: int | None
    acknowledged: bool = False
    error: str = ""


@dataclass
class Writer:
    """One client with writes in flight. Row ids and keys belong to one writer alone."""

    number: int
    rng: random.Random
    appended: list[Operation] = field(default_factory=list)
    dated: list[Operation] = field(default_factory=list)
    upserted: list[Operation] = field(default_factory=list)
    shortly: list[Operation] = field(default_factory=list)
    numbered: list[Operation] = field(default_factory=list)
    in_flight: list[tuple[Operation, Any]] = field(default_factory=list)

    async def open(self, world: World) -> None:
        self.connection = await world.connect(**(PIPELINED if self.number else {}))
        await self.use_new_columns()
        state = await self.connection.get_table(STATE)
        self._append_dated = (await self.connection.get_table(DAYS)).new_append().create_writer()
        self._upsert = state.new_upsert().create_writer()
        self._upsert_short = (await self.connection.get_table(SHORT)).new_upsert().create_writer()
        numbered = (await self.connection.get_table(NUMBERED)).new_upsert().partial_update_by_name(["k"])
        self._upsert_numbered = numbered.create_writer()

    async def use_new_columns(self) -> None:
        """Write rows with all columns of the table from now on."""
        table = await self.connection.get_table(EVENTS)
        self._added = len(table.get_table_info().schema.columns) - 3
        self._append = table.new_append().create_writer()

    async def write(self, count: int, partitions: list[str]) -> None:
        for _ in range(count):
            if self.rng.random() < 0.4:
                row = self.number * 1_000_000 + len(self.appended)
                handle = self._append.append((row, self.number, _text(row), *[row] * self._added))
                self._keep(self.appended, Operation(row, row), handle)
            elif self.rng.random() < 0.2:
                row = self.number * 1_000_000 + len(self.dated)
                handle = self._append_dated.append((row, self.number, _text(row), self.rng.choice(partitions)))
                self._keep(self.dated, Operation(row, row), handle)
            elif self.rng.random() < 0.1:
                key = self.number * 1_000_000 + len(self.numbered)
                self._keep(self.numbered, Operation(key, key), self._upsert_numbered.upsert({"k": key}))
            elif self.rng.random() < 0.7:
                self._change(self._upsert, self.upserted)
            else:
                self._change(self._upsert_short, self.shortly)
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.expovariate(1 / 0.01))

    def _change(self, writer: Any, operations: list[Operation]) -> None:
        key = self.number * KEYS_PER_WRITER + self.rng.randrange(KEYS_PER_WRITER)
        value = None if self.rng.random() < 0.2 else self.number * 1_000_000 + len(operations)
        handle = writer.delete({"k": key}) if value is None else writer.upsert((key, value, _text(value)))
        self._keep(operations, Operation(key, value), handle)

    def _keep(self, operations: list[Operation], operation: Operation, handle: Any) -> None:
        operations.append(operation)
        self.in_flight.append((operation, handle))

    async def settle(self) -> None:
        """Wait until every write was acknowledged or failed."""
        writes, self.in_flight = self.in_flight, []
        for operation, handle in writes:
            try:
                await asyncio.wait_for(handle.wait(), SETTLED_AFTER_S)
                operation.acknowledged = True
            except asyncio.TimeoutError as error:
                if not isinstance(error, fluss.FlussError):
                    raise LostOrDoubledError(f"a write of {operation} was never settled") from error
                operation.error = repr(error)
            except fluss.FlussError as error:
                operation.error = repr(error)


def _text(number: int) -> str:
    return f"{number}:" + chr(97 + number % 26) * (number * 7 % 90)


async def create_tables(world: World) -> None:
    connection = await world.connect()
    admin = connection.get_admin()
    columns = [("id", pa.int64()), ("writer", pa.int32()), ("text", pa.string())]
    rows, dated = Schema(pa.schema(columns)), Schema(pa.schema([*columns, ("day", pa.string())]))
    key = Column("k", DataTypes.int().with_nullable(False))
    keyed = Schema.of([key, Column("v", DataTypes.bigint()), Column("text", DataTypes.string())], primary_key=("k",))
    numbered = Schema.of(
        [key, Column("number", DataTypes.bigint())], primary_key=("k",), auto_increment_columns=("number",)
    )
    week = {"table.log.ttl": "7 d", "table.log.tiered.local-segments": "1"}
    await admin.create_table(EVENTS, TableDescriptor(rows, bucket_count=BUCKETS, properties=week))
    await admin.create_table(DAYS, TableDescriptor(dated, bucket_count=1, partition_keys=["day"], properties=week))
    await admin.create_table(STATE, TableDescriptor(keyed, bucket_count=BUCKETS))
    await admin.create_table(SHORT, TableDescriptor(keyed, bucket_count=1, properties={"table.log.ttl": "1 s"}))
    await admin.create_table(NUMBERED, TableDescriptor(numbered, bucket_count=1))
    await connection.close()


class Scenario:
    """Called with a world, runs some rounds in it."""

    def __init__(self, rounds: int, writers: int = 2) -> None:
        self.rounds = rounds
        self.writer_count = writers
        self.acknowledged = 0
        self.failed = 0
        self.faults: dict[str, int] = {}
        self._reads_all = False
        """Whether files were in danger since all logs were read from their start."""
        self._served: dict[TableBucket, list[Change]] = {}
        self._added_columns = 0
        self._partitions: list[str] = []
        self._listed: set[str] = set()
        """Partitions that the server has shown."""

    async def __call__(self, world: World) -> None:
        await world.start_server()
        await create_tables(world)
        writers = [Writer(number, random.Random(world.rng.random())) for number in range(self.writer_count)]
        for writer in writers:
            await writer.open(world)
        reader = await world.connect()
        lookupers = {path: (await reader.get_table(path)).new_lookup().create_lookuper() for path in (STATE, SHORT)}
        for number in range(self.rounds):
            name, fault = world.rng.choice(list(FAULTS.items()))
            world.note(f"round {number}: {name}")
            self.faults[name] = self.faults.get(name, 0) + 1
            await self._change_tables(reader.get_admin(), world.rng, writers)
            count = world.rng.randint(3, WRITES_MAX)
            await asyncio.gather(
                fault(world),
                self._try_partition(reader.get_admin(), f"maybe{number}", world.rng),
                *(writer.write(count, self._partitions) for writer in writers),
            )
            await _heal(world)
            await asyncio.gather(*(writer.settle() for writer in writers))
            self._reads_all |= name not in NETWORK_FAULTS
            await self._check_partitions(reader.get_admin())
            await self._check_keys(lookupers, writers)
            if world.rng.random() < LOGS_READ_SHARE:
                await self._check_logs(world, writers)
        operations = [
            one
            for writer in writers
            for one in (*writer.appended, *writer.dated, *writer.upserted, *writer.shortly, *writer.numbered)
        ]
        self.acknowledged = sum(one.acknowledged for one in operations)
        self.failed = len(operations) - self.acknowledged
        for writer in writers:
            await writer.connection.close()
        await world.stop_server()
        await world.start_server()
        await self._check_keys(lookupers, writers)
        self._reads_all = True
        await self._check_logs(world, writers)
        await reader.close()
        await world.stop_server()

    async def _change_tables(self, admin: fluss.FlussAdmin, rng: random.Random, writers: list[Writer]) -> None:
        """Add a partition or a column now and then; some writers go on with the columns that they know."""
        if not self._partitions or (len(self._partitions) < PARTITIONS_MAX and rng.random() < 0.3):
            name = f"day{len(self._partitions)}"
            await admin.create_partition(DAYS, {"day": name})
            self._partitions.append(name)
        if self._added_columns < ADDED_COLUMNS_MAX and rng.random() < 0.2:
            await admin.alter_table(EVENTS, add_columns={f"added{self._added_columns}": DataTypes.bigint()})
            self._added_columns += 1
            for writer in writers:
                if rng.random() < 0.5:
                    await writer.use_new_columns()

    async def _try_partition(self, admin: fluss.FlussAdmin, name: str, rng: random.Random) -> None:
        """Create a partition in the middle of a fault, of which it may fail."""
        if rng.random() < 0.1:
            await _pause_for(rng)
            with contextlib.suppress(fluss.FlussError):
                await admin.create_partition(DAYS, {"day": name})

    async def _check_partitions(self, admin: fluss.FlussAdmin) -> None:
        """What was there once stays: none was dropped."""
        found = {one.get_partition_name() for one in await admin.list_partition_infos(DAYS)}
        if gone := self._listed - found:
            raise LostOrDoubledError(f"partitions of {DAYS} are gone: {sorted(gone)}")
        self._listed = found

    async def _check_keys(self, lookupers: dict[fluss.TablePath, Any], writers: list[Writer]) -> None:
        """Look up all keys, and compare their rows with the last writes."""
        keys = list(range(self.writer_count * KEYS_PER_WRITER))
        for path, lookuper in lookupers.items():
            found = (await lookuper.lookup_many([[key] for key in keys], missing="null")).to_pylist()
            state = {key: row["v"] for key, row in zip(keys, found) if row["k"] is not None}
            for writer in writers:
                _check_values(writer.upserted if path == STATE else writer.shortly, state)

    async def _check_logs(self, world: World, writers: list[Writer]) -> None:
        """Read all logs, and all rows of a table in three ways. What was read before is read again if a fault could
        have changed it."""
        connection = await world.connect()
        try:
            await self._check_events(connection, writers)
            await self._check_state(connection)
            await self._check_numbers(connection, writers)
        finally:
            await connection.close()
        self._reads_all = False
        world.note("checked")

    async def _check_events(self, connection: fluss.FlussConnection, writers: list[Writer]) -> None:
        table_id = (await connection.get_table(EVENTS)).get_table_info().table_id
        buckets = [TableBucket(table_id, number) for number in range(BUCKETS)]
        await self._check_rows(connection, EVENTS, buckets, [writer.appended for writer in writers])
        table_id = (await connection.get_table(DAYS)).get_table_info().table_id
        partitions = await connection.get_admin().list_partition_infos(DAYS)
        buckets = [TableBucket(table_id, 0, partition.partition_id) for partition in partitions]
        await self._check_rows(connection, DAYS, buckets, [writer.dated for writer in writers])

    async def _check_rows(
        self,
        connection: fluss.FlussConnection,
        path: fluss.TablePath,
        buckets: list[TableBucket],
        written: list[list[Operation]],
    ) -> None:
        """Every acknowledged row is in the log once, and in each bucket in the order of its writer."""
        seen: dict[int, TableBucket] = {}
        for bucket in buckets:
            last = dict.fromkeys(range(self.writer_count), -1)
            for change in await self._read(connection, path, bucket):
                row, writer = change.row["id"], change.row["writer"]
                if row in seen:
                    raise LostOrDoubledError(f"row {row} of {path} is there twice: in {seen[row]} and {bucket}")
                added = {value for name, value in change.row.items() if name.startswith("added")}
                if change.row["text"] != _text(row) or not added <= {row, None}:
                    raise LostOrDoubledError(f"row {row} of {path} reads {change.row}")
                if row <= last[writer]:
                    raise LostOrDoubledError(f"row {row} of writer {writer} comes after {last[writer]} in {path}")
                seen[row] = bucket
                last[writer] = row
        for operations in written:
            lost = [one.key for one in operations if one.acknowledged and one.key not in seen]
            if lost:
                raise LostOrDoubledError(f"acknowledged rows of {path} are not there: {lost[:5]} ({len(lost)})")

    async def _check_state(self, connection: fluss.FlussConnection) -> None:
        table_id = (await connection.get_table(STATE)).get_table_info().table_id
        buckets = [TableBucket(table_id, number) for number in range(BUCKETS)]
        keys = list(range(self.writer_count * KEYS_PER_WRITER))
        changes = {bucket: await self._read(connection, STATE, bucket) for bucket in buckets}
        await read_state(connection, STATE, "k", changes, keys)

    async def _check_numbers(self, connection: fluss.FlussConnection, writers: list[Writer]) -> None:
        """No number is given twice, and no acknowledged key is without one."""
        table_id = (await connection.get_table(NUMBERED)).get_table_info().table_id
        changes = await self._read(connection, NUMBERED, TableBucket(table_id, 0))
        numbers = {change.row["k"]: change.row["number"] for change in changes}
        if len(set(numbers.values())) < len(numbers) or len(numbers) < len(changes) or None in numbers.values():
            raise LostOrDoubledError(f"numbers of {NUMBERED}: {sorted(numbers.items(), key=lambda one: str(one[1]))}")
        lost = [one.key for writer in writers for one in writer.numbered if one.acknowledged and one.key not in numbers]
        if lost:
            raise LostOrDoubledError(f"acknowledged rows of {NUMBERED} are not there: {lost[:5]} ({len(lost)})")

    async def _read(
        self, connection: fluss.FlussConnection, path: fluss.TablePath, bucket: TableBucket
    ) -> list[Change]:
        """All records of a bucket. What was served once is served for ever, at the same offsets."""
        before = self._served.get(bucket, [])
        changes, _ = await read_bucket(connection, path, bucket, [] if self._reads_all else before)
        for old, new in itertools.zip_longest(before, changes[: len(before)]):
            # A column that was added since is null in rows of before.
            if new is None or old != Change(new.offset, new.kind, {name: new.row[name] for name in old.row}):
                raise LostOrDoubledError(f"{path} {bucket} changed: served {old} before, now {new}")
        self._served[bucket] = changes
        return changes


def _check_values(operations: list[Operation], state: dict[int, int]) -> None:
    """Compare the rows of a primary-key table with the last write of each key."""
    allowed: dict[int, list[int | None]] = {}
    for one in operations:
        if one.acknowledged:
            allowed[one.key] = [one.value]
        else:
            allowed.setdefault(one.key, [None]).append(one.value)
    for key, values in allowed.items():
        if state.get(key) not in values:
            raise LostOrDoubledError(f"key {key} is {state.get(key)}, not one of {values}")


# Faults ------------------------------------------------------------------------------------------------------------


async def _pause(world: World) -> None:
    await _pause_for(world.rng)


async def _pause_for(rng: random.Random) -> None:
    await asyncio.sleep(rng.expovariate(1 / 0.05))


async def _nothing(world: World) -> None:
    await _pause(world)


async def _reset(world: World) -> None:
    for _ in range(world.rng.randint(1, 3)):
        await _pause(world)
        world.note("connections reset")
        world.network.reset(share=world.rng.choice((0.5, 1.0)))


async def _cut(world: World) -> None:
    await _pause(world)
    world.note("network cut")
    world.network.cut = True
    await asyncio.sleep(world.rng.uniform(0.05, 20))
    world.network.cut = False
    world.note("network back")


async def _slow(world: World) -> None:
    world.network.delay_s = world.rng.uniform(0.005, 0.2)
    await asyncio.sleep(world.rng.uniform(0.1, 2))


async def _kill(world: World) -> None:
    await _pause(world)
    world.kill_server()
    await _pause(world)
    await world.start_server()


async def _power(world: World) -> None:
    await _pause(world)
    world.lose_power()
    await _pause(world)
    await world.start_server()


async def _restart(world: World) -> None:
    await _pause(world)
    await world.stop_server()
    await _pause(world)
    await world.start_server()


async def _bad_disk(world: World) -> None:
    await _pause(world)
    world.break_disk(world.rng.choice((0.02, 0.1, 0.5, 1.0)))
    await asyncio.sleep(world.rng.uniform(0.01, 2))
    world.mend_disk()


async def _bad_disk_then_power(world: World) -> None:
    await _bad_disk(world)
    await _power(world)


async def _damage(world: World) -> None:
    """Bytes of a log or snapshot change or end early while no server runs; later they are put back.

    Meanwhile the server may refuse what it was, and must not serve anything else, nor lose what was acknowledged.
    """
    await _pause(world)
    if world.rng.random() < 0.5:
        await world.stop_server()
    else:
        world.kill_server()
    put_back = world.damage_file()
    await world.start_server()
    await _read_damaged(world)
    await world.stop_server()
    put_back()
    await world.start_server()


async def _read_damaged(world: World) -> None:
    """Read what can be read; every row must be one that was written."""
    with contextlib.suppress(fluss.FlussError):
        async with await world.connect(**{"request-timeout": "1 s"}) as connection:
            table_id = (await connection.get_table(EVENTS)).get_table_info().table_id
            for number in range(BUCKETS):
                with contextlib.suppress(fluss.FlussError):
                    changes, _ = await read_bucket(connection, EVENTS, TableBucket(table_id, number))
                    for row in (change.row for change in changes):
                        if row["text"] != _text(row["id"]):
                            raise LostOrDoubledError(f"damaged row of {EVENTS}: {row}")


async def _clock(world: World) -> None:
    """The clock is wrong for less than its tolerance, by up to a year: nothing may expire by it."""
    await _pause(world)
    await _wrong_clock(world)


async def _wrong_start(world: World) -> None:
    """The same when a server starts. It cannot know how long it was off."""
    await _pause(world)
    world.kill_server()
    await _wrong_clock(world, world.start_server)


async def _wrong_clock(world: World, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
    world.set_clock_off(world.rng.choice((-1, 1)) * world.rng.uniform(3600, 365 * 86400))
    if meanwhile is not None:
        await meanwhile()
    await asyncio.sleep(world.rng.uniform(1, 50))
    world.set_clock_off(0)


async def _heal(world: World) -> None:
    world.network.cut = False
    world.network.delay_s = 0.0002


FAULTS: dict[str, Callable[[World], Awaitable[None]]] = {
    "nothing": _nothing,
    "reset": _reset,
    "cut": _cut,
    "slow": _slow,
    "kill": _kill,
    "power": _power,
    "restart": _restart,
    "disk": _bad_disk,
    "disk and power": _bad_disk_then_power,
    "damage": _damage,
    "clock": _clock,
    "clock at a start": _wrong_start,
}
NETWORK_FAULTS = ("nothing", "reset", "cut", "slow", "clock")
"""Faults that leave the files alone: of the rows that were read before, none is read again after these."""
