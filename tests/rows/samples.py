# SPDX-License-Identifier: Apache-2.0
"""A row of every flat type, for the tests of rows and of records."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from fluss.metadata import types as t

MILLIS = 1705314600123
ALL_TYPES: list[t.DataType] = [
    t.BooleanType(),
    t.TinyIntType(),
    t.SmallIntType(),
    t.IntType(),
    t.BigIntType(),
    t.FloatType(),
    t.DoubleType(),
    t.CharType(5),
    t.StringType(),
    t.BinaryType(4),
    t.BytesType(),
    t.DecimalType(10, 2),
    t.DecimalType(25, 5),
    t.DateType(),
    t.TimeType(3),
    t.TimestampType(3),
    t.TimestampType(6),
    t.TimestampLtzType(3),
    t.TimestampLtzType(9),
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
