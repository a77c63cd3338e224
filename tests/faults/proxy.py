# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy between client and server that cuts, delays, resets, stalls, truncates and repeats.

It knows frames, so that a fault can be aimed at one kind of request or answer (`on_request`, `on_response`), spread at
random from a seed (`Chaos`), or ordered at a moment of one's choice (`cut`, `stall`). It runs on a loop in a thread of
its own: clients of both faces can be driven through it, and blocked, without blocking it.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import random
import socket
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from fluss.net.background import LoopThread
from fluss.protocol.frames import encode_error, encode_response
from fluss.server.local import LocalServer

_RESET = struct.pack("ii", 1, 0)


class Fault(enum.Enum):
    """What becomes of a frame."""

    PASS = "pass"
    DROP = "drop"
    """It is swallowed; the connection stays."""
    REPEAT = "repeat"
    """It is passed on twice."""
    CUT = "cut"
    """The connection is closed instead."""
    RESET = "reset"
    """The connection is reset instead."""
    CUT_AFTER = "cut after"
    """It is passed on, and the connection is closed before anything comes back."""
    TRUNCATE = "truncate"
    """Half of it is passed on, then the connection is closed."""
    DELAY = "delay"
    """It is passed on late."""


@dataclass(frozen=True)
class Answer:
    """Answer a request with this, or put it in the place of the server's answer."""

    body: bytes | Message

    def frame(self, request_id: int) -> bytes:
        body = self.body if isinstance(self.body, bytes) else self.body.SerializeToString()
        return b"".join(bytes(part) for part in encode_response(request_id, [body]))


@dataclass(frozen=True)
class Refusal:
    """Answer a request with an error."""

    code: int
    message: str = "refused by the proxy"

    def frame(self, request_id: int) -> bytes:
        return b"".join(bytes(part) for part in encode_error(request_id, self.code, self.message))


Verdict = Fault | Answer | Refusal | None
Judge = Callable[[int, memoryview], Verdict]
"""API key and body to what shall happen; None passes it on."""


class Chaos:
    """Faults by chance, the same for the same seed and the same course of events."""

    def __init__(self, seed: int, rates: Mapping[Fault, float]) -> None:
        self._random = random.Random(seed)
        self._rates = dict(rates)
        self.count = 0

    def __call__(self, api_key: int, body: memoryview) -> Fault:
        dice = self._random.random()
        for fault, rate in self._rates.items():
            if dice < rate:
                self.count += 1
                return fault
            dice -= rate
        return Fault.PASS


def times(count: int, verdict: Verdict, *api_keys: int) -> Judge:
    """A judge that gives its verdict on the next `count` frames of these APIs, and passes everything else."""
    left = count

    def judge(api_key: int, body: memoryview) -> Verdict:
        nonlocal left
        if left and api_key in api_keys:
            left -= 1
            return verdict
        return None

    return judge


