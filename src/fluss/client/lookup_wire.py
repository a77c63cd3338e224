# SPDX-License-Identifier: Apache-2.0
"""How keys are sent to a server, and what comes back: lookups, lookups that insert, lookups by prefix.

Values come back as they are stored: the id of a schema, then the row. They become dicts or Arrow, whatever schema wrote
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from fluss.client.requests import bucket_from
from fluss.errors import FlussError, FormatError, error_for_code
from fluss.metadata import DataType, Schema, TableBucket
from fluss.net.connection import Connection
from fluss.protocol import Api, apis
from fluss.protocol import messages as pb
from fluss.protocol.lookup_messages import LookedUpBucket, decode_lookup_response, encode_lookup
from fluss.protocol.record_messages import RoutingCounts
from fluss.protocol.wire import parse_message
from fluss.records.stored_values import SCHEMA_ID_BYTES
from fluss.rows import compacted, indexed
from fluss.rows.logical import PLAIN_TYPES, to_python


class LookupTarget(NamedTuple):
    """What keys are looked up in."""

    bucket: TableBucket
    expired_partition: str | None = None
    """The name of the partition, if it has expired: then it is not that of the bucket, and the lake has its rows."""


Found = tuple[LookupTarget, "FlussError | None", Sequence[Any]]
"""A target's part of an answer: an error, or one result per key in the order of the keys."""

TargetKeys = Mapping[LookupTarget, list[bytes]]
"""The encoded keys that are looked up in each target."""

OnAnswer = Callable[["list[Found] | FlussError"], None]
"""Takes the outcome of a request."""


class Wire(ABC):
    """How keys are sent: the difference between lookup and prefix lookup."""

    api: ClassVar[Api[Any, Any]]

    def ask(
        self, connection: Connection, table_id: int, keys: TargetKeys, counts: RoutingCounts, on_answer: OnAnswer
    ) -> None:
        """Ask a server; `on_answer` takes the answer, later and on the loop of the connection."""
        body = self.encode(table_id, keys, counts)
        connection.begin(self.api, [body], _LookupReply(self.decode, table_id, on_answer))

    @abstractmethod
    def encode(self, table_id: int, keys: TargetKeys, counts: RoutingCounts) -> bytes:
        """Make the request. `counts` are the numbers of buckets of partitions."""

    @abstractmethod
    def decode(self, table_id: int, answer: memoryview) -> list[Found]:
        """Read the response."""


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
    for target, error, values in answer:
        if target.bucket == bucket:
            if error is not None:
                raise error
            if len(values) != count:
                raise FormatError(f"The server answered {len(values)} results for {count} keys of {bucket}")
            return values
    raise FormatError(f"The server said nothing about {bucket}")


def _error_of(part: LookedUpBucket | pb.PbPrefixLookupRespForBucket) -> FlussError | None:
    return error_for_code(part.error_code, part.error_message) if part.error_code else None


class LookupWire(Wire):
    """Primary keys; the result of a key is its stored value or None."""

    api = apis.LOOKUP

    def __init__(self, **options: Any) -> None:
        """`options`: what requests have beside the keys, such as `insert_if_not_exists`."""
        self._options = options

    @property
    def inserts(self) -> bool:
        """Whether keys that are not there are inserted."""
        return bool(self._options.get("insert_if_not_exists"))

    def encode(self, table_id: int, keys: TargetKeys, counts: RoutingCounts) -> bytes:
        wanted = [(target.bucket.partition_id, target.bucket.bucket_id, found) for target, found in keys.items()]
        expired = [target.expired_partition for target in keys if target.expired_partition is not None]
        return encode_lookup(table_id, wanted, routing_counts=counts, original_partition_names=expired, **self._options)

    def decode(self, table_id: int, answer: memoryview) -> list[Found]:
        return [
            (
                LookupTarget(TableBucket(table_id, part.bucket_id, part.partition_id), part.original_partition_name),
                _error_of(part),
                part.values,
            )
            for part in decode_lookup_response(answer)
        ]


class PrefixWire(Wire):
    """Key prefixes; the result of a prefix is the list of stored values under it."""

    api = apis.PREFIX_LOOKUP

    def encode(self, table_id: int, keys: TargetKeys, counts: RoutingCounts) -> bytes:
        request = pb.PrefixLookupRequest(table_id=table_id)
        for (bucket, _), wanted in keys.items():
            request.buckets_req.add(
                partition_id=bucket.partition_id,
                bucket_id=bucket.bucket_id,
                keys=wanted,
                routing_bucket_count=counts.get(bucket.partition_id),
            )
        return request.SerializeToString()

    def decode(self, table_id: int, answer: memoryview) -> list[Found]:
        response = parse_message(apis.PREFIX_LOOKUP.response, answer, require_all=False)
        return [
            (
                LookupTarget(bucket_from(table_id, part)),
                _error_of(part),
                [list(found.values) for found in part.value_lists],
            )
            for part in response.buckets_resp
        ]


def schema_id_of(value: bytes) -> int:
    """The id of the schema a stored value was written with."""
    if len(value) < SCHEMA_ID_BYTES:
        raise FormatError(f"A stored value of {len(value)} bytes is too short for its schema id")
    return int.from_bytes(value[:SCHEMA_ID_BYTES], "little", signed=True)


def column_sources(written: Schema, wanted: Schema) -> list[int | None]:
    """For each wanted column its position in the written schema, by column id; None where it did not exist yet."""
    positions = {column.column_id: index for index, column in enumerate(written.columns)}
    return [positions.get(column.column_id) for column in wanted.columns]


class ValueDecoder:
    """Decodes stored values written with one schema into dicts of another (usually the same)."""

    def __init__(self, written: Schema, wanted: Schema, kv_format: str, *, map_pairs: bool = False) -> None:
        self._map_pairs = map_pairs
        self._types = written.data_types
        self._names = written.column_names
        self._decode = indexed.decode_row if kv_format.upper() == "INDEXED" else compacted.decode_row
        self._wanted_names = wanted.column_names
        sources = column_sources(written, wanted)
        self._in_place = sources == list(range(len(self._types)))
        self._sources = sources
        self._converters: list[tuple[str, DataType]] = [
            (column.name, column.data_type)
            for column in wanted.columns
            if not isinstance(column.data_type, PLAIN_TYPES)
        ]

    def decode(self, value: bytes) -> dict[str, Any]:
        """Decode one stored value (with its schema id in front) into a dict of Python values."""
        logical = self._decode(self._types, memoryview(value)[SCHEMA_ID_BYTES:], self._names)
        if self._in_place:
            row = dict(zip(self._wanted_names, logical))
        else:
            row = {
                name: None if source is None else logical[source]
                for name, source in zip(self._wanted_names, self._sources)
            }
        for name, data_type in self._converters:
            if row[name] is not None:
                row[name] = to_python(row[name], data_type, map_pairs=self._map_pairs)
        return row
