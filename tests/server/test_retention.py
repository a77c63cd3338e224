# SPDX-License-Identifier: Apache-2.0
"""Retention deletes no file that a restart needs: a server that is killed at any moment serves what is left."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from threading import current_thread

import pytest
from tests.server.log_support import Client, FakeClock, LogHarness, connected, ids_of, make_batch, run, running_server

from fluss.metadata import TableBucket
from fluss.protocol import fluss_pb2 as pb
from fluss.server import disk
from fluss.server.log.recovery import RECOVERY_POINT_NAME
from fluss.server.log.repair import _repair
from fluss.server.server import Server

HOUR_MS = 3_600_000


async def check_killed(data: Path, table: int, start: int, clock: FakeClock) -> None:
    """Start a server on a copy of the files as they are now, which is what a kill would leave."""
    killed = data.with_name("killed")
    shutil.copytree(data, killed)
    async with running_server(killed, clock) as server, connected(server) as client:
        log = server.tablets.tablet(TableBucket(table, 0))
        assert log.damage is None
        assert (await client.offsets(table, 0)).offset == start
        again = await client.produce(table, make_batch(writer_id=7, sequence=1))
        assert (again.error_code, again.base_offset) == (0, 3), "the writer repeats its last batch"
        new = await client.produce(table, make_batch(90, writer_id=7, sequence=2))
        assert (new.error_code, new.base_offset) == (0, 6)
        assert ids_of((await client.fetch(table, 6)).records) == [90, 91, 92]
    shutil.rmtree(killed)


async def fill(server: Server, client: Client) -> int:
    """Write two batches, with a recovery point after the first."""
    table = await client.create_table(table_log_ttl="1 h")
    await client.produce(table, make_batch(0, writer_id=7, sequence=0))
    await server.tablets.checkpoint()
    await client.produce(table, make_batch(3, writer_id=7, sequence=1))
    return table


@pytest.mark.parametrize("rounds", [1, 2])
async def test_a_kill_after_the_active_segment_expired(tmp_path: Path, clock: FakeClock, rounds: int) -> None:
    data = tmp_path / "data"
    options = {"log_retention_roll__active__segment_enabled": "true"}
    async with running_server(data, clock, **options) as server, connected(server) as client:
        table = await fill(server, client)
        clock.time_ms += 2 * HOUR_MS
        for _ in range(rounds):
            await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == 6
        await check_killed(data, table, 6, clock)


async def test_segments_that_are_not_in_the_lake_yet_do_not_expire(tmp_path: Path, clock: FakeClock) -> None:
    options = {"log_segment_file__size": "1kb", "datalake_format": "paimon"}
    async with running_server(tmp_path, clock, **options) as server, connected(server) as client:
        server.catalog.lake_hook = None  # the lake itself has no part in this
        table = await client.create_table(table_log_ttl="1 h", table_datalake_enabled="true")
        for number in range(8):
            await client.produce(table, make_batch(number * 3))
        log = server.tablets.tablet(TableBucket(table, 0))
        clock.time_ms += 2 * HOUR_MS
        await server.tablets.expire_segments()
        assert log.start_offset == 0, "nothing is in the lake"
        info = pb.PbLakeTableSnapshotInfo(table_id=table, snapshot_id=1)
        info.buckets_req.add(bucket_id=0, log_end_offset=12)
        committed = await client.send(pb.CommitLakeTableSnapshotRequest(tables_req=[info]))
        assert not committed.table_resp[0].HasField("error_code")
        await server.tablets.expire_segments()
        assert 0 < log.start_offset <= 12
        assert ids_of((await client.fetch(table, 12)).records)[0] == 12


async def test_segments_without_a_point_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    data = tmp_path / "data"
    async with running_server(data, clock, log_segment_file__size="1b") as server, connected(server) as client:
        real = disk.rename

        def rename(source: disk.StrPath, target: disk.StrPath) -> None:
            if str(target).endswith(RECOVERY_POINT_NAME) and broken:
                raise OSError(errno.EIO, "broken")
            real(source, target)

        broken = False
        monkeypatch.setattr(disk, "rename", rename)
        table = await client.create_table(table_log_ttl="1 h")
        await client.produce(table, make_batch(0, writer_id=7, sequence=0))
        await server.tablets.checkpoint()
        broken = True
        await client.produce(table, make_batch(3, writer_id=7, sequence=1))
        clock.time_ms += 2 * HOUR_MS
        await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == 3
        without_point = tmp_path / "without-point"
        shutil.copytree(data, without_point)
        broken = False
        await server.tablets.expire_segments()
        log = server.tablets.tablet(TableBucket(table, 0))
        assert not (log.folder / f"{0:020d}.log").exists(), "the next round deletes it"
        await check_killed(data, table, 3, clock)
    async with running_server(without_point, clock) as server, connected(server) as client:
        assert server.tablets.tablet(TableBucket(table, 0)).damage is None
        assert [ids_of((await client.fetch(table, at)).records) for at in (0, 3)] == [[0, 1, 2], [3, 4, 5]]


def test_deletions_may_reach_the_disk_in_any_order(tmp_path: Path) -> None:
    """After a power cut the file of an older segment may be there again, and that of a newer one gone."""
    harness = LogHarness(tmp_path / "log-0", segment_bytes_max=10)
    for number in range(4):
        harness.write(make_batch(number * 3, writer_id=1, sequence=number))
    oldest = (tmp_path / "log-0" / f"{0:020d}.log").read_bytes()
    assert harness.expire(9) == 3
    harness.crash()
    (tmp_path / "log-0" / f"{0:020d}.log").write_bytes(oldest)
    again = LogHarness(tmp_path / "log-0", segment_bytes_max=10)
    assert again.log.damage is None
    assert again.log.start_offset == 9
    assert again.read_all() == [9, 10, 11]
    assert not (tmp_path / "log-0" / f"{0:020d}.log").exists()


def test_a_repaired_log_keeps_files_that_it_serves_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments whose files could not be deleted are no longer to be deleted once a repair found them."""
    harness = LogHarness(tmp_path / "log-0", segment_bytes_max=10)
    for number in range(4):
        harness.write(make_batch(number * 3))
    harness.log.detach_segments_before(9)
    harness.log.release()
    recovered = harness.log._recover()
    assert recovered is not None
    harness.log.repaired(recovered)
    assert harness.log.start_offset == 0
    harness.commit(checkpoint=True)
    assert run(harness.log.expired.delete(harness.executor)) == 0
    assert harness.read_all() == list(range(12))


