# SPDX-License-Identifier: Apache-2.0
"""Sends sealed batches to the leaders of their buckets: in order, pipelined, at most once per sequence number.

Every bucket has a `Lane`. Within a lane batches leave in order; up to `writer.max-inflight-requests-per-bucket` may be
under way. After a failure that can be tried again the lane falls silent until everything under way has come back, then
starts over from the oldest batch: that keeps the order, and the server's sequence check makes a second arrival of the
same batch harmless.

Lanes whose batches go to the same server, table and kind of request at the same moment share one request.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fluss.client.retry import DEFAULT_BACKOFF
from fluss.client.write.batch import Encoder, OpenBatch, WriteBatch
from fluss.client.write.memory import MemoryBudget
from fluss.errors import (
    ConnectionClosedError,
    DeadlineExceededError,
    DuplicateSequenceError,
    FlussError,
    NetworkError,
    OutOfOrderSequenceError,
    RequestTimeOutError,
    UnknownServerError,
    UnknownWriterIdError,
    error_for_code,
)
from fluss.metadata import TableBucket, TablePath
from fluss.protocol import apis, messages
from fluss.protocol.record_messages import encode_produce_log, encode_put_kv

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster
    from fluss.config import Config
    from fluss.net.connection import Connection

logger = logging.getLogger("fluss.client.write")

_SEQUENCE_MAX = 2**31 - 1
_ACKS = {"all": -1, "-1": -1, "1": 1, "0": 0}


@dataclass(frozen=True)
class Target:
    """Where batches of one writer go, and with which kind of request."""

    table_path: TablePath
    table_id: int
    is_kv: bool
    target_columns: tuple[int, ...] = ()
    agg_mode: int | None = None


class Lane:
    """The queue of one bucket."""

    __slots__ = (
        "bucket",
        "bucket_id",
        "changed",
        "in_flight",
        "next_sequence",
        "partition_name",
        "queue",
        "silent",
        "target",
        "task",
        "writer_id",
    )

    def __init__(self, target: Target, partition_name: str | None, bucket_id: int) -> None:
        self.target = target
        self.partition_name = partition_name
        self.bucket_id = bucket_id
        self.bucket: TableBucket | None = (
            None if partition_name is not None else TableBucket(target.table_id, bucket_id)
        )
        self.queue: deque[WriteBatch] = deque()
        self.in_flight: list[WriteBatch] = []
        self.silent = False
        self.writer_id: int | None = None
        self.next_sequence = 0
        self.changed = asyncio.Event()
        self.task: asyncio.Task[None] | None = None

    def __str__(self) -> str:
        where = f"{self.target.table_path} bucket {self.bucket_id}"
        return where if self.partition_name is None else f"{where} of partition {self.partition_name}"

    def put_back(self, batch: WriteBatch) -> None:
        self.queue = deque(sorted([batch, *self.queue], key=lambda b: b.order))
        self.silent = True


class Sender:
    """All lanes of one connection. Lives on the connection's event loop."""

    def __init__(self, cluster: Cluster, config: Config) -> None:
        self.cluster = cluster
        self.loop = asyncio.get_running_loop()
        self.memory = MemoryBudget(config.writer_buffer_memory_size, config.writer_buffer_wait_timeout_ms)
        self.acks = _ACKS[str(config.writer_acks).lower()]
        self.idempotent = config.writer_enable_idempotence
        self.retries_max = config.writer_retries
        self.request_size_max = config.writer_request_max_size
        self.in_flight_max = config.writer_max_inflight_requests_per_bucket
        self.delivery_timeout_ms = config.writer_delivery_timeout_ms
        self.request_timeout_ms = config.request_timeout_ms
        self.dynamic_partitions = config.writer_dynamic_create_partition_enabled
        self.throttle_ms_max = config.writer_kv_backpressure_max_throttle_ms
        self._lanes: dict[tuple[Target, str | None, int], Lane] = {}
        self._outbox: dict[tuple[int, Target], tuple[Connection, list[tuple[Lane, WriteBatch]]]] = {}
        self._outbox_scheduled = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._order = itertools.count()
        # Compressing a batch takes milliseconds and leaves the interpreter: a thread of its own keeps the loop quick.
        self._encoders = ThreadPoolExecutor(1, thread_name_prefix="fluss-encode")
        self._closed = False
        self.on_writer_id: Callable[[int], Awaitable[None]] | None = None
        """Told about every new writer id, and waited for, before anything is sent under that id."""
        self.batches_sent = 0
        self.rows_acknowledged = 0
        self.bytes_sent = 0
        self.retries = 0

    # -- called by writers, on the loop ---------------------------------------------------------------------------

    def submit(
        self,
        target: Target,
        partition_name: str | None,
        bucket_id: int,
        opened: OpenBatch,
        encoder: Encoder,
        on_done: Callable[..., None],
    ) -> None:
        """Queue a batch. `on_done(batch, lane, error)` is called exactly once."""
        batch = WriteBatch(opened, encoder, next(self._order), self.delivery_timeout_ms, on_done)
        key = (target, partition_name, bucket_id)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(target, partition_name, bucket_id)
        if self._closed:
            self._finish(lane, batch, ConnectionClosedError("the connection was closed before the rows were sent"))
            return
        lane.queue.append(batch)
        lane.changed.set()
        if lane.task is None:
            lane.task = self.loop.create_task(self._run(lane))

    async def drain(self) -> None:
        """Wait until everything queued so far is settled."""
        while pending := [task for task in (*self._tasks, *(lane.task for lane in self._lanes.values())) if task]:
            await asyncio.wait(pending)

    async def shut(self) -> None:
        """Stop. What was not acknowledged fails with a clear error; nothing is written silently."""
        if self._closed:
            return
        self._closed = True
        doomed = [task for task in [*self._tasks, *(lane.task for lane in self._lanes.values() if lane.task)] if task]
        for task in doomed:
            task.cancel()
        await asyncio.gather(*doomed, return_exceptions=True)
        for lane in self._lanes.values():
            for batch in [*lane.in_flight, *lane.queue]:
                outcome = "it may or may not have been written" if batch.maybe_written else "it was not written"
                self._finish(
                    lane,
                    batch,
                    ConnectionClosedError(f"the connection was closed while a batch for {lane} was waiting; {outcome}"),
                )
            lane.queue.clear()
            lane.in_flight.clear()
        self._encoders.shutdown(wait=False)

    # -- one lane -------------------------------------------------------------------------------------------------

    async def _run(self, lane: Lane) -> None:
        try:
            while lane.queue:
                if len(lane.in_flight) >= self.in_flight_max or (lane.silent and lane.in_flight):
                    lane.changed.clear()
                    await lane.changed.wait()
                    continue
                if lane.silent:
                    lane.silent = False
                    await asyncio.sleep(DEFAULT_BACKOFF.delay_ms(lane.queue[0].attempts - 1) / 1000)
                    continue
                batch = lane.queue[0]
                try:
                    ready = await self._prepare(lane, batch)
                except FlussError as error:
                    lane.queue.remove(batch)
                    self._failed(lane, batch, error)
                    continue
                # While this lane waited, a failed batch may have come back in front of this one.
                if lane.silent or lane.queue[0] is not batch:
                    continue
                lane.queue.popleft()
                self._number(lane, batch)
                lane.in_flight.append(batch)
                self._post(ready, lane, batch)
        finally:
            lane.task = None

    async def _prepare(self, lane: Lane, batch: WriteBatch) -> Connection:
        """Everything a batch needs before it can leave; the connection to the leader is the result."""
        if batch.seal is None:
            await self.loop.run_in_executor(self._encoders, batch.encode)
        if lane.bucket is None:
            lane.bucket = await self._resolve_partition(lane)
        if self.idempotent and lane.writer_id is None:
            writer_id = await self._init_writer(lane.target.table_path)
            if self.on_writer_id is not None:
                await self.on_writer_id(writer_id)
            lane.writer_id = writer_id
            lane.next_sequence = 0
        return await self.cluster.leader(lane.bucket, lane.target.table_path)

    def _number(self, lane: Lane, batch: WriteBatch) -> None:
        if not self.idempotent:
            return
        # A number once sent is kept, unless the writer id it belongs to was given up and the batch surely not written.
        if batch.sequence >= 0 and (batch.writer_id == lane.writer_id or batch.maybe_written):
            return
        assert lane.writer_id is not None
        batch.writer_id = lane.writer_id
        batch.sequence = lane.next_sequence
        lane.next_sequence = 0 if batch.sequence == _SEQUENCE_MAX else batch.sequence + 1

    async def _resolve_partition(self, lane: Lane) -> TableBucket:
        assert lane.partition_name is not None
        partition = await self.cluster.partition(lane.target.table_path, lane.partition_name)
        if partition is None and self.dynamic_partitions:
            await self._create_partition(lane.target.table_path, lane.partition_name)
            partition = await self.cluster.partition(lane.target.table_path, lane.partition_name)
        if partition is None:
            raise error_for_code(
                36,
                f"partition '{lane.partition_name}' of table {lane.target.table_path} does not exist; create it first "
                "with admin.create_partition(), or set 'writer.dynamic-create-partition.enabled' to true",
            )
        return partition.bucket(lane.bucket_id)

    async def _create_partition(self, table_path: TablePath, name: str) -> None:
        keys = (await self.cluster.table(table_path)).table_info.get_partition_keys()
        # The field says "if not exists" on the wire and means "if it exists already".
        request = messages.CreatePartitionRequest(ignore_if_not_exists=True)
        request.table_path.database_name = table_path.database_name
        request.table_path.table_name = table_path.table_name
        for key, value in zip(keys, name.split("$"), strict=True):
            request.partition_spec.partition_key_values.add(key=key, value=value)
        await self.cluster.call_coordinator(apis.CREATE_PARTITION, request)

    async def _init_writer(self, table_path: TablePath) -> int:
        request = messages.InitWriterRequest()
        request.table_path.add(database_name=table_path.database_name, table_name=table_path.table_name)
        return int((await self.cluster.call_tablet(apis.INIT_WRITER, request)).writer_id)

    # -- requests -------------------------------------------------------------------------------------------------

    def _post(self, connection: Connection, lane: Lane, batch: WriteBatch) -> None:
        """Leave at the end of this turn of the loop, together with whatever else goes the same way."""
        entry = self._outbox.setdefault((id(connection), lane.target), (connection, []))
        entry[1].append((lane, batch))
        if not self._outbox_scheduled:
            self._outbox_scheduled = True
            self.loop.call_soon(self._send_outbox)

    def _send_outbox(self) -> None:
        self._outbox_scheduled = False
        outbox, self._outbox = self._outbox, {}
        for (_, target), (connection, entries) in outbox.items():
            group: list[tuple[Lane, WriteBatch]] = []
            size = 0
            taken: set[Lane] = set()
            for lane, batch in entries:
                # One batch per bucket and request, and no request beyond the limit.
                if group and (lane in taken or size + batch.size_bytes > self.request_size_max):
                    self._send(connection, target, group)
                    group, size, taken = [], 0, set()
                group.append((lane, batch))
                taken.add(lane)
                size += batch.size_bytes
            self._send(connection, target, group)

    def _send(self, connection: Connection, target: Target, group: list[tuple[Lane, WriteBatch]]) -> None:
        buckets = []
        for lane, batch in group:
            assert batch.seal is not None
            assert lane.bucket is not None
            batch.attempts += 1
            parts = batch.seal(batch.writer_id, batch.sequence)
            buckets.append((lane.bucket.partition_id, lane.bucket_id, parts))
            self.bytes_sent += batch.size_bytes
        self.batches_sent += len(group)
        if target.is_kv:
            body = encode_put_kv(
                self.acks,
                target.table_id,
                self.request_timeout_ms,
                buckets,
                target_columns=target.target_columns,
                agg_mode=target.agg_mode,
            )
        else:
            body = encode_produce_log(self.acks, target.table_id, self.request_timeout_ms, buckets)
        task = self.loop.create_task(self._exchange(connection, target, group, body))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _exchange(
        self, connection: Connection, target: Target, group: list[tuple[Lane, WriteBatch]], body: list[Any]
    ) -> None:
        api = apis.PUT_KV if target.is_kv else apis.PRODUCE_LOG
        try:
            # The server itself waits up to the request timeout for its replicas: leave it time to say so.
            answer = await connection.call_parts(api, body, timeout_ms=self.request_timeout_ms + 5_000)
            results = {
                (result.partition_id if result.HasField("partition_id") else None, result.bucket_id): result
                for result in api.response.FromString(bytes(answer)).buckets_resp
            }
        except FlussError as error:
            for lane, batch in group:
                # Unless the server said no, nobody knows whether it had written the batch.
                if isinstance(error, NetworkError | DeadlineExceededError):
                    batch.maybe_written = True
                self._come_back(lane, batch, error)
            return
        for lane, batch in group:
            assert lane.bucket is not None
            result = results.get((lane.bucket.partition_id, lane.bucket_id))
            refusal: FlussError | None = None
            if result is None:
                refusal = UnknownServerError(f"the server's answer does not mention {lane}")
            elif result.error_code:
                refusal = error_for_code(result.error_code, result.error_message or None)
            # Without an answer, or when replicas were too slow, the batch may be in the log all the same.
            if result is None or isinstance(refusal, RequestTimeOutError):
                batch.maybe_written = True
            self._come_back(lane, batch, refusal)

    def _come_back(self, lane: Lane, batch: WriteBatch, error: FlussError | None) -> None:
        lane.in_flight.remove(batch)
        lane.changed.set()
        if error is None or isinstance(error, DuplicateSequenceError):
            self._finish(lane, batch, None)
        else:
            self._failed(lane, batch, error)
        if lane.queue and lane.task is None and not self._closed:
            lane.task = self.loop.create_task(self._run(lane))

    # -- outcomes -------------------------------------------------------------------------------------------------

    def _failed(self, lane: Lane, batch: WriteBatch, error: FlussError) -> None:
        retriable = error.is_retriable or error.is_stale_metadata or isinstance(error, DeadlineExceededError)
        if isinstance(error, OutOfOrderSequenceError | UnknownWriterIdError):
            retriable = self._may_renumber(lane, batch)
        if not retriable:
            self._finish(lane, batch, error)
            return
        if batch.attempts > self.retries_max or time.monotonic() >= batch.deadline:
            unknown = " (it may or may not have been written)" if batch.maybe_written else ""
            text = (
                f"gave up after {batch.attempts} tries to write {batch.rows} rows to {lane}{unknown}: {error.message}"
            )
            self._finish(lane, batch, type(error)(text, error.error_code))
            return
        if error.is_stale_metadata or isinstance(error, NetworkError):
            if lane.bucket is not None:
                self.cluster.invalidate(lane.bucket)
            if lane.partition_name is not None:
                lane.bucket = None
        logger.debug("%s: %s; the batch will be sent again", lane, error)
        self.retries += 1
        batch.attempts = max(batch.attempts, 1)
        lane.put_back(batch)

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
        lane.writer_id = None
        return True

    def _finish(self, lane: Lane, batch: WriteBatch, error: FlussError | None) -> None:
        self.memory.release(batch.reserved_bytes)
        if error is None:
            self.rows_acknowledged += batch.rows
        batch.settle(error)
        batch.on_done(batch, lane, error)
