# SPDX-License-Identifier: Apache-2.0
"""What a handler is given, and how it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from google.protobuf.message import Message

from fluss.errors import (
    FlussError,
    FormatError,
    InvalidBucketRoutingError,
    UnknownServerError,
    UnknownTableOrBucketError,
)
from fluss.metadata import TableBucket
from fluss.protocol import apis, wire
from fluss.protocol.apis import Api
from fluss.protocol.record_messages import BUCKETS_PER_REQUEST_MAX
from fluss.protocol.scram import ScramKeys, ScramServer
from fluss.server.audit import AUDITED
from fluss.server.auth import ANONYMOUS, Principal
from fluss.server.catalog.acl import Caller
from fluss.server.catalog.entries import PartitionEntry, TableEntry
from fluss.server.scheduler import Each, Share, TimeSlice
from fluss.server.services import Services

T = TypeVar("T")

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
    last_fetch: Sequence[tuple[TableBucket, int]]
    """Some of the buckets that the client fetched last, and from which offset."""

    @property
    def share(self) -> Share:
        """The processor time of the user."""

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

    def begin_slice(self) -> TimeSlice:
        """Begin a slice of the processor time of the caller."""
        return self.server.scheduler.begin(self.session.share)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work at the expense of the caller, which continues whether or not the caller waits for it."""
        self.server.spawn(self.session.share.run(work))

    def each(self, items: Iterable[T]) -> Each[T]:
        """Iterate over items in slices: ``async for item in context.each(items)``. Others are served in between."""
        return self.begin_slice().each(items)

    def count_bytes_in(self, entry: TableEntry, size_bytes: int) -> None:
        """Count bytes that the request writes to a table."""
        metrics = self.server.metrics
        metrics.add("tabletserver_table_bytesIn_total", size_bytes, entry.labels)
        metrics.add("tabletserver_bytesIn_total", size_bytes)
        principal = self.session.principal
        if principal is not ANONYMOUS:
            metrics.add("tabletserver_user_bytesIn", size_bytes, (("user", principal.name), *entry.labels))

    def count_bytes_out(self, entry: TableEntry, size_bytes: int) -> None:
        """Count bytes that the request reads from a table."""
        metrics = self.server.metrics
        metrics.add("tabletserver_table_bytesOut_total", size_bytes, entry.labels)
        principal = self.session.principal
        if principal is not ANONYMOUS:
            metrics.add("tabletserver_user_bytesOut", size_bytes, (("user", principal.name), *entry.labels))

    def count_messages_in(self, entry: TableEntry, messages: int) -> None:
        """Count records that the request has written to a table."""
        entry.counters.messages_in += messages
        self.server.metrics.add("tabletserver_messagesIn_total", messages)


def bucket_of(
    context: RequestContext, table_id: int, partition_id: int | None, bucket_id: int, routing_count: int | None
) -> TableBucket:
    """Return the bucket that a request names; refuse one that was chosen by a wrong number of buckets.

    `routing_count` is the number by which the client chose it; older clients do not send theirs, so it is 0 or None.
    """
    try:
        bucket = TableBucket(table_id, bucket_id, partition_id)
    except FlussError as error:
        raise UnknownTableOrBucketError(error.message) from None
    if partition_id is not None:
        found = context.server.catalog.partition_by_id(partition_id)
        if found is not None:
            _check_routing(bucket, *found, routing_count)
    return bucket


def _check_routing(
    bucket: TableBucket, entry: TableEntry, partition: PartitionEntry, routing_count: int | None
) -> None:
    count = entry.bucket_count_of(partition)
    if routing_count == count or (not routing_count and not entry.table_info.bucket_count_epoch):
        return
    chosen = str(routing_count or "an unknown number of")
    raise InvalidBucketRoutingError(
        f"{bucket} of table '{entry.table_path}' was chosen by {chosen} buckets, but its partition has {count}. "
        "Refresh the metadata; a client that sends no number is too old for this table."
    )


AsyncHandler = Callable[[RequestContext, memoryview], Coroutine[Any, Any, Sequence[Buffer]]]
"""Answers with the parts of the response body; raises FlussError for an error of the whole request."""


class Reply(Protocol):
    """Takes the answer to one request, once."""

    def send(self, body: Sequence[Buffer]) -> None:
        """The parts of the response body."""

    def send_later(self, work: Coroutine[Any, Any, Sequence[Buffer]]) -> None:
        """What this work returns or raises; it is cancelled if the client goes away meanwhile."""

    def fail(self, error: Exception) -> None:
        """An error of the whole request."""


@dataclass(frozen=True)
class DirectHandler:
    """A handler that is given where the answer goes and answers when it can, without a task that waits for that."""

    begin: Callable[[RequestContext, memoryview, Reply], None]


Handler = AsyncHandler | DirectHandler

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Of requests without records. A parsed message takes up to twenty times the memory of its bytes."""

ITEMS_MAX = 1_000
"""The most elements of repeated fields that one request may have, nested ones included."""

_ABOUT_BUCKETS = frozenset(
    api.key
    for api in (
        apis.GET_METADATA, apis.INIT_WRITER, apis.PRODUCE_LOG, apis.FETCH_LOG, apis.LIST_OFFSETS,
        apis.PUT_KV, apis.LOOKUP, apis.PREFIX_LOOKUP,
        apis.GET_TABLE_STATS, apis.COMMIT_LAKE_TABLE_SNAPSHOT, apis.PREPARE_LAKE_TABLE_SNAPSHOT,
        apis.REGISTER_PRODUCER_OFFSETS, apis.ACQUIRE_KV_SNAPSHOT_LEASE, apis.RELEASE_KV_SNAPSHOT_LEASE,
    )
)  # fmt: skip
"""Requests of which one may be about many tables or buckets: their handlers work in slices."""

INLINE_MESSAGE_BYTES_MAX = 64 * 1024
"""Larger requests are parsed in a thread."""


def parse_message(api: Api[RequestT, Any], body: memoryview) -> RequestT:
    """Decode a request body; bytes that are no such message are the client's fault, and the error says that.

    The answer is -1 and not a code that clients retry: the same bytes will not parse next time either.
    """
    if len(body) > MESSAGE_BYTES_MAX:
        raise UnknownServerError(
            f"the {api.name} request has {len(body)} bytes, more than {MESSAGE_BYTES_MAX}. Ask for less at a time."
        )
    try:
        return wire.parse_message(api.request, body, items_max=items_max(api))
    except FormatError as error:
        raise UnknownServerError(f"the {api.name} request is malformed: {error.message}") from None


def items_max(api: Api[Any, Any]) -> int:
    """Return how many elements of repeated fields a request of this API may have."""
    return BUCKETS_PER_REQUEST_MAX if api.key in _ABOUT_BUCKETS else ITEMS_MAX


async def receive_message(context: RequestContext, api: Api[RequestT, Any], body: memoryview) -> RequestT:
    """Decode a request body, a large one in a thread: the texts of many small messages take long to check."""
    if len(body) <= INLINE_MESSAGE_BYTES_MAX:
        return parse_message(api, body)
    return await in_codec_thread(context, parse_message, api, body)


async def in_codec_thread(context: RequestContext, work: Callable[..., T], *args: object) -> T:
    """Run work that only computes, and may take longer than a slice, while the event loop serves others."""
    return await context.session.share.in_thread(context.server.codec, work, *args)


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
