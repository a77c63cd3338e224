# SPDX-License-Identifier: Apache-2.0
"""The buckets of this server: which log belongs to which bucket, where it lies, and when it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import resource
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from pathlib import Path

from fluss.errors import FlussError, UnknownTableOrBucketError
from fluss.metadata import TableBucket
from fluss.server import disk
from fluss.server.catalog import Catalog, Dropped, PartitionEntry, TableEntry
from fluss.server.catalog.storage import DATA_FOLDER, CatalogStorage
from fluss.server.commit import GroupCommitter
from fluss.server.config import ServerConfig
from fluss.server.datadir import DataDir
from fluss.server.environment import Environment
from fluss.server.log.files import HANDLES_MAX, OpenFiles
from fluss.server.log.opening import LogOpener
from fluss.server.log.projection import IntactCuts
from fluss.server.log.segment import LogSettings, expired_count
from fluss.server.log.tablet import LogTablet
from fluss.server.metrics import ServerMetrics
from fluss.server.remote_log import RemoteLogManager

logger = logging.getLogger("fluss.server.tablets")

REGISTER_NAME = "buckets"
_RECORD = struct.Struct("<qiI")
_NO_PARTITION = -1
_GONE_MIN = 256


class BucketRegister:
    """The buckets that have data. Methods may be called from any thread."""

    def __init__(self, storage: CatalogStorage) -> None:
        self._storage = storage
        self._lock = threading.Lock()
        self._buckets: dict[int, dict[int | None, set[TableBucket]]] = {}
        """By table and partition."""
        self._ends: dict[int, int] = {}

    def __contains__(self, bucket: TableBucket) -> bool:
        return bucket in self._buckets.get(bucket.table_id, {}).get(bucket.partition_id, ())

    def buckets(self) -> Iterator[TableBucket]:
        for partitions in tuple(self._buckets.values()):
            for buckets in tuple(partitions.values()):
                yield from tuple(buckets)

    def _path(self, table_id: int) -> Path:
        return self._storage.table_dir(table_id) / REGISTER_NAME

    def load(self, table_ids: Iterable[int], is_there: Callable[[TableBucket], bool] = lambda _: True) -> None:
        """Read what is on disk. What is damaged is left out: it is not needed to serve what is there.

        Args:
            is_there: Whether the partition of a bucket was not dropped.
        """
        for table_id in table_ids:
            path = f"{self._storage.tables}/{table_id}/{REGISTER_NAME}"
            try:
                data = disk.read_file(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                logger.error("'%s' cannot be read (%s); missing buckets of its table go unnoticed", path, error)
                continue
            whole = len(data) - len(data) % _RECORD.size
            found = [_decode(table_id, data[at : at + _RECORD.size]) for at in range(0, whole, _RECORD.size)]
            if None in found or whole < len(data):
                logger.warning("'%s' is damaged; some buckets of its table may be missing unnoticed", path)
            kept = [bucket for bucket in found if bucket is not None and is_there(bucket)]
            self._keep(kept)
            self._ends[table_id] = whole
            gone = len(found) - len(kept)
            if gone > max(len(kept), _GONE_MIN):
                self._rewrite(table_id, kept)

    def _keep(self, buckets: Iterable[TableBucket]) -> None:
        for bucket in buckets:
            self._buckets.setdefault(bucket.table_id, {}).setdefault(bucket.partition_id, set()).add(bucket)

    def _rewrite(self, table_id: int, kept: Iterable[TableBucket]) -> None:
        path, data = self._path(table_id), b"".join(map(_encode, kept))
        try:
            disk.write_atomically(path, data)
            disk.sync_folder(path.parent)
        except OSError as error:
            logger.warning("'%s' cannot be written anew, the next start tries again: %s", path, error)
            return
        self._ends[table_id] = len(data)

    def add(self, buckets: Sequence[TableBucket]) -> None:
        """Make durable that these buckets of one table have data. Runs in a thread."""
        with self._lock:
            table_id = buckets[0].table_id
            new = [bucket for bucket in buckets if bucket not in self]
            if not new:
                return
            path, end = self._path(table_id), self._ends.get(table_id)
            if end is None:
                # It was not read: it is new, or could not be read at the start.
                size_bytes = disk.size_of(path) if disk.exists(path) else 0
                end = size_bytes - size_bytes % _RECORD.size
            data = b"".join(map(_encode, new))
            disk.append_durably(path, data, end)
            if end == 0:
                disk.sync_folder(path.parent)
            self._keep(new)
            self._ends[table_id] = end + len(data)

    def remove_table(self, table_id: int) -> None:
        """The table was dropped; its file went with its description."""
        self._buckets.pop(table_id, None)
        self._ends.pop(table_id, None)

    def remove_partition(self, table_id: int, partition_id: int) -> None:
        """The partition was dropped."""
        self._buckets.get(table_id, {}).pop(partition_id, None)


def _encode(bucket: TableBucket) -> bytes:
    partition_id = _NO_PARTITION if bucket.partition_id is None else bucket.partition_id
    body = struct.pack("<qi", partition_id, bucket.bucket_id)
    return body + zlib.crc32(body).to_bytes(4, "little")


def _decode(table_id: int, record: bytes) -> TableBucket | None:
    partition_id, bucket_id, check = _RECORD.unpack(record)
    if zlib.crc32(record[:12]) != check:
        return None
    return TableBucket(table_id, bucket_id, None if partition_id == _NO_PARTITION else partition_id)


_DELETED_SUFFIX = ".deleted"
_TABLE_FOLDER = re.compile(r"(.+)-(\d+)")
_PARTITION_FOLDER = re.compile(r"(.+)-p(\d+)")
_LOG_FOLDER = re.compile(r"log-(\d+)")
_RECOVERY_THREADS = 4
_LOGS_PER_SLICE = 256


class Tablets:
    """All logs, by bucket."""

    def __init__(
        self,
        data_dir: DataDir,
        catalog: Catalog,
        config: ServerConfig,
        *,
        environment: Environment,
        committer: GroupCommitter,
        executor: Executor,
        metrics: ServerMetrics,
    ) -> None:
        self._root = data_dir.path / DATA_FOLDER
        self._catalog = catalog
        self._config = config
        self._settings = LogSettings.from_config(config)
        self._environment = environment
        self._clock = environment.clock
        self._committer = committer
        self._executor = executor
        self._metrics = metrics
        self._open_files = OpenFiles(_handles_max(), data_dir.check)
        self.intact_cuts = IntactCuts()
        self._register = BucketRegister(catalog.storage)
        self._opener = LogOpener(self._open_files, executor, self._register.add)
        self._logs: dict[TableBucket, LogTablet] = {}
        self._parents: dict[tuple[int, int | None], Path] = {}
        """The folders of tables and partitions: putting a path together takes longer than all else of a new bucket."""
        self._removals: set[asyncio.Future[bool]] = set()
        self.snapshot_offset_of: Callable[[TableBucket], int] = lambda bucket: 0
        """Returns from which offset on the changelog of a primary-key bucket is needed beside its snapshots."""
        self._remote: RemoteLogManager | None = None
        root = config.text("remote.data.dir")
        if root is not None and config.integer("remote.log.task-interval-duration") > 0:
            self._remote = RemoteLogManager(
                root,
                catalog,
                config,
                clock=environment.clock,
                executor=executor,
                snapshot_offset_of=lambda bucket: self.snapshot_offset_of(bucket),
            )
        catalog.on_dropped.append(self._drop)

    def __iter__(self) -> Iterator[LogTablet]:
        return iter(tuple(self._logs.values()))

    def __len__(self) -> int:
        return len(self._logs)

    # Look-up -----------------------------------------------------------------------------------------------------

    def tablet(self, bucket: TableBucket) -> LogTablet:
        """The log of a bucket; it begins to exist when it is first asked for."""
        log = self._logs.get(bucket)
        if log is None:
            log = self._new(bucket, self.bucket_folder(bucket, "log"))
            self._logs[bucket] = log
            if self._remote is not None:
                self._remote.attach(log)
        return log

    def find(self, bucket: TableBucket) -> LogTablet | None:
        return self._logs.get(bucket)

    def bucket_folder(self, bucket: TableBucket, kind: str) -> Path:
        """Where a bucket keeps its ``log`` or ``kv`` files. Unknown buckets raise: the client's metadata is stale."""
        entry = self._catalog.table_by_id(bucket.table_id)
        if entry is None:
            raise UnknownTableOrBucketError(f"the table of {bucket} is not known to this server")
        partition: PartitionEntry | None = None
        if bucket.partition_id is not None:
            found = self._catalog.partition_by_id(bucket.partition_id)
            if found is None or found[0].table_id != bucket.table_id:
                raise UnknownTableOrBucketError(f"the partition of {bucket} is not known to this server")
            partition = found[1]
        elif entry.is_partitioned:
            raise UnknownTableOrBucketError(f"table '{entry.table_path}' is partitioned, but {bucket} has no partition")
        count = entry.bucket_count_of(partition)
        if not 0 <= bucket.bucket_id < count:
            raise UnknownTableOrBucketError(f"table '{entry.table_path}' has {count} buckets, not {bucket}")
        parent = self._parents.get((bucket.table_id, bucket.partition_id))
        if parent is None:
            parent = self.folder(entry, partition)
            self._parents[bucket.table_id, bucket.partition_id] = parent
        return parent / f"{kind}-{bucket.bucket_id}"

    def folder(self, entry: TableEntry, partition: PartitionEntry | None = None) -> Path:
        return self._root / entry.folder(partition)

    def _new(self, bucket: TableBucket, folder: Path) -> LogTablet:
        return LogTablet(
            bucket,
            folder,
            self._settings,
            clock=self._clock,
            open_files=self._open_files,
            executor=self._executor,
            on_append=self._committer.dirty,
            request_open=self._opener.request,
            registered=bucket in self._register,
        )

    # Opening and closing -----------------------------------------------------------------------------------------

    def open_existing(self, *, clean: bool = False) -> None:
        """Recover every log on disk, before the server listens. Logs that should be there and are not are reported.

        Args:
            clean: The logs were closed, so there is little to read of each. Threads would only take Python's lock from
                each other.
        """
        disk.make_folders_durably(self._root, self._root.parent)
        started = self._clock.monotonic()
        owns = self._catalog.owns_data_of
        self._register.load(
            (entry.table_id for entry in self._catalog.tables()),
            lambda bucket: owns(bucket.table_id, bucket.partition_id),
        )
        folders = dict(self._scan_folders())
        for bucket in self._register.buckets():
            if bucket not in folders and self._catalog.owns_data_of(bucket.table_id, bucket.partition_id):
                with contextlib.suppress(UnknownTableOrBucketError):
                    folders[bucket] = self.bucket_folder(bucket, "log")
        found = [self._new(bucket, folder) for bucket, folder in folders.items()]
        if found:
            with self._environment.executor(_RECOVERY_THREADS, "fluss-recovery") as pool:
                in_order = map if clean else pool.map
                checked_bytes = sum(in_order(LogTablet.open, found))
                if self._remote is not None:
                    list(pool.map(self._remote.attach, found))
            damaged = sum(1 for log in found if log.damage is not None)
            logger.info(
                "opened %d logs in %.2f s, checked %d bytes, %d damaged",
                len(found), self._clock.monotonic() - started, checked_bytes, damaged,
            )  # fmt: skip
        self._logs.update((log.bucket, log) for log in found)
        self._register_found(found)

    def _register_found(self, found: list[LogTablet]) -> None:
        """Register buckets that an earlier release wrote."""
        unknown: dict[int, list[LogTablet]] = {}
        for log in found:
            if log.segments and not log.registered and log.bucket.table_id in self._catalog.tables_by_id:
                unknown.setdefault(log.bucket.table_id, []).append(log)
        for logs in unknown.values():
            try:
                self._register.add([log.bucket for log in logs])
            except OSError as error:
                # The next start tries again.
                logger.error("cannot register %d buckets: %s", len(logs), error)
                continue
            for log in logs:
                log.registered = True

    def _scan_folders(self) -> Iterator[tuple[TableBucket, Path]]:
        """The logs on disk. What belongs to nothing in the catalog is left from a drop that a crash cut short.

        A folder with another name, such as a copy that an operator made, stays as it is.
        """
        for database in _folders(self._root):
            for table in _folders(database):
                match = _TABLE_FOLDER.fullmatch(table.name)
                table_id = -1 if match is None else int(match.group(2))
                entry = self._catalog.table_by_id(table_id)
                if table.name.endswith(_DELETED_SUFFIX):
                    disk.remove_tree(table)
                elif match is None or (entry is not None and table != self.folder(entry)):
                    logger.warning("'%s' is left alone: it is not the folder of a table", table)
                elif not self._catalog.owns_data_of(table_id):
                    logger.info("removing '%s': its table was dropped", table)
                    disk.remove_tree(table)
                else:
                    yield from self._scan_table(table, table_id)

    def _scan_table(self, table: Path, table_id: int) -> Iterator[tuple[TableBucket, Path]]:
        for folder in _folders(table):
            log = _LOG_FOLDER.fullmatch(folder.name)
            if log is not None:
                yield TableBucket(table_id, int(log.group(1))), folder
                continue
            partition = _PARTITION_FOLDER.fullmatch(folder.name)
            if partition is None:
                if folder.name.endswith(_DELETED_SUFFIX):
                    disk.remove_tree(folder)
                continue
            partition_id = int(partition.group(2))
            if not self._catalog.owns_data_of(table_id, partition_id):
                logger.info("removing '%s': its partition was dropped", folder)
                disk.remove_tree(folder)
                continue
            owner = self._catalog.partition_by_id(partition_id)
            if owner is not None and folder != self.folder(*owner):
                logger.warning("'%s' is left alone: it is not the folder of a partition", folder)
                continue
            for inner in _folders(folder):
                log = _LOG_FOLDER.fullmatch(inner.name)
                if log is not None:
                    yield TableBucket.with_partition(table_id, partition_id, int(log.group(1))), inner

    async def close(self, deadline: float) -> bool:
        """Write the recovery points, and close the logs; True when all of it worked before the deadline.

        Logs are flushed already. One without a new recovery point is read from its last one on at the next start.
        """
        clean, at_once = True, 1
        waiting = [log for log in self._logs.values() if log.needs_checkpoint]
        while waiting and self._clock.monotonic() < deadline:
            clean = await self._committer.checkpoint(waiting[:at_once]) and clean
            waiting, at_once = waiting[at_once:], 2 * at_once  # on a slow disk the first one takes all the time
        if waiting:
            clean = False
            logger.warning(
                "the disk is slow: no recovery points of %d logs were written, the next start reads them", len(waiting)
            )
        if self._removals:
            await asyncio.gather(*self._removals, return_exceptions=True)
        for log in self._logs.values():
            log.release()
        return clean and not any(log.failure for log in self._logs.values())

    def wake_fetches(self) -> None:
        """Let every waiting fetch answer with what there is."""
        for log in self._logs.values():
            log.wake_fetches()

    # Drops -------------------------------------------------------------------------------------------------------

    async def _drop(self, dropped: Dropped) -> None:
        """Drop the logs of a table or partition, and delete its files."""
        table, partition = dropped.table, dropped.partition
        for number, bucket in enumerate([bucket for bucket in self._logs if dropped.owns(bucket)]):
            self._logs.pop(bucket).drop()
            if number % _LOGS_PER_SLICE == _LOGS_PER_SLICE - 1:
                await asyncio.sleep(0)
        if partition is None:
            self._metrics.remove_table(table.table_path.database_name, table.table_path.table_name)
            self._register.remove_table(table.table_id)
        else:
            self._register.remove_partition(table.table_id, partition.partition_id)
        folder = self.folder(table, partition)
        # Also those of buckets that have no log: a reader may have asked for their snapshots.
        self._parents = {key: path for key, path in self._parents.items() if folder not in (path, path.parent)}
        self._remove(folder)

    def _remove(self, folder: Path) -> None:
        """Rename at once, so that the data is gone for a restart, and delete in the background."""
        self._open_files.unsynced.evict_under(folder)
        deleted = folder.with_name(folder.name + _DELETED_SUFFIX)
        try:
            disk.rename(folder, deleted)
        except FileNotFoundError:
            return
        except OSError:
            logger.exception("cannot remove '%s'; the next start will", folder)
            return
        work = asyncio.get_running_loop().run_in_executor(self._executor, disk.remove_tree, deleted)
        self._removals.add(work)
        work.add_done_callback(self._removals.discard)

    # Housekeeping ------------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Move the recovery points of logs that were written to."""
        await self._committer.checkpoint([log for log in self._logs.values() if log.damage is None])

    async def move_to_remote(self) -> None:
        """Copy closed segments to the remote log, if there is one."""
        if self._remote is not None:
            # The writers' state at the end of a segment goes with it; a checkpoint writes it.
            await self.checkpoint()
            await self._remote.run_round(list(self._logs.values()))
            await self._delete_detached()

    async def _delete_detached(self) -> None:
        """Delete segments that left their logs, after it is on disk that these begin later."""
        waiting = [log for log in self._logs.values() if log.expired and log.damage is None]
        if waiting:
            await self._committer.checkpoint(waiting)
        for log in waiting:
            deleted = await log.expired.delete(self._executor)
            if deleted:
                logger.info("deleted %d old segments of %s", deleted, log.bucket)

    @property
    def newest_timestamp(self) -> int:
        """The time of the newest row; -1 if there is none."""
        return max((log.max_timestamp for log in self._logs.values()), default=-1)

    def expire_writers(self, after_ms: int) -> None:
        before = self._clock.expiry_ms() - after_ms
        for log in self._logs.values():
            log.writers.expire(before)

    async def expire_segments(self) -> None:
        """Delete closed segments that are older than their table keeps them.

        Of those that remain, free the indexes that are not used.
        """
        now_ms = self._clock.expiry_ms()
        roll_active = bool(self._config.boolean("log.retention.roll-active-segment.enabled"))
        for number, log in enumerate(tuple(self._logs.values())):
            if number % _LOGS_PER_SLICE == _LOGS_PER_SLICE - 1:
                await asyncio.sleep(0)
            entry = self._catalog.table_by_id(log.bucket.table_id)
            if entry is None or not log.segments or log.damage is not None or log.failure is not None or log.deleted:
                continue
            for segment in log.segments[:-1]:
                segment.release_idle_index()
            try:
                await self._expire(log, entry, now_ms, roll_active)
            except (FlussError, OSError) as error:
                logger.error("segments of %s cannot be expired, it is tried again later: %s", log.bucket, error)
        await self._delete_detached()

    async def _expire(self, log: LogTablet, entry: TableEntry, now_ms: int, roll_active: bool) -> None:
        info = entry.table_info
        ttl_ms = self._catalog.log_ttl_ms(info)
        if ttl_ms <= 0:
            return
        limit = log.high_watermark
        if info.has_primary_key():
            limit = min(limit, self.snapshot_offset_of(log.bucket))
        if info.config.lake_enabled:
            limit = min(limit, self._catalog.lake_end_offset(log.bucket) or 0)
        if log.remote is not None:
            limit = min(limit, max(log.remote.copied_end, log.start_offset))
        oldest_kept = now_ms - ttl_ms
        active = log.segments[-1]
        if roll_active and active.size_bytes and active.max_timestamp < oldest_kept:
            if not active.index_is_loaded:
                # A segment is closed with its index, which is not to be read on the event loop.
                await asyncio.get_running_loop().run_in_executor(self._executor, lambda: active.index)
            if log.idle and active.max_timestamp < oldest_kept:
                log.roll_if_not_empty()
        segments = tuple(log.segments)
        if len(segments) > 1:
            # Their times may have to be read.
            count = await asyncio.get_running_loop().run_in_executor(
                self._executor,
                lambda: expired_count((segment.max_timestamp for segment in segments), oldest_kept, now_ms),
            )
            if count:
                # The last one goes on: rows may have been written to it by now.
                log.detach_segments_before(min(segments[min(count, len(segments) - 1) - 1].end_offset, limit))

    def disk_usage(self) -> float:
        return disk.usage(self._root)


def _handles_max() -> int:
    """Files that logs may keep open: at most half of what the process may open, the rest is for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return HANDLES_MAX if soft == resource.RLIM_INFINITY else max(min(HANDLES_MAX, soft // 2), 16)


def _folders(path: Path) -> list[Path]:
    return [inner for name in disk.names(path) if disk.is_folder(inner := path / name)]
