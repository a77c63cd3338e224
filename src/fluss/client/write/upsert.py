# SPDX-License-Identifier: Apache-2.0
"""Upserting into and deleting from primary-key tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss.client.write.accumulator import row_taker
from fluss.client.write.arrow_input import BatchReader, arrow_batches
from fluss.client.write.batch import RoutedRows, RouteKey, Seal
from fluss.client.write.conversion import ChunkConverter
from fluss.client.write.handle import Positions, WriteResultHandle
from fluss.client.write.lane import WriteTarget
from fluss.client.write.routing import (
    groups_of,
    partition_codes,
    refuse_rows,
)
from fluss.client.write.row_reader import RowReader, value_converter
from fluss.client.write.sender import Sender
from fluss.client.write.writer import WriterBase
from fluss.errors import InvalidArgumentError
from fluss.metadata import Column, DataType, MergeMode, TableInfo
from fluss.records import KV_RECORDS_MAX, EncodedKvBody, Part, encode_kv_records, seal_kv_batch
from fluss.rows import (
    Slices,
    bucket_hashes,
    bucket_key_encoder,
    encode_rows,
    kv_key_encoder,
)

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster
    from fluss.config import Config

_RECORD_OVERHEAD_BYTES = 10
_FEW_ROWS_MAX = 1_000
"""Fewer rows than this for each bucket, on average, are encoded together."""


class KvRows:
    """Rows for one bucket: encoded keys, encoded rows, and which of them are deletes."""

    __slots__ = ("deletes", "keys", "rows", "size_bytes", "values")

    is_encoded = False

    def __init__(self, keys: Slices, values: Slices, deletes: npt.NDArray[np.bool_]) -> None:
        self.keys = keys
        self.values = values
        self.deletes = deletes
        self.rows = len(keys)
        self.size_bytes = int(keys.lengths.sum() + values.lengths.sum()) + _RECORD_OVERHEAD_BYTES * self.rows


class KvRecords:
    """Rows for one bucket, encoded: a stretch of the records of all buckets."""

    __slots__ = ("records", "rows", "size_bytes")

    is_encoded = True

    def __init__(self, records: memoryview, rows: int) -> None:
        self.records = records
        self.rows = rows
        self.size_bytes = len(records)


class KvEncoder:
    """Encodes the rows of one batch as a KV batch."""

    def __init__(self, schema_id: int) -> None:
        self._schema_id = schema_id

    def __call__(self, contents: Sequence[KvRows | KvRecords]) -> tuple[Seal, int]:
        parts: list[Part] = []
        for _, run in itertools.groupby(contents, type):
            parts += _encoded(list(run))
        body = EncodedKvBody(parts, sum(map(len, parts)), sum(part.rows for part in contents))

        def seal(writer_id: int, batch_sequence: int) -> list[Any]:
            return seal_kv_batch(body, self._schema_id, writer_id, batch_sequence)

        return seal, sum(part.size_bytes for part in contents)


def _encoded(parts: Sequence[KvRows | KvRecords]) -> list[memoryview]:
    """The records of parts that are all of one kind."""
    if isinstance(parts[0], KvRecords):
        return [part.records for part in parts if isinstance(part, KvRecords)]
    contents = [part for part in parts if isinstance(part, KvRows)]
    keys = Slices.concat([part.keys for part in contents])
    values = Slices.concat([part.values for part in contents])
    deletes = np.concatenate([part.deletes for part in contents])
    return [encode_kv_records(keys, values, deletes)[0]]


class KvConverter(ChunkConverter):
    """Encodes rows of a primary-key table and routes them by their bucket keys. `targets`: the columns that are set."""

    def __init__(self, cluster: Cluster, info: TableInfo, config: Config, targets: Sequence[int]) -> None:
        schema = info.schema
        primary_key = [schema.column_index(name) for name in schema.primary_key]
        # A delete carries its key alone: whether the other columns may be null is checked for upserts only.
        columns = [
            value_converter(_lenient(column, i in primary_key), column.name) for i, column in enumerate(schema.columns)
        ]
        required = {i for i in targets if i not in primary_key and not schema.columns[i].data_type.nullable}
        super().__init__(cluster, info, config, columns, required)
        # Deletes and partial updates leave columns out; what an upsert must have is checked before rows are encoded.
        self._types = [converter.data_type for converter in columns]
        self._key = [schema.column_index(name) for name in info.physical_primary_key]
        self._key_encoder = kv_key_encoder(info)
        self._same_key = self._bucket_key == self._key and info.lake_format is None
        self._bucket_key_encoder = bucket_key_encoder(info)

    def _route(
        self, arrays: Sequence[pa.Array], deletes: npt.NDArray[np.bool_], positions: Positions | None
    ) -> list[RoutedRows]:
        keys = self._key_encoder.encode_columns([arrays[i] for i in self._key])
        rows = encode_rows(self._info.kv_format, self._types, arrays)
        if deletes.any():
            rows = Slices.trusted(rows.data, rows.starts, np.where(deletes, 0, rows.lengths))
        sizes = keys.lengths + rows.lengths
        if int(sizes.max()) > self._row_size_max:
            large = np.flatnonzero(sizes > self._row_size_max).tolist()
            refuse_rows({row: int(sizes[row]) for row in large}, self._request_size_max)
        names: list[str | None] = [None]
        partition = np.zeros(len(keys), np.int64)
        if self._partition_key:
            found, partition = partition_codes(self._info, [arrays[i] for i in self._partition_key], self._bucketing)
            names = list(found)
        counts = self.counts.of(names)
        most = max(counts)
        codes = partition * most
        if most > 1:
            bucket_keys = (
                keys
                if self._same_key
                else self._bucket_key_encoder.encode_columns([arrays[i] for i in self._bucket_key])
            )
            hashes = bucket_hashes(bucket_keys, self._info.lake_format, self._bucketing)
            codes = codes + hashes % np.array(counts)[partition]
        routed: list[RoutedRows] = []
        groups = groups_of(codes)
        places: list[RouteKey] = []
        for code, _ in groups:
            which, bucket = divmod(code, most)
            places.append(RouteKey(names[which], bucket, counts[which] if self._partition_key else None))
        if len(groups) > 1 and len(keys) < _FEW_ROWS_MAX * len(groups):
            return self._encode_together(places, [at for _, at in groups], keys, rows, deletes, positions)
        for place, (_, at) in zip(places, groups):
            if len(groups) == 1:
                routed += self._cut(place, KvRows(keys, rows, deletes), positions)
            else:
                part = KvRows(keys.take(at), rows.take(at), deletes[at])
                routed += self._cut(place, part, at if positions is None else positions[at])
        return routed

    def _encode_together(
        self,
        places: Sequence[RouteKey],
        groups: Sequence[Positions],
        keys: Slices,
        rows: Slices,
        deletes: npt.NDArray[np.bool_],
        positions: Positions | None,
    ) -> list[RoutedRows]:
        """Encode the rows of all buckets at once, bucket by bucket, and cut the records apart.

        A batch of a hundred rows takes as long to encode as one of some thousands.
        """
        order = np.concatenate(groups)
        records, ends = encode_kv_records(keys.take(order), rows.take(order), deletes[order])
        routed: list[RoutedRows] = []
        first = start = 0
        for place, at in zip(places, groups):
            last = first + len(at)
            end = int(ends[last - 1])
            own = at if positions is None else positions[at]
            if end - start <= self._row_size_max and len(at) <= KV_RECORDS_MAX:
                routed.append((place, KvRecords(records[start:end], len(at)), own))
            else:
                routed += self._cut(place, KvRows(keys.take(at), rows.take(at), deletes[at]), own)
            first, start = last, end
        return routed

    def _cut(self, key: RouteKey, part: KvRows, positions: Positions | None) -> list[RoutedRows]:
        """Cut what is larger than a request may be, or has more rows than a batch may have."""
        if part.rows == 1 or (part.size_bytes <= self._row_size_max and part.rows <= KV_RECORDS_MAX):
            return [(key, part, positions)]
        routed: list[RoutedRows] = []
        middle = part.rows // 2
        for at in (np.arange(middle), np.arange(middle, part.rows)):
            half = KvRows(part.keys.take(at), part.values.take(at), part.deletes[at])
            routed += self._cut(key, half, at if positions is None else positions[at])
        return routed


class UpsertWriter(WriterBase):
    """Upserts into and deletes from a primary-key table; with `columns`, only those columns are changed.

    Example:
        writer = table.new_upsert().create_writer()
        writer.upsert({"id": 1, "name": "Alice"})
        writer.delete({"id": 2})
        await writer.flush()
    """

    # The server works longer on a KV batch than the network takes, and should find the next one waiting.
    _busy_batches = 2
    _batch_rows_max = KV_RECORDS_MAX

    def __init__(
        self,
        sender: Sender,
        info: TableInfo,
        config: Config,
        columns: Sequence[int] | None = None,
        mode: MergeMode = MergeMode.DEFAULT,
    ) -> None:
        if not info.has_primary_key():
            raise InvalidArgumentError(f"table {info.table_path} has no primary key: write to it with new_append()")
        targets = self._targets(info, columns)
        super().__init__(
            sender,
            info,
            config,
            WriteTarget(
                info.table_path,
                info.table_id,
                is_kv=True,
                target_columns=tuple(targets or ()),
                # Servers before release 0.9 do not know the field: it is sent only where it says something.
                agg_mode=None if mode is MergeMode.DEFAULT else int(mode),
            ),
        )
        schema = info.schema
        table = str(info.table_path)
        self._reader = RowReader(table, schema.columns, targets)
        self.upsert = row_taker(self._accumulator, self._reader, self._collect)  # type: ignore[method-assign, assignment]
        primary_key = [schema.column_index(name) for name in schema.primary_key]
        self._delete_reader = RowReader(table, schema.columns, primary_key, whole_rows=True)
        self._converter = KvConverter(sender.cluster, info, config, self._reader.positions)
        self._encode = KvEncoder(info.schema_id)
        self._batch_reader = BatchReader(table, self._reader.columns)

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
        """Insert or update one row by its primary key: a dict (or any mapping), a list or tuple, a dataclass or model.

        Example:
            writer.upsert({"id": 1, "name": "Alice"})
            await writer.upsert((2, "Bob")).wait()
        """
        return self._collect(self._reader.read(row))

    def delete(self, pk: Any) -> WriteResultHandle:
        """Delete the row with this primary key (a row may carry the other columns too; they are ignored).

        Example:
            await writer.delete({"id": 1}).wait()
        """
        return self._collect(self._delete_reader.read(pk), is_delete=True)

    upsert_arrow_batch = WriterBase.write_arrow_batch

    def delete_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Delete the rows whose primary keys the batch holds; other columns are ignored.

        Example:
            writer.delete_arrow_batch(pa.RecordBatch.from_pydict({"id": [1, 2, 3]}))
        """
        reader = self._delete_reader
        given = arrow_batches(batch, f"table {reader.table}")
        only_keys = [one.select([name for name in one.schema.names if name in reader.names]) for one in given]
        return self._write_read(BatchReader(reader.table, reader.columns), only_keys, is_delete=True)


def _lenient(column: Column, is_key: bool) -> DataType:
    return column.data_type if is_key else column.data_type.with_nullable(True)
