# SPDX-License-Identifier: Apache-2.0
"""The seam between the two faces: where an operation of the client runs.

Classes whose waiting calls are all awaited (the admin, lookups) are the same in `fluss` and `fluss.aio`; they hold a
`Runner` and never ask which. `Direct` runs on the caller's own loop, `Background` on one in a thread of its own.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Protocol, TypeVar

from fluss.client.cluster import Cluster
from fluss.errors import FlussError
from fluss.net.background import LoopThread

T = TypeVar("T")

CLOSE_TIMEOUT_S = 10.0


class Runner(Protocol):
    """Runs operations on the loop that a cluster lives on."""

    @property
    def cluster(self) -> Cluster: ...

    async def run(self, op: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        """Run `op(cluster)` on the cluster's loop and give its result."""
        ...


class Direct:
    """For `fluss.aio`: the caller is already on the cluster's loop."""

    __slots__ = ("cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    async def run(self, op: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        return await op(self.cluster)


class Background:
    """The `Runner` of `fluss`: a cluster on a loop in a thread of its own."""

    def __init__(self, thread: LoopThread, cluster: Cluster) -> None:
        self.thread = thread
        self.cluster = cluster
        # A connection that is dropped without close(), or alive at interpreter exit, still ends its thread.
        self._finalizer = weakref.finalize(self, _shut_down, thread, cluster)

    async def run(self, op: Callable[[Cluster], Coroutine[Any, Any, T]]) -> T:
        return await self.thread.wrap(op(self.cluster))

    async def wrap(self, coro: Coroutine[Any, Any, T]) -> T:
        """Await a coroutine of the core on whatever loop the caller runs."""
        return await self.thread.wrap(coro)

    def block(self, coro: Coroutine[Any, Any, T], timeout: float | None = None) -> T:
        """Run a coroutine of the core and wait for it here."""
        return self.thread.run(coro, timeout)

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """Make a plain call of the core on its loop and wait for it here."""
        return self.thread.call(function, *arguments)

    def iterate(self, generator: AsyncGenerator[T, None]) -> Generator[T, None, None]:
        """Give the items of a generator of the core to a plain loop."""
        return self.thread.iterate(generator)

    def close(self) -> None:
        self._finalizer()


def _shut_down(thread: LoopThread, cluster: Cluster) -> None:
    if not thread.closed and not thread.in_loop_thread():
        # Whatever goes wrong while closing, the thread must end; what was pending has failed already.
        with contextlib.suppress(FlussError):
            thread.run(cluster.close(), CLOSE_TIMEOUT_S)
    thread.close()
