# SPDX-License-Identifier: Apache-2.0
"""One simulated machine with a server, and clients that reach it over a network: all of it out of one seed."""

from __future__ import annotations

import asyncio
import gc
import random
import shutil
import sys
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast
from unittest import mock

from tests.simulation.disk import SimDisk, some_error
from tests.simulation.loop import Process, SimExecutor, SimLoop, SimWorker, run_in
from tests.simulation.network import SimListener, SimNetwork

import fluss.aio as fluss
from fluss.server.clock import Clock
from fluss.server.config import Endpoint
from fluss.server.disk import OPERATIONS
from fluss.server.environment import Environment, Worker
from fluss.server.kv.rocksdb import Writer
from fluss.server.listener import Accept, Listener
from fluss.server.log import writers as log_writers
from fluss.server.server import Server

JUMP_TOLERANCE_S = 60
SERVER_OPTIONS = {
    "clock.jump-tolerance": f"{JUMP_TOLERANCE_S} s",
    "kv.memory-size": "64kb",
    "kv.snapshot.interval": "5 s",
    "log.index.interval-size": "512b",
    "log.recovery-point.interval-size": "2kb",
    "log.retention.check-interval": "1 s",
    "log.retention.roll-active-segment.enabled": "true",
    "remote.log.task-interval-duration": "2 s",
    "server.io-pool.size": "4",
}
"""Small enough that segments roll, rows move to disk, snapshots are taken and recovery points are written within a few
rounds."""
SEGMENT_SIZES = ("1kb", "4kb")
WRITERS_MAX = (5000, 5000, 1)
"""How many writers of a bucket are remembered. Writes whose answer is lost may fail with one."""

_CLOCKS = {"monotonic": time.monotonic, "perf_counter": time.perf_counter, "thread_time": time.thread_time}


class _SimClock(Clock):
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.off_ms = 0
        """How far the machine's clock is off."""

    @property
    def is_unsure(self) -> bool:
        """Whether the server cannot say yet how long it was off: it stamps rows with the later time then."""
        return self._was_off

    def _read_ms(self) -> tuple[int, int]:
        return self._loop.now_ms() + self.off_ms, int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()


class SimEnvironment(Environment):
    """The machine of the simulated server."""

    def __init__(self, loop: SimLoop, network: SimNetwork) -> None:
        self.sim_clock = _SimClock(loop)
        super().__init__(self.sim_clock)
        self._loop = loop
        self._network = network

    def executor(self, threads: int, name: str) -> SimExecutor:
        return SimExecutor(self._loop)

    def worker(self, name: str) -> Worker:
        return SimWorker(self._loop)

    def kv_writer(self) -> Writer:
        return Writer()

    def listen(self, endpoint: Endpoint, accept: Accept, make_room: Callable[[], bool]) -> Listener:
        return cast(Listener, SimListener(self._network, endpoint.listener, accept))


