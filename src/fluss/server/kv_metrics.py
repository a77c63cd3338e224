# SPDX-License-Identifier: Apache-2.0
"""Figures of primary-key tables: their states, RocksDB, and snapshots. Read when the page is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from fluss.metadata import TableBucket
from fluss.server.kv.store import Store
from fluss.server.metrics import Labels

if TYPE_CHECKING:
    from fluss.server.services import Services

BUCKETS_MAX = 1000
"""With more buckets their series are left out: a page of them all would keep the event loop busy."""

Series = Iterator[tuple[Labels, float]]
PerBucket = Callable[[Callable[[Any], "float | None"], Sequence[tuple[TableBucket, Any]]], Series]
"""Reads a figure of each of some buckets, and labels it."""

_ENGINE_MAXIMA = {
    "rocksdbNumFilesAtLevel0Max": "rocksdb.num-files-at-level0",
    "rocksdbFlushPendingMax": "rocksdb.mem-table-flush-pending",
    "rocksdbCompactionPendingMax": "rocksdb.compaction-pending",
}
_ENGINE_SUMS = {
    "rocksdbMemTableMemoryUsageTotal": "rocksdb.size-all-mem-tables",
    "rocksdbMemTableUnFlushedMemoryUsageTotal": "rocksdb.cur-size-all-mem-tables",
    "rocksdbTableReadersMemoryUsageTotal": "rocksdb.estimate-table-readers-mem",
}
"""Names of metrics, and the properties of RocksDB that they show."""


class KvMetrics:
    """Registers the figures of primary-key tables."""

    def __init__(self, services: Services, per_bucket: PerBucket) -> None:
        self._services = services
        metrics = services.metrics
        metrics.gauge("coordinator_kvSnapshotLeaseCount", lambda: len(services.kv.snapshotter.leases))
        metrics.gauge("coordinator_leasedKvSnapshotCount", lambda: services.kv.snapshotter.leases.snapshot_count)
        metrics.gauge(
            "coordinator_physicalStorage_remoteKvSize",
            lambda: sum(found.size_bytes for found in services.kv.snapshotter.known),
        )
        metrics.gauge("tabletserver_logicalStorage_kvSize", lambda: sum(store.size_bytes for store in self._stores()))
        metrics.gauge("tabletserver_physicalStorage_localSize", self._local_bytes)
        metrics.gauge("tabletserver_rocksdbMemoryUsageTotal", self._engine_memory)
        metrics.gauge("tabletserver_kvFlush_total", lambda: services.kv.spill_latencies.count)
        metrics.histogram("tabletserver_kvFlushLatencyMs", services.kv.spill_latencies)
        metrics.gauge("tabletserver_kvMemorySize", lambda: services.kv.memory_bytes)
        metrics.gauge("tabletserver_kvCacheSize", lambda: services.kv.cache_bytes)
        metrics.gauge("tabletserver_kvRowCount", lambda: services.kv.row_count_total)
        metrics.series(
            "coordinator_table_bucket_numKvSnapshots",
            lambda: per_bucket(lambda found: len(found.snapshots), self._snapshots()),
        )
        metrics.series(
            "coordinator_table_bucket_allKvSnapshotSize",
            lambda: per_bucket(lambda found: found.size_bytes, self._snapshots()),
        )
        metrics.series(
            "tabletserver_table_bucket_logicalStorage_kvSize",
            lambda: per_bucket(
                lambda tablet: tablet.store.size_bytes,
                [(tablet.log.bucket, tablet) for tablet in services.kv.open_tablets],
            ),
        )
        for names, combine in ((_ENGINE_MAXIMA, max), (_ENGINE_SUMS, sum)):
            for name, engine_name in names.items():
                self._add_engine_series(name, engine_name, combine)

    def _stores(self) -> list[Store]:
        return [tablet.store for tablet in self._services.kv.open_tablets]

    def _snapshots(self) -> list[tuple[TableBucket, Any]]:
        return [(found.bucket, found) for found in self._services.kv.snapshotter.known]

    def _local_bytes(self) -> float:
        on_disk = sum(store.engine_property("rocksdb.live-sst-files-size") for store in self._stores())
        return on_disk + sum(tablet.size_bytes for tablet in self._services.tablets)

    def _engine_memory(self) -> float:
        names = ("rocksdb.size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        kv = self._services.kv
        return kv.cache_bytes + sum(store.engine_property(name) for store in self._stores() for name in names)

    def _add_engine_series(self, name: str, engine_name: str, combine: Callable[[list[int]], float]) -> None:
        def series() -> Series:
            by_table: dict[Labels, list[int]] = {}
            open_tablets = self._services.kv.open_tablets
            for tablet in open_tablets if len(open_tablets) <= BUCKETS_MAX else ():
                by_table.setdefault(tablet.entry.labels, []).append(tablet.store.engine_property(engine_name))
            return ((labels, combine(values)) for labels, values in by_table.items())

        self._services.metrics.series(f"tabletserver_table_{name}", series)
