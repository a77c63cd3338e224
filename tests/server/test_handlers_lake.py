# SPDX-License-Identifier: Apache-2.0
"""Lake bookkeeping: who tiers what, and how far the lake reaches."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.server.catalog.support import (
    Harness,
    alter,
    create,
    create_partition,
    drop_partition,
    drop_table,
    log_table,
    partitioned_table,
    path,
)
from tests.waiting import wait_until

from fluss.errors import FormatError
from fluss.metadata import DatabaseDescriptor, TableBucket, TablePath
from fluss.protocol import fluss_pb2 as pb
from fluss.server.catalog import tables
from fluss.server.catalog.lake import TieringState
from fluss.server.catalog.lake_snapshots import (
    LakeSnapshotEntry,
    LakeSnapshots,
    decode_offsets_file,
    encode_offsets_file,
)
from fluss.server.handlers import admin, cluster, lake

ON = {"table.datalake.enabled": "true"}
FRESHNESS_MS = 180_000
TABLE = TablePath("fluss", "t")


@pytest.fixture
def harness(tmp_path: Path) -> Harness:
    return Harness(tmp_path, {"datalake.format": "paimon"})


@pytest.fixture
def table_id(harness: Harness) -> int:
    """A table `t` in the lake."""
    return new_table(harness)


def new_table(harness: Harness, table: str = "t", **options: Any) -> int:
    harness.call(admin.create_table, create(log_table(properties=ON, **options), table))
    return harness.catalog.table(TablePath("fluss", table)).table_id


# ---------------------------------------------------------------------- heartbeat


class Worker:
    """A tiering worker as seen by the server."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.epoch = self.beat().coordinator_epoch

    def beat(self, *, request: bool = False, forced: tuple[int, ...] = (), **tables: tuple[int, int]) -> Any:
        message = pb.LakeTieringHeartbeatRequest(request_table=request, force_finished_tables=forced)
        for kind, (table_id, tiering_epoch) in tables.items():
            getattr(message, f"{kind}_tables").add(
                table_id=table_id, coordinator_epoch=self.epoch, tiering_epoch=tiering_epoch
            )
        return self.harness.call(lake.lake_tiering_heartbeat, message)

    def take(self) -> tuple[int, int] | None:
        answer = self.beat(request=True)
        if not answer.HasField("tiering_table"):
            return None
        assert answer.tiering_table.table_path.database_name == "fluss"
        return answer.tiering_table.table_id, answer.tiering_table.tiering_epoch


def errors(results: Any) -> list[int]:
    return [result.error.error_code for result in results]


def test_a_table_is_handed_out_when_its_freshness_has_passed(harness: Harness, table_id: int) -> None:
    worker = Worker(harness)
    assert worker.take() is None
    harness.clock.now_ms += FRESHNESS_MS - 1
    assert worker.take() is None
    harness.clock.now_ms += 1
    assert worker.take() == (table_id, 1)
    assert worker.take() is None
    answer = worker.beat(finished=(table_id, 1))
    assert not answer.finished_table_resp[0].HasField("error")
    assert worker.take() is None
    harness.clock.now_ms += FRESHNESS_MS
    assert worker.take() == (table_id, 2)


def test_a_clock_that_was_ahead_does_not_stop_tiering(harness: Harness) -> None:
    year_ms = 365 * 24 * 3_600_000
    first, second = new_table(harness), new_table(harness, "other")
    worker = Worker(harness)
    harness.clock.now_ms += year_ms
    assert worker.take() == (first, 1)
    assert worker.take() == (second, 1)
    worker.beat(finished=(first, 1))
    harness.clock.now_ms -= year_ms
    # One table was tiered in the year to come, the worker of the other one was last heard of there.
    assert worker.take() is None
    harness.clock.now_ms += FRESHNESS_MS
    assert {worker.take(), worker.take()} == {(first, 2), (second, 2)}


