# SPDX-License-Identifier: Apache-2.0
"""A row of every flat type, for the tests of rows and of records."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from fluss.metadata.types import (
    BigIntType,
    BinaryType,
    BooleanType,
    BytesType,
    CharType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    SmallIntType,
    StringType,
    TimestampLtzType,
    TimestampType,
    TimeType,
    TinyIntType,
)

MILLIS = 1705314600123
ALL_TYPES: list[DataType] = [
    BooleanType(),
    TinyIntType(),
    SmallIntType(),
    IntType(),
    BigIntType(),
    FloatType(),
    DoubleType(),
    CharType(5),
    StringType(),
    BinaryType(4),
    BytesType(),
    DecimalType(10, 2),
    DecimalType(25, 5),
    DateType(),
    TimeType(3),
    TimestampType(3),
    TimestampType(6),
    TimestampLtzType(3),
    TimestampLtzType(9),
]
ROW_A: list[Any] = [
    True,
    -2,
    -300,
    -5,
    1234567890123,
    1.5,
    -2.25,
    "abc",
    "héllo",
    b"\1\2\3\4",
    b"\xff\0",
    Decimal("12345.67"),
    Decimal("-12345678901234567890.12345"),
    19737,
    37800123,
    MILLIS * 10**6,
    MILLIS * 10**6 + 456000,
    MILLIS * 10**6,
    MILLIS * 10**6 + 456000,
]
ROW_B: list[Any] = [None] * 19
