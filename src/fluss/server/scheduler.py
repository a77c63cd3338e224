# SPDX-License-Identifier: Apache-2.0
"""Processor time of the event loop, shared between users by deficit round robin.

A user who has used little time lately is served at once. What users who flood the server ask for beyond that waits in
a queue per user: each iteration of the event loop serves one of the queues, for a quantum of time, whatever the number
of connections and requests behind it. Long requests give the event loop back after a slice, and queue for the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterable, Iterator
from concurrent.futures import Executor, Future
from functools import partial
from time import monotonic, thread_time
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from fluss.net.eager import complete
from fluss.server.quotas import Usage

T = TypeVar("T")

_SLICE_SECONDS = 0.002
_QUANTUM_SECONDS = 0.0005
_WINDOW_SECONDS = 0.002
"""A user is served at once while it used less than a quantum in this time."""
_LARGE_AT_ONCE = 2
_THREADS_PER_USER = 2
"""More threads of one user would only take Python's lock from the event loop, and the threads from other users."""


class Share:
    """The part of the server that one user has; shared by all its connections."""

    __slots__ = (
        "__weakref__", "_scheduler", "_spent", "_threads", "_window_start", "charged_seconds", "deficit", "is_active",
        "owner", "queue", "usage",
    )  # fmt: skip

    def __init__(self, scheduler: Scheduler, owner: Hashable) -> None:
        self._scheduler = scheduler
        self.owner = owner
        """The user, or the address of one who is not known."""
        self.usage = scheduler.usage_of(owner)
        self.charged_seconds = 0.0
        self._window_start = self._spent = 0.0
        self._threads = asyncio.Semaphore(_THREADS_PER_USER)
        self.deficit = 0.0
        self.is_active = False
        """Whether it is among those that are served one after the other."""
        self.queue: deque[Callable[[], None]] = deque()

    @property
    def may_run(self) -> bool:
        """Whether work of this user is done at once, or has to be queued."""
        if self.queue:
            return False
        if self._spent < _QUANTUM_SECONDS:
            return True
        return monotonic() - self._window_start > _WINDOW_SECONDS

    def charge(self, seconds: float) -> None:
        """Count processor time that this user's work took."""
        now = monotonic()
        if now - self._window_start > _WINDOW_SECONDS:
            self._window_start, self._spent = now, 0.0
        self._spent += seconds
        self.charged_seconds += seconds
        self.deficit -= seconds

    async def run(self, work: Coroutine[Any, Any, T], *, from_start: bool = True) -> T:
        """Run a coroutine, and charge what each of its steps takes, not what it waits for.

        Args:
            from_start: False if the first step is a part of work that is charged already.
        """
        return await self._run_steps(work, from_start)

    @types.coroutine
    def _run_steps(self, work: Coroutine[Any, Any, T], is_charged: bool) -> Generator[Any, Any, T]:
        resume: Callable[[Any], Any] = work.send
        value: Any = None
        while True:
            began = monotonic()
            try:
                waits_for = resume(value)
            except StopIteration as ended:
                result: T = ended.value
                return result
            finally:
                if is_charged:
                    self.charge(monotonic() - began)
            is_charged = True
            try:
                value = yield waits_for
                resume = work.send
            except BaseException as error:
                value, resume = error, work.throw

    async def in_thread(self, executor: Executor, work: Callable[..., T], *args: object) -> T:
        """Run work in one of the threads that this user may have, and charge the processor time that it takes there.

        The work of a caller that is cancelled goes on: the thread counts as this user's until it has ended.
        """
        loop = asyncio.get_running_loop()
        spent: list[float] = []

        def measured() -> T:
            began = thread_time()
            try:
                return work(*args)
            finally:
                spent.append(thread_time() - began)

        def ended() -> None:
            self._threads.release()
            self.charge(sum(spent))

        def report_end(_: Future[T]) -> None:
            with contextlib.suppress(RuntimeError):  # the event loop has ended before
                loop.call_soon_threadsafe(ended)

        await self._threads.acquire()
        try:
            running = executor.submit(measured)
        except BaseException:
            self._threads.release()
            raise
        running.add_done_callback(report_end)
        return await asyncio.wrap_future(running)

    def enqueue(self, work: Callable[[], None]) -> None:
        """Do work when this user's time has come. It charges what it takes."""
        self.queue.append(work)
        if not self.is_active:
            self._scheduler.activate(self)


