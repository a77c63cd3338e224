# SPDX-License-Identifier: Apache-2.0
"""Keys on their way to the servers.

A lone lookup leaves at once. While two requests to a server are under way, further keys for that server gather and
leave together when one comes back: batches grow with the load, and nobody waits for a batch to fill.

A `LookupQueue` lives on the loop of its cluster and knows all that can go wrong. A caller on another loop who asks
often is served by a `_NearPump` on that loop: nothing changes threads, and whatever does not work at the first try goes
to the queue after all.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from fluss.client.cluster import Cluster
from fluss.client.convert import Key
from fluss.client.nearby import LoopLines, Nearby
from fluss.client.promise import Inbox, Promise, wake
from fluss.client.retry import DEFAULT_BACKOFF, DEFAULT_DEADLINE_MS
from fluss.client.state import TableState
from fluss.errors import (
    ConnectionClosedError,
    DeadlineExceededError,
    FlussError,
    FormatError,
    NetworkError,
    error_for_code,
)
from fluss.metadata import TableBucket
from fluss.net.connection import Waiter
from fluss.net.eager import start_eagerly
from fluss.protocol import Api, apis
from fluss.protocol import messages as pb
from fluss.protocol.frames import Buffer
from fluss.protocol.lookup_messages import decode_lookup_response, encode_lookup
from fluss.protocol.wire import parse_message

T = TypeVar("T")

_KEYS_ALONE = 16
"""Fewer keys are not worth two requests."""

Found = tuple[TableBucket, "FlussError | None", Sequence[Any]]
"""A bucket's part of an answer: an error, or one result per key in the order of the keys."""


Tell = Callable[["list[Found] | FlussError"], None]
"""Takes what came of a request."""


class Link(Protocol):
    """An open connection to a server."""

    def begin(self, api: Api[Any, Any], body: Sequence[Buffer], waiter: Waiter) -> None: ...


class Wire(Protocol):
    """How keys travel: the difference between lookup and prefix lookup."""

    def ask(self, link: Link, table_id: int, keys: Mapping[TableBucket, list[bytes]], tell: Tell) -> None:
        """Ask a server; `tell` hears of the answer, later and on the loop of the link."""
        ...


class _Reply:
    """Decodes an answer where it arrives: a task that waits for it would take two more turns of the loop."""

    __slots__ = ("_decode", "_table_id", "_tell")

    def __init__(self, decode: Callable[[int, memoryview], list[Found]], table_id: int, tell: Tell) -> None:
        self._decode = decode
        self._table_id = table_id
        self._tell = tell

    def done(self) -> bool:
        return False

    def set_result(self, answer: memoryview, /) -> None:
        try:
            found = self._decode(self._table_id, answer)
        except FlussError as error:
            self._tell(error)
        else:
            self._tell(found)

    def set_exception(self, error: FlussError, /) -> None:
        self._tell(error)


class LookupWire:
    """Primary keys; the result of a key is its stored value or None."""

    def ask(self, link: Link, table_id: int, keys: Mapping[TableBucket, list[bytes]], tell: Tell) -> None:
        link.begin(apis.LOOKUP, [self.encode(table_id, keys)], _Reply(self.decode, table_id, tell))

    @staticmethod
    def encode(table_id: int, keys: Mapping[TableBucket, list[bytes]]) -> bytes:
        return encode_lookup(table_id, [(b.partition_id, b.bucket_id, wanted) for b, wanted in keys.items()])

    @staticmethod
    def decode(table_id: int, answer: memoryview) -> list[Found]:
        return [
            (
                TableBucket(table_id, part.bucket_id, part.partition_id),
                error_for_code(part.error_code, part.error_message) if part.error_code else None,
                part.values,
            )
            for part in decode_lookup_response(answer)
        ]


class PrefixWire:
    """Key prefixes; the result of a prefix is the list of stored values under it."""

    def ask(self, link: Link, table_id: int, keys: Mapping[TableBucket, list[bytes]], tell: Tell) -> None:
        request = pb.PrefixLookupRequest(table_id=table_id)
        for bucket, wanted in keys.items():
            request.buckets_req.add(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, keys=wanted)
        link.begin(apis.PREFIX_LOOKUP, [request.SerializeToString()], _Reply(self._decode, table_id, tell))

    @staticmethod
    def _decode(table_id: int, answer: memoryview) -> list[Found]:
        response = parse_message(apis.PREFIX_LOOKUP.response, answer, require_all=False)
        return [
            (
                TableBucket(table_id, part.bucket_id, part.partition_id if part.HasField("partition_id") else None),
                error_for_code(part.error_code, part.error_message) if part.error_code else None,
                [list(found.values) for found in part.value_lists],
            )
            for part in response.buckets_resp
        ]


