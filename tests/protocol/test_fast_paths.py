# SPDX-License-Identifier: Apache-2.0
"""Fast paths of the wire against the general ones. Run as a program it measures what they gain."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluss.protocol import fast_paths
from fluss.protocol import lookup_messages as lm
from fluss.protocol import messages as pb

INT32 = st.one_of(st.integers(-3, 300), st.integers(-(2**31), 2**31 - 1))
INT64 = st.one_of(st.integers(-3, 300), st.integers(-(2**63), 2**63 - 1))
MAYBE_INT64 = st.none() | INT64
RECORDS = st.binary(max_size=300)


@pytest.mark.parametrize("table_id", [0, 1, 127, 128, 129, 16383, 16384, 2**40, -1])
@pytest.mark.parametrize("bucket_id", [0, 127, 128, -1])
@pytest.mark.parametrize("size", [0, 1, 2, 100, 114, 115, 116, 117, 118, 119, 120, 121, 127, 128, 200])
def test_one_key_and_one_value(table_id: int, bucket_id: int, size: int) -> None:
    """The fast and the general path agree, also where one ends and the other begins."""
    message = pb.LookupRequest(table_id=table_id)
    message.buckets_req.add(bucket_id=bucket_id, keys=[b"k" * size])
    expected = lm.LookupRequest(table_id, [lm.LookupBucket(None, bucket_id, [b"k" * size])])
    body = message.SerializeToString()
    assert lm.decode_lookup(body) == expected
    fast = fast_paths.decode_lookup_of_one_key(memoryview(body))
    assert fast is None or fast == (table_id, bucket_id, b"k" * size)
    assert (fast is not None) == (0 <= table_id < 16384 and 0 <= bucket_id < 128 and 9 <= len(body) < 128)
    response = pb.LookupResponse()
    response.buckets_resp.add(bucket_id=bucket_id, values=[pb.PbValue(values=b"v" * size)])
    found = lm.LookedUpBucket(bucket_id, None, [b"v" * size])
    assert lm.encode_lookup_response([found]) == response.SerializeToString()
    if 0 <= bucket_id < 128:
        assert fast_paths.encode_lookup_of_one_value(bucket_id, b"v" * size) == (
            response.SerializeToString() if size < 120 else None
        )
        nothing = [lm.LookedUpBucket(bucket_id, None, [None])]
        assert fast_paths.encode_lookup_of_one_value(bucket_id, None) == lm.encode_lookup_response(nothing)


def test_the_fast_path_is_taken_for_short_requests_alone() -> None:
    assert fast_paths.decode_lookup_of_one_key(lm.encode_lookup(300, [(None, 3, [b"key"])])) == (300, 3, b"key")
    for longer in (
        lm.encode_lookup(300, [(None, 3, [b"key", b"two"])]),
        lm.encode_lookup(300, [(9, 3, [b"key"])]),
        lm.encode_lookup(300, [(None, 3, [b"key"]), (None, 4, [b"key"])]),
        lm.encode_lookup(300, [(None, 3, [b"key"])], acks=1),
        lm.encode_lookup(300, [(None, 3, [])]),
    ):
        assert fast_paths.decode_lookup_of_one_key(longer) is None


@settings(max_examples=300)
@given(data=st.binary(min_size=9, max_size=16), place=st.integers(0, 15), byte=st.integers(0, 255))
def test_the_fast_path_reads_what_the_parser_reads(data: bytes, place: int, byte: int) -> None:
    good = bytearray(lm.encode_lookup(300, [(None, 3, [data[:3]])]))
    good[place % len(good)] = byte
    for candidate in (data, bytes(good)):
        fast = fast_paths.decode_lookup_of_one_key(candidate)
        if fast is not None:
            message = pb.LookupRequest.FromString(candidate)
            [bucket] = message.buckets_req
            assert fast == (message.table_id, bucket.bucket_id, *bucket.keys)
