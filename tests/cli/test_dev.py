# SPDX-License-Identifier: Apache-2.0
"""A server with live data, and a short load test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

from tests.cli.conftest import Ok

import fluss


def test_bench(ok: Ok) -> None:
    found = json.loads(ok("bench", "--seconds", "0.05", "--json"))
    assert [one["test"] for one in found] == ["append", "scan", "upsert", "lookup"]
    assert all(one["rows_per_second"] > 0 and one["p50_ms"] <= one["p99_ms"] for one in found)
    assert json.loads(ok("ls", "fluss", "--json")) == []
    header = ok("bench", "--seconds", "0.01").splitlines()[0]
    assert header.split() == ["test", "requests", "rows/s", "p50", "ms", "p99", "ms"]


def test_dev_runs_until_ctrl_c() -> None:
    command = [sys.executable, "-m", "fluss", "dev", "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        found = json.loads(running.stdout.readline())
        with fluss.connect(found["address"]) as db:
            orders = db.table("orders")
            assert orders.count() > 50
            change = next(iter(orders.follow("latest", timeout=10)))
            assert change.row["item"]
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 0
        assert "rows of sample data written, and removed" in running.stderr.read()
        assert not os.path.exists(found["data_dir"])
