# SPDX-License-Identifier: Apache-2.0
"""The codecs that pass records on untouched, compared with the generated classes."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import FormatError
from fluss.protocol import fast_paths
from fluss.protocol import messages as pb
from fluss.protocol import record_messages as rm
from fluss.protocol.frames import encode_response

INT32 = st.one_of(st.integers(-3, 300), st.integers(-(2**31), 2**31 - 1))
INT64 = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
MAYBE_INT64 = st.none() | INT64
RECORDS = st.binary(max_size=300)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
WRITE_BUCKETS = st.lists(st.tuples(MAYBE_INT64, INT32, RECORDS), max_size=4)


def in_parts(records: bytes) -> list[bytes]:
    middle = len(records) // 3
    return [records[:middle], records[middle:]]


def optional(message: Message, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None


@settings(max_examples=150)
@given(acks=INT32, table_id=INT64, timeout_ms=INT32, buckets=WRITE_BUCKETS)
def test_produce_log(acks: int, table_id: int, timeout_ms: int, buckets: list[tuple[int | None, int, bytes]]) -> None:
    message = pb.ProduceLogRequest(acks=acks, table_id=table_id, timeout_ms=timeout_ms)
    for partition_id, bucket_id, records in buckets:
        message.buckets_req.add(partition_id=partition_id, bucket_id=bucket_id, records=records)
    parts = rm.encode_produce_log(acks, table_id, timeout_ms, [(p, b, in_parts(r)) for p, b, r in buckets])
    body = b"".join(parts)
    assert body == message.SerializeToString()
    decoded = rm.decode_produce_log(body)
    assert (decoded.acks, decoded.table_id, decoded.timeout_ms) == (acks, table_id, timeout_ms)
    assert [(b.partition_id, b.bucket_id, bytes(b.records)) for b in decoded.buckets] == buckets


@settings(max_examples=150)
@given(st.lists(st.tuples(INT32, MAYBE_INT64, st.none() | INT32, st.none() | TEXT, MAYBE_INT64), max_size=4))
def test_produce_log_response(buckets: list[tuple[int, int | None, int | None, str | None, int | None]]) -> None:
    message = pb.ProduceLogResponse()
    for bucket_id, partition_id, code, text, base_offset in buckets:
        message.buckets_resp.add(
            bucket_id=bucket_id, partition_id=partition_id, error_code=code, error_message=text, base_offset=base_offset
        )
    encoded = rm.encode_produce_log_response(rm.ProducedBucket(*bucket) for bucket in buckets)
    assert encoded == message.SerializeToString()


@settings(max_examples=150)
@given(
    acks=INT32,
    table_id=INT64,
    timeout_ms=INT32,
    target_columns=st.lists(INT32, max_size=5),
    buckets=WRITE_BUCKETS,
    agg_mode=st.none() | INT32,
)
def test_put_kv(
    acks: int,
    table_id: int,
    timeout_ms: int,
    target_columns: list[int],
    buckets: list[tuple[int | None, int, bytes]],
    agg_mode: int | None,
) -> None:
    message = pb.PutKvRequest(
        acks=acks, table_id=table_id, timeout_ms=timeout_ms, target_columns=target_columns, agg_mode=agg_mode
    )
    for partition_id, bucket_id, records in buckets:
        message.buckets_req.add(partition_id=partition_id, bucket_id=bucket_id, records=records)
    parts = rm.encode_put_kv(
        acks,
        table_id,
        timeout_ms,
        [(p, b, in_parts(r)) for p, b, r in buckets],
        target_columns=target_columns,
        agg_mode=agg_mode,
    )
    body = b"".join(parts)
    assert body == message.SerializeToString()
    decoded = rm.decode_put_kv(body)
    assert (decoded.acks, decoded.table_id, decoded.timeout_ms) == (acks, table_id, timeout_ms)
    assert (decoded.target_columns, decoded.agg_mode) == (target_columns, agg_mode)
    assert [(b.partition_id, b.bucket_id, bytes(b.records)) for b in decoded.buckets] == buckets


def remote_infos() -> st.SearchStrategy[pb.PbRemoteLogFetchInfo]:
    segments = st.builds(
        pb.PbRemoteLogSegment,
        remote_log_segment_id=TEXT,
        remote_log_start_offset=INT64,
        remote_log_end_offset=INT64,
        segment_size_in_bytes=INT32,
        max_timestamp=MAYBE_INT64,
    )
    return st.builds(
        pb.PbRemoteLogFetchInfo,
        remote_log_tablet_dir=TEXT,
        partition_name=st.none() | TEXT,
        remote_log_segments=st.lists(segments, max_size=3),
        first_start_pos=st.none() | INT32,
    )


FETCHED_BUCKETS = st.builds(
    pb.PbFetchLogRespForBucket,
    partition_id=MAYBE_INT64,
    bucket_id=INT32,
    error_code=st.none() | INT32,
    error_message=st.none() | TEXT,
    high_watermark=MAYBE_INT64,
    log_start_offset=MAYBE_INT64,
    remote_log_fetch_info=st.none() | remote_infos(),
    records=st.none() | RECORDS,
    filtered_end_offset=MAYBE_INT64,
)
FETCHED_TABLES = st.builds(
    pb.PbFetchLogRespForTable, table_id=INT64, buckets_resp=st.lists(FETCHED_BUCKETS, max_size=4)
)


def fetched(bucket: pb.PbFetchLogRespForBucket, records: Any) -> rm.FetchedBucket[Any]:
    names = ["partition_id", "error_code", "error_message", "high_watermark", "log_start_offset"]
    names += ["remote_log_fetch_info", "filtered_end_offset"]
    return rm.FetchedBucket(bucket.bucket_id, records=records, **{name: optional(bucket, name) for name in names})


@settings(max_examples=150)
@given(st.lists(FETCHED_TABLES, max_size=3))
def test_fetch_log_response(tables: list[pb.PbFetchLogRespForTable]) -> None:
    message = pb.FetchLogResponse(tables_resp=tables)
    to_send: list[rm.FetchedTable[Any]] = []
    expected: list[rm.FetchedTable[Any]] = []
    for table in tables:
        to_send.append(rm.FetchedTable(table.table_id))
        expected.append(rm.FetchedTable(table.table_id))
        for bucket in table.buckets_resp:
            records = optional(bucket, "records")
            to_send[-1].buckets.append(fetched(bucket, None if records is None else in_parts(records)))
            expected[-1].buckets.append(fetched(bucket, records))
    body = b"".join(rm.encode_fetch_log_response(to_send))
    assert body == message.SerializeToString()
    assert rm.decode_fetch_log_response(body) == expected


@settings(max_examples=150)
@given(
    error_code=st.none() | INT32,
    error_message=st.none() | TEXT,
    is_log_table=st.none() | st.booleans(),
    records=st.none() | RECORDS,
)
def test_limit_scan_response(records: bytes | None, **values: Any) -> None:
    message = pb.LimitScanResponse(records=records, **values)
    parts = None if records is None else in_parts(records)
    body = b"".join(rm.encode_limit_scan_response(rm.LimitScanResponse(records=parts, **values)))
    assert body == message.SerializeToString()


@settings(max_examples=150)
@given(
    error_code=st.none() | INT32,
    error_message=st.none() | TEXT,
    scanner_id=st.none() | st.binary(max_size=20),
    has_more_results=st.none() | st.booleans(),
    records=st.none() | RECORDS,
    log_offset=MAYBE_INT64,
)
def test_scan_kv_response(records: bytes | None, **values: Any) -> None:
    message = pb.ScanKvResponse(records=records, **values)
    parts = None if records is None else in_parts(records)
    body = b"".join(rm.encode_scan_kv_response(rm.ScanKvResponse(records=parts, **values)))
    assert body == message.SerializeToString()


def test_records_are_neither_joined_nor_copied() -> None:
    records = [bytearray(b"header"), memoryview(b"payload")]
    assert rm.encode_produce_log(1, 5, 10, [(None, 0, records)])[2:4] == records
    assert rm.encode_produce_log(1, 5, 10, [(None, 0, records)])[3] is records[1]
    assert rm.encode_put_kv(1, 5, 10, [(7, 0, records)])[3] is records[1]
    table = rm.FetchedTable(5, [rm.FetchedBucket(0, records=records)])
    assert any(part is records[1] for part in rm.encode_fetch_log_response([table]))
    assert rm.encode_limit_scan_response(rm.LimitScanResponse(records=records))[2] is records[1]
    body = b"".join(rm.encode_produce_log(1, 5, 10, [(None, 0, records)]))
    assert rm.decode_produce_log(body).buckets[0].records.obj is body


# ---- what others may send ----

UNKNOWN = (
    b"\xf8\x01\x05"  # field 31, number
    b"\xf9\x01\1\2\3\4\5\6\7\x08"  # field 31, eight bytes
    b"\xfa\x01\x03abc"  # field 31, text
    b"\xfd\x01\1\2\3\4"  # field 31, four bytes
)


def test_unknown_fields_are_skipped() -> None:
    bucket = UNKNOWN + b"\x10\x03" + UNKNOWN + b"\x1a\x02ab" + UNKNOWN
    body = b"\x08\x01" + UNKNOWN + b"\x10\x05\x18\x0a\x22" + bytes([len(bucket)]) + bucket + UNKNOWN
    decoded = rm.decode_produce_log(body)
    assert (decoded.acks, decoded.table_id, decoded.timeout_ms) == (1, 5, 10)
    assert (decoded.buckets[0].bucket_id, bytes(decoded.buckets[0].records)) == (3, b"ab")


def test_target_columns_may_come_unpacked() -> None:
    body = b"\x08\x01\x10\x05\x18\x0a" + b"\x20\x07" + b"\x22\x02\x08\x09" + b"\x20\x0a"
    assert rm.decode_put_kv(body).target_columns == [7, 8, 9, 10]
    assert list(pb.PutKvRequest.FromString(body).target_columns) == [7, 8, 9, 10]


def test_a_message_sent_in_pieces_is_merged() -> None:
    pieces = [
        pb.PbRemoteLogFetchInfo(remote_log_tablet_dir="dir").SerializeToString(),
        pb.PbRemoteLogFetchInfo(first_start_pos=5).SerializePartialToString(),
    ]
    bucket = b"\x10\x01" + b"".join(b"\x3a" + bytes([len(piece)]) + piece for piece in pieces)
    body = b"\x0a" + bytes([len(bucket) + 4]) + b"\x08\x01\x12" + bytes([len(bucket)]) + bucket
    info = rm.decode_fetch_log_response(body)[0].buckets[0].remote_log_fetch_info
    assert info == pb.PbRemoteLogFetchInfo(remote_log_tablet_dir="dir", first_start_pos=5)


def test_responses_may_leave_out_zeros() -> None:
    assert rm.decode_fetch_log_response(b"\x0a\x02\x12\x00") == [rm.FetchedTable(0, [rm.FetchedBucket(0)])]


@pytest.mark.parametrize(
    ("decode", "body", "message"),
    [
        (rm.decode_produce_log, b"", "required field missing: acks, table_id, timeout_ms"),
        (rm.decode_produce_log, b"\x08\x01\x18\x05", "required field missing: table_id"),
        (rm.decode_put_kv, b"\x08\x01\x10\x05", "PutKvRequest: required field missing: timeout_ms"),
        (rm.decode_produce_log, b"\x22\x02\x1a\x00", r"buckets_req\[0\]: required field missing: bucket_id"),
        (rm.decode_put_kv, b"\x2a\x02\x10\x00", r"PutKvRequest.buckets_req\[0\]: required field missing: records"),
        (rm.decode_produce_log, b"\x08", "field 1: number at position 1 is cut off"),
        (rm.decode_produce_log, b"\x08\xff\xff", "field 1: number at position 1 is cut off at position 3"),
        (rm.decode_produce_log, b"\x08" + b"\xff" * 11, "number at position 1 is longer than 10 bytes"),
        (rm.decode_produce_log, b"\xff" * 6, "number at position 0 is longer than 5 bytes"),
        (rm.decode_produce_log, b"\x02\x00", "impossible field number 0 at position 0"),
        (rm.decode_produce_log, b"\xfa\xff\xff\xff\x7f\x00", "impossible field number"),
        (rm.decode_produce_log, b"\x0b\x0c", "field 1: unknown wire type 3 at position 0"),
        (rm.decode_produce_log, b"\x22\x05\x10\x00", "5 bytes announced at position 0, but only 2 bytes are left"),
        (rm.decode_produce_log, b"\x22\x04\x10\x00\x1a\x09abc", r"buckets_req\[0\] field 3: 9 bytes announced at pos"),
        (rm.decode_produce_log, b"\xf9\x01\x00", "8 bytes announced at position 0, but only 1 bytes are left"),
        (rm.decode_put_kv, b"\x22\x01\xff", "PutKvRequest field 4: number at position 2 is cut off"),
        (rm.decode_fetch_log_response, b"\x0a\x05\x12\x03\x22\x01\xff", r"tables_resp\[0\].buckets_resp\[0\] field 4"),
        (rm.decode_fetch_log_response, b"\x0a\x05\x12\x03\x3a\x01\x0a", "not a valid PbRemoteLogFetchInfo"),
        (rm.decode_fetch_log_response, b"\x0a\x07\x12\x05\x3a\x03\x0a\x01\xff", "fetch_info: text is not UTF-8"),
    ],
)
def test_broken_bodies(decode: Any, body: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        decode(body)


DECODERS: list[tuple[Any, type[Message]]] = [
    (rm.decode_produce_log, pb.ProduceLogRequest),
    (rm.decode_put_kv, pb.PutKvRequest),
    (rm.decode_fetch_log_response, pb.FetchLogResponse),
]


def as_generated(decoded: Any, message_type: type[Message]) -> Message:
    """Back through the encoder, into the generated class: so that two readings of the same bytes can be compared."""
    if message_type is pb.ProduceLogRequest:
        buckets = [(b.partition_id, b.bucket_id, [b.records]) for b in decoded.buckets]
        parts = rm.encode_produce_log(decoded.acks, decoded.table_id, decoded.timeout_ms, buckets)
        return pb.ProduceLogRequest.FromString(b"".join(parts))
    if message_type is pb.PutKvRequest:
        buckets = [(b.partition_id, b.bucket_id, [b.records]) for b in decoded.buckets]
        columns, mode = decoded.target_columns, decoded.agg_mode
        parts = rm.encode_put_kv(
            decoded.acks, decoded.table_id, decoded.timeout_ms, buckets, target_columns=columns, agg_mode=mode
        )
        return pb.PutKvRequest.FromString(b"".join(parts))
    message = pb.FetchLogResponse()
    for table in decoded:
        added = message.tables_resp.add(table_id=table.table_id)
        for bucket in table.buckets:
            names = (n for n in bucket.__slots__ if getattr(bucket, n) is not None and n != "records")
            into = added.buckets_resp.add(**{name: getattr(bucket, name) for name in names})
            if bucket.records is not None:
                into.records = bytes(bucket.records)
    return message


def known_fields(message: Message) -> Message:
    """Without unknown fields, and with absent numbers of responses as zeros."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.DiscardUnknownFields()
    if isinstance(copy, pb.FetchLogResponse):
        for table in copy.tables_resp:
            table.table_id = table.table_id
            for bucket in table.buckets_resp:
                bucket.bucket_id = bucket.bucket_id
    return copy


