# SPDX-License-Identifier: Apache-2.0
"""Reading the log of a table: record by record, or batch by batch, for ever or up to now."""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterable, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, cast

import pyarrow as pa

from fluss.client.arguments import integer
from fluss.client.scan.fetched import Fetched, FetchedBatches
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch, Run, ScanRecords, row_offsets, to_pandas, to_polars
from fluss.client.scan.subscriptions import ActiveReader, Subscriptions
from fluss.client.scan.views import CHANGE_TYPE, VIEWS, ChangeTypes, View
from fluss.errors import DeadlineExceededError, FlussError, InvalidArgumentError
from fluss.metadata import TableBucket
from fluss.net.background import Bridge, LoopThread, RunningLoop, running_loop
from fluss.net.deadline import Deadline, wait_for
from fluss.net.eager import cancel

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ItemT = TypeVar("ItemT", default=Any)
    """What iterating over a scanner gives. With a default, so that `LogScanner` alone is a type too."""
else:
    from typing import TypeVar

    ItemT = TypeVar("ItemT")


_ITERATION_POLL_S = 1.0
"""How long iteration waits for data before it looks again; it never ends by itself."""


class LogScanner(Subscriptions, Generic[ItemT]):
    """Reads buckets of a table's log from given offsets on.

    A record scanner gives records (`poll`), a batch scanner Arrow (`poll_arrow`, `poll_record_batch`, `to_arrow`).
    Subscribe to buckets first; `poll*` then goes on from where the last one ended. `to_arrow` and the like read from
    the current position up to the log's end at the time of the call and leave the position where it is.

    The log of a primary-key table is its changelog: every change since the log begins, not the current rows. Its Arrow
    batches end with a column `_change_type` (``insert``, ``update_before``, ``update_after``, ``delete``). For current
    rows use `create_bucket_batch_scanner`, lookups, or `fluss.connect(…).table(…).to_arrow()`.

    Example:
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        async for record in scanner:
            print(record.row)
    """

    def __init__(
        self,
        plan: ScanPlan,
        *,
        batches: bool,
        change_type_column: bool = True,
        pause_s: Callable[[], float] | None = None,
    ) -> None:
        """Use `TableScan`. For `pause_s` see `FetchOptions`."""
        self._batches = batches
        self._loop = asyncio.get_running_loop()
        # A caller of `to_arrow` wants everything at once, which fetches by itself: to fetch ahead for a poll
        # that never comes would be double work. Records can only be polled.
        config = plan.config
        fetched = FetchedBatches(
            None if batches else config.scanner_log_max_poll_records, config.scanner_log_fetch_max_bytes
        )
        options = plan.fetch_options()
        if pause_s is not None:
            options = replace(options, pause_s=pause_s)
        super().__init__(plan, plan.fetcher(options, eager=not batches), fetched)
        self._filling = asyncio.Lock()
        self._fillers = 0
        """How many calls hold the lock or wait for it."""
        # Rows of a changelog mean nothing without what they did. A table may have a column of this name: servers of
        # Apache Fluss before 0.9 did not reserve it.
        adds_change_type = (
            change_type_column and plan.info.has_primary_key() and CHANGE_TYPE not in plan.info.schema.column_names
        )
        self._make_view: type[View] | None = (
            VIEWS[plan.view] if plan.view else ChangeTypes if adds_change_type else None
        )
        self._view = self._new_view()
        plan.cluster.attach(self)
        # A scanner that is dropped without close() must not go on fetching.
        self._finalizer = weakref.finalize(self, _abandon, self._loop, self._fetcher)
        self._finalizer.atexit = False

    # -- polling --------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int) -> ScanRecords:
        """The records that arrive within `timeout_ms`, at most `scanner.log.max-poll-records`; may be empty.

        What passes (a leader that moves, a network that fails) is waited out; when a bucket could not be read for a
        minute, its last error is raised, and polling again tries again.

        Example:
            for record in await scanner.poll(timeout_ms=1000):
                print(record.offset, record.change_type.short_string(), record.row)
        """
        self._check_kind(batches=False, call="poll")
        return self._records_of(await self._collect(timeout_ms))

    def _records_of(self, taken: Sequence[Fetched]) -> ScanRecords:
        runs: dict[TableBucket, list[Run]] = {}
        for subscription, decoded in taken:
            runs.setdefault(subscription.bucket, []).append(self._run(decoded))
        return ScanRecords(runs)

    def poll_leftover(self) -> ScanRecords | None:
        """What an earlier poll fetched and had no room for, as a poll of its own; None when there is nothing.

        May be called in any thread: a poll from another one need not wake the loop for records that are here.

        Example:
            records = scanner.poll_leftover() or await scanner.poll(timeout_ms=1000)
        """
        taken = [] if self._closed else self._fetched.take()
        return self._records_of(taken) if taken else None

    def _run(self, found: RecordBatch) -> Run:
        types, changes = self._fetcher.decoder.types, found.change_types
        if self._plan.view is not None:
            assert self._view is not None
            found, types = _shown(self._view, found), self._view.types(self._fetcher.decoder.columns)
            changes = None  # what a record did is a column of its row
        map_pairs = self._plan.cluster.map_pairs
        return Run(found.batch, types, row_offsets(found), found.timestamp, changes, map_pairs=map_pairs)

    async def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """The batches that arrive within `timeout_ms`; may be empty.

        A poll gives about `scanner.log.fetch.max-bytes` at most, however much there is to read.

        Example:
            for found in await scanner.poll_record_batch(timeout_ms=1000):
                print(found.bucket, found.base_offset, found.last_offset, found.batch.num_rows)
        """
        self._check_kind(batches=True, call="poll_record_batch")
        return [_shown(self._view, found) for _, found in await self._collect(timeout_ms)]

    async def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """What arrives within `timeout_ms` as one Arrow table; may have no rows.

        Example:
            table = await scanner.poll_arrow(timeout_ms=1000)
        """
        return self._to_table([found.batch for found in await self.poll_record_batch(timeout_ms)])

    def _new_view(self) -> View | None:
        return self._make_view() if self._make_view is not None else None

    def _to_table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        return self._plan.to_table(batches, self.arrow_schema)

    async def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """Same as `poll_record_batch`.

        Example:
            batches = await scanner.poll_batches(timeout_ms=1000)
        """
        return await self.poll_record_batch(timeout_ms)

    def wakeup(self) -> None:
        """End the wait of a poll: the one that waits now, or else the next one, returns what it has. From any thread.

        Example:
            threading.Timer(5, scanner.wakeup).start()
            records = await scanner.poll(timeout_ms=60_000)
        """
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing waits on it
            self._loop.call_soon_threadsafe(self._fetcher.wake)

    async def _collect(self, timeout_ms: int) -> list[Fetched]:
        """Take what a poll gives."""
        deadline = self._loop.time() + max(0, integer("poll", "timeout_ms", timeout_ms)) / 1000
        while await self._fill(deadline - self._loop.time()):
            taken = self._fetched.take()
            if taken:  # else another thread was quicker
                return taken
        return []

    async def _fill(self, timeout_s: float = _ITERATION_POLL_S) -> bool:
        """Wait until there is a batch to take, and add those that need no wait; False if none came.

        Nothing is taken: cancelled, it loses nothing.
        """
        self._check_ever_subscribed()
        if self._fetched.size_left() <= 0:
            return True
        timeout_s = max(0.0, timeout_s)
        deadline = self._loop.time() + timeout_s
        self._fillers += 1
        try:
            if self._fillers == 1:
                await self._fill_alone(deadline)
            elif not self._fetched:
                await wait_for(self._fill_alone(deadline), timeout_s)
        except FlussError:
            raise  # before the next clause: a deadline error of ours is a TimeoutError too
        except asyncio.TimeoutError:
            pass
        finally:
            self._fillers -= 1
        return bool(self._fetched)

    async def _fill_alone(self, deadline: float) -> None:
        # One after the other: what the first one has no room for is the next one's to take.
        async with self._filling:
            if not self._fetched and not await self.resolved(max(0.0, deadline - self._loop.time())):
                return
            size_left = self._fetched.size_left()
            while size_left > 0 and not self._closed:
                timeout_s = 0.0 if self._fetched else max(0.0, deadline - self._loop.time())
                try:
                    found = await self._fetcher.next(timeout_s, endless=True)
                except FlussError:
                    if self._fetched:
                        return  # they come first; the next poll meets what is wrong behind them
                    raise
                if found is None:
                    return
                self._fetched.add(found)
                size_left -= self._fetched.size(found[1])

    def _give(self) -> Generator[ItemT, None, None]:
        """Give what is there, item by item, in any thread. What it does not give stays for the next call."""
        return self._fetched.give(self._items_of)

    def _items_of(self, fetched: Fetched) -> tuple[Iterable[ItemT], Sequence[int]]:
        _, decoded = fetched
        if self._batches:
            return [cast("ItemT", _shown(self._view, decoded))], [decoded.last_offset]
        run = self._run(decoded)
        return cast("Iterable[ItemT]", run.records()), run.offsets

    # -- bounded reads --------------------------------------------------------------------------------------------

    async def read_batches(self, *, timeout: float | None = None) -> AsyncGenerator[RecordBatch, None]:
        """Read all rows from the current position up to the end of the log now, batch by batch, in bounded memory.

        `timeout` is the time for the whole read, in seconds; by default it may take as long as it makes progress.

        Example:
            async for found in scanner.read_batches():
                print(found.batch.num_rows)
        """
        self._check_kind(batches=True, call="to_arrow")
        self._check_subscribed()
        deadline = self._plan.read_deadline(timeout)
        if not await self.resolved(None if deadline is None else deadline.remaining_ms / 1000):
            raise DeadlineExceededError(
                f"The latest offsets of table '{self._plan.info.table_path}' were not known within {timeout:g} s"
            )
        view = self._new_view()
        async with contextlib.aclosing(self._plan.read(self._positions(), None, deadline)) as batches:
            async for batch in batches:
                yield _shown(view, batch)

    async def to_arrow(self, *, include_lake: bool = False, timeout: float | None = None) -> pa.Table:
        """Everything from the current position up to the end of the log now, as an Arrow table.

        For a primary-key table that is its changelog, with the column `_change_type`.

        With `include_lake`: the whole table instead, the rows of its newest lake snapshot and the log after it; for
        primary-key tables its current rows. Subscriptions play no part then; projection and filter do.

        Example:
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            table = await scanner.to_arrow()
        """
        if include_lake:
            return await self._plan.read_with_lake(timeout)
        async with contextlib.aclosing(self.read_batches(timeout=timeout)) as batches:
            return self._to_table([found.batch async for found in batches])

    async def to_pandas(self, *, timeout: float | None = None) -> pd.DataFrame:
        """`to_arrow()` as a pandas DataFrame.

        Example:
            frame = await scanner.to_pandas()
        """
        return to_pandas(await self.to_arrow(timeout=timeout))

    async def to_polars(self, *, timeout: float | None = None) -> pl.DataFrame:
        """`to_arrow()` as a polars DataFrame.

        Example:
            frame = await scanner.to_polars()
        """
        return to_polars(await self.to_arrow(timeout=timeout))

    def to_arrow_batch_reader(self, *, timeout: float | None = None) -> pa.RecordBatchReader:
        """Everything from the current position up to the end of the log now, batch by batch as you read.

        The reader is a plain iterator for plain code. While it is in use the subscriptions cannot be changed; when it
        is dropped before its end, the scanner unsubscribes from its buckets.

        Example:
            for batch in scanner.to_arrow_batch_reader():
                print(batch.num_rows)
        """
        self._check_kind(batches=True, call="to_arrow_batch_reader")
        self._check_subscribed()
        self._check_no_reader()
        positions = self._positions()
        found = blocking_batches(self._plan, positions, self._loop, self._plan.read_deadline(timeout))
        reader = ActiveReader(list(positions))
        batches = _read(found, partial(_shown, self._new_view()), reader)
        reader.watch(batches)
        self._reader = reader
        return pa.RecordBatchReader.from_batches(self.arrow_schema, batches)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the Arrow batches this scanner gives.

        Example:
            names = scanner.arrow_schema.names
        """
        schema = self._fetcher.decoder.arrow_schema
        return schema if self._view is None else self._view.schema(schema)

    # -- iteration ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[ItemT]:
        return self._loop_with(self._fill_unless_closed)

    def _loop_with(self, fill: Callable[[], Awaitable[bool]]) -> AsyncIterator[ItemT]:
        """Make a loop. `fill` waits for batches, and says whether the loop goes on."""
        return _ScannerLoop(self, fill)

    async def _fill_unless_closed(self) -> bool:
        if not self._closed:
            await self._fill()
        return not self._closed

    # -- the end --------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Stop fetching and free what was fetched ahead.

        Example:
            await scanner.close()
        """
        if not self._closed:
            self._closed = True
            self._plan.cluster.detach(self)
            self._finalizer.detach()
            await cancel(self._resolving)
            self._fetched.clear()
            await self._fetcher.close()

    async def shut(self) -> None:
        await self.close()

    async def __aenter__(self) -> LogScanner[ItemT]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_kind(self, *, batches: bool, call: str) -> None:
        if batches != self._batches:
            other = "create_record_batch_log_scanner()" if batches else "create_log_scanner()"
            raise InvalidArgumentError(f"{call}() needs a scanner made with {other}")

    def __repr__(self) -> str:
        kind = "batches" if self._batches else "records"
        return f"<LogScanner of {self._plan.info.table_path}, {kind}, {len(self._fetcher.subscriptions)} buckets>"


