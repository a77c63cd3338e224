# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.records import vectors
from tests.records.tables import ID_NAME, to_batch

from fluss.errors import CorruptMessageError, FormatError, InvalidArgumentError
from fluss.records import (
    LogBatch,
    LogBatchHeader,
    encode_arrow_body,
    iter_log_batches,
    patch_batch,
    read_header,
    seal_log_batch,
)
from fluss.records._bytes import as_view, checksum
from fluss.records.log_batch import EncodedBody, NeedMoreBytes, crc_fits, read_span

UNPROJECTED = {name: data for name, data in vectors.LOG_BATCHES.items() if "PROJECTED" not in name}


def test_checksum_is_castagnoli() -> None:
    assert checksum([b"12345", memoryview(b"6789")]) == 0xE3069283


@pytest.mark.parametrize("name", vectors.LOG_BATCHES)
def test_headers_are_read_and_written_byte_for_byte(name: str) -> None:
    data = vectors.LOG_BATCHES[name]
    header = read_header(data)
    assert header.size_bytes == len(data)
    assert header.pack() == data[: header.header_size]
    assert (header.base_offset, header.schema_id, header.writer_id) == (0, 1, 7)
    assert header.commit_timestamp_ms == 0
    assert header.leader_epoch == -1


@pytest.mark.parametrize("name", UNPROJECTED)
def test_checksums_fit(name: str) -> None:
    batch = LogBatch(UNPROJECTED[name])
    batch.verify_crc()
    assert batch.crc_is_valid


def test_stale_checksum_of_a_projected_batch_is_seen() -> None:
    batch = LogBatch(vectors.PROJECTED)
    assert not batch.crc_is_valid
    with pytest.raises(CorruptMessageError, match="base offset 0 is damaged"):
        batch.verify_crc()


@pytest.mark.parametrize("name", UNPROJECTED)
@pytest.mark.parametrize("bit", [0, 7])
def test_every_flipped_bit_behind_the_checksum_is_seen(name: str, bit: int) -> None:
    data = bytearray(UNPROJECTED[name])
    start = read_header(data).schema_id_position
    for position in range(start, len(data)):
        data[position] ^= 1 << bit
        assert checksum([memoryview(data)[start:]]) != read_header(UNPROJECTED[name]).crc
        data[position] ^= 1 << bit


def test_offsets_and_sections() -> None:
    header = read_header(vectors.V1_STATISTICS)._replace(base_offset=100)
    assert (header.last_offset, header.next_offset, header.append_only) == (101, 102, False)
    batch = LogBatch(vectors.V1_STATISTICS)
    assert batch.statistics_view is not None
    assert len(batch.statistics_view) == 71
    assert bytes(batch.records_view[:6]) == b"\0\0\xff\xff\xff\xff"
    assert bytes(batch.arrow_view[:4]) == b"\xff\xff\xff\xff"
    assert LogBatch(vectors.V2).statistics_view is None
    empty = read_header(vectors.EMPTY)
    assert (empty.last_offset, empty.next_offset, empty.batch_sequence) == (0, 1, 3)


def test_change_types() -> None:
    assert LogBatch(vectors.ARROW_PLAIN).change_types() is None
    changelog = LogBatch(vectors.CHANGELOG).change_types()
    assert changelog.tolist() == [2, 3]
    compacted = LogBatch(vectors.COMPACTED).change_types("COMPACTED")
    assert compacted.tolist() == [1, 1]
    assert LogBatch(vectors.INDEXED).change_types("INDEXED") is None
    broken = bytearray(vectors.CHANGELOG)
    broken[49] = 9
    with pytest.raises(FormatError, match="change type of record 1 at byte 48: 9 is not a change type"):
        LogBatch(broken).change_types()


def test_change_types_that_do_not_fit() -> None:
    header = read_header(vectors.CHANGELOG)._replace(record_count=10_000)
    batch = LogBatch(header.pack() + vectors.CHANGELOG[48:])
    with pytest.raises(FormatError, match="change types at byte 48"):
        batch.change_types()
    with pytest.raises(FormatError, match="change types at byte 48"):
        _ = batch.arrow_view


def test_patching_leaves_the_checksum_valid() -> None:
    for name, data in UNPROJECTED.items():
        buffer = bytearray(b"xx" + data)
        patch_batch(buffer, 2, 2**40, 1_700_000_000_000)
        batch = LogBatch(memoryview(buffer)[2:])
        batch.verify_crc()
        assert (batch.header.base_offset, batch.header.commit_timestamp_ms) == (2**40, 1_700_000_000_000), name
    with pytest.raises(InvalidArgumentError, match="no log batch at byte 1"):
        patch_batch(bytearray(20), 1, 0, 0)