def test_what_a_worker_tells_of_its_lake_is_kept(harness: Harness, table_id: int) -> None:
    worker = Worker(harness)
    harness.clock.now_ms += FRESHNESS_MS
    worker.beat()
    table = harness.catalog.lake.tiering.tables[table_id]
    assert table.pending_since_ms == harness.clock.now_ms
    assert (table.lake_bytes, table.lake_rows) == (None, None)
    assert worker.take() == (table_id, 1)
    message = pb.LakeTieringHeartbeatRequest()
    finished = message.finished_tables.add(table_id=table_id, coordinator_epoch=worker.epoch, tiering_epoch=1)
    finished.lake_tiering_stats.file_size, finished.lake_tiering_stats.record_count = 4096, 7
    harness.call(lake.lake_tiering_heartbeat, message)
    assert (table.lake_bytes, table.lake_rows) == (4096, 7)
    harness.clock.now_ms += FRESHNESS_MS
    assert worker.take() == (table_id, 2)
    worker.beat(finished=(table_id, 2))
    assert (table.lake_bytes, table.lake_rows) == (4096, 7)


def test_first_in_first_out_one_at_a_time(harness: Harness) -> None:
    first = new_table(harness, "a")
    harness.clock.now_ms += 10
    second = new_table(harness, "b")
    harness.clock.now_ms += FRESHNESS_MS
    worker = Worker(harness)
    assert [worker.take(), worker.take(), worker.take()] == [(first, 1), (second, 1), None]


def test_a_failed_round_goes_to_the_end_of_the_queue_with_a_new_epoch(harness: Harness) -> None:
    first, second = new_table(harness, "a"), new_table(harness, "b")
    harness.clock.now_ms += FRESHNESS_MS
    worker = Worker(harness)
    assert worker.take() == (first, 1)
    worker.beat(failed=(first, 1))
    assert [worker.take(), worker.take()] == [(second, 1), (first, 2)]


def test_a_silent_worker_loses_its_table(harness: Harness, table_id: int) -> None:
    harness.clock.now_ms += FRESHNESS_MS
    worker, other = Worker(harness), Worker(harness)
    assert worker.take() == (table_id, 1)
    harness.clock.now_ms += 119_000
    assert not worker.beat(tiering=(table_id, 1)).tiering_table_resp[0].HasField("error")
    harness.clock.now_ms += 119_000
    assert other.take() is None
    harness.clock.now_ms += 1_000
    assert other.take() == (table_id, 2)
    answer = worker.beat(tiering=(table_id, 1), finished=(table_id, 1), failed=(table_id, 1))
    assert errors(answer.tiering_table_resp) == [50]
    assert errors(answer.finished_table_resp) == [50]
    assert errors(answer.failed_table_resp) == [50]
    assert not other.beat(finished=(table_id, 2)).finished_table_resp[0].HasField("error")


def test_a_forced_finish_is_pending_again_at_once(harness: Harness, table_id: int) -> None:
    harness.clock.now_ms += FRESHNESS_MS
    worker = Worker(harness)
    assert worker.take() == (table_id, 1)
    worker.beat(finished=(table_id, 1), forced=(table_id,))
    assert worker.take() == (table_id, 2)


def test_errors_are_per_table(harness: Harness, table_id: int) -> None:
    worker = Worker(harness)
    answer = worker.beat(tiering=(99, 1), finished=(table_id, 0))
    assert answer.coordinator_epoch == harness.catalog.coordinator_epoch
    assert errors(answer.tiering_table_resp) == [7]
    assert errors(answer.finished_table_resp) == [-1]  # it is not being tiered
    assert answer.finished_table_resp[0].table_id == table_id
    worker.epoch += 1
    assert errors(worker.beat(failed=(table_id, 0)).failed_table_resp) == [23]


