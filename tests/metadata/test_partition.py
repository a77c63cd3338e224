# SPDX-License-Identifier: Apache-2.0
"""Partition names and the text form of partition values."""

from __future__ import annotations

import datetime
import math
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss import errors
from fluss.metadata import (
    PartitionInfo,
    PartitionSpec,
    format_partition_value,
    partition_name,
    qualified_partition_name,
    split_partition_name,
    validate_database_name,
    validate_partition_value,
    validate_table_name,
)
from fluss.metadata import types as t


def _ns(*parts: int, ns: int = 0) -> int:
    seconds = datetime.datetime(*parts, tzinfo=datetime.timezone.utc).timestamp()  # type: ignore[arg-type, misc]
    return int(seconds) * 10**9 + ns


JAN_15 = (datetime.date(2024, 1, 15) - datetime.date(1970, 1, 1)).days

VECTORS: list[tuple[t.DataType, Any, str, str]] = [
    (t.StringType(), "us-east", "us-east", "us-east"),
    (t.CharType(3), "abc", "abc", "abc"),
    (t.BooleanType(), True, "true", "true"),
    (t.BooleanType(), False, "false", "false"),
    (t.TinyIntType(), -5, "-5", "-5"),
    (t.SmallIntType(), 7, "7", "7"),
    (t.IntType(), 2**31 - 1, "2147483647", "2147483647"),
    (t.BigIntType(), -(2**63), "-9223372036854775808", "-9223372036854775808"),
    (t.BytesType(), b"\x0f\xa0", "0fa0", "0fa0"),
    (t.BinaryType(2), bytearray(b"\xff\x00"), "ff00", "ff00"),
    (t.FloatType(), 1.5, "1_5", "1_5"),
    (t.DoubleType(), -0.1, "-0_1", "-0_1"),
    (t.FloatType(), 1e10, "1_0E10", "10000000000"),
    (t.DoubleType(), 1e-7, "1_0E-7", "0_0000001"),
    (t.DoubleType(), 100.0, "100_0", "100"),
    (t.DoubleType(), 100, "100_0", "100"),
    (t.DoubleType(), 9999999.0, "9999999_0", "9999999"),
    (t.DoubleType(), 1e7, "1_0E7", "10000000"),
    (t.DoubleType(), 0.001, "0_001", "0_001"),
    (t.DoubleType(), 0.00099, "9_9E-4", "0_00099"),
    (t.DoubleType(), 123456789.125, "1_23456789125E8", "123456789_125"),
    (t.FloatType(), 0.1, "0_1", "0_1"),
    (t.FloatType(), 3.4028235e38, "3_4028235E38", "3" + "40282350000000000000000000000000000000"),
    (t.DoubleType(), 0.0, "0_0", "0"),
    (t.DoubleType(), -0.0, "-0_0", "-0"),
    (t.DoubleType(), math.nan, "NaN", "NaN"),
    (t.FloatType(), math.inf, "Inf", "Inf"),
    (t.DoubleType(), -math.inf, "-Inf", "-Inf"),
    (t.DateType(), JAN_15, "2024-01-15", "2024-01-15"),
    (t.DateType(), -1, "1969-12-31", "1969-12-31"),
    (t.TimeType(3), 37_800_005, "10-30-00_005", "10-30-00_005"),
    (t.TimeType(0), 0, "00-00-00_000", "00-00-00_000"),
    (t.TimeType(0), 86_399_999, "23-59-59_999", "23-59-59_999"),
    (
        t.TimestampType(6),
        _ns(2024, 1, 15, 10, 30, ns=123_456_000),
        "2024-01-15-10-30-00_123456",
        "2024-01-15-10-30-00_123456000",
    ),
    (t.TimestampType(6), _ns(2024, 1, 15, 10, 30), "2024-01-15-10-30-00_", "2024-01-15-10-30-00_"),
    (t.TimestampLtzType(3), _ns(2024, 1, 15, ns=120_000_000), "2024-01-15-00-00-00_12", "2024-01-15-00-00-00_120"),
    (t.TimestampLtzType(9), -1, "1969-12-31-23-59-59_999999999", "1969-12-31-23-59-59_999999999"),
    (t.TimestampType(6), _ns(5, 3, 4), "0005-03-04-00-00-00_", "0005-03-04-00-00-00_"),
]


