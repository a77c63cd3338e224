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
    "coordinator_lakeTiering_table_tierLag": Metric("gauge", "Milliseconds since the table was last tiered.", _TABLE),
    "coordinator_lakeTiering_table_tieredTimestamp": Metric(
        "gauge", "When the table was last tiered, in milliseconds since 1970.", _TABLE
    ),
    "coordinator_lakeTiering_table_tierDuration": Metric("gauge", "Milliseconds that its last tiering took.", _TABLE),
    "coordinator_lakeTiering_table_pendingTime": Metric(
        "gauge", "Milliseconds that the table has been waiting to be tiered; 0 when it is not waiting.", _TABLE
    ),
    "coordinator_lakeTiering_table_fileSize": Metric(
        "gauge", "Bytes of the table in its lake; -1 until a worker reports it.", _TABLE
    ),
    "coordinator_lakeTiering_table_recordCount": Metric(
        "gauge", "Records of the table in its lake; -1 until a worker reports it.", _TABLE
    ),
    "coordinator_lakeTiering_table_freshness": Metric("gauge", "Milliseconds that its lake may be behind.", _TABLE),
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
    "tabletserver_kvFlush_total": Metric("counter", "How often rows were moved from memory to RocksDB."),
    "tabletserver_kvFlushLatencyMs": Metric("histogram", "Milliseconds that moving rows to RocksDB took."),
    "tabletserver_rocksdbMemoryUsageTotal": Metric("gauge", "Bytes of memory that RocksDB takes."),
    "tabletserver_table_messagesIn_total": Metric("counter", "Records written to a table.", _TABLE),
    "tabletserver_table_bytesIn_total": Metric("counter", "Bytes of records written to a table.", _TABLE),
    "tabletserver_table_bytesOut_total": Metric("counter", "Bytes of records read from a table by fetches.", _TABLE),
    "tabletserver_table_totalProduceLogRequests_total": Metric("counter", "Requests to append to a table.", _TABLE),
    "tabletserver_table_failedProduceLogRequests_total": Metric(
        "counter", "Requests to append to a table in which a bucket was refused.", _TABLE
    ),
    "tabletserver_table_totalFetchLogRequests_total": Metric("counter", "Requests to read the log of a table.", _TABLE),
    "tabletserver_table_failedFetchLogRequests_total": Metric(
        "counter", "Requests to read the log of a table in which a bucket was refused.", _TABLE
    ),
    "tabletserver_table_totalPutKvRequests_total": Metric(
        "counter", "Requests to write to a primary-key table.", _TABLE
    ),
    "tabletserver_table_failedPutKvRequests_total": Metric(
        "counter", "Requests to write to a primary-key table in which a bucket was refused.", _TABLE
    ),
    "tabletserver_table_totalLookupRequests_total": Metric("counter", "Requests to look up keys.", _TABLE),
    "tabletserver_table_failedLookupRequests_total": Metric(
        "counter", "Requests to look up keys in which a bucket was refused.", _TABLE
    ),
    "tabletserver_table_totalPrefixLookupRequests_total": Metric(
        "counter", "Requests to look up key prefixes.", _TABLE
    ),
    "tabletserver_table_failedPrefixLookupRequests_total": Metric(
        "counter", "Requests to look up key prefixes in which a bucket was refused.", _TABLE
    ),
    "tabletserver_table_totalLimitScanRequests_total": Metric("counter", "Requests for a scan with a limit.", _TABLE),
    "tabletserver_table_failedLimitScanRequests_total": Metric(
        "counter", "Requests for a scan with a limit that were refused.", _TABLE
    ),
    "tabletserver_table_remoteLogCopyBytes_total": Metric("counter", "Bytes copied to the remote log.", _TABLE),
    "tabletserver_table_remoteLogCopyRequests_total": Metric(
        "counter", "Copies of segments to the remote log.", _TABLE
    ),
    "tabletserver_table_remoteLogCopyError_total": Metric(
        "counter", "Copies of segments to the remote log that failed.", _TABLE
    ),
    "tabletserver_table_remoteLogDeleteRequests_total": Metric(
        "counter", "Deletions of expired remote segments, by round.", _TABLE
    ),
    "tabletserver_table_remoteLogDeleteError_total": Metric(
        "counter", "Deletions of expired remote segments that failed.", _TABLE
    ),
    "tabletserver_table_kvBackpressureRejectionsTotal": Metric(
        "counter", "Writes refused because the disk could not keep up.", _TABLE
    ),
    "tabletserver_table_rocksdbNumFilesAtLevel0Max": Metric("gauge", "Files at level 0, of the worst bucket.", _TABLE),
    "tabletserver_table_rocksdbFlushPendingMax": Metric("gauge", "1 if a flush is pending in a bucket.", _TABLE),
    "tabletserver_table_rocksdbCompactionPendingMax": Metric(
        "gauge", "1 if a compaction is pending in a bucket.", _TABLE
    ),
    "tabletserver_table_rocksdbMemTableMemoryUsageTotal": Metric("gauge", "Bytes of all memtables.", _TABLE),
    "tabletserver_table_rocksdbMemTableUnFlushedMemoryUsageTotal": Metric(
        "gauge", "Bytes of memtables that are not flushed.", _TABLE
    ),
    "tabletserver_table_rocksdbTableReadersMemoryUsageTotal": Metric(
        "gauge", "Bytes of indexes and filters in memory.", _TABLE
    ),
    "tabletserver_table_bucket_log_numSegments": Metric("gauge", "Segments of a bucket's log.", _BUCKET),
    "tabletserver_table_bucket_log_startOffset": Metric("gauge", "First offset of a bucket's local log.", _BUCKET),
    "tabletserver_table_bucket_log_endOffset": Metric("gauge", "Offset after the last committed record.", _BUCKET),
    "tabletserver_table_bucket_logicalStorage_logSize": Metric("gauge", "Bytes of a bucket's log.", _BUCKET),
    "tabletserver_table_bucket_logicalStorage_kvSize": Metric("gauge", "Bytes of a bucket's rows.", _BUCKET),
    "tabletserver_table_bucket_physicalStorage_localLogSize": Metric(
        "gauge", "Bytes of a bucket's log on the local disk.", _BUCKET
    ),
    "tabletserver_table_bucket_remoteLog_numSegments": Metric("gauge", "Segments in remote storage.", _BUCKET),
    "tabletserver_table_bucket_remoteLog_startOffset": Metric("gauge", "First offset of the remote log.", _BUCKET),
    "tabletserver_table_bucket_remoteLog_endOffset": Metric("gauge", "Offset after the remote log.", _BUCKET),
    "tabletserver_table_bucket_remoteLog_size": Metric("gauge", "Bytes in remote storage.", _BUCKET),
    "tabletserver_table_bucket_lakeTiering_pendingRecords": Metric(
        "gauge", "Records of a bucket that its lake does not have yet.", _BUCKET
    ),
    "tabletserver_table_bucket_lakeTiering_timestampLag": Metric(
        "gauge", "Milliseconds between the last record of a bucket and the last that its lake has.", _BUCKET
    ),
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
}


def full_name(name: str) -> str:
    """The name on the page. Those of the process are the same for all programs that Prometheus reads."""
    return name if name.startswith("process_") else PREFIX + name
