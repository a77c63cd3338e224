# SPDX-License-Identifier: Apache-2.0
"""Table properties: one table of names, types, defaults and meanings, and typed access to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fluss.errors import InvalidConfigError

TABLE_PREFIX = "table."

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

_DURATION_UNITS_NS: dict[str, int] = {}
for _names, _factor in (
    (("d", "day", "days"), 86_400_000_000_000),
    (("h", "hour", "hours"), 3_600_000_000_000),
    (("min", "m", "minute", "minutes"), 60_000_000_000),
    (("s", "sec", "secs", "second", "seconds"), 1_000_000_000),
    (("ms", "milli", "millis", "millisecond", "milliseconds"), 1_000_000),
    (("µs", "μs", "us", "micro", "micros", "microsecond", "microseconds"), 1_000),
    (("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1),
):
    _DURATION_UNITS_NS.update(dict.fromkeys(_names, _factor))

_MEMORY_UNITS: dict[str, int] = {"": 1}
for _names, _factor in (
    (("b", "byte", "bytes"), 1),
    (("k", "kb", "kibibyte", "kibibytes"), 1024),
    (("m", "mb", "mebibyte", "mebibytes"), 1024**2),
    (("g", "gb", "gibibyte", "gibibytes"), 1024**3),
    (("t", "tb", "tebibyte", "tebibytes"), 1024**4),
):
    _MEMORY_UNITS.update(dict.fromkeys(_names, _factor))

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]{1,19})\s*([^\W\d_]*)\s*")


def parse_duration_ms(text: str) -> int:
    """``"7 d"`` -> milliseconds. A number and a unit: d, h, min, s, ms, µs or ns; less than 1 ms is dropped."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    factor = _DURATION_UNITS_NS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidConfigError(
            f"{text!r:.80} is not a duration: expected a number and a unit such as '7 d', '12 h', '30 min', '100 ms'"
        )
    duration_ms = int(match[1]) * factor // 1_000_000
    if duration_ms > LONG_MAX:
        raise InvalidConfigError(f"duration {text!r:.80} is too long")
    return duration_ms


def parse_memory_size(text: str) -> int:
    """``"64mb"`` -> bytes. A number and a unit: b (default), kb, mb, gb or tb, in steps of 1024."""
    match = _NUMBER_AND_UNIT.fullmatch(text)
    factor = _MEMORY_UNITS.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise InvalidConfigError(
            f"{text!r:.80} is not a size: expected a number and a unit such as '1024', '64 kb', '32 mb', '1 gb'"
        )
    size_bytes = int(match[1]) * factor
    if size_bytes > LONG_MAX:
        raise InvalidConfigError(f"size {text!r:.80} is too large")
    return size_bytes


def parse_bool(text: str) -> bool:
    """``true`` or ``false`` in any case."""
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise InvalidConfigError(f"{text!r:.80} is neither true nor false")
    return lowered == "true"


def parse_int(text: str) -> int:
    """A whole number of 32 bits."""
    if not re.fullmatch(r"\s*[+-]?[0-9]{1,10}\s*", text) or not -INT_MAX - 1 <= int(text) <= INT_MAX:
        raise InvalidConfigError(f"{text!r:.80} is not a whole number of 32 bits")
    return int(text)


class TableProperty(NamedTuple):
    """One line of the table of properties."""

    name: str
    kind: str
    """``int``, ``bool``, ``string``, ``duration`` (milliseconds) or ``choice``."""
    default: Any
    """The value that holds when the property is absent; None where there is none or the cluster decides."""
    alterable: bool
    """Whether the property of an existing table may change."""
    meaning: str
    choices: tuple[str, ...] = ()
    """The values a ``choice`` takes, in the spelling they are written in; read in any case."""

    def parse(self, text: str) -> Any:
        """The typed value; an InvalidConfigError names the property, what was given and what is allowed."""
        try:
            if self.kind == "int":
                return parse_int(text)
            if self.kind == "bool":
                return parse_bool(text)
            if self.kind == "duration":
                return parse_duration_ms(text)
        except InvalidConfigError as error:
            raise InvalidConfigError(f"Invalid value for config '{self.name}'. Reason: {error.message}") from None
        if self.kind == "choice":
            for choice in self.choices:
                if choice.upper() == text.strip().upper().replace("-", "_"):
                    return choice
            raise InvalidConfigError(
                f"Invalid value for config '{self.name}'. Reason: {text!r:.80} is none of {', '.join(self.choices)}"
            )
        return text


DAY_MS = 86_400_000

