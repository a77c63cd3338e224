# SPDX-License-Identifier: Apache-2.0
"""Where rows of a bucket are kept by key: a dict in memory, and what does not fit in a RocksDB on disk.

The log is the truth and this is a cache of it, so the disk part is written without a log of its own: with every spill
it stores up to which offset of the changelog it holds everything, and the rest is replayed from the log. RocksDB was
chosen over lmdb because it checks what it reads: a flipped byte becomes an error (and a rebuild), never a wrong row.
"""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from heapq import merge
from itertools import takewhile
from pathlib import Path
from typing import Any

from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteBatch, WriteOptions

logger = logging.getLogger("fluss.server.kv")

Changes = dict[bytes, "bytes | None"]
"""Key to its new value; None removes it."""

_ROW = b"r"
_ROW_END = b"s"
_META = b"m"
_ENTRY_OVERHEAD_BYTES = 180
"""What a dict entry and its two byte strings cost beside their contents."""

_MISSING = object()


class DamagedStoreError(Exception):
    """The files of a store cannot be read; its contents are to be rebuilt from the log."""


class StoreBudget:
    """Memory that all stores of a server share. When it is used up the largest store moves to disk."""

    def __init__(self, limit_bytes: int, executor: Executor) -> None:
        self.limit_bytes = limit_bytes
        self.executor = executor
        self._stores: set[Store] = set()

    def join(self, store: Store) -> None:
        self._stores.add(store)

    def leave(self, store: Store) -> None:
        self._stores.discard(store)

    def check(self) -> None:
        """Spill until memory fits again; the writing itself happens in a thread."""
        used = sum(store.memory_bytes for store in self._stores)
        while used > self.limit_bytes:
            largest = max(self._stores, key=lambda store: store.memory_bytes)
            size = largest.memory_bytes
            if not size or not largest.start_spill():
                return
            used -= size


