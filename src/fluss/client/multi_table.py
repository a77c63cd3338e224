# SPDX-License-Identifier: Apache-2.0
"""Writing to and reading from many tables through one writer and one scanner."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluss.client.arguments import instance, integer, strings
from fluss.client.cluster import all_results
from fluss.client.scan import LogScanner, ScanRecord, ScanRecords
from fluss.errors import ConnectionClosedError, InvalidArgumentError
from fluss.metadata import EARLIEST_OFFSET, Predicate, TableBucket, TablePath, table_path_of
from fluss.net.eager import retrieve_exception

if TYPE_CHECKING:
    from fluss.client.table import TableBase
    from fluss.client.write import WriteResultHandle
    from fluss.client.write.handle import Failures

OpenTable = Callable[[TablePath], Awaitable["TableBase[Any, Any, Any]"]]


class MultiTable:
    """Access to many tables at once. Obtain it with `conn.get_multi_table()`.

    Example:
        writer = conn.get_multi_table().new_multi_table_write().create_writer()
        await writer.append("shop.clicks", {"user": 1})
        await writer.upsert("shop.users", {"id": 1, "name": "ada"})
        await writer.flush()
    """

    def __init__(self, open_table: OpenTable) -> None:
        self._open = open_table

    def new_multi_table_write(self) -> MultiTableWrite:
        """A builder of writers to many tables."""
        return MultiTableWrite(self._open)

    def new_multi_table_scan(self) -> MultiTableScan:
        """A builder of scanners of many tables."""
        return MultiTableScan(self._open)


class MultiTableWrite:
    """Builder of a writer to many tables."""

    def __init__(self, open_table: OpenTable) -> None:
        self._open = open_table

    def create_writer(self) -> MultiTableWriter:
        """Create the writer."""
        return MultiTableWriter(self._open)


class MultiTableWriter:
    """Writes rows to the tables that each call names. Rows of one table keep their order.

    A table is looked up when it is first named: that is what the calls wait for. They return a handle, to be
    waited for or not, as those of `AppendWriter` and `UpsertWriter` do.
    """

    def __init__(self, open_table: OpenTable) -> None:
        self._open = open_table
        self._writers: dict[TablePath, Any] = {}
        self._closed = False

    async def append(self, table_path: TablePath | str, row: Any) -> WriteResultHandle:
        """Append one row to a log table.

        Example:
            await writer.append("shop.clicks", {"user": 1})
        """
        handle: WriteResultHandle = (await self._writer(table_path, keyed=False)).append(row)
        return handle

    async def upsert(self, table_path: TablePath | str, row: Any) -> WriteResultHandle:
        """Insert or update one row of a primary-key table.

        Example:
            await writer.upsert("shop.users", {"id": 1, "name": "ada"})
        """
        handle: WriteResultHandle = (await self._writer(table_path, keyed=True)).upsert(row)
        return handle

    async def delete(self, table_path: TablePath | str, pk: Any) -> WriteResultHandle:
        """Delete the row with this key from a primary-key table.

        Example:
            await writer.delete("shop.users", {"id": 1})
        """
        handle: WriteResultHandle = (await self._writer(table_path, keyed=True)).delete(pk)
        return handle

    async def _writer(self, table_path: TablePath | str, *, keyed: bool) -> Any:
        if self._closed:
            raise ConnectionClosedError("the writer to many tables is closed")
        path = table_path_of(table_path)
        writer = self._writers.get(path)
        if writer is None:
            table = await self._open(path)
            writer = self._writers.get(path)  # another task may have been quicker
            if writer is None:
                builder: Any = table.new_upsert() if table.has_primary_key() else table.new_append()
                writer = self._writers[path] = builder.create_writer()
        if hasattr(writer, "upsert") != keyed:
            kind, call = ("a primary key", "upsert()") if not keyed else ("no primary key", "append()")
            raise InvalidArgumentError(f"Table '{path}' has {kind}: write to it with {call}")
        return writer

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send everything to all tables and wait until it is acknowledged.

        Raises the first error; the next flush raises those of other tables.
        """
        for failures in await self._drain(timeout):
            failures.raise_first()

    async def _drain(self, timeout: float | None = None) -> list[Failures]:
        """Send everything, wait until it is acknowledged or has failed, and return what `flush()` has to raise."""
        return await all_results(writer.drain(timeout) for writer in self._writers.values())

    async def close(self) -> None:
        """Flush and be done."""
        self._closed = True
        await self.flush()

    async def __aenter__(self) -> MultiTableWriter:
        return self

    async def __aexit__(self, exc_type: type[BaseException] | None = None, *_: object) -> None:
        if exc_type is None:
            await self.close()


