# SPDX-License-Identifier: Apache-2.0
"""One-shot reads of a bucket: the last rows of a log, some rows or all rows of a primary-key table."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from fluss.client.scan.fold import merge_by_key
from fluss.client.scan.frames import to_pandas, to_polars
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch
from fluss.errors import (
    CorruptRecordError,
    FlussError,
    FormatError,
    InvalidArgumentError,
    InvalidRowError,
    UnsupportedVersionError,
    error_for_code,
)
from fluss.metadata import OffsetSpec, Schema, TableBucket
from fluss.net.deadline import Deadline
from fluss.protocol import apis, messages
from fluss.protocol.record_messages import ScanKvResponse, decode_limit_scan_response, decode_scan_kv_response
from fluss.records import align_batch, decode_value_batch, iter_log_batches
from fluss.rows import Slices, decode_compacted, indexed, logical
from fluss.rows.slices import int64_array

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

    from fluss.net.connection import Connection

T = TypeVar("T")

_FOLD_ROWS = 500_000
"""Changes that are collected before they are folded; more when there are more rows, so that folding stays linear."""


class BatchScanner:
    """A bounded read of one bucket. It runs when the first batch is asked for, and once only.

    With a limit: the last rows of a log table, or some rows of a primary-key table. Without one (primary-key tables
    only): all current rows of the bucket.

    Example:
        bucket = fluss.TableBucket(table.get_table_info().table_id, 0)
        last = await table.new_scan().limit(10).create_bucket_batch_scanner(bucket).to_arrow()
    """

    def __init__(self, plan: ScanPlan, bucket: TableBucket) -> None:
        info = plan.info
        if bucket.table_id != info.table_id:
            raise InvalidArgumentError(
                f"bucket {bucket} belongs to table id {bucket.table_id}, but {info.table_path} has id {info.table_id}"
            )
        if not 0 <= bucket.bucket_id < info.num_buckets:
            raise InvalidArgumentError(
                f"bucket {bucket.bucket_id} is out of range: {info.table_path} has buckets 0 to {info.num_buckets - 1}"
            )
        if (bucket.partition_id is not None) != info.is_partitioned():
            state = "is" if info.is_partitioned() else "is not"
            raise InvalidArgumentError(f"{info.table_path} {state} partitioned; the bucket given is {bucket}")
        if plan.predicate is not None:
            raise InvalidArgumentError("a filter cannot be combined with a bucket batch scan")
        if plan.limit is None and not info.has_primary_key():
            raise InvalidArgumentError("a bucket batch scan of a log table needs a limit: call limit(n) first")
        self._plan = plan
        self._bucket = bucket
        self._batches: AsyncGenerator[RecordBatch, None] | None = None
        self.log_offset: int | None = None
        """The end of the changelog that the rows read so far stand for; None where the server does not say."""
        self._arrow_schema = plan.arrow_schema
        self._deadline = plan.cluster.deadline()
        """The deadline of the call that the requests of this scanner are made for."""

    @property
    def bucket(self) -> TableBucket:
        """The bucket this scanner reads."""
        return self._bucket

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the Arrow batches this scanner gives.

        Example:
            names = scanner.arrow_schema.names
        """
        return self._arrow_schema

    async def next_batch(self, *, timeout: float | None = None) -> RecordBatch | None:
        """Return the next batch, or None when there is no more.

        `timeout` is in seconds; by default a batch takes at most twice the request timeout.

        Example:
            while (found := await scanner.next_batch()) is not None:
                print(found.batch.num_rows)
        """
        return await self._next(self._plan.cluster.deadline(timeout))

    async def _next(self, deadline: Deadline) -> RecordBatch | None:
        self._deadline = deadline
        if self._batches is None:
            self._batches = self._run()
        async for batch in self._batches:
            return batch
        return None

    async def collect_all_batches(self, *, timeout: float | None = None) -> list[RecordBatch]:
        """Return all batches that are left.

        `timeout` is the time for all of them, in seconds; by default each has its own, as with `next_batch()`.

        Example:
            batches = await scanner.collect_all_batches()
        """
        batches = []
        deadline = self._plan.read_deadline(timeout)
        while (batch := await self._next(self._plan.cluster.deadline(deadline))) is not None:
            batches.append(batch)
        return batches

    async def to_arrow(self, *, timeout: float | None = None) -> pa.Table:
        """All rows that are left as an Arrow table.

        Example:
            table = await scanner.to_arrow()
        """
        batches = [batch.batch for batch in await self.collect_all_batches(timeout=timeout)]
        return pa.Table.from_batches(batches, self._arrow_schema)

    async def to_pandas(self, *, timeout: float | None = None) -> pd.DataFrame:
        """All rows that are left as a pandas DataFrame.

        Example:
            frame = await scanner.to_pandas()
        """
        return to_pandas(await self.to_arrow(timeout=timeout))

    async def to_polars(self, *, timeout: float | None = None) -> pl.DataFrame:
        """All rows that are left as a polars DataFrame.

        Example:
            frame = await scanner.to_polars()
        """
        return to_polars(await self.to_arrow(timeout=timeout))

    async def close(self) -> None:
        """Stop reading; a cursor that the server keeps is given back.

        Example:
            await scanner.close()
        """
        if self._batches is not None:
            await self._batches.aclose()

    async def __aenter__(self) -> BatchScanner:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> AsyncIterator[RecordBatch]:
        if self._batches is None:
            self._batches = self._run()
        return self._batches

    # -- the reads ------------------------------------------------------------------------------------------------

    def _run(self) -> AsyncGenerator[RecordBatch, None]:
        if not self._plan.info.has_primary_key():
            return self._last_rows()
        return self._some_values() if self._plan.limit is not None else self._all_values()

    async def _limit_scan(self) -> memoryview:
        plan, bucket = self._plan, self._bucket
        assert plan.limit is not None
        request = messages.LimitScanRequest(
            table_id=bucket.table_id, bucket_id=bucket.bucket_id, limit=min(plan.limit, 2**31 - 1)
        )
        if bucket.partition_id is not None:
            request.partition_id = bucket.partition_id

        async def attempt() -> memoryview:
            connection = await self._leader()
            timeout_ms = self._request_timeout_ms()
            body = await connection.call_parts(apis.LIMIT_SCAN, [request.SerializeToString()], timeout_ms=timeout_ms)
            response = decode_limit_scan_response(body)
            if response.error_code:
                raise error_for_code(response.error_code, response.error_message)
            return response.records if response.records is not None else memoryview(b"")

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
        step_bytes = plan.cluster.config.scanner_kv_fetch_max_bytes
        request = messages.ScanKvRequest(call_seq_id=0, batch_size_bytes=step_bytes)
        request.bucket_scan_req.table_id = bucket.table_id
        request.bucket_scan_req.bucket_id = bucket.bucket_id
        if bucket.partition_id is not None:
            request.bucket_scan_req.partition_id = bucket.partition_id

        async def begin() -> tuple[Connection, ScanKvResponse[memoryview]]:
            connection = await self._leader()
            return connection, await self._scan_kv(connection, request)

        # Only the beginning can be retried: the cursor is a server's own, and dies with it.
        connection, response = await self._retry(begin, "SCAN_KV")
        scanner_id = b""
        sequence = rows = 0
        try:
            while True:
                more = bool(response.has_more_results)
                if response.log_offset is not None:
                    self.log_offset = response.log_offset
                scanner_id = (response.scanner_id or scanner_id) if more else b""
                if response.records is not None and len(response.records):
                    batch = await self._decoded(response.records)
                    yield RecordBatch(batch, bucket, rows, rows + batch.num_rows - 1)
                    rows += batch.num_rows
                if not more:
                    return
                sequence += 1
                response = await self._scan_kv(
                    connection,
                    messages.ScanKvRequest(scanner_id=scanner_id, call_seq_id=sequence, batch_size_bytes=step_bytes),
                )
        finally:
            if scanner_id and not connection.closed:
                # A server that cannot be told forgets the cursor by itself.
                with contextlib.suppress(FlussError):
                    await self._scan_kv(connection, messages.ScanKvRequest(scanner_id=scanner_id, close_scanner=True))

    async def _from_changelog(self) -> AsyncGenerator[RecordBatch, None]:
        """The last image of every key, for servers that cannot list rows. Folded as it is read, to bound memory."""
        plan, bucket = self._plan, self._bucket
        names = [column.name for column in plan.info.schema.columns]
        key = [names.index(name) for name in plan.info.physical_primary_key]
        start = (await plan.offsets([bucket], OffsetSpec.earliest(), self._deadline))[bucket]
        stop = (await plan.offsets([bucket], OffsetSpec.latest(), self._deadline))[bucket]
        if start > 0:
            raise UnsupportedVersionError(
                f"this server cannot list the rows of {plan.info.table_path}, and the changelog of {bucket} begins at "
                f"offset {start}: rows that did not change since are not in it"
            )
        self.log_offset = stop
        table = plan.info.schema.arrow_schema.empty_table()
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
        if table.num_rows:
            batch = table.combine_chunks().to_batches()[0]
            yield RecordBatch(self._project(batch), bucket, 0, batch.num_rows - 1)

    # -- values ---------------------------------------------------------------------------------------------------

    async def _decoded(self, records: memoryview) -> pa.RecordBatch:
        try:
            return await self.decode_values(decode_value_batch(records))
        except (FormatError, InvalidRowError, pa.ArrowException) as error:
            raise CorruptRecordError(
                f"Rows of {self._bucket} of table '{self._plan.info.table_path}' are not valid: "
                f"{getattr(error, 'message', error)}. The other buckets, and lookups of other keys, are not concerned."
            ) from error

    async def decode_values(self, values: Slices) -> pa.RecordBatch:
        """Stored values (schema id and row each) as an Arrow batch of the wanted columns."""
        info = self._plan.info
        if not len(values):  # what servers answer for a bucket without rows
            return self._project(pa.RecordBatch.from_pylist([], schema=info.schema.arrow_schema))
        if int(values.lengths.min(initial=2)) < 2:
            raise FormatError("a stored value is shorter than its schema id")
        ids = values.data[values.starts].astype(np.int32) | (values.data[values.starts + 1].astype(np.int32) << 8)
        rows = Slices(values.data, values.starts + 2, values.lengths - 2)
        kinds = np.unique(ids).tolist()
        if len(kinds) == 1:
            return self._project(await self._decode_rows(kinds[0], rows))
        # Rows of several schema versions: each kind at once, then back into the order they came in.
        order = np.argsort(ids, kind="stable")
        parts = [await self._decode_rows(kind, rows.take(order[ids[order] == kind])) for kind in kinds]
        table = pa.Table.from_batches(parts, info.schema.arrow_schema)
        back = table.take(int64_array(np.argsort(order, kind="stable")))
        return self._project(back.combine_chunks().to_batches()[0])

    async def _decode_rows(self, schema_id: int, rows: Slices) -> pa.RecordBatch:
        info = self._plan.info
        schema = await self._plan.cluster.schema(info.table_path, schema_id, self._deadline)
        types = [column.data_type for column in schema.columns]
        if info.kv_format == "COMPACTED":
            arrays: Sequence[pa.Array] = decode_compacted(types, rows)
        else:
            decoded = [indexed.decode_row(types, row) for row in rows.to_list()]
            columns: list[Any] = [list(column) for column in zip(*decoded)] or [[] for _ in types]
            arrays = [logical.to_arrow(column, data_type) for column, data_type in zip(columns, types)]
        batch = pa.RecordBatch.from_arrays(list(arrays), schema=schema.arrow_schema)
        return align_batch(batch, schema, info.schema)

    async def _scan_kv(self, connection: Connection, request: messages.ScanKvRequest) -> ScanKvResponse[memoryview]:
        body = [request.SerializeToString()]
        answer = await connection.call_parts(apis.SCAN_KV, body, timeout_ms=self._request_timeout_ms())
        response = decode_scan_kv_response(answer)
        if response.error_code:
            raise error_for_code(response.error_code, response.error_message)
        return response

    def _project(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._plan.projection is None:
            return batch
        arrays = [batch.column(i) for i in self._plan.projection]
        return pa.RecordBatch.from_arrays(arrays, schema=self._arrow_schema)

    def __repr__(self) -> str:
        return f"<BatchScanner of {self._plan.info.table_path} {self._bucket}>"
