# SPDX-License-Identifier: Apache-2.0
"""Fetches ahead: the next fetch is in flight while the rows of the last one are decoded and used.

A bucket is in at most one request at a time; all idle buckets of one server share a request. What arrives waits in the
bucket's queue, and is decoded there by threads, or when it is taken out if threads would gain nothing. A bucket whose
queue is full is left out of fetches, so memory stays bounded whatever the size of the table.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from fluss._text import escaped
from fluss.client.retry import DEFAULT_BACKOFF, is_routine
from fluss.client.scan.decode import BatchDecoder, decode_threads
from fluss.client.scan.records import RecordBatch
from fluss.client.scan.remote import RemoteReader, check_remote_offset, located
from fluss.client.scan.subscription import PASSING_ERRORS, FetchOptions, Queued, Subscription, Waiting
from fluss.errors import (
    DeadlineExceededError,
    ErrorCode,
    FlussError,
    FormatError,
    LeaderNotAvailableError,
    NetworkError,
    PartitionNotExistsError,
    UnknownServerError,
    UnknownTableOrBucketError,
    error_for_code,
)
from fluss.metadata import EARLIEST_OFFSET, Schema, TableBucket, TableInfo
from fluss.net.deadline import Deadline, wait_for
from fluss.net.eager import retrieve_exception, start_eagerly
from fluss.protocol import apis, messages
from fluss.protocol.record_messages import FetchedBucket, decode_fetch_log_response
from fluss.records import LogBatch

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster
    from fluss.net.connection import Connection

logger = logging.getLogger("fluss.client.scan")

_DECODE_INLINE_BYTES = 64 * 1024
"""Smaller batches are decoded when they are taken: handing them to a thread costs more than it saves."""
_BUFFERED_BYTES = 64 * 1024 * 1024
"""What all buckets together may have waiting, as it came over the network: this, or two answers for one bucket."""
_AHEAD_BYTES = 256 * 1024 * 1024
"""What batches may decompress to that are decoded before they are taken; further ones are decoded when they are."""
_GONE_PATIENCE_MS = 5_000.0
"""How long a partition may not exist before that is an error: not every server may know a new one yet."""
_REMOTE_FIRST = 1
_EMPTY_ANSWER_PAUSE_S = 0.02
_LAST_REQUEST_MS = 1000.0


class Fetcher:
    """The buckets of one scan. Lives on the connection's event loop."""

    def __init__(
        self,
        cluster: Cluster,
        info: TableInfo,
        decoder_of: Callable[[Callable[[int], Schema]], BatchDecoder],
        options: FetchOptions,
        *,
        projection: list[int] | None = None,
        predicate: messages.PbPredicate | None = None,
        eager: bool = True,
    ) -> None:
        """`eager`: begin with the first subscription, not with the first `next`."""
        self.cluster = cluster
        self.info = info
        self.options = options
        self.subscriptions: dict[TableBucket, Subscription] = {}
        self._schemas: dict[int, Schema] = {info.schema_id: info.schema}
        self.decoder = decoder_of(self._schemas.__getitem__)
        self._projection = projection
        self._predicate = predicate
        plain_bytes = info.log_format == "ARROW" and info.arrow_compression[0] == "NONE"
        # Plain batches are used as they lie in memory: a thread would be woken for little more than a checksum.
        self._threads = None if plain_bytes else decode_threads()
        self._loop = asyncio.get_running_loop()
        self._remote: RemoteReader | None = None
        self._changed = asyncio.Event()
        self._room_made = asyncio.Event()
        self._woken = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle: dict[TableBucket, Subscription] = {}
        """Buckets to ask for: in no request, and not read to their end."""
        self._ready: OrderedDict[TableBucket, Subscription] = OrderedDict()
        """Buckets with a batch or an error, in the order they are taken from; some may have neither any longer."""
        self._buffered_bytes = 0
        self._buffered_bytes_max = max(_BUFFERED_BYTES, 2 * cluster.config.scanner_log_fetch_max_bytes_for_bucket)
        self._ahead_bytes = 0
        self._wake: asyncio.TimerHandle | None = None
        self._asked = eager
        self._closed = False
        self._retry_logged = False
        """Whether a warning about fetches that fail was logged since the last one that did not."""
        cluster.metrics.gauge("scanner_buffer_bytes", self.buffered_bytes)

    def buffered_bytes(self) -> int:
        """What waits to be taken out, as it came over the network."""
        return self._buffered_bytes

    # -- subscriptions --------------------------------------------------------------------------------------------

    def add(self, *subscriptions: Subscription) -> None:
        """Read these buckets too, or anew. Those added together share requests."""
        for subscription in subscriptions:
            self.remove(subscription.bucket)
            self.subscriptions[subscription.bucket] = subscription
            self._set_idle(subscription)
        self._changed.set()  # a poll may wait for the first bucket
        self.pump()

    def remove(self, bucket: TableBucket) -> Subscription | None:
        subscription = self.subscriptions.pop(bucket, None)
        if subscription is not None:
            self._idle.pop(bucket, None)
            self._ready.pop(bucket, None)
            if subscription.remote is not None:
                subscription.remote.cancel()
            for queued in subscription.queue:
                if isinstance(queued.waiting, asyncio.Future):
                    queued.waiting.cancel()
                self._release(queued)
            subscription.queue.clear()
            # A poll that waits for this bucket alone need not wait any longer.
            self._changed.set()
        return subscription

    def _set_idle(self, subscription: Subscription) -> None:
        if not subscription.fetched_all and self._is_current(subscription):
            self._idle[subscription.bucket] = subscription

    def _is_current(self, subscription: Subscription) -> bool:
        """Whether the bucket was not unsubscribed, or subscribed anew, meanwhile."""
        return self.subscriptions.get(subscription.bucket) is subscription

    def _set_ready(self, subscription: Subscription) -> None:
        if self._is_current(subscription):
            self._ready[subscription.bucket] = subscription
            self._changed.set()

    async def close(self) -> None:
        """Stop everything; a `next` that waits ends without a batch."""
        tasks = self.abandon()
        await asyncio.gather(*tasks, return_exceptions=True)

    def abandon(self) -> list[asyncio.Task[Any]]:
        """Stop without waiting for the end; what is left of the tasks is the result."""
        self._closed = True
        for bucket in list(self.subscriptions):
            self.remove(bucket)
        if self._wake is not None:
            self._wake.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if self._remote is not None:
            self._remote.close()
        self._changed.set()
        return tasks

    # -- taking out -----------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Let the `next` that waits, or else the next one that would, end without a batch."""
        self._woken = True
        self._changed.set()

    async def next(self, timeout_s: float | None, *, endless: bool = False) -> tuple[Subscription, RecordBatch] | None:
        """The next batch of any bucket, one bucket after another; None when time is up or all buckets are read.

        Batches without wanted rows are passed over, but move their bucket's position. With `endless`, a fetcher without
        buckets waits for the first one, as its caller would only ask again.
        """
        waits_for_first = endless and not self.subscriptions
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        self._asked = True
        self.pump()
        while True:
            self._changed.clear()
            while (subscription := self._first_ready()) is not None:
                self._ready.move_to_end(subscription.bucket)
                found = await self._take(subscription)
                if found is not None:
                    return subscription, found
                if subscription.error is not None:
                    error, subscription.error = subscription.error, None
                    raise error
            if self._woken:
                self._woken = False
                return None
            if self._closed or (self.done and not (waits_for_first and not self.subscriptions)):
                return None
            if not self._changed.is_set():
                remaining = None if deadline is None else deadline - self._loop.time()
                if remaining is not None and remaining <= 0:
                    return None
                try:
                    await wait_for(self._changed.wait(), remaining)
                except asyncio.TimeoutError:
                    return None

    def _first_ready(self) -> Subscription | None:
        """Return the bucket that is taken from next."""
        while self._ready:
            bucket, subscription = next(iter(self._ready.items()))
            if subscription.has_news:
                return subscription
            del self._ready[bucket]
        return None

    @property
    def is_ready(self) -> bool:
        """Whether the bucket that is taken from next has a batch that need not be waited for."""
        subscription = self._first_ready()
        return subscription is not None and subscription.is_ready

    @property
    def done(self) -> bool:
        """Whether all buckets were read to their stop offsets."""
        return all(subscription.done for subscription in self.subscriptions.values())

    async def _take(self, subscription: Subscription) -> RecordBatch | None:
        while subscription.queue:
            waiting = subscription.queue[0].waiting
            if isinstance(waiting, asyncio.Future) and not waiting.done():
                await asyncio.wait([waiting])
                if not subscription.queue or subscription.queue[0].waiting is not waiting:
                    return None  # unsubscribed meanwhile
            try:
                decoded = waiting.result() if isinstance(waiting, asyncio.Future) else waiting()
            except Exception:
                # No row is skipped: the next poll fetches it again.
                self._rewind(subscription)
                raise
            queued = subscription.queue.popleft()
            subscription.buffered_bytes -= queued.size_bytes
            self._release(queued)
            subscription.position = max(subscription.position, queued.next_offset)
            self.pump()
            if decoded is not None and decoded.num_records:
                self.cluster.metrics.add("scanner_rows_total", decoded.num_records)
                return decoded
        return None

    def _release(self, queued: Queued) -> None:
        self._buffered_bytes -= queued.size_bytes
        self._ahead_bytes -= queued.ahead_bytes
        self._room_made.set()

    def _rewind(self, old: Subscription) -> None:
        """Start again after what was handed out last. A response that is still in flight belongs to the old one."""
        again = Subscription(old.bucket, old.position, old.stop_offset)
        again.high_watermark = old.high_watermark
        self.add(again)

    # -- fetching -------------------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Ask for more wherever there is room. Cheap to call often."""
        if not self._idle or self._closed or not self._asked or self._buffered_bytes >= self._buffered_bytes_max:
            return
        now = self._loop.time()
        groups: dict[int, list[Subscription]] = {}
        without_leader = []
        for bucket, subscription in list(self._idle.items()):
            full = subscription.buffered_bytes >= self.options.buffered_bytes_for_bucket
            if full or subscription.error is not None:
                continue
            if subscription.not_before > now:
                self._pump_at(subscription.not_before)
                continue
            del self._idle[bucket]
            node_id = self.cluster.metadata.leaders.get(bucket)
            if node_id is None:
                without_leader.append(subscription)
            else:
                groups.setdefault(node_id, []).append(subscription)
        for node_id, group in groups.items():
            self._start(self._fetch(node_id, group))
        if without_leader:
            self._start(self._find_leaders(without_leader))

    def _pump_at(self, when: float) -> None:
        if self._wake is None or self._wake.cancelled() or not self._loop.time() < self._wake.when() <= when:
            if self._wake is not None:
                self._wake.cancel()
            self._wake = self._loop.call_at(when, self.pump)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = start_eagerly(self._loop, work)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _find_leaders(self, group: list[Subscription]) -> None:
        started = self._loop.time()
        for subscription in group:
            try:
                await self._find_leader(subscription.bucket, self._deadline((subscription,)))
            except FlussError as error:
                self._record_error(subscription, error, started)
            except Exception as error:
                self._record_unexpected_error(subscription, error)
            finally:
                self._set_idle(subscription)
        self.pump()

    async def _find_leader(self, bucket: TableBucket, deadline: Deadline) -> None:
        try:
            await self.cluster.leader_id(bucket, self.info.table_path, deadline)
        except LeaderNotAvailableError:
            await self.cluster.check_partition(self.info.table_path, bucket.partition_id, deadline)
            raise

    async def _fetch(self, node_id: int, group: list[Subscription]) -> None:
        connection: Connection | None = None
        started = self._loop.time()
        projected = self._projection is not None
        try:
            connection = await self.cluster.node(node_id, self._deadline(group))
            answer = await self._exchange(connection, group)
            by_bucket = {(s.bucket.partition_id, s.bucket.bucket_id): s for s in group}
            for table in answer:
                for part in table.buckets:
                    subscription = by_bucket.pop((part.partition_id, part.bucket_id), None)
                    # An answer to a question that is no longer asked is dropped.
                    if subscription is None or not self._is_current(subscription):
                        continue
                    try:
                        await self._received(subscription, part, started, projected)
                    except FlussError as error:  # its rows cannot be read; those of the other buckets can
                        self._record_error(subscription, error, started)
            for subscription in by_bucket.values():
                self._record_error(subscription, UnknownServerError("the server's answer does not mention this bucket"))
        except FlussError as error:
            if isinstance(error, DeadlineExceededError) and connection is not None:
                connection.abandon("no answer to a fetch")
            if isinstance(error, (NetworkError, DeadlineExceededError)):
                self.cluster.metadata.invalidate_node(node_id)
            for subscription in group:
                self._record_error(subscription, error, started)
        except Exception as error:
            for subscription in group:
                self._record_unexpected_error(subscription, error)
        finally:
            for subscription in group:
                if subscription.remote is None:
                    self._set_idle(subscription)
            self._changed.set()
        self.pump()

    async def _exchange(self, connection: Connection, group: list[Subscription]) -> list[Any]:
        config = self.cluster.config
        request = messages.FetchLogRequest(
            follower_server_id=-1,
            max_bytes=config.scanner_log_fetch_max_bytes,
            max_wait_ms=config.scanner_log_fetch_wait_max_time_ms,
            min_bytes=config.scanner_log_fetch_min_bytes,
        )
        if config.scanner_log_read_preference == "remote_first":
            request.read_preference = _REMOTE_FIRST
        table = request.tables_req.add(
            table_id=self.info.table_id, projection_pushdown_enabled=self._projection is not None
        )
        if self._projection is not None:
            table.projected_fields.extend(self._projection)
        if self._predicate is not None:
            table.filter_predicate.CopyFrom(self._predicate)
            table.filter_schema_id = self.info.schema_id
        for subscription in group:
            table.buckets_req.add(
                partition_id=subscription.bucket.partition_id,
                bucket_id=subscription.bucket.bucket_id,
                fetch_offset=subscription.fetch_offset,
                max_fetch_bytes=self.options.max_bytes_for_bucket,
                routing_bucket_count=self.cluster.metadata.routing_count(subscription.bucket),
            )
        timeout_ms = config.scanner_log_fetch_wait_max_time_ms + config.request_timeout_ms
        self.cluster.metrics.add("requests_total")
        self.cluster.metrics.add("scanner_fetches_total")
        body = await connection.call_parts(apis.FETCH_LOG, [request.SerializeToString()], timeout_ms=timeout_ms)
        self.cluster.metrics.add("scanner_bytes_total", len(body))
        return decode_fetch_log_response(body)

    async def _received(
        self, subscription: Subscription, part: FetchedBucket[memoryview], asked_at: float, projected: bool
    ) -> None:
        if part.error_code == ErrorCode.INVALID_COLUMN_PROJECTION and projected:
            # Some servers cannot leave columns out of batches that are older than one of the wanted columns. Then all
            # columns are fetched and the others dropped here.
            logger.debug("%s: %s; columns are cut here instead", subscription.bucket, part.error_message)
            self._projection = None
            return
        if part.error_code:
            self._record_error(subscription, error_for_code(part.error_code, part.error_message))
            return
        subscription.failures = 0
        subscription.warned = self._retry_logged = False
        if part.high_watermark is not None:
            subscription.high_watermark = part.high_watermark
        if part.remote_log_fetch_info is not None:
            task = asyncio.ensure_future(self._read_remote(subscription, part.remote_log_fetch_info))
            subscription.remote = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        before = subscription.fetch_offset
        if part.records:
            await self._enqueue(subscription, part.records, projected=projected)
            if subscription.fetch_offset >= (subscription.high_watermark or 0):
                subscription.not_before = self._loop.time() + self.options.pause_s()
        if part.filtered_end_offset is not None and part.filtered_end_offset > subscription.fetch_offset:
            self._skip_to(subscription, part.filtered_end_offset)
        if subscription.fetch_offset == before:
            self._without_progress(subscription, asked_at)

    def _without_progress(self, subscription: Subscription, asked_at: float) -> None:
        """Ask again, for a bounded time if the read has an end."""
        if subscription.check_progress(self._loop.time(), self.options.patience_ms, self.info.table_path):
            self._set_ready(subscription)
        elif self._loop.time() - asked_at < _EMPTY_ANSWER_PAUSE_S:
            # A server that does not wait for data must not be asked a thousand times a second.
            subscription.not_before = asked_at + _EMPTY_ANSWER_PAUSE_S

    async def _enqueue(
        self, subscription: Subscription, records: memoryview, *, projected: bool, remote_dir: str | None = None
    ) -> None:
        for batch in self.decoder.batches(records, subscription, remote_dir):
            if remote_dir is not None:
                check_remote_offset(subscription, batch, remote_dir)
            if batch.header.next_offset <= subscription.fetch_offset:
                continue
            await self._learn_schema(subscription, batch, projected, remote_dir)
            if not self._is_current(subscription):
                break  # what it holds would never be taken, nor its memory be free again
            self._add_batch(subscription, batch, projected, remote_dir)
            if subscription.fetched_all:
                break

    async def _learn_schema(
        self, subscription: Subscription, batch: LogBatch, projected: bool, remote_dir: str | None
    ) -> None:
        schema_id = batch.header.schema_id
        if schema_id in self._schemas:
            return
        if not projected:
            # A damaged number would be asked for in vain, again and again.
            try:
                batch.verify_crc()
            except FlussError as error:
                raise located(error, remote_dir) from None
        deadline = self._deadline((subscription,))
        self._schemas[schema_id] = await self.cluster.schema(self.info.table_path, schema_id, deadline)

    def _add_batch(self, subscription: Subscription, batch: LogBatch, projected: bool, remote_dir: str | None) -> None:
        header = batch.header
        start = subscription.fetch_offset if subscription.fetch_offset != EARLIEST_OFFSET else header.base_offset
        stop = subscription.stop_offset
        # A server that projects leaves the checksum of the whole batch in place: nothing to verify there.
        check_crc = not projected and self.cluster.config.scanner_log_check_crc
        decode = partial(self.decoder.decode_fetched, projected=projected, check_crc=check_crc, remote_dir=remote_dir)
        work = partial(decode, batch, subscription.bucket, start, stop)
        waiting: Waiting = work
        ahead_bytes = 0
        if self._threads is not None and header.size_bytes >= _DECODE_INLINE_BYTES:
            announced = self.decoder.announced_bytes(batch)
            if self._ahead_bytes + announced <= _AHEAD_BYTES:
                ahead_bytes = announced
                waiting = asyncio.ensure_future(self._loop.run_in_executor(self._threads, work))
                waiting.add_done_callback(retrieve_exception)
        self._ahead_bytes += ahead_bytes
        next_offset = header.next_offset if stop is None else min(header.next_offset, stop)
        subscription.queue.append(Queued(waiting, next_offset, header.size_bytes, ahead_bytes))
        subscription.buffered_bytes += header.size_bytes
        self._buffered_bytes += header.size_bytes
        subscription.fetch_offset = next_offset
        self._set_ready(subscription)

    def _skip_to(self, subscription: Subscription, offset: int) -> None:
        """Everything below `offset` was looked at by the server and is not wanted."""
        if subscription.stop_offset is not None:
            offset = min(offset, subscription.stop_offset)
        subscription.fetch_offset = offset
        if not subscription.queue:
            subscription.position = offset
            return
        # The step is taken when what stands before it was handed out.
        subscription.queue.append(subscription.queue.pop()._replace(next_offset=offset))

    async def _read_remote(self, subscription: Subscription, info: messages.PbRemoteLogFetchInfo) -> None:
        """Read tiered segments; the bucket is in no request meanwhile."""
        subscription.remote_offset = None
        before, asked_at = subscription.fetch_offset, self._loop.time()
        try:
            if self._remote is None:
                self._remote = RemoteReader(self.cluster)
            async with contextlib.aclosing(self._remote.blocks(info, lambda: self._room(subscription))) as blocks:
                async for block in blocks:
                    await self._enqueue(subscription, block, projected=False, remote_dir=info.remote_log_tablet_dir)
                    if subscription.fetched_all:
                        return
            end = max((s.remote_log_end_offset for s in info.remote_log_segments), default=0)
            if end > subscription.fetch_offset:
                raise FormatError(
                    f"the remote log of {subscription.bucket} in '{info.remote_log_tablet_dir}' ends at offset "
                    f"{subscription.fetch_offset}, but its last segment should reach {end}"
                )
            if subscription.fetch_offset == before:
                self._without_progress(subscription, asked_at)
        except FlussError as error:
            self._record_error(subscription, error)
        except Exception as error:
            self._record_unexpected_error(subscription, error)
        finally:
            subscription.remote = None
            self._set_idle(subscription)
            self._changed.set()
        self.pump()

    async def _room(self, subscription: Subscription) -> None:
        while (
            subscription.buffered_bytes >= self.options.buffered_bytes_for_bucket
            or self._buffered_bytes >= self._buffered_bytes_max
        ):
            # Any bucket may make room, also one that this read does not concern.
            self._room_made.clear()
            await self._room_made.wait()

    # -- failures -------------------------------------------------------------------------------------------------

    def _deadline(self, group: Iterable[Subscription]) -> Deadline:
        """Return until when a request for these buckets may take: what is left of their patience.

        The last request has time for an answer too, so that the error is what ails the bucket and not that time is up.
        """
        now, patience_ms = self._loop.time(), self.options.patience_ms
        failing_ms = max(((now - s.failing_since) * 1000 for s in group if s.failures), default=0.0)
        return Deadline(max(min(_LAST_REQUEST_MS, patience_ms), patience_ms - failing_ms))

    def _record_error(self, subscription: Subscription, error: FlussError, started: float | None = None) -> None:
        """Retry later, or have the error raised from the next poll. `started`: when the failed request began."""
        now = self._loop.time()
        if not subscription.failures:
            subscription.failing_since = now if started is None else started
            subscription.warned = False
        subscription.failures += 1
        subscription.last_error = error
        gone = isinstance(error, PartitionNotExistsError)
        patience_ms = _GONE_PATIENCE_MS if gone else self.options.patience_ms
        passing = gone or error.is_stale_metadata or isinstance(error, PASSING_ERRORS)
        if not passing or (now - subscription.failing_since) * 1000 > patience_ms:
            subscription.error = error
            subscription.failures = 0
            self._set_ready(subscription)
            return
        # A partition that is dropped is nothing to warn of: its reader looks which ones there are.
        gone = gone or (isinstance(error, UnknownTableOrBucketError) and subscription.bucket.partition_id is not None)
        failing_ms = (now - subscription.failing_since) * 1000
        if not (subscription.warned or self._retry_logged or gone or is_routine(error, failing_ms)):
            # One warning for all buckets that fail at the same time, usually for the same reason.
            subscription.warned = self._retry_logged = True
            left_s = (patience_ms - failing_ms) / 1000
            text = "reading %s of table %s failed: %s; retrying for up to %.1f s"
            logger.warning(text, subscription.bucket, self.info.table_path, escaped(str(error)), left_s)
        else:
            logger.debug("%s: %s; the scan goes on", subscription.bucket, escaped(str(error)))
        self.cluster.metadata.invalidate_bucket(subscription.bucket)
        subscription.not_before = now + DEFAULT_BACKOFF.delay_ms(subscription.failures - 1) / 1000

    def _record_unexpected_error(self, subscription: Subscription, error: Exception) -> None:
        """Have an unexpected error raised from the next poll, so that no reader waits for ever."""
        logger.error("reading %s failed", subscription.bucket, exc_info=error)
        subscription.error = FormatError(f"{subscription.bucket} cannot be read: {error!r:.300}")
        self._set_ready(subscription)
