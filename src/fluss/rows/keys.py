# SPDX-License-Identifier: Apache-2.0
"""Key encoders, and the rules that say which one a table uses.

Two keys of a row are sent as bytes: the KV key finds the row inside its bucket, the bucket key finds the bucket. If a
table is tiered into a lake, the lake's own encoding is used, so that both sides agree on buckets.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import valid_mask
from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import types as t
from fluss.metadata.info import TableInfo
from fluss.metadata.schema import Schema
from fluss.rows import aligned, compacted
from fluss.rows import value_checks as v
from fluss.rows.aligned import encode_aligned
from fluss.rows.arrow_values import NANOS_PER_UNIT, conform, to_arrow
from fluss.rows.bucketing import checked_lake_format
from fluss.rows.kernels import (
    big_endian_decimals,
    byte_strings,
    check_columns,
    check_decimals,
    primitives,
    refuse_values,
    time_millis,
)
from fluss.rows.slices import Ints, Slices
from fluss.rows.vector import encode_compacted_key

_I64 = struct.Struct("<q")


class KeyEncoder(ABC):
    """Encodes the key columns of rows; values and arrays are given in key order."""

    def __init__(self, names: Sequence[str], types: Sequence[t.DataType]) -> None:
        self.names = tuple(names)
        self.types = tuple(types)
        if not self.names:
            raise InvalidArgumentError("a key needs at least one column")
        for name, dtype in zip(self.names, self.types):
            if isinstance(dtype, t.NESTED_TYPES):
                raise InvalidArgumentError(f"column {name!r} ({dtype}) cannot be part of a key: its type is nested")

    @abstractmethod
    def encode(self, values: Sequence[Any]) -> bytes:
        """The key of one row of logical values."""

    @abstractmethod
    def encode_columns(self, arrays: Sequence[pa.Array]) -> Slices:
        """The keys of many rows."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self.names)})"


class CompactedKeyEncoder(KeyEncoder):
    """The default encoding; a prefix of the columns gives a prefix of the bytes."""

    def encode(self, values: Sequence[Any]) -> bytes:
        return compacted.encode_key(self.types, values, self.names)

    def encode_columns(self, arrays: Sequence[pa.Array]) -> Slices:
        return encode_compacted_key(self.types, arrays, self.names)


class PaimonKeyEncoder(KeyEncoder):
    """The row layout of Paimon."""

    def encode(self, values: Sequence[Any]) -> bytes:
        return aligned.encode_row(self.types, values, self.names)

    def encode_columns(self, arrays: Sequence[pa.Array]) -> Slices:
        return encode_aligned(self.types, arrays, self.names)


class IcebergKeyEncoder(KeyEncoder):
    """The raw value of exactly one column, as Iceberg's bucket transform sees it."""

    def __init__(self, names: Sequence[str], types: Sequence[t.DataType]) -> None:
        super().__init__(names, types)
        if len(self.types) != 1:
            raise InvalidArgumentError(f"an Iceberg key has exactly one column, not {len(self.types)}")
        supported = (
            t.IntType,
            t.DateType,
            t.TimeType,
            t.BigIntType,
            t.FloatType,
            t.DoubleType,
            t.TimestampType,
            t.DecimalType,
        )
        if not isinstance(self.types[0], (*supported, *t.TEXT_TYPES, *t.BYTES_TYPES)):
            raise InvalidArgumentError(f"column {self.names[0]!r} ({self.types[0]}) cannot be an Iceberg key")

    def encode(self, values: Sequence[Any]) -> bytes:
        v.check_row(values, 1)
        try:
            array = to_arrow(values, self.types[0])
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(0, self.types[0], self.names)}: {error.message}") from None
        return self.encode_columns([array])[0]

    def encode_columns(self, arrays: Sequence[pa.Array]) -> Slices:
        check_columns(self.types, arrays)
        try:
            array = conform(arrays[0], self.types[0])
            if array.null_count:
                row = int(np.flatnonzero(~valid_mask(array))[0])
                raise InvalidRowError(f"null in a key, in row {row}")
            return _iceberg_slices(array, self.types[0])
        except InvalidRowError as error:
            raise InvalidRowError(f"{v.field_label(0, self.types[0], self.names)}: {error.message}") from None


