# SPDX-License-Identifier: Apache-2.0
"""What a handler is given, and how it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from fluss.errors import FormatError, UnknownServerError
from fluss.protocol import wire
from fluss.protocol.apis import CREATE_TABLE, Api
from fluss.protocol.fluss_pb2 import FetchLogRequest
from fluss.protocol.scram import ScramKeys, ScramServer
from fluss.server.auth import Principal
from fluss.server.catalog.acl import Caller
from fluss.server.handlers.audited import AUDITED
from fluss.server.services import Services

Buffer = bytes | bytearray | memoryview
"""One part of an answer's body. Parts are sent as they lie, so they must not change after the handler returns."""


class ClientSession(Caller, Protocol):
    """What a handler may do with the connection of a request."""

    peer: str
    sasl: bool
    login: tuple[ScramServer, ScramKeys] | None
    """A login whose last message has not come."""
    authenticated: bool
    failed_logins: int
    software: str
    """What the client says it is."""
    last_fetch: FetchLogRequest | None
    """What the client read last, and from where."""

    def authenticate(self, principal: Principal) -> None:
        """Take the client for this principal from now on."""

    def hold(self) -> None:
        """Start no further request of this connection until `release`."""

    def release(self) -> None:
        """Start requests of this connection again."""

    def close_soon(self) -> None:
        """Close the connection when the request in flight is answered."""

    def making_answer(self, bytes_max: int) -> AbstractAsyncContextManager[None]:
        """Make a large answer, one at a time and when there is room for so many bytes in memory."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """The caller of a request and what it may use.

    Not to be changed; one is made for every request, and a frozen one takes four times as long.
    """

    server: Services
    session: ClientSession
    api_key: int
    version: int
    request_id: int


AsyncHandler = Callable[[RequestContext, memoryview], Awaitable[Sequence[Buffer]]]
"""Answers with the parts of the response body; raises FlussError for an error of the whole request."""


class Reply(Protocol):
    """Takes the answer to one request, once."""

    def send(self, body: Sequence[Buffer]) -> None:
        """The parts of the response body."""

    def send_later(self, work: Awaitable[Sequence[Buffer]]) -> None:
        """What this work returns or raises; it is cancelled if the client goes away meanwhile."""

    def fail(self, error: Exception) -> None:
        """An error of the whole request."""


@dataclass(frozen=True)
class DirectHandler:
    """A handler that is told where the answer goes and answers when it can, without a task that waits for that."""

    begin: Callable[[RequestContext, memoryview, Reply], None]


Handler = AsyncHandler | DirectHandler

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Of requests without records. A parsed message takes up to twenty times the memory of its bytes."""

INLINE_MESSAGE_BYTES_MAX = 64 * 1024
"""Larger requests are parsed in a thread."""


def parse_message(api: Api[RequestT, Any], body: memoryview) -> RequestT:
    """Decode a request body; bytes that are no such message are the client's fault, and the error says that.

    The answer is -1 and not a code that clients retry: the same bytes will not parse next time either.
    """
    # The description of a table is one long text, which costs no more than its bytes; the catalog has its own limit.
    if len(body) > MESSAGE_BYTES_MAX and api.key != CREATE_TABLE.key:
        raise UnknownServerError(
            f"the {api.name} request has {len(body)} bytes, more than {MESSAGE_BYTES_MAX}. Ask for less at a time."
        )
    try:
        return wire.parse_message(api.request, body)
    except FormatError as error:
        raise UnknownServerError(f"the {api.name} request is malformed: {error.message}") from None


async def receive_message(context: RequestContext, api: Api[RequestT, Any], body: memoryview) -> RequestT:
    """Decode a request body, a large one in a thread: the texts of many small messages take long to check."""
    if len(body) <= INLINE_MESSAGE_BYTES_MAX:
        return parse_message(api, body)
    return await asyncio.get_running_loop().run_in_executor(context.server.codec, parse_message, api, body)


def proto_handler(
    api: Api[RequestT, ResponseT], answer: Callable[[RequestContext, RequestT], Awaitable[ResponseT]]
) -> AsyncHandler:
    """A handler from a coroutine over protobuf messages. Changes are written to the audit log once they are made."""
    describe = AUDITED.get(api.key)

    async def handle(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
        request = await receive_message(context, api, body)
        response = await answer(context, request)
        if describe is not None and (what := describe(request, response)):
            context.server.audit.changed(context.session, api.name, what)
        return (response.SerializeToString(),)

    return handle