def test_a_restart_fences_old_workers(harness: Harness, table_id: int) -> None:
    harness.clock.now_ms += FRESHNESS_MS
    worker = Worker(harness)
    assert worker.take() == (table_id, 1)
    harness.reopen()
    assert errors(worker.beat(finished=(table_id, 1)).finished_table_resp) == [23]
    again = Worker(harness)
    assert again.epoch > worker.epoch
    assert again.take() == (table_id, 1)


def test_failed_tables_come_before_the_request(harness: Harness, table_id: int) -> None:
    harness.clock.now_ms += FRESHNESS_MS
    worker = Worker(harness)
    worker.take()
    answer = worker.beat(failed=(table_id, 1), request=True)
    assert (answer.tiering_table.table_id, answer.tiering_table.tiering_epoch) == (table_id, 2)


def test_switching_the_lake_and_its_freshness(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    worker = Worker(harness)
    harness.clock.now_ms += FRESHNESS_MS
    assert worker.take() is None
    harness.call(admin.alter_table, alter({"table.datalake.enabled": "true", "table.datalake.freshness": "1 h"}))
    assert worker.take() is None
    harness.call(admin.alter_table, alter({"table.datalake.freshness": "1 min"}))
    assert worker.take() == (0, 1)
    harness.call(admin.alter_table, alter({"table.datalake.enabled": "false"}))
    assert errors(worker.beat(tiering=(0, 1)).tiering_table_resp) == [7]
    assert harness.catalog.lake.tiering.count(TieringState.PENDING) == 0


def test_a_worker_from_before_the_lake_was_switched_off_is_fenced(harness: Harness, table_id: int) -> None:
    old, new = Worker(harness), Worker(harness)
    harness.clock.now_ms += FRESHNESS_MS
    assert old.take() == (table_id, 1)
    for value in ("false", "true"):
        harness.call(admin.alter_table, alter({"table.datalake.enabled": value}))
    assert new.take() == (table_id, 2)
    assert errors(old.beat(finished=(table_id, 1)).finished_table_resp) == [50]


def test_a_dropped_table_is_not_handed_out(harness: Harness) -> None:
    new_table(harness)
    harness.clock.now_ms += FRESHNESS_MS
    harness.catalog.lake.tiering.advance()
    assert harness.catalog.lake.tiering.count(TieringState.PENDING) == 1
    harness.call(admin.drop_table, drop_table())
    assert Worker(harness).take() is None


def test_nothing_is_handed_out_while_the_lake_of_the_server_is_off(harness: Harness) -> None:
    new_table(harness)
    harness.clock.now_ms += FRESHNESS_MS
    change = pb.AlterClusterConfigsRequest()
    change.alter_configs.add(config_key="datalake.enabled", config_value="false", op_type=0)
    harness.call(cluster.alter_cluster_configs, change)
    assert Worker(harness).take() is None


# ---------------------------------------------------------------------- snapshots


def offsets(*items: tuple[int | None, int, int]) -> list[pb.PbBucketOffset]:
    return [
        pb.PbBucketOffset(partition_id=partition_id, bucket_id=bucket, log_end_offset=offset)
        for partition_id, bucket, offset in items
    ]


def prepare(harness: Harness, table_id: int, *items: tuple[int | None, int, int], ignore: bool = False) -> Any:
    request = pb.PrepareLakeTableSnapshotRequest(ignore_previous_table_offsets=ignore)
    request.bucket_offsets.add(table_id=table_id, table_path=path(), bucket_offsets=offsets(*items))
    (answer,) = harness.call(lake.prepare_lake_table_snapshot, request).prepare_lake_table_resp
    return answer


def commit(
    harness: Harness, table_id: int, snapshot_id: int, tiered: str, readable: str | None = None, keep: int | None = None
) -> int:
    item = pb.PbLakeTableSnapshotMetadata(
        table_id=table_id,
        snapshot_id=snapshot_id,
        tiered_bucket_offsets_file_path=tiered,
        readable_bucket_offsets_file_path=readable,
        earliest_snapshot_id_to_keep=keep,
    )
    request = pb.CommitLakeTableSnapshotRequest(lake_table_snapshot_metadata=[item])
    (answer,) = harness.call(lake.commit_lake_table_snapshot, request).table_resp
    assert answer.table_id == table_id
    return int(answer.error_code) if answer.HasField("error_code") else 0


def round_trip(harness: Harness, table_id: int, snapshot_id: int, *items: Any, keep: int | None = None) -> str:
    file = str(prepare(harness, table_id, *items).lake_table_offsets_path)
    assert commit(harness, table_id, snapshot_id, file, file, keep) == 0
    return file


def snapshot(harness: Harness, **fields: Any) -> tuple[int, dict[tuple[int | None, int], int]]:
    answer = harness.call(lake.get_lake_snapshot, pb.GetLakeSnapshotRequest(table_path=path(), **fields))
    found = {
        (item.partition_id if item.HasField("partition_id") else None, item.bucket_id): item.log_offset
        for item in answer.bucket_snapshots
    }
    return answer.snapshotId, found


def kept(harness: Harness) -> list[int]:
    """The ids of the snapshots that the server knows."""
    return [entry.snapshot_id for entry in harness.catalog.table(TABLE).lake.snapshots]


def test_nothing_tiered_is_code_53(harness: Harness) -> None:
    harness.call(admin.create_table, create(log_table()))
    for fields in ({}, {"snapshot_id": 1}, {"readable": True}):
        request = pb.GetLakeSnapshotRequest(table_path=path(), **fields)
        harness.fails(53, lake.get_lake_snapshot, request, "doesn't exist for table", "fluss.t", "0")
    both = pb.GetLakeSnapshotRequest(table_path=path(), snapshot_id=1, readable=True)
    harness.fails(-1, lake.get_lake_snapshot, both)
    harness.fails(7, lake.get_lake_snapshot, pb.GetLakeSnapshotRequest(table_path=path("missing")))


def test_prepare_writes_a_file_under_the_remote_directory(harness: Harness) -> None:
    table_id = new_table(harness, bucket_count=3)
    answer = prepare(harness, table_id, (None, 0, 100), (None, 2, 55))
    file = Path(answer.lake_table_offsets_path)
    assert str(file).startswith(f"{harness.catalog.remote_data_dir}/lake/fluss/t-{table_id}/metadata/")
    assert file.suffix == ".offsets"
    assert json.loads(file.read_bytes()) == {"version": 1, "table_id": table_id, "bucket_offsets": [100, -1, 55]}
    assert not answer.HasField("error_code")
    harness.fails(53, lake.get_lake_snapshot, pb.GetLakeSnapshotRequest(table_path=path()))


def test_commit_merges_over_the_offsets_before(harness: Harness) -> None:
    table_id = new_table(harness, bucket_count=3)
    round_trip(harness, table_id, 5, (None, 0, 100), (None, 2, 55))
    assert snapshot(harness) == (5, {(None, 0): 100, (None, 2): 55})
    round_trip(harness, table_id, 6, (None, 1, 7), (None, 2, 60))
    assert snapshot(harness) == (6, {(None, 0): 100, (None, 1): 7, (None, 2): 60})
    assert harness.catalog.lake_end_offset(TableBucket(table_id, 2)) == 60
    assert harness.catalog.lake_end_offset(TableBucket(table_id, 0)) == 100
    assert harness.catalog.lake_end_offset(TableBucket(99, 0)) is None
    file = prepare(harness, table_id, (None, 0, 120), ignore=True).lake_table_offsets_path
    commit(harness, table_id, 7, file, file)
    assert snapshot(harness) == (7, {(None, 0): 120})
    # What once was in the lake stays there, whatever a snapshot says.
    assert harness.catalog.lake_end_offset(TableBucket(table_id, 2)) == 60
    harness.reopen()
    assert snapshot(harness) == (7, {(None, 0): 120})
    assert harness.catalog.lake_end_offset(TableBucket(table_id, 2)) == 60


def test_partitioned_tables(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties=ON, bucket_count=2)))
    for value in ("a", "b"):
        harness.call(admin.create_partition, create_partition(dt=value))
    file = round_trip(harness, 0, 1, (0, 1, 10), (1, 0, 20))
    assert json.loads(Path(file).read_bytes()) == {
        "version": 1,
        "table_id": 0,
        "partition_offsets": [
            {"partition_id": 0, "bucket_offsets": [-1, 10]},
            {"partition_id": 1, "bucket_offsets": [20]},
        ],
    }
    assert snapshot(harness) == (1, {(0, 1): 10, (1, 0): 20})
    assert harness.catalog.lake_end_offset(TableBucket(0, 0, 1)) == 20
    assert harness.catalog.lake_end_offset(TableBucket(0, 0)) is None


