# SPDX-License-Identifier: Apache-2.0
"""The catalog: databases, tables, partitions and what belongs to them, in memory and on disk.

Reads are plain dictionary look-ups on the event loop. A change is checked on the loop, written to disk in the
catalog's own thread, and applied to memory on the loop once it is durable; changes happen one after the other. A change
that has begun is finished even when the client that asked for it goes away, so memory and disk stay equal.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from fluss.errors import DatabaseNotExistError, LogStorageError, TableNotExistError, UnknownServerError
from fluss.metadata import DatabaseDescriptor, TableBucket, TablePath
from fluss.server.catalog.acl import AclStore, Authorizer
from fluss.server.catalog.cluster_configs import ClusterConfigs
from fluss.server.catalog.counters import Counters
from fluss.server.catalog.documents import Damage, DocumentStore
from fluss.server.catalog.entries import DamagedTable, DatabaseEntry, PartitionEntry, TableEntry
from fluss.server.catalog.files import FileLayer
from fluss.server.catalog.lake import LakeBooks
from fluss.server.catalog.lake_hook import LakeHook
from fluss.server.catalog.loading import load_catalog
from fluss.server.catalog.partitions import AutoPartitioner
from fluss.server.catalog.producers import ProducerOffsets
from fluss.server.catalog.server_tags import ServerTags
from fluss.server.catalog.storage import CatalogStorage
from fluss.server.config import ServerConfig

_log = logging.getLogger("fluss.server.catalog")

DEFAULT_DATABASE = "fluss"

T = TypeVar("T")
TableListener = Callable[[TableEntry], "Awaitable[None] | None"]
PartitionListener = Callable[[TableEntry, PartitionEntry], "Awaitable[None] | None"]


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Catalog:
    """All metadata of one server. ``Catalog(data_dir, config)`` reads the disk; ``close()`` ends it."""

    def __init__(
        self,
        data_dir: str | Path,
        config: ServerConfig | Mapping[str, object] | None = None,
        *,
        files: FileLayer | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self.data_dir = Path(data_dir)
        self.clock_ms = clock_ms
        self.store = DocumentStore(self.data_dir / "catalog", files)
        self.storage = CatalogStorage(self.store)
        self.storage.prepare()
        self.counters = Counters(
            self.store, self.storage.root / "counters.doc", fresh=not any(self.storage.object_paths())
        )
        initial = config if isinstance(config, ServerConfig) else ServerConfig(config)
        self.configs = ClusterConfigs(initial, self.storage)
        self.damages: list[Damage] = [self.configs.damage] if self.configs.damage else []
        self.databases: dict[str, DatabaseEntry] = {}
        self.tables_by_id: dict[int, TableEntry] = {}
        self.damaged_tables_by_id: dict[int, DamagedTable] = {}
        self.partitions_by_id: dict[int, tuple[TableEntry, PartitionEntry]] = {}

        # Called on the event loop after a change is durable and visible; an awaitable result is awaited before the
        # client is answered, so a table is ready for writes when CREATE_TABLE returns.
        self.on_table_created: list[TableListener] = []
        self.on_table_dropped: list[TableListener] = []
        self.on_table_altered: list[TableListener] = []
        self.on_partition_created: list[PartitionListener] = []
        self.on_partition_dropped: list[PartitionListener] = []

        self.lake_hook: LakeHook | None = None
        self.rebalance_id: str | None = None
        """Of the last rebalance asked for; it was complete at once."""

        self._lock = asyncio.Lock()
        self._maintenance: list[asyncio.Task[None]] = []
        self._changes: set[asyncio.Task[Any]] = set()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="fluss-catalog")
        self._closed = False
        load_catalog(self)
        self.acls = AclStore(self.storage)
        self.authorizer = Authorizer(self.acls, initial)
        self.producers = ProducerOffsets(self.storage, clock_ms)
        self.server_tags = ServerTags(self.storage, initial.integer("tablet-server.id"))
        self.lake = LakeBooks(self)
        self.auto_partitioner = AutoPartitioner(self)
        self.configs.on_changed.append(self._forget_encoded)
        self.damages += self.producers.damages
        self.damages += [damage for damage in (self.acls.damage, self.server_tags.damage) if damage is not None]
        for damage in self.damages:
            _log.error("damaged catalog document, its object is out of service: %s", damage)
        if not self.databases:
            self._create_default_database()
        self.coordinator_epoch = self.counters.take("coordinator_epoch")

    def _create_default_database(self) -> None:
        now_ms = self.clock_ms()
        entry = DatabaseEntry(self.counters.take("database_id"), DEFAULT_DATABASE, DatabaseDescriptor(), now_ms, now_ms)
        self.storage.write_database(entry)
        self.databases[entry.name] = entry

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

    def partition_by_id(self, partition_id: int) -> tuple[TableEntry, PartitionEntry] | None:
        return self.partitions_by_id.get(partition_id)

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

    @property
    def remote_data_dir(self) -> str:
        return self.configs.initial.text("remote.data.dir") or str(self.data_dir.absolute() / "remote")

    def _forget_encoded(self, _: ServerConfig) -> None:
        for entry in self.tables_by_id.values():
            entry.forget_encoded()

    # ------------------------------------------------------------------ ids

    async def next_writer_id(self) -> int:
        try:
            return await self.in_storage_thread(lambda: self.counters.take("writer_id"))
        except OSError as error:
            raise LogStorageError(f"no writer id can be reserved: {error}. Retry later.") from error

    # ------------------------------------------------------------------ changes

    async def in_storage_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def change(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run one change alone, to its end."""
        if self._closed:
            raise UnknownServerError("the server is shutting down")
        task = asyncio.get_running_loop().create_task(self._change(work))
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        return await asyncio.shield(task)

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
                raise UnknownServerError(f"the catalog could not be written, nothing was changed: {error}") from error

    async def notify(self, listeners: list[Any], *args: object) -> None:
        for listener in tuple(listeners):
            try:
                result = listener(*args)
                if inspect.isawaitable(result):
                    await result
            except Exception:
                # The change itself is durable; a listener that fails must not make the client believe otherwise.
                _log.exception("a listener of the catalog failed")

    # ------------------------------------------------------------------ life

    def start(self) -> list[asyncio.Task[None]]:
        """Begin the periodic work: auto partitioning and the expiry of producer offsets.

        The caller may cancel the tasks; `close` does so in any case.
        """
        config = self.configs.initial
        for option, work in (
            ("auto-partition.check.interval", self.auto_partitioner.run),
            ("coordinator.producer-offsets.cleanup-interval", self._expire_producers),
        ):
            seconds = config.integer(option) / 1000
            self._maintenance.append(asyncio.get_running_loop().create_task(self._repeat(option, seconds, work)))
        return list(self._maintenance)

    async def _repeat(self, what: str, seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        # The first round comes at once: time has passed while the server was down.
        while True:
            try:
                await work()
            except Exception:
                # Work that failed once is tried again next round; the server serves on.
                _log.exception("the periodic work of '%s' failed", what)
            await asyncio.sleep(seconds)

    async def _expire_producers(self) -> None:
        async def work() -> None:
            for entry in self.producers.expired():
                await self.in_storage_thread(partial(self.producers.erase, entry))
                self.producers.forget(entry)

        if self.producers.expired():
            await self.change(work)

    async def close(self) -> None:
        for task in self._maintenance:
            task.cancel()
        await asyncio.gather(*self._maintenance, return_exceptions=True)
        self._closed = True
        if self._changes:
            await asyncio.wait(set(self._changes))
        self.close_now()

    def close_now(self) -> None:
        """Without an event loop: only valid when no change is under way."""
        self._closed = True
        self._executor.shutdown(wait=True)
        try:
            self.counters.close()
        except OSError as error:
            # The rest of the reserved ids is skipped, no more.
            _log.error("the counters of the catalog cannot be written: %s", error)
