# SPDX-License-Identifier: Apache-2.0
"""Server options: one table of names (those of Apache Fluss), types, defaults and meaning."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from fluss.errors import ConfigError, InvalidConfigError
from fluss.metadata.properties import parse_duration_ms, parse_memory_size
from fluss.server.exposure import REDACTED, is_hidden_lake_setting

DEFAULT_PORT = 9123
DEFAULT_LISTENER = "FLUSS"

MIB = 1024 * 1024


@dataclass(frozen=True)
class ServerOption:
    """One row of the table. ``kind`` is one of string, int, double, boolean, duration, memory, list, map."""

    name: str
    kind: str
    default: str | None
    meaning: str
    minimum: int | None = None
    choices: tuple[str, ...] = ()


def _o(
    name: str, kind: str, default: str | None, meaning: str, minimum: int | None = None, choices: tuple[str, ...] = ()
) -> ServerOption:
    return ServerOption(name, kind, default, meaning, minimum, choices)


_ROWS: tuple[ServerOption, ...] = (
    # Where data lives.
    _o("data.dir", "string", "fluss-data", "folder of the catalog, the logs and the key-value state"),
    _o("remote.data.dir", "string", None, "folder or file-system URI to which closed log segments are copied"),
    # Listeners.
    _o("bind.listeners", "string", None, "comma list NAME://host:port to listen on"),
    _o("advertised.listeners", "string", None, "comma list NAME://host:port told to clients instead of the bound one"),
    _o("internal.listener.name", "string", DEFAULT_LISTENER, "listener whose traffic is trusted (no ACL checks)"),
    _o("tablet-server.id", "int", "0", "node id of the tablet server role in metadata answers", 0),
    _o("tablet-server.rack", "string", None, "rack of the tablet server role in metadata answers"),
    # Security.
    _o("security.protocol.map", "map", "", "NAME:protocol per listener, protocol PLAINTEXT or SASL"),
    _o("security.sasl.enabled.mechanisms", "list", "PLAIN", "SASL mechanisms offered; only PLAIN exists"),
    _o("security.sasl.plain.jaas.config", "string", None, 'login module line with user_NAME="PASSWORD" entries'),
    _o("security.sasl.plain.credentials", "map", "", "user:password pairs, an alternative to the login module line"),
    _o("security.acl.principal.ignore-case", "boolean", "false", "compare principal names without regard to case"),
    _o("authorizer.enabled", "boolean", "false", "check access control lists"),
    _o("authorizer.type", "string", "default", "kind of authorizer", choices=("default",)),
    _o("super.users", "string", None, "User:a;User:b who pass every check"),
    # Catalog.
    _o("default.bucket.number", "int", "1", "buckets of a table that names no number", 1),
    _o("default.replication.factor", "int", "1", "replicas of a table that names no number", 1),
    _o("max.partition.num", "int", "1000", "most partitions of one table", 1),
    _o("max.bucket.num", "int", "4096", "most buckets of one table or partition", 1),
    _o("allow.create.log.tables", "boolean", "true", "accept new log tables"),
    _o("allow.create.kv.tables", "boolean", "true", "accept new primary-key tables"),
    _o("auto-partition.check.interval", "duration", "10min", "time between two rounds of auto partitioning", 1),
    _o("coordinator.producer-offsets.ttl", "duration", "24h", "life of registered producer offsets", 1),
    _o("coordinator.producer-offsets.cleanup-interval", "duration", "1h", "time between two clean-ups of them", 1),
    # Log storage.
    _o("log.segment.file-size", "memory", "1024mb", "size at which a log segment is closed and a new one begun", 1),
    _o("log.index.file-size", "memory", "10mb", "largest size of one index file", 12),
    _o("log.index.interval-size", "memory", "4kb", "log bytes between two index entries", 0),
    _o("log.commit.sync", "string", "group", "when written bytes reach the disk: 'group' syncs before "
       "an acknowledgement, many writes at a time; 'none' leaves it to the operating system",
       choices=("group", "none")),
    _o("log.flush.offset.checkpoint-interval", "duration", "60s", "time between two recovery points", 1),
    _o("log.recovery-point.interval-size", "memory", "64mb", "log bytes after which a bucket's recovery point moves, "
       "which bounds the bytes to check after a crash", 1),
    _o("log.retention.check-interval", "duration", "5min", "time between two looks for expired segments", 1),
    _o("log.retention.roll-active-segment.enabled", "boolean", "false", "expire the open segment as well"),
    _o("log.replica.min-in-sync-replicas-number", "int", "1", "replicas needed for acks=all; this server is one", 1),
    _o("server.writer-id.expiration-time", "duration", "7d", "idle time after which a writer is forgotten", 1),
    _o("server.writer-id.expiration-check-interval", "duration", "10min", "time between two looks for idle writers", 1),
    _o("server.io-pool.size", "int", "4", "threads for disk work", 1),
    _o("server.data-disk.write-limit-ratio", "double", "0.98", "disk usage above which writes are refused (code 70)"),
    _o("server.data-disk.write-recover-ratio", "double", "0.95", "disk usage below which they are accepted again"),
    _o("server.data-disk.check-interval", "duration", "30s", "time between two looks at the disk", 1),
    # Remote log.
    _o("remote.log.task-interval-duration", "duration", "1min", "time between two copying rounds; 0 turns it off", 0),
    _o("remote.log.task-max-upload-segments", "int", "5", "most segments copied per bucket and round", 1),
    # Key-value state.
    _o("kv.memory-size", "memory", "256mb", "rows of primary-key tables kept in memory before they move to disk", 1),
    _o("kv.snapshot.interval", "duration", "10min", "time between two snapshots of a bucket's state", 1),
    _o("kv.snapshot.num-retained", "int", "2", "snapshots kept", 1),
    _o("kv.scanner.ttl", "duration", "10min", "idle life of a key-value scan cursor", 1),
    _o("kv.scanner.expiration-interval", "duration", "30s", "time between two looks for expired cursors", 1),
    _o("kv.scanner.max-per-bucket", "int", "8", "open cursors per bucket", 1),
    _o("kv.scanner.max-per-server", "int", "200", "open cursors of the server", 1),
    _o("kv.scanner.max-batch-size", "memory", "10mb", "largest answer of one cursor call", 1),
    # Lake.
    _o("datalake.enabled", "boolean", None, "turn the lake on or off; unset means on when a format is set"),
    _o("datalake.format", "string", None, "lake format", choices=("paimon", "iceberg", "lance", "hudi")),
    _o("lake.tiering.auto-expire-snapshot", "boolean", "false", "lake snapshots expire on commit"),
    # Network limits.
    _o("netty.server.max-request-size", "memory", "100mb", "largest request frame", 1024),
    _o("netty.server.max-queued-requests", "int", "500", "requests of one connection in work before reading pauses", 1),
    _o("netty.connection.max-idle-time", "duration", "10min", "silence after which a connection is closed", 1),
    _o("server.max-connections", "int", "10000", "open connections of all listeners together; never more than half of "
       "the process's limit of open files, whose other half is kept for data", 1),
    _o("server.authentication.timeout", "duration", "30s", "time for a new connection to authenticate, or to send its "
       "first request where that is not asked for", 1),
    _o("server.frame.timeout", "duration", "30s", "time after which a request that arrives with less than 1 KB per "
       "second is given up and its connection closed", 1),
    _o("server.buffer.memory-size", "memory", "512mb", "request bytes over all connections, from the first byte to the "
       "answer; beyond it large requests wait unread", MIB),
    _o("server.connection.max-unsent-size", "memory", "64mb", "unsent answer bytes of one connection before its "
       "reading pauses", 1024),
    # Operations.
    _o("metrics.prometheus.port", "int", None, "port of the /metrics page; unset means none", 0),
    _o("metrics.prometheus.host", "string", "127.0.0.1", "address of the /metrics page"),
    _o("log.level", "string", "INFO", "least severity written to standard error",
       choices=("DEBUG", "INFO", "WARNING", "ERROR")),
    _o("log.format", "string", "text", "form of the messages on standard error", choices=("text", "json")),
)  # fmt: skip

SERVER_OPTIONS: Mapping[str, ServerOption] = {option.name: option for option in _ROWS}

_LISTENER_JAAS = re.compile(r"security\.sasl\.listener\.name\.([a-z0-9_-]+)\.plain\.jaas\.config")
_LAKE_SETTING = re.compile(r"datalake\.(paimon|iceberg|lance|hudi)\..+")

# Known to an Apache Fluss cluster, without meaning here: the reason is told, so that nobody hunts for a typing error.
_UNUSABLE: tuple[tuple[str, str], ...] = (
    ("zookeeper.", "the embedded server needs no ZooKeeper"),
    ("coordinator.", "the coordinator is part of this process"),
    ("tablet-server.", "the tablet server is part of this process"),
    ("kv.rocksdb.", "the state on disk is a cache of the log and not tuned by hand"),
    ("log.replica.", "there is one replica only"),
    ("kafka.", "the Kafka protocol is not served"),
    ("client.", "it is an option of clients"),
    ("table.", "it is a table property, set it when creating a table"),
    ("plugin.", "there are no plugins"),
    ("data.dirs", "one data folder is supported, use data.dir"),
    ("remote.data.dirs", "one remote folder is supported, use remote.data.dir"),
)
_SECRET = re.compile(r"password|secret|jaas|credential|token|access[-_.]?key", re.IGNORECASE)


def is_secret(name: str, value: str = "") -> bool:
    """True when the value of this option must never be shown."""
    return _SECRET.search(name) is not None or is_hidden_lake_setting(name, value)


def _option_for(name: str) -> ServerOption:
    option = SERVER_OPTIONS.get(name)
    if option is not None:
        return option
    if _LISTENER_JAAS.fullmatch(name):
        return ServerOption(name, "string", None, "login module line of one listener")
    if _LAKE_SETTING.fullmatch(name):
        return ServerOption(name, "string", None, "setting of the lake catalog")
    for prefix, reason in _UNUSABLE:
        if name.startswith(prefix):
            raise ConfigError(f"server option '{name}' cannot be used: {reason}. Remove it.")
    raise ConfigError(f"server option '{name}' is unknown. Check its spelling or remove it.")


def _parse(option: ServerOption, text: str) -> object:
    kind = option.kind
    value: object
    try:
        if kind == "string":
            value = text
        elif kind == "int":
            value = int(text)
        elif kind == "double":
            value = float(text)
        elif kind == "boolean":
            lowered = text.strip().lower()
            if lowered not in ("true", "false"):
                raise ValueError("expected true or false")
            value = lowered == "true"
        elif kind == "duration":
            value = parse_duration_ms(text)
        elif kind == "memory":
            value = parse_memory_size(text)
        elif kind == "list":
            value = tuple(part.strip() for part in re.split(r"[;,]", text) if part.strip())
        else:
            value = _parse_map(text)
    except (ValueError, InvalidConfigError) as error:
        # A secret that does not parse must not be echoed, and its parser's text may quote it.
        shown, reason = ("(hidden)", "") if is_secret(option.name) else (repr(text), f" {error}.")
        raise ConfigError(f"server option '{option.name}' has the value {shown}, which is no {kind}.{reason}") from None
    if option.minimum is not None and isinstance(value, int) and value < option.minimum:
        raise ConfigError(f"server option '{option.name}' is {text!r}, but must be at least {option.minimum}.")
    if option.choices and isinstance(value, str):
        match = next((choice for choice in option.choices if choice.lower() == value.lower()), None)
        if match is None:
            raise ConfigError(
                f"server option '{option.name}' is {text!r}, but must be one of: {', '.join(option.choices)}."
            )
        value = match
    return value


def _parse_map(text: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        key, colon, value = part.partition(":")
        if not colon or not key.strip():
            raise ValueError("expected key:value pairs separated by commas")
        pairs[key.strip()] = value.strip()
    return pairs


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
        for name, value in (options or {}).items():
            if value is None:
                continue
            text = _text(name, value)
            self._values[name] = _parse(_option_for(name), text)
            self._explicit[name] = text
        for option in SERVER_OPTIONS.values():
            if option.name not in self._values and option.default is not None:
                self._values[option.name] = _parse(option, option.default)
        self._check_listeners()

    def __repr__(self) -> str:
        shown = {name: REDACTED if is_secret(name, text) else text for name, text in sorted(self._explicit.items())}
        return f"ServerConfig({shown})"

    @property
    def explicit(self) -> Mapping[str, str]:
        """The options somebody set, as text."""
        return dict(self._explicit)

    def with_options(self, changes: Mapping[str, object | None]) -> ServerConfig:
        """A copy with some options set, or removed where the new value is None."""
        merged: dict[str, object | None] = {**self._explicit, **changes}
        return ServerConfig({name: value for name, value in merged.items() if value is not None})

    def with_prefix(self, prefix: str) -> dict[str, str]:
        """Explicit options whose name starts with ``prefix``, under their full names."""
        return {name: text for name, text in self._explicit.items() if name.startswith(prefix)}

    def get(self, name: str) -> object:
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
        """``PLAINTEXT`` or ``SASL``."""
        for name, protocol in self.mapping("security.protocol.map").items():
            if name.upper() == listener.upper():
                return protocol.upper()
        return "PLAINTEXT"

    def _check_listeners(self) -> None:
        bound = {endpoint.listener for endpoint in self.bind_endpoints}
        if self.internal_listener not in bound:
            raise ConfigError(
                f"server option 'bind.listeners' lacks the internal listener '{self.internal_listener}' "
                "(option 'internal.listener.name')."
            )
        for name in self.advertised_endpoints:
            if name not in bound:
                raise ConfigError(f"server option 'advertised.listeners' names '{name}', which is not bound.")
        for name, protocol in self.mapping("security.protocol.map").items():
            if protocol.upper() not in ("PLAINTEXT", "SASL"):
                raise ConfigError(
                    f"server option 'security.protocol.map' gives listener '{name}' the protocol "
                    f"'{protocol}'; known are PLAINTEXT and SASL."
                )
        for mechanism in self.strings("security.sasl.enabled.mechanisms"):
            if mechanism.upper() != "PLAIN":
                raise ConfigError(
                    f"server option 'security.sasl.enabled.mechanisms' names '{mechanism}'; only PLAIN is known."
                )


def _text(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    if isinstance(value, Mapping):
        return ",".join(f"{key}:{item}" for key, item in value.items())
    if isinstance(value, Sequence):
        return ",".join(str(item) for item in value)
    raise ConfigError(f"server option '{name}' has a value of type {type(value).__name__}, expected text or a number.")


def load_config_file(path: str | Path) -> dict[str, object]:
    """Options from a YAML file of ``name: value`` lines; nested sections are joined with dots."""
    try:
        document = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration file '{path}': {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration file '{path}' is no YAML: {' '.join(str(error).split())}") from None
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
        option = SERVER_OPTIONS.get(name)
        if isinstance(value, dict) and (option is None or option.kind != "map"):
            _flatten(f"{name}.", value, flat)
        else:
            flat[name] = value