@dataclass(frozen=True)
class MultiTableScan:
    """Builder of a scanner of many tables; columns and filters are named per table."""

    _open: OpenTable
    _columns: tuple[tuple[TablePath, tuple[str, ...]], ...] = ()
    _filters: tuple[tuple[TablePath, Predicate], ...] = ()

    def project_by_name(self, table_path: TablePath | str, names: Sequence[str]) -> MultiTableScan:
        """Read only these columns of a table, in this order."""
        columns = tuple(strings("project_by_name", "names", names))
        return replace(self, _columns=(*self._columns, (table_path_of(table_path), columns)))

    def filter(self, table_path: TablePath | str, predicate: Predicate) -> MultiTableScan:
        """Read only rows of a table that match."""
        instance("filter", "predicate", predicate, Predicate, ", such as fluss.col('id') > 3")
        return replace(self, _filters=(*self._filters, (table_path_of(table_path), predicate)))

    def create_log_scanner(self) -> MultiTableLogScanner:
        """A scanner of records of many tables."""
        return MultiTableLogScanner(self._open, dict(self._columns), dict(self._filters))


class MultiTableRecords:
    """The records of one poll, by table: a mapping from paths to `ScanRecords`.

    Example:
        for path, record in await scanner.poll(timeout_ms=1000):
            print(path, record.row)
    """

    def __init__(self, by_table: Mapping[TablePath, ScanRecords]) -> None:
        self._by_table = dict(by_table)

    def tables(self) -> list[TablePath]:
        """The tables that have records here."""
        return list(self._by_table)

    def records(self, table_path: TablePath | str) -> ScanRecords:
        """The records of one table; empty if it has none here."""
        return self._by_table.get(table_path_of(table_path), ScanRecords({}))

    def count(self) -> int:
        """How many records there are in all tables together."""
        return sum(len(records) for records in self._by_table.values())

    def is_empty(self) -> bool:
        """Whether there is no record at all."""
        return not self._by_table

    def __len__(self) -> int:
        return self.count()

    def __iter__(self) -> Iterator[tuple[TablePath, ScanRecord]]:
        return ((path, record) for path, records in self._by_table.items() for record in records)

    def __repr__(self) -> str:
        return f"MultiTableRecords({self.count()} records of {len(self._by_table)} tables)"