def test_offsets_of_dropped_partitions_are_forgotten(harness: Harness) -> None:
    """With a partition an hour, a year of them would be read and written with every commit."""
    harness.call(admin.create_table, create(partitioned_table(properties=ON, bucket_count=2)))
    for number in range(20):
        harness.call(admin.create_partition, create_partition(dt=f"d{number}"))
        file = round_trip(harness, 0, number, (number, 0, 10), (number, 1, 20), keep=number - 2)
        if number:
            harness.call(admin.drop_partition, drop_partition(dt=f"d{number - 1}"))
    assert kept(harness) == [17, 18, 19]
    assert set(harness.catalog.table(TABLE).lake.end_offsets) == {
        (number, bucket) for number in (18, 19) for bucket in (0, 1)
    }
    assert snapshot(harness) == (19, {(number, b): 10 * (b + 1) for number in (18, 19) for b in (0, 1)})
    assert len(json.loads(Path(file).read_bytes())["partition_offsets"]) == 2
    assert harness.catalog.lake_end_offset(TableBucket(0, 1, 19)) == 20
    harness.reopen()
    assert harness.catalog.lake_end_offset(TableBucket(0, 1, 19)) == 20


def test_files_of_snapshots_stay_however_their_paths_are_written(harness: Harness, table_id: int) -> None:
    file = Path(str(prepare(harness, table_id, (None, 0, 1)).lake_table_offsets_path))
    assert commit(harness, table_id, 1, f"{file.parent}/./{file.name}") == 0
    for number in (2, 3):
        harness.clock.now_ms += 23 * 3_600_000
        round_trip(harness, table_id, number, (None, 0, number), keep=1)
    assert file.exists()


