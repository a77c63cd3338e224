# SPDX-License-Identifier: Apache-2.0
"""How keys are sent to a server, and what comes back: lookups, lookups that insert, lookups by prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fluss.errors import FlussError, FormatError, error_for_code
from fluss.metadata import TableBucket
from fluss.net.connection import Waiter
from fluss.protocol import Api, apis
from fluss.protocol import messages as pb
from fluss.protocol.frames import Buffer
from fluss.protocol.lookup_messages import decode_lookup_response, encode_lookup
from fluss.protocol.wire import parse_message

Found = tuple[TableBucket, "FlussError | None", Sequence[Any]]
"""A bucket's part of an answer: an error, or one result per key in the order of the keys."""


OnAnswer = Callable[["list[Found] | FlussError"], None]
"""Takes the outcome of a request."""


class Link(Protocol):
    """An open connection to a server."""

    def begin(self, api: Api[Any, Any], body: Sequence[Buffer], waiter: Waiter) -> None: ...


class Wire(Protocol):
    """How keys are sent: the difference between lookup and prefix lookup."""

    def ask(self, link: Link, table_id: int, keys: Mapping[TableBucket, list[bytes]], on_answer: OnAnswer) -> None:
        """Ask a server; `on_answer` takes the answer, later and on the loop of the link."""
        ...


class _LookupReply:
    """Decodes an answer where it arrives: a task that waits for it would take two more iterations of the loop."""

    __slots__ = ("_decode", "_on_answer", "_table_id")

    def __init__(self, decode: Callable[[int, memoryview], list[Found]], table_id: int, on_answer: OnAnswer) -> None:
        self._decode = decode
        self._table_id = table_id
        self._on_answer = on_answer

    def done(self) -> bool:
        return False

    def set_result(self, answer: memoryview, /) -> None:
        try:
            found = self._decode(self._table_id, answer)
        except FlussError as error:
            self._on_answer(error)
        else:
            self._on_answer(found)

    def set_exception(self, error: FlussError, /) -> None:
        self._on_answer(error)


def values_of(answer: Iterable[Found], bucket: TableBucket, count: int) -> Sequence[Any]:
    """Return the results of the one bucket that was asked for; raise its error, or refuse a wrong answer."""
    for answered, error, values in answer:
        if answered == bucket:
            if error is not None:
                raise error
            if len(values) != count:
                raise FormatError(f"The server answered {len(values)} results for {count} keys of {bucket}")
            return values
    raise FormatError(f"The server said nothing about {bucket}")


class LookupWire:
    """Primary keys; the result of a key is its stored value or None."""

    def ask(self, link: Link, table_id: int, keys: Mapping[TableBucket, list[bytes]], on_answer: OnAnswer) -> None:
        link.begin(apis.LOOKUP, [self.encode(table_id, keys)], _LookupReply(self.decode, table_id, on_answer))

    def encode(self, table_id: int, keys: Mapping[TableBucket, list[bytes]]) -> bytes:
        return encode_lookup(table_id, [(b.partition_id, b.bucket_id, wanted) for b, wanted in keys.items()])

    @staticmethod
    def decode(table_id: int, answer: memoryview) -> list[Found]:
        return [
            (
                TableBucket(table_id, part.bucket_id, part.partition_id),
                error_for_code(part.error_code, part.error_message) if part.error_code else None,
                part.values,
            )
            for part in decode_lookup_response(answer)
        ]


class InsertingLookupWire(LookupWire):
    """Primary keys; a key that is not there is inserted, so that every key has a stored value."""

    def __init__(self, acks: int, timeout_ms: int) -> None:
        self._acks = acks
        self._timeout_ms = timeout_ms

    def encode(self, table_id: int, keys: Mapping[TableBucket, list[bytes]]) -> bytes:
        wanted = [(bucket.partition_id, bucket.bucket_id, found) for bucket, found in keys.items()]
        return encode_lookup(table_id, wanted, insert_if_not_exists=True, acks=self._acks, timeout_ms=self._timeout_ms)


class PrefixWire:
    """Key prefixes; the result of a prefix is the list of stored values under it."""

    def ask(self, link: Link, table_id: int, keys: Mapping[TableBucket, list[bytes]], on_answer: OnAnswer) -> None:
        request = pb.PrefixLookupRequest(table_id=table_id)
        for bucket, wanted in keys.items():
            request.buckets_req.add(partition_id=bucket.partition_id, bucket_id=bucket.bucket_id, keys=wanted)
        link.begin(apis.PREFIX_LOOKUP, [request.SerializeToString()], _LookupReply(self._decode, table_id, on_answer))

    @staticmethod
    def _decode(table_id: int, answer: memoryview) -> list[Found]:
        response = parse_message(apis.PREFIX_LOOKUP.response, answer, require_all=False)
        return [
            (
                TableBucket(table_id, part.bucket_id, part.partition_id if part.HasField("partition_id") else None),
                error_for_code(part.error_code, part.error_message) if part.error_code else None,
                [list(found.values) for found in part.value_lists],
            )
            for part in response.buckets_resp
        ]
