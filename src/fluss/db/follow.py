# SPDX-License-Identifier: Apache-2.0
"""Following a table: all its changes from some point on, from all buckets and partitions, also from new ones."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import time
import warnings
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fluss.client.arguments import is_seconds, wrong_argument
from fluss.client.metadata_cache import check_table_id
from fluss.client.scan import RecordBatch
from fluss.client.scan.as_of import current_rows
from fluss.client.scan.plan import ScanPlan
from fluss.db.changes import ChangeBatch, Position, position_of
from fluss.db.models import RowModel
from fluss.db.read_plan import list_buckets
from fluss.db.suggest import check_columns
from fluss.errors import (
    ConnectionClosedError,
    FlussError,
    InvalidArgumentError,
    InvalidTimestampError,
    PartitionNotExistsError,
    UnknownTableOrBucketError,
)
from fluss.metadata import (
    ChangeType,
    DataType,
    OffsetSpec,
    TableBucket,
    TableInfo,
    datetime_from_text,
    epoch_millis,
)
from fluss.net.deadline import LONGEST_S
from fluss.net.eager import cancel, retrieve_exception

if TYPE_CHECKING:
    from fluss.client.connection import FlussConnection
    from fluss.client.scan import LogScanner, TableScan

T = TypeVar("T")
ItemT = TypeVar("ItemT")

PARTITION_CHECK_S = 1.0
"""How often is looked for new partitions."""
_POLL_MS = 1_000

Start = str | dt.datetime | Position
"""``"full"``, ``"earliest"``, ``"latest"``, a time (a datetime, or ISO text), a position or the text of one."""


class Feed(Generic[T]):
    """The batches of changes behind a `Follow`. It lives on the loop of the client."""

    def __init__(
        self,
        connection: FlussConnection,
        table: TableInfo,
        model: RowModel[T],
        start: Start,
        columns: Sequence[str] | str | None,
        stop_at_end: bool,
        timeout: float | None,
    ) -> None:
        if timeout is not None and not is_seconds(timeout):
            raise wrong_argument("follow", "timeout", "a number of seconds, 0 or more, or None", timeout)
        if isinstance(columns, (bytes, Mapping)) or not isinstance(columns, (Iterable, type(None))):
            raise wrong_argument("follow", "columns", "a list of column names or None", columns)
        self._connection = connection
        self._path, self._table_id = table.table_path, table.table_id
        self.model = model
        self._start = start
        self._columns = model.columns if columns is None else columns
        self._stop_at_end = stop_at_end
        self._timeout_s = None if timeout is None else min(timeout, LONGEST_S)
        self._read: dict[TableBucket, int] = {}
        """The next offset of every bucket. Replaced, never changed: changes that were given out hold on to it."""
        self._scanner: LogScanner | None = None
        self._scan: TableScan | None = None
        self._ends: dict[TableBucket, int] = {}
        self._bounded: AsyncGenerator[list[RecordBatch], None] | None = None
        self._full: AsyncGenerator[tuple[ChangeBatch, bool], None] | None = None
        """The current rows, until all of them were given."""
        self._info: TableInfo | None = None
        self._waiting: deque[RecordBatch] = deque()
        """What was read and is not given yet."""
        self._reading: asyncio.Task[Any] | None = None
        self._polling: asyncio.Task[list[RecordBatch]] | None = None
        self._checked_at = 0.0
        self._ended = False
        self.pairs = False
        """Whether the two records of an update are given as one change."""
        self.failure: Exception | None = None
        """Why a batch could not be expanded: to go on with the next one would skip the rest of it."""
        self._closing = asyncio.Lock()
        self._names: list[str] = []
        self.types: list[DataType] = []
        """The types of the columns of all batches."""

    @property
    def endless(self) -> bool:
        """Whether it goes on until it is interrupted."""
        return not self._stop_at_end and self._timeout_s is None

    def __repr__(self) -> str:
        start = self._start if isinstance(self._start, str) and len(self._start) < 20 else type(self._start).__name__
        end = "stop_at_end" if self._stop_at_end else "endless" if self.endless else f"timeout={self._timeout_s:g}"
        return f"{self._path} from {start}, {end}{', ended' if self._ended else ''}"

    async def next(self) -> ChangeBatch | None:
        """The next changes; None at the end, and after another task or thread has closed it."""
        if self._ended:
            return None
        if self.failure is not None:
            raise self.failure
        try:
            found = await self._next()
        except Exception:
            if not self._ended:
                raise
            found = None
        if found is None or self._ended:
            await self.close()  # again, if it was closed while the reading began
            return None
        return found

    async def _next(self) -> ChangeBatch | None:
        if self._info is None:
            await self._begin()
        if self._full is not None and (whole := await self._next_full(self._full)) is not None:
            return whole
        if self._stop_at_end:
            while not self._waiting and await self._shielded(self._read_on):
                pass
        else:
            await self._poll_on()
        return self.take_waiting()

    def take_waiting(self) -> ChangeBatch | None:
        """The next changes, if they are here already. May be called in the thread of the caller, between two `next`:
        to ask the loop takes longer than to read a small batch."""
        if not self._waiting or self._ended or self.failure is not None:
            return None
        found = self._waiting.popleft()
        before = self._read
        self._read = {**before, found.bucket: found.last_offset + 1}
        return ChangeBatch(found, before)

    def items(self, found: ChangeBatch, expand: Callable[[ChangeBatch], Iterable[Sequence[ItemT]]]) -> Iterator[ItemT]:
        """What a batch is expanded to, one by one. Runs in the thread of the caller."""
        for part in expand(found):
            yield from part
            del part  # before the next is made: see ChangeBatch._expand

    async def commit(self) -> None:
        """Store how far a group is."""
        raise InvalidArgumentError(
            f"{self._path} is followed without a group, and there is nothing to commit to: write "
            "follow(group='…'), or store the position of a change yourself"
        )

    async def close(self) -> None:
        """Stop reading."""
        self._ended = True
        async with self._closing:
            await self._close()

    async def _close(self) -> None:
        for task in (self._reading, self._polling):
            await cancel(task)
        self._reading = self._polling = None
        for generator in (self._bounded, self._full):
            if generator is not None:
                await generator.aclose()
        if self._scanner is not None:
            await self._scanner.close()

    async def _begin(self) -> None:
        table = await self._connection.get_table(self._path)
        info = table.get_table_info()
        check_table_id(info, self._table_id)
        wanted = info.schema.column_names if self._columns is None else self._columns
        self._names = check_columns(wanted, info)
        self.types = [info.schema.column(name).data_type for name in self._names]
        self._scan = table.new_scan().project_by_name(self._names)
        await self._begin_reading(info)
        self._info = info
        self._checked_at = asyncio.get_running_loop().time()

    async def _begin_reading(self, info: TableInfo) -> None:
        buckets = await list_buckets(self._connection, info)
        plan = ScanPlan(self._connection._cluster, info)
        position = position_of(self._start, info.table_id, str(self._path))
        if info.has_primary_key() and (self._start == "full" or (position is not None and position.full)):
            self._read = {}
            self._ends = {}
            # It must not refer to this feed: the generators of a circle are closed in any order, and that fails.
            self._full = full_rows(plan, buckets, self._names, self._ends)
        else:
            self._read = await self._offsets(plan, position, buckets)
            if self._stop_at_end:
                self._ends = await plan.offsets(list(self._read), OffsetSpec.latest())
            else:
                self._subscribe(self._read)

    async def _next_full(self, rows: AsyncGenerator[tuple[ChangeBatch, bool], None]) -> ChangeBatch | None:
        """The next of the current rows of a primary-key table; what is read afterwards begins where they end."""
        try:
            found, last = await self._shielded(lambda: next_rows(rows))
        except Exception:
            self._full = self._info = None  # the next call begins again with all rows
            raise
        if last:
            self._read = self._ends
        if found is None:
            self._full = None
            if not self._stop_at_end:
                self._subscribe(self._read)
        return found

    async def _offsets(
        self, plan: ScanPlan, position: Position | None, buckets: Sequence[TableBucket]
    ) -> dict[TableBucket, int]:
        start = self._start
        if position is not None:
            known = position.offsets
            # Partitions that were dropped since have nothing left to read; those that are new are read from the start.
            new = [bucket for bucket in buckets if bucket not in known]
            first = await plan.offsets(new, OffsetSpec.earliest())
            return {bucket: known[bucket] if bucket in known else first[bucket] for bucket in buckets}
        if isinstance(start, str) and start[:1].isdigit():
            with contextlib.suppress(ValueError):  # which is reported below
                start = datetime_from_text(start)
        if isinstance(start, dt.datetime):
            spec = OffsetSpec.timestamp(epoch_millis(start))
            try:
                return await plan.offsets(buckets, spec)
            except InvalidTimestampError:
                return await plan.offsets(buckets, OffsetSpec.latest())
        if start not in ("full", "earliest", "latest"):
            raise InvalidArgumentError(
                "start is 'full', 'earliest', 'latest', a time such as '2026-07-01T12:00', or the position of a "
                f"change, not {start!r:.80}"
            )
        found = await plan.offsets(buckets, OffsetSpec("earliest" if start == "full" else start))
        if start == "earliest" and plan.info.has_primary_key() and any(found.values()):
            warnings.warn(
                f"the oldest changes of table {self._path} have expired, so reading them from 'earliest' gives not all "
                "rows. Follow it with start='full': all current rows, then their changes",
                stacklevel=2,
            )
        return found

    def _unsubscribe(self, buckets: Iterable[TableBucket]) -> None:
        assert self._scanner is not None
        for bucket in buckets:
            if bucket.partition_id is None:
                self._scanner.unsubscribe(bucket.bucket_id)
            else:
                self._scanner.unsubscribe_partition(bucket.partition_id, bucket.bucket_id)

    def _subscribe(self, offsets: dict[TableBucket, int]) -> None:
        if self._scanner is None:
            assert self._scan is not None
            self._scanner = self._scan._log_scanner(batches=True, change_type_column=False)
        if not offsets:
            return
        if self._scanner.is_partitioned():
            self._scanner.subscribe_partition_buckets(
                {(bucket.partition_id or 0, bucket.bucket_id): offset for bucket, offset in offsets.items()}
            )
        else:
            self._scanner.subscribe_buckets({bucket.bucket_id: offset for bucket, offset in offsets.items()})

    async def _shielded(self, read: Callable[[], Coroutine[Any, Any, ItemT]]) -> ItemT:
        """Read in a task: a caller that is interrupted must not lose what arrives."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(read())
            self._reading.add_done_callback(retrieve_exception)
        reading: asyncio.Task[ItemT] = self._reading
        await asyncio.wait([reading])
        self._reading = None
        return self._result_of(reading)

    def _result_of(self, task: asyncio.Task[ItemT]) -> ItemT:
        if task.cancelled() and self._ended:
            raise ConnectionClosedError(f"the changes of {self._path} are closed")
        return task.result()

    async def _read_on(self) -> bool:
        """Read batches that wait then; False at the end."""
        assert self._scan is not None
        if self._bounded is None:
            self._bounded = self._scan._plan.read_groups(dict(self._read), self._ends)
        try:
            found = await anext(self._bounded, None)
        except BaseException:
            # A generator is over after an error, and would say that this is the end. The next call reads on.
            self._bounded = None
            raise
        self._waiting.extend(batch for batch in found or () if batch.num_records)
        return found is not None

    async def _poll_on(self) -> None:
        """Poll until batches wait, or the time is up."""
        loop = asyncio.get_running_loop()
        deadline = None if self._timeout_s is None else loop.time() + self._timeout_s
        while not self._waiting and not self._ended:
            left_ms = _POLL_MS
            if deadline is not None:
                left_ms = min(_POLL_MS, max(0, int((deadline - loop.time()) * 1000)))
            await self._look_for_partitions(loop.time())
            if not self._read:  # a partitioned table that has no partition yet
                await asyncio.sleep(min(left_ms / 1000, PARTITION_CHECK_S))
            else:
                await self._fetch(left_ms)
            if deadline is not None and loop.time() >= deadline:
                return

    async def _fetch(self, timeout_ms: int) -> None:
        """Poll, and stop reading partitions that were dropped meanwhile."""
        try:
            found = await self._poll(timeout_ms)
        except (PartitionNotExistsError, UnknownTableOrBucketError):
            if not await self._drop_partitions():
                raise
        else:
            self._waiting.extend(batch for batch in found if batch.num_records)

    async def _poll(self, timeout_ms: int) -> list[RecordBatch]:
        """Poll, and begin the next poll before what came is looked at: it is fetched meanwhile."""
        assert self._scanner is not None
        if self._polling is None:
            self._polling = self._begin_poll(self._scanner, timeout_ms)
        polling = self._polling
        # Not awaited itself: a caller that is interrupted must not lose what arrives.
        await asyncio.wait([polling], timeout=max(timeout_ms, 1) / 1000)
        if not polling.done():
            return []
        self._polling = None
        found = self._result_of(polling)
        if found:
            self._polling = self._begin_poll(self._scanner, _POLL_MS)
        return found

    @staticmethod
    def _begin_poll(scanner: LogScanner, timeout_ms: int) -> asyncio.Task[list[RecordBatch]]:
        polling = asyncio.ensure_future(scanner.poll_record_batch(timeout_ms))
        polling.add_done_callback(retrieve_exception)  # the caller may be gone before it ends
        return polling

    async def _look_for_partitions(self, now: float) -> None:
        assert self._info is not None
        if not self._info.is_partitioned() or now - self._checked_at < PARTITION_CHECK_S:
            return
        self._checked_at = now
        buckets = await list_buckets(self._connection, self._info)
        await self._keep_partitions(buckets)
        new = [bucket for bucket in buckets if bucket not in self._read]
        if new:
            plan = ScanPlan(self._connection._cluster, self._info)
            with contextlib.suppress(PartitionNotExistsError):  # dropped already: the next look does without it
                offsets = await plan.offsets(new, OffsetSpec.earliest())
                self._subscribe(offsets)
                self._read = {**self._read, **offsets}

    async def _drop_partitions(self) -> bool:
        """Drop the partitions that are gone; False if none is, and the error must have another reason."""
        assert self._info is not None
        if not self._info.is_partitioned():
            return False
        try:
            return await self._keep_partitions(await list_buckets(self._connection, self._info))
        except FlussError:
            return False

    async def _keep_partitions(self, buckets: Iterable[TableBucket]) -> bool:
        """Stop reading buckets that are not among these; whether there were any."""
        assert self._info is not None
        assert self._scanner is not None
        left = set(buckets)
        gone = [bucket for bucket in self._read if bucket not in left]
        self._unsubscribe(gone)
        if gone:
            self._read = {bucket: offset for bucket, offset in self._read.items() if bucket in left}
        for partition_id in {bucket.partition_id for bucket in gone if bucket.partition_id is not None}:
            # Asked for again, it is not found, and the connection drops what it knew.
            await self._connection._cluster.partition_by_id(self._info.table_path, partition_id, refresh=True)
        return bool(gone)


