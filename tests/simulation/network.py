# SPDX-License-Identifier: Apache-2.0
"""A virtual network: pairs of local sockets, with a wire between them that delays, cuts and resets."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from tests.simulation.loop import Process, SimLoop, current, run_in_network

_CHUNK_BYTES = 64 * 1024
_QUEUED_BYTES_MAX = 256 * 1024
_REFUSED_AFTER_S = 0.001

Accept = Callable[[socket.socket, str, str], None]


class SimListener:
    """Stands for a listening socket of the server."""

    def __init__(self, network: SimNetwork, name: str, accept: Accept) -> None:
        self.name = name
        self.host = "127.0.0.1"
        self.port = network.port
        self._network = network
        self._accept = accept
        self.address = f"{self.host}:{self.port}"

    def start(self) -> None:
        self._network.listener = self

    def close(self) -> None:
        if self._network.listener is self:
            self._network.listener = None

    def accept(self, sock: socket.socket, peer: str) -> None:
        self._accept(sock, self.name, peer)


class SimNetwork:
    """One server address and any number of connections to it."""

    port = 9123

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self.listener: SimListener | None = None
        self.accept_in: Callable[[Callable[[], None]], None] = lambda call: call()
        """Runs the server's half of an accept as part of the server's process."""
        self._cut = False
        self._held_back: list[Callable[[], None]] = []
        self.delay_s = 0.0002
        self.wires: list[Wire] = []
        self._connections = 0
        loop.connect = self.connect

    @property
    def cut(self) -> bool:
        """Nothing arrives while this is set; what is sent waits."""
        return self._cut

    @cut.setter
    def cut(self, cut: bool) -> None:
        self._cut = cut
        if not cut:
            held_back, self._held_back = self._held_back, []
            for call in held_back:
                self._loop.call_later(self._latency(), call)

    def after_cut(self, call: Callable[[], None]) -> None:
        """Call this when the network is whole again."""
        self._held_back.append(call)

    async def connect(self, host: str, port: int) -> socket.socket:
        await asyncio.sleep(self._latency())
        while self.cut:
            whole = self._loop.create_future()
            self.after_cut(lambda future=whole: None if future.done() else future.set_result(None))
            await whole
        listener = self.listener
        if listener is None:
            await asyncio.sleep(_REFUSED_AFTER_S)
            raise ConnectionRefusedError(111, "Connection refused")
        client, near = _pair()
        far, server = _pair()
        self._connections += 1
        peer = f"127.0.0.1:{30_000 + self._connections}"
        wire = run_in_network(Wire, self._loop, self, near, far)
        wire.client = current()
        self.wires.append(wire)
        self.accept_in(lambda: listener.accept(server, peer))
        return client

    def reset(self, share: float = 1.0) -> None:
        """Reset some of the connections, in the middle of whatever they carry."""
        for wire in list(self.wires):
            if self._loop.rng.random() < share:
                wire.close()

    def end(self, client: Process) -> None:
        """Close the connections of a process that was killed."""
        for wire in list(self.wires):
            if wire.client is client:
                wire.close()

    def _latency(self) -> float:
        return self._loop.rng.expovariate(1 / self.delay_s)

    def closed(self, wire: Wire) -> None:
        with suppress(ValueError):
            self.wires.remove(wire)


class Wire:
    """Both directions of one connection."""

    def __init__(self, loop: SimLoop, network: SimNetwork, near: socket.socket, far: socket.socket) -> None:
        self._network = network
        self.client: Process | None = None
        self._sockets = (near, far)
        self._directions = (_Direction(loop, network, self, near, far), _Direction(loop, network, self, far, near))

    def close(self) -> None:
        for direction in self._directions:
            direction.stop()
        for sock in self._sockets:
            sock.close()
        self._network.closed(self)


class _Direction:
    """Takes bytes from one socket and delivers them to the other, later and in order."""

    def __init__(
        self, loop: SimLoop, network: SimNetwork, wire: Wire, source: socket.socket, target: socket.socket
    ) -> None:
        self._loop = loop
        self._network = network
        self._wire = wire
        self._source = source
        self._target = target
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reading = True
        self._writing = False
        self._held_back = False
        self._ended = False
        self._stopped = False
        loop.add_reader(source.fileno(), self._readable)

    def _readable(self) -> None:
        try:
            data = self._source.recv(_CHUNK_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._wire.close()
            return
        if not data:
            self._ended = True
            self._pause()
        else:
            self._queue.append(data)
            self._queued_bytes += len(data)
            if self._queued_bytes > _QUEUED_BYTES_MAX:
                self._pause()
        self._deliver_later()

    def _deliver_later(self) -> None:
        if self._timer is None and not (self._writing or self._held_back or self._stopped):
            latency = self._loop.rng.expovariate(1 / self._network.delay_s)
            self._timer = self._loop.call_later(latency, self._deliver)

    def _deliver(self) -> None:
        self._timer = None
        self._held_back = False
        if self._stopped:
            return
        if self._network.cut:
            self._held_back = True
            self._network.after_cut(self._deliver)
            return
        while self._queue:
            data = self._queue.popleft()
            try:
                sent = self._target.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError:
                self._wire.close()
                return
            self._queued_bytes -= sent
            if sent < len(data):
                self._queue.appendleft(data[sent:])
                self._writing = True
                self._loop.add_writer(self._target.fileno(), self._writable)
                return
        if self._ended:
            self._wire.close()
        elif not self._reading:
            self._reading = True
            self._loop.add_reader(self._source.fileno(), self._readable)

    def _writable(self) -> None:
        self._writing = False
        self._loop.remove_writer(self._target.fileno())
        self._deliver()

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._source.fileno())

    def stop(self) -> None:
        if self._stopped:
            return
        self._stopped = True
        self._pause()
        if self._writing:
            self._loop.remove_writer(self._target.fileno())
        if self._timer is not None:
            self._timer.cancel()


def _pair() -> tuple[socket.socket, socket.socket]:
    first, second = socket.socketpair()
    first.setblocking(False)
    second.setblocking(False)
    return first, second
