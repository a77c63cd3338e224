# SPDX-License-Identifier: Apache-2.0
"""Connections on the loops of callers.

A cluster lives on a loop of its own, and a call from another loop changes threads twice, which takes longer than a
lookup. A loop that asks often gets connections of its own: the cluster opens them, because it has the addresses, the
credentials and the time limits, and gives them to the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable

from fluss.client.metrics import Metrics
from fluss.errors import ConnectionClosedError, FlussError
from fluss.net.connection import Connection
from fluss.net.loop_connection import LoopConnection

ASKED_BEFORE = 16
"""How often a server is asked for on a loop before that loop gets a connection to it."""


class LoopConnections:
    """The connections of one loop, by the id of the server. All calls are made on that loop."""

    def __init__(self, open_connection: Callable[[LoopConnections, int], None]) -> None:
        self._open = open_connection
        self._by_node: dict[int, LoopConnection] = {}
        self._asked: Counter[int] = Counter()
        self._closed = False
        _instances.add(self)

    def open_count(self) -> int:
        return sum(not connection.closed for connection in list(self._by_node.values()))

    def get(self, node_id: int) -> LoopConnection | None:
        """Return the connection to a server; None if there is none (yet)."""
        connection = self._by_node.get(node_id)
        if connection is not None and not connection.closed:
            return connection
        if not self._closed:
            self._asked[node_id] += 1
            if self._asked[node_id] == ASKED_BEFORE:
                self._open(self, node_id)
        return None

    def adopt(self, node_id: int, connection: LoopConnection | None) -> None:
        """Take a connection that was opened for this loop; None if that did not work: it is tried again later."""
        self._asked[node_id] = 0
        if connection is None:
            return
        if self._closed:
            connection.drop()
            return
        try:
            connection.watch()
        except NotImplementedError:  # not every loop of every system can watch a socket
            connection.drop()
            self._closed = True
        else:
            self._by_node[node_id] = connection

    def close(self) -> None:
        self._closed = True
        for connection in self._by_node.values():
            connection.close(ConnectionClosedError("The connection was closed before the lookup was answered"))
        self._by_node.clear()

    def drop(self) -> None:
        """Close from any thread, for a loop that no longer runs."""
        self._closed = True
        for connection in list(self._by_node.values()):
            connection.drop()
        self._by_node.clear()


_instances: weakref.WeakSet[LoopConnections] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A child must not use the connections of its parent."""
    for connections in list(_instances):
        connections.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class LoopConnectionRegistry:
    """The connections of one cluster on other loops, by loop.

    `open_connection` opens a connection to the server with a given id, on the loop of the cluster.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        open_connection: Callable[[int], Awaitable[Connection]],
        metrics: Metrics,
    ) -> None:
        self._cluster_loop = loop
        self._open_connection = open_connection
        self._metrics = metrics
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopConnections] = (
            weakref.WeakKeyDictionary()
        )
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False

    def of(self, loop: asyncio.AbstractEventLoop) -> LoopConnections:
        """Return the connections of a loop. Called on it."""
        with self._lock:
            connections = self._by_loop.get(loop)
            if connections is None:
                connections = self._by_loop[loop] = LoopConnections(self._open_soon)
                self._metrics.gauge("connections_open", connections.open_count)
            return connections

    def _open_soon(self, connections: LoopConnections, node_id: int) -> None:
        """Open a connection for the running loop, which goes on meanwhile."""
        loop = weakref.ref(asyncio.get_running_loop())
        with contextlib.suppress(RuntimeError):  # the cluster is closed
            self._cluster_loop.call_soon_threadsafe(self._start, connections, loop, node_id)

    # -- on the loop of the cluster -------------------------------------------------------------------------------

    def _start(self, connections: LoopConnections, loop: weakref.ref[asyncio.AbstractEventLoop], node_id: int) -> None:
        if not self._closed:
            task = self._cluster_loop.create_task(self._open(connections, loop, node_id))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(
        self, connections: LoopConnections, loop: weakref.ref[asyncio.AbstractEventLoop], node_id: int
    ) -> None:
        opened: LoopConnection | None = None
        with contextlib.suppress(FlussError):  # lookups go over the cluster's loop meanwhile, and meet the error there
            opened = await (await self._open_connection(node_id)).hand_over()
        there = loop()
        try:
            if there is not None:
                there.call_soon_threadsafe(connections.adopt, node_id, opened)
                return
        except RuntimeError:
            pass  # that loop is closed
        if opened is not None:
            opened.drop()

    def close(self) -> None:
        self._closed = True
        for task in list(self._opening):
            task.cancel()
        with self._lock:
            by_loop = list(self._by_loop.items())
        for loop, connections in by_loop:
            try:
                loop.call_soon_threadsafe(connections.close)
            except RuntimeError:
                connections.drop()
