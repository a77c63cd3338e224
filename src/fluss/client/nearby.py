# SPDX-License-Identifier: Apache-2.0
"""Connections on the loops of callers.

A cluster lives on a loop of its own, and a call from another loop changes threads twice, which takes longer than a
lookup. A loop that asks often gets connections of its own: the cluster opens them (addresses, credentials and time
limits are its business) and gives them to the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections import Counter
from typing import TYPE_CHECKING

from fluss.errors import ConnectionClosedError, FlussError
from fluss.net.line import Line

if TYPE_CHECKING:
    from fluss.client.cluster import Cluster

ASKED_BEFORE = 16
"""How often a server is asked for on a loop before that loop gets a connection to it."""

_making = threading.Lock()


class LoopLines:
    """The connections of one loop, by the id of the server. All calls are made on that loop."""

    def __init__(self, nearby: Nearby) -> None:
        self._nearby = nearby
        self._lines: dict[int, Line] = {}
        self._asked: Counter[int] = Counter()
        self._closed = False
        _all_lines.add(self)

    def open_count(self) -> int:
        return sum(not line.closed for line in list(self._lines.values()))

    def line(self, node_id: int) -> Line | None:
        """The connection to a server; None if there is none (yet)."""
        line = self._lines.get(node_id)
        if line is not None and not line.closed:
            return line
        if not self._closed:
            self._asked[node_id] += 1
            if self._asked[node_id] == ASKED_BEFORE:
                self._nearby.open(self, node_id)
        return None

    def adopt(self, node_id: int, line: Line | None) -> None:
        """Take a connection that was opened for this loop; None if that did not work: it is tried again later."""
        self._asked[node_id] = 0
        if line is None:
            return
        if self._closed:
            line.drop()
            return
        try:
            line.watch()
        except NotImplementedError:  # not every loop of every system can watch a socket
            line.drop()
            self._closed = True
        else:
            self._lines[node_id] = line

    def close(self) -> None:
        self._closed = True
        for line in self._lines.values():
            line.close(ConnectionClosedError("The connection was closed before the lookup was answered"))
        self._lines.clear()

    def drop(self) -> None:
        """The same, from any thread, for a loop that runs no more."""
        self._closed = True
        for line in list(self._lines.values()):
            line.drop()
        self._lines.clear()


_all_lines: weakref.WeakSet[LoopLines] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """A child must not speak on the connections of its parent."""
    for lines in list(_all_lines):
        lines.drop()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


class Nearby:
    """The connections of one cluster on other loops."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopLines] = weakref.WeakKeyDictionary()
        self._opening: set[asyncio.Task[None]] = set()
        self._closed = False

    @staticmethod
    def of(cluster: Cluster) -> Nearby:
        """The one of this cluster. It ends with it."""
        with _making:
            if cluster.nearby is None:
                cluster.nearby = Nearby(cluster)
                cluster.attach_soon(cluster.nearby)
            return cluster.nearby

    def lines(self, loop: asyncio.AbstractEventLoop) -> LoopLines:
        """The connections of a loop. Called on it."""
        with self._lock:
            lines = self._by_loop.get(loop)
            if lines is None:
                lines = self._by_loop[loop] = LoopLines(self)
                self._cluster.metrics.gauge("connections_open", lines.open_count)
            return lines

    def open(self, lines: LoopLines, node_id: int) -> None:
        """Open a connection for the running loop, which goes on meanwhile."""
        loop = weakref.ref(asyncio.get_running_loop())
        with contextlib.suppress(RuntimeError):  # the cluster is closed
            self._cluster.loop.call_soon_threadsafe(self._start, lines, loop, node_id)

    # -- on the loop of the cluster -------------------------------------------------------------------------------

    def _start(self, lines: LoopLines, loop: weakref.ref[asyncio.AbstractEventLoop], node_id: int) -> None:
        if not self._closed:
            task = self._cluster.loop.create_task(self._open(lines, loop, node_id))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(self, lines: LoopLines, loop: weakref.ref[asyncio.AbstractEventLoop], node_id: int) -> None:
        line: Line | None = None
        try:
            connection = await self._cluster.open_another(node_id)
            line = await connection.hand_over()
        except FlussError:
            pass  # whoever asks meanwhile goes the long way, and hears of it there
        there = loop()
        try:
            if there is not None:
                there.call_soon_threadsafe(lines.adopt, node_id, line)
                return
        except RuntimeError:
            pass  # that loop is closed
        if line is not None:
            line.drop()

    async def drain(self) -> None:
        """Nothing is kept here."""

    async def shut(self) -> None:
        self._closed = True
        for task in list(self._opening):
            task.cancel()
        with self._lock:
            by_loop = list(self._by_loop.items())
        for loop, lines in by_loop:
            try:
                loop.call_soon_threadsafe(lines.close)
            except RuntimeError:
                lines.drop()
