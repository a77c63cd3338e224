# SPDX-License-Identifier: Apache-2.0
"""From encoded keys back to rows that hold nothing but their key."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

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
    TableInfo,
    TimestampType,
    TimeType,
    parse_partition_value,
)
from fluss.rows import (
    CompactedKeyEncoder,
    IcebergKeyEncoder,
    KeyEncoder,
    PaimonKeyEncoder,
    Slices,
    aligned,
    decode_compacted_key,
    kv_key_encoder,
    logical,
)
from fluss.server.kv.values import ValueCodec

_I64 = struct.Struct("<q")
_F32 = struct.Struct("<f")
_F64 = struct.Struct("<d")


def rows_of_keys(
    info: TableInfo, codec: ValueCodec, keys: Sequence[bytes], partition: Mapping[str, str] | None = None
) -> Slices:
    """One row per key in the table's kv format; every column that is not part of the primary key is null.

    A key says nothing of the partition it lies in: the columns of that are filled with the values in `partition`.
    """
    encoder = kv_key_encoder(info)
    decoded = decode_keys(encoder, keys)
    if encoder.encode_columns(decoded).to_list() != list(keys):
        # The row would be stored under this key, but after a replay of the log under another one.
        raise FormatError(f"a key of table {info.table_path} is not encoded as its columns are")
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
