# SPDX-License-Identifier: Apache-2.0
"""Lake and log read as one: always equal to what was written, whatever the format and the kind of table."""

from __future__ import annotations

import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.lake.support import (
    PARTITIONED,
    ROW,
    LakeHarness,
    every_format,
    every_format_and_key,
    lake_harness,
    row,
    rows_of,
    system_columns,
)
from tests.waiting import wait_for

import fluss
from fluss.errors import InvalidArgumentError, LakeSnapshotNotExistError, LogOffsetOutOfRangeError, TableNotExistError
from fluss.lake.layout import LakeConfig
from fluss.lake.tasks import LakeSession
from fluss.lake.union import plan_union, read_union_split, union_read_once
from fluss.metadata import OffsetSpec, TableInfo, TablePath
from fluss.server.local import LocalServer


@every_format
def test_log_table(lake: LakeHarness) -> None:
    path = lake.create("log")
    with pytest.raises(LakeSnapshotNotExistError):
        lake.session.run(lake.session.admin.get_latest_lake_snapshot(path))
    truth = [row(i) for i in range(500)]
    lake.append(path, truth)
    assert lake.union(path) == truth, "without a snapshot, the log alone"
    first = lake.tier(path)
    assert (first.rows, first.cut) == (500, False)
    more = [row(i) for i in range(500, 620)]
    lake.append(path, more)
    assert lake.union(path) == truth + more
    assert lake.union(path, lake_only=True) == truth
    second = lake.tier(path)
    assert second.rows == 120
    assert lake.tier(path).snapshot_id is None, "nothing new, no snapshot"
    assert lake.union(path, columns=["name"]) == rows_of(pa.Table.from_pylist(truth + more), ["name"])

    snapshot = lake.session.run(lake.session.admin.get_latest_lake_snapshot(path))
    assert snapshot.snapshot_id == second.snapshot_id
    assert sum(snapshot.table_buckets_offset.values()) == 620
    readable = lake.session.run(lake.session.admin.get_readable_lake_snapshot(path))
    assert readable == snapshot

    alone = lake.alone(path)
    assert rows_of(alone, ROW.names) == truth + more
    assert set(alone.schema.names) == {*ROW.names, *system_columns(lake.lake_format)}
    if system_columns(lake.lake_format):
        places = {(r["__bucket"], r["__offset"]) for r in alone.to_pylist()}
        assert len(places) == 620, "every row stands for one place in the log"
        assert {bucket.bucket_id: offset for bucket, offset in snapshot.table_buckets_offset.items()} == {
            bucket: max(offset for b, offset in places if b == bucket) + 1 for bucket in {b for b, _ in places}
        }
    assert rows_of(lake.alone(path, first.snapshot_id), ROW.names) == truth, "time travel"
    assert first.snapshot_id is not None
    assert lake.union(path, snapshot_id=first.snapshot_id, lake_only=True) == truth
    assert lake.union(path, snapshot_id=first.snapshot_id) == truth + more, "an older snapshot and more of the log"


@pytest.mark.parametrize("bucket_keys", [["id"], ["name"]])
def test_log_table_with_bucket_key(lake: LakeHarness, bucket_keys: list[str]) -> None:
    path = lake.create("keyed", buckets=3, bucket_keys=bucket_keys)
    lake.append(path, [row(i) for i in range(200)])
    lake.tier(path)
    lake.append(path, [row(i) for i in range(200, 260)])
    assert lake.union(path) == [row(i) for i in range(260)]
    assert rows_of(lake.alone(path), ROW.names) == [row(i) for i in range(200)]
    info, table = lake.session.info(path), lake.table(path)
    for part in (part for split in plan_union(lake.session, info).splits for part in split.lake):
        assert part.bucket is not None
        assert all(batch.num_rows for batch in table.read(part, info, ["id"]))


