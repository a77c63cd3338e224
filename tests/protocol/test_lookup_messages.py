# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.errors import FormatError
from fluss.protocol import lookup_messages as lm
from fluss.protocol import messages as pb

INT32 = st.one_of(st.integers(-3, 300), st.integers(-(2**31), 2**31 - 1))
INT64 = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
KEYS = st.lists(st.binary(max_size=40), max_size=6)
SIZES = st.sampled_from([0, 1, 2, 126, 127, 128, 129, 130, 131, 300, 16383, 16384, 16385, 20000])
VALUE = st.one_of(st.none(), st.binary(max_size=20), st.builds(lambda n, b: bytes([b]) * n, SIZES, st.integers(0, 255)))


@settings(max_examples=100)
@given(
    table_id=INT64,
    buckets=st.lists(st.tuples(st.none() | INT64, INT32, KEYS), max_size=4),
    insert_if_not_exists=st.none() | st.booleans(),
    acks=st.none() | INT32,
    timeout_ms=st.none() | INT32,
)
def test_request(table_id: int, buckets: list[tuple[int | None, int, list[bytes]]], **options: Any) -> None:
    message = pb.LookupRequest(table_id=table_id, **{k: v for k, v in options.items() if v is not None})
    for partition_id, bucket_id, keys in buckets:
        message.buckets_req.add(partition_id=partition_id, bucket_id=bucket_id, keys=keys)
    body = lm.encode_lookup(table_id, buckets, **options)
    assert body == message.SerializeToString()
    expected = lm.LookupRequest(table_id, [lm.LookupBucket(p, b, k) for p, b, k in buckets], **options)
    assert lm.decode_lookup(memoryview(body)) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(
            lm.LookedUpBucket,
            bucket_id=INT32,
            partition_id=st.none() | INT64,
            values=st.lists(VALUE, max_size=6),
            error_code=st.none() | INT32,
            error_message=st.none() | TEXT,
            original_partition_name=st.none() | TEXT,
        ),
        max_size=3,
    )
)
def test_response(buckets: list[lm.LookedUpBucket]) -> None:
    message = pb.LookupResponse()
    for bucket in buckets:
        message.buckets_resp.add(
            partition_id=bucket.partition_id,
            bucket_id=bucket.bucket_id,
            error_code=bucket.error_code,
            error_message=bucket.error_message,
            values=[pb.PbValue(values=value) for value in bucket.values],
            original_partition_name=bucket.original_partition_name,
        )
    body = lm.encode_lookup_response(buckets)
    assert body == message.SerializeToString()
    assert lm.decode_lookup_response(memoryview(body)) == buckets


def test_original_partition_name_of_a_request() -> None:
    message = pb.LookupRequest(table_id=1)
    message.buckets_req.add(bucket_id=2, keys=[b"k"], original_partition_name="2020")
    decoded = lm.decode_lookup(message.SerializeToString())
    assert decoded.buckets == [lm.LookupBucket(None, 2, [b"k"], "2020")]


def entry(value: bytes) -> bytes:
    return b"\x0a" + bytes([len(value) + 4]) + b"\x10\x00" + b"\x2a" + bytes([len(value)]) + value


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"\x10\x05", None),  # only a field we do not know
        (b"\x0a\x01a\x10\x05", b"a"),  # followed by one
        (b"\x10\x05\x0a\x01a", b"a"),  # preceded by one
        (b"\x0a\x01a\x0a\x01b", b"b"),  # given twice: the last one counts
        (b"\x0a\x81\x00a", b"a"),  # a length written longer than needed
    ],
)
def test_values_written_unusually(value: bytes, expected: bytes | None) -> None:
    body = entry(value)
    (bucket,) = lm.decode_lookup_response(body)
    assert bucket.values == [expected]
    assert pb.LookupResponse.FromString(body).buckets_resp[0].values[0].values == (expected or b"")


@pytest.mark.parametrize("value", [b"\x0a", b"\x0a\x05a", b"\x0a\x00\xff", b"\xff" * 12])
def test_broken_values(value: bytes) -> None:
    with pytest.raises(FormatError, match="an entry of values"):
        lm.decode_lookup_response(entry(value))


def test_broken_bodies() -> None:
    with pytest.raises(FormatError, match="not a valid LookupRequest"):
        lm.decode_lookup(b"\x08")
    with pytest.raises(FormatError, match="LookupRequest: required field missing: table_id"):
        lm.decode_lookup(b"")
    with pytest.raises(FormatError, match="not a valid LookupResponseView"):
        lm.decode_lookup_response(b"\x0a\x07")
    with pytest.raises(FormatError, match=r"error_message: text is not UTF-8"):
        lm.decode_lookup_response(b"\x0a\x05\x10\x00\x22\x01\xff")
