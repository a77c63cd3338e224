# SPDX-License-Identifier: Apache-2.0
"""The seam between the two faces: where an operation of the client runs.

Classes whose waiting calls are all awaited (the admin, lookups) are the same in `fluss` and `fluss.aio`; they hold a
`Runner` and never ask which. `Direct` runs on the caller's own loop, `Background` on one in a thread of its own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from fluss.client.cluster import Cluster
from fluss.errors import FlussError
from fluss.net.background import Bridge, LoopThread

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0


class Runner(Protocol):
    """Runs operations on the loop that a cluster lives on."""

    @property
    def cluster(self) -> Cluster: ...

    async def ask(self, op: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Run `op(cluster)` on the cluster's loop and give its result."""
        ...


class Direct:
    """For `fluss.aio`: the caller is already on the cluster's loop."""

    __slots__ = ("cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def ask(self, op: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        return await op(self.cluster)


class Background(Bridge):
    """The `Runner` of `fluss`: a cluster on a loop in a thread of its own."""

    def __init__(self, thread: LoopThread, cluster: Cluster) -> None:
        self.thread = thread
        self.cluster = cluster
        # A connection that is dropped without close(), or alive at interpreter exit, still ends its thread.
        self._finalizer = weakref.finalize(self, _shut_down, thread, cluster)

    async def ask(self, op: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        return await self.thread.wrap(op(self.cluster))

    async def wrap(self, coro: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine of the core on whatever loop the caller runs."""
        return await self.thread.wrap(coro)

    @property
    def closed(self) -> bool:
        return self.thread.closed

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        return self.thread.run(coro)

    def _finish(self, coro: Coroutine[Any, Any, None]) -> None:
        self.thread._finish(coro)

    def close(self) -> None:
        self._finalizer()


def _shut_down(thread: LoopThread, cluster: Cluster) -> None:
    if thread.in_loop_thread() and not thread.closed:
        # The garbage collector ran there: that thread cannot wait for itself.
        thread.submit(cluster.close()).add_done_callback(lambda _: thread.close())
        return
    try:
        if not thread.closed:
            # Whatever goes wrong while closing, the thread must end; what was pending has failed already.
            with contextlib.suppress(FlussError):
                thread.run(cluster.close(), CLOSE_TIMEOUT_S)
    finally:
        thread.close()
