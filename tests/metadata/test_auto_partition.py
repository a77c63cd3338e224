# SPDX-License-Identifier: Apache-2.0
"""Partitions by time."""

from __future__ import annotations

import datetime
import zoneinfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import InvalidConfigError, InvalidTableError, PartitionSpecInvalidError
from fluss.metadata import AutoPartitionStrategy, TableConfig, TimeFormat, add_time_units, parse_time_zone
from fluss.metadata.auto_partition import DEFAULT_TIME_FORMATS, PRECREATE_MAX

NOW = datetime.datetime(2024, 1, 15, 10, 30)


def strategy(**properties: str) -> AutoPartitionStrategy:
    named = {f"table.auto-partition.{key.replace('_', '-')}": value for key, value in properties.items()}
    return AutoPartitionStrategy.of(TableConfig({"table.auto-partition.enabled": "true", **named}), ["dt"])


@pytest.mark.parametrize(
    ("unit", "value", "after"),
    [
        ("YEAR", "2024", "2025"),
        ("QUARTER", "20241", "20242"),
        ("MONTH", "202401", "202402"),
        ("DAY", "20240115", "20240116"),
        ("HOUR", "2024011510", "2024011511"),
    ],
)
def test_default_formats(unit: str, value: str, after: str) -> None:
    found = strategy(time_unit=unit)
    assert found.value_at(NOW) == value
    assert found.values_to_create(NOW) == [value, after]
    assert (found.key, found.time_zone) == ("dt", None)
    found.check_new_value(value, NOW)


@given(
    st.datetimes(datetime.datetime(1000, 1, 1), datetime.datetime(9990, 1, 1)),
    st.sampled_from(sorted(DEFAULT_TIME_FORMATS)),
)
def test_values_sort_by_time(when: datetime.datetime, unit: str) -> None:
    time_format = TimeFormat.parse(DEFAULT_TIME_FORMATS[unit], unit)
    later = add_time_units(when, unit, 1)
    assert time_format.matches(time_format.format(when))
    assert time_format.format(when) < time_format.format(later)
    assert later > when


@pytest.mark.parametrize(
    ("pattern", "unit", "value"),
    [
        ("yyyy-MM-dd", "DAY", "2024-01-15"),
        ("yyyy_MM", "MONTH", "2024_01"),
        ("'d'yyyyMMdd", "DAY", "d20240115"),
        ("uuuu'Q'Q", "QUARTER", "2024Q1"),
        ("yyyyMMdd'T'HH", "HOUR", "20240115T10"),
    ],
)
def test_custom_formats(pattern: str, unit: str, value: str) -> None:
    time_format = TimeFormat.parse(pattern, unit)
    assert time_format.format(NOW) == value
    assert time_format.matches(value)
    assert not time_format.matches(value + "0")


@pytest.mark.parametrize(
    ("pattern", "unit", "text"),
    [
        ("", "DAY", "but has nothing"),
        ("yyyyMM", "DAY", r"must contain fields \[year, month, day\] in this order"),
        ("ddMMyyyy", "DAY", "in this order"),
        ("yyyyMMddHH", "DAY", "in this order"),
        ("yyyyMMMdd", "DAY", "contains 'MMM'"),
        ("yyMMdd", "DAY", "contains 'yy'"),
        ("yyyyMMddmm", "DAY", "contains 'mm'"),
        ("yyyy[MM]dd", "DAY", "must not contain"),
        ("yyyyMMdd'", "DAY", "not closed"),
        ("yyyy/MM/dd", "DAY", "illegal partition values"),
        ("'__'yyyyMMdd", "DAY", "reserved"),
        ("yyyy''MMdd", "DAY", "illegal partition values"),
        ("yyyy'a''b'MMdd", "DAY", "illegal partition values"),
    ],
)
def test_formats_that_make_no_sense(pattern: str, unit: str, text: str) -> None:
    with pytest.raises(InvalidTableError, match=text):
        TimeFormat.parse(pattern, unit)


