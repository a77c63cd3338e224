# SPDX-License-Identifier: Apache-2.0
"""How the synchronous API runs the asynchronous one.

The client lives on a loop in a thread of its own. A blocking call runs its coroutine there and waits. Two kinds of
calls need more: rows are taken from the caller's iterators in the caller's thread (a database cursor, for instance, may
be used in no other), and single lookups are sent by the caller's thread, because two changes of thread take longer than
a lookup.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING, Any, TypeVar

from fluss.client.lookup_sockets import BlockingConnections
from fluss.errors import ConnectionClosedError
from fluss.net.background import Bridge

if TYPE_CHECKING:
    from fluss.client.lookup import Lookuper
    from fluss.client.runner import Background

T = TypeVar("T")

_INTERRUPT_CHECK_S = 0.5

_Call = tuple["Future[Any]", Callable[[], Any]]
_caller: contextvars.ContextVar[queue.SimpleQueue[_Call | None] | None] = contextvars.ContextVar("caller", default=None)


async def offload(function: Callable[[], T]) -> T:
    """Run a function that takes time or blocks beside the loop: in the waiting caller's thread if there is one."""
    calls = _caller.get()
    if calls is None:
        return await asyncio.to_thread(function)
    done: Future[T] = Future()
    calls.put((done, function))
    return await asyncio.wrap_future(done)


class DatabaseBridge(Bridge):
    """Runs coroutines of the asynchronous API for callers that wait with their whole thread."""

    def __init__(self, background: Background) -> None:
        self.background = background
        self.submit = background.thread.submit
        self._lookup_connections = BlockingConnections(background)

    @property
    def closed(self) -> bool:
        return self.background.closed

    def _finish(self, coro: Coroutine[Any, Any, None]) -> None:
        self.background._finish(coro)

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and do meanwhile in this thread what it offloads."""
        thread = self.background.thread
        if thread.in_loop_thread():
            return thread.run(coro)  # which says why that cannot work
        calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()

        async def run() -> T:
            _caller.set(calls)
            return await coro

        try:
            result = thread.submit(run())
        except BaseException:
            coro.close()
            raise
        result.add_done_callback(lambda _: calls.put(None))
        try:
            while True:
                try:
                    # Not in one go: the system may hand Ctrl-C to any thread, and this one sees it between two waits.
                    call = calls.get(timeout=_INTERRUPT_CHECK_S)
                except queue.Empty:
                    continue
                if call is None:
                    break
                _answer(*call)
        except BaseException:
            result.cancel()
            raise
        try:
            return result.result()
        except CancelledError:
            if thread.closed:
                raise ConnectionClosedError("The connection was closed while the call was in flight") from None
            raise

    def lookup(self, lookuper: Lookuper, key: object) -> dict[str, Any] | None:
        """Look a key up, over a socket that this thread waits on where that is possible."""
        return lookuper.lookup_blocking(key, self._lookup_connections)

    def close(self) -> None:
        self._lookup_connections.close()
        self.background.close()


def _answer(done: Future[Any], function: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except Exception as error:
        done.set_exception(error)
    except BaseException as error:
        # An interrupt is for this thread; the coroutine hears of it by being cancelled.
        done.cancel()
        done.set_exception(ConnectionClosedError(f"interrupted: {type(error).__name__}"))
        raise
    else:
        done.set_result(result)
