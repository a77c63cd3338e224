# SPDX-License-Identifier: Apache-2.0
"""The memory that the stores of a server share: moves rows to disk, and holds writers back when the disk is slow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import threading
import time
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, Protocol

from rocksdict import Cache

from fluss.errors import StorageBackpressureError
from fluss.net.deadline import wait_for
from fluss.net.eager import complete
from fluss.server.distribution import Distribution
from fluss.server.kv.rocksdb import Writer

logger = logging.getLogger("fluss.server.kv")

_WAIT_SECONDS_MAX = 10.0
_SPILLS_AT_ONCE = 1
_VIEWS_MAX = 1_000
"""So many stores keep a view of their files open: each takes a file handle per file, two to four for small ones, and
130 KB of memory; opening one again takes 1.3 ms."""
_HANDLES_PER_VIEW = 16
"""Where the process may open few files, one view for so many of them."""
_RETRY_SECONDS_MIN = 0.5
_RETRY_SECONDS_MAX = 30.0


class Spillable(Protocol):
    """Rows in memory that can move to disk: a store, as its budget sees it."""

    memory_bytes: int
    spilling_bytes: int
    """What a thread writes to disk now."""

    @property
    def row_count(self) -> int: ...
    @property
    def spill_due(self) -> bool: ...
    @property
    def spill_failed(self) -> bool: ...
    @property
    def is_spilling(self) -> bool: ...
    def start_spill(self, checkpoint: Path | None = None) -> Future[Any]: ...
    def finish_spill(self) -> bool: ...
    def close_view(self) -> None: ...


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
        self._stores: set[Spillable] = set()
        self._views: dict[Spillable, None] = {}
        """Stores that have a view open, the one that was opened first at the beginning."""
        self._views_max = _views_max()
        self.views_reopened = 0
        """How often a store opened a view that had been closed."""
        self._lock = threading.Lock()
        self.memory_bytes = 0
        """Everything in memory, what is being written to disk included."""
        self.spilling_bytes = 0
        self.uncommitted_bytes = 0
        """Changes that are in the log, and come into a store when the log is committed."""
        self.spill_latencies = Distribution.of_latencies()
        self._spilling = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._retry_seconds = _RETRY_SECONDS_MIN
        self._retry: asyncio.TimerHandle | None = None
        """Set while the disk is left alone after a spill that failed."""

    def join(self, store: Spillable) -> None:
        self._stores.add(store)

    def __contains__(self, store: Spillable) -> bool:
        return store in self._stores

    def leave(self, store: Spillable) -> None:
        self.count(-store.memory_bytes, -store.spilling_bytes)
        self._stores.discard(store)
        with self._lock:
            self._views.pop(store, None)
        self._wake()

    def view_opened(self, store: Spillable) -> None:
        """Record that a store opened its view, and close the one that was opened first when there are too many.

        May come from any thread.
        """
        oldest = None
        with self._lock:
            self._views.pop(store, None)
            if store in self._stores:
                self._views[store] = None
            if len(self._views) > self._views_max:
                oldest = next(iter(self._views))
                del self._views[oldest]
        if oldest is not None:
            oldest.close_view()

    def count(self, memory_change: int, spilling_change: int) -> None:
        """Record what a store keeps; summing over all stores with every write would grow with their number."""
        with self._lock:  # a store is wiped in a thread
            self.memory_bytes += memory_change + spilling_change
            self.spilling_bytes += spilling_change

    def count_uncommitted(self, change: int) -> None:
        """Record changes that wait for the commit of their log, or that no longer do."""
        self.uncommitted_bytes += change
        if change < 0:
            self._wake()

    @property
    def _is_full(self) -> bool:
        return self.memory_bytes + self.uncommitted_bytes > self.limit_bytes

    @property
    def cache_bytes(self) -> int:
        """What blocks of RocksDB take in memory."""
        return 0 if self.blocks is None else int(self.blocks.get_usage())

    @property
    def row_count(self) -> int:
        """The rows of all stores that are open."""
        return sum(store.row_count for store in self._stores)

    def check(self, store: Spillable | None = None) -> None:
        """Begin to move rows to disk if it is time; the writing itself happens in a thread."""
        if self._spilling >= _SPILLS_AT_ONCE or self._retry is not None:
            return
        if (self.memory_bytes - self.spilling_bytes) * 2 > self.limit_bytes:
            store = max(self._stores, key=lambda candidate: candidate.memory_bytes)
        elif store is None or not store.spill_due:
            return
        if store.memory_bytes and not store.is_spilling:
            self.spill(store)

    def spill(self, store: Spillable, checkpoint: Path | None = None) -> Future[Any] | None:
        """Move one store to disk in a thread; None when there is no thread."""
        loop = asyncio.get_running_loop()
        try:
            work = store.start_spill(checkpoint)
        except RuntimeError as error:  # there cannot be another thread now
            logger.error("rows cannot be moved to disk: %s", error)
            return None
        self._spilling += 1
        started = time.perf_counter()

        def ended(_: Future[Any]) -> None:
            # Without a loop, closing the store takes care of the outcome.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._spilled, store, started)

        work.add_done_callback(ended)
        return work

    def _spilled(self, store: Spillable, started: float) -> None:
        self._spilling -= 1
        if store.finish_spill():
            self.spill_latencies.add_seconds(time.perf_counter() - started)
            self._retry_seconds = _RETRY_SECONDS_MIN
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None
            self.check(store)
        elif store not in self._stores:
            # Closed meanwhile, perhaps dropped with its files: nothing is wrong with the disk, and others go on.
            self.check()
        elif self._retry is None:
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

    async def spilled(self, store: Spillable) -> None:
        """Wait until no thread writes the rows of a store."""
        while store.is_spilling and store in self._stores:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    async def room(self) -> None:
        """Wait until there is memory for more rows."""
        if not self._is_full:
            return
        self.check()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _WAIT_SECONDS_MAX
        while self._is_full and (self._spilling or self._retry is not None or self.uncommitted_bytes):
            waiter: asyncio.Future[None] = loop.create_future()
            self._waiters.append(waiter)
            try:
                await wait_for(waiter, deadline - loop.time())
            except asyncio.TimeoutError:
                break
        if self._is_full:
            raise StorageBackpressureError(
                f"rows come faster than the disk takes them: {self.memory_bytes + self.uncommitted_bytes} of "
                f"{self.limit_bytes} bytes of memory (option 'kv.memory-size') are in use; try again later, and see "
                "the log of the server if the disk is full"
            )

    def _wake(self) -> None:
        """Let those who wait look again. May come from any thread: a stop closes stores in one."""
        if self._waiters:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and so has every wait
                self._waiters[0].get_loop().call_soon_threadsafe(self._wake_here)

    def _wake_here(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            complete(waiter)


def _views_max() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _VIEWS_MAX if soft == resource.RLIM_INFINITY else max(min(_VIEWS_MAX, soft // _HANDLES_PER_VIEW), 1)
