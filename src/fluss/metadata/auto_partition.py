# SPDX-License-Identifier: Apache-2.0
"""Partitions by time: value formats, which partitions to create ahead, and which to drop.

Nothing here reads a clock: callers pass the present time in the zone of the table.
"""

from __future__ import annotations

import calendar
import contextlib
import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fluss.errors import InvalidConfigError, InvalidTableError, PartitionSpecInvalidError
from fluss.metadata.path import name_problem, reserved_prefix_problem
from fluss.metadata.properties import TableConfig

DEFAULT_TIME_FORMATS = {
    "YEAR": "yyyy",
    "QUARTER": "yyyyQ",
    "MONTH": "yyyyMM",
    "DAY": "yyyyMMdd",
    "HOUR": "yyyyMMddHH",
}

PRECREATE_MAX = 10_000
"""No table creates more partitions ahead than this, whatever its properties say."""

_FIELDS_OF_UNIT = {
    "YEAR": ("year",),
    "QUARTER": ("year", "quarter"),
    "MONTH": ("year", "month"),
    "DAY": ("year", "month", "day"),
    "HOUR": ("year", "month", "day", "hour"),
}
_TOKEN = re.compile(r"'(?:[^']|'')*'|'|([A-Za-z])\1*|[^A-Za-z']")
_FIELD_OF_LETTER = {"y": "year", "u": "year", "Q": "quarter", "M": "month", "d": "day", "H": "hour"}
_WIDTHS = {"year": 4, "quarter": 1, "month": 2, "day": 2, "hour": 2}


@dataclass(frozen=True)
class TimeFormat:
    """A parsed pattern: alternating literal texts and time fields."""

    pattern: str
    parts: tuple[tuple[str, bool], ...]
    """Pairs of text and whether it names a field."""

    @staticmethod
    def parse(pattern: str, unit: str) -> TimeFormat:
        """Read a pattern such as ``yyyy-MM-dd``.

        It must hold exactly the fields of the unit, largest first and in fixed widths, so that values sort by time.
        """
        parts: list[tuple[str, bool]] = []
        for token in (found[0] for found in _TOKEN.finditer(pattern)):
            if token == "''":  # a quoted quote
                parts.append(("'", False))
            elif token[0] == "'":
                if len(token) < 2 or token[-1] != "'":
                    raise InvalidTableError(f"time format {pattern!r} has a quote that is not closed")
                parts.append((token[1:-1].replace("''", "'"), False))
            elif token in "[]{}#":
                raise InvalidTableError(f"time format {pattern!r} must not contain {token!r}")
            elif token[0].isascii() and token[0].isalpha():
                field = _FIELD_OF_LETTER.get(token[0])
                if field is None or len(token) != _WIDTHS[field]:
                    raise InvalidTableError(
                        f"time format {pattern!r} contains {token!r}; the fields are yyyy, Q, MM, dd and HH"
                    )
                parts.append((field, True))
            else:
                parts.append((token, False))
        fields = tuple(text for text, is_field in parts if is_field)
        if fields != _FIELDS_OF_UNIT[unit]:
            raise InvalidTableError(
                f"time format {pattern!r} must contain fields [{', '.join(_FIELDS_OF_UNIT[unit])}] in this order "
                f"for unit {unit}, but has {', '.join(fields) or 'nothing'}"
            )
        time_format = TimeFormat(pattern, tuple(parts))
        sample = time_format.format(datetime.datetime(2024, 11, 11, 11))
        if problem := name_problem(sample) or reserved_prefix_problem(sample):
            raise InvalidTableError(f"time format {pattern!r} makes illegal partition values ({sample}): {problem}")
        return time_format

    def format(self, when: datetime.datetime) -> str:
        """The value for a time."""
        fields = {
            "year": when.year,
            "quarter": (when.month + 2) // 3,
            "month": when.month,
            "day": when.day,
            "hour": when.hour,
        }
        return "".join(f"{fields[text]:0{_WIDTHS[text]}d}" if is_field else text for text, is_field in self.parts)

    def matches(self, value: str) -> bool:
        """Whether a value is of this format and names a time that exists."""
        pattern = "".join(
            f"(?P<{text}>[0-9]{{{_WIDTHS[text]}}})" if is_field else re.escape(text) for text, is_field in self.parts
        )
        match = re.fullmatch(pattern, value)
        if match is None:
            return False
        found = {name: int(text) for name, text in match.groupdict().items()}
        if not 1 <= found.get("quarter", 1) <= 4:
            return False
        try:
            datetime.datetime(found["year"], found.get("month", 1), found.get("day", 1), found.get("hour", 0))
        except ValueError:
            return False
        return True


