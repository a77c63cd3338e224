# SPDX-License-Identifier: Apache-2.0
"""Which buckets a scanner reads, and from where."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections.abc import Generator, Mapping
from typing import Any

from fluss.client.arguments import integer, is_seconds, wrong_argument
from fluss.client.scan.fetched import FetchedBatches
from fluss.client.scan.fetcher import Fetcher
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.subscription import Subscription
from fluss.errors import ConnectionClosedError, FlussError, InvalidArgumentError
from fluss.metadata import EARLIEST_OFFSET, LATEST_OFFSET, OffsetSpec, TableBucket
from fluss.net.deadline import LONGEST_S, Deadline


class ActiveReader:
    """A `to_arrow_batch_reader` of a scanner, as far as the scanner has to know of it."""

    def __init__(self, buckets: list[TableBucket]) -> None:
        self.buckets = buckets
        self.dropped_half_read = False

    def watch(self, batches: Generator[Any, None, None]) -> None:
        """Know by the generator of its batches whether the reader is in use."""
        self._batches = weakref.ref(batches)

    @property
    def in_use(self) -> bool:
        batches = self._batches()
        return batches is not None and inspect.getgeneratorstate(batches) != inspect.GEN_CLOSED


class Subscriptions:
    """The part of a scanner that keeps its subscriptions."""

    def __init__(self, plan: ScanPlan, fetcher: Fetcher, fetched: FetchedBatches) -> None:
        self._plan = plan
        self._fetcher = fetcher
        self._fetched = fetched
        self._latest: set[TableBucket] = set()
        """Buckets whose subscription waits for the latest offset."""
        self._resolving: asyncio.Task[None] | None = None
        self._reader: ActiveReader | None = None
        self._subscribed_once = False
        self._closed = False

    def subscribe(self, bucket_id: int, start_offset: int, *, timeout: float | None = None) -> None:
        """Read a bucket from `start_offset` on (`EARLIEST_OFFSET`, `LATEST_OFFSET` or an offset).

        `timeout` is the time, in seconds, within which the latest offset must be known; see `resolved()`.

        Example:
            scanner.subscribe(bucket_id=0, start_offset=fluss.EARLIEST_OFFSET)
        """
        self.subscribe_buckets({bucket_id: start_offset}, timeout=timeout)

    def subscribe_from_beginning(self, bucket_id: int, partition_id: int | None = None) -> None:
        """Read a bucket (of a partition, if the table has partitions) from its earliest offset on.

        Example:
            scanner.subscribe_from_beginning(0)
        """
        if partition_id is None:
            self.subscribe_buckets({bucket_id: EARLIEST_OFFSET})
        else:
            self.subscribe_partition_buckets({(partition_id, bucket_id): EARLIEST_OFFSET})

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
                TableBucket.with_partition(
                    table_id, integer("subscribe", "partition_id", partition_id), self._checked(bucket_id, partition_id)
                ): offset
                for (partition_id, bucket_id), offset in partition_bucket_offsets.items()
            },
            timeout,
        )

    def _checked(self, bucket_id: int, partition_id: int | None = None) -> int:
        bucket_id = integer("subscribe", "bucket_id", bucket_id)
        self._plan.check_bucket(bucket_id, partition_id)
        return bucket_id

    def _subscribe(self, offsets: dict[TableBucket, int], timeout: float | None) -> None:
        self._check_open()
        if not offsets:
            raise InvalidArgumentError(
                f"no buckets were given: name at least one bucket of table {self._plan.info.table_path} to subscribe to"
            )
        deadline = self._plan.cluster.deadline(timeout)
        self._check_no_reader()
        self._subscribed_once = True
        for bucket, given in offsets.items():
            offset = offsets[bucket] = integer("subscribe", "start_offset", given)
            if offset < 0 and offset not in (EARLIEST_OFFSET, LATEST_OFFSET):
                raise InvalidArgumentError(
                    f"start offset {offset} of {bucket} is not an offset; "
                    "use 0 or more, EARLIEST_OFFSET or LATEST_OFFSET"
                )
        latest = [bucket for bucket, offset in offsets.items() if offset == LATEST_OFFSET]
        for bucket in offsets:
            self._fetched.drop(bucket)
            self._latest.discard(bucket)
        for bucket in latest:
            self._fetcher.remove(bucket)
        self._fetcher.add(*(Subscription(bucket, at) for bucket, at in offsets.items() if at != LATEST_OFFSET))
        if latest:
            self._latest.update(latest)
            self._resolving = asyncio.ensure_future(self._resolve_latest(latest, self._resolving, deadline))

    async def _resolve_latest(
        self, buckets: list[TableBucket], before: asyncio.Task[None] | None, deadline: Deadline
    ) -> None:
        failed: FlussError | None = None
        if before is not None:
            try:
                await before
            except FlussError as error:
                failed = error  # of other buckets: these are subscribed all the same
        try:
            ends = await self._plan.offsets(buckets, OffsetSpec.latest(), deadline)
        except FlussError:
            self._latest.difference_update(buckets)
            raise
        still_wanted = [bucket for bucket in buckets if bucket in self._latest]
        self._latest.difference_update(still_wanted)
        self._fetcher.add(*(Subscription(bucket, ends[bucket]) for bucket in still_wanted))
        if failed is not None:
            raise failed

    async def resolved(self, timeout_s: float | None = None) -> bool:
        """Wait until subscriptions to the latest offset know that offset; False if that takes longer.

        Raises what went wrong with it; such a subscription is gone.

        Example:
            scanner.subscribe(0, fluss.LATEST_OFFSET)
            await scanner.resolved()
        """
        if timeout_s is not None and not is_seconds(timeout_s):
            raise wrong_argument("resolved", "timeout_s", "a number of seconds, 0 or more, or None", timeout_s)
        resolving = self._resolving
        if resolving is not None:
            # Not awaited itself: a poll that is cancelled must not cancel the subscription.
            await asyncio.wait([resolving], timeout=None if timeout_s is None else min(timeout_s, LONGEST_S))
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
        self._unsubscribe(TableBucket(self._plan.info.table_id, integer("unsubscribe", "bucket_id", bucket_id)))

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition.

        Example:
            scanner.unsubscribe_partition(partition_id=7, bucket_id=0)
        """
        partition_id = integer("unsubscribe_partition", "partition_id", partition_id)
        bucket_id = integer("unsubscribe_partition", "bucket_id", bucket_id)
        self._unsubscribe(TableBucket.with_partition(self._plan.info.table_id, partition_id, bucket_id))

    def _unsubscribe(self, bucket: TableBucket) -> None:
        self._check_no_reader()
        self._drop(bucket)

    def _drop(self, bucket: TableBucket) -> None:
        self._latest.discard(bucket)
        self._fetched.drop(bucket)
        self._fetcher.remove(bucket)

    def get_subscribed_buckets(self) -> list[tuple[TableBucket, int]]:
        """All subscribed buckets with the next offset each will give.

        Example:
            checkpoint = dict(scanner.get_subscribed_buckets())
        """
        self._release_dropped_reader()
        return list(self._positions().items())

    def _positions(self) -> dict[TableBucket, int]:
        fetched = self._fetched.next_offsets()
        return {
            bucket: fetched.get(bucket, subscription.position)
            for bucket, subscription in self._fetcher.subscriptions.items()
        }

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

    def _check_no_reader(self) -> None:
        self._release_dropped_reader()
        if self._reader is not None and self._reader.in_use:
            raise InvalidArgumentError(
                "a RecordBatchLogReader is active: read it to its end or drop it before changing the subscriptions"
            )

    def _release_dropped_reader(self) -> None:
        """Unsubscribe from what a reader that was dropped half-read has left: it is read neither from there nor here.

        Done by the next call, in its thread: a reader may be dropped in any.
        """
        reader = self._reader
        if reader is not None and reader.dropped_half_read:
            self._reader = None
            for bucket in reader.buckets:
                self._drop(bucket)

    def _check_open(self) -> None:
        if self._closed:
            raise ConnectionClosedError(f"the scanner of {self._plan.info.table_path} is closed")

    def _check_ever_subscribed(self) -> None:
        """A poll after the last bucket was unsubscribed is empty; one before the first subscription is a mistake."""
        if not self._subscribed_once:
            self._check_subscribed()
        self._check_open()
        self._release_dropped_reader()

    def _check_subscribed(self) -> None:
        self._check_open()
        self._release_dropped_reader()
        if not self._fetcher.subscriptions and not self._latest:
            raise InvalidArgumentError("No buckets subscribed. Call subscribe() or subscribe_buckets() first.")
