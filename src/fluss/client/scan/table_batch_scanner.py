# SPDX-License-Identifier: Apache-2.0
"""One-shot reads of a whole table: all buckets of all partitions, several at a time."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from dataclasses import replace

import pyarrow as pa

from fluss.client.admin import FlussAdmin
from fluss.client.buckets import table_buckets
from fluss.client.runner import Direct
from fluss.client.scan.as_of import current_rows
from fluss.client.scan.batch_scanner import BatchScanner
from fluss.client.scan.one_shot import OneShotScanner
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch
from fluss.client.scan.views import VIEWS
from fluss.metadata import EARLIEST_OFFSET, TableBucket
from fluss.metadata.path import LAKE

_NO_BUCKET = -1


class TableBatchScanner(OneShotScanner):
    """A bounded read of a whole table. It runs when the first batch is asked for, and once only.

    A log table gives all rows up to the end of its log at the time of the first batch, a primary-key table the rows it
    has at one moment. Buckets are read in parallel, so rows of different buckets come in any order. With a limit: at
    most that many rows of all buckets together, of a log table the last ones of each bucket.

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
        source = self._lake_rows() if self._plan.view == LAKE else self._rows(await self._buckets())
        async with contextlib.aclosing(source) as batches:
            async for batch in batches:
                cut = self._cut(batch if self._view is None else self._view.apply(batch))
                if cut.num_records:
                    yield cut
                if self._rows_left == 0:
                    return

    def _rows(self, buckets: list[TableBucket]) -> AsyncGenerator[RecordBatch, None]:
        plan = self._plan
        if self._view is None and plan.limit is not None and plan.predicate is None:
            return self._some_rows(buckets)
        if self._view is None and plan.info.has_primary_key():
            return self._current_rows(buckets)
        # A filter of a log looks at every row of it; the limit is applied to what is left.
        return plan.read(dict.fromkeys(buckets, EARLIEST_OFFSET))

    async def _lake_rows(self) -> AsyncGenerator[RecordBatch, None]:
        """The rows of the newest lake snapshot. They stand at no offset of a bucket's log."""
        table = await self._plan.read_with_lake(self._deadline.left_s)
        nowhere = TableBucket(self._plan.info.table_id, _NO_BUCKET)
        for batch in table.cast(self._arrow_schema).to_batches():
            yield RecordBatch(batch, nowhere, 0, batch.num_rows - 1)

    async def _buckets(self) -> list[TableBucket]:
        admin, plan = FlussAdmin(Direct(self._plan.cluster)), self._plan
        return list(await table_buckets(admin, plan.info, predicate=plan.predicate, timeout=self._deadline.left_s))

    def _cut(self, found: RecordBatch) -> RecordBatch:
        """Leave no more rows than the limit allows."""
        if self._rows_left is not None:
            if found.num_records > self._rows_left:
                found.batch = found.batch.slice(0, self._rows_left)
                found.last_offset = found.base_offset + self._rows_left - 1
            self._rows_left -= found.num_records
        return found

    async def _some_rows(self, buckets: list[TableBucket]) -> AsyncGenerator[RecordBatch, None]:
        """One bucket after the other, as long as rows are wanted."""
        for bucket in buckets:
            async with BatchScanner(self._plan, bucket) as scanner:
                while (batch := await scanner.next_batch()) is not None:
                    yield batch

    async def _current_rows(self, buckets: list[TableBucket]) -> AsyncGenerator[RecordBatch, None]:
        plan, info = self._plan, self._plan.info
        predicate = plan.predicate
        filtered = [] if predicate is None else predicate.columns()
        needed = list(dict.fromkeys([*self._arrow_schema.names, *info.physical_primary_key, *filtered]))
        expression = None if predicate is None else predicate.to_arrow_expression(info.schema)
        whole = replace(plan, predicate=None, limit=None).project_by_name(needed)
        async with contextlib.aclosing(current_rows(whole, buckets)) as batches:
            async for found in batches:
                if expression is not None:
                    found.batch = self._filtered(found.batch, expression)
                elif found.batch.schema.names != self._arrow_schema.names:
                    found.batch = found.batch.select(self._arrow_schema.names)
                yield found

    def _filtered(self, batch: pa.RecordBatch, expression: object) -> pa.RecordBatch:
        table = pa.Table.from_batches([batch]).filter(expression).select(self._arrow_schema.names)
        if not table.num_rows:
            return pa.RecordBatch.from_pylist([], schema=self._arrow_schema)
        return table.combine_chunks().to_batches()[0].cast(self._arrow_schema)

    def __repr__(self) -> str:
        return f"<TableBatchScanner of {self._plan.info.table_path}>"
