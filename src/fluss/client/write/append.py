# SPDX-License-Identifier: Apache-2.0
"""Appending rows to log tables."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import array_of
from fluss.client.write.accumulator import row_taker
from fluss.client.write.arrow_input import BatchReader
from fluss.client.write.batch import BatchSizer, RoutedRows, RouteKey, Seal
from fluss.client.write.conversion import ChunkConverter
from fluss.client.write.handle import Positions, WriteResultHandle
from fluss.client.write.lane import WriteTarget
from fluss.client.write.routing import (
    groups_of,
    large_rows,
    partition_codes,
    refuse_rows,
)
from fluss.client.write.row_reader import RowReader, value_converter
from fluss.client.write.sender import Sender
from fluss.client.write.writer import WriterBase
from fluss.errors import InvalidArgumentError
from fluss.metadata import TableBucket, TableInfo
from fluss.metadata.schema import statistics_columns
from fluss.records import (
    EncodedBody,
    build_statistics,
    encode_arrow_body,
    encode_row_body,
    seal_log_batch,
)
from fluss.records.arrow_layout import RECORDS_MAX
from fluss.rows import bucket_key_encoder, buckets_of

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster
    from fluss.config import Config

_ARROW_BATCH_BYTES_MAX = 8 * 1024 * 1024
_ASSIGNERS_MAX = 1024
"""Of partitions, which come and go: one that is evicted chooses its next bucket anew."""


class ArrowRows:
    """Rows for one bucket as an Arrow batch, and as bytes if they are encoded already."""

    __slots__ = ("batch", "body", "rows", "size_bytes")

    def __init__(self, batch: pa.RecordBatch, size_bytes: int, body: EncodedBody | None = None) -> None:
        self.batch = batch
        self.rows = batch.num_rows
        self.size_bytes = size_bytes
        self.body = body

    @property
    def is_encoded(self) -> bool:
        return self.body is not None


class ArrowEncoder:
    """Encodes the rows of one batch as a log batch in the table's log format."""

    def __init__(self, info: TableInfo) -> None:
        self._schema_id = info.schema_id
        self._schema = info.schema
        self._log_format = info.log_format
        self._compression, self._level = info.arrow_compression
        self._types = [column.data_type for column in info.schema.columns]
        wanted = info.config.statistics_columns if self._log_format == "ARROW" else None
        self._statistics_columns = statistics_columns(info.schema, wanted)
        self.is_quick = self._log_format == "ARROW" and self._compression == "NONE" and not self._statistics_columns
        """Whether encoding is little more than a checksum, which is done sooner than handed to a thread."""

    def __call__(self, contents: Sequence[ArrowRows]) -> tuple[Seal, int]:
        batch, encoded = contents[0].batch, contents[0].body
        if len(contents) > 1:
            batch = pa.Table.from_batches([part.batch for part in contents]).combine_chunks().to_batches()[0]
        body = encoded if encoded is not None and len(contents) == 1 else self.body_of(batch)

        def seal(writer_id: int, batch_sequence: int) -> list[Any]:
            return seal_log_batch(body, schema_id=self._schema_id, writer_id=writer_id, batch_sequence=batch_sequence)

        return seal, body.size_bytes

    def body_of(self, batch: pa.RecordBatch) -> EncodedBody:
        if self._log_format != "ARROW":
            return encode_row_body(self._log_format, self._types, batch)
        statistics = None
        if self._statistics_columns:
            statistics = build_statistics(batch, self._schema, self._statistics_columns)
        return encode_arrow_body(batch, compression=self._compression, level=self._level, statistics=statistics)


class Sticky:
    """Stay with one bucket until a batch is complete, then move to another: few and full batches."""

    def __init__(self, num_buckets: int, available: Callable[[], Sequence[int]]) -> None:
        self.num_buckets = num_buckets
        self._available = available
        self._bucket: int | None = None

    def current(self) -> int:
        if self._bucket is None:
            self._bucket = random.choice(self._choices())
        return self._bucket

    def batch_sealed(self) -> None:
        others = [bucket for bucket in self._choices() if bucket != self._bucket]
        if others:
            self._bucket = random.choice(others)

    def _choices(self) -> Sequence[int]:
        return self._available() or range(self.num_buckets)


