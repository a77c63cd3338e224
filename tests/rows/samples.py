# SPDX-License-Identifier: Apache-2.0
"""A row of every flat type, for the tests of rows and of records."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from fluss.metadata import types as t

MILLIS = 1705314600123
_VALUES: list[tuple[t.DataType, Any]] = [
    (t.BooleanType(), True),
    (t.TinyIntType(), -2),
    (t.SmallIntType(), -300),
    (t.IntType(), -5),
    (t.BigIntType(), 1234567890123),
    (t.FloatType(), 1.5),
    (t.DoubleType(), -2.25),
    (t.CharType(5), "abc"),
    (t.StringType(), "héllo"),
    (t.BinaryType(4), b"\1\2\3\4"),
    (t.BytesType(), b"\xff\0"),
    (t.DecimalType(10, 2), Decimal("12345.67")),
    (t.DecimalType(25, 5), Decimal("-12345678901234567890.12345")),
    (t.DateType(), 19737),
    (t.TimeType(3), 37800123),
    (t.TimestampType(3), MILLIS * 10**6),
    (t.TimestampType(6), MILLIS * 10**6 + 456000),
    (t.TimestampLtzType(3), MILLIS * 10**6),
    (t.TimestampLtzType(9), MILLIS * 10**6 + 456000),
]
ALL_TYPES: list[t.DataType] = [data_type for data_type, _ in _VALUES]
ROW_A: list[Any] = [value for _, value in _VALUES]
ROW_B: list[Any] = [None] * 19
