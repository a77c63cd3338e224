# SPDX-License-Identifier: Apache-2.0
"""The state of one bucket of a primary-key table, kept in step with its changelog.

A write reads the old rows, makes the changelog batch, appends it, and then waits with its changes until that batch is
committed: lookups see committed rows only, writes see everything before them. The state is a cache of the log: on the
first use after a start, what the store lacks is replayed from the log, and a store that cannot be trusted is dropped
and made anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from fluss.errors import (
    FlussError,
    FormatError,
    InvalidTargetColumnError,
    SchemaNotExistError,
)
from fluss.metadata import BigIntType, ChangeType, TableInfo
from fluss.records import (
    KvBatch,
    LogBatch,
    decode_log_batch,
    encode_arrow_body,
    encode_row_body,
    iter_log_batches,
    seal_log_batch,
)
from fluss.rows import Slices, encode_compacted, indexed, kv_key_encoder
from fluss.server.catalog import TableEntry
from fluss.server.kv.aggregate import aggregates_of
from fluss.server.kv.changes import Outcome, overwrite_rows, replace_rows
from fluss.server.kv.merge import (
    MergeRules,
    aggregation_rules,
    check_targets,
    merge_rows,
    partial_rules,
    refuse_partial,
    replace_rules,
    versioned_rules,
)
from fluss.server.kv.sequence import Sequence as NumberSequence
from fluss.server.kv.store import Changes, DamagedStoreError, Store
from fluss.server.kv.values import ValueCodec, schema_prefix
from fluss.server.log import reader
from fluss.server.log.tablet import AppendResult, LogTablet

logger = logging.getLogger("fluss.server.kv")

T = TypeVar("T")

AGG_MODE_OVERWRITE = 1
_REPLAY_BYTES = 16 * 1024 * 1024
_INLINE_RECORDS_MAX = 64
"""Smaller batches are cheaper on the event loop than the way to a thread and back."""
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


@dataclass(frozen=True)
class _Pending:
    """Changes whose changelog is appended but not committed yet."""

    end_offset: int
    changes: Changes
    rows_added: int


class KvTablet:
    """One bucket of a primary-key table."""

    def __init__(
        self,
        entry: TableEntry,
        log: LogTablet,
        store: Store,
        executor: Executor,
        numbers: NumberSequence | None,
    ) -> None:
        self.entry = entry
        self.log = log
        self.store = store
        self._executor = executor
        self._numbers = numbers
        self._pending: deque[_Pending] = deque()
        self._writes = asyncio.Lock()
        self._opening: asyncio.Future[None] | None = None
        self._codec_info: TableInfo | None = None
        self._codec: ValueCodec
        log.before_commit.append(self._commit)

    @property
    def info(self) -> TableInfo:
        return self.entry.table_info

    @property
    def codec(self) -> ValueCodec:
        if self._codec_info is not self.entry.table_info:
            self._codec_info = self.entry.table_info
            info = self._codec_info
            self._codec = ValueCodec(info.kv_format, self.entry.schemas, info.schema_id)
        return self._codec

    # -- opening ----------------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Wait until the state is in step with the log. Quick once it is."""
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._open())
        if not self._opening.done():
            await asyncio.shield(self._opening)
        error = self._opening.exception()
        if error is not None:
            self._opening = None  # the next one tries again: a damaged file may have been mended
            raise error

    async def _open(self) -> None:
        self.log.check_usable()
        try:
            await self._in_thread(self.store.open)
        except DamagedStoreError as error:
            logger.error("%s; it is made anew from the log", error)
            await self._in_thread(self.store.wipe)
        if not self.log.start_offset <= self.store.applied_offset <= self.log.high_watermark:
            # The log lost its end, or the store belongs to another log: only the log counts.
            await self._in_thread(self.store.wipe)
        await self._replay()

    async def _replay(self) -> None:
        """Bring the store up to the end of the log."""
        offset = max(self.store.applied_offset, self.log.start_offset)
        end = self.log.high_watermark
        if offset >= end:
            return
        logger.info("replaying %d offsets of %s into its state", end - offset, self.log.bucket)
        while offset < end:
            plan = reader.plan_read(self.log, offset, _REPLAY_BYTES, first_batch_always=True)
            changes, rows_added, next_offset = await self._in_thread(self._replay_part, plan, offset)
            if next_offset <= offset:
                raise FormatError(f"the log of {self.log.bucket} cannot be replayed beyond offset {offset}")
            self.store.apply(changes, next_offset, rows_added)
            self.store.budget.check()
            offset = next_offset

    def _replay_part(self, plan: reader.ReadPlan, offset: int) -> tuple[Changes, int, int]:
        changes: Changes = {}
        rows_added = 0
        for part in reader.read(plan).parts:
            for batch in iter_log_batches(memoryview(part), strict=True):
                if batch.header.next_offset <= offset:
                    continue
                rows_added += self._replay_batch(batch, offset, changes)
                offset = batch.header.next_offset
        return changes, rows_added, offset

    def _replay_batch(self, batch: LogBatch, offset: int, changes: Changes) -> int:
        header = batch.header
        if not header.record_count:
            return 0
        info = self.info
        schema = self.entry.schemas[header.schema_id]
        rows = decode_log_batch(batch, schema, info.log_format)
        types = batch.change_types(info.log_format)
        if types is None:
            raise FormatError(f"the changelog of {self.log.bucket} has a batch without change types")
        is_new = np.arange(len(types)) >= offset - header.base_offset
        at = np.flatnonzero(is_new & (types != int(ChangeType.UpdateBefore)))
        rows, types = rows.take(pa.array(at)), types[at]
        key_arrays = [rows.column(schema.column_index(name)) for name in info.physical_primary_key]
        keys = kv_key_encoder(info).encode_columns(key_arrays).to_list()
        data_types = [column.data_type for column in schema.columns]
        if info.kv_format == "COMPACTED":
            encoded = encode_compacted(data_types, rows.columns).to_list()
        else:
            codec = ValueCodec(info.kv_format, self.entry.schemas, header.schema_id)
            encoded = [indexed.encode_row(data_types, row) for row in codec.to_rows(rows)]
        prefix = schema_prefix(header.schema_id)
        removed = (types == int(ChangeType.Delete)).tolist()
        for key, row, is_removed in zip(keys, encoded, removed):
            changes[key] = None if is_removed else prefix + row
        return int((types == int(ChangeType.Insert)).sum()) - int(sum(removed))

    # -- writing ----------------------------------------------------------------------------------------------------

    async def put(self, records: memoryview, target_columns: Sequence[int], agg_mode: int) -> AppendResult:
        """Apply one KV batch. Writes of a bucket take effect in the order of the calls."""
        async with self._writes:
            await self.ready()
            for attempt in (1, 2):
                try:
                    if len(records) < 4096:
                        outcome, changelog = self._prepare(records, target_columns, agg_mode)
                    else:
                        outcome, changelog = await self._in_thread(self._prepare, records, target_columns, agg_mode)
                    break
                except DamagedStoreError as error:
                    if attempt == 2:
                        raise FormatError(str(error)) from None
                    await self._rebuild(error)
            result = await self.log.submit(changelog)
            if not result.duplicate:
                self._pending.append(_Pending(result.end_offset, outcome.changes, outcome.rows_added))
                if result.end_offset <= self.log.high_watermark:
                    self._commit(self.log.high_watermark)
        return result

    def _commit(self, offset: int) -> None:
        """The log is committed up to `offset`: let lookups see what it says."""
        while self._pending and self._pending[0].end_offset <= offset:
            pending = self._pending.popleft()
            self.store.apply(pending.changes, pending.end_offset, pending.rows_added)
        self.store.budget.check()

    def _read_old(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Present values, those on their way included; the newest counts."""
        found = self.store.get_many(keys)
        for pending in tuple(self._pending):
            changes = pending.changes
            for i, key in enumerate(keys):
                if key in changes:
                    found[i] = changes[key]
        return found

    def _prepare(self, records: memoryview, target_columns: Sequence[int], agg_mode: int) -> tuple[Outcome, memoryview]:
        batch = KvBatch.parse(records)
        info, codec = self.info, self.codec
        if not 0 <= batch.schema_id <= info.schema_id:
            raise SchemaNotExistError(
                f"schema id {batch.schema_id} is not known; the latest of {info.table_path} is {info.schema_id}"
            )
        outcome = self._outcome(batch, target_columns, agg_mode)
        return outcome, self._changelog(codec, outcome, batch)

    def _outcome(self, batch: KvBatch, target_columns: Sequence[int], agg_mode: int) -> Outcome:
        info, codec = self.info, self.codec
        schema, config = info.schema, info.config
        where = f"table {info.table_path}"
        engine = None if agg_mode == AGG_MODE_OVERWRITE else config.merge_engine
        behavior = "ALLOW" if agg_mode == AGG_MODE_OVERWRITE else config.delete_behavior
        with_before = config.changelog_image == "FULL"
        targets = list(target_columns)
        if targets and len(set(targets)) == len(schema.columns) and not schema.auto_increment_columns:
            targets = []
        generated = self._generated_column(targets)
        keys = batch.keys.to_list()
        if not targets and engine in (None, "first_row") and generated is None:
            rows = batch.rows.to_list()
            prefix = schema_prefix(batch.schema_id)
            if engine is None and not with_before:
                return overwrite_rows(keys, rows, prefix, self._read_old, delete_behavior=behavior, where=where)
            return replace_rows(
                keys,
                rows,
                prefix,
                self._read_old,
                delete_behavior=behavior,
                keep_first=engine == "first_row",
                where=where,
            )
        return merge_rows(
            codec,
            keys,
            batch.rows,
            batch.schema_id,
            self._read_old,
            self._rules(engine, targets),
            delete_behavior=behavior,
            with_before=with_before,
            generate=self._numbers if generated is not None else None,
            generated_column=generated,
            where=where,
        )

    def _rules(self, engine: str | None, targets: list[int]) -> MergeRules:
        schema = self.info.schema
        if targets:
            check_targets(schema, targets)
            if engine in ("first_row", "versioned"):
                raise refuse_partial(engine)
            return partial_rules(schema, targets, aggregates_of(schema) if engine == "aggregation" else None)
        if engine == "versioned":
            column = self.info.config.version_column
            assert column is not None
            return versioned_rules(schema, column)
        if engine == "aggregation":
            return aggregation_rules(schema)
        return replace_rules()

    def _generated_column(self, targets: list[int]) -> int | None:
        schema = self.info.schema
        if not schema.auto_increment_columns:
            return None
        column = schema.column_index(schema.auto_increment_columns[0])
        if not targets or column in targets:
            raise InvalidTargetColumnError(
                f"column '{schema.auto_increment_columns[0]}' is filled by the server: "
                "name the other columns as target columns and leave it out"
            )
        return column

    def _changelog(self, codec: ValueCodec, outcome: Outcome, batch: KvBatch) -> memoryview:
        """The changelog batch, in the table's log format; one without records if nothing changed."""
        info = self.info
        types = bytes(outcome.change_types)
        if types:
            rows = outcome.records(codec)
            if info.log_format == "ARROW":
                compression, level = info.arrow_compression
                body = encode_arrow_body(rows, compression=compression, level=level, change_types=types)
            else:
                body = encode_row_body(info.log_format, codec.types, rows, types)
        else:
            empty = codec.to_batch([])
            body = encode_arrow_body(empty, compression="NONE", change_types=b"")
        parts = seal_log_batch(
            body, schema_id=info.schema_id, writer_id=batch.writer_id, batch_sequence=batch.batch_sequence
        )
        # The log writes its offsets into the batch, so it needs bytes of its own.
        return memoryview(bytearray(b"".join(parts)))

    # -- reading ----------------------------------------------------------------------------------------------------

    async def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Committed values of the keys."""
        await self.ready()
        try:
            if len(keys) <= _INLINE_RECORDS_MAX:
                return self.store.get_many(keys)
            return await self._in_thread(self.store.get_many, keys)
        except DamagedStoreError as error:
            await self._rebuild_alone(error)
            return self.store.get_many(keys)

    async def prefix_lookup(self, prefix: bytes) -> list[bytes]:
        """Committed values whose key starts with the prefix, in key order."""
        await self.ready()
        try:
            return [value for _, value in self.store.items(prefix)]
        except DamagedStoreError as error:
            await self._rebuild_alone(error)
            return [value for _, value in self.store.items(prefix)]

    def snapshot(self) -> tuple[Iterator[tuple[bytes, bytes]], int]:
        """All committed rows in key order, and the offset of the log they stand for."""
        return self.store.items(), self.log.high_watermark

    # -- damage -----------------------------------------------------------------------------------------------------

    async def _rebuild_alone(self, error: DamagedStoreError) -> None:
        async with self._writes:
            await self._rebuild(error)

    async def _rebuild(self, error: DamagedStoreError) -> None:
        """Make the store anew from the log; no write may be under way."""
        logger.error("%s; it is made anew from the log", error)
        while self._pending:
            await self.log.committed(self._pending[-1].end_offset)
        await self._in_thread(self.store.wipe)
        await self._replay()

    def close(self, *, keep: bool) -> None:
        if self._commit in self.log.before_commit:
            self.log.before_commit.remove(self._commit)
        self.store.close(keep=keep)

    async def _in_thread(self, work: Callable[..., T], *args: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work, *args)


def number_limit(info: TableInfo) -> int:
    """The largest number the auto-increment column holds."""
    column = info.schema.columns[info.schema.column_index(info.schema.auto_increment_columns[0])]
    return _LONG_MAX if isinstance(column.data_type, BigIntType) else _INT_MAX


def insert_records(info: TableInfo, keys: Sequence[bytes]) -> list[bytes]:
    """Rows that hold nothing but their key, for keys in the compacted encoding."""
    from fluss.rows import decode_compacted_key

    schema = info.schema
    types = [schema.columns[schema.column_index(name)].data_type for name in info.physical_primary_key]
    arrays = dict(zip(info.physical_primary_key, decode_compacted_key(types, Slices.from_list(list(keys)))))
    columns = [
        arrays[column.name] if column.name in arrays else pa.nulls(len(keys), column.data_type.to_arrow())
        for column in schema.columns
    ]
    return encode_compacted([column.data_type for column in schema.columns], columns).to_list()


__all__ = ["AGG_MODE_OVERWRITE", "FlussError", "KvTablet", "insert_records", "number_limit"]
