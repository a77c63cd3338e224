# SPDX-License-Identifier: Apache-2.0
"""One connection per Python process and set of client options.

Spark forks its Python workers and uses each for many tasks; what a task needs is opened once in its worker. A
connection belongs to the process that opened it: after a fork the child opens its own.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, TypeVar

from fluss import aio
from fluss.client.scan.fetcher import decode_when_taken
from fluss.config import Config
from fluss.metadata import TableInfo, TablePath
from fluss.net.background import LoopHere, LoopThread

T = TypeVar("T")


class Client:
    """A connection for code that waits, on a loop in a thread of its own.

    With `here`, on a loop in the thread that waits: for a task that does nothing but read, in a process where no other
    thread uses the connection. Rows then take no way from thread to thread.
    """

    def __init__(self, options: dict[str, Any], *, here: bool = False) -> None:
        self._loop = LoopHere() if here else LoopThread("fluss-spark")
        try:
            self.connection = self._loop.run(aio.FlussConnection.create(Config(options)))
        except BaseException:
            self._loop.close()
            raise
        self.admin = self.connection.get_admin()

    @property
    def closed(self) -> bool:
        return self._loop.closed or self.connection.closed

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the connection and wait for it."""
        return self._loop.run(coro)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a plain call on the connection's loop."""
        return self._loop.call(function, *arguments)

    def iterate(self, generator: AsyncGenerator[T, None]) -> Iterator[T]:
        """Give the items of an asynchronous generator to a plain loop."""
        return self._loop.iterate(generator)

    def table(self, path: TablePath) -> aio.FlussTable:
        return self.run(self.connection.get_table(path))

    def info(self, path: TablePath) -> TableInfo:
        return self.run(self.admin.get_table_info(path))

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(Exception):
                self.run(self.connection.close())
        self._loop.close()


_DAEMONS = ("pyspark.daemon", f"{__package__}.daemon")
"""The programs that Spark forks its workers from."""

_lock = threading.Lock()
_clients: dict[tuple[Any, ...], Client] = {}


def client_of(options: dict[str, Any]) -> Client:
    """The connection of this process for these client options."""
    return _kept(options, here=False)


def reader_of(options: dict[str, Any]) -> Client:
    """The connection of this process for a task that reads."""
    return _kept(options, here=_is_worker())


def _kept(options: dict[str, Any], *, here: bool) -> Client:
    key = (os.getpid(), here, *sorted((name, str(value)) for name, value in options.items()))
    with _lock:
        client = _clients.get(key)
        if client is None or client.closed:
            client = _clients[key] = Client(options, here=here)
            if _is_worker():
                freeze_loaded_modules()
                decode_when_taken()
        return client


def _is_worker() -> bool:
    """Tell whether this process is one of Spark's own, for planning or for tasks, and not a user's."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    return getattr(spec, "name", None) in _DAEMONS


def freeze_loaded_modules() -> None:
    """Exclude everything loaded so far from garbage collection (`gc.freeze`).

    A Spark worker collects garbage after every task. That takes 50 ms for the objects of all loaded modules, none of
    which ever becomes garbage, and next to nothing once they are frozen.
    """
    gc.collect()
    gc.freeze()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _clients.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