def test_walking_through_batches() -> None:
    names = list(UNPROJECTED)
    joined = b"".join(UNPROJECTED[name] for name in names)
    for strict in (False, True):
        batches = list(iter_log_batches(joined, verify=True, strict=strict))
        assert [batch.view.tobytes() for batch in batches] == [UNPROJECTED[name] for name in names]
    assert list(iter_log_batches(b"")) == []


def test_cut_tails_end_the_walk() -> None:
    whole = vectors.ARROW_PLAIN
    for cut in range(len(vectors.V2)):
        data = whole + vectors.V2[:cut]
        assert len(list(iter_log_batches(data))) == 1
        if cut:
            with pytest.raises(CorruptMessageError, match="byte 304 is cut"):
                list(iter_log_batches(data, strict=True))


def test_walk_refuses_what_cannot_be() -> None:
    short = bytearray(vectors.ARROW_PLAIN)
    short[8:12] = (10).to_bytes(4, "little")
    with pytest.raises(FormatError, match="length at byte 8: 10"):
        list(iter_log_batches(short))
    with pytest.raises(CorruptMessageError, match="length at byte 8: 10"):
        list(iter_log_batches(short, strict=True))
    damaged = bytearray(vectors.ARROW_PLAIN)
    damaged[-1] ^= 1
    with pytest.raises(CorruptMessageError, match="damaged"):
        list(iter_log_batches(damaged, verify=True))
    unknown = bytearray(vectors.ARROW_PLAIN * 2)
    unknown[304 + 12] = 3
    with pytest.raises(FormatError, match=r"byte 304.*version 3 is not known"):
        list(iter_log_batches(unknown))
    delta = bytearray(vectors.ARROW_PLAIN)
    delta[28:32] = (5).to_bytes(4, "little")
    assert len(list(iter_log_batches(delta))) == 1
    with pytest.raises(CorruptMessageError, match="2 records but a last offset delta of 5"):
        list(iter_log_batches(delta, strict=True))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"length": 35}, "length at byte 8"),
        ({"magic": 1, "length": 39}, "length at byte 8"),
        ({"base_offset": -1}, "base offset at byte 0"),
        ({"record_count": -1}, "record count at byte 44"),
        ({"last_offset_delta": -1}, "last offset delta at byte 28"),
        ({"magic": 1, "statistics_length": -1}, "statistics length at byte 48"),
        ({"magic": 2, "statistics_length": 10**6}, "statistics length at byte 52"),
        ({"magic": 2, "record_count": -1}, "record count at byte 48"),
    ],
)
def test_impossible_headers(changes: dict[str, int], message: str) -> None:
    header = read_header(vectors.ARROW_PLAIN)._replace(**changes)
    with pytest.raises(FormatError, match=message):
        read_header(header.pack() + bytes(300))


def test_headers_that_are_cut() -> None:
    for size in range(48):
        with pytest.raises(FormatError, match=f"{size} bytes are too few"):
            read_header(vectors.ARROW_PLAIN[:size])
    for data in (vectors.V1_STATISTICS[:51], vectors.V2[:55]):
        with pytest.raises(FormatError, match="too few for a header of magic"):
            read_header(data)
    with pytest.raises(FormatError, match="too few"):
        read_header(vectors.ARROW_PLAIN, -1)
    with pytest.raises(FormatError, match="the batch says 304 bytes, 303 are there"):
        LogBatch(vectors.ARROW_PLAIN[:303])
    assert LogBatch(vectors.ARROW_PLAIN + b"more").view.tobytes() == vectors.ARROW_PLAIN


def test_repr_says_what_it_is() -> None:
    assert repr(LogBatch(vectors.V2)) == "LogBatch(offsets 0..1, 2 records, 312 bytes, magic 2, schema 1)"


