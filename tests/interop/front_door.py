# SPDX-License-Identifier: Apache-2.0
"""The parts of `make interop` that are not about one client: `fluss.connect()`, `fluss copy` and `fluss migrate`.

Checks of `connect` run on any server. Copies go from our server to the real one and back, by the command line.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.crash import groups
from tests.interop import expired, migration
from tests.interop.cluster import OurServer, RealCluster
from tests.interop.context import Mismatch, same

import fluss
from fluss.tools.copying import fingerprint

_TIMEOUT_S = 60.0
_KILLS = 4
_GROUP_KILLS = 20
_ROWS_OF_KILLED_COPY = 60_000


def checks(logs: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Start both servers and give the checks by name; the servers end with the iteration."""
    yield f"keys of expired partitions, looked up by {expired.CLIENT} too", lambda: expired.run("ours", logs)
    with RealCluster(keep_logs_in=logs) as real, OurServer(keep_logs_in=logs) as ours:
        for name, check in _CONNECT.items():
            yield f"connect: {name}", lambda check=check: _with_database(real.plain, check)  # type: ignore[misc]
        yield f"group with {_GROUP_KILLS} kills", lambda: _killed_members(real.plain)
        for name, fill in _TABLES.items():
            yield f"copy: {name}", lambda n=name, f=fill: _there_and_back(ours.plain, real.plain, n, f)  # type: ignore[misc]
        for kind in ("log", "key"):
            yield f"copy killed {_KILLS} times: {kind}", lambda k=kind: _killed(ours, real, k)  # type: ignore[misc]
        yield f"migrate {migration.TABLES} tables that are written to", lambda: print(migration.migrate(ours, real))


@contextmanager
def _database(address: str) -> Iterator[fluss.Database]:
    with fluss.connect(address, timeout=_TIMEOUT_S) as db:
        yield db


def _with_database(address: str, check: Callable[[fluss.Database], None]) -> None:
    with _database(address) as db:
        check(db)


# -- fluss.connect() ---------------------------------------------------------------------------------------------------


def _keyed(db: fluss.Database) -> None:
    orders = db.create_table("orders", "id bigint, item string, price double", primary_key="id", buckets=3)
    orders.upsert([(i, f"item {i}", i / 2) for i in range(500)])
    orders.upsert({"id": 7, "item": "tea", "price": 1.0})
    orders.update(8, price=99.0)
    orders.delete([1, 2, 3])
    same(orders.get(7), {"id": 7, "item": "tea", "price": 1.0}, "get")
    same(orders.get(1), None, "get of a deleted row")
    same([row and row["id"] for row in orders.get_many([5, 1, 6])], [5, None, 6], "get_many")
    same(orders.get(8), {"id": 8, "item": "item 8", "price": 99.0}, "a partial update")
    same(orders.count(), 497, "count")
    same(len(orders.to_arrow()), 497, "rows of to_arrow")
    same([row["id"] for row in orders.to_pylist(where="price = 99 and id < 100")], [8], "where")
    same(orders.to_pylist(where="id = 7", columns=["item"]), [{"item": "tea"}], "where on the key")
    same(len(orders.head(5)), 5, "head")
    changes = list(orders.changes())
    state: dict[int, Any] = {}
    for change in changes:
        row = change.new or change.old
        same(state.get(row["id"]), change.old, f"the old row of key {row['id']}")
        state[row["id"]] = change.new
    same(len([row for row in state.values() if row is not None]), 497, "rows after all changes")
    found = db.sql("select count(*), sum(price) from orders where id between 10 and 19").fetchall()
    same(found, [(10, sum(i / 2 for i in range(10, 20)))], "sql")
    same(db.sql("select item from orders where id = ?", [7]).fetchall(), [("tea",)], "sql with a parameter")
    db.sql("insert into orders values (1000, 'new', 1)")
    same(orders.get(1000), {"id": 1000, "item": "new", "price": 1.0}, "a row that SQL inserted")