class Store:
    """Rows of one bucket by key, in unsigned byte order where order matters.

    `apply` and `start_spill` belong to the event loop; reads may come from any thread.
    """

    def __init__(self, folder: Path, budget: StoreBudget) -> None:
        self._folder = folder
        self.budget = budget
        self._memory: Changes = {}
        self._spilling: Changes = {}
        self._spill: Future[None] | None = None
        self._db: Rdict | None = None
        self._lock = threading.Lock()
        self.memory_bytes = 0
        self.applied_offset = 0
        """Every change of the changelog below this offset is in here."""
        self.row_count = 0
        self.closed = False
        budget.join(self)

    # -- opening and closing ----------------------------------------------------------------------------------------

    def open(self) -> None:
        """Find what is on disk. Raises `DamagedStoreError` when it cannot be trusted."""
        if not (self._folder / "CURRENT").exists():
            self.wipe()
            return
        try:
            self._db = _open_db(self._folder)
            raw = self._db.get(_META)
        except Exception as error:
            self._close_db()
            raise DamagedStoreError(f"the store in '{self._folder}' cannot be opened: {error}") from None
        try:
            meta = json.loads(raw) if raw is not None else {"offset": 0, "rows": 0}
            self.applied_offset, self.row_count = int(meta["offset"]), int(meta["rows"])
        except (ValueError, KeyError, TypeError, IndexError) as error:
            self._close_db()
            raise DamagedStoreError(f"the store in '{self._folder}' has a damaged head: {error}") from None

    def wipe(self) -> None:
        """Forget everything, on disk too."""
        self._wait_for_spill()
        self._close_db()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._memory, self._spilling = {}, {}
        self.memory_bytes = 0
        self.applied_offset = self.row_count = 0

    def close(self, *, keep: bool) -> None:
        """Put what is in memory on disk (`keep`), and let go of the files."""
        if self.closed:
            return
        self._wait_for_spill()
        if keep and self._memory:
            self.start_spill()
            self._wait_for_spill()
        self.closed = True
        self.budget.leave(self)
        self._close_db()

    def _close_db(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    # -- reading ----------------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        found: Any = self._memory.get(key, _MISSING)
        if found is _MISSING:
            found = self._spilling.get(key, _MISSING)
            if found is _MISSING:
                return self._from_disk([key])[0] if self._db is not None else None
        return found  # type: ignore[no-any-return]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys in their order; None where a key is absent."""
        memory = self._memory
        if self._db is None and not self._spilling:
            return [memory.get(key) for key in keys]
        spilling = self._spilling
        found: list[Any] = [memory.get(key, _MISSING) for key in keys]
        for i, value in enumerate(found):
            if value is _MISSING:
                found[i] = spilling.get(keys[i], _MISSING)
        at = [i for i, value in enumerate(found) if value is _MISSING]
        if at:
            values = self._from_disk([keys[i] for i in at]) if self._db is not None else [None] * len(at)
            for i, value in zip(at, values):
                found[i] = value
        return found

    def _from_disk(self, keys: list[bytes]) -> list[bytes | None]:
        db = self._db
        assert db is not None
        try:
            return db.get([_ROW + key for key in keys])  # type: ignore[no-any-return]
        except Exception as error:
            raise DamagedStoreError(f"the store in '{self._folder}' cannot be read: {error}") from None

    def items(self, prefix: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Keys and values in key order, from a view that later changes do not touch."""
        memory = sorted((item for item in self._memory.items() if item[0].startswith(prefix)), key=_key_of)
        spilling = sorted((item for item in self._spilling.items() if item[0].startswith(prefix)), key=_key_of)
        sources: list[Iterator[tuple[bytes, int, bytes | None]]] = [
            ((key, 0, value) for key, value in memory),
            ((key, 1, value) for key, value in spilling),
        ]
        if self._db is not None:
            sources.append(self._disk_items(prefix))
        return _newest(merge(*sources))

    def _disk_items(self, prefix: bytes) -> Iterator[tuple[bytes, int, bytes | None]]:
        assert self._db is not None
        snapshot = self._db.snapshot()
        begin = _ROW + prefix

        def read() -> Iterator[tuple[bytes, int, bytes | None]]:
            try:
                for key, value in takewhile(lambda item: item[0].startswith(begin), snapshot.items(from_key=begin)):
                    yield key[1:], 2, value
            except (RuntimeError, OSError) as error:
                raise DamagedStoreError(f"the store in '{self._folder}' cannot be read: {error}") from None

        return read()

    # -- writing ----------------------------------------------------------------------------------------------------

    def apply(self, changes: Mapping[bytes, bytes | None], end_offset: int, rows_added: int) -> None:
        """Take in the changes of the changelog up to `end_offset`."""
        self._memory.update(changes)
        self.memory_bytes += sum(
            len(key) + (len(value) if value is not None else 0) for key, value in changes.items()
        ) + _ENTRY_OVERHEAD_BYTES * len(changes)
        self.applied_offset = end_offset
        self.row_count += rows_added

    def start_spill(self) -> bool:
        """Begin to move memory to disk in a thread. False if that is under way already."""
        if self._spill is not None and not self._spill.done():
            return False
        if self._spill is not None and self._spill.exception() is not None:
            # What could not be written stays in memory and is tried again together with what came since.
            self._spilling.update(self._memory)
            logger.error("the store in '%s' could not be written: %s", self._folder, self._spill.exception())
        else:
            self._spilling = self._memory
        self._memory = {}
        self.memory_bytes = 0
        meta = json.dumps({"offset": self.applied_offset, "rows": self.row_count}).encode()
        self._spill = self.budget.executor.submit(self._write, self._spilling, meta)
        return True

    def _write(self, changes: Changes, meta: bytes) -> None:
        if self._db is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._db = _open_db(self._folder)
        batch = WriteBatch(raw_mode=True)
        for key, value in changes.items():
            if value is None:
                batch.delete(_ROW + key)
            else:
                batch.put(_ROW + key, value)
        batch.put(_META, meta)
        options = WriteOptions()
        options.disable_wal = True
        self._db.write(batch, options)
        self._db.flush(True)
        # Readers look here before the disk, so it may go only now.
        self._spilling = {}

    def _wait_for_spill(self) -> None:
        if self._spill is not None:
            error = self._spill.exception()
            if error is not None:
                logger.error("the store in '%s' could not be written: %s", self._folder, error)
            self._spill = None


def _key_of(item: tuple[bytes, Any]) -> bytes:
    return item[0]


def _newest(items: Iterator[tuple[bytes, int, bytes | None]]) -> Iterator[tuple[bytes, bytes]]:
    """Of equal keys the first one counts; removed keys are left out."""
    last: bytes | None = None
    for key, _, value in items:
        if key == last:
            continue
        last = key
        if value is not None:
            yield key, value


_CACHE_BYTES = 64 * 1024 * 1024
_cache: Cache | None = None


def _open_db(folder: Path) -> Rdict:
    global _cache
    if _cache is None:
        _cache = Cache(_CACHE_BYTES)
    table = BlockBasedOptions()
    table.set_block_cache(_cache)
    # Most keys of an insert are not there yet: a bloom filter answers that without reading a block.
    table.set_bloom_filter(10, False)
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_keep_log_file_num(1)
    options.set_max_open_files(64)
    return Rdict(str(folder), options)