def test_files_of_rounds_without_a_commit_are_deleted_after_a_day(harness: Harness, table_id: int) -> None:
    def prepared(offset: int) -> Path:
        return Path(str(prepare(harness, table_id, (None, 0, offset)).lake_table_offsets_path))

    lost = [prepared(number) for number in range(10)]
    first = Path(round_trip(harness, table_id, 1, (None, 0, 1)))
    harness.reopen()
    harness.clock.now_ms += 23 * 3_600_000
    round_trip(harness, table_id, 2, (None, 0, 2))
    # A worker that takes over from another one after a restart of the server commits what that one prepared.
    assert all(file.exists() for file in lost)
    harness.clock.now_ms += 23 * 3_600_000
    new = prepared(3)
    harness.clock.now_ms += 2 * 3_600_000
    last = Path(round_trip(harness, table_id, 3, (None, 0, 3)))
    assert {*last.parent.iterdir()} == {new, last}
    assert not first.exists()


def test_how_many_snapshots_are_kept(harness: Harness, table_id: int) -> None:
    files = [round_trip(harness, table_id, number, (None, 0, number), keep=-1) for number in (1, 2, 3)]
    assert kept(harness) == [1, 2, 3]
    assert snapshot(harness, snapshot_id=2) == (2, {(None, 0): 2})
    round_trip(harness, table_id, 4, (None, 0, 4), keep=2)
    assert kept(harness) == [2, 3, 4]
    assert [Path(file).exists() for file in files] == [False, True, True]
    round_trip(harness, table_id, 5, (None, 0, 5), keep=99)
    assert kept(harness) == [2, 3, 4, 5]
    round_trip(harness, table_id, 6, (None, 0, 6))
    assert kept(harness) == [6]
    harness.fails(53, lake.get_lake_snapshot, pb.GetLakeSnapshotRequest(table_path=path(), snapshot_id=5), "5")
    # The same commit again, as after a crash of the worker, changes nothing.
    round_trip(harness, table_id, 6, (None, 0, 6), keep=-1)
    assert kept(harness) == [6]


