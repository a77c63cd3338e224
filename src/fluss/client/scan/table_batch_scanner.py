# SPDX-License-Identifier: Apache-2.0
"""One-shot reads of a whole table: all buckets of all partitions, several at a time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace

import pyarrow as pa

from fluss.client.fanout import list_partitions
from fluss.client.scan.batch_scanner import BatchScanner
from fluss.client.scan.one_shot import OneShotScanner
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch
from fluss.client.scan.views import VIEWS
from fluss.client.virtual import LAKE
from fluss.errors import DeadlineExceededError
from fluss.metadata import EARLIEST_OFFSET, TableBucket
from fluss.net.deadline import wait_for

_BUCKETS_AT_A_TIME = 4
_BATCHES_AHEAD = 4
_NO_BUCKET = -1


class TableBatchScanner(OneShotScanner):
    """A bounded read of a whole table. It runs when the first batch is asked for, and once only.

    A log table gives all rows up to the end of its log at the time of the first batch, a primary-key table its current
    rows. Buckets are read in parallel, so rows of different buckets come in any order. With a limit: at most that many
    rows of all buckets together, of a log table the last ones of each bucket.

    Example:
        table = await conn.get_table("shop.users")
        rows = await table.new_scan().project_by_name(["name"]).create_table_batch_scanner().to_arrow()
    """

    def __init__(self, plan: ScanPlan) -> None:
        super().__init__(plan)
        self._rows_left = plan.limit
        self._view = VIEWS[plan.view]() if plan.view in VIEWS else None
        if self._view is not None:
            self._arrow_schema = self._view.schema(plan.arrow_schema)

    async def _run(self) -> AsyncGenerator[RecordBatch, None]:
        plan = self._plan
        if plan.view == LAKE:
            async for rows in self._lake_rows():
                yield rows
            return
        buckets = await self._buckets()
        if self._view is not None or (
            not plan.info.has_primary_key() and (plan.limit is None or plan.predicate is not None)
        ):
            # A filter of a log looks at every row of it; the limit is applied to what is left.
            found = plan.read(dict.fromkeys(buckets, EARLIEST_OFFSET))
        else:
            found = self._bucket_by_bucket(buckets)
        async with contextlib.aclosing(found) as batches:
            async for batch in batches:
                cut = self._cut(batch if self._view is None else self._view.apply(batch))
                if cut.num_records:
                    yield cut
                if self._rows_left == 0:
                    return

    async def _lake_rows(self) -> AsyncGenerator[RecordBatch, None]:
        """The rows of the newest lake snapshot. They stand at no offset of a bucket's log."""
        table = await self._plan.read_with_lake(self._deadline.remaining_ms / 1000)
        nowhere = TableBucket(self._plan.info.table_id, _NO_BUCKET)
        for batch in table.cast(self._arrow_schema).to_batches():
            found = self._cut(RecordBatch(batch, nowhere, 0, batch.num_rows - 1))
            if found.num_records:
                yield found

    async def _buckets(self) -> list[TableBucket]:
        info = self._plan.info
        numbers = range(info.num_buckets)
        if not info.is_partitioned():
            return [TableBucket(info.table_id, number) for number in numbers]
        partitions = await list_partitions(self._plan.cluster, info.table_path, self._deadline)
        return [TableBucket.with_partition(info.table_id, one, number) for one in partitions for number in numbers]

    def _cut(self, found: RecordBatch) -> RecordBatch:
        """Leave no more rows than the limit allows."""
        if self._rows_left is not None:
            if found.num_records > self._rows_left:
                found.batch = found.batch.slice(0, self._rows_left)
                found.last_offset = found.base_offset + self._rows_left - 1
            self._rows_left -= found.num_records
        return found

    async def _bucket_by_bucket(self, buckets: list[TableBucket]) -> AsyncGenerator[RecordBatch, None]:
        plan = self._plan
        expression = None
        if plan.predicate is not None:
            expression = plan.predicate.to_arrow_expression(plan.info.schema)
            # The filter may look at any column, and says how many rows are left.
            plan = replace(plan, predicate=None, projection=None, limit=None)
        waiting = iter(buckets)
        batches: asyncio.Queue[RecordBatch | BaseException | None] = asyncio.Queue(_BATCHES_AHEAD)

        async def read() -> None:
            try:
                for bucket in waiting:  # shared: each reader takes the next bucket
                    async with BatchScanner(plan, bucket) as scanner:
                        while (batch := await scanner.next_batch()) is not None:
                            await batches.put(batch)
                await batches.put(None)
            except Exception as error:
                await batches.put(error)

        readers = [asyncio.ensure_future(read()) for _ in range(min(_BUCKETS_AT_A_TIME, len(buckets)))]
        try:
            left = len(readers)
            while left:
                found = await self._get(batches)
                if found is None:
                    left -= 1
                elif isinstance(found, BaseException):
                    raise found
                else:
                    if expression is not None:
                        found.batch = self._filtered(found.batch, expression)
                    yield found
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)

    async def _get(
        self, batches: asyncio.Queue[RecordBatch | BaseException | None]
    ) -> RecordBatch | BaseException | None:
        try:
            return await wait_for(batches.get(), self._deadline.remaining_ms / 1000)
        except asyncio.TimeoutError:
            path = self._plan.info.table_path
            raise DeadlineExceededError(
                f"No batch of table '{path}' came within {self._deadline.total_ms / 1000:g} s"
            ) from None

    def _filtered(self, batch: pa.RecordBatch, expression: object) -> pa.RecordBatch:
        table = pa.Table.from_batches([batch]).filter(expression).select(self._arrow_schema.names)
        if not table.num_rows:
            return pa.RecordBatch.from_pylist([], schema=self._arrow_schema)
        return table.combine_chunks().to_batches()[0].cast(self._arrow_schema)

    def __repr__(self) -> str:
        return f"<TableBatchScanner of {self._plan.info.table_path}>"
