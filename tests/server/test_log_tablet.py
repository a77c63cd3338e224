# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.server.log_support import LogHarness, append, failing, make_batch, run

from fluss.errors import CorruptRecordError, LogStorageError, OutOfOrderSequenceError, UnknownTableOrBucketError
from fluss.net.eager import complete
from fluss.records import iter_log_batches
from fluss.server import disk
from fluss.server.log import tablet, writers
from fluss.server.log.appends import AppendResult
from fluss.server.log.writers import SEQUENCE_MAX, WrittenBatch


@pytest.fixture
def harness(tmp_path: Path) -> LogHarness:
    return LogHarness(tmp_path / "log-0")


def test_offsets_continue_over_appends_and_batches(harness: LogHarness) -> None:
    assert harness.write(make_batch(0, 3)) == 0
    assert harness.write(make_batch(3, 2), make_batch(5, 4)) == 3
    assert harness.log.end_offset == 9
    assert harness.read_all() == list(range(9))


def test_client_supplied_offset_and_time_are_ignored(harness: LogHarness) -> None:
    batch = make_batch(0, 3)
    batch[0:8] = (77).to_bytes(8, "little")
    batch[13:21] = (5).to_bytes(8, "little")
    assert harness.write(batch) == 0
    [stored] = iter_log_batches(b"".join(bytes(part) for part in harness.read(0).parts))
    assert stored.header.base_offset == 0
    assert stored.header.commit_timestamp_ms == harness.clock.now_ms()


def test_timestamps_never_fall(harness: LogHarness) -> None:
    clock = harness.clock
    harness.write(make_batch(0))
    first = clock.time_ms
    clock.time_ms -= 50_000
    harness.write(make_batch(3))
    clock.time_ms += 100_000
    harness.write(make_batch(6))
    data = b"".join(bytes(part) for part in harness.read(0).parts)
    assert [b.header.commit_timestamp_ms for b in iter_log_batches(data)] == [first, first, clock.time_ms]


def test_empty_records_append_nothing(harness: LogHarness) -> None:
    result = append(harness.log, b"")
    assert (result.base_offset, harness.log.end_offset) == (-1, 0)
    assert harness.dirty == []


def with_delta(delta: int) -> bytearray:
    batch = make_batch(3)
    batch[28:32] = delta.to_bytes(4, "little")
    return batch


def flipped(at: int) -> bytearray:
    batch = make_batch(3)
    batch[at] ^= 0x41
    return batch


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        *((flipped(at), "batch") for at in (12, 21, 30, 60, -1)),
        *((make_batch(3)[:size], "cut") for size in (5, 11, 47, 48, 100)),
        (with_delta(7), "last offset"),
    ],
)
def test_a_bad_batch_is_refused_and_nothing_is_written(harness: LogHarness, bad: bytearray, reason: str) -> None:
    harness.write(make_batch(0))
    with pytest.raises(CorruptRecordError, match=reason):
        harness.append(make_batch(3), bad)
    assert harness.log.end_offset == 3
    harness.write(make_batch(3))
    assert harness.read_all() == list(range(6))


