# SPDX-License-Identifier: Apache-2.0
"""What one task of a tiering round does: read a range of one bucket's log, write it to new files of the lake.

Tasks know nothing of Spark: `LocalRunner` runs them on this machine, and what runs them on a cluster only has to carry
a `BucketTask` there and a `BucketResult` back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from fluss.client.blocking_client import BlockingClient, shared_client
from fluss.client.scan import RecordBatch, TableScan
from fluss.client.scan.records import offset_array
from fluss.errors import (
    FlussError,
    InvalidArgumentError,
    LakeSnapshotNotExistError,
    PartitionNotExistsError,
    TableNotExistError,
    UnknownTableOrBucketError,
)
from fluss.lake.api import LakeBucket, LakeWriter, Rows, WrittenFiles
from fluss.lake.layout import LakeConfig
from fluss.lake.registry import open_lake
from fluss.metadata import LakeSnapshot, TableBucket, TableInfo, TablePath

_ROWS_AT_ONCE = 65_536
_BYTES_AT_ONCE = 32 * 1024 * 1024


@dataclass(frozen=True)
class BucketTask:
    """A range of one bucket's log. Can be pickled."""

    client: dict[str, Any] = field(repr=False)
    lake: LakeConfig
    table_path: TablePath
    table_id: int
    bucket: TableBucket
    partition: tuple[str, ...]
    start: int
    stop: int
    listed: bool = False
    """List the rows there are now, because the changelog does not reach back to the first one."""
    until: float | None = None
    """Stop at the next batch after this time (epoch, seconds)."""


@dataclass(frozen=True)
class BucketResult:
    """How far a task came, and what it wrote."""

    bucket: TableBucket
    start: int
    end: int
    rows: int
    written: WrittenFiles | None
    cut: bool = False
    """Ended by the time limit: there is more in the range."""
    gone: bool = False
    """The partition was dropped meanwhile: nothing to commit."""


def check_same_table(info: TableInfo, table_id: int) -> None:
    """Raise unless a table is still the one that the work was planned for."""
    if info.table_id != table_id:
        raise TableNotExistError(
            f"table {info.table_path} was dropped and created again (id {table_id} is now {info.table_id})"
        )


def run_task(task: BucketTask) -> BucketResult:
    """Read and write. What was written by a task that fails is removed."""
    session = session_of(task.client)
    try:
        source = session.table(task.table_path)
        info = source.get_table_info()
        check_same_table(info, task.table_id)
        with open_lake(task.lake) as lake:
            writer = lake.table(info.lake_path).writer(LakeBucket(task.bucket.bucket_id, task.partition), info)
            try:
                if task.listed:
                    return _list_rows(session, task, writer)
                scan = session.call(source.new_scan)
                batches = scan.read_batches({task.bucket: task.start}, {task.bucket: task.stop})
                return _copy(task, session.iterate(batches), writer)
            except BaseException:
                writer.abort()
                raise
    except (PartitionNotExistsError, UnknownTableOrBucketError):
        # A leader that moves is an error like any other: only the rows of a dropped partition may be left out.
        left = {bucket.partition_id for bucket in session.buckets(session.info(task.table_path))}
        if task.bucket.partition_id is None or task.bucket.partition_id in left:
            raise
        return BucketResult(task.bucket, task.start, task.start, 0, None, gone=True)


class LocalRunner:
    """Tasks in threads of this process: decoding, compressing and writing run outside the interpreter lock."""

    def __init__(self, threads: int | None = None) -> None:
        self._threads = threads or min(8, max(2, os.cpu_count() or 2))

    def run(self, tasks: Sequence[BucketTask], done: Callable[[BucketResult], None]) -> list[BucketResult]:
        """Run all tasks; raises the first error after those that run have ended."""
        results: list[BucketResult] = []
        failure: BaseException | None = None
        with ThreadPoolExecutor(min(self._threads, max(1, len(tasks))), "fluss-tier") as pool:
            futures = [pool.submit(run_task, task) for task in tasks]
            for future in as_completed(futures):
                if future.cancelled():
                    continue
                error = future.exception()
                if error is None:
                    results.append(future.result())
                    done(results[-1])
                elif failure is None:
                    failure = error
                    for other in futures:
                        other.cancel()
        if failure is not None:
            raise failure
        return results


def _copy(task: BucketTask, batches: Iterator[RecordBatch], writer: LakeWriter) -> BucketResult:
    # Small batches are put together: files are written faster from large ones.
    held: list[RecordBatch] = []
    held_rows = held_bytes = 0
    rows, end, cut = 0, task.stop, False
    for found in batches:
        if found.num_records:
            held.append(found)
            held_rows += found.num_records
            held_bytes += found.batch.nbytes
            rows += found.num_records
            if held_rows >= _ROWS_AT_ONCE or held_bytes >= _BYTES_AT_ONCE:
                writer.write(_joined(held))
                held, held_rows, held_bytes = [], 0, 0
        enough = writer.full or (task.until is not None and time.time() >= task.until)
        if enough and found.last_offset + 1 < task.stop:
            end, cut = found.last_offset + 1, True
            break
    if held:
        writer.write(_joined(held))
    return BucketResult(task.bucket, task.start, end, rows, writer.finish(), cut)


def _joined(batches: Sequence[RecordBatch]) -> Rows:
    offsets = np.concatenate([offset_array(found) for found in batches])
    stamps = np.concatenate([np.full(found.num_records, found.timestamp, np.int64) for found in batches])
    changes = None
    if batches[0].change_types is not None:
        changes = b"".join(found.change_types or bytes(found.num_records) for found in batches)
    table = pa.Table.from_batches([found.batch for found in batches]).combine_chunks()
    return Rows(table.to_batches()[0], offsets, stamps, changes)


def _list_rows(session: LakeSession, task: BucketTask, writer: LakeWriter) -> BucketResult:
    """All rows of a primary-key bucket as inserts, and the offset they stand for."""
    scan = session.scan(task.table_path)
    scanner = session.call(lambda: scan.create_bucket_batch_scanner(task.bucket))
    rows = 0
    try:
        while (found := session.run(scanner.next_batch())) is not None:
            nothing = np.full(found.num_records, -1, np.int64)
            writer.write(Rows(found.batch, nothing, nothing))
            rows += found.num_records
        end = scanner.log_offset
    finally:
        session.run(scanner.close())
    if end is None:
        raise InvalidArgumentError(
            f"the changelog of {task.bucket} of table {task.table_path} no longer reaches back to its first row, and "
            "this server cannot list rows with the offset they stand for"
        )
    return BucketResult(task.bucket, task.start, end, rows, writer.finish())


def lake_partition(info: TableInfo, name: str | None) -> tuple[str, ...]:
    """The partition values of a partition name."""
    if name is None:
        return ()
    values = tuple(name.split("$"))
    if len(values) != len(info.partition_keys):
        raise FlussError(f"partition '{name}' of {info.table_path} does not have {len(info.partition_keys)} values")
    return values


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


def session_of(options: Mapping[str, Any]) -> LakeSession:
    """The connection of this process for these client options, which many tasks share."""
    return shared_client(LakeSession, options)
