# SPDX-License-Identifier: Apache-2.0
"""What all table writers share: collecting rows, cutting batches, waiting for the outcome.

Rows may come from any thread: they are collected and converted there, which is also where a writer that is too fast is
held back. Everything after that happens on the connection's event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from fluss.client.promise import Promise
from fluss.client.write.arrow_input import BatchReader
from fluss.client.write.batch import Encoder, OpenBatch, Piece, Share, WriteBatch
from fluss.client.write.collector import Chunk, RowCollector
from fluss.client.write.handle import Positions, Ticket, WriteResultHandle
from fluss.client.write.sender import Lane, Sender, Target
from fluss.errors import ConnectionClosedError, DeadlineExceededError, FlussError, InvalidRowError
from fluss.metadata import TableInfo

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from fluss.config import Config

logger = logging.getLogger("fluss.client.write")

_CHUNK_ROWS_FIRST = 1_024
_CHUNK_ROWS_MAX = 16_384

Key = tuple["str | None", int]
"""Partition name or None, bucket id."""

_WriterT = TypeVar("_WriterT", bound="TableWriter")

Routed = tuple[Key, Piece, "Positions | None"]


class Failures:
    """Rows that were not written since the last flush."""

    def __init__(self) -> None:
        self.first: FlussError | None = None
        self.where = ""
        self.rows = 0

    def add(self, rows: int, where: str, error: FlussError) -> None:
        self.rows += rows
        if self.first is None:
            self.first, self.where = error, where

    def take(self) -> FlussError | None:
        first, rows = self.first, self.rows
        self.first, self.rows = None, 0
        if first is None:
            return None
        counted = "1 row was" if rows == 1 else f"{rows} rows were"
        return type(first)(f"{counted} not written to {self.where}: {first.message}", first.error_code)


class TableWriter:
    """Base of `AppendWriter` and `UpsertWriter`. Create it on the connection's loop."""

    _batch_reader: BatchReader

    def __init__(self, sender: Sender, info: TableInfo, config: Config, target: Target) -> None:
        self._sender = sender
        self._loop = sender.loop
        self._info = info
        self._config = config
        self._target = target
        self._batch_size_max = config.writer_batch_size
        self._linger_s = config.writer_batch_timeout_ms / 1000
        self._open: dict[Key, OpenBatch] = {}
        self._unsettled: set[int] = set()
        self._batch_number = 0
        self._flushes: list[tuple[set[int], Promise[None]]] = []
        self._linger: asyncio.TimerHandle | None = None
        self._failures = Failures()
        self._collector = RowCollector(lambda: Ticket(self._hurry), _CHUNK_ROWS_FIRST)
        sender.cluster.attach(self)

    # -- whole batches ---------------------------------------------------------------------------------------------

    def write_arrow_batch(self, batch: pa.RecordBatch) -> WriteResultHandle:
        """Write all rows of a record batch; columns are matched by name, and cast where nothing is lost."""
        return self._write_all([batch])

    def write_arrow(self, table: pa.Table) -> WriteResultHandle:
        """Write all rows of a table."""
        return self._write_all(table.to_batches())

    def write_pandas(self, df: pd.DataFrame) -> WriteResultHandle:
        """Write all rows of a pandas DataFrame."""
        names = list(df.columns)
        known = [field for field in self._batch_reader.schema if field.name in names]
        # The table's own types tell an empty column's type; unknown columns are left to the check that names them.
        schema = pa.schema(known) if len(known) == len(names) else None
        try:
            table = pa.Table.from_pandas(df, schema=schema, preserve_index=False)
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidRowError(f"table {self._info.table_path}: the DataFrame does not fit: {error}") from None
        return self.write_arrow(table)

    def write_polars(self, df: pl.DataFrame) -> WriteResultHandle:
        """Write all rows of a polars DataFrame."""
        return self.write_arrow(df.to_arrow())

    def _write_all(self, batches: Sequence[pa.RecordBatch]) -> WriteResultHandle:
        ticket = Ticket(self._hurry)
        self._write_batches(batches, ticket)
        return WriteResultHandle((ticket, None))

    # -- for the subclasses ---------------------------------------------------------------------------------------

    def _convert(self, chunk: Chunk) -> Sequence[Routed]:
        """The rows of a chunk as pieces for their buckets; rows that do not fit are settled with their errors."""
        raise AssertionError("a writer says how its rows are converted")

    def _write_batches(self, batches: Sequence[pa.RecordBatch], ticket: Ticket) -> None:
        raise AssertionError("a writer says how it takes Arrow batches")

    def _encoder(self) -> Encoder:
        raise AssertionError("a writer says how its batches are encoded")

    def _sealed(self, key: Key) -> None:
        """A batch for `key` was completed."""

    # -- rows in, any thread --------------------------------------------------------------------------------------

    def _on_loop(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def _collect(self, values: Sequence[Any], is_delete: bool = False) -> WriteResultHandle:
        collector = self._collector
        chunk = None
        with collector.lock:
            collector.flat.extend(values)
            if is_delete:
                collector.marks.append(collector.rows)
            position = collector.rows
            collector.rows = position + 1
            ticket = collector.ticket
            if collector.rows >= collector.rows_max:
                self._check_room(len(values))
                chunk = collector.take()
        if chunk is not None:
            self._emit(chunk, may_block=not self._on_loop())
        elif position == 0:
            self._arm()
        return WriteResultHandle((ticket, position))

    def _check_room(self, width: int) -> None:
        """On the loop nobody can wait for memory: refuse the row that was just collected, and only that one."""
        memory = self._sender.memory
        if memory.used_bytes < memory.limit_bytes or not self._on_loop():
            return
        collector = self._collector
        collector.rows -= 1
        del collector.flat[-width:]
        if collector.marks and collector.marks[-1] == collector.rows:
            collector.marks.pop()
        raise DeadlineExceededError(
            f"the write buffer is full: {memory.used_bytes} of {memory.limit_bytes} bytes wait for the server and this "
            "row was not taken. Await flush() or a handle now and then, or raise 'writer.buffer.memory-size'"
        )

    def _arm(self) -> None:
        """The first row of a chunk starts the time after which the chunk leaves, full or not."""
        if self._on_loop():
            self._start_linger()
        else:
            self._to_loop(self._start_linger)

    def _to_loop(self, call: Any, *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            raise ConnectionClosedError(f"the connection that wrote to {self._info.table_path} is closed") from None

    def _emit(self, chunk: Chunk, *, may_block: bool, force: bool = False) -> None:
        """Convert a chunk and hand it to the loop."""
        try:
            routed = self._convert(chunk)
        except FlussError as error:
            chunk.ticket.settle(chunk.rows, None, error)
            self._failures.add(chunk.rows, str(self._info.table_path), error)
            return
        size_bytes = sum(piece.size_bytes for _, piece, _ in routed)
        self._adapt(chunk.rows, size_bytes)
        self._hand_over(routed, chunk.ticket, size_bytes, may_block=may_block, force=force)

    def _hand_over(
        self, routed: Sequence[Routed], ticket: Ticket, reserve_bytes: int, *, may_block: bool, force: bool = False
    ) -> None:
        memory = self._sender.memory
        if reserve_bytes and not force:
            try:
                memory.reserve(reserve_bytes, may_block=may_block)
            except FlussError as error:
                rows = sum(piece.rows for _, piece, _ in routed)
                ticket.settle(rows, None, error)
                raise
        elif reserve_bytes:
            memory.reserve_anyway(reserve_bytes)
        if self._on_loop():
            self._accept(routed, ticket, bool(reserve_bytes))
        else:
            self._to_loop(self._accept, routed, ticket, bool(reserve_bytes))

    def _adapt(self, rows: int, size_bytes: int) -> None:
        """Chunks of about a batch, so that few large arrays are made, but never so large that a pause is felt."""
        wanted = self._batch_size_max * rows // max(size_bytes, 1)
        self._collector.rows_max = max(1, min(_CHUNK_ROWS_MAX, wanted))

    def _hurry(self) -> None:
        """Somebody waits: nothing is gained by waiting for more rows."""
        if self._on_loop():
            self._push()
        else:
            self._to_loop(self._push)

    # -- on the loop ----------------------------------------------------------------------------------------------

    def _start_linger(self) -> None:
        if self._linger is None:
            self._linger = self._loop.call_later(self._linger_s, self._push)

    def _push(self) -> None:
        """Send everything collected so far."""
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None
        with self._collector.lock:
            chunk = self._collector.take()
        if chunk is not None:
            self._emit(chunk, may_block=False, force=True)
        for key in list(self._open):
            self._seal(key)

    def _accept(self, routed: Iterable[Routed], ticket: Ticket, reserved: bool) -> None:
        for key, piece, positions in routed:
            opened = self._open.get(key)
            if opened is not None and opened.size_bytes + piece.size_bytes > self._batch_size_max:
                self._seal(key)
                opened = None
            if opened is None:
                opened = self._open[key] = OpenBatch()
            opened.add(piece, Share(ticket, piece.rows, positions), piece.size_bytes if reserved else 0)
            if opened.size_bytes >= self._batch_size_max:
                self._seal(key)
        if self._open:
            self._start_linger()

    def _seal(self, key: Key) -> None:
        opened = self._open.pop(key)
        self._sealed(key)
        self._batch_number += 1
        self._unsettled.add(self._batch_number)
        done = partial(self._done, self._batch_number)
        self._sender.submit(self._target, key[0], key[1], opened, self._encoder(), done)

    def _done(self, number: int, batch: WriteBatch, lane: Lane, error: FlussError | None) -> None:
        self._unsettled.discard(number)
        if error is not None:
            self._failures.add(batch.rows, str(lane), error)
        for waited_for, promise in self._flushes:
            waited_for.discard(number)
            if not waited_for:
                promise.resolve(None)

    async def flush(self) -> None:
        """Send everything and wait until the server has acknowledged it.

        Raises the first error if rows were not written since the last flush, and says how many.
        """
        self._push()
        if self._unsettled:
            # Only what is under way now: rows that others append meanwhile must not keep this flush waiting for ever.
            waiting = (set(self._unsettled), Promise[None]())
            self._flushes.append(waiting)
            try:
                await waiting[1].wait()
            finally:
                self._flushes.remove(waiting)
        error = self._failures.take()
        if error is not None:
            raise error

    async def close(self) -> None:
        """Flush and be done."""
        await self.flush()

    async def drain(self) -> None:
        """The connection is about to end in good order: bring everything to the servers."""
        await self.flush()

    async def shut(self) -> None:
        """The connection ends: hand over what is collected, so that the sender fails it with all else pending."""
        self._push()

    async def __aenter__(self: _WriterT) -> _WriterT:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None = None, *_: object) -> None:
        """Leave: everything pending is flushed, unless the block ended with an error."""
        if exc_type is None:
            await self.flush()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._info.table_path})"
