# SPDX-License-Identifier: Apache-2.0
"""The tiering service against the server: whose turn it is, what fails, what is handed on."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from tests.lake.support import (
    PARTITIONED,
    ROW,
    LakeHarness,
    every_format,
    lake_harness,
    lake_server_options,
    row,
    rows_of,
)
from tests.waiting import wait_for

from fluss.errors import FlussError, UnknownTableOrBucketError
from fluss.lake import tasks
from fluss.lake.layout import lake_config
from fluss.lake.registry import open_lake
from fluss.lake.rounds import Round, RoundSettings
from fluss.lake.service import ServiceSettings, TieringService
from fluss.lake.tasks import BucketResult, BucketTask, LocalRunner
from fluss.metadata import TablePath
from fluss.server.local import LocalServer

FAST = ServiceSettings(heartbeat_s=0.2, poll_s=0.1, backoff_s_min=0.3, backoff_s_max=0.6)


class Events:
    def __init__(self) -> None:
        self.all: list[tuple[str, dict[str, Any]]] = []

    def __call__(self, name: str, figures: Mapping[str, Any]) -> None:
        self.all.append((name, dict(figures)))

    def of(self, name: str, path: TablePath | None = None) -> list[dict[str, Any]]:
        return [f for n, f in self.all if n == name and (path is None or f.get("table") == str(path))]


@contextmanager
def running(service: TieringService, seconds_max: float = 20) -> Iterator[threading.Thread]:
    """Let a service work in a thread."""
    thread = threading.Thread(target=service.run_forever)
    thread.start()
    try:
        yield thread
    finally:
        service.stop()
        thread.join(seconds_max)


def drop_lake_table(paimon: LakeHarness, path: TablePath) -> None:
    from pypaimon import CatalogFactory

    CatalogFactory.create({"warehouse": str(paimon.warehouse)}).drop_table(str(path))


def test_serves_tables_until_it_is_stopped(paimon: LakeHarness) -> None:
    log, pk = paimon.create("log"), paimon.create("pk", primary_keys=["id"])
    events = Events()
    service = TieringService(paimon.client, tables=[log, pk], settings=FAST, progress=events)
    with running(service) as thread:
        for step in range(3):
            paimon.append(log, [row(i) for i in range(step * 10, step * 10 + 10)])
            paimon.upsert(pk, [row(i, step) for i in range(10)])
            wait_for(lambda: rows_of(paimon.alone(log), ROW.names) == [row(i) for i in range(step * 10 + 10)])  # noqa: B023
            wait_for(lambda: rows_of(paimon.alone(pk), ROW.names) == [row(i, step) for i in range(10)])  # noqa: B023
    assert not thread.is_alive()
    assert not events.of("failed")
    assert sum(f["rows"] for f in events.of("finished", log)) == 30


def test_a_table_that_fails_backs_off_and_the_others_go_on(paimon: LakeHarness) -> None:
    bad, good = paimon.create("bad"), paimon.create("good")
    for path in (bad, good):
        paimon.append(path, [row(1)])
        paimon.tier(path)
        paimon.append(path, [row(2)])
    drop_lake_table(paimon, bad)
    events = Events()
    service = TieringService(paimon.client, tables=[bad, good], settings=FAST, progress=events)
    with running(service):
        wait_for(lambda: len(events.of("failed", bad)) >= 3)
        wait_for(lambda: rows_of(paimon.alone(good), ROW.names) == [row(1), row(2)])
        failures = events.of("failed", bad)
        assert "does not exist in the Paimon catalog" in failures[0]["reason"]
        assert [f["retry_in_s"] for f in failures[:3]] == [0.3, 0.6, 0.6], "longer each time, up to a limit"


def test_once_brings_all_chosen_tables_up_to_date_and_tells_what_failed(paimon: LakeHarness) -> None:
    slow, bad, other = (paimon.create(name, **{"table.datalake.freshness": "1h"}) for name in ("slow", "bad", "other"))
    for path in (slow, bad, other):
        paimon.append(path, [row(1)])
    paimon.tier(bad)
    paimon.append(bad, [row(2)])
    drop_lake_table(paimon, bad)
    events = Events()
    service = TieringService(paimon.client, tables=[slow, bad], settings=FAST, progress=events)
    with pytest.raises(FlussError, match=r"bad.*does not exist in the Paimon catalog"):
        service.run_once()
    assert rows_of(paimon.alone(slow), ROW.names) == [row(1)], "not due, but asked for"
    assert paimon.session.lake_snapshot(other) is None, "not asked for"
    again = TieringService(paimon.client, tables=[slow], settings=FAST).run_once()
    assert [report.snapshot_id for report in again] == [None]


def test_once_reports_a_table_that_a_heartbeat_finds_gone(paimon: LakeHarness) -> None:
    path = paimon.create("gone")
    paimon.append(path, [row(1)])
    paimon.tier(path)
    paimon.append(path, [row(2)])
    wait_for(lambda: is_due(paimon, path))
    drop_lake_table(paimon, path)

    def drop(name: str, figures: Mapping[str, Any]) -> None:
        if name == "failed":
            paimon.session.run(paimon.session.admin.drop_table(path))
            service._renew()  # as the thread of the heartbeats does at any time

    service = TieringService(paimon.client, tables=[path], settings=FAST, progress=drop)
    with pytest.raises(FlussError, match=r"gone: .*does not exist in the Paimon catalog"):
        service.run_once()


def is_due(lake: LakeHarness, path: TablePath) -> bool:
    """Ask as a service does, and give the table back."""
    found = lake.session.run(lake.session.admin.lake_tiering_heartbeat(request_table=True)).table
    if found is not None:
        lake.session.run(lake.session.admin.lake_tiering_heartbeat(failed=[found]))
    return found is not None and found.table_path == path


def test_a_dropped_and_recreated_table(paimon: LakeHarness) -> None:
    path = paimon.create("again")
    paimon.append(path, [row(1)])
    old_id = paimon.session.info(path).table_id
    paimon.session.run(paimon.session.admin.drop_table(path))
    with pytest.raises(FlussError, match="does not exist"):
        paimon.tier(path)
    # The lake table is empty still, so the name can be used again.
    paimon.create("again")
    with pytest.raises(FlussError, match="dropped and created again"):
        paimon.round().run(path, old_id)
    paimon.append(path, [row(5)])
    paimon.tier(path)
    assert rows_of(paimon.alone(path), ROW.names) == [row(5)]
    # Dropped while a round runs: its files are not committed to the new table.
    paimon.append(path, [row(6)])

    def replace(step: str) -> None:
        if step == "written":
            paimon.session.run(paimon.session.admin.drop_table(path))
            drop_lake_table(paimon, path)
            paimon.create("again")

    with pytest.raises(FlussError, match="created again during the round"):
        paimon.round(on_step=replace).run(path)
    assert rows_of(paimon.alone(path), ROW.names) == []


@every_format
def test_a_lake_table_created_anew_is_noticed(lake: LakeHarness) -> None:
    path = lake.create("anew")
    lake.append(path, [row(1)])
    lake.tier(path)
    lake.append(path, [row(2)])
    info = lake.session.info(path)
    with open_lake(lake_config(info)) as opened:
        if lake.lake_format == "paimon":
            drop_lake_table(lake, path)
        elif lake.lake_format in ("lance", "delta"):
            name = f"{path.table_name}.lance" if lake.lake_format == "lance" else path.table_name
            shutil.rmtree(lake.warehouse / path.database_name / name)
        else:
            opened._catalog.drop_table((path.database_name, path.table_name))  # type: ignore[attr-defined]
        opened.create_table(path, info.descriptor, must_be_empty=True)
    with pytest.raises(FlussError, match="created anew"):
        lake.tier(path)


@every_format
def test_two_services_never_commit_the_same_rows(lake: LakeHarness) -> None:
    path = lake.create("twice")
    lake.append(path, [row(i) for i in range(10)])

    def other_first(step: str) -> None:
        if step == "prepared":
            lake.tier(path)

    with pytest.raises(FlussError, match="meanwhile"):
        lake.round(on_step=other_first).run(path)
    assert rows_of(lake.alone(path), ROW.names) == [row(i) for i in range(10)]
    assert lake.table(path).sweep(older_than_ms=2**53) == [], "the files of the loser are gone already"


def test_a_fenced_round_does_not_commit(paimon: LakeHarness) -> None:
    path = paimon.create("fenced")
    paimon.append(path, [row(1)])
    one: Any = paimon.round(on_step=lambda step: one.fenced.set() if step == "prepared" else None)
    with pytest.raises(FlussError, match="another tiering service"):
        one.run(path)
    assert paimon.session.lake_snapshot(path) is None
    assert paimon.table(path).sweep(older_than_ms=2**53) == []


@every_format
def test_a_round_that_runs_out_of_time_commits_what_it_has(lake: LakeHarness) -> None:
    path = lake.create("long", buckets=1)
    for i in range(5):
        lake.append(path, [row(j) for j in range(i * 10, i * 10 + 10)])
    report = lake.tier(path, RoundSettings(duration_s_max=0.0))
    assert report.cut
    assert 0 < report.rows < 50
    assert lake.union(path) == [row(i) for i in range(50)]
    while lake.tier(path, RoundSettings(duration_s_max=0.0)).cut:
        pass
    assert rows_of(lake.alone(path), ROW.names) == [row(i) for i in range(50)]


def test_long_ranges_are_cut_into_tasks(paimon: LakeHarness) -> None:
    path = paimon.create("wide", buckets=1)
    for i in range(6):
        paimon.append(path, [row(j) for j in range(i * 50, i * 50 + 50)])
    report = paimon.tier(path, RoundSettings(rows_per_task_max=100))
    assert (report.rows, report.files) == (300, 3)
    assert rows_of(paimon.alone(path), ROW.names) == [row(i) for i in range(300)]


def test_a_range_that_cannot_be_read_leaves_no_hole(paimon: LakeHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    path = paimon.create("holes", PARTITIONED, partitions={"day": ["mon"]}, buckets=1)
    paimon.append(path, [row(i, day="mon") for i in range(30)])
    (bucket,) = paimon.session.buckets(paimon.session.info(path))

    class Moving(LocalRunner):
        """Loses one range, as if its partition were dropped."""

        def run(self, tasks: Sequence[BucketTask], done: Callable[[BucketResult], None]) -> list[BucketResult]:
            first, second, third = sorted(super().run(tasks, done), key=lambda one: one.start)
            return [first, replace(second, rows=0, written=None, gone=True), third]

    settings = RoundSettings(duration_s_max=600.0, rows_per_task_max=10)
    report = Round(paimon.session, paimon.client, Moving(1), settings=settings).run(path)
    assert (report.offsets, report.rows, report.cut) == ({bucket: 10}, 10, True)
    paimon.tier(path)
    assert rows_of(paimon.alone(path), PARTITIONED.names) == [row(i, day="mon") for i in range(30)]

    # The error of a dropped partition does not make it one: a server that restarts may answer so too.
    info = paimon.session.info(path)
    task = BucketTask(paimon.client, lake_config(info), path, info.table_id, bucket, ("mon",), 0, 5)
    monkeypatch.setattr(tasks, "_copy", Mock(side_effect=UnknownTableOrBucketError("no such bucket")))
    with pytest.raises(UnknownTableOrBucketError):
        tasks.run_task(task)
    paimon.session.run(paimon.session.admin.drop_partition(path, {"day": "mon"}))
    assert tasks.run_task(task).gone


def test_a_killed_server_is_waited_for(tmp_path: Any) -> None:
    warehouse = tmp_path / "lake"
    server = LocalServer(tmp_path / "data", port=0, options=lake_server_options("paimon", warehouse)).start()
    port = int(server.bootstrap_servers.rsplit(":", 1)[1])
    events = Events()
    try:
        with lake_harness(server, "paimon", warehouse, "d") as harness:
            path = harness.create("t")
            harness.append(path, [row(1)])
            with running(TieringService(harness.client, settings=FAST, progress=events), 30):
                wait_for(lambda: bool(events.of("finished", path)))
                server.crash()
                server._port = port
                server.start()
                harness.append(path, [row(2)])
                wait_for(lambda: rows_of(harness.alone(path), ROW.names) == [row(1), row(2)], 40)
    finally:
        server.kill()