class Scheduler:
    """Serves one queue of a user per iteration of the event loop."""

    def __init__(self) -> None:
        self._shares: WeakValueDictionary[Hashable, Share] = WeakValueDictionary()
        self._usages: WeakValueDictionary[Hashable, Usage] = WeakValueDictionary()
        self._active: deque[Share] = deque()
        self._scheduled = False
        self.large = asyncio.Semaphore(_LARGE_AT_ONCE)
        """Held while a view of many rows is read, because each takes memory."""

    def share(self, owner: Hashable) -> Share:
        """Return the share of a user, or of an address whose user is not known."""
        found = self._shares.get(owner)
        if found is None:
            found = self._shares[owner] = Share(self, owner)
        return found

    def usage_of(self, owner: Hashable) -> Usage:
        """Return what a user has of its limits; kept while the user is connected or has to wait."""
        found = self._usages.get(owner)
        if found is None:
            found = self._usages[owner] = Usage()
        return found

    def forgive_debts(self) -> None:
        """Read from all users again that are beyond a rate."""
        for usage in list(self._usages.values()):
            usage.forgive()

    @property
    def shares(self) -> list[Share]:
        """The shares of all users who are connected."""
        return list(self._shares.values())

    def begin(self, share: Share | None = None) -> TimeSlice:
        """Start the first slice of a request, which it does not have to wait for."""
        return TimeSlice(self, share or self.share(None))

    def activate(self, share: Share) -> None:
        """Serve the queue of a share from now on, until it is empty."""
        share.is_active = True
        share.deficit = min(share.deficit, 0.0)
        self._active.append(share)
        self._schedule()

    def _schedule(self) -> None:
        if self._active and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._serve)

    def _serve(self) -> None:
        """Serve the queue that is next, until its share is used up; the rest waits for its next round."""
        self._scheduled = False
        share = self._active.popleft()
        # Debts of a user are paid off by rounds in which it is passed over, not for longer than a few of them.
        share.deficit = max(share.deficit, -4 * _QUANTUM_SECONDS) + _QUANTUM_SECONDS
        try:
            while share.queue and share.deficit > 0:
                before = share.deficit
                share.queue.popleft()()
                if share.deficit == before:
                    break  # it goes on in a task, which charges its steps
        finally:  # whatever fails, the queues behind it are served
            if share.queue:
                self._active.append(share)
            else:
                share.is_active = False
            self._schedule()


class TimeSlice:
    """The slices of one request.

    Example::

        async for item in context.each(items):
            ...
    """

    __slots__ = ("_ends_at", "_scheduler", "_share")

    def __init__(self, scheduler: Scheduler, share: Share) -> None:
        self._scheduler = scheduler
        self._share = share
        self._ends_at = monotonic() + _SLICE_SECONDS

    @property
    def large(self) -> asyncio.Semaphore:
        return self._scheduler.large

    @property
    def is_over(self) -> bool:
        """Whether the slice is used up."""
        return monotonic() > self._ends_at

    async def next(self) -> None:
        """Wait for the next slice; others are served meanwhile."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._share.enqueue(partial(complete, future))
        await future
        self._ends_at = monotonic() + _SLICE_SECONDS

    def each(self, items: Iterable[T]) -> Each[T]:
        """Iterate over items, with a wait between slices: ``async for item in time_slice.each(items)``."""
        return Each(self, iter(items))


class Each(Generic[T]):
    """The items of an iterator, in slices."""

    __slots__ = ("_items", "_time_slice")

    def __init__(self, time_slice: TimeSlice, items: Iterator[T]) -> None:
        self._time_slice = time_slice
        self._items = items

    def __aiter__(self) -> Each[T]:
        return self

    async def __anext__(self) -> T:
        if self._time_slice.is_over:
            await self._time_slice.next()
        for item in self._items:
            return item
        raise StopAsyncIteration


def timed(work: Callable[..., T], *args: object) -> tuple[T, float]:
    """Return the result of work, and the processor time that it took in this thread."""
    began = thread_time()
    result = work(*args)
    return result, thread_time() - began
