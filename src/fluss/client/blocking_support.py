# SPDX-License-Identifier: Apache-2.0
"""What the generated blocking classes of the client inherit: all that is more than a wait for the asynchronous call.

`scripts/generate_blocking.py` writes the classes themselves.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal

from fluss.client.runner import Background

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from fluss.client import multi_table, scan, write
    from fluss.client.scan import RecordBatch, ScanRecords

    ItemT = TypeVar("ItemT", default=Any)
    """What iterating over a scanner gives. With a default, so that `LogScanner` alone is a type too."""
else:
    from typing import TypeVar

    ItemT = TypeVar("ItemT")

SelfT = TypeVar("SelfT")


class BlockingBase:
    """An object of the core, and the event loop that it lives on."""

    _core: Any

    def __init__(self, core: Any, background: Background) -> None:
        self._core = core
        self._background = background

    def __repr__(self) -> str:
        return repr(self._core)


class ContextBase(BlockingBase):
    """`with` and `async with`; subclasses say what is done at the end of the block."""

    def __enter__(self: SelfT) -> SelfT:
        return self

    async def __aenter__(self: SelfT) -> SelfT:
        return self


class ClosingBase(ContextBase):
    """`close`, `with` and `async with` of a reader."""

    def close(self) -> None:
        """Stop reading; may be called again."""
        if not self._background.closed:
            self._background.run(self._core.close())

    def __exit__(self, *_: object) -> Literal[False]:
        self.close()
        return False

    async def __aexit__(self, *_: object) -> bool:
        if not self._background.closed:
            await self._background.wrap(self._core.close())
        return False


class BlockingWriterBase(ContextBase):
    """Flushing and closing of a writer. Errors are taken where they are raised: a cancelled flush loses none."""

    _core: write.AppendWriter | write.UpsertWriter

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send everything and wait until the server acknowledged it. Raises the first error if rows were lost.

        After `timeout` seconds `DeadlineExceededError` is raised; rows that are in flight then may still be written.
        """
        (await self._background.wrap(self._core.drain(timeout))).raise_first()

    def close(self, *, timeout: float | None = None) -> None:
        """Flush and be done."""
        self._background.run(self._core.drain(timeout)).raise_first()

    def __exit__(self, exc_type: type[BaseException] | None = None, *_: object) -> Literal[False]:
        """Leave: everything pending is flushed, unless the block ended with an error."""
        if exc_type is None:
            self.close()
        return False

    async def __aexit__(self, exc_type: type[BaseException] | None = None, *_: object) -> bool:
        """Leave: everything pending is flushed, unless the block ended with an error."""
        if exc_type is None:
            await self.flush()
        return False


class MultiWriterBase(ContextBase):
    """Flushing and closing of a writer to many tables."""

    _core: multi_table.MultiTableWriter

    async def flush(self, *, timeout: float | None = None) -> None:
        """Send everything to all tables and wait until it is acknowledged.

        Raises the first error; the next flush raises those of other tables.
        """
        for failures in await self._background.wrap(self._core._drain(timeout)):
            failures.raise_first()

    def close(self) -> None:
        """Flush and be done."""
        self._background.run(self._core.close())

    def __exit__(self, exc_type: type[BaseException] | None = None, *_: object) -> Literal[False]:
        if exc_type is None:
            self.close()
        return False

    async def __aexit__(self, exc_type: type[BaseException] | None = None, *_: object) -> bool:
        if exc_type is None:
            await self._background.wrap(self._core.close())
        return False


class LogScannerBase(ClosingBase, Generic[ItemT]):
    """Subscribing, polling and iteration of a log scanner."""

    _core: scan.LogScanner[ItemT]

    def _subscribe(self, subscribe: Callable[[], None]) -> None:
        async def run() -> None:
            subscribe()
            # "Latest" means latest at the time of the call, so it is asked for before the call returns.
            await self._core.resolved()

        self._background.run(run())

    def poll(self, timeout_ms: int) -> ScanRecords:
        """Records that are there, or come within the timeout; empty if none do. For record scanners.

        Example:
            for record in scanner.poll(timeout_ms=1000):
                print(record.offset, record.row)
        """
        # Records that are here already need no trip to the other thread.
        found = None if self._background.closed else self._core.poll_leftover()
        return self._background.run(self._core.poll(timeout_ms)) if found is None else found

    def __iter__(self) -> Iterator[ItemT]:
        while True:
            yield from self._core._give()
            self._background.run(self._core._fill())

    def __aiter__(self) -> AsyncIterator[ItemT]:
        return self._core._loop_with(self._fill)

    async def _fill(self) -> bool:
        await self._background.wrap(self._core._fill())
        return True

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = self._background.call(self._core.to_arrow_batch_reader)
        return reader.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._core.arrow_schema.__arrow_c_schema__()


class OneShotBase(ClosingBase):
    """Iteration of a scanner that reads once and ends."""

    _core: scan.BatchScanner | scan.TableBatchScanner

    def next_batch(self, *, timeout: float | None = None) -> RecordBatch | None:
        """Return the next batch, or None when all was read."""
        batch = None
        while batch is None and self._background.run(self._fill(timeout)):
            batch = self._core._take()  # none if another thread was quicker
        return batch

    async def _fill(self, timeout: float | None = None) -> bool:
        return await self._core._fill(self._background.cluster.deadline(timeout))

    def __iter__(self) -> Iterator[RecordBatch]:
        while (batch := self.next_batch()) is not None:
            yield batch

    async def __aiter__(self) -> AsyncIterator[RecordBatch]:
        while await self._background.wrap(self._fill()):
            batch = self._core._take()
            if batch is not None:
                yield batch

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._background.run(self._core.to_arrow()).__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self._core.arrow_schema.__arrow_c_schema__()


class BucketScannerBase(OneShotBase):
    """What a scanner of one bucket knows of its rows."""

    _core: scan.BatchScanner

    @property
    def snapshot_id(self) -> int | None:
        """The snapshot that the rows come from, or begin with; None when none is read."""
        return self._core.snapshot_id

    @property
    def log_offset(self) -> int | None:
        """The end of the changelog that the rows read so far stand for; None where the server does not say."""
        return self._core.log_offset
