# SPDX-License-Identifier: Apache-2.0
"""The snapshots of one bucket's state: what is in them, and their files.

The layout is that of Apache Fluss, so that its clients can read it. A snapshot is a folder `snap-{id}` with the small
files of RocksDB (CURRENT and the manifest) and `_METADATA`; its tables lie in the folder `shared`, where a snapshot
takes over those that its predecessor has too. The files of RocksDB have random names, which `_METADATA` maps to those
that RocksDB looks for. `_METADATA` is written last and removed first: a snapshot is complete exactly while it is there,
whatever moment the server is killed at.

`_CHECKSUMS` beside it is our own: CRC32 of every file, and what Apache Fluss has no field for.
"""

from __future__ import annotations

import contextlib
import json
import logging
import posixpath
import re
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fluss.errors import KvStorageError
from fluss.metadata import TableBucket
from fluss.server import disk
from fluss.server.kv import ordered
from fluss.server.kv.store import Checkpointed, Store, StoreMeta
from fluss.server.remote_files import RemoteFiles, checksum_of

logger = logging.getLogger("fluss.server.kv")

METADATA_NAME = "_METADATA"
CHECKSUMS_NAME = "_CHECKSUMS"
SHARED_NAME = "shared"
_VERSION = 1
_SNAPSHOT_FOLDER = re.compile(r"snap-(\d+)")
_TABLE_SUFFIX = ".sst"
_PRIVATE_FILE = re.compile(r"CURRENT|MANIFEST-\d+")
"""What RocksDB needs beside its tables. Its options are not among them: every reader brings its own."""


MEMORY_BYTES_MAX = 32 * 1024 * 1024
"""A state that takes up to so much memory is copied as a whole, from memory and back into it: 0.1 s of processor time
for 50,000 rows. Beyond it, files that RocksDB did not change are shared with the snapshot before."""
_ROW_OVERHEAD_BYTES = 200
_ROW_BYTES_MIN = 16
"""What a row takes in a file at least, for snapshots whose rows are not counted."""


class DamagedSnapshotError(Exception):
    """A snapshot cannot be used: a file is missing, or is not what was written."""


@dataclass(frozen=True)
class SnapshotFile:
    """One file of a snapshot."""

    path: str
    size_bytes: int
    local_name: str
    """What it must be called for RocksDB."""
    checksum: int

    def to_json(self) -> dict[str, Any]:
        return {"kv_file_handle": {"path": self.path, "size": self.size_bytes}, "local_path": self.local_name}


@dataclass(frozen=True)
class NumberRange:
    """The numbers that a bucket may still give to its auto-increment column, both ends included."""

    column_id: int
    start: int
    end: int