class _Item(Generic[T]):
    """One key on its way."""

    __slots__ = ("bucket", "deadline", "key", "place", "promise", "tries")

    def __init__(self, place: tuple[str | None, int], key: bytes, promise: Promise[T], deadline: float) -> None:
        self.place = place
        self.key = key
        self.promise = promise
        self.deadline = deadline
        self.tries = 0
        self.bucket: TableBucket | None = None


class _Pump(ABC, Generic[T]):
    """Sends the keys of one table to the servers, on one loop: all calls are made there."""

    def __init__(self, cluster: Cluster, state: TableState, wire: Wire) -> None:
        self._cluster = cluster
        self._state = state
        self._wire = wire
        self._pending_max = cluster.config.lookup_queue_size
        self._batch_max = cluster.config.lookup_max_batch_size
        self._requests_max = cluster.config.lookup_max_inflight_requests
        """Requests to one server in flight; with two it works on one while the client reads the other's answer."""
        self._waiting: dict[int, list[_Item[T]]] = {}
        self._under_way: Counter[int] = Counter()
        self._pending: dict[_Item[T], None] = {}
        self._plain_buckets = [state.bucket(bucket_id) for bucket_id in range(state.num_buckets)]
        cluster.metrics.gauge("lookups_pending", self.pending)

    def pending(self) -> int:
        return len(self._pending)

    @abstractmethod
    def _link(self, node_id: int) -> Link | None:
        """The connection to a server, if there is one: no waiting."""

    @abstractmethod
    def _unready(self, items: Iterable[_Item[T]]) -> None:
        """These keys cannot be sent now: their server is not known, or not connected."""

    @abstractmethod
    def _failed(self, items: Sequence[_Item[T]], error: FlussError) -> None:
        """These keys were asked for, and this came of it."""

    def _node_of(self, item: _Item[T]) -> int | None:
        """The server a key belongs to, if everything is known and connected."""
        if item.bucket is None:
            partition, bucket_id = item.place
            if partition is None:
                item.bucket = self._plain_buckets[bucket_id]
            else:
                known = self._state.partitions.get(partition)
                if known is None:
                    return None
                item.bucket = known.bucket(bucket_id)
        node_id = self._cluster.known_leader(item.bucket)
        return None if node_id is None or self._link(node_id) is None else node_id

    def _pump(self, node_id: int) -> None:
        """Send what waits for a server, unless enough is under way."""
        while waiting := self._waiting.get(node_id):
            under_way = self._under_way.get(node_id, 0)
            if under_way >= self._requests_max:
                return
            count = len(waiting) if under_way else max(_KEYS_ALONE, -(-len(waiting) // self._requests_max))
            count = min(count, self._batch_max)
            batch, rest = waiting[:count], waiting[count:]
            if rest:
                self._waiting[node_id] = rest
            else:
                del self._waiting[node_id]
            self._send(node_id, batch)

    def _send(self, node_id: int, batch: list[_Item[T]]) -> None:
        link = self._link(node_id)
        if link is None:  # it was lost while the keys waited
            self._unready(batch)
            return
        by_bucket: dict[TableBucket, list[_Item[T]]] = {}
        for item in batch:
            assert item.bucket is not None
            by_bucket.setdefault(item.bucket, []).append(item)
        keys = {bucket: [item.key for item in items] for bucket, items in by_bucket.items()}
        metrics = self._cluster.metrics
        metrics.add("requests_total")
        metrics.add("lookup_batches_total")
        self._under_way[node_id] += 1

        def tell(answer: list[Found] | FlussError) -> None:
            self._under_way[node_id] -= 1
            if isinstance(answer, FlussError):
                metrics.add("request_errors_total")
                if isinstance(answer, NetworkError):
                    self._lost(node_id)
                self._failed(batch, answer)
            else:
                self._take(by_bucket, answer)
            self._pump(node_id)

        try:
            self._wire.ask(link, self._state.table_id, keys, tell)
        except FlussError as error:
            tell(error)

    def _lost(self, node_id: int) -> None:
        """The connection to a server broke."""

    def _take(self, by_bucket: dict[TableBucket, list[_Item[T]]], answer: list[Found]) -> None:
        done: list[Promise[T]] = []
        for bucket, error, results in answer:
            items = by_bucket.pop(bucket, None)
            if items is None:
                continue
            if error is not None:
                self._failed(items, error)
            elif len(results) != len(items):
                text = f"The server answered {len(results)} results for {len(items)} keys of {bucket}"
                self._fail(items, FormatError(text))
            else:
                for item, result in zip(items, results):
                    self._resolve(item, result)
                    done.append(item.promise)
        wake(done)
        for bucket, items in by_bucket.items():
            self._fail(items, FormatError(f"The server said nothing about {bucket}"))

    def _resolve(self, item: _Item[T], result: T) -> None:
        self._pending.pop(item, None)
        item.promise.resolve_quietly(result)

    def _fail(self, items: Iterable[_Item[T]], error: FlussError) -> None:
        items = list(items)
        for item in items:
            self._pending.pop(item, None)
            # Each waiter raises an error of its own: a shared one would collect everybody's traceback.
            item.promise.fail_quietly(type(error)(error.message, error.error_code))
        wake([item.promise for item in items])


class LookupQueue(_Pump[T]):
    """Keys of one table on their way. `put` may be called from any thread; the rest is on the cluster's loop."""

    def __init__(self, cluster: Cluster, state: TableState, wire: Wire, missing: T) -> None:
        super().__init__(cluster, state, wire)
        self._missing = missing
        self._inbox: Inbox[_Item[T]] = Inbox(cluster.loop, self._deliver)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._near: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _NearPump[T]] = weakref.WeakKeyDictionary()

    def pending(self) -> int:
        return super().pending() + len(self._inbox)

    @property
    def closed(self) -> bool:
        return self._closed or self._cluster.closed

    def put(self, key: Key) -> Promise[T]:
        """Look a key up; the promise gives what the servers say."""
        if self.closed:
            raise ConnectionClosedError("The connection is closed; lookups need an open one")
        promise: Promise[T] = Promise()
        partition, bucket, encoded = key
        item = _Item((partition, bucket), encoded, promise, time.monotonic() + DEFAULT_DEADLINE_MS / 1000.0)
        loop = asyncio._get_running_loop()
        if loop is not None and loop is not self._cluster.loop:
            near = self._near.get(loop) or self._new_near(loop)
            if near.put(loop, item):
                return promise
        if self.pending() >= self._pending_max:
            raise DeadlineExceededError(f"More than {self._pending_max} lookups are waiting; await some of them first")
        try:
            self._inbox.put(item)
        except RuntimeError:
            raise ConnectionClosedError("The connection is closed; lookups need an open one") from None
        return promise

    def _new_near(self, loop: asyncio.AbstractEventLoop) -> _NearPump[T]:
        near = _NearPump(self, Nearby.of(self._cluster).lines(loop), self._cluster, self._state, self._wire)
        self._near[loop] = near
        return near

    def take_over(self, items: Iterable[_Item[T]]) -> None:
        """Go on with keys that could not be looked up nearby."""
        items = list(items)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and so is the connection
            if not self.closed:
                for item in items:
                    self._inbox.put(item)
                return
        self._fail(items, ConnectionClosedError("The connection was closed before the lookup was answered"))

    # -- on the loop ----------------------------------------------------------------------------------------------

    def _deliver(self, items: Iterable[_Item[T]]) -> None:
        ready: set[int] = set()
        items = list(items)
        if self._closed:
            self._fail(items, ConnectionClosedError("The connection was closed"))
            return
        self._cluster.metrics.add("lookups_total", sum(not item.tries for item in items))
        for item in items:
            self._pending[item] = None
            node_id = self._node_of(item)
            if node_id is None:
                self._spawn(self._find(item))
            else:
                self._waiting.setdefault(node_id, []).append(item)
                ready.add(node_id)
        for node_id in ready:
            self._pump(node_id)

    def _link(self, node_id: int) -> Link | None:
        return self._cluster.ready_node(node_id)

    def _unready(self, items: Iterable[_Item[T]]) -> None:
        for item in items:
            self._spawn(self._find(item))

    async def _find(self, item: _Item[T]) -> None:
        """Find the partition and the leader of a key, connect, then queue the key."""
        try:
            partition, bucket_id = item.place
            if partition is not None and item.bucket is None:
                known = await self._cluster.partition(self._state.table_path, partition)
                if known is None:
                    self._resolve(item, self._missing)
                    wake((item.promise,))
                    return
                item.bucket = known.bucket(bucket_id)
            bucket = item.bucket if item.bucket is not None else self._state.bucket(bucket_id)
            item.bucket = bucket
            node_id = await self._cluster.leader_id(bucket, self._state.table_path)
            await self._cluster.node(node_id)
        except FlussError as error:
            self._failed((item,), error)
            return
        self._waiting.setdefault(node_id, []).append(item)
        self._pump(node_id)

    def _pump(self, node_id: int) -> None:
        if not self._closed:
            super()._pump(node_id)

    def _lost(self, node_id: int) -> None:
        self._cluster.invalidate_node(node_id)

    def _failed(self, items: Sequence[_Item[T]], error: FlussError) -> None:
        """Try keys again after a pause, or fail them if the error is final or their time is up."""
        if not (error.is_retriable or error.is_stale_metadata) or self._closed:
            self._fail(items, error)
            return
        now = time.monotonic()
        delay = DEFAULT_BACKOFF.delay_ms(max(item.tries for item in items)) / 1000.0
        late = [item for item in items if item.deadline <= now + delay]
        if late:
            self._fail(late, error)
        for item in items:
            if item.deadline <= now + delay:
                continue
            item.tries += 1
            if error.is_stale_metadata and item.bucket is not None:
                self._cluster.invalidate(item.bucket)
        self._cluster.metrics.add("retries_total")
        remaining = [item for item in items if item.deadline > now + delay]
        if remaining:
            self._spawn(self._later(delay, remaining))

    async def _later(self, delay: float, items: list[_Item[T]]) -> None:
        await asyncio.sleep(delay)
        self._unready(items)

    def _spawn(self, coro: Any) -> None:
        task = start_eagerly(self._cluster.loop, coro)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Nothing to bring anywhere: lookups change nothing."""

    async def shut(self) -> None:
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(
            list(self._pending), ConnectionClosedError("The connection was closed before the lookup was answered")
        )
        self._waiting.clear()


class _NearPump(_Pump[T]):
    """Keys that are asked for on a loop which has connections of its own."""

    def __init__(
        self, queue: LookupQueue[T], lines: LoopLines, cluster: Cluster, state: TableState, wire: Wire
    ) -> None:
        super().__init__(cluster, state, wire)
        self._queue = queue
        self._lines = lines
        self._together = False
        """Whether keys came in company lately."""
        self._scheduled = False

    def put(self, loop: asyncio.AbstractEventLoop, item: _Item[T]) -> bool:
        """Take a key, unless it has to go the long way."""
        if len(self._pending) >= self._pending_max:
            return False
        node_id = self._node_of(item)
        if node_id is None:
            return False
        self._pending[item] = None
        self._waiting.setdefault(node_id, []).append(item)
        under_way = self._under_way.get(node_id, 0)
        if not under_way and not self._together:
            self._pump(node_id)
        elif under_way < self._requests_max and not self._scheduled:
            # Tasks that are started or woken together ask one after the other, in this turn of the loop.
            self._scheduled = True
            loop.call_soon(self._pump_all)
        return True

    def _pump_all(self) -> None:
        self._scheduled = False
        for node_id in list(self._waiting):
            self._pump(node_id)

    def _send(self, node_id: int, batch: list[_Item[T]]) -> None:
        self._together = len(batch) > 1 or bool(self._under_way.get(node_id))
        self._cluster.metrics.add("lookups_total", len(batch))
        super()._send(node_id, batch)

    def _link(self, node_id: int) -> Link | None:
        return self._lines.line(node_id)

    def _unready(self, items: Iterable[_Item[T]]) -> None:
        items = list(items)
        for item in items:
            item.tries += 1
            self._pending.pop(item, None)
        self._queue.take_over(items)

    def _failed(self, items: Sequence[_Item[T]], error: FlussError) -> None:
        now = time.monotonic()
        self._fail([item for item in items if item.deadline <= now], error)
        self._unready(item for item in items if item.deadline > now)
