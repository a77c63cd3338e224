# SPDX-License-Identifier: Apache-2.0
"""Group commit: one flush makes the appends of many requests durable.

Appends mark their log as dirty. While one round of flushing is in flight in threads, further appends gather; the next
round takes all of them. So the cost of a flush is shared by whatever came in meanwhile, and nothing waits for a timer.

Where a round is flushed is one decision per round (`FlushPolicy`):

- Unsynced, unless `log.commit.sync` is `group`: the operating system flushes when it likes.
- Inline, on the event loop, if one log is flushed, the disk was quick the last time and the loop has nothing else to
  do: to a thread and back takes as long as a small flush.
- Worker, in the flusher thread, for what one thread can flush: the event loop serves other requests meanwhile.
- Pool, in several threads, for more logs than that.

Whatever goes wrong with a log fails that log, which repairs itself. A round always ends, and the next one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from enum import Enum

from fluss.server.distribution import Distribution
from fluss.server.environment import Worker
from fluss.server.garbage import forget_frames
from fluss.server.log.flush import CommittableLog, SyncPlan, run_checkpoint, run_sync
from fluss.server.metrics import ServerMetrics

logger = logging.getLogger("fluss.server.commit")

LOGS_PER_THREAD = 16
_INLINE_SECONDS_MAX = 0.02
"""What the event loop may wait for the disk itself. A disk that took longer the last time may do so again."""


class FlushStrategy(Enum):
    """Where a round is flushed."""

    UNSYNCED = "not at all: acknowledged as it is"
    INLINE = "on the event loop"
    WORKER = "in the flusher thread"
    POOL = "in the flusher thread and in those of the pool"


class FlushPolicy:
    """Chooses the strategy of each round.

    Args:
        sync: Whether a write is acknowledged only when it is on disk.
        is_quiet: Whether the event loop has nothing else to do, given how many appends the round is for.
    """

    def __init__(self, *, sync: bool, is_quiet: Callable[[int], bool]) -> None:
        self.sync = sync
        self._is_quiet = is_quiet
        self._round_seconds = 0.0

    def choose(self, plans: Sequence[SyncPlan], appends: int) -> FlushStrategy:
        """Choose for a round that flushes these plans and was caused by so many appends."""
        if not plans or not self.sync:
            return FlushStrategy.UNSYNCED
        if len(plans) == 1:
            small = not plans[0].folders and self._round_seconds <= _INLINE_SECONDS_MAX
            return FlushStrategy.INLINE if small and self._quiet(appends) else FlushStrategy.WORKER
        return FlushStrategy.WORKER if len(plans) <= LOGS_PER_THREAD else FlushStrategy.POOL

    def round_took(self, seconds: float) -> None:
        """Record how long the disk took for a round."""
        self._round_seconds = seconds

    def _quiet(self, appends: int) -> bool:
        try:
            return self._is_quiet(appends)
        except Exception:
            logger.exception("cannot tell whether the server is quiet")
            return False


class GroupCommitter:
    """Flushes dirty logs and moves their high watermarks. ``sync=False`` leaves flushing to the operating system.

    Rounds go by callbacks, not in a task: every turn of the loop between the end of a flush and its acknowledgements
    stands behind the requests that came in meanwhile, and the disk has nothing to do until the next round begins.

    Args:
        quiet: Whether the event loop has nothing else to do, given how many appends a round is for; then the loop
            itself can wait for the disk. Without it, the loop never does.
    """

    def __init__(
        self,
        executor: Executor,
        flusher: Worker,
        *,
        sync: bool = True,
        metrics: ServerMetrics | None = None,
        quiet: Callable[[int], bool] = lambda appends: False,
    ) -> None:
        self._executor = executor
        self._flusher = flusher
        self._policy = FlushPolicy(sync=sync, is_quiet=quiet)
        self._metrics = metrics or ServerMetrics()
        self._latencies = Distribution.of_latencies()
        self._metrics.histogram("tabletserver_logFlushLatencyMs", self._latencies)
        self._dirty: dict[CommittableLog, None] = {}
        self._appends = 0
        """Since the last round began."""
        self._loop: asyncio.AbstractEventLoop | None = None
        # One flush at a time: a second one would not know of the files that the first has not finished, acknowledge
        # what is in them, and write a committed mark that the older one of the first then replaces.
        self._flushing = False
        self._waiting: deque[asyncio.Future[None]] = deque()
        """Callers that flush next, in their order."""
        self._threads_busy = 0
        self._checkpoints: set[asyncio.Future[None]] = set()

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._begin_if_dirty()

    async def stop(self) -> None:
        """Flush what is dirty and end."""
        self._loop = asyncio.get_running_loop()
        while self._flushing or self._dirty:
            await self._my_turn()
            self._turn_over()
        self._flusher.stop()
        if self._checkpoints:
            await asyncio.gather(*self._checkpoints, return_exceptions=True)

    def dirty(self, tablet: CommittableLog) -> None:
        """The log has bytes that are not committed."""
        self._dirty[tablet] = None
        self._appends += 1
        self._begin_if_dirty()

    # Turns -------------------------------------------------------------------------------------------------------

    def _begin_if_dirty(self) -> None:
        if self._dirty and not self._flushing and self._loop is not None:
            self._flushing = True
            # Not at once: what else came in with this append belongs to the same round.
            self._loop.call_soon(self._begin)

    async def _my_turn(self) -> None:
        """Wait until nothing is flushed; the next flush is the caller's, who ends it with `_turn_over`."""
        if self._flushing:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._turn_over()  # it was given to a caller who no longer wants it
                raise
        self._flushing = True

    def _turn_over(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        if self._dirty and self._loop is not None:
            self._begin()
        else:
            self._flushing = False

    # Rounds ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        tablets, self._dirty = self._dirty, {}
        appends, self._appends = self._appends, 0
        plans = [
            plan
            for tablet in tablets
            if not tablet.idle and (plan := self._plan(tablet, checkpoint_due=not tablet.checkpointing)) is not None
        ]
        strategy = self._policy.choose(plans, appends)
        if strategy is FlushStrategy.UNSYNCED:
            for plan in plans:
                self._finish(plan, None)
            self._turn_over()
            return
        started = time.perf_counter()
        self._threads_busy = 1
        if strategy is FlushStrategy.INLINE:
            self._flushed(self._flush(plans), started)
        elif strategy is FlushStrategy.WORKER:
            self._submit(self._flusher.submit, plans, started)
        else:
            first, *others = _chunks(plans)
            self._threads_busy += len(others)
            for chunk in others:
                self._submit(self._executor.submit, chunk, started)
            self._submit(self._flusher.submit, first, started)

    def _submit(self, submit: Callable[..., object], plans: list[SyncPlan], started: float) -> None:
        try:
            submit(self._flush_and_tell, plans, started)
        except RuntimeError as error:  # there cannot be another thread now
            self._to_loop(self._flushed, [(plan, OSError(str(error))) for plan in plans], started)

    def _plan(
        self, tablet: CommittableLog, *, checkpoint: bool = False, checkpoint_due: bool = True
    ) -> SyncPlan | None:
        """What to flush of a log; None when there is nothing, or when that cannot even be told."""
        if tablet.deleted or tablet.failure is not None or not tablet.segments:
            return None
        try:
            return tablet.sync_plan(checkpoint=checkpoint, checkpoint_due=checkpoint_due, mark=self._policy.sync)
        except Exception as error:
            _fail(tablet, error)
            return None

    def _flush_and_tell(self, plans: list[SyncPlan], started: float) -> None:
        """Runs in a thread."""
        outcomes = self._flush(plans)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no caller waits
            self._to_loop(self._flushed, outcomes, started)

    def _flush(self, plans: list[SyncPlan]) -> list[_Outcome]:
        """Flush some logs, and say of each what came of it. May run in a thread."""
        try:
            return self._flush_while_written_to(plans)
        except Exception as error:
            logger.exception("flushing %d logs failed", len(plans))
            return [(plan, OSError(repr(error))) for plan in plans]

    def _flush_while_written_to(self, plans: list[SyncPlan]) -> list[_Outcome]:
        """Flush some logs.

        A single log that is written to all the while is flushed again and again, as long as no other log is dirty and
        no caller waits for a flush of its own.
        """
        outcomes = _each(run_sync, plans)
        while len(outcomes) == 1 and len(self._dirty) == 1 and not self._waiting:
            plan, error = outcomes[0]
            following = plan.tablet.following(plan) if error is None and plan.tablet in self._dirty else None
            if following is None:
                break
            self._to_loop(self._finish, plan, None)
            outcomes = _each(run_sync, [following])
        return outcomes

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
                seconds = time.perf_counter() - started
                self._policy.round_took(seconds)
                self._latencies.add_seconds(seconds)
                self._turn_over()

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
        """Flush the logs and write their recovery points; False when one of them failed."""
        if self._checkpoints:
            await asyncio.gather(*self._checkpoints, return_exceptions=True)
        clean = True
        await self._my_turn()
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
            self._turn_over()
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
            forget_frames(error)
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