@dataclass(frozen=True)
class BucketSnapshot:
    """The state of a bucket after all changes below one offset of its changelog."""

    bucket: TableBucket
    snapshot_id: int
    location: str
    shared: tuple[SnapshotFile, ...]
    private: tuple[SnapshotFile, ...]
    new_bytes: int
    """The size of the files that its predecessor does not have."""
    log_offset: int
    row_count: int | None
    numbers: NumberRange | None
    meta: StoreMeta

    @property
    def files(self) -> tuple[SnapshotFile, ...]:
        return self.private + self.shared

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    def to_json(self) -> bytes:
        """The document that Apache Fluss writes."""
        document: dict[str, Any] = {"version": _VERSION, "table_id": self.bucket.table_id}
        if self.bucket.partition_id is not None:
            document["partition_id"] = self.bucket.partition_id
        document["bucket_id"] = self.bucket.bucket_id
        document["snapshot_id"] = self.snapshot_id
        document["snapshot_location"] = self.location
        document["kv_snapshot_handle"] = {
            "shared_file_handles": [file.to_json() for file in self.shared],
            "private_file_handles": [file.to_json() for file in self.private],
            "snapshot_incremental_size": self.new_bytes,
        }
        document["log_offset"] = self.log_offset
        if self.row_count is not None:
            document["row_count"] = self.row_count
        if self.numbers is not None:
            found = {"column_id": self.numbers.column_id, "start": self.numbers.start, "end": self.numbers.end}
            document["auto_inc_id_range"] = [found]
        return json.dumps(document, separators=(",", ":")).encode()

    def checksums(self) -> bytes:
        """The document that says what the files must be."""
        files = {file.local_name: file.checksum for file in self.files}
        body = json.dumps({"metadata": zlib.crc32(self.to_json()), "meta": self.meta._asdict(), "files": files})
        return disk.seal(body.encode())

    def moved_to(self, folder: str) -> BucketSnapshot:
        """The same snapshot in a data folder that was moved, or copied to another place, since it was taken."""
        location = f"{folder}/{posixpath.basename(self.location)}"
        if location == self.location:
            return self

        def moved(files: tuple[SnapshotFile, ...], to: str) -> tuple[SnapshotFile, ...]:
            return tuple(replace(file, path=f"{to}/{posixpath.basename(file.path)}") for file in files)

        shared, private = moved(self.shared, f"{folder}/{SHARED_NAME}"), moved(self.private, location)
        return replace(self, location=location, shared=shared, private=private)

    @classmethod
    def parse(cls, metadata: bytes, checksums: bytes) -> BucketSnapshot:
        """Read the two documents; raises `DamagedSnapshotError` when they are not what was written."""
        own = json.loads(disk.unseal(checksums))
        if own["metadata"] != zlib.crc32(metadata):
            raise DamagedSnapshotError(f"'{METADATA_NAME}' is not what was written")
        document = json.loads(metadata)
        handle = document["kv_snapshot_handle"]

        def files(kind: str) -> tuple[SnapshotFile, ...]:
            return tuple(
                SnapshotFile(
                    file["kv_file_handle"]["path"],
                    file["kv_file_handle"]["size"],
                    file["local_path"],
                    own["files"][file["local_path"]],
                )
                for file in handle[kind]
            )

        ranges = [NumberRange(**found) for found in document.get("auto_inc_id_range", [])]
        return cls(
            TableBucket(document["table_id"], document["bucket_id"], document.get("partition_id")),
            document["snapshot_id"],
            document["snapshot_location"],
            files("shared_file_handles"),
            files("private_file_handles"),
            handle["snapshot_incremental_size"],
            document["log_offset"],
            document.get("row_count"),
            ranges[0] if ranges else None,
            StoreMeta(**own["meta"]),
        )


