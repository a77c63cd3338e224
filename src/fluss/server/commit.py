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
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

from fluss.net.eager import complete
from fluss.server.distribution import Distribution
from fluss.server.environment import Worker
from fluss.server.garbage import clear_tracebacks
from fluss.server.log.recovery import write_checkpoint, write_committed
from fluss.server.log.tablet import LogTablet, SyncPlan
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
        self._dirty: dict[LogTablet, None] = {}
        self._asked: dict[LogTablet, asyncio.Future[bool]] = {}
        """Logs whose recovery points the next round writes, and whether that succeeded."""
        self._awaited: dict[LogTablet, asyncio.Future[bool]] = {}
        """The same of the round that is in flight."""
        self._loop: asyncio.AbstractEventLoop | None = None
        # One round at a time: a second one would not know of the files that the first has not finished, acknowledge
        # what is in them, and write a committed mark that the older one of the first then replaces.
        self._flushing = False
        self._ended: asyncio.Future[None] | None = None
        """Set by a stop, which waits until no round is in flight."""
        self._threads_busy = 0
        self._checkpoints: set[asyncio.Future[None]] = set()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin_if_needed()

    async def stop(self) -> None:
        """Flush what is dirty and end."""
        self.start()
        self._ended = asyncio.get_running_loop().create_future()
        if self._flushing:
            await self._ended
        self._flusher.stop()
        await asyncio.gather(*self._checkpoints, return_exceptions=True)

    def dirty(self, tablet: LogTablet) -> None:
        """The log has bytes that are not committed."""
        self._dirty[tablet] = None
        self._begin_if_needed()

    async def checkpoint(self, tablets: Iterable[LogTablet]) -> bool:
        """Flush the logs and write their recovery points; False when one of them failed.

        It goes on when the caller is cancelled: the logs do not list as dirty what it flushes, and the next round would
        acknowledge that unflushed.
        """
        if self._checkpoints:
            await asyncio.gather(*self._checkpoints, return_exceptions=True)
        self._loop = asyncio.get_running_loop()
        wanted = [tablet for tablet in tablets if tablet.needs_checkpoint]
        written = [self._asked.setdefault(tablet, self._loop.create_future()) for tablet in wanted]
        self._begin_if_needed()
        if written:
            await asyncio.wait(written)
        return all(future.result() for future in written)

    # Rounds ------------------------------------------------------------------------------------------------------

    def _begin_if_needed(self) -> None:
        if (self._dirty or self._asked) and not self._flushing and self._loop is not None:
            self._flushing = True
            # Not at once: what else came in with this append belongs to the same round.
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        dirty, self._dirty = self._dirty, {}
        asked, self._asked = self._asked, {}
        plans: list[SyncPlan] = []
        for tablet in (*dirty, *(tablet for tablet in asked if tablet not in dirty)):
            checkpoint = tablet in asked and not tablet.checkpointing
            plan = self._plan(tablet, checkpoint=checkpoint) if checkpoint or not tablet.idle else None
            if plan is not None:
                plans.append(plan)
            if checkpoint and plan is not None:
                self._awaited[tablet] = asked[tablet]
            elif tablet in asked:
                complete(asked[tablet], True)
        if not self._sync or not plans:
            for plan in plans:
                self._finish(plan, None)
            self._end_round()
            return
        started = time.perf_counter()
        for plan in plans:
            plan.tablet.flushing = True
        first, *others = _chunks(plans)
        self._threads_busy = 1 + len(others)
        for chunk in others:
            self._submit(self._executor.submit, chunk, started)
        # The thread for the first ones ends with a stop, after which logs are closed.
        self._submit(self._flusher.submit if self._ended is None else self._executor.submit, first, started)

    def _end_round(self) -> None:
        if (self._dirty or self._asked) and self._loop is not None:
            self._begin()
            return
        self._flushing = False
        if self._ended is not None:
            complete(self._ended, None)

    def _submit(self, submit: Callable[..., object], plans: list[SyncPlan], started: float) -> None:
        try:
            submit(self._flush, plans, started)
        except RuntimeError as error:  # there cannot be another thread now
            self._to_loop(self._flushed, [(plan, OSError(str(error))) for plan in plans], started)

    def _plan(self, tablet: LogTablet, *, checkpoint: bool) -> SyncPlan | None:
        """What to flush of a log; None when there is nothing, or the plan cannot be made."""
        if tablet.deleted or tablet.failure is not None or not tablet.segments:
            return None
        try:
            return tablet.sync_plan(checkpoint=checkpoint, checkpoint_due=not tablet.checkpointing, mark=self._sync)
        except Exception as error:
            _fail(tablet, error)
            return None

    def _flush(self, plans: list[SyncPlan], started: float) -> None:
        """Runs in a thread."""
        outcomes = _sync_each(plans)
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
                self._end_round()

    def _finish(self, plan: SyncPlan, error: OSError | None) -> None:
        try:
            self._conclude(plan, error)
        except Exception as problem:
            _fail(plan.tablet, problem)
            self._answer(plan, False)

    def _conclude(self, plan: SyncPlan, error: OSError | None) -> None:
        plan.tablet.flushing = False
        is_cut = error is not None or plan.tablet.failure is not None
        if plan.tablet.deleted or is_cut:
            # What is cut must not be in a recovery point either.
            self._answer(plan, not is_cut)
            if error is not None and not plan.tablet.deleted:
                plan.tablet.fail(error)
            return
        plan.tablet.commit(plan)
        if plan.checkpoint is not None:
            # Beside the acknowledgements, not before them.
            try:
                work = asyncio.get_running_loop().run_in_executor(self._executor, self._write_point, plan)
            except RuntimeError as problem:  # there cannot be another thread now
                self._checkpoint_ended(plan, problem)
                return
            plan.tablet.checkpointing = True
            self._checkpoints.add(work)
            work.add_done_callback(lambda done: self._checkpointed(done, plan))

    def _write_point(self, plan: SyncPlan) -> None:
        """Write a recovery point. Runs in a thread."""
        assert plan.checkpoint is not None
        if not self._sync:
            # What lies below a recovery point is never missing after a power cut, also where the rest may be.
            run_sync(plan)
        write_checkpoint(plan.checkpoint)

    def _checkpointed(self, done: asyncio.Future[None], plan: SyncPlan) -> None:
        self._checkpoints.discard(done)
        plan.tablet.checkpointing = False
        self._checkpoint_ended(plan, asyncio.CancelledError() if done.cancelled() else done.exception())

    def _checkpoint_ended(self, plan: SyncPlan, error: BaseException | None) -> None:
        tablet, checkpoint = plan.tablet, plan.checkpoint
        self._answer(plan, error is None)
        if tablet.deleted or checkpoint is None:
            return
        if error is None:
            tablet.checkpoint_written(checkpoint)
            return
        logger.error("cannot write the recovery point of %s: %s", tablet, error)
        tablet.checkpoint_failed(checkpoint)
        if not self._sync and isinstance(error, Exception):
            tablet.fail(error)  # perhaps it could not be flushed

    def _answer(self, plan: SyncPlan, is_written: bool) -> None:
        """Report to the one who asked for a recovery point, if it was asked for."""
        future = self._awaited.pop(plan.tablet, None)
        if future is not None:
            complete(future, is_written)


