# SPDX-License-Identifier: Apache-2.0
"""Table properties and their values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import InvalidConfigError
from fluss.metadata import TABLE_PROPERTIES, TableConfig, TablePath, TableProperty
from fluss.options import parse_duration_ms, parse_memory_size

ALTERABLE = {
    "table.datalake.enabled", "table.datalake.historical-partition.enabled", "table.datalake.freshness",
    "table.datalake.auto-compaction", "table.log.ttl", "table.log.tiered.local-segments", "table.log.local-ttl",
    "table.auto-partition.enabled", "table.auto-partition.num-retention", "table.auto-partition.num-precreate",
    "table.statistics.columns", "table.kv.standby-replica.enabled",
}  # fmt: skip


def test_table() -> None:
    assert {name for name, row in TABLE_PROPERTIES.items() if row.dynamic} == ALTERABLE
    assert len(TABLE_PROPERTIES) == 34
    for name, row in TABLE_PROPERTIES.items():
        assert name == row.key
        assert name.startswith("table.")
        assert row.doc
        assert (row.kind == "choice") == bool(row.choices)
        assert row.kind in ("int", "boolean", "string", "duration", "choice")
        assert row.default is None or row.kind != "choice" or row.default in row.choices


@pytest.mark.parametrize(("text", "expected_ms"), [
    ("7 d", 604_800_000), ("7d", 604_800_000), ("1 day", 86_400_000), ("2 Days", 172_800_000), ("3 min", 180_000),
    ("3m", 180_000), ("1 h", 3_600_000), ("10 s", 10_000), ("5 secs", 5_000), ("0ms", 0), (" 12 millis ", 12),
    ("1500 µs", 1), ("999 us", 0), ("2000000 ns", 2),
])  # fmt: skip
def test_durations(text: str, expected_ms: int) -> None:
    assert parse_duration_ms(text) == expected_ms


@pytest.mark.parametrize(
    "text",
    ["", "7", "d", "-1 d", "1.5 d", "7 fortnights", "1 d 2 h", "9" * 20 + " d", "9999999999999999999 d", "1_0 s"],
)
def test_texts_that_are_no_durations(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"not a duration|too long"):
        parse_duration_ms(text)


@pytest.mark.parametrize(("text", "size"), [
    ("1024", 1024), ("1b", 1), ("64 kb", 65536), ("1K", 1024), ("32 mb", 32 * 1024**2), ("1 gb", 1024**3),
    ("2 tebibytes", 2 * 1024**4),
])  # fmt: skip
def test_memory_sizes(text: str, size: int) -> None:
    assert parse_memory_size(text) == size


@pytest.mark.parametrize("text", ["", "mb", "-1", "1.5 gb", "1 xb", "9999999999999999999 tb"])
def test_texts_that_are_no_sizes(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"not a size|too large"):
        parse_memory_size(text)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (parse_duration_ms, parse_memory_size):
        try:
            value = parse(text)
        except InvalidConfigError:
            continue
        assert isinstance(value, int)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("table.log.format", "arrow", "ARROW"),
        ("table.log.arrow.compression.type", "lz4-frame", "LZ4_FRAME"),
        ("table.datalake.format", "PAIMON", "paimon"),
        ("table.merge-engine", "FIRST_ROW", "first_row"),
        ("table.delete.behavior", "ignore", "IGNORE"),
        ("table.auto-partition.time-unit", "hour", "HOUR"),
        ("table.log.ttl", "1 h", 3_600_000),
        ("table.replication.factor", "3", 3),
        ("table.datalake.enabled", "True", True),
        ("table.auto-partition.key", "dt", "dt"),
    ],
)
def test_typed_values(name: str, text: str, value: Any) -> None:
    assert TABLE_PROPERTIES[name].read({name: text}) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("table.log.format", "parquet"),
        ("table.log.ttl", "7"),
        ("table.replication.factor", "many"),
        ("table.datalake.enabled", "yes"),
    ],
)
def test_bad_values_name_the_property(name: str, text: str) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        TABLE_PROPERTIES[name].read({name: text})
    assert caught.value.error_code == 39
    assert f"Invalid value for config '{name}'. Reason: " in caught.value.message
    assert repr(text) in caught.value.message


def test_typed_access() -> None:
    config = TableConfig({})
    defaults = {
        "replication_factor": None,
        "log_format": "ARROW",
        "kv_format": "COMPACTED",
        "kv_format_version": 1,
        "kv_standby_replica_enabled": False,
        "kv_value_layout_version": 1,
        "kv_ttl_ms": None,
        "kv_ttl_time_column": None,
        "arrow_compression": ("ZSTD", 3),
        "arrow_compression_type": "ZSTD",
        "arrow_compression_level": 3,
        "log_ttl_ms": 604_800_000,
        "log_local_ttl_ms": 604_800_000,
        "tiered_local_segments": 2,
        "auto_partition_enabled": False,
        "auto_partition_key": None,
        "auto_partition_time_unit": "DAY",
        "auto_partition_time_format": None,
        "auto_partition_time_zone": None,
        "auto_partition_num_precreate": 2,
        "auto_partition_num_retention": 7,
        "lake_enabled": False,
        "lake_format": None,
        "lake_freshness_ms": 180_000,
        "lake_auto_compaction": False,
        "lake_auto_expire_snapshot": False,
        "lake_historical_partition_enabled": False,
        "merge_engine": None,
        "version_column": None,
        "delete_behavior": "ALLOW",
        "changelog_image": "FULL",
        "auto_increment_cache_size": 100_000,
        "statistics_columns": None,
    }
    assert {name: getattr(config, name) for name in defaults} == defaults
    assert set(defaults) == {
        name
        for name, value in vars(TableConfig).items()
        if isinstance(value, (property, TableProperty)) and not name.startswith("_")
    }
    assert not config.is_set("table.log.ttl")
    config = TableConfig(
        {
            "table.log.ttl": "2 d",
            "table.log.local-ttl": "1 d",
            "table.merge-engine": "versioned",
            "table.statistics.columns": "a, b",
        }
    )
    assert config.log_local_ttl_ms == 86_400_000
    assert config.delete_behavior == "IGNORE"
    assert config.statistics_columns == ("a", "b")
    assert config.is_set("table.log.ttl")
    assert TableConfig({"table.delete.behavior": "disable"}).delete_behavior == "DISABLE"
    renamed = TableConfig({"table.datalake.database-name": "lake_db", "table.datalake.table-name": "lake_t"})
    assert renamed.lake_path(TablePath("db", "t")) == TablePath("lake_db", "lake_t")
    assert config.lake_path(TablePath("db", "t")) == TablePath("db", "t")