class BucketSnapshots:
    """The snapshots of one bucket, oldest first.

    Methods that touch files run in threads, one at a time. `snapshots` is replaced on the event loop, but for `load`.

    When an older copy of the data folder was put back beside a remote data directory that had gone on, there are
    snapshots of changes that the log has lost. It gives their offsets to other changes, so they are told apart by where
    the log ended when the state was opened, however far it has grown since.
    """

    def __init__(self, files: RemoteFiles, folder: str, bucket: TableBucket, staging: Path) -> None:
        self._files = files
        self.folder = folder
        self.bucket = bucket
        self.staging = staging
        """Where the files of the next snapshot are collected, on the disk of the state."""
        self.snapshots: tuple[BucketSnapshot, ...] = ()
        self.loaded = False
        self._lock = threading.Lock()
        self.on_opened: Callable[[BucketSnapshots], None] = lambda snapshots: None
        """Called on the event loop when the state was opened for the first time."""
        self._next_id = 0
        self._first_id = 0
        """Snapshots from here on were taken by this run of the server."""
        self._end_offset: int | None = None
        """Where the log ended when the state was opened; None before, when the log does not grow."""
        self._damaged: frozenset[int] = frozenset()
        """Ids of snapshots that are not what was written, and without which the state was rebuilt."""
        self._compared: set[str] = set()
        """Paths of tables that are known to have the content of the tables of the state with their names."""
        self._swept = False
        """Whether what earlier runs of the server, or a snapshot that failed, left behind is gone."""

    def explain(self, error: Exception) -> str:
        """Describe an error without the credentials of the store."""
        return self._files.explain(error)

    @property
    def newest(self) -> BucketSnapshot | None:
        return self.snapshots[-1] if self.snapshots else None

    def newest_up_to(self, end_offset: int) -> BucketSnapshot | None:
        """The newest that a log with this end reaches: one beyond it is of changes that the log has lost."""
        return next(reversed(self.up_to(end_offset)), None)

    def up_to(self, end_offset: int) -> list[BucketSnapshot]:
        """All that a log with this end reaches."""
        lost = self.lost
        return [found for found in self.snapshots if found.log_offset <= end_offset and found not in lost]

    @property
    def lost(self) -> tuple[BucketSnapshot, ...]:
        """Those that are damaged, or of changes that the log did not have any more when the state was opened."""
        end, first = self._end_offset, self._first_id
        if end is None:
            return ()
        return tuple(
            found
            for found in self.snapshots
            if found.snapshot_id in self._damaged or (found.snapshot_id < first and found.log_offset > end)
        )

    def exclude(self, damaged: Iterable[BucketSnapshot]) -> None:
        """Count these as lost: no log may expire for them, and no snapshot share their files."""
        self._damaged |= {snapshot.snapshot_id for snapshot in damaged}

    def opened(self, end_offset: int) -> None:
        """Record that the state is open, beside a log with this end. Only the first time counts: then the log grows."""
        if self._end_offset is None:
            self._end_offset = end_offset
            self.on_opened(self)

    @property
    def size_bytes(self) -> int:
        """What all of them take; files that several have in common count once."""
        return sum({file.path: file.size_bytes for found in self.snapshots for file in found.files}.values())

    @property
    def log_offset(self) -> int:
        """The newest snapshot stands for all changes below this offset."""
        return self.snapshots[-1].log_offset if self.snapshots else 0

    def retained_offset(self, end_offset: int) -> int:
        """From here on the snapshots that a log with this end reaches need it; 0 when it reaches none."""
        return min((found.log_offset for found in self.up_to(end_offset)), default=0)

    def find(self, snapshot_id: int, end_offset: int) -> BucketSnapshot | None:
        """The snapshot with an id, if a log with this end reaches it."""
        return next((found for found in self.up_to(end_offset) if found.snapshot_id == snapshot_id), None)

    def load(self) -> None:
        """Find the snapshots that are there, once. Raises OSError when they cannot be listed now."""
        with self._lock:
            if self.loaded:
                return
            ids = [int(match.group(1)) for name in self._files.names(self.folder) if (match := _is_snapshot(name))]
            found: list[BucketSnapshot] = []
            for snapshot_id in sorted(ids):
                location = self._location(snapshot_id)
                try:
                    metadata = self._files.read(f"{location}/{METADATA_NAME}")
                    read = BucketSnapshot.parse(metadata, self._files.read(f"{location}/{CHECKSUMS_NAME}"))
                    found.append(read.moved_to(self.folder))
                except FileNotFoundError:
                    continue  # it was not finished, or is half removed
                except (DamagedSnapshotError, ValueError, KeyError, TypeError) as error:
                    logger.error("snapshot %d of %s in '%s' is damaged: %s", snapshot_id, self.bucket, location, error)
            self._first_id = self._next_id = max(ids, default=-1) + 1
            self.snapshots, self.loaded = tuple(found), True

    def _location(self, snapshot_id: int) -> str:
        return f"{self.folder}/snap-{snapshot_id}"

    # Writing -----------------------------------------------------------------------------------------------------

    def write(self, taken: Checkpointed, row_count: int | None, numbers: NumberRange | None) -> BucketSnapshot:
        """Store a checkpoint as the next snapshot; when this returns it is durable."""
        with self._lock:
            snapshot_id, self._next_id = self._next_id, self._next_id + 1
            new: list[str] = []
            try:
                return self._write_files(snapshot_id, new, taken, row_count, numbers)
            except BaseException:
                self._discard(self._location(snapshot_id), new)
                raise
            finally:
                disk.remove_tree(taken.folder)

    def _write_files(
        self,
        snapshot_id: int,
        new: list[str],
        taken: Checkpointed,
        row_count: int | None,
        numbers: NumberRange | None,
    ) -> BucketSnapshot:
        """Write the files of a snapshot; `new` gets the paths of those in the shared folder."""
        location, shared_folder = self._location(snapshot_id), f"{self.folder}/{SHARED_NAME}"
        self._files.make_folder(location)
        self._files.make_folder(shared_folder)
        known = self._known_tables(taken.meta)
        shared: list[SnapshotFile] = []
        private: list[SnapshotFile] = []
        new_bytes = 0
        for name in disk.names(taken.folder):
            is_table = name.endswith(_TABLE_SUFFIX)
            if not is_table and not _PRIVATE_FILE.fullmatch(name):
                continue
            old = known.get(name) if is_table else None
            if old is not None and self._is_stored(taken.folder / name, old):
                shared.append(old)
                continue
            path = f"{shared_folder if is_table else location}/{uuid.uuid4()}"
            if is_table:
                new.append(path)
            copied = self._files.put(taken.folder / name, path)
            new_bytes += copied.size_bytes
            (shared if is_table else private).append(SnapshotFile(path, copied.size_bytes, name, copied.checksum))
        snapshot = BucketSnapshot(
            self.bucket,
            snapshot_id,
            location,
            tuple(shared),
            tuple(private),
            new_bytes,
            taken.meta.offset,
            row_count,
            numbers,
            taken.meta,
        )
        self._files.write(f"{location}/{CHECKSUMS_NAME}", snapshot.checksums())
        # All it names is durable before it is: it says that the snapshot is complete.
        self._files.sync_folder(shared_folder)
        self._files.sync_folder(location)
        self._files.write(f"{location}/{METADATA_NAME}", snapshot.to_json())
        self._files.sync_folder(location)
        self._compared = {file.path for file in shared}
        return snapshot

    def _discard(self, location: str, new: Iterable[str]) -> None:
        """Delete what was written of a snapshot that failed: every attempt writes all its files anew."""
        self._swept = False  # what cannot be deleted now goes once a snapshot is complete
        try:
            self._files.remove_file(f"{location}/{METADATA_NAME}")
            self._files.sync_folder(location)
            self._files.remove_folder(location)
            for path in new:
                self._files.remove_file(path)
        except OSError as error:
            logger.warning("files of a snapshot that failed remain in '%s': %s", self.folder, self.explain(error))

    def _known_tables(self, meta: StoreMeta) -> dict[str, SnapshotFile]:
        """The tables that are stored already. Only names of one and the same disk part say something about content."""
        newest = self.newest
        if newest is None or newest.meta.store != meta.store:
            return {}
        return {file.local_name: file for file in newest.shared}

    def _is_stored(self, table: Path, old: SnapshotFile) -> bool:
        """Whether a stored table with the name of this one has its content.

        An older copy of the state may have been put back: RocksDB gives the names again then, to files of the same
        size. So the content is compared, once for each run of the server.
        """
        if old.size_bytes != disk.size_of(table):
            return False
        return old.path in self._compared or checksum_of(table) == old.checksum

    # Removing ----------------------------------------------------------------------------------------------------

    def remove(self, expired: Sequence[BucketSnapshot], kept: Iterable[BucketSnapshot]) -> None:
        """Delete snapshots and all files that none of the kept ones has."""
        with self._lock:
            needed = {file.path for snapshot in kept for file in snapshot.shared}
            swept, self._swept = self._swept, False  # what cannot be deleted now goes after the next snapshot
            for snapshot in expired:
                self._files.remove_file(f"{snapshot.location}/{METADATA_NAME}")
                with contextlib.suppress(FileNotFoundError):  # an attempt before this one failed later
                    self._files.sync_folder(snapshot.location)
                swept = self._files.remove_folder(snapshot.location) and swept
                for file in snapshot.shared:
                    if file.path not in needed:
                        self._files.remove_file(file.path)
            self._swept = swept

    def sweep(self, kept: Iterable[BucketSnapshot]) -> None:
        """Delete what earlier runs of the server, or a snapshot that failed, left behind."""
        with self._lock:
            if self._swept:
                return
            kept = tuple(kept)
            locations = {snapshot.location for snapshot in kept}
            swept = True
            for name in self._files.names(self.folder):
                if _is_snapshot(name) and f"{self.folder}/{name}" not in locations:
                    swept = self._files.remove_folder(f"{self.folder}/{name}") and swept
            needed = {file.path for snapshot in kept for file in snapshot.shared}
            shared_folder = f"{self.folder}/{SHARED_NAME}"
            for name in self._files.names(shared_folder):
                if f"{shared_folder}/{name}" not in needed:
                    self._files.remove_file(f"{shared_folder}/{name}")
            self._swept = swept

    def remove_all(self) -> None:
        """Delete what was made anew of the folders of the table or partition, which was dropped."""
        with self._lock:
            self._files.remove_folder(posixpath.dirname(self.folder))
            disk.remove_tree(self.staging.parent)

    # Restoring ---------------------------------------------------------------------------------------------------

    def fill(self, snapshot: BucketSnapshot, folder: Path) -> None:
        """Copy the files of a snapshot into a local folder; raises `DamagedSnapshotError` when one is not right."""
        with self._lock:
            # CURRENT comes last: without it RocksDB finds nothing in the folder.
            for file in sorted(snapshot.files, key=lambda file: file.local_name == "CURRENT"):
                try:
                    copied = self._files.get(file.path, folder / file.local_name)
                except FileNotFoundError:
                    raise DamagedSnapshotError(f"its file '{file.path}' is missing") from None
                if copied != (file.size_bytes, file.checksum):
                    raise DamagedSnapshotError(f"its file '{file.path}' is not what was written")


