# SPDX-License-Identifier: Apache-2.0
"""Codecs for Lookup: many small keys and values, where one object per value would cost more than the lookup.

The compiled parser splits the message; only the inside of each value, one optional field, is read here. One form of
both messages comes again and again, one key of one bucket: it has functions of its own, which read and write it byte by
byte in less time than it takes to ask the parser for the parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from google.protobuf.message import DecodeError

from fluss.errors import FormatError
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.frames import Buffer, Parts, body_size, join_small_parts
from fluss.protocol.record_messages import NO_COUNTS, RoutingCounts
from fluss.protocol.wire import encode_varint, length_prefix, parse_message, text_of

BucketKeys = tuple["int | None", int, Sequence[bytes]]
"""Partition id or None, bucket id, encoded keys."""

_LOOKUP_BYTES_MAX = 32 * 1024 * 1024
_LOOKUP_ITEMS_MAX = 100_000
_KEYS_PER_PIECE = 10_000
_VALUE_TAG = 0x0A
_PREFIX_BUCKETS = pb.PrefixLookupResponse.DESCRIPTOR.fields_by_name["buckets_resp"].number
_LOOKUP_BUCKETS = pb.LookupResponseView.DESCRIPTOR.fields_by_name["buckets_resp"].number
_VALUE_LISTS = pb.PbPrefixLookupRespForBucket.DESCRIPTOR.fields_by_name["value_lists"].number
_SHORT_PREFIXES = tuple(bytes((_VALUE_TAG, size)) for size in range(128))


@dataclass(slots=True)
class LookupBucket:
    """The keys wanted from one bucket."""

    partition_id: int | None
    bucket_id: int
    keys: list[bytes] = field(default_factory=list)
    original_partition_name: str | None = None
    routing_bucket_count: int | None = None


@dataclass(slots=True)
class LookupRequest:
    table_id: int
    buckets: list[LookupBucket] = field(default_factory=list)
    insert_if_not_exists: bool | None = None
    acks: int | None = None
    timeout_ms: int | None = None


@dataclass(slots=True)
class LookedUpBucket:
    """The values found in one bucket: one per key, in the order of the keys, None where there is no such key."""

    bucket_id: int
    partition_id: int | None = None
    values: Sequence[bytes | None] = ()
    error_code: int | None = None
    error_message: str | None = None
    original_partition_name: str | None = None


def encode_lookup(
    table_id: int,
    buckets: Iterable[BucketKeys],
    *,
    insert_if_not_exists: bool | None = None,
    acks: int | None = None,
    timeout_ms: int | None = None,
    routing_counts: RoutingCounts = NO_COUNTS,
    original_partition_names: Iterable[str] = (),
) -> bytes:
    """A LookupRequest; the names are those of expired partitions, one for each bucket."""
    request = pb.LookupRequest(table_id=table_id, acks=acks, timeout_ms=timeout_ms)
    if insert_if_not_exists is not None:
        request.insert_if_not_exists = insert_if_not_exists
    add = request.buckets_req.add
    for partition_id, bucket_id, keys in buckets:
        count = routing_counts.get(partition_id)
        add(partition_id=partition_id, bucket_id=bucket_id, keys=keys, routing_bucket_count=count)
    for part, name in zip(request.buckets_req, original_partition_names):
        part.original_partition_name = name
    return request.SerializeToString()


def decode_lookup(body: Buffer) -> LookupRequest:
    """Read a LookupRequest."""
    if len(body) > _LOOKUP_BYTES_MAX:
        raise FormatError(
            f"LookupRequest: {len(body)} bytes, more than {_LOOKUP_BYTES_MAX}; look up fewer keys at a time"
        )
    data = body if type(body) is bytes else bytes(body)
    request = parse_message(pb.LookupRequest, data, check_text=False, items_max=_LOOKUP_ITEMS_MAX)
    return LookupRequest(
        request.table_id,
        [
            LookupBucket(
                bucket.partition_id if bucket.HasField("partition_id") else None,
                bucket.bucket_id,
                _keys_of(bucket),
                text_of(bucket, "original_partition_name"),
                bucket.routing_bucket_count or None,
            )
            for bucket in request.buckets_req
        ],
        request.insert_if_not_exists if request.HasField("insert_if_not_exists") else None,
        request.acks if request.HasField("acks") else None,
        request.timeout_ms if request.HasField("timeout_ms") else None,
    )


def _keys_of(bucket: pb.PbLookupReqForBucket) -> list[bytes]:
    """The keys as a list; many of them in pieces, between which other threads can run."""
    if len(bucket.keys) <= _KEYS_PER_PIECE:
        return list(bucket.keys)
    keys: list[bytes] = []
    for at in range(0, len(bucket.keys), _KEYS_PER_PIECE):
        keys += bucket.keys[at : at + _KEYS_PER_PIECE]
    return keys


def encode_lookup_response(buckets: Sequence[LookedUpBucket]) -> bytes:
    """A LookupResponse."""
    response = pb.LookupResponseView()
    for bucket in buckets:
        response.buckets_resp.add(
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
            error_code=bucket.error_code,
            error_message=bucket.error_message,
            values=[_entry(value) for value in bucket.values],
            original_partition_name=bucket.original_partition_name,
        )
    return response.SerializeToString()


def encode_lookup_response_parts(buckets: Sequence[LookedUpBucket]) -> Parts:
    """A LookupResponse with many values, as parts. Made in pieces, between which other threads can run."""
    parts: Parts = []
    for bucket in buckets:
        if len(bucket.values) <= _KEYS_PER_PIECE:
            parts.append(encode_lookup_response((bucket,)))
            continue
        # A repeated field may come in pieces: a message is what its encoded pieces say one after the other.
        head = pb.LookupResponseView.FromString(encode_lookup_response((replace(bucket, values=()),)))
        body: Parts = [head.buckets_resp[0].SerializeToString()]
        for at in range(0, len(bucket.values), _KEYS_PER_PIECE):
            view = pb.LookupResponseView()
            values = bucket.values[at : at + _KEYS_PER_PIECE]
            view.buckets_resp.add(values=[_entry(value) for value in values])
            body.append(view.buckets_resp[0].SerializePartialToString())
        parts += [length_prefix(_LOOKUP_BUCKETS, body_size(body)), *body]
    return join_small_parts(parts)


def _entry(value: bytes | None) -> bytes:
    if value is None:
        return b""
    return _SHORT_PREFIXES[len(value)] + value if len(value) < 128 else b"\x0a" + encode_varint(len(value)) + value


def decode_lookup_response(body: Buffer) -> list[LookedUpBucket]:
    """Read a LookupResponse."""
    response = parse_message(pb.LookupResponseView, body, require_all=False, check_text=False)
    return [
        LookedUpBucket(
            bucket.bucket_id,
            bucket.partition_id if bucket.HasField("partition_id") else None,
            _decode_values(bucket.values),
            bucket.error_code if bucket.HasField("error_code") else None,
            text_of(bucket, "error_message"),
            text_of(bucket, "original_partition_name"),
        )
        for bucket in response.buckets_resp
    ]


def _decode_values(entries: Iterable[bytes]) -> list[bytes | None]:
    # Nearly every value is shorter than 128 bytes: then its length is the second byte, and it must end the entry.
    return [
        entry[2:]
        if 2 <= len(entry) < 130 and entry[0] == _VALUE_TAG and entry[1] == len(entry) - 2
        else _decode_value(entry)
        for entry in entries
    ]


def _decode_value(entry: bytes) -> bytes | None:
    if not entry:
        return None
    size = len(entry) - 3
    if 127 < size < 16384 and entry[0] == _VALUE_TAG and entry[1] >= 128 and entry[1] - 128 + (entry[2] << 7) == size:
        return entry[3:]
    value = pb.PbValue()
    try:
        value.ParseFromString(entry)
    except DecodeError:
        raise FormatError(f"LookupResponse: an entry of values ({len(entry)} bytes) is not a valid PbValue") from None
    return value.values if value.HasField("values") else None


def encode_value_list(values: Sequence[bytes]) -> bytes:
    """One value list of `encode_prefix_lookup_bucket`."""
    body: bytes = pb.PbValueList(values=values).SerializeToString()
    return length_prefix(_VALUE_LISTS, len(body)) + body


def encode_long_value_list(pieces: Sequence[bytes]) -> Parts:
    """One value list as parts, from the encoded PbValueLists of its pieces."""
    return [length_prefix(_VALUE_LISTS, body_size(pieces)), *pieces]


def encode_prefix_lookup_bucket(bucket: pb.PbPrefixLookupRespForBucket, value_lists: Sequence[Buffer]) -> Parts:
    """One bucket of a PrefixLookupResponse as parts, from its value lists as parts."""
    size_bytes = bucket.ByteSize() + body_size(value_lists)
    return [length_prefix(_PREFIX_BUCKETS, size_bytes), bucket.SerializeToString(), *value_lists]
