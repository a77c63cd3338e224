# SPDX-License-Identifier: Apache-2.0
"""One write of many rows: from what the user gave, over the writer of the client, to a result."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from fluss.db.bridge import offload
from fluss.db.inputs import CHUNK_SECONDS, BadRow, frame_of, is_one_row, pieces_of, to_batch
from fluss.db.schemas import frame_to_arrow, is_pandas
from fluss.db.write_results import WriteResult, rejected, with_outcome, with_rows_written
from fluss.errors import (
    DeadlineExceededError,
    FlussError,
    InvalidRowError,
    PartitionSpecInvalidError,
    RecordTooLargeError,
)
from fluss.metadata.partition import PARTITION_KEY_TYPES

if TYPE_CHECKING:
    from fluss.client.write import AppendWriter, UpsertWriter, WriteResultHandle
    from fluss.client.write.row_reader import RowReader
    from fluss.config import Config
    from fluss.metadata import TableInfo

_PROGRESS_ROWS = 65_536


class Sink:
    """A writer of the client, and how rows get into it."""

    def __init__(self, writer: AppendWriter | UpsertWriter, rows: RowReader, *, is_delete: bool = False) -> None:
        self.writer = writer
        self.rows = rows
        self._is_delete = is_delete

    def parts(self, data: Any) -> Sequence[Any]:
        """The parts that the writer takes whole or not at all. What can be checked without it is checked of all.

        A row that is too large, or of no partition, is found when its batch is written. Those before it are then.
        """
        batches = data.to_batches() if isinstance(data, pa.Table) and not self._is_delete else []
        if len(batches) < 2:
            return [data]
        self.rows.check_names(data.schema.names)
        from fluss.client.write.arrow_input import BatchReader

        reader = BatchReader(self.rows.table, self.rows.columns)
        firsts = itertools.accumulate((batch.num_rows for batch in batches), initial=0)
        return [reader.read(batch, first) for batch, first in zip(batches, firsts)]

    def write(self, data: Any) -> WriteResultHandle:
        """Hand a batch, a table or a pandas frame to the writer."""
        if self._is_delete:
            return self._delete(data)
        self.rows.check_names(data.schema.names if isinstance(data, (pa.RecordBatch, pa.Table)) else data.columns)
        if isinstance(data, pa.RecordBatch):
            return self.writer.write_arrow_batch(data)
        if isinstance(data, pa.Table):
            return self.writer.write_arrow(data)
        return self.writer.write_pandas(data)

    def _delete(self, data: Any) -> WriteResultHandle:
        from fluss.client.write import UpsertWriter

        assert isinstance(self.writer, UpsertWriter)
        if is_pandas(data):
            data = frame_to_arrow(data[[name for name in self.rows.names if name in data.columns]])
        if isinstance(data, pa.Table):
            missing = [name for name in self.rows.names if name not in data.column_names]
            if missing:
                raise InvalidRowError(f"the keys to delete lack column {missing[0]!r}", table=self.rows.table)
            data = data.select(self.rows.names).combine_chunks()
            data = data.to_batches()[0] if data.num_rows else pa.RecordBatch.from_pylist([], data.schema)
        return self.writer.delete_arrow_batch(data)


class BulkWrite:
    """One call of `append`, `upsert` or `delete`."""

    def __init__(self, sink: Sink, progress: bool) -> None:
        self._sink = sink
        self._progress = progress
        self._handles: deque[tuple[int, WriteResultHandle]] = deque()
        """Of what is not known to be durable yet; an iterable may have no end."""
        self._given = 0
        self._written = 0
        self._rejected: FlussError | None = None
        """The error about the first row that does not fit, with its position among all."""
        self._cancelled = False

    async def run(self, data: Any) -> WriteResult:
        """Write everything, and wait until it is durable."""
        started = time.perf_counter()
        failure: Exception | None = None
        try:
            if hasattr(data, "__aiter__"):
                await self._run_async(data)
            elif is_one_row(data):
                try:
                    self._chunk([data])
                except DeadlineExceededError:  # the buffer is full, and the loop may not wait for room in it
                    await offload(lambda: self._chunk([data]))
            else:
                await offload(lambda: self._feed(data))
        except Exception as error:
            failure = error
        except BaseException:
            self._cancelled = True  # the thread that takes the rows goes on until it looks
            raise
        try:
            written = await self._wait()
        except FlussError as error:
            raise error from failure
        if failure is not None:
            raise with_rows_written(failure, written)
        if self._rejected is not None:
            raise rejected(self._rejected, self._rejected.row or 0, written)
        return WriteResult(written, time.perf_counter() - started)

    async def _run_async(self, data: Any) -> None:
        chunk: list[Any] = []
        end = time.monotonic() + CHUNK_SECONDS
        try:
            async for row in data:
                chunk.append(row)
                if len(chunk) >= 1_000 or time.monotonic() >= end:
                    rows, chunk = chunk, []
                    end = time.monotonic() + CHUNK_SECONDS
                    if not await offload(lambda rows=rows: self._chunk(rows)):  # type: ignore[misc]
                        return
        except Exception:
            if chunk:
                await offload(lambda: self._chunk(chunk))
            raise
        if chunk:
            await offload(lambda: self._chunk(chunk))

    async def _wait(self) -> int:
        written = self._written
        failure: FlussError | None = None
        for rows, handle in self._handles:
            try:
                await handle.wait()
                written += rows
            except FlussError as error:
                failure = failure or error
        if failure is not None:
            # Raised here: the next flush of the connection must not raise it again.
            self._sink.writer._failures.take()
            raise with_outcome(failure, f"{written} of {self._given} rows were written for certain")
        return written

    # -- in the caller's thread -----------------------------------------------------------------------------------

    def _feed(self, data: Any) -> None:
        frame = frame_of(data, self._sink.rows.names)
        total = len(frame) if frame is not None else len(data) if hasattr(data, "__len__") else None
        with _bar(self._progress, self._sink.rows.table, total) as advance:
            if frame is None:
                pieces = pieces_of(data, self._sink.rows.names)
            else:
                pieces = _slices(frame) if self._progress else iter([frame])
            for piece in pieces:
                if not (self._chunk(piece) if isinstance(piece, list) else self._whole(piece)):
                    return
                advance(len(piece))

    def _whole(self, data: Any) -> bool:
        """Write Arrow or a frame; False if a row of it does not fit, and then nothing of its part is written."""
        if self._cancelled:
            return False
        try:
            for part in self._sink.parts(data):
                handle = self._sink.write(part)
                rows = part.num_rows if isinstance(part, (pa.RecordBatch, pa.Table)) else len(part)
                self._handles.append((rows, handle))
                self._given += rows
        except (InvalidRowError, PartitionSpecInvalidError, RecordTooLargeError) as error:
            if error.row is None:
                raise
            self._rejected = error.replace(row=self._given + error.row)
            return False
        while self._handles and self._handles[0][1].done():
            if self._handles[0][1].ticket.failed:
                return False  # more rows would only fail too
            self._written += self._handles.popleft()[0]
        return True

    def _chunk(self, rows: list[Any]) -> bool:
        """Write some rows; False if one does not fit, and then those before it are written."""
        rejected_before: FlussError | None = None
        try:
            batch = to_batch(self._sink.rows, rows)
        except BadRow as bad:
            self._rejected = rejected_before = bad.error.replace(
                row=self._given + bad.position, table=self._sink.rows.table
            )
            if bad.before is None:
                return False
            batch = bad.before
        while batch.num_rows and not self._whole(batch):
            refusal = self._rejected
            if refusal is None or refusal is rejected_before:
                return False  # not because of a row
            rejected_before = refusal
            batch = batch.slice(0, (refusal.row or 0) - self._given)
        return self._rejected is None


def checked_table(data: pa.Table, info: TableInfo, config: Config) -> pa.Table:
    """The data in the types of a table that is to be created; an error as of a write of it if a row does not fit.

    Args:
        info: The table. Its ids are not used.
        config: The options of the client: how it writes partition values, and how large a request may be.
    """
    from fluss.client.write.arrow_input import BatchReader
    from fluss.client.write.routing import BadRows, check_row_sizes, partition_codes

    reader = BatchReader(str(info.table_path), info.schema.columns)
    keys = [info.schema.column(key) for key in info.partition_keys]
    # The server has the word on columns that no table can be partitioned by.
    is_partitioned = bool(keys) and all(isinstance(key.data_type, PARTITION_KEY_TYPES) for key in keys)
    batches, first = [], 0
    for given in data.to_batches():
        try:
            batch = reader.read(given, first)
        except InvalidRowError as error:
            raise error if error.row is None else rejected(error, error.row, 0) from None
        try:
            if is_partitioned:
                partition_codes(info, [batch.column(key.name) for key in keys], config.client_bucketing)
            check_row_sizes(info, batch, config.writer_request_max_size)
        except BadRows as error:
            raise rejected(error.replace(table=reader.table), first + (error.row or 0), 0) from None
        batches.append(batch)
        first += batch.num_rows
    return pa.Table.from_batches(batches, reader.schema)


def _slices(frame: Any) -> Iterator[Any]:
    for start in range(0, len(frame), _PROGRESS_ROWS):
        if isinstance(frame, pa.Table):
            yield frame.slice(start, _PROGRESS_ROWS)
        else:
            yield frame.iloc[start : start + _PROGRESS_ROWS]


@contextlib.contextmanager
def _bar(show: bool, table: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error, if it is wanted."""
    if not show:
        yield lambda rows: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(f"table {table}", total=total)
        yield lambda rows: progress.advance(task, rows)
