# SPDX-License-Identifier: Apache-2.0
"""Group commit: one flush makes the appends of many requests durable.

Appends mark their log as dirty. While one round of flushing is in flight in threads, further appends gather; the next
round takes all of them. So the cost of a flush is shared by whatever came in meanwhile, and nothing waits for a timer.

Whatever goes wrong with a log fails that log, which repairs itself. A round always ends, and the next one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from fluss.server.distribution import Distribution
from fluss.server.environment import Worker
from fluss.server.garbage import clear_tracebacks
from fluss.server.log.flush import CommittableLog, SyncPlan, run_checkpoint, run_sync
from fluss.server.metrics import ServerMetrics

logger = logging.getLogger("fluss.server.commit")

LOGS_PER_THREAD = 16


class GroupCommitter:
    """Flushes dirty logs and moves their high watermarks. ``sync=False`` leaves flushing to the operating system.

    Rounds go by callbacks, not in a task: every iteration of the loop between the end of a flush and its
    acknowledgements stands behind the requests that came in meanwhile, and the disk has nothing to do until the next
    round begins.
    """

    def __init__(
        self,
        executor: Executor,
        flusher: Worker,
        *,
        sync: bool = True,
        metrics: ServerMetrics | None = None,
    ) -> None:
        self._executor = executor
        self._flusher = flusher
        self._sync = sync
        self._metrics = metrics or ServerMetrics()
        self._latencies = Distribution.of_latencies()
        self._metrics.histogram("tabletserver_logFlushLatencyMs", self._latencies)
        self._dirty: dict[CommittableLog, None] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # One flush at a time: a second one would not know of the files that the first has not finished, acknowledge
        # what is in them, and write a committed mark that the older one of the first then replaces.
        self._flushing = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Callers that flush next, in their order."""
        self._threads_busy = 0
        self._checkpoints: set[asyncio.Future[None]] = set()
        self._requested: set[asyncio.Task[bool]] = set()
        """Checkpoints that a caller asked for, which may have been cancelled since."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin_if_dirty()

    async def stop(self) -> None:
        """Flush what is dirty and end."""
        self._loop = asyncio.get_running_loop()
        while self._flushing or self._dirty:
            await self._acquire_flush_slot()
            self._release_flush_slot()
        self._flusher.stop()
        await asyncio.gather(*self._checkpoints, *self._requested, return_exceptions=True)

    def dirty(self, tablet: CommittableLog) -> None:
        """The log has bytes that are not committed."""
        self._dirty[tablet] = None
        self._begin_if_dirty()

    # Slots -------------------------------------------------------------------------------------------------------

    def _begin_if_dirty(self) -> None:
        if self._dirty and not self._flushing and self._loop is not None:
            self._flushing = True
            # Not at once: what else came in with this append belongs to the same round.
            self._loop.call_soon(self._begin)

    async def _acquire_flush_slot(self) -> None:
        """Wait until nothing is flushed; the next flush is the caller's, who ends it with `_release_flush_slot`."""
        if self._flushing:
            slot: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(slot)
            await slot
        self._flushing = True

    def _release_flush_slot(self) -> None:
        while self._waiting:
            slot = self._waiting.popleft()
            if not slot.done():
                slot.set_result(None)
                return
        if self._dirty and self._loop is not None:
            self._begin()
        else:
            self._flushing = False

    # Rounds ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        tablets, self._dirty = self._dirty, {}
        plans = [
            plan
            for tablet in tablets
            if not tablet.idle and (plan := self._plan(tablet, checkpoint_due=not tablet.checkpointing)) is not None
        ]
        if not self._sync or not plans:
            for plan in plans:
                self._finish(plan, None)
            self._release_flush_slot()
            return
        started = time.perf_counter()
        first, *others = _chunks(plans)
        self._threads_busy = 1 + len(others)
        for chunk in others:
            self._submit(self._executor.submit, chunk, started)
        self._submit(self._flusher.submit, first, started)

    def _submit(self, submit: Callable[..., object], plans: list[SyncPlan], started: float) -> None:
        try:
            submit(self._flush, plans, started)
        except RuntimeError as error:  # there cannot be another thread now
            self._to_loop(self._flushed, [(plan, OSError(str(error))) for plan in plans], started)

    def _plan(
        self, tablet: CommittableLog, *, checkpoint: bool = False, checkpoint_due: bool = True
    ) -> SyncPlan | None:
        """What to flush of a log; None when there is nothing, or the plan cannot be made."""
        if tablet.deleted or tablet.failure is not None or not tablet.segments:
            return None
        try:
            return tablet.sync_plan(checkpoint=checkpoint, checkpoint_due=checkpoint_due, mark=self._sync)
        except Exception as error:
            _fail(tablet, error)
            return None

    def _flush(self, plans: list[SyncPlan], started: float) -> None:
        """Runs in a thread."""
        outcomes = _each(run_sync, plans)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
            self._to_loop(self._flushed, outcomes, started)

    def _to_loop(self, call: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(call, *args)

    def _flushed(self, outcomes: list[_Outcome], started: float) -> None:
        self._threads_busy -= 1
        try:
            for plan, error in outcomes:
                self._finish(plan, error)
        finally:
            self._metrics.add("tabletserver_logFlush_total", len(outcomes))
            if not self._threads_busy:
                self._latencies.add_seconds(time.perf_counter() - started)
                self._release_flush_slot()

    async def _in_threads(self, work: Callable[[SyncPlan], None], plans: list[SyncPlan]) -> list[_Outcome]:
        loop = asyncio.get_running_loop()
        jobs = (loop.run_in_executor(self._executor, _each, work, chunk) for chunk in _chunks(plans))
        return [outcome for chunk in await asyncio.gather(*jobs) for outcome in chunk]

    def _finish(self, plan: SyncPlan, error: OSError | None) -> None:
        try:
            self._conclude(plan, error)
        except Exception as problem:
            _fail(plan.tablet, problem)

    def _conclude(self, plan: SyncPlan, error: OSError | None) -> None:
        if plan.tablet.deleted:
            return
        if error is not None:
            plan.tablet.fail(error)
            return
        plan.tablet.commit(plan)
        if plan.checkpoint is not None:
            # Beside the acknowledgements, not before them.
            try:
                work = asyncio.get_running_loop().run_in_executor(self._executor, run_checkpoint, plan.checkpoint)
            except RuntimeError as problem:  # there cannot be another thread now
                _checkpoint_ended(plan, problem)
                return
            plan.tablet.checkpointing = True
            self._checkpoints.add(work)
            work.add_done_callback(lambda done: self._checkpointed(done, plan))

    def _checkpointed(self, done: asyncio.Future[None], plan: SyncPlan) -> None:
        self._checkpoints.discard(done)
        plan.tablet.checkpointing = False
        if not done.cancelled():
            _checkpoint_ended(plan, done.exception())

    async def checkpoint(self, tablets: Iterable[CommittableLog]) -> bool:
        """Flush the logs and write their recovery points; False when one of them failed.

        It goes on when the caller is cancelled: the logs do not list as dirty what it flushes, and the next round would
        acknowledge that unflushed.
        """
        work = asyncio.ensure_future(self._checkpoint(tablets))
        self._requested.add(work)
        work.add_done_callback(self._requested.discard)
        return await asyncio.shield(work)

    async def _checkpoint(self, tablets: Iterable[CommittableLog]) -> bool:
        if self._checkpoints:
            await asyncio.gather(*self._checkpoints, return_exceptions=True)
        clean = True
        await self._acquire_flush_slot()
        try:
            plans = [
                plan
                for tablet in tablets
                if tablet.needs_checkpoint
                and not tablet.checkpointing
                and (plan := self._plan(tablet, checkpoint=True)) is not None
            ]
            flushed: list[SyncPlan] = []
            for plan, error in await self._in_threads(run_sync, plans):
                if plan.tablet.deleted:
                    continue
                if error is None:
                    plan.tablet.commit(plan)
                    plan.tablet.checkpointing = True
                    flushed.append(plan)
                else:
                    clean = False
                    plan.tablet.fail(error)
        finally:
            self._release_flush_slot()
        try:
            for plan, error in await self._in_threads(_checkpoint_plan, flushed):
                clean = clean and error is None
                _checkpoint_ended(plan, error)
        finally:
            for plan in flushed:
                plan.tablet.checkpointing = False
        return clean


_Outcome = tuple[SyncPlan, "OSError | None"]


def _chunks(plans: list[SyncPlan]) -> list[list[SyncPlan]]:
    """What one thread flushes, one log after the other."""
    return [plans[at : at + LOGS_PER_THREAD] for at in range(0, len(plans), LOGS_PER_THREAD)]


def _each(work: Callable[[SyncPlan], None], plans: list[SyncPlan]) -> list[_Outcome]:
    """Work on some logs, one after the other; an error concerns its own log only. Runs in a thread."""
    outcomes: list[_Outcome] = []
    for plan in plans:
        try:
            work(plan)
            outcomes.append((plan, None))
        except OSError as error:
            clear_tracebacks(error)
            outcomes.append((plan, error))
        except Exception as error:
            logger.exception("flushing %s failed", plan.tablet)
            outcomes.append((plan, OSError(repr(error))))
    return outcomes


def _fail(tablet: CommittableLog, error: Exception) -> None:
    """Fail one log for an unexpected error."""
    logger.exception("flushing %s failed", tablet, exc_info=error)
    try:
        tablet.fail(error)
    except Exception:
        logger.exception("%s cannot be repaired; its writes are refused until the server is restarted", tablet)


def _checkpoint_ended(plan: SyncPlan, error: BaseException | None) -> None:
    tablet = plan.tablet
    if tablet.deleted or plan.checkpoint is None:
        return
    if error is None:
        tablet.checkpoint_written(plan.checkpoint)
        return
    logger.error("cannot write the recovery point of %s: %s", tablet, error)
    tablet.checkpoint_failed(plan.checkpoint)


def _checkpoint_plan(plan: SyncPlan) -> None:
    if plan.checkpoint is not None:
        run_checkpoint(plan.checkpoint)
