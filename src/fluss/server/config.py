# SPDX-License-Identifier: Apache-2.0
"""Server options: one table of names (those of Apache Fluss), types, defaults and meaning."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from fluss import config_providers
from fluss.errors import ConfigError, FlussError
from fluss.options import (
    DAY_MS,
    GB,
    HOUR_MS,
    KB,
    MB,
    MINUTE_MS,
    SECOND_MS,
    Boolean,
    Choice,
    Duration,
    Names,
    Number,
    Option,
    OptionTable,
    Pairs,
    Size,
    StoreType,
    Text,
    Whole,
    read_yaml,
)
from fluss.protocol.scram import SCRAM_HASHES
from fluss.server.exposure import REDACTED, is_hidden_lake_setting
from fluss.server.foreign_options import PASSED_OVER, PASSED_OVER_DYNAMIC, REFUSED, STORE_ROWS, store_options

_log = logging.getLogger("fluss.server")

T = TypeVar("T")

LISTENER_PROTOCOLS = ("PLAINTEXT", "SASL", "SSL", "SASL_SSL", "MTLS")
SASL_MECHANISMS = ("PLAIN", *SCRAM_HASHES)
DEFAULT_PORT = 9123
DEFAULT_LISTENER = "FLUSS"
DEFAULT_METRICS_PORT = 9249
"""Where Apache Fluss serves its Prometheus page if no port is named."""


class ServerOption(Option[T]):
    """One server option. A dynamic one can be changed while the server runs."""

    def refusal(self, given: str) -> FlussError:
        return ConfigError(f"server option '{self.key}': got {given}, but it takes {self.type.allowed()}.")


_o = ServerOption

_ROWS: tuple[ServerOption[Any], ...] = (
    # Where data lives.
    _o("data.dir", Text(), "fluss-data", "folder of the catalog, the logs and the key-value state"),
    _o("remote.data.dir", Text(), None, "folder or file-system URI to which closed log segments are copied"),
    # Listeners.
    _o("bind.listeners", Text(), None, "comma list NAME://host:port to listen on"),
    _o("advertised.listeners", Text(), None, "comma list NAME://host:port given to clients instead of the bound one"),
    _o("internal.listener.name", Text(), DEFAULT_LISTENER, "listener whose traffic is trusted (no ACL checks)"),
    _o("tablet-server.id", Whole(), 0, "node id of the tablet server role in metadata answers"),
    _o("tablet-server.rack", Text(), None, "rack of the tablet server role in metadata answers"),
    # Security.
    _o("security.protocol.map", Pairs(), {}, "NAME:protocol per listener: PLAINTEXT, SASL (login), SSL (TLS), "
       "SASL_SSL (both), MTLS (TLS, clients log in by certificate)"),
    _o("security.sasl.enabled.mechanisms", Names(), SASL_MECHANISMS, "SASL mechanisms offered"),
    _o("security.sasl.plain.allow-unencrypted", Boolean(), False, "accept passwords in clear text (PLAIN without TLS) "
       "on addresses other than loopback"),
    _o("security.users.file", Text(), None, "file of users with hashed passwords, which 'fluss user' writes; "
       "users.json in the data folder if it is not set"),
    _o("security.ssl.enabled.listeners", Names(), (), "listeners that use TLS beside what the protocol map says"),
    _o("security.ssl.keystore.location", Text(), None, "PEM file of the certificate with its chain, and of its key"),
    _o("security.ssl.keystore.password", Text(), None, "password of the key", secret=True),
    _o("security.ssl.keystore.type", StoreType(), "PEM", "form of the file"),
    _o("security.ssl.key.location", Text(), None, "PEM file of the key, where it lies apart from the certificate"),
    _o("security.ssl.key.password", Text(), None, "password of the key", secret=True),
    _o("security.ssl.truststore.location", Text(), None, "PEM file of the authorities that sign client certificates"),
    _o("security.ssl.truststore.type", StoreType(), "PEM", "form of the file"),
    _o("security.ssl.enabled.protocols", Names(), ("TLSv1.2", "TLSv1.3"), "versions of TLS"),
    _o("security.ssl.cipher.suites", Names(), (), "cipher suites of TLS 1.2, as OpenSSL names them"),
    _o("security.ssl.principal.mapping.rules", Text(), "DEFAULT", "how the subject of a client certificate becomes a "
       "user: RULE:pattern/replacement/[LU] or DEFAULT (the whole name), the first that fits"),
    _o("security.ssl.reload.interval", Duration(), 5 * MINUTE_MS, "time between two looks for renewed certificates"),
    _o("security.sasl.plain.jaas.config", Text(), None, 'login module line with user_NAME="PASSWORD" entries',
       secret=True),
    _o("security.sasl.plain.credentials", Pairs(), {}, "user:password pairs, an alternative to the login module line",
       secret=True, dynamic=True),
    _o("security.acl.principal.ignore-case", Boolean(), False, "compare principal names without regard to case"),
    _o("authorizer.enabled", Boolean(), False, "check access control lists"),
    _o("authorizer.type", Choice("default"), "default", "kind of authorizer"),
    _o("super.users", Text(), None, "User:a;User:b who pass every check"),
    # Catalog.
    _o("default.bucket.number", Whole(1), 1, "buckets of a table that names no number"),
    _o("default.replication.factor", Whole(1), 1, "replicas of a table that names no number"),
    _o("max.partition.num", Whole(1), 1000, "most partitions of one table"),
    _o("max.bucket.num", Whole(1), 4096, "most buckets of one table or partition"),
    _o("allow.create.log.tables", Boolean(), True, "accept new log tables"),
    _o("allow.create.kv.tables", Boolean(), True, "accept new primary-key tables"),
    _o("auto-partition.check.interval", Duration(1), 10 * MINUTE_MS, "time between two rounds of auto partitioning"),
    _o("coordinator.producer-offsets.ttl", Duration(1), DAY_MS, "life of registered producer offsets"),
    _o("coordinator.producer-offsets.cleanup-interval", Duration(1), HOUR_MS, "time between two clean-ups of them"),
    # Log storage.
    _o("log.segment.file-size", Size(1), GB, "size at which a log segment is closed and a new one begun"),
    _o("log.index.file-size", Size(12), 10 * MB, "largest size of one index file"),
    _o("log.index.interval-size", Size(), 4 * KB, "log bytes between two index entries"),
    _o("log.commit.sync", Choice("group", "none"), "group", "when written bytes reach the disk: 'group' syncs before "
       "an acknowledgement, many writes at a time; 'none' leaves it to the operating system"),
    _o("log.flush.offset.checkpoint-interval", Duration(1), MINUTE_MS, "time between two recovery points"),
    _o("log.recovery-point.interval-size", Size(1), 64 * MB, "log bytes after which a bucket's recovery point moves, "
       "which bounds the bytes to check after a crash"),
    _o("log.retention.default", Duration(), 0, "how long log tables without 'table.log.ttl' and without a lake keep "
       "their rows; 0 keeps them for ever, '7 d' is what Apache Fluss does", dynamic=True),
    _o("log.retention.check-interval", Duration(1), 5 * MINUTE_MS, "time between two looks for expired segments"),
    _o("log.retention.roll-active-segment.enabled", Boolean(), False, "expire the open segment as well", dynamic=True),
    _o("log.replica.min-in-sync-replicas-number", Whole(1, 1), 1, "replicas needed for acks=all; there is one",
       dynamic=True),
    _o("server.writer-id.expiration-time", Duration(1), 7 * DAY_MS, "idle time after which a writer is forgotten; "
       "of a bucket, the 5,000 that wrote last are remembered"),
    _o("server.writer-id.expiration-check-interval", Duration(1), 10 * MINUTE_MS,
       "time between two looks for idle writers"),
    _o("clock.jump-tolerance", Duration(), 10 * MINUTE_MS, "jumps of the machine's clock beyond this do not count "
       "until it has run on for as long, so that no rows expire by mistake; 0 takes the time as it is", dynamic=True),
    _o("server.io-pool.size", Whole(1), 4, "threads for disk work"),
    _o("server.data-disk.write-limit-ratio", Number(), 0.98, "disk usage above which writes are refused (code 70)",
       dynamic=True),
    _o("server.data-disk.write-recover-ratio", Number(), 0.95, "disk usage below which they are accepted again",
       dynamic=True),
    _o("server.data-disk.check-interval", Duration(1), 30 * SECOND_MS, "time between two checks of the disk"),
    # Remote log.
    _o("remote.log.task-interval-duration", Duration(), MINUTE_MS, "time between two copying rounds; 0 turns it off"),
    _o("remote.log.task-max-upload-segments", Whole(1), 5, "most segments copied per bucket and round"),
    # Continuous backup.
    _o("replication.url", Text(), None, "folder or file-system URI to which everything is copied continuously; "
       "'fluss restore' makes a data folder of it"),
    _o("replication.interval", Duration(1), 5 * SECOND_MS, "time between two copying rounds, which a lost machine may "
       "lose"),
    _o("replication.retention", Duration(1), 7 * DAY_MS, "how long earlier states stay in the backup"),
    _o("replication.bandwidth", Size(), 0, "most bytes per second sent to the backup; 0 sends as fast as possible"),
    # Object stores of remote.data.dir and replication.url.
    *(_o(key, kind, None, doc, aliases=aliases, secret=secret) for key, kind, doc, aliases, secret in STORE_ROWS),
    # Key-value state.
    _o("kv.memory-size", Size(1), 256 * MB, "rows of primary-key tables kept in memory before they move to disk"),
    _o("kv.cache-size", Size(), 256 * MB, "memory for blocks of RocksDB that were read, of all primary-key tables; 0 "
       "turns it off"),
    _o("kv.snapshot.interval", Duration(1), 10 * MINUTE_MS, "time between two snapshots of a bucket's state",
       dynamic=True),
    _o("kv.snapshot.num-retained", Whole(1), 2, "newest snapshots of a bucket that are kept; those that are leased are "
       "kept as well"),
    _o("kv.scanner.ttl", Duration(1), 10 * MINUTE_MS, "idle life of a key-value scan cursor"),
    _o("kv.scanner.max-per-bucket", Whole(1), 8, "open cursors per bucket"),
    _o("kv.scanner.max-per-server", Whole(1), 200, "open cursors of the server"),
    _o("kv.scanner.max-batch-size", Size(1), 10 * MB, "largest answer of one cursor call"),
    # Lake.
    _o("datalake.enabled", Boolean(), None, "turn the lake on or off; unset means on when a format is set",
       dynamic=True),
    _o("datalake.format", Choice("paimon", "iceberg", "lance", "delta"), None, "lake format", dynamic=True),
    _o("server.historical-partition.thread-pool.max-size", Whole(1), 10, "lookups of expired partitions that read the "
       "lake at the same time"),
    _o("netty.server.max-queued-historical-requests", Whole(1), 50, "lookups of expired partitions in flight, by "
       "bucket; further ones are refused, and clients repeat them later"),
    # Network limits.
    _o("netty.server.max-request-size", Size(1024), 100 * MB, "largest request frame"),
    _o("netty.server.max-queued-requests", Whole(1), 500, "requests of one connection in work before reading pauses"),
    _o("netty.connection.max-idle-time", Duration(1), 10 * MINUTE_MS, "silence after which a connection is closed"),
    _o("server.max-connections", Whole(1), 10_000, "open connections of all listeners together; never more than half "
       "of the process's limit of open files, whose other half is kept for data"),
    _o("server.authentication.timeout", Duration(1), 30 * SECOND_MS, "time for a new connection to authenticate, or "
       "to send its first request where that is not asked for"),
    _o("server.frame.timeout", Duration(1), 30 * SECOND_MS, "time after which a request that arrives with less than "
       "1 KB per second is given up and its connection closed"),
    _o("server.buffer.memory-size", Size(MB), 512 * MB, "request bytes over all connections, from the first byte to "
       "the answer; beyond it large requests wait unread"),
    _o("server.connection.max-unsent-size", Size(1024), 64 * MB, "unsent answer bytes of one connection before its "
       "reading pauses"),
    # Limits of each user, or of each address where clients do not log in.
    _o("quota.producer_byte_rate", Size(1), None, "bytes per second that one user may write; a user beyond it is not "
       "read from for a while", dynamic=True),
    _o("quota.consumer_byte_rate", Size(1), None, "bytes per second of the answers of one user", dynamic=True),
    _o("quota.max_connections", Whole(1), None, "connections of one user; without it, three quarters of "
       "server.max-connections for users who log in", dynamic=True),
    # Operations.
    _o("metrics.reporters", Names(), (), "`prometheus` serves the /metrics page, on port 9249 if none is named"),
    _o("metrics.prometheus.port", Whole(0, 65535), None, "port of the /metrics page; unset means none",
       aliases=("metrics.reporter.prometheus.port",)),
    _o("metrics.prometheus.host", Text(), "127.0.0.1", "address of the /metrics page"),
    _o("log.level", Choice("DEBUG", "INFO", "WARNING", "ERROR"), "INFO", "least severity written to standard error"),
    _o("log.format", Choice("text", "json"), "text", "form of the messages on standard error"),
)  # fmt: skip


SERVER_OPTIONS: OptionTable[ServerOption[Any]] = OptionTable("server option", _ROWS, refused=REFUSED)
"""Every server option, by key."""

_LISTENER_JAAS = re.compile(r"security\.sasl\.listener\.name\.([a-z0-9_-]+)\.plain\.jaas\.config")
_LAKE_SETTING = re.compile(r"datalake\.(paimon|iceberg|lance|delta)\..+")
_OTHERS = (("client.", "it is an option of clients"), ("table.", "it is a table property, set it for each table"))
_SECRET = re.compile(r"password|secret|jaas|credential|token|access[-_.]?key", re.IGNORECASE)


def is_secret(name: str, value: str = "") -> bool:
    """Return whether the value of this option must never be shown."""
    return _SECRET.search(name) is not None or is_hidden_lake_setting(name, value)


def is_dynamic(name: str) -> bool:
    """Return whether the option can be changed while the server runs."""
    option = SERVER_OPTIONS.find(name)
    if option is not None:
        return option.dynamic
    return name.startswith("datalake.") or name in PASSED_OVER_DYNAMIC


def _option_for(name: str) -> ServerOption[Any]:
    option = SERVER_OPTIONS.find(name)
    if option is not None:
        return option
    if _LISTENER_JAAS.fullmatch(name):
        return ServerOption(name, Text(), None, "login module line of one listener", secret=True)
    if _LAKE_SETTING.fullmatch(name):
        return ServerOption(name, Text(), None, "setting of the lake catalog", secret=is_secret(name))
    for prefix, reason in _OTHERS:
        if name.startswith(prefix):
            raise ConfigError(f"server option '{name}' cannot be used: {reason}. Remove it.")
    raise SERVER_OPTIONS.unknown(name)


@dataclass(frozen=True)
class Endpoint:
    """One listener address."""

    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{self.host}:{self.port}"


_ENDPOINT = re.compile(r"\s*([A-Za-z0-9_-]+)://(\[[0-9A-Fa-f:.]+\]|[^:/\[\]\s]*):(\d{1,5})\s*")


def parse_endpoints(option: str, text: str) -> tuple[Endpoint, ...]:
    """Read a comma list of ``NAME://host:port``; names are distinct, and so are the ports that are not 0."""
    endpoints: list[Endpoint] = []
    for part in text.split(","):
        match = _ENDPOINT.fullmatch(part)
        if match is None or int(match.group(3)) > 65535:
            raise ConfigError(f"server option '{option}' has the entry {part!r}, expected NAME://host:port.")
        endpoints.append(Endpoint(match.group(1).upper(), match.group(2).strip("[]"), int(match.group(3))))
    names = [endpoint.listener for endpoint in endpoints]
    if len(set(names)) != len(names):
        raise ConfigError(f"server option '{option}' names a listener twice: {text}.")
    bound = [(endpoint.host, endpoint.port) for endpoint in endpoints if endpoint.port]
    if len(set(bound)) != len(bound):
        raise ConfigError(f"server option '{option}' names an address twice: {text}.")
    return tuple(endpoints)


