# SPDX-License-Identifier: Apache-2.0
"""The catalog: databases, tables, partitions and what belongs to them, in memory and on disk.

Reads are plain dictionary look-ups on the event loop. A change is checked on the loop, written to disk in the
catalog's own thread, and applied to memory on the loop once it is durable; changes happen one after the other. A change
that has begun is finished even when the client that asked for it goes away, so memory and disk stay equal.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from fluss.errors import LogStorageError
from fluss.metadata import DatabaseDescriptor
from fluss.server.catalog.acl import AclStore, Authorizer
from fluss.server.catalog.cluster_configs import ServerTags
from fluss.server.catalog.entries import DatabaseEntry
from fluss.server.catalog.lake import LakeState
from fluss.server.catalog.loading import load_catalog
from fluss.server.catalog.partitions import AutoPartitioner
from fluss.server.catalog.producers import ProducerOffsetStore
from fluss.server.catalog.removals import RemoteRemovals
from fluss.server.catalog.state import CatalogState
from fluss.server.config import ServerConfig

_log = logging.getLogger("fluss.server.catalog")

DEFAULT_DATABASE = "fluss"


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Catalog(CatalogState):
    """All metadata of one server. ``Catalog(data_dir, config)`` reads the disk; ``close()`` ends it."""

    def __init__(
        self,
        data_dir: str | Path,
        config: ServerConfig | Mapping[str, object] | None = None,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
        expiry_ms: Callable[[], int] | None = None,
    ) -> None:
        initial = config if isinstance(config, ServerConfig) else ServerConfig(config)
        super().__init__(data_dir, initial, clock_ms, expiry_ms or clock_ms)
        load_catalog(self)
        self.acls = AclStore(self.storage)
        self.authorizer = Authorizer(self.acls, initial)
        self.producers = ProducerOffsetStore(self.storage, self.expiry_ms)
        self.server_tags = ServerTags(self.storage, initial.integer("tablet-server.id"))
        self.removals = RemoteRemovals(self)
        self.lake = LakeState(self, self.removals)
        self.auto_partitioner = AutoPartitioner(self)
        self.configs.on_changed.append(self._invalidate_encoded)
        self.damages += self.producers.damages
        owners = (self.acls, self.server_tags, self.removals)
        self.damages += [owner.damage for owner in owners if owner.damage is not None]
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

    def _invalidate_encoded(self, _: ServerConfig) -> None:
        for entry in self.tables_by_id.values():
            entry.invalidate_encoded()

    # ------------------------------------------------------------------ ids

    async def next_writer_id(self) -> int:
        try:
            return await self.in_storage_thread(lambda: self.counters.take("writer_id"))
        except OSError as error:
            raise LogStorageError(f"no writer id can be reserved: {error}. Retry later.") from error

    # ------------------------------------------------------------------ life

    async def expire_producers(self) -> None:
        """Delete the offsets of producers whose time is over."""

        async def work() -> None:
            for entry in self.producers.expired():
                await self.in_storage_thread(partial(self.producers.erase, entry))
                self.producers.remove(entry)

        if self.producers.expired():
            await self.change(work)

    async def close(self) -> None:
        self._closed = True
        if self._changes:
            await asyncio.wait(set(self._changes))
        self.close_now()

    def close_now(self) -> None:
        """Without an event loop: only valid when no change is in progress."""
        self._closed = True
        self.remote_executor.shutdown(wait=True)
        self.executor.shutdown(wait=True)
        try:
            self.counters.close()
        except OSError as error:
            # The rest of the reserved ids is skipped, no more.
            _log.error("the counters of the catalog cannot be written: %s", error)
