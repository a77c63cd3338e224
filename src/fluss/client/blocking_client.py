# SPDX-License-Identifier: Apache-2.0
"""Connections for blocking code inside this package: tiering, union reads and Spark tasks.

Tasks of one process share a connection (`shared_client`). It belongs to the process that opened it: after a fork the
child opens its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fluss.client.buckets import bucket_offsets, table_buckets
from fluss.client.connection import FlussConnection, FlussTable, open_connection
from fluss.client.scan.as_of import rows_as_of
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch
from fluss.config import Config
from fluss.metadata import OffsetSpec, TableBucket, TableInfo, TablePath
from fluss.net.background import CallerLoop, LoopThread, RunningLoop

T = TypeVar("T")
ClientT = TypeVar("ClientT", bound="BlockingClient")


class BlockingClient:
    """A connection with blocking calls, on an event loop in a thread of its own.

    With `here`, the loop runs in the calling thread while that waits: for a task that only reads, in a process where no
    other thread uses the connection. Rows then do not pass from thread to thread.
    """

    def __init__(self, options: Mapping[str, Any], *, here: bool = False) -> None:
        self._loop: CallerLoop | LoopThread | RunningLoop = CallerLoop() if here else LoopThread("fluss-blocking")
        try:
            self.connection = self._loop.run(open_connection(Config(dict(options))))
        except BaseException:
            self._loop.close()
            raise
        self.admin = self.connection.get_admin()

    @classmethod
    def over(cls: type[ClientT], connection: FlussConnection) -> ClientT:
        """Make blocking calls of a connection, for other threads than that of the running loop, which it belongs to."""
        client = cls.__new__(cls)
        client._loop = RunningLoop(asyncio.get_running_loop())
        client.connection = connection
        client.admin = connection.get_admin()
        return client

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

    def buckets(self, info: TableInfo) -> dict[TableBucket, str | None]:
        """The buckets of a table now, each with the name of its partition."""
        return self.run(table_buckets(self.admin, info))

    def offsets(
        self, info: TableInfo, buckets: Mapping[TableBucket, str | None], spec: OffsetSpec
    ) -> dict[TableBucket, int]:
        """Offsets of many buckets; those of partitions dropped meanwhile are left out."""
        return self.run(bucket_offsets(self.admin, info, buckets, spec))

    def rows_as_of(
        self, info: TableInfo, bucket: TableBucket, offset: int, columns: Sequence[str]
    ) -> Iterator[RecordBatch]:
        """The rows of a primary-key bucket as of an offset; `columns` must have those of the primary key."""
        plan = ScanPlan(self.connection._cluster, info).project_by_name(columns)
        return self.iterate(rows_as_of(plan, bucket, offset))

    def close(self) -> None:
        if isinstance(self._loop, RunningLoop):
            return  # the connection is that of its loop
        if not self.closed:
            with contextlib.suppress(Exception):
                self.run(self.connection.close())
        self._loop.close()

    def __enter__(self: ClientT) -> ClientT:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_lock = threading.Lock()
_shared: dict[tuple[Any, ...], Any] = {}


def shared_client(
    kind: type[ClientT],
    options: Mapping[str, Any],
    *,
    here: bool = False,
    on_open: Callable[[], None] | None = None,
) -> ClientT:
    """The connection of this process for these client options; opened if there is none."""
    key = (os.getpid(), kind, here, *sorted((name, str(value)) for name, value in options.items()))
    with _lock:
        client = _shared.get(key)
        if client is None or client.closed:
            client = _shared[key] = kind(options, here=here)
            if on_open is not None:
                on_open()
        return client


def close_shared_clients() -> None:
    """Close every shared connection of this process."""
    with _lock:
        for client in _shared.values():
            client.close()
        _shared.clear()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
