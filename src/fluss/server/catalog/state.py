# SPDX-License-Identifier: Apache-2.0
"""What the catalog holds, and how it is changed: the part that loading, partitions and the lake build on."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from fluss.errors import DatabaseNotExistError, TableNotExistError, UnknownServerError
from fluss.metadata import TableBucket, TableInfo, TablePath
from fluss.server.catalog.cluster_configs import ClusterConfigs
from fluss.server.catalog.documents import Counters, Damage, DocumentStore
from fluss.server.catalog.entries import DamagedTable, DatabaseEntry, Dropped, PartitionEntry, TableEntry
from fluss.server.catalog.lake_hook import LakeHook
from fluss.server.catalog.storage import CatalogStorage
from fluss.server.config import ServerConfig

_log = logging.getLogger("fluss.server.catalog")

T = TypeVar("T")
TableListener = Callable[[TableEntry], "Awaitable[None] | None"]
DropListener = Callable[[Dropped], "Awaitable[None] | None"]


class CatalogState:
    """All databases, tables and partitions, with the thread and the lock through which they change."""

    def __init__(
        self, data_dir: str | Path, initial: ServerConfig, clock_ms: Callable[[], int], expiry_ms: Callable[[], int]
    ) -> None:
        self.data_dir = Path(data_dir)
        self.clock_ms, self.expiry_ms = clock_ms, expiry_ms
        self.store = DocumentStore(self.data_dir / "catalog")
        self.storage = CatalogStorage(self.store)
        self.storage.prepare()
        self.counters = Counters(
            self.store, self.storage.root / "counters.doc", fresh=not any(self.storage.object_paths())
        )
        self.configs = ClusterConfigs(initial, self.storage)
        self.damages: list[Damage] = [self.configs.damage] if self.configs.damage else []
        self.databases: dict[str, DatabaseEntry] = {}
        self.tables_by_id: dict[int, TableEntry] = {}
        self.damaged_tables_by_id: dict[int, DamagedTable] = {}
        self.partitions_by_id: dict[int, tuple[TableEntry, PartitionEntry]] = {}
        self.unerased: dict[str, DatabaseEntry] = {}
        """Dropped databases whose files could not be deleted. Their tables are known by name, so it is not free yet."""
        self.unfinished_drops: list[TableEntry] = []
        """Tables of databases whose drop was finished at this start. Their data is still there."""

        # Called on the event loop after a change is durable and visible; an awaitable result is awaited before the
        # client is answered, so a table is ready for writes when CREATE_TABLE returns.
        self.on_table_created: list[TableListener] = []
        self.on_table_altered: list[TableListener] = []
        self.on_dropped: list[DropListener] = []

        self.lake_hook: LakeHook | None = None
        self.rebalance_id: str | None = None
        """Of the last rebalance asked for; it was complete at once."""

        self._lock = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self.executor = ThreadPoolExecutor(1, thread_name_prefix="fluss-catalog")
        self.remote_executor = ThreadPoolExecutor(1, thread_name_prefix="fluss-lake")
        """For the remote store, which may take minutes to answer: all changes and writer ids need the other one."""
        self._closed = False

    # ------------------------------------------------------------------ reads

    def database(self, name: str) -> DatabaseEntry:
        entry = self.databases.get(name)
        if entry is None:
            raise self.no_database(name)
        return entry

    @staticmethod
    def no_database(name: str) -> DatabaseNotExistError:
        """The answer for a database that does not exist, or that the caller may not know of."""
        return DatabaseNotExistError(f"Database {name} does not exist.")

    def find_table(self, path: TablePath) -> TableEntry | None:
        """The table of that name or None; a damaged table raises, because it is there but cannot be used."""
        database = self.databases.get(path.database_name)
        entry = database.tables.get(path.table_name) if database else None
        if isinstance(entry, DamagedTable):
            raise entry.error()
        return entry

    def table(self, path: TablePath) -> TableEntry:
        entry = self.find_table(path)
        if entry is None:
            raise TableNotExistError(f"Table '{path}' does not exist.")
        return entry

    def table_by_id(self, table_id: int) -> TableEntry | None:
        return self.tables_by_id.get(table_id)

    def partition_by_id(self, partition_id: int | None) -> tuple[TableEntry, PartitionEntry] | None:
        return None if partition_id is None else self.partitions_by_id.get(partition_id)

    def tables(self) -> Iterator[TableEntry]:
        return iter(tuple(self.tables_by_id.values()))

    def owns_data_of(self, table_id: int, partition_id: int | None = None) -> bool:
        """Whether data of that table or partition belongs to something in the catalog.

        Data for which this is False is left over from a drop that a crash interrupted and can be deleted. Damaged
        tables still own their data.
        """
        if table_id in self.damaged_tables_by_id:
            return True
        if table_id not in self.tables_by_id:
            return False
        if partition_id is None:
            return True
        owner = self.partitions_by_id.get(partition_id)
        return owner is not None and owner[0].table_id == table_id

    def lake_end_offset(self, bucket: TableBucket) -> int | None:
        """Everything of the bucket below this offset is in the lake; None when nothing is known to be."""
        entry = self.tables_by_id.get(bucket.table_id)
        if entry is None or entry.lake is None:
            return None
        return entry.lake.end_offset(bucket.partition_id, bucket.bucket_id)

    def log_ttl_ms(self, info: TableInfo) -> int:
        """How long the log of a table is kept; 0 for ever."""
        is_only_copy = not info.has_primary_key() and not info.config.lake_enabled
        if is_only_copy and "table.log.ttl" not in info.properties:
            # Clients see the default of Apache Fluss; a server on one machine does not delete rows unasked.
            return self.configs.current.integer("log.retention.default")
        return info.config.log_ttl_ms

    @property
    def remote_data_dir(self) -> str:
        return self.configs.initial.text("remote.data.dir") or str(self.data_dir.absolute() / "remote")

    # ------------------------------------------------------------------ changes

    async def in_storage_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def change(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run one change alone, to its end."""
        if self._closed:
            raise UnknownServerError("the server is shutting down")
        task = self.spawn(self._change(work))
        try:
            return await asyncio.shield(task)
        finally:
            del task  # it keeps its error, whose traceback keeps this frame

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin work that `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return task

    async def _change(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with self._lock:
            if self.store.failed is not None:
                try:
                    await self.in_storage_thread(self.store.recover)
                except OSError as error:
                    raise UnknownServerError(
                        f"the catalog refuses changes, because the disk fails ({self.store.failed}; now: {error}). "
                        "Retry later."
                    ) from error
            try:
                return await work()
            except OSError as error:
                text = f"the catalog could not be written, nothing was changed: {error}"
                if self.store.failed is not None:
                    text += ". Until the disk confirms a later change, a power failure may bring this one back"
                raise UnknownServerError(text) from error

    async def notify(self, listeners: list[Any], *args: object) -> None:
        for listener in tuple(listeners):
            try:
                result = listener(*args)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                # The change itself is durable; a listener that fails must not make the client believe otherwise.
                _log.exception("a listener of the catalog failed")