class _ScannerLoop(Generic[ItemT]):
    """A loop over a scanner. Not a generator: the event loop closes an abandoned one later, not when it is left."""

    def __init__(self, scanner: LogScanner[ItemT], fill: Callable[[], Awaitable[bool]]) -> None:
        self._scanner = scanner
        self._fill = fill
        self._items = scanner._give()

    def __aiter__(self) -> _ScannerLoop[ItemT]:
        return self

    async def __anext__(self) -> ItemT:
        while True:
            for item in self._items:
                return item
            if not await self._fill():
                raise StopAsyncIteration
            self._items = self._scanner._give()


def _shown(view: View | None, found: RecordBatch) -> RecordBatch:
    # A copy: what is fetched and only partly given is shown again.
    return found if view is None else view.apply(copy(found))


def _read(
    batches: Generator[RecordBatch, None, None], shown: Callable[[RecordBatch], RecordBatch], reader: ActiveReader
) -> Generator[pa.RecordBatch, None, None]:
    try:
        for found in batches:
            yield shown(found).batch
    except GeneratorExit:
        reader.dropped_half_read = True
        raise
    finally:
        batches.close()


def _abandon(loop: asyncio.AbstractEventLoop, fetcher: Fetcher) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and everything on it is over
        loop.call_soon_threadsafe(fetcher.abandon)


