# SPDX-License-Identifier: Apache-2.0
"""One connection per process and set of client options, for blocking code; many tasks share it."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from fluss.client.blocking_client import BlockingClient
from fluss.client.scan import TableScan
from fluss.errors import LakeSnapshotNotExistError, PartitionNotExistsError
from fluss.metadata import LakeSnapshot, OffsetSpec, TableBucket, TableInfo, TablePath


class LakeSession(BlockingClient):
    """A connection with the questions that tiering and union reads ask."""

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


_lock = threading.Lock()
_sessions: dict[tuple[Any, ...], LakeSession] = {}


def session_of(options: Mapping[str, Any]) -> LakeSession:
    """The connection of this process for these client options."""
    key = (os.getpid(), *sorted((name, str(value)) for name, value in options.items()))
    with _lock:
        session = _sessions.get(key)
        if session is None or session.closed:
            session = _sessions[key] = LakeSession(options)
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
