# SPDX-License-Identifier: Apache-2.0
"""The connection and the tables of `fluss`: the same client, run on a background loop.

Awaited calls can be awaited on any event loop; plain calls block the calling thread and are safe inside a running event
loop, because the network runs elsewhere. Nothing is decided here: every call goes to the class of the same name in
`fluss.aio`. Writers and scanners are generated from those (`blocking_writers.py`, `blocking_scanners.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from fluss.client import connection as core
from fluss.client.cluster import Cluster
from fluss.client.metadata_cache import TableState
from fluss.client.runner import Background
from fluss.client.table import TableBase
from fluss.config import Config
from fluss.errors import ConnectionClosedError, InvalidArgumentError
from fluss.metadata import MergeMode, TablePath, table_path_of
from fluss.metadata.path import split_virtual
from fluss.net.background import LoopThread

if TYPE_CHECKING:
    from fluss.client.blocking_multi_table import MultiTable
    from fluss.client.blocking_scanners import TableScan
    from fluss.client.blocking_writers import AppendWriter, UpsertWriter


class FlussTable(TableBase["AppendWriter", "UpsertWriter", "TableScan"]):
    __doc__ = TableBase.__doc__

    def __init__(self, background: Background, state: TableState, view: str | None = None) -> None:
        super().__init__(background, state, view)
        self._background = background
        self._core = core.FlussTable(background, state, view)

    def _append_writer(self) -> AppendWriter:
        from fluss.client.blocking_writers import AppendWriter

        return AppendWriter(self._background.call(self._core._append_writer), self._background)

    def _upsert_writer(self, columns: Sequence[int] | None, mode: MergeMode) -> UpsertWriter:
        from fluss.client.blocking_writers import UpsertWriter

        return UpsertWriter(self._background.call(self._core._upsert_writer, columns, mode), self._background)

    def new_scan(self) -> TableScan:
        """A builder of scanners."""
        from fluss.client.blocking_scanners import TableScan

        return TableScan(self._core.new_scan(), self._background)


class FlussConnection(core.ConnectionBase):
    """A connection to a Fluss cluster: `with await FlussConnection.create(config) as conn: …`.

    It may be used from any thread and from several event loops.
    """

    def __init__(self, background: Background) -> None:
        if not isinstance(background, Background):
            raise InvalidArgumentError(core.NOT_CREATED)
        self._background = self._runner = background

    @staticmethod
    async def create(config: Config, *, timeout: float | None = None) -> FlussConnection:
        """Connect to the first bootstrap server that answers.

        `timeout` is in seconds; by default the connect timeout, and at most twice the request timeout.

        Example:
            conn = await FlussConnection.create(config, timeout=5)
        """
        thread = LoopThread()
        try:
            cluster = await thread.wrap(Cluster.connect(core.check_config(config), timeout))
        except BaseException:
            thread.close()
            raise
        return FlussConnection(Background(thread, cluster))

    @staticmethod
    async def connect(config: Config, *, timeout: float | None = None) -> FlussConnection:
        """Older name of `create`."""
        return await FlussConnection.create(config, timeout=timeout)

    @property
    def closed(self) -> bool:
        """Whether the connection was closed."""
        return self._background.closed or super().closed

    async def get_table(self, table_path: TablePath | str, *, timeout: float | None = None) -> FlussTable:
        """Return a table to read from and write to.

        ``"shop.users$changelog"`` and ``"shop.users$binlog"`` are virtual tables, which can be scanned: the log of the
        table with what each record did, or one record per change with the rows before and after it.
        """
        path, view = split_virtual(table_path_of(table_path))
        state = await self._background.ask(lambda cluster: core.load_table(cluster, path, timeout))
        return FlussTable(self._background, state, view)

    def get_multi_table(self) -> MultiTable:
        """Access to many tables through one writer and one scanner.

        Example:
            with conn.get_multi_table().new_multi_table_write().create_writer() as writer:
                writer.append("shop.clicks", {"user": 1})
        """
        from fluss.client import multi_table
        from fluss.client.blocking_multi_table import MultiTable

        background = self._background

        async def open_table(path: TablePath) -> core.FlussTable:
            return core.FlussTable(background, await core.load_table(background.cluster, path))

        return MultiTable(multi_table.MultiTable(open_table), background)

    def close(self) -> None:
        """End everything; may be called again.

        Writes that were not acknowledged fail: `await conn.flush()` first, or leave a `with` block.
        """
        self._background.close()

    def __enter__(self) -> FlussConnection:
        return self

    def __exit__(self, exc_type: type[BaseException] | None = None, *_: object) -> Literal[False]:
        """Leave: writers are flushed if the block ended without an error, then the connection is closed."""
        try:
            if exc_type is None and not self.closed:
                for failures in self._background.run(self._background.cluster.drain()):
                    failures.raise_first()
        finally:
            self.close()
        return False

    async def __aenter__(self) -> FlussConnection:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None = None, *_: object) -> bool:
        """Leave: writers are flushed if the block ended without an error, then the connection is closed."""
        try:
            if exc_type is None and not self.closed:
                await self.flush()
            if not self.closed:
                with contextlib.suppress(ConnectionClosedError):
                    await self._background.ask(lambda cluster: cluster.close())
        finally:
            self.close()
        return False
