# SPDX-License-Identifier: Apache-2.0
"""The client's view of a cluster: its servers, the leaders of its buckets, and one connection to each server.

A `Cluster` belongs to the event loop it was created on. Every wait in it ends with the deadline of the call it is made
for, metadata is cached, and a question that is already in flight is not asked twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from google.protobuf.message import Message

from fluss.client.metadata_cache import MetadataCache, PartitionState, TableState, check_table_id
from fluss.client.metrics import Metrics, NoMetrics
from fluss.client.nodes import CLOSED, ConnectionOpener, NodePool, first_that_answers
from fluss.client.requests import pb_path, subject_of
from fluss.client.retry import retry, within
from fluss.client.singleflight import SingleFlight
from fluss.config import Config
from fluss.errors import (
    ConnectionClosedError,
    FlussError,
    LeaderNotAvailableError,
    NetworkError,
    PartitionNotExistsError,
    TableNotExistError,
    UnknownServerError,
)
from fluss.metadata import ServerNode, TableBucket, TablePath
from fluss.net.background import FORKED, running_loop
from fluss.net.connection import Connection
from fluss.net.deadline import Deadline
from fluss.protocol import Api, ServerType, apis
from fluss.protocol import messages as pb

if TYPE_CHECKING:
    from fluss.client.write.handle import Failures
    from fluss.metadata import Schema

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

logger = logging.getLogger("fluss.client")


OnWriterId = Callable[[int], Awaitable[None] | None]
"""Called with each new writer id: an asynchronous function, which is awaited, or a plain one."""


class Attached(Protocol):
    """A writer, scanner or lookuper that must end with its connection."""

    async def shut(self) -> None:
        """Stop at once; whatever is pending fails with `ConnectionClosedError`."""


class AttachedWriter(Attached, Protocol):
    async def drain(self) -> Failures:
        """Bring the rows of earlier calls to the servers, and return what went wrong with them."""


async def all_results(works: Iterable[Awaitable[T]]) -> list[T]:
    """Wait until all work has ended, then return the results, or raise the first error."""
    results = await asyncio.gather(*works, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]  # none of them is an error


class Cluster:
    """Nodes, connections and cached metadata of one cluster. Create with `await Cluster.connect(config)`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.metrics = Metrics() if config.metrics_enabled else NoMetrics()
        self.call_timeout_ms = 2.0 * config.request_timeout_ms
        """How long a call may take that names no timeout. A lookup reads it, so it is not looked up in the options."""
        self.map_pairs = False
        """Whether rows give a MAP as a list of (key, value) pairs, as release 1.0 of the official client does."""
        self.closed = False
        self._forked = False
        _clusters.add(self)
        self._open = ConnectionOpener(config, self.metrics)
        self._pool = NodePool(self._open, self.metrics)
        self._flights = SingleFlight()
        self._changes = 0
        """How often the catalog was changed through this connection. Answers from before a change are stale."""
        self.metadata = MetadataCache()
        """What is known without asking. May be read in any thread, and is changed on the loop."""
        self._attached: weakref.WeakSet[Attached] = weakref.WeakSet()
        self._writers: weakref.WeakSet[AttachedWriter] = weakref.WeakSet()
        self.sender: Attached | None = None
        """What all writers share; `Sender.of` makes it."""
        self.lookup_queues: weakref.WeakValueDictionary[tuple[int, type, type], Any] = weakref.WeakValueDictionary()
        """What all lookupers of a table share, by its id and the kinds of queue and lookup: `LookupQueue.shared`."""
        self.lookup_queues_lock = threading.Lock()
        self.on_writer_id: OnWriterId | None = None
        """Called with every new writer id, before anything is sent under that id."""

    @classmethod
    async def connect(cls, config: Config, timeout: float | Deadline | None = None) -> Cluster:
        """Ask the bootstrap servers, one after another, which servers the cluster has."""
        config = config.copy()
        config.validate()
        cluster = cls(config)
        try:
            default_ms = min(config.connect_timeout_ms, cluster.call_timeout_ms)
            await cluster._bootstrap(Deadline.of(timeout, default_ms))
        except BaseException:
            await cluster.close()
            raise
        return cluster

    # -- connections ----------------------------------------------------------------------------------------------

    async def _bootstrap(self, deadline: Deadline) -> None:
        """Learn the nodes from the first bootstrap server that answers."""
        await first_that_answers(self.config.bootstrap_addresses, self._bootstrap_from, deadline)

    async def _bootstrap_from(self, host: str, port: int, deadline: Deadline) -> None:
        connection = await self._open(host, port, None, deadline)
        try:
            response = await self.call(connection, apis.GET_METADATA, pb.MetadataRequest(), deadline)
            self._learn(response)
            if not self.metadata.tablets:
                raise LeaderNotAvailableError(f"{host}:{port} knows no tablet server yet; the cluster is starting")
        finally:
            await connection.close()

    async def coordinator(self, deadline: Deadline) -> Connection:
        """Return the connection to the coordinator."""
        self._check_open()
        if self.metadata.coordinator is None:
            await self.refresh_nodes(deadline)
        node = self.metadata.coordinator
        if node is None:
            raise LeaderNotAvailableError("The cluster has no coordinator at the moment")
        try:
            return await self._pool.connection(node, deadline)
        except NetworkError:
            # It may have moved: the next attempt asks for the nodes again.
            self.metadata.coordinator = None
            raise

    async def any_tablet(self, deadline: Deadline) -> Connection:
        """Return a connection to any tablet server that can be reached; an open one is preferred."""
        self._check_open()
        nodes = list(self.metadata.tablets.values())
        random.shuffle(nodes)
        for node in nodes:
            ready = self._pool.ready(node)
            if ready is not None:
                return ready
        error: FlussError | None = None
        for position, node in enumerate(nodes):
            try:
                return await self._pool.connection(node, deadline.share(len(nodes) - position + 1))
            except ConnectionClosedError:
                raise
            except FlussError as failure:
                error = failure
        if deadline.expired and error is not None:
            raise error
        await self._flights.run("bootstrap", lambda: self._bootstrap(deadline), deadline)
        for node in self.metadata.tablets.values():
            try:
                return await self._pool.connection(node, deadline)
            except NetworkError as failure:
                error = failure
        raise error if error is not None else LeaderNotAvailableError("The cluster has no tablet server at the moment")

    async def node(self, node_id: int, deadline: Deadline | None = None) -> Connection:
        """Return the connection to the tablet server with this id."""
        return await self._pool.connection(self._tablet(node_id), self.deadline(deadline))

    async def open_another(self, node_id: int) -> Connection:
        """Open a further connection to the tablet server with this id, for the caller alone."""
        node = self._tablet(node_id)
        return await self._open(node.host, node.port, ServerType.TABLET, self.deadline())

    def _tablet(self, node_id: int) -> ServerNode:
        self._check_open()
        node = self.metadata.tablets.get(node_id)
        if node is None:
            raise LeaderNotAvailableError(f"Tablet server {node_id} is not in the cluster at the moment")
        return node

    def ready_node(self, node_id: int) -> Connection | None:
        """The open connection to a tablet server, if there is one: no waiting."""
        node = self.metadata.tablets.get(node_id)
        return None if node is None else self._pool.ready(node)

    async def refresh_nodes(self, deadline: Deadline | None = None) -> list[ServerNode]:
        """Ask which servers are in the cluster now."""
        deadline = self.deadline(deadline)
        await self._flights.run("nodes", lambda: self._metadata(pb.MetadataRequest(), deadline), deadline)
        return self.metadata.server_nodes()

    # -- calls ----------------------------------------------------------------------------------------------------

    def deadline(self, timeout: float | Deadline | None = None) -> Deadline:
        """Make the deadline of a call: `timeout` in seconds, or the configured default; a deadline stays as it is."""
        return Deadline.of(timeout, self.call_timeout_ms)

    async def call(
        self,
        connection: Connection,
        api: Api[RequestT, ResponseT],
        request: RequestT,
        deadline: Deadline | None = None,
    ) -> ResponseT:
        """Send one request, counted. No retry."""
        started = time.monotonic()
        self.metrics.add("requests_total")
        timeout_ms = None if deadline is None else deadline.limit_ms(self.config.request_timeout_ms)
        try:
            return await connection.call(api, request, timeout_ms=timeout_ms)
        except FlussError:
            self.metrics.add("request_errors_total")
            raise
        finally:
            elapsed_ms = (time.monotonic() - started) * 1000.0
            self.metrics.add("request_time_ms_sum", elapsed_ms)
            self.metrics.highest("request_time_ms_max", elapsed_ms)

    async def call_coordinator(
        self,
        api: Api[RequestT, ResponseT],
        request: RequestT,
        *,
        idempotent: bool = True,
        deadline: Deadline | None = None,
    ) -> ResponseT:
        """Send one request to the coordinator, retried by the policy.

        A change that is not idempotent is not sent again once it may have reached the server: the answer to the second
        one would say "already exists" about our own success.
        """
        deadline = self.deadline(deadline)
        server: Connection | None = None

        async def attempt() -> ResponseT:
            nonlocal server
            server = await self.coordinator(deadline)
            return await self.call(server, api, request, deadline)

        def may_retry(error: FlussError) -> bool:
            # The server's own "try again" answers leave nothing behind; a lost connection may.
            return idempotent or server is None or not isinstance(error, NetworkError)

        def invalidate(error: FlussError) -> None:
            if error.is_stale_metadata or isinstance(error, NetworkError):
                self.metadata.coordinator = None

        def what() -> str:
            at = "the coordinator" if server is None else f"the coordinator {server.host}:{server.port}"
            return f"{api.name}{subject_of(request)} at {at}"

        return await self.retry(attempt, deadline=deadline, what=what, before_retry=invalidate, may_retry=may_retry)

    async def call_tablet(
        self, api: Api[RequestT, ResponseT], request: RequestT, *, deadline: Deadline | None = None
    ) -> ResponseT:
        """Send one request to any tablet server, retried by the policy."""
        deadline = self.deadline(deadline)

        async def attempt() -> ResponseT:
            return await self.call(await self.any_tablet(deadline), api, request, deadline)

        return await self.retry(attempt, deadline=deadline, what=lambda: f"{api.name}{subject_of(request)}")

    async def retry(
        self,
        op: Callable[[], Awaitable[T]],
        *,
        deadline: Deadline,
        what: str | Callable[[], str] = "The request",
        path: TablePath | None = None,
        bucket: TableBucket | None = None,
        before_retry: Callable[[FlussError], None] | None = None,
        may_retry: Callable[[FlussError], bool] | None = None,
    ) -> T:
        """Call `op` until it succeeds, fails for good or the deadline has passed: the one retry policy.

        When an error says that metadata is stale, what is known of `bucket` or `path` is invalidated before the next
        attempt.
        """

        def prepare(error: FlussError) -> None:
            self.metrics.add("retries_total")
            if error.is_stale_metadata:
                if bucket is not None:
                    self.metadata.invalidate_bucket(bucket)
                elif path is not None:
                    self.metadata.invalidate_table(path)
            if before_retry is not None:
                before_retry(error)

        return await retry(op, deadline=deadline, what=what, before_retry=prepare, may_retry=may_retry)

    # -- metadata -------------------------------------------------------------------------------------------------

    async def table(self, path: TablePath, refresh: bool = False, deadline: Deadline | None = None) -> TableState:
        """Return what the cluster says about a table; from the cache unless `refresh`."""
        state = self.metadata.tables.get(path)
        if state is not None and not refresh:
            return state
        deadline = self.deadline(deadline)
        key = ("table", path, self._changes)
        return await self._flights.run(key, lambda: self._load_table(path, deadline), deadline)

    async def _load_table(self, path: TablePath, deadline: Deadline) -> TableState:
        while True:
            changes = self._changes
            try:
                state = await self._ask_for_table(path, deadline)
            except TableNotExistError:
                if changes == self._changes:
                    raise
            else:
                if changes == self._changes:
                    return state

    async def _ask_for_table(self, path: TablePath, deadline: Deadline) -> TableState:
        request = pb.MetadataRequest(table_path=[pb_path(path)])
        try:
            await self._metadata(request, deadline)
        except UnknownServerError:
            # Some servers wrap the cause; GET_TABLE_INFO says plainly whether the table exists.
            self.metadata.invalidate_table(path)
            question = pb.GetTableInfoRequest(table_path=pb_path(path))
            await self.call_tablet(apis.GET_TABLE_INFO, question, deadline=deadline)
            raise
        except TableNotExistError:
            self.metadata.invalidate_table(path)
            raise
        state = self.metadata.tables.get(path)
        if state is None:
            # Servers leave out what this user may not see.
            raise TableNotExistError(f"Table '{path}' does not exist, or you are not allowed to describe it")
        return state

    async def partition(
        self,
        path: TablePath,
        name: str,
        refresh: bool = False,
        deadline: Deadline | None = None,
        *,
        table_id: int | None = None,
    ) -> PartitionState | None:
        """Return one partition by its name (values joined with '$'); None if there is no such partition.

        That a partition is missing is not remembered: it may be created at any moment. With `table_id` a partition of
        another table, which has the name now, is refused.
        """
        deadline = self.deadline(deadline)
        state = await self.table(path, deadline=deadline)
        if table_id is not None:
            check_table_id(state, table_id)
        known = state.partitions.get(name)
        if known is not None and not refresh:
            return known
        key = ("partition", path, name, self._changes)
        return await self._flights.run(key, lambda: self._load_partition(path, name, deadline), deadline)

    async def _load_partition(self, path: TablePath, name: str, deadline: Deadline) -> PartitionState | None:
        request = pb.MetadataRequest()
        request.partitions_path.add(database_name=path.database_name, table_name=path.table_name, partition_name=name)

        async def attempt() -> PartitionState | None:
            await self.table(path, deadline=deadline)
            try:
                await self._metadata(request, deadline, path)
            except PartitionNotExistsError:
                self.metadata.invalidate_partition(path, name)
                return None
            state = self.metadata.tables.get(path)
            if state is None:
                # A schema change, for instance: what the server said about the partition could not be kept.
                raise LeaderNotAvailableError(f"Table '{path}' changed while its partition '{name}' was asked for")
            return state.partitions.get(name)

        return await self.retry(attempt, what=apis.GET_METADATA.name, deadline=deadline)

    async def partition_by_id(
        self, path: TablePath, partition_id: int, refresh: bool = False, deadline: Deadline | None = None
    ) -> PartitionState | None:
        """Return one partition by its id; None if there is no such partition."""
        deadline = self.deadline(deadline)
        await self.table(path, deadline=deadline)
        known = self.metadata.partition_by_id(path, partition_id)
        if known is not None and not refresh:
            return known

        async def load() -> PartitionState | None:
            request = pb.MetadataRequest(table_path=[pb_path(path)], partitions_id=[partition_id])
            try:
                await self._metadata(request, deadline, path)
            except PartitionNotExistsError:
                if known is not None:
                    self.metadata.invalidate_partition(path, known.partition_name)
                return None
            return self.metadata.partition_by_id(path, partition_id)

        return await self._flights.run(("partition-id", path, partition_id, self._changes), load, deadline)

    async def check_partition(self, path: TablePath, partition_id: int | None, deadline: Deadline) -> None:
        """Raise PartitionNotExistsError if this partition was dropped: its buckets get no leader any more."""
        if partition_id is not None and await self.partition_by_id(path, partition_id, deadline=deadline) is None:
            raise PartitionNotExistsError(f"Partition {partition_id} of table '{path}' was dropped") from None

    async def leader_id(self, bucket: TableBucket, path: TablePath, deadline: Deadline | None = None) -> int:
        """Return the node id of a bucket's leader. Raises LeaderNotAvailableError (retriable) while there is none."""
        known = self.metadata.leaders.get(bucket)
        if known is not None:
            return known
        deadline = self.deadline(deadline)
        if bucket.partition_id is None:
            state = await self.table(path, refresh=True, deadline=deadline)
        else:
            await self.partition_by_id(path, bucket.partition_id, refresh=True, deadline=deadline)
            state = await self.table(path, deadline=deadline)
        known = self.metadata.leaders.get(bucket)
        if known is not None:
            return known
        check_table_id(state, bucket.table_id)
        raise LeaderNotAvailableError(f"No leader found for {bucket} of table '{path}'")

    async def leader(self, bucket: TableBucket, path: TablePath, deadline: Deadline | None = None) -> Connection:
        """Return the connection to a bucket's leader."""
        ready = self.ready_leader(bucket)
        if ready is not None:
            return ready
        deadline = self.deadline(deadline)
        node_id = await self.leader_id(bucket, path, deadline)
        try:
            return await self.node(node_id, deadline)
        except (NetworkError, LeaderNotAvailableError):
            self.metadata.invalidate_bucket(bucket)
            raise

    def ready_leader(self, bucket: TableBucket) -> Connection | None:
        """The connection to a bucket's leader if both are known: no waiting."""
        node_id = self.metadata.leaders.get(bucket)
        return None if node_id is None else self.ready_node(node_id)

    def changed(self) -> None:
        """Note that the catalog was changed through this connection."""
        self._changes += 1

    async def schema(self, path: TablePath, schema_id: int, deadline: Deadline | None = None) -> Schema:
        """Return one version of a table's schema (cached: a version never changes)."""
        deadline = self.deadline(deadline)
        state = await self.table(path, deadline=deadline)
        known = self.metadata.schema(state, schema_id)
        if known is not None:
            return known

        async def load() -> Schema:
            request = pb.GetTableSchemaRequest(table_path=pb_path(path), schema_id=schema_id)
            response = await self.call_coordinator(apis.GET_TABLE_SCHEMA, request, deadline=deadline)
            from fluss.metadata import Schema

            schema = Schema.from_json_bytes(response.schema_json)
            self.metadata.keep_schema(state, schema_id, schema)
            return schema

        return await self._flights.run(("schema", path, state.table_id, schema_id), load, deadline)

    async def _metadata(
        self, request: pb.MetadataRequest, deadline: Deadline, partitions_of: TablePath | None = None
    ) -> None:
        async def attempt() -> pb.MetadataResponse:
            self.metrics.add("metadata_refreshes_total")
            return await self.call(await self.any_tablet(deadline), apis.GET_METADATA, request, deadline)

        def what() -> str:
            return f"{apis.GET_METADATA.name}{subject_of(request)}"

        self._learn(await self.retry(attempt, deadline=deadline, what=what), partitions_of)

    def _learn(self, response: pb.MetadataResponse, partitions_of: TablePath | None = None) -> None:
        self.metadata.learn(response, partitions_of)
        self._pool.update(self.metadata.server_nodes())

    # -- lifecycle ------------------------------------------------------------------------------------------------

    def attach(self, part: Attached) -> None:
        """Remember a writer, scanner or lookuper (weakly), to be ended with the connection."""
        self._check_open()
        self._attached.add(part)

    def attach_writer(self, writer: AttachedWriter) -> None:
        """The same for a writer, whose rows `drain` brings to the servers."""
        self.attach(writer)
        self._writers.add(writer)

    def attach_soon(self, part: Attached) -> None:
        """The same from any thread: the set of parts belongs to the loop."""
        if running_loop() is self.loop:
            self.attach(part)
            return
        try:
            self.loop.call_soon_threadsafe(self.attach, part)
        except RuntimeError:
            raise ConnectionClosedError(CLOSED) from None

    def detach(self, part: Attached) -> None:
        self._attached.discard(part)
        self._writers.discard(part)  # type: ignore[arg-type]  # a scanner is not in it

    async def drain(self, timeout: float | None = None) -> list[Failures]:
        """Bring everything that writers hold to the servers, and return what the caller has to raise.

        Without a timeout the delivery deadline of the writers is the only bound.
        """

        return await within(
            lambda: all_results(writer.drain() for writer in list(self._writers)),
            timeout,
            "Flushing the writers of the connection",
        )

    async def close(self) -> None:
        """End everything. Pending writes fail with ConnectionClosedError. May be called again."""
        if self.closed:
            return
        self.closed = True
        results = await asyncio.gather(*(part.shut() for part in list(self._attached)), return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                logger.warning("closing: %s", result)
        self._attached.clear()
        self._flights.cancel_all(ConnectionClosedError("The connection was closed"))
        await self._pool.close()

    def _check_open(self) -> None:
        self.check_not_forked()
        if self.closed:
            raise ConnectionClosedError(CLOSED)

    def check_not_forked(self) -> None:
        """Refuse what would wait for a loop that runs in the parent of this process alone."""
        if self._forked:
            raise ConnectionClosedError(FORKED)

    def _after_fork_in_child(self) -> None:
        self.closed = self._forked = True


_clusters: weakref.WeakSet[Cluster] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for cluster in list(_clusters):
        cluster._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
