# SPDX-License-Identifier: Apache-2.0
"""Lake and log as one table: the rows of a lake snapshot, then the log from the offsets where that snapshot ends.

All parts of a read share one cut: the snapshot and the end of every bucket's log are pinned when the read is planned. A
plan can be pickled and its parts read anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from fluss.client.connection import FlussTable
from fluss.client.scan import RecordBatch
from fluss.client.scan.fold import merge_by_key
from fluss.errors import InvalidArgumentError, LogOffsetOutOfRangeError
from fluss.lake.api import LakeBucket, LakeSplit, LakeTableChangedError
from fluss.lake.layout import LakeConfig, lake_config, read_schema
from fluss.lake.registry import open_lake
from fluss.lake.tasks import LakeSession, check_same_table, lake_partition, session_of
from fluss.metadata import LakeSnapshot, OffsetSpec, TableBucket, TableInfo, TablePath, partition_name


@dataclass(frozen=True)
class UnionSplit:
    """What one task reads: parts of the snapshot, a range of one bucket's log, or both merged by key."""

    table_id: int
    lake: tuple[LakeSplit, ...] = ()
    bucket: TableBucket | None = None
    partition: str | None = None
    """The name of the partition that bucket belongs to."""
    start: int = 0
    stop: int = 0
    listed: bool = False
    """List the rows as of `stop`: nothing is in the lake, and the changelog does not reach back to the first one."""

    @property
    def rows_max(self) -> int:
        """No more rows than this."""
        return sum(split.rows for split in self.lake) + max(0, self.stop - self.start)


@dataclass(frozen=True)
class UnionPlan:
    """A consistent cut of a table, in parts."""

    table_path: TablePath
    snapshot_id: int | None
    config: LakeConfig | None = field(repr=False)
    offsets: Mapping[TableBucket, int] = field(default_factory=dict)
    """Where the log goes on after the snapshot; buckets it holds nothing of are absent."""
    splits: tuple[UnionSplit, ...] = ()

    def for_tasks(self) -> UnionPlan:
        """What a task needs to know beside its split: not the splits of all others."""
        return replace(self, offsets={}, splits=())


def plan_union(
    session: LakeSession,
    info: TableInfo,
    *,
    lake_options: Mapping[str, str] | None = None,
    partitions: Collection[str] | Callable[[str], bool] | None = None,
    snapshot_id: int | None = None,
    lake_only: bool = False,
) -> UnionPlan:
    """Cut a table into parts: lake up to the snapshot's offsets, log from there to its end now.

    Args:
        lake_options: Options of the lake catalog that the server does not show, such as credentials.
        partitions: Names of the partitions to read, or what says of a name whether it is one; all by default.
        snapshot_id: Read from this snapshot on (time travel with `lake_only`); the newest readable one by default.
        lake_only: Leave the log out. With a `snapshot_id`, any snapshot will do that the lake still has.
    """
    wanted = partitions if callable(partitions) or partitions is None else set(partitions).__contains__
    if lake_only and snapshot_id is not None:
        known = lake_config(info, lake_options)
        lake_splits = _lake_splits(known, info, snapshot_id, wanted)
        snapshot: LakeSnapshot | None = LakeSnapshot(snapshot_id)
        config: LakeConfig | None = known
    else:
        snapshot, config, lake_splits = _plan_lake(session, info, lake_options, wanted, snapshot_id)
    offsets = snapshot.table_buckets_offset if snapshot else {}
    buckets: dict[TableBucket, str | None] = {}
    ends: dict[TableBucket, int] = {}
    if not lake_only:
        buckets = session.buckets(info)
        if wanted is not None:
            buckets = {bucket: name for bucket, name in buckets.items() if name is not None and wanted(name)}
        ends = session.offsets(info, buckets, OffsetSpec.latest())
    # Where the log begins is pinned too, so that rows deleted before they are read are an error, and not left out.
    untiered = {bucket: buckets[bucket] for bucket in ends if bucket not in offsets}
    first = session.offsets(info, untiered, OffsetSpec.earliest()) if untiered else {}
    splits: list[UnionSplit] = []
    by_bucket: dict[LakeBucket, list[LakeSplit]] = {}
    for split in lake_splits:
        if info.has_primary_key() and split.bucket is not None:
            by_bucket.setdefault(split.bucket, []).append(split)
        else:
            splits.append(UnionSplit(info.table_id, (split,)))
    for bucket, stop in ends.items():
        start = offsets.get(bucket, 0 if info.has_primary_key() else first.get(bucket, 0))
        own: tuple[LakeSplit, ...] = ()
        if info.has_primary_key():
            own = tuple(by_bucket.pop(LakeBucket(bucket.bucket_id, lake_partition(info, buckets[bucket])), ()))
        if stop > start or own:
            listed = info.has_primary_key() and first.get(bucket, 0) > 0
            splits.append(UnionSplit(info.table_id, own, bucket, buckets[bucket], start, stop, listed))
    # Partitions that only the lake still has.
    splits += [UnionSplit(info.table_id, tuple(parts)) for parts in by_bucket.values()]
    return UnionPlan(info.table_path, snapshot.snapshot_id if snapshot else None, config, offsets, tuple(splits))


