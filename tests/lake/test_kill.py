# SPDX-License-Identifier: Apache-2.0
"""The tiering service is killed with SIGKILL at each step of a round: after a restart lake and log are exact again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pyarrow as pa
import pytest
from tests.lake.support import PACKAGES, PARTITIONED, ROW, LakeHarness, row, rows_of

_KILLED = """
import json, os, signal, sys
from fluss.lake.rounds import Round
from fluss.lake.tasks import LocalRunner
from fluss.lake.tasks import LakeSession
from fluss.metadata import TablePath

options = json.loads(sys.argv[1])
client = {"bootstrap.servers": options["servers"]}

def on_step(name):
    if name == options["step"]:
        os.kill(os.getpid(), signal.SIGKILL)

Round(LakeSession(client), client, LocalRunner(2), on_step=on_step).run(TablePath(*options["table"]))
print("not killed")
"""

STEPS = ["planned", "written", "prepared", "lake committed", "server committed"]


def killed_round(lake: LakeHarness, table: tuple[str, str], step: str) -> None:
    options = json.dumps({"servers": lake.server.bootstrap_servers, "table": table, "step": step})
    done = subprocess.run([sys.executable, "-c", _KILLED, options], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


CASES = [(lake, key, step) for lake in ("paimon", "iceberg") for key in (None, ["id"]) for step in STEPS]
CASES += [(lake, None, step) for lake in PACKAGES if lake not in ("paimon", "iceberg") for step in STEPS]

# Each case starts a process: those of one kind of table, and the hard ones of another, run with every test run.
QUICK = [case for case in CASES if case[:2] == ("paimon", None)] + [
    ("iceberg", ["id"], "written"),
    ("iceberg", ["id"], "lake committed"),
    *((lake, None, "lake committed") for lake in PACKAGES if lake not in ("paimon", "iceberg")),
]


@pytest.mark.parametrize(
    ("lake", "primary_keys", "step"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
    indirect=["lake"],
)
def test_killed_at_each_step(lake: LakeHarness, primary_keys: list[str] | None, step: str) -> None:
    path = lake.create("killed", primary_keys=primary_keys, buckets=1)

    def write(rows: list[dict[str, object]]) -> None:
        lake.upsert(path, rows) if primary_keys else lake.append(path, rows)

    write([row(i) for i in range(30)])
    lake.tier(path)
    write([row(i) for i in range(30, 70)])
    killed_round(lake, (path.database_name, path.table_name), step)
    truth = [row(i) for i in range(70)]
    assert lake.union(path) == truth, "between crash and restart"
    write([row(i) for i in range(70, 90)])
    truth = [row(i) for i in range(90)]
    report = lake.tier(path)
    assert (report.recovered_id is not None) == (step == "lake committed")
    # What the server was told of the killed round is not tiered a second time.
    assert report.rows == (20 if step in ("lake committed", "server committed") else 60)
    assert lake.union(path) == truth
    assert rows_of(lake.alone(path), ROW.names) == truth
    # Files of the killed round that no snapshot uses are swept; what is used stays.
    swept = lake.table(path).sweep(older_than_ms=2**53)
    assert bool(swept) == (step in ("written", "prepared"))
    assert lake.table(path).sweep(older_than_ms=2**53) == []
    assert lake.union(path) == truth
    assert lake.tier(path).snapshot_id is None


@pytest.mark.slow
@pytest.mark.parametrize("primary_keys", [None, ["id", "day"]], ids=["log", "primary key"])
def test_partitions_killed_at_each_step(lake: LakeHarness, primary_keys: list[str] | None) -> None:
    """One table goes through all crashes, one after the other, while partitions come and go."""
    path = lake.create("parts", PARTITIONED, primary_keys=primary_keys, partitions={"day": ["mon", "tue"]}, buckets=2)
    live: dict[tuple[int, str], dict[str, object]] = {}

    def write(first: int, days: tuple[str, ...], version: int) -> None:
        # Primary-key tables: half of the keys are changed by the next step.
        rows = [row(i, version, day=day) for i in range(first, first + 40) for day in days]
        lake.upsert(path, rows) if primary_keys else lake.append(path, rows)
        live.update({(r["id"], r["day"]): r for r in rows})

    def truth() -> list[dict[str, object]]:
        return rows_of(pa.Table.from_pylist(list(live.values())))

    write(0, ("mon", "tue"), 0)
    lake.tier(path)
    apart = 20 if primary_keys else 40
    for number, step in enumerate(STEPS, 1):
        day = f"day{number}"
        lake.session.run(lake.session.admin.create_partition(path, {"day": day}))
        write(number * apart, ("mon", day), number)
        killed_round(lake, (path.database_name, path.table_name), step)
        assert lake.union(path) == truth(), f"after a crash at {step!r}"
        assert lake.spark_union(path) == truth()
        write((number + 10) * 40, ("tue", day), number)
        lake.tier(path)
        assert rows_of(lake.alone(path), PARTITIONED.names) == lake.union(path) == truth()
    lake.table(path).sweep(older_than_ms=2**53)
    assert rows_of(lake.alone(path), PARTITIONED.names) == truth()