TABLE_PROPERTIES: dict[str, TableProperty] = {
    row.name: row
    for row in (
        TableProperty(
            "table.replication.factor", "int", None, False, "Replicas of each bucket; the cluster has a default."
        ),
        TableProperty(
            "table.log.format",
            "choice",
            "ARROW",
            False,
            "How rows are laid out in the log.",
            ("ARROW", "INDEXED", "COMPACTED"),
        ),
        TableProperty(
            "table.log.arrow.compression.type",
            "choice",
            "ZSTD",
            False,
            "Compression of ARROW batches.",
            ("NONE", "LZ4_FRAME", "ZSTD"),
        ),
        TableProperty("table.log.arrow.compression.zstd.level", "int", 3, False, "Level of ZSTD, 1 to 22."),
        TableProperty(
            "table.kv.format",
            "choice",
            "COMPACTED",
            False,
            "How rows are laid out in the key-value store.",
            ("COMPACTED", "INDEXED"),
        ),
        TableProperty("table.kv.format-version", "int", 1, False, "Which rule chooses the key encoding: 1 or 2."),
        TableProperty("table.kv.standby-replica.enabled", "bool", False, True, "Keep a warm standby of the store."),
        TableProperty("table.log.ttl", "duration", 7 * DAY_MS, True, "How long the log is kept; 0 keeps it for ever."),
        TableProperty(
            "table.log.local-ttl",
            "duration",
            None,
            True,
            "How long tiered log stays local; by default as long as `table.log.ttl`.",
        ),
        TableProperty("table.log.tiered.local-segments", "int", 2, True, "Segments kept locally once tiered."),
        TableProperty("table.auto-partition.enabled", "bool", False, True, "Create and drop partitions by time."),
        TableProperty("table.auto-partition.key", "string", None, False, "The time key where there are several keys."),
        TableProperty(
            "table.auto-partition.time-unit",
            "choice",
            "DAY",
            False,
            "The span of one partition.",
            ("HOUR", "DAY", "MONTH", "QUARTER", "YEAR"),
        ),
        TableProperty(
            "table.auto-partition.time-format",
            "string",
            None,
            False,
            "Pattern of the value; by default that of the unit.",
        ),
        TableProperty(
            "table.auto-partition.time-zone", "string", None, False, "Time zone of the value; by default the server's."
        ),
        TableProperty("table.auto-partition.num-precreate", "int", 2, True, "Partitions made ahead, with the current."),
        TableProperty(
            "table.auto-partition.num-retention", "int", 7, True, "Past partitions kept; negative keeps all."
        ),
        TableProperty("table.datalake.enabled", "bool", False, True, "Tier the table to the lake."),
        TableProperty(
            "table.datalake.format",
            "choice",
            None,
            False,
            "The lake; decides key encoding and bucketing even while the lake is off.",
            ("paimon", "iceberg", "lance", "hudi"),
        ),
        TableProperty("table.datalake.freshness", "duration", 180_000, True, "How far the lake may lag behind."),
        TableProperty("table.datalake.auto-compaction", "bool", False, True, "Compact lake files while tiering."),
        TableProperty(
            "table.datalake.auto-expire-snapshot", "bool", False, False, "Expire lake snapshots while tiering."
        ),
        TableProperty(
            "table.datalake.historical-partition.enabled",
            "bool",
            False,
            True,
            "Look up expired partitions in the lake.",
        ),
        TableProperty(
            "table.merge-engine",
            "choice",
            None,
            False,
            "What an upsert of an existing key does; without one it replaces the row.",
            ("first_row", "versioned", "aggregation"),
        ),
        TableProperty("table.merge-engine.versioned.ver-column", "string", None, False, "The version column."),
        TableProperty(
            "table.delete.behavior",
            "choice",
            None,
            False,
            "What a delete does; by default ALLOW, or IGNORE where a merge engine is set.",
            ("ALLOW", "IGNORE", "DISABLE"),
        ),
        TableProperty(
            "table.changelog.image",
            "choice",
            "FULL",
            False,
            "Whether the changelog carries the row before an update (FULL) or only the one after (WAL).",
            ("FULL", "WAL"),
        ),
        TableProperty("table.auto-increment.cache-size", "int", 100_000, False, "Ids reserved at a time."),
        TableProperty("table.statistics.columns", "string", None, True, "Columns with statistics: * or a comma list."),
    )
}
"""Every property of a table, in one place."""


def get_property(properties: Mapping[str, str], name: str) -> Any:
    """The typed value of a property, or its default."""
    row = TABLE_PROPERTIES[name]
    text = properties.get(name)
    return row.default if text is None else row.parse(text)