def _plan_lake(
    session: LakeSession,
    info: TableInfo,
    lake_options: Mapping[str, str] | None,
    wanted: Callable[[str], bool] | None,
    snapshot_id: int | None,
) -> tuple[LakeSnapshot | None, LakeConfig | None, list[LakeSplit]]:
    snapshot: LakeSnapshot | None = None
    while True:
        if snapshot_id is not None:
            newest: LakeSnapshot | None = session.run(session.admin.get_lake_snapshot(info.table_path, snapshot_id))
        else:
            newest = session.lake_snapshot(info.table_path, readable=True)
        if newest is None:
            return None, None, []
        config = lake_config(info, lake_options)
        try:
            return newest, config, _lake_splits(config, info, newest.snapshot_id, wanted)
        except LakeTableChangedError:
            # It may have expired since the server named it; then the server names a newer one by now.
            if snapshot_id is not None or (snapshot is not None and snapshot.snapshot_id == newest.snapshot_id):
                raise
            snapshot = newest


def _lake_splits(
    config: LakeConfig, info: TableInfo, snapshot_id: int, wanted: Callable[[str], bool] | None
) -> list[LakeSplit]:
    keep = None if wanted is None else lambda values: wanted(partition_name(values))
    with open_lake(config) as lake:
        return lake.table(info.lake_path).plan(snapshot_id, keep, info.partition_keys)


def read_union_split(
    session: LakeSession, plan: UnionPlan, split: UnionSplit, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one part, in the columns and types of the Fluss table.

    Of a part that lies in the lake alone, columns that the lake adds, such as ``__offset``, can be read too.
    """
    table = session.table(plan.table_path)
    info = table.get_table_info()
    check_same_table(info, split.table_id)
    names = list(columns) if columns is not None else list(info.schema.column_names)
    if not info.has_primary_key():
        yield from _lake_rows(plan, split, info, names)
        for found in _log(session, table, split, names):
            if found.num_records:
                yield found.batch
        return
    if split.listed and split.bucket is not None:
        yield from _listed(session, info, split.bucket, split.stop, names)
        return
    key = list(info.physical_primary_key)
    needed = list(dict.fromkeys([*names, *key]))
    if split.stop <= split.start:
        yield from _lake_rows(plan, split, info, names)
        return
    try:
        changes = list(_log(session, table, split, needed))
    except LogOffsetOutOfRangeError:
        if split.lake or split.start or split.bucket is None:
            raise
        # Nothing is in the lake, and since the plan was made the changelog no longer reaches back to the first row.
        yield from _listed(session, info, split.bucket, split.stop, names)
        return
    schema = read_schema(info, needed)
    base = pa.Table.from_batches(list(_lake_rows(plan, split, info, needed)), schema)
    merged = merge_by_key(base, changes, [needed.index(name) for name in key]) if changes else base
    yield from merged.select(names).combine_chunks().to_batches()


def _lake_rows(plan: UnionPlan, split: UnionSplit, info: TableInfo, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    if not split.lake:
        return
    if plan.config is None:
        raise InvalidArgumentError(f"the plan of {plan.table_path} has parts in the lake, but no lake")
    with open_lake(plan.config) as lake:
        table = lake.table(info.lake_path)
        for part in split.lake:
            yield from table.read(part, info, columns)


def _log(session: LakeSession, table: FlussTable, split: UnionSplit, columns: Sequence[str]) -> Iterator[RecordBatch]:
    if split.bucket is None or split.stop <= split.start:
        return iter(())
    chosen = session.call(lambda: table.new_scan().project_by_name(columns))
    return session.iterate(chosen.read_batches({split.bucket: split.start}, {split.bucket: split.stop}))


def _listed(
    session: LakeSession, info: TableInfo, bucket: TableBucket, offset: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    needed = list(dict.fromkeys([*columns, *info.physical_primary_key]))
    rows = session.rows_as_of(info, bucket, offset, needed)
    try:
        for found in rows:
            yield found.batch.select(list(columns))
    except InvalidArgumentError as error:
        raise error.replace(
            hint="rows were written during this read: read the table again, or after its next tiering round"
        ) from None


def union_read(
    session: LakeSession | Mapping[str, Any],
    table_path: TablePath,
    *,
    columns: Sequence[str] | None = None,
    lake_options: Mapping[str, str] | None = None,
    partitions: Collection[str] | None = None,
    snapshot_id: int | None = None,
    lake_only: bool = False,
) -> pa.Table:
    """All rows of a table, from the lake and from the log after it, as one Arrow table.

    Log tables: every row once. Primary-key tables: the rows there are now. Without a snapshot, the log alone.

    Args:
        session: A session, or the client options to connect with.
        table_path: The table.
        columns: The columns to read; all by default.
        lake_options: Options of the lake catalog that the server does not show, such as credentials.
        partitions: Names of the partitions to read; all by default.
        snapshot_id: Start from this lake snapshot; the newest by default.
        lake_only: Leave the log out: the table as of the snapshot.
    """
    if not isinstance(session, LakeSession):
        session = session_of(session)
    info = session.info(table_path)
    plan = plan_union(
        session, info, lake_options=lake_options, partitions=partitions, snapshot_id=snapshot_id, lake_only=lake_only
    )
    return _all_rows(session, plan, info, columns)


def _all_rows(session: LakeSession, plan: UnionPlan, info: TableInfo, columns: Sequence[str] | None) -> pa.Table:
    names = list(columns) if columns is not None else list(info.schema.column_names)
    batches = [batch for split in plan.splits for batch in read_union_split(session, plan, split, names)]
    return pa.Table.from_batches(batches, read_schema(info, names))


def union_read_once(
    client: Mapping[str, Any], table_path: TablePath, table_id: int, columns: Sequence[str], lake_only: bool = False
) -> pa.Table:
    """`union_read` with a connection of its own, closed at the end. Scanners find this function by its name."""
    with LakeSession(client) as session:
        info = session.info(table_path)
        check_same_table(info, table_id)
        return _all_rows(session, plan_union(session, info, lake_only=lake_only), info, columns)
