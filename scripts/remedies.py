# SPDX-License-Identifier: Apache-2.0
"""What causes each error, and what to do about it: drawn into docs/troubleshooting.md by `generate_docs.py`.

Every error class has a row; `tests/docs` checks it. `RETRIED` stands for errors that the client repeats by itself.
"""

from __future__ import annotations

RETRIED = "The client retries until the deadline of the call. If it still reaches you, "

REMEDIES: dict[str, tuple[str, str]] = {
    # -- raised on this side --------------------------------------------------------------------------------------
    "FormatError": (
        "Bytes or a JSON document that this version cannot read: a damaged file, or a peer that is newer.",
        "Read the field and position in the message. Upgrade the older side; restore a damaged file from a backup.",
    ),
    "ConfigError": (
        "A misspelt option, a value that the option does not take, or an address or folder that cannot be used.",
        "The message names the nearest known option. [Configuration](configuration.md) lists all.",
    ),
    "InvalidRowError": (
        "A value that does not fit its column: wrong type, null in a `not null` column, a number out of range.",
        "`error.row` is the position of the row, `error.written` says how many were written before it. Fix the row, "
        "and write it again with those after it.",
    ),
    "InvalidArgumentError": (
        "A call that makes no sense for this table, such as `append` on a primary-key table, or an unknown column.",
        "Change the call as the message says.",
    ),
    "ConnectionClosedError": (
        "A table, writer or scanner is used after its connection was closed.",
        "Keep one connection open for the life of the program.",
    ),
    "DeadlineExceededError": (
        "The server did not answer within `timeout=`, or within twice `request-timeout`.",
        "Check the load of the server with `fluss status`. Give a longer `timeout=`. A write may still succeed: flush "
        "again.",
    ),
    "GroupRebalancedError": (
        "The process was stopped, or the server was out of reach, for longer than the `session_timeout` of its group.",
        "Go on with the next change: what was not committed is handled by another member. Make handlers that may see a "
        "change twice harmless.",
    ),
    "MissingDependencyError": ("An extra is not installed.", "Run the `pip install` in the message."),
    # -- sent by servers ------------------------------------------------------------------------------------------
    "UNKNOWN_SERVER_ERROR": (
        "A fault in the server.",
        "Look for the error in the server's log and report it with the text found there.",
    ),
    "NETWORK_EXCEPTION": (
        "Nothing listens at the address, a firewall is in between, or the server stopped.",
        "Check with `fluss doctor -b HOST:PORT`. Behind NAT or in containers, see "
        "[addresses](#the-client-reaches-the-server-but-not-its-tables).",
    ),
    "UNSUPPORTED_VERSION": (
        "The peer is older than the call you use.",
        "Upgrade the server, or use the call that [Compatibility](compatibility.md) lists for it.",
    ),
    "CORRUPT_MESSAGE": (
        "A batch was damaged on its way, or written by a client with a bug.",
        RETRIED + "check memory and network of the client machine.",
    ),
    "DATABASE_NOT_EXIST": ("A misspelt name, or the wrong server.", "`fluss db ls` shows what is there."),
    "DATABASE_NOT_EMPTY": ("The database has tables.", "Drop them first, or pass `cascade=True`."),
    "DATABASE_ALREADY_EXIST": ("It was created before.", "Pass `ignore_if_exists=True`."),
    "TABLE_NOT_EXIST": (
        "A misspelt name, another database, or a table you have no right to see.",
        "`fluss tables` shows what is there. Name its database too if it is not the default one.",
    ),
    "TABLE_ALREADY_EXIST": ("It was created before.", "Open it with `db.table`, or pass `exist_ok=True`."),
    "SCHEMA_NOT_EXIST": (
        "The table was changed or created again while it was used.",
        RETRIED + "open the table again.",
    ),
    "LOG_STORAGE_EXCEPTION": (
        "A disk error, or missing or damaged files in the data folder.",
        RETRIED + "read the server's log: the bucket repairs itself when the cause is gone.",
    ),
    "KV_STORAGE_EXCEPTION": (
        "A disk error under the state of a primary-key table.",
        RETRIED + "read the server's log. The state is rebuilt from snapshot and log.",
    ),
    "NOT_LEADER_OR_FOLLOWER": (
        "The bucket moved to another server of the cluster.",
        RETRIED + "the cluster is still electing: check its health.",
    ),
    "RECORD_TOO_LARGE_EXCEPTION": (
        "A row or batch exceeds what the server accepts.",
        "Write smaller values, or lower `writer.batch-size`.",
    ),
    "CORRUPT_RECORD_EXCEPTION": (
        "A stored batch cannot be read.",
        "The message has the offsets. Start the scan behind them, and restore the bucket from a backup.",
    ),
    "INVALID_TABLE_EXCEPTION": (
        "The definition contradicts itself, such as a partition column that is not in the primary key.",
        "Change the definition as the message says.",
    ),
    "INVALID_DATABASE_EXCEPTION": ("The name or a property is not valid.", "Change it as the message says."),
    "INVALID_REPLICATION_FACTOR": (
        "More replicas are asked for than there are servers. The embedded server has one.",
        "Set `table.replication.factor` to at most the number of servers.",
    ),
    "INVALID_REQUIRED_ACKS": ("`writer.acks` has another value.", "Use `all`, `1` or `0`."),
    "LOG_OFFSET_OUT_OF_RANGE_EXCEPTION": (
        "The stored position is older than the retention of the log, or the table was created again.",
        "Start at `earliest` and treat the gap as lost. Keep logs longer with `table.log.ttl`; see "
        "[Storing positions](positions.md#when-a-position-is-gone).",
    ),
    "NON_PRIMARY_KEY_TABLE_EXCEPTION": (
        "A lookup, update or delete on a log table.",
        "Read it with `to_arrow` or `follow`, or create it with a primary key.",
    ),
    "UNKNOWN_TABLE_OR_BUCKET_EXCEPTION": (
        "The bucket is being created, moved or dropped.",
        RETRIED + "open the table again.",
    ),
    "INVALID_UPDATE_VERSION_EXCEPTION": ("Two servers of a cluster disagree for a moment.", "Wait; check its health."),
    "INVALID_COORDINATOR_EXCEPTION": ("The coordinator of a cluster changed.", "Try again."),
    "FENCED_LEADER_EPOCH_EXCEPTION": ("The leader of a bucket changed.", "Try again."),
    "REQUEST_TIME_OUT": (
        "The server could not finish in time: overload, or replicas that do not follow.",
        RETRIED + "reduce the load or raise `request-timeout`.",
    ),
    "STORAGE_EXCEPTION": (
        "The files of a bucket are missing or cannot be opened.",
        RETRIED + "`fluss status` names the bucket, the server's log the cause.",
    ),
    "OPERATION_NOT_ATTEMPTED_EXCEPTION": ("An earlier operation of the same request failed.", "Fix that one."),
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND_EXCEPTION": (
        "Replicas of a cluster fell behind during the write.",
        RETRIED + "check the health of the cluster. The rows may be there.",
    ),
    "NOT_ENOUGH_REPLICAS_EXCEPTION": (
        "Replicas of a cluster are down.",
        RETRIED + "bring the servers back.",
    ),
    "SECURITY_TOKEN_EXCEPTION": (
        "The cluster's remote storage gives no credentials.",
        "Check the file system settings of the cluster.",
    ),
    "OUT_OF_ORDER_SEQUENCE_EXCEPTION": (
        "A batch before this one was lost for good.",
        "The handles or `flush` say which rows failed. Write them again with a new writer.",
    ),
    "DUPLICATE_SEQUENCE_EXCEPTION": ("A batch was sent twice.", "Nothing to do: it is stored once."),
    "UNKNOWN_WRITER_ID_EXCEPTION": (
        "The writer was idle for longer than `server.writer-id.expiration-time`, or its log was deleted.",
        "The client takes a new id by itself. Other clients: open a new writer.",
    ),
    "INVALID_COLUMN_PROJECTION": ("A column of `project` is not in the table.", "Correct the names."),
    "INVALID_TARGET_COLUMN": (
        "A partial update leaves out a key column, or a column that is not nullable.",
        "Include all key columns; make the others nullable.",
    ),
    "PARTITION_NOT_EXISTS": (
        "The partition was never created, dropped, or has expired.",
        "Write a row to it, call `add_partition`, or check the retention of the table.",
    ),
    "TABLE_NOT_PARTITIONED_EXCEPTION": ("A partition call on a table without partitions.", "Leave the partition out."),
    "INVALID_TIMESTAMP_EXCEPTION": ("The time lies in the future.", "Check the clock and the time zone of the value."),
    "INVALID_CONFIG_EXCEPTION": (
        "A table property is misspelt or has a wrong value.",
        "[Table properties](table-properties.md) lists all.",
    ),
    "LAKE_STORAGE_NOT_CONFIGURED_EXCEPTION": (
        "The table asks for a lake that the server does not have.",
        "Start the server with `datalake.format` and the warehouse: [The lake](lake.md).",
    ),
    "KV_SNAPSHOT_NOT_EXIST": ("No snapshot was taken yet, or it is gone.", "Read the log instead; try later."),
    "PARTITION_ALREADY_EXISTS": ("It was created before.", "Pass `ignore_if_exists=True`."),
    "PARTITION_SPEC_INVALID_EXCEPTION": (
        "The spec lacks a partition column or has one too many.",
        "Give a value for each of `table.info.partition_keys`.",
    ),
    "LEADER_NOT_AVAILABLE_EXCEPTION": (
        "The server of a bucket is down or starting.",
        RETRIED + "check the health of the cluster.",
    ),
    "PARTITION_MAX_NUM_EXCEPTION": (
        "The table has as many partitions as allowed.",
        "Drop old ones, let them expire (`table.auto-partition.num-retention`), or raise `max.partition.num`.",
    ),
    "AUTHENTICATE_EXCEPTION": (
        "No or wrong credentials.",
        "Set user and password; `fluss doctor` tries them. After several failures answers are delayed.",
    ),
    "SECURITY_DISABLED_EXCEPTION": (
        "ACLs are used on a server without an authorizer.",
        "Set `authorizer.enabled: true`: [Users and rights](access.md).",
    ),
    "AUTHORIZATION_EXCEPTION": (
        "The user lacks a right.",
        "Grant it with `fluss acl grant`; the table of rights is in [Users and rights](access.md).",
    ),
    "BUCKET_MAX_NUM_EXCEPTION": (
        "More buckets than allowed.",
        "Create the table with fewer, or raise `max.bucket.num`.",
    ),
    "FENCED_TIERING_EPOCH_EXCEPTION": (
        "Another tiering service took the table over.",
        "Run one `fluss tier` for each table; it continues by itself.",
    ),
    "RETRIABLE_AUTHENTICATE_EXCEPTION": ("The server was not ready to authenticate.", "Connect again."),
    "INVALID_SERVER_RACK_INFO_EXCEPTION": (
        "Some servers of a cluster name a rack and others do not.",
        "Configure all or none.",
    ),
    "LAKE_SNAPSHOT_NOT_EXIST": (
        "Nothing of the table is in the lake yet.",
        "Run `fluss tier`, or read without the lake.",
    ),
    "LAKE_TABLE_ALREADY_EXIST": (
        "The lake has a table of this name that Fluss did not create.",
        "Choose another name, or drop the lake table.",
    ),
    "INELIGIBLE_REPLICA_EXCEPTION": ("Two servers of a cluster disagree for a moment.", "Wait; check its health."),
    "INVALID_ALTER_TABLE_EXCEPTION": (
        "The change is not possible, such as another type of a column or a new column that is not nullable.",
        "Add a nullable column, or copy the table: `fluss copy`.",
    ),
    "DELETION_DISABLED_EXCEPTION": (
        "The merge engine or `table.delete.behavior` of the table refuses deletes.",
        "Do not delete, or create the table with another setting.",
    ),
    "SERVER_NOT_EXIST_EXCEPTION": ("A wrong server id.", "List the servers of the cluster first."),
    "SEVER_TAG_ALREADY_EXIST_EXCEPTION": ("The server of a cluster is tagged already.", "Remove the tag first."),
    "SEVER_TAG_NOT_EXIST_EXCEPTION": ("The tag is not set.", "Nothing to do."),
    "REBALANCE_FAILURE_EXCEPTION": ("The cluster could not move buckets.", "Read the log of its coordinator."),
    "NO_REBALANCE_IN_PROGRESS_EXCEPTION": ("There is nothing to cancel or show.", "Nothing to do."),
    "INVALID_PRODUCER_ID_EXCEPTION": (
        "The id is empty, too long or another user's.",
        "Choose another id.",
    ),
    "CONFIG_EXCEPTION": ("A cluster setting is refused.", "Change it as the message says."),
    "NOT_COORDINATOR_LEADER_EXCEPTION": ("The coordinator of a cluster changed.", "Try again."),
    "SCANNER_EXPIRED": (
        "The reader paused for longer than a scan session lives.",
        "Start the scan again, and process rows apart from reading them.",
    ),
    "UNKNOWN_SCANNER_ID": ("The server was restarted during the scan.", "Start the scan again."),
    "INVALID_SCAN_REQUEST": ("A scan was continued out of order.", "Use one scanner in one thread."),
    "TOO_MANY_SCANNERS": ("Many scans of primary-key tables are open.", "Close scanners you are done with."),
    "DISK_WRITE_LOCKED": (
        "The disk of the server is nearly full.",
        "The client logs a warning and retries for `writer.delivery-timeout-ms`, 2 minutes by default; "
        '`fluss.connect(…, options={"writer.delivery-timeout-ms": "10s"})` gives up sooner. '
        "Free space: shorten `table.log.ttl`, drop partitions, or add disk.",
    ),
    "INSUFFICIENT_KV_LEADER_REPLICA_CAPACITY": (
        "The cluster limits primary-key buckets.",
        "Use fewer buckets, or add servers.",
    ),
    "STORAGE_BACKPRESSURE_EXCEPTION": (
        "Upserts come faster than the disk takes them.",
        RETRIED + "write more slowly.",
    ),
    "HISTORICAL_PARTITION_THROTTLED": (
        "Many lookups read partitions that are in the lake only.",
        RETRIED + "look up fewer keys at a time.",
    ),
    "INVALID_BUCKET_ROUTING": (
        "A partition was created again with another number of buckets while rows were written to it, or the client is "
        "older than Fluss 1.0 and the number of buckets of the table was changed.",
        "Write the rows again; use a newer client.",
    ),
}
"""Cause and remedy by the name of the code, or by the class of errors without one."""
