# SPDX-License-Identifier: Apache-2.0
"""Sends sealed batches to the leaders of their buckets: in order, pipelined, at most once per sequence number.

Every bucket has a `Lane`. Within a lane batches are sent in order; up to `writer.max-inflight-requests-per-bucket` may
be in flight. After a retriable failure the lane backs off until all batches in flight are answered, then starts again
from the oldest batch: that keeps the order, and the server's sequence check makes a second arrival of the same batch
harmless.

Lanes whose batches go to the same server, table and kind of request at the same moment share one request.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from fluss._text import escaped
from fluss.client.requests import pb_path
from fluss.client.retry import DEFAULT_BACKOFF, is_routine, may_pass
from fluss.client.singleflight import SingleFlight
from fluss.client.write.batch import BatchBuilder, Encoder, RouteKey, WriteBatch
from fluss.client.write.lane import Lane, Lanes, WriteTarget, share_out
from fluss.client.write.memory import MemoryBudget
from fluss.client.write.partitions import find_or_create
from fluss.errors import (
    ConnectionClosedError,
    CorruptRecordError,
    DeadlineExceededError,
    DuplicateSequenceError,
    ErrorCode,
    FlussError,
    FormatError,
    InvalidBucketRoutingError,
    InvalidRowError,
    KvStorageError,
    LogStorageError,
    NetworkError,
    NotEnoughReplicasAfterAppendError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    RequestTimeOutError,
    StorageBackpressureError,
    UnknownServerError,
    UnknownWriterIdError,
    error_for_code,
)
from fluss.metadata import TableBucket
from fluss.net.deadline import Deadline, wait_for
from fluss.net.eager import start_eagerly
from fluss.protocol import apis, messages
from fluss.protocol.apis import Api
from fluss.protocol.record_messages import encode_produce_log, encode_put_kv
from fluss.protocol.wire import parse_message

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster
    from fluss.config import Config
    from fluss.net.connection import Connection

logger = logging.getLogger("fluss.client.write")

_SEQUENCE_MAX = 2**31 - 1
_ENCODE_INLINE_BYTES = 16 * 1024
_ENCODERS = 2
"""Threads that compress: while the last column of a batch keeps one processor busy, the next batch takes the others."""
_ENCODED_AHEAD = 3
"""Batches of a lane that are encoded while those before them are in flight."""
_ANSWER_GRACE_MS = 5_000
_PREPARE_GRACE_S = 0.1
"""What a batch waits for has the deadline of the batch, and ends first with an error that says more."""
_OUTCOME_UNKNOWN = (
    RequestTimeOutError,
    NotEnoughReplicasAfterAppendError,
    LogStorageError,
    KvStorageError,
    UnknownServerError,
)
"""The leader may have the batch in its log, if only until it has to start again: what was written of it may survive."""
_CORRUPT_ATTEMPTS = 3


class MisroutedRowsError(InvalidBucketRoutingError):
    """Rows that were spread over the buckets of a partition which was then created again with another number."""


class _Request:
    """One request in flight; the waiter that its connection gives the outcome to."""

    __slots__ = ("_sender", "api", "connection", "group", "left_ms", "patience_ms")

    def __init__(
        self, sender: Sender, connection: Connection, api: Api[Any, Any], group: list[tuple[Lane, WriteBatch]]
    ) -> None:
        self._sender = sender
        self.connection = connection
        self.api = api
        self.group = group
        timeout_ms = sender.request_timeout_ms
        # The server itself waits up to the request timeout for its replicas: leave it time to say so.
        self.patience_ms = timeout_ms + min(timeout_ms, _ANSWER_GRACE_MS)
        self.left_ms = min(batch.deadline.remaining_ms for _, batch in group)

    @property
    def timeout_ms(self) -> int:
        return max(1, int(min(self.patience_ms, self.left_ms)))

    def done(self) -> bool:
        return self._sender.closed

    def set_result(self, answer: memoryview, /) -> None:
        try:
            response = parse_message(self.api.response, answer, require_all=False)
        except FlussError as error:
            self.set_exception(error)
        else:
            self._sender.on_response(self.group, response)

    def set_exception(self, error: FlussError, /) -> None:
        if isinstance(error, DeadlineExceededError) and self.left_ms >= self.patience_ms:
            self.connection.abandon(f"no answer to {self.api.name} within {self.patience_ms} ms")
        self._sender.on_failure(self.group, error)


class Sender:
    """All lanes of one connection. Lives on the connection's event loop."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self.cluster = cluster
        self.loop = asyncio.get_running_loop()
        self.memory = MemoryBudget(config.writer_buffer_memory_size, config.writer_buffer_wait_timeout_ms)
        self.acks = config.required_acks
        self.idempotent = config.writer_enable_idempotence
        self.retries_max = config.writer_retries
        self.request_size_max = config.writer_request_max_size
        self.in_flight_max = config.writer_max_inflight_requests_per_bucket
        self.delivery_timeout_ms = config.writer_delivery_timeout_ms
        self.request_timeout_ms = config.request_timeout_ms
        self.dynamic_partitions = config.writer_dynamic_create_partition_enabled
        self.throttle_ms_max = config.writer_kv_backpressure_max_throttle_ms
        self._lanes = Lanes()
        self._outbox: dict[tuple[int, WriteTarget], tuple[Connection, list[tuple[Lane, WriteBatch]]]] = {}
        self._outbox_scheduled = False
        self._order = itertools.count()
        self._flights = SingleFlight()
        # Compressing a batch takes milliseconds and leaves the interpreter: threads of their own keep the loop quick.
        self._encoders = ThreadPoolExecutor(_ENCODERS, thread_name_prefix="fluss-encode")
        self.closed = False
        self.metrics = cluster.metrics
        self.metrics.gauge("writer_buffer_bytes", self.buffered_bytes)

    @classmethod
    def of(cls, cluster: Cluster) -> Sender:
        """The sender that all writers of a connection share. It is made with the first of them."""
        sender = cluster.sender
        if not isinstance(sender, cls):
            sender = cluster.sender = cls(cluster, cluster.config)
            cluster.attach(sender)
        return sender

    def buffered_bytes(self) -> int:
        """Return the bytes that all writers of this connection hold now."""
        return self.memory.used_bytes

    # -- called by writers, on the loop ---------------------------------------------------------------------------

    def submit(
        self,
        target: WriteTarget,
        key: RouteKey,
        builder: BatchBuilder,
        encoder: Encoder,
        on_done: Callable[..., None],
    ) -> None:
        """Queue a batch. `on_done(batch, lane, error)` is called exactly once."""
        batch = WriteBatch(builder, encoder, next(self._order), self.delivery_timeout_ms, on_done, key.routing_count)
        self.metrics.add("writer_rows_total", batch.rows)
        lane = self._lanes.use(target, key.partition_name, key.bucket_id, self.loop.time())
        if self.closed:
            self._finish(lane, batch, ConnectionClosedError("the connection was closed before the rows were sent"))
            return
        lane.queue.append(batch)
        self._start(lane)

    def queued_batches(self, target: WriteTarget, partition_name: str | None, bucket_id: int) -> int:
        """Return how many batches for this bucket are queued or in flight."""
        lane = self._lanes.find(target, partition_name, bucket_id)
        return 0 if lane is None else len(lane.queue) + len(lane.in_flight)

    async def shut(self) -> None:
        """Stop. What was not acknowledged fails with a clear error; nothing is written silently."""
        if self.closed:
            return
        self.closed = True
        self._outbox.clear()
        running = [lane.task for lane in self._lanes if lane.task is not None]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        for lane in self._lanes:
            for batch in [*lane.in_flight, *lane.queue]:
                maybe = batch.maybe_written or batch in lane.in_flight
                outcome = "it may or may not have been written" if maybe else "it was not written"
                self._finish(
                    lane,
                    batch,
                    ConnectionClosedError(f"the connection was closed while a batch for {lane} was waiting; {outcome}"),
                )
            lane.queue.clear()
            lane.in_flight.clear()
        self.memory.close()
        self._encoders.shutdown(wait=False)

    # -- one lane -------------------------------------------------------------------------------------------------

    def _start(self, lane: Lane) -> None:
        """Send what is in the queue, immediately if nothing has to be waited for.

        Called for every event that may let a lane go on: a new batch, one that came back, one that is encoded.
        """
        if lane.queue and not lane.running and not self.closed:
            lane.running = True
            task = start_eagerly(self.loop, self._run(lane))
            if lane.running:
                lane.task = task

    async def _run(self, lane: Lane) -> None:
        try:
            # `wait_for` may lose a cancellation (before Python 3.12): closing is noticed here as well.
            while lane.queue and not self.closed:
                if self._is_full(lane) or (lane.backing_off and lane.in_flight):
                    self._encode_ahead(lane)
                    break
                if lane.backing_off:
                    lane.backing_off = False
                    await asyncio.sleep(DEFAULT_BACKOFF.delay_ms(lane.failures - 1) / 1000)
                    continue
                if (pause_s := lane.not_before - self.loop.time()) > 0:
                    await asyncio.sleep(pause_s)
                    continue
                batch = lane.queue[0]
                if self._encode_in_thread(lane, batch):
                    self._encode_ahead(lane)
                    break
                try:
                    ready = self._ready(lane, batch) or await self._prepare_in_time(lane, batch)
                except FlussError as error:
                    # A batch that was answered meanwhile may have been requeued in front of it.
                    lane.queue.remove(batch)
                    self._failed(lane, batch, error)
                    continue
                # While this lane waited, a failed batch may have been requeued in front of this one.
                if self.closed or lane.backing_off or lane.queue[0] is not batch:
                    continue
                lane.queue.popleft()
                self._number(lane, batch)
                lane.in_flight.append(batch)
                self._post(ready, lane, batch)
        finally:
            lane.running, lane.task = False, None

    def _is_full(self, lane: Lane) -> bool:
        """Whether the lane must wait for an answer before it sends more.

        It is not enough to count: while one answer is lost, the others may come and go. The server remembers the last
        few numbers of a writer only, so none may be sent that lies further ahead of the oldest one without an answer.
        """
        if len(lane.in_flight) >= self.in_flight_max:
            return True
        if not self.idempotent or not lane.in_flight or lane.in_flight[0].writer_id != lane.writer_id:
            return False
        ahead = (lane.next_sequence - lane.in_flight[0].sequence) % (_SEQUENCE_MAX + 1)
        return lane.queue[0].sequence < 0 and ahead >= self.in_flight_max

    def _ready(self, lane: Lane, batch: WriteBatch) -> Connection | None:
        """Return the connection to send a batch over now, if nothing has to be waited for."""
        if lane.bucket is None or (self.idempotent and lane.writer_id is None):
            return None
        if batch.seal is None or batch.size_bytes > self.request_size_max or batch.deadline.expired:
            return None
        if self._is_misrouted(lane.bucket, batch):
            return None
        return self.cluster.ready_leader(lane.bucket)

    def _encode_in_thread(self, lane: Lane, batch: WriteBatch) -> bool:
        """Whether a thread encodes the batch.

        Small batches are encoded when they are sent: a thread costs more, and lanes that are ready in the same
        iteration of the loop share a request.
        """
        if batch.seal is not None or batch.encode_error is not None:
            return False
        if not batch.in_thread:
            if batch.size_bytes <= _ENCODE_INLINE_BYTES:
                return False
            batch.in_thread = True
            self._encoders.submit(self._encode, lane, batch)
        return True

    def _encode_ahead(self, lane: Lane) -> None:
        """Start to encode the batches that are sent next, so that the lane need not wait for them then."""
        for waiting in itertools.islice(lane.queue, _ENCODED_AHEAD):
            self._encode_in_thread(lane, waiting)

    def _encode(self, lane: Lane, batch: WriteBatch) -> None:
        """Encode a batch, in a worker thread."""
        try:
            batch.encode()
        except Exception as error:
            batch.encode_error = error
        with contextlib.suppress(RuntimeError):  # the loop is closed, and every batch has failed
            self.loop.call_soon_threadsafe(self._start, lane)

    async def _prepare_in_time(self, lane: Lane, batch: WriteBatch) -> Connection:
        """Run `_prepare` until the deadline of the batch; every failure is an error for the handles of its rows."""
        try:
            return await wait_for(self._prepare(lane, batch), batch.deadline.remaining_ms / 1000 + _PREPARE_GRACE_S)
        except FlussError:
            raise  # before the next clause: a deadline of ours is a TimeoutError too
        except asyncio.TimeoutError:
            raise DeadlineExceededError(
                f"the leader of {lane} was not reached within {self.delivery_timeout_ms} ms"
            ) from None
        except Exception as error:
            logger.exception("a batch for %s could not be prepared", lane)
            raise InvalidRowError(f"{batch.rows} rows for {lane} could not be encoded: {error!r:.300}") from error

    async def _prepare(self, lane: Lane, batch: WriteBatch) -> Connection:
        """Do everything a batch needs before it can be sent; return the connection to the leader."""
        if batch.encode_error is not None:
            raise batch.encode_error
        if batch.seal is None:
            batch.encode()
        if batch.size_bytes > self.request_size_max:
            raise RecordTooLargeError(
                f"a batch of {batch.size_bytes} bytes for {lane} is larger than a request may be; "
                f"'writer.request-max-size' is {self.request_size_max}"
            )
        path = lane.target.table_path
        if lane.bucket is None:
            lane.bucket = await self._resolve_partition(lane, batch.deadline)
            if lane.bucket != lane.numbered_for:
                lane.retire_writer_id()
                lane.numbered_for = lane.bucket
        if self._is_misrouted(lane.bucket, batch):
            raise MisroutedRowsError(
                f"{batch.rows} rows for {lane} were spread over {batch.routing_count or 'more'} buckets, but their "
                f"partition has {self.cluster.metadata.routing_count(lane.bucket)}: it was created again meanwhile. "
                "Write the rows again; they are routed by the new number then"
            )
        if self.idempotent and lane.writer_id is None:
            lane.writer_id = await self._writer_id(lane, batch.deadline)
            lane.next_sequence = 0
        return await self.cluster.leader(lane.bucket, path, batch.deadline)

    def _number(self, lane: Lane, batch: WriteBatch) -> None:
        if not self.idempotent:
            return
        if batch.bucket is not None and batch.bucket != lane.bucket:
            # The partition it was sent to before was dropped, and its outcome with it.
            batch.maybe_written, batch.sequence = False, -1
        # A number once sent is kept, unless its writer id was retired and the batch is known not to be written.
        if batch.sequence >= 0 and (batch.writer_id == lane.writer_id or batch.maybe_written):
            return
        assert lane.writer_id is not None
        batch.writer_id = lane.writer_id
        batch.sequence = lane.next_sequence
        lane.next_sequence = 0 if batch.sequence == _SEQUENCE_MAX else batch.sequence + 1

    async def _writer_id(self, lane: Lane, deadline: Deadline) -> int:
        """Return a writer id that this lane has not used yet."""
        known = self._lanes.writer_ids.get(lane.target)
        if known is not None and known != lane.retired_writer_id:
            return known
        return await self._flights.run(lane.target, lambda: self._new_writer_id(lane.target, deadline), deadline)

    async def _new_writer_id(self, target: WriteTarget, deadline: Deadline) -> int:
        request = messages.InitWriterRequest(table_path=[pb_path(target.table_path)])
        writer_id = (await self.cluster.call_tablet(apis.INIT_WRITER, request, deadline=deadline)).writer_id
        if self.cluster.on_writer_id is not None:
            answer = self.cluster.on_writer_id(writer_id)
            if inspect.isawaitable(answer):  # a plain function has done its work by now
                await answer
        self._lanes.writer_ids[target] = writer_id
        return writer_id

    def _is_misrouted(self, bucket: TableBucket, batch: WriteBatch) -> bool:
        """Whether the rows of a batch were routed by another number of buckets than their partition has."""
        count = self.cluster.metadata.routing_count(bucket)
        return count is not None and (batch.routing_count not in (None, count) or bucket.bucket_id >= count)

    async def _resolve_partition(self, lane: Lane, deadline: Deadline) -> TableBucket:
        path, table_id, name = lane.target.table_path, lane.target.table_id, lane.partition_name
        assert name is not None
        partition = await find_or_create(self.cluster, path, table_id, name, deadline, create=self.dynamic_partitions)
        if partition is None:
            raise error_for_code(
                ErrorCode.PARTITION_NOT_EXISTS,
                f"partition '{name}' of table {path} does not exist; create it first "
                "with admin.create_partition(), or set 'writer.dynamic-create-partition.enabled' to true",
            )
        return partition.bucket(lane.bucket_id)

    # -- requests -------------------------------------------------------------------------------------------------

    def _post(self, connection: Connection, lane: Lane, batch: WriteBatch) -> None:
        """Send at the end of this iteration of the loop, in one request with other batches for the same server."""
        batch.bucket = lane.bucket
        entry = self._outbox.setdefault((id(connection), lane.target), (connection, []))
        entry[1].append((lane, batch))
        if not self._outbox_scheduled:
            self._outbox_scheduled = True
            self.loop.call_soon(self._send_outbox)

    def _send_outbox(self) -> None:
        self._outbox_scheduled = False
        outbox, self._outbox = self._outbox, {}
        for (_, target), (connection, entries) in outbox.items():
            for group in share_out(entries, self.request_size_max):
                self._send(connection, target, group)

    def _send(self, connection: Connection, target: WriteTarget, group: list[tuple[Lane, WriteBatch]]) -> None:
        buckets = []
        for _, batch in group:
            assert batch.seal is not None
            assert batch.bucket is not None
            batch.attempts += 1
            parts = batch.seal(batch.writer_id, batch.sequence)
            buckets.append((batch.bucket.partition_id, batch.bucket.bucket_id, parts))
        counts = self.cluster.metadata.bucket_counts
        if target.is_kv:
            body = encode_put_kv(
                self.acks,
                target.table_id,
                self.request_timeout_ms,
                buckets,
                target_columns=target.target_columns,
                agg_mode=target.agg_mode,
                routing_counts=counts,
            )
        else:
            body = encode_produce_log(
                self.acks, target.table_id, self.request_timeout_ms, buckets, routing_counts=counts
            )
        request = _Request(self, connection, apis.PUT_KV if target.is_kv else apis.PRODUCE_LOG, group)
        self.metrics.add("requests_total")
        try:
            connection.begin(request.api, body, request, timeout_ms=request.timeout_ms)
        except FlussError as error:
            request.set_exception(error)

    def on_response(self, group: list[tuple[Lane, WriteBatch]], response: Any) -> None:
        """Handle the response to a request, bucket by bucket."""
        results = {
            (result.partition_id if result.HasField("partition_id") else None, result.bucket_id): result
            for result in response.buckets_resp
        }
        for lane, batch in group:
            assert batch.bucket is not None
            result = results.get((batch.bucket.partition_id, batch.bucket.bucket_id))
            refusal: FlussError | None = None
            if result is None:
                refusal = UnknownServerError(f"the server's answer does not mention {lane}")
            elif result.error_code:
                refusal = error_for_code(result.error_code, result.error_message or None)
            if result is None or isinstance(refusal, _OUTCOME_UNKNOWN):
                batch.maybe_written = True
            if lane.target.is_kv and result is not None:
                self._throttle(lane, refusal, getattr(result, "pressure", 0.0))
            self._answered(lane, batch, refusal)

    def on_failure(self, group: list[tuple[Lane, WriteBatch]], error: FlussError) -> None:
        """Handle a request that got no response, or was refused as a whole."""
        self.metrics.add("request_errors_total")
        # Unless the server refused, the outcome is unknown; a response that cannot be read is no refusal.
        unknown = isinstance(error, (NetworkError, DeadlineExceededError, FormatError, *_OUTCOME_UNKNOWN))
        for lane, batch in group:
            batch.maybe_written = batch.maybe_written or unknown
            self._answered(lane, batch, error)

    def _throttle(self, lane: Lane, refusal: FlussError | None, pressure: float) -> None:
        """Apply the back-pressure of a server that cannot keep up with a bucket."""
        if isinstance(refusal, StorageBackpressureError):
            pressure = 1.0
        if pressure > 0:
            pause_ms = self.throttle_ms_max * min(1.0, pressure) ** 2
            lane.not_before = max(lane.not_before, self.loop.time() + pause_ms / 1000)

    def _answered(self, lane: Lane, batch: WriteBatch, error: FlussError | None) -> None:
        lane.in_flight.remove(batch)
        if error is None or isinstance(error, DuplicateSequenceError):
            self._finish(lane, batch, None)
        else:
            self._failed(lane, batch, error)
        self._start(lane)

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _failed(self, lane: Lane, batch: WriteBatch, error: FlussError) -> None:
        out_of_order = isinstance(error, (OutOfOrderSequenceError, UnknownWriterIdError))
        # That an earlier batch is missing is not a failure of this one.
        batch.failures += not out_of_order
        if lane.refused is not None and lane.refused[0] == batch.writer_id and batch.sequence > lane.refused[1]:
            # The server takes a writer's batches in their order, and an earlier one was refused.
            batch.maybe_written = False
        retriable = may_pass(error) or isinstance(error, (DeadlineExceededError, FormatError))
        if out_of_order:
            retriable = self._may_renumber(lane, batch)
        elif isinstance(error, CorruptRecordError):
            # A batch that was damaged on its way arrives whole when it is sent again; one that was made so never does.
            retriable = batch.failures < _CORRUPT_ATTEMPTS
        elif isinstance(error, MisroutedRowsError):
            retriable = False
        if not retriable:
            self._refused(lane, batch)
            self._finish(lane, batch, error)
            return
        if batch.failures > self.retries_max or batch.deadline.expired:
            unknown = " (it may or may not have been written)" if batch.maybe_written else ""
            # An attempt that had no time left says nothing about why those before it failed.
            reason = batch.refusal if isinstance(error, DeadlineExceededError) and batch.refusal else error
            text = (
                f"gave up after {batch.failures} attempts to write {batch.rows} rows to {lane}{unknown}: "
                f"{reason.message}"
            )
            self._finish(lane, batch, type(reason)(text, reason.error_code))
            return
        if not isinstance(error, DeadlineExceededError):
            batch.refusal = error
        if error.is_stale_metadata or isinstance(error, NetworkError):
            if lane.bucket is not None:
                self.cluster.metadata.invalidate_bucket(lane.bucket)
            if lane.partition_name is not None:
                lane.bucket = None
        self._log_retry(lane, batch, error)
        self.metrics.add("retries_total")
        lane.requeue(batch)

    def _log_retry(self, lane: Lane, batch: WriteBatch, error: FlussError) -> None:
        """Log that a batch will be sent again: one warning for each time that a bucket fails for longer than usual."""
        now = asyncio.get_running_loop().time()
        if not (lane.failures or lane.backing_off):
            lane.failing_since, lane.warned = now, False
        if lane.warned or batch.deadline.retry_logged or is_routine(error, (now - lane.failing_since) * 1000):
            logger.debug("%s: %s; the batch will be sent again", lane, escaped(str(error)))
            return
        lane.warned = True
        left_s = batch.deadline.remaining_ms / 1000
        logger.warning("writing to %s failed: %s; retrying for up to %.1f s", lane, escaped(str(error)), left_s)

    def _refused(self, lane: Lane, batch: WriteBatch) -> None:
        """Start new sequence numbers after a batch that will not be sent again: it leaves a gap in the old ones.

        The batches in flight are answered first (as out of order), so that the order of rows is kept.
        """
        if not self.idempotent or batch.sequence < 0 or batch.maybe_written or batch.writer_id != lane.writer_id:
            return
        lane.refused = (batch.writer_id, batch.sequence)
        lane.retire_writer_id()
        if lane.in_flight:
            lane.back_off()

    def _may_renumber(self, lane: Lane, batch: WriteBatch) -> bool:
        """What to do when the server does not accept the batch's sequence number.

        If an older batch of the lane is still open, its number is simply not next yet. If this is the oldest one and
        every earlier try was refused, it was not written: a new writer id makes it acceptable. If an earlier try got
        no answer it may have been written under a number the server no longer remembers: sending it again could
        double it, so it fails.
        """
        if any(other.order < batch.order for other in (*lane.in_flight, *lane.queue)):
            return True
        if batch.maybe_written:
            return False
        if batch.writer_id == lane.writer_id:
            lane.retire_writer_id()
        return True

    def _finish(self, lane: Lane, batch: WriteBatch, error: FlussError | None) -> None:
        self.memory.release(batch.reserved_bytes)
        if error is None:
            lane.failures = 0
            self.metrics.add("writer_batches_total")
            self.metrics.add("writer_bytes_total", batch.size_bytes)
        else:
            self.metrics.add("writer_errors_total")
        batch.on_done(batch, lane, error)  # counts failed rows, before a handle can report them
        batch.complete(error)
