# SPDX-License-Identifier: Apache-2.0
"""Client options. The body of `Config` is the one table of keys, types, defaults and meanings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, overload

from fluss import config_providers
from fluss.errors import ConfigError
from fluss.options import (
    INT_MAX,
    KB,
    MB,
    MINUTE_MS,
    REDACTED,
    SECOND_MS,
    Addresses,
    Boolean,
    Choice,
    Duration,
    Option,
    OptionTable,
    Size,
    StoreType,
    Text,
    Whole,
    split_addresses,
)

WAIT_FOREVER_MS = 2**64 - 1
"""The default of `writer.buffer.wait-timeout-ms`: wait as long as it takes."""

_T = TypeVar("_T")

_JAAS_ENTRY = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


class ConfigOption(Option[_T]):
    """One client option, and the attribute of `Config` that reads and sets it."""

    property_name: str
    """The attribute of `Config`."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.property_name = name
        self.__doc__ = self.doc

    @overload
    def __get__(self, config: None, owner: type) -> ConfigOption[_T]: ...

    @overload
    def __get__(self, config: Config, owner: type) -> _T: ...

    def __get__(self, config: Config | None, owner: type) -> _T | ConfigOption[_T]:
        if config is None:
            return self
        value: _T = config._values.get(self.key, self.default)
        return value

    def __set__(self, config: Config, value: _T | str) -> None:
        config.set(self.key, value)