def test_readable_snapshots(harness: Harness, table_id: int) -> None:
    round_trip(harness, table_id, 1, (None, 0, 10), keep=-1)
    file = prepare(harness, table_id, (None, 0, 20)).lake_table_offsets_path
    commit(harness, table_id, 2, file, None, keep=-1)
    assert snapshot(harness) == (2, {(None, 0): 20})
    assert snapshot(harness, readable=True) == (1, {(None, 0): 10})
    early = prepare(harness, table_id, (None, 0, 15)).lake_table_offsets_path
    commit(harness, table_id, 3, file, early, keep=-1)
    assert snapshot(harness, readable=True) == (3, {(None, 0): 15})
    harness.reopen()
    assert snapshot(harness, readable=True) == (3, {(None, 0): 15})


def test_the_old_form_with_offsets_inline(harness: Harness) -> None:
    table_id = new_table(harness, bucket_count=2)

    def inline(snapshot_id: int, *items: tuple[int, int], by_path: bool = False, table: int = table_id) -> Any:
        info = pb.PbLakeTableSnapshotInfo(snapshot_id=snapshot_id)
        if by_path:
            info.table_path.CopyFrom(path())
        else:
            info.table_id = table
        for bucket, offset in items:
            info.buckets_req.add(bucket_id=bucket, log_end_offset=offset, max_timestamp=5)
        request = pb.CommitLakeTableSnapshotRequest(tables_req=[info])
        (answer,) = harness.call(lake.commit_lake_table_snapshot, request).table_resp
        return answer

    assert not inline(1, (0, 10)).HasField("error_code")
    assert not inline(2, (1, 5), by_path=True).HasField("error_code")
    assert snapshot(harness) == (2, {(None, 0): 10, (None, 1): 5})
    assert inline(3, (0, 1), table=99).error_code == 7
    # Next to a commit with a file the inline part is for metrics only.
    file = prepare(harness, table_id, (None, 0, 30)).lake_table_offsets_path
    request = pb.CommitLakeTableSnapshotRequest(
        tables_req=[pb.PbLakeTableSnapshotInfo(table_id=table_id, snapshot_id=4)],
        lake_table_snapshot_metadata=[
            pb.PbLakeTableSnapshotMetadata(table_id=table_id, snapshot_id=4, tiered_bucket_offsets_file_path=file)
        ],
    )
    assert len(harness.call(lake.commit_lake_table_snapshot, request).table_resp) == 1
    assert snapshot(harness) == (4, {(None, 0): 30, (None, 1): 5})


def test_inline_commits_at_the_same_time_keep_the_offsets_of_each_other(harness: Harness) -> None:
    table_id = new_table(harness, bucket_count=3)

    async def commit_all() -> None:
        commit_inline = harness.catalog.lake.commit_inline
        await asyncio.gather(*(commit_inline(table_id, bucket, {(None, bucket): 7}, {}) for bucket in range(3)))

    harness.run(commit_all())
    assert snapshot(harness)[1] == {(None, bucket): 7 for bucket in range(3)}


