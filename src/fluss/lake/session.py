# SPDX-License-Identifier: Apache-2.0
"""One connection per process and set of client options, for code that waits: tasks come and go, connections stay."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from fluss.client import core
from fluss.client.admin import FlussAdmin
from fluss.client.scan import TableScan
from fluss.config import Config
from fluss.errors import LakeSnapshotNotExistError, PartitionNotExistsError
from fluss.metadata import LakeSnapshot, OffsetSpec, TableBucket, TableInfo, TablePath
from fluss.net.background import LoopThread

T = TypeVar("T")


class Session:
    """A connection on a loop in a thread of its own."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._thread = LoopThread("fluss-lake")
        try:
            self._connection = self._thread.run(core.FlussConnection.create(Config(dict(options))))
        except BaseException:
            self._thread.close()
            raise
        self.admin: FlussAdmin = self._connection.get_admin()

    @property
    def closed(self) -> bool:
        return self._thread.closed or self._connection.closed

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return self._thread.run(coro)

    def call(self, function: Callable[[], T]) -> T:
        """Make a plain call on the connection's loop."""
        return self._thread.call(function)

    def iterate(self, generator: AsyncGenerator[T, None]) -> Iterator[T]:
        return self._thread.iterate(generator)

    def info(self, path: TablePath) -> TableInfo:
        return self.run(self.admin.get_table_info(path))

    def table(self, path: TablePath) -> core.FlussTable:
        return self.run(self._connection.get_table(path))

    def scan(self, path: TablePath) -> TableScan:
        table = self.table(path)
        return self.call(table.new_scan)

    def lake_snapshot(self, path: TablePath, *, readable: bool = False) -> LakeSnapshot | None:
        """The newest snapshot the server knows; None if there is none."""
        ask = self.admin.get_readable_lake_snapshot if readable else self.admin.get_latest_lake_snapshot
        try:
            return self.run(ask(path))
        except LakeSnapshotNotExistError:
            return None

    def buckets(self, info: TableInfo) -> dict[TableBucket, str | None]:
        """The buckets of a table now, each with the name of its partition."""
        numbers = range(info.num_buckets)
        if not info.is_partitioned():
            return {TableBucket(info.table_id, number): None for number in numbers}
        return {
            TableBucket.with_partition(info.table_id, partition.partition_id, number): partition.partition_name
            for partition in self.run(self.admin.list_partition_infos(info.table_path))
            for number in numbers
        }

    def offsets(
        self, info: TableInfo, buckets: Mapping[TableBucket, str | None], spec: OffsetSpec
    ) -> dict[TableBucket, int]:
        """Offsets of many buckets; those of partitions dropped meanwhile are left out."""
        by_partition: dict[str | None, list[TableBucket]] = {}
        for bucket, partition in buckets.items():
            by_partition.setdefault(partition, []).append(bucket)
        found: dict[TableBucket, int] = {}
        for partition, members in by_partition.items():
            numbers: Sequence[int] = [bucket.bucket_id for bucket in members]
            try:
                if partition is None:
                    answer = self.run(self.admin.list_offsets(info.table_path, numbers, spec))
                else:
                    answer = self.run(self.admin.list_partition_offsets(info.table_path, partition, numbers, spec))
            except PartitionNotExistsError:
                continue
            found.update({bucket: answer[bucket.bucket_id] for bucket in members if bucket.bucket_id in answer})
        return found

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(Exception):
                self.run(self._connection.close())
        self._thread.close()


_lock = threading.Lock()
_sessions: dict[tuple[Any, ...], Session] = {}


def session_of(options: Mapping[str, Any]) -> Session:
    """The connection of this process for these client options."""
    key = (os.getpid(), *sorted((name, str(value)) for name, value in options.items()))
    with _lock:
        session = _sessions.get(key)
        if session is None or session.closed:
            session = _sessions[key] = Session(options)
        return session


def close_sessions() -> None:
    """Close every connection of this process."""
    with _lock:
        for session in _sessions.values():
            session.close()
        _sessions.clear()


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have held it
    _sessions.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