@given(
    st.integers(0, 2),
    st.integers(0, 2**15 - 1),
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**31 - 1),
    st.integers(0, 2**31 - 1),
    st.booleans(),
    st.binary(max_size=40),
    st.binary(max_size=40),
)
def test_headers_round_trip(
    magic: int,
    schema_id: int,
    writer_id: int,
    sequence: int,
    count: int,
    append_only: bool,
    statistics: bytes,
    records: bytes,
) -> None:
    body = EncodedBody([records], len(records), count, append_only, statistics if magic else None)
    data = b"".join(
        seal_log_batch(body, schema_id=schema_id, writer_id=writer_id, batch_sequence=sequence, magic=magic)
    )
    batch = LogBatch(data)
    batch.verify_crc()
    header = batch.header
    assert header == LogBatchHeader(
        base_offset=0,
        length=len(data) - 12,
        magic=magic,
        commit_timestamp_ms=0,
        leader_epoch=-1,
        crc=header.crc,
        schema_id=schema_id,
        attributes=int(append_only),
        last_offset_delta=max(count - 1, 0),
        writer_id=writer_id,
        batch_sequence=sequence,
        record_count=count,
        statistics_length=len(statistics) if magic else 0,
    )
    assert batch.records_view.tobytes() == records
    assert (batch.statistics_view or b"") == (statistics if magic else b"")


def test_batches_that_cannot_be_sealed() -> None:
    body = EncodedBody([], 0, 0, True, b"x")
    with pytest.raises(InvalidArgumentError, match="magic 0 has no room for statistics"):
        seal_log_batch(body, schema_id=1, magic=0)
    with pytest.raises(InvalidArgumentError, match="magic 3 is not known"):
        seal_log_batch(body, schema_id=1, magic=3)
    with pytest.raises(InvalidArgumentError, match="schema id 32768"):
        seal_log_batch(body, schema_id=2**15)
    with pytest.raises(InvalidArgumentError, match="too large"):
        seal_log_batch(EncodedBody([], 2**31, 0, True), schema_id=1)


def test_views_of_any_buffer() -> None:
    array = np.arange(6, dtype=np.int32)
    assert as_view(array).tobytes() == array.tobytes()
    assert as_view(array[::2]).tobytes() == array[::2].tobytes()
    assert as_view(array.reshape(2, 3)).tobytes() == array.tobytes()
    assert as_view(np.arange(3, dtype=np.int8)).format == "B"
    view = memoryview(b"abc")
    assert as_view(view) is view or as_view(view) == view


BATCH = to_batch(ID_NAME, [(1, "one"), (2, "two")])


def sealed(magic: int, statistics: bytes | None = None) -> bytes:
    body = encode_arrow_body(BATCH, statistics=statistics)
    return b"".join(seal_log_batch(body, schema_id=3, writer_id=7, batch_sequence=2, magic=magic))


SEALED = [*vectors.LOG_BATCHES.values(), sealed(0), sealed(1, b"statistics"), sealed(2, b"statistics"), sealed(2)]


@pytest.mark.parametrize("data", SEALED, ids=range(len(SEALED)))
def test_spans_and_headers_agree(data: bytes) -> None:
    view = memoryview(b"before" + data + b"after")
    span = read_span(view, 6)
    header = LogBatch(data).header
    assert (span.start, span.end) == (6, 6 + header.size_bytes)
    assert (span.base_offset, span.last_offset) == (header.base_offset, header.last_offset)
    assert (span.timestamp, span.writer_id, span.sequence) == (
        header.commit_timestamp_ms, header.writer_id, header.batch_sequence,
    )  # fmt: skip
    assert (span.record_count, span.schema_id, span.statistics_length) == (
        header.record_count, header.schema_id, header.statistics_length,
    )  # fmt: skip
    assert (span.crc, span.crc_start) == (header.crc, 6 + header.schema_id_position)
    assert crc_fits(view, span) == LogBatch(data).crc_is_valid


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_every_changed_byte_of_a_header_is_seen_alike(magic: int) -> None:
    data = sealed(magic)
    for at in range(LogBatch(data).header.header_size):
        for value in (0x00, 0x01, 0x7F, 0x80, 0xFF):
            changed = bytearray(data)
            changed[at] = value
            try:
                header = LogBatch(changed).header
            except FormatError:
                with pytest.raises((FormatError, NeedMoreBytes)):
                    read_span(memoryview(changed), 0)
            else:
                assert read_span(memoryview(changed), 0).end == header.size_bytes


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_cut_batches_say_what_they_need(magic: int) -> None:
    data = sealed(magic)
    for size in range(len(data)):
        with pytest.raises(NeedMoreBytes) as caught:
            read_span(memoryview(data)[:size], 0)
        assert size < caught.value.size_bytes <= len(data)
