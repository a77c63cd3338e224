# SPDX-License-Identifier: Apache-2.0
"""What all table writers share: accumulating rows, building batches, waiting for the outcome. Rows become columns and
find their buckets in `ChunkConverter`.

Rows may come from any thread: they are accumulated and converted there, which is also where back-pressure is applied.
Everything after that happens on the connection's event loop.

The stages of a row, with the type that carries it:

    RowAccumulator -> Chunk -> ConvertedChunk (BucketRows per bucket) -> BatchBuilder -> WriteBatch -> Lane -> Sender

Several threads may convert at the same time. Every chunk has a number, and the loop accepts chunks by that number: the
order in which rows were given is the order in which they are written, bucket by bucket.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from fluss.client.arguments import wrong_argument
from fluss.client.promise import Promise
from fluss.client.retry import within
from fluss.client.write.accumulator import Chunk, RowAccumulator
from fluss.client.write.arrow_input import BatchReader, arrow_batches, polars_to_arrow
from fluss.client.write.batch import (
    BatchBuilder,
    BatchSizer,
    ChunkShare,
    Encoder,
    RoutedRows,
    RouteKey,
    WriteBatch,
    complete_shares,
)
from fluss.client.write.chunk_queue import ChunkQueue, ConvertedChunk
from fluss.client.write.conversion import ChunkConverter
from fluss.client.write.handle import Failures, Positions, Ticket, WriteResultHandle, make_handle
from fluss.client.write.lane import Lane, WriteTarget
from fluss.client.write.partitions import UnknownPartitions
from fluss.client.write.routing import BadRows
from fluss.client.write.sender import Sender
from fluss.errors import ConnectionClosedError, DeadlineExceededError, FlussError, InvalidRowError
from fluss.metadata import TableInfo
from fluss.net.background import running_loop
from fluss.records.arrow_layout import RECORDS_MAX

if TYPE_CHECKING:
    from typing import Protocol, TypeAlias

    import pandas as pd
    import polars as pl

    from fluss.config import Config

    class ArrowStream(Protocol):
        """An object with the Arrow PyCapsule interface."""

        def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...

    ArrowData: TypeAlias = pa.Table | pa.RecordBatch | ArrowStream

logger = logging.getLogger("fluss.client.write")

_CHUNK_ROWS_FIRST = 16
"""Few, because the size of rows is only known after the first chunk was converted."""
_CHUNK_ROWS_GROWTH = 16
_CHUNK_ROWS_MAX = 16_384
_EARLY_BYTES = 128 * 1024
"""A batch of this size need not wait for more when the server has too little to do for its bucket."""
_LINGER_BATCHES = 2
"""While so many batches of a bucket are queued or in flight, rows that have waited long enough wait for more."""
_LINGER_AGAIN_S = 0.01
"""How often is looked whether overdue rows can be sent, if they wait for no others."""
_LINGER_BATCHES_TOTAL = 64
"""The same for all buckets together: with many of them, each would otherwise get several small batches at a time."""

_WriterT = TypeVar("_WriterT", bound="WriterBase")


class WriterBase:
    """What `AppendWriter` and `UpsertWriter` have in common."""

    _batch_reader: BatchReader
    _converter: ChunkConverter
    _encode: Encoder
    _busy_batches = 1
    """With so many batches of a bucket in flight its server is busy, and the next one may grow to its full size."""
    _batch_rows_max = RECORDS_MAX

    def __init__(self, sender: Sender, info: TableInfo, config: Config, target: WriteTarget) -> None:
        self._sender = sender
        self._loop = sender.loop
        self._info = info
        self._config = config
        self._target = target
        self._sizer = BatchSizer(
            config.writer_batch_size,
            config.writer_dynamic_batch_size_min,
            enabled=config.writer_dynamic_batch_size_enabled,
        )
        self._linger_s = config.writer_batch_timeout_ms / 1000
        self._builders: dict[RouteKey, BatchBuilder] = {}
        self._in_flight: set[int] = set()
        self._batch_number = 0
        self._flushes: list[tuple[set[int], Promise[None]]] = []
        self._linger: asyncio.TimerHandle | None = None
        self._failures = Failures()
        self._width = width = len(info.schema.columns)
        self._accumulator = RowAccumulator(
            lambda: Ticket(self._send_now, self._failures, width), width, _CHUNK_ROWS_FIRST
        )
        self._shut = False
        self._chunks = ChunkQueue()
        self._deferred: dict[asyncio.Task[None], tuple[Ticket, int]] = {}
        """Rows whose partitions are being looked up."""
        sender.cluster.attach_writer(self)

    # -- whole batches ---------------------------------------------------------------------------------------------

    def write_arrow_batch(self, batch: ArrowData) -> WriteResultHandle:
        """Write all rows of a record batch; columns are matched by name, and cast where nothing is lost.

        A value that does not fit is refused here, with its row and column, and nothing of the batch is written.

        Example:
            handle = writer.write_arrow_batch(pa.RecordBatch.from_pylist([{"id": 1, "name": "Alice"}]))
            await handle.wait()
        """
        return self._write_read(self._batch_reader, arrow_batches(batch, f"table {self._info.table_path}"))

    def write_arrow(self, table: ArrowData) -> WriteResultHandle:
        """Write all rows of a table, as `write_arrow_batch` does.

        Any object with the Arrow PyCapsule interface is taken: a reader, a polars frame, the result of a query. A
        timestamp without a zone is one of UTC in a TIMESTAMP_LTZ column.

        Example:
            writer.write_arrow(pa.table({"id": [1, 2], "name": ["Alice", "Bob"]}))
            await writer.flush()
        """
        return self.write_arrow_batch(table)

    def write_pandas(self, df: pd.DataFrame) -> WriteResultHandle:
        """Write all rows of a pandas DataFrame; the index is left out.

        Example:
            writer.write_pandas(pd.DataFrame({"id": [1, 2], "name": ["Alice", "Bob"]}))
            await writer.flush()
        """
        try:
            table = self._batch_reader.from_pandas(df)
        except AttributeError:
            raise wrong_argument("write_pandas", "df", "a pandas DataFrame", df) from None
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise InvalidRowError(f"table {self._info.table_path}: the DataFrame does not fit: {error}") from None
        return self.write_arrow(table)

    def write_polars(self, df: pl.DataFrame) -> WriteResultHandle:
        """Write all rows of a polars DataFrame.

        Example:
            writer.write_polars(pl.DataFrame({"id": [1, 2], "name": ["Alice", "Bob"]}))
            await writer.flush()
        """
        try:
            table = polars_to_arrow(df)
        except AttributeError:
            raise wrong_argument("write_polars", "df", "a polars DataFrame", df) from None
        return self.write_arrow(table)

    def _write_read(
        self, reader: BatchReader, batches: Sequence[pa.RecordBatch], *, is_delete: bool = False
    ) -> WriteResultHandle:
        read: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            if batch.num_rows:
                read.append(reader.read(batch, rows))
                rows += batch.num_rows
        ticket = Ticket(self._send_now, self._failures)
        ticket.close(rows)
        memory, may_block = self._sender.memory, not self._on_loop()
        taken = 0
        for batch in read:
            # The event loop must not block: what was begun is taken whole, and the next call is refused.
            if may_block or not taken:
                memory.wait_for_room(may_block=may_block)
            with self._accumulator.lock:
                self._check_open()
                chunk = self._accumulator.take()
                number = self._accumulator.next_number()
            # Rows that were given before this batch are written before it.
            try:
                if chunk is not None:
                    self._emit(chunk)
            except BaseException:  # the user interrupted it
                self._pass_to_loop(number, (), ticket)  # chunks with larger numbers wait for this one
                raise
            self._emit_batch(number, batch, ticket, taken, is_delete)
            taken += batch.num_rows
        return make_handle(ticket, None)

    def _emit_batch(self, number: int, batch: pa.RecordBatch, ticket: Ticket, first_row: int, is_delete: bool) -> None:
        routed: Sequence[RoutedRows] | None = ()
        try:
            routed = self._converter.convert_batch(batch, is_delete)
        except UnknownPartitions as unknown:
            routed = None
            again = partial(self._emit_batch, number, batch, ticket, first_row, is_delete)
            self._defer(unknown, again, ticket, batch.num_rows)
        except BadRows as bad:
            row = min(bad.errors)
            error = bad.errors[row]
            taken = f"; the {first_row} rows before this batch were taken" if first_row else ""
            place = {"table": str(self._info.table_path), "row": first_row + row}
            raise error.replace(reason=error.reason + taken, **place) from None
        finally:
            # Also when there are no rows: chunks with larger numbers wait for this one.
            if routed is not None:
                self._pass_to_loop(number, routed, ticket)

    # -- rows in, any thread --------------------------------------------------------------------------------------

    def _on_loop(self) -> bool:
        return running_loop() is self._loop

    def _check_open(self) -> None:
        self._sender.cluster.check_not_forked()
        if self._shut:
            raise self._closed_error()

    def _closed_error(self) -> ConnectionClosedError:
        return ConnectionClosedError(f"the connection that wrote to {self._info.table_path} is closed")

    def _collect(self, values: Sequence[Any], is_delete: bool = False) -> WriteResultHandle:
        """Take a row. The one that completes a chunk waits here while the write buffer is full."""
        accumulator = self._accumulator
        if accumulator.is_full:
            self._check_open()
            self._sender.memory.wait_for_room(may_block=not self._on_loop())
        with accumulator.lock:
            self._check_open()
            other = accumulator.enter()
            is_first, is_last = accumulator.is_empty, accumulator.is_full
            handle = accumulator.add(values, is_delete)
            own = accumulator.take() if is_last else None
        try:
            if other is not None:
                self._emit(other)
        finally:  # also if the user interrupts the conversion of the other one
            if own is not None:
                self._emit(own)
        if is_first and not is_last:
            self._arm()
        return handle

    def _arm(self) -> None:
        """Start the time after which the chunk is sent, full or not: its first row was added."""
        if self._on_loop():
            self._start_linger()
        else:
            self._to_loop(self._start_linger)

    def _to_loop(self, call: Any, *args: Any) -> None:
        self._sender.cluster.check_not_forked()
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            raise self._closed_error() from None

    def _emit(self, chunk: Chunk) -> None:
        """Convert a chunk and pass it to the loop. Never raises: handles and `flush()` raise what failed."""
        routed: Sequence[RoutedRows] = ()
        try:
            routed, refused = self._converter.convert(chunk)
        except UnknownPartitions as unknown:
            self._defer(unknown, partial(self._emit, chunk), chunk.ticket, chunk.rows)
            return
        except Exception as error:
            # The whole chunk fails: its handles must not wait for rows that will never be sent.
            self._refuse_all(chunk.ticket, chunk.rows, error)
        except BaseException:
            # The user interrupted the conversion. Chunks with larger numbers wait for this one.
            self._refuse(chunk.ticket, chunk.rows, None, InvalidRowError("the conversion was interrupted"))
            self._pass_to_loop(chunk.number, (), chunk.ticket)
            raise
        else:
            for position, refusal in refused.items():
                refusal = refusal.replace(table=str(self._info.table_path), row=chunk.first_row + position)
                self._refuse(chunk.ticket, 1, np.array([position]), refusal)
        self._pass_to_loop(chunk.number, routed, chunk.ticket, adapt_to=chunk.rows)

    def _defer(self, unknown: UnknownPartitions, again: Callable[[], None], ticket: Ticket, rows: int) -> None:
        """Convert rows later, once their partitions are known. Chunks with larger numbers wait for them."""

        async def work() -> None:
            counts = self._converter.counts
            counts.missing = await counts.find(unknown.names)
            try:
                again()
            except Exception as error:  # what a caller on another thread would see
                self._refuse_all(ticket, rows, error)
            finally:
                counts.missing = frozenset()
            self._seal_all()

        task = self._loop.create_task(work())
        self._deferred[task] = ticket, rows
        task.add_done_callback(lambda done: self._deferred.pop(done, None))

    def _refuse_all(self, ticket: Ticket, rows: int, error: Exception) -> None:
        if not isinstance(error, FlussError):
            logger.error("converting %d rows for table %s failed", rows, self._info.table_path, exc_info=error)
            error = InvalidRowError(f"{rows} rows could not be converted: {error!r:.300}")
        self._refuse(ticket, rows, None, error)

    def _refuse(self, ticket: Ticket, rows: int, positions: Positions | None, error: FlussError) -> None:
        self._failures.add(rows, str(self._info.table_path), error)
        ticket.complete(rows, positions, error)

    def _pass_to_loop(self, number: int, routed: Sequence[RoutedRows], ticket: Ticket, adapt_to: int = 0) -> None:
        size_bytes = sum(part.size_bytes for _, part, _ in routed)
        if adapt_to:
            self._adapt(adapt_to, size_bytes)
        memory = self._sender.memory
        memory.reserve(size_bytes)
        if memory.used_bytes >= memory.limit_bytes:
            with self._accumulator.lock:
                # The very next row completes a chunk, and blocks until there is room in the buffer.
                self._accumulator.last = min(self._accumulator.last, 0)
        is_to_call = self._chunks.put(ConvertedChunk(number, routed, ticket, size_bytes))
        if self._on_loop():
            self._accept_chunks()
            return
        try:
            if is_to_call:
                self._loop.call_soon_threadsafe(self._accept_chunks)
        except RuntimeError:
            self._shut = True
        if self._shut:
            # The loop may have ended: then this thread has to fail the rows.
            self._refuse_chunks()

    def _adapt(self, rows: int, size_bytes: int) -> None:
        """Adapt the size of chunks to about one batch, bounded so that a conversion takes no noticeable time."""
        wanted = self._sizer.target * rows // max(size_bytes, 1)
        grown = max(_CHUNK_ROWS_FIRST, rows * _CHUNK_ROWS_GROWTH)
        accumulator = self._accumulator
        with accumulator.lock:
            if not self._shut:
                accumulator.limit(max(1, min(_CHUNK_ROWS_MAX, wanted, grown)))

    def _send_now(self) -> None:
        """Send everything now: a caller waits for the outcome, and more rows would only delay it."""
        if self._on_loop():
            self._push()
        else:
            self._to_loop(self._push)

    # -- on the loop ----------------------------------------------------------------------------------------------

    def _start_linger(self, at_least_s: float = 0.0) -> None:
        if self._linger is None and not self._shut:
            self._linger = self._loop.call_later(max(self._linger_s, at_least_s), self._linger_over)

    def _stop_linger(self) -> None:
        if self._linger is not None:
            self._linger.cancel()
            self._linger = None

    def _emit_accumulated(self) -> None:
        with self._accumulator.lock:
            chunk = self._accumulator.take()
        if chunk is not None:
            self._emit(chunk)

    def _linger_over(self) -> None:
        """Send what has waited long enough, unless the server still works on earlier batches of the same bucket.

        Those rows would wait anyway, and more can join them: the slower a server is, the larger batches get. They are
        sent when one of the batches before them is done. The timer goes on for batches of other writers.
        """
        self._linger = None
        self._emit_accumulated()
        for builder in self._builders.values():
            builder.is_overdue = True
        self._seal_overdue()
        if self._builders:
            self._start_linger(_LINGER_AGAIN_S)

    def _seal_overdue(self) -> None:
        """Send the rows that have waited long enough, of all buckets or of none: they travel in one request."""
        if len(self._in_flight) < _LINGER_BATCHES_TOTAL:
            for key, builder in list(self._builders.items()):
                if builder.is_overdue and self._queued(key) < _LINGER_BATCHES:
                    self._seal(key)

    def _push(self) -> None:
        """Send everything accumulated so far."""
        self._emit_accumulated()
        # A thread may have been interrupted after it added a chunk, and before it called the loop.
        self._accept_chunks()
        self._stop_linger()
        self._seal_all()

    def _accept_chunks(self) -> None:
        if self._shut:
            self._refuse_chunks()
            return
        for chunk in self._chunks.take():
            self._accept(chunk)
        if self._builders:
            self._seal_early()
            self._start_linger()

    def _accept(self, converted: ConvertedChunk) -> None:
        target, rows_max = self._sizer.target, self._batch_rows_max
        for key, part, positions in converted.routed:
            builder = self._builders.get(key)
            if builder is not None and (
                builder.size_bytes + part.size_bytes > target or builder.rows + part.rows > rows_max
            ):
                self._seal(key)
                builder = None
            if builder is None:
                builder = self._builders[key] = BatchBuilder()
            builder.add(part, ChunkShare(converted.ticket, part.rows, positions))
            if builder.size_bytes >= target:
                self._seal(key)

    def _seal_all(self) -> None:
        for key in list(self._builders):
            self._seal(key)

    def _seal_early(self) -> None:
        """Keep the servers busy: client and server then work at the same time, from the first rows to the last."""
        for key, builder in list(self._builders.items()):
            if builder.size_bytes < _EARLY_BYTES:
                continue
            if self._queued(key) < self._busy_batches:
                self._seal(key, early=True)

    def _seal(self, key: RouteKey, early: bool = False) -> None:
        builder = self._builders.pop(key)
        if not early:
            self._sizer.sealed(builder.size_bytes)
        self._converter.batch_sealed(key)
        self._batch_number += 1
        self._in_flight.add(self._batch_number)
        done = partial(self._done, self._batch_number)
        self._sender.submit(self._target, key, builder, self._encode, done)

    def _queued(self, key: RouteKey) -> int:
        return self._sender.queued_batches(self._target, key.partition_name, key.bucket_id)

    def _done(self, number: int, batch: WriteBatch, lane: Lane, error: FlussError | None) -> None:
        self._in_flight.discard(number)
        if error is not None:
            self._failures.add(batch.rows, str(lane), error)
        key = RouteKey(lane.partition_name, lane.bucket_id, batch.routing_count)
        builder = self._builders.get(key)
        if builder is not None:
            queued = self._queued(key)
            if builder.is_overdue and queued < _LINGER_BATCHES and len(self._in_flight) < _LINGER_BATCHES_TOTAL:
                self._seal(key)
            elif builder.size_bytes >= _EARLY_BYTES and queued < self._busy_batches:
                self._seal(key, early=True)
        if len(self._in_flight) == _LINGER_BATCHES_TOTAL - 1:
            self._seal_overdue()
        for waited_for, promise in self._flushes:
            waited_for.discard(number)
            if not waited_for:
                promise.resolve(None)

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send everything and wait until the server has acknowledged it.

        Raises the first error if rows were not written since the last flush, and says how many; rows whose `wait()`
        raised are not reported again. After `timeout` seconds `DeadlineExceededError` is raised; rows that are in
        flight then may still be written. By default the delivery timeout of the writer is the bound.

        Example:
            writer.append({"id": 1, "name": "Alice"})
            await writer.flush()
        """
        (await self.drain(timeout)).raise_first()

    async def drain(self, timeout: float | None = None) -> Failures:
        """Send everything, wait until it is acknowledged or has failed, and return what `flush()` has to raise."""
        await within(self._push_and_wait, timeout, f"Flushing the writer of table {self._info.table_path}")
        return self._failures

    async def _push_and_wait(self) -> None:
        self._push()
        with self._accumulator.lock:
            given = self._accumulator.numbers
        try:
            # Other threads may still convert rows that were given before this call.
            if not self._shut and await self._chunks.wait_taken(given, self._config.writer_delivery_timeout_ms / 1000):
                self._seal_all()
        except asyncio.TimeoutError:
            raise DeadlineExceededError(
                f"rows for {self._info.table_path} that another thread converts did not arrive within "
                f"{self._config.writer_delivery_timeout_ms} ms"
            ) from None
        if self._in_flight:
            # Only what is in flight now: rows that other threads append meanwhile must not delay this flush.
            waiting = (set(self._in_flight), Promise[None]())
            self._flushes.append(waiting)
            try:
                await waiting[1].wait()
            finally:
                self._flushes.remove(waiting)

    async def close(self, *, timeout: float | None = None) -> None:
        """Flush and be done.

        Example:
            await writer.close()
        """
        await self.flush(timeout=timeout)

    async def shut(self) -> None:
        """Fail what was not passed to the sender yet: the connection ends. The sender fails the rest."""
        self._stop_linger()
        with self._accumulator.lock:
            self._shut = True
            self._accumulator.limit(0)  # the next row completes a chunk, which checks for a closed connection
            chunk = self._accumulator.take()
        error = self._not_sent_error()
        if chunk is not None:
            self._refuse(chunk.ticket, chunk.rows, None, error)
        for task, (ticket, rows) in list(self._deferred.items()):
            task.cancel()
            self._refuse(ticket, rows, None, error)
        for builder in self._builders.values():
            self._failures.add(builder.rows, str(self._info.table_path), error)
            complete_shares(builder.shares, error)
            self._sender.memory.release(builder.size_bytes)
        self._builders.clear()
        self._refuse_chunks()
        self._chunks.end_waits()

    def _refuse_chunks(self) -> None:
        error = self._not_sent_error()
        for chunk in self._chunks.take_all():
            for _, part, positions in chunk.routed:
                self._refuse(chunk.ticket, part.rows, positions, error)
            self._sender.memory.release(chunk.reserved_bytes)

    def _not_sent_error(self) -> ConnectionClosedError:
        return ConnectionClosedError(
            f"the connection was closed before rows for {self._info.table_path} were sent; they were not written"
        )

    async def __aenter__(self: _WriterT) -> _WriterT:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None = None, *_: object) -> None:
        """Leave: everything pending is flushed, unless the block ended with an error."""
        if exc_type is None:
            await self.flush()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._info.table_path})"