class ServerConfig:
    """Checked options. Durations are milliseconds, sizes are bytes."""

    def __init__(self, options: Mapping[str, object] | None = None) -> None:
        self._explicit: dict[str, str] = {}
        self._values: dict[str, object] = {}
        self.passed_over: dict[str, str] = {}
        """Options of an Apache Fluss cluster that were given and have nothing to act on here, and why."""
        found, self.from_providers = config_providers.resolve(options or {})
        for name, value in found.items():
            if value is None:
                continue
            if name in PASSED_OVER or (name == "kafka.enabled" and _text(name, value).lower() == "false"):
                self.passed_over[name] = PASSED_OVER.get(name, REFUSED["kafka.enabled"])
                continue
            option = _option_for(name)
            text = _text(name, value)
            self._values[option.key] = option.parse(text)
            self._explicit[option.key] = text
        for option in SERVER_OPTIONS.values():
            if option.key not in self._values and option.default is not None:
                self._values[option.key] = option.default
        self._check_listeners()
        self._check_reporters()

    def __repr__(self) -> str:
        shown = {name: REDACTED if self.hides(name) else text for name, text in sorted(self._explicit.items())}
        return f"ServerConfig({shown})"

    def hides(self, name: str) -> bool:
        """Return whether the value of an option that was set must never be shown: it is a secret, or lies elsewhere."""
        return name in self.from_providers or is_secret(name, self._explicit.get(name, ""))

    @property
    def explicit(self) -> Mapping[str, str]:
        """Return the options that were set, as text."""
        return dict(self._explicit)

    def with_options(self, changes: Mapping[str, object | None]) -> ServerConfig:
        """A copy with some options set, or removed where the new value is None."""
        merged: dict[str, object | None] = {**self._explicit, **changes}
        changed = ServerConfig({name: value for name, value in merged.items() if value is not None})
        changed.from_providers = self.from_providers
        return changed

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Explicit options whose name starts with ``prefix``, under their full names."""
        return {name: text for name, text in self._explicit.items() if name.startswith(prefix)}

    @property
    def store_options(self) -> dict[str, str]:
        """Return the options of object stores as `fluss.net.filesystems` names them. Secrets are in it."""
        return store_options(self._explicit)

    def get(self, name: str) -> object:
        """Return the typed value of an option, None where it is not set."""
        if name not in self._values:
            _option_for(name)
            return None
        return self._values[name]

    def text(self, name: str) -> str | None:
        value = self.get(name)
        return None if value is None else str(value)

    def integer(self, name: str) -> int:
        value = self.get(name)
        if not isinstance(value, int):
            raise ConfigError(f"server option '{name}' is not set.")
        return int(value)

    def number(self, name: str) -> float:
        value = self.get(name)
        if not isinstance(value, (int, float)):
            raise ConfigError(f"server option '{name}' is not set.")
        return float(value)

    def boolean(self, name: str) -> bool | None:
        value = self.get(name)
        return value if isinstance(value, bool) else None

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.get(name)
        return value if isinstance(value, tuple) else ()

    def mapping(self, name: str) -> dict[str, str]:
        value = self.get(name)
        return dict(value) if isinstance(value, dict) else {}

    # Listeners -------------------------------------------------------------------------------------------------

    @property
    def bind_endpoints(self) -> tuple[Endpoint, ...]:
        text = self.text("bind.listeners")
        if text is None:
            return (Endpoint(self.internal_listener, "127.0.0.1", DEFAULT_PORT),)
        return parse_endpoints("bind.listeners", text)

    @property
    def advertised_endpoints(self) -> dict[str, Endpoint]:
        text = self.text("advertised.listeners")
        if text is None:
            return {}
        return {endpoint.listener: endpoint for endpoint in parse_endpoints("advertised.listeners", text)}

    @property
    def internal_listener(self) -> str:
        return str(self.get("internal.listener.name")).upper()

    def protocol_of(self, listener: str) -> str:
        """One of `LISTENER_PROTOCOLS`."""
        for name, protocol in self.mapping("security.protocol.map").items():
            if name.upper() == listener.upper():
                return protocol.upper()
        return "PLAINTEXT"

    def asks_login(self, listener: str) -> bool:
        """Return whether clients log in by SASL on this listener."""
        return self.protocol_of(listener) in ("SASL", "SASL_SSL")

    def is_encrypted(self, listener: str) -> bool:
        """Return whether a listener uses TLS."""
        encrypted = {name.upper() for name in self.strings("security.ssl.enabled.listeners")}
        return self.protocol_of(listener) in ("SSL", "SASL_SSL", "MTLS") or listener.upper() in encrypted

    def _check_listeners(self) -> None:
        bound = {endpoint.listener for endpoint in self.bind_endpoints}
        if self.internal_listener not in bound:
            raise ConfigError(
                f"server option 'bind.listeners' lacks the internal listener '{self.internal_listener}' "
                "(option 'internal.listener.name')."
            )
        # A name that is written wrong would leave the listener that is meant without login and TLS.
        named = [
            *(("advertised.listeners", name) for name in self.advertised_endpoints),
            *(("security.protocol.map", name) for name in self.mapping("security.protocol.map")),
            *(("security.ssl.enabled.listeners", name) for name in self.strings("security.ssl.enabled.listeners")),
            *((option, match[1]) for option in self._explicit if (match := _LISTENER_JAAS.fullmatch(option))),
        ]
        for option, name in named:
            if name.upper() not in bound:
                raise ConfigError(f"server option '{option}' names '{name}', which is not bound ('bind.listeners').")
        for name, protocol in self.mapping("security.protocol.map").items():
            if protocol.upper() not in LISTENER_PROTOCOLS:
                raise ConfigError(
                    f"server option 'security.protocol.map' gives listener '{name}' the protocol "
                    f"'{protocol}'; known are {', '.join(LISTENER_PROTOCOLS)}."
                )
        for mechanism in self.strings("security.sasl.enabled.mechanisms"):
            if mechanism.upper() not in SASL_MECHANISMS:
                raise ConfigError(
                    f"server option 'security.sasl.enabled.mechanisms' names '{mechanism}'; "
                    f"known are {', '.join(SASL_MECHANISMS)}."
                )

    def _check_reporters(self) -> None:
        for reporter in self.strings("metrics.reporters"):
            if reporter.lower() != "prometheus":
                raise ConfigError(f"server option 'metrics.reporters' names '{reporter}'; only prometheus is known.")
            self._values.setdefault("metrics.prometheus.port", DEFAULT_METRICS_PORT)

    def log_passed_over(self) -> None:
        """Write one line about the options that have nothing to act on, if there are any."""
        if self.passed_over:
            listed = "; ".join(f"{name} ({reason})" for name, reason in sorted(self.passed_over.items()))
            _log.info("Options of a cluster that have no effect on a single node: %s", listed)


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, Mapping):
        pairs = {str(key): _text(name, item) for key, item in value.items()}
        text = Pairs().show(pairs)
        if Pairs().convert(text) != pairs:
            raise ConfigError(
                f"server option '{name}' is kept as key:value pairs separated by commas: its keys must have no comma "
                "or colon, its values no comma, and neither begins or ends with a blank. Users with such passwords go "
                "into the file of users (fluss user add) or into 'security.sasl.plain.jaas.config'."
            )
        return text
    if isinstance(value, Sequence):
        return ",".join(str(item) for item in value)
    raise ConfigError(f"server option '{name}' has a value of type {type(value).__name__}, expected text or a number.")


def load_config_file(path: str | Path) -> dict[str, object]:
    """Options from a YAML file of ``name: value`` lines; nested sections are joined with dots."""
    document = read_yaml(path, "the configuration file")
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise ConfigError(f"the configuration file '{path}' must hold 'name: value' lines.")
    flat: dict[str, object] = {}
    _flatten("", document, flat)
    return flat


def _flatten(prefix: str, document: Mapping[object, object], flat: dict[str, object]) -> None:
    for key, value in document.items():
        name = f"{prefix}{key}"
        option = SERVER_OPTIONS.find(name)
        if isinstance(value, dict) and (option is None or option.kind != "map"):
            _flatten(f"{name}.", value, flat)
        else:
            flat[name] = value
