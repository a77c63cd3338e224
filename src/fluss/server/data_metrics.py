# SPDX-License-Identifier: Apache-2.0
"""Figures of tables, buckets, key-value states and the process, read when the page is asked for and not counted."""

from __future__ import annotations

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from fluss.metadata import TableBucket
from fluss.server.catalog.entries import TableCounters, TableEntry
from fluss.server.catalog.lake import TieringEntry, TieringState
from fluss.server.kv.store import Store
from fluss.server.metrics import Labels, ServerMetrics

if TYPE_CHECKING:
    from fluss.server.kv.snapshots import BucketSnapshots
    from fluss.server.kv.tablet import KvTablet
    from fluss.server.log.tablet import LogTablet
    from fluss.server.services import Services
Series = Iterator[tuple[Labels, float]]
T = TypeVar("T")


_TABLE_COUNTERS = {
    "messagesIn_total": "messages_in",
    "totalProduceLogRequests_total": "produce_log",
    "failedProduceLogRequests_total": "produce_log_failed",
    "totalFetchLogRequests_total": "fetch_log",
    "failedFetchLogRequests_total": "fetch_log_failed",
    "totalPutKvRequests_total": "put_kv",
    "failedPutKvRequests_total": "put_kv_failed",
    "totalLookupRequests_total": "lookup",
    "failedLookupRequests_total": "lookup_failed",
    "totalPrefixLookupRequests_total": "prefix_lookup",
    "failedPrefixLookupRequests_total": "prefix_lookup_failed",
    "totalLimitScanRequests_total": "limit_scan",
    "failedLimitScanRequests_total": "limit_scan_failed",
    "remoteLogCopyBytes_total": "remote_copy_bytes",
    "remoteLogCopyRequests_total": "remote_copy",
    "remoteLogCopyError_total": "remote_copy_failed",
    "remoteLogDeleteRequests_total": "remote_delete",
    "remoteLogDeleteError_total": "remote_delete_failed",
    "kvBackpressureRejectionsTotal": "backpressure_rejections",
}
"""Names of metrics, and where `TableCounters` has their figures."""


BUCKETS_MAX = 1000
"""With more buckets their series are left out: a page of them all would keep the event loop busy."""

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