def _iceberg_slices(array: pa.Array, dtype: t.DataType) -> Slices:
    if isinstance(dtype, (t.IntType, t.DateType)):
        return _fixed_slices(primitives(array, np.int32).astype(np.int64))
    if isinstance(dtype, t.BigIntType):
        return _fixed_slices(primitives(array, np.int64))
    if isinstance(dtype, t.TimeType):
        return _fixed_slices(time_millis(array, dtype, None) * 1000)
    if isinstance(dtype, t.FloatType):
        return _fixed_slices(primitives(array, np.float32))
    if isinstance(dtype, t.DoubleType):
        return _fixed_slices(primitives(array, np.float64))
    if isinstance(dtype, t.TimestampType):
        return _fixed_slices(_micros(array))
    if isinstance(dtype, t.DecimalType):
        check_decimals(array, dtype)
        return big_endian_decimals(array, None)
    return byte_strings(dtype, array)


def _micros(array: pa.Array) -> Ints:
    ints: Ints = primitives(array, np.int64)
    nanos = NANOS_PER_UNIT[array.type.unit]
    if nanos <= 1000:
        return ints // (1000 // nanos)
    factor = nanos // 1000
    limit = v.INT64_MAX // factor
    refuse_values((ints > limit) | (ints < -limit), None, "does not fit 64 bits in microseconds")
    return ints * factor


def _fixed_slices(values: npt.NDArray[Any]) -> Slices:
    width = values.dtype.itemsize
    data = np.ascontiguousarray(values).view(np.uint8)
    return Slices.trusted(
        data, np.arange(len(values), dtype=np.int64) * width, np.full(len(values), width, dtype=np.int64)
    )


_LAKE_ENCODERS: dict[str | None, type[KeyEncoder]] = {
    None: CompactedKeyEncoder,
    "lance": CompactedKeyEncoder,
    "delta": CompactedKeyEncoder,
    "paimon": PaimonKeyEncoder,
    "iceberg": IcebergKeyEncoder,
}


def _lake_encoder(lake_format: str | None) -> type[KeyEncoder]:
    return _LAKE_ENCODERS[checked_lake_format(lake_format)]


def _build(kind: type[KeyEncoder], schema: Schema, names: Sequence[str]) -> KeyEncoder:
    types = [schema.columns[schema.column_index(name)].data_type for name in names]
    return kind(names, types)


def _kv_encoder_class(info: TableInfo) -> type[KeyEncoder]:
    kind = _lake_encoder(info.lake_format)
    if info.kv_format_version == 1 or info.has_default_bucket_key:
        return kind
    # Version 2: a bucket key of its own means that prefix lookups are wanted, which no lake encoding supports.
    return CompactedKeyEncoder


def kv_key_encoder(info: TableInfo) -> KeyEncoder:
    """The encoder of the key that put-kv and lookup send: the primary key without the partition columns."""
    if not info.primary_keys:
        raise InvalidArgumentError(f"table {info.table_path} has no primary key")
    if info.kv_format_version not in (1, 2):
        raise InvalidArgumentError(
            f"table {info.table_path} has table.kv.format-version={info.kv_format_version}, this client knows 1 and 2"
        )
    return _build(_kv_encoder_class(info), info.schema, info.physical_primary_key)


def bucket_key_encoder(info: TableInfo) -> KeyEncoder:
    """The encoder of the key that decides the bucket."""
    if not info.bucket_keys:
        raise InvalidArgumentError(f"table {info.table_path} has no bucket key: the writer chooses the bucket")
    return _build(_lake_encoder(info.lake_format), info.schema, info.bucket_keys)


def prefix_key_encoder(info: TableInfo) -> KeyEncoder:
    """The encoder of the key that prefix lookup sends: the bucket key, where it leads the primary key."""
    whole = kv_key_encoder(info)
    names = info.bucket_keys
    if not 0 < len(names) < len(whole.names) or whole.names[: len(names)] != names:
        raise InvalidArgumentError(
            f"table {info.table_path} does not support prefix lookup: its bucket key ({', '.join(names)}) must be the "
            f"beginning of its primary key without partition columns ({', '.join(whole.names)}), and shorter"
        )
    if not isinstance(whole, CompactedKeyEncoder):
        raise InvalidArgumentError(
            f"table {info.table_path} does not support prefix lookup: its keys are encoded for {info.lake_format} "
            f"(table.kv.format-version={info.kv_format_version}), where a part of a key is not a prefix of its bytes"
        )
    return _build(CompactedKeyEncoder, info.schema, names)