def test_values_that_name_no_time() -> None:
    day = TimeFormat.parse("yyyyMMdd", "DAY")
    assert day.matches("20240229")
    assert not day.matches("20230229")
    assert not day.matches("2024-02-29")
    assert not TimeFormat.parse("yyyyQ", "QUARTER").matches("20245")
    assert not TimeFormat.parse("yyyyMMddHH", "HOUR").matches("2024011524")


def test_adding_units() -> None:
    leap = datetime.datetime(2024, 2, 29)
    assert add_time_units(leap, "YEAR", 1) == datetime.datetime(2025, 2, 28)
    assert add_time_units(datetime.datetime(2024, 1, 31), "MONTH", 1) == leap
    assert add_time_units(datetime.datetime(2024, 1, 31), "MONTH", -2) == datetime.datetime(2023, 11, 30)
    assert add_time_units(datetime.datetime(2024, 11, 1), "QUARTER", 1) == datetime.datetime(2025, 2, 1)
    assert add_time_units(leap, "DAY", -366) == datetime.datetime(2023, 2, 28)
    assert add_time_units(leap, "HOUR", 25) == datetime.datetime(2024, 3, 1, 1)
    for unit in DEFAULT_TIME_FORMATS:
        with pytest.raises(OverflowError):
            add_time_units(leap, unit, 10**9)


def test_hours_where_clocks_change() -> None:
    berlin = zoneinfo.ZoneInfo("Europe/Berlin")
    before = datetime.datetime(2024, 3, 31, 1, 30, tzinfo=berlin)
    assert add_time_units(before, "HOUR", 1).hour == 3


def test_retention() -> None:
    assert strategy().earliest_retained(NOW) == "20240108"
    assert strategy(num_retention="0").earliest_retained(NOW) == "20240115"
    assert strategy(num_retention="-1").earliest_retained(NOW) is None
    assert strategy(num_retention="2000000000").earliest_retained(NOW) is None
    strategy().check_new_value("20240108", NOW)
    with pytest.raises(PartitionSpecInvalidError, match="out-of-date: the earliest retained partition is '20240108'"):
        strategy().check_new_value("20240107", NOW)
    with pytest.raises(PartitionSpecInvalidError, match="does not match the expected format 'yyyyMMdd'"):
        strategy().check_new_value("yesterday", NOW)
    assert len(strategy(num_precreate="2000000000", time_unit="HOUR").values_to_create(NOW)) == PRECREATE_MAX
    assert strategy(num_precreate="8000", time_unit="YEAR").values_to_create(NOW)[-1] == "9999"


def test_tables_that_are_not_auto_partitioned() -> None:
    free = AutoPartitionStrategy.of(TableConfig({}), ["dt"])
    free.check_new_value("anything", NOW)
    formatted = AutoPartitionStrategy.of(TableConfig({"table.auto-partition.time-format": "yyyy-MM-dd"}), ["dt"])
    formatted.check_new_value("1999-01-01", NOW)
    with pytest.raises(PartitionSpecInvalidError):
        formatted.check_new_value("19990101", NOW)


def test_several_keys() -> None:
    config = TableConfig({"table.auto-partition.enabled": "true", "table.auto-partition.key": "day"})
    strategy = AutoPartitionStrategy.of(config, ["region", "day"])
    assert strategy.key == "day"
    assert strategy.values_to_create(NOW) == []


@pytest.mark.parametrize(("text", "offset_minutes"), [
    ("UTC", 0), ("Z", 0), ("Asia/Shanghai", 480), ("+08:00", 480), ("GMT+8", 480), ("UTC-05:30", -330), ("+0530", 330),
])  # fmt: skip
def test_time_zones(text: str, offset_minutes: int) -> None:
    zone = parse_time_zone(text)
    assert zone.utcoffset(datetime.datetime(2024, 1, 1)) == datetime.timedelta(minutes=offset_minutes)
    config = TableConfig({"table.auto-partition.time-zone": text})
    assert AutoPartitionStrategy.of(config, ["dt"]).time_zone == zone


@pytest.mark.parametrize("text", ["", "Mars/Olympus", "+99:00", "../etc/passwd", "/etc/localtime", "a\0b"])
def test_zones_that_do_not_exist(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="is not a time zone"):
        parse_time_zone(text)