async def full_rows(
    plan: ScanPlan, buckets: Sequence[TableBucket], columns: Sequence[str], ends: dict[TableBucket, int]
) -> AsyncGenerator[tuple[ChangeBatch, bool], None]:
    """The current rows of buckets as inserts, and whether a batch is the last; `ends` takes where changes go on."""
    needed = list(dict.fromkeys([*columns, *plan.info.physical_primary_key]))
    now_ms = int(time.time() * 1000)

    def changes(found: RecordBatch, start: int, rows: int, read: dict[TableBucket, int] | None = None) -> ChangeBatch:
        batch = found.batch.select(columns).slice(start, rows)
        last = ends[found.bucket] - 1
        kinds = bytes([ChangeType.Insert]) * rows
        return ChangeBatch(RecordBatch(batch, found.bucket, last, last, now_ms, kinds, [last] * rows), read)

    held: RecordBatch | None = None
    async with contextlib.aclosing(current_rows(plan.project_by_name(needed), buckets, ends)) as batches:
        async for found in batches:
            if found.num_records:
                if held is not None:
                    yield changes(held, 0, held.num_records), False
                held = found
    if held is not None:
        # Only after the last row is there nothing to read again: it comes alone, with a position of its own.
        if held.num_records > 1:
            yield changes(held, 0, held.num_records - 1), False
        yield changes(held, held.num_records - 1, 1, ends), True


