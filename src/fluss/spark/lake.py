# SPDX-License-Identifier: Apache-2.0
"""Tables that have a lake: its snapshot and the log after it, read by Spark as one table.

The driver pins the snapshot and the end of every bucket. Of a primary-key table each task merges one bucket, its rows
in the lake and the changelog after them. Of a log table some tasks read the lake, the others the log.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import datasource as d
from pyspark.sql.types import StructType

from fluss._lazy import LazyModule
from fluss.aio import RecordBatch
from fluss.errors import ConfigError, FlussError
from fluss.lake.api import LakeSplit
from fluss.lake.layout import BUCKET_COLUMN, OFFSET_COLUMN, TIMESTAMP_COLUMN, lake_config
from fluss.lake.registry import open_lake
from fluss.lake.tasks import session_of
from fluss.lake.union import UnionPlan, UnionSplit, plan_union, read_union_split
from fluss.metadata import Predicate, TableBucket, TableInfo, partition_name
from fluss.spark.batches import table_columns
from fluss.spark.filters import prune_partitions
from fluss.spark.layout import Bucket
from fluss.spark.options import SourceOptions
from fluss.spark.splits import ROWS, Split, cut

if TYPE_CHECKING:
    import pyarrow.compute as pc
else:
    pc = LazyModule("pyarrow.compute")  # planning does not need it

PART_ROWS = 500_000
"""Files of the lake are put together into parts of about this size: a task costs more than a small file."""

_SYSTEM_COLUMNS = {"_log_offset": OFFSET_COLUMN, "_commit_timestamp": TIMESTAMP_COLUMN, "_bucket": BUCKET_COLUMN}


class LakePart(d.InputPartition):  # type: ignore[misc]
    """What one task reads of the lake, or of one bucket of lake and log."""

    def __init__(self, plan: UnionPlan, split: UnionSplit) -> None:
        self.plan = plan
        self.split = split


def lake_is_read(options: SourceOptions, info: TableInfo) -> bool:
    """Whether a batch read takes what is in the lake now, or in a snapshot of it."""
    if options["scan.snapshot-id"] is not None:
        return True
    return options["scan.as-of.timestamp"] is None and lake_has_rows(options, info)


def lake_has_rows(options: SourceOptions, info: TableInfo) -> bool:
    """Whether a lake holds rows of a batch read; ranges and changes of the log are the log's own."""
    if options.view in ("changelog", "binlog"):
        return False
    if not info.config.lake_enabled or (options["read.changelog"] and info.has_primary_key()):
        return False
    ranged = any(options[name] is not None for name in ("endingOffsets", "scan.incremental.start.timestamp"))
    return options["scan.startup.mode"] == "full" and not ranged


def snapshot_as_of(options: SourceOptions, info: TableInfo, time_ms: int) -> tuple[int, set[str]] | None:
    """The newest snapshot that the lake had at a time, and the partitions in it; None if it has none so old."""
    names: set[str] = set()

    def note(values: tuple[str, ...]) -> bool:
        names.add(partition_name(values))
        return False

    if session_of(options.client).lake_snapshot(info.table_path) is None:
        return None
    with open_lake(lake_config(info, options.lake)) as lake:
        table = lake.table(info.lake_path)
        found = next((number for number, committed_ms in table.history_times() if committed_ms <= time_ms), None)
        if found is None:
            return None
        if info.is_partitioned():
            table.plan(found, note, info.partition_keys)
    return found, names


def plan_lake(
    options: SourceOptions,
    info: TableInfo,
    predicate: Predicate | None,
    *,
    snapshot_id: int | None = None,
    lake_only: bool = False,
) -> UnionPlan | None:
    """The parts of a table in lake and log; None where the lake has no snapshot yet."""
    wanted = _Wanted(info, options["scan.partitions"], predicate) if info.is_partitioned() else None
    if wanted is None and options["scan.partitions"] is not None:
        raise ConfigError(f"scan.partitions: table {info.table_path} has no partitions")
    plan = plan_union(
        session_of(options.client),
        info,
        lake_options=options.lake,
        partitions=wanted,
        snapshot_id=snapshot_id,
        lake_only=lake_only,
    )
    if plan.snapshot_id is None:
        return None
    if wanted is not None and not lake_only:
        wanted.check()
    return plan


class _Wanted:
    """Which partitions a read wants. Some may live in the lake alone, so there is no list of them to choose from."""

    def __init__(self, info: TableInfo, names: Sequence[str] | None, predicate: Predicate | None) -> None:
        self._info = info
        self._names = names
        self._predicate = predicate
        self._seen: set[str] = set()

    def __call__(self, name: str) -> bool:
        self._seen.add(name)
        if self._names is not None and name not in self._names:
            return False
        return self._predicate is None or bool(prune_partitions(self._predicate, self._info, {0: name}))

    def check(self) -> None:
        missing = set(self._names or ()) - self._seen
        if missing:
            raise ConfigError(
                f"scan.partitions: table {self._info.table_path} has no partition {', '.join(sorted(missing))}"
            )


