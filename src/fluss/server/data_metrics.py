# SPDX-License-Identifier: Apache-2.0
"""Figures per table and per bucket, read when the page is asked for: nothing is counted for them in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

from fluss.metadata import TableBucket
from fluss.server.catalog.entries import TableEntry
from fluss.server.catalog.tiering import TieringEntry, TieringState
from fluss.server.kv_metrics import BUCKETS_MAX, KvMetrics
from fluss.server.metrics import Labels
from fluss.server.table_counters import TableCounters

if TYPE_CHECKING:
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


class DataMetrics:
    """Registers the figures of a server's tables."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._add_coordinator_figures()
        self._add_table_figures()
        self._add_bucket_figures()
        KvMetrics(services, self._of_kv_buckets)

    def _add_coordinator_figures(self) -> None:
        metrics, tiering = self._services.metrics, self._services.catalog.lake.tiering
        metrics.gauge("coordinator_bucketCount", lambda: sum(count for _, count in self._bucket_counts()))
        metrics.gauge("coordinator_lakeTiering_pendingTablesCount", lambda: tiering.count(TieringState.PENDING))
        metrics.gauge("coordinator_lakeTiering_runningTablesCount", lambda: tiering.count(TieringState.TIERING))
        metrics.series("coordinator_table_bucketCount", self._bucket_counts)
        metrics.series("coordinator_table_partitionCount", self._partition_counts)
        now_ms = self._services.catalog.clock_ms
        scope = "coordinator_lakeTiering_table_"
        self._tiering_series(f"{scope}tierLag", lambda t: max(0, now_ms() - t.last_tiered_ms))
        self._tiering_series(f"{scope}tieredTimestamp", lambda t: t.last_tiered_ms)
        self._tiering_series(f"{scope}tierDuration", lambda t: t.duration_ms_last)
        self._tiering_series(f"{scope}freshness", lambda t: t.freshness_ms)
        self._tiering_series(f"{scope}failuresTotal", lambda t: t.failures)
        self._tiering_series(
            f"{scope}pendingTime",
            lambda t: max(0, now_ms() - t.pending_since_ms) if t.state is TieringState.PENDING else 0,
        )
        self._tiering_series(f"{scope}fileSize", lambda t: -1 if t.lake_bytes is None else t.lake_bytes)
        self._tiering_series(f"{scope}recordCount", lambda t: -1 if t.lake_rows is None else t.lake_rows)

    def _add_table_figures(self) -> None:
        for name, attribute in _TABLE_COUNTERS.items():
            self._services.metrics.series(f"tabletserver_table_{name}", partial(self._counted, attrgetter(attribute)))

    def _add_bucket_figures(self) -> None:
        metrics, tablets = self._services.metrics, self._services.tablets
        metrics.gauge("tabletserver_physicalStorage_remoteLogSize", lambda: sum(map(_remote_bytes, tablets)))
        metrics.gauge("tabletserver_delayedWriteCount", lambda: sum(len(t.commit_waiters) for t in tablets))
        metrics.gauge(
            "tabletserver_delayedFetchCount", lambda: len({fetch for t in tablets for fetch in t.fetch_waiters})
        )
        scope = "tabletserver_table_bucket_"
        metrics.series(f"{scope}log_numSegments", lambda: self._of_buckets(lambda t: len(t.segments)))
        metrics.series(f"{scope}log_startOffset", lambda: self._of_buckets(lambda t: t.start_offset))
        metrics.series(f"{scope}log_endOffset", lambda: self._of_buckets(lambda t: t.high_watermark))
        metrics.series(f"{scope}logicalStorage_logSize", lambda: self._of_buckets(lambda t: t.size_bytes))
        metrics.series(f"{scope}physicalStorage_localLogSize", lambda: self._of_buckets(lambda t: t.size_bytes))
        metrics.series(f"{scope}remoteLog_numSegments", lambda: self._of_buckets(_remote_segments))
        metrics.series(f"{scope}remoteLog_startOffset", lambda: self._of_buckets(_remote_start))
        metrics.series(f"{scope}remoteLog_endOffset", lambda: self._of_buckets(_remote_end))
        metrics.series(f"{scope}remoteLog_size", lambda: self._of_buckets(lambda t: _remote_bytes(t) or None))
        metrics.series(f"{scope}lakeTiering_pendingRecords", lambda: self._of_buckets(self._pending_records))
        metrics.series(f"{scope}lakeTiering_timestampLag", lambda: self._of_buckets(self._timestamp_lag))

    def _tables(self) -> list[TableEntry]:
        return list(self._services.catalog.tables_by_id.values())

    def _bucket_counts(self) -> Series:
        for entry in self._tables():
            yield entry.labels, entry.bucket_count * (len(entry.partitions) if entry.is_partitioned else 1)

    def _partition_counts(self) -> Series:
        return ((entry.labels, len(entry.partitions)) for entry in self._tables() if entry.is_partitioned)

    def _tiered(self) -> Iterator[tuple[Labels, TieringEntry]]:
        known = self._services.catalog.lake.tiering.tables
        for entry in self._tables():
            if entry.table_id in known:
                yield entry.labels, known[entry.table_id]

    def _tiering_series(self, name: str, read: Callable[[TieringEntry], float | None]) -> None:
        def series() -> Series:
            for labels, table in self._tiered():
                value = read(table)
                if value is not None:
                    yield labels, value

        self._services.metrics.series(name, series)

    def _counted(self, read: Callable[[TableCounters], int]) -> Series:
        # What has not happened to a table is left out: a page with all counters of 1000 tables would be long.
        for entry in self._tables():
            if count := read(entry.counters):
                yield entry.labels, count

    def _of_buckets(self, read: Callable[[LogTablet], float | None]) -> Series:
        tablets = self._services.tablets
        if len(tablets) <= BUCKETS_MAX:
            for tablet in tablets:
                yield from self._labelled(tablet.bucket, read, tablet)

    def _of_kv_buckets(self, read: Callable[[T], float | None], buckets: Sequence[tuple[TableBucket, T]]) -> Series:
        if len(buckets) <= BUCKETS_MAX:
            for bucket, found in buckets:
                yield from self._labelled(bucket, read, found)

    def _labelled(self, bucket: TableBucket, read: Callable[[T], float | None], found: T) -> Series:
        entry = self._services.catalog.table_by_id(bucket.table_id)
        value = read(found) if entry is not None else None
        if entry is not None and value is not None:
            where = () if bucket.partition_id is None else (("partition", str(bucket.partition_id)),)
            yield (*entry.labels, *where, ("bucket", str(bucket.bucket_id))), value

    def _pending_records(self, tablet: LogTablet) -> float | None:
        entry = self._services.catalog.table_by_id(tablet.bucket.table_id)
        if entry is None or not entry.table_info.config.lake_enabled:
            return None
        tiered = entry.lake.end_offset(tablet.bucket.partition_id, tablet.bucket.bucket_id) if entry.lake else None
        return max(0, tablet.high_watermark - (tiered or 0))

    def _timestamp_lag(self, tablet: LogTablet) -> float | None:
        entry = self._services.catalog.table_by_id(tablet.bucket.table_id)
        newest = entry.lake.latest if entry is not None and entry.lake is not None else None
        if newest is None or tablet.max_timestamp < 0:
            return None
        tiered = newest.max_timestamps.get((tablet.bucket.partition_id, tablet.bucket.bucket_id))
        return None if tiered is None else max(0, tablet.max_timestamp - tiered)


def _remote_segments(tablet: LogTablet) -> float | None:
    return None if tablet.remote is None else len(tablet.remote.segments)


def _remote_start(tablet: LogTablet) -> float | None:
    return None if tablet.remote is None else tablet.remote.start_offset


def _remote_end(tablet: LogTablet) -> float | None:
    return None if tablet.remote is None or not tablet.remote.segments else tablet.remote.end_offset


def _remote_bytes(tablet: LogTablet) -> int:
    return 0 if tablet.remote is None else sum(segment.size_in_bytes for segment in tablet.remote.segments)
