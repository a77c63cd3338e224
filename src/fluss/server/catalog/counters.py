# SPDX-License-Identifier: Apache-2.0
"""Numbers that are never given out twice, not even after a crash."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from fluss.server import disk
from fluss.server.catalog.documents import DamagedDocumentError, DocumentStore

_log = logging.getLogger("fluss.server.catalog")

# A block is reserved on disk before its first number is used; a crash wastes at most the rest of the block.
BLOCK_SIZES = {"database_id": 16, "table_id": 32, "partition_id": 256, "writer_id": 1024, "coordinator_epoch": 1}


class Counters:
    """All id counters of the server in one document."""

    def __init__(self, store: DocumentStore, path: Path, *, fresh: bool) -> None:
        """``fresh``: nothing else is in the catalog, so a missing document means a new server, not a lost one."""
        self._store = store
        self._path = path
        self._lock = threading.Lock()
        self._limit = dict.fromkeys(BLOCK_SIZES, 0)
        self.damage: str | None = None
        self._load(fresh)
        self._next = dict(self._limit)

    def _load(self, fresh: bool) -> None:
        if fresh and not disk.exists(self._path) and not disk.exists(self._previous):
            return
        try:
            self._adopt(self._store.read(self._path)[1], blocks_extra=0)
        except DamagedDocumentError as error:
            self.damage = str(error)
            _log.error("%s; ids are skipped to keep them unique", error)
            try:
                # The version before is at most one reservation behind, so two blocks on top are certainly unused.
                self._adopt(self._store.read(self._previous)[1], blocks_extra=2)
            except DamagedDocumentError:
                # Nothing is known about ids of dropped objects. Seconds since 1970 are far above any counter that
                # started from 0, and a second loss of the same file gets a later, larger start.
                self._limit = dict.fromkeys(BLOCK_SIZES, int(time.time()))

    def _adopt(self, content: dict[str, object], blocks_extra: int) -> None:
        for name, block in BLOCK_SIZES.items():
            value = content.get(name, 0)
            limit = value if isinstance(value, int) and value >= 0 else 0
            self._limit[name] = limit + blocks_extra * block

    @property
    def _previous(self) -> Path:
        return self._path.with_name(self._path.name + ".prev")

    def at_least(self, name: str, value: int) -> None:
        """Never hand out a number below ``value`` (ids found on disk while loading)."""
        with self._lock:
            if self._next[name] < value:
                self._next[name] = value
                self._limit[name] = max(self._limit[name], value)

    def take(self, name: str) -> int:
        """The next number; may write to disk (once per block)."""
        with self._lock:
            number = self._next[name]
            if number >= self._limit[name]:
                wanted = dict(self._limit)
                wanted[name] = number + BLOCK_SIZES[name]
                self._store.write(self._path, {"kind": "counters"}, wanted)
                self._limit = wanted
            self._next[name] = number + 1
            return number

    def close(self) -> None:
        """Give the unused rest of every block back, so that a clean restart continues without a gap."""
        with self._lock:
            if self._next != self._limit and self._store.failed is None:
                self._store.write(self._path, {"kind": "counters"}, self._next)
                self._limit = dict(self._next)
