# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.server.log_support import LogHarness, make_batch

from fluss.errors import FormatError
from fluss.records.log_batch import TIMESTAMP_POSITION
from fluss.server.log import writers
from fluss.server.log.files import OpenFiles
from fluss.server.log.recovery import RecoveryPoint
from fluss.server.log.segment import INT32_MAX, LogSettings, Segment, SegmentIndex
from fluss.server.log.writers import SEQUENCE_MAX, WriterStates, WrittenBatch


def sample() -> SegmentIndex:
    index = SegmentIndex()
    index.append(4, 100, 1000, 2)
    index.append(9, 250, 1000, 7)
    index.append(12, 400, 1005, 10)
    return index


def test_files_have_the_layout_of_the_remote_log() -> None:
    index = sample()
    assert index.offset_file() == struct.pack(">6i", 4, 100, 9, 250, 12, 400)
    assert index.time_file() == struct.pack(">qiqiqi", 1000, 2, 1000, 7, 1005, 10)


def test_floor_and_time_lookup() -> None:
    index = sample()
    assert index.floor(3) is None
    assert index.floor(4) == (4, 100)
    assert index.floor(8) == (4, 100)
    assert index.floor(100) == (12, 400)
    assert index.before_timestamp(1000) is None
    assert index.before_timestamp(1001) == (9, 250)
    assert index.before_timestamp(9999) == (12, 400)


def test_files_are_read_back_and_truncated() -> None:
    index = sample()
    again = SegmentIndex.parse(index.offset_file(), index.time_file(), 500)
    assert again.offset_file() == index.offset_file()
    assert again.time_file() == index.time_file()
    again.truncate(250)
    assert len(again) == 1


@pytest.mark.parametrize("limit", [400, 100])
def test_positions_beyond_the_file_are_refused(limit: int) -> None:
    index = sample()
    assert SegmentIndex.parse(index.offset_file(), index.time_file(), limit) is None


@given(st.binary(max_size=64), st.binary(max_size=96))
def test_any_bytes_are_an_index_or_refused(offsets: bytes, times: bytes) -> None:
    index = SegmentIndex.parse(offsets, times, 1 << 20)
    if index is not None:
        assert list(index.positions) == sorted(set(index.positions))
        assert (index.offset_file(), index.time_file()) == (offsets, times)


writer_batches = st.builds(
    WrittenBatch, st.integers(0, 2**31 - 1), st.integers(0, 2**40), st.integers(0, 1000), st.integers(0, 2**41)
)


@given(st.dictionaries(st.integers(0, 2**40), st.lists(writer_batches, min_size=1, max_size=8), max_size=5))
def test_writer_snapshot_round_trip(written: dict[int, list[WrittenBatch]]) -> None:
    states = WriterStates()
    for writer, batches in written.items():
        for batch in batches:
            states.record(writer, batch)
    again = WriterStates.from_snapshot(states.to_snapshot())
    assert again.to_snapshot() == states.to_snapshot()
    for writer, batches in written.items():
        assert again.last_sequence(writer) == batches[-1].sequence


def test_the_next_batch_of_a_writer() -> None:
    states = WriterStates()
    assert not states.is_next(3, 0)  # not known: another check tells
    states.record(3, WrittenBatch(SEQUENCE_MAX - 1, 5, 2, 99))
    assert states.is_next(3, SEQUENCE_MAX)
    assert not states.is_next(3, SEQUENCE_MAX - 1)
    assert not states.is_next(4, SEQUENCE_MAX)
    states.record(3, WrittenBatch(SEQUENCE_MAX, 6, 0, 99))
    assert not states.is_next(3, 0)  # it is, but numbers restart only after a closer look
    states.check_follows(3, 0, states.last_sequence(3))


def test_room_in_a_segment(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 100, LogSettings(segment_bytes_max=1000, index_bytes_max=24), OpenFiles())
    segment.create()
    assert segment.has_room(5000, 2**40)  # the first batch always finds a place
    segment.size_bytes = 600
    assert segment.has_room(400, 100 + INT32_MAX)
    assert not segment.has_room(401, 200)
    assert not segment.has_room(400, 101 + INT32_MAX)
    segment.index.append(1, 0, 1, 0)
    assert segment.has_room(400, 200)
    segment.index.append(2, 300, 1, 2)
    assert not segment.has_room(400, 200)


@given(st.data())
def test_damaged_snapshot_is_refused(data: st.DataObject) -> None:
    states = WriterStates()
    states.record(3, WrittenBatch(0, 5, 2, 99))
    for good in (states.to_snapshot(), RecoveryPoint(0, 100, 7, 99, 0).to_bytes()):
        raw = bytearray(good)
        raw[data.draw(st.integers(0, len(raw) - 2))] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(FormatError):
            WriterStates.from_snapshot(bytes(raw))
        with pytest.raises(FormatError):
            RecoveryPoint.from_bytes(bytes(raw))


