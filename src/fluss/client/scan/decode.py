# SPDX-License-Identifier: Apache-2.0
"""Log batches to Arrow: the right schema version, the wanted columns, only the wanted rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from fluss._arrow_buffers import array_of, numpy_of, valid_mask
from fluss._lazy import LazyModule
from fluss.client.scan.records import RecordBatch
from fluss.client.scan.remote import located
from fluss.errors import CorruptRecordError, FlussError, FormatError, InvalidRowError
from fluss.metadata import Schema, TableBucket, TableInfo
from fluss.records import (
    DECODED_BYTES_MAX,
    LogBatch,
    align_batch,
    decode_arrow_batch,
    decode_log_batch,
    expanded_bytes,
    has_columns,
    iter_log_batches,
)

if TYPE_CHECKING:
    import pyarrow.compute as pc

    from fluss.client.scan.subscription import Subscription
    from fluss.metadata import Predicate
else:
    pc = LazyModule("pyarrow.compute")

_FIRST_SCHEMA_ID = 1


class BatchDecoder:
    """Decodes the log batches of one scan.

    `projection` holds column positions in the order the user wants them; a server that projects keeps them ascending.
    """

    def __init__(
        self,
        info: TableInfo,
        schema_of: Callable[[int], Schema],
        projection: Sequence[int] | None,
        predicate: Predicate | None,
        *,
        fixed_schema: bool = True,
    ) -> None:
        self.info = info
        self._schema_of = schema_of
        self._projection = list(projection) if projection is not None else None
        self._sorted = read_columns(info, projection, predicate)
        """What a server is asked for: with a filter also the columns it looks at, which are cut off after it."""
        self._fixed = fixed_schema
        columns = info.schema.columns if projection is None else [info.schema.columns[i] for i in projection]
        self.columns = list(columns)
        self.types = [column.data_type for column in columns]
        whole = info.schema.arrow_schema
        self.arrow_schema = whole if projection is None else pa.schema([whole.field(i) for i in projection])
        self._expression = predicate.to_arrow_expression(info.schema) if predicate is not None else None
        self._read_schema = self.arrow_schema
        self._served: set[int] = set()
        """The ids of schemas out of whose batches a server cuts just the columns that are read, in their order."""
        if self._expression is not None and self._sorted is not None:
            # Before the filter; what it alone looks at is cut off after it.
            self._read_schema = pa.schema([info.schema.arrow_schema.field(i) for i in self._sorted])

    def announced_bytes(self, batch: LogBatch) -> int:
        """What a batch says to decompress to."""
        if self.info.log_format != "ARROW" or not batch.header.record_count:
            return batch.header.size_bytes
        try:
            return expanded_bytes(batch.arrow_view)
        except FormatError:
            return DECODED_BYTES_MAX  # a batch with columns that are not wanted may be read all the same

    def batches(self, records: memoryview, subscription: Subscription, remote_dir: str | None) -> Iterator[LogBatch]:
        """The batches in what was fetched of a bucket, not decoded yet.

        Raises:
            CorruptRecordError: What follows is no batch.
        """
        try:
            yield from iter_log_batches(records)
        except FormatError as error:
            text = (
                f"What was read from offset {subscription.fetch_offset} on of {subscription.bucket} of table "
                f"'{self.info.table_path}' is not valid: {error.message}. To read on behind it, subscribe the bucket "
                f"at a later offset."
            )
            raise located(CorruptRecordError(text), remote_dir) from error

    def decode_fetched(
        self,
        batch: LogBatch,
        bucket: TableBucket,
        from_offset: int,
        to_offset: int | None,
        *,
        projected: bool,
        check_crc: bool,
        remote_dir: str | None,
    ) -> RecordBatch | None:
        """Check a batch and decode it as `decode` does; errors name the folder of the remote log that it comes from."""
        try:
            if check_crc:
                batch.verify_crc()
            return self.decode(batch, bucket, from_offset, to_offset, projected=projected)
        except FlussError as error:
            raise located(error, remote_dir) from None

    def decode(
        self, batch: LogBatch, bucket: TableBucket, from_offset: int, to_offset: int | None, *, projected: bool
    ) -> RecordBatch | None:
        """The wanted rows of one batch: offsets in [from_offset, to_offset), filtered and projected.

        None when nothing of it is wanted. `projected`: the server cut the columns of this very batch.

        Raises:
            CorruptRecordError: The batch is not valid. The message names it, and how to read on behind it.
        """
        try:
            return self._decode(batch, bucket, from_offset, to_offset, projected)
        except (FormatError, InvalidRowError, pa.ArrowException) as error:
            raise self._invalid(batch, bucket, error) from error

    def _invalid(self, batch: LogBatch, bucket: TableBucket, error: Exception) -> CorruptRecordError:
        header = batch.header
        of_partition = "" if bucket.partition_id is None else f"partition_id={bucket.partition_id}, "
        subscribe = "subscribe" if bucket.partition_id is None else "subscribe_partition"
        return CorruptRecordError(
            f"The batch with the offsets {header.base_offset} to {header.last_offset} of {bucket} of table "
            f"'{self.info.table_path}' is not valid: {getattr(error, 'message', error)}. No row of it was returned. To "
            f"read on behind it, call {subscribe}({of_partition}bucket_id={bucket.bucket_id}, "
            f"start_offset={header.next_offset})."
        )

    def _decode(
        self, batch: LogBatch, bucket: TableBucket, from_offset: int, to_offset: int | None, projected: bool
    ) -> RecordBatch | None:
        header = batch.header
        count = header.record_count
        base = header.base_offset
        start = max(0, from_offset - base)
        stop = count if to_offset is None else min(count, to_offset - base)
        if start >= stop:
            return None
        written = self._schema_of(header.schema_id)
        arrow = self._to_arrow(batch, written, projected)
        changes = batch.change_types(self.info.log_format)
        change_types = None if changes is None else bytes(changes)
        if start or stop < count:
            arrow = arrow.slice(start, stop - start)
            change_types = change_types and change_types[start:stop]
        first, last, timestamp = base + start, base + stop - 1, header.commit_timestamp_ms
        decoded = RecordBatch(arrow, bucket, first, last, timestamp, change_types, None, header.writer_id)
        return decoded if self._expression is None else self._filter(decoded)

    def _to_arrow(self, batch: LogBatch, written: Schema, projected: bool) -> pa.RecordBatch:
        schema = self.info.schema
        if self._sorted is not None:
            if projected and batch.header.schema_id in self._served:
                return decode_arrow_batch(batch, self._read_schema)
            # A schema older than the table's may lack some of the wanted columns.
            present = [i for i in self._sorted if i < len(written.columns)]
            if projected:
                fields = [written.arrow_schema.field(i) for i in present]
                younger = [schema.arrow_schema.field(i) for i in self._sorted[len(present) :]]
                if younger and has_columns(batch, pa.schema(fields + younger)):
                    # Servers send them as nulls; those of earlier releases left them out.
                    fields, present = fields + younger, self._sorted
                served = pa.schema(fields)
                arrow = decode_arrow_batch(batch, served)
                if not younger and served.equals(self._read_schema):
                    self._served.add(batch.header.schema_id)
            elif self.info.log_format == "ARROW":
                arrow = decode_arrow_batch(batch, written.arrow_schema, columns=present)
            else:
                arrow = decode_log_batch(batch, written, self.info.log_format).select(present)
            return self._arrange(arrow, [schema.columns[i].name for i in present], self._read_schema)
        arrow = decode_log_batch(batch, written, self.info.log_format)
        if written is not schema and (self._fixed or self._expression is not None):
            # A filter speaks of the columns of the table as the scan knows it.
            arrow = align_batch(arrow, written, schema)
        return arrow

    def _arrange(self, arrow: pa.RecordBatch, names: Sequence[str], wanted: pa.Schema) -> pa.RecordBatch:
        """The wanted columns in the wanted order; a column that was not written yet reads as null."""
        at = {name: i for i, name in enumerate(names)}
        arrays = []
        for field in wanted:
            position = at.get(field.name)
            arrays.append(pa.nulls(arrow.num_rows, field.type) if position is None else arrow.column(position))
        return pa.RecordBatch.from_arrays(arrays, schema=wanted)

    def _filter(self, decoded: RecordBatch) -> RecordBatch:
        table = pa.Table.from_batches([decoded.batch])
        keep = _mask(table, self._expression)
        batch = decoded.batch
        offsets: Sequence[int] | None = None
        change_types = decoded.change_types
        if not keep.all():
            at = np.flatnonzero(keep)
            batch = batch.take(array_of(at))
            offsets = (at + decoded.base_offset).tolist()
            change_types = change_types and bytes(np.frombuffer(change_types, np.uint8)[at])
        if self._projection is not None:
            batch = self._arrange(batch, batch.schema.names, self.arrow_schema)
        first, last, timestamp = decoded.base_offset, decoded.last_offset, decoded.timestamp
        return RecordBatch(batch, decoded.bucket, first, last, timestamp, change_types, offsets, decoded.writer_id)


def read_columns(info: TableInfo, projection: Sequence[int] | None, predicate: Predicate | None) -> list[int] | None:
    """The positions of the columns a scan needs, ascending: those that are wanted, and those a filter looks at."""
    if projection is None:
        return None
    filtered = () if predicate is None else (info.schema.column_index(leaf.column) for leaf in predicate.leaves())
    # Batches older than all wanted columns have none of them, and servers do not serve batches without columns: the
    # first column has always been there.
    always = (0,) if info.schema_id > _FIRST_SCHEMA_ID else ()
    return sorted({*projection, *filtered, *always})


def _mask(table: pa.Table, expression: pc.Expression) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """For each row whether it satisfies the expression; unknown counts as no."""
    from pyarrow import acero  # not part of `import pyarrow`, and only filters need it

    marked = acero.Declaration.from_sequence(
        [
            acero.Declaration("table_source", acero.TableSourceNodeOptions(table)),
            acero.Declaration("project", acero.ProjectNodeOptions([expression], ["keep"])),
        ]
    ).to_table(use_threads=False)
    chunks = marked.column("keep").chunks
    return np.concatenate([numpy_of(chunk) & valid_mask(chunk) for chunk in chunks] or [np.zeros(0, np.bool_)])


_pool: tuple[int, ThreadPoolExecutor] | None = None
_ahead = True


def decode_threads() -> ThreadPoolExecutor | None:
    """The threads, None to decode in place. They are shared: starting one costs as much as decoding a batch."""
    global _pool
    if not _ahead:
        return None
    if _pool is None or _pool[0] != os.getpid():  # threads do not survive a fork
        _pool = (os.getpid(), ThreadPoolExecutor(min(4, os.cpu_count() or 1), thread_name_prefix="fluss-decode"))
    return _pool[1]


def decode_when_taken() -> None:
    """Do without threads in this process: where others keep every core busy, handing work to them only costs."""
    global _ahead
    _ahead = False