def parts_of(options: SourceOptions, info: TableInfo, plan: UnionPlan) -> list[d.InputPartition]:
    """The tasks of a plan."""
    if info.has_primary_key():
        return [_bucket_part(plan, split) for split in plan.splits]
    lake = [split for split in plan.splits if split.lake]
    tails = {_bucket(split): split for split in plan.splits if not split.lake}
    parts: list[d.InputPartition] = list(_packed(options, plan, lake))
    starts = {bucket: split.start for bucket, split in tails.items()}
    splits_min = options["minPartitions"]
    parts += cut(
        info.table_id,
        starts,
        {bucket: tails[bucket].stop for bucket in starts},
        rows_max=options["scan.maxRecordsPerPartition"],
        splits_min=None if splits_min is None else max(1, splits_min - len(parts)),
    )
    return parts


def _bucket_part(plan: UnionPlan, split: UnionSplit) -> d.InputPartition:
    if not split.lake and split.bucket not in plan.offsets:
        # Nothing of this bucket is in the lake: its rows come from the server, as of the end that was pinned.
        return Split(split.table_id, _bucket(split), 0, split.stop, ROWS)
    return LakePart(plan.for_tasks(), split)


def _bucket(split: UnionSplit) -> Bucket:
    bucket = split.bucket
    if bucket is None:
        raise ValueError("a part of the log without a bucket")
    return Bucket(-1 if bucket.partition_id is None else bucket.partition_id, bucket.bucket_id, split.partition or "")


def _packed(options: SourceOptions, plan: UnionPlan, splits: Sequence[UnionSplit]) -> Iterator[LakePart]:
    """Small files together, up to a number of rows. A file is never cut."""
    size = options["scan.maxRecordsPerPartition"] or PART_ROWS
    if options["minPartitions"] is not None:
        rows = sum(split.rows_max for split in plan.splits)
        size = min(size, math.ceil(rows / options["minPartitions"]))
    shared = plan.for_tasks()
    waiting: list[LakeSplit] = []
    rows = 0
    for split in splits:
        if waiting and rows + split.rows_max > size:
            yield LakePart(shared, replace(split, lake=tuple(waiting)))
            waiting, rows = [], 0
        waiting += split.lake
        rows += split.rows_max
    if waiting:
        yield LakePart(shared, replace(splits[0], lake=tuple(waiting)))


def read_lake_part(
    options: SourceOptions, schema: StructType, part: LakePart, info: TableInfo, predicate: Predicate | None
) -> Iterator[RecordBatch]:
    """The rows of one part that match, with the metadata columns that are wanted."""
    columns = table_columns(info, schema)
    if predicate is not None:
        columns = list(dict.fromkeys([*columns, *(leaf.column for leaf in predicate.leaves())]))
    own = info.schema.column_names
    metadata = {name: column for name, column in _SYSTEM_COLUMNS.items() if name in schema.names and name not in own}
    # Rows of one batch may come from several buckets: where each comes from stands in its columns.
    bucket = TableBucket(info.table_id, 0)
    if info.has_primary_key():
        metadata, bucket = {}, _bucket_of(part.split)
    expression = None if predicate is None else predicate.to_arrow_expression(info.schema)
    session = session_of(options.client)
    rows = 0
    for found in read_union_split(session, part.plan, part.split, [*columns, *metadata.values()]):
        rows += found.num_rows
        batch = found if expression is None else _filtered(found, expression)
        if batch.num_rows:
            yield RecordBatch(_with_metadata(batch, columns, metadata), bucket, -1, -1)
    _check_rows(rows, part.split, info)


def _bucket_of(split: UnionSplit) -> TableBucket:
    """The bucket of a part of a primary-key table."""
    of_lake = next((part.bucket for part in split.lake if part.bucket is not None), None)
    return split.bucket or TableBucket(split.table_id, 0 if of_lake is None else of_lake.bucket)


def _check_rows(rows: int, split: UnionSplit, info: TableInfo) -> None:
    """Fail if a read of a log table in the lake gave other rows than were planned."""
    if not info.has_primary_key() and all(part.exact for part in split.lake) and rows != split.rows_max:
        raise FlussError(
            f"a read of table {info.table_path} in the lake got {rows} rows of {split.rows_max}; the query would be "
            "wrong. Run it again; if it fails again, files of the lake are damaged"
        )


def _filtered(batch: pa.RecordBatch, expression: pc.Expression) -> pa.RecordBatch:
    kept = pa.Table.from_batches([batch]).filter(expression).combine_chunks().to_batches()
    return kept[0] if kept else batch.slice(0, 0)


def _with_metadata(batch: pa.RecordBatch, columns: Sequence[str], metadata: dict[str, str]) -> pa.RecordBatch:
    if not metadata:
        return batch
    arrays = list(batch.columns)
    if "_commit_timestamp" in metadata:
        at = len(columns) + list(metadata).index("_commit_timestamp")
        # Rows that were listed, and not read from the log, do not tell when they were written.
        never = pa.scalar(None, arrays[at].type)
        arrays[at] = pc.if_else(pc.less(arrays[at].cast(pa.int64()), 0), never, arrays[at])
    return pa.RecordBatch.from_arrays(arrays, names=[*columns, *metadata])
