# SPDX-License-Identifier: Apache-2.0
"""Table documents, column types and sample values the scenarios share."""

from __future__ import annotations

import struct
from typing import Any

Column = dict[str, Any]
Row = list[Any]


def kind(name: str, *, not_null: bool = False, **parameters: Any) -> dict[str, Any]:
    document: dict[str, Any] = {"type": name, **parameters}
    if not_null:
        document["nullable"] = False
    return document


def required(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "nullable": False}


BOOLEAN, TINYINT, SMALLINT, INT, BIGINT = map(kind, ("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT"))
FLOAT, DOUBLE, STRING, BYTES, DATE = map(kind, ("FLOAT", "DOUBLE", "STRING", "BYTES", "DATE"))


def char(length: int) -> dict[str, Any]:
    return kind("CHAR", length=length)


def binary(length: int) -> dict[str, Any]:
    return kind("BINARY", length=length)


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return kind("DECIMAL", precision=precision, scale=scale)


def time(precision: int) -> dict[str, Any]:
    return kind("TIME_WITHOUT_TIME_ZONE", precision=precision)


def timestamp(precision: int) -> dict[str, Any]:
    return kind("TIMESTAMP_WITHOUT_TIME_ZONE", precision=precision)


def timestamp_ltz(precision: int) -> dict[str, Any]:
    return kind("TIMESTAMP_WITH_LOCAL_TIME_ZONE", precision=precision)


def array(element: dict[str, Any]) -> dict[str, Any]:
    return kind("ARRAY", element_type=element)


def map_of(key: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    return kind("MAP", key_type=required(key), value_type=value)


def row_of(**fields: dict[str, Any]) -> dict[str, Any]:
    # Field ids must be unique in the whole schema; 1000 and up stay clear of those of the columns.
    return kind(
        "ROW",
        fields=[
            {"name": name, "field_type": one, "field_id": 1000 + i} for i, (name, one) in enumerate(fields.items())
        ],
    )


def column(name: str, document: dict[str, Any], **more: Any) -> Column:
    return {"name": name, "type": document, **more}


def table(db: str, name: str, columns: list[Column], **more: Any) -> dict[str, Any]:
    """A table document; ``more``: primary_key, partition_keys, buckets, bucket_keys, properties, custom, comment."""
    return {"db": db, "name": name, "columns": columns, **more}


def needs(document: dict[str, Any]) -> set[str]:
    """What a client must be able to express to create this table."""
    found: set[str] = set()
    if document.get("auto_increment"):
        found.add("auto_increment")
    for one in document["columns"]:
        if one.get("agg"):
            found.add("aggregation")
        found |= _type_needs(one["type"])
    return found


def _type_needs(document: dict[str, Any]) -> set[str]:
    name = document["type"]
    if name in ("ARRAY", "MAP", "ROW"):
        return {"nested"}
    return {"BINARY": {"binary"}, "CHAR": {"char"}}.get(name, set())


def f32(value: float) -> str:
    return struct.pack(">f", value).hex()


def f64(value: float) -> str:
    return struct.pack(">d", value).hex()


# Every flat type that every client can declare, with an ordinary value, the low end, the high end and null.
FLAT: list[tuple[str, dict[str, Any], tuple[Any, Any, Any]]] = [
    ("c_boolean", BOOLEAN, (True, False, True)),
    ("c_tinyint", TINYINT, (7, -128, 127)),
    ("c_smallint", SMALLINT, (300, -32768, 32767)),
    ("c_int", INT, (70000, -(2**31), 2**31 - 1)),
    ("c_bigint", BIGINT, (5_000_000_000, -(2**63), 2**63 - 1)),
    ("c_float", FLOAT, (f32(1.5), f32(-0.0), f32(float("inf")))),
    ("c_double", DOUBLE, (f64(2.25), f64(float("nan")), f64(1.7976931348623157e308))),
    ("c_string", STRING, ("plain", "", "Grüße, 世界 🚀")),
    ("c_bytes", BYTES, ("00ff", "", "deadbeef" * 8)),
    ("c_decimal", decimal(10, 2), ("1234.50", "-99999999.99", "0.01")),
    (
        "c_decimal_wide",
        decimal(38, 18),
        ("1.500000000000000000", "-" + "9" * 20 + "." + "9" * 18, "0." + "0" * 17 + "1"),
    ),
    ("c_date", DATE, (19737, -719162, 2932896)),
    ("c_time_s", time(0), (45296000, 0, 86399000)),
    ("c_time_ms", time(3), (45296789, 0, 86399999)),
    ("c_ts_s", timestamp(0), ([1705321845000, 0], [0, 0], [253370764800000, 0])),
    ("c_ts_ms", timestamp(3), ([1705321845123, 0], [0, 0], [253370764800999, 0])),
    ("c_ts_us", timestamp(6), ([1705321845123, 456000], [0, 1000], [253370764800999, 999000])),
    ("c_ltz_s", timestamp_ltz(0), ([1705321845000, 0], [0, 0], [253370764800000, 0])),
    ("c_ltz_ms", timestamp_ltz(3), ([1705321845123, 0], [0, 0], [253370764800999, 0])),
    ("c_ltz_us", timestamp_ltz(6), ([1705321845123, 456000], [0, 1000], [253370764800999, 999000])),
]


def flat_columns() -> list[Column]:
    return [column(name, document) for name, document, _ in FLAT]


def flat_rows() -> list[Row]:
    rows: list[Row] = [[values[i] for _, _, values in FLAT] for i in range(3)]
    rows.append([None] * len(FLAT))
    # Nulls in alternate columns, twice, so that every column is null once beside a neighbour that is not.
    for odd in (0, 1):
        row = [values[0] if i % 2 == odd else None for i, (_, _, values) in enumerate(FLAT)]
        rows += [row]
    return rows


def nested_columns() -> list[Column]:
    return [
        column("a_int", array(INT)),
        column("a_string", array(STRING)),
        column("a_a", array(array(BIGINT))),
        column("m", map_of(STRING, INT)),
        column("r", row_of(x=INT, y=STRING, z=array(DOUBLE))),
    ]


def nested_rows() -> list[Row]:
    return [
        [[1, 2, 3], ["a", "ü"], [[1], [2, 3]], [["k1", 1], ["k2", 2]], [7, "seven", [f64(0.5)]]],
        [[], [], [], [], [None, None, None]],
        [[1, None], [None, ""], [[None], None], [["k", None]], [1, None, [None, f64(1.0)]]],
        [None, None, None, None, None],
    ]
