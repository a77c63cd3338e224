# SPDX-License-Identifier: Apache-2.0
"""The scanners of `fluss`: plain, blocking calls over the scanners of `fluss.aio`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal

from fluss.client import scan as core
from fluss.client.background import Background
from fluss.client.scan import RecordBatch, ScanRecord, ScanRecords

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from fluss.metadata import Predicate, TableBucket

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ItemT = TypeVar("ItemT", default=Any)
    """What iterating over a scanner gives. With a default, so that `LogScanner` alone is a type too."""
else:
    from typing import TypeVar

    ItemT = TypeVar("ItemT")

OneShotT = TypeVar("OneShotT", bound="_OneShot")


class TableScan:
    """Builder of scanners. Obtain it with `table.new_scan()`."""

    def __init__(self, core_scan: core.TableScan, background: Background) -> None:
        self._core = core_scan
        self._background = background

    def project(self, indices: Sequence[int]) -> TableScan:
        """Read only the columns at these positions, in this order."""
        return TableScan(self._core.project(indices), self._background)

    def project_by_name(self, names: Sequence[str]) -> TableScan:
        """Read only these columns, in this order."""
        return TableScan(self._core.project_by_name(names), self._background)

    def filter(self, predicate: Predicate) -> TableScan:
        """Read only rows that match, for instance `fluss.col("id") > 3`."""
        return TableScan(self._core.filter(predicate), self._background)

    def limit(self, n: int) -> TableScan:
        """Read at most `n` rows, with `create_bucket_batch_scanner` or `create_table_batch_scanner`."""
        return TableScan(self._core.limit(n), self._background)

    def with_fixed_schema(self, fixed_schema: bool) -> TableScan:
        """Whether rows written with an older schema are brought to the schema of this scan (the default)."""
        return TableScan(self._core.with_fixed_schema(fixed_schema), self._background)

    def read_batches(
        self,
        start_offsets: dict[TableBucket, int],
        stop_offsets: dict[TableBucket, int] | None = None,
        *,
        timeout: float | None = None,
    ) -> Iterator[RecordBatch]:
        """Read all rows of these buckets from their start offsets up to (not including) their stop offsets.

        Without stop offsets: up to the ends of the log at the time of the first batch. `timeout` is the time for the
        whole read, in seconds; by default it may take as long as it makes progress. A stop offset behind the end of the
        log is waited for in vain, and ends the read with `DeadlineExceededError`.
        """
        yield from self._background.iterate(self._core.read_batches(start_offsets, stop_offsets, timeout=timeout))

    async def create_log_scanner(self) -> LogScanner[ScanRecord]:
        """A scanner of single records with offset, timestamp and change type, for `poll()`."""
        return LogScanner(await self._background.wrap(self._core.create_log_scanner()), self._background)

    async def create_record_batch_log_scanner(self) -> LogScanner[RecordBatch]:
        """A scanner of Arrow batches, for `poll_arrow()`, `poll_record_batch()`, `to_arrow()` and the like."""
        return LogScanner(await self._background.wrap(self._core.create_record_batch_log_scanner()), self._background)

    async def create_batch_scanner(self) -> LogScanner[RecordBatch]:
        """Older name of `create_record_batch_log_scanner`."""
        return await self.create_record_batch_log_scanner()

    def create_bucket_batch_scanner(self, bucket: TableBucket, *, snapshot_id: int | None = None) -> BatchScanner:
        """A scanner that reads one bucket once and ends. Log tables need `limit(n)`.

        With `snapshot_id`, the rows of that snapshot of a primary-key table, straight from the server's remote storage.
        """
        core = self._background.call(lambda: self._core.create_bucket_batch_scanner(bucket, snapshot_id=snapshot_id))
        return BatchScanner(core, self._background)

    def create_table_batch_scanner(self) -> TableBatchScanner:
        """A scanner that reads the whole table once and ends: all partitions and buckets, several at a time."""
        return TableBatchScanner(self._background.call(self._core.create_table_batch_scanner), self._background)

    def __repr__(self) -> str:
        return repr(self._core)


class _Closing:
    """`close`, `with` and `async with`."""

    _core: core.LogScanner[Any] | core.BatchScanner | core.TableBatchScanner
    _background: Background

    def close(self) -> None:
        """Stop reading; may be called again."""
        if not self._background.thread.closed:
            self._background.block(self._core.close())

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Literal[False]:
        self.close()
        return False

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> bool:
        await self._background.wrap(self._core.close())
        return False

    def __repr__(self) -> str:
        return repr(self._core)


class LogScanner(_Closing, Generic[ItemT]):
    """Reads the log of a table from chosen offsets on, endlessly with `poll*`, or up to now with `to_*`.

    Arrow batches of a primary-key table are its changelog, and end with a column `_change_type`.
    """

    _core: core.LogScanner[ItemT]

    def __init__(self, core_scanner: core.LogScanner[ItemT], background: Background) -> None:
        self._core = core_scanner
        self._background = background

    # -- what to read ---------------------------------------------------------------------------------------------

    def subscribe(self, bucket_id: int, start_offset: int, *, timeout: float | None = None) -> None:
        """Read a bucket from an offset on; `EARLIEST_OFFSET` and `LATEST_OFFSET` are understood."""
        self._background.block(self._change(self._core.subscribe, bucket_id, start_offset, timeout=timeout))

    def subscribe_from_beginning(self, bucket_id: int, partition_id: int | None = None) -> None:
        """Read a bucket (of a partition, if the table has partitions) from its earliest offset on."""
        self._background.call(self._core.subscribe_from_beginning, bucket_id, partition_id)

    def subscribe_buckets(self, bucket_offsets: Mapping[int, int], *, timeout: float | None = None) -> None:
        """Read several buckets: `{bucket_id: start_offset}`."""
        self._background.block(self._change(self._core.subscribe_buckets, bucket_offsets, timeout=timeout))

    def subscribe_partition(
        self, partition_id: int, bucket_id: int, start_offset: int, *, timeout: float | None = None
    ) -> None:
        """Read a bucket of a partition."""
        self._background.block(
            self._change(self._core.subscribe_partition, partition_id, bucket_id, start_offset, timeout=timeout)
        )

    def subscribe_partition_buckets(
        self, partition_bucket_offsets: Mapping[tuple[int, int], int], *, timeout: float | None = None
    ) -> None:
        """Read several buckets of partitions: `{(partition_id, bucket_id): start_offset}`."""
        self._background.block(
            self._change(self._core.subscribe_partition_buckets, partition_bucket_offsets, timeout=timeout)
        )

    def unsubscribe(self, bucket_id: int) -> None:
        """Stop reading a bucket."""
        self._background.call(self._core.unsubscribe, bucket_id)

    def unsubscribe_partition(self, partition_id: int, bucket_id: int) -> None:
        """Stop reading a bucket of a partition."""
        self._background.call(self._core.unsubscribe_partition, partition_id, bucket_id)

    async def _change(self, call: Any, *arguments: Any, timeout: float | None) -> None:
        call(*arguments, timeout=timeout)
        # "Latest" means latest at the time of the call, so it is asked for before the call returns.
        await self._core.settled()

    def get_subscribed_buckets(self) -> list[tuple[TableBucket, int]]:
        """The subscribed buckets, each with the offset it is read from next."""
        return self._background.call(self._core.get_subscribed_buckets)

    def is_partitioned(self) -> bool:
        """Whether the table is partitioned."""
        return self._core.is_partitioned()

    def lag(self) -> dict[TableBucket, int | None]:
        """How many offsets each bucket is behind the end of its log, as last heard; None before the first answer."""
        return self._background.call(self._core.lag)

    # -- endless reading ------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int) -> ScanRecords:
        """Records that are there, or come within the timeout; empty if none do. For record scanners."""
        found = self._leftover()
        return self._background.block(self._core.poll(timeout_ms)) if found is None else found

    def _leftover(self) -> ScanRecords | None:
        """Records that are here already, without a trip to the other thread."""
        return None if self._background.thread.closed else self._core.poll_leftover()

    def poll_arrow(self, timeout_ms: int) -> pa.Table:
        """The same as an Arrow table. For batch scanners."""
        return self._background.block(self._core.poll_arrow(timeout_ms))

    def poll_record_batch(self, timeout_ms: int) -> list[RecordBatch]:
        """The same as Arrow batches with bucket and offsets. For batch scanners."""
        return self._background.block(self._core.poll_record_batch(timeout_ms))

    def poll_batches(self, timeout_ms: int) -> list[RecordBatch]:
        """Older name of `poll_record_batch`."""
        return self.poll_record_batch(timeout_ms)

    def wakeup(self) -> None:
        """End the wait of a poll: the one that waits now, or else the next one, returns what it has. From any thread.

        Example:
            threading.Timer(5, scanner.wakeup).start()
            records = scanner.poll(timeout_ms=60_000)
        """
        self._core.wakeup()

    def __iter__(self) -> Iterator[ItemT]:
        while True:
            yield from self._core._give()
            self._background.block(self._core._fill())

    def __aiter__(self) -> AsyncIterator[ItemT]:
        return self._core._loop_with(self._fill)

    async def _fill(self) -> bool:
        await self._background.wrap(self._core._fill())
        return True

    # -- reading up to now ----------------------------------------------------------------------------------------

    def to_arrow(self, *, include_lake: bool = False, timeout: float | None = None) -> pa.Table:
        """Everything from the subscribed offsets up to the latest ones of now, as an Arrow table.

        For a primary-key table that is its changelog, with a column `_change_type` (``insert``, ``update_before``,
        ``update_after``, ``delete``). For current rows use `create_bucket_batch_scanner`, lookups, or
        `fluss.connect(…).table(…).to_arrow()`.

        With `include_lake`: the whole table instead, the rows of its newest lake snapshot and the log after it; for
        primary-key tables its current rows. Subscriptions play no part then; projection and filter do.

        `timeout` is the time for the whole read, in seconds; by default it may take as long as it makes progress.
        """
        return self._background.block(self._core.to_arrow(include_lake=include_lake, timeout=timeout))

    def to_pandas(self, *, timeout: float | None = None) -> pd.DataFrame:
        """The same as a pandas DataFrame."""
        return self._background.block(self._core.to_pandas(timeout=timeout))

    def to_polars(self, *, timeout: float | None = None) -> Any:
        """The same as a polars DataFrame."""
        return self._background.block(self._core.to_polars(timeout=timeout))

    def to_arrow_batch_reader(self, *, timeout: float | None = None) -> pa.RecordBatchReader:
        """The same, batch by batch as you read."""
        return self._background.call(partial(self._core.to_arrow_batch_reader, timeout=timeout))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow_batch_reader().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._core.arrow_schema.__arrow_c_schema__()

    def __enter__(self) -> LogScanner[ItemT]:
        return self

    async def __aenter__(self) -> LogScanner[ItemT]:
        return self


class _OneShot(_Closing):
    """What scanners that read once and end have in common."""

    _core: core.BatchScanner | core.TableBatchScanner

    def next_batch(self, *, timeout: float | None = None) -> RecordBatch | None:
        """The next batch, or None when all was read."""
        batch = None
        while batch is None and self._background.block(self._fill(timeout)):
            batch = self._core._take()  # none if another thread was quicker
        return batch

    async def _fill(self, timeout: float | None = None) -> bool:
        return await self._core._fill(self._background.cluster.deadline(timeout))

    def collect_all_batches(self, *, timeout: float | None = None) -> list[RecordBatch]:
        """All batches."""
        return self._background.block(self._core.collect_all_batches(timeout=timeout))

    def to_arrow(self, *, timeout: float | None = None) -> pa.Table:
        """All rows as an Arrow table."""
        return self._background.block(self._core.to_arrow(timeout=timeout))

    def to_pandas(self, *, timeout: float | None = None) -> pd.DataFrame:
        """All rows as a pandas DataFrame."""
        return self._background.block(self._core.to_pandas(timeout=timeout))

    def to_polars(self, *, timeout: float | None = None) -> Any:
        """All rows as a polars DataFrame."""
        return self._background.block(self._core.to_polars(timeout=timeout))

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._core.arrow_schema.__arrow_c_schema__()

    def __iter__(self) -> Iterator[RecordBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    async def __aiter__(self) -> AsyncIterator[RecordBatch]:
        while await self._background.wrap(self._fill()):
            batch = self._core._take()
            if batch is not None:
                yield batch

    def __enter__(self: OneShotT) -> OneShotT:
        return self

    async def __aenter__(self: OneShotT) -> OneShotT:
        return self


class BatchScanner(_OneShot):
    """Reads one bucket once, up to a limit."""

    _core: core.BatchScanner

    def __init__(self, core_scanner: core.BatchScanner, background: Background) -> None:
        self._core = core_scanner
        self._background = background

    @property
    def bucket(self) -> TableBucket:
        """The bucket that is read."""
        return self._core.bucket

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that the rows come from, or begin with; None when none is read."""
        return self._core.snapshot_id

    @property
    def log_offset(self) -> int | None:
        """The end of the changelog that the rows read so far stand for; None where the server does not say."""
        return self._core.log_offset


class TableBatchScanner(_OneShot):
    """Reads a whole table once: all rows of a log table up to now, or the current rows of a primary-key table."""

    _core: core.TableBatchScanner

    def __init__(self, core_scanner: core.TableBatchScanner, background: Background) -> None:
        self._core = core_scanner
        self._background = background
