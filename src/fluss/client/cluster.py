# SPDX-License-Identifier: Apache-2.0
"""The client's view of a cluster: who is there, who leads what, and one connection to each.

A `Cluster` belongs to the event loop it was created on. Every wait in it is bounded, every answer about tables is
cached, and questions that are already on their way are not asked twice.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from google.protobuf.message import Message

from fluss.client.metadata_cache import MetadataCache
from fluss.client.metrics import Metrics
from fluss.client.nodes import NodePool
from fluss.client.retry import DEFAULT_DEADLINE_MS, Backoff, Deadline, retry
from fluss.client.singleflight import SingleFlight
from fluss.client.state import PartitionState, TableState
from fluss.config import Config
from fluss.errors import (
    AuthenticateError,
    ConnectionClosedError,
    FlussError,
    LeaderNotAvailableError,
    NetworkError,
    PartitionNotExistsError,
    TableNotExistError,
    UnknownServerError,
    UnknownTableOrBucketError,
    error_for_code,
)
from fluss.metadata import PhysicalTablePath, Schema, ServerNode, TableBucket, TablePath
from fluss.net.connection import Connection
from fluss.protocol import Api, ServerType, apis
from fluss.protocol import messages as pb
from fluss.protocol.sasl import PlainCredentials

if TYPE_CHECKING:
    from fluss.client.nearby import Nearby

T = TypeVar("T")
RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

logger = logging.getLogger("fluss.client")

MAX_FRAME_BYTES = 256 * 1024 * 1024
"""Longest response accepted. A fetch answers with `scanner.log.fetch.max-bytes` (16 MB) plus at most one batch."""

_CLOSED = "The connection is closed; create a new one with FlussConnection.create(config)"
BOOTSTRAP_TRIES = 4
BOOTSTRAP_BACKOFF = Backoff(first_ms=100.0, max_ms=400.0)


class Attached(Protocol):
    """A writer, scanner or lookuper that must end with its connection."""

    async def drain(self) -> None:
        """Bring everything pending to the servers (a context manager that is left without error calls it)."""

    async def shut(self) -> None:
        """Stop at once; whatever is pending fails with `ConnectionClosedError`."""


def raise_for_code(response: Any, where: str = "") -> None:
    """Raise the error a part of a response carries, if any; code 0 written out counts as success."""
    if response.HasField("error_code") and response.error_code != 0:
        message = response.error_message if response.HasField("error_message") else None
        error = error_for_code(response.error_code, message)
        if where:
            error = type(error)(f"{error.message} ({where})", error.error_code)
        raise error


class Cluster:
    """Nodes, connections and cached metadata of one cluster. Create with `await Cluster.connect(config)`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.metrics = Metrics()
        self.closed = False
        self._pool = NodePool(self._open, self.metrics)
        self._flights = SingleFlight()
        self._cache = MetadataCache()
        self._attached: weakref.WeakSet[Attached] = weakref.WeakSet()
        self.nearby: Nearby | None = None
        """The connections on other loops, made for the first that may need one."""

    @classmethod
    async def connect(cls, config: Config) -> Cluster:
        """Ask the bootstrap servers, in turn, who is in the cluster."""
        config = config.copy()
        config.validate()
        cluster = cls(config)
        try:
            await cluster._bootstrap()
        except BaseException:
            await cluster.close()
            raise
        return cluster

    # -- connections ----------------------------------------------------------------------------------------------

    async def _open(self, host: str, port: int, role: ServerType | None) -> Connection:
        config = self.config
        try:
            connection = await Connection.open(
                host,
                port,
                connect_timeout_ms=config.connect_timeout_ms,
                request_timeout_ms=config.request_timeout_ms,
                credentials=_credentials(config),
                max_frame_bytes=MAX_FRAME_BYTES,
                expected_server_type=role,
            )
        except FlussError:
            self.metrics.add("connections_failed_total")
            raise
        self.metrics.add("connections_opened_total")
        return connection

    async def _bootstrap(self) -> None:
        """Learn the nodes from the first bootstrap server that answers; several rounds before giving up."""
        addresses = self.config.bootstrap_addresses
        failures: dict[str, FlussError] = {}
        for attempt in range(BOOTSTRAP_TRIES):
            if attempt:
                await asyncio.sleep(BOOTSTRAP_BACKOFF.delay_ms(attempt - 1) / 1000.0)
            for host, port in addresses:
                try:
                    await self._bootstrap_from(host, port)
                    return
                except FlussError as error:
                    if isinstance(error, (AuthenticateError, ConnectionClosedError)):
                        raise
                    failures[f"{host}:{port}"] = error
            if not any(error.is_retriable or error.is_stale_metadata for error in failures.values()):
                break
        details = "; ".join(f"{address}: {error.message}" for address, error in failures.items())
        last = next(reversed(failures.values()))
        text = f"No bootstrap server answered ({details}). Is the cluster running, and is 'bootstrap.servers' right?"
        raise type(last)(text, last.error_code) from last

    async def _bootstrap_from(self, host: str, port: int) -> None:
        connection = await self._open(host, port, None)
        try:
            response = await self.call(connection, apis.GET_METADATA, pb.MetadataRequest())
            self._learn(response)
            if not self._cache.tablets:
                raise LeaderNotAvailableError(f"{host}:{port} knows no tablet server yet; the cluster is starting")
        finally:
            await connection.close()

    async def coordinator(self) -> Connection:
        """The connection to the coordinator."""
        self._check_open()
        if self._cache.coordinator is None:
            await self.refresh_nodes()
        node = self._cache.coordinator
        if node is None:
            raise LeaderNotAvailableError("The cluster has no coordinator at the moment")
        try:
            return await self._pool.connection(node)
        except NetworkError:
            # It may have moved; whoever retries asks for the nodes again.
            self._cache.coordinator = None
            raise

    async def any_tablet(self) -> Connection:
        """A connection to any tablet server that can be reached; an open one is preferred."""
        self._check_open()
        nodes = list(self._cache.tablets.values())
        random.shuffle(nodes)
        for node in nodes:
            ready = self._pool.ready(node)
            if ready is not None:
                return ready
        error: FlussError | None = None
        for node in nodes:
            try:
                return await self._pool.connection(node)
            except ConnectionClosedError:
                raise
            except FlussError as failure:
                error = failure
        await self._flights.run("bootstrap", self._bootstrap)
        for node in self._cache.tablets.values():
            try:
                return await self._pool.connection(node)
            except NetworkError as failure:
                error = failure
        raise error if error is not None else LeaderNotAvailableError("The cluster has no tablet server at the moment")

    async def node(self, node_id: int) -> Connection:
        """The connection to the tablet server with this id."""
        return await self._pool.connection(self._tablet(node_id))

    async def open_another(self, node_id: int) -> Connection:
        """A further connection to the tablet server with this id, for the caller alone."""
        node = self._tablet(node_id)
        return await self._open(node.host, node.port, ServerType.TABLET)

    def _tablet(self, node_id: int) -> ServerNode:
        self._check_open()
        node = self._cache.tablets.get(node_id)
        if node is None:
            raise LeaderNotAvailableError(f"Tablet server {node_id} is not in the cluster at the moment")
        return node

    def ready_node(self, node_id: int) -> Connection | None:
        """The open connection to a tablet server, if there is one: no waiting."""
        node = self._cache.tablets.get(node_id)
        return None if node is None else self._pool.ready(node)

    def server_nodes(self) -> list[ServerNode]:
        """Coordinator first, then the tablet servers, as last heard."""
        return self._cache.server_nodes()

    async def refresh_nodes(self) -> list[ServerNode]:
        """Ask who is in the cluster now."""
        await self._flights.run("nodes", self._refresh_nodes)
        return self.server_nodes()

    async def _refresh_nodes(self) -> None:
        await self._metadata(pb.MetadataRequest())

    # -- calls ----------------------------------------------------------------------------------------------------

    async def call(
        self,
        connection: Connection,
        api: Api[RequestT, ResponseT],
        request: RequestT,
        *,
        timeout_ms: int | None = None,
    ) -> ResponseT:
        """One request, counted. No retry."""
        started = time.monotonic()
        self.metrics.add("requests_total")
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
        deadline_ms: float = DEFAULT_DEADLINE_MS,
    ) -> ResponseT:
        """One request to the coordinator, retried by the policy.

        A change that is not idempotent is not sent again once it may have reached the server: the answer to the second
        one would say "already exists" about our own success.
        """
        sent = False

        async def attempt() -> ResponseT:
            nonlocal sent
            connection = await self.coordinator()
            sent = True
            return await self.call(connection, api, request)

        def may_retry(error: FlussError) -> bool:
            # The server's own "try again" answers leave nothing behind; a lost connection may.
            return idempotent or not sent or not isinstance(error, NetworkError)

        def forget(error: FlussError) -> None:
            if error.is_stale_metadata or isinstance(error, NetworkError):
                self._cache.coordinator = None

        return await self.retry(
            attempt, deadline_ms=deadline_ms, what=api.name, before_retry=forget, may_retry=may_retry
        )

    async def call_tablet(
        self, api: Api[RequestT, ResponseT], request: RequestT, *, deadline_ms: float = DEFAULT_DEADLINE_MS
    ) -> ResponseT:
        """One request to any tablet server, retried by the policy."""

        async def attempt() -> ResponseT:
            return await self.call(await self.any_tablet(), api, request)

        return await self.retry(attempt, deadline_ms=deadline_ms, what=api.name)

    async def retry(
        self,
        op: Callable[[], Awaitable[T]],
        *,
        deadline_ms: float = DEFAULT_DEADLINE_MS,
        what: str = "request",
        path: TablePath | None = None,
        bucket: TableBucket | None = None,
        before_retry: Callable[[FlussError], None] | None = None,
        may_retry: Callable[[FlussError], bool] | None = None,
    ) -> T:
        """Call `op` until it succeeds, fails for good or the deadline is met: the one retry policy.

        When an error says that metadata is stale, what is known of `bucket` or `path` is forgotten before the next try.
        """

        def prepare(error: FlussError) -> None:
            self.metrics.add("retries_total")
            if error.is_stale_metadata:
                if bucket is not None:
                    self.invalidate(bucket)
                elif path is not None:
                    self.invalidate(path)
            if before_retry is not None:
                before_retry(error)

        return await retry(op, deadline=Deadline(deadline_ms), what=what, before_retry=prepare, may_retry=may_retry)

    # -- metadata -------------------------------------------------------------------------------------------------

    async def table(self, path: TablePath, refresh: bool = False) -> TableState:
        """What the cluster says about a table; from the cache unless `refresh`."""
        state = self._cache.tables.get(path)
        if state is not None and not refresh:
            return state
        return await self._flights.run(("table", path), lambda: self._load_table(path))

    async def _load_table(self, path: TablePath) -> TableState:
        request = pb.MetadataRequest()
        request.table_path.append(pb_path(path))
        try:
            await self._metadata(request)
        except UnknownServerError:
            # Some servers wrap the cause; GET_TABLE_INFO says plainly whether the table exists.
            self._cache.drop_table(path)
            await self.call_tablet(apis.GET_TABLE_INFO, pb.GetTableInfoRequest(table_path=pb_path(path)))
            raise
        except TableNotExistError:
            self._cache.drop_table(path)
            raise
        state = self._cache.tables.get(path)
        if state is None:
            # Servers leave out what this user may not see.
            raise TableNotExistError(f"Table '{path}' does not exist, or you are not allowed to describe it")
        return state

    async def partition(self, path: TablePath, name: str, refresh: bool = False) -> PartitionState | None:
        """One partition by its name (values joined with '$'); None if there is no such partition.

        That a partition is missing is not remembered: it may be created at any moment.
        """
        state = await self.table(path)
        known = state.partitions.get(name)
        if known is not None and not refresh:
            return known
        return await self._flights.run(("partition", path, name), lambda: self._load_partition(path, name))

    async def _load_partition(self, path: TablePath, name: str) -> PartitionState | None:
        request = pb.MetadataRequest()
        request.partitions_path.add(database_name=path.database_name, table_name=path.table_name, partition_name=name)

        async def attempt() -> PartitionState | None:
            await self.table(path)
            try:
                await self._metadata(request, path)
            except PartitionNotExistsError:
                self._cache.drop_partition(path, name)
                return None
            state = self._cache.tables.get(path)
            if state is None:
                # A schema change, for instance: what the server said about the partition could not be kept.
                raise LeaderNotAvailableError(f"Table '{path}' changed while its partition '{name}' was asked for")
            return state.partitions.get(name)

        return await self.retry(attempt, what=apis.GET_METADATA.name)

    async def partition_by_id(self, path: TablePath, partition_id: int, refresh: bool = False) -> PartitionState | None:
        """One partition by its id; None if there is no such partition."""
        await self.table(path)
        known = self._cache.partition_by_id(path, partition_id)
        if known is not None and not refresh:
            return known

        async def load() -> PartitionState | None:
            request = pb.MetadataRequest()
            request.table_path.append(pb_path(path))
            request.partitions_id.append(partition_id)
            try:
                await self._metadata(request, path)
            except PartitionNotExistsError:
                if known is not None:
                    self._cache.drop_partition(path, known.partition_name)
                return None
            return self._cache.partition_by_id(path, partition_id)

        return await self._flights.run(("partition-id", path, partition_id), load)

    async def leader_id(self, bucket: TableBucket, path: TablePath | PhysicalTablePath) -> int:
        """The node id of a bucket's leader. Raises LeaderNotAvailableError (retriable) while there is none."""
        known = self._cache.leaders.get(bucket)
        if known is not None:
            return known
        table_path = path.table_path if isinstance(path, PhysicalTablePath) else path
        if bucket.partition_id is None:
            state = await self.table(table_path, refresh=True)
        else:
            await self.partition_by_id(table_path, bucket.partition_id, refresh=True)
            state = await self.table(table_path)
        known = self._cache.leaders.get(bucket)
        if known is not None:
            return known
        if state.table_id != bucket.table_id:
            raise UnknownTableOrBucketError(
                f"Table '{table_path}' was dropped and created again (id {bucket.table_id} is now {state.table_id}); "
                "get the table from the connection again"
            )
        raise LeaderNotAvailableError(f"No leader found for {bucket} of table '{table_path}'")

    async def leader(self, bucket: TableBucket, path: TablePath | PhysicalTablePath) -> Connection:
        """The connection to a bucket's leader."""
        node_id = self._cache.leaders.get(bucket)
        if node_id is not None:
            node = self._cache.tablets.get(node_id)
            ready = None if node is None else self._pool.ready(node)
            if ready is not None:
                return ready
        node_id = await self.leader_id(bucket, path)
        try:
            return await self.node(node_id)
        except (NetworkError, LeaderNotAvailableError):
            self.invalidate(bucket)
            raise

    def known_leader(self, bucket: TableBucket) -> int | None:
        """The node id of a bucket's leader if it is known: no waiting."""
        return self._cache.leaders.get(bucket)

    def invalidate(self, what: TableBucket | TablePath | PhysicalTablePath | ServerNode) -> None:
        """Forget what may be stale: a bucket's leader, a table, a partition, or everything a node leads."""
        self._cache.invalidate(what)

    def invalidate_node(self, node_id: int) -> None:
        """Forget everything the node with this id leads."""
        self._cache.invalidate_node(node_id)

    async def schema(self, path: TablePath, schema_id: int) -> Schema:
        """One version of a table's schema (cached: a version never changes)."""
        state = await self.table(path)
        known = self._cache.schema(state, schema_id)
        if known is not None:
            return known

        async def load() -> Schema:
            request = pb.GetTableSchemaRequest(table_path=pb_path(path), schema_id=schema_id)
            response = await self.call_coordinator(apis.GET_TABLE_SCHEMA, request)
            schema = Schema.from_json_bytes(response.schema_json)
            self._cache.keep_schema(state, schema_id, schema)
            return schema

        return await self._flights.run(("schema", path, state.table_id, schema_id), load)

    def known_schema(self, state: TableState, schema_id: int) -> Schema | None:
        """One version of a table's schema if it is known: no waiting."""
        return self._cache.schema(state, schema_id)

    async def _metadata(self, request: pb.MetadataRequest, path: TablePath | None = None) -> None:
        async def attempt() -> pb.MetadataResponse:
            self.metrics.add("metadata_refreshes_total")
            return await self.call(await self.any_tablet(), apis.GET_METADATA, request)

        self._learn(await self.retry(attempt, what=apis.GET_METADATA.name), path)

    def _learn(self, response: pb.MetadataResponse, partitions_of: TablePath | None = None) -> None:
        self._cache.learn(response, partitions_of)
        self._pool.update(self._cache.server_nodes())

    # -- life -----------------------------------------------------------------------------------------------------

    def attach(self, part: Attached) -> None:
        """Remember a writer, scanner or lookuper (weakly), to be ended with the connection."""
        self._check_open()
        self._attached.add(part)

    def attach_soon(self, part: Attached) -> None:
        """The same from any thread: the set of parts belongs to the loop."""
        if asyncio._get_running_loop() is self.loop:
            self.attach(part)
            return
        try:
            self.loop.call_soon_threadsafe(self.attach, part)
        except RuntimeError:
            raise ConnectionClosedError(_CLOSED) from None

    def detach(self, part: Attached) -> None:
        self._attached.discard(part)

    async def drain(self) -> None:
        """Bring everything that writers hold to the servers; the first failure is raised after all were tried."""
        results = await asyncio.gather(*(part.drain() for part in list(self._attached)), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

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
        if self.closed:
            raise ConnectionClosedError(_CLOSED)


def _credentials(config: Config) -> PlainCredentials | None:
    if not config.is_sasl:
        return None
    return PlainCredentials(config.security_sasl_username, config.security_sasl_password)


def pb_path(path: TablePath) -> pb.PbTablePath:
    return pb.PbTablePath(database_name=path.database_name, table_name=path.table_name)
