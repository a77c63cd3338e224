# SPDX-License-Identifier: Apache-2.0
"""Memory that all stores of a server share."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Protocol

from rocksdict import Cache

from fluss.errors import StorageBackpressureError
from fluss.net.deadline import wait_for
from fluss.server.distribution import Distribution
from fluss.server.kv.rocksdb import Writer

logger = logging.getLogger("fluss.server.kv")

_WAIT_SECONDS_MAX = 10.0
_SPILLS_AT_ONCE = 1
_RETRY_SECONDS_MIN = 0.5
_RETRY_SECONDS_MAX = 30.0


class SpillableStore(Protocol):
    """What the budget needs of a store: how much memory it takes, and a way to move its rows to disk."""

    memory_bytes: int
    spilling_bytes: int
    row_count: int

    @property
    def spill_due(self) -> bool:
        """Whether its rows should go to disk although they fit in memory."""

    @property
    def is_spilling(self) -> bool:
        """Whether a thread writes its rows to disk."""

    @property
    def spill_failed(self) -> bool:
        """Whether the last spill failed and has to be repeated."""

    def start_spill(self, checkpoint: Path | None = None) -> Future[Any]:
        """Write the rows to disk in a thread; raises RuntimeError when there is none."""

    def finish_spill(self) -> bool:
        """Record on the event loop what came of a spill; False when it failed."""


class StoreBudget:
    """Moves rows to disk before memory is used up, and holds writers back when the disk cannot keep up.

    When half of the memory is in use the largest store is written to disk, which leaves the other half for what comes
    meanwhile.
    """

    def __init__(
        self, limit_bytes: int, executor: Executor, cache_bytes: int = 0, writer: Writer | None = None
    ) -> None:
        self.limit_bytes = limit_bytes
        self.executor = executor
        self.blocks = Cache(cache_bytes) if cache_bytes else None
        """Blocks of RocksDB that were read, of all stores."""
        self.writer = writer or Writer()
        self._stores: set[SpillableStore] = set()
        self._lock = threading.Lock()
        self.memory_bytes = 0
        """Everything in memory, what is being written to disk included."""
        self.spilling_bytes = 0
        self.spill_latencies = Distribution.of_latencies()
        self._spilling = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._retry_seconds = _RETRY_SECONDS_MIN
        self._retry: asyncio.TimerHandle | None = None
        """Set while the disk is left alone after a spill that failed."""

    def join(self, store: SpillableStore) -> None:
        self._stores.add(store)

    def __contains__(self, store: SpillableStore) -> bool:
        return store in self._stores

    def leave(self, store: SpillableStore) -> None:
        self.count(-store.memory_bytes, -store.spilling_bytes)
        self._stores.discard(store)
        self._wake()

    def count(self, memory_change: int, spilling_change: int) -> None:
        """Record what a store keeps; summing over all stores with every write would grow with their number."""
        with self._lock:  # a store is wiped in a thread
            self.memory_bytes += memory_change + spilling_change
            self.spilling_bytes += spilling_change

    @property
    def cache_bytes(self) -> int:
        """What blocks of RocksDB take in memory."""
        return 0 if self.blocks is None else int(self.blocks.get_usage())

    @property
    def row_count(self) -> int:
        """The rows of all stores that are open."""
        return sum(store.row_count for store in self._stores)

    def check(self, store: SpillableStore | None = None) -> None:
        """Begin to move rows to disk if it is time; the writing itself happens in a thread."""
        if self._spilling >= _SPILLS_AT_ONCE or self._retry is not None:
            return
        if (self.memory_bytes - self.spilling_bytes) * 2 > self.limit_bytes:
            store = max(self._stores, key=lambda candidate: candidate.memory_bytes)
        elif store is None or not store.spill_due:
            return
        if store.memory_bytes and not store.is_spilling:
            self.spill(store)

    def spill(self, store: SpillableStore, checkpoint: Path | None = None) -> Future[Any] | None:
        """Move one store to disk in a thread; None when there is no thread."""
        loop = asyncio.get_running_loop()
        try:
            work = store.start_spill(checkpoint)
        except RuntimeError as error:  # there cannot be another thread now
            logger.error("rows cannot be moved to disk: %s", error)
            return None
        self._spilling += 1
        started = time.perf_counter()
        work.add_done_callback(lambda _: _call_soon(loop, self._spilled, store, started))
        return work

    def _spilled(self, store: SpillableStore, started: float) -> None:
        self._spilling -= 1
        if store.finish_spill():
            self.spill_latencies.add_seconds(time.perf_counter() - started)
            self._retry_seconds = _RETRY_SECONDS_MIN
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None
            self.check(store)
        elif self._stores and self._retry is None:
            # The disk may be full for a while: asked again and again, less and less often.
            self._retry = asyncio.get_running_loop().call_later(self._retry_seconds, self._try_again)
            self._retry_seconds = min(self._retry_seconds * 2, _RETRY_SECONDS_MAX)
        self._wake()

    def _try_again(self) -> None:
        self._retry = None
        failed = [store for store in self._stores if store.spill_failed and not store.is_spilling]
        if failed and not self._spilling:
            self.spill(failed[0])
        else:
            self.check()

    async def spilled(self, store: SpillableStore) -> None:
        """Wait until no thread writes the rows of a store."""
        while store.is_spilling and store in self._stores:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def room(self) -> None:
        """Wait until there is memory for more rows."""
        if self.memory_bytes <= self.limit_bytes:
            return
        self.check()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_SECONDS_MAX
        while self.memory_bytes > self.limit_bytes and (self._spilling or self._retry is not None):
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await wait_for(waiter, deadline - loop.time())
            except asyncio.TimeoutError:
                break
        if self.memory_bytes > self.limit_bytes:
            raise StorageBackpressureError(
                f"rows come faster than they can be moved to disk: {self.memory_bytes} of {self.limit_bytes} bytes of "
                "memory (option 'kv.memory-size') are in use; try again later, and see the log of the server if the "
                "disk is full"
            )

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def _call_soon(
    loop: asyncio.AbstractEventLoop,
    work: Callable[[SpillableStore, float], None],
    store: SpillableStore,
    started: float,
) -> None:
    try:
        loop.call_soon_threadsafe(work, store, started)
    except RuntimeError:
        # The loop has ended: closing the store takes care of the outcome.
        logger.debug("a spill ended after its server")
