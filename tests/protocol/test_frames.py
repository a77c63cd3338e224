# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.shared import raising

from fluss.errors import FormatError
from fluss.protocol import frames


def with_length(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def test_request_round_trip() -> None:
    parts = frames.encode_request(1016, 2, 77, [b"ab", memoryview(b"cd"), bytearray(b"e")])
    assert b"".join(parts) == bytes.fromhex("0000000d03f800020000004d") + b"abcde"
    assert frames.parse_request(memoryview(b"".join(parts)[4:])) == (1016, 2, 77, b"abcde")


def test_body_parts_are_not_copied() -> None:
    body = bytearray(b"x" * 1000)
    assert frames.encode_request(1014, 0, 1, [body])[1] is body
    assert frames.encode_response(1, [body])[1] is body


def test_size_counts_bytes_not_items() -> None:
    words = memoryview(struct.pack("<4q", 1, 2, 3, 4)).cast("q")
    assert frames.body_size([words, b"abc"]) == 35


class HugeBuffer(bytearray):
    """Claims a size no test machine should allocate."""

    def __len__(self) -> int:
        return frames.FRAME_BYTES_MAX


def test_frames_beyond_int32_are_refused() -> None:
    with pytest.raises(FormatError, match="cannot be sent"):
        frames.encode_request(1014, 0, 1, [HugeBuffer()])
    with pytest.raises(FormatError, match="cannot be sent"):
        frames.encode_response(1, [HugeBuffer()])


def test_server_failure_has_no_request_id() -> None:
    data = b"".join(frames.encode_server_failure(-1, "out of order"))
    assert data[4] == 2
    response = frames.parse_response(memoryview(data)[4:])
    assert (response.kind, response.request_id) == (frames.ResponseKind.SERVER_FAILURE, -1)
    assert frames.parse_error(response.body) == (-1, "out of order")


def test_error_text_is_cut_and_made_sendable() -> None:
    (data,) = frames.encode_error(1, 7, "a" * 5000)
    assert frames.parse_error(frames.parse_response(memoryview(data)[4:]).body) == (7, "a" * 2048)
    (data,) = frames.encode_error(1, 7, "file \udcff")
    assert frames.parse_error(frames.parse_response(memoryview(data)[4:]).body) == (7, "file ?")


@pytest.mark.parametrize("size", range(8))
def test_short_requests_are_refused(size: int) -> None:
    with pytest.raises(FormatError, match=f"of {size} bytes is shorter"):
        frames.parse_request(memoryview(bytes(size)))


@pytest.mark.parametrize("payload", [b"", b"\0", b"\0\0\0\0", b"\1\0\0\0", b"\x03\0"])
def test_short_responses_are_refused(payload: bytes) -> None:
    with pytest.raises(FormatError, match="shorter than its 5-byte header"):
        frames.parse_response(memoryview(payload))


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(FormatError, match="unknown kind 255 at position 0"):
        frames.parse_response(memoryview(b"\xff\0\0\0\1abc"))


@pytest.mark.parametrize("body", [b"\x08", b"\x12\x05ab"])
def test_broken_error_body(body: bytes) -> None:
    with pytest.raises(FormatError, match="not a valid ErrorResponse"):
        frames.parse_error(body)


def test_error_message_that_is_no_text() -> None:
    assert frames.parse_error(b"\x08\x07\x12\x02a\xfe") == (7, "a\ufffd")


@settings(max_examples=150)
@given(
    payloads=st.lists(st.binary(min_size=1, max_size=300), max_size=12),
    cuts=st.lists(st.integers(1, 200), min_size=1, max_size=20),
    buffer_bytes=st.integers(4, 128),
)
def test_any_cutting_yields_the_same_frames(payloads: list[bytes], cuts: list[int], buffer_bytes: int) -> None:
    """Driven as a BufferedProtocol is: the socket writes as much as it likes into the buffer it gets."""
    reader = frames.FrameReader(buffer_bytes=buffer_bytes)
    stream = memoryview(b"".join(map(with_length, payloads)))
    found: list[memoryview] = []
    step = 0
    while len(stream) > 0:
        target = reader.get_buffer(-1)
        count = min(len(target), len(stream), cuts[step % len(cuts)])
        assert count > 0
        target[:count] = stream[:count]
        found += reader.buffer_updated(count)
        stream = stream[count:]
        step += 1
    assert [bytes(frame) for frame in found] == payloads
    assert not reader.in_frame
    assert reader.buffered_bytes == 0


def test_frames_may_be_kept() -> None:
    reader = frames.FrameReader()
    first = reader.feed(with_length(b"first"))[0]
    for _ in range(100):
        reader.feed(with_length(b"x" * 1000))
    assert first == b"first"


def test_in_frame_tells_when_bytes_would_be_lost() -> None:
    reader = frames.FrameReader(buffer_bytes=16)
    assert not reader.in_frame
    reader.feed(b"\0\0")
    assert reader.in_frame
    assert reader.buffered_bytes == 2
    reader.feed(b"\0\x64" + bytes(10))
    assert reader.in_frame
    assert reader.buffered_bytes == 10
    assert reader.feed(bytes(90)) == [bytes(100)]
    assert not reader.in_frame


def test_a_large_frame_is_received_in_place() -> None:
    size = 10_000_000
    reader = frames.FrameReader()
    chunk = memoryview(bytes(range(256)) * 1024)
    tracemalloc.start()
    try:
        reader.feed(struct.pack(">i", size))
        received = 0
        frame: list[memoryview] = []
        while not frame:
            target = reader.get_buffer()
            count = min(len(target), len(chunk), size - received)
            target[:count] = chunk[:count]
            received += count
            frame = reader.buffer_updated(count)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(frame[0]) == size
    assert np.array_equal(np.frombuffer(frame[0], np.uint8)[:262144], np.frombuffer(chunk, np.uint8))
    assert peak_bytes < size * 1.1


@pytest.mark.parametrize("length", [-1, -(2**31), 0, 7, 1025, 2**31 - 1])
def test_lengths_outside_the_limits(length: int) -> None:
    reader = frames.FrameReader(1024, frame_bytes_min=8)
    reader.feed(with_length(bytes(100)))
    with pytest.raises(FormatError, match=f"Frame length {length} at position 104"):
        reader.feed(struct.pack(">i", length))
    with pytest.raises(FormatError, match="Frame length"):
        reader.get_buffer()
    with pytest.raises(FormatError, match="Frame length"):
        reader.buffer_updated(1)


def test_an_announced_giant_costs_nothing_until_it_comes() -> None:
    reader = frames.FrameReader()
    before = _resident_bytes()
    reader.feed(struct.pack(">i", 1_000_000_000))
    assert _resident_bytes() - before < 50_000_000


def _resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096


def test_no_memory_is_an_error_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numpy.empty", raising(MemoryError))
    reader = frames.FrameReader()
    with pytest.raises(FormatError, match="no memory for a frame of 500000 bytes"):
        reader.feed(struct.pack(">i", 500_000))


def test_buffer_must_hold_a_length() -> None:
    with pytest.raises(ValueError, match="at least 4"):
        frames.FrameReader(buffer_bytes=3)


@pytest.mark.parametrize("lead", range(9))
def test_a_large_frame_lies_where_its_reader_wants_it(lead: int) -> None:
    reader = frames.FrameReader(buffer_bytes=64, align=lambda head, length: lead)
    payload = bytes(range(256)) * 4
    (frame,) = reader.feed(len(payload).to_bytes(4, "big") + payload)
    assert bytes(frame) == payload
    assert (np.frombuffer(frame, np.uint8).ctypes.data + lead) % 8 == 0


def test_after_a_large_frame_little_is_taken_at_first() -> None:
    """The next one is probably large as well, and is then received where it belongs."""
    reader = frames.FrameReader(buffer_bytes=4096)
    large = bytes(range(250)) * 40
    framed = len(large).to_bytes(4, "big") + large
    assert len(reader.get_buffer()) == 4096
    assert [bytes(frame) for frame in reader.feed(framed)] == [large]
    assert len(reader.get_buffer()) == 1024
    assert reader.missing_bytes == 0
    assert reader.feed(framed[:900]) == []
    assert reader.missing_bytes == len(large) - 896
    assert [bytes(frame) for frame in reader.feed(framed[900:] + b"\x00\x00\x00\x03abc")] == [large, b"abc"]
    assert len(reader.get_buffer()) == 4096


def test_a_frame_that_is_not_admitted_waits_without_memory() -> None:
    asked: list[int] = []
    allocated: list[int] = []

    def allocate(size: int) -> memoryview:
        allocated.append(size)
        return memoryview(bytearray(size))

    reader = frames.FrameReader(buffer_bytes=64, allocate=allocate, admit=lambda size: asked.append(size) or size < 200)
    data = b"".join(struct.pack(">i", size) + bytes([size % 251]) * size for size in (10, 100, 300))
    found = reader.feed(data[:14])
    found += reader.feed(data[14:118])
    head = data[118:138]
    reader.get_buffer()[: len(head)] = head
    found += reader.buffer_updated(len(head))
    assert [len(frame) for frame in found] == [10, 100]
    assert (asked, allocated) == ([100, 300], [100])
    assert (reader.blocked_bytes, reader.in_frame, reader.in_large) == (300, True, False)
    reader.unblock()
    assert (reader.blocked_bytes, reader.in_large, allocated) == (0, True, [100, 300])
    [last] = reader.feed(data[138:])
    assert bytes(last) == bytes([300 % 251]) * 300
    reader.close()
    with pytest.raises(FormatError, match="closed"):
        reader.get_buffer()


@pytest.mark.parametrize("step", [1, 3, 64, 1000])
def test_the_shared_buffer_grows_when_it_is_used(step: int) -> None:
    reader = frames.FrameReader(buffer_bytes=16)
    reader.set_limits(frames.FRAME_BYTES_MAX, 256)
    assert len(reader.get_buffer()) == 16
    sizes = [1, 5, 12, 13, 100, 252, 253, 1000, 3]
    data = b"".join(struct.pack(">i", size) + bytes([size % 251]) * size for size in sizes)
    found: list[memoryview] = []
    for at in range(0, len(data), step):
        found += reader.feed(data[at : at + step])
    assert [bytes(frame) for frame in found] == [bytes([size % 251]) * size for size in sizes]


def test_limits_change_for_the_frames_to_come() -> None:
    reader = frames.FrameReader(100, buffer_bytes=16)
    assert len(reader.feed(struct.pack(">i", 100) + bytes(100))) == 1
    reader.set_limits(1000, 64)
    assert len(reader.feed(struct.pack(">i", 1000) + bytes(1000))) == 1
    with pytest.raises(FormatError, match="1001"):
        reader.feed(struct.pack(">i", 1001))


def test_small_parts_are_joined_and_large_ones_stay() -> None:
    large = bytes(10_000)
    opaque = object()  # a part of a file
    parts = [b"a", memoryview(b"b"), large, b"c", opaque, b"d", *[bytes(1000)] * 100, bytearray(b"e")]
    joined = frames.join_small_parts(parts)  # type: ignore[arg-type]
    assert joined[:5] == [b"ab", large, b"c", opaque, b"d" + bytes(66_000)]
    assert joined[1] is large
    assert joined[5:] == [bytes(34_000), bytearray(b"e")]
    assert frames.join_small_parts([]) == []
