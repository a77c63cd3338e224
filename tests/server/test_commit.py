# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest
from tests.server.log_support import BUCKET, FakeClock, append, ids_of, make_batch
from tests.shared import raising
from tests.waiting import wait_until

from fluss.errors import LogStorageError, RequestTimeOutError
from fluss.server import commit
from fluss.server.commit import GroupCommitter
from fluss.server.environment import WorkerThread
from fluss.server.log import reader
from fluss.server.log.appends import AppendResult, CommitWaiters
from fluss.server.log.files import OpenFiles, SegmentFile
from fluss.server.log.recovery import write_checkpoint
from fluss.server.log.segment import LOG_SUFFIX, LogSettings
from fluss.server.log.tablet import LogTablet
from fluss.server.metrics import ServerMetrics

Gate = tuple[threading.Event, list[int]]


class Bench:
    def __init__(self, folder: Path, *, sync: bool = True, **settings: int) -> None:
        self.executor = ThreadPoolExecutor(2)
        self.metrics = ServerMetrics()
        self.committer = GroupCommitter(self.executor, WorkerThread("fluss-flush"), sync=sync, metrics=self.metrics)
        self.log = self.open_log(folder, **settings)
        self.committer.start()

    def open_log(self, folder: Path, **settings: int) -> LogTablet:
        log = LogTablet(
            BUCKET,
            folder,
            LogSettings(**settings),
            clock=FakeClock(),
            open_files=OpenFiles(),
            executor=self.executor,
            on_append=self.committer.dirty,
        )
        log.open()
        return log

    async def write(self, first: int) -> AppendResult:
        """Append a batch and wait until it is committed."""
        result = append(self.log, make_batch(first))
        await asyncio.wait_for(self.log.committed(result.end_offset), 5)
        return result

    def read(self) -> list[int]:
        found = reader.read(reader.plan_read(self.log, 0, 1000, first_batch_always=True))
        return ids_of(b"".join(bytes(part) for part in found.parts))

    async def close(self) -> None:
        await self.committer.stop()
        await self.committer.checkpoint([self.log])
        self.log.release()
        self.executor.shutdown()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    bench = Bench(tmp_path / "log")
    yield bench
    await bench.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Flushing waits at the gate; the list counts flushes."""
    opened, count = threading.Event(), [0]
    real = SegmentFile.sync

    def sync(self: SegmentFile) -> None:
        if self.path.suffix == LOG_SUFFIX:
            count[0] += 1
            assert opened.wait(10)
        real(self)

    monkeypatch.setattr(SegmentFile, "sync", sync)
    return opened, count


async def test_readers_see_only_what_is_on_disk(bench: Bench, gate: Gate) -> None:
    result = append(bench.log, make_batch(0))
    waiting = bench.log.committed(result.end_offset)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    assert bench.log.high_watermark == 0
    assert reader.plan_read(bench.log, 0, 1000, first_batch_always=True).segments == ()
    gate[0].set()
    await asyncio.wait_for(waiting, 5)
    assert bench.log.high_watermark == 3
    assert bench.read() == [0, 1, 2]


async def test_one_flush_serves_all_that_came_meanwhile(bench: Bench, gate: Gate) -> None:
    append(bench.log, make_batch(0))
    await asyncio.sleep(0.1)
    assert gate[1] == [1]
    results = [append(bench.log, make_batch(number * 3)) for number in range(1, 50)]
    waiting = [bench.log.committed(result.end_offset) for result in results]
    gate[0].set()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert gate[1] == [2]


async def test_others_are_served_between_the_waiters_of_one_flush() -> None:
    """In their order, and all of them also when the log fails or their time is over meanwhile."""
    waiters = CommitWaiters(BUCKET)
    heard: list[int | Exception] = []

    def wait(number: int, timeout_ms: int | None = None) -> None:
        waiters.add(number, lambda error: heard.append(number if error is None else error), timeout_ms)

    for number in range(1, 1001):
        wait(number)
    waiters.serve(1000)
    found = [len(heard)]
    while len(heard) < 1000:
        await asyncio.sleep(0)
        found.append(len(heard))
    assert heard == list(range(1, 1001))
    assert max(later - earlier for earlier, later in zip([0, *found], found)) < 100
    heard.clear()
    for number in range(1001, 2001):
        wait(number, 0)
    waiters.serve(1999)
    waiters._expire()
    wait(2001)
    waiters.fail(LogStorageError("broken"))
    assert [outcome for outcome in heard if isinstance(outcome, int)] == list(range(1001, 2000))
    assert [type(outcome) for outcome in heard if not isinstance(outcome, int)] == [
        RequestTimeOutError,
        LogStorageError,
    ]
    wait(7)  # the log has begun anew
    await asyncio.sleep(0.01)
    assert len(heard) == 1001
    waiters.close()


async def test_each_waits_as_long_as_it_may(bench: Bench, gate: Gate) -> None:
    end = append(bench.log, make_batch(0)).end_offset
    patient, endless = bench.log.committed(end, 20_000), bench.log.committed(end)
    hasty, later = bench.log.committed(end, 30), bench.log.committed(end, 150)
    with pytest.raises(RequestTimeOutError, match=r"TableBucket.* was not committed within 30 ms; it may still be"):
        await asyncio.wait_for(hasty, 5)
    assert not later.done()
    with pytest.raises(RequestTimeOutError, match="within 150 ms"):
        await asyncio.wait_for(later, 5)
    with pytest.raises(RequestTimeOutError, match="within -5 ms"):
        await asyncio.wait_for(bench.log.committed(end, -5), 5)
    assert not patient.done()
    gate[0].set()
    await asyncio.wait_for(asyncio.gather(patient, endless), 5)


async def test_a_repeated_write_is_acknowledged_though_a_later_one_hangs() -> None:
    """Its time is over while it stands behind one that is not committed."""
    waiters = CommitWaiters(BUCKET)
    heard: list[Exception | None] = []
    waiters.serve(3)
    waiters.add(6, lambda error: None, None)
    waiters.add(3, heard.append, 20)
    await asyncio.sleep(0.1)
    assert heard == [None]
    assert waiters._expiry is None, "nothing is left whose time could be over"
    waiters.close()


async def test_a_failing_waiter_holds_no_other_up(bench: Bench, gate: Gate, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Exception | None] = []
    end = append(bench.log, make_batch(0)).end_offset
    bench.log.when_committed(end, raising(ValueError, "no ears"), None)
    bench.log.when_committed(end, heard.append, None)
    gate[0].set()
    await asyncio.wait_for(bench.log.committed(end), 5)
    assert heard == [None]
    bench.log.when_committed(end, heard.append, None)  # it is there already
    assert heard == [None, None]
    assert "no ears" in caplog.text


async def test_the_thread_that_flushes_outlives_an_error_and_ends_with_its_committer(tmp_path: Path) -> None:
    def flushers() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "fluss-flush"]

    bench = Bench(tmp_path / "broken")
    with mock.patch.object(commit, "run_sync", raising(ValueError, "not an error of the disk")):
        end = append(bench.log, make_batch(0)).end_offset
        with pytest.raises(LogStorageError, match="not an error of the disk"):
            await asyncio.wait_for(bench.log.committed(end), 5)
    whole = bench.open_log(tmp_path / "whole")
    result = append(whole, make_batch(0))
    await asyncio.wait_for(whole.committed(result.end_offset), 5)
    assert len(flushers()) == 1
    whole.release()
    await bench.close()
    for thread in flushers():
        thread.join(5)
    assert not flushers()


async def test_a_checkpoint_goes_on_when_its_caller_is_cancelled(bench: Bench) -> None:
    """A stop cancels the periodic ones. What such a one has not flushed is not acknowledged by the next round."""
    opened, begun = threading.Event(), threading.Event()

    def sync(self: SegmentFile) -> None:
        begun.set()
        assert opened.wait(10)
        raise OSError(5, "Input/output error")

    with mock.patch.object(SegmentFile, "sync", sync):
        bench.committer._loop = None  # no round begins by itself
        result = append(bench.log, make_batch(0))
        checkpoint = asyncio.ensure_future(bench.committer.checkpoint([bench.log]))
        await wait_until(begun.is_set)
        bench.committer.start()
        waiting = bench.log.committed(result.end_offset)
        checkpoint.cancel()
        await asyncio.wait((checkpoint,))
        stop = asyncio.ensure_future(bench.committer.stop())
        opened.set()
        with pytest.raises(LogStorageError, match="Input/output error"):
            await asyncio.wait_for(waiting, 5)
        await asyncio.wait_for(stop, 5)
    await wait_until(lambda: bench.log.failure is None)


async def test_commit_listeners_run_before_readers_see_it(bench: Bench) -> None:
    seen: list[tuple[int, int]] = []
    bench.log.before_commit.append(lambda offset: seen.append((offset, bench.log.high_watermark)))
    await bench.write(0)
    assert seen == [(3, 0)]


async def test_failed_flush_fails_the_writers_and_cuts_what_they_wrote(bench: Bench) -> None:
    """After a failed flush it is unknown what is on disk; acknowledging it later would be wrong."""
    with mock.patch.object(SegmentFile, "sync", raising(OSError, 5, "Input/output error")):
        end = append(bench.log, make_batch(0)).end_offset
        with pytest.raises(LogStorageError, match="Input/output error"):
            await asyncio.wait_for(bench.log.committed(end), 5)
        with pytest.raises(LogStorageError, match="is repairing it"):
            append(bench.log, make_batch(3))
        assert bench.log.high_watermark == 0
    await wait_until(lambda: bench.log.failure is None)
    assert (bench.log.high_watermark, bench.log.end_offset) == (0, 0)
    assert (await bench.write(6)).base_offset == 0
    assert bench.read() == [6, 7, 8]


async def test_without_sync_nothing_is_flushed(tmp_path: Path, gate: Gate) -> None:
    bench = Bench(tmp_path / "log", sync=False)
    await bench.write(0)
    assert gate[1] == [0]
    gate[0].set()
    await bench.close()


@pytest.mark.parametrize("is_due", [True, False])
async def test_recovery_points_follow_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_due: bool) -> None:
    """After a power cut, a log that ends before its recovery point counts as damaged."""
    steps: list[str] = []
    sync = SegmentFile.sync
    monkeypatch.setattr(SegmentFile, "sync", lambda self: (steps.append(self.path.name), sync(self)))
    monkeypatch.setattr(
        commit, "write_checkpoint", lambda checkpoint: (steps.append("point"), write_checkpoint(checkpoint))
    )
    bench = Bench(tmp_path / "log", sync=False, recovery_point_interval_bytes=1 if is_due else 1 << 30)
    await bench.write(0)
    assert await bench.committer.checkpoint([bench.log])
    assert steps == [f"{0:020d}.log", "point"]
    await bench.close()


async def test_recovery_points_move_with_the_log(tmp_path: Path) -> None:
    size = len(make_batch(0))
    bench = Bench(tmp_path / "log", recovery_point_interval_bytes=size * 4, segment_bytes_max=size * 10)
    for number in range(25):
        await bench.write(number * 3)
        # Recovery points are written beside the acknowledgements; on a busy machine they would fall behind here.
        await asyncio.gather(*bench.committer._checkpoints)
    await bench.committer.stop()
    bench.log.release()
    again = Bench(tmp_path / "log", recovery_point_interval_bytes=size * 4, segment_bytes_max=size * 10)
    assert again.log.open() <= size * 8
    assert again.log.end_offset == 75
    await again.close()
    closed = Bench(tmp_path / "log")
    assert closed.log.open() == 0
    await closed.close()
    bench.executor.shutdown()


async def test_a_checkpoint_does_not_overtake_a_flush(bench: Bench, gate: Gate) -> None:
    result = append(bench.log, make_batch(0))
    await asyncio.sleep(0.1)
    assert gate[1][0] == 1
    # The flush above has taken the file, so this checkpoint has nothing to flush; still it must not commit.
    checkpoint = asyncio.ensure_future(bench.committer.checkpoint([bench.log]))
    await asyncio.sleep(0.1)
    assert bench.log.high_watermark == 0
    assert not checkpoint.done()
    gate[0].set()
    assert await asyncio.wait_for(checkpoint, 5)
    assert bench.log.high_watermark == result.end_offset


async def test_a_repair_waits_for_the_flush_in_flight(bench: Bench, gate: Gate) -> None:
    """Its end would acknowledge rows that were written after the repair, and that it has not flushed."""
    append(bench.log, make_batch(0))
    await wait_until(lambda: gate[1] == [1])
    bench.log.fail(OSError(5, "Input/output error"))
    with pytest.raises(AssertionError, match="did not happen"):
        await wait_until(lambda: bench.log.failure is None, 0.5)
    gate[0].set()
    await wait_until(lambda: bench.log.failure is None)
    assert (bench.log.high_watermark, bench.log.end_offset) == (0, 0)
    await bench.write(6)
    assert bench.read() == [6, 7, 8]


async def test_a_recovery_point_is_never_ahead_of_what_a_repair_keeps(tmp_path: Path, gate: Gate) -> None:
    bench = Bench(tmp_path / "log", recovery_point_interval_bytes=1)
    append(bench.log, make_batch(0))
    await wait_until(lambda: gate[1] == [1])
    bench.log.fail(OSError(5, "Input/output error"))
    gate[0].set()
    await wait_until(lambda: bench.log.failure is None or bench.log.damage is not None)
    assert bench.log.damage is None
    await bench.write(6)
    await bench.close()