class MultiTableLogScanner:
    """Reads the logs of buckets of many tables. A table is looked up when it is first subscribed to."""

    def __init__(
        self, open_table: OpenTable, columns: dict[TablePath, tuple[str, ...]], filters: dict[TablePath, Predicate]
    ) -> None:
        self._open = open_table
        self._columns = columns
        self._filters = filters
        self._scanners: dict[TablePath, LogScanner[ScanRecord]] = {}
        self._woken = False
        self._closed = False

    async def subscribe(self, table_path: TablePath | str, bucket_id: int, start_offset: int) -> None:
        """Read a bucket of a table without partitions from an offset on.

        Example:
            await scanner.subscribe("shop.clicks", 0, fluss.EARLIEST_OFFSET)
        """
        (await self._scanner(table_path)).subscribe(bucket_id, start_offset)

    async def subscribe_partition(
        self, table_path: TablePath | str, partition_id: int, bucket_id: int, start_offset: int
    ) -> None:
        """Read a bucket of a partition from an offset on."""
        (await self._scanner(table_path)).subscribe_partition(partition_id, bucket_id, start_offset)

    async def subscribe_from_beginning(
        self, table_path: TablePath | str, bucket_id: int, partition_id: int | None = None
    ) -> None:
        """Read a bucket (of a partition) from its earliest offset on."""
        if partition_id is None:
            await self.subscribe(table_path, bucket_id, EARLIEST_OFFSET)
        else:
            await self.subscribe_partition(table_path, partition_id, bucket_id, EARLIEST_OFFSET)

    async def unsubscribe(self, table_path: TablePath | str, bucket_id: int, partition_id: int | None = None) -> None:
        """Stop reading a bucket (of a partition)."""
        scanner = self._scanners.get(table_path_of(table_path))
        if scanner is not None:
            if partition_id is None:
                scanner.unsubscribe(bucket_id)
            else:
                scanner.unsubscribe_partition(partition_id, bucket_id)

    def get_subscribed_buckets(self) -> dict[TablePath, list[tuple[TableBucket, int]]]:
        """All subscribed buckets by table, each with the next offset it will give."""
        return {path: scanner.get_subscribed_buckets() for path, scanner in self._scanners.items()}

    async def poll(self, timeout_ms: int) -> MultiTableRecords:
        """The records of all tables that arrive within `timeout_ms`; may be empty.

        Example:
            for path, record in await scanner.poll(timeout_ms=1000):
                print(path, record.offset, record.row)
        """
        if self._closed:
            raise ConnectionClosedError("the scanner of many tables is closed")
        if not self._scanners:
            raise InvalidArgumentError("No buckets subscribed. Call subscribe() first.")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(0, integer("poll", "timeout_ms", timeout_ms)) / 1000
        while True:
            found = await self._poll_once(max(0.0, deadline - loop.time()))
            woken, self._woken = self._woken, False
            if found or woken or loop.time() >= deadline:
                return MultiTableRecords(found)

    async def _poll_once(self, timeout_s: float) -> dict[TablePath, ScanRecords]:
        """Wait until a table has records, then take those of all tables. Cancelled or failed, it has taken none."""
        scanners = dict(self._scanners)
        tasks = [asyncio.ensure_future(scanner._fill(timeout_s)) for scanner in scanners.values()]
        for task in tasks:
            task.add_done_callback(retrieve_exception)
        waiting = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if self._woken or any(task.exception() is not None or task.result() for task in done):
                    break
        finally:
            for task in waiting:
                task.cancel()
            if waiting:
                await asyncio.wait(waiting)
        for task in tasks:
            if not task.cancelled():
                task.result()
        taken = {path: scanner.poll_leftover() for path, scanner in scanners.items()}
        return {path: records for path, records in taken.items() if records is not None}

    def wakeup(self) -> None:
        """End the wait of a poll: it returns what it has. From any thread."""
        self._woken = True
        for scanner in list(self._scanners.values()):
            scanner.wakeup()

    async def close(self) -> None:
        """Stop reading."""
        self._closed = True
        for scanner in self._scanners.values():
            await scanner.close()

    async def __aenter__(self) -> MultiTableLogScanner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _scanner(self, table_path: TablePath | str) -> LogScanner[ScanRecord]:
        if self._closed:
            raise ConnectionClosedError("the scanner of many tables is closed")
        path = table_path_of(table_path)
        scanner = self._scanners.get(path)
        if scanner is None:
            scan = (await self._open(path)).new_scan()
            if path in self._columns:
                scan = scan.project_by_name(self._columns[path])
            if path in self._filters:
                scan = scan.filter(self._filters[path])
            made: LogScanner[ScanRecord] = await scan.create_log_scanner()
            scanner = self._scanners.setdefault(path, made)
            if scanner is not made:  # another task was quicker
                with contextlib.suppress(Exception):
                    await made.close()
        return scanner
