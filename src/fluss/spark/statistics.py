# SPDX-License-Identifier: Apache-2.0
"""What Spark's optimizer asks about a read before it is planned: how many rows it gives, and how large they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from fluss.client.blocking_client import BlockingClient
from fluss.db.read_plan import keys_of
from fluss.lake.registry import open_lake
from fluss.lake.union import UnionPlan
from fluss.metadata import ArrayType, BinaryType, BytesType, CharType, MapType, RowType, StringType, TableInfo
from fluss.spark.connect import client_of
from fluss.spark.lake import lake_is_read, plan_lake
from fluss.spark.layout import Bucket, Layout, rows_between
from fluss.spark.options import read_options
from fluss.spark.reader import FlussReader, choosing, pruned
from fluss.spark.source import FlussDataSource

_OTHER_ROWS = ("endingOffsets", "scan.incremental.start.timestamp", "scan.as-of.timestamp")
"""Options of reads that may give more rows than a table has now."""

_VARIABLE = (StringType, CharType, BytesType, BinaryType, ArrayType, MapType, RowType)
"""Types whose values have no size of their type."""

_SAMPLE_ROWS = 1000
_SAMPLE_BYTES = 4 * 1024 * 1024
_SAMPLE_BUCKETS = 4

_row_sizes: dict[tuple[Any, ...], float] = {}
"""The mean size of rows, by the table as it was created, its schema and columns; that used last comes last."""

_ROW_SIZES_MAX = 1000


def read_count(options: Mapping[str, str]) -> int | None:
    """How many rows a batch read with these options gives, where offsets say that."""
    source = FlussDataSource(options)
    reader: FlussReader = source.reader(source.schema())
    return reader.count()


def read_size(options: Mapping[str, str], columns: Sequence[str]) -> dict[str, Any] | None:
    """About how many rows a batch read gives, and the bytes of a row in these columns; None if that takes too long.

    Of a filter, only the choice of partitions and of whole keys is regarded: Spark estimates what it leaves. A row has
    no size where that of its types does, or where there is no row to look at.
    """
    given = read_options(FlussDataSource(options).readable_options())
    client = client_of(given.client)
    info = client.info(given.table_path)
    others = any(given[name] is not None for name in _OTHER_ROWS) or given["scan.startup.mode"] != "full"
    if others or given["read.changelog"]:
        return None
    predicate = choosing(given, info)
    keys = keys_of(predicate, info) if predicate is not None and info.has_primary_key() else None
    if keys is not None:
        return {"rows": len(keys), "row_bytes": None}
    sampled = [name for name in columns if name in info.schema.column_names]
    if not any(isinstance(info.schema.column(name).data_type, _VARIABLE) for name in sampled):
        sampled = []

    def sized(sample: Callable[[], Iterable[pa.RecordBatch]]) -> float | None:
        key = (info.table_id, info.created_time, info.schema_id, *sampled)
        return _row_bytes(key, sample) if sampled else None

    if lake_is_read(given, info):
        snapshot_id = given["scan.snapshot-id"]
        lake_only = given["read.optimized"] or snapshot_id is not None
        plan = plan_lake(given, info, predicate, snapshot_id=snapshot_id, lake_only=lake_only)
        if plan is not None:
            rows = sum(split.rows_max for split in plan.splits)
            return {"rows": rows, "row_bytes": sized(lambda: _lake_sample(plan, info, sampled))}
        if lake_only:
            return {"rows": 0, "row_bytes": None}
    layout = pruned(Layout.load(client, info, given["scan.partitions"]), given)
    start, stop = layout.earliest(), layout.latest()
    counted = _rows_by_key(client, layout) if info.has_primary_key() else rows_between(start, stop, stop)
    if counted is None:
        return None
    return {"rows": counted, "row_bytes": sized(lambda: _log_sample(client, info, start, stop, sampled))}


def _rows_by_key(client: BlockingClient, layout: Layout) -> int | None:
    counts = client.run(client.admin.get_table_stats(layout.info.table_path)).bucket_row_counts
    wanted = [counts.get(bucket.of(layout.info.table_id), 0) for bucket in layout.buckets]
    known = [count for count in wanted if count is not None]
    return sum(known) if len(known) == len(wanted) else None


def _row_bytes(key: tuple[Any, ...], sample: Callable[[], Iterable[pa.RecordBatch]]) -> float | None:
    """The mean size of rows in memory; what the server and lakes have of sizes are those of compressed files."""
    found = _row_sizes.pop(key, None)
    if found is None:
        found = _mean_bytes(sample())
    if found is not None:
        _row_sizes[key] = found
        if len(_row_sizes) > _ROW_SIZES_MAX:
            del _row_sizes[next(iter(_row_sizes))]
    return found


def _mean_bytes(sample: Iterable[pa.RecordBatch]) -> float | None:
    rows = size = 0
    for batch in sample:
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= _SAMPLE_ROWS or size >= _SAMPLE_BYTES:
            break
    return size / rows if rows else None


def _log_sample(
    client: BlockingClient,
    info: TableInfo,
    start: Mapping[Bucket, int],
    stop: Mapping[Bucket, int],
    columns: Sequence[str],
) -> Iterator[pa.RecordBatch]:
    """The newest rows of the largest buckets: those are on the servers, wherever older ones are."""
    filled = sorted((b for b in stop if stop[b] > start.get(b, 0)), key=lambda b: stop[b] - start.get(b, 0))
    chosen = {bucket.of(info.table_id): bucket for bucket in filled[-_SAMPLE_BUCKETS:]}
    if not chosen:
        return
    each = _SAMPLE_ROWS // len(chosen)
    first = {one: max(start.get(bucket, 0), stop[bucket] - each) for one, bucket in chosen.items()}
    last = {one: stop[bucket] for one, bucket in chosen.items()}
    table = client.table(info.table_path)
    scan = client.call(lambda: table.new_scan().project_by_name(columns))
    for found in client.iterate(scan.read_batches(first, last)):
        yield found.batch


def _lake_sample(plan: UnionPlan, info: TableInfo, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    parts = [part for split in plan.splits for part in split.lake]
    if plan.config is None or not parts:
        return
    with open_lake(plan.config) as lake:
        yield from lake.table(info.lake_path).read(parts[-1], info, columns)
