# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.simulation.histories --seed 7 --count 1000``: record and check histories of concurrent clients.

Some clients write and look up the same few keys while the server is killed, loses power, or its disk or network fails.
Each history has a table of its own kind: plain with partial updates and deletes, with a changelog that expires at once,
or with a merge engine.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.simulation.faults import FAULTS, heal
from tests.simulation.linearizability import Call, check
from tests.simulation.tables import KINDS, Register, text
from tests.simulation.world import World, collect_garbage

import fluss.aio as fluss

CLIENTS = 3
KEYS = 2
CALLS_PER_ROUND = 6
ROUNDS = 2
WAIT_S = 60.0
"""Virtual seconds after which a client gives a call up; a write may then have happened, or happen later."""


class Client:
    """Calls one after the other; each writes values of its own, so that a lookup shows whose write it saw."""

    def __init__(self, number: int, rng: random.Random, world: World, register: Register) -> None:
        self._number = number
        self._rng = rng
        self._world = world
        self._register = register
        self._written = 0
        self.calls: dict[int, list[Call]] = {key: [] for key in range(KEYS)}

    async def open(self) -> None:
        self.connection = await self._world.connect()
        table = await self.connection.get_table(self._register.path)
        self._rows = table.new_upsert().create_writer()
        if self._register.updates_columns:
            self._columns = table.new_upsert().partial_update_by_name(["k", "b"]).create_writer()
        self._lookuper = table.new_lookup().create_lookuper()

    async def work(self) -> None:
        for _ in range(CALLS_PER_ROUND):
            key = self._rng.randrange(KEYS)
            call = Call("", self._world.loop.time())
            self.calls[key].append(call)
            try:
                await asyncio.wait_for(self._begin(key, call), WAIT_S)
                call.returned_at = self._world.loop.time()
            except (fluss.FlussError, asyncio.TimeoutError):
                if call.apply is None:
                    self.calls[key].remove(call)  # a lookup that failed says nothing
            await asyncio.sleep(self._rng.expovariate(1 / 0.02))

    async def _begin(self, key: int, call: Call) -> None:
        choice = self._rng.random()
        self._written += 1
        value = self._written * CLIENTS + self._number
        if choice < 0.45:
            call.text = f"client {self._number} looks up {key}"
            found = await self._lookuper.lookup([key])
            call.found = None if found is None else (found["a"], found["b"])
        elif choice < 0.6 and self._register.deletes:
            call.text, call.apply = f"client {self._number} deletes {key}", self._register.delete
            await self._rows.delete({"k": key}).wait()
        elif choice < 0.75 and self._register.updates_columns:
            call.text, call.apply = (
                f"client {self._number} sets b of {key} to {value}",
                self._register.put_b(text(value)),
            )
            await self._columns.upsert((key, None, text(value))).wait()
        else:
            call.text = f"client {self._number} puts {value} to {key}"
            call.apply = self._register.put(value, text(value))
            await self._rows.upsert((key, value, text(value))).wait()


class History:
    """Called with a world, records and checks a history in it."""

    def __init__(self, seed: int) -> None:
        self.kind = list(KINDS)[seed % len(KINDS)]
        self.calls = 0

    async def __call__(self, world: World) -> None:
        await world.start_server()
        connection = await world.connect()
        register = Register(self.kind)
        await connection.get_admin().create_table(register.path, register.descriptor())
        await connection.close()
        clients = [Client(number, random.Random(world.rng.random()), world, register) for number in range(CLIENTS)]
        for client in clients:
            await client.open()
        for _ in range(ROUNDS):
            name, fault = world.rng.choice(list(FAULTS.items()))
            world.note(name)
            await asyncio.gather(fault(world), *(client.work() for client in clients))
            await heal(world)
        await asyncio.sleep(10)  # what was in flight has happened, or never will
        for client in clients:
            await client.work()
            await client.connection.close()
        for key in range(KEYS):
            calls = [call for client in clients for call in client.calls[key]]
            self.calls += len(calls)
            check(calls)
        await world.stop_server()


def record(seed: int) -> History:
    """Record one history, and check it."""
    folder = Path(tempfile.mkdtemp(prefix="fluss-history-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    world, history = World(seed, folder), History(seed)
    try:
        world.run(history)
    except BaseException as error:
        if hasattr(error, "add_note"):
            error.add_note(f"seed {seed}, {history.kind}\n" + "\n".join(world.trace[-20:]))
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        collect_garbage()
    return history


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.histories", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=1000, help="histories to record")
    options: Any = parser.parse_args(arguments)
    for name in ("fluss", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    started, calls = time.monotonic(), 0
    for seed in range(options.seed, options.seed + options.count):
        try:
            calls += record(seed).calls
        except BaseException:
            print(f"FAILED: python -m tests.simulation.histories --seed {seed} --count 1", file=sys.stderr)
            raise
    print(f"{options.count} histories with {calls} calls in {time.monotonic() - started:.0f} s: all are linearizable")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
