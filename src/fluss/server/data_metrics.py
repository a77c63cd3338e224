# SPDX-License-Identifier: Apache-2.0
"""Figures per table and per bucket, read when the page is asked for: nothing is counted for them in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from fluss.server.catalog.entries import TableEntry
from fluss.server.catalog.tiering import TieringEntry, TieringState
from fluss.server.metrics import Labels

if TYPE_CHECKING:
    from fluss.server.log.tablet import LogTablet
    from fluss.server.services import Services

_BUCKETS_MAX = 1000
"""With more buckets their series are left out: a page of them all would keep the event loop busy."""

Series = Iterator[tuple[Labels, float]]


class DataMetrics:
    """Registers the figures of a server's tables."""

    def __init__(self, services: Services) -> None:
        self._services = services
        metrics = services.metrics
        tiering = services.catalog.lake.tiering
        metrics.gauge("coordinator_bucketCount", lambda: sum(count for _, count in self._bucket_counts()))
        metrics.gauge("coordinator_lakeTiering_pendingTablesCount", lambda: tiering.count(TieringState.PENDING))
        metrics.gauge("coordinator_lakeTiering_runningTablesCount", lambda: tiering.count(TieringState.TIERING))
        metrics.gauge("tabletserver_physicalStorage_remoteLogSize", lambda: sum(map(_remote_bytes, services.tablets)))
        metrics.series("coordinator_table_bucketCount", self._bucket_counts)
        metrics.series("coordinator_table_partitionCount", self._partition_counts)
        metrics.series("coordinator_lakeTiering_table_tierLag", self._tier_lags)
        metrics.series("coordinator_lakeTiering_table_freshness", self._freshness)
        metrics.series("coordinator_lakeTiering_table_failuresTotal", self._tier_failures)
        scope = "tabletserver_table_bucket_"
        metrics.series(f"{scope}log_numSegments", lambda: self._of_buckets(lambda t: len(t.segments)))
        metrics.series(f"{scope}log_startOffset", lambda: self._of_buckets(lambda t: t.start_offset))
        metrics.series(f"{scope}log_endOffset", lambda: self._of_buckets(lambda t: t.high_watermark))
        metrics.series(f"{scope}logicalStorage_logSize", lambda: self._of_buckets(lambda t: t.size_bytes))
        metrics.series(f"{scope}remoteLog_numSegments", lambda: self._of_buckets(_remote_segments))
        metrics.series(f"{scope}remoteLog_endOffset", lambda: self._of_buckets(_remote_end))
        metrics.series(f"{scope}remoteLog_size", lambda: self._of_buckets(lambda t: _remote_bytes(t) or None))
        metrics.series(f"{scope}lakeTiering_pendingRecords", lambda: self._of_buckets(self._pending_records))

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

    def _tier_lags(self) -> Series:
        now_ms = self._services.catalog.clock_ms()
        return ((labels, max(0, now_ms - table.last_tiered_ms)) for labels, table in self._tiered())

    def _freshness(self) -> Series:
        return ((labels, table.freshness_ms) for labels, table in self._tiered())

    def _tier_failures(self) -> Series:
        return ((labels, table.failures) for labels, table in self._tiered())

    def _of_buckets(self, read: Callable[[LogTablet], float | None]) -> Series:
        catalog, tablets = self._services.catalog, self._services.tablets
        if len(tablets) > _BUCKETS_MAX:
            return
        for tablet in tablets:
            entry = catalog.table_by_id(tablet.bucket.table_id)
            value = read(tablet) if entry is not None else None
            if entry is not None and value is not None:
                partition = tablet.bucket.partition_id
                where = () if partition is None else (("partition", str(partition)),)
                yield (*entry.labels, *where, ("bucket", str(tablet.bucket.bucket_id))), value

    def _pending_records(self, tablet: LogTablet) -> float | None:
        entry = self._services.catalog.table_by_id(tablet.bucket.table_id)
        if entry is None or not entry.table_info.config.lake_enabled:
            return None
        tiered = entry.lake.end_offset(tablet.bucket.partition_id, tablet.bucket.bucket_id) if entry.lake else None
        return max(0, tablet.high_watermark - (tiered or 0))


def _remote_segments(tablet: LogTablet) -> float | None:
    return None if tablet.remote is None else len(tablet.remote.segments)


def _remote_end(tablet: LogTablet) -> float | None:
    return None if tablet.remote is None or not tablet.remote.segments else tablet.remote.end_offset


def _remote_bytes(tablet: LogTablet) -> int:
    return 0 if tablet.remote is None else sum(segment.size_in_bytes for segment in tablet.remote.segments)
