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
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluss.client.admin import FlussAdmin
from fluss.client.admin.leases import KvSnapshotLease
from fluss.client.runner import Direct
from fluss.client.scan.remote import RemoteReader
from fluss.errors import FlussError, FormatError, StorageError
from fluss.protocol import apis
from fluss.rows import Slices

if TYPE_CHECKING:
    from fluss.client.scan.plan import ScanPlan
    from fluss.metadata import TableBucket
    from fluss.net.deadline import Deadline

_ROWS_PER_STEP = 20_000
_LEASE_MS = 60 * 60 * 1000


async def newest_snapshot(plan: ScanPlan, bucket: TableBucket, deadline: Deadline) -> tuple[int, int] | None:
    """The id and the log offset of a bucket's newest snapshot, if it has one and the server knows of such things."""
    cluster, path, name = plan.cluster, plan.info.table_path, None
    if bucket.partition_id is not None:
        partition = await cluster.partition_by_id(path, bucket.partition_id, deadline=deadline)
        if partition is None:
            return None
        name = partition.partition_name
    for found in await FlussAdmin(Direct(cluster)).get_latest_kv_snapshots(path, name, timeout=deadline.left_s):
        if found.bucket == bucket and found.snapshot_id is not None:
            return found.snapshot_id, found.log_offset or 0
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
        self._admin = FlussAdmin(Direct(plan.cluster))
        self._reader = RemoteReader(plan.cluster)
        self._folder = ""
        self._lease: KvSnapshotLease | None = None
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
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(FlussError):  # it expires
                await lease.drop_lease()

    async def _open(self) -> None:
        cluster, bucket, snapshot_id = self._plan.cluster, self._bucket, self._snapshot_id
        if (await cluster.coordinator(self._deadline)).supports(apis.ACQUIRE_KV_SNAPSHOT_LEASE):
            lease = self._admin.create_kv_snapshot_lease(f"fluss-{uuid.uuid4()}", _LEASE_MS)
            # One that is gone already is reported by the call for its files.
            await lease.acquire_snapshots({bucket: snapshot_id}, timeout=self._deadline.left_s)
            self._lease = lease
        snapshot = await self._admin.get_kv_snapshot_metadata(bucket, snapshot_id, timeout=self._deadline.left_s)
        self.log_offset = snapshot.log_offset
        self._folder = await self._reader.run(tempfile.mkdtemp, "", "fluss-snapshot-")
        files: dict[str, Path] = {}
        for remote_path, name in snapshot.files.items():
            # A name from the wire: nothing of it may lead out of the folder.
            if Path(name).name != name or "\0" in name:
                raise FormatError(f"a file of snapshot {snapshot_id} of {bucket} is called {name!r}")
            files[remote_path] = Path(self._folder) / name
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
