# SPDX-License-Identifier: Apache-2.0
"""Which coroutine answers which API, and what it is given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from google.protobuf.message import DecodeError, Message

from fluss.errors import FlussError, UnknownServerError
from fluss.protocol.apis import Api

if TYPE_CHECKING:
    from fluss.server.server import Server
    from fluss.server.session import Session

Buffer = bytes | bytearray | memoryview
"""One part of an answer's body. Parts are sent as they lie, so they must not change after the handler returns."""


@dataclass(frozen=True)
class RequestContext:
    """Who asks what."""

    server: Server
    session: Session
    api_key: int
    version: int
    request_id: int


Handler = Callable[[RequestContext, memoryview], Awaitable[Sequence[Buffer]]]
"""Answers with the parts of the response body; raises FlussError for an error of the whole request."""

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


def parse_message(api: Api[RequestT, Any], body: memoryview) -> RequestT:
    """Decode a request body; bytes that are no such message are the client's fault, and said so.

    The answer is -1 and not a code that clients retry: the same bytes will not parse next time either.
    """
    message = api.request()
    try:
        message.ParseFromString(bytes(body))
    except (DecodeError, ValueError) as error:
        raise UnknownServerError(f"the body of the {api.name} request is malformed: {error}") from None
    if not message.IsInitialized():
        missing: list[str] = message.FindInitializationErrors()  # type: ignore[attr-defined]
        raise UnknownServerError(f"the {api.name} request lacks the field(s) {', '.join(missing)}")
    return message


def proto_handler(
    api: Api[RequestT, ResponseT], answer: Callable[[RequestContext, RequestT], Awaitable[ResponseT]]
) -> Handler:
    """A handler from a coroutine over protobuf messages."""

    async def handle(context: RequestContext, body: memoryview) -> Sequence[Buffer]:
        request = parse_message(api, body)
        response = await answer(context, request)
        return (response.SerializeToString(),)

    return handle


def set_bucket_error(response: object, error: FlussError) -> None:
    """Put an error into a per-bucket answer; the fields stay absent on success."""
    response.error_code = error.error_code  # type: ignore[attr-defined]
    response.error_message = error.message  # type: ignore[attr-defined]


def register_all(registry: dict[int, Handler]) -> None:
    """Fill the registry; a module of handlers offers ``register(registry)``."""
    from fluss.server.handlers import acl, admin, cluster, kv, lake, log, metadata, session

    for module in (session, log, kv, metadata, admin, acl, lake, cluster):
        module.register(registry)
