# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.server.log_support import ARROW_SCHEMA, LogHarness, ids_of, make_batch

from fluss.errors import LogOffsetOutOfRangeError
from fluss.records import LogBatch, ProjectedBatch, cut_batch, iter_log_batches
from fluss.records.log_batch import BatchSpan, crc_fits
from fluss.server.log import reader
from fluss.server.log.files import DamagedLogError, walk_file
from fluss.server.log.projection import IntactCuts, Projection
from fluss.server.log.segment import Segment

SIZE = len(make_batch(0))
ID_SCHEMA = pa.schema([ARROW_SCHEMA.field("id")])


def joined(result: reader.ReadResult) -> bytes:
    return b"".join(bytes(part) for part in result.parts)


def records(result: reader.ReadResult) -> list[tuple[int, bytes]]:
    """Offset and records of each batch."""
    batches = iter_log_batches(joined(result), verify=True)
    return [(batch.header.base_offset, bytes(batch.records_view)) for batch in batches]


@pytest.fixture
def harness(tmp_path: Path) -> LogHarness:
    harness = LogHarness(tmp_path / "log-0", index_interval_bytes=SIZE * 2, segment_bytes_max=SIZE * 12)
    for number in range(30):
        harness.clock.time_ms += 10
        harness.append(make_batch(number * 3))
    harness.commit()
    return harness


