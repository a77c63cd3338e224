# SPDX-License-Identifier: Apache-2.0
"""Stored values of primary-key tables (schema id, then the row) into dicts or Arrow, whatever schema wrote them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import array_of
from fluss.errors import FormatError
from fluss.metadata import (
    DataType,
    Schema,
)
from fluss.rows import compacted, indexed
from fluss.rows.logical import PLAIN_TYPES, to_arrow, to_python
from fluss.rows.slices import Slices
from fluss.rows.vector import decode_compacted

SCHEMA_ID_BYTES = 2


def schema_id_of(value: bytes) -> int:
    """The id of the schema a stored value was written with."""
    if len(value) < SCHEMA_ID_BYTES:
        raise FormatError(f"A stored value of {len(value)} bytes is too short for its schema id")
    return int.from_bytes(value[:SCHEMA_ID_BYTES], "little", signed=True)


def schema_ids_of(values: Sequence[bytes]) -> set[int]:
    """The ids of all schemas that stored values were written with."""
    return {schema_id_of(head) for head in {value[:SCHEMA_ID_BYTES] for value in values}}


def column_sources(written: Schema, wanted: Schema) -> list[int | None]:
    """For each wanted column its position in the written schema, by column id; None where it did not exist yet."""
    positions = {column.column_id: index for index, column in enumerate(written.columns)}
    return [positions.get(column.column_id) for column in wanted.columns]


class ValueDecoder:
    """Decodes stored values written with one schema into dicts of another (usually the same)."""

    def __init__(self, written: Schema, wanted: Schema, kv_format: str, *, map_pairs: bool = False) -> None:
        self._map_pairs = map_pairs
        self._types = written.data_types
        self._names = written.column_names
        self._decode = _row_decoder(kv_format)
        self._wanted_names = wanted.column_names
        sources = column_sources(written, wanted)
        self._in_place = sources == list(range(len(self._types)))
        self._sources = sources
        self._converters: list[tuple[str, DataType]] = [
            (column.name, column.data_type)
            for column in wanted.columns
            if not isinstance(column.data_type, PLAIN_TYPES)
        ]

    def decode(self, value: bytes) -> dict[str, Any]:
        """Decode one stored value (with its schema id in front) into a dict of Python values."""
        logical = self._decode(self._types, memoryview(value)[SCHEMA_ID_BYTES:], self._names)
        if self._in_place:
            row = dict(zip(self._wanted_names, logical))
        else:
            row = {
                name: None if source is None else logical[source]
                for name, source in zip(self._wanted_names, self._sources)
            }
        for name, data_type in self._converters:
            if row[name] is not None:
                row[name] = to_python(row[name], data_type, map_pairs=self._map_pairs)
        return row


def _row_decoder(kv_format: str) -> Callable[..., list[Any]]:
    return indexed.decode_row if kv_format.upper() == "INDEXED" else compacted.decode_row


def decode_values(values: Sequence[bytes], schemas: Mapping[int, Schema], wanted: Schema, kv_format: str) -> pa.Table:
    """Many stored values as one Arrow table of the wanted schema, in order. `schemas` holds every id that occurs."""
    if not values:
        return wanted.arrow_schema.empty_table()
    if len(found := schema_ids_of(values)) == 1:
        [schema_id] = found
        return _decode_one_schema(values, schemas[schema_id], wanted, kv_format)
    by_schema: dict[int, list[int]] = {}
    for position, value in enumerate(values):
        by_schema.setdefault(schema_id_of(value), []).append(position)
    tables, order = [], []
    for schema_id, positions in by_schema.items():
        tables.append(_decode_one_schema([values[p] for p in positions], schemas[schema_id], wanted, kv_format))
        order.extend(positions)
    return pa.concat_tables(tables).take(array_of(np.argsort(order)))


def _decode_one_schema(values: Sequence[bytes], written: Schema, wanted: Schema, kv_format: str) -> pa.Table:
    arrays = _decode_columns(written.data_types, values, kv_format)
    columns = []
    for field, source in zip(wanted.arrow_schema, column_sources(written, wanted)):
        array = pa.nulls(len(values), field.type) if source is None else arrays[source]
        columns.append(array if array.type == field.type else array.cast(field.type))
    return pa.Table.from_arrays(columns, schema=wanted.arrow_schema)


def _decode_columns(types: Sequence[DataType], values: Sequence[bytes], kv_format: str) -> list[pa.Array]:
    rows = [value[SCHEMA_ID_BYTES:] for value in values]
    if kv_format.upper() != "INDEXED":
        return list(decode_compacted(types, Slices.from_list(rows)))
    decoded = [indexed.decode_row(types, row) for row in rows]
    return [to_arrow([row[i] for row in decoded], data_type) for i, data_type in enumerate(types)]