@pytest.mark.parametrize(("data_type", "value", "java", "pyfluss"), VECTORS, ids=lambda item: str(item)[:30])
def test_text_forms(data_type: t.DataType, value: Any, java: str, pyfluss: str) -> None:
    assert format_partition_value(data_type, value) == java
    assert format_partition_value(data_type, value, "java") == java
    assert format_partition_value(data_type, value, "pyfluss") == pyfluss
    validate_partition_value(java, creating=True)


@pytest.mark.parametrize(
    ("data_type", "value", "text"),
    [
        (t.IntType(), None, "must not be null"),
        (t.DecimalType(5, 2), 5, "cannot be a partition key"),
        (t.ArrayType(t.IntType()), [5], "cannot be a partition key"),
        (t.IntType(), "5", "not a value"),
        (t.IntType(), True, "not a value"),
        (t.IntType(), 5.0, "not a value"),
        (t.DoubleType(), "5", "not a value"),
        (t.DoubleType(), True, "not a value"),
        (t.BooleanType(), 1, "not a value"),
        (t.StringType(), b"x", "not a value"),
        (t.BytesType(), "x", "not a value"),
        (t.DateType(), 10**9, "years 1 to 9999"),
        (t.TimestampType(), 10**30, "years 1 to 9999"),
        (t.TimeType(), 86_400_000, "time of day"),
        (t.TimeType(), -1, "time of day"),
    ],
)
def test_values_that_do_not_fit(data_type: t.DataType, value: Any, text: str) -> None:
    with pytest.raises(errors.InvalidRowError, match=text):
        format_partition_value(data_type, value)


def test_unknown_variant() -> None:
    with pytest.raises(errors.InvalidArgumentError, match="java, pyfluss"):
        format_partition_value(t.IntType(), 1, "rust")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_can_be_read_back(number: float) -> None:
    for variant in ("java", "pyfluss"):
        text = format_partition_value(t.DoubleType(), number, variant)
        assert float(text.replace("_", ".")) == number
        assert ("E" in text) == (variant == "java" and number != 0 and not 1e-3 <= abs(number) < 1e7)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_can_be_read_back(number: float) -> None:
    for variant in ("java", "pyfluss"):
        text = format_partition_value(t.FloatType(), number, variant)
        assert struct.pack("<f", float(text.replace("_", "."))) == struct.pack("<f", number)


@given(st.datetimes(min_value=datetime.datetime(1, 1, 1)))
def test_timestamps_can_be_read_back(time: datetime.datetime) -> None:
    span = time - datetime.datetime(1970, 1, 1)
    ns = (span // datetime.timedelta(microseconds=1)) * 1000
    for variant in ("java", "pyfluss"):
        text, _, fraction = format_partition_value(t.TimestampType(6), ns, variant).partition("_")
        year, month, day, hour, minute, second = map(int, text.split("-"))
        micros = int(fraction.ljust(9, "0")) // 1000
        assert datetime.datetime(year, month, day, hour, minute, second, micros) == time


def test_partition_name() -> None:
    assert partition_name(["20240115", "5"]) == "20240115$5"
    assert partition_name(["a"]) == "a"
    assert split_partition_name("20240115$5", ["dt", "r"]) == {"dt": "20240115", "r": "5"}
    assert qualified_partition_name({"dt": "20240115", "r": "5"}) == "dt=20240115/r=5"
    with pytest.raises(errors.PartitionSpecInvalidError, match="has 1 values"):
        split_partition_name("a", ["dt", "r"])
    for values in ([], "abc"):
        with pytest.raises(errors.InvalidArgumentError):
            partition_name(values)


LEGAL_NAME = st.text("abcXYZ019_-", min_size=1, max_size=200).filter(lambda text: not text.startswith("__"))


@given(LEGAL_NAME)
def test_legal_names(name: str) -> None:
    validate_partition_value(name, creating=True)
    validate_table_name(name)
    validate_database_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "a" * 201, "a.b", "a b", "ä", "a$b", "a\n", "a/b"])
