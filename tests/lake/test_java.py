# SPDX-License-Identifier: Apache-2.0
"""The lake with Java on the other side: Paimon's own reader, and a real Apache Fluss whose lake we fill."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.interop import cluster, environment
from tests.lake.support import PARTITIONED, ROW, LakeHarness, row, rows_of

from fluss import DataTypes
from fluss.client.blocking_client import close_shared_clients
from fluss.lake.rounds import RoundSettings
from fluss.lake.service import ServiceSettings, TieringService
from fluss.lake.tasks import LakeSession
from fluss.metadata import TablePath

pytestmark = pytest.mark.interop

JAVA = Path(__file__).parent / "java"
MAINTAINED = RoundSettings(compact=True, compact_files_min=2, expire=True, expire_keep_min=1, expire_after_s=-60.0)


@pytest.fixture(scope="module")
def lake_jars() -> str:
    """The class path of Paimon and of the lake plugin of Fluss."""
    try:
        return environment.lake_jars()
    except environment.Unavailable as missing:
        pytest.skip(str(missing))


def java_rows(jars: str, folder: Path, warehouse: Path, *paths: TablePath) -> dict[str, list[str]]:
    java = environment.java()
    javac = str(Path(java).with_name("javac"))
    subprocess.run([javac, "-nowarn", "-d", str(folder), "-cp", jars, str(JAVA / "ReadPaimon.java")], check=True)
    command = [java, "-cp", f"{folder}{os.pathsep}{jars}", "ReadPaimon", str(warehouse), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    names = {str(path) for path in paths}
    lines = [line.partition(" ") for line in done.stdout.splitlines()]
    return {table: text.split(",") for table, _, text in lines if table in names}


def expected(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(f"{r['id']}:{r['name']}" for r in rows)


@pytest.mark.parametrize("maintained", [False, True])
def test_paimon_in_java_reads_our_tables(paimon: LakeHarness, lake_jars: str, tmp_path: Path, maintained: bool) -> None:
    pk = paimon.create("pk", primary_keys=["id"])
    log, keyed = paimon.create("log"), paimon.create("keyed", bucket_keys=["id"])
    parts = paimon.create("parts", PARTITIONED, primary_keys=["id", "day"], partitions={"day": ["mon", "tue"]})
    tables = (pk, log, keyed, parts)
    for step in range(3):
        paimon.upsert(pk, [row(i, step) for i in range(30)], [{"id": 5 + step}])
        paimon.append(log, [row(i) for i in range(step * 10, step * 10 + 10)])
        paimon.append(keyed, [row(i) for i in range(step * 10, step * 10 + 10)])
        paimon.upsert(parts, [row(i, step, day="mon") for i in range(30)] + [row(i, step, day="tue") for i in range(9)])
        for path in tables:
            one = paimon.round(settings=MAINTAINED)
            report = one.run(path)
            if maintained:
                one.maintain(report, sweep=True)
    found = java_rows(lake_jars, tmp_path, paimon.warehouse, *tables)
    assert found == {str(path): expected(paimon.union(path)) for path in tables}
    assert len(found[str(pk)]) == 29


@pytest.fixture
def real(lake_jars: str, tmp_path: Path) -> Iterator[LakeHarness]:
    """A real Apache Fluss with its datalake on."""
    try:
        environment.classpath()
        environment.java()
    except environment.Unavailable as missing:
        pytest.skip(str(missing))
    warehouse = tmp_path / "lake"
    options = {
        "datalake.format": "paimon",
        "datalake.paimon.metastore": "filesystem",
        "datalake.paimon.warehouse": str(warehouse),
    }
    with cluster.RealCluster(tablets=1, options=options, extra_jars=lake_jars) as servers:
        session = LakeSession({"bootstrap.servers": servers.plain})
        server: Any = SimpleNamespace(bootstrap_servers=servers.plain)
        harness = LakeHarness("paimon", server, warehouse, session, "lake_real")
        harness.create_database()
        yield harness
        session.close()
        close_shared_clients()


def test_a_real_fluss_is_served(real: LakeHarness, lake_jars: str, tmp_path: Path) -> None:
    log, pk = real.create("log"), real.create("pk", primary_keys=["id"])
    parts = real.create("parts", PARTITIONED, partitions={"day": ["mon", "tue"]}, buckets=1)
    real.append(log, [row(i) for i in range(100)])
    real.upsert(pk, [row(i) for i in range(50)])
    real.upsert(pk, [row(i, 1) for i in range(10)], [{"id": 49}])
    real.append(parts, [row(i, day="mon") for i in range(10)])
    service = TieringService(real.client, settings=ServiceSettings(heartbeat_s=0.5, poll_s=0.2))
    service.run_once()
    # The server itself knows our offsets.
    for path, count in ((log, 100), (parts, 10)):
        snapshot = real.session.run(real.session.admin.get_latest_lake_snapshot(path))
        assert sum(snapshot.table_buckets_offset.values()) == count
    real.append(log, [row(i) for i in range(100, 120)])
    real.upsert(pk, [row(5, 2)])
    live = [row(i, 2 if i == 5 else 1) for i in range(10)] + [row(i) for i in range(10, 49)]
    assert real.union(log) == [row(i) for i in range(120)]
    assert real.union(pk) == live
    assert real.spark_union(log) == [row(i) for i in range(120)]
    assert real.spark_union(pk) == live
    assert real.spark_union(log, read__optimized=True) == [row(i) for i in range(100)]
    thread = threading.Thread(target=service.run_forever)
    thread.start()
    deadline = time.monotonic() + 60
    try:
        while rows_of(real.alone(log), ROW.names) != [row(i) for i in range(120)] or (
            rows_of(real.alone(pk), ROW.names) != live
        ):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    finally:
        service.stop()
        thread.join(30)

    # A column added through the real coordinator, and a crash between the two commits.
    real.session.run(real.session.admin.alter_table(log, add_columns={"extra": DataTypes.int()}))
    real.append(log, [{**row(200), "extra": 5}])

    def crash(step: str) -> None:
        if step == "lake committed":
            raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        real.round(on_step=crash).run(log)
    real.append(log, [{**row(201), "extra": 6}])
    report = real.tier(log)
    assert report.recovered_id is not None
    assert report.rows == 1
    assert real.alone(log).num_rows == 122
    one = real.round(settings=MAINTAINED)
    one.maintain(one.run(pk), sweep=True)
    assert real.union(pk) == live
    assert java_rows(lake_jars, tmp_path, real.warehouse, pk) == {str(pk): expected(live)}
