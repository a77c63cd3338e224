# SPDX-License-Identifier: Apache-2.0
"""Moves to another server: all kinds of tables under load, after a kill, and where readers and groups go on."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.cli.conftest import Call, Ok, Refused, read_all
from tests.waiting import wait_for

import fluss
from fluss.errors import InvalidArgumentError
from fluss.metadata import AggFunction, Column, DataTypes, OffsetSpec, Schema, TableDescriptor
from fluss.tools.copying import TableCopy, fingerprint
from fluss.tools.migrating import Migration, PositionMap
from fluss.tools.status import bucket_offsets

COMMAND = [sys.executable, "-m", "fluss", "migrate"]
Both = tuple[fluss.Database, fluss.Database]


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    with (
        fluss.LocalServer() as one,
        fluss.LocalServer() as two,
        fluss.connect(one.bootstrap_servers) as here,
        fluss.connect(two.bootstrap_servers) as there,
    ):
        yield here, there


def create_tables(db: fluss.Database, shop: str) -> dict[str, Callable[[int], object]]:
    """Tables of all kinds, each with what writes to it for the n-th time."""
    log = db.create_table(f"{shop}.log", "n bigint, text string", buckets=3)
    routed = db.create_table(f"{shop}.routed", "n bigint, text string", buckets=3, bucket_key="n")
    keyed = db.create_table(f"{shop}.keyed", "n bigint, text string", primary_key="n", buckets=3)
    days = db.create_table(f"{shop}.days", "n bigint, day string", partition_by="day", buckets=2)
    keys = db.create_table(f"{shop}.keys", "n int, day string, x int", primary_key=["n", "day"], partition_by="day")
    columns = [Column("k", DataTypes.int()), Column("total", DataTypes.bigint(), agg_function=AggFunction("sum"))]
    engine = {"table.merge-engine": "aggregation"}
    made = TableDescriptor(Schema.of(columns, ["k"]), bucket_count=2, properties=engine)
    sums = db.create_table(f"{shop}.sums", made)

    def change(n: int) -> None:
        keyed.upsert([(n % 50, f"round {n}"), (1_000 + n, "new")])
        keyed.delete(1_000 + n // 2)

    def change_keys(n: int) -> None:
        keys.upsert([(n % 7, f"d{n % 3}", n)])
        keys.delete({"n": (n + 3) % 7, "day": f"d{n % 3}"})

    return {
        log.name: lambda n: log.append([(n, "a"), (n, "a")]),
        routed.name: lambda n: routed.append([(n, "a"), (n + 1, "b")]),
        keyed.name: change,
        days.name: lambda n: days.append([(n, f"d{n // 20}")]),
        keys.name: change_keys,
        sums.name: lambda n: sums.upsert([(n % 5, n)]),
    }


@contextlib.contextmanager
def writing(writers: dict[str, Callable[[int], object]], start: int, stopped: Path) -> Iterator[None]:
    """Write to all tables until a file appears."""
    failures: list[Exception] = []
    ended = threading.Event()

    def run() -> None:
        n = start
        try:
            while not (ended.is_set() or stopped.exists()):
                for write in writers.values():
                    write(n)
                n += 1
            stopped.with_name("idle").touch()
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert not failures


def test_tables_that_are_written_to_move_once_even_after_a_kill(both: Both, tmp_path: Path) -> None:
    here, there = both
    writers = create_tables(here, "shop")
    for n in range(10):
        for write in writers.values():
            write(n)
    stopped, idle = tmp_path / "stop", tmp_path / "idle"
    stop = f"touch {shlex.quote(str(stopped))}; while [ ! -e {shlex.quote(str(idle))} ]; do sleep 0.05; done"
    command = [*COMMAND, *writers, "-b", here.address, "--to", there.address, "--state", str(tmp_path / "state")]
    with writing(writers, 10, stopped):
        with subprocess.Popen([*command, "--stop-writers", "sleep 60"], start_new_session=True) as running:
            wait_for(lambda: "shop.sums" in there and there.table("shop.sums").count(), 60)
            os.killpg(running.pid, signal.SIGKILL)
        done = subprocess.run(
            [*command, "--stop-writers", stop, "--json"], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert {one["table"] for one in report["tables"] if one["equal"]} == set(writers)
    for name in writers:
        assert fingerprint(there.table(name)) == fingerprint(here.table(name))
    there.table("shop.sums").upsert([(1, 100)])  # it is still an aggregate
    assert there.table("shop.sums").get(1)["total"] == here.table("shop.sums").get(1)["total"] + 100


def test_a_partition_that_appears_in_a_round_is_copied_once(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = both
    days = here.create_table("late.days", "n int, day string", partition_by="day")
    days.append([(1, "monday")])
    there.create_database("late")
    copy = TableCopy(here, "late.days", there, "late.days")
    ends = copy._source_ends

    def then_a_new_day(at: str = "latest") -> str:
        found = ends(at)
        days.append([(2, "tuesday")])
        return found

    with mock.patch.object(copy, "_source_ends", then_a_new_day):
        copy.run()
    copy.run()
    assert sorted(row["n"] for row in there.table("late.days").to_pylist()) == [1, 2]
    with monkeypatch.context() as patched:  # partitions that are there cost no request in later rounds
        patched.delattr(type(copy.target), "add_partition")
        copy.run()


def state_after(changes: Any, known: dict[int, str]) -> dict[int, str]:
    """Apply changes as a keyed sink does."""
    for change in changes:
        if change.kind == "delete":
            known.pop(change.row["n"], None)
        else:
            known[change.row["n"]] = change.row["text"]
    return known


def test_readers_and_groups_go_on_without_loss(both: Both, tmp_path: Path) -> None:
    here, there = both
    writers = create_tables(here, "read")
    work = Migration(here, there, str(tmp_path / "state"), list(writers))
    work.copy()
    for n in range(60):
        for write in writers.values():
            write(n)
        if n % 20 == 10:
            work.catch_up()
    read = {name: list(here.table(name).follow("earliest", stop_at_end=True)) for name in writers}
    handled = []
    with here.table("read.days").follow(group="billing", start="earliest", timeout=30) as changes:
        for change in changes:
            handled.append(change.row["n"])
            if len(handled) == 25:
                break
    assert work.finish() == 1
    mapped = PositionMap.load(tmp_path / "state" / "positions.json")
    with pytest.raises(InvalidArgumentError, match="is not the checkpoint of a stream"):
        mapped.starting_offsets(tmp_path)
    # A keyed sink that was in the middle comes to the rows that the table has.
    keyed, half = there.table("read.keyed"), read["read.keyed"][:70]
    again = keyed.follow(mapped.position(half[-1].position), stop_at_end=True)
    assert state_after(again, state_after(half, {})) == {row["n"]: row["text"] for row in keyed.to_pylist()}
    for name in ("read.log", "read.routed", "read.days"):
        rows = [change.row["n"] for change in read[name]]
        for at in (0, len(rows) // 2, len(rows) - 1):
            start = mapped.position(str(read[name][at].position))
            left = [change.row["n"] for change in there.table(name).follow(start, stop_at_end=True)]
            assert not Counter(rows) - Counter(rows[: at + 1] + left)
        assert left == []  # a reader that was at the end gets nothing again
    with there.table("read.days").follow(group="billing", start="latest", timeout=30) as changes:
        while set(handled) != set(range(60)):
            handled.append(next(changes).row["n"])


def end_of(db: fluss.Database, table: fluss.Table[Any]) -> fluss.Position:
    """Where a reader is that has read everything."""
    ends = bucket_offsets(db, table, OffsetSpec.latest())
    return fluss.Position(table.info.table_id, {bucket: end for (_, bucket), end in ends.items()})


def test_a_changelog_that_lost_its_beginning(tmp_path: Path) -> None:
    """Its current rows are copied; a reader of changes before that begins with the current rows again."""
    short = ("log.retention.check-interval", "kv.snapshot.interval")
    options = {"log.segment.file-size": "64kb", **dict.fromkeys(short, "100 ms")}
    with (
        fluss.LocalServer(tmp_path / "data", options=options) as one,
        fluss.LocalServer() as two,
        fluss.connect(one.bootstrap_servers) as here,
        fluss.connect(two.bootstrap_servers) as there,
    ):
        keyed = here.create_table("keyed", "n int, text string", primary_key="n", properties={"table.log.ttl": "1ms"})
        work = Migration(here, there, str(tmp_path / "state"))
        deadline = time.monotonic() + 60
        while work.plan()[0].history:
            assert time.monotonic() < deadline
            keyed.upsert([(n, "old") for n in range(5_000)])
        keyed.set_properties({"table.log.ttl": "7d"})
        keyed.upsert((0, "before"))
        before = end_of(here, keyed)
        keyed.upsert((0, "between"))
        work.copy()
        keyed.upsert((0, "after"))
        keyed.delete(4_000)
        work.catch_up()
        after = end_of(here, keyed)
        keyed.upsert((1, "last"))
        work.finish()
        assert work.verify("fluss.keyed")
        assert fingerprint(there.table("keyed")) == fingerprint(keyed)
        mapped = PositionMap.load(tmp_path / "state" / "positions.json")
        assert mapped.position(before).full
        again = [change.row for change in there.table("keyed").follow(mapped.position(after), stop_at_end=True)]
        assert again == [{"n": 1, "text": "old"}, {"n": 1, "text": "last"}]


def test_what_cannot_move_is_named_up_front(both: Both, call: Call, ok: Ok, refused: Refused, tmp_path: Path) -> None:
    here, there = both
    columns = [Column("k", DataTypes.int()), Column("nr", DataTypes.bigint())]
    numbered = TableDescriptor(Schema.of(columns, ["k"], ["nr"]), bucket_count=1)
    here.create_table("numbered", numbered).upsert({"k": 1})
    here.create_table("taken", "id int").append([(1,)])
    here.create_table("free", "id int").append([(1,)])
    there.create_table("taken", "id int").append([(2,)])
    names = ["numbered", "taken", "free"]
    to = ["migrate", *names, "-b", here.address, "--to", there.address, "--state", str(tmp_path / "state")]
    plan = call(*to, "--dry-run")
    assert "fluss.free: 1 change in its log, with its history" in plan.stdout
    assert plan.exit_code == 1
    reason = refused(*to, "--yes")
    for words in ("2 tables cannot be moved", "auto-increment column 'nr'", "fluss.taken has rows on the target"):
        assert words in reason
    assert "free" not in there
    refused(*to, code=2)  # no terminal to ask at
    refused("migrate", "-b", here.address, "--to", here.address, "--yes", code=2)
    there.drop_table("taken")
    done = json.loads(ok(*to, "--yes", "--renumber", "--json"))
    assert [one["equal"] for one in done["tables"]] == [True] * 3
    here.table("free").append([(2,)])
    there.table("free").append([(3,)])
    assert "1 rows that were not copied" in call(*to, "--yes", "--renumber").stderr


@pytest.mark.parametrize(("key", "code"), [("\x03", 1), ("\x04", 1), ("\n", 0)])
def test_only_enter_goes_on_with_the_move(both: Both, tmp_path: Path, key: str, code: int) -> None:
    """Ctrl-C and the end of the input abort it, also with standard output in a file."""
    import pty

    here, there = both
    name, state = f"asked_{ord(key)}", tmp_path / "state"
    here.create_table(name, "id int").append([(1,)])
    command = [*COMMAND, name, "-b", here.address, "--to", there.address, "--state", str(state), "--json"]
    pid, master = pty.fork()
    if pid == 0:  # pragma: no cover - the child
        os.dup2(os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT), 1)
        os.execv(command[0], command)
    shown = b""
    while b"Stop the writers" not in shown:
        shown += os.read(master, 65536)
    os.write(master, key.encode())
    shown += read_all(master)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == code, shown
    os.close(master)
    assert (state / "positions.json").exists() == (code == 0)