@st.composite
def mangled(draw: st.DrawFn) -> tuple[Any, type[Message], bytes]:
    decode, message_type = draw(st.sampled_from(DECODERS))
    if message_type is pb.FetchLogResponse:
        message: Message = pb.FetchLogResponse(tables_resp=draw(st.lists(FETCHED_TABLES, max_size=2)))
    else:
        message = message_type(acks=-1, table_id=draw(INT64), timeout_ms=draw(INT32))
        for partition_id, bucket_id, records in draw(WRITE_BUCKETS):
            message.buckets_req.add(partition_id=partition_id, bucket_id=bucket_id, records=records)  # type: ignore[attr-defined]
    data = bytearray(message.SerializeToString())
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        action = draw(st.sampled_from(["flip", "cut", "insert"]))
        if action == "flip":
            data[at] = draw(st.integers(0, 255))
        elif action == "cut":
            del data[at]
        else:
            data.insert(at, draw(st.integers(0, 255)))
    return decode, message_type, bytes(data)


@settings(max_examples=600, deadline=None)
@given(mangled())
def test_mangled_bodies_read_as_protobuf_reads_them(case: tuple[Any, type[Message], bytes]) -> None:
    decode, message_type, body = case
    try:
        decoded = decode(body)
    except FormatError:
        # Refused by protobuf as well, or lacking a required field, or with text that is no text, or with a group.
        try:
            theirs = message_type.FromString(body)
        except (DecodeError, UnicodeDecodeError):
            return
        assert not theirs.IsInitialized() or has_bad_text(theirs) or has_group(body)
        return
    # Whole messages inside, which are read by protobuf itself, keep what they do not know.
    assert known_fields(as_generated(decoded, message_type)) == known_fields(message_type.FromString(body))