def test_refused_snapshots_are_errors_of_their_table(harness: Harness, table_id: int, tmp_path: Path) -> None:
    assert prepare(harness, 99, (None, 0, 1)).error_code == 7
    assert prepare(harness, table_id, (None, 5, 1)).error_code == -1
    assert prepare(harness, table_id, (3, 0, 1)).error_code == -1
    assert prepare(harness, table_id, (None, 0, -1)).error_code == -1
    good = prepare(harness, table_id, (None, 0, 1)).lake_table_offsets_path
    assert commit(harness, 99, 1, good) == 7
    assert commit(harness, table_id, 1, good + "x") == -1
    outside = tmp_path / "outside.json"
    outside.write_bytes(encode_offsets_file(table_id, {(None, 0): 10**9}, partitioned=False))
    assert commit(harness, table_id, 1, str(outside)) == -1
    sneaky = f"{harness.catalog.remote_data_dir}/../outside.json"
    assert commit(harness, table_id, 1, sneaky) == -1
    other = new_table(harness, "other")
    foreign = prepare(harness, other, (None, 0, 1)).lake_table_offsets_path
    assert commit(harness, table_id, 1, foreign) == -1
    harness.fails(53, lake.get_lake_snapshot, pb.GetLakeSnapshotRequest(table_path=path()))


