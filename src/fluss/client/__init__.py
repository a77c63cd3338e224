# SPDX-License-Identifier: Apache-2.0
"""The client. Its core is asynchronous; `fluss.aio` exposes it as it is, `fluss` runs it on a background loop.

Modules
-------
`cluster.py`    `Cluster`: nodes, connections, metadata cache, the one retry policy. Lives on one loop (`cluster.loop`).
`retry.py`      the retry policy; every call has one `fluss.net.deadline.Deadline`, which all retries below it share.
`promise.py`    `Promise` (resolved on the cluster's loop, awaited on any loop) and `Inbox` (into the cluster's loop
                from any thread, many items per wake-up). What users touch from other threads uses these.
`runner.py`     where an operation runs: directly, or on a background loop.
`admin/`        `FlussAdmin`, the same class for both faces.
`table.py`      what `FlussTable` is on both faces, and the builders `TableAppend` and `TableUpsert`.
`lookup.py`     `Lookuper`, `PrefixLookuper` and their builders, the same classes for both faces. `lookup_queue.py`
                sends keys, `lookup_many.py` many of them column by column.
`write/`        `AppendWriter`, `UpsertWriter`, `WriteResultHandle`, and the `Sender` that all writers of a connection
                share. `append`, `upsert`, `delete`, `write_*` are plain calls, safe from any thread; `handle.wait()`
                can be awaited on any loop; `flush()` runs on the cluster's loop. Writers call
                `cluster.attach_writer(self)` and offer `drain()` and `shut()`.
`scan/`         `TableScan`, `LogScanner`, `BatchScanner`: loop-bound, waiting calls are coroutines;
                `subscribe*` and `unsubscribe*` are plain calls made on the loop, and `resolved()` waits until start
                offsets that had to be asked for (`LATEST_OFFSET`) are known. `ScanRecords`, `ScanRecord`, `RecordBatch`
                are plain data. Scanners call `cluster.attach(self)` and offer `shut()`.
`core.py`       `FlussConnection` and `FlussTable` of `fluss.aio`.
`faces.py`      `FlussConnection` and `FlussTable` of `fluss`. Its writers and scanners, `blocking_*.py`, are generated
                from the loop-bound classes by scripts/generate_blocking.py; `blocking_base.py` is what they inherit.
`blocking_client.py`  a connection for blocking code inside this package: lake and Spark.

docs/architecture.md has the glossary and the sequences of append, lookup and fetch.
"""
