# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluss.errors import FormatError
from fluss.protocol import messages as pb
from fluss.protocol import wire


@given(st.integers(-(2**63), 2**64 - 1))
def test_varints_round_trip(value: int) -> None:
    data = memoryview(wire.encode_varint(value))
    assert wire.read_varint(data, 0, len(data), "it") == (value & (2**64 - 1), len(data))


@pytest.mark.parametrize(("value", "text"), [(0, "00"), (127, "7f"), (128, "8001"), (-1, "ffffffffffffffffff01")])
def test_varint_bytes(value: int, text: str) -> None:
    assert wire.encode_varint(value).hex() == text


def test_numbers_are_cut_to_their_width() -> None:
    assert wire.as_int32(0xFFFF_FFFF_FFFF_FFFF) == -1
    assert wire.as_int32(0x1_0000_0005) == 5
    assert wire.as_int64(0x8000_0000_0000_0000) == -(2**63)


def test_text_that_cannot_be_sent_is_replaced() -> None:
    assert wire.string_field(2, "a\udc00") == b"\x12\x02a?"


def test_parse_message_reads_any_buffer() -> None:
    body = pb.ListTablesRequest(database_name="fluss").SerializeToString()
    for buffer in (body, bytearray(body), memoryview(body)):
        assert wire.parse_message(pb.ListTablesRequest, buffer).database_name == "fluss"


def test_parse_message_names_what_is_missing() -> None:
    body = pb.CreateTableRequest(table_json=b"{}", table_path=pb.PbTablePath(database_name="d"))
    with pytest.raises(FormatError, match="CreateTableRequest: required field missing: ") as caught:
        wire.parse_message(pb.CreateTableRequest, body.SerializePartialToString())
    assert "table_path.table_name" in caught.value.message
    assert "ignore_if_exists" in caught.value.message
    assert wire.parse_message(pb.TableExistsResponse, b"", require_all=False).exists is False


@given(
    st.lists(st.integers(0, 2**63 - 1), max_size=40),
    st.lists(st.lists(st.binary(max_size=3), max_size=4), max_size=4),
)
def test_parse_message_counts_items(numbers: list[int], buckets: list[list[bytes]]) -> None:
    """Elements of lists, packed or not and nested ones too, and nested messages: exactly as many as there are."""
    metadata = pb.MetadataRequest(partitions_id=numbers)
    lookup = pb.LookupRequest(table_id=1)
    for keys in buckets:
        lookup.buckets_req.add(bucket_id=2**31 - 1, keys=keys)
    one_by_one = b"".join(wire.int_field(3, number) for number in numbers)
    for message_type, body, count in (
        (pb.MetadataRequest, metadata.SerializeToString(), len(numbers)),
        (pb.MetadataRequest, one_by_one, len(numbers)),
        (pb.LookupRequest, lookup.SerializeToString(), len(buckets) + sum(map(len, buckets))),
    ):
        wire.parse_message(message_type, body, items_max=count)
        if count:
            with pytest.raises(FormatError, match=rf"has more than {count - 1} items; send several requests"):
                wire.parse_message(message_type, body, items_max=count - 1)


def test_parse_message_counts_nested_messages() -> None:
    """One that occurs again and again without being a list costs as much as the elements of a list."""
    body = wire.length_prefix(3, 0) * 20
    with pytest.raises(FormatError, match="PbPredicate has more than 19 items"):
        wire.parse_message(pb.PbPredicate, body, items_max=19)
    assert wire.parse_message(pb.PbPredicate, body, require_all=False, items_max=20).HasField("compound")


def test_parse_message_refuses_numbers_that_are_repeated_without_end() -> None:
    """They are no items, yet each of them has to be looked at; in many messages, too."""
    bucket = wire.bytes_field(2, b"\x10\x00" * 134_000)
    with pytest.raises(FormatError, match="LookupRequest has more than 400000 fields; send several requests"):
        wire.parse_message(pb.LookupRequest, b"\x08\x01" + bucket * 3, items_max=10)
    assert len(wire.parse_message(pb.LookupRequest, b"\x08\x01" + bucket * 2, items_max=2).buckets_req) == 2


def test_parse_message_refuses_noise() -> None:
    with pytest.raises(FormatError, match="Body of 2 bytes is not a valid ListTablesRequest"):
        wire.parse_message(pb.ListTablesRequest, b"\x0a\x09")


@pytest.mark.parametrize(
    ("message_type", "body", "where"),
    [
        (pb.ListTablesRequest, b"\x0a\x01\xff", "ListTablesRequest.database_name"),
        (pb.ListTablesResponse, b"\x0a\x01a\x0a\x01\xff", r"ListTablesResponse.table_name\[1\]"),
        (pb.TableExistsRequest, b"\x0a\x06\x0a\x01\xff\x12\x01t", "TableExistsRequest.table_path.database_name"),
        (
            pb.MetadataRequest,
            b"\x0a\x06\x0a\x01a\x12\x01t\x0a\x06\x0a\x01a\x12\x01\xff",
            r"MetadataRequest.table_path\[1\].table_name",
        ),
    ],
)
def test_parse_message_refuses_text_that_is_not_utf8(message_type: type, body: bytes, where: str) -> None:
    with pytest.raises(FormatError, match=f"{where}: text is not UTF-8"):
        wire.parse_message(message_type, body)


def test_text_inside_a_message_that_contains_itself() -> None:
    literal = b"\x08\x08\x10\x00\x42\x01\xff"
    leaf = b"\x08\x00\x10\x00\x1a" + bytes([len(literal)]) + literal
    predicate = b"\x08\x00\x12" + bytes([len(leaf)]) + leaf
    for _ in range(3):
        compound = b"\x08\x00\x12" + bytes([len(predicate)]) + predicate
        predicate = b"\x08\x01\x1a" + bytes([len(compound)]) + compound
    with pytest.raises(FormatError, match=r"string_value: text is not UTF-8"):
        wire.parse_message(pb.PbPredicate, predicate)


def test_nesting_has_a_limit() -> None:
    body = b""
    for _ in range(2000):
        compound = b"\x12" + wire.encode_varint(len(body)) + body
        body = b"\x1a" + wire.encode_varint(len(compound)) + compound
    with pytest.raises(FormatError, match="not a valid PbPredicate"):
        wire.parse_message(pb.PbPredicate, body)


def test_fields_are_found_in_older_and_newer_runtimes() -> None:
    class OldField:
        label = 3

    class NewField:
        is_repeated = True

    assert wire._is_repeated(OldField())  # type: ignore[arg-type]
    assert wire._is_repeated(NewField())  # type: ignore[arg-type]
