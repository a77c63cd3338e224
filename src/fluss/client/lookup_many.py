# SPDX-License-Identifier: Apache-2.0
"""Many lookups at once, column by column: keys in as Arrow, rows out as Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import array_of
from fluss.client.arguments import wrong_argument
from fluss.client.cluster import Cluster
from fluss.client.convert import KeyMaker, named_values
from fluss.client.fanout import run_all
from fluss.client.lookup_queue import LookupQueue, Place, may_have_expired
from fluss.client.metadata_cache import PartitionState, TableState
from fluss.client.runner import Runner
from fluss.client.write.routing import groups_of, partition_codes
from fluss.errors import InvalidArgumentError, InvalidRowError
from fluss.metadata import HISTORICAL_PARTITION, Schema, TableInfo
from fluss.net.deadline import Deadline
from fluss.records.stored_values import decode_values, schema_ids_of
from fluss.rows.bucketing import bucket_hashes
from fluss.rows.logical import from_python, to_arrow
from fluss.rows.slices import Slices

REQUESTS_IN_FLIGHT_MAX = 4
"""Requests of one `lookup_many` that are in flight at the same time."""


async def lookup_many(
    runner: Runner,
    state: TableState,
    maker: KeyMaker,
    queue: LookupQueue[bytes | None],
    keys: Any,
    missing: str,
    timeout: float | None = None,
) -> pa.Table:
    """See `Lookuper.lookup_many`."""
    deadline = runner.cluster.deadline(timeout)
    if missing not in ("drop", "null"):
        raise InvalidArgumentError(f"missing must be 'drop' or 'null', got {missing!r}")
    columns = key_columns(maker, keys)
    wanted = state.schema
    groups = await runner.ask(lambda cluster: route(cluster, maker, columns, deadline))
    keys_max = runner.cluster.config.lookup_max_batch_size
    values = await fetch(queue, groups, len(columns[0]), deadline, keys_max)
    found = [value for value in values if value is not None]
    schemas: dict[int, Schema] = {state.schema_id: wanted}
    stored = Slices.from_list(found)
    for schema_id in np.unique(schema_ids_of(stored)).tolist():
        if schema_id not in schemas:
            schemas[schema_id] = await runner.ask(
                lambda cluster, i=schema_id: cluster.schema(state.table_path, i, deadline)  # type: ignore[misc]
            )
    table = pa.Table.from_batches([decode_values(stored, schemas, wanted, state.table_info.kv_format)])
    if missing == "drop" or len(found) == len(values):
        return table
    present = np.array([value is not None for value in values])
    indices = array_of(np.cumsum(present) - 1, ~present)
    nullable = pa.schema([field.with_nullable(True) for field in table.schema])
    return pa.Table.from_arrays(table.columns, schema=nullable).take(indices)  # Arrow refuses to cast nested fields


def key_columns(maker: KeyMaker, keys: Any) -> list[pa.Array]:
    """The key columns, in the order of the key, with the types of the table and without nulls."""
    table = _as_table(keys)
    columns = []
    if table is not None:
        for name, data_type in zip(maker.names, maker.types):
            if name not in table.column_names:
                raise InvalidRowError(f"The keys lack column {name!r}; they need {list(maker.names)}")
            column = table.column(name).combine_chunks()
            if isinstance(column, pa.ChunkedArray):
                column = pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
            try:
                columns.append(column.cast(data_type.to_arrow()))
            except pa.ArrowException as error:
                raise InvalidRowError(f"Column {name!r} of the keys does not fit {data_type}: {error}") from None
    else:
        rows = [named_values(key, maker.names, maker.known, maker.what) for key in keys]
        for index, (name, data_type) in enumerate(zip(maker.names, maker.types)):
            try:
                values = [None if row[index] is None else from_python(row[index], data_type) for row in rows]
            except InvalidRowError as error:
                raise InvalidRowError(f"Column {name!r} of the keys: {error.message}") from None
            columns.append(to_arrow(values, data_type))
    for name, column in zip(maker.names, columns):
        if column.null_count:
            raise InvalidRowError(f"Column {name!r} of the keys must not be null")
    return columns


def _as_table(keys: Any) -> pa.Table | None:
    if isinstance(keys, pa.Table):
        return keys
    if isinstance(keys, pa.RecordBatch):
        return pa.Table.from_batches([keys])
    if isinstance(keys, Mapping):
        raise InvalidArgumentError("lookup_many takes a list of keys or an Arrow table; for one key use lookup")
    if hasattr(keys, "__arrow_c_stream__"):
        return pa.table(keys)
    if type(keys).__module__.startswith("pandas"):
        return pa.Table.from_pandas(keys, preserve_index=False)
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise wrong_argument("lookup_many", "keys", "a list of keys, an Arrow table or a DataFrame", keys)
    return None


Groups = list[tuple["str | None", int, int, Any, list[bytes]]]
"""Partition name or None, bucket id, number of buckets, positions of the keys, encoded keys."""


async def route(cluster: Cluster, maker: KeyMaker, columns: list[pa.Array], deadline: Deadline) -> Groups:
    """Which keys go to which bucket; keys of partitions that do not exist are left out."""
    count = len(columns[0])
    if not count:
        return []
    info = maker.info
    encoded = maker.key_encoder.encode_columns([columns[i] for i in maker.key_positions])
    hashes = np.zeros(count, np.int64)
    if info.num_buckets > 1 or maker.partition_positions:
        bucket_keys = encoded
        if not maker.same_key:
            bucket_keys = maker.bucket_encoder.encode_columns([columns[i] for i in maker.bucket_positions])
        hashes = bucket_hashes(bucket_keys, info.lake_format, maker.variant)
    names: list[str | None] = [None]
    counts = np.array([info.num_buckets])
    partition_of = np.zeros(count, np.int64)
    if maker.partition_positions:
        partitions, partition_of = partition_codes(info, [columns[i] for i in maker.partition_positions], maker.variant)
        names = list(partitions)
        asks = [partial(_partition, cluster, info, name, deadline) for name in partitions]
        found = await run_all(asks, REQUESTS_IN_FLIGHT_MAX)
        counts = np.array([0 if partition is None else partition.num_buckets for partition in found])
    width = int(counts.max())
    if not width:
        return []
    exists = np.flatnonzero(counts[partition_of])
    codes = partition_of * width + hashes % np.maximum(counts[partition_of], 1)
    keys = encoded.to_list()
    return [
        (names[code // width], code % width, int(counts[code // width]), at, [keys[p] for p in at.tolist()])
        for code, at in ((code, exists[rows]) for code, rows in groups_of(codes[exists]))
    ]


async def _partition(cluster: Cluster, info: TableInfo, name: str, deadline: Deadline) -> PartitionState | None:
    """The partition, or the one that its lookups are sent to; None if there is neither."""
    found = await cluster.partition(info.table_path, name, deadline=deadline, table_id=info.table_id)
    if found is None and may_have_expired(info, name):
        found = await cluster.partition(info.table_path, HISTORICAL_PARTITION, deadline=deadline)
    return found


async def fetch(
    queue: LookupQueue[bytes | None], groups: Groups, count: int, deadline: Deadline, keys_max: int
) -> list[bytes | None]:
    """Look up the keys of all groups, a few requests at a time, and put the values where their keys were."""
    values: list[bytes | None] = [None] * count

    async def one(place: Place, buckets: int, positions: list[int], keys: list[bytes]) -> None:
        for position, value in zip(positions, await queue.get_many(place, keys, deadline, buckets=buckets)):
            values[position] = value

    works = []
    for partition, bucket_id, buckets, positions, keys in groups:
        where = positions.tolist()
        for start in range(0, len(keys), keys_max):
            end = start + keys_max
            works.append(partial(one, (partition, bucket_id), buckets, where[start:end], keys[start:end]))
    await run_all(works, REQUESTS_IN_FLIGHT_MAX)
    return values
