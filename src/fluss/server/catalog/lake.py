# SPDX-License-Identifier: Apache-2.0
"""The state of the lake: which offsets its snapshots reach, and which table is tiered next."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import posixpath
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from fluss.errors import (
    FencedTieringEpochError,
    InvalidArgumentError,
    LakeSnapshotNotExistError,
    TableNotExistError,
    UnknownServerError,
)
from fluss.metadata import TableBucket
from fluss.net.filesystems import scrub
from fluss.server.catalog.entries import Dropped, TableEntry
from fluss.server.catalog.lake_snapshots import (
    BucketKey,
    LakeSnapshotEntry,
    LakeSnapshots,
    Offsets,
    decode_offsets_file,
    encode_offsets_file,
    of_partitions,
)
from fluss.server.catalog.removals import RemoteRemovals
from fluss.server.catalog.state import CatalogState
from fluss.server.remote_files import RemoteFiles

_log = logging.getLogger("fluss.server.catalog")

T = TypeVar("T")

WORKER_SILENCE_MS_MAX = 120_000


class TieringState(Enum):
    SCHEDULED = "Scheduled"
    PENDING = "Pending"
    TIERING = "Tiering"


@dataclass
class TieringEntry:
    table_id: int
    freshness_ms: int
    last_tiered_ms: int
    state: TieringState = TieringState.SCHEDULED
    epoch: int = 0
    heartbeat_ms: int = 0
    started_ms: int = 0
    duration_ms_last: int | None = None
    failures: int = 0
    pending_since_ms: int = 0
    lake_bytes: int | None = None
    """The size of the table in its lake, as the worker reported it last."""
    lake_rows: int | None = None

    @property
    def due_ms(self) -> int:
        return self.last_tiered_ms + self.freshness_ms


class TieringManager:
    """All tables whose lake is on."""

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        self._clock_ms = clock_ms
        self.tables: dict[int, TieringEntry] = {}
        self._pending: deque[int] = deque()
        self._epoch_first = 0
        """No table that was removed has been tiered with a later one: it may be added again."""

    # ------------------------------------------------------------------ which tables take part

    def put(self, table_id: int, freshness_ms: int, last_tiered_ms: int) -> None:
        """Add a table, or change the freshness of one that is known."""
        table = self.tables.get(table_id)
        if table is None:
            self.tables[table_id] = TieringEntry(table_id, freshness_ms, last_tiered_ms, epoch=self._epoch_first)
        else:
            table.freshness_ms = freshness_ms

    def remove(self, table_id: int) -> None:
        table = self.tables.pop(table_id, None)
        if table is not None:
            self._epoch_first = max(self._epoch_first, table.epoch)
            if table_id in self._pending:
                self._pending.remove(table_id)

    # ------------------------------------------------------------------ time

    def advance(self) -> None:
        now_ms = self._clock_ms()
        due: list[tuple[int, int]] = []
        for table in self.tables.values():
            # A clock that was ahead and was put right: nothing happened later than now.
            table.last_tiered_ms = min(table.last_tiered_ms, now_ms)
            table.heartbeat_ms = min(table.heartbeat_ms, now_ms)
            if table.state is TieringState.SCHEDULED and table.due_ms <= now_ms:
                due.append((table.due_ms, table.table_id))
            elif table.state is TieringState.TIERING and table.heartbeat_ms + WORKER_SILENCE_MS_MAX <= now_ms:
                table.failures += 1
                due.append((table.heartbeat_ms + WORKER_SILENCE_MS_MAX, table.table_id))
        for _, table_id in sorted(due):
            self._to_pending(self.tables[table_id])

    def _to_pending(self, table: TieringEntry) -> None:
        table.state = TieringState.PENDING
        table.pending_since_ms = self._clock_ms()
        table.epoch += 1
        self._pending.append(table.table_id)

    # ------------------------------------------------------------------ what workers say

    def request(self, may_tier: Callable[[int], bool]) -> TieringEntry | None:
        """Hand out the table that has waited longest, of those that the worker may tier."""
        self.advance()
        table_id = next(filter(may_tier, self._pending), None)
        if table_id is None:
            return None
        self._pending.remove(table_id)
        table = self.tables[table_id]
        table.state = TieringState.TIERING
        table.heartbeat_ms = table.started_ms = self._clock_ms()
        return table

    def _held(self, table_id: int, epoch: int) -> TieringEntry:
        table = self.tables.get(table_id)
        if table is None:
            raise TableNotExistError(f"The table with id {table_id} does not exist, or its lake is off.")
        if epoch != table.epoch:
            raise FencedTieringEpochError(
                f"Tiering epoch {epoch} of table {table_id} is outdated, the current one is {table.epoch}. "
                "Another round of the table has begun; give this one up."
            )
        if table.state is not TieringState.TIERING:
            raise UnknownServerError(
                f"Table {table_id} is not being tiered: its state is {table.state.value}, expected Tiering."
            )
        return table

    def renew(self, table_id: int, epoch: int) -> None:
        self._held(table_id, epoch).heartbeat_ms = self._clock_ms()

    def finish(self, table_id: int, epoch: int, *, forced: bool = False) -> None:
        table = self._held(table_id, epoch)
        now_ms = self._clock_ms()
        table.last_tiered_ms = now_ms
        table.duration_ms_last = now_ms - table.started_ms
        if forced:
            # Cut short by its time limit: there is more to do at once.
            self._to_pending(table)
        else:
            table.state = TieringState.SCHEDULED

    def set_lake_size(self, table_id: int, lake_bytes: int | None, lake_rows: int | None) -> None:
        """Record what a worker reports of the table in its lake."""
        table = self.tables.get(table_id)
        if table is not None:
            table.lake_bytes = table.lake_bytes if lake_bytes is None else lake_bytes
            table.lake_rows = table.lake_rows if lake_rows is None else lake_rows

    def fail(self, table_id: int, epoch: int) -> None:
        table = self._held(table_id, epoch)
        table.failures += 1
        self._to_pending(table)

    # ------------------------------------------------------------------ figures

    def count(self, state: TieringState) -> int:
        return sum(1 for table in self.tables.values() if table.state is state)


_OFFSETS_FILE_BYTES_MAX = 256 * 1024 * 1024
_CHECKED_AT_ONCE = 500
"""Offsets that are checked before others are served."""
_UNUSED_MS_MAX = 24 * 3600 * 1000
"""Offsets files of rounds that ended before their commit are deleted after this time. A worker that takes over from one
that died commits its file first."""


class LakeState:
    """Tiering rounds and lake snapshots of all tables."""

    def __init__(self, catalog: CatalogState, removals: RemoteRemovals) -> None:
        self._catalog = catalog
        self._removals = removals
        self._remote: RemoteFiles | None = None
        self._executor = catalog.remote_executor
        self.log_end_of: Callable[[TableBucket], int | None] | None = None
        """Where the log of a bucket ends, None if that is not known; set by the server, which has the logs."""
        self.tiering = TieringManager(catalog.clock_ms)
        self._unused: dict[int, dict[str, int]] = {}
        """By table: offsets files that no snapshot has, and since when that is known."""
        for entry in catalog.tables():
            self._follow(entry)
        catalog.on_table_created.append(self._follow)
        catalog.on_table_altered.append(self._follow)
        catalog.on_dropped.append(self._dropped)

    # ------------------------------------------------------------------ which tables are tiered

    def _follow(self, entry: TableEntry) -> None:
        config = entry.table_info.config
        if not config.lake_enabled:
            self.tiering.remove(entry.table_id)
            return
        latest = entry.lake.latest if entry.lake else None
        last_tiered_ms = latest.committed_time if latest else entry.table_info.created_time
        self.tiering.put(entry.table_id, config.lake_freshness_ms, last_tiered_ms)

    async def _dropped(self, dropped: Dropped) -> None:
        if dropped.partition is not None:
            return
        entry = dropped.table
        self.tiering.remove(entry.table_id)
        self._unused.pop(entry.table_id, None)
        if entry.lake is not None or entry.table_info.config.lake_enabled:
            folder = self._folder(entry)
            await self._removals.add(folder)
            self._catalog.spawn(self._removals.remove(folder, self.remote, self._executor))

    # ------------------------------------------------------------------ offsets files

    async def _in_remote_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    @property
    def remote(self) -> RemoteFiles:
        if self._remote is None:
            options = self._catalog.configs.initial.store_options
            try:
                self._remote = RemoteFiles(self._catalog.remote_data_dir, options)
            except (OSError, ValueError) as error:
                reason = scrub(error, options)
                raise UnknownServerError(f"the remote data directory cannot be used: {reason}") from None
        return self._remote

    def _folder(self, entry: TableEntry) -> str:
        return f"{self.remote.root}/lake/{entry.folder()}"

    def _read_offsets(self, path: str, table_id: int) -> dict[BucketKey, int]:
        """The content of an offsets file whose path came in a request."""
        self.remote.check_below(path)
        try:
            file = self.remote.open(path)
        except FileNotFoundError:
            raise InvalidArgumentError(f"the file '{path}' does not exist") from None
        try:
            if file.size_bytes > _OFFSETS_FILE_BYTES_MAX:
                raise InvalidArgumentError(
                    f"the file '{path}' has {file.size_bytes} bytes, too many for an offsets file"
                )
            return decode_offsets_file(bytes(file.read(0, file.size_bytes)), table_id)
        finally:
            file.close()

    def table(self, table_id: int) -> TableEntry:
        entry = self._catalog.table_by_id(table_id)
        if entry is None:
            raise self.no_table(table_id)
        return entry

    @staticmethod
    def no_table(table_id: int) -> TableNotExistError:
        """The answer for a table that does not exist, or that the caller may not know of."""
        return TableNotExistError(f"The table with id {table_id} does not exist.")

    async def _check_buckets(self, entry: TableEntry, offsets: Offsets) -> None:
        for number, ((partition_id, bucket), offset) in enumerate(offsets.items()):
            if number % _CHECKED_AT_ONCE == _CHECKED_AT_ONCE - 1:
                await asyncio.sleep(0)
            if entry.is_partitioned != (partition_id is not None):
                wanted = "with" if entry.is_partitioned else "without"
                raise InvalidArgumentError(f"Offsets of table '{entry.table_path}' are given {wanted} a partition id.")
            count = entry.table_info.num_buckets  # of every partition: a table with a lake is not rescaled
            if not 0 <= bucket < count or offset < 0:
                raise InvalidArgumentError(
                    f"Table '{entry.table_path}' has {count} buckets; offset {offset} of bucket {bucket} is not valid."
                )
            if self.log_end_of is None or (partition_id is not None and not self._is_partition(entry, partition_id)):
                continue  # a partition may be dropped while its rows are tiered
            end = self.log_end_of(TableBucket(entry.table_id, bucket, partition_id))
            if end is not None and offset > end:
                # Rows below the offset are read from the lake, and their log may expire: it must not lie ahead.
                raise InvalidArgumentError(
                    f"Offset {offset} of bucket {bucket} of table '{entry.table_path}' lies behind the end of its log, "
                    f"which is {end}. Tier rows before reporting them."
                )

    def _is_partition(self, entry: TableEntry, partition_id: int) -> bool:
        known = self._catalog.partition_by_id(partition_id)
        return known is not None and known[0].table_id == entry.table_id

    async def prepare(self, table_id: int, offsets: Offsets, *, ignore_previous: bool) -> str:
        """Write the offsets a snapshot will reach, over those of the latest one; returns the path of the file."""
        entry = self.table(table_id)
        await self._check_buckets(entry, offsets)
        latest = entry.lake.latest if entry.lake else None
        known = {} if ignore_previous or latest is None else of_partitions(latest.offsets, _partition_ids(entry))
        merged = {**known, **offsets}

        def write() -> str:
            data = encode_offsets_file(table_id, merged, partitioned=entry.is_partitioned)
            try:
                folder = f"{self._folder(entry)}/metadata"
                path = f"{folder}/{uuid.uuid4()}.offsets"
                self.remote.make_folder(folder)
                self.remote.write(path, data)
                self.remote.sync_folder(folder)
                return path
            except OSError as error:
                reason = self.remote.explain(error)
                raise UnknownServerError(
                    f"the offsets of table '{entry.table_path}' were not written: {reason}"
                ) from None

        return await self._in_remote_thread(write)

    def _sweep(self, entry: TableEntry, used: Collection[str | None]) -> None:
        """Delete the files of rounds that ended before their commit. Runs in the remote thread."""
        folder, now_ms = f"{self._folder(entry)}/metadata", self._catalog.clock_ms()
        before, unused = self._unused.get(entry.table_id, {}), dict[str, int]()
        # By name: the path of a snapshot may be written in another way, as may the remote data directory by now.
        used_names = {posixpath.basename(path) for path in used if path}
        with contextlib.suppress(OSError):
            for name in set(self.remote.names(folder)) - used_names:
                path = f"{folder}/{name}"
                unused[path] = before.get(path, now_ms)
        old = [path for path, since_ms in unused.items() if now_ms - since_ms > _UNUSED_MS_MAX]
        self._unused[entry.table_id] = {path: unused[path] for path in unused if path not in old}
        self._remove(old)

    def _remove(self, paths: Iterable[str]) -> None:
        """Delete offsets files that are not needed; one that stays does no harm."""
        for path in paths:
            with contextlib.suppress(OSError, InvalidArgumentError):
                self.remote.check_below(path)
                self.remote.remove_file(path)

    # ------------------------------------------------------------------ snapshots

    async def commit_files(
        self, table_id: int, snapshot_id: int, tiered_path: str, readable_path: str | None, keep_from_id: int | None
    ) -> None:
        entry = self.table(table_id)

        def read() -> tuple[dict[BucketKey, int], dict[BucketKey, int] | None]:
            try:
                tiered = self._read_offsets(tiered_path, table_id)
                return tiered, None if readable_path is None else self._read_offsets(readable_path, table_id)
            except OSError as error:
                reason = self.remote.explain(error)
                raise UnknownServerError(f"the offsets of table '{entry.table_path}' were not read: {reason}") from None

        tiered, readable = await self._in_remote_thread(read)
        for offsets in (tiered, readable or {}):  # a log may have lost its end since the file was written
            await self._check_buckets(entry, offsets)
        snapshot = LakeSnapshotEntry(
            snapshot_id, tiered, tiered_path, readable_path, readable, committed_time=self._catalog.clock_ms()
        )
        await self._commit(table_id, lambda _: snapshot, keep_from_id)

    async def commit_inline(
        self, table_id: int, snapshot_id: int, offsets: Offsets, max_timestamps: Mapping[BucketKey, int]
    ) -> None:
        """The form of older workers: the offsets travel in the request, and merge over the latest ones."""
        await self._check_buckets(self.table(table_id), offsets)
        committed_time = self._catalog.clock_ms()

        def merge(before: LakeSnapshots) -> LakeSnapshotEntry:
            merged = {**before.latest.offsets, **offsets} if before.latest else dict(offsets)
            return LakeSnapshotEntry(
                snapshot_id,
                merged,
                readable_offsets=merged,
                max_timestamps=max_timestamps,
                committed_time=committed_time,
            )

        await self._commit(table_id, merge, None)

    async def _commit(
        self, table_id: int, make: Callable[[LakeSnapshots], LakeSnapshotEntry], keep_from_id: int | None
    ) -> None:
        catalog = self._catalog

        async def work() -> tuple[TableEntry, set[str | None], set[str | None]]:
            entry = self.table(table_id)
            before, partition_ids = entry.lake or LakeSnapshots(), _partition_ids(entry)
            snapshot = make(before).of_partitions(partition_ids)
            after = before.of_partitions(partition_ids).with_commit(snapshot, keep_from_id)
            await catalog.in_storage_thread(lambda: catalog.storage.write_lake(table_id, after.to_json()))
            entry.lake = after
            if after.by_id(snapshot.snapshot_id) is None and after.latest is not None:
                _log.warning(
                    "lake snapshot %d of table '%s' is not kept: snapshot %d, which was reported before it, has all "
                    "rows that it has",
                    snapshot.snapshot_id,
                    entry.table_path,
                    after.latest.snapshot_id,
                )
            used = {path for kept in after.snapshots for path in (kept.tiered_path, kept.readable_path)}
            unused = {path for old in before.snapshots for path in (old.tiered_path, old.readable_path)} - used
            return entry, used, unused

        entry, used, unused = await catalog.change(work)
        await self._in_remote_thread(lambda: self._remove(path for path in unused if path))
        await self._in_remote_thread(lambda: self._sweep(entry, used))

    def snapshot(
        self, entry: TableEntry, snapshot_id: int | None, *, readable: bool
    ) -> tuple[LakeSnapshotEntry, Offsets]:
        """The snapshot a reader asks for and the offsets it may go on from."""
        if snapshot_id is not None and readable:
            raise UnknownServerError("Ask either for a snapshot id or for the latest readable snapshot, not for both.")
        snapshots = entry.lake or LakeSnapshots()
        if readable:
            found = snapshots.latest_readable
        else:
            found = snapshots.latest if snapshot_id is None else snapshots.by_id(snapshot_id)
        if found is None:
            which = "readable " if readable else "" if snapshot_id is None else f"{snapshot_id} "
            raise LakeSnapshotNotExistError(
                f"Lake table snapshot {which}doesn't exist for table: {entry.table_path}, table id: {entry.table_id}"
            )
        return found, (found.readable_offsets or {}) if readable else found.offsets


def _partition_ids(entry: TableEntry) -> set[int]:
    return {partition.partition_id for partition in entry.partitions.values()}
