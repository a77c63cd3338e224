# SPDX-License-Identifier: Apache-2.0
"""Stored values: a row in the table's kv format behind the id of the schema it was written with."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.errors import FormatError, UnknownServerError
from fluss.metadata import (
    BigIntType,
    BinaryType,
    BytesType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntType,
    Schema,
    TableInfo,
    TimestampLtzType,
    TimestampType,
    TimeType,
    parse_partition_value,
)
from fluss.records import SCHEMA_ID_BYTES, decode_stored_rows, decode_values
from fluss.rows import (
    CompactedKeyEncoder,
    IcebergKeyEncoder,
    KeyEncoder,
    PaimonKeyEncoder,
    Slices,
    aligned,
    decode_compacted_key,
    encode_rows,
    kv_key_encoder,
    logical,
)

_SCHEMA_ID = struct.Struct("<h")

Row = tuple[Any, ...]
"""The logical values of one row in table order."""


def values_of(rows: Slices, schema_id: int | npt.NDArray[np.int64]) -> Slices:
    """Rows of KV batches as stored values, made in one copy of the batches; `schema_id` is that of all or of each.

    Before every row of a batch lie at least five bytes of its record (two lengths and the key), so the schema id fits
    in front of it. The keys of the result's buffer are thereby destroyed; read them from the batch.
    """
    data = rows.data.copy()
    starts = rows.starts - SCHEMA_ID_BYTES
    data[starts] = schema_id & 0xFF
    data[starts + 1] = schema_id >> 8
    return Slices.trusted(data, starts, rows.lengths + SCHEMA_ID_BYTES)


class ValueCodec:
    """Rows of one table, in its kv format and all its schema versions."""

    def __init__(self, kv_format: str, schemas: Mapping[int, Schema], schema_id: int) -> None:
        self.kv_format = kv_format
        self.schemas = schemas
        self.schema_id = schema_id
        self.schema = schemas[schema_id]
        self.types = [column.data_type for column in self.schema.columns]
        self.prefix = _SCHEMA_ID.pack(schema_id)
        # Nullability may have been looser when a row was written by an odd client: the batch takes any null.
        self.arrow_schema = pa.schema([pa.field(c.name, c.data_type.to_arrow()) for c in self.schema.columns])

    # -- rows in bytes to columns -----------------------------------------------------------------------------------

    def decode_rows(self, schema_id: int, rows: Slices) -> pa.RecordBatch:
        """Rows written with one schema, as rows of the table's present schema."""
        return self._nullable(decode_stored_rows(rows, schema_id, self.schemas, self.schema, self.kv_format))

    def decode_values(self, values: Slices) -> pa.RecordBatch:
        """Stored values of any schema versions, in their order."""
        return self._nullable(decode_values(values, self.schemas, self.schema, self.kv_format))

    def _nullable(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.arrow_schema)

    # -- columns and logical rows -----------------------------------------------------------------------------------

    def to_rows(self, batch: pa.RecordBatch) -> list[Row]:
        """A batch as logical rows."""
        columns = [logical.from_arrow(batch.column(i), data_type) for i, data_type in enumerate(self.types)]
        return list(zip(*columns))

    def to_batch(self, rows: Sequence[Row]) -> pa.RecordBatch:
        """Logical rows as a batch."""
        columns = list(zip(*rows)) if rows else [() for _ in self.types]
        arrays = [logical.to_arrow(list(column), data_type) for column, data_type in zip(columns, self.types)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.arrow_schema)

    def encode_batch(self, batch: pa.RecordBatch) -> list[bytes]:
        """The rows of a batch as values to store."""
        prefix = self.prefix
        return [prefix + row for row in encode_rows(self.kv_format, self.types, batch.columns).to_list()]


_I64 = struct.Struct("<q")
_F32 = struct.Struct("<f")
_F64 = struct.Struct("<d")
_NARROWED = (TimeType, TimestampType, TimestampLtzType, BinaryType)


