# SPDX-License-Identifier: Apache-2.0
"""One-shot reads of a bucket: the last rows of a log, some rows or all rows of a primary-key table."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa

from fluss.client.requests import raise_for_code
from fluss.client.scan.fold import merge_by_key
from fluss.client.scan.kv_snapshot import SnapshotRows, newest_snapshot
from fluss.client.scan.one_shot import OneShotScanner
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch
from fluss.errors import (
    CorruptRecordError,
    FlussError,
    FormatError,
    InvalidArgumentError,
    InvalidRowError,
    KvSnapshotNotExistError,
    StorageError,
    UnsupportedVersionError,
)
from fluss.metadata import OffsetSpec, Schema, TableBucket
from fluss.net.eager import retrieve_exception
from fluss.protocol import apis, messages
from fluss.records import decode_value_batch, iter_log_batches
from fluss.records.stored_values import decode_values, schema_ids_of
from fluss.rows import Slices

if TYPE_CHECKING:
    from fluss.net.connection import Connection

T = TypeVar("T")

_FOLD_ROWS = 500_000
"""Changes that are collected before they are folded; more when there are more rows, so that folding stays linear."""
_SNAPSHOT_ATTEMPTS = 3
_FIRST_STEP_BYTES = 256 * 1024
"""The first answer of a cursor is small, each later one twice as large: a query with a LIMIT needs few rows, soon."""


class BatchScanner(OneShotScanner):
    """A bounded read of one bucket. It runs when the first batch is asked for, and once only.

    With a limit: the last rows of a log table, or some rows of a primary-key table. Without one (primary-key tables
    only): all current rows of the bucket, or those of a snapshot.

    Example:
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        last = await table.new_scan().limit(10).create_bucket_batch_scanner(bucket).to_arrow()
    """

    def __init__(self, plan: ScanPlan, bucket: TableBucket, snapshot_id: int | None = None) -> None:
        info = plan.info
        if bucket.table_id != info.table_id:
            raise InvalidArgumentError(
                f"bucket {bucket} belongs to table id {bucket.table_id}, but {info.table_path} has id {info.table_id}"
            )
        plan.check_bucket(bucket.bucket_id, bucket.partition_id)
        if (bucket.partition_id is not None) != info.is_partitioned():
            state = "is" if info.is_partitioned() else "is not"
            raise InvalidArgumentError(f"{info.table_path} {state} partitioned; the bucket given is {bucket}")
        if plan.predicate is not None:
            raise InvalidArgumentError("a filter cannot be combined with a bucket batch scan")
        if snapshot_id is not None and not info.has_primary_key():
            raise InvalidArgumentError(f"{info.table_path} has no primary key, and therefore no snapshots")
        if plan.limit is None and not info.has_primary_key():
            raise InvalidArgumentError("a bucket batch scan of a log table needs a limit: call limit(n) first")
        if snapshot_id is not None and plan.limit is not None:
            raise InvalidArgumentError("a snapshot is read as a whole: leave out limit() or the snapshot id")
        super().__init__(plan)
        self._bucket = bucket
        self.snapshot_id = snapshot_id
        """The snapshot that the rows come from, or begin with; None when none is read."""
        self.log_offset: int | None = None
        """The end of the changelog that the rows read so far stand for; None where the server does not say."""

    @property
    def bucket(self) -> TableBucket:
        """The bucket this scanner reads."""
        return self._bucket

    # -- the reads ------------------------------------------------------------------------------------------------

    def _run(self) -> AsyncGenerator[RecordBatch, None]:
        if not self._plan.info.has_primary_key():
            return self._last_rows()
        if self.snapshot_id is not None:
            return self._snapshot(self.snapshot_id)
        return self._some_values() if self._plan.limit is not None else self._all_values()

    async def _limit_scan(self) -> memoryview:
        plan, bucket = self._plan, self._bucket
        assert plan.limit is not None
        limit = min(plan.limit, 2**31 - 1)

        async def attempt() -> memoryview:
            connection = await self._leader()
            request = messages.LimitScanRequest(
                table_id=bucket.table_id,
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket_id,
                limit=limit,
                routing_bucket_count=plan.cluster.metadata.routing_count(bucket),
            )
            response = await connection.call(apis.LIMIT_SCAN, request, timeout_ms=self._request_timeout_ms())
            raise_for_code(response)
            return memoryview(response.records)

        return await self._retry(attempt, "LIMIT_SCAN")

    async def _leader(self) -> Connection:
        return await self._plan.cluster.leader(self._bucket, self._plan.info.table_path, self._deadline)

    def _request_timeout_ms(self) -> float:
        return self._deadline.limit_ms(self._plan.config.request_timeout_ms)

    async def _retry(self, attempt: Callable[[], Awaitable[T]], api: str) -> T:
        path, bucket = self._plan.info.table_path, self._bucket
        what = f"{api} of {bucket} of table '{path}'"
        return await self._plan.cluster.retry(attempt, what=what, path=path, bucket=bucket, deadline=self._deadline)

    async def _last_rows(self) -> AsyncGenerator[RecordBatch, None]:
        """The last rows of a log, as one batch."""
        plan = self._plan
        assert plan.limit is not None
        records = await self._limit_scan()
        schemas: dict[int, Schema] = {}
        found = []
        for batch in iter_log_batches(records, verify=True):
            schema_id = batch.header.schema_id
            if schema_id not in schemas:
                schemas[schema_id] = await plan.cluster.schema(plan.info.table_path, schema_id, self._deadline)
            found.append(batch)
        decoder = plan.decoder(schemas.__getitem__)
        parts = []
        for batch in found:
            decoded = decoder.decode(batch, self._bucket, batch.header.base_offset, None, projected=False)
            if decoded is not None:
                parts.append(decoded)
        if not parts:
            return
        table = pa.Table.from_batches([part.batch for part in parts], self._arrow_schema)
        last = parts[-1].last_offset
        kept = table.slice(max(0, table.num_rows - plan.limit)).combine_chunks().to_batches()[0]
        yield RecordBatch(kept, self._bucket, last - kept.num_rows + 1, last, parts[-1].timestamp)

    async def _some_values(self) -> AsyncGenerator[RecordBatch, None]:
        records = await self._limit_scan()
        assert self._plan.limit is not None
        if len(records):
            batch = await self._decoded(records)
            batch = batch.slice(0, self._plan.limit)
            if batch.num_rows:
                yield RecordBatch(batch, self._bucket, 0, batch.num_rows - 1)

    async def _all_values(self) -> AsyncGenerator[RecordBatch, None]:
        """All current rows: with the server's cursor where it has one, else by folding the changelog."""

        async def has_cursors() -> bool:
            return (await self._leader()).supports(apis.SCAN_KV)

        known = await self._retry(has_cursors, "SCAN_KV")
        async with contextlib.aclosing(self._with_cursor() if known else self._from_changelog()) as batches:
            async for batch in batches:
                yield batch

    async def _with_cursor(self) -> AsyncGenerator[RecordBatch, None]:
        plan, bucket = self._plan, self._bucket
        step_bytes_max = plan.cluster.config.scanner_kv_fetch_max_bytes
        step_bytes = min(_FIRST_STEP_BYTES, step_bytes_max)

        async def begin() -> tuple[Connection, messages.ScanKvResponse]:
            connection = await self._leader()
            place = messages.PbScanReqForBucket(
                table_id=bucket.table_id,
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket_id,
                routing_bucket_count=plan.cluster.metadata.routing_count(bucket),
            )
            request = messages.ScanKvRequest(bucket_scan_req=place, call_seq_id=0, batch_size_bytes=step_bytes)
            return connection, await self._scan_kv(connection, request)

        # Only the beginning can be retried: the cursor is a server's own, and dies with it.
        connection, response = await self._retry(begin, "SCAN_KV")
        scanner_id = b""
        sequence = rows = 0
        following: asyncio.Future[messages.ScanKvResponse] | None = None
        try:
            while True:
                more = response.has_more_results
                if response.HasField("log_offset"):
                    self.log_offset = response.log_offset
                scanner_id = (response.scanner_id or scanner_id) if more else b""
                if more:
                    # The server reads the next rows while these are decoded and used.
                    sequence += 1
                    step_bytes = min(2 * step_bytes, step_bytes_max)
                    next_step = messages.ScanKvRequest(
                        scanner_id=scanner_id, call_seq_id=sequence, batch_size_bytes=step_bytes
                    )
                    following = asyncio.ensure_future(self._scan_kv(connection, next_step, ahead=True))
                    following.add_done_callback(retrieve_exception)
                if response.records:
                    batch = await self._decoded(memoryview(response.records))
                    yield RecordBatch(batch, bucket, rows, rows + batch.num_rows - 1)
                    rows += batch.num_rows
                if following is None:
                    return
                response, following = await following, None
        finally:
            if following is not None:
                following.cancel()
            if scanner_id and not connection.closed:
                # A server that cannot be reached drops the cursor by itself.
                with contextlib.suppress(FlussError):
                    await self._scan_kv(connection, messages.ScanKvRequest(scanner_id=scanner_id, close_scanner=True))

    async def _from_changelog(self) -> AsyncGenerator[RecordBatch, None]:
        """The last image of every key, for servers that cannot list rows. Folded as it is read, to bound memory."""
        plan, bucket = self._plan, self._bucket
        names = [column.name for column in plan.info.schema.columns]
        key = [names.index(name) for name in plan.info.physical_primary_key]
        stop = (await plan.offsets([bucket], OffsetSpec.latest(), self._deadline))[bucket]
        start, table = await self._base_rows()
        self.log_offset = stop = max(start, stop)
        pending: list[RecordBatch] = []
        pending_rows = 0
        async with contextlib.aclosing(plan.without_projection().read({bucket: start}, {bucket: stop})) as changes:
            async for found in changes:
                pending.append(found)
                pending_rows += found.num_records
                if pending_rows >= max(_FOLD_ROWS, table.num_rows):
                    table = merge_by_key(table, pending, key)
                    pending, pending_rows = [], 0
        table = merge_by_key(table, pending, key)
        for batch in table.to_batches():
            yield RecordBatch(self._project(batch), bucket, 0, batch.num_rows - 1)

    async def _base_rows(self) -> tuple[int, pa.Table]:
        """What the changelog is folded into: the newest snapshot, or nothing, and the offset it goes on from."""
        plan, bucket = self._plan, self._bucket
        empty = plan.info.schema.arrow_schema.empty_table()
        earliest = (await plan.offsets([bucket], OffsetSpec.earliest(), self._deadline))[bucket]
        reason = "it has no snapshot"
        for _ in range(_SNAPSHOT_ATTEMPTS):
            try:
                newest = await newest_snapshot(plan, bucket, self._deadline)
                if newest is None or newest[1] < earliest:
                    break
                snapshot_id, log_offset = newest
                whole = BatchScanner(plan.without_projection(), bucket, snapshot_id)
                whole._deadline = self._deadline
                batches = [found.batch async for found in whole._snapshot(snapshot_id)]
            except KvSnapshotNotExistError as error:
                reason = error.message
                continue  # the next one has taken its place
            except (StorageError, UnsupportedVersionError) as error:
                reason = error.message
                break
            self.snapshot_id = snapshot_id
            return log_offset, pa.Table.from_batches(batches, empty.schema)
        if earliest > 0:
            raise UnsupportedVersionError(
                f"this server cannot list the rows of {plan.info.table_path}, and the changelog of {bucket} begins at "
                f"offset {earliest}: rows that did not change since are not in it, and {reason}"
            )
        return earliest, empty

    async def _snapshot(self, snapshot_id: int) -> AsyncGenerator[RecordBatch, None]:
        """All rows of a snapshot, from its files."""
        rows = 0
        async with SnapshotRows(self._plan, self._bucket, snapshot_id, self._deadline) as snapshot:
            self.log_offset = snapshot.log_offset
            async for values in snapshot.values():
                batch = await self._valid(values)
                yield RecordBatch(batch, self._bucket, rows, rows + batch.num_rows - 1)
                rows += batch.num_rows

    # -- values ---------------------------------------------------------------------------------------------------

    async def _decoded(self, records: memoryview) -> pa.RecordBatch:
        return await self._valid(lambda: decode_value_batch(records))

    async def _valid(self, values: Slices | Callable[[], Slices]) -> pa.RecordBatch:
        try:
            return await self.decode_values(values if isinstance(values, Slices) else values())
        except (FormatError, InvalidRowError, pa.ArrowException) as error:
            raise CorruptRecordError(
                f"Rows of {self._bucket} of table '{self._plan.info.table_path}' are not valid: "
                f"{getattr(error, 'message', error)}. The other buckets, and lookups of other keys, are not concerned."
            ) from error

    async def decode_values(self, values: Slices) -> pa.RecordBatch:
        """Stored values (schema id and row each) as an Arrow batch of the wanted columns."""
        info = self._plan.info
        schemas = {
            int(schema_id): await self._plan.cluster.schema(info.table_path, int(schema_id), self._deadline)
            for schema_id in np.unique(schema_ids_of(values))
        }
        return self._project(decode_values(values, schemas, info.schema, info.kv_format))

    async def _scan_kv(
        self, connection: Connection, request: messages.ScanKvRequest, *, ahead: bool = False
    ) -> messages.ScanKvResponse:
        """One step of a cursor. A step `ahead` of the call that will need it has a time of its own."""
        timeout_ms = self._plan.config.request_timeout_ms if ahead else self._request_timeout_ms()
        response = await connection.call(apis.SCAN_KV, request, timeout_ms=timeout_ms)
        raise_for_code(response)
        return response

    def _project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._plan.projection is None:
            return batch
        arrays = [batch.column(i) for i in self._plan.projection]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def __repr__(self) -> str:
        return f"<BatchScanner of {self._plan.info.table_path} {self._bucket}>"