async def next_rows(rows: AsyncGenerator[tuple[ChangeBatch, bool], None]) -> tuple[ChangeBatch | None, bool]:
    """The next batch of `full_rows`, or None, and whether none follows."""
    found = await anext(rows, None)  # a tuple as the default fails on Python 3.11
    return (None, True) if found is None else found


def _expanded(
    feed: Feed[Any], expand: Callable[[ChangeBatch], Iterable[Sequence[ItemT]]], found: ChangeBatch
) -> Iterator[Sequence[ItemT]]:
    try:
        yield from expand(found)
    except Exception as error:
        feed.failure = error
        raise


class Follow(Generic[ItemT]):
    """The changes of a table, as they come. Obtain it with `table.follow()` or `table.changes()`.

    Example:
        async for change in orders.follow(start="latest"):
            print(change.kind, change.row)
    """

    def __init__(self, feed: Feed[Any], expand: Callable[[ChangeBatch], Iterable[Sequence[ItemT]]]) -> None:
        self._feed = feed
        self._expand = partial(_expanded, feed, expand)
        self._items: Iterator[ItemT] = iter(())

    def __aiter__(self) -> Follow[ItemT]:
        return self

    async def __anext__(self) -> ItemT:
        while True:
            for item in self._items:
                return item
            found = await self._feed.next()
            if found is None:
                raise StopAsyncIteration
            self._items = self._feed.items(found, self._expand)

    def __repr__(self) -> str:
        return f"Follow({self._feed})"

    async def commit(self) -> None:
        """Store for the group that all changes given so far are handled, and wait until that is durable.

        Without it, a change counts as handled when the next one is asked for, and that is stored once a second.

        Raises:
            GroupRebalancedError: Other members own the buckets now, and handle what was not committed.

        Example:
            await changes.commit()
        """
        await self._feed.commit()

    async def close(self) -> None:
        """Stop following. Leaving an `async with` block does it too.

        Example:
            await changes.close()
        """
        self._items = iter(())
        await self._feed.close()

    async def __aenter__(self) -> Follow[ItemT]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