_Outcome = tuple[SyncPlan, "OSError | None"]


def _chunks(plans: list[SyncPlan]) -> list[list[SyncPlan]]:
    """What one thread flushes, one log after the other."""
    return [plans[at : at + LOGS_PER_THREAD] for at in range(0, len(plans), LOGS_PER_THREAD)]


def _sync_each(plans: list[SyncPlan]) -> list[_Outcome]:
    """Flush some logs, one after the other; an error concerns its own log only. Runs in a thread."""
    outcomes: list[_Outcome] = []
    for plan in plans:
        try:
            run_sync(plan)
            outcomes.append((plan, None))
        except OSError as error:
            clear_tracebacks(error)
            outcomes.append((plan, error))
        except Exception as error:
            logger.exception("flushing %s failed", plan.tablet)
            outcomes.append((plan, OSError(repr(error))))
    return outcomes


def run_sync(plan: SyncPlan) -> None:
    """Flush a plan's files. Runs in a thread."""
    plan.tablet.open_files.check_folder()
    for file in plan.files:
        file.sync()
        file.check_in_place()
    if plan.folders:
        plan.tablet.open_files.unsynced.sync(plan.folders)
    if plan.mark is not None:
        write_committed(plan.mark, plan.offset, plan.tablet.open_files)


def _fail(tablet: LogTablet, error: Exception) -> None:
    """Fail one log for an unexpected error."""
    logger.exception("flushing %s failed", tablet, exc_info=error)
    try:
        tablet.fail(error)
    except Exception:
        logger.exception("%s cannot be repaired; its writes are refused until the server is restarted", tablet)
