# SPDX-License-Identifier: Apache-2.0
"""Table properties. The body of `TableConfig` is the one table of names, types, defaults and meanings.

Other properties are handed to the library of a lake: ``paimon.*``, ``iceberg.*``, ``lance.*``, ``delta.*``. Libraries
import Python names, connect to addresses and write to paths that options of a table give them. Who may create a table
may therefore only choose from a list, which has none of these: sizes, counts, codecs and switches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from fluss.errors import FlussError, InvalidConfigError
from fluss.metadata.path import TablePath
from fluss.options import (
    DAY_MS,
    INT_MIN,
    LONG_MAX,
    MINUTE_MS,
    Boolean,
    Choice,
    Duration,
    Option,
    OptionTable,
    OptionType,
    Size,
    Text,
    Whole,
)

TABLE_PREFIX = "table."

T = TypeVar("T")

_INT = Whole(INT_MIN)


class TableProperty(Option[T]):
    """One property, and the attribute of `TableConfig` that reads it. A dynamic one can change in ALTER TABLE."""

    def refusal(self, given: str) -> FlussError:
        # The words of the Java server, which tools look for.
        return InvalidConfigError(
            f"Invalid value for config '{self.key}'. Reason: Could not parse value {given} for key '{self.key}'. "
            f"It takes {self.type.allowed()}."
        )

    @overload
    def __get__(self, config: None, owner: type) -> TableProperty[T]: ...

    @overload
    def __get__(self, config: TableConfig, owner: type) -> T: ...

    def __get__(self, config: TableConfig | None, owner: type) -> T | TableProperty[T]:
        return self if config is None else self.read(config.properties)

    def read(self, properties: Mapping[str, str]) -> T:
        """Return the typed value, or the default where the property is absent."""
        text = properties.get(self.key)
        return self.default if text is None else self.parse(text)


class TableConfig:
    """Typed access to the properties of a table.

    Example:
        TableConfig({"table.log.ttl": "1 h"}).log_ttl_ms
    """

    __slots__ = ("properties",)

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties = properties

    def is_set(self, name: str) -> bool:
        """Return whether the property was given, not merely defaulted."""
        return name in self.properties

    replication_factor = TableProperty(
        "table.replication.factor", _INT, None, "Replicas of each bucket; the cluster has a default."
    )
    log_format = TableProperty(
        "table.log.format", Choice("ARROW", "INDEXED", "COMPACTED"), "ARROW", "How rows are laid out in the log."
    )
    arrow_compression_type = TableProperty(
        "table.log.arrow.compression.type",
        Choice("NONE", "LZ4_FRAME", "ZSTD"),
        "ZSTD",
        "Compression of ARROW batches.",
    )
    arrow_compression_level = TableProperty(
        "table.log.arrow.compression.zstd.level", _INT, 3, "Level of ZSTD, 1 to 22."
    )
    kv_format = TableProperty(
        "table.kv.format",
        Choice("COMPACTED", "INDEXED"),
        "COMPACTED",
        "How rows are laid out in the key-value store.",
    )
    kv_format_version = TableProperty(
        "table.kv.format-version", _INT, 1, "Which rule chooses the key encoding: 1 or 2."
    )
    kv_value_layout_version = TableProperty(
        "table.kv.value-layout-version", _INT, 1, "How a cluster lays out values on its disk; no effect on our server."
    )
    kv_ttl_ms = TableProperty(
        "table.kv.ttl", Duration(), None, "How long rows are kept; not with our server, which refuses it."
    )
    kv_ttl_time_column = TableProperty(
        "table.kv.ttl.time-column",
        Text(),
        None,
        "The column that the age of a row counts from, with `table.kv.ttl`.",
    )
    kv_standby_replica_enabled = TableProperty(
        "table.kv.standby-replica.enabled", Boolean(), False, "Keep a warm standby of the store.", dynamic=True
    )
    log_ttl_ms = TableProperty(
        "table.log.ttl", Duration(), 7 * DAY_MS, "How long the log is kept; 0 keeps it for ever.", dynamic=True
    )
    _log_local_ttl_ms = TableProperty(
        "table.log.local-ttl",
        Duration(),
        None,
        "How long tiered log stays local; by default as long as `table.log.ttl`.",
        dynamic=True,
    )
    tiered_local_segments = TableProperty(
        "table.log.tiered.local-segments", _INT, 2, "Segments kept locally once tiered.", dynamic=True
    )
    auto_partition_enabled = TableProperty(
        "table.auto-partition.enabled", Boolean(), False, "Create and drop partitions by time.", dynamic=True
    )
    auto_partition_key = TableProperty(
        "table.auto-partition.key", Text(), None, "The time key where there are several keys."
    )
    auto_partition_time_unit = TableProperty(
        "table.auto-partition.time-unit",
        Choice("HOUR", "DAY", "MONTH", "QUARTER", "YEAR"),
        "DAY",
        "The span of one partition.",
    )
    auto_partition_time_format = TableProperty(
        "table.auto-partition.time-format", Text(), None, "Pattern of the value; by default that of the unit."
    )
    auto_partition_time_zone = TableProperty(
        "table.auto-partition.time-zone", Text(), None, "Time zone of the value; by default the server's."
    )
    auto_partition_num_precreate = TableProperty(
        "table.auto-partition.num-precreate", _INT, 2, "Partitions made ahead, with the current.", dynamic=True
    )
    auto_partition_num_retention = TableProperty(
        "table.auto-partition.num-retention",
        _INT,
        7,
        "Past partitions kept; negative keeps all. Those whose value is not of the time format always stay.",
        dynamic=True,
    )
    lake_enabled = TableProperty(
        "table.datalake.enabled", Boolean(), False, "Tier the table to the lake.", dynamic=True
    )
    lake_format = TableProperty(
        "table.datalake.format",
        Choice("paimon", "iceberg", "lance", "delta", "hudi"),
        None,
        "The lake; decides key encoding and bucketing even while the lake is off.",
    )
    _lake_database_name = TableProperty(
        "table.datalake.database-name",
        Text(),
        None,
        "Database of the lake table, by default that of the table; not with our server, which refuses it.",
    )
    _lake_table_name = TableProperty(
        "table.datalake.table-name",
        Text(),
        None,
        "Name of the lake table, by default that of the table; not with our server, which refuses it.",
    )
    lake_freshness_ms = TableProperty(
        "table.datalake.freshness", Duration(), 3 * MINUTE_MS, "How far the lake may lag behind.", dynamic=True
    )
    lake_auto_compaction = TableProperty(
        "table.datalake.auto-compaction", Boolean(), False, "Compact lake files while tiering.", dynamic=True
    )
    lake_auto_expire_snapshot = TableProperty(
        "table.datalake.auto-expire-snapshot", Boolean(), False, "Expire lake snapshots while tiering."
    )
    lake_historical_partition_enabled = TableProperty(
        "table.datalake.historical-partition.enabled",
        Boolean(),
        False,
        "Look keys of expired partitions up in the lake; for auto-partitioned primary-key tables in Paimon.",
        dynamic=True,
    )
    merge_engine = TableProperty(
        "table.merge-engine",
        Choice("first_row", "versioned", "aggregation"),
        None,
        "What an upsert of an existing key does; without one it replaces the row.",
    )
    version_column = TableProperty("table.merge-engine.versioned.ver-column", Text(), None, "The version column.")
    _delete_behavior = TableProperty(
        "table.delete.behavior",
        Choice("ALLOW", "IGNORE", "DISABLE"),
        None,
        "What a delete does; by default ALLOW, or IGNORE where a merge engine is set.",
    )
    changelog_image = TableProperty(
        "table.changelog.image",
        Choice("FULL", "WAL"),
        "FULL",
        "Whether the changelog carries the row before an update (FULL) or only the one after (WAL).",
    )
    auto_increment_cache_size = TableProperty(
        "table.auto-increment.cache-size", _INT, 100_000, "Ids reserved at a time."
    )
    _statistics_columns = TableProperty(
        "table.statistics.columns", Text(), None, "Columns with statistics: * or a comma list.", dynamic=True
    )

    @property
    def arrow_compression(self) -> tuple[str, int]:
        """Return type (``NONE``, ``LZ4_FRAME``, ``ZSTD``) and level; the level counts for ZSTD alone."""
        return self.arrow_compression_type, self.arrow_compression_level

    @property
    def log_local_ttl_ms(self) -> int:
        """Return how long tiered log stays local."""
        local = self._log_local_ttl_ms
        return self.log_ttl_ms if local is None else local

    def lake_path(self, path: TablePath) -> TablePath:
        """Return the name that a table has in the lake."""
        return TablePath(self._lake_database_name or path.database_name, self._lake_table_name or path.table_name)

    @property
    def delete_behavior(self) -> str:
        """Return ``ALLOW``, ``IGNORE`` or ``DISABLE``."""
        return self._delete_behavior or ("IGNORE" if self.merge_engine else "ALLOW")

    @property
    def statistics_columns(self) -> tuple[str, ...] | None:
        """Return the columns with statistics as given, ``("*",)`` for all, or None."""
        text = (self._statistics_columns or "").strip()
        return tuple(name.strip() for name in text.split(",")) if text else None


TABLE_PROPERTIES: OptionTable[TableProperty[Any]] = OptionTable(
    "table property", [row for row in vars(TableConfig).values() if isinstance(row, TableProperty)]
)
"""Every property of a table, by name, in the order of the class body."""

LIST_SIZE_SUFFIX = ".arrow.fixed-size-list.size"
"""The property ``<column>.arrow.fixed-size-list.size`` of a table gives the length of all arrays of a column."""


class _Matching(OptionType[str]):
    """A text of a given form."""

    kind = "string"

    def __init__(self, pattern: str, words: str) -> None:
        self._pattern = re.compile(pattern)
        self._words = words

    def convert(self, value: object) -> str | None:
        return value if isinstance(value, str) and self._pattern.fullmatch(value) else None

    def allowed(self) -> str:
        return self._words


_COUNT = Whole(1)
_BYTES = Whole(1, LONG_MAX)
_MILLISECONDS = Whole(0, LONG_MAX)
_SWITCH = Boolean()
_STATS = _Matching(r"none|counts|full|truncate\(\d{1,4}\)", "none, counts, full or truncate(N)")
_INTERVAL = _Matching(r"interval \d{1,6} (second|minute|hour|day|week)s?", "a text such as 'interval 30 days'")
_ROW_CHANGES = Choice("copy-on-write", "merge-on-read")

_ROWS: dict[str, dict[str, OptionType[Any]]] = {
    "paimon": {
        "target-file-size": Size(1),
        "file.format": Choice("parquet", "orc", "avro"),
        "file.compression": Choice("zstd", "lz4", "snappy", "gzip", "none"),
        "file.compression.zstd-level": Whole(1, 22),
        "file.block-size": Size(1),
        "manifest.compression": Choice("zstd", "snappy", "null"),
        "manifest.target-file-size": Size(1),
        "metadata.stats-mode": _STATS,
        "changelog-producer": Choice("none", "input", "full-compaction", "lookup"),
        "deletion-vectors.enabled": _SWITCH,
        "write-only": _SWITCH,
        "num-sorted-run.compaction-trigger": _COUNT,
        "num-sorted-run.stop-trigger": _COUNT,
        "snapshot.num-retained.min": _COUNT,
        "snapshot.num-retained.max": _COUNT,
        "snapshot.time-retained": Duration(),
    },
    "iceberg": {
        "write.format.default": Choice("parquet"),
        "write.target-file-size-bytes": _BYTES,
        "write.parquet.compression-codec": Choice("zstd", "snappy", "gzip", "lz4", "brotli", "uncompressed"),
        "write.parquet.compression-level": Whole(1, 22),
        "write.parquet.row-group-size-bytes": _BYTES,
        "write.parquet.row-group-limit": _COUNT,
        "write.parquet.page-size-bytes": _BYTES,
        "write.parquet.page-row-limit": _COUNT,
        "write.parquet.dict-size-bytes": _BYTES,
        "write.metadata.compression-codec": Choice("none", "gzip"),
        "write.metadata.metrics.default": _STATS,
        "write.metadata.previous-versions-max": _COUNT,
        "write.metadata.delete-after-commit.enabled": _SWITCH,
        "write.delete.mode": _ROW_CHANGES,
        "write.update.mode": _ROW_CHANGES,
        "write.merge.mode": _ROW_CHANGES,
        "write.distribution-mode": Choice("none", "hash", "range"),
        "commit.manifest.target-size-bytes": _BYTES,
        "commit.manifest.min-count-to-merge": _COUNT,
        "commit.manifest-merge.enabled": _SWITCH,
        "commit.retry.num-retries": Whole(0, 100),
        "history.expire.max-snapshot-age-ms": _MILLISECONDS,
        "history.expire.min-snapshots-to-keep": _COUNT,
        "read.split.target-size": _BYTES,
    },
    "lance": {
        "max_row_per_file": _COUNT,
        "max_rows_per_group": _COUNT,
        "max_bytes_per_file": _BYTES,
    },
    "delta": {
        "checkpointInterval": _COUNT,
        "logRetentionDuration": _INTERVAL,
        "deletedFileRetentionDuration": _INTERVAL,
        "enableExpiredLogCleanup": _SWITCH,
        "dataSkippingNumIndexedCols": Whole(-1),
        "targetFileSize": _BYTES,
    },
}


LAKE_PROPERTIES: dict[str, OptionTable[TableProperty[Any]]] = {
    lake_format: OptionTable(
        "lake property", [TableProperty(f"{lake_format}.{name}", kind, None, "") for name, kind in rows.items()]
    )
    for lake_format, rows in _ROWS.items()
}
"""The properties of a table that are handed to its lake, by format and name."""


def check_lake_properties(properties: Mapping[str, str]) -> None:
    """Refuse a property for the library of a lake that is not on its list, or that has another value (code 39)."""
    for name, text in properties.items():
        table = LAKE_PROPERTIES.get(name.partition(".")[0])
        if table is None or "." not in name or name.endswith(LIST_SIZE_SUFFIX):
            continue
        known = table.get(name)
        if known is None:
            near = table.suggest(name)
            hint = f"did you mean '{near}'?" if near else f"the properties are {', '.join(table)}"
            raise InvalidConfigError(f"'{name:.200}' is not a property that a table may give to its lake", hint=hint)
        known.parse(text)


def lake_options(lake_format: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that are handed to the library of a lake, without the name of the format before them."""
    check_lake_properties(properties)
    prefix = f"{lake_format}."
    return {name[len(prefix) :]: text for name, text in properties.items() if name in LAKE_PROPERTIES[lake_format]}