def _log(db: fluss.Database) -> None:
    events = db.create_table("events", "id bigint, kind string", buckets=3)
    result = events.append([(i, f"k{i % 5}") for i in range(2_000)])
    same(result.rows, 2_000, "rows of append")
    same(events.count(), 2_000, "count")
    same(events.count(where="kind = 'k3'"), 400, "count with where")
    same(sorted(events.to_pandas()["id"]), list(range(2_000)), "to_pandas")
    same(sorted(change.row["id"] for change in events.follow(stop_at_end=True)), list(range(2_000)), "follow")
    first = next(iter(events.follow(timeout=10)))
    rest = events.follow(start=first.position, stop_at_end=True)
    same(sum(1 for _ in rest), 1_999, "rows behind a position")
    same(db.sql("select kind, count(*) from events group by kind order by kind").fetchall()[0], ("k0", 400), "sql")
    with events.writer() as writer:
        for number in range(2_000, 2_100):
            writer.append({"id": number, "kind": "late"})
    same(events.count(), 2_100, "count after a writer")


def _partitioned(db: fluss.Database) -> None:
    days = db.create_table(
        "days", "day string, id bigint, v int", primary_key=["day", "id"], partition_by="day", buckets=2
    )
    days.upsert([(f"d{i % 3}", i, i) for i in range(90)])
    same(sorted(one.partition_name for one in days.partitions()), ["d0", "d1", "d2"], "partitions")
    same(days.count(), 90, "count")
    same(days.count(where="day = 'd1'"), 30, "count of a partition")
    same(days.get({"day": "d1", "id": 4}), {"day": "d1", "id": 4, "v": 4}, "get")
    days.drop_partition("d0")
    same(days.count(), 60, "count without a partition")


def _evolved(db: fluss.Database) -> None:
    table = db.create_table("grown", "id bigint, a string", primary_key="id", buckets=2)
    table.upsert([(i, "old") for i in range(20)])
    table.add_column("b", "int")
    table.upsert([(i, "new", i) for i in range(15, 30)])
    same(table.get(3), {"id": 3, "a": "old", "b": None}, "a row from before the column")
    same(table.get(16), {"id": 16, "a": "new", "b": 16}, "a row from after it")
    same(table.count(where="b is null"), 15, "rows without a value")
    same(sorted(table.to_pandas()["id"]), list(range(30)), "all rows")


def _group(db: fluss.Database) -> None:
    seen: list[int] = []
    work = db.create_table("work_of_a_group", "id int", bucket_key="id", buckets=4)
    work.append([(number,) for number in range(400)])
    with work.follow(group="billing", timeout=20) as one:
        seen += [next(one).row["id"] for _ in range(100)]
        one.commit()
    with work.follow(group="billing", timeout=5) as one, work.follow(group="billing", timeout=5) as other:
        for changes in (one, other):
            seen += [change.row["id"] for change in changes]
    same(sorted(seen), list(range(400)), "what the members of a group handled")


_CONNECT: dict[str, Callable[[fluss.Database], None]] = {
    "primary-key table": _keyed,
    "log table": _log,
    "partitioned table": _partitioned,
    "evolved table": _evolved,
    "group": _group,
}


def _killed_members(address: str) -> None:
    outcome = groups.run(_GROUP_KILLS, members=4, buckets=4, seed=11, address=address)
    same(outcome.problems, [], "what is wrong after members of a group were killed")


# -- fluss copy --------------------------------------------------------------------------------------------------------


def _fill_log(db: fluss.Database, name: str) -> None:
    db.create_table(name, "id bigint, kind string, at timestamp(3)", buckets=3)
    db.table(name).append([(i, f"k{i % 7}", None) for i in range(3_000)])


def _fill_keyed(db: fluss.Database, name: str) -> None:
    table = db.create_table(name, "id bigint, item string, price decimal(10, 2)", primary_key="id", buckets=2)
    table.upsert([(i, f"item {i}", i) for i in range(1_000)])
    table.delete(where="id < 50")