@pytest.mark.parametrize("kind", ["tiered", "readable"])
def test_files_from_before_a_log_lost_its_end_are_refused(harness: Harness, table_id: int, kind: str) -> None:
    old, low = (prepare(harness, table_id, (None, 0, end)).lake_table_offsets_path for end in (1000, 990))
    harness.catalog.lake.log_end_of = lambda _: 990
    assert commit(harness, table_id, 1, *((old, None) if kind == "tiered" else (low, old))) == -1
    assert harness.catalog.lake_end_offset(TableBucket(table_id, 0)) is None
    assert commit(harness, table_id, 1, low, low) == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"version":2,"table_id":1,"bucket_offsets":[]}',
        b'{"version":1,"table_id":2,"bucket_offsets":[]}',
        b'{"version":1,"table_id":1}',
        b'{"version":1,"table_id":1,"bucket_offsets":["x"]}',
        b'{"version":1,"table_id":1,"bucket_offsets":[true]}',
        b'{"version":1,"table_id":1,"partition_offsets":{}}',
        b'{"version":1,"table_id":1,"partition_offsets":[{"bucket_offsets":[1]}]}',
    ],
)
def test_broken_offsets_files(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_offsets_file(data, 1)


def test_a_dropped_table_takes_its_offsets_files_along(harness: Harness, table_id: int) -> None:
    file = round_trip(harness, table_id, 1, (None, 0, 1))
    harness.call(admin.drop_table, drop_table())
    harness.run(wait_until(lambda: not Path(file).exists()))
    new_table(harness)
    harness.fails(53, lake.get_lake_snapshot, pb.GetLakeSnapshotRequest(table_path=path()))


@pytest.mark.parametrize("step", ["prepare", "commit", "drop"])
def test_a_store_that_does_not_answer_holds_no_change_up(
    harness: Harness, table_id: int, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    file = prepare(harness, table_id, (None, 0, 1)).lake_table_offsets_path
    called, released = threading.Event(), threading.Event()

    def hang(*_: object) -> Any:
        called.set()
        released.wait(30)
        raise OSError("the store does not answer")

    catalog, state = harness.catalog, harness.catalog.lake
    steps: dict[str, tuple[str, Callable[[], Coroutine[Any, Any, Any]]]] = {
        "prepare": ("write", lambda: state.prepare(table_id, {(None, 0): 2}, ignore_previous=False)),
        "commit": ("open", lambda: state.commit_files(table_id, 1, file, None, None)),
        "drop": ("remove_folder", lambda: tables.drop_table(catalog, TABLE, ignore_if_not_exists=False)),
    }
    operation, begin = steps[step]
    monkeypatch.setattr(state.remote, operation, hang)

    async def check() -> None:
        work = asyncio.ensure_future(begin())
        try:
            await wait_until(called.is_set)
            await asyncio.wait_for(catalog.next_writer_id(), 10)
            creating = tables.create_database(catalog, "d", DatabaseDescriptor(), ignore_if_exists=False)
            await asyncio.wait_for(creating, 10)
        finally:
            released.set()
            await asyncio.wait([work])
            work.exception()

    harness.run(check())


def test_a_remote_directory_given_as_a_uri(tmp_path: Path) -> None:
    root = f"file://{tmp_path}/remote"
    harness = Harness(tmp_path / "data", {"datalake.format": "paimon", "remote.data.dir": root})
    table_id = new_table(harness)
    file = round_trip(harness, table_id, 1, (None, 0, 9))
    assert file.startswith(root + "/lake/")
    assert snapshot(harness) == (1, {(None, 0): 9})


def test_tiering_goes_on_from_the_last_commit_after_a_restart(harness: Harness, table_id: int) -> None:
    harness.clock.now_ms += 10 * FRESHNESS_MS
    round_trip(harness, table_id, 1, (None, 0, 1))
    harness.reopen()
    worker = Worker(harness)
    assert worker.take() is None
    harness.clock.now_ms += FRESHNESS_MS
    assert worker.take() == (table_id, 1)


def test_the_end_of_a_bucket_in_the_lake_never_falls() -> None:
    """Its log may have expired up to there."""
    snapshots = LakeSnapshots().with_commit(LakeSnapshotEntry(1, {(None, 0): 60, (None, 1): 5}), None)
    later = snapshots.with_commit(LakeSnapshotEntry(2, {(None, 0): 40, (None, 1): 7}), None)
    assert later.end_offsets == {(None, 0): 60, (None, 1): 7}


@pytest.mark.parametrize(
    ("keep", "expected"), [(-1, [1, 2, 3]), (2, [2, 3]), (None, [3])], ids=["all", "some", "the newest"]
)
def test_a_snapshot_that_is_reported_late_is_not_the_newest(
    harness: Harness, table_id: int, keep: int | None, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """A worker that lost its table reports its snapshot after the next worker went on from it."""
    round_trip(harness, table_id, 1, (None, 0, 10), keep=-1)
    late = str(prepare(harness, table_id, (None, 0, 20)).lake_table_offsets_path)
    round_trip(harness, table_id, 3, (None, 0, 30), keep=-1)
    assert commit(harness, table_id, 2, late, late, keep) == 0
    assert kept(harness) == expected
    assert snapshot(harness) == snapshot(harness, readable=True) == (3, {(None, 0): 30})
    assert ("lake snapshot 2 of table 'fluss.t' is not kept: snapshot 3" in caplog.text) == (2 not in expected)


def test_a_snapshot_that_is_reported_again_keeps_its_place(harness: Harness, table_id: int) -> None:
    """Also before one of the same rows, which a compaction made of it."""
    file = round_trip(harness, table_id, 1, (None, 0, 10), keep=-1)
    round_trip(harness, table_id, 2, (None, 0, 10), keep=-1)
    assert commit(harness, table_id, 1, file, file, -1) == 0
    assert snapshot(harness) == (2, {(None, 0): 10})


def test_a_snapshot_without_dropped_partitions_is_the_newest(harness: Harness) -> None:
    harness.call(admin.create_table, create(partitioned_table(properties=ON, bucket_count=1)))
    for name in ("a", "b"):
        harness.call(admin.create_partition, create_partition(dt=name))
    round_trip(harness, 0, 1, (0, 0, 10), (1, 0, 10), keep=-1)
    harness.call(admin.drop_partition, drop_partition(dt="a"))
    round_trip(harness, 0, 2, (1, 0, 10), keep=-1)
    assert snapshot(harness) == (2, {(1, 0): 10})