class TestIdempotence:
    def test_duplicate_answers_with_the_first_offset(self, harness: LogHarness) -> None:
        for sequence in range(6):
            harness.write(make_batch(sequence * 3, writer_id=7, sequence=sequence))
        for sequence in range(1, 6):
            result = append(harness.log, make_batch(sequence * 3, writer_id=7, sequence=sequence))
            assert (result.base_offset, result.end_offset, result.duplicate) == (sequence * 3, sequence * 3 + 3, True)
        assert harness.log.end_offset == 18

    @pytest.mark.parametrize(
        ("written", "sequence", "reason"),
        [
            (6, 0, "writer 7 sent batch sequence 0 but is at sequence 5"),  # the last five are remembered
            (1, 2, "expected 1"),
            (0, 1, "has written nothing"),
        ],
    )
    def test_other_sequences_are_refused(self, harness: LogHarness, written: int, sequence: int, reason: str) -> None:
        for number in range(written):
            harness.write(make_batch(writer_id=7, sequence=number))
        with pytest.raises(OutOfOrderSequenceError, match=reason):
            harness.append(make_batch(writer_id=7, sequence=sequence))

    def test_several_batches_of_one_writer_in_one_append(self, harness: LogHarness) -> None:
        harness.write(make_batch(0, writer_id=7, sequence=0), make_batch(3, writer_id=7, sequence=1))
        with pytest.raises(OutOfOrderSequenceError):
            harness.append(make_batch(6, writer_id=7, sequence=2), make_batch(9, writer_id=7, sequence=4))
        assert harness.log.end_offset == 6

    def test_new_batches_beside_duplicates_are_written(self, harness: LogHarness) -> None:
        first, second = make_batch(0, writer_id=7, sequence=0), make_batch(3, writer_id=7, sequence=1)
        harness.write(first, second)
        both = append(harness.log, first + second)
        assert both == AppendResult(0, 6, both.timestamp, duplicate=True), "acknowledged when both are durable"
        third, other = make_batch(6, writer_id=7, sequence=2), make_batch(9, writer_id=8, sequence=0)
        mixed = append(harness.log, second + third + other + make_batch(12))
        assert mixed == AppendResult(3, 15, mixed.timestamp)
        harness.commit()
        assert harness.read_all() == list(range(15))
        again = append(harness.log, other + third)
        assert (again.base_offset, again.end_offset, again.duplicate) == (9, 12, True)
        with pytest.raises(OutOfOrderSequenceError):
            harness.append(make_batch(15, writer_id=7, sequence=3), third)
        assert harness.log.end_offset == 15

    def test_an_evicted_writer_repeats_no_batch(self, harness: LogHarness, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writers, "WRITERS_MAX", 3)
        for writer in range(10, 15):
            harness.write(make_batch(writer, 1, writer_id=writer, sequence=0))
        for restarted in (False, True):
            if restarted:
                harness.commit(checkpoint=True)
                harness.crash()
                harness = LogHarness(harness.folder)
            for evicted in (10, 11, 9):  # 9 never wrote, which is not known
                with pytest.raises(OutOfOrderSequenceError, match="no longer known"):
                    harness.append(make_batch(writer_id=evicted, sequence=0))
            assert append(harness.log, make_batch(12, 1, writer_id=12, sequence=0)).duplicate
        harness.write(make_batch(15, 1, writer_id=15, sequence=0))
        assert harness.read_all() == list(range(10, 16))
        harness.crash()

    def test_sequence_starts_over_after_the_largest(self, harness: LogHarness) -> None:
        harness.log.writers.record(7, WrittenBatch(SEQUENCE_MAX, 0, 0, 0))
        harness.write(make_batch(writer_id=7, sequence=0))
        harness.write(make_batch(writer_id=7, sequence=1))
        assert harness.log.end_offset == 6

    def test_idle_writers_are_forgotten(self, harness: LogHarness) -> None:
        clock = harness.clock
        harness.write(make_batch(writer_id=7, sequence=0))
        clock.time_ms += 1000
        harness.write(make_batch(writer_id=8, sequence=0))
        assert harness.log.writers.expire(clock.time_ms) == 1
        assert harness.log.writers.last_sequence(7) is None
        assert harness.log.writers.last_sequence(8) == 0


def test_segments_roll_by_size_and_are_read_across(tmp_path: Path) -> None:
    size = len(make_batch(0))
    harness = LogHarness(tmp_path / "log-0", segment_bytes_max=size * 3 + 10, index_interval_bytes=0)
    for number in range(10):
        harness.write(make_batch(number * 3))
    assert [segment.base_offset for segment in harness.log.segments] == [0, 9, 18, 27]
    assert harness.read_all() == list(range(30))
    assert {path.name for path in (tmp_path / "log-0").glob("*.index")} >= {f"{0:020d}.index", f"{9:020d}.index"}


@pytest.mark.parametrize(
    ("count", "bases", "settings"),
    [
        (3, [0, 9, 18], {"index_bytes_max": 36, "index_interval_bytes": 0}),
        (50, [0, 50, 100, 150, 200, 250, 300, 350, 400], {"segment_bytes_max": 100}),
    ],
)
def test_segments_roll_at_their_limits(tmp_path: Path, count: int, bases: list[int], settings: dict[str, int]) -> None:
    harness = LogHarness(tmp_path / "log-0", **settings)
    for number in range(9):
        harness.write(make_batch(number * count, count))
    assert [segment.base_offset for segment in harness.log.segments] == bases
    assert harness.read_all() == list(range(9 * count))