class RoundRobin:
    """Every row to the next bucket, round robin."""

    def __init__(self, num_buckets: int, available: Callable[[], Sequence[int]]) -> None:
        self.num_buckets = num_buckets
        self._available = available
        self._next = random.randrange(2**31)

    def take(self, rows: int) -> list[int]:
        choices = self._available() or range(self.num_buckets)
        first, self._next = self._next, (self._next + rows) & 0x7FFFFFFF
        return [choices[(first + i) % len(choices)] for i in range(rows)]


class LogConverter(ChunkConverter):
    """Routes rows of a log table, by their bucket keys or to buckets that an assigner chooses."""

    def __init__(
        self, cluster: Cluster, info: TableInfo, config: Config, encoder: ArrowEncoder, sizer: BatchSizer
    ) -> None:
        columns = [value_converter(column.data_type, column.name) for column in info.schema.columns]
        super().__init__(cluster, info, config, columns)
        self._encoder = encoder
        self._sizer = sizer
        self._cut_size = min(self._row_size_max, max(config.writer_batch_size, _ARROW_BATCH_BYTES_MAX))
        self._make_assigner = Sticky if config.writer_bucket_no_key_assigner == "sticky" else RoundRobin
        self._assigners: dict[str | None, Sticky | RoundRobin] = {}
        self._bucket_key_encoder = bucket_key_encoder(info) if self._bucket_key else None

    def _route(
        self, arrays: Sequence[pa.Array], deletes: npt.NDArray[np.bool_], positions: Positions | None
    ) -> list[RoutedRows]:
        batch = pa.RecordBatch.from_arrays(list(arrays), schema=self._info.schema.arrow_schema)
        if _bytes_at_most(batch) > self._row_size_max:
            refuse_rows(dict(large_rows(batch, self._row_size_max)), self._request_size_max)
        if not self._partition_key:
            return self._route_buckets(None, self._info.num_buckets, batch, positions)
        columns = [batch.column(i) for i in self._partition_key]
        names, codes = partition_codes(self._info, columns, self._bucketing)
        counts = self.counts.of(names)
        if len(names) == 1:
            return self._route_buckets(names[0], counts[0], batch, positions)
        routed = []
        for code, rows in groups_of(codes):
            part = batch.take(array_of(rows))
            routed += self._route_buckets(names[code], counts[code], part, _pick(positions, rows))
        return routed

    def _route_buckets(
        self, partition: str | None, count: int, batch: pa.RecordBatch, positions: Positions | None
    ) -> list[RoutedRows]:
        routing_count = count if partition is not None and self._bucket_key_encoder is not None else None
        if count == 1:
            return self._cut(RouteKey(partition, 0, routing_count), batch, positions)
        if self._bucket_key_encoder is not None:
            keys = self._bucket_key_encoder.encode_columns([batch.column(i) for i in self._bucket_key])
            buckets = buckets_of(keys, count, self._info.lake_format, self._bucketing)
        else:
            assigner = self._assigner(partition, count)
            if isinstance(assigner, Sticky):
                return self._cut(RouteKey(partition, assigner.current(), None), batch, positions)
            buckets = np.array(assigner.take(batch.num_rows))
        groups = groups_of(buckets)
        if len(groups) == 1:
            return self._cut(RouteKey(partition, groups[0][0], routing_count), batch, positions)
        routed = []
        for bucket, rows in groups:
            key = RouteKey(partition, bucket, routing_count)
            routed += self._cut(key, batch.take(array_of(rows)), _pick(positions, rows))
        return routed

    def _cut(self, key: RouteKey, batch: pa.RecordBatch, positions: Positions | None) -> list[RoutedRows]:
        """Cut what is larger than a request or a batch may be."""
        size_max = self._cut_size if batch.num_rows <= RECORDS_MAX else 0
        if self._encoder.is_quick and self._sizer.target // 2 < _bytes_at_most(batch) <= size_max:
            # Rows of this size rarely share a batch: they are encoded here, in the thread of the caller.
            body = self._encoder.body_of(batch)
            return [(key, ArrowRows(batch, body.size_bytes, body), positions)]
        size_bytes = batch.nbytes  # asked for once: it looks at every buffer
        if size_bytes <= size_max or batch.num_rows == 1:
            return [(key, ArrowRows(batch, size_bytes), positions)]
        middle = batch.num_rows // 2
        halves = (0, middle), (middle, batch.num_rows - middle)
        return [
            routed
            for start, rows in halves
            for routed in self._cut(
                key, batch.slice(start, rows), _pick(positions, np.arange(start, start + rows, dtype=np.int64))
            )
        ]

    def _assigner(self, partition: str | None, num_buckets: int) -> Sticky | RoundRobin:
        assigner = self._assigners.get(partition)
        if assigner is None or assigner.num_buckets != num_buckets:
            if len(self._assigners) >= _ASSIGNERS_MAX:
                del self._assigners[next(iter(self._assigners))]
            assigner = self._make_assigner(num_buckets, partial(self._led_buckets, partition))
            self._assigners[partition] = assigner
        return assigner

    def _led_buckets(self, partition: str | None) -> list[int]:
        """Return the buckets whose leader is known."""
        if partition is not None:
            return []
        leaders, table_id = self._cluster.metadata.leaders, self._info.table_id
        return [bucket for bucket in range(self._info.num_buckets) if TableBucket(table_id, bucket) in leaders]

    def batch_sealed(self, key: RouteKey) -> None:
        assigner = self._assigners.get(key.partition_name)
        if isinstance(assigner, Sticky):
            assigner.batch_sealed()