def test_primary_key_table(lake: LakeHarness) -> None:
    path = lake.create("pk", primary_keys=["id"], buckets=2)
    live = {i: row(i) for i in range(300)}
    lake.upsert(path, live.values())
    assert lake.tier(path).rows == 300
    assert rows_of(lake.alone(path), ROW.names) == sorted(live.values(), key=lambda r: r["id"])
    # Updates, deletes, and a key that is deleted and comes back.
    live |= {i: row(i, 1) for i in range(0, 300, 3)}
    lake.upsert(path, [live[i] for i in range(0, 300, 3)], [{"id": i} for i in (1, 2, 4)])
    for i in (1, 2, 4):
        del live[i]
    live[2] = row(2, 7)
    lake.upsert(path, [live[2]])
    truth = sorted(live.values(), key=lambda r: r["id"])
    assert lake.union(path) == truth, "tail merged by key"
    assert lake.union(path, columns=["name"]) == sorted([{"name": r["name"]} for r in truth], key=lambda r: r["name"])
    report = lake.tier(path)
    assert report.snapshot_id is not None
    assert lake.union(path, lake_only=True) == truth
    assert rows_of(lake.alone(path), ROW.names) == truth
    live[1] = row(1, 2)
    lake.upsert(path, [live[1]], [{"id": 0}])
    del live[0]
    lake.tier(path)
    assert rows_of(lake.alone(path), ROW.names) == sorted(live.values(), key=lambda r: r["id"])


@every_format
def test_partitioned_log_table(lake: LakeHarness) -> None:
    path = lake.create("parts", PARTITIONED, partitions={"day": ["mon", "tue"]}, buckets=2)
    rows = [row(i, day="mon" if i % 2 else "tue") for i in range(100)]
    lake.append(path, rows)
    lake.tier(path)
    lake.session.run(lake.session.admin.create_partition(path, {"day": "wed"}))
    new = [row(i, day="wed") for i in range(100, 130)] + [row(i, day="mon") for i in range(130, 140)]
    lake.append(path, new)
    assert lake.union(path) == rows + new
    assert lake.union(path, partitions=["wed"]) == new[:30]
    lake.tier(path)
    assert rows_of(lake.alone(path), PARTITIONED.names) == rows + new
    # A partition that Fluss dropped lives on in the lake.
    lake.session.run(lake.session.admin.drop_partition(path, {"day": "tue"}))
    lake.append(path, [row(200, day="mon")])
    assert lake.union(path) == [*rows, *new, row(200, day="mon")]
    # Created again, it continues the one of the lake: a late row must not hide those that came in time.
    lake.session.run(lake.session.admin.create_partition(path, {"day": "tue"}))
    lake.append(path, [row(201, day="tue")])
    truth = [*rows, *new, row(200, day="mon"), row(201, day="tue")]
    assert lake.union(path) == truth
    lake.tier(path)
    assert lake.union(path) == truth
    assert rows_of(lake.alone(path), PARTITIONED.names) == truth


def test_partitioned_primary_key_table(lake: LakeHarness) -> None:
    path = lake.create(
        "pkparts", PARTITIONED, primary_keys=["id", "day"], partitions={"day": ["mon", "tue"]}, buckets=2
    )
    live = {(i, day): row(i, day=day) for i in range(50) for day in ("mon", "tue")}

    def check_tiering() -> None:
        truth = rows_of(pa.Table.from_pylist(list(live.values())))
        assert lake.union(path) == truth
        lake.tier(path)
        assert rows_of(lake.alone(path), PARTITIONED.names) == truth

    lake.upsert(path, live.values())
    lake.tier(path)
    for i in range(0, 50, 5):
        live[i, "tue"] = row(i, 3, day="tue")
    del live[7, "mon"]
    lake.upsert(path, [live[i, "tue"] for i in range(0, 50, 5)], [{"id": 7, "day": "mon"}])
    check_tiering()
    # Created again, a partition continues the one of the lake; its changes count from offset 0 again, and are newer.
    lake.session.run(lake.session.admin.drop_partition(path, {"day": "tue"}))
    lake.session.run(lake.session.admin.create_partition(path, {"day": "tue"}))
    live[5, "tue"] = row(5, 9, day="tue")
    lake.upsert(path, [live[5, "tue"]])
    check_tiering()


@every_format
def test_partitions_are_chosen_by_what_a_caller_says(lake: LakeHarness) -> None:
    path = lake.create("chosen", PARTITIONED, partitions={"day": ["mon", "tue", "wed"]}, buckets=1)
    lake.append(path, [row(i, day=("mon", "tue")[i % 2]) for i in range(10)])
    lake.tier(path)
    lake.session.run(lake.session.admin.drop_partition(path, {"day": "tue"}))
    lake.append(path, [row(10, day="wed")])
    info, asked = lake.session.info(path), set()

    def wanted(name: str) -> bool:
        asked.add(name)
        return name != "mon"

    plan = plan_union(lake.session, info, partitions=wanted)
    assert asked == {"mon", "tue", "wed"}, "of both places"
    batches = [batch for split in plan.splits for batch in read_union_split(lake.session, plan.for_tasks(), split)]
    expected = [row(i, day="tue") for i in range(1, 10, 2)] + [row(10, day="wed")]
    assert rows_of(pa.Table.from_batches(batches)) == expected


