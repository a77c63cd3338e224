# SPDX-License-Identifier: Apache-2.0
"""Members of a group that are killed, stopped and cut off: ``python -m tests.simulation.groups --seed 7 --count 100``.

Each member is a process with a clock of its own, which reads another time than the others and runs at another rate.
Partitions of the table are added and dropped meanwhile. At every change that a member handles, no other may own its
bucket. Afterwards every change was handled, and each bucket in its order. Where nothing but members fails, the buckets
of a killed one are taken over within three seconds.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from tests.crash.groups import Handled, Outcome, check
from tests.simulation.faults import cut, heal, kill, reset, restart, slow
from tests.simulation.loop import Process, run_in
from tests.simulation.world import World, collect_garbage

import fluss.aio as fluss
from fluss.client.groups.table import create_groups_table
from fluss.db.follow import Follow
from fluss.db.group_feed import GroupFeed
from fluss.metadata import Schema, TableBucket, TableDescriptor
from fluss.metadata.group_rows import GROUPS_TABLE, MemberRow
from fluss.metadata.path import bucket_text

PATH = fluss.TablePath("fluss", "work")
BUCKETS = 4
"""Of each partition."""
MEMBERS = 3
DISTURBANCES = 8
TAKEOVER_S_MAX = 3.0
_QUIET_S = 8.0
"""How long nothing happens before a kill whose takeover is measured: who is stopped joins again within it."""
_PARTITION_S = 6.0
"""How often a partition is added."""
_PARTITIONS_MAX = 3
_END_S = 120.0
"""Virtual seconds after which the rest must have been handled."""
_FAULTS = (reset, cut, slow, restart, kill)


class Member:
    """A process that follows the table, and begins again after an error as a supervisor would let it."""

    def __init__(self, scenario: GroupScenario, name: str, rng: random.Random) -> None:
        self._scenario = scenario
        self._follow: Follow[Any] | None = None
        self.process = Process(name, rng.uniform(0, 1000), rng.uniform(0.996, 1.004))
        self.done: asyncio.Task[None] = run_in(self.process, scenario.world.loop.create_task, self._run())

    async def _run(self) -> None:
        while True:
            try:
                await self._work()
            except fluss.FlussError as error:
                self._scenario.world.note(f"{self.process.name}: {type(error).__name__}")
                await asyncio.sleep(0.2)

    async def _work(self) -> None:
        db = await fluss.connect(f"127.0.0.1:{self._scenario.world.network.port}")
        try:
            self._follow = (await db.table(str(PATH))).follow("earliest", group="billing")
            async for change in self._follow:
                self._handle(change)
                await asyncio.sleep(0.001)
        except (fluss.FlussError, asyncio.CancelledError):  # not GeneratorExit: a killed process ends nothing
            if self._follow is not None:
                await self._follow.close()
            await db.close()
            raise

    @property
    def _feed(self) -> GroupFeed[Any] | None:
        feed = None if self._follow is None else self._follow._feed
        return feed if isinstance(feed, GroupFeed) else None

    def owns(self, bucket: TableBucket) -> bool:
        """Whether it would handle a change of a bucket now, by its own clock."""
        membership = None if self._feed is None else self._feed._member
        if membership is None or not self.process.alive:
            return False
        return bool(run_in(self.process, membership.owns, bucket, membership.owned.get(bucket)))

    def _handle(self, change: Any) -> None:
        scenario, feed = self._scenario, self._feed
        assert feed is not None
        for other in scenario.members:
            if other is not self and other.owns(change.bucket):
                raise AssertionError(f"{self.process.name} and {other.process.name} own {change.bucket}")
        place = bucket_text(change.bucket), feed._grants[change.bucket], change.offset, change.row["id"]
        scenario.notes.append(Handled(scenario.now_ns(), *place, False, self.process.name))

    def leave(self) -> None:
        run_in(self.process, self.done.cancel)


class GroupScenario:
    """Called with a world, disturbs a group in it and checks what it handled."""

    def __init__(self, disturbances: int, *, faults: bool) -> None:
        self._disturbances = disturbances
        self._faults = faults
        self.outcome = Outcome()
        self.members: list[Member] = []
        self._active: list[Member] = []
        """Those that were neither killed nor told to leave."""
        self.notes: list[Handled] = []
        self.world: World
        self._killed: list[tuple[int, str]] = []
        self._ids: dict[int, str] = {}
        """The partition of each row that was written."""
        self._dropped: set[str] = set()
        self._writes = True

    def now_ns(self) -> int:
        return self.world.loop.now_ns()

    async def __call__(self, world: World) -> None:
        self.world = world
        chance = random.Random(world.rng.random())
        connection = await self._create_table(BUCKETS, ["day"])
        writing = asyncio.ensure_future(self._write(connection))
        for _ in range(MEMBERS):
            self._start(chance)
        await asyncio.sleep(5)
        for _ in range(self._disturbances):
            await asyncio.sleep(chance.uniform(0.2, 4.0))
            await self._disturb(chance)
        self._writes = False
        await writing
        await self._wait_for_the_end()
        await self._check_rows(connection)
        await self._end_members()
        await connection.close()
        check(self.notes, self._ids, self._dropped, self._killed, self.outcome)
        late_s = [taken for taken in self.outcome.takeovers_s if taken >= TAKEOVER_S_MAX]
        if late_s and not self._faults:
            self.outcome.problems.append(f"buckets were taken over after {late_s} s")
        assert not self.outcome.problems, str(self.outcome)
        await world.stop_server()

    async def _create_table(self, buckets: int, partition_keys: Sequence[str]) -> fluss.FlussConnection:
        await self.world.start_server()
        connection = await self.world.connect()
        rows = Schema(pa.schema([("id", pa.int64()), ("day", pa.string())]))
        descriptor = TableDescriptor(rows, partition_keys=partition_keys, bucket_count=buckets, bucket_keys=["id"])
        await connection.get_admin().create_table(PATH, descriptor)
        return connection

    def _start(self, chance: random.Random) -> None:
        member = Member(self, f"m{len(self.members)}", chance)
        self.members.append(member)
        self._active.append(member)

    async def _end_members(self) -> None:
        for member in self._active:
            member.leave()
        for member in self.members:
            if member.process.alive:
                with contextlib.suppress(asyncio.CancelledError):
                    await member.done

    async def _write(self, connection: fluss.FlussConnection) -> None:
        writer = (await connection.get_table(PATH)).new_append().create_writer()
        days: list[str] = []
        added_ns = 0
        while self._writes:
            if not days or self.now_ns() - added_ns > _PARTITION_S * 1e9:
                added_ns = self.now_ns()
                await self._change_partitions(connection.get_admin(), days)
            rows = [(number, days[number % len(days)]) for number in range(len(self._ids), len(self._ids) + 8)]
            handles = [writer.append(row) for row in rows]
            for row, handle in zip(rows, handles, strict=True):
                await handle.wait()
                self._ids[row[0]] = row[1]
            await asyncio.sleep(0.2)

    async def _change_partitions(self, admin: fluss.FlussAdmin, days: list[str]) -> None:
        """Add a partition, and drop the oldest one of several."""
        day = f"d{int(days[-1][1:]) + 1 if days else 0:04}"
        try:
            await admin.create_partition(PATH, {"day": day}, ignore_if_exists=True)
            days.append(day)
            if len(days) > _PARTITIONS_MAX:
                self._dropped.add(days.pop(0))
                await admin.drop_partition(PATH, {"day": max(self._dropped)}, ignore_if_not_exists=True)
        except fluss.FlussError as error:
            if not days:
                raise
            self.world.note(f"partitions stay: {type(error).__name__}")

    async def _disturb(self, chance: random.Random) -> None:
        action, member = chance.random(), chance.choice(self._active)
        if self._faults and action < 0.3:
            fault = chance.choice(_FAULTS)
            self.world.note(fault.__name__)
            await fault(self.world)
            await heal(self.world)
        elif action < 0.6:
            alone = not self._faults and chance.random() < 0.5
            if alone:
                await asyncio.sleep(_QUIET_S)
                self._killed.append((self.now_ns(), member.process.name))
            self.world.note(f"{member.process.name} killed{' alone' if alone else ''}")
            self.world.loop.kill(member.process)
            self.world.network.end(member.process)
            self._active.remove(member)
            self._start(chance)
            self.outcome.kills += 1
            if alone:
                await asyncio.sleep(TAKEOVER_S_MAX + 0.5)
        elif action < 0.8:
            if member.process.held is None:
                self.world.note(f"{member.process.name} stopped")
                self.world.loop.stop_process(member.process)
                self.world.loop.call_later(chance.uniform(0.5, 5), self.world.loop.continue_process, member.process)
                self.outcome.stops += 1
        else:
            self.world.note(f"{member.process.name} leaves")
            member.leave()
            self._active.remove(member)
            self._start(chance)
            self.outcome.leaves += 1

    async def _check_rows(self, connection: fluss.FlussConnection) -> None:
        """Of members that are gone, no row is left after a while."""
        await asyncio.sleep(_QUIET_S)
        lookuper = (await connection.get_table(GROUPS_TABLE)).new_lookup()
        rows = await lookuper.lookup_by(["group_name", "table_name"]).create_lookuper().lookup(("billing", str(PATH)))
        if len(rows) != len(self._active):
            raise AssertionError(f"{len(self._active)} members have {len(rows)} rows")

    async def _wait_for_the_end(self) -> None:
        for _ in range(int(_END_S)):
            await asyncio.sleep(1)
            seen = {found.id for found in self.notes}
            if all(number in seen or day in self._dropped for number, day in self._ids.items()):
                return


class Settling(GroupScenario):
    """Lets members join one shortly after the other, and measures how soon they have divided the buckets."""

    def __init__(self, members: int) -> None:
        super().__init__(0, faults=False)
        self._count = members
        self.seconds = 0.0
        self.rows_written = 0
        self.timeouts_ms: list[int] = []

    async def __call__(self, world: World) -> None:
        self.world = world
        connection = await self._create_table(4 * self._count, [])
        await create_groups_table(connection.get_admin())
        began_ns = self.now_ns()
        for _ in range(self._count):
            self._start(random.Random(world.rng.random()))
            await asyncio.sleep(0.04)  # the first ones own buckets before the last ones are there
        lookup = (await connection.get_table(GROUPS_TABLE)).new_lookup().lookup_by(["group_name", "table_name"])
        rows: list[MemberRow] = []
        while [len(row.owned) for row in rows] != [4] * self._count and self.seconds < _END_S:
            await asyncio.sleep(0.1)
            found = await lookup.create_lookuper().lookup(("billing", str(PATH)))
            rows = [MemberRow.from_json(row["member"], row["state"]) for row in found]
            self.seconds = (self.now_ns() - began_ns) / 1e9
        self.rows_written = sum(row.beat for row in rows)
        self.timeouts_ms = [row.timeout_ms for row in rows]
        await self._end_members()
        await connection.close()
        await world.stop_server()


def simulate(seed: int, disturbances: int = DISTURBANCES) -> Outcome:
    """Run one world, and return what was seen; every second seed lets server and network fail too."""
    scenario = GroupScenario(disturbances, faults=seed % 2 == 1)
    _run(seed, scenario)
    return scenario.outcome


def settle(members: int) -> Settling:
    """Let members join one shortly after the other, and return what was seen."""
    scenario = Settling(members)
    _run(0, scenario)
    return scenario


def _run(seed: int, scenario: GroupScenario) -> None:
    folder = Path(tempfile.mkdtemp(prefix="fluss-groups-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    world = World(seed, folder)
    names = random.Random(seed)
    try:
        with mock.patch("uuid.uuid4", side_effect=lambda: uuid.UUID(int=names.getrandbits(128))):  # they order members
            world.run(scenario)
    except BaseException as error:
        if hasattr(error, "add_note"):
            error.add_note(f"seed {seed}\n" + "\n".join(world.trace[-40:]))
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.groups", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=100, help="worlds to simulate")
    options: Any = parser.parse_args(arguments)
    for name in ("fluss", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    started, takeovers_s = time.monotonic(), [0.0]
    for seed in range(options.seed, options.seed + options.count):
        try:
            outcome = simulate(seed)
        except BaseException:
            print(f"FAILED: python -m tests.simulation.groups --seed {seed} --count 1", file=sys.stderr)
            raise
        collect_garbage()
        takeovers_s += outcome.takeovers_s if seed % 2 == 0 else []
    taken = f"killed members were replaced within {max(takeovers_s):.2f} s where nothing else failed"
    print(f"{options.count} worlds in {time.monotonic() - started:.0f} s: {taken}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
