# SPDX-License-Identifier: Apache-2.0
"""Lookups by primary key and by prefix.

A lone lookup leaves at once. While two requests to a server are under way, further keys for that server gather and
leave together when one comes back: batches grow with the load, and nobody waits for a batch to fill.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from fluss.client.cluster import Cluster
from fluss.client.convert import Key, KeyMaker
from fluss.client.promise import Inbox, Promise, wake
from fluss.client.retry import DEFAULT_BACKOFF, DEFAULT_DEADLINE_MS
from fluss.client.runner import Runner
from fluss.client.state import TableState
from fluss.client.values import RowReader, schema_id_of
from fluss.errors import (
    ConnectionClosedError,
    DeadlineExceededError,
    FlussError,
    FormatError,
    InvalidArgumentError,
    NetworkError,
    NonPrimaryKeyTableError,
    error_for_code,
)
from fluss.metadata import TableBucket, TableInfo
from fluss.net.connection import Connection
from fluss.net.eager import start_eagerly
from fluss.protocol import apis
from fluss.protocol import messages as pb
from fluss.protocol.lookup_messages import decode_lookup_response, encode_lookup
from fluss.protocol.wire import parse_message

T = TypeVar("T")

KEYS_PER_REQUEST_MAX = 4_096
"""Keys that travel in one request at most."""
REQUESTS_UNDER_WAY_MAX = 2
"""Requests to one server at a time: it works on one while the answer to the other is taken in."""
_KEYS_ALONE = 16
"""Fewer keys are not worth two requests."""
KEYS_PENDING_MAX = 1_000_000
"""Keys that wait at one lookuper at most; more are refused."""

Found = tuple[TableBucket, "FlussError | None", Sequence[Any]]
"""A bucket's part of an answer: an error, or one result per key in the order of the keys."""


Tell = Callable[["list[Found] | FlussError"], None]
"""Takes what came of a request."""


class Wire(Protocol):
    """How keys travel: the difference between lookup and prefix lookup."""

    def ask(self, connection: Connection, table_id: int, keys: Mapping[TableBucket, list[bytes]], tell: Tell) -> None:
        """Ask a server; `tell` hears of the answer, later and on the loop of the connection."""
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

    def ask(self, connection: Connection, table_id: int, keys: Mapping[TableBucket, list[bytes]], tell: Tell) -> None:
        connection.begin(apis.LOOKUP, [self.encode(table_id, keys)], _Reply(self.decode, table_id, tell))

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

    def ask(self, connection: Connection, table_id: int, keys: Mapping[TableBucket, list[bytes]], tell: Tell) -> None:
        request = pb.PrefixLookupRequest(table_id=table_id)
        for bucket, wanted in keys.items():
            request.buckets_req.add(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, keys=wanted)
        reply = _Reply(self._decode, table_id, tell)
        connection.begin(apis.PREFIX_LOOKUP, [request.SerializeToString()], reply)

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