class World:
    """A machine, a network and a disk. `run` runs a scenario on them."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = SimLoop(random.Random(self.rng.random()))
        self.network = SimNetwork(self.loop)
        self.stamped_right_since = 0.0
        """Since when no server has begun with a wrong clock, or got one while it could not say how long it was off.
        Rows of before may be stamped by up to a minute too early, and those that were stamped ahead expire with rows
        that follow."""
        self.disk = SimDisk(folder / "data", random.Random(self.rng.random()))
        self.environment = SimEnvironment(self.loop, self.network)
        self._options = {**SERVER_OPTIONS, "log.segment.file-size": self.rng.choice(SEGMENT_SIZES)}
        self.server: Server | None = None
        self._process: Process | None = None
        self.trace: list[str] = []
        """What happened when; equal for equal seeds."""
        self.writers_max = self.rng.choice(WRITERS_MAX)
        self.may_lose_writers = self.writers_max == 1
        """Whether a server may not know who wrote rows that expired: the file that names them could not be read."""

    def note(self, text: str) -> None:
        self.trace.append(f"{self.loop.time():.6f} {text}")

    def run(self, scenario: Callable[[World], Coroutine[Any, Any, None]]) -> None:
        random.seed(self.seed)  # the client's backoff
        with ExitStack() as stack:
            stack.enter_context(self.disk.installed())
            stack.enter_context(_virtual_time(self.loop))
            asyncio.set_event_loop(self.loop)
            stack.callback(asyncio.set_event_loop, None)
            stack.callback(self._end)
            stack.enter_context(mock.patch.object(log_writers, "WRITERS_MAX", self.writers_max))
            self.loop.run_until_complete(scenario(self))

    def _end(self) -> None:
        self._bury()
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.loop.close()

    # The server ----------------------------------------------------------------------------------------------------

    async def start_server(self) -> None:
        process = Process("server")
        self.network.accept_in = lambda call: run_in(process, call)
        folders = {"data.dir": str(self.disk.root), "remote.data.dir": str(self.disk.root.with_name("remote"))}
        server = Server({**folders, **self._options}, environment=self.environment)
        self._process, self.server = process, server
        await run_in(process, self.loop.create_task, server.start())
        server.loop_watch.stop()  # virtual time is never late, and its timer was half of all that the loop ran
        self.note("server started")

    async def stop_server(self) -> None:
        """Stop as an operator does."""
        assert self.server is not None
        assert self._process is not None
        await run_in(self._process, self.loop.create_task, self.server.stop())
        self.note("server stopped")
        self._bury()

    def kill_server(self) -> None:
        """Kill the process; what it wrote stays with the operating system."""
        self.note("server killed")
        self._bury()

    def lose_power(self) -> None:
        """The machine goes off: what was not synced may be lost."""
        self.note("power lost")
        self._bury()
        self.disk.lose_power()
        self.damage_stores(share=0.4)

    def damage_stores(self, share: float) -> None:
        """Remove or tear files of RocksDB, which writes them itself: the state is a cache, and any loss is made up."""
        for current in sorted(self.disk.root.rglob("CURRENT")):
            if self.rng.random() < share:
                self._damage_store(current.parent)

    def _damage_store(self, folder: Path) -> None:
        if self.rng.random() < 0.5:
            shutil.rmtree(folder, ignore_errors=True)
            return
        for path in sorted(path for path in folder.iterdir() if path.is_file() and self.rng.random() < 0.3):
            whole = path.read_bytes()
            end = self.rng.randrange(0, len(whole) + 1, 512)
            path.write_bytes(whole[:end] + bytes(len(whole) - end if self.rng.random() < 0.5 else 0))
            self.note(f"{path.name} torn at {end} of {len(whole)}")

    def _bury(self) -> None:
        """End the server's process: nothing of it runs any more, its connections and locks are gone."""
        server, process = self.server, self._process
        self.server = self._process = None
        if process is not None:
            self.loop.kill(process)
        self.network.listener = None
        self.network.reset()
        if server is None:
            return
        for session in server.sessions:
            session.channel._sock.close()
        kv = getattr(server, "kv", None)
        if kv is not None:
            kv.budget.writer.stop()
        data_dir = server._data_dir
        if data_dir is not None:
            data_dir.abandon()

    # Faults --------------------------------------------------------------------------------------------------------

    def break_disk(self, share: float) -> None:
        """Let some of the file operations fail, until `mend_disk`."""
        kinds = self.rng.choice((tuple(OPERATIONS), ("write", "truncate"), ("fsync",)))
        self.note(f"disk fails at {share}: {', '.join(kinds)}")
        self.may_lose_writers |= "read" in kinds
        rng = random.Random(self.rng.random())
        self.disk.failing = lambda kind: some_error(rng, kind) if kind in kinds and rng.random() < share else None

    def mend_disk(self) -> None:
        self.note("disk works")
        self.disk.failing = lambda kind: None

    def damage_file(self) -> Callable[[], None]:
        """Change a byte of a log that is written to or of a snapshot, or cut it, or give a snapshot the content of
        another one; returns what puts it back. A snapshot stays damaged if the server has the whole changelog.

        A file that the server cut meanwhile, because what was damaged had never been acknowledged, stays as it is.
        """
        last_segments = {path.parent: path for path in sorted(self.disk.root.rglob("*.log"))}
        snapshots = sorted((self.disk.root.with_name("remote") / "kv").rglob("shared/*"))
        files = [path for path in (*last_segments.values(), *snapshots) if path.stat().st_size]
        if not files:
            return lambda: None
        path = self.rng.choice(files)
        whole = path.read_bytes()
        place = self.rng.randrange(len(whole))
        cut = self.rng.random() < 0.3
        damaged = whole[:place] + (b"" if cut else bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
        if path in snapshots and self.rng.random() < 0.5:
            damaged = self.rng.choice(snapshots).read_bytes()
        path.write_bytes(damaged)
        self.note(f"{path.relative_to(self.disk.root.parent)} {'cut' if cut else 'changed'} at {place} of {len(whole)}")

        def put_back() -> None:
            if path in snapshots and self._has_changelog_of(path):
                return
            found = path.read_bytes() if path.exists() else b""
            if found == damaged or (not cut and found.startswith(damaged)):
                path.write_bytes(whole + found[len(damaged) :])
                self.note(f"{path.name} put back")

        return put_back

    def _has_changelog_of(self, snapshot: Path) -> bool:
        """Whether the state can be rebuilt without snapshots, for which the remote log is not read."""
        database, table, bucket, *_ = snapshot.relative_to(self.disk.root.with_name("remote") / "kv").parts
        return (self.disk.root / "tables" / database / table / f"log-{bucket}" / f"{0:020d}.log").exists()

    def set_clock_off(self, seconds: float) -> None:
        """Let the machine's clock jump to this far from the true time."""
        self.note(f"clock off by {seconds:.0f} s")
        self.environment.sim_clock.off_ms = int(seconds * 1000)

    # Clients -------------------------------------------------------------------------------------------------------

    async def connect(self, **options: Any) -> fluss.FlussConnection:
        address = f"127.0.0.1:{self.network.port}"
        return await fluss.FlussConnection.create(fluss.Config({"bootstrap.servers": address, **options}))


@contextmanager
def _virtual_time(loop: SimLoop) -> Iterator[None]:
    """Let deadlines and durations of the code under test follow the loop's clock."""
    changed: list[tuple[object, str, object]] = []
    modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == "fluss"]
    for module in (time, *modules):
        for name, clock in _CLOCKS.items():
            if getattr(module, name, None) is clock:
                changed.append((module, name, getattr(module, name)))
                setattr(module, name, loop.time)
    try:
        yield
    finally:
        for changed_module, name, value in changed:
            setattr(changed_module, name, value)


def collect_garbage() -> None:
    """Files and tasks of dead servers are in circles. What is loaded stays, and need not be looked at again."""
    gc.collect()
    if not gc.get_freeze_count():
        gc.freeze()
