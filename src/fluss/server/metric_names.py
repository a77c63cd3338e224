# SPDX-License-Identifier: Apache-2.0
"""Every metric of the server: its name, kind, labels and meaning. docs/metrics.md is made from this table.

Names are those of Apache Fluss where it has the figure for one node. What it reports as a rate is a counter here, with
`_total` at the end: rates are left to the system that reads them.
"""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "fluss_"

_REQUEST = ("request",)
_TABLE = ("database", "table")
_BUCKET = ("database", "table", "partition", "bucket")
_USER = ("user", "database", "table")
_OWNER = ("user",)


class Metric(NamedTuple):
    """One metric; `fluss_` stands in front of its name on the page, except for those of the process."""

    kind: str
    """``gauge``, ``counter`` or ``histogram``."""
    help: str
    labels: tuple[str, ...] = ()


def _all(prefix: str, kind: str, labels: tuple[str, ...], helps: dict[str, str]) -> dict[str, Metric]:
    """Make metrics that differ only in the ends of their names and in what they mean."""
    return {prefix + name: Metric(kind, text, labels) for name, text in helps.items()}


METRICS: dict[str, Metric] = {
    # -- the cluster ------------------------------------------------------------------------------------------------
    "coordinator_activeCoordinatorCount": Metric("gauge", "Active coordinators; always 1."),
    "coordinator_aliveCoordinatorCount": Metric("gauge", "Live coordinators; always 1."),
    "coordinator_activeTabletServerCount": Metric("gauge", "Live tablet servers; always 1."),
    "replication_behindBytes": Metric("gauge", "Bytes that the backup of `replication.url` lacks in this round."),
    "replication_behindSeconds": Metric("gauge", "Age of the newest state that the backup has completely."),
    "replication_uploadedBytes": Metric("gauge", "Bytes sent to the backup since the start."),
    "coordinator_tableCount": Metric("gauge", "Tables."),
    "coordinator_partitionCount": Metric("gauge", "Partitions of all tables."),
    "coordinator_bucketCount": Metric("gauge", "Buckets of all tables."),
    "coordinator_offlineBucketCount": Metric("gauge", "Buckets out of service because of damage or a failed disk."),
    "coordinator_kvSnapshotLeaseCount": Metric("gauge", "Leases on snapshots of primary-key tables."),
    "coordinator_leasedKvSnapshotCount": Metric("gauge", "Snapshots of buckets that leases hold."),
    "coordinator_physicalStorage_remoteKvSize": Metric("gauge", "Bytes of all snapshots of primary-key tables."),
    "coordinator_table_bucketCount": Metric("gauge", "Buckets of a table, of each of its partitions.", _TABLE),
    "coordinator_table_partitionCount": Metric("gauge", "Partitions of a table.", _TABLE),
    "coordinator_table_bucket_numKvSnapshots": Metric("gauge", "Snapshots of a bucket.", _BUCKET),
    "coordinator_table_bucket_allKvSnapshotSize": Metric("gauge", "Bytes of all snapshots of a bucket.", _BUCKET),
    "coordinator_lakeTiering_pendingTablesCount": Metric("gauge", "Tables that wait to be tiered into their lake."),
    "coordinator_lakeTiering_runningTablesCount": Metric("gauge", "Tables that are being tiered."),
    **_all("coordinator_lakeTiering_table_", "gauge", _TABLE, {
        "tierLag": "Milliseconds since the table was last tiered.",
        "tieredTimestamp": "When the table was last tiered, in milliseconds since 1970.",
        "tierDuration": "Milliseconds that its last tiering took.",
        "pendingTime": "Milliseconds that the table has been waiting to be tiered; 0 when it is not waiting.",
        "fileSize": "Bytes of the table in its lake; -1 until a worker reports it.",
        "recordCount": "Records of the table in its lake; -1 until a worker reports it.",
        "freshness": "Milliseconds that its lake may be behind.",
    }),
    "coordinator_lakeTiering_table_failuresTotal": Metric("counter", "Rounds of tiering that failed.", _TABLE),
    "coordinator_group_lag": Metric(
        "gauge", "Changes of a table that a group of followers has not handled.", ("group", *_TABLE)
    ),
    "coordinator_group_bucket_lag": Metric(
        "gauge", "Changes of a bucket that a group of followers has not handled.", ("group", *_BUCKET)
    ),
    # -- the data ---------------------------------------------------------------------------------------------------
    "tabletserver_leaderCount": Metric("gauge", "Buckets that this server leads: all."),
    "tabletserver_replicaCount": Metric("gauge", "Replicas of buckets on this server."),
    "tabletserver_writerIdCount": Metric("gauge", "Ids of idempotent writers that are remembered."),
    "tabletserver_messagesIn_total": Metric("counter", "Records written."),
    "tabletserver_bytesIn_total": Metric("counter", "Bytes of records written."),
    "tabletserver_bytesOut_total": Metric("counter", "Bytes of records read by fetches."),
    "tabletserver_user_bytesIn": Metric("counter", "Bytes of records written by an authenticated user.", _USER),
    "tabletserver_user_bytesOut": Metric("counter", "Bytes of records read by an authenticated user.", _USER),
    "tabletserver_logicalStorage_logSize": Metric("gauge", "Bytes of all logs on this server."),
    "tabletserver_logicalStorage_kvSize": Metric("gauge", "Bytes of rows of primary-key tables that are in use."),
    "tabletserver_physicalStorage_localSize": Metric("gauge", "Bytes of logs and rows on the local disk."),
    "tabletserver_physicalStorage_remoteLogSize": Metric("gauge", "Bytes of all log segments in remote storage."),
    "tabletserver_logFlush_total": Metric("counter", "Flushes of logs to the disk."),
    "tabletserver_logFlushLatencyMs": Metric("histogram", "Milliseconds that a round of flushes took."),
    "tabletserver_delayedWriteCount": Metric("gauge", "Writes to buckets that wait to be committed."),
    "tabletserver_delayedWriteExpires_total": Metric("counter", "Writes that were not committed in time."),
    "tabletserver_delayedFetchCount": Metric("gauge", "Fetches that wait for rows."),
    "tabletserver_delayedFetchFromClientExpires_total": Metric("counter", "Fetches whose wait for rows ended empty."),
    "tabletserver_kvMemorySize": Metric("gauge", "Bytes of rows of primary-key tables in memory."),
    "tabletserver_kvCacheSize": Metric("gauge", "Bytes of the blocks of RocksDB that are kept in memory."),
    "tabletserver_kvRowCount": Metric("gauge", "Rows of primary-key tables whose stores are open."),
    "tabletserver_kvReopened_total": Metric(
        "counter", "How often files of a state that had been closed were opened to be read."
    ),
    "tabletserver_kvFlush_total": Metric("counter", "How often rows were moved from memory to RocksDB."),
    "tabletserver_kvFlushLatencyMs": Metric("histogram", "Milliseconds that moving rows to RocksDB took."),
    "tabletserver_rocksdbMemoryUsageTotal": Metric("gauge", "Bytes of memory that RocksDB takes."),
    **_all("tabletserver_table_", "counter", _TABLE, {
        "messagesIn_total": "Records written to a table.",
        "bytesIn_total": "Bytes of records written to a table.",
        "bytesOut_total": "Bytes of records read from a table by fetches.",
        "totalProduceLogRequests_total": "Requests to append to a table.",
        "failedProduceLogRequests_total": "Requests to append to a table in which a bucket was refused.",
        "totalFetchLogRequests_total": "Requests to read the log of a table.",
        "failedFetchLogRequests_total": "Requests to read the log of a table in which a bucket was refused.",
        "totalPutKvRequests_total": "Requests to write to a primary-key table.",
        "failedPutKvRequests_total": "Requests to write to a primary-key table in which a bucket was refused.",
        "totalLookupRequests_total": "Requests to look up keys.",
        "failedLookupRequests_total": "Requests to look up keys in which a bucket was refused.",
        "totalPrefixLookupRequests_total": "Requests to look up key prefixes.",
        "failedPrefixLookupRequests_total": "Requests to look up key prefixes in which a bucket was refused.",
        "totalLimitScanRequests_total": "Requests for a scan with a limit.",
        "failedLimitScanRequests_total": "Requests for a scan with a limit that were refused.",
        "remoteLogCopyBytes_total": "Bytes copied to the remote log.",
        "remoteLogCopyRequests_total": "Copies of segments to the remote log.",
        "remoteLogCopyError_total": "Copies of segments to the remote log that failed.",
        "remoteLogDeleteRequests_total": "Deletions of expired remote segments, by round.",
        "remoteLogDeleteError_total": "Deletions of expired remote segments that failed.",
        "kvBackpressureRejectionsTotal": "Writes refused because the disk could not keep up.",
    }),
    **_all("tabletserver_table_", "gauge", _TABLE, {
        "rocksdbNumFilesAtLevel0Max": "Files at level 0, of the worst bucket.",
        "rocksdbFlushPendingMax": "1 if a flush is pending in a bucket.",
        "rocksdbCompactionPendingMax": "1 if a compaction is pending in a bucket.",
        "rocksdbMemTableMemoryUsageTotal": "Bytes of all memtables.",
        "rocksdbMemTableUnFlushedMemoryUsageTotal": "Bytes of memtables that are not flushed.",
        "rocksdbTableReadersMemoryUsageTotal": "Bytes of indexes and filters in memory.",
    }),
    **_all("tabletserver_table_bucket_", "gauge", _BUCKET, {
        "log_numSegments": "Segments of a bucket's log.",
        "log_startOffset": "First offset of a bucket's local log.",
        "log_endOffset": "Offset after the last committed record.",
        "logicalStorage_logSize": "Bytes of a bucket's log.",
        "logicalStorage_kvSize": "Bytes of a bucket's rows.",
        "physicalStorage_localLogSize": "Bytes of a bucket's log on the local disk.",
        "remoteLog_numSegments": "Segments in remote storage.",
        "remoteLog_startOffset": "First offset of the remote log.",
        "remoteLog_endOffset": "Offset after the remote log.",
        "remoteLog_size": "Bytes in remote storage.",
        "lakeTiering_pendingRecords": "Records of a bucket that its lake does not have yet.",
        "lakeTiering_timestampLag": "Milliseconds between the last record of a bucket and the last that its lake has.",
    }),
    # -- requests and connections -----------------------------------------------------------------------------------
    "tabletserver_request_requests_total": Metric("counter", "Requests by kind.", _REQUEST),
    "tabletserver_request_errors_total": Metric("counter", "Requests that failed unexpectedly.", _REQUEST),
    "tabletserver_request_requestBytes_total": Metric("counter", "Bytes of requests.", _REQUEST),
    "tabletserver_request_requestBytes": Metric("histogram", "Bytes of requests.", _REQUEST),
    "tabletserver_request_totalTimeMs_total": Metric("counter", "Milliseconds from request to answer.", _REQUEST),
    "tabletserver_request_totalTimeMs": Metric("histogram", "Milliseconds from request to answer.", _REQUEST),
    "tabletserver_request_requestQueueSize": Metric("gauge", "Requests that are being answered."),
    "tabletserver_requestMemorySize": Metric("gauge", "Bytes of requests that are being received or answered."),
    "tabletserver_answerMemorySize": Metric("gauge", "Bytes of answers that clients have not taken yet."),
    "tabletserver_openConnections": Metric("gauge", "Connections."),
    "tabletserver_maxConnections": Metric("gauge", "Connections that there may be."),
    "tabletserver_unauthenticatedConnections": Metric("gauge", "Connections that have not authenticated."),
    "tabletserver_refusedConnections_total": Metric("counter", "Connections refused because all were taken."),
    "tabletserver_user_connections": Metric("gauge", "Connections of a user.", _OWNER),
    "tabletserver_user_requestMemorySize": Metric("gauge", "Bytes of large requests of a user.", _OWNER),
    "tabletserver_user_cursors": Metric("gauge", "Open scans of primary-key tables of a user.", _OWNER),
    "tabletserver_user_cpuTimeMs": Metric("gauge", "Processor time since a user connected.", _OWNER),
    "tabletserver_user_throttleTimeMs": Metric("gauge", "Time for which a user was throttled by quotas.", _OWNER),
    "tabletserver_closedConnections_total": Metric(
        "counter", "Connections closed because they were slow, idle, or did not authenticate.", ("reason",)
    ),
    "tabletserver_failedConnections_total": Metric("counter", "Connections that an error of the server ended."),
    "tabletserver_failedLogins_total": Metric("counter", "Wrong passwords."),
    # -- the process ------------------------------------------------------------------------------------------------
    "tabletserver_eventLoop_longestDelayMs": Metric("gauge", "Longest delay of the event loop in the last minute."),
    "tabletserver_eventLoop_longestBusyMs": Metric("gauge", "Longest time for which requests kept the loop busy."),
    "tabletserver_eventLoop_stalls": Metric("gauge", "How often requests kept the loop busy for more than 50 ms."),
    "tabletserver_eventLoop_errors_total": Metric("counter", "Errors that escaped to the event loop; report them."),
    "loopErrors_total": Metric("counter", "Errors of background loops; report them."),
    "process_cpu_seconds_total": Metric("counter", "Processor time of the server."),
    "process_resident_memory_bytes": Metric("gauge", "Memory of the server."),
    "process_open_fds": Metric("gauge", "Open files and sockets."),
    "process_max_fds": Metric("gauge", "How many files and sockets may be open."),
    "process_threads": Metric("gauge", "Threads."),
    "process_start_time_seconds": Metric("gauge", "When the server was started, in seconds since 1970."),
}  # fmt: skip


def full_name(name: str) -> str:
    """The name on the page. Those of the process are the same for all programs that Prometheus reads."""
    return name if name.startswith("process_") else PREFIX + name
