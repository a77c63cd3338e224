# SPDX-License-Identifier: Apache-2.0
"""Reads of a whole table at one point in time: all buckets and partitions, lake and log, current rows of keys.

`plan_read` pins what is read; `Read.batches` reads it. Rows are filtered exactly, whatever part of the filter a server
or a lake could apply already.

A log table is pinned by the ends of its buckets. A primary-key table is listed bucket by bucket, and every bucket is a
little older or newer than the next; so once all lists have begun, the ends of all changelogs are pinned together, and
the changes between each list and its end are applied to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.client.scan import RecordBatch
from fluss.client.scan.fold import fold_changelog
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.values import rows_to_python
from fluss.db.log_cache import LogCache
from fluss.db.pruning import keys_of, matching_partitions, names_keys_only
from fluss.db.suggest import check_columns
from fluss.errors import InvalidArgumentError, LakeSnapshotNotExistError
from fluss.metadata import EARLIEST_OFFSET, OffsetSpec, PartitionInfo, Predicate, TableBucket, TableInfo, TablePath
from fluss.metadata.where import parse_where
from fluss.rows import kv_key_encoder

if TYPE_CHECKING:
    from fluss.client.core import FlussConnection, FlussTable
    from fluss.client.scan.batch_scanner import BatchScanner
    from fluss.lake.session import LakeSession

CURSORS_MAX = 64
"""Buckets of a primary-key table that are listed at the same time. Servers limit how many lists they keep open."""
_BATCHES_AHEAD = 8
"""Batches that are read before the caller asks for them."""
_LAKE_TASKS = 4

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
    """Where the rows come from: ``log``, ``rows``, ``keys``, ``lake`` or ``virtual``."""
    filtered: bool = False
    """Whether the source gives matching rows only."""
    cache: LogCache | None = None

    @property
    def needed(self) -> list[str]:
        """The columns to read: the wanted ones and those that the filter looks at."""
        extra = self.predicate.columns() if self.predicate is not None else []
        return list(dict.fromkeys([*self.columns, *extra]))

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


async def read_batches(
    connection: FlussConnection,
    path: TablePath,
    *,
    columns: Sequence[str] | None = None,
    predicate: Predicate | str | None = None,
    limit: int | None = None,
    snapshot: int | None = None,
    cache: LogCache | None = None,
    table: FlussTable | None = None,
) -> AsyncIterator[pa.RecordBatch]:
    """All rows of a table at one point in time; see `plan_read`."""
    read = await plan_read(
        connection,
        path,
        columns=columns,
        predicate=predicate,
        limit=limit,
        snapshot=snapshot,
        cache=cache,
        table=table,
    )
    async with contextlib.aclosing(read.batches()) as found:
        async for batch in found:
            yield batch


async def plan_read(
    connection: FlussConnection,
    path: TablePath,
    *,
    columns: Sequence[str] | None = None,
    predicate: Predicate | str | None = None,
    limit: int | None = None,
    snapshot: int | None = None,
    cache: LogCache | None = None,
    table: FlussTable | None = None,
) -> Read:
    """Decide how to read a table. The table is looked up anew, so that columns added meanwhile are there.

    Args:
        columns: The columns to give, in this order; all by default.
        predicate: Which rows, as a predicate or as text; all by default.
        limit: At most so many rows.
        snapshot: A snapshot of the lake: the table as it was then.
        cache: Columns of logs that were read before.
        table: The table, if it was looked up just now.
    """
    if table is None:
        table = await connection.get_table(path)
    info = table._shown_info()
    names = list(info.schema.column_names)
    wanted = names if columns is None else check_columns(columns, info)
    if not wanted:
        raise InvalidArgumentError(f"table {path}: choose at least one column; it has {', '.join(names)}")
    if isinstance(predicate, str):
        predicate = parse_where(predicate, info.schema)
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
    opened, source = await _choose(connection, table, predicate, limit, snapshot)
    # A scan of a log filters by itself, and rows that were looked up by their keys have these keys.
    filtered = source == "log" or (source == "keys" and predicate is not None and names_keys_only(predicate, info))
    return Read(info, schema, wanted, predicate, limit, opened, source, filtered, cache)


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
        return (lambda read: _log_rows(connection, table, read)), "log"
    if limit is not None and predicate is None:
        return (lambda read: _some_rows(connection, table, read)), "rows"
    return (lambda read: _current_rows(connection, table, read)), "rows"


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
    numbers = range(info.num_buckets)
    if not info.is_partitioned():
        return [TableBucket(info.table_id, number) for number in numbers]
    partitions: Iterable[PartitionInfo] = await connection.get_admin().list_partition_infos(info.table_path)
    if predicate is not None:
        partitions = matching_partitions(predicate, info, partitions)
    return [
        TableBucket.with_partition(info.table_id, partition.partition_id, number)
        for partition in partitions
        for number in numbers
    ]


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


async def _log_rows(connection: FlussConnection, table: FlussTable, read: Read) -> _Batches:
    buckets = await list_buckets(connection, read.info, read.predicate)
    if read.cache is not None:
        plan = ScanPlan(connection._cluster, read.info)
        async with contextlib.aclosing(_cached_log_rows(read.cache, table, plan, buckets, read)) as cached:
            async for rows in cached:
                yield rows
        return
    scan = table.new_scan().project_by_name(read.needed)
    if read.predicate is not None:
        scan = scan.filter(read.predicate)
    async with contextlib.aclosing(scan.read_batches(dict.fromkeys(buckets, EARLIEST_OFFSET))) as found:
        async for batch in found:
            yield batch.batch


async def _cached_log_rows(
    cache: LogCache, table: FlussTable, plan: ScanPlan, buckets: Sequence[TableBucket], read: Read
) -> _Batches:
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
    scan = table.new_scan().project_by_name(needed)
    if read.predicate is not None:
        scan = scan.filter(read.predicate)  # read in part: nothing that could be kept
    stops = {bucket: ends[bucket] for bucket in rest}
    async with contextlib.aclosing(scan.read_batches(dict(rest), stops)) as found:
        async for item in found:
            if read.predicate is None:
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


async def _current_rows(connection: FlussConnection, table: FlussTable, read: Read) -> _Batches:
    info = read.info
    buckets = await list_buckets(connection, info, read.predicate)
    needed = list(dict.fromkeys([*read.needed, *info.physical_primary_key]))
    scan = table.new_scan().project_by_name(needed)
    plan = ScanPlan(connection._cluster, info)
    # A list may begin before the server says at which offset: applying changes from before that does no harm, for only
    # the last change of a key counts.
    before = await plan.offsets(buckets, OffsetSpec.latest())
    lists = [_List(scan.create_bucket_batch_scanner(bucket), before[bucket]) for bucket in buckets]
    try:
        if len(lists) <= CURSORS_MAX:
            await _gather([one.begin() for one in lists])
        else:
            # More than a server may keep open: they are read to their ends, a few at a time, before the ends are
            # pinned. What is kept in memory is the table, as far as it is wanted.
            slots = asyncio.Semaphore(CURSORS_MAX)
            await _gather([one.read_all(slots) for one in lists])
        ends = await plan.offsets(buckets, OffsetSpec.latest())
        changes = await _changes(table, needed, {one.bucket: (one.offset, ends[one.bucket]) for one in lists})
        async with contextlib.aclosing(_merged([one.batches() for one in lists])) as batches:
            async for found in batches:
                change = changes.get(found.bucket)
                yield found.batch if change is None else change.without(found.batch)
        for change in changes.values():
            for batch in change.rows.to_batches():
                yield batch
    finally:
        for one in lists:
            await one.close()


class _List:
    """The rows of one bucket, as the server lists them."""

    def __init__(self, scanner: BatchScanner, before: int) -> None:
        self._scanner = scanner
        self._before = before
        self._ready: list[RecordBatch] = []
        self._ended = False

    @property
    def bucket(self) -> TableBucket:
        return self._scanner.bucket

    @property
    def offset(self) -> int:
        """The changes from this offset on may be missing in the list."""
        seen = self._scanner.log_offset
        return self._before if seen is None else seen

    async def begin(self) -> None:
        """Open the list: from now on its rows do not change."""
        first = await self._scanner.next_batch()
        if first is None:
            self._ended = True
        else:
            self._ready.append(first)

    async def read_all(self, slots: asyncio.Semaphore) -> None:
        async with slots:
            self._ready = await self._scanner.collect_all_batches()
            self._ended = True

    async def batches(self) -> AsyncGenerator[RecordBatch, None]:
        while self._ready:
            yield self._ready.pop(0)
        while not self._ended:
            found = await self._scanner.next_batch()
            if found is None:
                return
            yield found

    async def close(self) -> None:
        await self._scanner.close()


class _BucketChanges:
    """What changed in one bucket after its list began."""

    def __init__(self, info: TableInfo, keys: set[bytes], rows: pa.Table) -> None:
        self._encoder = kv_key_encoder(info)
        self._names = list(info.physical_primary_key)
        self._keys = keys
        self.rows = rows
        """The rows of the changed keys, as they are now."""

    def without(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of a list whose keys did not change."""
        keys = self._encoder.encode_columns([batch.column(name) for name in self._names]).to_list()
        return batch.filter(pa.array([key not in self._keys for key in keys], pa.bool_()))