def test_columns_that_the_lake_adds(lake: LakeHarness) -> None:
    path = lake.create("added", buckets=2)
    lake.append(path, [row(i) for i in range(30)])
    lake.tier(path)
    plan = plan_union(lake.session, lake.session.info(path), lake_only=True)
    columns = ["id", "__bucket", "__offset", "__timestamp"]
    batches = [b for split in plan.splits for b in read_union_split(lake.session, plan, split, columns)]
    assert rows_of(pa.Table.from_batches(batches)) == rows_of(lake.alone(path), columns)


async def test_a_plain_scanner_includes_the_lake(paimon: LakeHarness) -> None:
    log, pk = paimon.create("log"), paimon.create("pk", primary_keys=["id"])
    paimon.append(log, [row(i) for i in range(30)])
    paimon.upsert(pk, [row(i) for i in range(30)])
    for path in (log, pk):
        paimon.tier(path)
    paimon.append(log, [row(i) for i in range(30, 40)])
    paimon.upsert(pk, [row(i, 1) for i in range(5)])
    with await fluss.FlussConnection.create(paimon.server.config()) as connection:
        scan = (await connection.get_table(log)).new_scan()
        scanner = await scan.create_record_batch_log_scanner()
        assert rows_of(scanner.to_arrow(include_lake=True)) == [row(i) for i in range(40)]
        chosen = scan.project_by_name(["name"]).filter(fluss.col("id") >= 38)
        scanner = await chosen.create_record_batch_log_scanner()
        assert scanner.to_arrow(include_lake=True).to_pylist() == [{"name": "user-38"}, {"name": "user-39"}]
        scanner = await (await connection.get_table(pk)).new_scan().create_record_batch_log_scanner()
        live = [row(i, 1 if i < 5 else 0) for i in range(30)]
        assert rows_of(scanner.to_arrow(include_lake=True)) == live


async def test_a_scanner_of_a_table_that_came_again_is_refused(paimon: LakeHarness) -> None:
    path = paimon.create("again")
    with await fluss.FlussConnection.create(paimon.server.config()) as connection:
        table = await connection.get_table(path)
        paimon.session.run(paimon.session.admin.drop_table(path))
        paimon.create("again")
        paimon.append(path, [row(1)])
        scanner = await table.new_scan().create_record_batch_log_scanner()
        with pytest.raises(TableNotExistError, match="dropped and created again"):
            scanner.to_arrow(include_lake=True)


def test_listed_rows(paimon: LakeHarness) -> None:
    """What is read of a primary-key bucket that is not in the lake and whose changelog does not reach back."""
    path = paimon.create("listed", primary_keys=["id"], buckets=1)
    paimon.upsert(path, [row(i) for i in range(20)], [{"id": 3}])
    plan = plan_union(paimon.session, paimon.session.info(path))
    assert [(split.lake, split.listed) for split in plan.splits] == [((), False)]
    listed = replace(plan.splits[0], listed=True)
    batches = list(read_union_split(paimon.session, plan, listed, ["name", "id"]))
    found = pa.Table.from_batches(batches)
    assert found.schema.names == ["name", "id"]
    assert sorted(found["id"].to_pylist()) == [i for i in range(20) if i != 3]
    # What comes later is not part of the cut.
    paimon.upsert(path, [row(i, 1) for i in range(10, 30)], [{"id": 4}])
    found = pa.Table.from_batches(read_union_split(paimon.session, plan, listed))
    assert rows_of(found) == [row(i) for i in range(20) if i != 3]


def test_a_listed_read_without_old_images_advises_what_helps(paimon: LakeHarness) -> None:
    wal = {"table.changelog.image": "WAL"}
    path = paimon.create("without_images", primary_keys=["id"], buckets=1, **wal)
    paimon.upsert(path, [row(i) for i in range(20)])
    plan = plan_union(paimon.session, paimon.session.info(path))
    listed = replace(plan.splits[0], listed=True)
    paimon.upsert(path, [row(1, 1)])
    with pytest.raises(InvalidArgumentError, match=r"no images before updates.*; .*read the table again") as caught:
        list(read_union_split(paimon.session, plan, listed))
    assert "read.optimized" not in str(caught.value)