def _is_snapshot(name: str) -> re.Match[str] | None:
    return _SNAPSHOT_FOLDER.fullmatch(name)


def restore(snapshots: BucketSnapshots, store: Store, start_offset: int, end_offset: int) -> bool:
    """Let a store begin with the newest snapshot that a log from `start_offset` to `end_offset` can go on from.

    Runs in a thread. False when there is none; the store is empty then. Raises `KvStorageError` when one that is needed
    may be there, but cannot be read now.
    """
    unreachable = ""
    try:
        snapshots.load()
    except Exception as error:  # of any file system
        unreachable = snapshots.explain(error)
        logger.error("the snapshots of %s cannot be read: %s", snapshots.bucket, unreachable)
    usable = [found for found in snapshots.up_to(end_offset) if start_offset <= found.log_offset]
    damaged: list[BucketSnapshot] = []
    for snapshot in reversed(usable):
        try:
            _restore(snapshots, snapshot, store)
        except Exception as error:  # RocksDB raises plain exceptions
            reason = snapshots.explain(error)
            logger.error("snapshot %d of %s cannot be used: %s", snapshot.snapshot_id, snapshots.bucket, reason)
            if isinstance(error, (OSError, KvStorageError)):
                unreachable = reason
            if isinstance(error, DamagedSnapshotError):
                damaged.append(snapshot)
            store.wipe()
            continue
        logger.info(
            "the state of %s begins with snapshot %d, at offset %d",
            snapshots.bucket, snapshot.snapshot_id, snapshot.log_offset,
        )  # fmt: skip
        snapshots.exclude(damaged)
        return True
    if start_offset == 0:
        snapshots.exclude(damaged)
    elif unreachable:
        raise KvStorageError(
            f"the state of {snapshots.bucket} cannot be rebuilt now: its snapshots in '{snapshots.folder}' cannot be "
            f"read: {unreachable}. The next request tries again."
        )
    return False


def _restore(snapshots: BucketSnapshots, snapshot: BucketSnapshot, store: Store) -> None:
    rows = snapshot.size_bytes // _ROW_BYTES_MIN if snapshot.row_count is None else snapshot.row_count
    if snapshot.size_bytes + rows * _ROW_OVERHEAD_BYTES > MEMORY_BYTES_MAX:
        store.restore(lambda folder: snapshots.fill(snapshot, folder), snapshot.meta)
        return
    folder = snapshots.staging.with_suffix(".restore")
    try:
        disk.remove_tree(folder)
        disk.make_folders(folder)
        snapshots.fill(snapshot, folder)
        store.load(ordered.read_rows(folder), snapshot.meta)
    finally:
        disk.remove_tree(folder)