class Config:
    """The options of a client.

    Values may be text or native. Keys may carry the prefix `client.` of Apache Fluss. Durations are milliseconds or
    text such as ``30 s``, sizes are bytes or text such as ``2 mb``. Each option is also an attribute.

    Example:
        config = Config({"bootstrap.servers": "localhost:9123", "client.writer.batch-size": "64 kb"})
        config.writer_retries = 3
    """

    bootstrap_servers = ConfigOption(
        "bootstrap.servers", Addresses(), "127.0.0.1:9123", "Servers to connect to first; they are tried in turn."
    )
    connect_timeout_ms = ConfigOption(
        "connect-timeout",
        Duration(1, bare=True),
        2 * MINUTE_MS,
        "How long connecting may take.",
        aliases=("connect-timeout-ms",),
    )
    request_timeout_ms = ConfigOption(
        "request-timeout",
        Duration(1, INT_MAX, bare=True),
        30 * SECOND_MS,
        "How long a request may take.",
        aliases=("request-timeout-ms",),
    )
    client_bucketing = ConfigOption(
        "client.bucketing",
        Choice("java", "pyfluss"),
        "java",
        "Whose tables are shared: `java` (with Flink and Java clients) or `pyfluss`; they place some keys differently.",
    )
    writer_request_max_size = ConfigOption(
        "writer.request-max-size",
        Size(1, INT_MAX),
        10 * MB,
        "Largest write request.",
        aliases=("request.max.size",),
    )
    writer_acks = ConfigOption(
        "writer.acks",
        Choice("all", "-1", "0", "1"),
        "all",
        "Which replicas confirm a write: all in sync (`all`, `-1`), none (`0`) or the leader (`1`).",
    )
    writer_retries = ConfigOption(
        "writer.retries", Whole(), INT_MAX, "How often a write is sent again after a retriable error."
    )
    writer_batch_size = ConfigOption(
        "writer.batch-size",
        Size(1, INT_MAX),
        2 * MB,
        "Largest batch of a bucket.",
        aliases=("writer.batch.size",),
    )
    writer_batch_timeout_ms = ConfigOption(
        "writer.batch-timeout-ms",
        Duration(bare=True),
        100,
        "How long a batch waits for more rows.",
        aliases=("writer.batch-timeout",),
    )
    writer_dynamic_batch_size_enabled = ConfigOption(
        "writer.dynamic-batch-size.enabled", Boolean(), True, "Fit the batch size to how full recent batches were."
    )
    writer_dynamic_batch_size_min = ConfigOption(
        "writer.dynamic-batch-size-min", Size(1, INT_MAX), 256 * KB, "The smallest fitted batch size."
    )
    writer_bucket_no_key_assigner = ConfigOption(
        "writer.bucket.no-key-assigner",
        Choice("sticky", "round_robin"),
        "sticky",
        "How rows of tables without bucket keys are spread.",
    )
    writer_enable_idempotence = ConfigOption(
        "writer.enable-idempotence", Boolean(), True, "Let the server drop batches that arrive twice."
    )
    writer_max_inflight_requests_per_bucket = ConfigOption(
        "writer.max-inflight-requests-per-bucket", Whole(1), 5, "Write requests of a bucket in flight."
    )
    writer_delivery_timeout_ms = ConfigOption(
        "writer.delivery-timeout-ms",
        Duration(1, bare=True),
        2 * MINUTE_MS,
        "How long a batch is tried before its rows fail with the last error.",
        aliases=("writer.delivery-timeout",),
    )
    writer_buffer_memory_size = ConfigOption(
        "writer.buffer.memory-size", Size(1), 64 * MB, "Memory for rows not yet sent."
    )
    writer_buffer_wait_timeout_ms = ConfigOption(
        "writer.buffer.wait-timeout-ms",
        Duration(0, WAIT_FOREVER_MS, bare=True),
        WAIT_FOREVER_MS,
        "How long a write waits for room in a full buffer.",
        aliases=("writer.buffer.wait-timeout",),
    )
    writer_kv_backpressure_max_throttle_ms = ConfigOption(
        "writer.kv-backpressure.max-throttle-ms",
        Duration(bare=True),
        3 * SECOND_MS,
        "The longest pause between writes to an overloaded server.",
        aliases=("writer.kv-backpressure.max-throttle",),
    )
    writer_dynamic_create_partition_enabled = ConfigOption(
        "writer.dynamic-create-partition.enabled",
        Boolean(),
        True,
        "Create missing partitions when rows are written to them.",
    )
    lookup_queue_size = ConfigOption(
        "lookup.queue-size", Whole(1), 1_000_000, "Keys of a table that may wait for their answer; more are refused."
    )
    lookup_max_batch_size = ConfigOption(
        "lookup.max-batch-size", Whole(1), 4_096, "The most keys of one request. `fluss server` takes 100,000."
    )
    lookup_max_inflight_requests = ConfigOption(
        "lookup.max-inflight-requests", Whole(1), 2, "Lookup requests to one server in flight."
    )
    lookup_max_retries = ConfigOption(
        "lookup.max-retries",
        Whole(0),
        INT_MAX,
        "How often a key is sent again after an error that may pass; its deadline ends that as well.",
    )
    lookup_batch_timeout_ms = ConfigOption(
        "lookup.batch-timeout",
        Duration(0, INT_MAX, bare=True),
        0,
        "How long keys wait for others to join their request. With 0 they leave as soon as a request may.",
    )
    scanner_log_read_preference = ConfigOption(
        "scanner.log.read-preference",
        Choice("local_first", "remote_first"),
        "local_first",
        "Where scanners read rows that both the servers and the remote log have: `local_first` or `remote_first`.",
    )
    scanner_remote_log_prefetch_num = ConfigOption(
        "scanner.remote-log.prefetch-num", Whole(1), 4, "Remote log segments fetched ahead."
    )
    remote_file_download_thread_num = ConfigOption(
        "remote-file.download-thread-num", Whole(1), 3, "Remote log files downloaded at a time."
    )
    scanner_remote_log_read_concurrency = ConfigOption(
        "scanner.remote-log.read-concurrency", Whole(1), 4, "Reads of one remote log file at a time."
    )
    scanner_log_max_poll_records = ConfigOption(
        "scanner.log.max-poll-records", Whole(1), 500, "The most records of one poll."
    )
    scanner_log_fetch_max_bytes = ConfigOption(
        "scanner.log.fetch.max-bytes", Size(1, INT_MAX), 16 * MB, "Largest answer to one fetch."
    )
    scanner_log_fetch_min_bytes = ConfigOption(
        "scanner.log.fetch.min-bytes", Size(0, INT_MAX), 1, "How much the server waits for before it answers a fetch."
    )
    scanner_log_fetch_wait_max_time_ms = ConfigOption(
        "scanner.log.fetch.wait-max-time-ms",
        Duration(0, INT_MAX, bare=True),
        500,
        "How long the server may wait for them.",
        aliases=("scanner.log.fetch.wait-max-time",),
    )
    scanner_log_fetch_max_bytes_for_bucket = ConfigOption(
        "scanner.log.fetch.max-bytes-for-bucket", Size(1, INT_MAX), MB, "Largest part of one bucket in an answer."
    )
    scanner_log_check_crc = ConfigOption(
        "scanner.log.check-crc", Boolean(), True, "Check the checksum of every batch, unless the server projected it."
    )
    scanner_kv_fetch_max_bytes = ConfigOption(
        "scanner.kv.fetch.max-bytes",
        Size(1, INT_MAX),
        4 * MB,
        "Largest answer to one step of a batch scan of a primary-key table.",
    )
    fs_s3_endpoint = ConfigOption(
        "fs.s3.endpoint",
        Text(),
        "",
        "Host and port of the S3 service that holds remote segments; by default what the cluster says.",
    )
    fs_s3_region = ConfigOption("fs.s3.region", Text(), "", "Region of the bucket; by default what the cluster says.")
    fs_s3_access_key = ConfigOption(
        "fs.s3.access-key",
        Text(),
        "",
        "Access key for remote segments; by default credentials of the cluster, or of the environment.",
        aliases=("fs.s3.access.key",),
        secret=True,
    )
    fs_s3_secret_key = ConfigOption(
        "fs.s3.secret-key",
        Text(),
        "",
        "The secret key that belongs to it.",
        aliases=("fs.s3.secret.key",),
        secret=True,
    )
    fs_s3_session_token = ConfigOption(
        "fs.s3.session-token", Text(), "", "The token of temporary keys.", aliases=("fs.s3.session.token",), secret=True
    )
    fs_s3_path_style_access = ConfigOption(
        "fs.s3.path-style-access",
        Boolean(),
        True,
        "Address buckets by path where an endpoint is set.",
        aliases=("fs.s3.path.style.access",),
    )
    fs_oss_endpoint = ConfigOption(
        "fs.oss.endpoint", Text(), "", "Host of Alibaba Cloud OSS; by default what the cluster says."
    )
    fs_oss_region = ConfigOption("fs.oss.region", Text(), "", "Region of the bucket; by default what the cluster says.")
    fs_oss_access_key_id = ConfigOption(
        "fs.oss.accessKeyId", Text(), "", "Access key for remote segments on OSS.", secret=True
    )
    fs_oss_access_key_secret = ConfigOption(
        "fs.oss.accessKeySecret", Text(), "", "The secret key that belongs to it.", secret=True
    )
    fs_oss_security_token = ConfigOption(
        "fs.oss.securityToken", Text(), "", "The token of temporary keys.", secret=True
    )
    fs_gs_project_id = ConfigOption(
        "fs.gs.project.id",
        Text(),
        "",
        "Project of Google Cloud Storage; the key file is named by GOOGLE_APPLICATION_CREDENTIALS.",
    )
    read_only = ConfigOption(
        "client.read-only", Boolean(), False, "Refuse all calls that change tables, rights or the cluster."
    )
    client_id = ConfigOption(
        "client.id", Text(), "", "A name for this client: servers see it, and metrics have it as label `client_id`."
    )
    metrics_enabled = ConfigOption("metrics.enabled", Boolean(), True, "Count what the client does.")
    security_protocol = ConfigOption(
        "security.protocol",
        Choice("PLAINTEXT", "sasl", "ssl", "sasl_ssl"),
        "PLAINTEXT",
        "Whether to authenticate (`sasl`), to encrypt (`ssl`), or both (`sasl_ssl`).",
    )
    security_sasl_mechanism = ConfigOption(
        "security.sasl.mechanism",
        Choice("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"),
        "PLAIN",
        "How to authenticate. PLAIN sends the password as it is: use it over TLS, or on one machine.",
    )
    security_sasl_username = ConfigOption(
        "security.sasl.username", Text(), "", "The user that authenticates; needed with `sasl`."
    )
    security_sasl_password = ConfigOption(
        "security.sasl.password", Text(), "", "The password; needed with `sasl`.", secret=True
    )
    security_sasl_jaas_config = ConfigOption(
        "security.sasl.jaas.config",
        Text(),
        "",
        'A login module line with `username="…"` and `password="…"`; it sets the two options above.',
        secret=True,
    )

    security_ssl_enabled = ConfigOption(
        "security.ssl.enabled", Boolean(), False, "Encrypt connections with TLS, whatever `security.protocol` says."
    )
    security_ssl_truststore_location = ConfigOption(
        "security.ssl.truststore.location",
        Text(),
        "",
        "PEM file of the authorities that sign certificates of servers; those of the system if it is not set.",
    )
    security_ssl_truststore_type = ConfigOption("security.ssl.truststore.type", StoreType(), "PEM", "Form of the file.")
    security_ssl_truststore_password = ConfigOption(
        "security.ssl.truststore.password",
        Text(),
        "",
        "Accepted and not used: PEM files of authorities have no password.",
        secret=True,
    )
    security_ssl_keystore_location = ConfigOption(
        "security.ssl.keystore.location", Text(), "", "PEM file of the client's certificate, and of its key."
    )
    security_ssl_keystore_type = ConfigOption("security.ssl.keystore.type", StoreType(), "PEM", "Form of the file.")
    security_ssl_keystore_password = ConfigOption(
        "security.ssl.keystore.password",
        Text(),
        "",
        "The password of the key, if `security.ssl.key.password` is not set.",
        secret=True,
    )
    security_ssl_key_location = ConfigOption(
        "security.ssl.key.location", Text(), "", "PEM file of the key, where it lies apart from the certificate."
    )
    security_ssl_key_password = ConfigOption(
        "security.ssl.key.password", Text(), "", "The password of the key.", secret=True
    )
    security_ssl_enabled_protocols = ConfigOption(
        "security.ssl.enabled.protocols", Text(), "TLSv1.2,TLSv1.3", "Versions of TLS, separated by commas."
    )
    security_ssl_cipher_suites = ConfigOption(
        "security.ssl.cipher.suites",
        Text(),
        "",
        "Cipher suites of TLS 1.2, as OpenSSL names them, separated by commas; empty for those of the system.",
    )
    security_ssl_endpoint_identification_algorithm = ConfigOption(
        "security.ssl.endpoint.identification.algorithm",
        Choice("https", ""),
        "https",
        "Check that the certificate is for the host that was asked for; empty for no check.",
    )
    security_ssl_fingerprint = ConfigOption(
        "security.ssl.fingerprint",
        Text(),
        "",
        "SHA-256 of the server's certificate, or a PEM file that has it: exactly this one is accepted, and no "
        "authority is needed. Several, separated by commas, are each accepted.",
    )

    __slots__ = ("_from_providers", "_values")

    def __init__(self, properties: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        if properties is not None and not isinstance(properties, Mapping):
            raise ConfigError(f"Config takes a dict of options, not {type(properties).__name__}")
        found, resolved = config_providers.resolve(properties or {})
        self._from_providers = {option_of(key).key for key in resolved}
        for key, value in found.items():
            self.set(key, value)

    def get(self, key: str) -> Any:
        """Read an option by its key."""
        return option_of(key).__get__(self, Config)

    def set(self, key: str, value: object) -> None:
        """Set an option by its key."""
        option = option_of(key)
        parsed = option.parse(value)
        if option.key == "security.sasl.jaas.config" and parsed:
            self._values.update(_read_jaas(parsed))
        self._values[option.key] = parsed

    def to_dict(self) -> dict[str, Any]:
        """Return the options that were set, by key. The password is in it."""
        return dict(self._values)

    def copy(self) -> Config:
        """Make an independent copy."""
        copied = Config()
        copied._values.update(self._values)
        copied._from_providers = self._from_providers
        return copied

    __copy__ = copy

    @property
    def store_options(self) -> dict[str, str]:
        """Return the options of object stores that were set, without ``fs.`` in front. Secrets are in it."""
        return {
            key.removeprefix("fs."): str(value).lower() if isinstance(value, bool) else value
            for key, value in self._values.items()
            if key.startswith("fs.") and value != ""
        }

    @property
    def bootstrap_addresses(self) -> list[tuple[str, int]]:
        """Return the bootstrap servers as pairs of host and port."""
        return split_addresses(self.bootstrap_servers)

    @property
    def is_sasl(self) -> bool:
        """Return whether connections authenticate."""
        return self.security_protocol in ("sasl", "sasl_ssl")

    @property
    def is_encrypted(self) -> bool:
        """Return whether connections use TLS."""
        return self.security_ssl_enabled or self.security_protocol in ("ssl", "sasl_ssl")

    @property
    def required_acks(self) -> int:
        """Return the acks of write requests: -1 all replicas in sync, 0 none, 1 the leader."""
        return -1 if self.writer_acks == "all" else int(self.writer_acks)

    def validate(self) -> None:
        """Check what options mean together; connecting does this."""
        if self.is_sasl:
            for key in ("security.sasl.username", "security.sasl.password"):
                if not self.get(key):
                    raise ConfigError(f"{key} is empty, but security.protocol 'sasl' needs it")
        if self.writer_enable_idempotence:
            if self.required_acks != -1:
                raise ConfigError(
                    f"writer.acks is {self.writer_acks!r}, but writer.enable-idempotence needs 'all'; "
                    "change one of them"
                )
            if self.writer_max_inflight_requests_per_bucket > 5:
                raise ConfigError(
                    f"writer.max-inflight-requests-per-bucket is {self.writer_max_inflight_requests_per_bucket}, "
                    "but writer.enable-idempotence allows at most 5; change one of them"
                )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return all(self.get(option.key) == other.get(option.key) for option in CONFIG_OPTIONS.values())

    __hash__ = None  # type: ignore[assignment]  # options can change

    def __repr__(self) -> str:
        shown = {
            key: REDACTED if (option_of(key).secret and value) or key in self._from_providers else value
            for key, value in sorted(self._values.items())
        }
        return f"Config({shown!r})"


def _read_jaas(line: str) -> dict[str, str]:
    """Take user and password out of a login module line, as the Java client's configuration has it."""
    found = {name: re.sub(r"\\(.)", r"\1", text) for name, text in _JAAS_ENTRY.findall(line)}
    if len(found) != 2:
        raise ConfigError(
            f"security.sasl.jaas.config: got {REDACTED}, but it takes a line such as 'org.apache.fluss.security.auth"
            '.sasl.plain.PlainLoginModule required username="…" password="…";\''
        )
    return {f"security.sasl.{name}": text for name, text in found.items()}


_MEMORY = "memory for rows is not divided into pages"
_TOKENS = "tokens are fetched when remote files are opened"

CONFIG_OPTIONS: OptionTable[ConfigOption[Any]] = OptionTable(
    "option",
    [option for option in vars(Config).values() if isinstance(option, ConfigOption)],
    prefix="client.",
    # Options of the Java client that have nothing to act on here.
    refused={
        "writer.buffer.page-size": _MEMORY,
        "writer.buffer.per-request-memory-size": _MEMORY,
        "scanner.kv.batch-strategy": "the server's cursor is used where it has one, the changelog otherwise",
        "security.enable-plugin-discovery": "there are no plugins",
        "scanner.io.tmpdir": "scanners write no temporary files",
        "filesystem.security.token.renewal.backoff": _TOKENS,
        "filesystem.security.token.renewal.time-ratio": _TOKENS,
    },
)
"""Every client option, by key, in the order of the class body."""


DEFAULT_SERVER = "127.0.0.1:9123"
"""Where the command line looks for a server that nothing else names."""


@dataclass(frozen=True)
class Login:
    """As whom a client connects, and how its connections are encrypted: what `connect` takes beside an address."""

    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    """PEM file of the authorities that sign the certificates of servers."""
    fingerprint: str | None = None
    """SHA-256 of the one certificate that is accepted."""

    @classmethod
    def of_environment(cls) -> Login:
        """What ``FLUSS_USER``, ``FLUSS_PASSWORD``, ``FLUSS_TLS``, ``FLUSS_CA`` and ``FLUSS_FINGERPRINT`` say."""
        get = os.environ.get
        return cls(
            get("FLUSS_USER") or None,
            get("FLUSS_PASSWORD"),
            get("FLUSS_TLS", "").lower() in ("1", "true", "yes", "on"),
            get("FLUSS_CA") or None,
            get("FLUSS_FINGERPRINT") or None,
        )

    def or_else(self, other: Login) -> Login:
        """This login, with what it does not say taken from another one. A password belongs to its user."""
        named = self if self.user is not None else other
        trusting = self if self.is_encrypted else other
        password = self.password if self.password is not None else named.password
        return Login(named.user, password, trusting.is_encrypted, trusting.ca, trusting.fingerprint)

    @property
    def is_encrypted(self) -> bool:
        """An authority or a fingerprint means TLS too."""
        return self.tls or self.ca is not None or self.fingerprint is not None

    def options(self) -> dict[str, Any]:
        """The options of a client."""
        found: dict[str, Any] = {}
        if self.user is not None:
            found["security.protocol"] = "sasl"
            found["security.sasl.username"] = self.user
            found["security.sasl.password"] = self.password or ""
        if self.is_encrypted:
            found["security.ssl.enabled"] = True
        if self.ca is not None:
            found["security.ssl.truststore.location"] = self.ca
        if self.fingerprint is not None:
            found["security.ssl.fingerprint"] = self.fingerprint
        return found


def option_of(key: str) -> ConfigOption[Any]:
    """Find the option with this key; a ConfigError names the nearest known key."""
    return CONFIG_OPTIONS.require(str(key))