@pytest.fixture
def threads_used(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Appends above 64 KB go to a thread; the set gets the names of all threads that write."""
    names: set[str] = set()
    real = tablet.write_append  # type: ignore[attr-defined]

    def write(*args: Any, **options: Any) -> None:
        names.add(threading.current_thread().name)
        real(*args, **options)

    monkeypatch.setattr(tablet, "INLINE_APPEND_BYTES_MAX", 64 * 1024)
    monkeypatch.setattr(tablet, "write_append", write)
    return names


def submit(log: tablet.LogTablet, records: bytearray) -> asyncio.Future[AppendResult]:
    future: asyncio.Future[AppendResult] = asyncio.get_running_loop().create_future()
    log.append_then(memoryview(records), lambda outcome: complete(future, outcome))
    return future


async def test_large_appends_keep_their_order(tmp_path: Path, threads_used: set[str]) -> None:
    """Small appends run on the loop and large ones in a thread; the order of the calls holds all the same."""
    harness = LogHarness(tmp_path / "log-0")
    futures = []
    first = 0
    for sequence in range(12):
        count = 2 if sequence % 3 else 6000
        batch = make_batch(first, count, writer_id=1, sequence=sequence)
        futures.append((first, submit(harness.log, batch)))
        first += count
    for expected, future in futures:
        assert (await future).base_offset == expected
    harness.commit()
    assert harness.read_all() == list(range(first))
    assert len(threads_used) == 2


async def test_failed_large_append_leaves_the_next_ones_alone(tmp_path: Path, threads_used: set[str]) -> None:
    harness = LogHarness(tmp_path / "log-0")
    bad = make_batch(0, 6000)
    bad[-1] ^= 1
    submitted = (submit(harness.log, bad), submit(harness.log, make_batch(0, 6000)))
    outcomes = await asyncio.gather(*submitted, return_exceptions=True)
    assert isinstance(outcomes[0], CorruptRecordError)
    harness.commit()
    assert harness.read_all() == list(range(6000))


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_failed_write_is_cut_at_once_or_when_the_segment_is_closed(harness: LogHarness, is_cut: bool) -> None:
    harness.write(make_batch(0))
    closed = harness.log.segments[-1]
    real = disk.write_at

    def half(fd: int, data: Any, position: int) -> int:
        real(fd, data[:40], position)
        raise OSError(errno.ENOSPC, "No space left on device")

    with mock.patch.object(disk, "write_at", half), failing("truncate", lambda fd: not is_cut):
        with pytest.raises(LogStorageError, match="No space left"):
            harness.append(make_batch(3))
        assert closed.file.size_bytes == closed.size_bytes + (0 if is_cut else 40)
    if not is_cut:
        harness.log.roll_if_not_empty()
    assert closed.file.size_bytes == closed.size_bytes
    harness.write(make_batch(3))
    assert harness.read_all() == list(range(6))


def test_a_log_in_repair_keeps_its_segments(tmp_path: Path) -> None:
    """Its repair deletes what comes after the committed segment, which must stay the one it began with."""
    harness = LogHarness(tmp_path / "log-0", segment_bytes_max=10)
    harness.write(make_batch(0))
    harness.append(make_batch(3))
    harness.log.fail(OSError(5, "Input/output error"))
    committed = harness.log.committed_segment
    harness.log.detach_segments_before(3)
    assert harness.log.committed_segment is committed
    assert not harness.log.expired


def test_expired_segments_are_deleted_only_below_the_high_watermark(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path / "log-0", segment_bytes_max=10)
    for number in range(4):
        harness.append(make_batch(number * 3))
    harness.log.detach_segments_before(9)
    assert not harness.log.expired
    harness.commit()
    assert harness.expire(8) == 2
    assert harness.log.start_offset == 6
    assert harness.read_all() == list(range(6, 12))
    assert not (tmp_path / "log-0" / f"{0:020d}.log").exists()


def test_expired_segments_are_deleted_in_a_thread_and_again_if_that_fails(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path / "log-0", segment_bytes_max=10)
    for number in range(4):
        harness.append(make_batch(number * 3))
    harness.commit()
    harness.log.detach_segments_before(9)
    harness.commit(checkpoint=True)
    threads: list[threading.Thread] = []
    real = disk.unlink_if_there

    def fail(path: disk.StrPath) -> None:
        threads.append(threading.current_thread())
        if f"{3:020d}.log" in str(path):
            raise OSError(5, "the disk is broken")
        real(path)

    with mock.patch.object(disk, "unlink_if_there", fail):
        assert run(harness.log.expired.delete(harness.executor)) == 1
    assert threading.main_thread() not in threads
    assert harness.read_all() == list(range(9, 12)), "readers find only what is kept"
    assert not harness.log.is_busy
    assert run(harness.log.expired.delete(harness.executor)) == 2
    assert not (tmp_path / "log-0" / f"{6:020d}.log").exists()


@pytest.mark.parametrize("event", ["drop", "failure"])
def test_an_append_that_is_cut_is_refused(harness: LogHarness, monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    """Its thread ends after the table was dropped, or after a flush failed: a repair cuts it, whatever the acks."""
    monkeypatch.setattr(tablet, "INLINE_APPEND_BYTES_MAX", 0)

    async def work() -> None:
        appended = submit(harness.log, make_batch(0))
        if event == "drop":
            harness.log.drop()
        else:
            harness.log.fail(OSError("the disk is gone"))
        with pytest.raises(UnknownTableOrBucketError if event == "drop" else LogStorageError):
            await appended

    run(work(), 5)


def test_a_write_whose_table_is_dropped_does_not_wait_for_its_commit(harness: LogHarness) -> None:
    async def work() -> None:
        end_offset = append(harness.log, make_batch(0)).end_offset
        harness.log.drop()
        with pytest.raises(UnknownTableOrBucketError, match="was dropped"):
            await harness.log.committed(end_offset, 20_000)

    run(work(), 5)
