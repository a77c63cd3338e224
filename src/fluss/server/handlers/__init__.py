# SPDX-License-Identifier: Apache-2.0
"""What answers which API, and what it is given."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from google.protobuf.message import Message

from fluss.errors import AuthorizationError, FormatError, UnknownServerError
from fluss.protocol import wire
from fluss.protocol.apis import CREATE_TABLE, Api, api_name
from fluss.server.handlers.audited import AUDITED
from fluss.server.handlers.rights import RIGHTS

if TYPE_CHECKING:
    from fluss.server.server import Server
    from fluss.server.session import Session

Buffer = bytes | bytearray | memoryview
"""One part of an answer's body. Parts are sent as they lie, so they must not change after the handler returns."""


@dataclass(slots=True, eq=False)
class RequestContext:
    """Who asks what. Not to be changed; one is made for every request, and a frozen one takes four times as long."""

    server: Server
    session: Session
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
    """Decode a request body; bytes that are no such message are the client's fault, and said so.

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
    return await asyncio.get_running_loop().run_in_executor(context.server.executor, parse_message, api, body)


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


async def _refuse(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
    raise AuthorizationError(f"{api_name(context.api_key)} is refused: no access rule is defined for it.")


def register_all(registry: dict[int, Handler]) -> None:
    """Fill the registry; a module of handlers offers ``register(registry)``. An API without a right is refused."""
    from fluss.server.handlers import acl, admin, cluster, kv, lake, log, metadata, session

    for module in (session, log, kv, metadata, admin, acl, lake, cluster):
        module.register(registry)
    for key in registry.keys() - RIGHTS.keys():
        registry[key] = _refuse
