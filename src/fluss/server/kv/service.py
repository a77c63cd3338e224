# SPDX-License-Identifier: Apache-2.0
"""All primary-key buckets of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import Executor
from typing import Any

from fluss.errors import InvalidTableError, KvStorageError, NonPrimaryKeyTableError
from fluss.metadata import TableBucket
from fluss.server.catalog import Catalog, Dropped, TableEntry
from fluss.server.clock import Clock
from fluss.server.config import ServerConfig
from fluss.server.kv.budget import StoreBudget
from fluss.server.kv.cursors import Cursors, encode_values_in_slices
from fluss.server.kv.prepare import Preparers
from fluss.server.kv.rocksdb import Writer
from fluss.server.kv.sequence import BlockSource, NumberSequence
from fluss.server.kv.snapshotter import Snapshotter
from fluss.server.kv.store import Store
from fluss.server.kv.tablet import KvTablet, number_limit
from fluss.server.log.appends import AppendResult
from fluss.server.scheduler import TimeSlice
from fluss.server.tablets import Tablets

Buffer = bytes | bytearray | memoryview

_REPLAYED_MAX = 10_000
"""A bucket whose state lacks so few offsets of its log is not written at a stop. The next use replays them in some ten
milliseconds; writing takes longer, and a server may have thousands of such buckets."""

STOP_SECONDS = 10.0
"""A server that stops writes states and recovery points for so long; what is left is replayed from the logs."""


_CLOSED_AT_ONCE = 64


class Kv:
    """The states of all primary-key buckets; each begins to exist when it is first used."""

    def __init__(
        self,
        catalog: Catalog,
        tablets: Tablets,
        config: ServerConfig,
        executor: Executor,
        clock: Clock,
        writer: Writer,
    ) -> None:
        self._catalog = catalog
        self._tablets = tablets
        self._executor = executor
        cache_bytes = config.integer("kv.cache-size")
        self.budget = StoreBudget(config.integer("kv.memory-size"), executor, cache_bytes, writer)
        self._preparers = Preparers(executor)
        self._open: dict[tuple[int, int | None, int], KvTablet] = {}
        self._blocks: dict[int, BlockSource] = {}
        self._closed = False
        self._writes: set[asyncio.Task[AppendResult]] = set()
        self.cursors = Cursors(config)
        # Before the snapshots, whose drop waits for the disk: stores would report that their folders are gone.
        catalog.on_dropped.append(self._drop)
        self.snapshotter = Snapshotter(catalog, tablets, executor, clock, self.tablet)

    def tablet(self, entry: TableEntry, bucket: TableBucket) -> KvTablet:
        """The state of a bucket. A table without a primary key has none."""
        known = self.open_tablet(bucket.table_id, bucket.partition_id, bucket.bucket_id)
        if known is None:
            if self._closed:
                raise KvStorageError("the server stops")
            if not entry.table_info.has_primary_key():
                raise NonPrimaryKeyTableError(f"table '{entry.table_path}' has no primary key")
            log = self._tablets.tablet(bucket)
            store = Store(self._tablets.bucket_folder(bucket, "kv"), self.budget)
            snapshots = self.snapshotter.of(entry, bucket)
            numbers = self._numbers(entry, bucket)
            known = KvTablet(entry, log, store, self._executor, numbers, snapshots, self._preparers)
            self._open[bucket.table_id, bucket.partition_id, bucket.bucket_id] = known
        return known

    def open_tablet(self, table_id: int, partition_id: int | None, bucket_id: int) -> KvTablet | None:
        """The state of a bucket, if it was used since the server started."""
        return self._open.get((table_id, partition_id, bucket_id))

    def _numbers(self, entry: TableEntry, bucket: TableBucket) -> NumberSequence | None:
        info = entry.table_info
        if not info.schema.auto_increment_columns:
            return None
        source = self._blocks.get(entry.table_id)
        if source is None:
            source = self._blocks[entry.table_id] = BlockSource(
                self._tablets.folder(entry),
                lambda: entry.table_info.config.auto_increment_cache_size,
                self._is_there,
                lambda: self._highest_number(entry),
            )
        place = str(bucket.bucket_id) if bucket.partition_id is None else f"{bucket.partition_id}/{bucket.bucket_id}"
        return NumberSequence(source, place, number_limit(info), info.schema.auto_increment_columns[0])

    async def _highest_number(self, entry: TableEntry) -> int:
        """The largest number that the rows of a table ever had; opens the states of all of its buckets."""
        highest = 0
        for log in tuple(self._tablets):
            if log.bucket.table_id == entry.table_id and (log.high_watermark or log.damage is not None):
                tablet = self.tablet(entry, log.bucket)
                await tablet.ready()
                highest = max(highest, tablet.store.highest_number)
        return highest

    def _is_there(self, place: str) -> bool:
        """Whether the bucket of a number sequence has no partition, or one that was not dropped."""
        partition_id, is_partitioned, _ = place.partition("/")
        return not is_partitioned or self._catalog.partition_by_id(int(partition_id)) is not None

    def start(self, put: Coroutine[Any, Any, AppendResult]) -> asyncio.Task[AppendResult]:
        """Run a write to its end, whatever becomes of the request it came with."""
        task = asyncio.get_running_loop().create_task(put)
        self._writes.add(task)
        task.add_done_callback(self._written)
        return task

    def _written(self, task: asyncio.Task[AppendResult]) -> None:
        self._writes.discard(task)
        if not task.cancelled():
            task.exception()  # reported to the waiters; without one that is no reason for a warning

    async def limit_scan(
        self, entry: TableEntry, bucket: TableBucket, limit: int, time_slice: TimeSlice
    ) -> Sequence[Buffer]:
        """The first rows of a bucket in key order, as a value batch; all that are asked for, or an error."""
        return await encode_values_in_slices(await self.tablet(entry, bucket).first(limit, time_slice), time_slice)

    async def row_count(self, entry: TableEntry, bucket: TableBucket) -> int:
        """The number of live keys."""
        if entry.table_info.config.changelog_image == "WAL":
            raise InvalidTableError(
                f"Row count is disabled for this table, '{entry.table_path}': its changelog image is WAL, "
                "where inserts and updates look alike."
            )
        tablet = self.tablet(entry, bucket)
        await tablet.ready()
        return tablet.store.row_count

    def close(self, *, keep: bool) -> None:
        """Put everything on disk (`keep`), as far as that is quick, and close the files."""
        self.cursors.close()
        self._closed = True
        self.budget.writer.stop_within(STOP_SECONDS)
        for tablet in tuple(self._open.values()):
            is_sound = tablet.log.damage is None and tablet.log.failure is None
            tablet.close(keep=keep and is_sound, replayed_max=_REPLAYED_MAX)
        self._open.clear()
        self.budget.writer.stop()

    @property
    def open_tablets(self) -> tuple[KvTablet, ...]:
        """The states that were used since the server started."""
        return tuple(self._open.values())

    async def _drop(self, dropped: Dropped) -> None:
        if dropped.partition is None:
            self._blocks.pop(dropped.table.table_id, None)
        gone = [(key, tablet) for key, tablet in self._open.items() if dropped.owns(tablet.log.bucket)]
        for number, (key, tablet) in enumerate(gone):
            self.cursors.drop(tablet.log.bucket)
            self._open.pop(key, tablet).close(keep=False)
            if number % _CLOSED_AT_ONCE == _CLOSED_AT_ONCE - 1:
                await asyncio.sleep(0)  # others are served in between
