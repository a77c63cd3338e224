# SPDX-License-Identifier: Apache-2.0
"""The multi-table classes of `fluss`: plain, blocking calls over those of `fluss.aio`."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from fluss.client import multi_table as core
from fluss.client.background import Background

if TYPE_CHECKING:
    from fluss.client.write import WriteResultHandle
    from fluss.metadata import Predicate, TableBucket, TablePath


class MultiTable:
    """Access to many tables at once. Obtain it with `conn.get_multi_table()`."""

    def __init__(self, core_table: core.MultiTable, background: Background) -> None:
        self._core = core_table
        self._background = background

    def new_multi_table_write(self) -> MultiTableWrite:
        """A builder of writers to many tables."""
        return MultiTableWrite(self._core.new_multi_table_write(), self._background)

    def new_multi_table_scan(self) -> MultiTableScan:
        """A builder of scanners of many tables."""
        return MultiTableScan(self._core.new_multi_table_scan(), self._background)


class MultiTableWrite:
    """Builder of a writer to many tables."""

    def __init__(self, core_write: core.MultiTableWrite, background: Background) -> None:
        self._core = core_write
        self._background = background

    def create_writer(self) -> MultiTableWriter:
        """Create the writer."""
        return MultiTableWriter(self._core.create_writer(), self._background)


class MultiTableWriter:
    """Writes rows to the tables that each call names. Rows of one table keep their order."""

    def __init__(self, core_writer: core.MultiTableWriter, background: Background) -> None:
        self._core = core_writer
        self._background = background

    def append(self, table_path: TablePath | str, row: Any) -> WriteResultHandle:
        """Append one row to a log table."""
        return self._background.block(self._core.append(table_path, row))

    def upsert(self, table_path: TablePath | str, row: Any) -> WriteResultHandle:
        """Insert or update one row of a primary-key table."""
        return self._background.block(self._core.upsert(table_path, row))

    def delete(self, table_path: TablePath | str, pk: Any) -> WriteResultHandle:
        """Delete the row with this key from a primary-key table."""
        return self._background.block(self._core.delete(table_path, pk))

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send everything to all tables and wait until it is acknowledged.

        Raises the first error; the next flush raises those of other tables.
        """
        for failures in await self._background.wrap(self._core._drain(timeout)):
            failures.raise_first()

    def close(self) -> None:
        """Flush and be done."""
        self._background.block(self._core.close())

    def __enter__(self) -> MultiTableWriter:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> Literal[False]:
        if exc_type is None:
            self.close()
        return False


class MultiTableScan:
    """Builder of a scanner of many tables; columns and filters are named per table."""

    def __init__(self, core_scan: core.MultiTableScan, background: Background) -> None:
        self._core = core_scan
        self._background = background

    def project_by_name(self, table_path: TablePath | str, names: Sequence[str]) -> MultiTableScan:
        """Read only these columns of a table, in this order."""
        return MultiTableScan(self._core.project_by_name(table_path, names), self._background)

    def filter(self, table_path: TablePath | str, predicate: Predicate) -> MultiTableScan:
        """Read only rows of a table that match."""
        return MultiTableScan(self._core.filter(table_path, predicate), self._background)

    def create_log_scanner(self) -> MultiTableLogScanner:
        """A scanner of records of many tables."""
        return MultiTableLogScanner(self._core.create_log_scanner(), self._background)


class MultiTableLogScanner:
    """Reads the logs of buckets of many tables."""

    def __init__(self, core_scanner: core.MultiTableLogScanner, background: Background) -> None:
        self._core = core_scanner
        self._background = background

    def subscribe(self, table_path: TablePath | str, bucket_id: int, start_offset: int) -> None:
        """Read a bucket of a table without partitions from an offset on."""
        self._background.block(self._core.subscribe(table_path, bucket_id, start_offset))

    def subscribe_partition(
        self, table_path: TablePath | str, partition_id: int, bucket_id: int, start_offset: int
    ) -> None:
        """Read a bucket of a partition from an offset on."""
        self._background.block(self._core.subscribe_partition(table_path, partition_id, bucket_id, start_offset))

    def subscribe_from_beginning(
        self, table_path: TablePath | str, bucket_id: int, partition_id: int | None = None
    ) -> None:
        """Read a bucket (of a partition) from its earliest offset on."""
        self._background.block(self._core.subscribe_from_beginning(table_path, bucket_id, partition_id))

    def unsubscribe(self, table_path: TablePath | str, bucket_id: int, partition_id: int | None = None) -> None:
        """Stop reading a bucket (of a partition)."""
        self._background.block(self._core.unsubscribe(table_path, bucket_id, partition_id))

    def get_subscribed_buckets(self) -> dict[TablePath, list[tuple[TableBucket, int]]]:
        """All subscribed buckets by table, each with the next offset it will give."""
        return self._background.call(self._core.get_subscribed_buckets)

    def poll(self, timeout_ms: int) -> core.MultiTableRecords:
        """The records of all tables that arrive within `timeout_ms`; may be empty."""
        return self._background.block(self._core.poll(timeout_ms))

    def wakeup(self) -> None:
        """End the wait of a poll: it returns what it has. From any thread."""
        self._core.wakeup()

    def close(self) -> None:
        """Stop reading."""
        if not self._background.thread.closed:
            self._background.block(self._core.close())

    def __enter__(self) -> MultiTableLogScanner:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