def test_illegal_names(name: str) -> None:
    for validate, error in (
        (validate_partition_value, errors.PartitionSpecInvalidError),
        (validate_table_name, errors.InvalidTableError),
        (validate_database_name, errors.InvalidDatabaseError),
    ):
        with pytest.raises(error, match="is invalid: "):
            validate(name)  # type: ignore[operator]


def test_reserved_names_exist_but_cannot_be_created() -> None:
    validate_partition_value("__historical__")
    with pytest.raises(errors.PartitionSpecInvalidError, match="reserved"):
        validate_partition_value("__historical__", creating=True)
    with pytest.raises(errors.InvalidTableError, match="reserved"):
        validate_table_name("__t")
    with pytest.raises(errors.InvalidDatabaseError, match="reserved"):
        validate_database_name("__d")


def test_partition_spec() -> None:
    spec = PartitionSpec({"r": "5", "dt": "2024"})
    assert spec.get_spec_map() == spec.spec_map == {"r": "5", "dt": "2024"}
    assert spec.to_partition_name(["dt", "r"]) == "2024$5"
    assert spec.values_in_order(["dt", "r"]) == ["2024", "5"]
    assert spec == PartitionSpec({"dt": "2024", "r": "5"}) == PartitionSpec(spec)  # type: ignore[arg-type]
    assert hash(spec) == hash(PartitionSpec({"dt": "2024", "r": "5"}))
    assert spec != {"r": "5"}
    assert str(spec) == "r=5/dt=2024"
    assert repr(spec) == "PartitionSpec({'r': '5', 'dt': '2024'})"
    for keys in (["dt"], ["dt", "x"], ["dt", "r", "x"], []):
        with pytest.raises(errors.PartitionSpecInvalidError, match="exactly the partition keys"):
            spec.to_partition_name(keys)
    with pytest.raises(errors.PartitionSpecInvalidError, match="is invalid"):
        PartitionSpec({"a": "$"}).to_partition_name(["a"])
    with pytest.raises(errors.PartitionSpecInvalidError, match="reserved"):
        PartitionSpec({"a": "__x"}).to_partition_name(["a"], creating=True)
    for bad in (5, {"a": 5}, {5: "a"}):
        with pytest.raises(errors.InvalidArgumentError):
            PartitionSpec(bad)  # type: ignore[arg-type]


def test_partial_spec_matches() -> None:
    partition = {"dt": "2024", "r": "5"}
    assert PartitionSpec({}).matches(partition)
    assert PartitionSpec({"r": "5"}).matches(partition)
    assert not PartitionSpec({"r": "6"}).matches(partition)
    with pytest.raises(errors.PartitionSpecInvalidError, match="x: not among the partition keys dt, r"):
        PartitionSpec({"x": "1"}).matches(partition)


def test_partition_info() -> None:
    info = PartitionInfo(3, "2024$5", ("dt", "r"))
    assert (info.partition_id, info.partition_name) == (3, "2024$5")
    assert (info.get_partition_id(), info.get_partition_name()) == (3, "2024$5")
    assert info.partition_spec == info.get_partition_spec() == PartitionSpec({"dt": "2024", "r": "5"})
    assert len({info, PartitionInfo(3, "2024$5", ("dt", "r"))}) == 1
    assert "partition_id=3" in repr(info)
