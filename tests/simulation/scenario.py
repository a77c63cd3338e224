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
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.crash.reading import Change, read_bucket, read_state
from tests.simulation.faults import FAULTS, NETWORK_FAULTS, heal, pause_for
from tests.simulation.linearizability import Apply, State
from tests.simulation.tables import (
    BUCKETS,
    DAYS,
    EVENTS,
    FLEETING,
    FLEETING_S,
    KINDS,
    NUMBERED,
    LostOrDoubledError,
    Register,
    create_tables,
    text,
)
from tests.simulation.world import JUMP_TOLERANCE_S, World

import fluss.aio as fluss
from fluss.errors import OutOfOrderSequenceError
from fluss.metadata import EARLIEST_OFFSET, DataTypes, TableBucket

PIPELINED = {"writer.batch-timeout": "0 ms", "writer.batch-size": "256b"}
"""Options of a client that has several batches of a bucket on their way."""
REGISTERS = {register.path: register for register in map(Register, KINDS)}
PLAIN = Register("plain").path
WRITES = {EVENTS: 35, DAYS: 8, FLEETING: 8, NUMBERED: 4}
"""How many of a hundred writes go to each table. The others are changes of the registers."""
BURSTS_SHARE = 0.3
"""So often a writer gives all rows of a round to one table, a moment apart: many batches of a bucket are in flight."""
BURST_S = 0.0003
KEYS_PER_WRITER = 6
WRITES_MAX = 14
"""Of one writer in one round."""
LOGS_READ_SHARE = 0.25
"""After so many of the rounds all logs are read, and when the world ends. A row that is lost stays lost, so no loss is
missed; to read everything takes as long as a round."""
ADDED_COLUMNS_MAX = 3
PARTITIONS_MAX = 4
SETTLED_AFTER_S = 600.0
"""Virtual seconds in which every write must have been acknowledged or failed after the faults are gone."""


@dataclass
class Operation:
    key: int
    written_at: float
    apply: Apply | None = None
    """What it does to the row of the key, in a table that keeps one row of each."""
    acknowledged: bool = False
    error: str = ""


