# SPDX-License-Identifier: Apache-2.0
"""All primary-key buckets of a server."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import islice
from pathlib import Path

from fluss.errors import InvalidTableError, NonPrimaryKeyTableError
from fluss.metadata import TableBucket
from fluss.records import encode_value_batch
from fluss.server.catalog import Catalog, PartitionEntry, TableEntry
from fluss.server.config import ServerConfig
from fluss.server.kv.cursors import Cursors
from fluss.server.kv.sequence import BlockSource
from fluss.server.kv.sequence import Sequence as NumberSequence
from fluss.server.kv.store import Store, StoreBudget
from fluss.server.kv.tablet import KvTablet, number_limit
from fluss.server.tablets import Tablets

logger = logging.getLogger("fluss.server.kv")

Buffer = bytes | bytearray | memoryview


class Kv:
    """The states of all primary-key buckets; each begins to exist when it is first used."""

    def __init__(self, catalog: Catalog, tablets: Tablets, config: ServerConfig, executor: Executor) -> None:
        self._tablets = tablets
        self._executor = executor
        self._budget = StoreBudget(config.integer("kv.memory-size"), executor)
        self._open: dict[TableBucket, KvTablet] = {}
        self._blocks: dict[int, BlockSource] = {}
        self.cursors = Cursors(config)
        catalog.on_table_dropped.append(self._drop_table)
        catalog.on_partition_dropped.append(self._drop_partition)

    def tablet(self, entry: TableEntry, bucket: TableBucket) -> KvTablet:
        """The state of a bucket. A table without a primary key has none."""
        known = self._open.get(bucket)
        if known is None:
            if not entry.table_info.has_primary_key():
                raise NonPrimaryKeyTableError(f"table '{entry.table_path}' has no primary key")
            log = self._tablets.tablet(bucket)
            store = Store(self._tablets.bucket_folder(bucket, "kv"), self._budget)
            known = KvTablet(entry, log, store, self._executor, self._numbers(entry))
            self._open[bucket] = known
        return known

    def _numbers(self, entry: TableEntry) -> NumberSequence | None:
        info = entry.table_info
        if not info.schema.auto_increment_columns:
            return None
        source = self._blocks.get(entry.table_id)
        if source is None:
            folder: Path = self._tablets.table_folder(entry)
            source = self._blocks[entry.table_id] = BlockSource(folder, info.config.auto_increment_cache_size)
        return NumberSequence(source, number_limit(info), info.schema.auto_increment_columns[0])

    async def limit_scan(self, entry: TableEntry, bucket: TableBucket, limit: int) -> Sequence[Buffer]:
        """The first rows of a bucket in key order, as a value batch."""
        tablet = self.tablet(entry, bucket)
        await tablet.ready()
        items, _ = tablet.snapshot()
        return [encode_value_batch([value for _, value in islice(items, limit)])]

    async def row_count(self, entry: TableEntry, bucket: TableBucket) -> int:
        """The number of live keys."""
        if entry.table_info.config.changelog_image == "WAL":
            raise InvalidTableError(
                f"rows of '{entry.table_path}' are not counted: its changelog image is WAL, "
                "where inserts and updates look alike"
            )
        tablet = self.tablet(entry, bucket)
        await tablet.ready()
        return tablet.store.row_count

    def close(self, *, keep: bool) -> None:
        """Put everything on disk (`keep`) and let go."""
        self.cursors.close()
        for tablet in self._open.values():
            tablet.close(keep=keep and tablet.log.damage is None and tablet.log.failure is None)
        self._open.clear()

    def _drop_table(self, entry: TableEntry) -> None:
        self._blocks.pop(entry.table_id, None)
        self._drop(lambda bucket: bucket.table_id == entry.table_id)

    def _drop_partition(self, entry: TableEntry, partition: PartitionEntry) -> None:
        self._drop(lambda bucket: bucket.partition_id == partition.partition_id)

    def _drop(self, matches: object) -> None:
        assert callable(matches)
        for bucket in [bucket for bucket in self._open if matches(bucket)]:
            self.cursors.drop(bucket)
            self._open.pop(bucket).close(keep=False)