def blocking_batches(
    plan: ScanPlan,
    start_offsets: dict[TableBucket, int],
    loop: asyncio.AbstractEventLoop,
    deadline: Deadline | None,
) -> Generator[RecordBatch, None, None]:
    """Give the batches of `plan.read` to a plain `for` loop, one at a time.

    Which thread reads is known when the first batch is asked for.
    """
    if running_loop() is loop:
        yield from _with_own_connection(plan, start_offsets, deadline)
    else:
        yield from _batches(plan, start_offsets, RunningLoop(loop), deadline)


def _batches(
    plan: ScanPlan, start_offsets: dict[TableBucket, int], bridge: Bridge, deadline: Deadline | None
) -> Generator[RecordBatch, None, None]:
    for group in bridge.iterate(plan.read_groups(start_offsets, None, deadline)):
        yield from group


def _with_own_connection(
    plan: ScanPlan, start_offsets: dict[TableBucket, int], deadline: Deadline | None
) -> Generator[RecordBatch, None, None]:
    """Read on a loop of its own: the caller runs on the loop that would otherwise have to do the work."""
    with LoopThread() as thread:
        cluster = thread.run(type(plan.cluster).connect(plan.config, deadline))
        try:
            yield from _batches(replace(plan, cluster=cluster), start_offsets, thread, deadline)
        finally:
            thread.run(cluster.close())
