# SPDX-License-Identifier: Apache-2.0
"""The one form in which all drivers exchange values, so that answers compare with ``==``.

Data types travel as the type documents of the table JSON (``{"type": "INTEGER", "nullable": false}``). Values:

==========================  ==========================================================
type                        JSON
==========================  ==========================================================
null                        ``null``
BOOLEAN, integers           boolean, number
FLOAT, DOUBLE               hex of the big-endian IEEE bits (exact, NaN and -0.0 included)
CHAR, STRING                string
BINARY, BYTES               hex
DECIMAL                     plain digits with the column's scale
DATE / TIME                 days since 1970-01-01 / milliseconds of the day
TIMESTAMP, TIMESTAMP_LTZ    [epoch milliseconds, nanoseconds within the millisecond]
ARRAY / MAP / ROW           list / list of [key, value] / list in field order
==========================  ==========================================================

Runs inside foreign virtual environments: imports nothing but the standard library and pyarrow.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import struct
from typing import Any

import pyarrow as pa

Type = dict[str, Any]
_EPOCH = dt.datetime(1970, 1, 1)
# Set by the driver of a client that hands out zoned timestamps without their zone on one of its paths.
naive_means_utc = False
_UNITS = {0: "s", 3: "ms", 6: "us", 9: "ns"}


def arrow_type(kind: Type) -> pa.DataType:
    """The pyarrow type a Python user would declare for this column."""
    name = kind["type"]
    simple = {
        "BOOLEAN": pa.bool_(), "TINYINT": pa.int8(), "SMALLINT": pa.int16(), "INTEGER": pa.int32(),
        "BIGINT": pa.int64(), "FLOAT": pa.float32(), "DOUBLE": pa.float64(), "CHAR": pa.string(),
        "STRING": pa.string(), "BYTES": pa.binary(), "DATE": pa.date32(),
    }  # fmt: skip
    if name in simple:
        return simple[name]
    if name == "BINARY":
        return pa.binary(kind["length"])
    if name == "DECIMAL":
        return pa.decimal128(kind["precision"], kind["scale"])
    if name == "TIME_WITHOUT_TIME_ZONE":
        unit = _UNITS[kind["precision"]]
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if name == "TIMESTAMP_WITHOUT_TIME_ZONE":
        return pa.timestamp(_UNITS[kind["precision"]])
    if name == "TIMESTAMP_WITH_LOCAL_TIME_ZONE":
        return pa.timestamp(_UNITS[kind["precision"]], tz="UTC")
    if name == "ARRAY":
        return pa.list_(arrow_type(kind["element_type"]))
    if name == "MAP":
        return pa.map_(arrow_type(kind["key_type"]), arrow_type(kind["value_type"]))
    if name == "ROW":
        return pa.struct([arrow_field(field["name"], field["field_type"]) for field in kind["fields"]])
    raise ValueError(f"no arrow type for {name}")


def arrow_field(name: str, kind: Type) -> pa.Field:
    return pa.field(name, arrow_type(kind), nullable=kind.get("nullable", True))


def to_python(value: Any, kind: Type) -> Any:
    """Canonical JSON to the native value a Python user would put into a row."""
    if value is None:
        return None
    name = kind["type"]
    if name == "FLOAT":
        return struct.unpack(">f", bytes.fromhex(value))[0]
    if name == "DOUBLE":
        return struct.unpack(">d", bytes.fromhex(value))[0]
    if name in ("BINARY", "BYTES"):
        return bytes.fromhex(value)
    if name == "DECIMAL":
        return decimal.Decimal(value)
    if name == "DATE":
        return _EPOCH.date() + dt.timedelta(days=value)
    if name == "TIME_WITHOUT_TIME_ZONE":
        return (_EPOCH + dt.timedelta(milliseconds=value)).time()
    if name.startswith("TIMESTAMP"):
        millis, nanos = value
        if nanos % 1000:
            return _fine_timestamp(millis, nanos, zoned=name == "TIMESTAMP_WITH_LOCAL_TIME_ZONE")
        stamp = _EPOCH + dt.timedelta(milliseconds=millis, microseconds=nanos // 1000)
        return stamp.replace(tzinfo=dt.timezone.utc) if name == "TIMESTAMP_WITH_LOCAL_TIME_ZONE" else stamp
    if name == "ARRAY":
        return [to_python(one, kind["element_type"]) for one in value]
    if name == "MAP":
        return [(to_python(k, kind["key_type"]), to_python(v, kind["value_type"])) for k, v in value]
    if name == "ROW":
        return {field["name"]: to_python(one, field["field_type"]) for field, one in zip(kind["fields"], value)}
    return value


def _fine_timestamp(millis: int, nanos: int, *, zoned: bool) -> Any:
    import pandas as pd

    return pd.Timestamp(millis * 1_000_000 + nanos, unit="ns", tz="UTC" if zoned else None)


def from_python(value: Any, kind: Type) -> Any:
    """What a client handed out, to canonical JSON. Strict: an unexpected Python type is an error, not a guess."""
    if value is None:
        return None
    name = kind["type"]
    if name == "BOOLEAN":
        return _expect(value, bool, name)
    if name in ("TINYINT", "SMALLINT", "INTEGER", "BIGINT"):
        return _expect(value, int, name)
    if name in ("FLOAT", "DOUBLE"):
        number = float("nan") if math.isnan(_expect(value, float, name)) else value
        return struct.pack(">f" if name == "FLOAT" else ">d", number).hex()
    if name in ("CHAR", "STRING"):
        return _expect(value, str, name)
    if name in ("BINARY", "BYTES"):
        return bytes(_expect(value, (bytes, bytearray), name)).hex()
    if name == "DECIMAL":
        exact = _expect(value, decimal.Decimal, name).quantize(
            decimal.Decimal(1).scaleb(-kind["scale"]), context=decimal.Context(prec=60)
        )
        return f"{exact:f}"
    if name == "DATE":
        return (_expect(value, dt.date, name) - _EPOCH.date()).days
    if name == "TIME_WITHOUT_TIME_ZONE":
        clock = _expect(value, dt.time, name)
        seconds = clock.hour * 3600 + clock.minute * 60 + clock.second
        return seconds * 1000 + clock.microsecond // 1000
    if name.startswith("TIMESTAMP"):
        return _from_timestamp(value, name)
    if name == "ARRAY":
        return [from_python(one, kind["element_type"]) for one in value]
    if name == "MAP":
        pairs = value.items() if isinstance(value, dict) else value
        return [[from_python(k, kind["key_type"]), from_python(v, kind["value_type"])] for k, v in pairs]
    if name == "ROW":
        fields = kind["fields"]
        values = [value[f["name"]] for f in fields] if isinstance(value, dict) else list(value)
        return [from_python(one, field["field_type"]) for field, one in zip(fields, values)]
    raise ValueError(f"no canonical form for {name}")


def _from_timestamp(value: Any, name: str) -> list[int]:
    stamp = _expect(value, dt.datetime, name)
    zoned = name == "TIMESTAMP_WITH_LOCAL_TIME_ZONE"
    if zoned != (stamp.tzinfo is not None) and not (zoned and naive_means_utc):
        raise TypeError(f"{name} came back as {stamp!r}")
    if stamp.tzinfo is not None:
        stamp = stamp.astimezone(dt.timezone.utc).replace(tzinfo=None)
    nanos = getattr(stamp, "nanosecond", 0)
    whole = dt.datetime(*stamp.timetuple()[:6], microsecond=stamp.microsecond) - _EPOCH
    micros = (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds
    millis, rest = divmod(micros, 1000)
    return [millis, rest * 1000 + nanos]


def _expect(value: Any, wanted: Any, name: str) -> Any:
    if isinstance(value, bool) and wanted is not bool:
        raise TypeError(f"{name} came back as the boolean {value!r}")
    if not isinstance(value, wanted):
        raise TypeError(f"{name} came back as {type(value).__name__} {value!r}")
    return value


def record_batch(rows: list[list[Any]], columns: list[dict[str, Any]]) -> pa.RecordBatch:
    """Canonical rows as the Arrow batch a user would write."""
    schema = pa.schema([arrow_field(column["name"], column["type"]) for column in columns])
    arrays = []
    for position, column in enumerate(columns):
        values = [to_python(row[position], column["type"]) for row in rows]
        arrays.append(pa.array(values, schema.field(position).type))
    return pa.record_batch(arrays, schema=schema)


def rows_of(table: pa.Table | pa.RecordBatch, columns: list[dict[str, Any]]) -> list[list[Any]]:
    """Arrow data handed out by a client, to canonical rows. Columns are taken by name and must all be there."""
    names = [column["name"] for column in columns]
    if table.schema.names != names:
        raise ValueError(f"columns {table.schema.names} instead of {names}")
    data = [table.column(i).to_pylist() for i in range(len(names))]
    return [
        [from_python(data[i][row], column["type"]) for i, column in enumerate(columns)] for row in range(table.num_rows)
    ]
