# SPDX-License-Identifier: Apache-2.0
"""Group commit: one flush makes the appends of many requests durable.

Appends mark their log as dirty. While one round of flushing is under way in threads, further appends gather; the next
round takes all of them. So the cost of a flush is shared by whatever came in meanwhile, and nobody waits for a timer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from fluss.server.log.tablet import LogTablet, SyncPlan, run_checkpoint, run_sync
from fluss.server.metrics import Metrics

logger = logging.getLogger("fluss.server.commit")

_FILES_PER_THREAD = 16


class GroupCommitter:
    """Flushes dirty logs and moves their high watermarks. ``sync=False`` leaves flushing to the operating system."""

    def __init__(self, executor: Executor, *, sync: bool = True, metrics: Metrics | None = None) -> None:
        self._executor = executor
        self._sync = sync
        self._metrics = metrics or Metrics()
        self._dirty: dict[LogTablet, None] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        # One flush at a time: a second one would not know of the files that the first has not finished, acknowledge
        # what is in them, and write a committed mark that the older one of the first then replaces.
        self._flushing = asyncio.Lock()
        self._checkpoints: set[asyncio.Future[None]] = set()
        self._checkpointing: set[LogTablet] = set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Flush what is dirty and end."""
        if self._task is not None:
            # Not cancelled: a round that has begun is finished, so that a stop does not lose its outcome.
            self._stopping = True
            self._wake.set()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        while self._dirty:
            await self._round()
        if self._checkpoints:
            await asyncio.gather(*self._checkpoints, return_exceptions=True)

    def dirty(self, tablet: LogTablet) -> None:
        """The log has bytes that are not committed."""
        self._dirty[tablet] = None
        self._wake.set()

    async def _run(self) -> None:
        while not self._stopping:
            await self._wake.wait()
            self._wake.clear()
            await self._round()

    async def _round(self) -> None:
        async with self._flushing:
            tablets, self._dirty = self._dirty, {}
            plans = [
                tablet.sync_plan(mark=self._sync, checkpoint_due=tablet not in self._checkpointing)
                for tablet in tablets
                if not tablet.deleted and tablet.segments
            ]
            if self._sync:
                started = time.perf_counter()
                outcomes = await self._in_threads(run_sync, plans)
                self._metrics.add("tabletserver_logFlush_total", len(plans))
                self._metrics.add("tabletserver_logFlushLatencyMs_total", (time.perf_counter() - started) * 1000)
                for plan, error in outcomes:
                    self._finish(plan, error)
            else:
                for plan in plans:
                    self._finish(plan, None)

    async def _in_threads(self, work: Callable[[SyncPlan], None], plans: list[SyncPlan]) -> list[_Outcome]:
        loop = asyncio.get_running_loop()
        chunks = [plans[at : at + _FILES_PER_THREAD] for at in range(0, len(plans), _FILES_PER_THREAD)]
        if len(chunks) == 1:
            return await loop.run_in_executor(self._executor, _each, work, plans)
        outcomes = await asyncio.gather(*(loop.run_in_executor(self._executor, _each, work, chunk) for chunk in chunks))
        return [outcome for chunk in outcomes for outcome in chunk]

    def _finish(self, plan: SyncPlan, error: OSError | None) -> None:
        if plan.tablet.deleted:
            return
        if error is not None:
            plan.tablet.fail(error)
            return
        plan.tablet.commit(plan)
        if plan.checkpoint is not None:
            # Beside the acknowledgements, not before them.
            self._checkpointing.add(plan.tablet)
            work = asyncio.get_running_loop().run_in_executor(self._executor, run_checkpoint, plan.checkpoint)
            self._checkpoints.add(work)
            work.add_done_callback(lambda done, tablet=plan.tablet: self._checkpointed(done, tablet))  # type: ignore[misc]

    def _checkpointed(self, done: asyncio.Future[None], tablet: LogTablet) -> None:
        self._checkpoints.discard(done)
        self._checkpointing.discard(tablet)
        if not done.cancelled() and done.exception() is not None and not tablet.deleted:
            # The point before stays in force: recovery reads more, nothing is lost.
            logger.error("cannot write the recovery point of %s: %s", tablet, done.exception())

    async def checkpoint(self, tablets: Iterable[LogTablet]) -> bool:
        """Flush the logs and write their recovery points; False when one of them failed."""
        if self._checkpoints:
            await asyncio.gather(*self._checkpoints, return_exceptions=True)
        clean = True
        async with self._flushing:
            plans = [
                tablet.sync_plan(checkpoint=True, mark=self._sync)
                for tablet in tablets
                if tablet.needs_checkpoint
                and not tablet.deleted
                and tablet.failure is None
                and tablet not in self._checkpointing
            ]
            flushed: list[SyncPlan] = []
            for plan, error in await self._in_threads(run_sync, plans):
                if plan.tablet.deleted:
                    continue
                if error is None:
                    plan.tablet.commit(plan)
                    flushed.append(plan)
                else:
                    clean = False
                    plan.tablet.fail(error)
            self._checkpointing.update(plan.tablet for plan in flushed)
        try:
            for plan, error in await self._in_threads(_checkpoint_plan, flushed):
                if error is not None and not plan.tablet.deleted:
                    clean = False
                    logger.error("cannot write the recovery point of %s: %s", plan.tablet, error)
        finally:
            self._checkpointing.difference_update(plan.tablet for plan in flushed)
        return clean


_Outcome = tuple[SyncPlan, "OSError | None"]


def _each(work: Callable[[SyncPlan], None], plans: list[SyncPlan]) -> list[_Outcome]:
    """Work on some logs, one after the other; an error concerns its own log only. Runs in a thread."""
    outcomes: list[_Outcome] = []
    for plan in plans:
        try:
            work(plan)
            outcomes.append((plan, None))
        except OSError as error:
            outcomes.append((plan, error))
    return outcomes


def _checkpoint_plan(plan: SyncPlan) -> None:
    if plan.checkpoint is not None:
        run_checkpoint(plan.checkpoint)
