# SPDX-License-Identifier: Apache-2.0
"""What the server needs of its machine besides a disk: clocks, threads and listening sockets.

A simulation passes an environment of its own and so runs the same server on virtual ones; `fluss.server.disk` is the
counterpart for files.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any, Protocol

from fluss.server.clock import Clock
from fluss.server.config import Endpoint
from fluss.server.kv.rocksdb import Writer, WriterProcess
from fluss.server.listener import Accept, Listener


class Worker(Protocol):
    """Runs calls one after the other, beside the event loop."""

    def submit(self, call: Callable[..., None], /, *args: Any) -> None: ...

    def stop(self) -> None:
        """End after the calls that were submitted."""
        ...


class Environment:
    """The real machine."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or Clock()

    def executor(self, threads: int, name: str) -> Executor:
        return ThreadPoolExecutor(threads, thread_name_prefix=name)

    def worker(self, name: str) -> Worker:
        return WorkerThread(name)

    def kv_writer(self) -> Writer:
        return WriterProcess()

    def listen(self, endpoint: Endpoint, accept: Accept, make_room: Callable[[], bool]) -> Listener:
        return Listener(endpoint, accept, make_room)


class WorkerThread:
    """A thread that starts with its first call. Without futures: into a pool and out of it takes as long as a small
    append does."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[..., None], tuple[Any, ...]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(self, call: Callable[..., None], /, *args: Any) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            thread.start()
            self._thread = thread
        self._calls.put((call, args))

    def stop(self) -> None:
        if self._thread is not None:
            self._thread = None
            self._calls.put(None)

    def _run(self) -> None:
        while (job := self._calls.get()) is not None:
            call, args = job
            call(*args)
            del job, call, args  # they know the files of a log that may be dropped before the next flush