def has_bad_text(message: Message) -> bool:
    for descriptor, value in message.ListFields():
        values = value if hasattr(value, "append") else [value]
        for item in values:
            if isinstance(item, Message):
                if has_bad_text(item):
                    return True
            elif descriptor.type == descriptor.TYPE_STRING and not isinstance(item, str):
                return True
    return False


def has_group(body: bytes) -> bool:
    return any(byte & 7 in (3, 4) for byte in body)


@pytest.mark.parametrize("head_bytes", [64, 1000, 90_000])
def test_where_large_records_begin_is_known_from_the_head(head_bytes: int) -> None:
    small = rm.FetchedBucket[Any](0, high_watermark=7, records=[b"s" * 10])
    large = rm.FetchedBucket[Any](3, partition_id=9, high_watermark=2**40, records=[b"r" * 100_000])
    answer = encode_response(5, rm.encode_fetch_log_response([rm.FetchedTable(1, [small, large])]))
    frame = b"".join(answer)[4:]
    position = fast_paths.fetched_records_position(memoryview(frame[:head_bytes]), len(frame))
    assert frame[position : position + 100_000] == b"r" * 100_000


@given(st.binary(max_size=80), st.integers(0, 2**31 - 1))
def test_a_head_without_sense_has_no_records(head: bytes, length: int) -> None:
    assert 0 <= fast_paths.fetched_records_position(memoryview(head), length) <= 2**31