class TableConfig:
    """Typed access to the properties of a table."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        self._properties = properties

    def _get(self, name: str) -> Any:
        return get_property(self._properties, name)

    def is_set(self, name: str) -> bool:
        """Whether the property was given, not merely defaulted."""
        return name in self._properties

    @property
    def replication_factor(self) -> int | None:
        return self._get("table.replication.factor")  # type: ignore[no-any-return]

    @property
    def log_format(self) -> str:
        """``ARROW``, ``INDEXED`` or ``COMPACTED``."""
        return self._get("table.log.format")  # type: ignore[no-any-return]

    @property
    def kv_format(self) -> str:
        """``COMPACTED`` or ``INDEXED``."""
        return self._get("table.kv.format")  # type: ignore[no-any-return]

    @property
    def kv_format_version(self) -> int:
        return self._get("table.kv.format-version")  # type: ignore[no-any-return]

    @property
    def arrow_compression(self) -> tuple[str, int]:
        """Type (``NONE``, ``LZ4_FRAME``, ``ZSTD``) and level; the level counts for ZSTD alone."""
        return self._get("table.log.arrow.compression.type"), self._get("table.log.arrow.compression.zstd.level")

    @property
    def log_ttl_ms(self) -> int:
        return self._get("table.log.ttl")  # type: ignore[no-any-return]

    @property
    def log_local_ttl_ms(self) -> int:
        local = self._get("table.log.local-ttl")
        return self.log_ttl_ms if local is None else local

    @property
    def tiered_local_segments(self) -> int:
        return self._get("table.log.tiered.local-segments")  # type: ignore[no-any-return]

    @property
    def auto_partition_enabled(self) -> bool:
        return self._get("table.auto-partition.enabled")  # type: ignore[no-any-return]

    @property
    def auto_partition_key(self) -> str | None:
        return self._get("table.auto-partition.key")  # type: ignore[no-any-return]

    @property
    def auto_partition_time_unit(self) -> str:
        return self._get("table.auto-partition.time-unit")  # type: ignore[no-any-return]

    @property
    def auto_partition_time_format(self) -> str | None:
        return self._get("table.auto-partition.time-format")  # type: ignore[no-any-return]

    @property
    def auto_partition_time_zone(self) -> str | None:
        return self._get("table.auto-partition.time-zone")  # type: ignore[no-any-return]

    @property
    def auto_partition_num_precreate(self) -> int:
        return self._get("table.auto-partition.num-precreate")  # type: ignore[no-any-return]

    @property
    def auto_partition_num_retention(self) -> int:
        return self._get("table.auto-partition.num-retention")  # type: ignore[no-any-return]

    @property
    def lake_enabled(self) -> bool:
        return self._get("table.datalake.enabled")  # type: ignore[no-any-return]

    @property
    def lake_format(self) -> str | None:
        """``paimon``, ``iceberg``, ``lance``, ``hudi`` or None."""
        return self._get("table.datalake.format")  # type: ignore[no-any-return]

    @property
    def lake_freshness_ms(self) -> int:
        return self._get("table.datalake.freshness")  # type: ignore[no-any-return]

    @property
    def lake_auto_compaction(self) -> bool:
        return self._get("table.datalake.auto-compaction")  # type: ignore[no-any-return]

    @property
    def lake_auto_expire_snapshot(self) -> bool:
        return self._get("table.datalake.auto-expire-snapshot")  # type: ignore[no-any-return]

    @property
    def lake_historical_partition_enabled(self) -> bool:
        return self._get("table.datalake.historical-partition.enabled")  # type: ignore[no-any-return]

    @property
    def merge_engine(self) -> str | None:
        """``first_row``, ``versioned``, ``aggregation`` or None."""
        return self._get("table.merge-engine")  # type: ignore[no-any-return]

    @property
    def version_column(self) -> str | None:
        return self._get("table.merge-engine.versioned.ver-column")  # type: ignore[no-any-return]

    @property
    def delete_behavior(self) -> str:
        """``ALLOW``, ``IGNORE`` or ``DISABLE``."""
        behavior = self._get("table.delete.behavior")
        return behavior or ("IGNORE" if self.merge_engine else "ALLOW")

    @property
    def changelog_image(self) -> str:
        """``FULL`` or ``WAL``."""
        return self._get("table.changelog.image")  # type: ignore[no-any-return]

    @property
    def auto_increment_cache_size(self) -> int:
        return self._get("table.auto-increment.cache-size")  # type: ignore[no-any-return]

    @property
    def statistics_columns(self) -> tuple[str, ...] | None:
        """The columns with statistics as given, ``("*",)`` for all, or None."""
        text = self._get("table.statistics.columns")
        return None if text is None else tuple(name.strip() for name in text.split(","))