def test_open_files_are_forgotten_by_folder(tmp_path: Path) -> None:
    files = OpenFiles(handles_max=8)
    paths = {}
    for number in range(4):
        folder = tmp_path / f"log-{number}"
        folder.mkdir()
        paths[folder] = folder / "a"
        files.get(folder / "a", create=True)
    first, second, *others = paths
    files.evict(paths[first])
    files.evict_under(first)  # nothing is left there
    files.evict_under(second)
    files.evict_under(tmp_path)  # folders below it are not meant
    assert [path in files for path in paths.values()] == [False, False, True, True]
    assert files.handle_count == 2
    for number in range(8):  # more than are kept open: the oldest make room
        files.get(others[0] / f"b{number}", create=True)
    assert paths[others[1]] not in files
    files.evict_under(others[1])
    files.evict_under(others[0])
    assert files.handle_count == 0
    assert not files._files
    assert not files._paths


def test_indexes_of_closed_segments_are_freed_when_they_are_not_used(tmp_path: Path) -> None:
    """Otherwise a server takes more memory with every GB that is written to it."""
    harness = LogHarness(tmp_path / "log", segment_bytes_max=2_000, index_interval_bytes=0)
    for number in range(0, 60, 3):
        harness.write(make_batch(number))
    log = harness.log
    *closed, active = log.segments
    before = [segment.index.offset_file() + segment.index.time_file() for segment in closed]
    assert len(closed) == 3

    def look() -> list[bool]:
        for segment in log.segments:
            segment.release_idle_index()
        return [segment.index_is_loaded for segment in closed]

    harness.commit(checkpoint=True)
    look()
    assert active.index_is_loaded
    assert not any(look())
    assert active.index_is_loaded
    assert [segment.index.offset_file() + segment.index.time_file() for segment in closed] == before
    assert all(segment.index.trusted for segment in closed)
    assert all(look())  # they were just used
    _ = closed[0].index
    assert look() == [True] + [False] * (len(closed) - 1)
    assert harness.read_all() == list(range(60))
    # An index that is not on disk is the only one there is.
    harness.append(*[make_batch(number) for number in range(60, 75, 3)])
    harness.append(*[make_batch(number) for number in range(75, 90, 3)])
    closed = log.segments[:-1]
    new = [segment for segment in closed if segment.base_offset >= active.base_offset]
    look()
    look()
    assert new
    assert all(segment.index_is_loaded for segment in new)
    harness.commit(checkpoint=True)
    look()
    assert not any(look())
    assert harness.read_all() == list(range(90))


def test_an_untrusted_index_stays_so_and_is_freed_like_others(tmp_path: Path) -> None:
    """Also when its files are the same as those of the trusted index before it."""
    harness = LogHarness(tmp_path / "log", segment_bytes_max=1_000)
    for number in range(0, 30, 3):
        harness.write(make_batch(number))
    segment = harness.log.segments[0]
    index = segment.index
    segment.write_index(index)
    loaded = segment.load_index(segment.size_bytes)
    assert loaded is not None
    assert loaded.trusted
    index.trusted = False
    segment.write_index(index)
    loaded = segment.load_index(segment.size_bytes)
    assert loaded is not None
    assert not loaded.trusted
    for _ in range(2):
        segment.release_idle_index()
    assert not segment.index_is_loaded


def test_a_file_that_was_damaged_at_a_recovery_is_whole_when_it_is_put_back(tmp_path: Path) -> None:
    """The timestamp lies outside the checksum, so the index took the damaged one, and must not be believed over the
    file that is there again."""
    settings = {"index_interval_bytes": 0}
    harness = LogHarness(tmp_path / "log", **settings)
    harness.write(make_batch(0))
    harness.close()
    harness = LogHarness(tmp_path / "log", **settings)
    harness.write(make_batch(3))
    path = harness.log.segments[0].path
    harness.crash()
    whole = path.read_bytes()
    position = len(whole) // 2 + TIMESTAMP_POSITION + 6
    path.write_bytes(whole[:position] + b"\x01" + whole[position + 1 :])
    harness = LogHarness(tmp_path / "log", **settings)
    assert harness.read_all() == list(range(6))
    harness.close()
    path.write_bytes(whole)
    assert LogHarness(tmp_path / "log", **settings).read_all() == list(range(6))


def test_the_writers_that_wrote_last_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every connection is a new writer: a program that connects once a second leaves 600,000 in a week."""
    every = WriterStates()
    monkeypatch.setattr(writers, "WRITERS_MAX", 100)
    states = WriterStates()
    for number in range(1_000):
        states.record(number, WrittenBatch(0, 2 * number, 0, 1))
        states.record(7, WrittenBatch(number, 2 * number + 1, 0, 1))
        assert len(states) <= 100
    assert states.last_sequence(7) == 999
    assert [number for number in range(1_000) if states.last_sequence(number) is not None] == [7, *range(901, 1_000)]
    assert WriterStates.from_snapshot(states.to_snapshot()).to_snapshot() == states.to_snapshot()
    # What an earlier release wrote has no limit, and another order.
    monkeypatch.undo()
    for number in reversed(range(300)):
        every.record(number, WrittenBatch(0, number, 0, 1))
    monkeypatch.setattr(writers, "WRITERS_MAX", 100)
    found = WriterStates.from_snapshot(every.to_snapshot())
    assert [number for number in range(300) if found.last_sequence(number) is not None] == [*range(200, 300)]
