# SPDX-License-Identifier: Apache-2.0
"""Snapshots of primary-key buckets, read from the files that the server put into its remote storage.

A snapshot is a RocksDB whose files are scattered over several folders under random names. They are collected in a
temporary folder (files of the local file system as links), opened there, and read in key order.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss.client.requests import pb_path
from fluss.client.scan.remote import RemoteReader
from fluss.errors import FlussError, FormatError, StorageError
from fluss.protocol import apis
from fluss.protocol import messages as pb
from fluss.rows import Slices

if TYPE_CHECKING:
    from fluss.client.scan.plan import ScanPlan
    from fluss.metadata import TableBucket
    from fluss.net.deadline import Deadline

_ROWS_PER_STEP = 20_000
_LEASE_MS = 60 * 60 * 1000


@dataclass(frozen=True)
class SnapshotRef:
    """A snapshot of one bucket, and the offset of the changelog that goes on from it."""

    snapshot_id: int
    log_offset: int


async def newest_snapshot(plan: ScanPlan, bucket: TableBucket, deadline: Deadline) -> SnapshotRef | None:
    """The newest snapshot of a bucket, if it has one and the server knows of such things."""
    cluster, path = plan.cluster, plan.info.table_path
    request = pb.GetLatestKvSnapshotsRequest(table_path=pb_path(path))
    if bucket.partition_id is not None:
        partition = await cluster.partition_by_id(path, bucket.partition_id, deadline=deadline)
        if partition is None:
            return None
        request.partition_name = partition.partition_name
    answer = await cluster.call_coordinator(apis.GET_LATEST_KV_SNAPSHOTS, request, deadline=deadline)
    for found in answer.latest_snapshots:
        if found.bucket_id == bucket.bucket_id and found.HasField("snapshot_id"):
            return SnapshotRef(found.snapshot_id, found.log_offset)
    return None


class SnapshotRows:
    """The stored values of one snapshot. Use as an async context manager, which takes care of lease and files.

    `log_offset` is known inside the block.
    """

    def __init__(self, plan: ScanPlan, bucket: TableBucket, snapshot_id: int, deadline: Deadline) -> None:
        self._plan = plan
        self._bucket = bucket
        self._snapshot_id = snapshot_id
        self._deadline = deadline
        self._reader = RemoteReader(plan.cluster)
        self._folder = ""
        self._lease_id = ""
        self._db: Any = None
        self._rows: Any = None
        self._last: bytes | None = None
        self.log_offset = 0

    async def __aenter__(self) -> SnapshotRows:
        try:
            await self._open()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._reader.run(self._close)
        self._reader.close()
        if self._lease_id:
            request = pb.DropKvSnapshotLeaseRequest(lease_id=self._lease_id)
            self._lease_id = ""
            with contextlib.suppress(FlussError):  # it expires
                await self._plan.cluster.call_coordinator(apis.DROP_KV_SNAPSHOT_LEASE, request)

    async def _open(self) -> None:
        cluster, bucket, snapshot_id = self._plan.cluster, self._bucket, self._snapshot_id
        if (await cluster.coordinator(self._deadline)).supports(apis.ACQUIRE_KV_SNAPSHOT_LEASE):
            lease = pb.AcquireKvSnapshotLeaseRequest(lease_id=f"fluss-{uuid.uuid4()}", lease_duration_ms=_LEASE_MS)
            table = lease.snapshots_to_lease.add(table_id=bucket.table_id)
            table.bucket_snapshots.add(
                partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, snapshot_id=snapshot_id
            )
            # One that is gone already is reported by the call for its files.
            await cluster.call_coordinator(apis.ACQUIRE_KV_SNAPSHOT_LEASE, lease, deadline=self._deadline)
            self._lease_id = lease.lease_id
        request = pb.GetKvSnapshotMetadataRequest(
            table_id=bucket.table_id,
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
            snapshot_id=snapshot_id,
        )
        answer = await cluster.call_coordinator(apis.GET_KV_SNAPSHOT_METADATA, request, deadline=self._deadline)
        self.log_offset = answer.log_offset
        self._folder = await self._reader.run(tempfile.mkdtemp, "", "fluss-snapshot-")
        files: dict[str, Path] = {}
        for file in answer.snapshot_files:
            # A name from the wire: nothing of it may lead out of the folder.
            if Path(file.local_file_name).name != file.local_file_name or "\0" in file.local_file_name:
                raise FormatError(f"a file of snapshot {snapshot_id} of {bucket} is called {file.local_file_name!r}")
            files[file.remote_path] = Path(self._folder) / file.local_file_name
        try:
            await self._reader.download(files)
        except (OSError, ValueError) as error:  # a path that is none is a ValueError
            raise StorageError(
                f"snapshot {snapshot_id} of {bucket} of table '{self._plan.info.table_path}' cannot be read: {error}. "
                "This process needs access to the remote storage of the server."
            ) from None
        await self._reader.run(self._open_db)

    def _open_db(self) -> None:
        from rocksdict import AccessType, Options, Rdict  # only readers of snapshots need it

        try:
            self._db = Rdict(self._folder, Options(raw_mode=True), access_type=AccessType.read_only())
            self._rows = iter(self._db.values())
        except Exception as error:  # RocksDB raises plain exceptions
            raise self._damaged(error) from None

    def _damaged(self, error: Exception) -> StorageError:
        table = self._plan.info.table_path
        return StorageError(f"snapshot {self._snapshot_id} of {self._bucket} of table '{table}' is damaged: {error}")

    async def values(self) -> AsyncGenerator[Slices, None]:
        """The stored values (schema id and row) in key order, in parts."""
        while part := await self._reader.run(self._next):
            yield Slices.from_list(part)

    def _next(self) -> list[bytes]:
        try:
            part: list[bytes] = list(islice(self._rows, _ROWS_PER_STEP))
            if part:
                self._last = part[-1]
            if len(part) < _ROWS_PER_STEP:
                self._check_end()
        except Exception as error:
            raise self._damaged(error) from None
        return part

    def _check_end(self) -> None:
        """Raise what ended the iteration, unless it was the end of the rows: rocksdict's iterators end silently."""
        rows = self._db.iter()
        rows.seek_to_last()
        found = rows.value() if rows.valid() else None
        rows.status()
        if found != self._last:  # no two values are equal: rows contain their key
            raise ValueError("a block cannot be read")

    def _close(self) -> None:
        self._rows = None  # an open iterator keeps the database open
        db, self._db = self._db, None
        if db is not None:
            db.close()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
