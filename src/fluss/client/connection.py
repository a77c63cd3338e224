# SPDX-License-Identifier: Apache-2.0
"""The connection and the tables of `fluss.aio`: everything runs on the caller's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fluss.client.arguments import wrong_argument
from fluss.client.cluster import Cluster, OnWriterId
from fluss.client.metadata_cache import TableState
from fluss.client.runner import Direct, Runner
from fluss.client.table import TableBase
from fluss.config import Config
from fluss.errors import InvalidArgumentError
from fluss.metadata import MergeMode, TablePath, table_path_of
from fluss.metadata.path import split_virtual

if TYPE_CHECKING:
    from fluss.client.admin import FlussAdmin
    from fluss.client.multi_table import MultiTable
    from fluss.client.scan import TableScan
    from fluss.client.write import AppendWriter, UpsertWriter


def check_config(config: object) -> Config:
    if not isinstance(config, Config):
        raise InvalidArgumentError(
            f"config must be a Config, got {type(config).__name__}; write Config({{'bootstrap.servers': 'host:port'}})"
        )
    return config


async def open_connection(config: Config, timeout: float | None = None) -> FlussConnection:
    """Connect for the packages above, whose rows give a MAP as a dict."""
    return FlussConnection(await Cluster.connect(check_config(config), timeout))


async def load_table(cluster: Cluster, path: TablePath | str, timeout: float | None = None) -> TableState:
    return await cluster.table(table_path_of(path), refresh=True, deadline=cluster.deadline(timeout))


class FlussTable(TableBase["AppendWriter", "UpsertWriter", "TableScan"]):
    __doc__ = TableBase.__doc__

    def _append_writer(self) -> AppendWriter:
        from fluss.client.write import AppendWriter, Sender

        cluster = self._runner.cluster
        return AppendWriter(Sender.of(cluster), self._state.table_info, cluster.config)

    def _upsert_writer(self, columns: Sequence[int] | None, mode: MergeMode) -> UpsertWriter:
        from fluss.client.write import Sender, UpsertWriter

        cluster = self._runner.cluster
        return UpsertWriter(Sender.of(cluster), self._state.table_info, cluster.config, columns, mode)

    def new_scan(self) -> TableScan:
        """A builder of scanners."""
        from fluss.client.scan import ScanPlan, TableScan

        return TableScan(ScanPlan(self._runner.cluster, self._state.table_info, view=self._view))


NOT_CREATED = (
    "A connection is made with `conn = await FlussConnection.create(config)`; without await, use "
    '`db = fluss.connect("host:port")`'
)


class ConnectionBase:
    """What the connections of both faces have in common."""

    _runner: Runner

    @property
    def config(self) -> Config:
        """The options this connection was created with."""
        return self._runner.cluster.config

    @property
    def client_id(self) -> str:
        """The option `client.id`."""
        return self.config.client_id

    @property
    def closed(self) -> bool:
        """Whether the connection was closed."""
        return self._runner.cluster.closed

    def get_admin(self) -> FlussAdmin:
        """The administration of the cluster. It may be awaited, and gives itself."""
        from fluss.client.admin import FlussAdmin  # readers and writers do without its many modules

        return FlussAdmin(self._runner)

    def metrics(self) -> dict[str, float]:
        """Counters and gauges of this connection by name (see `fluss.client.metrics.NAMES`)."""
        return self._runner.cluster.metrics.snapshot()

    def on_writer_id(self, callback: OnWriterId) -> None:
        """Have `callback` called with every new id of an idempotent writer, before rows are sent under that id.

        An asynchronous function is awaited. A program that keeps the ids can later distinguish its own rows in a log
        from those of others: `RecordBatch.writer_id`.
        """
        if not callable(callback):
            raise wrong_argument("on_writer_id", "callback", "a function of a writer id", callback)
        self._runner.cluster.on_writer_id = callback

    async def flush(self, *, timeout: float | None = None) -> None:
        """Bring everything that writers of this connection hold to the servers.

        After `timeout` seconds `DeadlineExceededError` is raised; rows that are in flight then may still be written.
        """
        for failures in await self._runner.ask(lambda cluster: cluster.drain(timeout)):
            failures.raise_first()

    def __repr__(self) -> str:
        return f"FlussConnection({self.config.bootstrap_servers!r}{', closed' if self.closed else ''})"


class FlussConnection(ConnectionBase):
    """A connection to a Fluss cluster: `async with await FlussConnection.create(config) as conn: …`.

    It belongs to the event loop it was created on.
    """

    def __init__(self, cluster: Cluster) -> None:
        if not isinstance(cluster, Cluster):
            raise InvalidArgumentError(NOT_CREATED)
        self._cluster = cluster
        self._runner = Direct(cluster)
        self._closing: asyncio.Task[bool] | None = None

    @staticmethod
    async def create(config: Config, *, timeout: float | None = None) -> FlussConnection:
        """Connect to the first bootstrap server that answers.

        `timeout` is in seconds; by default the connect timeout, and at most twice the request timeout.

        Example:
            conn = await FlussConnection.create(config, timeout=5)
        """
        connection = await open_connection(config, timeout)
        connection._cluster.map_pairs = True
        return connection

    @staticmethod
    async def connect(config: Config, *, timeout: float | None = None) -> FlussConnection:
        """Older name of `create`."""
        return await FlussConnection.create(config, timeout=timeout)

    async def get_table(self, table_path: TablePath | str, *, timeout: float | None = None) -> FlussTable:
        """Return a table to read from and write to.

        ``"shop.users$changelog"`` and ``"shop.users$binlog"`` are virtual tables, which can be scanned: the log of the
        table with what each record did, or one record per change with the rows before and after it.
        """
        path, view = split_virtual(table_path_of(table_path))
        return FlussTable(self._runner, await load_table(self._cluster, path, timeout), view)

    def get_multi_table(self) -> MultiTable:
        """Access to many tables through one writer and one scanner.

        Example:
            writer = conn.get_multi_table().new_multi_table_write().create_writer()
            await writer.append("shop.clicks", {"user": 1})
        """
        from fluss.client.multi_table import MultiTable

        return MultiTable(self.get_table)

    async def close(self) -> None:
        """End everything. Writes that were not acknowledged fail: `flush()` first, or leave an `async with` block."""
        await self._cluster.close()

    async def __aenter__(self) -> FlussConnection:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None = None, *_: object) -> bool:
        """Leave: writers are flushed if the block ended without an error, then the connection is closed."""
        try:
            if exc_type is None and not self.closed:
                await self.flush()
        finally:
            await self.close()
        return False

    def __enter__(self) -> FlussConnection:
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, *_: object) -> Literal[False]:
        # A plain `with` cannot wait: the connection closes in the next iterations of the loop. Prefer `async with`.
        self._closing = self._cluster.loop.create_task(self.__aexit__(exc_type))
        return False
