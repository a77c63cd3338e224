# SPDX-License-Identifier: Apache-2.0
"""Upserting into and deleting from primary-key tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.client.write.arrow_input import BatchReader
from fluss.client.write.batch import Encoder, Seal
from fluss.client.write.collector import Chunk, RowReader, without
from fluss.client.write.columns import BadValues, ColumnConverter
from fluss.client.write.handle import Positions, Ticket, WriteResultHandle
from fluss.client.write.routing import groups_of, partition_codes
from fluss.client.write.sender import Sender, Target
from fluss.client.write.writer import Key, Routed, TableWriter
from fluss.errors import FlussError, InvalidArgumentError, InvalidRowError, RecordTooLargeError
from fluss.metadata import Column, TableInfo
from fluss.records import encode_kv_body, seal_kv_batch
from fluss.rows import (
    Slices,
    bucket_key_encoder,
    buckets_of,
    encode_compacted,
    indexed,
    kv_key_encoder,
    logical,
)

if TYPE_CHECKING:
    from fluss.config import Config

_REQUEST_OVERHEAD_BYTES = 64 * 1024
_RECORD_OVERHEAD_BYTES = 10


class KvPiece:
    """Rows for one bucket: encoded keys, encoded rows, and which of them are deletes."""

    __slots__ = ("deletes", "keys", "rows", "size_bytes", "values")

    def __init__(self, keys: Slices, values: Slices, deletes: npt.NDArray[np.bool_]) -> None:
        self.keys = keys
        self.values = values
        self.deletes = deletes
        self.rows = len(keys)
        self.size_bytes = int(keys.lengths.sum() + values.lengths.sum()) + _RECORD_OVERHEAD_BYTES * self.rows


class KvEncoder:
    """Encodes pieces as one KV batch."""

    def __init__(self, schema_id: int) -> None:
        self._schema_id = schema_id

    def __call__(self, pieces: Sequence[KvPiece]) -> tuple[Seal, int]:
        keys = Slices.concat([piece.keys for piece in pieces])
        values = Slices.concat([piece.values for piece in pieces])
        deletes = np.concatenate([piece.deletes for piece in pieces])
        body = encode_kv_body(keys, values, deletes)

        def seal(writer_id: int, batch_sequence: int) -> list[Any]:
            return seal_kv_batch(body, self._schema_id, writer_id, batch_sequence)

        return seal, sum(piece.size_bytes for piece in pieces)


class UpsertWriter(TableWriter):
    """Upserts into and deletes from a primary-key table; with `columns`, only those columns are changed.

    Example:
        writer = table.new_upsert().create_writer()
        writer.upsert({"id": 1, "name": "Alice"})
        writer.delete({"id": 2})
        await writer.flush()
    """

    def __init__(self, sender: Sender, info: TableInfo, config: Config, columns: Sequence[int] | None = None) -> None:
        if not info.has_primary_key():
            raise InvalidArgumentError(f"table {info.table_path} has no primary key: write to it with new_append()")
        targets = self._targets(info, columns)
        super().__init__(
            sender,
            info,
            config,
            Target(info.table_path, info.table_id, is_kv=True, target_columns=tuple(targets or ())),
        )
        schema = info.schema
        what = f"table {info.table_path}"
        self._width = len(schema.columns)
        self._reader = RowReader(what, schema.columns, targets)
        self._plain = self._reader.is_plain
        self._values_of = self._reader.fast
        primary_key = [schema.column_index(name) for name in schema.primary_key]
        self._delete_reader = RowReader(f"{what}, delete", schema.columns, primary_key)
        # A delete carries its key alone: whether the other columns may be null is checked for upserts only.
        self._converters = [
            ColumnConverter(_lenient(column, i in primary_key)) for i, column in enumerate(schema.columns)
        ]
        positions = self._reader.positions
        self._required = [i for i in positions if i not in primary_key and not schema.columns[i].data_type.nullable]
        self._key = [schema.column_index(name) for name in info.physical_primary_key]
        self._key_encoder = kv_key_encoder(info)
        self._bucket_key = [schema.column_index(name) for name in info.bucket_keys]
        self._same_key = self._bucket_key == self._key and info.lake_format is None
        self._bucket_key_encoder = bucket_key_encoder(info)
        self._partition_key = [schema.column_index(name) for name in info.get_partition_keys()]
        self._types = [column.data_type for column in schema.columns]
        self._bucketing = config.client_bucketing
        self._row_size_max = config.writer_request_max_size - _REQUEST_OVERHEAD_BYTES
        self._kv_encoder = KvEncoder(info.schema_id)
        self._batch_reader = BatchReader(what, [schema.columns[i] for i in positions])

    @staticmethod
    def _targets(info: TableInfo, columns: Sequence[int] | None) -> list[int] | None:
        schema = info.schema
        generated = {schema.column_index(name) for name in schema.get_auto_increment_columns()}
        if columns is None:
            # The server fills an auto-increment column: it must be left out of what is written.
            return [i for i in range(len(schema.columns)) if i not in generated] if generated else None
        targets = sorted(set(columns))
        names = [schema.columns[i].name for i in targets]
        missing = [name for name in schema.primary_key if name not in names]
        if missing:
            raise InvalidArgumentError(
                f"a partial update of {info.table_path} must name all primary key columns; "
                f"missing: {', '.join(missing)}"
            )
        return targets

    # -- the public calls -----------------------------------------------------------------------------------------

    def upsert(self, row: Any) -> WriteResultHandle:
        """Insert or update one row by its primary key: a dict (or any mapping), a list or tuple, or a dataclass."""
        kind = type(row)
        if kind is dict and self._plain and len(row) == self._width:
            try:
                values = self._values_of(row)
            except KeyError:
                values = self._reader.read(row)
        elif kind is tuple and self._plain and len(row) == self._width:
            values = row
        else:
            values = self._reader.read(row)
        return self._collect(values)

    def delete(self, pk: Any) -> WriteResultHandle:
        """Delete the row with this primary key (a dict may carry other columns too; they are ignored)."""
        if isinstance(pk, dict) and len(pk) > len(self._delete_reader.names):
            pk = {name: value for name, value in pk.items() if name in self._delete_reader.names}
        elif isinstance(pk, list | tuple) and len(pk) == self._width != len(self._delete_reader.names):
            pk = [pk[i] for i in self._delete_reader.positions]
        return self._collect(self._delete_reader.read(pk), is_delete=True)

    upsert_arrow_batch = TableWriter.write_arrow_batch

    def delete_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Delete the rows whose primary keys the batch holds; other columns are ignored."""
        ticket = Ticket(self._hurry)
        schema = self._info.schema
        keys = BatchReader(self._delete_reader.what, [schema.columns[i] for i in self._delete_reader.positions])
        names = [name for name in batch.schema.names if name in self._delete_reader.names]
        self._write(keys, [batch.select(names)], ticket, is_delete=True)
        return WriteResultHandle((ticket, None))

    # -- conversion ------------------------------------------------------------------------------------------------

    def _convert(self, chunk: Chunk) -> Sequence[Routed]:
        positions: Positions | None = None
        deletes = np.zeros(chunk.rows, np.bool_)
        deletes[chunk.marks] = True
        arrays, bad = self._columns(chunk.flat, deletes)
        if bad:
            for position, error in bad.items():
                text = f"table {self._info.table_path}: row {position} of the batch, {error.message}"
                named = type(error)(text, error.error_code)
                chunk.ticket.settle(1, np.array([position]), named)
                self._failures.add(1, str(self._info.table_path), named)
            positions = np.array([i for i in range(chunk.rows) if i not in bad], dtype=np.int64)
            deletes = deletes[positions]
            arrays, _ = self._columns(without(chunk.flat, self._width, bad), deletes)
        return self._route(arrays, deletes, positions) if len(deletes) else []

    def _columns(self, flat: list[Any], deletes: npt.NDArray[np.bool_]) -> tuple[list[pa.Array], dict[int, FlussError]]:
        arrays: list[pa.Array] = []
        bad: dict[int, FlussError] = {}
        for i, converter in enumerate(self._converters):
            try:
                arrays.append(converter.to_arrow(flat[i :: self._width]))
            except BadValues as found:
                for position, error in found.errors.items():
                    bad.setdefault(position, error)
        if not bad:
            for i in self._required:
                if arrays[i].null_count:
                    missing = arrays[i].is_null().to_numpy(zero_copy_only=False) & ~deletes
                    name, data_type = self._info.schema.columns[i].name, self._info.schema.columns[i].data_type
                    for position in np.flatnonzero(missing).tolist():
                        bad.setdefault(
                            position,
                            InvalidRowError(f"column '{name}' is {data_type} and got no value (None); give it one"),
                        )
        return arrays, bad

    def _write_batches(self, batches: Sequence[pa.RecordBatch], ticket: Ticket) -> None:
        self._write(self._batch_reader, batches, ticket, is_delete=False)

    def _write(
        self, reader: BatchReader, batches: Sequence[pa.RecordBatch], ticket: Ticket, *, is_delete: bool
    ) -> None:
        read = [reader.read(batch) for batch in batches if batch.num_rows]
        ticket.close(sum(batch.num_rows for batch in read))
        may_block = not self._on_loop()
        for batch in read:
            by_name = {name: batch.column(i) for i, name in enumerate(batch.schema.names)}
            arrays = [
                by_name[column.name] if column.name in by_name else pa.nulls(batch.num_rows, converter.arrow_type)
                for column, converter in zip(self._info.schema.columns, self._converters)
            ]
            routed = self._route(arrays, np.full(batch.num_rows, is_delete), None)
            reserve = sum(piece.size_bytes for _, piece, _ in routed)
            self._hand_over(routed, ticket, reserve, may_block=may_block, force=not may_block)

    # -- encoding and routing ---------------------------------------------------------------------------------------

    def _encode_rows(self, arrays: Sequence[pa.Array]) -> Slices:
        if self._info.kv_format == "COMPACTED":
            return encode_compacted(self._types, arrays)
        columns = [logical.from_arrow(array, data_type) for array, data_type in zip(arrays, self._types)]
        return Slices.from_list([indexed.encode_row(self._types, row) for row in zip(*columns)])

    def _route(
        self, arrays: Sequence[pa.Array], deletes: npt.NDArray[np.bool_], positions: Positions | None
    ) -> list[Routed]:
        keys = self._key_encoder.encode_columns([arrays[i] for i in self._key])
        rows = self._encode_rows(arrays)
        if deletes.any():
            rows = Slices.trusted(rows.data, rows.starts, np.where(deletes, 0, rows.lengths))
        largest = int((keys.lengths + rows.lengths).max())
        if largest > self._row_size_max:
            raise RecordTooLargeError(
                f"a row of {largest} bytes for table {self._info.table_path} is larger than a request may be; "
                f"'writer.request-max-size' is {self._config.writer_request_max_size}"
            )
        if self._info.num_buckets == 1:
            buckets = np.zeros(len(keys), np.int64)
        else:
            bucket_keys = (
                keys
                if self._same_key
                else self._bucket_key_encoder.encode_columns([arrays[i] for i in self._bucket_key])
            )
            buckets = buckets_of(bucket_keys, self._info.num_buckets, self._info.lake_format, self._bucketing).astype(
                np.int64
            )
        names: list[str | None] = [None]
        codes = buckets
        if self._partition_key:
            found, partition = partition_codes(self._info, [arrays[i] for i in self._partition_key], self._bucketing)
            names = list(found)
            codes = partition * self._info.num_buckets + buckets
        routed: list[Routed] = []
        groups = groups_of(codes)
        for code, at in groups:
            name, bucket = names[code // self._info.num_buckets], code % self._info.num_buckets
            if len(groups) == 1:
                routed += self._pieces((name, bucket), KvPiece(keys, rows, deletes), positions)
            else:
                piece = KvPiece(keys.take(at), rows.take(at), deletes[at])
                routed += self._pieces((name, bucket), piece, at if positions is None else positions[at])
        return routed

    def _pieces(self, key: Key, piece: KvPiece, positions: Positions | None) -> list[Routed]:
        """Cut what is larger than a request may be."""
        if piece.size_bytes <= self._row_size_max or piece.rows == 1:
            return [(key, piece, positions)]
        routed: list[Routed] = []
        middle = piece.rows // 2
        for at in (np.arange(middle), np.arange(middle, piece.rows)):
            half = KvPiece(piece.keys.take(at), piece.values.take(at), piece.deletes[at])
            routed += self._pieces(key, half, at if positions is None else positions[at])
        return routed

    def _encoder(self) -> Encoder:
        return self._kv_encoder


def _lenient(column: Column, is_key: bool) -> Column:
    if is_key or column.data_type.nullable:
        return column
    return Column(column.name, column.data_type.with_nullable(True), column.comment, column.column_id)
