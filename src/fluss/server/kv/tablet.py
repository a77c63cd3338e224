# SPDX-License-Identifier: Apache-2.0
"""The state of one bucket of a primary-key table, kept in step with its changelog.

A write reads the old rows, makes the changelog batch, appends it, and then waits with its changes until that batch is
committed: lookups see committed rows only, writes see everything before them. The state is a cache of the newest
snapshot and the log: on the first use after a start, what the store lacks is replayed from the log, and a store that
cannot be trusted is dropped and rebuilt from both.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from fluss._arrow_buffers import array_of, numpy_of
from fluss.errors import FormatError, KvStorageError, UnknownServerError
from fluss.metadata import BigIntType, ChangeType, TableInfo
from fluss.net.eager import complete
from fluss.records import LogBatch, decode_log_batch, iter_log_batches
from fluss.rows import kv_key_encoder
from fluss.server.catalog import TableEntry
from fluss.server.kv import ordered
from fluss.server.kv.changes import Outcome
from fluss.server.kv.ordered import Changes, DamagedStoreError, Values, first_values, sorted_runs
from fluss.server.kv.prepare import Preparation, Preparers, Write
from fluss.server.kv.sequence import NumberSequence
from fluss.server.kv.snapshots import MEMORY_BYTES_MAX, BucketSnapshots, NumberRange, restore
from fluss.server.kv.store import Checkpointed, Store, entry_bytes
from fluss.server.kv.values import ValueCodec
from fluss.server.log import reader
from fluss.server.log.appends import AppendResult
from fluss.server.log.tablet import LogTablet
from fluss.server.scheduler import Scheduler, Share, TimeSlice

logger = logging.getLogger("fluss.server.kv")

T = TypeVar("T")

_REPLAY_BYTES = 4 * 1024 * 1024
_INLINE_RECORDS_MAX = 64
_INLINE_SORT_MAX = 10_000
_INLINE_ROWS_MAX = 1_000
"""Fewer rows are read in order at once, more of them in slices from a view of their own. In memory by key as well."""
_KEYS_PER_STEP = 10_000
"""Looking up so many keys in memory keeps the other threads waiting for a few milliseconds."""
_READ_BYTES_MAX = 128 * 1024 * 1024
_ATTEMPTS = 3
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class _Pending:
    """Changes whose changelog is appended but not committed yet."""

    end_offset: int
    changes: Changes
    rows_added: int
    highest_number: int
    size_bytes: int


class KvTablet:
    """One bucket of a primary-key table."""

    def __init__(
        self,
        entry: TableEntry,
        log: LogTablet,
        store: Store,
        executor: Executor,
        numbers: NumberSequence | None,
        snapshots: BucketSnapshots | None = None,
        preparers: Preparers | None = None,
    ) -> None:
        self.entry = entry
        self.log = log
        self.store = store
        self.closed = False
        self._executor = executor
        self._numbers = numbers
        self._snapshots = snapshots
        self._preparers = preparers or Preparers(executor)
        self._pending: deque[_Pending] = deque()
        self._writes = asyncio.Lock()
        self._opening: asyncio.Task[None] | None = None
        self._replaying = False
        self._codec: ValueCodec | None = None
        self._truncations = 0
        store.on_damaged = self.damaged
        log.before_commit.append(self._commit)
        log.on_truncated.append(self._truncated)

    @property
    def info(self) -> TableInfo:
        return self.entry.table_info

    @property
    def codec(self) -> ValueCodec:
        info = self.info
        if self._codec is None or self._codec.schema_id != info.schema_id:
            self._codec = ValueCodec(info.kv_format, self.entry.schemas, info.schema_id)
        return self._codec

    # -- opening ----------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until the state is in step with the log. Quick once it is."""
        if self.closed:
            raise KvStorageError(f"{self.log.bucket} is closed: its table was dropped or the server stops")
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        opening = self._opening
        if not opening.done():
            await asyncio.wait((opening,))
        try:
            if opening.exception() is not None and self._opening is opening:
                self._opening = None  # the next one tries again: a damaged file may have been mended
            opening.result()
        finally:
            del opening  # it keeps its error, whose traceback keeps this frame

    @property
    def _is_ready(self) -> bool:
        opening = self._opening
        return not self.closed and opening is not None and opening.done() and opening.exception() is None

    async def _open(self) -> None:
        self.log.check_usable()
        self.store.clear_memory()
        try:
            await self._in_thread(self.store.open)
            # The log lost its end, or the store belongs to another log: only the log counts.
            is_usable = self.log.start_offset <= self.store.applied_offset
            is_usable = is_usable and self.store.reaches_offset <= self.log.high_watermark
        except DamagedStoreError as error:
            logger.error("%s; it is rebuilt", error)
            is_usable = False
        if not is_usable or (self.store.applied_offset == 0 and self.log.high_watermark > 0):
            await self._rebuild()
        await self._replay()
        if self._snapshots is not None:
            self._snapshots.opened(self.log.high_watermark)

    async def _rebuild(self) -> None:
        """Begin with the newest snapshot that can be used, or with nothing."""
        await self._in_thread(self.store.wipe)
        if self._snapshots is not None:
            start, end = self.log.start_offset, self.log.high_watermark
            await self._in_thread(restore, self._snapshots, self.store, start, end)
            self.store.budget.check(self.store)

    async def _reopen(self) -> None:
        self.store.clear_memory()
        await self._rebuild()
        await self._replay()

    def damaged(self, error: DamagedStoreError) -> None:
        """Rebuild the store; callers of `ready` wait for it."""
        if self._opening is not None and self._opening.done() and not self.closed:
            logger.error("%s; it is rebuilt", error)
            self._replaying = True
            self._opening = asyncio.ensure_future(self._reopen())

    async def _replay(self) -> None:
        """Bring the store up to the end of the log. What is committed meanwhile waits.

        After an error as well: the store lacks what comes before it, until another attempt succeeds.
        """
        self._replaying = True
        offset = self.store.applied_offset
        if offset < self.log.start_offset:
            raise UnknownServerError(
                f"the state of {self.log.bucket} cannot be rebuilt: its changelog begins at offset "
                f"{self.log.start_offset}, and no snapshot that can be read reaches that far (the state ends at "
                f"{offset}). Restore the data folder from a copy, or drop the table."
            )
        if offset < self.log.high_watermark:
            logger.info("replaying %d offsets of %s", self.log.high_watermark - offset, self.log.bucket)
        while offset < self.log.high_watermark:
            plan = reader.plan_read(self.log, offset, _REPLAY_BYTES, first_batch_always=True)
            outcome, next_offset = await self._in_thread(self._replay_part, plan, offset)
            if next_offset <= offset:
                raise FormatError(f"the log of {self.log.bucket} cannot be replayed beyond offset {offset}")
            self.store.apply(outcome.changes, next_offset, outcome.rows_added, outcome.highest_number)
            offset = next_offset
            self.store.budget.check(self.store)
            await self.store.budget.room()
        self._replaying = False
        if self._numbers is not None:
            self._numbers.resume(self.store.highest_number)
        self._commit(self.log.high_watermark)

    def _replay_part(self, plan: reader.ReadPlan, offset: int) -> tuple[Outcome, int]:
        outcome = Outcome()
        for part in reader.read(plan).parts:
            for batch in iter_log_batches(memoryview(bytes(part)), strict=True, verify=True):
                if batch.header.next_offset <= offset:
                    continue
                self._replay_batch(batch, offset, outcome)
                offset = batch.header.next_offset
        return outcome, offset

    def _replay_batch(self, batch: LogBatch, offset: int, outcome: Outcome) -> None:
        header = batch.header
        if not header.record_count:
            return
        info = self.info
        schema = self.entry.schemas.get(header.schema_id)
        if schema is None:
            raise FormatError(f"the changelog of {self.log.bucket} has the unknown schema id {header.schema_id}")
        rows = decode_log_batch(batch, schema, info.log_format)
        types = batch.change_types(info.log_format)
        if types is None:
            raise FormatError(f"the changelog of {self.log.bucket} has a batch without change types")
        is_new = np.arange(len(types)) >= offset - header.base_offset
        at = np.flatnonzero(is_new & (types != int(ChangeType.UpdateBefore)))
        if len(at) < len(types):
            rows, types = rows.take(array_of(at)), types[at]
        key_arrays = [rows.column(schema.column_index(name)) for name in info.physical_primary_key]
        keys = kv_key_encoder(info).encode_columns(key_arrays).to_list()
        codec = ValueCodec(info.kv_format, self.entry.schemas, header.schema_id)
        changes: Changes = dict(zip(keys, codec.encode_batch(rows)))
        removed = np.flatnonzero(types == int(ChangeType.Delete))
        if len(removed):
            # The last record of a key counts, so the removed ones have to be put in their place among the others.
            last = dict(zip(keys, range(len(keys))))
            changes.update((keys[i], None) for i in removed.tolist() if last[keys[i]] == i)
        outcome.changes.update(changes)
        outcome.rows_added += int((types == int(ChangeType.Insert)).sum()) - len(removed)
        if schema.auto_increment_columns:
            numbers = rows.column(schema.column_index(schema.auto_increment_columns[0])).drop_null()
            if len(numbers):
                outcome.highest_number = max(outcome.highest_number, int(numpy_of(numbers).max()))

    # -- snapshots --------------------------------------------------------------------------------------------------

    async def checkpoint(self, folder: Path) -> Checkpointed:
        """Put the committed rows as files of RocksDB into a new folder, and say what they are."""
        await self.ready()
        store = self.store
        if store.is_in_memory and store.memory_bytes <= MEMORY_BYTES_MAX:
            # A bucket that fits in memory should not need a RocksDB of its own, with its threads and open files.
            rows, meta = store.copy()
            await self._in_thread(ordered.export, store.budget.writer, rows, folder)
            return Checkpointed(folder, meta)
        while store.is_spilling:
            await store.budget.spilled(store)
            await self.ready()  # the spill may have found the files damaged
        work = store.budget.spill(store, folder)
        if work is None:
            raise KvStorageError(f"there is no thread to write the rows of {self.log.bucket}")
        written = asyncio.wrap_future(work)
        await asyncio.wait((written,))
        await store.budget.spilled(store)
        if work.cancelled():
            raise KvStorageError(f"{self.log.bucket} was closed or is rebuilt")
        taken = written.result()
        if not isinstance(taken, Checkpointed):
            raise KvStorageError(f"no checkpoint of the rows of {self.log.bucket} can be taken: {taken}")
        return taken

    def number_range(self, highest_number: int) -> NumberRange | None:
        """What the auto-increment column may still be given, after the number that is the highest of a state."""
        if self._numbers is None:
            return None
        schema = self.info.schema
        column = schema.columns[schema.column_index(schema.auto_increment_columns[0])]
        return NumberRange(column.column_id, highest_number + 1, self._numbers.last)

    # -- writing ----------------------------------------------------------------------------------------------------

    async def put(
        self,
        records: memoryview,
        target_columns: Sequence[int],
        agg_mode: int,
        share: Share | None = None,
        *,
        commit_ms_max: int | None = None,
    ) -> AppendResult:
        """Apply one KV batch. Writes of a bucket take effect in the order of the calls.

        Not to be cancelled: between the changelog and the state there is no way back.

        Args:
            share: Charged with the processor time that threads take for it.
            commit_ms_max: How long to wait until it is committed; None does not wait for that.
        """
        result = await self._put(records, target_columns, agg_mode, share)
        if commit_ms_max is not None:
            # At once: later the log may have been cut, and have given the offsets to other rows.
            await self.log.committed(result.end_offset, commit_ms_max)
        return result

    async def _put(
        self, records: memoryview, target_columns: Sequence[int], agg_mode: int, share: Share | None
    ) -> AppendResult:
        async with self._writes:
            await self.store.budget.room()
            if self._numbers is not None:
                await self.ready()
                await self._numbers.check(self._in_thread)
            while True:
                truncations = self._truncations
                prepared = await self._prepared(records, target_columns, agg_mode, share)
                if truncations != self._truncations:
                    continue  # it was made from rows that the log has lost meanwhile
                if isinstance(prepared, AppendResult):
                    return prepared
                return await self._append(*prepared)

    def _append(self, outcome: Outcome, changelog: memoryview) -> asyncio.Future[AppendResult]:
        future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()

        def done(result: AppendResult | Exception) -> None:
            # Before the event loop goes on: the log may be cut, and later writes read what is pending.
            if not isinstance(result, Exception) and not result.duplicate and not self.closed:
                self._add_pending(result.end_offset, outcome)
                self._commit(self.log.high_watermark)
            complete(future, result)

        self.log.append_then(changelog, done)
        return future

    def _add_pending(self, end_offset: int, outcome: Outcome) -> None:
        """Keep changes until they are committed."""
        changes = outcome.changes
        size_bytes = int(entry_bytes(changes) * len(changes)) if changes else 0
        self._pending.append(_Pending(end_offset, changes, outcome.rows_added, outcome.highest_number, size_bytes))
        self.store.budget.count_uncommitted(size_bytes)

    def _truncated(self, end_offset: int) -> None:
        """The log lost what was not committed."""
        self._truncations += 1
        while self._pending and self._pending[-1].end_offset > end_offset:
            self.store.budget.count_uncommitted(-self._pending.pop().size_bytes)

    async def _prepared(
        self, records: memoryview, target_columns: Sequence[int], agg_mode: int, share: Share | None
    ) -> Preparation:
        async def prepare() -> Preparation:
            write = Write(
                self.info,
                self.codec,
                self._read_old,
                self._numbers,
                self.log.writers,
                records,
                tuple(target_columns),
                agg_mode,
                share,
            )
            preparer = self._preparers.memory if self.store.is_in_memory else self._preparers.disk
            return await preparer.prepare(write)

        return await self._reading(prepare)

    def _commit(self, offset: int) -> None:
        """The log is committed up to `offset`: let lookups see what it says.

        A replay reads it from the log.
        """
        applied = False
        while self._pending and self._pending[0].end_offset <= offset:
            pending = self._pending.popleft()
            if not self._replaying and pending.end_offset > self.store.applied_offset:
                self.store.apply(pending.changes, pending.end_offset, pending.rows_added, pending.highest_number)
                applied = True
            self.store.budget.count_uncommitted(-pending.size_bytes)
        if applied:
            self.store.budget.check(self.store)

    def _read_old(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Present values, those in flight included; the newest counts."""
        # What is in flight is read first and last: a change may reach the store in between, but is never missed.
        waiting = tuple(self._pending)
        found = self.store.get_many(keys)
        for pending in waiting:
            changes = pending.changes
            if changes.keys().isdisjoint(keys):
                continue
            for i, key in enumerate(keys):
                if key in changes:
                    found[i] = changes[key]
        return found

    # -- reading ----------------------------------------------------------------------------------------------------

    async def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Committed values of the keys."""
        found = self.lookup_at_once(keys)
        if found is None:
            found = []
            for at in range(0, len(keys), _KEYS_PER_STEP):
                part = keys[at : at + _KEYS_PER_STEP] if len(keys) > _KEYS_PER_STEP else keys
                found += await self._reading(partial(self._in_thread, self.store.get_many, part))
        return found

    def lookup_at_once(self, keys: Sequence[bytes]) -> list[bytes | None] | None:
        """What `lookup` finds, or None if that has to be waited for: many keys, or a state that is not ready."""
        few = _INLINE_ROWS_MAX if self.store.is_in_memory else _INLINE_RECORDS_MAX
        if len(keys) <= few and self._is_ready:
            try:
                return self.store.get_many(keys)
            except DamagedStoreError as error:
                self.damaged(error)
            except KvStorageError:
                pass  # the caller waits, and the next attempt may succeed
        return None

    async def prefix_lookup(
        self, prefix: bytes, time_slice: TimeSlice | None = None, bytes_max: int = _READ_BYTES_MAX
    ) -> list[bytes]:
        """Committed values whose key starts with the prefix, in key order; all of them, or an error."""
        return await self._in_order(prefix, None, time_slice, bytes_max)

    async def snapshot(self) -> tuple[Values, int]:
        """All committed values in key order, and the offset of the log they stand for."""

        async def read() -> tuple[Values, int]:
            await self._sort()
            return self.store.snapshot(), self.log.high_watermark

        return await self._reading(read)

    async def first(
        self, limit: int, time_slice: TimeSlice | None = None, bytes_max: int = _READ_BYTES_MAX
    ) -> list[bytes]:
        """The committed values of the first keys in key order: as many as asked for and there are, or an error."""
        return await self._in_order(b"", limit, time_slice, bytes_max)

    async def _in_order(
        self, prefix: bytes, limit: int | None, time_slice: TimeSlice | None, bytes_max: int
    ) -> list[bytes]:
        """Read values in key order as of one moment; many of them in slices."""
        time_slice = time_slice or Scheduler().begin()
        few = _INLINE_ROWS_MAX if limit is None else min(limit, _INLINE_ROWS_MAX)

        async def read() -> list[bytes]:
            await self._sort()
            values = first_values(self.store.values(prefix), few)
            if len(values) < few or few == limit:
                self._check_size(sum(map(len, values)), bytes_max)
                return values
            async with time_slice.large:
                return await self._collect(self.store.snapshot(prefix), limit, time_slice, bytes_max)

        return await self._reading(read)

    async def _collect(self, parts: Values, limit: int | None, time_slice: TimeSlice, bytes_max: int) -> list[bytes]:
        values: list[bytes] = []
        size_bytes = 0
        for part in parts:
            values += part
            size_bytes += sum(map(len, part))
            self._check_size(size_bytes, bytes_max)
            if limit is not None and len(values) >= limit:
                return values[:limit]
            if time_slice.is_over:
                await time_slice.next()
        return values

    def _check_size(self, size_bytes: int, bytes_max: int) -> None:
        if size_bytes > bytes_max:
            raise UnknownServerError(
                f"the answer would have more than {bytes_max} bytes of {self.log.bucket}. Ask for fewer rows or keys "
                "at a time, or scan the bucket, which takes as many answers as it needs."
            )

    async def _reading(self, read: Callable[[], Awaitable[T]]) -> T:
        """Read when the state is in step with the log; a store that proves damaged is rebuilt first.

        What was read while another caller had the store rebuilt is read again: the store was empty for a while.
        """
        problem = ""
        for _ in range(_ATTEMPTS):
            await self.ready()
            opening = self._opening
            try:
                found = await read()
                if self.closed:
                    continue  # it may have been read from a store without its files
                if self._opening is opening:
                    return found
                problem = f"the state of {self.log.bucket} was rebuilt meanwhile"
            except DamagedStoreError as error:
                problem = str(error)
                if self._opening is opening:
                    self.damaged(error)
        raise KvStorageError(f"{problem}; it is rebuilt")

    async def _sort(self) -> None:
        """Bring keys into order, in a thread where they are many, so that the ordered read that follows is quick."""
        for layer in self.store.layers:
            if layer.unsorted_count > _INLINE_SORT_MAX:
                count = layer.sorted_count
                layer.add_runs(count, await self._in_thread(sorted_runs, layer.unsorted_keys()))

    def close(self, *, keep: bool, replayed_max: int = 0) -> None:
        self.closed = True
        self._truncated(0)  # a write whose append ends later keeps nothing
        self.store.on_damaged = _ignore  # it refers to this tablet: without the way back its memory is free at once
        if self._commit in self.log.before_commit:
            self.log.before_commit.remove(self._commit)
            self.log.on_truncated.remove(self._truncated)
        self.store.close(keep=keep and not self._replaying, replayed_max=replayed_max, dropped=self.log.deleted)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)


def _ignore(error: DamagedStoreError) -> None:
    """Take the place of the callback of a closed tablet."""


def number_limit(info: TableInfo) -> int:
    """The largest number the auto-increment column holds."""
    column = info.schema.columns[info.schema.column_index(info.schema.auto_increment_columns[0])]
    return _LONG_MAX if isinstance(column.data_type, BigIntType) else _INT_MAX
