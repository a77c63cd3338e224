# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy that misbehaves on command, in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import TracebackType

from fluss.net.background import LoopThread
from fluss.server.local import LocalServer


class FaultyProxy:
    """Stands between clients and a server. Frames towards the server are passed on whole, so they can be repeated."""

    def __init__(self) -> None:
        self._thread = LoopThread("faulty-proxy")
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target: tuple[str, int] | None = None
        self.delay_s = 0.0
        self.refuse = False
        self.duplicate = False
        self.cut_after_requests: int | None = None
        """Cut the connection right after that many more requests reached the server: their answers are lost."""
        self.reset = False
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    def __enter__(self) -> FaultyProxy:
        self._thread.run(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.run(self._stop())
        self._thread.close()

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, sock=self._listener)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self._cut()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Close every connection."""
        self._thread.run(self._cut_now())

    async def _cut_now(self) -> None:
        self._cut()

    def _cut(self) -> None:
        for writer in list(self._writers):
            if self.reset:
                linger = b"\x01\x00\x00\x00\x00\x00\x00\x00"
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        if self.refuse or self.target is None:
            writer.transport.abort()
            return
        server_reader, server_writer = await asyncio.open_connection(*self.target)
        self._writers |= {writer, server_writer}
        back = asyncio.ensure_future(self._pass_bytes(server_reader, writer))
        try:
            await self._pass_frames(reader, server_writer)
        finally:
            for end in (writer, server_writer):
                self._writers.discard(end)
                end.transport.abort()
            back.cancel()
            await asyncio.gather(back, return_exceptions=True)

    async def _pass_frames(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(int.from_bytes(head, "big"))
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                writer.write(frame)
                if self.duplicate:
                    writer.write(frame)
                await writer.drain()
                if self.cut_after_requests is not None:
                    self.cut_after_requests -= 1
                    if self.cut_after_requests <= 0:
                        self.cut_after_requests = None
                        await asyncio.sleep(0.02)  # let the server act on it; only the answer shall be lost
                        self._cut()
                        return

    async def _pass_bytes(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(64 * 1024):
                if self.cut_after_requests == 0:
                    return
                writer.write(data)
                await writer.drain()


class ProxiedServer:
    """An embedded server that tells its clients the proxy's address."""

    def __init__(self, proxy: FaultyProxy) -> None:
        self._server = LocalServer(
            options={
                "bind.listeners": "FLUSS://127.0.0.1:0",
                "advertised.listeners": f"FLUSS://127.0.0.1:{proxy.port}",
            }
        )
        self._proxy = proxy

    def __enter__(self) -> str:
        self._server.start()
        host, _, port = self._server.bootstrap_servers.rpartition(":")
        self._proxy.target = (host, int(port))
        return f"127.0.0.1:{self._proxy.port}"

    def __exit__(self, *_: object) -> None:
        self._server.stop()