def test_a_whole_read_asks_for_the_table_once(paimon: LakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TablePath] = []
    info = LakeSession.info

    def counted(session: LakeSession, path: TablePath) -> TableInfo:
        asked.append(path)
        return info(session, path)

    path = paimon.create("asked_once")
    paimon.append(path, [row(1)])
    table_id = paimon.session.info(path).table_id
    monkeypatch.setattr(LakeSession, "info", counted)
    assert union_read_once(paimon.client, path, table_id, ["id"]).to_pylist() == [{"id": 1}]
    assert asked == [path]


def test_parts_can_travel(lake: LakeHarness) -> None:
    path = lake.create("travel", primary_keys=["id"])
    lake.upsert(path, [row(i) for i in range(40)])
    lake.tier(path)
    lake.upsert(path, [row(i, 1) for i in range(20, 50)])
    plan = pickle.loads(pickle.dumps(plan_union(lake.session, lake.session.info(path))))
    # What comes later is not part of the cut.
    lake.upsert(path, [row(i, 2) for i in range(100)])
    batches = [batch for split in plan.splits for batch in read_union_split(lake.session, plan, split)]
    expected = [row(i) for i in range(20)] + [row(i, 1) for i in range(20, 50)]
    assert rows_of(pa.Table.from_batches(batches)) == expected


@every_format_and_key
def test_while_writes_go_on(lake: LakeHarness, primary_keys: list[str] | None) -> None:
    path = lake.create("busy", primary_keys=primary_keys, buckets=2)
    stop = threading.Event()
    written: list[int] = []

    def write() -> None:
        step = 0
        while not stop.is_set():
            ids = range(step * 20, step * 20 + 20)
            if primary_keys:
                # Each step writes new keys and changes the last ones.
                lake.upsert(path, [row(i) for i in ids])
                lake.upsert(path, [row(i, 1) for i in ids])
            else:
                lake.append(path, [row(i) for i in ids])
            written.append(step)
            step += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(6):
            before = len(written)
            lake.tier(path)
            found = lake.union(path)
            ids = [r["id"] for r in found]
            assert len(ids) == len(set(ids)), "no row twice"
            assert set(range(before * 20)) <= set(ids), "no acknowledged row missing"
            assert ids == list(range(len(ids))) or primary_keys, "log rows of one writer come without holes"
    finally:
        stop.set()
        thread.join()
    total = len(written) * 20
    expected: list[dict[str, Any]] = [row(i, 1 if primary_keys else 0) for i in range(total)]
    assert lake.union(path) == expected
    lake.tier(path)
    assert rows_of(lake.alone(path), ROW.names) == expected


@pytest.mark.parametrize("primary_keys", [None, ["id"]])
def test_rows_deleted_from_the_log_after_the_plan_are_missed(tmp_path: Path, primary_keys: list[str] | None) -> None:
    """The rows of a key are listed then. Those of a log may be in the lake by now: the read fails."""
    options = {"log.segment.file-size": "2kb", "log.retention.check-interval": "50ms", "kv.snapshot.interval": "100ms"}
    options["kv.snapshot.num-retained"] = "1"  # a snapshot of the first rows would keep the changelog from there on
    rows = [row(i) for i in range(200)]
    with LocalServer(tmp_path, options=options) as server, lake_harness(server, "paimon", tmp_path, "db") as lake:
        session = lake.session
        path = lake.create("t", primary_keys=primary_keys, buckets=1, **{"table.datalake.enabled": "false"})
        for start in range(0, 200, 20):
            (lake.upsert if primary_keys else lake.append)(path, rows[start : start + 20])
        info = session.info(path)
        plan = plan_union(session, info)
        [task] = lake.round()._plan(info, LakeConfig("paimon", {}), None)
        assert not task.listed, "nothing is deleted yet"
        session.run(session.admin.alter_table(path, set_properties={"table.log.ttl": "1ms"}))
        wait_for(lambda: session.offsets(info, session.buckets(info), OffsetSpec.earliest())[task.bucket] > 0)
        if primary_keys:
            assert rows_of(pa.Table.from_batches(read_union_split(session, plan, plan.splits[0]))) == rows
        else:
            with pytest.raises(LogOffsetOutOfRangeError):
                list(read_union_split(session, plan, plan.splits[0]))
        batches = session.iterate(session.scan(path).read_batches({task.bucket: task.start}, {task.bucket: 200}))
        with pytest.raises(LogOffsetOutOfRangeError):
            list(batches)
