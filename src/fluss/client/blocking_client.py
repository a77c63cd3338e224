# SPDX-License-Identifier: Apache-2.0
"""A connection for blocking code inside this package: tiering, union reads and Spark tasks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from fluss.client.core import FlussTable, open_connection
from fluss.config import Config
from fluss.metadata import TableInfo, TablePath
from fluss.net.background import CallerLoop, LoopThread

T = TypeVar("T")
ClientT = TypeVar("ClientT", bound="BlockingClient")


class BlockingClient:
    """A connection with blocking calls, on an event loop in a thread of its own.

    With `here`, the loop runs in the calling thread while that waits: for a task that only reads, in a process where no
    other thread uses the connection. Rows then do not pass from thread to thread.
    """

    def __init__(self, options: Mapping[str, Any], *, here: bool = False) -> None:
        self._loop = CallerLoop() if here else LoopThread("fluss-blocking")
        try:
            self.connection = self._loop.run(open_connection(Config(dict(options))))
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

    def table(self, path: TablePath) -> FlussTable:
        return self.run(self.connection.get_table(path))

    def info(self, path: TablePath) -> TableInfo:
        return self.run(self.admin.get_table_info(path))

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(Exception):
                self.run(self.connection.close())
        self._loop.close()

    def __enter__(self: ClientT) -> ClientT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