def _fill_partitioned(db: fluss.Database, name: str) -> None:
    table = db.create_table(name, "day string, id int, v double", partition_by="day", buckets=2)
    table.append([(f"d{i % 3}", i, i / 4) for i in range(600)])


def _fill_partitioned_keys(db: fluss.Database, name: str) -> None:
    key = ["day", "id"]
    table = db.create_table(name, "day string, id int, v double", primary_key=key, partition_by="day", buckets=2)
    table.upsert([(f"d{i % 3}", i, i / 4) for i in range(600)])
    table.delete([("d0", 0), ("d1", 1)])


def _fill_evolved(db: fluss.Database, name: str) -> None:
    table = db.create_table(name, "id bigint, a string", primary_key="id", buckets=2)
    table.upsert([(i, "old") for i in range(100)])
    table.add_column("b", "int")
    table.upsert([(i, "new", i) for i in range(80, 150)])


_TABLES: dict[str, Callable[[fluss.Database, str], None]] = {
    "log": _fill_log,
    "keyed": _fill_keyed,
    "partitioned": _fill_partitioned,
    "partitioned_keys": _fill_partitioned_keys,
    "evolved": _fill_evolved,
}


def _command(source: str, target: str, folder: str | None = None) -> list[str]:
    command = [sys.executable, "-m", "fluss", "copy", source, target]
    command += ["--verify", "--json"]
    return command if folder is None else [*command, "--checkpoint", folder]


def _copy(source: str, target: str, folder: str | None = None) -> dict[str, Any]:
    done = subprocess.run(_command(source, target, folder), capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise Mismatch(f"fluss copy {source} {target}: {done.stderr.strip()[-600:]}")
    (report,) = json.loads(done.stdout)
    same(report["equal"], True, f"fluss copy {source} {target} --verify")
    return dict(report)


def _there_and_back(ours: str, real: str, name: str, fill: Callable[[fluss.Database, str], None]) -> None:
    with _database(ours) as here:
        fill(here, name)
        _copy(f"{ours}/{name}", f"{real}/{name}_copy")
        _copy(f"{real}/{name}_copy", f"{ours}/{name}_back")
        first, back = here.table(name), here.table(f"{name}_back")
        same(fingerprint(back), fingerprint(first), "rows that came back")
        same(str(back.schema), str(first.schema), "the schema that came back")
        same(list(back.info.partition_keys), list(first.info.partition_keys), "the partition columns that came back")
        same(back.info.num_buckets, first.info.num_buckets, "the buckets that came back")


def _killed(ours: OurServer, real: RealCluster, kind: str) -> None:
    """Kill the command again and again while it copies and rows are written; the last run ends equal."""
    name, folder = f"killed_{kind}", str(ours.home / f"state-{kind}")
    with _database(ours.plain) as here, _database(real.plain) as there:
        table = here.create_table(name, "id bigint, v string", primary_key="id" if kind == "key" else None, buckets=3)
        write = table.upsert if kind == "key" else table.append
        step = _ROWS_OF_KILLED_COPY // 20
        for start in range(0, _ROWS_OF_KILLED_COPY, step):
            write([(i, f"value {i}") for i in range(start, start + step)])
        for number in range(_KILLS):
            before = there.table(name).count() if name in there else 0
            with subprocess.Popen(
                _command(f"{ours.plain}/{name}", f"{real.plain}/{name}", folder),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ,
            ) as running:
                deadline = time.monotonic() + 60
                while running.poll() is None and time.monotonic() < deadline:
                    if name in there and there.table(name).count() > before:
                        break
                    time.sleep(0.02)
                running.send_signal(signal.SIGKILL)
            write([(-1 - number, "written meanwhile")])
            if kind == "key":
                table.delete(number)
        report = _copy(f"{ours.plain}/{name}", f"{real.plain}/{name}", folder)
        same(report["resumed"], True, "whether the last copy went on from a checkpoint")
        same(fingerprint(there.table(name)), fingerprint(table), "rows after the kills")
