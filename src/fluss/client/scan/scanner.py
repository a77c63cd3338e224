# SPDX-License-Identifier: Apache-2.0
"""Reading the log of a table: record by record, or batch by batch, for ever or up to now."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, cast

import pyarrow as pa

from fluss.client.scan.blocking import blocking_batches
from fluss.client.scan.decode import Decoded
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.frames import to_pandas, to_polars
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch, Run, ScanRecords
from fluss.client.scan.subscription import Subscription
from fluss.errors import ConnectionClosedError, DeadlineExceededError, FlussError, InvalidArgumentError
from fluss.metadata import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec, TableBucket
from fluss.net.deadline import Deadline

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

logger = logging.getLogger("fluss.client.scan")

_ITERATION_POLL_MS = 1_000


class LogScanner(Generic[ItemT]):
    """Reads buckets of a table's log from given offsets on.

    A record scanner gives records (`poll`), a batch scanner Arrow (`poll_arrow`, `poll_record_batch`, `to_arrow`).
    Subscribe to buckets first; `poll*` then goes on from where the last one ended. `to_arrow` and the like read from
    the current position up to the log's end at the time of the call and leave the position where it is.

    Example:
        scanner = await table.new_scan().create_log_scanner()
        scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        async for record in scanner:
            print(record.row)
    """

    def __init__(self, plan: ScanPlan, *, batches: bool) -> None:
        self._plan = plan
        self._batches = batches
        self._loop = asyncio.get_running_loop()
        # A caller of `to_arrow` wants everything at once, which fetches by itself: to fetch ahead for a poll
        # that never comes would be double work. Records can only be polled.
        self._fetcher = plan.fetcher(plan.fetch_options(), eager=not batches)
        self._leftover: dict[TableBucket, Decoded] = {}
        """What a poll fetched but had no room for."""
        self._polling = asyncio.Lock()
        self._leftover_lock = threading.Lock()
        """Leftovers are stored on the loop, and taken in any thread."""
        self._latest: set[TableBucket] = set()
        """Buckets whose subscription waits for the latest offset."""
        self._resolving: asyncio.Task[None] | None = None
        self._reader: weakref.ref[Any] | None = None
        self._closed = False
        plan.cluster.attach(self)
        # A scanner that is dropped without close() must not go on fetching.
        self._finalizer = weakref.finalize(self, _abandon, self._loop, self._fetcher)
        self._finalizer.atexit = False

    # -- subscriptions --------------------------------------------------------------------------------------------

    def subscribe(self, bucket_id: int, start_offset: int, *, timeout: float | None = None) -> None:
        """Read a bucket from `start_offset` on (`EARLIEST_OFFSET`, `LATEST_OFFSET` or an offset).

        `timeout` is the time, in seconds, within which the latest offset must be known; see `settled()`.

        Example:
            scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        """
        self.subscribe_buckets({bucket_id: start_offset}, timeout=timeout)

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int], *, timeout: float | None = None) -> None:
        """Read several buckets: `{bucket id: start offset}`.

        Example:
            scanner.subscribe_buckets({bucket: fluss.EARLIEST_OFFSET for bucket in range(info.num_buckets)})
        """
        if self.is_partitioned():
            raise InvalidArgumentError(
                f"table {self._plan.info.table_path} is partitioned: use subscribe_partition() or "
                "subscribe_partition_buckets()"
            )
        table_id = self._plan.info.table_id
        self._subscribe({TableBucket(table_id, self._checked(b)): o for b, o in bucket_offsets.items()}, timeout)

    def subscribe_partition(
        self, partition_id: int, bucket_id: int, start_offset: int, *, timeout: float | None = None
    ) -> None:
        """Read one bucket of one partition from `start_offset` on.

        Example:
            scanner.subscribe_partition(partition_id=7, bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        """
        self.subscribe_partition_buckets({(partition_id, bucket_id): start_offset}, timeout=timeout)

    def subscribe_partition_buckets(
        self, partition_bucket_offsets: Mapping[tuple[int, int], int], *, timeout: float | None = None
    ) -> None:
        """Read several buckets of partitions: `{(partition id, bucket id): start offset}`.

        Example:
            scanner.subscribe_partition_buckets({(p.partition_id, 0): fluss.EARLIEST_OFFSET for p in partitions})
        """
        if not self.is_partitioned():
            raise InvalidArgumentError(
                f"table {self._plan.info.table_path} is not partitioned: use subscribe() or subscribe_buckets()"
            )
        table_id = self._plan.info.table_id
        self._subscribe(
            {
                TableBucket.with_partition(table_id, partition_id, self._checked(bucket_id)): offset
                for (partition_id, bucket_id), offset in partition_bucket_offsets.items()
            },
            timeout,
        )

    def _checked(self, bucket_id: int) -> int:
        if not 0 <= bucket_id < self._plan.info.num_buckets:
            raise InvalidArgumentError(
                f"bucket {bucket_id} does not exist: table {self._plan.info.table_path} has buckets 0 to "
                f"{self._plan.info.num_buckets - 1}"
            )
        return bucket_id

    def _subscribe(self, offsets: dict[TableBucket, int], timeout: float | None) -> None:
        self._check_open()
        deadline = self._plan.cluster.deadline(timeout)
        self._check_no_reader()
        for bucket, offset in offsets.items():
            if offset < 0 and offset not in (EARLIEST_OFFSET, LATEST_OFFSET):
                raise InvalidArgumentError(
                    f"start offset {offset} of {bucket} is not an offset; "
                    "use 0 or more, EARLIEST_OFFSET or LATEST_OFFSET"
                )
        latest = [bucket for bucket, offset in offsets.items() if offset == LATEST_OFFSET]
        for bucket, offset in offsets.items():
            self._drop_leftover(bucket)
            self._latest.discard(bucket)
            if offset == LATEST_OFFSET:
                self._fetcher.remove(bucket)
            else:
                self._fetcher.add(Subscription(bucket, offset))
        if latest:
            self._latest.update(latest)
            self._resolving = asyncio.ensure_future(self._resolve_latest(latest, self._resolving, deadline))

    async def _resolve_latest(
        self, buckets: list[TableBucket], before: asyncio.Task[None] | None, deadline: Deadline
    ) -> None:
        if before is not None:
            await before
        try:
            ends = await self._plan.offsets(buckets, OffsetSpec.latest(), deadline)
        except FlussError:
            self._latest.difference_update(buckets)
            raise
        for bucket in buckets:
            if bucket in self._latest:
                self._latest.discard(bucket)
                self._fetcher.add(Subscription(bucket, ends[bucket]))

    async def settled(self, timeout_s: float | None = None) -> bool:
        """Wait until subscriptions to the latest offset know that offset; False if that takes longer.

        Raises what went wrong with it; such a subscription is gone.

        Example:
            scanner.subscribe(0, fluss.LATEST_OFFSET)
            await scanner.settled()
        """
        resolving = self._resolving
        if resolving is not None:
            # Not awaited itself: a poll that is cancelled must not cancel the subscription.
            await asyncio.wait([resolving], timeout=timeout_s)
            if not resolving.done():
                return False
            if self._resolving is resolving:
                self._resolving = None
            if not resolving.cancelled():
                resolving.result()
        return True

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket.

        Example:
            scanner.unsubscribe(bucket_id=0)
        """
        self._unsubscribe(TableBucket(self._plan.info.table_id, bucket_id))

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition.

        Example:
            scanner.unsubscribe_partition(partition_id=7, bucket_id=0)
        """
        self._unsubscribe(TableBucket.with_partition(self._plan.info.table_id, partition_id, bucket_id))

    def _unsubscribe(self, bucket: TableBucket) -> None:
        self._check_no_reader()
        self._latest.discard(bucket)
        self._drop_leftover(bucket)
        self._fetcher.remove(bucket)

    def get_subscribed_buckets(self) -> list[tuple[TableBucket, int]]:
        """All subscribed buckets with the next offset each will give.

        Example:
            checkpoint = dict(scanner.get_subscribed_buckets())
        """
        return list(self._positions().items())

    def _positions(self) -> dict[TableBucket, int]:
        positions = {}
        with self._leftover_lock:
            for bucket, subscription in self._fetcher.subscriptions.items():
                leftover = self._leftover.get(bucket)
                positions[bucket] = leftover.first_offset if leftover is not None else subscription.position
        return positions

    def is_partitioned(self) -> bool:
        """Whether the table has partitions.

        Example:
            subscribe = scanner.subscribe_partition if scanner.is_partitioned() else scanner.subscribe
        """
        return self._plan.info.is_partitioned()

    def lag(self) -> dict[TableBucket, int | None]:
        """How many offsets each bucket is behind the end of its log, as of the last answer; None before the first.

        Example:
            behind = sum(lag or 0 for lag in scanner.lag().values())
        """
        positions = self._positions()
        lags: dict[TableBucket, int | None] = {}
        for bucket, subscription in self._fetcher.subscriptions.items():
            end = subscription.high_watermark
            # "Earliest" becomes a number with the first record; a log that never had one is not behind.
            position = 0 if end == 0 else positions[bucket]
            lags[bucket] = None if end is None or position < 0 else max(0, end - position)
        return lags

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
        runs: dict[TableBucket, list[Run]] = {}
        room = self._plan.config.scanner_log_max_poll_records
        timeout_s: float = max(0, timeout_ms) / 1000
        while room > 0:
            try:
                taken = await self._next(room, timeout_s)
            except FlussError:
                if runs:
                    break  # rows that were taken must not be lost; what is wrong behind them is met by the next poll
                raise
            if taken is None:
                break
            bucket, decoded = taken
            runs.setdefault(bucket, []).append(self._run(decoded))
            room -= decoded.rows
            timeout_s = 0
        return ScanRecords(runs)

    def poll_leftover(self) -> ScanRecords | None:
        """What an earlier poll fetched and had no room for, as a poll of its own; None when there is nothing.

        May be called in any thread: a poll from another one need not wake the loop for records that are here.

        Example:
            records = scanner.poll_leftover() or await scanner.poll(timeout_ms=1000)
        """
        if not self._leftover or self._closed:
            return None
        taken = self._take_leftover(self._plan.config.scanner_log_max_poll_records)
        if taken is None:
            return None
        bucket, decoded = taken
        return ScanRecords({bucket: [self._run(decoded)]})

    def _run(self, decoded: Decoded) -> Run:
        base = decoded.first_offset if decoded.offsets is None else decoded.offsets
        return Run(decoded.batch, self._fetcher.decoder.types, base, decoded.timestamp, decoded.change_types)

    async def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """The batches that arrive within `timeout_ms`; may be empty.

        A poll gives about `scanner.log.fetch.max-bytes` at most, however much there is to read.

        Example:
            for found in await scanner.poll_record_batch(timeout_ms=1000):
                print(found.bucket, found.base_offset, found.last_offset, found.batch.num_rows)
        """
        self._check_kind(batches=True, call="poll_record_batch")
        found: list[RecordBatch] = []
        timeout_s: float = max(0, timeout_ms) / 1000
        room_bytes = self._plan.config.scanner_log_fetch_max_bytes
        while room_bytes > 0:
            try:
                taken = await self._next(None, timeout_s)
            except FlussError:
                if found:
                    break  # as in `poll`
                raise
            if taken is None:
                break
            found.append(_record_batch(*taken))
            room_bytes -= found[-1].batch.nbytes
            timeout_s = 0
        return found

    async def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """What arrives within `timeout_ms` as one Arrow table; may have no rows.

        Example:
            table = await scanner.poll_arrow(timeout_ms=1000)
        """
        return self._plan.to_table([found.batch for found in await self.poll_record_batch(timeout_ms)])

    async def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """Same as `poll_record_batch`.

        Example:
            batches = await scanner.poll_batches(timeout_ms=1000)
        """
        return await self.poll_record_batch(timeout_ms)

    async def poll_items(self, timeout_ms: int) -> Sequence[ItemT]:
        """Records or batches, whichever this scanner gives.

        Example:
            items = await scanner.poll_items(timeout_ms=1000)
        """
        batches = await self.poll_record_batch(timeout_ms) if self._batches else None
        items: Any = list(await self.poll(timeout_ms)) if batches is None else batches
        return cast("Sequence[ItemT]", items)

    async def _next(self, rows_max: int | None, timeout_s: float) -> tuple[TableBucket, Decoded] | None:
        self._check_subscribed()
        taken = self._take_leftover(rows_max)
        if taken is not None:
            return taken
        deadline = self._loop.time() + timeout_s
        # One after the other: what the first one has no room for is the next one's to take.
        if self._polling.locked():
            try:
                await asyncio.wait_for(self._polling.acquire(), timeout_s)
            except asyncio.TimeoutError:
                return None
        else:
            await self._polling.acquire()
        try:
            taken = self._take_leftover(rows_max)
            if taken is not None:
                return taken
            if not await self.settled(max(0.0, deadline - self._loop.time())):
                return None
            found = await self._fetcher.next(max(0.0, deadline - self._loop.time()))
            if found is None:
                return None
            subscription, decoded = found
            return subscription.bucket, self._cut(subscription.bucket, decoded, rows_max)
        finally:
            self._polling.release()

    def _take_leftover(self, rows_max: int | None) -> tuple[TableBucket, Decoded] | None:
        with self._leftover_lock:
            for bucket, decoded in self._leftover.items():
                del self._leftover[bucket]
                return bucket, self._cut_locked(bucket, decoded, rows_max)
        return None

    def _drop_leftover(self, bucket: TableBucket) -> None:
        with self._leftover_lock:
            self._leftover.pop(bucket, None)

    def _cut(self, bucket: TableBucket, decoded: Decoded, rows_max: int | None) -> Decoded:
        with self._leftover_lock:
            return self._cut_locked(bucket, decoded, rows_max)

    def _cut_locked(self, bucket: TableBucket, decoded: Decoded, rows_max: int | None) -> Decoded:
        if rows_max is None or decoded.rows <= rows_max:
            return decoded
        self._leftover[bucket] = decoded.slice(rows_max, decoded.rows - rows_max)
        return decoded.slice(0, rows_max)

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
        if not await self.settled(None if deadline is None else deadline.remaining_ms / 1000):
            raise DeadlineExceededError(
                f"The latest offsets of table '{self._plan.info.table_path}' were not known within {timeout:g} s"
            )
        async with contextlib.aclosing(self._plan.read(self._positions(), None, deadline)) as batches:
            async for batch in batches:
                yield batch

    async def to_arrow(self, *, include_lake: bool = False, timeout: float | None = None) -> pa.Table:
        """Everything from the current position up to the end of the log now, as an Arrow table.

        With `include_lake`: the whole table instead, the rows of its newest lake snapshot and the log after it; for
        primary-key tables its current rows. Subscriptions play no part then; projection and filter do.

        Example:
            scanner.subscribe(0, fluss.EARLIEST_OFFSET)
            table = await scanner.to_arrow()
        """
        if include_lake:
            return await self._plan.read_with_lake(timeout)
        async with contextlib.aclosing(self.read_batches(timeout=timeout)) as batches:
            return self._plan.to_table([found.batch async for found in batches])

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

        The reader is a plain iterator for plain code. While it is in use the subscriptions cannot be changed.

        Example:
            for batch in scanner.to_arrow_batch_reader():
                print(batch.num_rows)
        """
        self._check_kind(batches=True, call="to_arrow_batch_reader")
        self._check_subscribed()
        self._check_no_reader()
        batches = blocking_batches(self._plan, self._positions(), self._loop, self._plan.read_deadline(timeout))
        reader = pa.RecordBatchReader.from_batches(self.arrow_schema, batches)
        self._reader = weakref.ref(batches)
        return reader

    def _check_no_reader(self) -> None:
        batches = self._reader() if self._reader is not None else None
        if batches is not None and inspect.getgeneratorstate(batches) != inspect.GEN_CLOSED:
            raise InvalidArgumentError(
                "a RecordBatchLogReader is active: read it to its end or drop it before changing the subscriptions"
            )

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the Arrow batches this scanner gives.

        Example:
            names = scanner.arrow_schema.names
        """
        return self._fetcher.decoder.arrow_schema

    # -- iteration ------------------------------------------------------------------------------------------------

    def __aiter__(self) -> AsyncIterator[ItemT]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[ItemT]:
        while not self._closed:
            for item in await self.poll_items(_ITERATION_POLL_MS):
                yield item

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
            if self._resolving is not None:
                self._resolving.cancel()
                await asyncio.wait([self._resolving])
            await self._fetcher.close()

    async def drain(self) -> None:
        """Nothing of a reader has to reach the servers."""

    async def shut(self) -> None:
        await self.close()

    async def __aenter__(self) -> LogScanner[ItemT]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the scanner of {self._plan.info.table_path} is closed")

    def _check_subscribed(self) -> None:
        self._check_open()
        if not self._fetcher.subscriptions and not self._latest:
            raise InvalidArgumentError("No buckets subscribed. Call subscribe() or subscribe_buckets() first.")

    def _check_kind(self, *, batches: bool, call: str) -> None:
        if batches != self._batches:
            other = "create_record_batch_log_scanner()" if batches else "create_log_scanner()"
            raise InvalidArgumentError(f"{call}() needs a scanner made with {other}")

    def __repr__(self) -> str:
        kind = "batches" if self._batches else "records"
        return f"<LogScanner of {self._plan.info.table_path}, {kind}, {len(self._fetcher.subscriptions)} buckets>"


def _abandon(loop: asyncio.AbstractEventLoop, fetcher: Fetcher) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and everything on it is over
        loop.call_soon_threadsafe(fetcher.abandon)


def _record_batch(bucket: TableBucket, decoded: Decoded) -> RecordBatch:
    return RecordBatch(
        decoded.batch,
        bucket,
        decoded.first_offset,
        decoded.last_offset,
        decoded.timestamp,
        decoded.change_types,
        decoded.offsets,
        decoded.writer_id,
    )
