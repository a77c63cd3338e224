# SPDX-License-Identifier: Apache-2.0
"""Reading: cat, head, count, describe, tail."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.cli.conftest import Ok, Refused, Rows, Start, read_all

import fluss
from fluss.metadata import AggFunction, Column, DataTypes, Schema, TableDescriptor


@pytest.fixture(scope="module")
def tables(db: fluss.Database) -> None:
    orders = db.create_table(
        "orders", "id bigint, item string, price decimal(10,2), tags array<string>", primary_key="id", buckets=2
    )
    orders.upsert(
        [
            {"id": 1, "item": "tea", "price": Decimal("2.50"), "tags": ["a"]},
            {"id": 2, "item": "mug, big", "price": Decimal("12.00")},
            {"id": 3, "item": None, "price": Decimal("25.00")},
        ],
        missing="null",
    )
    orders.upsert({"id": 1, "item": "tea", "price": Decimal("3.00")}, missing="null")
    orders.delete(3)
    events = db.create_table("events", "id int, kind string")
    events.append([(number, f"kind {number}") for number in range(100)])


pytestmark = pytest.mark.usefixtures("tables")


def test_cat(ok: Ok, rows: Rows, tmp_path: Path) -> None:
    lines = ok("cat", "orders").splitlines()
    assert lines[0].split() == ["id", "item", "price", "tags"]
    assert len(lines) == 3
    assert ok("cat", "orders", "-w", "price > 10", "-c", "id,item").splitlines()[1:] == [" 2  mug, big"]
    assert rows("cat", "orders", "-w", "id = 1") == [{"id": 1, "item": "tea", "price": "3.00", "tags": None}]
    found = list(csv.DictReader(io.StringIO(ok("cat", "orders", "--csv", "-c", "id,item", "-w", "id = 2"))))
    assert found == [{"id": "2", "item": "mug, big"}]
    assert len(ok("cat", "events", "-n", "7", "--json").splitlines()) == 7
    assert ok("cat", "events", "-n", "0", "--json") == ""
    file = tmp_path / "out.parquet"
    ok("cat", "orders", "--parquet", str(file))
    assert pq.read_table(file).num_rows == 2


def test_virtual_tables(ok: Ok, rows: Rows) -> None:
    found = rows("cat", "orders$changelog", "-w", "id = 1")
    assert [(row["_change_type"], row["price"]) for row in found] == [
        ("insert", "2.50"),
        ("update_before", "2.50"),
        ("update_after", "3.00"),
    ]
    assert ok("count", "fluss.orders$binlog") == "5\n"
    assert "before" in ok("head", "orders$binlog", "-n", "1")


def test_head_and_count(ok: Ok) -> None:
    assert len(ok("head", "events", "-n", "3").splitlines()) == 4
    assert len(ok("head", "events", "--json").splitlines()) == 10
    assert ok("count", "events") == "100\n"
    assert ok("count", "events", "--at", "1h") == "0\n"
    assert ok("cat", "orders", "--at", "1h", "--json") == ok("head", "orders", "--at", "2026-01-01", "--json") == ""
    assert json.loads(ok("count", "events", "-w", "id < 5", "--json")) == {"table": "fluss.events", "rows": 5}


def test_describe_has_figures(ok: Ok) -> None:
    found = json.loads(ok("describe", "orders", "--json"))
    assert found["rows"] == 2
    assert found["bytes"] > 100
    assert 1.0 <= found["skew"] <= 2.0
    assert found["lake_lag"] is None
    assert sum(one["latest"] - one["earliest"] for one in found["bucket_figures"]) == 6
    text = ok("describe", "orders")
    for words in ("rows", "size", "skew", "earliest"):
        assert words in text


def test_describe_shows_aggregation_functions(db: fluss.Database, ok: Ok) -> None:
    joined = AggFunction("listagg", {"delimiter": ";"})
    columns = [Column("k", DataTypes.int()), Column("names", DataTypes.string(), agg_function=joined)]
    properties = {"table.merge-engine": "aggregation"}
    db.create_table("joined", TableDescriptor(Schema.of(columns, ["k"]), properties=properties))
    found = json.loads(ok("describe", "joined", "--json"))["columns"]
    assert [one["aggregation"] for one in found] == [None, joined.to_json()]
    assert "listagg delimiter=;" in ok("describe", "joined")
    assert "aggregation" not in ok("describe", "orders")


def test_tail(ok: Ok, rows: Rows) -> None:
    found = rows("tail", "orders", "--no-follow")
    assert {"bucket", "partition", "offset", "timestamp", "change", "row"} == set(found[0])
    assert sorted(one["change"] for one in found) == ["+I", "+I", "+I", "+U", "-D", "-U"]
    some = rows("tail", "orders", "--no-follow", "-w", "price > 20", "-c", "id")
    assert [one["row"] for one in some] == [{"id": 3}, {"id": 3}]
    assert rows("tail", "orders", "--no-follow", "-w", "price * 2 > 40", "-c", "id") == some
    assert len(rows("tail", "events", "--from", "95", "--no-follow")) == 5
    assert len(rows("tail", "events", "--from", "10m", "--no-follow")) == 100
    assert ok("tail", "events", "--from", "2999-01-01T00:00", "--no-follow", "--json") == ""
    assert ok("tail", "events", "--from", "latest", "--timeout", "0.1") == ""
    pairs = rows("tail", "orders", "--changes", "--no-follow")
    update = next(one for one in pairs if one["change"] == "+U")
    assert (update["old"]["price"], update["new"]["price"]) == ("2.50", "3.00")
    text = ok("tail", "events", "--from", "earliest", "-n", "2").splitlines()
    assert text[0].split() == ["bucket", "offset", "change", "id", "kind"]
    assert text[1].split() == ["0", "0", "+A", "0", "kind", "0"]


def test_tail_n_gives_the_newest(rows: Rows) -> None:
    assert [one["offset"] for one in rows("tail", "events", "-n", "3")] == [97, 98, 99]
    assert [one["row"]["id"] for one in rows("tail", "events", "-n", "2", "-w", "id < 50")] == [48, 49]
    assert len(rows("tail", "events", "-n", "500")) == 100
    newest = sorted(one["timestamp"] for one in rows("tail", "orders", "--no-follow"))[-2:]
    assert [one["timestamp"] for one in rows("tail", "orders", "-n", "2")] == newest
    assert [one["timestamp"] for one in rows("tail", "orders", "-n", "1", "--changes")] == newest[-1:]


def test_colours_only_where_they_are_wanted(environment: dict[str, str]) -> None:
    import pty

    def in_terminal(**more: str) -> str:
        pid, master = pty.fork()
        if pid == 0:  # pragma: no cover - the child
            os.environ.update({**environment, **more, "TERM": "xterm"})
            os.execv(sys.executable, [sys.executable, "-m", "fluss", "tail", "orders", "--no-follow"])
        shown = read_all(master)
        os.waitpid(pid, 0)
        os.close(master)
        return shown.decode()

    assert "\x1b[31m" in in_terminal()
    plain = in_terminal(NO_COLOR="1")
    assert "-D" in plain
    assert "\x1b[" not in plain


def test_ctrl_c_ends_tail_quietly(start: Start) -> None:
    with start("tail", "events", "--json", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert json.loads(running.stdout.readline())["row"]["id"] == 0
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        assert running.wait(20) == 0
        assert running.stderr.read() == ""


def test_a_closed_pipe_is_no_error(environment: dict[str, str]) -> None:
    shown = subprocess.run(
        f"{sys.executable} -m fluss cat events | head -n 2",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    assert len(shown.stdout.splitlines()) == 2
    assert shown.stderr == ""


@pytest.mark.parametrize("key", [None, "id"])
def test_heavy_packages_are_not_imported_to_show_rows(environment: dict[str, str], key: str | None) -> None:
    """pandas alone takes longer to import than all the rest; Arrow imports it to look at arrays of numpy."""
    name = f"plain_{key}"
    with fluss.connect(environment["FLUSS_BOOTSTRAP_SERVERS"]) as db:
        table = db.create_table(name, "id bigint, item string, price decimal(10, 2), at timestamp(3)", primary_key=key)
        (table.upsert if key else table.append)([(i, f"item {i}", i, None) for i in range(20)])
    code = (
        "import sys; from fluss.cli import main\n"
        "try: main()\n"
        "finally: print({'pandas', 'polars', 'duckdb', 'rich'} & set(sys.modules), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "cat", name]
    shown = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})
    assert len(shown.stdout.splitlines()) > 2
    assert shown.stderr == "set()\n"


def test_in_a_real_process(process: Any) -> None:
    shown = process("cat", "events", "-n", "2")
    assert (len(shown.stdout.splitlines()), shown.stderr) == (3, "")


def test_reading_creates_no_database(ok: Ok, refused: Refused, tmp_path: Path) -> None:
    for command in (["cat", "t"], ["tables"], ["sql", "select 1"], ["head", "t"], ["export", "t", "-"], ["status"]):
        assert "is not the data folder of a server" in refused(*command, "-b", str(tmp_path)), command
        assert list(tmp_path.iterdir()) == [], command
    ok("create", "t", "id int", "-b", str(tmp_path))
    assert ok("tables", "-b", str(tmp_path), "--json").strip()


def test_dates_that_python_has_not(ok: Ok, db: fluss.Database, tmp_path: Path) -> None:
    far = pa.array([2_932_897], pa.date32())
    at = pa.array([253_402_300_800_000], pa.timestamp("ms"))
    db.create_table("far", "day date, at timestamp(3), days array<date>").append(
        pa.table({"day": far, "at": at, "days": pa.ListArray.from_arrays([0, 1], far)})
    )
    row = {"day": "10000-01-01", "at": "10000-01-01T00:00:00", "days": ["10000-01-01"]}
    assert json.loads(ok("cat", "far", "--json")) == row
    assert "10000-01-01" in ok("head", "far")
    assert json.loads(ok("tail", "far", "--no-follow", "--json"))["row"] == row
    ok("export", "far", str(tmp_path / "far.jsonl"))
    assert json.loads((tmp_path / "far.jsonl").read_text()) == row
