# SPDX-License-Identifier: Apache-2.0
"""Members of a group that are killed, stopped and cut off: ``python -m tests.simulation.groups --seed 7 --count 100``.

Each member is a process with a clock of its own, which reads another time than the others and runs at another rate. At
every change that a member handles, no other may own its bucket. Afterwards every change was handled, and each bucket in
its order. Where nothing but members fails, the buckets of a killed one are taken over within three seconds.
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
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from tests.crash.groups import Handled, Outcome, check
from tests.simulation.loop import Process, run_in
from tests.simulation.scenario import _cut, _heal, _kill, _reset, _restart, _slow
from tests.simulation.world import World, collect_garbage

import fluss.aio as fluss
from fluss.db.follow import Follow
from fluss.db.group_feed import GroupFeed
from fluss.metadata import Schema, TableBucket, TableDescriptor
from fluss.metadata.group_rows import GROUPS_TABLE
from fluss.metadata.path import bucket_text

PATH = fluss.TablePath("fluss", "work")
BUCKETS = 4
MEMBERS = 3
DISTURBANCES = 8
TAKEOVER_S_MAX = 3.0
_QUIET_S = 8.0
"""How long nothing happens before a kill whose takeover is measured: who is stopped joins again within it."""
_END_S = 120.0
"""Virtual seconds after which the rest must have been handled."""
_FAULTS = (_reset, _cut, _slow, _restart, _kill)


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
        except (
            fluss.FlussError,
            asyncio.CancelledError,
        ):  # not GeneratorExit: a killed process ends nothing
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
        self._writes = True

    def now_ns(self) -> int:
        return self.world.loop.now_ns()

    async def __call__(self, world: World) -> None:
        self.world = world
        chance = random.Random(world.rng.random())
        await world.start_server()
        connection = await world.connect()
        rows = Schema(pa.schema([("id", pa.int64())]))
        await connection.get_admin().create_table(PATH, TableDescriptor(rows, bucket_count=BUCKETS, bucket_keys=["id"]))
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
        for member in self._active:
            member.leave()
        for member in self.members:
            if member.process.alive:
                with contextlib.suppress(asyncio.CancelledError):
                    await member.done
        await connection.close()
        check(self.notes, self._ids, (), self._killed, self.outcome)
        late_s = [taken for taken in self.outcome.takeovers_s if taken >= TAKEOVER_S_MAX]
        if late_s and not self._faults:
            self.outcome.problems.append(f"buckets were taken over after {late_s} s")
        assert not self.outcome.problems, str(self.outcome)
        await world.stop_server()

    def _start(self, chance: random.Random) -> None:
        member = Member(self, f"m{len(self.members)}", chance)
        self.members.append(member)
        self._active.append(member)

    async def _write(self, connection: fluss.FlussConnection) -> None:
        writer = (await connection.get_table(PATH)).new_append().create_writer()
        while self._writes:
            handles = [(number, writer.append((number,))) for number in range(len(self._ids), len(self._ids) + 8)]
            for number, handle in handles:
                await handle.wait()
                self._ids[number] = ""
            await asyncio.sleep(0.2)

    async def _disturb(self, chance: random.Random) -> None:
        action, member = chance.random(), chance.choice(self._active)
        if self._faults and action < 0.3:
            fault = chance.choice(_FAULTS)
            self.world.note(fault.__name__)
            await fault(self.world)
            await _heal(self.world)
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
            if self._ids.keys() <= {found.id for found in self.notes}:
                return


def simulate(seed: int, disturbances: int = DISTURBANCES) -> Outcome:
    """Run one world, and return what was seen; every second seed lets server and network fail too."""
    folder = Path(tempfile.mkdtemp(prefix="fluss-groups-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    try:
        return _run(seed, disturbances, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        collect_garbage()


def _run(seed: int, disturbances: int, folder: Path) -> Outcome:
    world, scenario = World(seed, folder), GroupScenario(disturbances, faults=seed % 2 == 1)
    names = random.Random(seed)
    try:
        with mock.patch("uuid.uuid4", side_effect=lambda: uuid.UUID(int=names.getrandbits(128))):  # they order members
            world.run(scenario)
    except BaseException as error:
        if hasattr(error, "add_note"):
            error.add_note(f"seed {seed}\n" + "\n".join(world.trace[-40:]))
        raise
    return scenario.outcome


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
        takeovers_s += outcome.takeovers_s if seed % 2 == 0 else []
    taken = f"killed members were replaced within {max(takeovers_s):.2f} s where nothing else failed"
    print(f"{options.count} worlds in {time.monotonic() - started:.0f} s: {taken}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
