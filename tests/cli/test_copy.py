# SPDX-License-Identifier: Apache-2.0
"""Copies between two servers: all kinds of tables, interrupted ones, and ones that are kept in sync."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import Call, Ok, Start
from tests.waiting import wait_for

import fluss
from fluss.errors import InvalidArgumentError
from fluss.tools.copying import TableCopy, fingerprint
from fluss.tools.drafts import draft_like


@pytest.fixture(scope="module")
def other() -> Iterator[fluss.LocalServer]:
    with fluss.LocalServer() as server:
        yield server


@pytest.fixture(scope="module")
def tables(db: fluss.Database) -> None:
    db.create_table("shop.events", "id bigint, kind string", buckets=3).append([(i, f"k{i}") for i in range(500)])
    orders = db.create_table("shop.orders", "id bigint, item string", primary_key="id", buckets=2)
    orders.upsert([(i, "tea") for i in range(300)])
    orders.delete(where="id < 10")
    orders.add_column("note", "string")
    orders.upsert({"id": 11, "item": "mug", "note": "new"})
    days = db.create_table("shop.days", "day string, id int", partition_by="day", properties={"owner": "anna"})
    days.append([(f"2026-01-0{1 + i % 3}", i) for i in range(60)])


pytestmark = pytest.mark.usefixtures("tables")


def test_a_database(ok: Ok, other: fluss.LocalServer) -> None:
    done = json.loads(ok("copy", "shop.*", f"{other.bootstrap_servers}/shop.*", "--verify", "--json"))
    assert {one["source"]: (one["rows"], one["equal"]) for one in done} == {
        "shop.days": (60, True),
        "shop.events": (500, True),
        "shop.orders": (290, True),
    }
    with fluss.connect(other.bootstrap_servers) as there:
        assert there.table("shop.orders").primary_key == ["id"]
        assert there.table("shop.days").info.get_custom_properties() == {"owner": "anna"}
        assert len(there.table("shop.days").partitions()) == 3


def test_properties_that_a_server_fills_in_are_not_copied(db: fluss.Database) -> None:
    """Apache Fluss 0.9.1 refuses those of later releases."""
    assert "table.kv.format-version" in db.table("shop.orders").info.get_properties()
    assert draft_like(db, "x", "shop.orders").descriptor.properties == {}
    of_a_server = {"table.kv.standby-replica.enabled": "true"}
    db.create_table("standby", "id bigint", primary_key="id", properties=of_a_server)
    assert draft_like(db, "x", "standby").descriptor.properties == {}
    chosen = {"table.kv.standby-replica.enabled": "false", "table.log.ttl": "3d", "owner": "anna"}
    db.create_table("chosen", "id bigint", primary_key="id", properties=chosen)
    made = draft_like(db, "x", "chosen").descriptor
    assert {**made.properties, **made.custom_properties} == chosen


def test_mistakes(call: Call, other: fluss.LocalServer) -> None:
    assert call("copy", "shop.orders", "shop.orders").exit_code == 2
    assert call("copy", "shop.orders", "shop.*").exit_code == 2
    assert call("copy", "shop.ordres", "x").exit_code == 3
    assert call("copy", "shop.orders", f"{other.bootstrap_servers}/shop.taken").exit_code == 0
    assert "has rows already" in call("copy", "shop.orders", f"{other.bootstrap_servers}/shop.taken").stderr
    assert "other columns" in call("copy", "shop.events", f"{other.bootstrap_servers}/shop.taken").stderr
    assert call("copy", "shop.orders", "@nowhere/x").exit_code == 3


@pytest.mark.parametrize("kind", ["log", "loose", "key"])
def test_a_copy_that_was_killed_ends_equal(
    kind: str, ok: Ok, start: Start, db: fluss.Database, other: fluss.LocalServer, tmp_path: Path
) -> None:
    name = f"big_{kind}"
    table = db.create_table(
        name,
        "id bigint, text string",
        primary_key="id" if kind == "key" else None,
        bucket_key=None if kind == "loose" else "id",
        buckets=2,
    )
    write = table.upsert if kind == "key" else table.append
    for first in range(0, 40_000, 2_000):
        write([(i, f"text {i}") for i in range(first, first + 2_000)])
    target = f"{other.bootstrap_servers}/{name}"
    command = ["copy", name, target, "--checkpoint", str(tmp_path / "state"), "--verify", "--json"]
    running = start(*command, stdout=subprocess.DEVNULL)
    with fluss.connect(other.bootstrap_servers) as there:
        wait_for(lambda: name in there and there.table(name).count())
        running.send_signal(signal.SIGKILL)
        running.wait()
    if kind == "key":
        table.delete(where="id < 1000")
        table.upsert({"id": 5_000, "text": "changed"})
    else:
        table.append({"id": -1, "text": "later"})
    (done,) = json.loads(ok(*command))
    assert done["resumed"]
    assert done["equal"]


@pytest.mark.parametrize(
    ("buckets", "key", "partitioned"), [(1, None, False), (3, None, False), (3, "id", False), (2, None, True)]
)
def test_a_copy_goes_on_without_doubling_rows(
    db: fluss.Database,
    other: fluss.LocalServer,
    tmp_path: Path,
    buckets: int,
    key: str | None,
    partitioned: bool,
) -> None:
    """It may end after any batch was written and before it is noted: then those rows are known by themselves."""
    name = f"log_{buckets}_{key}_{partitioned}"
    with fluss.connect(other.bootstrap_servers) as there:
        table = db.create_table(
            name,
            "id bigint, day string, text string",
            buckets=buckets,
            bucket_key=key,
            partition_by="day" if partitioned else None,
        )
        text = "line\u2028end" * 2_200  # 50 rows are as much as is written together
        rows = [(i // 2, f"d{i % 2}", text) for i in range(300)]  # every row twice
        for start in range(0, 300, 50):
            table.append(rows[start : start + 50])
        checkpoint = str(tmp_path / "state.json")
        for batches in (1, 2, 1):
            left = itertools.count(batches, -1)

            def stop(_: int, left: Iterator[int] = left) -> None:
                if next(left) <= 1:
                    raise RuntimeError("killed")

            with pytest.raises(RuntimeError, match="killed"):
                TableCopy(db, name, there, name, checkpoint=checkpoint, progress=stop).run()
        report = TableCopy(db, name, there, name, checkpoint=checkpoint).run()
        assert report.resumed
        assert 0 < report.rows < 300
        assert fingerprint(there.table(name)) == fingerprint(table)
        table.append((1_000, "d2", "later"))
        TableCopy(db, name, there, name, checkpoint=checkpoint).run()
        assert fingerprint(there.table(name)) == fingerprint(table)
        there.table(name).append((2_000, "d1", "not from the source"))
        for follow in (False, True):
            with pytest.raises(InvalidArgumentError, match="1 rows that were not copied"):
                TableCopy(db, name, there, name, checkpoint=checkpoint).run(follow=follow)


def test_a_copy_without_a_checkpoint_goes_on(db: fluss.Database, other: fluss.LocalServer) -> None:
    stopped = False

    def stop(_: int) -> None:
        if stopped:
            raise RuntimeError("stopped")

    with fluss.connect(other.bootstrap_servers) as there:
        table = db.create_table("unnoted", "id bigint")
        table.append([(1,)])
        copy = TableCopy(db, "unnoted", there, "unnoted", progress=stop)
        copy.run()
        table.append([(2,)])
        stopped = True
        with pytest.raises(RuntimeError, match="stopped"):
            copy.run()
        stopped = False
        copy.run()
        assert fingerprint(there.table("unnoted")) == fingerprint(table)


def test_follow(start: Start, db: fluss.Database, other: fluss.LocalServer) -> None:
    with fluss.connect(other.bootstrap_servers) as there:
        live = db.create_table("live", "id bigint, item string", primary_key="id")
        live.upsert([(1, "tea"), (2, "mug")])
        running = start("copy", "live", f"{other.bootstrap_servers}/live", "--follow", stderr=subprocess.PIPE)
        wait_for(lambda: "live" in there and there.table("live").count() == 2)
        live.upsert({"id": 3, "item": "pot"})
        live.delete(1)
        live.upsert({"id": 2, "item": "jug"})
        copied = there.table("live")
        wait_for(lambda: copied.get(2) == {"id": 2, "item": "jug"})
        assert (copied.get(1), copied.get(3)) == (None, {"id": 3, "item": "pot"})
        running.send_signal(signal.SIGINT)
        _, shown = running.communicate(timeout=20)
        assert running.returncode == 0
        assert "2 rows and" in shown


def test_a_checkpoint_is_of_one_server(db: fluss.Database, tmp_path: Path) -> None:
    """New servers number their tables alike."""
    checkpoint = str(tmp_path / "state.json")
    with fluss.connect(tmp_path / "a") as there:
        first = TableCopy(db, "shop.orders", there, "orders", checkpoint=checkpoint)
        first.run()
    with fluss.connect(tmp_path / "b") as there:
        with pytest.raises(InvalidArgumentError, match="belongs to other tables"):
            TableCopy(db, "shop.orders", there, "orders", checkpoint=checkpoint)
        assert there.table("orders").info.table_id == first.target.info.table_id
