# SPDX-License-Identifier: Apache-2.0
"""What scanners that read once and end have in common."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from fluss.client.scan.frames import to_pandas, to_polars
from fluss.client.scan.plan import ScanPlan
from fluss.client.scan.records import RecordBatch
from fluss.errors import DeadlineExceededError
from fluss.net.deadline import Deadline
from fluss.net.eager import retrieve_exception

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

OneShotT = TypeVar("OneShotT", bound="OneShotScanner")


class OneShotScanner(ABC):
    """A bounded read. It runs when the first batch is asked for, and once only.

    A call that is cancelled loses nothing: the next one goes on where it was. After an error every call raises it.
    """

    def __init__(self, plan: ScanPlan) -> None:
        self._plan = plan
        self._batches: AsyncGenerator[RecordBatch, None] | None = None
        self._step: asyncio.Task[RecordBatch | None] | None = None
        """The step to the next batch while no call has its result; for ever if it failed."""
        self._collected: deque[RecordBatch] = deque()
        """Batches of a call that gives all of them, until it does."""
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
        return self._collected.popleft() if self._collected else await self._next(deadline)

    async def _next(self, deadline: Deadline) -> RecordBatch | None:
        self._deadline = deadline
        while not self._closed:
            step = self._step
            timeout_s = None  # a step of its own ends by the deadline
            if step is not None:
                timeout_s = deadline.remaining_ms / 1000
            else:
                step = self._step = asyncio.ensure_future(self._read_on())
                step.add_done_callback(retrieve_exception)
            # Not awaited itself: a call that is cancelled must not end the read.
            await asyncio.wait((step,), timeout=timeout_s)
            if not step.done():
                raise DeadlineExceededError(
                    f"The next rows of table '{self._plan.info.table_path}' did not come within "
                    f"{deadline.total_ms / 1000:g} s"
                )
            if self._step is step:  # else it was another call's to take
                if step.exception() is None:
                    self._step = None
                return step.result()
        return None

    async def _read_on(self) -> RecordBatch | None:
        if self._batches is None:
            self._batches = self._run()
        return await anext(self._batches, None)

    async def collect_all_batches(self, *, timeout: float | None = None) -> list[RecordBatch]:
        """Return all batches that are left.

        `timeout` is the time for all of them, in seconds; by default each has its own, as with `next_batch()`.

        Example:
            batches = await scanner.collect_all_batches()
        """
        deadline = self._plan.read_deadline(timeout)
        while (batch := await self._next(self._plan.cluster.deadline(deadline))) is not None:
            self._collected.append(batch)
        batches = list(self._collected)
        self._collected.clear()
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
        self._collected.clear()
        step, self._step = self._step, None
        if step is not None:
            step.cancel()
            await asyncio.wait((step,))
        if self._batches is not None:
            await self._batches.aclose()

    async def __aenter__(self: OneShotT) -> OneShotT:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def __aiter__(self) -> AsyncIterator[RecordBatch]:
        while (batch := await self.next_batch()) is not None:
            yield batch
