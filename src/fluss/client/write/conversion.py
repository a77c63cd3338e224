# SPDX-License-Identifier: Apache-2.0
"""Rows into columns, and columns to buckets: what happens to a chunk in the thread that completes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fluss._arrow_buffers import array_of
from fluss.client.write.accumulator import Chunk, without
from fluss.client.write.batch import RoutedRows, RouteKey
from fluss.client.write.handle import Positions
from fluss.client.write.partitions import BucketCounts
from fluss.client.write.routing import BadRows, remaining, row_size_max
from fluss.errors import FlussError, InvalidRowError
from fluss.metadata import TableInfo
from fluss.rows import BadValues, ColumnConverter

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster
    from fluss.config import Config

Conversion = tuple[Sequence[RoutedRows], dict[int, FlussError]]
"""Rows for their buckets, and the errors of the rows that are refused, by position."""


class ChunkConverter(ABC):
    """Converts the rows of one table and routes them to buckets. May be used by several threads at the same time."""

    def __init__(
        self,
        cluster: Cluster,
        info: TableInfo,
        config: Config,
        columns: Sequence[ColumnConverter],
        required: Collection[int] = (),
    ) -> None:
        """`required`: columns that must not be null in rows that are not deletes, beyond what `columns` check."""
        self._cluster = cluster
        self._info = info
        self._columns = columns
        self._required = required
        self._bucketing = config.client_bucketing
        self._request_size_max = config.writer_request_max_size
        self._row_size_max = row_size_max(self._request_size_max)
        self._bucket_key = [info.schema.column_index(name) for name in info.bucket_keys]
        self._partition_key = [info.schema.column_index(name) for name in info.get_partition_keys()]
        create = config.writer_dynamic_create_partition_enabled
        self.counts = BucketCounts(cluster, info, config.request_timeout_ms, create=create)

    def convert(self, chunk: Chunk) -> Conversion:
        """Convert the rows of a chunk and route them to buckets; rows that do not fit come with their errors."""
        positions: Positions | None = None
        deletes = np.zeros(chunk.rows, np.bool_)
        deletes[chunk.marks] = True
        arrays, refused = self._to_arrow(chunk.flat, deletes)
        if refused:
            positions = remaining(chunk.rows, refused)
            deletes = deletes[positions]
            arrays, _ = self._to_arrow(without(chunk.flat, len(self._columns), refused.keys()), deletes)
        while len(deletes):
            try:
                return self._route(arrays, deletes, positions), refused
            except BadRows as bad:
                kept = remaining(len(deletes), bad.errors)
                places = np.arange(len(deletes)) if positions is None else positions
                refused.update({int(places[row]): error for row, error in bad.errors.items()})
                arrays, deletes = [array.take(array_of(kept)) for array in arrays], deletes[kept]
                positions = places[kept]
        return [], refused

    def convert_batch(self, batch: pa.RecordBatch, is_delete: bool) -> list[RoutedRows]:
        """Route the rows of a batch, which may lack columns, to buckets; raises `BadRows`."""
        by_name = dict(zip(batch.schema.names, batch.columns))
        arrays = [
            by_name[column.name] if column.name in by_name else pa.nulls(batch.num_rows, converter.arrow_type)
            for column, converter in zip(self._info.schema.columns, self._columns)
        ]
        return self._route(arrays, np.full(batch.num_rows, is_delete), None)

    def batch_sealed(self, key: RouteKey) -> None:  # noqa: B027 - most have nothing to do then
        """Take notice that a batch for `key` is complete."""

    def _to_arrow(
        self, flat: list[Any], deletes: npt.NDArray[np.bool_]
    ) -> tuple[list[pa.Array], dict[int, FlussError]]:
        arrays: list[pa.Array] = []
        bad: dict[int, FlussError] = {}
        for i, converter in enumerate(self._columns):
            values = flat[i :: len(self._columns)]
            try:
                array = converter.to_arrow(values)
            except BadValues as found:
                for position, error in found.errors.items():
                    bad.setdefault(position, error)
            else:
                arrays.append(array)
                if not array.null_count:
                    continue
            if i in self._required:
                name, data_type = self._info.schema.columns[i].name, self._info.schema.columns[i].data_type
                for position, value in enumerate(values):
                    if value is None and not deletes[position]:
                        refusal = InvalidRowError(f"column {name!r} ({data_type}): null, but the type is NOT NULL")
                        bad.setdefault(position, refusal)
        return arrays, bad

    @abstractmethod
    def _route(
        self, arrays: Sequence[pa.Array], deletes: npt.NDArray[np.bool_], positions: Positions | None
    ) -> list[RoutedRows]:
        """Route rows to buckets; raises `BadRows`. `positions` are those of the rows in their chunk."""
