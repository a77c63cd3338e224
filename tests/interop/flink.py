# SPDX-License-Identifier: Apache-2.0
"""Flink SQL through the official connector: a table of scenarios, and what runs them.

A scenario is a list of steps, each a statement and what it must give. Rows are written as Flink prints them, and the
tables have one bucket where the order matters. ``python -m tests.interop.matrix --clients flink`` runs these alone.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.interop import environment
from tests.interop.cluster import USERS, OurServer, RealCluster, Server
from tests.interop.context import Mismatch, same
from tests.interop.peers import Peer, PeerError

import fluss
import fluss.aio

# A scenario that takes longer has failed: its process is ended, and the next scenario gets a new one.
SCENARIO_S_MAX = 150.0
_IDLE_MS = 20_000  # without a row, when some are missing
_QUIET_MS = 700  # without a row, when none is missing: what comes then is too much
_START_WAIT_MS = 3_000  # between the start of a job and the first write it must see

_counter = itertools.count(1)


@dataclass(frozen=True)
class Step:
    kind: str  # do, show, until, follow, refused, replay, mark, start, tier
    sql: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    then: tuple[str, ...] = ()  # written while the query of a `follow` runs


@dataclass(frozen=True)
class FlinkScenario:
    name: str
    steps: tuple[Step, ...]
    sasl: bool = False
    # By server: a part of the failure, and why. The scenario runs there all the same, and must fail in this way.
    fails: dict[str, tuple[str, str]] = field(default_factory=dict)


def do(*statements: str) -> Step:
    """Statements that must succeed. Writes and DDL run to their end."""
    return Step("do", statements)


def show(statement: str, *rows: str) -> Step:
    """A batch query, or SHOW and DESCRIBE, and its rows in any order."""
    return Step("show", (statement,), rows)


def until(statement: str, *rows: str) -> Step:
    """A batch query that has these rows sooner or later."""
    return Step("until", (statement,), rows)


def follow(statement: str, *rows: str, then: tuple[str, ...] = ()) -> Step:
    """A streaming query that gives these rows in this order and then nothing more."""
    return Step("follow", (statement,), rows, then)


def refused(statement: str, reason: str) -> Step:
    """A batch statement that the connector or the server refuses, with a part of what it says."""
    return Step("refused", (statement,), (reason,))


def start(statement: str) -> Step:
    """A streaming job that runs to the end of the scenario."""
    return Step("start", (statement,))


def replay(table: str) -> Step:
    """Drops a table and creates it again from what SHOW CREATE TABLE says."""
    return Step("replay", (table,))


SNAPSHOT = Step("snapshot")  # waits for a snapshot of the table people
MARK = Step("mark")  # {mark} in later statements is the time of this step, in ms
TIER = Step("tier")  # starts the official tiering job, up to the end of the scenario

_REAL = f"fluss-{environment.FLUSS_VERSION}"
_ONE = "WITH ('bucket.num' = '1')"
_LOG = f"CREATE TABLE events (id INT, name STRING) {_ONE}"
_KEYED = f"CREATE TABLE people (id INT NOT NULL, name STRING, age INT, PRIMARY KEY (id) NOT ENFORCED) {_ONE}"
_EVENTS = "INSERT INTO events VALUES (1, 'a'), (2, 'b')"
_PEOPLE = "INSERT INTO people VALUES (1, 'Ada', 36), (2, 'Bob', 20)"
_OLDER = "INSERT INTO people VALUES (2, 'Bob', 21)"
_LAKE = "'table.datalake.enabled' = 'true', 'table.datalake.freshness' = '1 s'"


def _hint(**options: str) -> str:
    return (
        "/*+ OPTIONS(" + ", ".join(f"'{key.replace('_', '.')}' = '{value}'" for key, value in options.items()) + ") */"
    )


def _from(mode: str, **more: str) -> str:
    return _hint(scan_startup_mode=mode, **more)


_EARLIEST = _from("earliest")
_AT_MARK = _from("timestamp", scan_startup_timestamp="{mark}")
_CACHED = _hint(lookup_cache="PARTIAL", **{"lookup_partial-cache_max-rows": "9"})
_LOOKUP = (
    "SELECT e.id, p.name FROM (SELECT *, PROCTIME() AS ptime FROM events) AS e "
    "LEFT JOIN people {hint} FOR SYSTEM_TIME AS OF e.ptime AS p ON e.id = p.id"
)

SCENARIOS: tuple[FlinkScenario, ...] = (
    FlinkScenario("DDL", (
        do(_LOG, _KEYED),
        show("SHOW TABLES", "+I[events]", "+I[people]"),
        show("DESCRIBE people",
             "+I[id, INT, false, PRI(id), null, null]", "+I[name, STRING, true, null, null, null]",
             "+I[age, INT, true, null, null, null]"),
        do("ALTER TABLE people SET ('owner' = 'me')", "ALTER TABLE people RESET ('owner')"),
        refused(_LOG, "already exists"),
        replay("people"), replay("events"),
        do("DROP TABLE events"),
        show("SHOW TABLES", "+I[people]"),
        refused("DROP TABLE events", "does not exist"),
    )),
    FlinkScenario("batch: limit, point query, count", (
        do(_LOG, _KEYED, _EVENTS, _PEOPLE, _OLDER),
        show("SELECT * FROM events LIMIT 5", "+I[1, a]", "+I[2, b]"),
        show("SELECT * FROM people LIMIT 5", "+I[1, Ada, 36]", "+I[2, Bob, 21]"),
        show("SELECT name FROM people WHERE id = 2", "+I[Bob]"),
        show("SELECT * FROM people WHERE id = 7"),
        show("SELECT COUNT(*) FROM events", "+I[2]"),
        show("SELECT COUNT(*) FROM people", "+I[2]"),
    )),
    FlinkScenario("batch: a whole table without a lake is refused by the connector", (
        do(_LOG, _KEYED),
        refused("SELECT * FROM events", "batch"),
        refused("SELECT * FROM people", "batch"),
    )),
    FlinkScenario("batch: UPDATE and DELETE by key", (
        do(_KEYED, _PEOPLE, "UPDATE people SET age = 37 WHERE id = 1", "DELETE FROM people WHERE id = 2"),
        show("SELECT * FROM people LIMIT 5", "+I[1, Ada, 37]"),
    )),
    FlinkScenario("every type", (
        do("CREATE TABLE v (k INT NOT NULL, a BOOLEAN, b TINYINT, c SMALLINT, d BIGINT, e FLOAT, f DOUBLE, g CHAR(3), "
           "h DECIMAL(10, 2), i BINARY(2), j BYTES, l DATE, m TIME(3), n TIMESTAMP(6), o TIMESTAMP_LTZ(3), "
           "p ARRAY<INT>, q MAP<STRING, INT>, r ROW<x INT, y STRING>, PRIMARY KEY (k) NOT ENFORCED) " + _ONE,
           "INSERT INTO v SELECT 1, TRUE, CAST(2 AS TINYINT), CAST(3 AS SMALLINT), CAST(4 AS BIGINT), "
           "CAST(1.5 AS FLOAT), CAST(2.5 AS DOUBLE), CAST('abc' AS CHAR(3)), CAST(12.34 AS DECIMAL(10, 2)), x'0102', "
           "CAST(x'03' AS BYTES), DATE '2024-02-29', TIME '12:34:56', TIMESTAMP '2024-02-29 12:34:56.123456', "
           "CAST(TIMESTAMP '2024-02-29 12:34:56.123' AS TIMESTAMP_LTZ(3)), ARRAY[1, 2], MAP['x', 1], "
           "CAST(ROW(7, 'z') AS ROW<x INT, y STRING>)"),
        *(Step(kind, ("SELECT * FROM v" + more,),
               ("+I[1, true, 2, 3, 4, 1.5, 2.5, abc, 12.34, [1, 2], [3], 2024-02-29, 12:34:56, "
                "2024-02-29T12:34:56.123456, 2024-02-29T12:34:56.123Z, [1, 2], {x=1}, +I[7, z]]",))
          for kind, more in (("follow", ""), ("show", " WHERE k = 1"), ("show", " LIMIT 1"))),
    )),
    *(FlinkScenario(f"streaming a log table from {mode}", (
        do(_LOG, _EVENTS), MARK,
        follow(f"SELECT * FROM events {hint}", *rows, "+I[3, c]", then=("INSERT INTO events VALUES (3, 'c')",)),
    )) for mode, hint, rows in (
        ("full", _from("full"), ("+I[1, a]", "+I[2, b]")),
        ("earliest", _from("earliest"), ("+I[1, a]", "+I[2, b]")),
        ("latest", _from("latest"), ()),
        ("timestamp", _AT_MARK, ()),
    )),
    *(FlinkScenario(f"streaming a primary-key table from {mode}", (
        do(_KEYED, _PEOPLE, _OLDER), SNAPSHOT, MARK,
        follow(f"SELECT * FROM people {hint}", *rows, "-U[1, Ada, 36]", "+U[1, Ada, 37]", "-D[2, Bob, 21]",
               then=("INSERT INTO people VALUES (1, 'Ada', 37)", "DELETE FROM people WHERE id = 2")),
    )) for mode, hint, rows in (
        ("full, with a snapshot", _from("full"), ("+I[1, Ada, 36]", "+I[2, Bob, 21]")),
        ("earliest", _from("earliest"), ("+I[1, Ada, 36]", "+I[2, Bob, 20]", "-U[2, Bob, 20]", "+U[2, Bob, 21]")),
        ("latest", _from("latest"), ()),
        ("timestamp", _AT_MARK, ()),
    )),
    FlinkScenario("projection and filter", (
        do(_LOG, _EVENTS),
        follow("SELECT name FROM events WHERE id > 1", "+I[b]"),
    )),
    FlinkScenario("lookup join", (
        do(_LOG, _KEYED, _PEOPLE, "INSERT INTO events VALUES (2, 'b'), (7, 'x')"),
        *(follow(_LOOKUP.replace("{hint}", hint), "+I[2, Bob]", "+I[7, null]")
          for hint in ("", _hint(lookup_async="false"), _CACHED)),
    )),
    FlinkScenario("prefix lookup join", (
        do(_LOG, _EVENTS, "CREATE TABLE people (id INT NOT NULL, nr INT NOT NULL, name STRING, "
           "PRIMARY KEY (id, nr) NOT ENFORCED) WITH ('bucket.key' = 'id')",
           "INSERT INTO people VALUES (1, 1, 'one'), (1, 2, 'two')"),
        follow(_LOOKUP.replace("{hint}", ""), "+I[1, one]", "+I[1, two]", "+I[2, null]"),
    )),
    FlinkScenario("lookup join with a partitioned table", (
        do(_LOG, _EVENTS, "CREATE TABLE people (id INT NOT NULL, part STRING NOT NULL, name STRING, "
           f"PRIMARY KEY (id, part) NOT ENFORCED) PARTITIONED BY (part) {_ONE}",
           "INSERT INTO people VALUES (1, 'a', 'Ada'), (2, 'x', 'Xi')"),
        follow(_LOOKUP.replace("{hint}", "") + " AND e.name = p.part", "+I[1, Ada]", "+I[2, null]"),
    )),
    FlinkScenario("lookup join that inserts missing keys", (
        do(_LOG, "CREATE TABLE people (id INT NOT NULL, name BIGINT, PRIMARY KEY (id) NOT ENFORCED) "
           "WITH ('bucket.num' = '1', 'auto-increment.fields' = 'name')",
           "INSERT INTO events VALUES (5, 'a'), (6, 'b'), (5, 'c')"),
        follow(_LOOKUP.replace("{hint}", _hint(**{"lookup_insert-if-not-exists": "true", "lookup_async": "false"})),
               "+I[5, 1]", "+I[6, 2]", "+I[5, 1]"),
        show("SELECT * FROM people LIMIT 5", "+I[5, 1]", "+I[6, 2]"),
    )),
    FlinkScenario("partial update", (
        do(_KEYED, "INSERT INTO people (id, name) VALUES (1, 'Ada')", "INSERT INTO people (id, age) VALUES (1, 36)"),
        show("SELECT * FROM people WHERE id = 1", "+I[1, Ada, 36]"),
        follow(f"SELECT * FROM people {_EARLIEST}", "+I[1, Ada, null]", "-U[1, Ada, null]", "+U[1, Ada, 36]"),
    )),
    FlinkScenario("changelog through an aggregation", (
        do(_KEYED, _PEOPLE),
        follow(f"SELECT COUNT(*), SUM(age) FROM people {_EARLIEST}",
               "+I[1, 36]", "-U[1, 36]", "+U[2, 56]", "-U[2, 56]", "+U[1, 36]", "-U[1, 36]", "+U[2, 57]",
               then=(_OLDER,)),
    )),
    FlinkScenario("a job from table to table", (
        do(_LOG, _KEYED, _EVENTS),
        start("INSERT INTO people (id, name) SELECT id, name FROM events"),
        follow(f"SELECT id, name FROM people {_EARLIEST}", "+I[1, a]", "+I[2, b]", "-U[1, a]", "+U[1, c]",
               then=("INSERT INTO events VALUES (1, 'c')",)),
    )),
    FlinkScenario("added columns, log table", (
        do(_LOG, _EVENTS, "ALTER TABLE events ADD extra INT", "INSERT INTO events VALUES (3, 'c', 30)"),
        follow("SELECT * FROM events", "+I[1, a, null]", "+I[2, b, null]", "+I[3, c, 30]"),
    )),
    FlinkScenario("added columns, primary-key table", (
        do(_KEYED, _PEOPLE, "ALTER TABLE people ADD extra INT", "INSERT INTO people VALUES (1, 'Ada', 36, 10)"),
        show("SELECT * FROM people WHERE id = 2", "+I[2, Bob, 20, null]"),
        show("SELECT id, extra FROM people LIMIT 5", "+I[1, 10]", "+I[2, null]"),
        follow(f"SELECT * FROM people {_EARLIEST}", "+I[1, Ada, 36, null]", "+I[2, Bob, 20, null]",
               "-U[1, Ada, 36, null]", "+U[1, Ada, 36, 10]"),
    )),
    FlinkScenario("added columns, projected over older rows", (
        do(_LOG, _EVENTS, "ALTER TABLE events ADD extra INT", "INSERT INTO events VALUES (3, 'c', 30)"),
        follow("SELECT id, extra FROM events", "+I[1, null]", "+I[2, null]", "+I[3, 30]"),
    ), fails={_REAL: ("Projected fields", "it refuses to project a column that a batch does not have")}),
    FlinkScenario("partitions", (
        do(f"CREATE TABLE parts (id INT, part STRING) PARTITIONED BY (part) {_ONE}",
           "ALTER TABLE parts ADD PARTITION (part = 'a')", "INSERT INTO parts VALUES (1, 'a'), (2, 'b')"),
        show("SHOW PARTITIONS parts", "+I[part=a]", "+I[part=b]"),
        follow("SELECT * FROM parts WHERE part = 'b'", "+I[2, b]"),
        follow(f"SELECT * FROM parts {_hint(scan_partition_discovery_interval='1 s')} WHERE part <> 'a'",
               "+I[2, b]", "+I[3, c]", then=("INSERT INTO parts VALUES (3, 'c')",)),
        do("ALTER TABLE parts DROP PARTITION (part = 'a')"),
        show("SHOW PARTITIONS parts", "+I[part=b]", "+I[part=c]"),
    )),
    *(FlinkScenario(f"merge engine {engine}", (
        do("CREATE TABLE m (id INT NOT NULL, v BIGINT, PRIMARY KEY (id) NOT ENFORCED) "
           f"WITH ('bucket.num' = '1', 'table.merge-engine' = '{engine}'{more})",
           "INSERT INTO m VALUES (1, 5)", "INSERT INTO m VALUES (1, 7)", "INSERT INTO m VALUES (1, 6)"),
        show("SELECT * FROM m WHERE id = 1", f"+I[1, {value}]"),
    )) for engine, more, value in (
        ("first_row", "", 5),
        ("versioned", ", 'table.merge-engine.versioned.ver-column' = 'v'", 7),
        ("aggregation", ", 'fields.v.agg' = 'sum'", 18),
    )),
    FlinkScenario("$changelog and $binlog", (
        do(_KEYED, _PEOPLE, _OLDER, "DELETE FROM people WHERE id = 1"),
        follow("SELECT _change_type, _log_offset, id, age FROM people$changelog",
               "+I[insert, 0, 1, 36]", "+I[insert, 1, 2, 20]", "+I[update_before, 2, 2, 20]",
               "+I[update_after, 3, 2, 21]", "+I[delete, 4, 1, 36]"),
        follow("SELECT _change_type, `before`, `after` FROM people$binlog",
               "+I[insert, null, +I[1, Ada, 36]]", "+I[insert, null, +I[2, Bob, 20]]",
               "+I[update, +I[2, Bob, 20], +I[2, Bob, 21]]", "+I[delete, +I[1, Ada, 36], null]"),
    )),
    FlinkScenario("SASL", (
        do(_LOG, _EVENTS),
        follow("SELECT * FROM events", "+I[1, a]", "+I[2, b]"),
    ), sasl=True),
    FlinkScenario("access rules by procedures", (
        do("CALL sys.add_acl('CLUSTER', 'ALLOW', 'User:flink', 'READ', '*')"),
        show("CALL sys.list_acl('ANY', 'ANY', 'User:flink')",
             '+I[resource="cluster";permission="ALLOW";principal="User:flink";operation="READ";host="*"]'),
        do("CALL sys.drop_acl('ANY', 'ANY', 'User:flink', 'ANY', 'ANY')"),
        show("CALL sys.list_acl('ANY', 'ANY', 'User:flink')"),
    )),
    FlinkScenario("tiering and union read, log table", (
        do(f"CREATE TABLE events (id INT, name STRING) WITH ('bucket.num' = '1', {_LAKE})", _EVENTS), TIER,
        until("SELECT id, name FROM events$lake", "+I[1, a]", "+I[2, b]"), Step("stop"),
        do("INSERT INTO events VALUES (3, 'c')"),
        show("SELECT * FROM events", "+I[1, a]", "+I[2, b]", "+I[3, c]"),
        show("SELECT id, name FROM events$lake", "+I[1, a]", "+I[2, b]"),
        follow("SELECT * FROM events", "+I[1, a]", "+I[2, b]", "+I[3, c]"),
    )),
    FlinkScenario("tiering and union read, primary-key table", (
        do(_KEYED.replace("'1')", f"'1', {_LAKE})"), _PEOPLE), TIER,
        until("SELECT id, age FROM people$lake", "+I[1, 36]", "+I[2, 20]"), Step("stop"),
        do(_OLDER, "INSERT INTO people VALUES (3, 'Cem', 50)", "DELETE FROM people WHERE id = 1"),
        show("SELECT * FROM people", "+I[2, Bob, 21]", "+I[3, Cem, 50]"),
        show("SELECT id, age FROM people$lake", "+I[1, 36]", "+I[2, 20]"),
    )),
    FlinkScenario("tiering and union read, partitioned table", (
        do(f"CREATE TABLE parts (id INT, part STRING) PARTITIONED BY (part) WITH ('bucket.num' = '1', {_LAKE})",
           "INSERT INTO parts VALUES (1, 'a'), (2, 'b')"), TIER,
        until("SELECT id, part FROM parts$lake", "+I[1, a]", "+I[2, b]"), Step("stop"),
        do("INSERT INTO parts VALUES (3, 'b'), (4, 'c')"),
        show("SELECT * FROM parts", "+I[1, a]", "+I[2, b]", "+I[3, b]", "+I[4, c]"),
    )),
)  # fmt: skip


def make_server(name: str, logs: Path, warehouse: Path, jars: str = "") -> Server:
    """A server whose lake is a Paimon warehouse in the folder, which Flink reads too.

    `jars` has Paimon and the lake plugin for a real server, where Maven Central has none of that version.
    """
    lake = {
        "datalake.format": "paimon",
        "datalake.paimon.metastore": "filesystem",
        "datalake.paimon.warehouse": str(warehouse),
    }
    if name == "ours":
        return OurServer(lake, keep_logs_in=logs)
    version = name.removeprefix("fluss-")
    jars = jars or environment.lake_jars(version)
    return RealCluster(version, tablets=1, options=lake, extra_jars=jars, keep_logs_in=logs)


class Session:
    """One scenario on one server: its own database and catalog, one deadline for all steps."""

    def __init__(self, server: Server, peer: Peer, warehouse: Path, *, sasl: bool) -> None:
        self.server, self.peer, self.warehouse = server, peer, warehouse
        self._deadline = time.monotonic() + SCENARIO_S_MAX
        self._marked = ""
        options = {"type": "fluss", "bootstrap.servers": server.sasl if sasl else server.plain}
        if sasl:
            options |= {
                "client.security.protocol": "sasl",
                "client.security.sasl.mechanism": "PLAIN",
                "client.security.sasl.username": "admin",
                "client.security.sasl.password": USERS["admin"],
            }
        listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        self._call("connect", catalog=f"CREATE CATALOG fluss_catalog WITH ({listed})")
        self.database = f"flink_{next(_counter)}_{int(time.time()) % 100000}"
        self._sql(f"CREATE DATABASE {self.database}")
        self._use(self.database)
        time.sleep(0.5)  # the real coordinator may miss a table that is created right after its database

    def _use(self, database: str) -> None:
        for mode in ("batch", "streaming"):
            self._call("sql", sql=f"USE {database}", mode=mode)

    def run(self, one: FlinkScenario) -> None:
        try:
            for number, step in enumerate(one.steps, 1):
                try:
                    getattr(self, f"_{step.kind}")(step)
                except PeerError as error:
                    raise Mismatch(f"step {number}: {' '.join(step.sql)[:200]}: {error.message}") from error
        finally:
            if self.peer.alive:
                self._call("stop")
        self._use("fluss")
        self._sql(f"DROP DATABASE {self.database} CASCADE")

    def _call(self, op: str, **arguments: Any) -> Any:
        left = self._deadline - time.monotonic()
        return self.peer.call(op, timeout_s=max(left, 0.1), **arguments)

    def _sql(self, statement: str) -> list[str]:
        return self._call("sql", sql=statement.replace("{mark}", self._marked), mode="batch")  # type: ignore[no-any-return]

    def _do(self, step: Step) -> None:
        for statement in step.sql:
            self._sql(statement)

    def _show(self, step: Step) -> None:
        same(sorted(self._sql(step.sql[0])), sorted(step.rows), step.sql[0])

    def _until(self, step: Step) -> None:
        while sorted(self._sql(step.sql[0])) != sorted(step.rows):
            if time.monotonic() > self._deadline - 20:
                self._show(step)
            time.sleep(1)

    def _follow(self, step: Step) -> None:
        found = self._call(
            "follow",
            sql=step.sql[0].replace("{mark}", self._marked),
            want=len(step.rows),
            then=list(step.then),
            idle_ms=_IDLE_MS,
            quiet_ms=_QUIET_MS,
            start_wait_ms=_START_WAIT_MS,
        )
        same(found, list(step.rows), step.sql[0])

    def _refused(self, step: Step) -> None:
        try:
            found = self._sql(step.sql[0])
        except PeerError as error:
            if step.rows[0] not in error.message:
                raise
        else:
            raise Mismatch(f"{step.sql[0]}: gave {found}, expected a refusal")

    def _replay(self, step: Step) -> None:
        [created] = self._sql(f"SHOW CREATE TABLE {step.sql[0]}")
        self._sql(f"DROP TABLE {step.sql[0]}")
        self._sql(created.removeprefix("+I[").removesuffix("]"))
        [again] = self._sql(f"SHOW CREATE TABLE {step.sql[0]}")
        lines = (
            sorted(line.rstrip(",") for line in text.splitlines()) for text in (again, created)
        )  # options: any order
        same(next(lines), next(lines), "the table created from its own DDL")

    def _mark(self, step: Step) -> None:
        time.sleep(0.1)
        self._marked = str(int(time.time() * 1000))
        time.sleep(0.1)

    def _snapshot(self, step: Step) -> None:
        asyncio.run(asyncio.wait_for(self._wait_for_snapshot(), self._deadline - time.monotonic()))

    async def _wait_for_snapshot(self) -> None:
        config = fluss.Config({"bootstrap.servers": self.server.plain})
        path = fluss.TablePath(self.database, "people")
        async with await fluss.aio.FlussConnection.create(config) as connection:
            admin = connection.get_admin()
            [end] = (await admin.list_offsets(path, [0], fluss.OffsetSpec.latest())).values()
            while [one.log_offset for one in await admin.get_latest_kv_snapshots(path)] != [end]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)

    def _start(self, step: Step) -> None:
        self._call("start", sql=step.sql[0])

    def _stop(self, step: Step) -> None:
        self._call("stop")

    def _tier(self, step: Step) -> None:
        self._call(
            "tier",
            format="paimon",
            fluss={"bootstrap.servers": self.server.plain, "tiering.poll.table.interval": "1 s"},
            lake={"metastore": "filesystem", "warehouse": str(self.warehouse)},
        )