class LookupQueue(Generic[T]):
    """Keys of one table on their way to the servers. `put` may be called from any thread; the rest is on the loop."""

    def __init__(self, cluster: Cluster, state: TableState, wire: Wire, missing: T) -> None:
        self._cluster = cluster
        self._state = state
        self._wire = wire
        self._missing = missing
        self._inbox: Inbox[_Item[T]] = Inbox(cluster.loop, self._deliver)
        self._waiting: dict[int, list[_Item[T]]] = {}
        self._under_way: Counter[int] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._pending: dict[_Item[T], None] = {}
        self._closed = False
        self._plain_buckets = [state.bucket(bucket_id) for bucket_id in range(state.num_buckets)]
        cluster.metrics.gauge("lookups_pending", self.pending)

    def pending(self) -> int:
        return len(self._pending) + len(self._inbox)

    def put(self, key: Key) -> Promise[T]:
        """Look a key up; the promise gives what the servers say."""
        if self._closed or self._cluster.closed:
            raise ConnectionClosedError("The connection is closed; lookups need an open one")
        if self.pending() >= KEYS_PENDING_MAX:
            raise DeadlineExceededError(f"More than {KEYS_PENDING_MAX} lookups are waiting; await some of them first")
        promise: Promise[T] = Promise()
        partition, bucket, encoded = key
        item = _Item((partition, bucket), encoded, promise, time.monotonic() + DEFAULT_DEADLINE_MS / 1000.0)
        try:
            self._inbox.put(item)
        except RuntimeError:
            raise ConnectionClosedError("The connection is closed; lookups need an open one") from None
        return promise

    # -- on the loop ----------------------------------------------------------------------------------------------

    def _deliver(self, items: Iterable[_Item[T]]) -> None:
        ready: set[int] = set()
        items = list(items)
        if self._closed:
            self._fail(items, ConnectionClosedError("The connection was closed"))
            return
        self._cluster.metrics.add("lookups_total", len(items))
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
        if node_id is None or self._cluster.ready_node(node_id) is None:
            return None
        return node_id

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
            self._again((item,), error)
            return
        self._waiting.setdefault(node_id, []).append(item)
        self._pump(node_id)

    def _pump(self, node_id: int) -> None:
        """Send what waits for a server, unless enough is under way."""
        while waiting := self._waiting.get(node_id):
            under_way = self._under_way.get(node_id, 0)
            if under_way >= REQUESTS_UNDER_WAY_MAX:
                return
            count = len(waiting) if under_way else max(_KEYS_ALONE, -(-len(waiting) // REQUESTS_UNDER_WAY_MAX))
            count = min(count, KEYS_PER_REQUEST_MAX)
            batch, rest = waiting[:count], waiting[count:]
            if rest:
                self._waiting[node_id] = rest
            else:
                del self._waiting[node_id]
            self._send(node_id, batch)

    def _send(self, node_id: int, batch: list[_Item[T]]) -> None:
        connection = self._cluster.ready_node(node_id)
        if connection is None:  # it was lost while the keys waited
            for item in batch:
                self._spawn(self._find(item))
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
                    self._cluster.invalidate_node(node_id)
                self._again(batch, answer)
            else:
                self._take(by_bucket, answer)
            if not self._closed:
                self._pump(node_id)

        try:
            self._wire.ask(connection, self._state.table_id, keys, tell)
        except FlussError as error:
            tell(error)

    def _take(self, by_bucket: dict[TableBucket, list[_Item[T]]], answer: list[Found]) -> None:
        done: list[Promise[T]] = []
        for bucket, error, results in answer:
            items = by_bucket.pop(bucket, None)
            if items is None:
                continue
            if error is not None:
                self._again(items, error)
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

    def _again(self, items: Sequence[_Item[T]], error: FlussError) -> None:
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
        for item in items:
            self._spawn(self._find(item))

    def _fail(self, items: Iterable[_Item[T]], error: FlussError) -> None:
        items = list(items)
        for item in items:
            self._pending.pop(item, None)
            # Each waiter raises an error of its own: a shared one would collect everybody's traceback.
            item.promise.fail_quietly(type(error)(error.message, error.error_code))
        wake([item.promise for item in items])

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


class _Reader:
    """Stored values of one table into dicts, whichever schema wrote them."""

    def __init__(self, runner: Runner, info: TableInfo) -> None:
        self._runner = runner
        self._info = info
        self._readers: dict[int, RowReader] = {
            info.schema_id: RowReader(info.schema, info.schema, info.kv_format),
        }

    def known_row(self, value: bytes) -> dict[str, Any] | None:
        """The row, or None if its schema has to be asked for: no waiting."""
        reader = self._readers.get(schema_id_of(value))
        return None if reader is None else reader.read(value)

    async def row(self, value: bytes) -> dict[str, Any]:
        schema_id = schema_id_of(value)
        reader = self._readers.get(schema_id)
        if reader is None:
            written = await self._runner.run(lambda cluster: cluster.schema(self._info.table_path, schema_id))
            reader = self._readers[schema_id] = RowReader(written, self._info.schema, self._info.kv_format)
        return reader.read(value)


class Lookuper:
    """Looks rows up by primary key. Create with `table.new_lookup().create_lookuper()`.

    Use one lookuper for many lookups, from as many tasks as you like: keys that are asked for at the same time travel
    together.
    """

    def __init__(self, runner: Runner, state: TableState) -> None:
        info = state.table_info
        require_primary_key(info, "lookup")
        self._runner = runner
        self._state = state
        self._keys = KeyMaker.for_primary_key(info, runner.cluster.config.client_bucketing)
        self._reader = _Reader(runner, info)
        self._queue: LookupQueue[bytes | None] = LookupQueue(runner.cluster, state, LookupWire(), None)
        attach(runner.cluster, self._queue)

    async def lookup(self, pk: object) -> dict[str, Any] | None:
        """The row with this primary key as a dict, or None if there is none.

        `pk` is a dict (or other mapping, or dataclass) with the key columns, or a list or tuple of their values.
        """
        value = await self._queue.put(self._keys.make(pk)).wait()
        if value is None:
            return None
        row = self._reader.known_row(value)
        return row if row is not None else await self._reader.row(value)

    async def lookup_many(self, keys: Any, *, missing: str = "drop") -> Any:
        """Look many keys up at once; the rows come back as a `pyarrow.Table`, in the order of the keys.

        `keys` is a list of keys as for `lookup`, or a `pyarrow.Table`, `RecordBatch` or DataFrame that has the key
        columns. Keys without a row are left out; with `missing="null"` each gives a row of nulls instead, so that the
        result lines up with the keys.
        """
        from fluss.client.lookup_many import lookup_many

        return await lookup_many(self._runner, self._state, self._keys, keys, missing)

    def __repr__(self) -> str:
        return f"Lookuper({self._state.table_path})"


class PrefixLookuper:
    """Finds all rows whose primary key begins with given values. Create with `new_lookup().lookup_by(columns)`."""

    def __init__(self, runner: Runner, state: TableState, columns: Sequence[str]) -> None:
        info = state.table_info
        check_prefix_columns(info, columns)
        self._state = state
        self._keys = KeyMaker.for_prefix(info, columns, runner.cluster.config.client_bucketing)
        self._reader = _Reader(runner, info)
        self._queue: LookupQueue[list[bytes]] = LookupQueue(runner.cluster, state, PrefixWire(), [])
        attach(runner.cluster, self._queue)

    async def lookup(self, prefix: object) -> list[dict[str, Any]]:
        """All rows under a prefix, as dicts; an empty list if there are none."""
        values = await self._queue.put(self._keys.make(prefix)).wait()
        return [await self._reader.row(value) for value in values]

    def __repr__(self) -> str:
        return f"PrefixLookuper({self._state.table_path}, {list(self._keys.names)})"


class TableLookup:
    """Builder of lookups. `table.new_lookup()` can also be used as the lookuper itself."""

    def __init__(self, runner: Runner, state: TableState) -> None:
        require_primary_key(state.table_info, "lookup")
        self._runner = runner
        self._state = state
        self._lookuper: Lookuper | None = None

    def create_lookuper(self) -> Lookuper:
        """A lookuper by primary key."""
        return Lookuper(self._runner, self._state)

    def lookup_by(self, column_names: Sequence[str]) -> TablePrefixLookup:
        """Look up by a prefix of the key: the partition columns (if any) and the bucket keys, in that order."""
        return TablePrefixLookup(self._runner, self._state, list(column_names))

    async def lookup(self, pk: object) -> dict[str, Any] | None:
        """Older form: the builder used as the lookuper."""
        if self._lookuper is None:
            self._lookuper = self.create_lookuper()
        return await self._lookuper.lookup(pk)

    def __await__(self) -> Generator[Any, None, TableLookup]:
        return self
        yield

    def __repr__(self) -> str:
        return f"TableLookup({self._state.table_path})"


class TablePrefixLookup:
    """Builder of prefix lookups."""

    def __init__(self, runner: Runner, state: TableState, columns: Sequence[str]) -> None:
        self._runner = runner
        self._state = state
        self._columns = columns

    def create_lookuper(self) -> PrefixLookuper:
        """A lookuper by prefix; says what is wrong if the columns do not allow it."""
        return PrefixLookuper(self._runner, self._state, self._columns)

    def __repr__(self) -> str:
        return f"TablePrefixLookup({self._state.table_path}, {list(self._columns)})"


def attach(cluster: Cluster, queue: LookupQueue[Any]) -> None:
    """Attach on the cluster's loop: its set of parts is not for other threads."""
    if asyncio._get_running_loop() is cluster.loop:
        cluster.attach(queue)
    else:
        try:
            cluster.loop.call_soon_threadsafe(cluster.attach, queue)
        except RuntimeError:
            raise ConnectionClosedError("The connection is closed; lookups need an open one") from None


def require_primary_key(info: TableInfo, what: str) -> None:
    if not info.has_primary_key():
        raise NonPrimaryKeyTableError(
            f"Table '{info.table_path}' has no primary key, so it does not support {what}: it is a log table, "
            "to be written with new_append() and read by scanning"
        )


def check_prefix_columns(info: TableInfo, columns: Sequence[str]) -> None:
    """Refuse columns that cannot be a prefix, and say why."""
    path = info.table_path
    require_primary_key(info, "prefix lookup")
    names = info.get_column_names()
    for column in columns:
        if column not in names:
            raise InvalidArgumentError(
                f"Unknown column name {column!r} in prefix lookup on table '{path}': it has {names}"
            )
    bucket_keys, partition_keys = list(info.bucket_keys), list(info.partition_keys)
    physical = list(info.physical_primary_key)
    if physical[: len(bucket_keys)] != bucket_keys or len(bucket_keys) >= len(physical):
        raise InvalidArgumentError(
            f"Table '{path}' does not allow prefix lookup: its bucket keys {bucket_keys} must be the first columns, "
            f"and not all, of its primary key without partition fields {physical}"
        )
    if any(key not in columns for key in partition_keys):
        raise InvalidArgumentError(
            f"A prefix lookup on table '{path}' needs all partition fields {partition_keys}, got {list(columns)}"
        )
    rest = [column for column in columns if column not in partition_keys]
    if rest != bucket_keys:
        wanted = partition_keys + bucket_keys
        raise InvalidArgumentError(
            f"A prefix lookup on table '{path}' needs exactly the partition fields and bucket keys {wanted}, got "
            f"{list(columns)}; for the full primary key use create_lookuper() without lookup_by()"
        )
