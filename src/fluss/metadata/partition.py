# SPDX-License-Identifier: Apache-2.0
"""Partitions: specs, names, and the text form of partition values."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluss.errors import InvalidArgumentError, InvalidRowError, PartitionSpecInvalidError
from fluss.metadata import types as t
from fluss.metadata.path import name_problem, reserved_prefix_problem

PARTITION_VALUE_SEPARATOR = "$"

HISTORICAL_PARTITION = "__historical__"
"""The partition that a server keeps for lookups of expired partitions. It holds no rows: those are in the lake."""

PARTITION_KEY_TYPES: tuple[type[t.DataType], ...] = (
    *t.TEXT_TYPES,
    t.BooleanType,
    *t.BYTES_TYPES,
    *t.INTEGER_TYPES,
    *t.FLOAT_TYPES,
    t.DateType,
    t.TimeType,
    *t.TIMESTAMP_TYPES,
)
"""The types a partition key may have."""

VARIANTS = ("java", "pyfluss")
"""Who must find the partition: floats and timestamps have different text forms in Java and in pyfluss."""

_EPOCH = datetime.datetime(1970, 1, 1)
_MS_PER_DAY = 86_400_000


def format_partition_value(data_type: t.DataType, value: object, variant: str = "java") -> str:
    """The text form of a partition value.

    `value` is a logical value: days for DATE, milliseconds of the day for TIME, nanoseconds since the epoch for
    timestamps. The text is not validated; see `validate_partition_value`.
    """
    if variant not in VARIANTS:
        raise InvalidArgumentError(f"variant must be one of {', '.join(VARIANTS)}, not {variant!r}")
    if value is None:
        raise InvalidRowError("a partition value must not be null")
    if not isinstance(data_type, PARTITION_KEY_TYPES):
        raise InvalidRowError(f"a column of type {data_type} cannot be a partition key")
    text = _format(data_type, value, variant)
    if text is None:
        raise InvalidRowError(f"{value!r:.80} is not a value of partition type {data_type}")
    return text


def _format(data_type: t.DataType, value: object, variant: str) -> str | None:
    """The text form, or None if the value does not fit the type."""
    if isinstance(data_type, t.BooleanType):
        return str(value).lower() if isinstance(value, bool) else None
    if isinstance(data_type, t.TEXT_TYPES):
        return value if isinstance(value, str) else None
    if isinstance(data_type, t.BYTES_TYPES):
        return bytes(value).hex() if isinstance(value, (bytes, bytearray, memoryview)) else None
    if isinstance(value, bool):
        return None
    if isinstance(data_type, t.FLOAT_TYPES):
        if not isinstance(value, (int, float)):
            return None
        number = np.float32(value) if isinstance(data_type, t.FloatType) else np.float64(value)
        return _special_float(number) or (_java_float if variant == "java" else _plain_float)(number)
    if not isinstance(value, int):
        return None
    try:
        if isinstance(data_type, t.DateType):
            return (_EPOCH + datetime.timedelta(days=value)).date().isoformat()
        if isinstance(data_type, t.TIMESTAMP_TYPES):
            return _timestamp(value, variant)
    except OverflowError:
        raise InvalidRowError(f"partition value {value} of type {data_type} lies outside the years 1 to 9999") from None
    if isinstance(data_type, t.TimeType):
        return _time(value)
    return str(value)


def _time(ms_of_day: int) -> str:
    if not 0 <= ms_of_day < _MS_PER_DAY:
        raise InvalidRowError(f"partition value {ms_of_day} is not a time of day in milliseconds")
    seconds, ms = divmod(ms_of_day, 1000)
    return f"{seconds // 3600:02d}-{seconds // 60 % 60:02d}-{seconds % 60:02d}_{ms:03d}"


def _timestamp(epoch_ns: int, variant: str) -> str:
    seconds, ns = divmod(epoch_ns, 1_000_000_000)
    time = _EPOCH + datetime.timedelta(seconds=seconds)
    if variant == "java":
        fraction = f"{ns:09d}".rstrip("0")
    elif ns % 1_000_000:
        fraction = f"{ns:09d}"
    else:
        fraction = f"{ns // 1_000_000:03d}" if ns else ""
    # strftime does not pad years below 1000.
    return f"{time.year:04d}-{time:%m-%d-%H-%M-%S}_{fraction}"


def _special_float(number: np.floating) -> str | None:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Inf" if number > 0 else "-Inf"
    return None


def _java_float(number: np.floating) -> str:
    """As Java prints it: decimal from 10^-3 to 10^7, else with an exponent; always a digit after the point."""
    magnitude = abs(float(number))
    if number == 0 or 1e-3 <= magnitude < 1e7:
        text = np.format_float_positional(number, unique=True, trim="0")
    else:
        digits, _, exponent = np.format_float_scientific(number, unique=True, trim="0").partition("e")
        text = f"{digits}E{int(exponent)}"
    return text.replace(".", "_")


def _plain_float(number: np.floating) -> str:
    """As pyfluss prints it: never an exponent, no point after whole numbers."""
    return np.format_float_positional(number, unique=True, trim="-").replace(".", "_")


_TIME_TEXT = re.compile(r"(\d{2})-(\d{2})-(\d{2})_(\d{3})")
_TIMESTAMP_TEXT = re.compile(r"(\d{4})-(\d{2})-(\d{2})-(\d{2})-(\d{2})-(\d{2})_(\d{0,9})")


def parse_partition_value(data_type: t.DataType, text: str) -> Any:
    """The logical value of a partition value, whichever client wrote its text.

    None if the text is of no known form, or its value beyond what the type can hold.
    """
    try:
        return _parse(data_type, text)
    except (ValueError, OverflowError):
        return None


def _parse(data_type: t.DataType, text: str) -> Any:
    if isinstance(data_type, t.TEXT_TYPES):
        return text
    if isinstance(data_type, t.BooleanType):
        return {"true": True, "false": False}.get(text)
    if isinstance(data_type, t.BYTES_TYPES):
        return bytes.fromhex(text)
    if isinstance(data_type, t.DoubleType):
        return float(text.replace("_", "."))
    if isinstance(data_type, t.FloatType):
        return float(np.float32(text.replace("_", ".")))
    if isinstance(data_type, t.DateType):
        return None if len(text) != 10 else (datetime.date.fromisoformat(text) - _EPOCH.date()).days
    if isinstance(data_type, t.TimeType):
        if (found := _TIME_TEXT.fullmatch(text)) is None:
            return None
        hours, minutes, seconds, ms = map(int, found.groups())
        return ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms
    if isinstance(data_type, t.TIMESTAMP_TYPES):
        if (found := _TIMESTAMP_TEXT.fullmatch(text)) is None:
            return None
        *parts, fraction = found.groups()
        span = datetime.datetime(*map(int, parts)) - _EPOCH  # type: ignore[arg-type]
        nanos = (span.days * 86_400 + span.seconds) * 10**9 + int(fraction.ljust(9, "0"))
        return nanos if data_type.precision <= 6 or -(1 << 63) <= nanos < 1 << 63 else None
    number, limit = int(text), 1 << data_type.to_arrow().bit_width - 1
    return number if -limit <= number < limit else None


def validate_partition_value(value: str, *, creating: bool = False) -> None:
    """Check the characters and the length of a partition value (code 43).

    Values that begin with ``__`` are reserved: only the server creates them.
    """
    problem = name_problem(value) or (reserved_prefix_problem(value) if creating else None)
    if problem:
        raise PartitionSpecInvalidError(f"The partition value {value:.300} is invalid: {problem}.")


def partition_name(values: Sequence[str]) -> str:
    """The name of a partition: its values in the order of the partition keys, joined by ``$``."""
    if not values or isinstance(values, str):
        raise InvalidArgumentError(f"a partition name needs a list of values, not {values!r}")
    return PARTITION_VALUE_SEPARATOR.join(values)


def split_partition_name(name: str, partition_keys: Sequence[str]) -> dict[str, str]:
    """The values of a partition name by partition key."""
    values = name.split(PARTITION_VALUE_SEPARATOR)
    if len(values) != len(partition_keys):
        raise PartitionSpecInvalidError(
            f"partition {name!r} has {len(values)} values, but the table has the partition keys "
            f"{', '.join(partition_keys) or '(none)'}"
        )
    return dict(zip(partition_keys, values))


def qualified_partition_name(spec: Mapping[str, str]) -> str:
    """``key=value/key2=value2``, for people to read."""
    return "/".join(f"{key}={value}" for key, value in spec.items())


class PartitionSpec:
    """Values for some or all partition keys of a table."""

    __slots__ = ("_spec_map",)

    def __init__(self, spec_map: Mapping[str, str]) -> None:
        if isinstance(spec_map, PartitionSpec):
            spec_map = spec_map.get_spec_map()
        if not isinstance(spec_map, Mapping):
            raise InvalidArgumentError(f"a partition spec maps partition keys to values, it is not {spec_map!r}")
        for key, value in spec_map.items():
            if not isinstance(key, str) or not isinstance(value, str):
                raise InvalidArgumentError(f"partition keys and values must be strings, not {key!r}: {value!r}")
        self._spec_map = dict(spec_map)

    @property
    def spec_map(self) -> dict[str, str]:
        """The values by partition key."""
        return dict(self._spec_map)

    def get_spec_map(self) -> dict[str, str]:
        """The values by partition key."""
        return dict(self._spec_map)

    def values_in_order(self, partition_keys: Sequence[str], *, creating: bool = False) -> list[str]:
        """The values in the order of the partition keys; the spec must name exactly these keys (code 43)."""
        if set(self._spec_map) != set(partition_keys):
            raise PartitionSpecInvalidError(
                f"partition spec {self} must name exactly the partition keys {', '.join(partition_keys) or '(none)'}"
            )
        values = [self._spec_map[key] for key in partition_keys]
        for value in values:
            validate_partition_value(value, creating=creating)
        return values

    def to_partition_name(self, partition_keys: Sequence[str], *, creating: bool = False) -> str:
        """The partition name; the spec must name exactly these keys (code 43)."""
        return partition_name(self.values_in_order(partition_keys, creating=creating))

    def matches(self, partition: Mapping[str, str]) -> bool:
        """Whether a partition has these values; keys the spec does not name may have any. Unknown keys: code 43."""
        if unknown := self._spec_map.keys() - partition.keys():
            raise PartitionSpecInvalidError(
                f"{', '.join(sorted(unknown))}: not among the partition keys {', '.join(partition)}"
            )
        return all(partition[key] == value for key, value in self._spec_map.items())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionSpec):
            return NotImplemented
        return self._spec_map == other._spec_map

    def __hash__(self) -> int:
        return hash(frozenset(self._spec_map.items()))

    def __str__(self) -> str:
        return qualified_partition_name(self._spec_map)

    def __repr__(self) -> str:
        return f"PartitionSpec({self._spec_map!r})"


@dataclass(frozen=True)
class PartitionInfo:
    """A partition as the server knows it."""

    partition_id: int
    """The id of the partition, unique in the cluster and never used again."""
    partition_name: str
    """The values joined by ``$``, for instance ``20240115$eu``."""
    partition_keys: tuple[str, ...] = ()
    remote_data_dir: str | None = None
    bucket_count: int | None = None
    """The number of buckets of the partition; None if the server does not report it: that of the table."""

    def get_partition_id(self) -> int:
        """The id of the partition."""
        return self.partition_id

    def get_partition_name(self) -> str:
        """The name of the partition."""
        return self.partition_name

    @property
    def partition_spec(self) -> PartitionSpec:
        """The values by partition key."""
        return PartitionSpec(split_partition_name(self.partition_name, self.partition_keys))

    def get_partition_spec(self) -> PartitionSpec:
        """The values by partition key."""
        return self.partition_spec