def add_time_units(when: datetime.datetime, unit: str, count: int) -> datetime.datetime:
    """The time `count` units later. Days that a shorter month lacks become its last day."""
    if unit == "HOUR":
        if when.tzinfo is None:
            return when + datetime.timedelta(hours=count)
        # Python adds to the wall clock; an hour is an hour even where clocks change.
        later = when.astimezone(datetime.timezone.utc) + datetime.timedelta(hours=count)
        return later.astimezone(when.tzinfo)
    if unit == "DAY":
        return when + datetime.timedelta(days=count)
    months = when.year * 12 + when.month - 1 + count * {"MONTH": 1, "QUARTER": 3, "YEAR": 12}[unit]
    year, month = divmod(months, 12)
    if not datetime.MINYEAR <= year <= datetime.MAXYEAR:
        raise OverflowError(f"{when} and {count} {unit} lie too far apart")
    day = min(when.day, calendar.monthrange(year, month + 1)[1])
    return when.replace(year=year, month=month + 1, day=day)


def parse_time_zone(text: str) -> datetime.tzinfo:
    """A zone by name (``Asia/Shanghai``, ``UTC``) or by offset (``+08:00``, ``GMT+8``, ``UTC-05:30``)."""
    match = re.fullmatch(r"(?:UTC|GMT|UT)?([+-])(\d{1,2})(?::?(\d{2}))?", text.strip())
    if match:
        minutes = int(match[2]) * 60 + int(match[3] or 0)
        if minutes <= 18 * 60:
            return datetime.timezone(datetime.timedelta(minutes=-minutes if match[1] == "-" else minutes))
    if text.strip() in ("Z", "UTC", "GMT", "UT"):
        return datetime.timezone.utc
    import zoneinfo  # few processes ever make a partition by time

    try:
        return zoneinfo.ZoneInfo(text.strip())
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidConfigError(
            f"{text!r:.80} is not a time zone: expected a name such as 'Asia/Shanghai' or an offset such as '+08:00'"
        ) from None


@dataclass(frozen=True)
class AutoPartitionStrategy:
    """How a table is partitioned by time."""

    enabled: bool
    key: str
    """The partition key that holds the time."""
    time_unit: str
    time_format: TimeFormat
    has_explicit_format: bool
    time_zone: datetime.tzinfo | None
    """The zone of the values; None is the zone of the server."""
    num_precreate: int
    num_retention: int

    @staticmethod
    def of(config: TableConfig, partition_keys: Sequence[str]) -> AutoPartitionStrategy:
        """The strategy of a partitioned table."""
        unit = config.auto_partition_time_unit
        pattern = config.auto_partition_time_format
        zone = config.auto_partition_time_zone
        return AutoPartitionStrategy(
            enabled=config.auto_partition_enabled,
            key=config.auto_partition_key or partition_keys[0],
            time_unit=unit,
            time_format=TimeFormat.parse(DEFAULT_TIME_FORMATS[unit] if pattern is None else pattern, unit),
            has_explicit_format=pattern is not None,
            time_zone=None if zone is None else parse_time_zone(zone),
            num_precreate=0 if len(partition_keys) > 1 else config.auto_partition_num_precreate,
            num_retention=config.auto_partition_num_retention,
        )

    def value_at(self, when: datetime.datetime) -> str:
        """The partition value for a time in the zone of the table."""
        return self.time_format.format(when)

    def values_to_create(self, now: datetime.datetime) -> list[str]:
        """The values that should exist now: the current one and those that follow."""
        values: list[str] = []
        offsets = range(min(self.num_precreate, PRECREATE_MAX))
        with contextlib.suppress(OverflowError):  # there is no year 10000
            values.extend(self.value_at(add_time_units(now, self.time_unit, offset)) for offset in offsets)
        return values

    def earliest_retained(self, now: datetime.datetime) -> str | None:
        """The smallest value that is kept; partitions that sort before it are dropped. None keeps all."""
        if self.num_retention < 0:
            return None
        try:
            return self.value_at(add_time_units(now, self.time_unit, -self.num_retention))
        except OverflowError:
            return None  # retention reaches back before the first year

    def is_expired(self, value: str, now: datetime.datetime) -> bool:
        """Whether the partition of a value is to be dropped. One that is not of the format has no age."""
        earliest = self.earliest_retained(now)
        return earliest is not None and value < earliest and self.time_format.matches(value)

    def is_past(self, value: str, now: datetime.datetime) -> bool:
        """Whether a value is of the format and lies before that of the present: its partition may have expired."""
        return self.time_format.matches(value) and value < self.value_at(now)

    def check_new_value(self, value: str, now: datetime.datetime) -> None:
        """Refuse a value that is not of the format, or that would be dropped at once (code 43)."""
        if not self.enabled and not self.has_explicit_format:
            return
        if not self.time_format.matches(value):
            raise PartitionSpecInvalidError(
                f"Partition value {value!r:.300} does not match the expected format '{self.time_format.pattern}' "
                f"of time unit {self.time_unit}. The table property 'table.auto-partition.time-format' takes others "
                "when the table is created, such as 'yyyy-MM-dd'."
            )
        earliest = self.earliest_retained(now) if self.enabled else None
        if earliest is not None and value < earliest:
            raise PartitionSpecInvalidError(
                f"Partition value {value!r} is out-of-date: the earliest retained partition is {earliest!r}."
            )