class DataMetrics:
    """Registers the figures of a server's tables."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._metrics = services.metrics
        self._add_coordinator_figures()
        for name, attribute in _TABLE_COUNTERS.items():
            self._metrics.series(f"tabletserver_table_{name}", partial(self._counted, attrgetter(attribute)))
        self._add_bucket_figures()
        self._add_kv_figures()

    def _add_coordinator_figures(self) -> None:
        metrics, tiering = self._metrics, self._services.catalog.lake.tiering
        metrics.gauge("coordinator_bucketCount", lambda: sum(count for _, count in self._bucket_counts()))
        metrics.gauge("coordinator_lakeTiering_pendingTablesCount", lambda: tiering.count(TieringState.PENDING))
        metrics.gauge("coordinator_lakeTiering_runningTablesCount", lambda: tiering.count(TieringState.TIERING))
        metrics.series("coordinator_table_bucketCount", self._bucket_counts)
        metrics.series("coordinator_table_partitionCount", self._partition_counts)
        now_ms = self._services.catalog.clock_ms
        figures: dict[str, Callable[[TieringEntry], float | None]] = {
            "tierLag": lambda t: max(0, now_ms() - t.last_tiered_ms),
            "tieredTimestamp": lambda t: t.last_tiered_ms,
            "tierDuration": lambda t: t.duration_ms_last,
            "freshness": lambda t: t.freshness_ms,
            "failuresTotal": lambda t: t.failures,
            "pendingTime": lambda t: max(0, now_ms() - t.pending_since_ms) if t.state is TieringState.PENDING else 0,
            "fileSize": lambda t: -1 if t.lake_bytes is None else t.lake_bytes,
            "recordCount": lambda t: -1 if t.lake_rows is None else t.lake_rows,
        }
        for name, read in figures.items():
            metrics.series(f"coordinator_lakeTiering_table_{name}", partial(self._tiered, read))

    def _add_bucket_figures(self) -> None:
        metrics, tablets = self._metrics, self._services.tablets
        metrics.gauge("tabletserver_physicalStorage_remoteLogSize", lambda: sum(map(_remote_bytes, tablets)))
        metrics.gauge("tabletserver_delayedWriteCount", lambda: sum(len(t.commit_waiters) for t in tablets))
        metrics.gauge(
            "tabletserver_delayedFetchCount", lambda: len({fetch for t in tablets for fetch in t.fetch_waiters})
        )
        figures: dict[str, Callable[[LogTablet], float | None]] = {
            "log_numSegments": lambda t: len(t.segments),
            "log_startOffset": lambda t: t.start_offset,
            "log_endOffset": lambda t: t.high_watermark,
            "logicalStorage_logSize": lambda t: t.size_bytes,
            "physicalStorage_localLogSize": lambda t: t.size_bytes,
            "remoteLog_numSegments": lambda t: None if t.remote is None else len(t.remote.segments),
            "remoteLog_startOffset": lambda t: None if t.remote is None else t.remote.start_offset,
            "remoteLog_endOffset": lambda t: (
                t.remote.end_offset if t.remote is not None and t.remote.segments else None
            ),
            "remoteLog_size": lambda t: _remote_bytes(t) or None,
            "lakeTiering_pendingRecords": self._pending_records,
            "lakeTiering_timestampLag": self._timestamp_lag,
        }
        for name, read in figures.items():
            metrics.series(f"tabletserver_table_bucket_{name}", partial(self._of_buckets, read, self._logs))

    def _add_kv_figures(self) -> None:
        metrics, kv = self._metrics, self._services.kv
        snapshotter, budget = kv.snapshotter, kv.budget
        metrics.gauge("coordinator_kvSnapshotLeaseCount", lambda: len(snapshotter.leases))
        metrics.gauge("coordinator_leasedKvSnapshotCount", lambda: snapshotter.leases.snapshot_count)
        metrics.gauge(
            "coordinator_physicalStorage_remoteKvSize", lambda: sum(found.size_bytes for found in snapshotter.known)
        )
        metrics.gauge("tabletserver_logicalStorage_kvSize", lambda: sum(store.size_bytes for store in self._stores()))
        metrics.gauge("tabletserver_physicalStorage_localSize", self._local_bytes)
        metrics.gauge("tabletserver_rocksdbMemoryUsageTotal", self._engine_memory)
        metrics.gauge("tabletserver_kvFlush_total", lambda: budget.spill_latencies.count)
        metrics.histogram("tabletserver_kvFlushLatencyMs", budget.spill_latencies)
        metrics.gauge("tabletserver_kvMemorySize", lambda: budget.memory_bytes)
        metrics.gauge("tabletserver_kvCacheSize", lambda: budget.cache_bytes)
        metrics.gauge("tabletserver_kvRowCount", lambda: budget.row_count)
        metrics.gauge("tabletserver_kvReopened_total", lambda: budget.views_reopened)
        figures: dict[str, Callable[[Any], float]] = {
            "numKvSnapshots": lambda found: len(found.snapshots),
            "allKvSnapshotSize": lambda found: found.size_bytes,
        }
        for name, read in figures.items():
            metrics.series(f"coordinator_table_bucket_{name}", partial(self._of_buckets, read, self._snapshots))
        metrics.series(
            "tabletserver_table_bucket_logicalStorage_kvSize",
            partial(self._of_buckets, lambda tablet: tablet.store.size_bytes, self._states),
        )
        for names, combine in ((_ENGINE_MAXIMA, max), (_ENGINE_SUMS, sum)):
            for name, engine_name in names.items():
                metrics.series(f"tabletserver_table_{name}", partial(self._of_engines, engine_name, combine))

    # What there is -------------------------------------------------------------------------------------------------

    def _tables(self) -> list[TableEntry]:
        return list(self._services.catalog.tables_by_id.values())

    def _logs(self) -> list[tuple[TableBucket, LogTablet]]:
        return [(log.bucket, log) for log in self._services.tablets]

    def _states(self) -> list[tuple[TableBucket, KvTablet]]:
        return [(tablet.log.bucket, tablet) for tablet in self._services.kv.open_tablets]

    def _snapshots(self) -> list[tuple[TableBucket, BucketSnapshots]]:
        return [(found.bucket, found) for found in self._services.kv.snapshotter.known]

    def _stores(self) -> list[Store]:
        return [tablet.store for tablet in self._services.kv.open_tablets]

    # Series --------------------------------------------------------------------------------------------------------

    def _bucket_counts(self) -> Series:
        for entry in self._tables():
            yield entry.labels, entry.bucket_total

    def _partition_counts(self) -> Series:
        return ((entry.labels, len(entry.partitions)) for entry in self._tables() if entry.is_partitioned)

    def _tiered(self, read: Callable[[TieringEntry], float | None]) -> Series:
        known = self._services.catalog.lake.tiering.tables
        for entry in self._tables():
            value = read(known[entry.table_id]) if entry.table_id in known else None
            if value is not None:
                yield entry.labels, value

    def _counted(self, read: Callable[[TableCounters], int]) -> Series:
        # What has not happened to a table is left out: a page with all counters of 1000 tables would be long.
        for entry in self._tables():
            if count := read(entry.counters):
                yield entry.labels, count

    def _of_buckets(
        self, read: Callable[[T], float | None], find: Callable[[], Sequence[tuple[TableBucket, T]]]
    ) -> Series:
        found = find()
        for bucket, one in found if len(found) <= BUCKETS_MAX else ():
            entry = self._services.catalog.table_by_id(bucket.table_id)
            value = None if entry is None else read(one)
            if entry is not None and value is not None:
                where = () if bucket.partition_id is None else (("partition", str(bucket.partition_id)),)
                yield (*entry.labels, *where, ("bucket", str(bucket.bucket_id))), value

    def _of_engines(self, engine_name: str, combine: Callable[[list[int]], float]) -> Series:
        by_table: dict[Labels, list[int]] = {}
        open_tablets = self._services.kv.open_tablets
        for tablet in open_tablets if len(open_tablets) <= BUCKETS_MAX else ():
            by_table.setdefault(tablet.entry.labels, []).append(tablet.store.engine_property(engine_name))
        return ((labels, combine(values)) for labels, values in by_table.items())

    # Figures -------------------------------------------------------------------------------------------------------

    def _pending_records(self, tablet: LogTablet) -> float | None:
        entry = self._services.catalog.table_by_id(tablet.bucket.table_id)
        if entry is None or not entry.table_info.config.lake_enabled:
            return None
        return max(0, tablet.high_watermark - (self._services.catalog.lake_end_offset(tablet.bucket) or 0))

    def _timestamp_lag(self, tablet: LogTablet) -> float | None:
        entry = self._services.catalog.table_by_id(tablet.bucket.table_id)
        newest = entry.lake.latest if entry is not None and entry.lake is not None else None
        if newest is None or tablet.max_timestamp < 0:
            return None
        tiered = newest.max_timestamps.get((tablet.bucket.partition_id, tablet.bucket.bucket_id))
        return None if tiered is None else max(0, tablet.max_timestamp - tiered)

    def _local_bytes(self) -> float:
        on_disk = sum(store.engine_property("rocksdb.live-sst-files-size") for store in self._stores())
        return on_disk + sum(tablet.size_bytes for tablet in self._services.tablets)

    def _engine_memory(self) -> float:
        names = ("rocksdb.size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        engines = sum(store.engine_property(name) for store in self._stores() for name in names)
        return self._services.kv.budget.cache_bytes + engines


def _remote_bytes(tablet: LogTablet) -> int:
    return 0 if tablet.remote is None else sum(segment.size_in_bytes for segment in tablet.remote.segments)


_STATM = Path("/proc/self/statm")
_DESCRIPTORS = Path("/proc/self/fd")


def add_process_gauges(metrics: ServerMetrics) -> None:
    """Register what the operating system reports of this process; what it does not report is left out."""
    started = time.time()
    metrics.gauge("process_cpu_seconds_total", _cpu_seconds)
    metrics.gauge("process_threads", threading.active_count)
    metrics.gauge("process_start_time_seconds", lambda: started)
    metrics.gauge("process_max_fds", lambda: resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    if _STATM.exists():
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        metrics.gauge("process_resident_memory_bytes", lambda: int(_STATM.read_text().split()[1]) * page_bytes)
    if _DESCRIPTORS.exists():
        metrics.gauge("process_open_fds", lambda: len(os.listdir(_DESCRIPTORS)))


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system
