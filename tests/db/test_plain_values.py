# SPDX-License-Identifier: Apache-2.0
"""Arrow columns as exact values for JSON and CSV, and back."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from fluss.db.plain_values import plain_values
from fluss.metadata import types as t
from fluss.rows import ColumnConverter
from fluss.tools.written_values import text_value

NANOS = 1_751_373_000_123_456_789


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([0.1, None, float("nan")], pa.float32()), [0.1, None, "NaN"]),
        (pa.array([0.1, float("-inf")]), [0.1, "-Infinity"]),
        (pa.array([NANOS], pa.timestamp("ns")), ["2025-07-01 12:30:00.123456789"]),
        (pa.array([1_500], pa.timestamp("ms", "Europe/Berlin")), ["1970-01-01 00:00:01.5Z"]),
        (pa.array([0], pa.timestamp("s")), ["1970-01-01 00:00:00"]),
        (pa.array([10 * 3600 * 1000], pa.time32("ms")), ["10:00:00"]),
        (pa.array([dt.date(2026, 7, 10)]), ["2026-07-10"]),
        (pa.array([Decimal(0)], pa.decimal128(38, 18)), ["0.000000000000000000"]),
        (pa.array([Decimal(2**70)], pa.decimal128(38, 0)), [2**70]),
        (pa.array([b"\x00\xff"]), ["AP8="]),
        (pa.array([[(7, [1.5])], None, []], pa.map_(pa.int32(), pa.list_(pa.float32()))), [{7: [1.5]}, None, {}]),
        (pa.array([{"a": [2**60]}, None]), [{"a": [2**60]}, None]),
        (pa.array([[1, 2], None], pa.list_(pa.int8(), 2)), [[1, 2], None]),
        (pa.array(["x", "y", "x"]).dictionary_encode(), ["x", "y", "x"]),
        (pa.array([pa.MonthDayNano([14, -1, 0])]), ["1 year 2 months -1 day"]),
        (pa.array([pa.MonthDayNano([0, 0, -5 * 10**8])]), ["-00:00:00.5"]),
        (pa.array([None]), [None]),
    ],
)
def test_values_are_exact(column: pa.Array, expected: list[Any]) -> None:
    assert plain_values(column) == expected
    assert plain_values(column.slice(1)) == expected[1:]
    assert plain_values(pa.chunked_array([column, column.slice(1)])) == expected + expected[1:]
    json.dumps(expected, allow_nan=False)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (t.TimestampType(9), "2025-07-01 12:30:00.123456789", "2025-07-01 12:30:00.123456789"),
        (t.TimestampLtzType(9), "2025-07-01 12:30:00.123456789Z", "2025-07-01 12:30:00.123456789Z"),
        (t.ArrayType(t.TimestampType(9)), '["2025-07-01T12:30:00.000000001"]', ["2025-07-01 12:30:00.000000001"]),
        (t.MapType(t.IntType(nullable=False), t.StringType()), '{"7": "x"}', {7: "x"}),
    ],
)
def test_what_is_shown_is_read_back(kind: t.DataType, text: str, expected: Any) -> None:
    column = ColumnConverter(kind, "c").to_arrow([text_value(text, kind, "c")])
    assert plain_values(column) == [expected]