class FaultProxy:
    """Stands between clients and a server. The faults are attributes and can be changed at any time."""

    def __init__(self) -> None:
        self._thread = LoopThread("fault-proxy")
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.target: tuple[str, int] | None = None
        self.delay_s = 0.0
        self.refuse = False
        self.on_request: Judge | None = None
        self.on_response: Judge | None = None
        self.requests: list[int] = []
        """The API keys of all requests so far."""
        self._flowing = asyncio.Event()
        self._links: set[_Link] = set()
        self._server: asyncio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._links)

    def __enter__(self) -> FaultProxy:
        self._thread.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.run(self._stop())
        self._thread.close()

    def calm(self) -> None:
        """No more faults."""
        self.delay_s, self.refuse, self.on_request, self.on_response = 0.0, False, None, None
        self.resume()

    def cut(self, *, reset: bool = False) -> None:
        """Close (or reset) every connection now."""

        async def cut() -> None:
            for link in list(self._links):
                link.close(reset=reset)

        self._thread.run(cut())

    def stall(self) -> None:
        """Pass nothing on, in either direction, until `resume`; the connections stay open."""
        self._thread.loop.call_soon_threadsafe(self._flowing.clear)

    def resume(self) -> None:
        self._thread.loop.call_soon_threadsafe(self._flowing.set)

    async def flow(self) -> None:
        await self._flowing.wait()

    async def _start(self) -> None:
        self._flowing.set()
        self._server = await asyncio.start_server(self._accept, sock=self._listener)

    async def _stop(self) -> None:
        assert self._server is not None
        self._server.close()
        links = list(self._links)
        for link in links:
            link.close()
        await asyncio.gather(*(link.ended.wait() for link in links))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuse or self.target is None:
            writer.transport.abort()
            return
        try:
            server = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Link:
    """One connection of a client and its counterpart to the server."""

    def __init__(self, proxy: FaultProxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._client_reader, self._client = client
        self._server_reader, self._server = server
        self._asked: dict[int, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._deaf = False
        self.ended = asyncio.Event()

    async def run(self) -> None:
        self._tasks = [asyncio.ensure_future(self._requests()), asyncio.ensure_future(self._responses())]
        try:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.close()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self.ended.set()

    def close(self, *, reset: bool = False) -> None:
        for end in (self._client, self._server):
            if reset:
                with contextlib.suppress(OSError):
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            end.transport.abort()
        for task in self._tasks:
            task.cancel()

    async def _requests(self) -> None:
        async for frame in self._frames(self._client_reader):
            api_key, _, request_id = struct.unpack_from(">hhi", frame, 4)
            self._proxy.requests.append(api_key)
            self._asked[request_id] = api_key
            verdict = self._judge(self._proxy.on_request, api_key, frame, 12)
            if isinstance(verdict, (Answer, Refusal)):
                self._client.write(verdict.frame(request_id))
            elif not await self._obey(verdict, frame, self._server):
                return

    async def _responses(self) -> None:
        async for frame in self._frames(self._server_reader):
            if self._deaf:
                continue
            _, request_id = struct.unpack_from(">bi", frame, 4)
            verdict = self._judge(self._proxy.on_response, self._asked.get(request_id, -1), frame, 9)
            if isinstance(verdict, (Answer, Refusal)):
                self._client.write(verdict.frame(request_id))
            elif not await self._obey(verdict, frame, self._client):
                return

    @staticmethod
    def _judge(judge: Judge | None, api_key: int, frame: bytes, body_at: int) -> Any:
        return (judge(api_key, memoryview(frame)[body_at:]) if judge is not None else None) or Fault.PASS

    async def _frames(self, reader: asyncio.StreamReader) -> Any:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(int.from_bytes(head, "big"))
                await self._proxy.flow()
                if self._proxy.delay_s:
                    await asyncio.sleep(self._proxy.delay_s)
                yield frame

    async def _obey(self, fault: Fault, frame: bytes, to: asyncio.StreamWriter) -> bool:
        """Do to the frame what was decided; False when that is the end of the connection."""
        with contextlib.suppress(ConnectionError):
            if fault is Fault.DELAY:
                await asyncio.sleep(0.05)
            if fault in (Fault.PASS, Fault.DELAY, Fault.REPEAT, Fault.CUT_AFTER):
                to.write(frame)
            if fault is Fault.REPEAT:
                to.write(frame)
            if fault is Fault.TRUNCATE:
                to.write(frame[: max(1, len(frame) // 2)])
            await to.drain()
        if fault is Fault.CUT_AFTER:
            self._deaf = True
            await asyncio.sleep(0.02)  # the other side acts on it; only what it says is lost
        if fault in (Fault.CUT, Fault.RESET, Fault.CUT_AFTER, Fault.TRUNCATE):
            self.close(reset=fault is Fault.RESET)
            return False
        return True


class ProxiedServer:
    """An embedded server that tells its clients the proxy's address. It can be killed and started again."""

    def __init__(self, proxy: FaultProxy, **options: object) -> None:
        self._proxy = proxy
        self._server = LocalServer(
            options={
                "bind.listeners": "FLUSS://127.0.0.1:0",
                "advertised.listeners": f"FLUSS://{proxy.address}",
                **options,
            }
        )

    def start(self) -> None:
        self._server.start()
        host, _, port = self._server.bootstrap_servers.rpartition(":")
        self._proxy.target = (host, int(port))

    def kill(self) -> None:
        """As `kill -9` does."""
        self._server.crash()

    def __enter__(self) -> ProxiedServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()