async def _changes(
    table: FlussTable, columns: Sequence[str], ranges: dict[TableBucket, tuple[int, int]]
) -> dict[TableBucket, _BucketChanges]:
    """The changes of each bucket between two offsets, folded; buckets without any are left out."""
    ranges = {bucket: (start, stop) for bucket, (start, stop) in ranges.items() if stop > start}
    if not ranges:
        return {}
    info = table.get_table_info()
    scan = table.new_scan().project_by_name(columns)
    found: dict[TableBucket, list[RecordBatch]] = {}
    starts = {bucket: start for bucket, (start, _) in ranges.items()}
    stops = {bucket: stop for bucket, (_, stop) in ranges.items()}
    async with contextlib.aclosing(scan.read_batches(starts, stops)) as batches:
        async for batch in batches:
            if batch.num_records:
                found.setdefault(batch.bucket, []).append(batch)
    encoder = kv_key_encoder(info)
    names = list(info.physical_primary_key)
    at = [list(columns).index(name) for name in names]
    changes = {}
    for bucket, parts in found.items():
        keys = {
            key
            for part in parts
            for key in encoder.encode_columns([part.batch.column(name) for name in names]).to_list()
        }
        changes[bucket] = _BucketChanges(info, keys, fold_changelog(parts, at, parts[0].batch.schema))
    return changes