def rows_of_keys(
    info: TableInfo, codec: ValueCodec, keys: Sequence[bytes], partition: Mapping[str, str] | None = None
) -> Slices:
    """One row per key in the table's kv format; every column that is not part of the primary key is null.

    A key says nothing of the partition it lies in: the columns of that are filled with the values in `partition`.
    """
    encoder = kv_key_encoder(info)
    decoded = decode_keys(encoder, keys)
    check_keys(encoder, keys, decoded)
    arrays = dict(zip(info.physical_primary_key, decoded))
    for name, text in (partition or {}).items():
        data_type = info.schema.column(name).data_type
        value = parse_partition_value(data_type, text)
        if value is None:
            raise UnknownServerError(
                f"rows of table {info.table_path} cannot be inserted by a lookup into partition {text!r}: its name is "
                f"no {data_type} for column '{name}'"
            )
        arrays[name] = logical.to_arrow([value] * len(keys), data_type)
    columns = [
        arrays[column.name] if column.name in arrays else pa.nulls(len(keys), column.data_type.to_arrow())
        for column in info.schema.columns
    ]
    values = codec.encode_batch(pa.RecordBatch.from_arrays(columns, schema=codec.arrow_schema))
    return Slices.from_list([value[len(codec.prefix) :] for value in values])


def narrowed_key_encoder(info: TableInfo) -> KeyEncoder | None:
    """The encoder of the keys that `check_keys` has to look at; None where columns hold whatever a key says.

    Clients send more digits of a second than a TIME or TIMESTAMP has, and fewer bytes than a BINARY: those of Apache
    Fluss neither cut nor pad, in keys and rows alike. The columns of the changelog do.
    """
    encoder = kv_key_encoder(info)
    return encoder if any(isinstance(dtype, _NARROWED) for dtype in encoder.types) else None


def check_keys(encoder: KeyEncoder, keys: Sequence[bytes], columns: Sequence[pa.Array]) -> None:
    """Refuse rows that would be stored under one key, and after a replay of the changelog under another one."""
    if encoder.encode_columns(columns).to_list() != list(keys):
        names = ", ".join(f"'{name}' {dtype}" for name, dtype in zip(encoder.names, encoder.types))
        raise FormatError(
            f"a key is not that of the key columns ({names}) in the changelog. "
            "Write values with as many digits of a second, and as many bytes, as the types of the columns have."
        )


def decode_keys(encoder: KeyEncoder, keys: Sequence[bytes]) -> list[pa.Array]:
    """The key columns, in key order."""
    if isinstance(encoder, CompactedKeyEncoder):
        return decode_compacted_key(encoder.types, Slices.from_list(keys))
    if isinstance(encoder, PaimonKeyEncoder):
        rows: list[Sequence[Any]] = [aligned.decode_row(encoder.types, key, encoder.names) for key in keys]
    else:
        assert isinstance(encoder, IcebergKeyEncoder)
        rows = [[_iceberg_value(key, encoder.types[0], encoder.names[0])] for key in keys]
    for row in rows:
        for name, value in zip(encoder.names, row):
            if value is None:
                raise FormatError(f"the key column '{name}' is null in a key")
    return [logical.to_arrow(list(column), dtype) for column, dtype in zip(zip(*rows), encoder.types)]


def _iceberg_value(key: bytes, dtype: DataType, name: str) -> Any:
    """The inverse of the Iceberg key encoding: the raw value of one column."""
    if isinstance(dtype, DecimalType):
        unscaled = int.from_bytes(key, "big", signed=True)
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -dtype.scale))
    if isinstance(dtype, (BytesType, BinaryType)):
        return key
    kind = _F32 if isinstance(dtype, FloatType) else _F64 if isinstance(dtype, DoubleType) else _I64
    fixed = isinstance(dtype, (IntType, DateType, BigIntType, TimeType, TimestampType, FloatType, DoubleType))
    try:
        if not fixed:
            return key.decode()
        value: Any = kind.unpack(key)[0]
    except (struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"a key of {len(key)} bytes is no {dtype} for the column '{name}': {error}") from None
    if isinstance(dtype, TimeType):
        return value // 1000
    return value * 1000 if isinstance(dtype, TimestampType) else value