def test_starts_with_the_batch_that_contains_the_offset(harness: LogHarness) -> None:
    for offset in range(90):
        data = joined(harness.read(offset, 1))
        assert ids_of(data) == [offset // 3 * 3 + i for i in range(3)]


def test_limit_counts_whole_batches(harness: LogHarness) -> None:
    assert len(joined(harness.read(0, SIZE * 4 + 5))) == SIZE * 4
    assert len(joined(harness.read(0, SIZE * 4))) == SIZE * 4
    assert len(joined(harness.read(0, SIZE * 4 - 1))) == SIZE * 3


def test_first_batch_is_returned_whatever_the_limit(harness: LogHarness) -> None:
    assert len(joined(harness.read(0, 1))) == SIZE
    assert harness.read(0, 1, first_batch_always=False).parts == []
    assert harness.read(0, 0, first_batch_always=False).parts == []


def test_one_read_stays_in_one_segment(harness: LogHarness) -> None:
    assert ids_of(joined(harness.read(30))) == [30, 31, 32, 33, 34, 35]
    assert ids_of(joined(harness.read(36)))[0] == 36


def test_end_is_empty_and_beyond_is_an_error(harness: LogHarness) -> None:
    assert harness.read(90).parts == []
    with pytest.raises(LogOffsetOutOfRangeError, match="0 to 90"):
        harness.read(91)
    harness.expire(40)
    with pytest.raises(LogOffsetOutOfRangeError, match="36 to 90"):
        harness.read(35)
    assert ids_of(joined(harness.read(-2)))[0] == 36


def test_uncommitted_batches_are_not_served(harness: LogHarness) -> None:
    harness.append(make_batch(90))
    assert harness.read(90).parts == []
    assert ids_of(joined(harness.read(87))) == [87, 88, 89]
    harness.commit()
    assert ids_of(joined(harness.read(90))) == [90, 91, 92]


def test_uncommitted_segments_are_not_served(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path / "log", segment_bytes_max=10)
    harness.write(make_batch(0))
    harness.append(make_batch(3))
    harness.append(make_batch(6))
    assert harness.read(3).parts == []
    assert harness.read(0).size_bytes == SIZE
    harness.commit()
    assert harness.read_all() == list(range(9))


def project(columns: tuple[int, ...], bytes_max: int = 1 << 20) -> Projection:
    def cut(view: memoryview, span: BatchSpan) -> ProjectedBatch:
        return cut_batch(LogBatch(view[span.start : span.end]), columns, ARROW_SCHEMA)

    return Projection(columns, cut, IntactCuts(bytes_max))


def test_projection_cuts_columns_and_counts_projected_bytes(harness: LogHarness) -> None:
    one = joined(harness.read(0, 1, projection=project((0,))))
    assert ids_of(one, ID_SCHEMA) == [0, 1, 2]
    assert len(one) < SIZE
    four = joined(harness.read(0, len(one) * 4 + 1, projection=project((0,))))
    assert len(four) == len(one) * 4


class Checks:
    """Counts the batches that are checked as a whole."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        fits = crc_fits

        def counted(view: memoryview, span: BatchSpan) -> bool:
            self.count += 1
            return fits(view, span)

        monkeypatch.setattr(reader, "crc_fits", counted)

    def of(self, read: Callable[[], object]) -> int:
        before = self.count
        read()
        return self.count - before


LARGE_ROWS = 2_000  # more than the bytes from which on it pays to remember a check


@pytest.fixture
def large(tmp_path: Path) -> LogHarness:
    harness = LogHarness(tmp_path / "large")
    for number in range(4):
        harness.append(make_batch(number * LARGE_ROWS, LARGE_ROWS))
    harness.commit()
    return harness


def test_a_repeated_projection_reads_no_other_columns(large: LogHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, ids, names = Checks(monkeypatch), project((0,)), project((0, 1))
    first = joined(large.read(0, projection=ids))
    assert checks.count == 4
    assert checks.of(lambda: large.read(0, projection=ids)) == 0
    assert joined(large.read(0, projection=ids)) == first
    assert checks.of(lambda: large.read(0, projection=names)) == 4, "other columns are other bytes"
    assert checks.of(lambda: large.read(0, projection=ids, may_match=lambda view, span: True)) == 4


def test_the_number_of_remembered_projections_is_bounded(large: LogHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    checks, ids = Checks(monkeypatch), project((0,), bytes_max=3_000)
    for _ in range(3):
        assert ids_of(joined(large.read(0, projection=ids)), ID_SCHEMA) == list(range(4 * LARGE_ROWS))
        assert len(ids.intact) <= 3
    assert checks.count == 12


def test_checks_of_small_batches_are_not_remembered(harness: LogHarness) -> None:
    ids = project((0,))
    harness.read(0, projection=ids)
    assert len(ids.intact) == 0


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_repeated_projection_after_damage_is_right_or_refused(large: LogHarness, data: st.DataObject) -> None:
    columns = data.draw(st.sampled_from([(0,), (1,), (2,), (0, 2)]))
    wanted = project(columns)
    first = records(large.read(0, projection=wanted))
    path = large.log.segments[0].path
    position = data.draw(st.integers(0, path.stat().st_size - 1))
    flipped = data.draw(st.integers(1, 255))

    def flip() -> None:
        with open(path, "r+b") as file:
            file.seek(position)
            value = file.read(1)[0] ^ flipped
            file.seek(position)
            file.write(bytes([value]))

    flip()
    try:
        again = records(large.read(0, projection=wanted))
    except DamagedLogError:
        again = []
    finally:
        flip()
        large.log.damage = None
        large.log.segments[0].discard_index()
    assert again == first[: len(again)], "what is served before the damage is what was written"


def test_filter_prunes_and_tells_how_far_it_went(harness: LogHarness) -> None:
    def wanted(view: memoryview, span: BatchSpan) -> bool:
        return span.base_offset in (33, 60)

    result = harness.read(0, may_match=wanted)
    assert ids_of(joined(harness.read(33, 1))) == [33, 34, 35]
    assert [offset for offset, _ in records(result)] == [33, 60]
    assert result.filtered_end_offset == 90
    nothing = harness.read(63, may_match=wanted)
    assert (nothing.parts, nothing.filtered_end_offset) == ([], 90)


def test_filter_stops_at_the_limit(harness: LogHarness) -> None:
    def wanted(view: memoryview, span: BatchSpan) -> bool:
        return span.base_offset % 6 == 0

    result = harness.read(0, SIZE * 2, may_match=wanted)
    assert [offset for offset, _ in records(result)] == [0, 6]
    assert result.filtered_end_offset in (9, 12)


def test_offset_by_time(harness: LogHarness) -> None:
    clock = harness.clock
    first = clock.time_ms - 290
    assert reader.offset_for_timestamp(harness.log, 0) == 0
    assert reader.offset_for_timestamp(harness.log, first) == 0
    for number in range(1, 30):
        assert reader.offset_for_timestamp(harness.log, first + number * 10) == number * 3
        assert reader.offset_for_timestamp(harness.log, first + number * 10 - 9) == number * 3
    assert reader.offset_for_timestamp(harness.log, clock.time_ms + 1) == 90


def test_offset_by_time_while_segments_expire(harness: LogHarness) -> None:
    """It is looked for in a thread; the event loop takes segments out of the log meanwhile."""
    first, second, third = harness.log.segments[:3]

    class Expiring(Segment):
        @property
        def max_timestamp(self) -> int:
            harness.log.detach_segments_before(self.end_offset)
            return -1

    first.__class__ = Expiring
    wanted = second.max_timestamp
    assert second.base_offset <= reader.offset_for_timestamp(harness.log, wanted) < third.base_offset
    assert harness.log.segments[0] is second


def test_readable_bytes_follow_the_high_watermark(harness: LogHarness) -> None:
    assert reader.readable_bytes(harness.log, 90) == 0
    harness.append(make_batch(90))
    assert reader.readable_bytes(harness.log, 90) == 0
    harness.commit()
    assert reader.readable_bytes(harness.log, 90) >= SIZE


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=25),
    interval=st.sampled_from([0, 300, 5000]),
    segment=st.sampled_from([10, 1500, 10**6]),
    limit=st.integers(0, 8000),
)
def test_any_walk_returns_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], interval: int, segment: int, limit: int
) -> None:
    harness = LogHarness(
        tmp_path_factory.mktemp("walk") / "log", index_interval_bytes=interval, segment_bytes_max=segment
    )
    total = 0
    for size in sizes:
        harness.append(make_batch(total, size))
        total += size
    harness.commit()
    seen: list[int] = []
    offset = 0
    while offset < total:
        data = joined(harness.read(offset, limit))
        ids = ids_of(data)
        assert ids
        seen += ids
        offset = ids[-1] + 1
    assert seen == list(range(total))


def test_a_batch_that_has_no_place_is_not_looked_at(harness: LogHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[int] = []

    def crc_fits(view: memoryview, span: BatchSpan) -> bool:
        checked.append(span.base_offset)
        return True

    monkeypatch.setattr(reader, "crc_fits", crc_fits)
    assert ids_of(joined(harness.read(0, SIZE * 2 + 5))) == [0, 1, 2, 3, 4, 5]
    assert checked == [], "these were checked when they came"
    harness.close()
    again = LogHarness(harness.folder, index_interval_bytes=SIZE * 2, segment_bytes_max=SIZE * 12)
    for _ in range(2):
        assert ids_of(joined(again.read(0, SIZE * 2 + 5))) == [0, 1, 2, 3, 4, 5]
        assert checked == [0, 3], "each once, and no more than there is room for"
    assert ids_of(joined(again.read(3, SIZE * 2 + 5))) == [3, 4, 5, 6, 7, 8]
    assert checked == [0, 3, 6]


def test_an_index_that_is_made_anew_and_a_recovery_point_do_not_disturb_each_other(harness: LogHarness) -> None:
    segment = harness.log.segments[-1]
    with ThreadPoolExecutor(4) as threads:
        work = [threads.submit(segment.discard_index) for _ in range(20)]
        work += [threads.submit(segment.write_index, segment.index) for _ in range(60)]
        for done in work:
            done.result(30)
    assert harness.read_all() == list(range(90))


def test_few_checked_batches_are_read_without_a_thread(harness: LogHarness) -> None:
    """Only headers are read; whatever needs more than that goes to a thread."""
    for number in range(4):
        harness.write(make_batch(number * 3))
    log = harness.log
    assert reader.plan_read(log, 0, 1 << 20, first_batch_always=True).is_quick
    assert not reader.plan_read(log, 0, 1 << 20, first_batch_always=True, projection=project((0,))).is_quick
    log.segments[0].doubt()
    assert not reader.plan_read(log, 0, 1 << 20, first_batch_always=True).is_quick
    harness.read(0)
    assert reader.plan_read(log, 0, 1 << 20, first_batch_always=True).is_quick


def test_many_small_batches_are_read_in_a_thread(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path / "log", index_interval_bytes=0)  # an entry for every batch
    for number in range(40):
        harness.write(make_batch(number * 3))
    assert not reader.plan_read(harness.log, 0, 1 << 20, first_batch_always=True).is_quick


@pytest.mark.parametrize(("rows", "reads_max"), [(1, 12), (1000, 40)], ids=["small", "large"])
def test_headers_of_small_batches_are_read_many_at_a_time(rows: int, reads_max: int) -> None:
    batches = [make_batch(number, count=rows) for number in range(1000 if rows == 1 else 30)]
    data = b"".join(batches)
    sizes: list[int] = []

    class InMemory:
        def read(self, position: int, size_bytes: int) -> memoryview:
            sizes.append(size_bytes)
            return memoryview(data)[position : position + size_bytes]

    found = list(walk_file(InMemory(), 0, len(data), 4096, headers_only=True))
    assert [position for _, _, position in found] == [0, *accumulate(map(len, batches[:-1]))]
    assert len(sizes) <= reads_max
    if rows > 1:
        assert sum(sizes) < len(data) // 2, "not the rows behind the headers"
