# SPDX-License-Identifier: Apache-2.0
"""Lookups in flight: keys are queued per server and sent in batches.

A lone lookup is sent immediately. While two requests to a server are in flight, further keys for that server are queued
and sent together when one is answered: batches grow with the load, and no key waits for a batch to fill.

A `LookupQueue` lives on the loop of its cluster. A thread that waits for one key at a time sends it itself
(`Lookuper.lookup_blocking`); keys whose first attempt fails go to the queue, which handles all failures.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Generic, TypeVar

from fluss.client.cluster import Cluster
from fluss.client.convert import LookupKey
from fluss.client.lookup_wire import Found, LookupTarget, LookupWire, Wire
from fluss.client.metadata_cache import TableState
from fluss.client.promise import Inbox, Promise, wake
from fluss.client.retry import CHECK_SERVERS, DEFAULT_BACKOFF, gave_up_text, log_retry, may_pass
from fluss.errors import (
    ConnectionClosedError,
    DeadlineExceededError,
    FlussError,
    FormatError,
    InvalidArgumentError,
    NetworkError,
    PartitionNotExistsError,
)
from fluss.metadata import HISTORICAL_PARTITION, AutoPartitionStrategy, TableBucket, TableInfo
from fluss.net.deadline import Deadline, wait_for
from fluss.net.eager import start_eagerly

T = TypeVar("T")

_KEYS_IN_FIRST_REQUEST = 16
"""Fewer keys are not worth two requests."""
_SWEEP_S = 0.1
"""How late a key may be found to have passed its deadline."""


Place = tuple[str | None, int]
"""The name of a partition, or None, and a number whose remainder by the count of buckets is the bucket: the hash of a
key, or the id of the bucket itself."""


class _Item(Generic[T]):
    """Keys of one bucket in flight, most often one."""

    __slots__ = ("attempts", "bucket", "buckets", "deadline", "error", "keys", "place", "promise")

    def __init__(self, place: Place, keys: Sequence[bytes], deadline: Deadline, buckets: int) -> None:
        self.place = place
        self.keys = keys
        self.buckets = buckets
        """By how many buckets the keys were brought together; 0 for a key with its hash."""
        self.promise: Promise[Sequence[T]] = Promise()
        self.deadline = deadline
        self.attempts = 0
        """Attempts that failed."""
        self.error: FlussError | None = None
        """Why the last attempt failed."""
        self.bucket: TableBucket | None = None


class LookupQueue(Generic[T]):
    """The lookups of one table. `get` may be called from any thread; the rest is on the cluster's loop."""

    def __init__(self, cluster: Cluster, state: TableState, wire: Wire, missing: T) -> None:
        self._cluster = cluster
        self._state = state
        self._wire = wire
        self._pending_max = cluster.config.lookup_queue_size
        self._batch_max = cluster.config.lookup_max_batch_size
        self._retries_max = cluster.config.lookup_max_retries
        self._requests_max = cluster.config.lookup_max_inflight_requests
        """Requests to one server in flight; with two it works on one while the client reads the other's answer."""
        self._linger_s = cluster.config.lookup_batch_timeout_ms / 1000
        self._lingering: dict[int, asyncio.TimerHandle] = {}
        """Servers whose keys wait for others to join them."""
        self._waiting: dict[int, list[_Item[T]]] = {}
        self._in_flight: Counter[int] = Counter()
        self._pending: dict[_Item[T], None] = {}
        self._plain_buckets = [state.bucket(bucket_id) for bucket_id in range(state.num_buckets)]
        self._missing = missing
        self._inbox: Inbox[_Item[T]] = Inbox(cluster.loop, self._deliver)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._retry_logged = False
        """Whether a warning about lookups that fail was logged since the last answer."""
        self._sweeping: asyncio.TimerHandle | None = None
        self._historical: LookupQueue[T] | None = None
        """The queue of keys whose partitions have expired."""
        cluster.metrics.gauge("lookups_pending", self.pending)

    @classmethod
    def shared(cls, cluster: Cluster, state: TableState, wire: type[Wire], missing: T) -> LookupQueue[T]:
        """The queue of all lookupers of a connection that ask for the same table in the same way: their keys travel
        together, however many lookupers a program creates.
        """
        with cluster.lookup_queues_lock:
            queue = cluster.lookup_queues.get((state.table_id, cls, wire))
            if queue is None or queue.closed:
                queue = cluster.lookup_queues[state.table_id, cls, wire] = cls(cluster, state, wire(), missing)
                cluster.attach_soon(queue)
            else:
                queue._state = state  # the newest description: its properties may have changed
            return queue

    def pending(self) -> int:
        return len(self._pending) + len(self._inbox)

    @property
    def closed(self) -> bool:
        return self._closed or self._cluster.closed

    async def get(self, key: LookupKey, deadline: Deadline | None = None) -> T:
        """Look a key up and wait for it, until the deadline at most."""
        return (await self.get_many((key.partition, key.bucket_hash), (key.encoded,), deadline))[0]

    async def get_many(
        self, place: Place, keys: Sequence[bytes], deadline: Deadline | None = None, *, buckets: int = 0
    ) -> Sequence[T]:
        """Look up keys that travel in one request, and wait for them, until the deadline at most.

        Either one key, or keys of one bucket in a table or partition of so many `buckets`.
        """
        promise = self._put(place, keys, deadline, buckets)
        if deadline is None:
            return await promise.wait()
        try:
            return await wait_for(promise.wait(), deadline.remaining_ms / 1000.0 + _SWEEP_S)
        except FlussError:
            raise  # before the next clause: a deadline error of ours is a TimeoutError too
        except asyncio.TimeoutError:
            text = f"Lookup in table '{self._state.table_path}' did not finish within {deadline.total_ms:.0f} ms"
            raise DeadlineExceededError(text) from None

    def _put(
        self, place: Place, keys: Sequence[bytes], deadline: Deadline | None, buckets: int
    ) -> Promise[Sequence[T]]:
        self._cluster.check_not_forked()
        if self.closed:
            raise ConnectionClosedError("The connection is closed; lookups need an open one")
        item: _Item[T] = _Item(place, keys, deadline or Deadline(self._cluster.call_timeout_ms), buckets)
        if self.pending() >= self._pending_max:
            raise DeadlineExceededError(f"More than {self._pending_max} lookups are waiting; await some of them first")
        try:
            self._inbox.put(item)
        except RuntimeError:
            raise ConnectionClosedError("The connection is closed; lookups need an open one") from None
        return item.promise

    # -- on the loop ----------------------------------------------------------------------------------------------

    def _deliver(self, items: Iterable[_Item[T]]) -> None:
        ready: set[int] = set()
        items = list(items)
        if self._closed:
            self._fail(items, ConnectionClosedError("The connection was closed"))
            return
        self._cluster.metrics.add("lookups_total", _key_count(i for i in items if not i.attempts))
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
        self._start_sweep()

    def _find_all(self, items: Iterable[_Item[T]]) -> None:
        for item in items:
            self._spawn(self._find(item))

    async def _find(self, item: _Item[T]) -> None:
        """Find the partition and the leader of a key, connect, then queue the key."""
        try:
            partition, hashed = item.place
            if partition is not None and item.bucket is None:
                name = self._sent_to(partition)
                known = await self._cluster.partition(
                    self._state.table_path, name, deadline=item.deadline, table_id=self._state.table_id
                )
                if known is None:
                    self._partition_missing(item, partition)
                    return
                if item.buckets not in (0, known.num_buckets):
                    raise InvalidArgumentError(
                        f"Partition '{partition}' of table '{self._state.table_path}' was created again with another "
                        "number of buckets during the lookup. Look up again."
                    )
                item.bucket = known.bucket(hashed % known.num_buckets)
            bucket = item.bucket if item.bucket is not None else self._plain_bucket(hashed)
            item.bucket = bucket
            node_id = await self._cluster.leader_id(bucket, self._state.table_path, item.deadline)
            await self._cluster.node(node_id, item.deadline)
        except FlussError as error:
            self._failed((item,), error)
            return
        self._waiting.setdefault(node_id, []).append(item)
        self._pump(node_id)

    def _sent_to(self, partition: str) -> str:
        """The partition whose buckets have the keys of a partition."""
        return partition

    def _target(self, item: _Item[T]) -> LookupTarget:
        """What the answer names the keys of an item by."""
        assert item.bucket is not None
        return LookupTarget(item.bucket)

    def _partition_missing(self, item: _Item[T], partition: str) -> None:
        """Complete a key whose partition does not exist, or look it up in the lake if it may have expired."""
        if not isinstance(self._wire, LookupWire) or not may_have_expired(self._state.table_info, partition):
            self._resolve(item, [self._missing] * len(item.keys))
            wake((item.promise,))
        elif self._wire.inserts:
            raise InvalidArgumentError(
                f"Lookups of table '{self._state.table_path}' cannot insert into partition '{partition}': it has "
                "expired, and its rows are in the lake. Look up without enable_insert_if_not_exists()"
            )
        else:
            if self._historical is None:
                self._historical = HistoricalQueue.shared(self._cluster, self._state, LookupWire, self._missing)
            self._pending.pop(item, None)
            self._historical._adopt(item)

    def _adopt(self, item: _Item[T]) -> None:
        """Take a key over from the queue that found its partition missing."""
        if self._closed:
            self._fail((item,), ConnectionClosedError("The connection was closed"))
            return
        self._pending[item] = None
        self._find_all((item,))
        self._start_sweep()

    def _plain_bucket(self, hashed: int) -> TableBucket:
        return self._plain_buckets[hashed % len(self._plain_buckets)]

    def known_bucket(self, partition: str | None, hashed: int) -> TableBucket | None:
        """The bucket of a key; None if its partition is not known yet. May be called from any thread."""
        if partition is None:
            return self._plain_bucket(hashed)
        # As they are known now: those of the description may have been dropped, and created again, since.
        table = self._cluster.metadata.tables.get(self._state.table_path)
        known = None if table is None or table.table_id != self._state.table_id else table.partitions.get(partition)
        return None if known is None else known.bucket(hashed % known.num_buckets)

    def _node_of(self, item: _Item[T]) -> int | None:
        """The server a key belongs to, if everything is known and connected."""
        if item.bucket is None:
            if item.buckets and item.place[0] is not None:
                return None  # whether the partition still has as many buckets is checked when it is found
            item.bucket = self.known_bucket(*item.place)
            if item.bucket is None:
                return None
        node_id = self._cluster.metadata.leaders.get(item.bucket)
        return None if node_id is None or self._cluster.ready_node(node_id) is None else node_id

    def _pump(self, node_id: int) -> None:
        """Send the keys that wait for a server, unless enough requests are in flight."""
        if not self._closed and not (self._linger_s and self._lingers(node_id)):
            self._send_waiting(node_id)

    def _lingers(self, node_id: int) -> bool:
        """Whether the keys that wait for a server go on waiting for others."""
        if _key_count(self._waiting.get(node_id, ())) >= self._batch_max:
            timer = self._lingering.pop(node_id, None)
            if timer is not None:
                timer.cancel()
            return False
        if node_id not in self._lingering and node_id in self._waiting:
            loop = asyncio.get_running_loop()
            self._lingering[node_id] = loop.call_later(self._linger_s, self._lingered, node_id)
        return True

    def _lingered(self, node_id: int) -> None:
        del self._lingering[node_id]
        self._send_waiting(node_id)

    def _send_waiting(self, node_id: int) -> None:
        while waiting := self._waiting.get(node_id):
            in_flight = self._in_flight.get(node_id, 0)
            if in_flight >= self._requests_max:
                return
            ends = list(itertools.accumulate(len(item.keys) for item in waiting))
            share = -(-ends[-1] // self._requests_max)
            keys_max = self._batch_max if in_flight else min(max(_KEYS_IN_FIRST_REQUEST, share), self._batch_max)
            count = max(1, bisect_right(ends, keys_max))
            batch, rest = waiting[:count], waiting[count:]
            if rest:
                self._waiting[node_id] = rest
            else:
                del self._waiting[node_id]
            self._send(node_id, batch)

    def _send(self, node_id: int, batch: list[_Item[T]]) -> None:
        link = self._cluster.ready_node(node_id)
        if link is None:  # it was lost while the keys waited
            self._find_all(batch)
            return
        by_target: dict[LookupTarget, list[_Item[T]]] = {}
        for item in batch:
            by_target.setdefault(self._target(item), []).append(item)
        keys = {target: [key for item in items for key in item.keys] for target, items in by_target.items()}
        metrics = self._cluster.metrics
        metrics.add("requests_total")
        metrics.add("lookup_batches_total")
        self._in_flight[node_id] += 1

        def on_answer(answer: list[Found] | FlussError) -> None:
            self._in_flight[node_id] -= 1
            if isinstance(answer, FlussError):
                metrics.add("request_errors_total")
                if isinstance(answer, NetworkError):
                    self._cluster.metadata.invalidate_node(node_id)
                self._failed(batch, answer)
            else:
                self._take(by_target, answer)
            self._pump(node_id)

        try:
            self._wire.ask(link, self._state.table_id, keys, self._cluster.metadata.bucket_counts, on_answer)
        except FlussError as error:
            on_answer(error)

    def _take(self, by_target: dict[LookupTarget, list[_Item[T]]], answer: list[Found]) -> None:
        self._retry_logged = False
        done: list[Promise[Sequence[T]]] = []
        for target, error, results in answer:
            items = by_target.pop(target, None)
            if items is None:
                continue
            if error is not None:
                self._failed(items, error)
            elif len(results) != (count := _key_count(items)):
                text = f"The server answered {len(results)} results for {count} keys of {target.bucket}"
                self._fail(items, FormatError(text))
            else:
                end = 0
                for item in items:
                    start, end = end, end + len(item.keys)
                    self._resolve(item, results[start:end])
                    done.append(item.promise)
        wake(done)
        for target, items in by_target.items():
            self._fail(items, FormatError(f"The server said nothing about {target.bucket}"))

    def _resolve(self, item: _Item[T], results: Sequence[T]) -> None:
        self._pending.pop(item, None)
        item.promise.resolve_quietly(results)

    def _fail(self, items: Iterable[_Item[T]], error: FlussError) -> None:
        items = list(items)
        for item in items:
            self._pending.pop(item, None)
            # Each waiter raises an error of its own: a shared one would collect all tracebacks.
            item.promise.fail_quietly(error.replace())
        wake([item.promise for item in items])

    def _failed(self, items: Sequence[_Item[T]], error: FlussError) -> None:
        """Retry keys after a pause, or fail them if the error is final or their deadline has passed."""
        items = [item for item in items if not item.promise.done]
        if not items:
            return
        if not may_pass(error) or self._closed:
            self._fail(items, error)
            return
        delay_ms = DEFAULT_BACKOFF.delay_ms(max(item.attempts for item in items))
        again: list[_Item[T]] = []
        for item in items:
            item.attempts += 1
            item.error = error
            if item.deadline.remaining_ms <= delay_ms or item.attempts > self._retries_max:
                self._fail((item,), self._final_error(item))
                continue
            again.append(item)
            if error.is_stale_metadata and item.bucket is not None:
                self._invalidate_place(item)
        self._cluster.metrics.add("retries_total")
        if again:
            # A partition that was dropped is found out with the next attempt.
            may_be_dropped = again[0].bucket is None and again[0].attempts == 1
            if not self._retry_logged and not may_be_dropped:
                self._retry_logged = True
                log_retry(f"Lookup in table '{self._state.table_path}'", error, again[0].deadline)
            self._spawn(self._later(delay_ms / 1000.0, again))

    def _invalidate_place(self, item: _Item[T]) -> None:
        """Look up where a key is again; its partition may have been dropped, or created again."""
        partition, _ = item.place
        if partition is None:
            assert item.bucket is not None
            self._cluster.metadata.invalidate_bucket(item.bucket)
        else:
            self._cluster.metadata.invalidate_partition(self._state.table_path, self._sent_to(partition))
            item.bucket = None

    def _final_error(self, item: _Item[T]) -> FlussError:
        where = f"table '{self._state.table_path}'"
        if item.bucket is not None:
            where = f"{item.bucket} of {where}"
        error = item.error
        if error is None:
            text = (
                f"Lookup in {where} did not finish within {item.deadline.total_ms:.0f} ms: no answer. {CHECK_SERVERS}"
            )
            return DeadlineExceededError(text)
        if error is item.deadline.final_error:
            return type(error)(f"Lookup in {where}: {error.message}", error.error_code)
        text = gave_up_text(f"Lookup in {where}", item.attempts, item.deadline.total_ms, error)
        return type(error)(text, error.error_code)

    def _sweep(self) -> None:
        """Fail the keys whose deadline has passed. One timer for all keys: one for each would cost more than a lookup.

        Keys are pending in the order in which they came, and all that have no timeout of their own have the same one.
        """
        self._sweeping = None
        for item in list(self._pending):
            if not item.deadline.expired:
                break
            self._fail((item,), self._final_error(item))
        self._start_sweep()

    def _start_sweep(self) -> None:
        if self._sweeping is None and self._pending and not self._closed:
            oldest = next(iter(self._pending))
            delay_s = max(_SWEEP_S, oldest.deadline.remaining_ms / 1000.0)
            self._sweeping = self._cluster.loop.call_later(delay_s, self._sweep)

    async def _later(self, delay: float, items: list[_Item[T]]) -> None:
        await asyncio.sleep(delay)
        self._find_all(items)

    def _spawn(self, coro: Any) -> None:
        task = start_eagerly(self._cluster.loop, coro)
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def shut(self) -> None:
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail(
            list(self._pending), ConnectionClosedError("The connection was closed before the lookup was answered")
        )
        self._waiting.clear()
        for timer in self._lingering.values():
            timer.cancel()


class HistoricalQueue(LookupQueue[T]):
    """The lookups of expired partitions of one table, which the server answers from the lake.

    They have requests of their own: one that waits for the lake holds up no key of another partition.
    """

    def _sent_to(self, partition: str) -> str:
        return HISTORICAL_PARTITION

    def _target(self, item: _Item[T]) -> LookupTarget:
        assert item.bucket is not None
        return LookupTarget(item.bucket, item.place[0])

    def _partition_missing(self, item: _Item[T], partition: str) -> None:
        raise PartitionNotExistsError(
            f"Cannot look up the expired partition '{partition}' of table '{self._state.table_path}': the table has no "
            f"partition '{HISTORICAL_PARTITION}'. Open the table again: 'table.datalake.historical-partition.enabled' "
            "may have been changed"
        )


def may_have_expired(info: TableInfo, partition: str) -> bool:
    """Whether rows of a partition that does not exist are looked up in the lake."""
    if not info.config.lake_historical_partition_enabled:
        return False
    strategy = AutoPartitionStrategy.of(info.config, info.partition_keys)
    return strategy.is_past(partition, datetime.datetime.now(strategy.time_zone))


def _key_count(items: Iterable[_Item[Any]]) -> int:
    return sum(len(item.keys) for item in items)