async def _gather(work: Sequence[Any]) -> None:
    """Await all; when one fails, the others are cancelled and have ended before the error is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def _merged(sources: Sequence[AsyncGenerator[Any, None]]) -> AsyncGenerator[Any, None]:
    """The items of several generators as they come, all of which run at the same time."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for item in only:
                yield item
        return
    ready: asyncio.Queue[tuple[Any, BaseException | None, bool]] = asyncio.Queue(_BATCHES_AHEAD)

    async def drain(source: AsyncGenerator[Any, None]) -> None:
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    await ready.put((item, None, False))
        except Exception as error:
            await ready.put((None, error, True))
        else:
            await ready.put((None, None, True))

    tasks = [asyncio.ensure_future(drain(source)) for source in sources]
    running = len(tasks)
    try:
        while running:
            item, error, ended = await ready.get()
            if error is not None:
                raise error
            if ended:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


# -- lake and log --------------------------------------------------------------------------------------------------


async def _from_lake(connection: FlussConnection, read: Read, snapshot: int | None) -> _Batches:
    """The newest lake snapshot and the log after it, or an older snapshot alone."""
    from fluss.lake.union import plan_union, read_union_split

    session = await asyncio.to_thread(_lake_session, connection)
    partitions = None
    if read.predicate is not None and read.info.is_partitioned():
        predicate, info = read.predicate, read.info

        def may_match(name: str) -> bool:
            return bool(
                list(matching_partitions(predicate, info, [PartitionInfo(0, name, tuple(info.partition_keys))]))
            )

        partitions = may_match
    plan = await asyncio.to_thread(
        plan_union, session, read.info, partitions=partitions, snapshot_id=snapshot, lake_only=snapshot is not None
    )
    slots = asyncio.Semaphore(_LAKE_TASKS)

    async def one(split: Any) -> AsyncGenerator[pa.RecordBatch, None]:
        async with slots:
            batches = await asyncio.to_thread(
                lambda: list(read_union_split(session, plan.for_tasks(), split, read.needed))
            )
        for batch in batches:
            yield batch

    if plan.splits:
        async with contextlib.aclosing(_merged([one(split) for split in plan.splits])) as found:
            async for batch in found:
                yield batch


_sessions: weakref.WeakKeyDictionary[FlussConnection, LakeSession] = weakref.WeakKeyDictionary()
_sessions_lock = threading.Lock()


def _lake_session(connection: FlussConnection) -> LakeSession:
    """The connection that reads of the lake use: they block, and so need one in a thread of its own."""
    from fluss.lake.session import LakeSession

    with _sessions_lock:
        session = _sessions.get(connection)
        if session is None or session.closed:
            session = _sessions[connection] = LakeSession(connection.config.to_dict())
            weakref.finalize(connection, session.close)
        return session


def close_lake_session(connection: FlussConnection) -> None:
    """Close what reads of the lake have opened."""
    with _sessions_lock:
        session = _sessions.pop(connection, None)
    if session is not None:
        session.close()
