# SPDX-License-Identifier: Apache-2.0
"""Codecs for the messages that carry records: they neither join nor copy the records.

Encoders take records as a sequence of buffers and return the message as a list of buffers that contains the very same
objects. Decoders return records as views into the body they were given. The bytes are those of the generated classes.

Decoders of requests insist on required fields; decoders of responses read a missing number as 0, because some servers
leave out zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from google.protobuf.message import DecodeError

from fluss.errors import FormatError
from fluss.protocol import fluss_pb2 as pb
from fluss.protocol.frames import Buffer, Parts, body_size
from fluss.protocol.wire import (
    LENGTH_DELIMITED,
    VARINT,
    as_int32,
    as_int64,
    bytes_field,
    encode_varint,
    int_field,
    iter_fields,
    length_prefix,
    missing,
    read_int32s,
    read_string,
    string_field,
)

RecordsT = TypeVar("RecordsT")
"""`memoryview` in what a decoder returns, `Sequence[Buffer]` in what an encoder takes."""

BUCKETS_PER_REQUEST_MAX: Final = 50_000
"""Each costs a server some microseconds, during which its event loop serves no other connection."""
_BUCKET_FIELDS_MAX = 16

BucketParts = tuple["int | None", int, Sequence[Buffer]]
"""Partition id or None, bucket id, records."""

RoutingCounts = Mapping["int | None", int]
"""How many buckets partitions have, by their ids: requests name the number by which their buckets were chosen."""

NO_COUNTS: Final[RoutingCounts] = MappingProxyType({})


@dataclass(slots=True)
class BucketRecords:
    """The records one write request has for one bucket."""

    partition_id: int | None
    bucket_id: int
    records: memoryview
    routing_bucket_count: int | None = None


@dataclass(slots=True)
class ProducedBucket:
    """The answer of ProduceLog for one bucket."""

    bucket_id: int
    partition_id: int | None = None
    error_code: int | None = None
    error_message: str | None = None
    base_offset: int | None = None


@dataclass(slots=True)
class WriteRequest:
    """A ProduceLogRequest or PutKvRequest."""

    acks: int
    table_id: int
    timeout_ms: int
    buckets: list[BucketRecords] = field(default_factory=list)
    target_columns: list[int] = field(default_factory=list)
    """Of a PutKvRequest. Empty: all columns."""
    agg_mode: int | None = None
    """Of a PutKvRequest."""


@dataclass(slots=True)
class FetchedBucket(Generic[RecordsT]):
    """The answer of FetchLog for one bucket."""

    bucket_id: int
    partition_id: int | None = None
    error_code: int | None = None
    error_message: str | None = None
    high_watermark: int | None = None
    log_start_offset: int | None = None
    remote_log_fetch_info: pb.PbRemoteLogFetchInfo | None = None
    records: RecordsT | None = None
    filtered_end_offset: int | None = None


@dataclass(slots=True)
class FetchedTable(Generic[RecordsT]):
    """The answer of FetchLog for one table."""

    table_id: int
    buckets: list[FetchedBucket[RecordsT]] = field(default_factory=list)


@dataclass(slots=True)
class LimitScanResponse:
    error_code: int | None = None
    error_message: str | None = None
    is_log_table: bool | None = None
    records: Sequence[Buffer] | None = None


@dataclass(slots=True)
class ScanKvResponse:
    error_code: int | None = None
    error_message: str | None = None
    scanner_id: bytes | None = None
    has_more_results: bool | None = None
    records: Sequence[Buffer] | None = None
    log_offset: int | None = None


# ---- ProduceLog and PutKv ----


def encode_produce_log(
    acks: int,
    table_id: int,
    timeout_ms: int,
    buckets: Iterable[BucketParts],
    *,
    routing_counts: RoutingCounts = NO_COUNTS,
) -> Parts:
    """A ProduceLogRequest as parts."""
    parts: Parts = [int_field(1, acks) + int_field(2, table_id) + int_field(3, timeout_ms)]
    _append_buckets(parts, 4, buckets, routing_counts)
    return parts


def encode_put_kv(
    acks: int,
    table_id: int,
    timeout_ms: int,
    buckets: Iterable[BucketParts],
    *,
    target_columns: Sequence[int] = (),
    agg_mode: int | None = None,
    routing_counts: RoutingCounts = NO_COUNTS,
) -> Parts:
    """A PutKvRequest as parts."""
    head = int_field(1, acks) + int_field(2, table_id) + int_field(3, timeout_ms)
    if target_columns:
        packed = b"".join(map(encode_varint, target_columns))
        head += bytes_field(4, packed)
    parts: Parts = [head]
    _append_buckets(parts, 5, buckets, routing_counts)
    if agg_mode is not None:
        parts.append(int_field(6, agg_mode))
    return parts


_PRODUCED = encode_varint(1 << 3 | LENGTH_DELIMITED)
_BUCKET_ID = encode_varint(2 << 3)
_BASE_OFFSET = encode_varint(5 << 3)


def encode_produce_log_response(buckets: Iterable[ProducedBucket]) -> bytes:
    """A ProduceLogResponse."""
    parts: list[bytes] = []
    for bucket in buckets:
        content = _BUCKET_ID + encode_varint(bucket.bucket_id)
        if bucket.partition_id is not None:
            content = int_field(1, bucket.partition_id) + content
        if bucket.error_code is not None or bucket.error_message is not None:
            content += int_field(3, bucket.error_code) + string_field(4, bucket.error_message)
        if bucket.base_offset is not None:
            content += _BASE_OFFSET + encode_varint(bucket.base_offset)
        parts.append(_PRODUCED + encode_varint(len(content)) + content)
    return b"".join(parts)


def _append_buckets(parts: Parts, number: int, buckets: Iterable[BucketParts], routing_counts: RoutingCounts) -> None:
    for partition_id, bucket_id, records in buckets:
        size = body_size(records)
        head = int_field(1, partition_id) + int_field(2, bucket_id)
        # The records come last: they are parts of their own.
        head += int_field(5, routing_counts.get(partition_id)) + length_prefix(3, size)
        parts.append(length_prefix(number, len(head) + size) + head)
        parts.extend(records)


class TooManyBucketsError(FormatError):
    """A write has more fields than the caller wants to decode now."""


def decode_produce_log(body: Buffer, fields_max: int = BUCKETS_PER_REQUEST_MAX) -> WriteRequest:
    """Read a ProduceLogRequest; the records are views into `body`.

    Raises:
        TooManyBucketsError: It has more than `fields_max` fields, most of which are buckets.
        FormatError: It is not a ProduceLogRequest.
    """
    return _decode_write(body, "ProduceLogRequest", 4, fields_max)


def decode_put_kv(body: Buffer, fields_max: int = BUCKETS_PER_REQUEST_MAX) -> WriteRequest:
    """Read a PutKvRequest; the records are views into `body`. Errors as in `decode_produce_log`."""
    return _decode_write(body, "PutKvRequest", 5, fields_max)


def _decode_write(body: Buffer, what: str, buckets_number: int, fields_max: int) -> WriteRequest:
    data = memoryview(body)
    numbers: dict[int, int] = {}
    target_columns: list[int] = []
    buckets: list[BucketRecords] = []
    for found in iter_fields(data, 0, len(data), what, fields_max, TooManyBucketsError):
        number, wire_type, value, start, end = found
        if number == buckets_number:
            if wire_type == LENGTH_DELIMITED:
                buckets.append(_decode_bucket(data, start, end, f"{what}.buckets_req[{len(buckets)}]"))
        elif number == 4:
            read_int32s(data, found, target_columns, what)
        elif wire_type == VARINT:
            numbers[number] = as_int64(value) if number == 2 else as_int32(value)
    names = {1: "acks", 2: "table_id", 3: "timeout_ms"}
    if not numbers.keys() >= names.keys():
        raise missing(what, *(name for number, name in names.items() if number not in numbers))
    return WriteRequest(numbers[1], numbers[2], numbers[3], buckets, target_columns, numbers.get(6))


def _decode_bucket(data: memoryview, start: int, end: int, what: str) -> BucketRecords:
    partition_id = bucket_id = records = routing_count = None
    for number, wire_type, value, first, last in iter_fields(data, start, end, what, _BUCKET_FIELDS_MAX):
        if wire_type == VARINT:
            if number == 1:
                partition_id = as_int64(value)
            elif number == 2:
                bucket_id = as_int32(value)
            elif number == 5:
                routing_count = as_int32(value)
        elif number == 3 and wire_type == LENGTH_DELIMITED:
            records = data[first:last]
    if bucket_id is None:
        raise missing(what, "bucket_id")
    if records is None:
        raise missing(what, "records")
    return BucketRecords(partition_id, bucket_id, records, routing_count)


# ---- FetchLog response ----


def encode_fetch_log_response(tables: Iterable[FetchedTable[Sequence[Buffer]]]) -> Parts:
    """A FetchLogResponse as parts."""
    parts: Parts = []
    for table in tables:
        inner: Parts = [int_field(1, table.table_id)]
        for bucket in table.buckets:
            _append_fetched_bucket(inner, bucket)
        parts.append(length_prefix(1, body_size(inner)))
        parts.extend(inner)
    return parts


def _append_fetched_bucket(parts: Parts, bucket: FetchedBucket[Sequence[Buffer]]) -> None:
    head = (
        int_field(1, bucket.partition_id)
        + int_field(2, bucket.bucket_id)
        + int_field(3, bucket.error_code)
        + string_field(4, bucket.error_message)
        + int_field(5, bucket.high_watermark)
        + int_field(6, bucket.log_start_offset)
    )
    if bucket.remote_log_fetch_info is not None:
        head += bytes_field(7, bucket.remote_log_fetch_info.SerializeToString())
    tail = int_field(9, bucket.filtered_end_offset)
    records = bucket.records
    if records is None:
        parts.append(length_prefix(2, len(head) + len(tail)) + head + tail)
        return
    size = body_size(records)
    head += length_prefix(8, size)
    parts.append(length_prefix(2, len(head) + size + len(tail)) + head)
    parts.extend(records)
    if tail:
        parts.append(tail)


def decode_fetch_log_response(body: Buffer) -> list[FetchedTable[memoryview]]:
    """Read a FetchLogResponse; the records are views into `body`."""
    what = "FetchLogResponse"
    data = memoryview(body)
    tables: list[FetchedTable[memoryview]] = []
    for number, wire_type, _, start, end in iter_fields(data, 0, len(data), what):
        if number == 1 and wire_type == LENGTH_DELIMITED:
            tables.append(_decode_fetched_table(data, start, end, f"{what}.tables_resp[{len(tables)}]"))
    return tables


def _decode_fetched_table(data: memoryview, start: int, end: int, what: str) -> FetchedTable[memoryview]:
    table: FetchedTable[memoryview] = FetchedTable(0)
    for number, wire_type, value, first, last in iter_fields(data, start, end, what):
        if number == 1 and wire_type == VARINT:
            table.table_id = as_int64(value)
        elif number == 2 and wire_type == LENGTH_DELIMITED:
            name = f"{what}.buckets_resp[{len(table.buckets)}]"
            table.buckets.append(_decode_fetched_bucket(data, first, last, name))
    return table


def _decode_fetched_bucket(data: memoryview, start: int, end: int, what: str) -> FetchedBucket[memoryview]:
    bucket: FetchedBucket[memoryview] = FetchedBucket(0)
    for found in iter_fields(data, start, end, what):
        number, wire_type, value, first, last = found
        if wire_type == VARINT:
            if number == 2:
                bucket.bucket_id = as_int32(value)
            elif number == 5:
                bucket.high_watermark = as_int64(value)
            elif number == 6:
                bucket.log_start_offset = as_int64(value)
            elif number == 1:
                bucket.partition_id = as_int64(value)
            elif number == 3:
                bucket.error_code = as_int32(value)
            elif number == 9:
                bucket.filtered_end_offset = as_int64(value)
        elif wire_type == LENGTH_DELIMITED:
            if number == 8:
                bucket.records = data[first:last]
            elif number == 4:
                bucket.error_message = read_string(data, found, what)
            elif number == 7:
                if bucket.remote_log_fetch_info is None:
                    bucket.remote_log_fetch_info = pb.PbRemoteLogFetchInfo()
                _merge_remote_log(bucket.remote_log_fetch_info, data[first:last], f"{what}.remote_log_fetch_info")
    return bucket


def _merge_remote_log(info: pb.PbRemoteLogFetchInfo, data: memoryview, what: str) -> None:
    try:
        info.MergeFromString(bytes(data))
    except (DecodeError, UnicodeDecodeError):
        raise FormatError(f"{what}: {len(data)} bytes are not a valid PbRemoteLogFetchInfo message") from None
    texts = [info.remote_log_tablet_dir, info.partition_name]
    texts += [segment.remote_log_segment_id for segment in info.remote_log_segments]
    if any(type(text) is not str for text in texts):
        raise FormatError(f"{what}: text is not UTF-8")


# ---- LimitScan and ScanKv responses ----


def encode_limit_scan_response(response: LimitScanResponse) -> Parts:
    """A LimitScanResponse as parts."""
    head = (
        int_field(1, response.error_code)
        + string_field(2, response.error_message)
        + int_field(3, response.is_log_table)
    )
    return _with_records(head, 4, response.records, b"")


def encode_scan_kv_response(response: ScanKvResponse) -> Parts:
    """A ScanKvResponse as parts."""
    head = (
        int_field(1, response.error_code)
        + string_field(2, response.error_message)
        + bytes_field(3, response.scanner_id)
        + int_field(4, response.has_more_results)
    )
    return _with_records(head, 5, response.records, int_field(6, response.log_offset))


def _with_records(head: bytes, number: int, records: Sequence[Buffer] | None, tail: bytes) -> Parts:
    if records is None:
        return [head + tail]
    parts: Parts = [head + length_prefix(number, body_size(records)), *records]
    if tail:
        parts.append(tail)
    return parts
