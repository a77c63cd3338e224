# SPDX-License-Identifier: Apache-2.0
"""A bucket of a primary-key table without a server around it, and a plain model of what it must hold."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import shutil
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from tests.waiting import wait_until

from fluss.metadata import ChangeType, Column, Schema, TableBucket, TableDescriptor, TableInfo, TablePath
from fluss.metadata import types as t
from fluss.records import decode_log_batch, encode_kv_body, iter_log_batches, seal_kv_batch
from fluss.rows import Slices, kv_key_encoder
from fluss.rows.logical import to_arrow
from fluss.server.catalog import TableEntry
from fluss.server.clock import Clock
from fluss.server.commit import GroupCommitter
from fluss.server.environment import WorkerThread
from fluss.server.kv.budget import StoreBudget
from fluss.server.kv.ordered import DamagedStoreError
from fluss.server.kv.rocksdb import Writer
from fluss.server.kv.sequence import BlockSource, NumberSequence
from fluss.server.kv.store import Store
from fluss.server.kv.tablet import KvTablet, number_limit
from fluss.server.kv.values import ValueCodec
from fluss.server.log import reader
from fluss.server.log.appends import AppendResult
from fluss.server.log.files import OpenFiles
from fluss.server.log.segment import LogSettings
from fluss.server.log.tablet import LogTablet

Row = tuple[Any, ...]
SYMBOLS = {
    ChangeType.Insert: "+I",
    ChangeType.UpdateBefore: "-U",
    ChangeType.UpdateAfter: "+U",
    ChangeType.Delete: "-D",
}


def keyed_schema(*keys: str, **columns: t.DataType) -> Schema:
    """A schema with these columns, of which the keys are not null."""
    given = [Column(name, data_type.with_nullable(name not in keys)) for name, data_type in columns.items()]
    return Schema.of(given, primary_key=keys)


SCHEMA = keyed_schema("id", id=t.BigIntType(), name=t.StringType(), score=t.DoubleType())

NUMBERED = Schema.of(
    [Column("k", t.StringType(nullable=False)), Column("n", t.IntType()), Column("v", t.StringType())],
    primary_key=("k",),
    auto_increment_columns=("n",),
)


def with_columns(schema: Schema, *columns: Column) -> Schema:
    """A later version of a schema: columns added at its end, ids kept."""
    highest = max(c.column_id for c in schema.columns)
    added = [dataclasses.replace(c, column_id=highest + 1 + i) for i, c in enumerate(columns)]
    return Schema.of([*schema.columns, *added], primary_key=schema.primary_key)


class Delete:
    """A delete among the writes of a batch."""

    def __init__(self, *key: Any) -> None:
        self.key = key


def table(
    schemas: Schema | Mapping[int, Schema] = SCHEMA, bucket_keys: Sequence[str] = (), **properties: str
) -> TableEntry:
    """A table; property names with ``_`` for a dot and ``__`` for a hyphen, without the leading ``table.``."""
    by_id = dict(schemas) if isinstance(schemas, Mapping) else {1: schemas}
    named = {"table." + name.replace("__", "-").replace("_", "."): value for name, value in properties.items()}
    if "table.merge-engine" in named:
        named.setdefault("table.delete.behavior", "ignore")
    latest = max(by_id)
    descriptor = TableDescriptor(by_id[latest], bucket_count=1, bucket_keys=list(bucket_keys) or None, properties=named)
    info = TableInfo(TablePath("fluss", "t"), 1, latest, descriptor, 0, 0)
    return TableEntry(info, by_id)


def kv_batch(
    info: TableInfo,
    schema: Schema,
    schema_id: int,
    writes: Sequence[Row | Delete],
    *,
    writer_id: int = -1,
    sequence: int = -1,
) -> bytearray:
    """One KV batch as a client would send it."""
    codec = ValueCodec(info.kv_format, {schema_id: schema}, schema_id)
    encoder = kv_key_encoder(info)
    positions = [schema.column_index(name) for name in info.physical_primary_key]
    keys = [
        encoder.encode(write.key if isinstance(write, Delete) else [write[p] for p in positions]) for write in writes
    ]
    upserts = [write for write in writes if not isinstance(write, Delete)]
    encoded = iter(codec.encode_batch(codec.to_batch(upserts)) if upserts else [])
    rows = [b"" if isinstance(write, Delete) else next(encoded)[2:] for write in writes]
    deletes = np.array([isinstance(write, Delete) for write in writes], dtype=np.bool_)
    body = encode_kv_body(Slices.from_list(keys), Slices.from_list(rows), deletes)
    return bytearray(b"".join(bytes(part) for part in seal_kv_batch(body, schema_id, writer_id, sequence)))


class Bucket:
    """One bucket with its log and its state in a folder."""

    def __init__(
        self, folder: Path, entry: TableEntry, *, memory_bytes: int = 1 << 28, writer: Writer | None = None
    ) -> None:
        self.folder = folder
        self.entry = entry
        self.executor = ThreadPoolExecutor(2)
        self.committer = GroupCommitter(self.executor, WorkerThread("flush"), sync=False)
        self.log = LogTablet(
            TableBucket(1, 0),
            folder / "log-0",
            LogSettings(),
            clock=Clock(),
            open_files=OpenFiles(),
            executor=self.executor,
            on_append=self.committer.dirty,
        )
        self.log.open()
        self.budget = StoreBudget(memory_bytes, self.executor, writer=writer)
        self.store = Store(folder / "kv-0", self.budget)
        info, numbers = entry.table_info, None
        if info.schema.auto_increment_columns:
            blocks = BlockSource(folder, lambda: entry.table_info.config.auto_increment_cache_size)
            numbers = NumberSequence(blocks, "0", number_limit(info), info.schema.auto_increment_columns[0])
        self.tablet = KvTablet(entry, self.log, self.store, self.executor, numbers)

    async def put(
        self,
        writes: Sequence[Row | Delete],
        targets: Sequence[int] = (),
        *,
        agg_mode: int = 0,
        schema_id: int | None = None,
        writer_id: int = -1,
        sequence: int = -1,
    ) -> AppendResult:
        """Write one batch and wait until it is committed."""
        info = self.entry.table_info
        schema_id = info.schema_id if schema_id is None else schema_id
        data = kv_batch(info, self.entry.schemas[schema_id], schema_id, writes, writer_id=writer_id, sequence=sequence)
        result = await self.tablet.put(memoryview(data), targets, agg_mode)
        await self.log.committed(result.end_offset)
        return result

    def key(self, *values: Any) -> bytes:
        return kv_key_encoder(self.entry.table_info).encode(values)

    def decode(self, values: Iterable[bytes]) -> list[Row]:
        codec = self.tablet.codec
        return codec.to_rows(codec.decode_values(Slices.from_list(list(values))))

    async def get(self, *key: Any) -> Row | None:
        found = (await self.tablet.lookup([self.key(*key)]))[0]
        return None if found is None else self.decode([found])[0]

    async def rows(self) -> list[Row]:
        """All rows, as a scan sees them; checks that lookups agree and that keys come in order."""
        parts, offset = await self.tablet.snapshot()
        assert offset == self.log.high_watermark
        try:
            values = list(itertools.chain.from_iterable(parts))
        except DamagedStoreError as error:
            # As a client does when its scan fails with this error.
            self.tablet.damaged(error)
            return await self.rows()
        rows = self.decode(values)
        info = self.entry.table_info
        at = [info.schema.column_index(name) for name in info.physical_primary_key]
        keys = [self.key(*(row[i] for i in at)) for row in rows]
        assert keys == sorted(set(keys))
        assert await self.tablet.lookup(keys) == values
        return rows

    def changelog(self, start: int = 0) -> list[tuple[str, Row]]:
        """The changelog from an offset on."""
        info = self.entry.table_info
        found: list[tuple[str, Row]] = []
        offset = start
        while offset < self.log.high_watermark:
            plan = reader.plan_read(self.log, offset, 1 << 24, first_batch_always=True)
            for part in reader.read(plan).parts:
                for batch in iter_log_batches(memoryview(bytes(part)), strict=True, verify=True):
                    offset = batch.header.next_offset
                    assert batch.header.schema_id in self.entry.schemas
                    if not batch.header.record_count:
                        continue
                    codec = ValueCodec(info.kv_format, self.entry.schemas, batch.header.schema_id)
                    rows = codec.to_rows(decode_log_batch(batch, codec.schema, info.log_format))
                    types = batch.change_types(info.log_format)
                    assert types is not None
                    found += [(SYMBOLS[ChangeType(int(kind))], row) for kind, row in zip(types, rows)]
        return found

    async def spill(self) -> None:
        """Move everything to disk."""
        if not self.store.is_spilling:
            self.budget.spill(self.store)
        await wait_until(lambda: not self.store.is_spilling)

    def copy(self, to: Path) -> Path:
        """What a crash at this moment would leave."""
        while True:
            try:
                shutil.copytree(self.folder, to)
                return to
            except shutil.Error:  # RocksDB removed a file meanwhile
                shutil.rmtree(to)

    async def close(self, *, keep: bool = True) -> None:
        await self.committer.stop()
        self.tablet.close(keep=keep)
        self.budget.writer.stop()
        await self.committer.checkpoint([self.log])
        self.log.release()
        self.executor.shutdown()


@contextlib.asynccontextmanager
async def opened(folder: Path, entry: TableEntry, **options: Any) -> AsyncIterator[Bucket]:
    bucket = Bucket(folder, entry, **options)
    bucket.committer.start()
    try:
        yield bucket
    finally:
        await bucket.close()


def replayed(changelog: Sequence[tuple[str, Row]], key_positions: Sequence[int]) -> dict[Row, Row]:
    """The rows that a reader of the changelog arrives at; checks that it never contradicts itself."""
    rows: dict[Row, Row] = {}
    for kind, row in changelog:
        key = tuple(row[p] for p in key_positions)
        if kind == "+I":
            assert key not in rows, f"inserted twice: {row}"
            rows[key] = row
        elif kind == "-U":
            assert rows[key] == row, f"updates a row that is not there: {row}"
        elif kind == "+U":
            assert key in rows
            rows[key] = row
        else:
            assert rows.pop(key) == row, f"removes a row that is not there: {row}"
    return rows


def column(values: Sequence[Any], data_type: Any) -> pa.Array:
    return to_arrow(list(values), data_type)
