# SPDX-License-Identifier: Apache-2.0
"""The bridge from blocking code to an event loop: one in a thread of its own, in that of the caller, or of another.

The blocking face of the client, its readers, and the sessions of lake and Spark all wait through it. Its verbs:
`run` (a coroutine), `call` (a plain function) and `iterate` (an asynchronous generator).
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import math
import os
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, TypeVar

from fluss.errors import ConnectionClosedError, DeadlineExceededError, InvalidArgumentError

T = TypeVar("T")

FORKED = (
    "This connection was made before the process forked and works only in the parent; open one in the child: call "
    "fluss.connect() there, or start workers with 'spawn'"
)


_CLOSE_TIMEOUT_S = 5.0
_INTERRUPT_CHECK_S = 0.5


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread; None if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Bridge(ABC):
    """Carries out work on an event loop for a caller that waits for it."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the loop takes no more work."""

    @abstractmethod
    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a plain function on the loop and wait for its result."""

        async def run() -> T:
            return function(*arguments)

        return self.run(run())

    def iterate(self, generator: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Give the items of an asynchronous generator to a plain loop, one at a time as they are asked for."""
        end = object()

        async def step() -> Any:
            return await anext(generator, end)

        async def stop() -> None:
            await generator.aclose()

        try:
            while (item := self.run(step())) is not end:
                yield item
        finally:
            if not self.closed:
                self._finish(stop())

    def _finish(self, coro: Coroutine[Any, Any, None]) -> None:
        """Run the end of an iteration, which the garbage collector may call for in any thread."""
        self.run(coro)