class Writer:
    """One client with writes in flight. Row ids and keys belong to one writer alone."""

    def __init__(self, number: int, rng: random.Random, clock: Callable[[], float]) -> None:
        self.number = number
        self.rng = rng
        self._clock = clock
        self.operations: dict[fluss.TablePath, list[Operation]] = defaultdict(list)
        self._in_flight: list[tuple[Operation, Any]] = []
        self._appends: dict[fluss.TablePath, Any] = {}
        self._upserts: dict[fluss.TablePath, Any] = {}
        self._updates: dict[fluss.TablePath, Any] = {}
        """Write some of the columns."""
        self._added: dict[fluss.TablePath, int] = {}
        """Columns that were added to a table and that this writer knows."""

    async def open(self, world: World) -> None:
        self.connection = await world.connect(**(PIPELINED if self.number else {}))
        for path in (DAYS, FLEETING):
            self._appends[path] = (await self.connection.get_table(path)).new_append().create_writer()
        for register in REGISTERS.values():
            upsert = (await self.connection.get_table(register.path)).new_upsert()
            self._upserts[register.path] = upsert.create_writer()
            if register.updates_columns:
                self._updates[register.path] = upsert.partial_update_by_name(["k", "b"]).create_writer()
        numbered = (await self.connection.get_table(NUMBERED)).new_upsert().partial_update_by_name(["k"])
        self._updates[NUMBERED] = numbered.create_writer()
        await self.use_new_columns()

    async def use_new_columns(self) -> None:
        """Write rows with all columns of the tables from now on."""
        table, plain = await self.connection.get_table(EVENTS), await self.connection.get_table(PLAIN)
        self._added = {one.table_path: len(one.get_table_info().schema.columns) - 3 for one in (table, plain)}
        self._appends[EVENTS] = table.new_append().create_writer()
        self._upserts[PLAIN] = plain.new_upsert().create_writer()

    async def write(self, count: int, partitions: list[str]) -> None:
        # Two writers of one table have no order between them. So one of them is used in each round.
        updated = [one for one in REGISTERS.values() if one.updates_columns and self.rng.random() < 0.3]
        bursts = self.rng.random() < BURSTS_SHARE
        path = self._any_table()
        for _ in range(count):
            path = path if bursts else self._any_table()
            if path in REGISTERS:
                self._change(REGISTERS[path], REGISTERS[path] in updated)
            else:
                row = self.number * 1_000_000 + len(self.operations[path])
                if path == NUMBERED:
                    handle = self._updates[path].upsert({"k": row})
                else:
                    more = [self.rng.choice(partitions)] if path == DAYS else [row] * self._added.get(path, 0)
                    handle = self._appends[path].append((row, self.number, text(row), *more))
                self._keep(path, Operation(row, self._clock()), handle)
            if bursts:
                await asyncio.sleep(BURST_S)
            elif self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.expovariate(1 / 0.01))

    def _any_table(self) -> fluss.TablePath:
        [path] = self.rng.choices((*WRITES, *REGISTERS), (*WRITES.values(), *[45 / len(REGISTERS)] * len(REGISTERS)))
        return path

    def _change(self, register: Register, some_columns: bool) -> None:
        path = register.path
        key = self.number * KEYS_PER_WRITER + self.rng.randrange(KEYS_PER_WRITER)
        number = self.number * 1_000_000 + len(self.operations[path])
        a, b = self.rng.randrange(1, 1000) if register.kind in ("versioned", "sum") else number, text(number)
        if some_columns:
            apply, handle = register.put_b(b), self._updates[path].upsert({"k": key, "b": b})
        elif register.deletes and self.rng.random() < 0.2:
            apply, handle = register.delete, self._upserts[path].delete({"k": key})
        else:
            apply, row = register.put(a, b), (key, a, b, *[a] * self._added.get(path, 0))
            handle = self._upserts[path].upsert(row)
        self._keep(path, Operation(key, self._clock(), apply), handle)

    def _keep(self, path: fluss.TablePath, operation: Operation, handle: Any) -> None:
        self.operations[path].append(operation)
        self._in_flight.append((operation, handle))

    async def settle(self, world: World) -> None:
        """Wait until every write was acknowledged or failed."""
        writes, self._in_flight = self._in_flight, []
        for operation, handle in writes:
            try:
                await asyncio.wait_for(handle.wait(), SETTLED_AFTER_S)
                operation.acknowledged = True
            except asyncio.TimeoutError as error:
                if not isinstance(error, fluss.FlussError):
                    raise LostOrDoubledError(f"a write of {operation} was never settled") from error
                operation.error = repr(error)
            except fluss.FlussError as error:
                if isinstance(error, OutOfOrderSequenceError) and not world.may_lose_writers:
                    raise LostOrDoubledError(f"a repeated write was not recognised: {operation}") from error
                operation.error = repr(error)


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
        self._tried: set[str] = set()
        """Partitions that were created in the middle of a fault."""
        self._failed: set[str] = set()
        """Those of them that were not there afterwards."""

    async def __call__(self, world: World) -> None:
        await world.start_server()
        reader = await world.connect()
        await create_tables(reader)
        clock = world.loop.time
        writers = [Writer(number, random.Random(world.rng.random()), clock) for number in range(self.writer_count)]
        for writer in writers:
            await writer.open(world)
        lookupers = {path: (await reader.get_table(path)).new_lookup().create_lookuper() for path in REGISTERS}
        for number in range(self.rounds):
            name, fault = world.rng.choice(list(FAULTS.items()))
            world.note(f"round {number}: {name}")
            self.faults[name] = self.faults.get(name, 0) + 1
            await self._change_tables(reader.get_admin(), world.rng, writers)
            for writer in writers:
                if world.rng.random() < 0.2:
                    await writer.connection.close()
                    await writer.open(world)
            count = world.rng.randint(3, WRITES_MAX)
            await asyncio.gather(
                fault(world),
                self._try_partition(reader.get_admin(), f"maybe{number}", world.rng),
                *(writer.write(count, self._partitions) for writer in writers),
            )
            await heal(world)
            await asyncio.gather(*(writer.settle(world) for writer in writers))
            self._reads_all |= name not in NETWORK_FAULTS
            await self._check_partitions(world, reader.get_admin())
            await self._check_keys(lookupers, writers)
            if world.rng.random() < LOGS_READ_SHARE:
                await self._check_logs(world, writers)
        operations = [one for writer in writers for some in writer.operations.values() for one in some]
        self.acknowledged = sum(one.acknowledged for one in operations)
        self.failed = len(operations) - self.acknowledged
        for writer in writers:
            await writer.connection.close()
        await world.stop_server()
        await world.start_server()
        await self._check_keys(lookupers, writers)
        self._reads_all = True
        # Before, nothing expires on a server that lost its last record of the time.
        await asyncio.sleep(JUMP_TOLERANCE_S + 2 * FLEETING_S)
        await self._check_logs(world, writers, expired=True)
        await reader.close()
        await world.stop_server()

    async def _change_tables(self, admin: fluss.FlussAdmin, rng: random.Random, writers: list[Writer]) -> None:
        """Add a partition or a column now and then; some writers go on with the columns that they know."""
        if not self._partitions or (len(self._partitions) < PARTITIONS_MAX and rng.random() < 0.3):
            name = f"day{len(self._partitions)}"
            await admin.create_partition(DAYS, {"day": name})
            self._partitions.append(name)
        if self._added_columns < ADDED_COLUMNS_MAX and rng.random() < 0.2:
            for path in (EVENTS, PLAIN):
                await admin.alter_table(path, add_columns={f"added{self._added_columns}": DataTypes.bigint()})
            self._added_columns += 1
            self._reads_all = True  # rows of before have the column too
            for writer in writers:
                if rng.random() < 0.5:
                    await writer.use_new_columns()

    async def _try_partition(self, admin: fluss.FlussAdmin, name: str, rng: random.Random) -> None:
        """Create a partition in the middle of a fault, of which it may fail."""
        if rng.random() < 0.3:
            await pause_for(rng)
            self._tried.add(name)
            with contextlib.suppress(fluss.FlussError):
                await admin.create_partition(DAYS, {"day": name})

    async def _check_partitions(self, world: World, admin: fluss.FlussAdmin) -> None:
        """What was there once stays, as none was dropped; what failed and was not there does not come later, unless
        the disk has not confirmed yet that it is not there.
        """
        found = {one.get_partition_name() for one in await admin.list_partition_infos(DAYS)}
        if gone := self._listed - found:
            raise LostOrDoubledError(f"partitions of {DAYS} are gone: {sorted(gone)}")
        if come := self._failed & found:
            raise LostOrDoubledError(f"partitions of {DAYS} that could not be created are there: {sorted(come)}")
        self._listed = found
        assert world.server is not None
        if world.server.catalog.store.failed is None:
            self._failed = self._tried - found

    async def _check_keys(self, lookupers: dict[fluss.TablePath, Any], writers: list[Writer]) -> None:
        """Look up all keys, and compare their rows with the last writes."""
        keys = list(range(self.writer_count * KEYS_PER_WRITER))
        for path, lookuper in lookupers.items():
            found = (await lookuper.lookup_many([[key] for key in keys], missing="null")).to_pylist()
            rows = {key: row for key, row in zip(keys, found) if row["k"] is not None}
            _check_rows(path, rows, (one for writer in writers for one in writer.operations[path]))

    async def _check_logs(self, world: World, writers: list[Writer], *, expired: bool = False) -> None:
        """Read all logs, and all rows of a table in three ways. What was read before is read again if a fault could
        have changed it."""
        connection = await world.connect()
        try:
            await self._check_events(connection, writers)
            now, right_since = world.loop.time(), world.stamped_right_since
            window = right_since, now - 1.5 * FLEETING_S if expired else 0.0
            await self._check_fleeting(connection, writers, max(right_since, now - FLEETING_S), window)
            for register in REGISTERS.values():
                await self._check_register(connection, register, writers)
            await self._check_numbers(connection, writers)
        finally:
            await connection.close()
        self._reads_all = False
        world.note("checked")

    async def _check_events(self, connection: fluss.FlussConnection, writers: list[Writer]) -> None:
        table_id = (await connection.get_table(EVENTS)).get_table_info().table_id
        buckets = [TableBucket(table_id, number) for number in range(BUCKETS)]
        await self._check_log(connection, EVENTS, buckets, [writer.operations[EVENTS] for writer in writers])
        table_id = (await connection.get_table(DAYS)).get_table_info().table_id
        partitions = await connection.get_admin().list_partition_infos(DAYS)
        buckets = [TableBucket(table_id, 0, partition.partition_id) for partition in partitions]
        await self._check_log(connection, DAYS, buckets, [writer.operations[DAYS] for writer in writers])

    async def _check_log(
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
                if change.row["text"] != text(row) or not added <= {row, None}:
                    raise LostOrDoubledError(f"row {row} of {path} reads {change.row}")
                if row <= last[writer]:
                    raise LostOrDoubledError(f"row {row} of writer {writer} comes after {last[writer]} in {path}")
                seen[row] = bucket
                last[writer] = row
        for operations in written:
            lost = [one.key for one in operations if one.acknowledged and one.key not in seen]
            if lost:
                raise LostOrDoubledError(f"acknowledged rows of {path} are not there: {lost[:5]} ({len(lost)})")

    async def _check_fleeting(
        self, connection: fluss.FlussConnection, writers: list[Writer], since: float, expired: tuple[float, float]
    ) -> None:
        """The rows that expire are an end of what was written, with all that was written since then."""
        table_id = (await connection.get_table(FLEETING)).get_table_info().table_id
        while True:
            with contextlib.suppress(fluss.LogOffsetOutOfRangeError):  # the first rows expired while they were read
                changes, _ = await read_bucket(connection, FLEETING, TableBucket(table_id, 0), start=EARLIEST_OFFSET)
                break
        rows = [change.row["id"] for change in changes]
        if len(set(rows)) < len(rows) or any(change.row["text"] != text(change.row["id"]) for change in changes):
            raise LostOrDoubledError(f"rows of {FLEETING} are doubled or damaged: {rows}")
        for writer in writers:
            found = [row for row in rows if row // 1_000_000 == writer.number]
            if found != sorted(found):
                raise LostOrDoubledError(f"rows of {FLEETING} are not in order: {found}")
            operations = writer.operations[FLEETING]
            wanted = (one for one in operations if one.written_at > since or (found and one.key > found[0]))
            if lost := [one for one in wanted if one.acknowledged and one.key not in found]:
                raise LostOrDoubledError(f"acknowledged rows of {FLEETING} are not there: {lost[:5]} ({len(lost)})")
            if stale := [o.key for o in operations if expired[0] < o.written_at < expired[1] and o.key in found]:
                raise LostOrDoubledError(f"rows of {FLEETING} do not expire: {stale[:5]} ({len(stale)})")

    async def _check_register(
        self, connection: fluss.FlussConnection, register: Register, writers: list[Writer]
    ) -> None:
        """Log, full scan and lookups agree. Of a log that expires only the scan can be checked, by itself."""
        path = register.path
        table = await connection.get_table(path)
        info = table.get_table_info()
        buckets = [TableBucket(info.table_id, number) for number in range(info.num_buckets)]
        if register.kind == "expiring":
            rows = (await table.new_scan().create_bucket_batch_scanner(buckets[0]).to_arrow()).to_pylist()
            operations = (one for writer in writers for one in writer.operations[path])
            _check_rows(path, {row["k"]: row for row in rows}, operations)
            return
        changes = {bucket: await self._read(connection, path, bucket) for bucket in buckets}
        await read_state(connection, path, "k", changes, list(range(self.writer_count * KEYS_PER_WRITER)))

    async def _check_numbers(self, connection: fluss.FlussConnection, writers: list[Writer]) -> None:
        """No number is given twice, and no acknowledged key is without one."""
        table_id = (await connection.get_table(NUMBERED)).get_table_info().table_id
        buckets = [TableBucket(table_id, number) for number in range(BUCKETS)]
        rows = [change.row for bucket in buckets for change in await self._read(connection, NUMBERED, bucket)]
        numbers = {row["k"]: row["number"] for row in rows}
        if len(set(numbers.values())) < len(numbers) or len(numbers) < len(rows) or None in numbers.values():
            raise LostOrDoubledError(f"numbers of {NUMBERED}: {sorted(numbers.items(), key=lambda one: str(one[1]))}")
        operations = (one for writer in writers for one in writer.operations[NUMBERED])
        lost = [one.key for one in operations if one.acknowledged and one.key not in numbers]
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


def _check_rows(path: fluss.TablePath, rows: dict[int, dict[str, Any]], operations: Iterable[Operation]) -> None:
    """Compare the rows of a primary-key table with what the writes of each key lead to."""
    possible: dict[int, set[State]] = {}
    for one in operations:
        assert one.apply is not None
        before = possible.get(one.key, {None})
        after = {one.apply(state) for state in before}
        # One that was not acknowledged may have happened or not.
        possible[one.key] = after if one.acknowledged else before | after
    for key, states in possible.items():
        row = rows.get(key)
        if (None if row is None else (row["a"], row["b"])) not in states:
            raise LostOrDoubledError(f"key {key} of {path} is {row}, not one of {states}")
        added = {value for name, value in (row or {}).items() if name.startswith("added")}
        if row is not None and not added <= {row["a"], None}:
            raise LostOrDoubledError(f"added columns of key {key} of {path}: {row}")
