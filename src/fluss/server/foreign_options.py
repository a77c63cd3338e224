# SPDX-License-Identifier: Apache-2.0
"""Options apart from those of the server itself, under the names of Apache Fluss.

Those of the object store that `remote.data.dir` may lie in; and those of a cluster that this server does not have. A
configuration file of a cluster starts this server: what has nothing to act on in one process is passed over with a line
in the log, what would promise something that does not happen is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluss.options import Boolean, OptionType, Text

_S3_PREFIXES = ("s3.", "s3a.", "fs.s3a.")


def _s3(name: str, kind: OptionType[Any], doc: str, *others: str, secret: bool = False) -> tuple[Any, ...]:
    spellings = [f"{prefix}{one}" for one in (name, *others) for prefix in _S3_PREFIXES]
    return spellings[0], kind, doc, tuple(spellings[1:]), secret


def _fs(name: str, doc: str, *, secret: bool = False) -> tuple[Any, ...]:
    return f"fs.{name}", Text(), doc, (name,), secret


STORE_ROWS: tuple[tuple[Any, ...], ...] = (
    _s3("endpoint", Text(), "host and port of the S3 service, such as http://127.0.0.1:9000; unset means AWS"),
    _s3("region", Text(), "region of the bucket", "endpoint.region"),
    _s3("access-key", Text(), "access key of the server; unset means the environment, a profile or the instance's role",
        "access.key", secret=True),
    _s3("secret-key", Text(), "secret key that belongs to it", "secret.key", secret=True),
    _s3("session-token", Text(), "token of temporary keys", "session.token", secret=True),
    _s3("path-style-access", Boolean(), "address buckets by path; the default with an endpoint", "path.style.access"),
    _s3("connection.ssl.enabled", Boolean(), "use https with an endpoint that names no scheme; the default"),
    _s3("assumed.role.arn", Text(), "role whose temporary, read-only credentials are given to clients that read remote "
        "segments; unset means that clients use credentials of their own"),
    _s3("assumed.role.sts.endpoint", Text(), "service that issues those credentials; unset means AWS in s3.region"),
    _fs("oss.endpoint", "host of Alibaba Cloud OSS"),
    _fs("oss.region", "region of the bucket"),
    _fs("oss.accessKeyId", "access key of the server", secret=True),
    _fs("oss.accessKeySecret", "secret key that belongs to it", secret=True),
    _fs("oss.securityToken", "token of temporary keys", secret=True),
    _fs("gs.project.id", "project of Google Cloud Storage; the key file is named by GOOGLE_APPLICATION_CREDENTIALS"),
    _fs("gs.storage.root.url", "host and port of another service with the interface of Google Cloud Storage"),
)  # fmt: skip
"""Key, type, meaning, other spellings and whether it is a secret, of each option."""

_GS_KEYS = "name the key file in the environment variable GOOGLE_APPLICATION_CREDENTIALS of the server"
_OSS_TOKENS = "temporary credentials of OSS are not issued here; clients read with keys of their own (client.fs.oss.*)"

STORE_REFUSED: dict[str, str] = {
    **dict.fromkeys(
        (f"{prefix}aws.credentials.provider" for prefix in _S3_PREFIXES),
        "without s3.access-key the environment, a profile and the instance's role are tried in turn",
    ),
    **dict.fromkeys(("fs.oss.roleArn", "oss.roleArn", "fs.oss.sts.endpoint", "oss.sts.endpoint"), _OSS_TOKENS),
    **dict.fromkeys(
        (
            "fs.gs.auth.service.account.json.keyfile",
            "fs.gs.auth.service.account.keyfile",
            "fs.gs.auth.type",
            "gs.auth.service.account.json.keyfile",
            "gs.auth.service.account.keyfile",
            "gs.auth.type",
        ),
        _GS_KEYS,
    ),
}
"""Options of the stores that cannot be honoured, and what to do instead."""


def store_options(explicit: Mapping[str, str]) -> dict[str, str]:
    """Pick the options of object stores out of those of the server, without ``fs.`` in front."""
    return {
        key.removeprefix("fs."): explicit[key].strip().lower() if isinstance(kind, Boolean) else explicit[key]
        for key, kind, *_ in STORE_ROWS
        if key in explicit
    }


def _keys(prefix: str, reason: str, names: str) -> dict[str, str]:
    return {f"{prefix}{name}": reason for name in names.split()}


PASSED_OVER: dict[str, str] = {
    **_keys(
        "zookeeper.",
        "this server needs no ZooKeeper",
        "address path.root client.max-inflight-requests client.session-timeout client.connection-timeout "
        "client.retry-wait client.max-retry-attempts client.tolerate-suspended-connections client.ensemble-tracker "
        "client.config-path client.max-buffer-size",
    ),
    **_keys(
        "coordinator.",
        "the coordinator is part of this process",
        "io-pool.size offline-leader.retry-delay lifecycle-throttler.inflight-timeout "
        "lifecycle-throttler.timeout-check-interval control-request.retry-backoff control-request.timeout",
    ),
    **_keys(
        "tablet-server.",
        "buckets are not moved to other servers",
        "controlled-shutdown.max-retries controlled-shutdown.retry-interval advertised-resource.cpu-cores "
        "advertised-resource.memory-size",
    ),
    **_keys(
        "log.replica.",
        "there are no followers",
        "high-watermark.checkpoint-interval max-lag-time write-operation-purge-number fetch-operation-purge-number "
        "fetcher-number fetch.backoff-interval fetch.max-bytes fetch.max-bytes-for-bucket fetch.wait-max-time "
        "fetch.min-bytes",
    ),
    **_keys(
        "kv.rocksdb.",
        "the state on disk is a cache of the log and tunes itself",
        "thread.num files.open log.max-file-size log.file-num log.dir log.level write-batch-size "
        "shared-rate-limiter.bytes-per-sec compaction.style compaction.level.use-dynamic-size compression.per.level "
        "compaction.level.target-file-size-base compaction.level.max-size-level-base writebuffer.size "
        "writebuffer.count writebuffer.number-to-merge block.blocksize block.metadata-blocksize block.cache-size "
        "use-bloom-filter bloom-filter.bits-per-key bloom-filter.block-based-mode block.cache-index-and-filter-blocks "
        "block.cache-index-and-filter-blocks-with-high-priority block.pin-l0-filter-and-index-blocks-in-cache "
        "block.pin-top-level-index-and-filter shared-block-cache.size shared-write-buffer.size",
    ),
    **_keys(
        "kv.",
        "the key-value state has no threads, memory quotas or recovery steps of its own to tune",
        "leader-replica.memory-reserved snapshot.scheduler-thread-num snapshot.transfer-thread-num flush.thread-num "
        "recover.log-record-batch.max-size recover.remote-log.prefetch-num recover.remote-log.download-threads "
        "backpressure.l0-slowdown-trigger",
    ),
    **_keys("kv.", "expired leases and cursors are removed by the calls that come next",
            "snapshot.lease.expiration-check-interval scanner.expiration-interval"),
    **_keys(
        "netty.",
        "one event loop serves all connections",
        "server.num-network-threads server.num-worker-threads client.num-network-threads "
        "client.allocator.heap-buffer-first",
    ),
    **_keys(
        "server.",
        "memory and background work are bounded by server.buffer.memory-size and server.io-pool.size",
        "background.threads buffer.page-size buffer.per-request-memory-size buffer.wait-timeout",
    ),
    **_keys(
        "server.",
        "nothing is kept in temporary files",
        "io.tmpdir historical-partition.lookup-cache.max-disk-ratio "
        "historical-partition.lookuper-cache.expire-after-access",
    ),
    **_keys(
        "remote.",
        "closed segments are copied in order, by the threads of server.io-pool.size",
        "fs.write-buffer-size log.index-file-cache-size log-manager.thread-pool-size log.data-transfer-thread-num",
    ),
    **_keys("log.", "segments grow as they are written", "file-preallocate"),
    **_keys("log.", "log.commit.sync decides when writes reach the disk", "flush.interval-messages"),
    **_keys(
        "plugin.classloader.parent-first-patterns.", "there are no plugins", "default additional"
    ),
    **_keys("", "changes of access control lists take effect immediately", "acl.notification.expiration-time"),
    **_keys("kafka.", "the Kafka protocol is not served", "listener.names database connection.max-idle-time"),
    **_keys("lake.tiering.", "tiering runs in its own process, `fluss tier`", "io.tmp.dirs"),
    **_keys("security.ssl.truststore.", "PEM files of authorities have no password", "password"),
    **_keys("remote.data.dirs.", "there is one remote folder", "strategy weights"),
}  # fmt: skip
"""Options with nothing to act on in a single process, and why."""

PASSED_OVER_DYNAMIC = frozenset(
    {
        "kv.leader-replica.memory-reserved",
        "kv.rocksdb.shared-rate-limiter.bytes-per-sec",
        "server.historical-partition.lookup-cache.max-disk-ratio",
        "server.historical-partition.lookuper-cache.expire-after-access",
    }
)
"""Those of them that a cluster takes while it runs: a script that sets them works here too."""

_REPORTER = "metrics are served as a Prometheus page only; set metrics.reporters to prometheus"

REFUSED: dict[str, str] = {
    **STORE_REFUSED,
    "data.dirs": "one data folder is supported, use data.dir",
    "remote.data.dirs": "one remote folder is supported, use remote.data.dir",
    "kafka.enabled": "the Kafka protocol is not served",
    "lake.tiering.auto-expire-snapshot": "set the property table.datalake.auto-expire-snapshot of each table",
    **_keys("", "use bind.listeners", "coordinator.host coordinator.port tablet-server.host tablet-server.port"),
    **_keys(
        "metrics.reporter.",
        _REPORTER,
        "prometheus-push.host-url prometheus-push.job-name prometheus-push.random-job-name-suffix "
        "prometheus-push.delete-on-shutdown prometheus-push.grouping-key prometheus-push.push-interval "
        "prometheus-push.username prometheus-push.password jmx.port influxdb.version influxdb.host-url "
        "influxdb.bucket influxdb.org influxdb.token influxdb.push-interval",
    ),
}
"""Options that would promise something that does not happen here, and what to do instead."""
