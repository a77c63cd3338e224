# SPDX-License-Identifier: Apache-2.0
"""Reads of a whole table at one point in time: all buckets and partitions, lake and log, current rows of keys.

`plan_read` pins what is read; `Read.batches` reads it. Rows are filtered exactly, whatever part of the filter a server
or a lake could apply already.

A log table is pinned by the ends of its buckets, a primary-key table by the ends of its changelogs: see
`fluss.client.scan.as_of`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.client.buckets import table_buckets
from fluss.client.metadata_cache import check_table_id
from fluss.client.scan.as_of import CURSORS_MAX, current_rows, merged, rows_as_of
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import rows_to_python
from fluss.db.conditions import Computed, Condition, parse_condition
from fluss.db.log_cache import LogCache
from fluss.db.suggest import check_columns
from fluss.errors import InvalidArgumentError, LakeSnapshotNotExistError
from fluss.metadata import (
    EARLIEST_OFFSET,
    Compound,
    CompoundFunction,
    Leaf,
    LeafFunction,
    OffsetSpec,
    Predicate,
    TableBucket,
    TableInfo,
    TablePath,
    TimestampLtzType,
    TimestampType,
    epoch_millis,
    key_values,
    matching_partitions,
)
from fluss.metadata.info import moment_from_text
from fluss.metadata.where import Params
from fluss.rows import logical

if TYPE_CHECKING:
    from fluss.client.connection import FlussConnection, FlussTable

_LAKE_TASKS = 4
KEYS_MAX = 1_000
"""A filter that names more primary keys than this is read by scanning."""
_PYTHON_TIME_DIGITS = 6

Moment = datetime | str
"""A time in the past: a datetime, or ISO text such as ``"2026-07-01T12:00"``."""

_Batches = AsyncGenerator[pa.RecordBatch, None]


@dataclass
class Read:
    """A read that is about to begin: what its batches look like, and the batches."""

    info: TableInfo
    schema: pa.Schema
    """The Arrow schema of every batch."""
    columns: list[str]
    predicate: Predicate | None
    limit: int | None
    _open: Callable[[Read], _Batches] = field(repr=False)
    sources: str = ""
    """Where the rows come from: ``log``, ``rows``, ``keys``, ``lake``, ``past`` or ``virtual``."""
    filtered: bool = False
    """Whether the source gives matching rows only."""
    cache: LogCache | None = None
    computed: Computed | None = None
    """What the predicate cannot say of the filter."""

    @property
    def needed(self) -> list[str]:
        """The columns to read: the wanted ones and those that the filter looks at."""
        if self.predicate is None and self.computed is None:
            return self.columns
        return list(dict.fromkeys([*self.columns, *Condition(self.predicate, self.computed).columns()]))

    async def batches(self) -> _Batches:
        """The rows, exactly filtered, in batches of the wanted columns."""
        left = self.limit
        if left is not None and left <= 0:
            return
        expression = None
        if self.predicate is not None and not self.filtered:
            expression = self.predicate.to_arrow_expression(self.info.schema)
        async with contextlib.aclosing(self._open(self)) as found:
            async for batch in found:
                for part in (batch,) if expression is None else matching(batch, expression):
                    if self.computed is not None:
                        part = await asyncio.to_thread(self.computed.matching, part)
                    if part.schema.names != self.columns:
                        part = part.select(self.columns)
                    if not part.schema.equals(self.schema):
                        part = pa.RecordBatch.from_arrays(part.columns, schema=self.schema)
                    if left is not None:
                        part = part.slice(0, left)
                        left -= part.num_rows
                    if part.num_rows:
                        yield part
                    if left == 0:
                        return

    async def to_arrow(self) -> pa.Table:
        """All rows as one Arrow table."""
        async with contextlib.aclosing(self.batches()) as found:
            return pa.Table.from_batches([batch async for batch in found], self.schema)


def matching(batch: pa.RecordBatch, expression: Any) -> list[pa.RecordBatch]:
    """The rows of a batch for which an expression holds, in no batch if there are none."""
    # Not `batch.filter(expression)`: that fails when nothing matches.
    found: list[pa.RecordBatch] = pa.Table.from_batches([batch]).filter(expression).to_batches()
    return found


async def plan_read(
    connection: FlussConnection,
    known: TableInfo,
    *,
    columns: str | Sequence[str] | None = None,
    predicate: Predicate | str | None = None,
    params: Params | None = None,
    limit: int | None = None,
    snapshot: int | None = None,
    at: Moment | None = None,
    cache: LogCache | None = None,
    table: FlussTable | None = None,
) -> Read:
    """Decide how to read a table. The table is looked up anew, so that columns added meanwhile are there.

    Args:
        known: The table, as the caller knows it. One that was dropped and created again is refused.
        columns: The columns to give, in this order; all by default.
        predicate: Which rows, as a predicate or as text; all by default.
        params: Values for ``?`` or ``$name`` in the text.
        limit: At most so many rows.
        snapshot: A snapshot of the lake: the table as it was then.
        at: A time: the table as it was then.
        cache: Columns of logs that were read before.
        table: The table, if it was looked up just now.
    """
    path = known.table_path
    if table is None:
        table = await connection.get_table(path)
        check_table_id(table._shown_info(), known.table_id)
    info = table._shown_info()
    names = list(info.schema.column_names)
    wanted = names if columns is None else check_columns(columns, info)
    if not wanted:
        raise InvalidArgumentError(f"table {path}: choose at least one column; it has {', '.join(names)}")
    computed = None
    if isinstance(predicate, str):
        condition = await asyncio.to_thread(parse_condition, predicate, info.schema, params)
        predicate, computed = condition.predicate, condition.computed
    elif params is not None:
        raise InvalidArgumentError("params= are values for ? or $name of a where= that is text")
    if predicate is not None:
        if not isinstance(predicate, Predicate):
            raise InvalidArgumentError(
                "where= takes a text such as \"price > 10 and item = 'tea'\" or a predicate such as "
                f"fluss.col('price') > 10, not {type(predicate).__name__} {predicate!r:.60}"
            )
        check_columns(predicate.columns(), info)
        predicate.to_arrow_expression(info.schema)
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise InvalidArgumentError(f"limit is a number of rows, not {limit!r}")
    schema = pa.schema([info.schema.columns[info.schema.column_index(name)].to_arrow() for name in wanted])
    # Any rows that were read up to the limit may be the wrong ones if some are left out afterwards.
    if at is None:
        opened, source = await _choose(connection, table, predicate, limit if computed is None else None, snapshot)
    else:
        if snapshot is not None:
            raise InvalidArgumentError("a snapshot is a moment of its own: leave it out, or the time")
        opened, source = _past_rows(connection, table, at), "past"
    # A scan of a log filters by itself, and rows that were looked up by their keys have these keys.
    filtered = source == "log" or (source == "keys" and predicate is not None and names_keys_only(predicate, info))
    return Read(info, schema, wanted, predicate, limit, opened, source, filtered, cache, computed)


async def _choose(
    connection: FlussConnection, table: FlussTable, predicate: Predicate | None, limit: int | None, snapshot: int | None
) -> tuple[Callable[[Read], _Batches], str]:
    info = table.get_table_info()
    if table._view is not None:
        if snapshot is not None:
            raise InvalidArgumentError(f"{table!r}: a snapshot of the lake is read from '{info.table_path}' itself")
        return (lambda read: _virtual_rows(table)), "virtual"
    if snapshot is not None:
        return (lambda read: _from_lake(connection, read, snapshot)), "lake"
    if info.has_primary_key() and predicate is not None:
        keys = keys_of(predicate, info)
        if keys is not None:
            return (lambda read: _by_keys(table, keys)), "keys"
    if info.lake_format is not None and await is_tiered(connection, info.table_path):
        return (lambda read: _from_lake(connection, read, None)), "lake"
    if not info.has_primary_key():
        return (lambda read: _log_rows(connection, read)), "log"
    if limit is not None and predicate is None:
        return (lambda read: _some_rows(connection, table, read)), "rows"
    return (lambda read: _current_rows(connection, read)), "rows"


async def is_tiered(connection: FlussConnection, path: TablePath) -> bool:
    """Whether a table has a lake snapshot that reads begin with."""
    try:
        await connection.get_admin().get_readable_lake_snapshot(path)
    except LakeSnapshotNotExistError:
        return False
    return True


async def list_buckets(
    connection: FlussConnection, info: TableInfo, predicate: Predicate | None = None
) -> list[TableBucket]:
    """The buckets of a table now; of partitions only those that may hold matching rows."""
    return list(await table_buckets(connection.get_admin(), info, predicate=predicate))


def python_rows(table: pa.Table, info: TableInfo) -> list[dict[str, Any]]:
    """The rows of an Arrow table that was read, as dicts."""
    types = [info.schema.column(name).data_type for name in table.column_names]
    return [row for batch in table.to_batches() for row in rows_to_python(batch, types)]


async def _virtual_rows(table: FlussTable) -> _Batches:
    """What `$changelog`, `$binlog` or `$lake` shows of a table."""
    async with table.new_scan().create_table_batch_scanner() as scanner:
        async for found in scanner:
            yield found.batch


# -- log tables ----------------------------------------------------------------------------------------------------


async def _log_rows(connection: FlussConnection, read: Read) -> _Batches:
    buckets = await list_buckets(connection, read.info, read.predicate)
    plan = ScanPlan(connection._cluster, read.info).project_by_name(read.needed)
    if read.predicate is not None:
        plan = plan.with_filter(read.predicate)
    if read.cache is not None:
        async with contextlib.aclosing(_cached_log_rows(read.cache, plan, buckets, read)) as cached:
            async for rows in cached:
                yield rows
        return
    async with contextlib.aclosing(plan.read(dict.fromkeys(buckets, EARLIEST_OFFSET))) as found:
        async for batch in found:
            yield batch.batch


async def _cached_log_rows(cache: LogCache, plan: ScanPlan, buckets: Sequence[TableBucket], read: Read) -> _Batches:
    """The rows of a log table up to its end now, matching if the read has a filter: from the cache, then the rest."""
    starts, ends = await asyncio.gather(
        plan.offsets(buckets, OffsetSpec.earliest()), plan.offsets(buckets, OffsetSpec.latest())
    )
    expression = None if read.predicate is None else read.predicate.to_arrow_expression(read.info.schema)
    schema_id, needed = read.info.schema_id, read.needed
    rest: dict[TableBucket, int] = {}
    for bucket in buckets:
        batches, at = cache.prefix((schema_id, bucket), starts[bucket], ends[bucket], needed)
        for batch in batches:
            for part in (batch,) if expression is None else matching(batch, expression):
                yield part
        if at < ends[bucket]:
            rest[bucket] = at
    if not rest:
        return
    stops = {bucket: ends[bucket] for bucket in rest}
    async with contextlib.aclosing(plan.read(dict(rest), stops)) as found:
        async for item in found:
            if read.predicate is None:  # else the log is read in part: nothing that could be kept
                # Offsets without rows before a batch belong to it: there is nothing else there.
                end = item.last_offset + 1
                cache.add((schema_id, item.bucket), rest[item.bucket], end, item.batch)
                rest[item.bucket] = end
            yield item.batch


# -- primary-key tables --------------------------------------------------------------------------------------------


async def _by_keys(table: FlussTable, keys: Sequence[dict[str, Any]]) -> _Batches:
    if keys:
        found: pa.Table = await table.new_lookup().create_lookuper().lookup_many(keys)
        for batch in found.to_batches():
            yield batch


async def _some_rows(connection: FlussConnection, table: FlussTable, read: Read) -> _Batches:
    """Any `limit` rows: one bucket after the other until there are enough."""
    assert read.limit is not None
    left = read.limit
    for bucket in await list_buckets(connection, read.info):
        scan = table.new_scan().project_by_name(read.needed).limit(left)
        for found in await scan.create_bucket_batch_scanner(bucket).collect_all_batches():
            left -= found.num_records
            yield found.batch
        if left <= 0:
            return


async def _current_rows(connection: FlussConnection, read: Read) -> _Batches:
    needed = list(dict.fromkeys([*read.needed, *read.info.physical_primary_key]))
    plan = ScanPlan(connection._cluster, read.info).project_by_name(needed)
    buckets = await list_buckets(connection, read.info, read.predicate)
    async with contextlib.aclosing(current_rows(plan, buckets)) as found:
        async for batch in found:
            yield batch.batch


# -- the past ------------------------------------------------------------------------------------------------------


def moment_of(at: Moment) -> datetime:
    """The time that a user gave."""
    moment = at
    if isinstance(moment, str):
        with contextlib.suppress(ValueError):  # which is reported below
            moment = moment_from_text(moment)
    if not isinstance(moment, datetime):
        raise InvalidArgumentError(f"the past takes a time such as '2026-07-01T12:00' or a datetime, not {at!r:.60}")
    return moment


def _past_rows(connection: FlussConnection, table: FlussTable, at: Moment) -> Callable[[Read], _Batches]:
    """Read the rows after all changes before a time, as far as the logs go back."""
    if table._view is not None:
        raise InvalidArgumentError(f"{table!r}: the past is that of '{table.get_table_info().table_path}' itself")
    before = OffsetSpec.timestamp(epoch_millis(moment_of(at)))

    async def rows(read: Read) -> _Batches:
        keys = read.info.physical_primary_key
        plan = ScanPlan(connection._cluster, read.info).project_by_name(list(dict.fromkeys([*read.needed, *keys])))
        buckets = await list_buckets(connection, read.info, read.predicate)
        first, stops = await asyncio.gather(plan.offsets(buckets, OffsetSpec.earliest()), plan.offsets(buckets, before))
        gone = [bucket for bucket in buckets if first[bucket] > 0 and stops[bucket] <= first[bucket]]
        if gone and keys:
            raise InvalidArgumentError(
                f"the log of {gone[0]} begins after {at}, because older changes have expired (table.log.ttl). Name a "
                "later time, or restore a backup of that time: fluss restore URL FOLDER --at TIME",
                table=read.info.table_path,
            )
        some = [bucket for bucket in buckets if keys or first[bucket] < stops[bucket]]
        if not some:
            return
        if keys:
            batches = merged([rows_as_of(plan, bucket, stops[bucket]) for bucket in some], CURSORS_MAX)
        else:
            batches = plan.read({one: first[one] for one in some}, {one: stops[one] for one in some})
        async with contextlib.aclosing(batches) as found:
            async for batch in found:
                yield batch.batch

    return rows


# -- lake and log --------------------------------------------------------------------------------------------------


async def _from_lake(connection: FlussConnection, read: Read, snapshot: int | None) -> _Batches:
    """The newest lake snapshot and the log after it, or an older snapshot alone."""
    from fluss.lake.tasks import LakeSession
    from fluss.lake.union import plan_union, read_union_split

    session = LakeSession.over(connection)
    partitions = None
    if read.predicate is not None and read.info.is_partitioned():
        predicate, info = read.predicate, read.info

        def may_match(name: str) -> bool:
            return matching_partitions(predicate, info.schema, info.partition_keys, [name])[0]

        partitions = may_match
    plan = await asyncio.to_thread(
        plan_union, session, read.info, partitions=partitions, snapshot_id=snapshot, lake_only=snapshot is not None
    )

    async def one(split: Any) -> AsyncGenerator[pa.RecordBatch, None]:
        for batch in await asyncio.to_thread(
            lambda: list(read_union_split(session, plan.for_tasks(), split, read.needed))
        ):
            yield batch

    if plan.splits:
        async with contextlib.aclosing(merged([one(split) for split in plan.splits], _LAKE_TASKS)) as found:
            async for batch in found:
                yield batch


# -- what a filter says about where rows can be ---------------------------------------------------------------------


def keys_of(predicate: Predicate, info: TableInfo) -> list[dict[str, Any]] | None:
    """The primary keys that a filter names, if it allows no others; None if it does not say."""
    types = [info.schema.column(name).data_type for name in info.primary_keys]
    if any(isinstance(t, (TimestampType, TimestampLtzType)) and t.precision > _PYTHON_TIME_DIGITS for t in types):
        return None  # a datetime would lose the nanoseconds
    keys = key_values(predicate, info.schema, info.primary_keys, KEYS_MAX)
    if keys is None:
        return None
    return [
        {name: logical.to_python(value, data_type) for name, value, data_type in zip(info.primary_keys, key, types)}
        for key in keys
    ]


def names_keys_only(predicate: Predicate, info: TableInfo) -> bool:
    """Whether a filter says of the columns of the primary key which values they have, and nothing else."""
    resolved = predicate.resolve(info.schema)
    parts: tuple[Predicate, ...] = (resolved,)
    if isinstance(resolved, Compound) and resolved.function is CompoundFunction.AND:
        parts = resolved.children
    return all(
        isinstance(part, Leaf)
        and part.function in (LeafFunction.EQUAL, LeafFunction.IN)
        and part.column in info.primary_keys
        for part in parts
    )
