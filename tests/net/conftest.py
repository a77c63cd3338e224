# SPDX-License-Identifier: Apache-2.0
"""A small real server that speaks frames, with behaviour given by each test."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from fluss.protocol import frames
from fluss.protocol import messages as pb
from fluss.protocol.apis import API_VERSIONS, APIS
from fluss.protocol.frames import Request


class Session:
    """One connection, seen from the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.requests: list[Request] = []

    async def next_request(self) -> Request:
        length = int.from_bytes(await self.reader.readexactly(4), "big")
        request = frames.parse_request(memoryview(await self.reader.readexactly(length)))
        self.requests.append(request)
        return request

    def answer(self, request: Request, message: Any = b"") -> None:
        body = message if isinstance(message, bytes) else message.SerializeToString()
        self.writer.write(b"".join(frames.encode_response(request.request_id, [body])))

    def refuse(self, request: Request, code: int, text: str | None = None) -> None:
        self.writer.write(b"".join(frames.encode_error(request.request_id, code, text)))

    def name_versions(self, request: Request, server_type: int | None = None, **versions: tuple[int, int]) -> None:
        """Answer ApiVersions with all APIs, or with those given by name."""
        ranges = {api.key: (0, api.max_version) for api in APIS.values() if not versions or api.name in versions}
        ranges |= {api.key: versions[api.name] for api in APIS.values() if api.name in versions}
        entries = [pb.PbApiVersion(api_key=k, min_version=low, max_version=high) for k, (low, high) in ranges.items()]
        self.answer(request, pb.ApiVersionsResponse(api_versions=entries, server_type=server_type))

    async def shake_hands(self) -> None:
        request = await self.next_request()
        assert request.api_key == API_VERSIONS.key
        self.name_versions(request)


Behaviour = Callable[[Session], Awaitable[None]]


class Server:
    """Serves every connection with one behaviour; a failure of the behaviour fails the test."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.port = 0
        self.sessions: list[Session] = []
        self.connected = asyncio.Event()
        self.failures: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        session = Session(reader, writer)
        self.sessions.append(session)
        self.connected.set()
        try:
            await self.behaviour(session)
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass  # the client is gone, or the test is over
        except BaseException as error:
            self.failures.append(error)
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self._tasks.discard(task)

    async def stop(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving(behaviour: Behaviour) -> AsyncIterator[Server]:
    server = Server(behaviour)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()
        await server.stop()
        await listener.wait_closed()
    if server.failures:
        raise server.failures[0]


async def echo(session: Session) -> None:
    """Give each request back as its answer."""
    await session.shake_hands()
    while True:
        request = await session.next_request()
        session.answer(request, bytes(request.body))
