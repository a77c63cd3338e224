# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from unittest import mock

import pytest
from tests.server.log_support import FakeClock, LogHarness, append, ids_of, make_batch
from tests.shared import raising

from fluss.errors import FlussError, OutOfOrderSequenceError
from fluss.records import iter_log_batches
from fluss.server import disk
from fluss.server.log import reader
from fluss.server.log.files import DamagedLogError

LOG = f"{0:020d}.log"


def fill(harness: LogHarness, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        harness.write(make_batch(number * 3, writer_id=1, sequence=number))


def test_clean_reopen_checks_nothing(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path / "log")
    fill(harness, 5)
    harness.close()
    again = LogHarness(tmp_path / "log")
    assert again.log.open() == 0
    assert (again.log.end_offset, again.log.high_watermark) == (15, 15)
    assert again.read_all() == list(range(15))


def test_clean_reopen_opens_no_file_until_it_is_needed(tmp_path: Path) -> None:
    """A server may have thousands of logs, and few of them are used right after it started."""
    harness = LogHarness(tmp_path / "log", index_interval_bytes=0)
    fill(harness, 5)
    index = harness.log.segments[-1].index.copy()
    harness.close()
    again = LogHarness(tmp_path / "log", index_interval_bytes=0)
    active = again.log.segments[-1]
    assert again.log.open_files.handle_count == 0
    assert not active.index_is_loaded
    assert not active.is_open
    assert reader.readable_bytes(again.log, 14) > 0
    assert not active.index_is_loaded, "it is read in a thread"
    assert (active.end_offset, active.max_timestamp) == (15, harness.log.max_timestamp)
    fill(again, 1, 5)
    assert active.is_open
    assert list(active.index.positions[:5]) == list(index.positions)
    assert len(active.index) == 6
    assert again.read_all() == list(range(18))


def test_crash_reopen_keeps_everything(tmp_path: Path) -> None:
    size = len(make_batch(0, writer_id=1, sequence=0))
    sizes = {"segment_bytes_max": 4 * size, "recovery_point_interval_bytes": 2 * size, "index_interval_bytes": 0}
    harness = LogHarness(tmp_path / "log", **sizes)
    for round_number in range(5):
        fill(harness, 3, round_number * 3)
        harness.crash()
        harness = LogHarness(tmp_path / "log", **sizes)
        assert harness.log.damage is None
        assert harness.read_all() == list(range((round_number + 1) * 9))
        with pytest.raises(OutOfOrderSequenceError):
            harness.append(make_batch(writer_id=1, sequence=(round_number + 1) * 3 + 1))
        last = append(harness.log, make_batch(writer_id=1, sequence=(round_number + 1) * 3 - 1))
        assert last.duplicate


def test_uncommitted_torn_tail_is_cut_at_any_byte(tmp_path: Path) -> None:
    """A crash in the middle of a write: whatever was acknowledged stays, the rest of a batch goes."""
    base = LogHarness(tmp_path / "base")
    fill(base, 3)
    base.append(make_batch(9, writer_id=1, sequence=3))
    committed = base.log.committed_position
    total = base.log.segments[-1].size_bytes
    base.crash()
    for cut in [*range(committed, committed + 60), total - 1, (committed + total) // 2]:
        shutil.copytree(tmp_path / "base", tmp_path / "copy")
        os.truncate(tmp_path / "copy" / LOG, cut)
        harness = LogHarness(tmp_path / "copy")
        assert harness.log.damage is None
        assert harness.read_all() == list(range(9))
        assert (tmp_path / "copy" / LOG).stat().st_size == committed
        assert harness.write(make_batch(9, writer_id=1, sequence=3)) == 9
        assert harness.read_all() == list(range(12))
        harness.crash()
        shutil.rmtree(tmp_path / "copy")


def test_unsynced_hole_with_whole_batches_behind_it_is_cut(tmp_path: Path) -> None:
    """After a power cut later pages may be on disk and earlier ones not; none of it was acknowledged."""
    harness = LogHarness(tmp_path / "log")
    fill(harness, 2)
    hole = harness.log.segments[-1].size_bytes
    for number in (2, 3, 4):
        harness.append(make_batch(number * 3, writer_id=1, sequence=number))
    harness.crash()
    with open(tmp_path / "log" / LOG, "r+b") as file:
        file.seek(hole)
        file.write(b"\0" * 100)
    again = LogHarness(tmp_path / "log")
    assert again.log.damage is None
    assert again.read_all() == list(range(6))


def test_a_segment_after_a_batch_that_was_not_flushed_is_deleted(tmp_path: Path) -> None:
    """A power cut keeps the name of the next file and may take whole batches before it."""
    harness = LogHarness(tmp_path / "log")
    fill(harness, 2)
    flushed = harness.log.segments[-1].size_bytes
    harness.append(make_batch(6, writer_id=1, sequence=2))
    harness.log.roll_if_not_empty()
    harness.append(make_batch(9, writer_id=1, sequence=3))
    harness.crash()
    os.truncate(tmp_path / "log" / LOG, flushed)
    again = LogHarness(tmp_path / "log")
    assert again.log.damage is None
    assert again.write(make_batch(6, writer_id=1, sequence=2)) == 6
    assert again.read_all() == list(range(9))
    assert not (tmp_path / "log" / f"{12:020d}.log").exists()


@pytest.mark.parametrize("damage", ["header", "rows", "last batch gone"])
def test_acknowledged_bytes_are_never_cut_away(tmp_path: Path, damage: str) -> None:
    harness = LogHarness(tmp_path / "log")
    fill(harness, 4)
    harness.crash()
    path = tmp_path / "log" / LOG
    before = path.read_bytes()
    damaged = bytearray(before)
    if damage == "last batch gone":
        damaged = damaged[: len(before) * 3 // 4]  # the batches are of one size
    else:
        damaged[len(before) // 2 if damage == "header" else -1] ^= 0x10
    path.write_bytes(damaged)
    again = LogHarness(tmp_path / "log")
    assert str(path) in again.log.damage.message
    with pytest.raises(DamagedLogError):
        again.append(make_batch(0))
    with pytest.raises(DamagedLogError):
        again.read(0)
    again.crash()
    assert path.read_bytes() == damaged
    path.write_bytes(before)
    healed = LogHarness(tmp_path / "log")
    assert healed.read_all() == list(range(12))


@pytest.mark.parametrize("lost", [3, 9])
def test_lost_segment_is_reported(tmp_path: Path, lost: int) -> None:
    """The first one as well: where the log begins is in its recovery point."""
    harness = LogHarness(tmp_path / "log", segment_bytes_max=10)
    fill(harness, 4)
    assert harness.expire(3) == 1
    harness.close()
    (tmp_path / "log" / f"{lost:020d}.log").unlink()
    again = LogHarness(tmp_path / "log", segment_bytes_max=10)
    assert "is gone" in again.log.damage.message


def test_lost_middle_segment_is_reported_when_read(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path / "log", segment_bytes_max=10)
    fill(harness, 4)
    harness.close()
    (tmp_path / "log" / f"{3:020d}.log").unlink()
    again = LogHarness(tmp_path / "log", segment_bytes_max=10)
    with pytest.raises(DamagedLogError, match="offset 3, expected 6"):
        again.read(3)
    data = b"".join(bytes(part) for part in again.read(9).parts)
    assert len(data) > 0


@pytest.mark.parametrize("name", ["recovery-point", "committed", "writer_snapshot", "index", "timeindex"])
@pytest.mark.parametrize("how", ["flip", "cut", "delete", "grow"])
def test_damaged_side_files_cost_time_not_rows(tmp_path: Path, name: str, how: str) -> None:
    harness = LogHarness(tmp_path / "log", segment_bytes_max=2000, index_interval_bytes=0)
    fill(harness, 12)
    harness.close()
    rng = random.Random(f"{name}{how}")
    hit = [path for path in (tmp_path / "log").iterdir() if path.name.endswith(name) and path.stat().st_size]
    assert hit
    for path in hit:
        data = bytearray(path.read_bytes())
        if how == "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            path.write_bytes(data)
        elif how == "cut":
            path.write_bytes(data[: rng.randrange(len(data))])
        elif how == "grow":
            path.write_bytes(data + b"\0" * 8)
        else:
            path.unlink()
    again = LogHarness(tmp_path / "log", segment_bytes_max=2000, index_interval_bytes=0)
    assert again.log.damage is None
    for offset in range(0, 36, 5):
        assert again.read(offset).parts
    assert again.read_all() == list(range(36))
    assert again.append(make_batch(36, writer_id=1, sequence=12)) == 36


def rows_with_time(harness: LogHarness) -> list[tuple[int, int]]:
    harness.log.check_usable()
    rows: list[tuple[int, int]] = []
    offset = harness.log.start_offset
    while offset < harness.log.high_watermark:
        data = b"".join(bytes(part) for part in harness.read(offset).parts)
        for batch in iter_log_batches(data):
            rows += [(row, batch.header.commit_timestamp_ms) for row in ids_of(batch.view)]
            offset = batch.header.next_offset
    return rows


def outcome_of(harness: LogHarness) -> tuple[list[tuple[int, int]] | None, str]:
    """Every row with its time, or the error."""
    try:
        return rows_with_time(harness), ""
    except FlussError as error:
        return None, error.message


@pytest.mark.parametrize("crashed", [False, True])
def test_flipped_bits_in_the_log_are_never_served(tmp_path: Path, crashed: bool) -> None:
    """Whatever bit of a log file flips, a reader gets the right rows or an error that names the file."""
    base = LogHarness(tmp_path / "base", segment_bytes_max=1500, index_interval_bytes=400, clock=FakeClock())
    for number in range(8):
        base.clock.time_ms += 10
        base.write(make_batch(number * 3, writer_id=1, sequence=number))
    expected = rows_with_time(base)
    assert len({time for _, time in expected}) == 8
    if crashed:
        base.crash()
    else:
        base.close()
    rng = random.Random(7)
    files = sorted((tmp_path / "base").glob("*.log"))
    outcomes = {"same": 0, "error": 0}
    for _ in range(250):
        path = rng.choice([file for file in files if file.stat().st_size])
        data = bytearray(path.read_bytes())
        # Half of the flips hit the header, of which a part lies outside the batch's own checksum.
        at = rng.randrange(48) if rng.random() < 0.5 else rng.randrange(len(data))
        shutil.copytree(tmp_path / "base", tmp_path / "copy")
        data[at] ^= 1 << rng.randrange(8)
        (tmp_path / "copy" / path.name).write_bytes(data)
        harness = LogHarness(tmp_path / "copy", segment_bytes_max=1500, index_interval_bytes=400)
        served, problem = outcome_of(harness)
        if crashed and served is not None:
            # Above the recovery point nothing but the batch itself tells its time, and its checksum leaves that out.
            served = [(row, time) for (row, _), (_, time) in zip(served, expected)]
        assert served == expected or path.name in problem
        outcomes["error" if problem else "same"] += 1
        harness.crash()
        shutil.rmtree(tmp_path / "copy")
    assert outcomes["error"] > 100


@pytest.mark.parametrize("rolled", [False, True])
def test_a_segment_that_could_not_be_begun_is_no_part_of_the_log(tmp_path: Path, rolled: bool) -> None:
    """Its empty file stays, and the log goes on in the segment before, beyond the offset in the name of the file."""
    harness = LogHarness(tmp_path / "log")
    fill(harness, 3)
    broken = mock.patch.object(disk, "truncate", raising(OSError, 5, "the disk is broken"))
    with broken, pytest.raises(FlussError, match="cannot open a log file"):
        harness.log.roll_if_not_empty()
    leftover = tmp_path / "log" / f"{9:020d}.log"
    assert leftover.stat().st_size == 0
    fill(harness, 2, 3)
    if rolled:
        harness.log.roll_if_not_empty()
        fill(harness, 2, 5)
    harness.close()
    for count in range(7 if rolled else 5, 9):
        again = LogHarness(tmp_path / "log")
        assert again.log.damage is None
        assert not leftover.exists()
        assert again.read_all() == list(range(count * 3))
        fill(again, 1, count)
        again.close()