def test_a_repair_keeps_the_segment_that_the_recovery_point_names(tmp_path: Path) -> None:
    """The open segment was closed, nothing was written since, and then the disk failed."""
    harness = LogHarness(tmp_path / "log-0")
    harness.write(make_batch(0, writer_id=1, sequence=0))
    harness.log.roll_if_not_empty()
    harness.commit(checkpoint=True)
    recovered = _repair(harness.log)
    assert recovered is not None
    harness.log.repaired(recovered)
    harness.write(make_batch(3, writer_id=1, sequence=1))
    assert harness.read_all() == list(range(6))
    harness.crash()
    again = LogHarness(tmp_path / "log-0")
    assert again.log.damage is None
    assert again.read_all() == list(range(6))


@pytest.mark.parametrize(("option", "kept"), [({}, True), ({"log_retention_default": "7 d"}, False)])
async def test_log_tables_keep_all_rows(tmp_path: Path, clock: FakeClock, option: dict[str, str], kept: bool) -> None:
    options = {"log_retention_roll__active__segment_enabled": "true", **option}
    async with running_server(tmp_path, clock, **options) as server, connected(server) as client:
        table = await client.create_table()
        await client.produce(table, make_batch(0))
        clock.time_ms += 8 * 24 * HOUR_MS
        for _ in range(2):
            await server.tablets.expire_segments()
        assert (await client.offsets(table, 0)).offset == (0 if kept else 3)
        info = server.catalog.tables_by_id[table].table_info
        assert "table.log.ttl" not in info.properties, "clients see the default of Apache Fluss"


async def test_expiry_reads_files_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    """After a start, the time of a closed segment is in its file, all of which is read if its index is damaged."""
    async with running_server(tmp_path, clock, log_segment_file__size="1b") as server, connected(server) as client:
        table = await client.create_table(table_log_ttl="1 h")
        for number in range(3):
            await client.produce(table, make_batch(number * 3))
    reads: list[str] = []
    real = disk.open_file

    def open_file(path: disk.StrPath, flags: int) -> int:
        reads.append(current_thread().name)
        return real(path, flags)

    monkeypatch.setattr(disk, "open_file", open_file)
    async with running_server(tmp_path, clock) as server:
        reads.clear()
        await server.tablets.expire_segments()
        assert reads
        assert current_thread().name not in reads
