# SPDX-License-Identifier: Apache-2.0
"""Connections for threads that look up single keys and wait: one request at a time over a socket of their own.

Through the cluster's event loop a lookup changes threads twice, which takes longer than its answer.
"""

from __future__ import annotations

import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from fluss.client.runner import Background
from fluss.errors import FlussError
from fluss.net.blocking_connection import BlockingConnection

T = TypeVar("T")

LOOKUPS_BEFORE = 16
"""Lookups that go through the queue before a connection is opened: a script with a few needs none."""
CONNECTIONS_MAX = 16
"""Threads that look up at the same time beyond this number share the queue."""


class BlockingConnections:
    """The connections of one client for lookups of threads that wait. May be used from any thread."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._cluster = background.cluster
        self._lock = threading.Lock()
        self._idle: dict[int, list[BlockingConnection]] = {}
        """By the id of the server."""
        self._connections: set[BlockingConnection] = set()
        self._opening = 0
        self._queued = 0
        """Lookups that went through the queue since a connection was last asked for."""
        self._closed = False
        config = self._cluster.config
        # The state of TLS belongs to the event loop, so such a socket cannot be handed over.
        self._queue_only = config.lookup_batch_timeout_ms > 0 or config.is_encrypted
        self._cluster.metrics.gauge("connections_open", self.open_count)

    def open_count(self) -> int:
        return len(self._connections)

    def take(self, node_id: int) -> BlockingConnection | None:
        """Return a connection to a server that no other thread uses; None if the queue has to be used."""
        thread = self._background.thread
        if self._queue_only or thread.closed or thread.in_loop_thread():
            return None
        with self._lock:
            idle = self._idle.get(node_id)
            if idle:
                return idle.pop()
            self._queued += 1
            if self._closed or self._queued < LOOKUPS_BEFORE:
                return None
            if len(self._connections) + self._opening >= CONNECTIONS_MAX:
                return None
            self._queued = 0
            self._opening += 1
        connection: BlockingConnection | None = None
        try:
            connection = self._background.run(self._open(node_id))
        except FlussError:
            return None  # the queue meets the same error, and reports it if it lasts
        finally:
            with self._lock:
                self._opening -= 1
                if connection is not None:
                    self._connections.add(connection)
        return connection

    async def _open(self, node_id: int) -> BlockingConnection:
        return await (await self._cluster.open_another(node_id)).hand_over()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the cluster's event loop and wait for it."""
        return self._background.run(coro)

    def give_back(self, node_id: int, connection: BlockingConnection) -> None:
        with self._lock:
            if self._closed:
                connection.close()
            if connection.closed:
                self._connections.discard(connection)
            else:
                self._idle.setdefault(node_id, []).append(connection)

    def close(self) -> None:
        """Close all connections; a lookup that waits fails, and so does the queue that it goes to."""
        if self._background.closed:
            return  # perhaps by a fork: the parent goes on using the sockets
        with self._lock:
            self._closed = True
            idle = [connection for connections in self._idle.values() for connection in connections]
            self._idle.clear()
            for connection in idle:
                connection.close()
                self._connections.discard(connection)
            for connection in self._connections:
                connection.interrupt()
