# SPDX-License-Identifier: Apache-2.0
"""What scanners that read once and end have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch, to_pandas, to_polars
from fluss.errors import DeadlineExceededError
from fluss.net.deadline import Deadline
from fluss.net.eager import cancel, retrieve_exception

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_GRACE_S = 0.2
"""A request that the step sends meets the deadline first, and says which server was slow."""

OneShotT = TypeVar("OneShotT", bound="OneShotScanner")


class OneShotScanner(ABC):
    """A bounded read. It runs when the first batch is asked for, and once only.

    A call that is cancelled or runs out of time loses nothing: the next one goes on where it was. After another error
    every call raises it.
    """

    def __init__(self, plan: ScanPlan) -> None:
        self._plan = plan
        self._batches: AsyncGenerator[RecordBatch, None] | None = None
        self._step: asyncio.Task[bool] | None = None
        """The step to the next batch while no call has seen its end; for ever if it failed."""
        self._fetched: deque[RecordBatch] = deque()
        """Batches that no caller has yet. They are added on the loop, and taken in any thread."""
        self._closed = False
        self._arrow_schema = plan.arrow_schema
        self._deadline = plan.cluster.deadline()
        """The deadline of the call that the requests of this scanner are made for."""

    @abstractmethod
    def _run(self) -> AsyncGenerator[RecordBatch, None]:
        """Read everything, batch by batch, each by `self._deadline` of the time it is asked for."""

    @property
    def arrow_schema(self) -> pa.Schema:
        """The schema of the Arrow batches this scanner gives.

        Example:
            names = scanner.arrow_schema.names
        """
        return self._arrow_schema

    async def next_batch(self, *, timeout: float | None = None) -> RecordBatch | None:
        """Return the next batch, or None when there is no more.

        `timeout` is in seconds; by default a batch takes at most twice the request timeout. After an error the read is
        over: create a new scanner.

        Example:
            while (found := await scanner.next_batch()) is not None:
                print(found.batch.num_rows)
        """
        deadline = self._plan.cluster.deadline(timeout)
        while await self._fill(deadline):
            batch = self._take()
            if batch is not None:  # else another thread was quicker
                return batch
        return None

    async def _fill(self, deadline: Deadline) -> bool:
        """Wait until there is a batch to take; False at the end. Cancelled, it loses nothing."""
        while not self._fetched:
            if not await self._advance(deadline):
                return False
        return True

    def _take(self) -> RecordBatch | None:
        """Take a batch that is there, in any thread."""
        try:
            return self._fetched.popleft()
        except IndexError:
            return None

    async def _advance(self, deadline: Deadline) -> bool:
        """Wait for one batch more; False at the end."""
        self._deadline = deadline
        if self._closed:
            return False
        timeout_s = deadline.remaining_ms / 1000
        step = self._step
        if step is None and timeout_s > 0:
            step = self._step = asyncio.ensure_future(self._read_on())
            step.add_done_callback(retrieve_exception)
            timeout_s += _GRACE_S
        # Not awaited itself: a call that is cancelled must not end the read.
        if step is not None:
            await asyncio.wait((step,), timeout=timeout_s)
        if self._closed:
            return False
        if step is None or not step.done():
            raise DeadlineExceededError(
                f"The next rows of table '{self._plan.info.table_path}' did not come within "
                f"{deadline.total_ms / 1000:g} s"
            )
        more = step.result()
        if self._step is step:
            self._step = None
        return more

    async def _read_on(self) -> bool:
        if self._batches is None:
            self._batches = self._run()
        async for batch in self._batches:
            self._fetched.append(batch)
            return True
        return False

    async def collect_all_batches(self, *, timeout: float | None = None) -> list[RecordBatch]:
        """Return all batches that are left.

        `timeout` is the time for all of them, in seconds; by default each has its own, as with `next_batch()`.

        Example:
            batches = await scanner.collect_all_batches()
        """
        deadline = self._plan.read_deadline(timeout)
        while await self._advance(self._plan.cluster.deadline(deadline)):
            pass
        batches = list(self._fetched)
        self._fetched.clear()
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
        self._closed = True
        self._fetched.clear()
        step, self._step = self._step, None
        await cancel(step)
        if self._batches is not None:
            await self._batches.aclose()

    async def __aenter__(self: OneShotT) -> OneShotT:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[RecordBatch]:
        while (batch := await self.next_batch()) is not None:
            yield batch
