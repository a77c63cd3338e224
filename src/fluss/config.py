# SPDX-License-Identifier: Apache-2.0
"""Client options. The body of `Config` is the one table of keys, types, defaults, allowed values and meanings."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, overload

from fluss.errors import ConfigError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
WAIT_FOREVER_MS = 2**64 - 1
"""The default of `writer.buffer.wait-timeout-ms`: wait as long as it takes."""

REDACTED = "***"
MB = 1024 * 1024

_T = TypeVar("_T")


class ConfigOption(ABC, Generic[_T]):
    """One client option: a line of the table, and the attribute of `Config` that reads and sets it."""

    property_name: str
    """The attribute of `Config`."""

    def __init__(self, key: str, default: _T, doc: str, *, aliases: tuple[str, ...] = (), secret: bool = False) -> None:
        self.key = key
        self.default = default
        self.aliases = aliases
        self.secret = secret
        self.__doc__ = doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.property_name = name

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
        config._values[self.key] = self.parse(value)

    def parse(self, value: object) -> _T:
        """The typed value of a string or native value; a ConfigError says what was given and what is allowed."""
        parsed = self._convert(value)
        if parsed is None:
            # A bad secret must not end up in a log.
            given = REDACTED if self.secret else f"{value!r:.100}"
            raise ConfigError(f"{self.key}: got {given}, but it takes {self.allowed()}")
        return parsed

    @abstractmethod
    def _convert(self, value: object) -> _T | None:
        """The typed value, or None if the option does not take it."""

    @abstractmethod
    def allowed(self) -> str:
        """What the option takes, in words."""


class StringOption(ConfigOption[str]):
    """An option that takes any string."""

    def _convert(self, value: object) -> str | None:
        return value if isinstance(value, str) else None

    def allowed(self) -> str:
        return "a string"


class ChoiceOption(ConfigOption[str]):
    """An option that takes one of a few strings, in any case; it is kept in the spelling of the list."""

    def __init__(self, key: str, choices: tuple[str, ...], doc: str) -> None:
        super().__init__(key, choices[0], doc)
        self.choices = choices

    def _convert(self, value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            return None
        wanted = str(value).strip().lower()
        return next((choice for choice in self.choices if choice.lower() == wanted), None)

    def allowed(self) -> str:
        return f"one of {', '.join(repr(choice) for choice in self.choices)}"


class IntOption(ConfigOption[int]):
    """An option that takes a whole number within bounds."""

    def __init__(
        self,
        key: str,
        default: int,
        doc: str,
        *,
        minimum: int = 0,
        maximum: int = INT_MAX,
        aliases: tuple[str, ...] = (),
    ) -> None:
        super().__init__(key, default, doc, aliases=aliases)
        self.minimum = minimum
        self.maximum = maximum

    def _convert(self, value: object) -> int | None:
        if isinstance(value, str) and re.fullmatch(r"\s*[+-]?[0-9]{1,20}\s*", value):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool):
            return None
        return value if self.minimum <= value <= self.maximum else None

    def allowed(self) -> str:
        return f"a whole number from {self.minimum} to {self.maximum}"


class BoolOption(ConfigOption[bool]):
    """An option that takes true or false."""

    def _convert(self, value: object) -> bool | None:
        if isinstance(value, str):
            return {"true": True, "false": False}.get(value.strip().lower())
        return value if isinstance(value, bool) else None

    def allowed(self) -> str:
        return "true or false"


class AddressesOption(ConfigOption[str]):
    """An option that takes addresses of servers."""

    def _convert(self, value: object) -> str | None:
        return value if isinstance(value, str) and split_addresses(value) else None

    def allowed(self) -> str:
        return "host:port, or several of them separated by commas"


def split_addresses(text: str) -> list[tuple[str, int]]:
    """``"a:1, [::1]:2"`` -> pairs of host and port; empty if the text cannot be read."""
    addresses = []
    for item in text.split(","):
        match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", item.strip())
        if match is None or not 0 < int(match[3]) <= 65535:
            return []
        addresses.append((match[1] or match[2], int(match[3])))
    return addresses


class Config:
    """The options of a client.

    ``Config({"bootstrap.servers": "localhost:9123", "writer.batch-size": 65536})``; values may be strings or native.
    Each option is also an attribute: ``config.writer_batch_size = 65536``.
    """

    bootstrap_servers = AddressesOption(
        "bootstrap.servers", "127.0.0.1:9123", "Servers to connect to first; they are tried in turn."
    )
    connect_timeout_ms = IntOption(
        "connect-timeout",
        120_000,
        "How long connecting may take, in milliseconds.",
        minimum=1,
        maximum=LONG_MAX,
        aliases=("connect-timeout-ms",),
    )
    request_timeout_ms = IntOption(
        "request-timeout",
        30_000,
        "How long a request may take, in milliseconds.",
        minimum=1,
        aliases=("request-timeout-ms",),
    )
    client_bucketing = ChoiceOption(
        "client.bucketing",
        ("java", "pyfluss"),
        "Whose tables are shared: `java` (with Flink and Java clients) or `pyfluss`; they place some keys differently.",
    )
    writer_request_max_size = IntOption(
        "writer.request-max-size",
        10 * MB,
        "Largest write request in bytes.",
        minimum=1,
        aliases=("request.max.size",),
    )
    writer_acks = ChoiceOption(
        "writer.acks",
        ("all", "-1", "0", "1"),
        "Who confirms a write: all replicas in sync, nobody (0) or the leader (1).",
    )
    writer_retries = IntOption(
        "writer.retries", INT_MAX, "How often a write is sent again after an error that may pass."
    )
    writer_batch_size = IntOption(
        "writer.batch-size", 2 * MB, "Largest batch of a bucket in bytes.", minimum=1, aliases=("writer.batch.size",)
    )
    writer_batch_timeout_ms = IntOption(
        "writer.batch-timeout-ms", 100, "How long a batch waits for more rows.", maximum=LONG_MAX
    )
    writer_dynamic_batch_size_enabled = BoolOption(
        "writer.dynamic-batch-size.enabled", True, "Fit the batch size to how full recent batches were."
    )
    writer_dynamic_batch_size_min = IntOption(
        "writer.dynamic-batch-size-min", 256 * 1024, "The smallest fitted batch size in bytes.", minimum=1
    )
    writer_bucket_no_key_assigner = ChoiceOption(
        "writer.bucket.no-key-assigner", ("sticky", "round_robin"), "How rows of tables without bucket keys are spread."
    )
    writer_enable_idempotence = BoolOption(
        "writer.enable-idempotence", True, "Let the server drop batches that arrive twice."
    )
    writer_max_inflight_requests_per_bucket = IntOption(
        "writer.max-inflight-requests-per-bucket", 5, "Write requests of a bucket under way at a time.", minimum=1
    )
    writer_delivery_timeout_ms = IntOption(
        "writer.delivery-timeout-ms",
        120_000,
        "How long a batch is tried before its rows fail with the last error.",
        minimum=1,
        maximum=LONG_MAX,
    )
    writer_buffer_memory_size = IntOption(
        "writer.buffer.memory-size", 64 * MB, "Memory in bytes for rows not yet sent.", minimum=1, maximum=LONG_MAX
    )
    writer_buffer_wait_timeout_ms = IntOption(
        "writer.buffer.wait-timeout-ms",
        WAIT_FOREVER_MS,
        "How long a write waits for room in a full buffer; by default as long as it takes.",
        maximum=WAIT_FOREVER_MS,
    )
    writer_kv_backpressure_max_throttle_ms = IntOption(
        "writer.kv-backpressure.max-throttle-ms",
        3_000,
        "The longest pause between writes to an overloaded server.",
        maximum=LONG_MAX,
    )
    writer_dynamic_create_partition_enabled = BoolOption(
        "writer.dynamic-create-partition.enabled", True, "Create missing partitions when rows are written to them."
    )
    scanner_remote_log_prefetch_num = IntOption(
        "scanner.remote-log.prefetch-num", 4, "Remote log segments fetched ahead.", minimum=1
    )
    remote_file_download_thread_num = IntOption(
        "remote-file.download-thread-num", 3, "Remote log files downloaded at a time.", minimum=1
    )
    scanner_remote_log_read_concurrency = IntOption(
        "scanner.remote-log.read-concurrency", 4, "Reads of one remote log file at a time.", minimum=1
    )
    scanner_log_max_poll_records = IntOption(
        "scanner.log.max-poll-records", 500, "The most records of one poll.", minimum=1
    )
    scanner_log_fetch_max_bytes = IntOption(
        "scanner.log.fetch.max-bytes", 16 * MB, "The most bytes of one fetch response.", minimum=1
    )
    scanner_log_fetch_min_bytes = IntOption(
        "scanner.log.fetch.min-bytes", 1, "How many bytes the server waits for before it answers a fetch."
    )
    scanner_log_fetch_wait_max_time_ms = IntOption(
        "scanner.log.fetch.wait-max-time-ms", 500, "How long the server may wait for them."
    )
    scanner_log_fetch_max_bytes_for_bucket = IntOption(
        "scanner.log.fetch.max-bytes-for-bucket", MB, "The most bytes of one bucket in a fetch response.", minimum=1
    )
    security_protocol = ChoiceOption("security.protocol", ("PLAINTEXT", "sasl"), "Whether to authenticate.")
    security_sasl_mechanism = ChoiceOption("security.sasl.mechanism", ("PLAIN",), "How to authenticate.")
    security_sasl_username = StringOption("security.sasl.username", "", "Who authenticates; needed with `sasl`.")
    security_sasl_password = StringOption(
        "security.sasl.password", "", "The password; needed with `sasl`.", secret=True
    )

    __slots__ = ("_values",)

    def __init__(self, properties: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        if properties is not None and not isinstance(properties, Mapping):
            raise ConfigError(f"Config takes a dict of options, not {type(properties).__name__}")
        for key, value in (properties or {}).items():
            self.set(key, value)

    def get(self, key: str) -> Any:
        """The value of an option by its key."""
        return option_of(key).__get__(self, Config)

    def set(self, key: str, value: object) -> None:
        """Set an option by its key."""
        option = option_of(key)
        self._values[option.key] = option.parse(value)

    def to_dict(self) -> dict[str, Any]:
        """The options that were set, by key. The password is in it."""
        return dict(self._values)

    def copy(self) -> Config:
        """An independent copy."""
        copied = Config()
        copied._values.update(self._values)
        return copied

    __copy__ = copy

    @property
    def bootstrap_addresses(self) -> list[tuple[str, int]]:
        """The bootstrap servers as pairs of host and port."""
        return split_addresses(self.bootstrap_servers)

    @property
    def is_sasl(self) -> bool:
        """Whether connections authenticate."""
        return self.security_protocol == "sasl"

    @property
    def required_acks(self) -> int:
        """The acks of write requests: -1 all replicas in sync, 0 nobody, 1 the leader."""
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
        return all(self.get(option.key) == other.get(option.key) for option in CONFIG_OPTIONS)

    __hash__ = None  # type: ignore[assignment]  # options can change

    def __repr__(self) -> str:
        shown = {
            key: REDACTED if option_of(key).secret and value else value for key, value in sorted(self._values.items())
        }
        return f"Config({shown!r})"


CONFIG_OPTIONS: tuple[ConfigOption[Any], ...] = tuple(
    option for option in vars(Config).values() if isinstance(option, ConfigOption)
)
"""Every client option, in the order of the class body."""

_BY_KEY: dict[str, ConfigOption[Any]] = {
    key: option for option in CONFIG_OPTIONS for key in (option.key, *option.aliases)
}


def option_of(key: str) -> ConfigOption[Any]:
    """The option with this key; a ConfigError for unknown keys."""
    option = _BY_KEY.get(key)
    if option is None:
        known = ", ".join(option.key for option in CONFIG_OPTIONS)
        raise ConfigError(f"unknown option {key!r:.100}; the options are {known}")
    return option