class RunningLoop(Bridge):
    """A loop that another thread runs, and that is not ours to stop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    @property
    def closed(self) -> bool:
        return self._loop.is_closed()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(coro, self._loop)
        while True:
            # In steps: a loop that ends does not come to calls that it did not begin.
            done, _ = concurrent.futures.wait((future,), _INTERRUPT_CHECK_S)
            if done:
                return future.result()
            if self._loop.is_closed():
                coro.close()
                raise ConnectionClosedError("The event loop was closed while the call was in flight")

    def _finish(self, coro: Coroutine[Any, Any, None]) -> None:
        # Without waiting: an iterator that is dropped on the loop itself would wait for itself.
        asyncio.run_coroutine_threadsafe(coro, self._loop)


class _BlockingCall:
    """A coroutine on the loop and a thread that waits for it.

    Does what `asyncio.run_coroutine_threadsafe` does in about half the time: a bare lock wakes the waiting thread.
    """

    __slots__ = ("_abandoned", "_calls", "_coro", "_done", "task")

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self.task: asyncio.Task[Any] | None = None
        self._coro = coro
        self._calls: set[_BlockingCall] = set()
        self._abandoned = False
        self._done = threading.Lock()
        self._done.acquire()

    def start(self, loop: asyncio.AbstractEventLoop, calls: set[_BlockingCall]) -> None:
        if self._abandoned:
            self._coro.close()
            return
        self._calls = calls
        calls.add(self)
        self.task = loop.create_task(self._coro)
        self.task.add_done_callback(self._finished)

    def wait(self, timeout: float | None) -> bool:
        # In steps: the system may deliver Ctrl-C to any thread, and this one then sees it with its next step only.
        left = math.inf if timeout is None else max(timeout, 0.0)
        while left > _INTERRUPT_CHECK_S:
            if self._done.acquire(timeout=_INTERRUPT_CHECK_S):
                return True
            left -= _INTERRUPT_CHECK_S
        return self._done.acquire(timeout=left)

    def abandon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._abandoned = True
        with contextlib.suppress(RuntimeError):  # the loop is closed, and everything on it cancelled
            loop.call_soon_threadsafe(self._cancel)

    def release(self) -> None:
        self.task = None
        self._done.release()

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
        else:
            self._coro.close()

    def _finished(self, task: asyncio.Task[Any]) -> None:
        self._calls.discard(self)
        if self._abandoned and not task.cancelled():
            task.exception()  # the caller is gone; asyncio would complain about an exception that is never retrieved
        self._done.release()


class LoopThread(Bridge):
    """Runs coroutines on a background event loop. The thread starts with the first coroutine.

    The thread is a daemon and is stopped at interpreter exit. After `fork` the child has no such thread: every use in
    the child fails with an error that says so, instead of waiting forever.
    """

    def __init__(self, name: str = "fluss-io") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._blocking_calls: set[_BlockingCall] = set()
        self._closed = False
        self._forked = False
        _instances.add(self)

    def __repr__(self) -> str:
        state = "closed" if self._closed else "not started" if self._loop is None else "running"
        return f"<LoopThread {self._name!r}, {state}>"

    @property
    def closed(self) -> bool:
        return self._closed or self._forked

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The background loop; started if need be."""
        with self._lock:
            return self._running_loop()

    def in_loop_thread(self) -> bool:
        """Whether the caller already runs on the background thread."""
        return self._thread is threading.current_thread()

    def submit(self, coro: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Start a coroutine and return at once."""
        try:
            # Under the lock: what is submitted before `close` is cancelled by it, what comes later is refused.
            with self._lock:
                return asyncio.run_coroutine_threadsafe(coro, self._running_loop())
        except BaseException:
            coro.close()  # or Python warns that it was never awaited
            raise

    def run(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine and wait for its result; `timeout` is in seconds.

        When the wait ends early, by the timeout or by an interrupt, the coroutine is cancelled.
        """
        if self.in_loop_thread():
            coro.close()
            raise InvalidArgumentError(
                "A blocking call was made on the thread that has to carry it out and would never return; "
                "use the asynchronous form here"
            )
        call = _BlockingCall(coro)
        loop: asyncio.AbstractEventLoop | None = None
        try:
            with self._lock:
                loop = self._running_loop()
                loop.call_soon_threadsafe(call.start, loop, self._blocking_calls)
            finished = call.wait(timeout)
        except BaseException:
            # An interrupt may come at any moment, also between the two.
            if loop is None:
                coro.close()
            else:
                call.abandon(loop)
            raise
        if not finished:
            call.abandon(loop)
            raise DeadlineExceededError(f"The call did not finish within {timeout:g} s")
        task = call.task
        if task is None or task.cancelled():
            if self.closed:
                raise ConnectionClosedError("The connection was closed while the call was in flight")
            raise concurrent.futures.CancelledError
        result: T = task.result()
        return result

    def _finish(self, coro: Coroutine[Any, Any, None]) -> None:
        if self.in_loop_thread():
            self.submit(coro)  # an iterator that is dropped on the loop itself would wait for itself
        else:
            self.run(coro)

    async def wrap(self, coro: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine that runs on the background loop, from any event loop. Cancelling reaches the coroutine."""
        if self.in_loop_thread():
            return await coro
        return await asyncio.wrap_future(self.submit(coro))

    def close(self) -> None:
        """Cancel everything, stop the loop and wait for the thread. Closing twice is fine."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            loop, thread = self._loop, self._thread
        if loop is None or thread is None or self._forked:
            return
        with contextlib.suppress(RuntimeError):  # the loop is already gone
            loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(_CLOSE_TIMEOUT_S)

    def __enter__(self) -> LoopThread:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._forked:
            raise ConnectionClosedError(FORKED)
        if self._closed:
            raise ConnectionClosedError("The connection is closed; open a new one")
        if self._loop is None:
            loop = asyncio.new_event_loop()
            thread = threading.Thread(target=self._run_loop, args=(loop,), name=self._name, daemon=True)
            thread.start()
            self._loop, self._thread = loop, thread
        return self._loop

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            try:
                _shut_down(loop)
            finally:
                asyncio.set_event_loop(None)
                loop.close()
                for call in list(self._blocking_calls):
                    call.release()  # its task would not end; its caller must not wait for it

    def _after_fork_in_child(self) -> None:
        if self._loop is not None:
            self._forked = True
            # The selector is shared with the parent: were the loop collected here, closing it would disturb the parent.
            _loops_of_parent.append(self._loop)
        self._lock = threading.Lock()  # another thread of the parent may have held it


class CallerLoop(asyncio.SelectorEventLoop, Bridge):
    """A loop that runs in the thread of its caller, and only while that waits for something.

    Its clock stands still with it: no deadline of a request passes while the caller is busy with what it got.
    """

    def __init__(self) -> None:
        self._stood_s = 0.0
        self._left_at = time.monotonic()
        super().__init__()
        _caller_loops.add(self)

    def time(self) -> float:
        return time.monotonic() - self._stood_s

    @property
    def closed(self) -> bool:
        return self.is_closed()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result."""
        self._stood_s += time.monotonic() - self._left_at
        try:
            return self.run_until_complete(coro)
        finally:
            self._left_at = time.monotonic()

    def close(self) -> None:
        """Cancel everything and end. Closing twice is fine."""
        if not self.closed:
            _shut_down(self)
            super().close()


def _shut_down(loop: asyncio.AbstractEventLoop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_CLOSE_TIMEOUT_S))
    loop.run_until_complete(loop.shutdown_asyncgens())


_instances: weakref.WeakSet[LoopThread] = weakref.WeakSet()
_caller_loops: weakref.WeakSet[CallerLoop] = weakref.WeakSet()
_loops_of_parent: list[asyncio.AbstractEventLoop] = []


def _after_fork_in_child() -> None:
    for instance in list(_instances):
        instance._after_fork_in_child()
    _loops_of_parent.extend(_caller_loops)  # for the same reason; whose they are must not use them any more


def _close_all() -> None:
    for instance in list(_instances):
        instance.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_close_all)