class AppendWriter(WriterBase):
    """Appends rows to a log table.

    Example:
        writer = table.new_append().create_writer()
        writer.append({"id": 1, "name": "Alice"})
        await writer.flush()
    """

    def __init__(self, sender: Sender, info: TableInfo, config: Config) -> None:
        if info.has_primary_key():
            raise InvalidArgumentError(f"table {info.table_path} has a primary key: write to it with new_upsert()")
        super().__init__(sender, info, config, WriteTarget(info.table_path, info.table_id, is_kv=False))
        self._reader = RowReader(str(info.table_path), info.schema.columns)
        self.append = row_taker(self._accumulator, self._reader, self._collect)  # type: ignore[method-assign, assignment]
        self._batch_reader = BatchReader(self._reader.table, self._reader.columns)
        self._encode = encoder = ArrowEncoder(info)
        self._converter = LogConverter(sender.cluster, info, config, encoder, self._sizer)

    # -- the public calls -----------------------------------------------------------------------------------------

    def append(self, row: Any) -> WriteResultHandle:
        """Append one row: a dict (or any mapping), a list or tuple in column order, a dataclass or model.

        The row is collected and sent with others; await the handle, or `flush()`, to know that it arrived. A row with
        unknown or missing columns, or with a value that does not fit an ARRAY, MAP or ROW, is refused by this call. A
        value that does not fit another column fails this row alone: its handle raises `InvalidRowError`, and if that
        was not awaited, `flush()` does.

        Example:
            writer.append({"id": 1, "name": "Alice"})
            await writer.append((2, "Bob")).wait()
        """
        return self._collect(self._reader.read(row))

    append_arrow_batch = WriterBase.write_arrow_batch


def _bytes_at_most(batch: pa.RecordBatch) -> int:
    """What the buffers of a batch hold, which is more than its rows take when it is a slice. Quicker than `nbytes`."""
    return sum(buffer.size for column in batch.columns for buffer in column.buffers() if buffer is not None)


def _pick(positions: Positions | None, rows: Positions) -> Positions:
    return rows if positions is None else positions[rows]
