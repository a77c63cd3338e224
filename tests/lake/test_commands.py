# SPDX-License-Identifier: Apache-2.0
"""`fluss tier` and `fluss lake status`."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner, Result
from tests.lake.support import ROW, LakeHarness, row, rows_of

from fluss.cli import main
from fluss.cli.lake import Lines


def fluss(lake: LakeHarness, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "-b", lake.server.bootstrap_servers])


def test_tier_once_and_status(lake: LakeHarness) -> None:
    path = lake.create("orders", buckets=1, **{"table.datalake.freshness": "1h"})
    lake.append(path, [row(i) for i in range(50)])
    before = fluss(lake, "lake", "status", str(path))
    assert before.exit_code == 0, before.output
    assert "nothing tiered yet, 50 rows and" in before.output
    done = fluss(lake, "tier", "--once", "--tables", str(path))
    assert done.exit_code == 0, done.output
    assert f"{path}: 50 rows, 1 files" in done.output
    assert rows_of(lake.alone(path), ROW.names) == [row(i) for i in range(50)]
    lake.append(path, [row(50)])
    after = fluss(lake, "lake", "status", str(path), "--buckets")
    assert "1 rows and" in after.output
    assert "50 rows in 1 files" in after.output
    assert "bucket 0: 50 of 51" in after.output
    document = json.loads(fluss(lake, "lake", "status", str(path), "--json").output)
    assert document[0]["rows_behind"] == 1
    assert document[0]["buckets"][0]["tiered"] == 50
    assert document[0]["seconds_behind"] >= 0
    lines = fluss(lake, "tier", "--once", "--tables", str(path), "--json").output.splitlines()
    events = [json.loads(line) for line in lines]
    assert [e["rows"] for e in events if e["event"] == "finished"] == [1]
    assert "up to date" in fluss(lake, "lake", "status", str(path)).output


def test_failures_end_the_command_with_an_error(paimon: LakeHarness) -> None:
    missing = fluss(paimon, "tier", "--once", "--tables", f"{paimon.database}.nothing")
    assert missing.exit_code == 1
    assert "does not exist" in missing.output
    assert fluss(paimon, "tier", "--once", "--lake", "nonsense").exit_code == 2
    assert fluss(paimon, "lake", "status", f"{paimon.database}.nothing").exit_code == 3


def test_lines_say_what_happens(capsys: pytest.CaptureFixture[str]) -> None:
    show = Lines()
    show("recovered", {"table": "d.t", "snapshot": 3})
    show("bucket", {"table": "d.t", "partition": "mon", "bucket": 2, "rows": 1000, "end": 5000})
    show("failed", {"table": "d.t", "reason": "broken", "retry_in_s": 5.0})
    show("idle", {"backing_off": 1})
    show("assigned", {"table": "d.u", "epoch": 2})
    show("planned", {"table": "d.u", "tasks": 0, "rows": 0})
    show("finished", {"table": "d.u", "snapshot": None})
    show("idle", {"backing_off": 1})
    show("disconnected", {"reason": "gone", "retry_s": 2.0})
    show("finished", {"table": "d.t", "snapshot": None})
    text = capsys.readouterr().out
    assert "snapshot 3 of an interrupted round is now known to the server" in text
    assert "bucket mon/2 up to offset 5,000 (1,000 rows)" in text
    assert "FAILED, broken (retry in 5 s)" in text
    assert text.count("up to date, 1 tables backing off") == 1, "said once"
    assert "server lost: gone; trying again in 2 s" in text
    assert "d.t: nothing new" in text
    assert "d.u" not in text, "looked at in vain while idle"
